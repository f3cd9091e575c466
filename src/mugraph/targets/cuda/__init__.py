"""The CUDA target: CUDA C++ without headers for NVIDIA GPUs of sm_80 and later."""
