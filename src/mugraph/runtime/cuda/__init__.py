"""The CUDA target at run time: compile with NVRTC, launch on a GPU, or run the same text on a CPU and check it."""

from mugraph.runtime.cuda.nvrtc import Cubin, Resources, compile_cubin

__all__ = ["Cubin", "Resources", "compile_cubin"]
