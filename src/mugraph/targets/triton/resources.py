"""What the kernels of the Triton target take of a GPU, as Triton's compiler says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mugraph.targets.machine import KernelResources
from mugraph.targets.triton import TileKernel, TileLaunch
from mugraph.targets.triton.machine import TritonMachine


def kernel_resources(
    machine: TritonMachine, launches: Sequence[TileLaunch], sources: Mapping[str, str]
) -> tuple[KernelResources, ...]:
    """Those of every kernel that is launched, in order; raises what `TritonMachine.compiled` raises."""
    return tuple(_of_kernel(machine, launch.kernel, sources) for launch in launches)


def _of_kernel(machine: TritonMachine, kernel: TileKernel, sources: Mapping[str, str]) -> KernelResources:
    compiled = machine.compiled(kernel, sources)
    return KernelResources(
        kernel.name,
        kernel.form.grid or (1,),
        kernel.form.loop,
        compiled.threads,
        compiled.resources.registers,
        compiled.shared_bytes,
        compiled.resources.spill_bytes,
        (),
    )
