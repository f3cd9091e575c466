"""What compiled kernels take of a GPU, for reports: registers, shared memory, spills."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelResources:
    """One kernel's launch and what the assembler says of it."""

    name: str
    grid: tuple[int, ...]
    loop: int
    threads: int
    """Of one block."""
    registers: int
    """Of one thread."""
    shared_bytes: int
    """Of one block."""
    spill_bytes: int
    """Stores and loads of registers that did not fit, in the code of one thread."""
    engines: tuple[str, ...]
    """Units beside the threads that it uses: `bulk copies`, `warp groups`."""
