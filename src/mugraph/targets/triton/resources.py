"""What the kernels of the Triton target take of a GPU, as Triton's compiler says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mugraph.targets.machine import KernelResources
from mugraph.targets.triton import TileKernel, TileLaunch
from mugraph.targets.triton.machine import Triton


def kernel_resources(machine: Triton, launches: Sequence[TileLaunch], sources: Mapping[str, str]) -> tuple[KernelResources, ...]:
    """Those of every kernel that is launched, in order; raises what `Triton.compiled` raises."""
    return tuple(_of_kernel(machine, launch.kernel, sources) for launch in launches)


def _of_kernel(machine: Triton, kernel: TileKernel, sources: Mapping[str, str]) -> KernelResources:
    compiled = machine.compiled(kernel, sources)
    return KernelResources(
        kernel.name,
        kernel.form.grid or (1,),
        kernel.form.loop,
        kernel.warps * 32,
        compiled.resources.registers,
        compiled.shared_bytes,
        compiled.resources.spill_bytes,
        (),
    )
