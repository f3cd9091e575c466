"""Rates of this host that `mugraph doctor --measure` found, in the place of those of its instruction set's row of `cpu.json`.

They are a document of the user's store, for a processor and an instruction set. Nothing measures unasked: a program that began
with seconds of timing would have other rates on a busy machine than on a quiet one, hence other searches, and none of its results
would be recalled by a later one. `MUGRAPH_HOST_RATES=table` leaves them aside, and so does `MUGRAPH_CACHE=off`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mugraph.devices.device import RightFactor
from mugraph.errors import InvalidInput
from mugraph.ir.dtypes import DType
from mugraph.support.schema import expect
from mugraph.support.store import Mode, Store, digest_of

KIND = "host"
"""What the store calls them."""
SWITCH = "MUGRAPH_HOST_RATES"
TABLE, MEASURED = "table", "measured"
FORMAT = "1"
_FORM = {
    "about": str,
    "memory": {"bandwidth_per_core": float, "bandwidth_most": float},
    "matmul_flops_per_core": {str: float},
    "products": {str: {str: {str: {str: float}}}},
}
_LEAST, _MOST = 1e8, 1e14
"""Bytes and operations a second of one core or all: others are of a clock that stood still."""
_log = logging.getLogger(__name__)


def processor_name(cpuinfo: Path) -> str:
    """The model of the first core as Linux reports it, with family and stepping, which clouds leave out of names; else ""."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return ""
    fields = dict(line.replace("\t", "").partition(":")[::2] for line in lines)
    return ", ".join(fields[name].strip() for name in ("model name", "cpu family", "model", "stepping") if name in fields)


def measured_rates(processor: str, isa: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was measured of a processor with an instruction set, as entries of a row of the table; None where nothing was, or it
    is switched off. Raises InvalidInput where the switch has another value."""
    switch, store = os.environ.get(SWITCH) or MEASURED, Store.of(None)
    if switch not in (TABLE, MEASURED):
        raise InvalidInput(f"{SWITCH}={switch}: use {TABLE} or {MEASURED}")
    if switch == TABLE or store.mode is Mode.OFF:
        return None
    document = Store(store.directory, Mode.ON).get(KIND, _key(processor, isa))
    if document is None:
        return None
    try:
        _check(document)
    except (TypeError, ValueError, InvalidInput) as error:
        _log.warning("what was measured of this host is left aside (%s); mugraph doctor --measure measures it again", error)
        return None
    return document


def keep_measured(processor: str, isa: Mapping[str, Any], rates: Mapping[str, Any]) -> None:
    """Keep what was measured, unless the store is off. Raises ValueError or TypeError for what no machine can have."""
    _check(rates)
    Store.of(None).put(KIND, _key(processor, isa), rates)


def _key(processor: str, isa: Mapping[str, Any]) -> str:
    return digest_of(FORMAT, processor, str(isa["name"]))


def _check(rates: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError, naming the entry, unless rates are such as a machine can have."""
    expect(dict(rates), _FORM, KIND)
    speeds = {**rates["memory"], **rates["matmul_flops_per_core"]}
    for name, speed in speeds.items():
        if not _LEAST <= speed <= _MOST:
            raise ValueError(f"{name} is {speed:.3g} a second")
    for name in rates["matmul_flops_per_core"]:
        DType.parse(name)
    for kind, both in rates["products"].items():
        if kind not in tuple(RightFactor) or not set(both) <= {"kernels", "library"}:
            raise ValueError(f"there are no products by {kind} factors, made by {', '.join(both)}")
        for who, types in both.items():
            for dtype, shares in types.items():
                DType.parse(dtype)
                if not shares or not all(int(rows) > 0 and 0 < share <= 1 for rows, share in shares.items()):
                    raise ValueError(f"products of {dtype} by {kind} factors have shares {shares} ({who})")
