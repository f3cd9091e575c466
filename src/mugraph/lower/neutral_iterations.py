"""Whether an iteration of a kernel leaves all as it is where some of what it reads is 0, as it is behind the end of an axis.

The body is run once on what is known of each tile: that all of it is one number, that it is what it was when the iteration began,
or at least that. Masks that are 0 choose the neutral element of every accumulator, which is what this follows. Two rules take
numbers to be finite, `x - x = 0` and `0 x = 0`: they are those of sums that are rescaled by a running maximum, and are no numbers
already where that maximum is infinite or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mugraph.ir.ops import TRUTH, operator
from mugraph.lower.scalar_expressions import MAXIMUM, RESCALED_SUM, SUM, Apply, Constant, Expression, Source
from mugraph.lower.tile_form import Combine, Elementwise, Kernel, Matmul, Reduce, Statement, Tile, reads_target


@dataclass(frozen=True, slots=True)
class _Number:
    """Every element is this number."""

    value: float


@dataclass(frozen=True, slots=True)
class _Before:
    """Elements are those of a tile when the iteration began; with `raised`, each is that or a larger number."""

    tile: Tile
    raised: bool = False


_Value = _Number | _Before | None
"""What is known of a tile; None for nothing."""

_DIFFERENCE, _PRODUCT, _SQUARE, _EXPONENTIAL, _CHOICE, _INFINITY, _TRUTH = (
    operator(name).scalar for name in ("sub", "mul", "square", "exp", "select", "infinity", TRUTH)
)
_FUNCTIONS: Mapping[str | None, Callable[..., float]] = {
    SUM: np.add,
    MAXIMUM: np.maximum,
    _DIFFERENCE: np.subtract,
    _PRODUCT: np.multiply,
    _SQUARE: np.square,
    _EXPONENTIAL: np.exp,
    _INFINITY: lambda x: x * math.inf,
    _TRUTH: lambda x: float(x != 0),
}
_COMBINED = {Combine.SUM: SUM, Combine.MAX: MAXIMUM}


def is_neutral(kernel: Kernel, zero: Collection[str]) -> bool:
    """Whether an iteration changes nothing that is read after it, where all that it reads of the buffers `zero` is 0."""
    rising = _after_iteration(kernel, (), {})
    floors = {
        buffer: start
        for buffer, start in _starts(kernel).items()
        if isinstance(value := rising.get(buffer), _Before) and value.tile.buffer == buffer
    }
    values = _after_iteration(kernel, zero, floors)
    return all(_is_unchanged(values[buffer], buffer) for buffer in _carried(kernel))


def _is_unchanged(value: _Value, buffer: str) -> bool:
    return isinstance(value, _Before) and value.tile.buffer == buffer and not value.raised


def _after_iteration(kernel: Kernel, zero: Collection[str], floors: Mapping[str, float]) -> dict[str, _Value]:
    """What is known of each buffer that the body writes, and of those that are filled before it with one number."""
    filled = _Iteration(kernel, (), {})
    for statement in kernel.before:
        filled.run(statement)
    written = {statement.target.buffer for statement in kernel.body}
    running = _Iteration(kernel, zero, floors)
    running.values = {
        buffer: value for buffer, value in filled.values.items() if isinstance(value, _Number) and buffer not in written
    }
    for statement in kernel.body:
        running.run(statement)
    return running.values


def _starts(kernel: Kernel) -> dict[str, float]:
    """The number that each buffer is filled with before the loop, of those that are."""
    return {
        statement.target.buffer: statement.expression.value
        for statement in kernel.before
        if isinstance(statement, Elementwise) and isinstance(statement.expression, Constant) and statement.combine is None
    }


def _carried(kernel: Kernel) -> set[str]:
    """The buffers that the body writes and that are read in the next iteration, behind the loop or by others."""
    reads: dict[str, bool] = {}
    for statement in kernel.body:
        for tile in statement.sources:
            reads.setdefault(tile.buffer, True)
        reads.setdefault(statement.target.buffer, reads_target(statement))
    later = {tile.buffer for statement in kernel.after for tile in (*statement.sources, statement.target)}
    written = {statement.target.buffer for statement in kernel.body}
    return {buffer for buffer in written if reads[buffer] or buffer in later or buffer in kernel.outputs}


class _Iteration:
    """The body on what is known of tiles; no element of the buffers in `floors` is less than the number there."""

    def __init__(self, kernel: Kernel, zero: Collection[str], floors: Mapping[str, float]) -> None:
        self.kernel, self.zero, self.floors = kernel, zero, floors
        self.values: dict[str, _Value] = {}
        self.places: dict[str, Tile] = {}
        """What was written of each buffer."""

    def run(self, statement: Statement) -> None:
        target, value = statement.target, self.computed(statement)
        whole = math.prod(target.shape) == self.kernel.buffer(target.buffer).elements
        again = self.places.setdefault(target.buffer, target) == target
        if isinstance(value, _Before) and value.tile.buffer == target.buffer and value.tile != target:
            value = None  # its elements in another order
        self.values[target.buffer] = value if whole and again else None

    def read(self, tile: Tile) -> _Value:
        if tile.buffer in self.zero:
            return _Number(0.0)
        if tile.buffer not in self.values:
            return _Before(tile)
        value = self.values[tile.buffer]
        return value if isinstance(value, _Number) or self.places[tile.buffer] == tile else None

    def computed(self, statement: Statement) -> _Value:
        """What is known of a statement's result."""
        match statement:
            case Elementwise(combine=combine):
                value = self.evaluated(statement.expression, statement.sources)
                return value if combine is None else self.applied(_COMBINED[combine], [self.read(statement.target), value])
            case Reduce(combine=combine):
                value = _reduced(combine, self.evaluated(statement.expression, statement.sources))
                return self.applied(_COMBINED[combine], [self.read(statement.target), value]) if statement.accumulate else value
            case Matmul(dequantized=None):
                zero = all(self.read(factor) == _Number(0.0) for factor in (statement.left, statement.right))
                value = _Number(0.0) if zero else None
                return self.applied(SUM, [self.read(statement.target), value]) if statement.accumulate else value
        return None

    def evaluated(self, expression: Expression, sources: Sequence[Tile]) -> _Value:
        match expression:
            case Source(index):
                return self.read(sources[index])
            case Constant(value):
                return _Number(value)
            case Apply(template, arguments):
                return self.applied(template, [self.evaluated(argument, sources) for argument in arguments])

    def applied(self, template: str | None, values: Sequence[_Value]) -> _Value:
        """What is known of the result of an operator."""
        numbers = [value.value for value in values if isinstance(value, _Number)]
        if template == RESCALED_SUM:
            return self.applied(SUM, [self.applied(_PRODUCT, values[:2]), self.applied(_PRODUCT, values[2:])])
        if template == _CHOICE and isinstance(values[0], _Number):
            return values[1 if values[0].value else 2]
        if len(numbers) == len(values) and template in _FUNCTIONS:
            with np.errstate(all="ignore"):
                return _Number(float(_FUNCTIONS[template](*map(np.float32, numbers))))
        if len(values) != 2:
            return None
        first, second = sorted(values, key=lambda value: isinstance(value, _Number))
        if template == MAXIMUM:
            return self.larger(first, second)
        if template == _PRODUCT and second == _Number(0.0):
            return second
        if second == _Number({SUM: 0.0, _PRODUCT: 1.0}.get(template, math.nan)):
            return first
        return _Number(0.0) if template == _DIFFERENCE and first == second and _is_held(first) else None

    def larger(self, first: _Value, second: _Value) -> _Value:
        """What is known of a maximum; of two values the second is the number, if one is."""
        floor = self.floors.get(first.tile.buffer, -math.inf) if isinstance(first, _Before) else -math.inf
        if isinstance(second, _Number) and second.value <= floor:
            return first
        held = [value for value in (first, second) if isinstance(value, _Before)]
        return replace(held[0], raised=True) if held else None


def _is_held(value: _Value) -> bool:
    return isinstance(value, _Before) and not value.raised


def _reduced(combine: Combine, value: _Value) -> _Value:
    """The sum or maximum of many elements of which that is known."""
    return value if isinstance(value, _Number) and (combine is Combine.MAX or value.value == 0) else None
