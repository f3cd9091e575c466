"""How far a block's results are from exact ones, beside those of a stand-in: of the output's largest value, and of lines' own.

Rows of an output may differ in size by orders of magnitude. A fault that spoils the small ones alone does not show beside the
largest value of all, so each line of a block's elements, along whichever dimension, is judged by its own largest value as well.
Where terms cancel, a line is smaller than its rounding errors; the stand-in errs there alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.verifier.float_report import MULTIPLE

_LINE = 16
"""Elements of a line, at least, that is judged alone: the largest error of fewer may be small in a stand-in by chance."""
_FAINTEST = 2.0**-12
"""Of the output's largest value: lines below may be what is left of terms that cancel, and are not judged alone."""


@dataclass(frozen=True, slots=True)
class Error:
    """The largest error of some elements and that of the stand-in, relative to the largest of them; infinity where a result that
    should be finite is not."""

    error: float
    theirs: float

    @property
    def beyond(self) -> float:
        """By how much it is more than rounding explains where the stand-in, which is finite, errs alike."""
        return self.error - MULTIPLE * self.theirs if self.theirs < np.inf else -np.inf


@dataclass(frozen=True, slots=True)
class BlockErrors:
    """The error of a block's part of an output relative to the output's largest value, and those of lines relative to their own:
    of each dimension that is long enough the line that errs the most beyond the stand-in, if that is more than the tolerance."""

    whole: Error
    lines: tuple[Error, ...]
    tolerance: float

    @classmethod
    def of(cls, exact: Array, results: Array, theirs: Array, dtype: DType, largest: float, tolerance: float) -> BlockErrors:
        """Errors of results and of the stand-in's, arrays of one shape, where the output's type holds the exact values."""
        ours, own = (_deviations(exact, array, dtype) for array in (results, theirs))
        whole = Error(float(np.max(ours, initial=0.0)) / largest, float(np.max(own, initial=0.0)) / largest)
        sizes = np.where(dtype.holds(exact), np.abs(exact), 0.0)
        lines = (
            _worst(sizes.max(axis=dim), ours.max(axis=dim), own.max(axis=dim), _FAINTEST * largest, tolerance)
            for dim, size in enumerate(exact.shape)
            if size >= _LINE
        )
        return cls(whole, tuple(line for line in lines if line is not None), tolerance)

    @property
    def fault(self) -> str:
        """By what the results err, if rounding does not explain it; nothing otherwise."""
        judged = ((self.whole, "its largest value"), *((line, "the largest value of a line") for line in self.lines))
        found = (f"{error.error:.3g} of {of}, its stand-in by {error.theirs:.3g}" for error, of in judged if self._exceeds(error))
        return next(found, "")

    def _exceeds(self, error: Error) -> bool:
        return error.error > self.tolerance and error.beyond > 0


def _deviations(exact: Array, results: Array, dtype: DType) -> Array:
    """Distances from exact values: infinity for a result that is not finite, 0 where the type does not hold the exact one."""
    with np.errstate(all="ignore"):
        found = np.abs(np.asarray(results, np.float64) - exact)
    return np.where(dtype.holds(exact), np.where(np.isnan(found), np.inf, found), 0.0)


def _worst(scales: Array, ours: Array, theirs: Array, least: float, tolerance: float) -> Error | None:
    """Of lines with these largest values and errors, above the tolerance, the one that errs the most beyond the stand-in; lines
    without a value of `least` do not count. None where no line is left."""
    counted = scales >= least
    errors, own = (array[counted] / scales[counted] for array in (ours, theirs))
    lines = (Error(float(error), float(their)) for error, their in zip(errors, own, strict=True) if error > tolerance)
    return max(lines, key=lambda line: line.beyond, default=None)
