"""GPUs by architecture and by model, as the files of this package describe them."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from mugraph.devices.device import Device
from mugraph.devices.engines import Engines
from mugraph.ir.dtypes import DType

_GPU_FILES = ("a100.json", "h100.json", "h200.json", "b200.json")


def gpu(architecture: str) -> Device | None:
    """The usual GPU of an architecture such as `sm_90`, or a particular one such as `sm_90:h200`; None for an unknown one."""
    return _gpus().get(architecture)


def architectures() -> tuple[str, ...]:
    """Every architecture, and every architecture with a model, that there is a description of."""
    return tuple(_gpus())


@cache
def _gpus() -> dict[str, Device]:
    folder = resources.files("mugraph.devices")
    gpus: dict[str, Device] = {}
    for file in _GPU_FILES:
        description = json.loads((folder / file).read_text(encoding="utf-8"))
        for architecture in description["architectures"]:
            gpus[architecture] = _described(description)
    return gpus


def _described(description: dict[str, Any]) -> Device:
    fields = {key: value for key, value in description.items() if key not in ("architectures", "sources")}
    fields["matmul_flops"] = {DType.parse(dtype): float(rate) for dtype, rate in fields["matmul_flops"].items()}
    engines = Engines(**fields.pop("engines", {}))
    return Device(target="", engines=engines, **fields)
