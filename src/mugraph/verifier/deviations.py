"""How far results are from exact values: the element that errs the most, found block by block, in the cache.

The comparison with float64 reads every element of every output several times over, so that what it does per element is most of
what it costs. Exact values may be broadcast along dimensions in which they repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mugraph.algebra.modular import blocks
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType

_BLOCK = 1 << 15
"""Elements that are compared at once."""

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Farthest:
    """The largest deviation there is (infinity for a result that is not finite where it should be), and where it is."""

    deviation: float
    index: Index


@dataclass(frozen=True, slots=True)
class Measure:
    """What the errors of an output are relative to: its `largest` finite exact value, or the `terms` that cancel in all of them;
    and the type it is stored in."""

    largest: float
    dtype: DType
    terms: float | None = None

    @classmethod
    def of(cls, exact: Array, dtype: DType) -> Measure:
        """The measure of these exact values."""
        largest = float(np.maximum(exact.max(initial=0.0), -exact.min(initial=0.0)))
        if not np.isfinite(largest):
            largest = float(np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact)))
        return cls(largest, dtype)

    @property
    def overflows(self) -> bool:
        """Whether some finite value is beyond the type's range."""
        return self.largest > self.dtype.largest

    def error(self, deviation: float) -> float:
        """A deviation relative to the largest value, or to the terms; as it is where all values are zero."""
        scale = self.largest if self.terms is None else self.terms
        return deviation / scale if scale else deviation

    def farthest(self, exact: Array, results: Array) -> Farthest:
        """The element that errs the most, of equally shaped arrays: where exact values are finite, and their type holds them.

        Exact values beyond the range count as infinite: no kernel could store them. Where there are such, those within it are
        small differences of large numbers, whose overflow is a matter of rounding: results that are infinite count as the type's
        largest number.
        """
        deviate = self._within_range if self.overflows else _where_finite
        return _farthest(exact, results, deviate)

    def _within_range(self, exact: Array, results: Array) -> Array:
        largest = self.dtype.largest
        stored = np.where(np.isinf(results), np.copysign(largest, results), results).astype(np.float64, copy=False)
        return _masked(np.abs(stored - exact), self.dtype.holds(exact))


def farthest_where_finite(exact: Array, results: Array) -> Farthest:
    """The element that errs the most, of equally shaped arrays, where exact values are finite."""
    return _farthest(exact, results, _where_finite)


def farthest_from_own(own: Array, results: Array, dtype: DType) -> Farthest:
    """The element that is farthest from the program's own result, where that is finite; being close to the end of the type's
    range, it may be infinite."""

    def deviate(own: Array, results: Array) -> Array:
        near = np.isinf(results) & (np.abs(own) >= dtype.largest / 2)
        return _masked(np.abs(np.subtract(results, own, dtype=np.float64)), np.isfinite(own) & ~near)

    def quickly(own: Array, results: Array) -> Array:
        found = np.asarray(np.subtract(results, own, dtype=np.float64))
        np.abs(found, out=found)
        return found if np.isfinite(found.max(initial=0.0)) else deviate(own, results)

    return _farthest(own, results, quickly)


def _where_finite(exact: Array, results: Array) -> Array:
    """Deviations, 0 where the exact value is not finite; quickly where all are."""
    found = np.asarray(np.subtract(results, exact, dtype=np.float64))
    np.abs(found, out=found)
    return found if np.isfinite(found.max(initial=0.0)) else _masked(found, np.isfinite(exact))


def _masked(deviations: Array, counted: Array) -> Array:
    """Deviations where they count and 0 elsewhere; infinity for NaN."""
    found = np.where(counted, deviations, 0.0)
    found[np.isnan(found)] = np.inf
    return found


def _farthest(exact: Array, results: Array, deviate: Callable[[Array, Array], Array]) -> Farthest:
    worst = Farthest(-1.0, (0,) * results.ndim)
    with np.errstate(all="ignore"):
        for block in blocks(results.shape, _BLOCK):
            deviations = deviate(exact[block], results[block])
            place = int(np.argmax(deviations)) if deviations.size else 0
            if deviations.size and (found := float(deviations.flat[place])) > worst.deviation:
                worst = Farthest(found, tuple(_places(block, np.unravel_index(place, deviations.shape))))
    return Farthest(max(0.0, worst.deviation), (*worst.index, *(0,) * (results.ndim - len(worst.index))))


def _places(block: tuple[int | slice, ...], inside: tuple[np.intp, ...]) -> Iterator[int]:
    """Where an element of a block stands in the whole."""
    rest = iter(inside)
    for part in block:
        yield part if isinstance(part, int) else int(part.start + next(rest))
    yield from map(int, rest)
