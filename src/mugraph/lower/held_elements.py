"""Statements that stop where an input ends: of a tile that the input ends within they compute what is held, and nothing else.

Behind the end a copy of such a tile has 0, and so have masks. What statements make of that follows by the arithmetic of known
elements. Where every reduction along the axis meets its neutral element there, nobody needs these elements, nor the copy
(docs/theory.md, "Lengths as arguments").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.ir.known_elements import Known, KnownArithmetic, States
from mugraph.ir.ops import OPERATORS, Call
from mugraph.ir.scalar import Scalar
from mugraph.lower.phases import Phase
from mugraph.lower.places import Index
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source
from mugraph.lower.tile_form import Combine, Elementwise, Kernel, Matmul, Reduce, Scan, Statement, Tile

_ROWS = {row.scalar: row for row in reversed(OPERATORS.values()) if row.scalar is not None}
_NEUTRAL = {Combine.SUM: Known.ZERO, Combine.MAX: Known.HIDDEN}
_SUMMED = (-1, -2)
"""The dimensions of a product's factors that are summed over."""
_ARITHMETIC = KnownArithmetic()

Along = Callable[[Tile], tuple[Sequence[int], Index]]
"""How far a step along each dimension of a tile goes along the axis of its buffer, and where the tile starts there."""


@dataclass(frozen=True, slots=True)
class AxisTiles:
    """The inputs that have an axis, and how their tiles lie along it: all start at `start` and have `extent` elements of it."""

    along: Mapping[str, Along]
    start: Index
    extent: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """A statement that stops where inputs end along a dimension of its points: one of its target's, or behind these the one that
    it reduces or sums over. None if it does not stop."""

    statement: Statement
    dim: int | None


class _Crossed(Exception):
    """A statement reads or writes along the axis in a way that has no end."""


def stopping(tiles: AxisTiles, kernel: Kernel, phase: Phase, neutral: bool = True) -> tuple[Stopping, ...] | None:
    """The statements of a phase, each with the dimension of its points along which it may stop where the inputs end.

    None where that might change what others read. With `neutral` it is looked at whether reductions meet neutral elements behind
    the end. Where elements are added to others one by one, 0 is written there before.
    """
    others = [statement for each in Phase if each is not phase for statement in kernel.of_phase(each)]
    outside = {tile.buffer for statement in others for tile in (statement.target, *statement.sources)}
    walk = _Walk(tiles, {*outside, *kernel.outputs}, neutral, _constants(kernel))
    try:
        found = [Stopping(statement, walk.visited(statement)) for statement in kernel.of_phase(phase)]
        return tuple(each for stopping in found for each in (*walk.cleared(stopping), stopping))
    except _Crossed:
        return None


def _constants(kernel: Kernel) -> dict[str, Known]:
    """What is known of buffers to which one statement writes a number."""
    writers = Counter(statement.target.buffer for statement in kernel.statements)
    return {
        statement.target.buffer: _known(statement.expression, ())
        for statement in kernel.statements
        if isinstance(statement, Elementwise) and not statement.sources and writers[statement.target.buffer] == 1
    }


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a buffer has elements that belong to those of the axis: `stride` apart; and what they are behind the end."""

    stride: int
    behind: Known


@dataclass(slots=True)
class _Walk:
    """What is known of the buffers that the statements before have written."""

    tiles: AxisTiles
    outside: Collection[str]
    neutral: bool
    constants: Mapping[str, Known]
    spans: dict[str, _Span] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    """Buffers that were read or written without an axis."""
    reduced: set[str] = field(default_factory=set)
    """Those of them that are computed of what was reduced along the axis."""
    zeros: set[str] = field(default_factory=set)
    """Buffers of which the elements behind the end are read, and are 0."""

    def visited(self, statement: Statement) -> int | None:
        """The dimension of a statement's points along the axis: of the target's, or behind these the one that is reduced."""
        match statement:
            case Scan():
                self._across(statement)
                return None
            case Matmul():
                return self._product(statement)
            case Elementwise() | Reduce():
                return self._pointwise(statement)

    def _across(self, statement: Statement) -> None:
        """Take notice of a statement that has nothing to do with the axis."""
        if any(self._along(tile) is not None for tile in statement.sources):
            raise _Crossed
        self._write_whole(statement, bool(self.reduced & {tile.buffer for tile in statement.sources}))

    def _pointwise(self, statement: Elementwise | Reduce) -> int | None:
        dims = [self._along(tile) for tile in statement.sources]
        dim = _one_of(dims)
        if dim is None:
            self._across(statement)
            return None
        if isinstance(statement, Elementwise) and statement.target.buffer in self.whole:
            self._added(statement)
            return None
        value = _known(statement.expression, [self._behind(tile, dim) for tile in statement.sources])
        if isinstance(statement, Reduce) and dim == statement.target.rank:
            self._require(value is _NEUTRAL[statement.combine])
            self._write_whole(statement, reduced=True)
            return dim
        if isinstance(statement, Reduce):
            value = _of(_ARITHMETIC.sum(_states(value), 0) if statement.combine is Combine.SUM else _states(value))
        if statement.accumulate if isinstance(statement, Reduce) else statement.combine is not None:
            raise _Crossed
        self._write(statement.target, dim, value)
        return dim

    def _added(self, statement: Elementwise) -> None:
        """Take notice of a statement that has something to do at every element, as it changes what is there: of what is along the
        axis it reads 0 behind the end."""
        along = {tile.buffer for tile in statement.sources} & (self.spans.keys() | self.tiles.along.keys())
        self._require(all(name in self.spans and self.spans[name].behind is Known.ZERO for name in along))
        if not along <= self.spans.keys():
            raise _Crossed
        self.zeros |= along
        self._write_whole(statement, reduced=True)

    def cleared(self, each: Stopping) -> Iterator[Stopping]:
        """What is done before a statement that stops, where what it does not write is read."""
        target = each.statement.target
        if each.dim is not None and target.buffer in self.zeros:
            if any(tile.buffer == target.buffer for tile in each.statement.sources):
                raise _Crossed
            yield Stopping(Elementwise(target, (), Constant(0.0), label=each.statement.label), None)

    def _product(self, statement: Matmul) -> int | None:
        rank, factors = statement.target.rank, (statement.left, statement.right)
        places = [self._dim_of_product(tile, rank, summed) for tile, summed in zip(factors, _SUMMED, strict=True)]
        dim = _one_of(places)
        if dim is None:
            self._across(statement)
            return None
        if statement.strips is not None or statement.dequantized is not None:
            raise _Crossed
        own = (_dim_of_factor(tile, dim - rank, summed) for tile, summed in zip(factors, _SUMMED, strict=True))
        left, right = map(self._behind, factors, own)
        value = _of(_ARITHMETIC.mul(_states(left), _states(right)))
        if dim == rank:
            self._require(value is Known.ZERO)
            self._write_whole(statement, reduced=True)
        elif statement.accumulate:
            raise _Crossed
        else:
            self._write(statement.target, dim, value)
        return dim

    def _dim_of_product(self, tile: Tile, rank: int, summed: int) -> int | None:
        """The dimension of a product's points that a factor has along the axis."""
        dim = self._along(tile)
        if dim is None:
            return None
        return rank if dim == tile.rank + summed else dim - tile.rank + rank

    def _require(self, holds: bool) -> None:
        if self.neutral and not holds:
            raise _Crossed

    def _along(self, tile: Tile) -> int | None:
        """The dimension of a tile along the axis; None where its buffer does not have it."""
        if tile.lookup is not None and {tile.buffer, tile.lookup.index.buffer} & (self.tiles.along.keys() | self.spans.keys()):
            raise _Crossed
        if tile.buffer in self.tiles.along:
            steps, start = self.tiles.along[tile.buffer](tile)
            moving = [dim for dim, (size, step) in enumerate(zip(tile.shape, steps, strict=True)) if size > 1 and step]
            if len(moving) != 1 or steps[moving[0]] != 1 or start != self.tiles.start:
                raise _Crossed
        elif tile.buffer in self.spans:
            moving = self._moving(tile, self.spans[tile.buffer].stride)
        else:
            self.whole.add(tile.buffer)
            return None
        (dim,) = moving
        if tile.shape[dim] != self.tiles.extent:
            raise _Crossed
        return dim

    def _moving(self, tile: Tile, stride: int) -> list[int]:
        """The one dimension of a tile along the axis in a buffer that was written; others stay within a step, or go beyond."""
        block, inside = stride * self.tiles.extent, tile.start.constant % (stride * self.tiles.extent)
        moving = []
        for dim, (size, step) in enumerate(zip(tile.shape, tile.strides, strict=True)):
            if size > 1 and step == stride:
                moving.append(dim)
            elif size > 1 and step % block:
                inside += (size - 1) * step
        if len(moving) != 1 or not 0 <= inside < stride or any(part % block for part in tile.start.parts[1:]) or tile.swizzle:
            raise _Crossed
        return moving

    def _behind(self, tile: Tile, dim: int | None) -> Known:
        """What a tile has behind the end along one of its dimensions.

        Of what does not have the axis that is what is held, if it is the same all along; where that was reduced along the axis it
        is taken for a number.
        """
        if tile.buffer in self.tiles.along:
            return Known.ZERO
        if tile.buffer in self.spans:
            return self.spans[tile.buffer].behind
        if tile.buffer in self.constants:
            return self.constants[tile.buffer]
        alike = dim is None or tile.shape[dim] == 1 or tile.strides[dim] == 0
        return Known.FINITE if alike and tile.lookup is None and tile.buffer in self.reduced else Known.NOTHING

    def _write(self, target: Tile, dim: int, behind: Known) -> None:
        """Take notice of a tile that is written along the axis in one of its dimensions."""
        name, stride = target.buffer, target.strides[dim]
        old = self.spans.get(name, _Span(stride, behind))
        taken = self.zeros | self.whole | {*self.outside, *self.tiles.along}
        if name in taken or stride != old.stride or stride <= 0:
            raise _Crossed
        self.spans[name] = _Span(stride, behind if behind is old.behind else Known.NOTHING)
        if self._along(target) != dim:
            raise _Crossed

    def _write_whole(self, statement: Statement, reduced: bool) -> None:
        """Take notice of a tile that is written without an axis."""
        name = statement.target.buffer
        if name in self.spans:
            raise _Crossed
        self.whole.add(name)
        if reduced:
            self.reduced.add(name)


def _one_of(dims: Sequence[int | None]) -> int | None:
    """The dimension that all which have one have."""
    found = {dim for dim in dims if dim is not None}
    if len(found) > 1:
        raise _Crossed
    return found.pop() if found else None


def _dim_of_factor(tile: Tile, dim: int, summed: int) -> int | None:
    """The dimension of a factor that is one of the product's points, counted from behind the target's last, if it has it."""
    if dim == 0:
        return tile.rank + summed
    missing = dim < -tile.rank or dim == summed
    return None if missing else tile.rank + dim


def _known(expression: Expression, sources: Sequence[Known]) -> Known:
    """What is known of an expression's value."""
    match expression:
        case Source(index):
            return sources[index]
        case Constant(value):
            infinite = Known.HIDDEN if value < 0 else Known.NOTHING
            return _of(_ARITHMETIC.constant(Scalar.of(value))) if np.isfinite(value) else infinite
        case Apply(template, arguments):
            row = _ROWS.get(template)
            if row is None:
                return Known.NOTHING
            values = [_states(_known(argument, sources)) for argument in arguments]
            return _of(row.compute(_ARITHMETIC, Call(row.name, ((1,),) * len(values), {}), values))


def _states(known: Known) -> States:
    """An element of which that is known."""
    return np.array([known], np.uint8)


def _of(states: States) -> Known:
    return Known(int(np.ravel(states)[0]))
