"""The record of a spot check: which blocks of printed kernels were run without their machine, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mugraph.support.schema import expect

_FORM = {"on": str, "ran": int, "blocks": int, "largest_error": (float, None), "missed": str}


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """What running blocks of printed kernels `on` an emulator of their machine showed: `ran` of all `blocks` of their grids."""

    on: str
    ran: int
    blocks: int
    largest_error: float | None
    """Of any output of a kernel against float64, relative to its largest; None where nothing was compared."""
    missed: str
    """Which kernels were not run or compared, and why; empty where each was."""
    fault: str = ""
    """What is wrong with a kernel; empty where nothing is known to be."""

    def to_json(self) -> dict[str, Any]:
        """The evidence as JSON values; kernels with a fault are not kept."""
        return {name: value for name, value in asdict(self).items() if name in _FORM}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SpotCheck:
        """What `to_json` wrote; raises TypeError for anything else."""
        expect(values, _FORM, "spot_check")
        return cls(**{name: values[name] for name in _FORM})
