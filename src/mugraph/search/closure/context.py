"""A context of the closure: which axis the for-loop cuts, how axes read as bits and primes, and what inputs are at tiny sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue, NestingArithmetic
from mugraph.errors import UndefinedInField
from mugraph.ir.arithmetic import Arithmetic, Array, V
from mugraph.ir.axes import AxisProgram, Term
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import OPERATORS, Call
from mugraph.ir.scalar import Scalar

_TILE = 2
_REDUCED_TILE = 3
_ITERATIONS = 2


_NO_CALL = Call("", (), {})

_DRAWS = 4
"""Of tiny inputs, until a program has a value: a denominator that is zero in all of them is zero for most inputs."""

_TELLING_DRAWS = 32
"""Of tiny inputs, until all maxima of two tensors have elements of both."""


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


def telling_draw(program: AxisProgram, seed: int) -> int:
    """A seed from `seed` on that draws inputs for which the program has a value.

    It is the first whose draw tells maxima of two tensors from either of them, or else the first. Raises UndefinedInField where
    the program has no value in a few draws.
    """
    context, first, undefined = Context.of(program, None), None, UndefinedInField("")
    for draw in range(seed, seed + _TELLING_DRAWS):
        if first is None and draw - seed >= _DRAWS:
            raise UndefinedInField(f"the program has no value for any of {_DRAWS} draws of its inputs: {undefined}")
        try:
            values = TinyInputs(draw).evaluate(program, context, NestingArithmetic(seed=draw))
        except UndefinedInField as error:
            undefined = error
            continue
        if _tells_maxima(program, values):
            return draw
        first = draw if first is None else first
    assert first is not None
    return first


# by name: in the field a maximum is one of its operands, while other functions of two have values of their own
def maxima_of_two(program: AxisProgram) -> Iterator[int]:
    """The terms that are the larger of two others."""
    return (index for index, term in enumerate(program.terms) if term.op == "maximum" and len(set(term.inputs)) == 2)


def _tells_maxima(program: AxisProgram, values: Sequence[FieldValue]) -> bool:
    """Whether each maximum of two tensors has elements of both.

    Where one of them is the larger everywhere, as a small constant may be, what stands in the other's place makes no difference.
    """
    pairs = ((index, operand) for index in maxima_of_two(program) for operand in program.terms[index].inputs)
    return not any(np.all(values[index].p == values[operand].p) for index, operand in pairs)


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
