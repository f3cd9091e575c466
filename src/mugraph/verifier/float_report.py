"""What the comparison with float64 found: errors by kind of inputs, and whether they are those of a stable kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.errors import InvalidInput
from mugraph.ir.dtypes import DType

TOLERANCES = {
    DType.FP64: 1e-10,
    DType.FP32: 1e-5,
    DType.FP16: 4e-3,
    DType.BF16: 2e-2,
    DType.BOOL: 1e-5,
    DType.INT8: 1e-5,
    DType.UINT8: 1e-5,
    DType.E4M3: 1e-5,
    DType.E5M2: 1e-5,
}
"""Errors that are never called unstable, by the element type of the output."""

MULTIPLE = 10.0
"""Beyond its tolerance, a candidate may err this many times as much as the program itself does in its own precision."""


@dataclass(frozen=True, slots=True)
class ScaleError:
    """Errors on one kind of inputs, one per output: normal ones of one standard deviation, or an adversarial `pattern`.

    An error is the largest absolute deviation from float64, divided by the output's largest absolute value in float64, or by the
    terms that cancel where float64 cannot tell that from 0.
    `baseline` is that of the program's own evaluation in its precision, where it had to be consulted. Infinity stands
    for results that are not finite where they should be. `compared` says how many elements of each output were compared where it
    was a sample, and is None where it was all of them.
    """

    scale: float
    errors: tuple[float, ...]
    baseline: tuple[float, ...] | None = None
    pattern: str = ""
    compared: tuple[int, ...] | None = None

    @property
    def inputs(self) -> str:
        """The kind of inputs in words."""
        return self.pattern or f"input scale {self.scale:g}"

    def exceeds(self, dtypes: Sequence[DType]) -> bool:
        """Whether an error is above the tolerance of its output's type, so that the program's own has to be consulted."""
        return any(error > TOLERANCES[dtype] for error, dtype in zip(self.errors, dtypes, strict=True))

    def instability(self, dtypes: Sequence[DType]) -> str:
        """Why the candidate is unstable on these inputs, or nothing."""
        own = self.baseline or tuple(0.0 for _ in self.errors)
        for output, (error, base, dtype) in enumerate(zip(self.errors, own, dtypes, strict=True)):
            if error <= TOLERANCES[dtype] or base == math.inf:
                continue
            where = f"output {output} at {self.inputs}"
            if error == math.inf:
                return f"{where} is not finite, where the program's own result is"
            if error > MULTIPLE * base:
                return f"{where} errs by {error:.3g} of its largest value, the program itself by {base:.3g}"
        return ""


@dataclass(frozen=True, slots=True)
class BlockCount:
    """Along an axis, which is dimension `outputs[i]` of output i or, where None, none of it, `chosen` of so many `blocks` were
    computed."""

    outputs: tuple[int | None, ...]
    chosen: int
    blocks: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> BlockCount:
        """Read an entry of a record of floats."""
        outputs, numbers = tuple(record["outputs"]), (record["chosen"], record["blocks"])
        if not all(type(each) is int and each >= 0 for each in (*numbers, *(dim for dim in outputs if dim is not None))):
            raise ValueError(f"{dict(record)} does not count blocks")
        return cls(outputs, *numbers)


@dataclass(frozen=True, slots=True)
class FloatReport:
    """Whether a candidate is numerically `stable`, with the `reason` when it is not, and the errors on all kinds of inputs.

    `dtypes` are those of the outputs. `blamed` says which operator of the candidate adds the most error (on one slice of
    standard normal inputs, or of those it is unstable on), and whether it is rounding to 16 bits between operators instead; it is
    empty where the candidate's muGraph was not given. `elements` is how many each output has. `blocks` are the axes along which
    some blocks alone were computed, by the candidate as well as in float64 (`mugraph.verifier.block_samples`).
    """

    stable: bool
    reason: str
    scales: tuple[ScaleError, ...]
    dtypes: tuple[DType, ...]
    blamed: str = ""
    elements: tuple[int, ...] = ()
    blocks: tuple[BlockCount, ...] = ()

    @property
    def sampled(self) -> tuple[ScaleError, ...]:
        """The kinds of inputs for which a sample of the outputs was compared."""
        return tuple(entry for entry in self.scales if entry.compared is not None)

    @property
    def elements_computed(self) -> tuple[int, ...]:
        """How many elements of each output were computed; raises ValueError where `blocks` are no parts of the outputs."""
        elements = self.elements
        for each in self.blocks:
            cut = [dim is not None for dim in each.outputs]
            divided = all(whole % each.blocks == 0 for whole in itertools.compress(elements, cut))
            if not (0 < each.chosen < each.blocks and len(cut) == len(elements) and any(cut) and divided):
                raise ValueError(f"{each} is not of {len(elements)} outputs")
            elements = tuple(
                whole // each.blocks * each.chosen if is_cut else whole for whole, is_cut in zip(elements, cut, strict=True)
            )
        return elements

    @property
    def max_relative_error(self) -> float:
        """The largest error of any output for inputs of standard deviation 1 (of the nearest scale that was checked)."""
        return max(self._nearest.errors)

    @property
    def error_ratio(self) -> float | None:
        """How many times the program's own error in its precision that is, at most; None where the program makes none."""
        own = self._nearest.baseline or ()
        return max((error / base for error, base in zip(self._nearest.errors, own, strict=False) if base), default=None)

    @property
    def _nearest(self) -> ScaleError:
        normal = [entry for entry in self.scales if not entry.pattern]
        return min(normal, key=lambda entry: abs(math.log(entry.scale)))

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back; null stands for what is not finite, and for what was not consulted."""
        return {
            "stable": self.stable,
            "reason": self.reason,
            "dtypes": [str(dtype) for dtype in self.dtypes],
            "tolerances": [TOLERANCES[dtype] for dtype in self.dtypes],
            "max_relative_error": _number(self.max_relative_error),
            "error_ratio": None if self.error_ratio is None else _number(self.error_ratio),
            "blamed": self.blamed,
            "elements": list(self.elements),
            "blocks": [{"outputs": list(each.outputs), "chosen": each.chosen, "blocks": each.blocks} for each in self.blocks],
            "inputs": [
                {
                    "kind": entry.inputs,
                    "scale": entry.scale,
                    "pattern": entry.pattern,
                    "compared": None if entry.compared is None else list(entry.compared),
                    "errors": list(map(_number, entry.errors)),
                    "own_errors": None if entry.baseline is None else list(map(_number, entry.baseline)),
                }
                for entry in self.scales
            ],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FloatReport:
        """Read what `to_json` wrote. Raises InvalidInput where an entry is missing or contradicts another."""
        try:
            dtypes = tuple(map(DType.parse, record["dtypes"]))
            scales = tuple(_entry(entry, len(dtypes)) for entry in record["inputs"])
            elements = tuple(map(int, record.get("elements", ())))
            blocks = tuple(map(BlockCount.from_json, record.get("blocks", ())))
            report = cls(bool(record["stable"]), str(record["reason"]), scales, dtypes, str(record["blamed"]), elements, blocks)
            stable = not any(entry.instability(dtypes) for entry in scales)
            derived, computed = report.to_json(), report.elements_computed
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"floats: entry missing or of the wrong type ({error})") from None
        if stable != report.stable:
            raise InvalidInput(f"floats: 'stable' is {report.stable}, which does not follow from the errors beside it")
        for entry in report.scales if report.blocks else report.sampled:
            if not _are_some(entry.compared or (), computed):
                raise InvalidInput(f"floats: {entry.compared} are no parts of outputs of {report.elements} elements")
        for name in ("max_relative_error", "error_ratio", "tolerances"):
            if derived[name] != record.get(name):
                raise InvalidInput(f"floats: {name!r} does not follow from the entries beside it")
        return report


def _entry(record: Mapping[str, Any], outputs: int) -> ScaleError:
    own = record["own_errors"]
    errors, baseline = _errors(record["errors"], outputs), None if own is None else _errors(own, outputs)
    some = record.get("compared")
    compared = None if some is None else tuple(map(int, some))
    return ScaleError(float(record["scale"]), errors, baseline, str(record["pattern"]), compared)


def _are_some(compared: Sequence[int], elements: Sequence[int]) -> bool:
    """Whether these are numbers of elements of outputs of so many."""
    return len(compared) == len(elements) and all(0 < some <= whole for some, whole in zip(compared, elements, strict=True))


def _errors(record: Sequence[Any], outputs: int) -> tuple[float, ...]:
    errors = tuple(math.inf if error is None else float(error) for error in record)
    if len(errors) != outputs or not all(error >= 0 for error in errors):
        raise ValueError(f"{record} are no errors of {outputs} outputs")
    return errors


def _number(error: float) -> float | None:
    return error if math.isfinite(error) else None
