"""Ways into mugraph through PyTorch: the torch.compile backend, torch operators, sizes known only at the call."""
