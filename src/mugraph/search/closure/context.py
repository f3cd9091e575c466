"""A context of the closure: which axis the for-loop cuts, how axes read as bits and primes, and what inputs are at tiny sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.ir.arithmetic import Arithmetic, Array, V
from mugraph.ir.axes import AxisProgram, Term
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import OPERATORS, Call
from mugraph.ir.scalar import Scalar

_TILE = 2
_REDUCED_TILE = 3
_ITERATIONS = 2


_NO_CALL = Call("", (), {})


def primes(count: int) -> list[int]:
    """The first `count` primes."""
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found


@dataclass(frozen=True)
class Context:
    """Axes 0..n-1 are tile parts (bit i); bit n is the part of `loop_axis` that the for-loop runs over.

    Every part has its own prime, so that a reduction names what it reduced, and its own tiny size, on which
    values are computed: sizes of the program play no role.
    """

    axes: int
    loop_axis: int | None
    reduced: frozenset[int]

    @classmethod
    def of(cls, program: AxisProgram, loop_axis: int | None) -> Context:
        """The context of a program whose for-loop cuts `loop_axis` (None: no loop)."""
        reduced = frozenset[int]().union(*program.reductions)
        return cls(len(program.sizes), loop_axis, reduced)

    @property
    def loop_bit(self) -> int:
        """The mask of the for-loop part; 0 without a loop."""
        return 0 if self.loop_axis is None else 1 << self.axes

    @cached_property
    def part_primes(self) -> list[int]:
        """The prime that names each part."""
        return primes(self.axes + 1)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The tiny size of every part, the for-loop part last."""
        tiles = [_REDUCED_TILE if axis in self.reduced else _TILE for axis in range(self.axes)]
        return (*tiles, _ITERATIONS)

    def mask(self, axes: Iterable[int]) -> int:
        """The parts of whole axes: their tiles, and the for-loop part if the loop axis is among them."""
        result = 0
        for axis in axes:
            result |= 1 << axis
            if axis == self.loop_axis:
                result |= self.loop_bit
        return result

    def reduction_factor(self, mask: int) -> int:
        """The number that names a reduction over the parts in `mask`."""
        return math.prod(self.part_primes[part] for part in bits(mask))


def bits(mask: int) -> list[int]:
    """Positions of the set bits, ascending."""
    return [position for position in range(mask.bit_length()) if mask >> position & 1]


class TinyInputs:
    """Random field tensors for the program's inputs at the tiny sizes of a context, one stream per input."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def load(self, term: Term, context: Context, arith: FieldArithmetic) -> FieldValue:
        """The value of a load: the same data for the same input however its dimensions are named."""
        parts = [part for slot in term.slots for axis in slot for part in _parts(axis, context)]
        rng = np.random.default_rng((self.seed, term.source))
        sizes = [context.shape[part] for part in parts]
        value = arith.random(tuple(sizes), rng)
        order = sorted(range(len(parts)), key=lambda i: parts[i])
        full = tuple(context.shape[part] if part in parts else 1 for part in range(context.axes + 1))
        return arith.view(value, lambda x: np.ascontiguousarray(x.transpose(order)).reshape(full))

    def evaluate(
        self, program: AxisProgram, context: Context, arith: FieldArithmetic, given: Mapping[int, FieldValue] | None = None
    ) -> list[FieldValue]:
        """The value of every term of the program, some of them `given`."""
        values: list[FieldValue] = []
        for index, term in enumerate(program.terms):
            known = (given or {}).get(index)
            values.append(known or self._term(term, [values[i] for i in term.inputs], context, arith))
        return values

    def _term(self, term: Term, xs: list[FieldValue], context: Context, arith: FieldArithmetic) -> FieldValue:
        if term.op == "load":
            return self.load(term, context, arith)
        if term.is_constant:
            assert term.scalar is not None
            return scalar_value(term.scalar, context, arith)
        # by name: terms reduce sets of axes at once, so the rows of sum and max, of one dimension, and of matmul do not fit
        if term.op in ("contract", "sum", "max"):
            value = arith.mul(xs[0], xs[1]) if term.op == "contract" else xs[0]
            for axis in bits(context.mask(term.reduced)):
                value = arith.max(value, axis) if term.op == "max" else arith.sum(value, axis)
            return value
        row = OPERATORS[term.op]
        if row.structure is Structure.SCAN:
            return scanned_along(term.op, term.reduced, xs[0], arith)
        result: FieldValue = row.compute(arith, _NO_CALL, xs)
        return result


def scanned_along(op: str, along: Iterable[int], x: V, arith: Arithmetic[V]) -> V:
    """A scan of a tensor that has a dimension for every part; the axis that it runs along is one part, which no loop cuts."""
    (axis,), shapes = along, list[tuple[int, ...]]()

    def note(array: Array) -> Array:
        shapes.append(array.shape)
        return array

    arith.view(x, note)
    result: V = OPERATORS[op].compute(arith, Call(op, (shapes[0],), {"dim": axis}), [x])
    return result


def scalar_value(scalar: Scalar, context: Context, arith: Arithmetic[V]) -> V:
    """A constant with a dimension of size 1 for every part."""
    ones = (1,) * (context.axes + 1)
    return arith.view(arith.constant(scalar), lambda x: np.asarray(x).reshape(ones))


def _parts(axis: int, context: Context) -> Iterator[int]:
    """The parts of an axis as array dimensions, slowest varying first."""
    if axis == context.loop_axis:
        yield context.axes
    yield axis
