"""The table of targets: one row for each kind of machine that kernels are made for, and the modules that make and run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from mugraph.devices.device import NO_ENGINES, Device, all_architectures, any_gpu, architectures, gpu
from mugraph.devices.host import host_cpu
from mugraph.errors import TargetUnavailable
from mugraph.ir.dtypes import DType

_TRITON_TILE_BYTES = 64 * 1024
"""Triton keeps a block's tiles in registers, where they must leave room for what threads compute with them: a quarter of those of
NVIDIA's multiprocessors. AMD's have more, for more blocks; with twice as much for a block, kernels spilled."""


@dataclass(frozen=True, slots=True)
class Target:
    """How kernels are made and run for devices whose names begin with `name`, as in `cuda:sm_90`.

    Modules are given as `module:attribute` and imported when they are first needed: what prints C should not load NVRTC.
    """

    name: str
    device: Callable[[str], Device | None]
    """The device of what stands behind the colon of a target's name; None where it names none."""
    machine: str
    """A class with the interface `mugraph.targets.machine.Machine`."""
    emulator: str | None = None
    """A subclass of `mugraph.targets.emulator.Emulator`, which runs printed kernels on a host without the machine."""
    resources: str | None = None
    """A function from a machine, launches and sources to the `mugraph.targets.machine.KernelResources` of each kernel."""
    architectures: Callable[[], tuple[str, ...]] = lambda: ()
    """What may stand behind the colon."""
    present: str | None = None
    """A function that gives what stands there for the machine that is here; raises TargetUnavailable where there is none."""
    tensors: str = "cpu"
    """The type of the devices of PyTorch on which its kernels take tensors."""

    @property
    def families(self) -> tuple[str, ...]:
        """The architectures without the particular machines of each; none where nothing stands behind the colon."""
        return tuple(dict.fromkeys(each.partition(":")[0] for each in self.architectures()))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of a target of this kind."""
        return tuple(f"{self.name}:{architecture}" for architecture in self.architectures()) or (self.name,)


def load(place: str) -> Any:
    """What stands at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _host(rest: str) -> Device | None:
    return None if rest else host_cpu()


def _cuda_gpu(architecture: str) -> Device | None:
    device = gpu(architecture)
    return None if device is None else replace(device, fp8_products=DType.FP16)


def _triton_gpu(architecture: str) -> Device | None:
    device = any_gpu(architecture)
    if device is None:
        return None
    pipelined = 0.0  # Triton decides which loads run ahead
    return replace(device, shared_memory_bytes=_TRITON_TILE_BYTES, engines=NO_ENGINES, load_seconds=pipelined)


TARGETS = {
    row.name: row
    for row in (
        Target("cpu", _host, "mugraph.targets.cpu.machine:Cpu"),
        Target(
            "cuda",
            _cuda_gpu,
            "mugraph.targets.cuda.machine:Cuda",
            "mugraph.targets.cuda.emulated:EmulatedCuda",
            "mugraph.targets.cuda.resources:kernel_resources",
            architectures,
            "mugraph.targets.gpu:present_architecture",
            tensors="cuda",
        ),
        Target(
            "triton",
            _triton_gpu,
            "mugraph.targets.triton.machine:TritonMachine",
            "mugraph.targets.triton.interpreted:InterpretedTriton",
            "mugraph.targets.triton.resources:kernel_resources",
            all_architectures,
            "mugraph.targets.gpu:present_architecture",
            tensors="cuda",
        ),
    )
}


def target_row(target: str) -> Target:
    """The row of a target's name; raises TargetUnavailable, naming the known families, where there is none."""
    name = str(target).partition(":")[0]
    if name not in TARGETS:
        raise _unknown(target)
    return TARGETS[name]


def resolved(target: str) -> str:
    """The name of a target that means the same elsewhere: `cuda` and `triton` alone are the GPU that is here, as in
    `cuda:sm_90:h200`. Raises TargetUnavailable where there is none."""
    present = TARGETS[target].present if target in TARGETS else None
    return target if present is None else f"{target}:{load(present)()}"


def device_for(target: str) -> Device:
    """The device a target names: `cpu` is this host, `cuda:sm_90` or `triton:sm_90` the usual GPU of that architecture,
    `cuda:sm_90:h200` a particular one, and `cuda` the one that is here. Raises TargetUnavailable naming the known families
    otherwise."""
    target = resolved(target)
    device = target_row(target).device(str(target).partition(":")[2])
    if device is None:
        raise _unknown(target)
    return replace(device, target=target)


def known_targets() -> tuple[str, ...]:
    """Every name `device_for` accepts."""
    return tuple(name for row in TARGETS.values() for name in row.names)


def _unknown(target: str) -> TargetUnavailable:
    rows = [f"{row.name}:ARCH ({', '.join(row.families)})" if row.families else row.name for row in TARGETS.values()]
    families = f"{', '.join(rows[:-1])} or {rows[-1]}"
    return TargetUnavailable(
        f"unknown target {target!r}; use {families}; mugraph.devices.known_targets() has every GPU, as in cuda:sm_90:h200"
    )
