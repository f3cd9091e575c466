"""From a target's name to the device it stands for."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from mugraph.devices.device import Device
from mugraph.devices.engines import NO_ENGINES, Engines
from mugraph.devices.host import host_cpu
from mugraph.errors import TargetUnavailable
from mugraph.ir.dtypes import DType

GPU_BACKENDS = ("cuda", "triton")
_TRITON_REGISTER_PARTS = 4
"""Triton keeps a block's tiles in registers, where they must leave room for what threads compute with them."""
_GPU_FILES = ("a100.json", "h100.json", "h200.json", "b200.json")


def device_for(target: str) -> Device:
    """The device a target names: `cpu` is this host, `cuda:sm_90` or `triton:sm_90` the usual GPU of that architecture,
    `cuda:sm_90:h200` a particular one. Raises TargetUnavailable naming the known targets otherwise."""
    if target == "cpu":
        return host_cpu()
    backend, _, architecture = str(target).partition(":")
    gpus = _gpus()
    if backend not in GPU_BACKENDS or architecture not in gpus:
        raise TargetUnavailable(f"unknown target {target!r}; use one of {', '.join(known_targets())}")
    device = replace(gpus[architecture], target=target)
    if backend == "triton":
        return replace(device, shared_memory_bytes=device.register_bytes // _TRITON_REGISTER_PARTS, engines=NO_ENGINES)
    return device


def known_targets() -> tuple[str, ...]:
    """Every name `device_for` accepts."""
    return ("cpu", *(f"{backend}:{architecture}" for backend in GPU_BACKENDS for architecture in _gpus()))


@cache
def _gpus() -> dict[str, Device]:
    """GPUs by architecture, as in `sm_90`, and by architecture and model, as in `sm_90:h200`."""
    folder = resources.files("mugraph.devices")
    gpus: dict[str, Device] = {}
    for file in _GPU_FILES:
        description = json.loads((folder / file).read_text(encoding="utf-8"))
        for architecture in description["architectures"]:
            gpus[architecture] = _gpu(description)
    return gpus


def _gpu(description: dict[str, Any]) -> Device:
    fields = {key: value for key, value in description.items() if key not in ("architectures", "sources")}
    fields["matmul_flops"] = {DType.parse(dtype): float(rate) for dtype, rate in fields["matmul_flops"].items()}
    engines = Engines(**fields.pop("engines", {}))
    return Device(target="", engines=engines, **fields)
