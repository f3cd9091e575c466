"""What is certain about two kernel graphs at one point: elements of outputs that differ, or that only one of them has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph, Tensor
from mugraph.ir.scalar import Scalar
from mugraph.verifier.enclosures import Ball, Balls, State
from mugraph.verifier.float_balls import FloatBalls
from mugraph.verifier.parallel_axes import ParallelAxis, shared_slice, slice_of
from mugraph.verifier.precise import PreciseBalls
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

DIGITS = {256: 1 << 21, 1280: 1 << 18, 5120: 1 << 15}
"""Binary digits after the point, and how many elements of two graphs' tensors are computed with so many: 256 take about a
microsecond and a hundred bytes each. The second go beyond the range of float64, the last beyond products of its numbers."""
_DECIMALS = 36
"""Decimal digits in which values are written, unless they are told apart by later ones."""
_MOST_DECIMALS = 4 * max(DIGITS)

Place = tuple[int, tuple[int, ...]]
"""The number of an output, and the index of one of its elements, the number of the point first."""


@dataclass(frozen=True, slots=True)
class Enclosed:
    """A number within `radius` of `middle`, or one that does not exist (None)."""

    middle: Fraction | None
    radius: Fraction = Fraction(0)

    def written(self, digits: int = _DECIMALS, further: int = 0) -> str:
        """The digits that are certain and some `further` ones, up to so many; "undefined" where there is no number."""
        if self.middle is None:
            return "undefined"
        size = abs(self.middle)
        if self.radius and size <= self.radius:
            return "0"
        certain = min(digits, _decimals(size / self.radius) + further) if self.radius else digits
        number = Context(prec=max(1, certain)).divide(Decimal(self.middle.numerator), Decimal(self.middle.denominator))
        return f"{number.normalize(Context(prec=max(1, certain))):g}"

    def __float__(self) -> float:
        if self.middle is None:
            return math.nan
        try:
            return float(self.middle)
        except OverflowError:
            return math.inf if self.middle > 0 else -math.inf


def _decimals(ratio: Fraction) -> int:
    """The decimal logarithm of a number above 1, rounded down, from its binary one."""
    return int((ratio.numerator // ratio.denominator).bit_length() * math.log10(2))


@dataclass(frozen=True, slots=True)
class Element:
    """An element of an output, and what two graphs give there."""

    place: Place
    left: Enclosed
    right: Enclosed

    def written(self) -> tuple[str, str]:
        """Both values with so many digits that they can be told apart."""
        texts = self.left.written(), self.right.written()
        digits = _DECIMALS
        while texts[0] == texts[1] and digits < _MOST_DECIMALS:
            texts = self.left.written(digits, 2), self.right.written(digits, 2)
            digits *= 2
        return texts


@dataclass(frozen=True, slots=True)
class Look:
    """The outputs of two graphs at several points, enclosed: the first axis of every ball runs over the points."""

    arithmetic: Balls
    left: Sequence[Ball]
    right: Sequence[Ball]

    def difference(self, at: Place | None = None) -> Element | None:
        """The element that differs most, of the first output where one certainly does and at the first such point, or the element
        asked for if it does."""
        return self._first(self.arithmetic.apart, at)

    def one_sided(self, at: Place | None = None) -> Element | None:
        """An element that one graph certainly has and the other certainly has not, or the one asked for if it is such."""
        return self._first(_one_sided, at)

    @property
    def undefined(self) -> Array:
        """At which points some element of an output certainly does not exist in one of the graphs."""
        return ~self._everywhere(lambda x, y: np.maximum(x.state, y.state) != State.UNDEFINED)

    @property
    def defined(self) -> Array:
        """At which points all elements certainly exist in both."""
        return self._everywhere(lambda x, y: np.maximum(x.state, y.state) == State.KNOWN)

    @property
    def alike(self) -> Array:
        """At which points both certainly have the same elements."""
        return self.settled & self._everywhere(lambda x, y: x.state == y.state)

    @property
    def settled(self) -> Array:
        """At which points all elements are known to exist, or not to."""
        return self._everywhere(lambda x, y: (x.state != State.UNKNOWN) & (y.state != State.UNKNOWN))

    @property
    def exact(self) -> Array:
        """At which points more digits would tell nothing more: everything is known exactly, or does not exist."""
        return self.settled & self._everywhere(lambda x, y: (x.radius == 0) & (y.radius == 0))

    def _everywhere(self, condition: Callable[[Ball, Ball], Array]) -> Array:
        """At which points all elements of all outputs are such."""
        return np.asarray(
            np.all([np.all(mask.reshape(len(mask), -1), axis=1) for mask in (condition(*p) for p in self._pairs())], axis=0)
        )

    def _pairs(self) -> Iterator[tuple[Ball, Ball]]:
        return zip(self.left, self.right, strict=True)

    def _first(self, condition: Callable[[Ball, Ball], Array], at: Place | None) -> Element | None:
        for number, (x, y) in enumerate(self._pairs()):
            mask = condition(x, y)
            if at is None and mask.any():
                point = int(np.argmax(mask.reshape(len(mask), -1).any(axis=1)))
                inside = mask & (np.arange(len(mask)) == point).reshape(-1, *[1] * (mask.ndim - 1))
                largest = np.argmax(np.where(inside, np.abs(x.middle - y.middle), -1))
                return self._element((number, tuple(int(i) for i in np.unravel_index(int(largest), mask.shape))))
            if at is not None and at[0] == number and mask[at[1]]:
                return self._element(at)
        return None

    def _element(self, place: Place) -> Element:
        return Element(place, self._enclosed(self.left, place), self._enclosed(self.right, place))

    def _enclosed(self, outputs: Sequence[Ball], place: Place) -> Enclosed:
        number, index = place
        if outputs[number].state[index] != State.KNOWN:
            return Enclosed(None)
        return Enclosed(*self.arithmetic.fractions(outputs[number], index))


def _one_sided(x: Ball, y: Ball) -> Array:
    return np.asarray((np.minimum(x.state, y.state) == State.KNOWN) & (np.maximum(x.state, y.state) == State.UNDEFINED))


@dataclass(frozen=True, slots=True)
class SlicedPair:
    """Two kernel graphs of one signature on a slice that stands for all, and the values of inputs that are given there."""

    left: Graph
    right: Graph
    axes: tuple[ParallelAxis, ...]
    fixed: Mapping[int, Array]
    pulse: Pulse

    @classmethod
    def of(cls, left: Graph, right: Graph, fixed: Mapping[int, Array], deadline: float = math.inf) -> SlicedPair:
        """Axes along which given values vary are kept. Looks raise BudgetExceeded after the deadline (of time.monotonic())."""

        def same_everywhere(before: Graph, after: Graph, axis: ParallelAxis) -> bool:
            return all((dim := axis.inputs[number]) is None or _repeats(array, dim) for number, array in fixed.items())

        cut = shared_slice(left, right, same_everywhere)

        def sliced(number: int, array: Array) -> Array:
            return slice_of(array, [axis.inputs[number] for axis in cut.axes], [0] * len(cut.axes)).astype(np.float64)

        def pulse() -> None:
            if time.monotonic() > deadline:
                raise BudgetExceeded("no time is left to look for a witness")

        return cls(cut.left, cut.right, cut.axes, {number: sliced(number, array) for number, array in fixed.items()}, pulse)

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs of the slice; of the narrower type, where the graphs have different ones."""
        pairs = zip(self.left.inputs(), self.right.inputs(), strict=True)
        return [min(ours.output, theirs.output, key=lambda tensor: tensor.bytes) for ours, theirs in pairs]

    @property
    def affordable(self) -> list[int]:
        """How many digits may be asked for."""
        tensors = [tensor for graph in (self.left, self.right) for _, node in graph.walk() for tensor in node.outputs]
        elements = sum(tensor.elements for tensor in tensors)
        return [digits for digits, most in DIGITS.items() if elements <= most]

    def sliced(self, output: int, index: Sequence[int]) -> Place:
        """Where an element of an output of the whole is on the slice, at the first point."""
        cut = {axis.outputs[output] for axis in self.axes}
        return output, (0, *(0 if dim in cut else i for dim, i in enumerate(index)))

    def looks(self, inputs: Sequence[Array]) -> Iterator[list[Look]]:
        """Looks at a batch of points that tell more and more, ending where they tell all."""
        yield self.in_floats(inputs)
        for digits in self.affordable:
            yield (looks := self.precisely(inputs, digits))
            if all(look.exact.all() for look in looks):
                break

    def in_floats(self, inputs: Sequence[Array]) -> list[Look]:
        """What float64 can tell: one look for each reading of the constants. Inputs are batches of points."""
        return [self._look(FloatBalls(reading), inputs) for reading in self._readings]

    def precisely(self, inputs: Sequence[Array], digits: int) -> list[Look]:
        """What so many binary digits after the point tell."""
        return [self._look(PreciseBalls(digits, reading, self.pulse), inputs) for reading in self._readings]

    @property
    def _readings(self) -> tuple[bool, ...]:
        """Constants as written, and as they are read where that is another number: what is certain is so in both readings."""
        nodes = [node for graph in (self.left, self.right) for _, node in graph.walk()]
        values = [value for node in nodes if isinstance(value := node.get("value"), Scalar)]
        return (True, False) if any(getattr(value, "readings", ()) for value in values) else (False,)

    def _look(self, arithmetic: Balls, inputs: Sequence[Array]) -> Look:
        (count,) = {len(array) for array in inputs}
        with np.errstate(all="ignore"):
            tensors = [arithmetic.tensor(array) for array in inputs]
            outputs = [
                [_batch(arithmetic, ball, count) for ball in evaluate_batched(graph, tensors, arithmetic, self.pulse, lead=1)]
                for graph in (self.left, self.right)
            ]
        return Look(arithmetic, *outputs)


def _batch(arithmetic: Balls, ball: Ball, count: int) -> Ball:
    """The same with as many points as there are: a result that depends on no input has one."""
    return arithmetic.view(ball, lambda array: np.broadcast_to(array, (count, *array.shape[1:])))


def certainly(looks: Sequence[Look], what: Callable[[Look, Place | None], Element | None], at: Place | None) -> Element | None:
    """An element that is what is asked for at every look, as the first look sees it."""
    found = what(looks[0], at)
    if found is None or any(what(look, found.place) is None for look in looks[1:]):
        return None
    return found


def _repeats(array: Array, dim: int) -> bool:
    if array.strides[dim] == 0:
        return True
    return bool(np.all(array == array.take([0], axis=dim)))
