"""What every layer may use and that knows nothing of tensors: deadlines, progress, files that outlive a process."""
