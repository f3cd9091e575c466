"""What compiled kernels take of a GPU, for reports: registers, shared memory, spills."""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.lower.tile_form import Kernel
from mugraph.lower.warp_groups import uses_warp_groups
from mugraph.runtime.cuda.machine import Cuda
from mugraph.runtime.cuda.nvrtc import SOURCE_NAME, compile_cubin
from mugraph.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class KernelFigures:
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


def kernel_figures(executable: Executable) -> tuple[KernelFigures, ...]:
    """The figures of every generated kernel, in order of launch; none for a target other than cuda."""
    machine = executable.machine
    if not isinstance(machine, Cuda) or not executable.sources:
        return ()
    resources = compile_cubin(executable.sources[SOURCE_NAME], machine.architecture).resources
    return tuple(
        KernelFigures(
            kernel.name,
            kernel.grid,
            kernel.loop,
            kernel.threads,
            resources[kernel.name].registers,
            kernel.shared_bytes,
            resources[kernel.name].spill_bytes,
            _engines(kernel),
        )
        for kernel in executable.kernels
    )


def _engines(kernel: Kernel) -> tuple[str, ...]:
    used = {"bulk copies": kernel.ring is not None and kernel.ring.bulk, "warp groups": uses_warp_groups(kernel)}
    return tuple(name for name, is_used in used.items() if is_used)
