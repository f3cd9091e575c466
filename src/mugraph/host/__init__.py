"""What kernels meet on the host: arrays of NumPy and PyTorch behind one interface, the thread pool, compiled objects."""
