"""What the kernels of the CUDA target take of a GPU, as its assembler says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mugraph.lower import Launch
from mugraph.lower.tensor_maps import tensor_maps
from mugraph.lower.tile_form import Kernel
from mugraph.lower.warp_groups import uses_warp_groups
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import SOURCE_NAME, compile_cubin
from mugraph.targets.machine import KernelResources


def kernel_resources(machine: Cuda, launches: Sequence[Launch], sources: Mapping[str, str]) -> tuple[KernelResources, ...]:
    """Those of every kernel that is launched, in order; raises what `compile_cubin` raises."""
    resources = compile_cubin(sources[SOURCE_NAME], machine.architecture).resources
    return tuple(
        KernelResources(
            kernel.name,
            kernel.grid,
            kernel.loop,
            kernel.launched_threads,
            resources[kernel.name].registers,
            kernel.shared_bytes,
            resources[kernel.name].spill_bytes,
            _engines(kernel),
        )
        for kernel in (launch.kernel for launch in launches)
    )


def _engines(kernel: Kernel) -> tuple[str, ...]:
    bulk, maps = kernel.ring is not None and kernel.ring.bulk, bool(tensor_maps(kernel))
    used = {"bulk copies": bulk and not maps, "tensor maps": maps, "warp groups": uses_warp_groups(kernel)}
    return tuple(name for name, is_used in used.items() if is_used)
