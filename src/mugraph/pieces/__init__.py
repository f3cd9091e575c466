"""Functions that are no program as a whole: programs, which run as kernels, and PyTorch's own calls between them."""
