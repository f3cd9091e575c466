"""What compiled Triton kernels take of a GPU, for reports: registers, shared memory, spills."""

from __future__ import annotations

from mugraph.runtime.cuda.resources import KernelFigures
from mugraph.runtime.executable import Executable
from mugraph.runtime.triton.machine import Triton


def triton_figures(executable: Executable) -> tuple[KernelFigures, ...]:
    """The figures of every generated kernel, in order of launch; none for a target other than triton."""
    machine = executable.machine
    if not isinstance(machine, Triton) or not executable.sources:
        return ()
    figures = []
    for launch in machine.lower(executable.graph).values():
        kernel = launch.kernel
        compiled = machine.compiled(kernel, executable.sources)
        resources = compiled.resources
        figures.append(
            KernelFigures(
                kernel.name,
                kernel.body.grid or (1,),
                kernel.body.loop,
                kernel.warps * 32,
                resources.registers,
                compiled.shared_bytes,
                resources.spill_bytes,
                (),
            )
        )
    return tuple(figures)
