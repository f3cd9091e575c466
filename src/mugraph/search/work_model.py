"""The work of operators and sketches at full size: the order in which derivations are listed and scheduled.

It knows neither grids nor loops. How many steps of each kind a sketch has does not depend on sizes, so the sketches of a
structure are counted once, and put in order for other sizes or another device by one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mugraph.devices import Device
from mugraph.ir.axes import AxisSet
from mugraph.ir.dtypes import DType
from mugraph.ir.ops import OPERATORS
from mugraph.search.closure.context import bits
from mugraph.search.closure.saturation import Closure, Edge
from mugraph.search.closure.sketch import Sketch, Step, sums

_TICKS_PER_SECOND = 1e15
"""Sketches are compared in whole femtoseconds, whose sums do not depend on the order of steps: what ties, ties anywhere."""

_MOST_TICKS = 2**53

_PRODUCTS = frozenset({"contract", "concat_contract"})
"""Steps that run at the device's matmul rate."""


@dataclass(frozen=True, slots=True)
class WorkModel:
    """Cost of a program's operators at full size on a whole device.

    `sizes` are those of the axes, `widths` the bytes of an element by source; rates are per second.
    """

    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    memory_bandwidth: float
    matmul_flops: float
    vector_flops: float

    @classmethod
    def of(
        cls, sizes: tuple[int, ...], widths: Sequence[int], device: Device, dtype: DType, read: Sequence[DType] = ()
    ) -> WorkModel:
        """The work of a program with outputs of `dtype` on a device, whose inputs, if their types are known, are `read`."""
        rate = device.best_product_rate(read, dtype)
        return cls(sizes, tuple(widths), device.memory_bandwidth, rate, device.vector_flops)

    def per_point(self, op: str, source: int | None = None) -> float:
        """Seconds per point of an operator's iteration space; of a load, per element read from `source`."""
        if source is not None:
            return self.widths[source] / self.memory_bandwidth
        return operations(op) / (self.matmul_flops if op in _PRODUCTS else self.vector_flops)

    def of_edge(self, closure: Closure, edge: Edge) -> float:
        """Seconds of one edge of a closure."""
        nodes, each = closure.nodes, self.per_point(edge.op, None if edge.leaf is None else edge.leaf.source)
        summed = sums(edge.op, edge.reduced, [nodes[operand].mask for operand in edge.inputs])
        return each * sum(self._points(nodes[edge.target].mask | parts) for parts in summed)

    def _points(self, parts: int) -> int:
        """Points of a program over some parts of its axes."""
        return math.prod(self.sizes[axis] for axis in bits(parts) if axis < len(self.sizes))

    def cheapest_first(self, sketches: tuple[Sketch, ...]) -> list[Sketch]:
        """Sketches by the work of all their steps, whatever sizes they were found at; those of equal work in their order."""
        kinds, axes, counts = _steps_by_kind(sketches, len(self.sizes))
        points = np.where(axes, self.sizes, 1.0).prod(axis=1)
        seconds = points * [self.per_point(kind.op, kind.source) for kind in kinds]
        ticks = np.minimum(seconds * _TICKS_PER_SECOND, _MOST_TICKS).round().astype(np.int64)
        return [sketches[index] for index in np.argsort(counts @ ticks, kind="stable")]


class _Kind(NamedTuple):
    """What the work of a step, or of one of its sums, depends on: the operator, the axes it runs over, and what is loaded."""

    op: str
    axes: AxisSet
    source: int | None


@cache
def operations(op: str) -> float:
    """Operations per point of an operator."""
    if op in _PRODUCTS:
        return 2.0
    row = OPERATORS.get(op)
    return float(row.cost) if row is not None and row.elementwise else 1.0


@lru_cache(maxsize=1 << 12)
def _steps_by_kind(
    sketches: tuple[Sketch, ...], axes: int
) -> tuple[tuple[_Kind, ...], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """The kinds of steps, a mask of the axes that each runs over, [kinds, axes], and their numbers, [sketches, kinds]."""
    column: dict[_Kind, int] = {}
    rows = [
        [column.setdefault(kind, len(column)) for step in sketch.steps for kind in _kinds(step, sketch.steps)]
        for sketch in sketches
    ]
    counts = np.zeros((len(sketches), len(column)), dtype=np.int64)
    for index, row in enumerate(rows):
        np.add.at(counts[index], row, 1)
    runs_over = [[axis in kind.axes for axis in range(axes)] for kind in column]
    return tuple(column), np.array(runs_over, dtype=bool).reshape(len(column), axes), counts


def _kinds(step: Step, steps: Sequence[Step]) -> Iterator[_Kind]:
    """An accumulator works once on each of its tensor's elements, whatever it sums up in the loop."""
    source = None if step.leaf is None else step.leaf.source
    # by name: the steps that add up iterations, of all that the accumulator row may do
    if step.op in ("accumulate", "rescale"):
        yield _Kind(step.op, step.axes, source)
        return
    for axes in sums(step.op, step.reduced, [steps[operand].axes for operand in step.inputs]):
        yield _Kind(step.op, step.axes | axes, source)
