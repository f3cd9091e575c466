"""The CUDA target: CUDA C++ without headers for NVIDIA GPUs of sm_80 and later."""

from mugraph.targets.cuda.printer import print_program

__all__ = ["print_program"]
