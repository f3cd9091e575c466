"""Triton kernels on this machine: compiled for a GPU that need not be here, launched where it is, interpreted anywhere."""
