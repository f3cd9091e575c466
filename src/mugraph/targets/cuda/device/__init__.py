"""The functions that generated CUDA kernels call: one interface, defined by PTX for GPUs and by emulation for CPUs."""

from __future__ import annotations

from functools import cache

from mugraph.targets.c_text import packaged_text
from mugraph.targets.cuda.device.wgmma import wgmma_products


@cache
def interface() -> str:
    """Declarations and documentation of every device function; `mugraph.targets.cuda` holds the emulated definitions."""
    return packaged_text(__package__, "interface.h")


@cache
def ptx_functions() -> str:
    """CUDA C++ text to put before kernels for NVRTC: the interface and its definitions by inline PTX (sm_80 or later)."""
    return "\n".join((interface(), packaged_text(__package__, "ptx.h"), wgmma_products()))
