"""Enclosures of real numbers: a middle and a radius per element, under every operator; what two enclosures show is certain.

A tensor of real numbers is a `Ball`: each number lies within the radius of the middle, or nothing is known of it, or it certainly
does not exist (a division by zero, a root or a logarithm outside its domain). Rounding widens the radius, so that balls that do
not touch are different numbers whatever was rounded on the way. Those here are in float64, fast and as wide as the rounding of
every operation makes them; `mugraph.verifier.precise` has them with as many digits as it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

import numpy as np

from mugraph.errors import MugraphError
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.ir.scalar import Scalar

ROUNDINGS = {f"round_{dtype}": dtype for dtype in (DType.FP16, DType.BF16, DType.FP32)}
"""Operators that round to the numbers of a type."""

_SIGNIFICANDS = {DType.FP16: (11, -24), DType.BF16: (8, -133), DType.FP32: (24, -149)}
"""Of a type: the bits of a significand, and the exponent of the least number above 0."""

_FOLDED = Fraction(1, 1 << 40)
"""How far a constant that was folded from several floats may be from what they make as written, relative to their sizes."""


class NotEnclosed(MugraphError):
    """An operator of which no enclosure is known: nothing is certain about programs that have it."""


class State(IntEnum):
    """What is known of one element; of an operator's operands, the largest decides."""

    KNOWN = 0
    UNKNOWN = 1
    UNDEFINED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Ball:
    """A tensor: three arrays of one shape. `middle` and `radius` mean something where `state` is KNOWN."""

    middle: Array
    radius: Array
    state: Array


class Balls(ABC):
    """`mugraph.ir.arithmetic.Arithmetic` on balls.

    Constants are the exact numbers that they were read as, or, `as_written`, the floats that they were read from.
    """

    def __init__(self, as_written: bool = False) -> None:
        self.as_written = as_written

    # --- what a representation of numbers supplies ---

    @property
    @abstractmethod
    def name(self) -> str:
        """The representation, in words."""

    @abstractmethod
    def tensor(self, array: Array) -> Ball:
        """Float64 numbers, which must be finite."""

    @abstractmethod
    def around(self, number: Fraction, radius: Fraction) -> Ball:
        """Numbers that lie so near to a number, of rank 0."""

    @abstractmethod
    def fractions(self, ball: Ball, index: tuple[int, ...]) -> tuple[Fraction, Fraction]:
        """Middle and radius of a known element."""

    @abstractmethod
    def rounded(self, middle: Array, radius: Array, state: Array) -> Ball:
        """A ball around the result of one addition per element."""

    @abstractmethod
    def quotient(self, x: Ball, y: Ball, state: Array) -> Ball:
        """Quotients whose denominators' balls do not contain zero."""

    @abstractmethod
    def ends(self, x: Ball) -> tuple[Array, Array]:
        """A lower and an upper bound of each element."""

    @abstractmethod
    def between(self, lower: Array, upper: Array, state: Array) -> Ball:
        """Balls that contain all numbers between two bounds."""

    @abstractmethod
    def increasing(self, name: str, lower: Array, upper: Array, state: Array) -> Ball:
        """Values of an increasing function between bounds: "exp", "log", "sqrt", "tanh", "sigmoid", "erf", "asin", "atan".

        Where both bounds are the same, "sin" and "cos" too.
        """

    @abstractmethod
    def shortened(self, bounds: Array, significand: int, least: int) -> Array:
        """Bounds rounded to significands of so many bits, and to multiples of 2**least, ties to even."""

    @abstractmethod
    def beyond(self, bounds: Array, largest: float) -> Array:
        """Where the magnitudes of bounds exceed a number."""

    @abstractmethod
    def apart(self, x: Ball, y: Ball) -> Array:
        """Where two tensors are known and their balls do not touch."""

    # --- the operators ---

    def exact(self, number: Fraction) -> Ball:
        """A number, of rank 0."""
        return self.around(number, Fraction(0))

    def constant(self, value: Scalar) -> Ball:
        readings: Collection[tuple[str, float]] = getattr(value, "readings", ())
        if not self.as_written or not readings:
            return self._number(value)
        floats = [Fraction(number) for _, number in readings]
        if len(readings) == 1 and str(value) in dict(readings):
            return self.exact(floats[0])
        read = self._number(value)
        return self.add(read, self.around(Fraction(0), _FOLDED * sum(map(abs, floats), abs(Fraction(float(value))))))

    def _number(self, value: Scalar) -> Ball:
        if not value.root:
            return self.exact(value.value)
        root = self.sqrt(self.exact(abs(value.value)))
        return root if value.value >= 0 else Ball(-root.middle, root.radius, root.state)

    def add(self, x: Ball, y: Ball) -> Ball:
        return self.rounded(x.middle + y.middle, x.radius + y.radius, np.maximum(x.state, y.state))

    def sub(self, x: Ball, y: Ball) -> Ball:
        return self.rounded(x.middle - y.middle, x.radius + y.radius, np.maximum(x.state, y.state))

    @abstractmethod
    def mul(self, x: Ball, y: Ball) -> Ball: ...

    @abstractmethod
    def matmul(self, x: Ball, y: Ball) -> Ball: ...

    @abstractmethod
    def sum(self, x: Ball, axis: int) -> Ball: ...

    def div(self, x: Ball, y: Ball) -> Ball:
        known = y.state == State.KNOWN
        zero = known & (y.middle == 0) & (y.radius == 0)
        doubtful = ~known | np.asarray(np.abs(y.middle) <= y.radius, bool)
        state = np.maximum(np.where(zero, State.UNDEFINED, np.where(known & doubtful, State.UNKNOWN, y.state)), x.state)
        one = self.exact(Fraction(1))
        safe = Ball(np.where(doubtful, one.middle, y.middle), np.where(doubtful, one.radius, y.radius), y.state)
        return self.quotient(x, safe, state.astype(np.uint8))

    def max(self, x: Ball, axis: int) -> Ball:
        lower, upper = (end.max(axis=axis, keepdims=True) for end in self.ends(x))
        return self.between(lower, upper, x.state.max(axis=axis, keepdims=True))

    def exp(self, x: Ball) -> Ball:
        return self.increasing("exp", *self.ends(x), x.state)

    def sqrt(self, x: Ball) -> Ball:
        lower, upper = self.ends(x)
        return self._within_domain("sqrt", lower, upper, x.state, upper < 0, lower < 0)

    def log(self, x: Ball) -> Ball:
        lower, upper = self.ends(x)
        return self._within_domain("log", lower, upper, x.state, upper <= 0, lower <= 0)

    def abs(self, x: Ball) -> Ball:
        lower, upper = self.ends(x)
        inside = np.where((lower < 0) & (upper > 0), 0 * lower, np.minimum(np.abs(lower), np.abs(upper)))
        return self.between(inside, np.maximum(np.abs(lower), np.abs(upper)), x.state)

    def relu(self, x: Ball) -> Ball:
        lower, upper = self.ends(x)
        return self.between(np.maximum(lower, 0 * lower), np.maximum(upper, 0 * upper), x.state)

    def silu(self, x: Ball) -> Ball:
        return self.mul(x, self._monotone("sigmoid", x))

    def gelu(self, x: Ball) -> Ball:
        erf = self._monotone("erf", self.mul(x, self.sqrt(self.exact(Fraction(1, 2)))))
        return self.mul(self.mul(x, self.exact(Fraction(1, 2))), self.add(erf, self.exact(Fraction(1))))

    def less(self, x: Ball, y: Ball) -> Ball:
        """1 and 0 where the balls do not overlap, else both: the exact numbers may lie either way."""
        (low, high), (least, most) = self.ends(x), self.ends(y)
        return self._decided(high < least, low >= most, np.maximum(x.state, y.state))

    def equal(self, x: Ball, y: Ball) -> Ball:
        """1 where two exact numbers are the same, 0 where the balls do not touch."""
        (low, high), (least, most) = self.ends(x), self.ends(y)
        same = (low == high) & (least == most) & (low == least)
        return self._decided(same, (high < least) | (most < low), np.maximum(x.state, y.state))

    def truth(self, x: Ball) -> Ball:
        """1 where it is certainly not 0."""
        low, high = self.ends(x)
        return self._decided((low > 0) | (high < 0), (low == 0) & (high == 0), x.state)

    def select(self, condition: Ball, x: Ball, y: Ball) -> Ball:
        """The operand that is certainly chosen, or all numbers between both; what is not chosen need not exist."""
        low, high = self.ends(condition)
        known = condition.state == State.KNOWN
        first, second = known & ((low > 0) | (high < 0)), known & (low == 0) & (high == 0)
        (lower, upper), (least, most) = self.ends(x), self.ends(y)
        either = np.maximum(np.maximum(x.state, y.state), condition.state)
        # where the choice is open, one operand that does not exist says nothing of the result
        open_state = np.where(condition.state == State.UNDEFINED, either, np.minimum(either, State.UNKNOWN))
        state = np.where(first, x.state, np.where(second, y.state, open_state)).astype(np.uint8)
        bottom = np.where(first, lower, np.where(second, least, np.minimum(lower, least)))
        top = np.where(first, upper, np.where(second, most, np.maximum(upper, most)))
        chosen = self.between(bottom, top, state)
        middle = np.where(first, x.middle, np.where(second, y.middle, chosen.middle))
        radius = np.where(first, x.radius, np.where(second, y.radius, chosen.radius))
        return Ball(middle, radius, chosen.state)

    def infinity(self, x: Ball) -> Ball:
        """No number."""
        return Ball(x.middle, x.radius, np.maximum(x.state, State.UNKNOWN).astype(np.uint8))

    def _decided(self, holds: Array, fails: Array, state: Array) -> Ball:
        """1 where a condition certainly holds, 0 where it certainly does not, and otherwise between them."""
        one = self.exact(Fraction(1)).middle
        lower, upper = np.where(holds, one, 0 * one), np.where(fails, 0 * one, one)
        return self.between(np.asarray(lower), np.asarray(upper), state)

    def opaque(self, name: str, *xs: Ball) -> Ball:
        # by name: functions with an enclosure of their own
        if len(xs) > 1:
            return self._of_several(name, xs)
        (x,) = xs
        # by name: functions that grow everywhere, so that their values at the ends enclose all others
        if name in ("tanh", "sigmoid", "erf"):
            return self._monotone(name, x)
        if name in ROUNDINGS:
            return self._nearest(ROUNDINGS[name], x)
        functions = {"log": self.log, "abs": self.abs, "relu": self.relu, "silu": self.silu, "gelu": self.gelu}
        functions |= {"truth": self.truth, "infinity": self.infinity}
        if name not in functions:
            raise NotEnclosed(f"no enclosure of {name!r} is known")
        return functions[name](x)

    def _of_several(self, name: str, xs: Sequence[Ball]) -> Ball:
        # by name: enclosures of functions of several operands, each a method
        match name, xs:
            case "less", [x, y]:
                return self.less(x, y)
            case "equal", [x, y]:
                return self.equal(x, y)
            case "select", [condition, x, y]:
                return self.select(condition, x, y)
        raise NotEnclosed(f"no enclosure of {name!r} is known")

    def view(self, x: Ball, move: Callable[[Array], Array]) -> Ball:
        return Ball(move(x.middle), move(x.radius), move(x.state))

    def join(self, xs: Sequence[Ball], combine: Callable[[Sequence[Array]], Array]) -> Ball:
        return Ball(combine([x.middle for x in xs]), combine([x.radius for x in xs]), combine([x.state for x in xs]))

    def _monotone(self, name: str, x: Ball) -> Ball:
        return self.increasing(name, *self.ends(x), x.state)

    def _nearest(self, dtype: DType, x: Ball) -> Ball:
        """The nearest numbers of a type; to bf16, rounded once or by way of fp32, as libraries may. Unknown beyond its range."""
        direct = [self.shortened(end, *_SIGNIFICANDS[dtype]) for end in self.ends(x)]
        first = [self.shortened(end, *_SIGNIFICANDS[DType.FP32]) for end in self.ends(x)] if dtype is DType.BF16 else direct
        least, most = (self.shortened(end, *_SIGNIFICANDS[dtype]) for end in first)
        least, most = np.minimum(least, direct[0]), np.maximum(most, direct[1])
        beyond = self.beyond(least, dtype.largest) | self.beyond(most, dtype.largest)
        return self.between(least, most, np.where(beyond, np.maximum(x.state, State.UNKNOWN), x.state).astype(np.uint8))

    def _within_domain(self, name: str, lower: Array, upper: Array, state: Array, outside: Array, doubtful: Array) -> Ball:
        """An increasing function of what may lie outside its domain, certainly (`outside`) or possibly (`doubtful`)."""
        found = np.where(outside, State.UNDEFINED, np.where(doubtful, State.UNKNOWN, State.KNOWN))
        state = np.where(state == State.KNOWN, found, state).astype(np.uint8)
        one = self.exact(Fraction(1)).middle
        known = state == State.KNOWN
        return self.increasing(name, np.where(known, lower, one), np.where(known, upper, one), state)


def spread(x: Ball, y: Ball) -> Array:
    """How far products of elements lie from the products of the middles, at most and but for rounding."""
    return np.asarray(np.abs(x.middle) * y.radius + x.radius * (np.abs(y.middle) + y.radius), x.middle.dtype)


def matrix_spread(x: Ball, y: Ball) -> Array:
    """The same for matrix products."""
    reach = np.matmul(np.abs(x.middle), y.radius) + np.matmul(x.radius, np.abs(y.middle) + y.radius)
    return np.asarray(reach, x.middle.dtype)


def matrix_state(x: Ball, y: Ball) -> Array:
    """What is known of the elements of a matrix product: all of its row and column must be."""
    return np.asarray(np.maximum(x.state.max(axis=-1, keepdims=True), y.state.max(axis=-2, keepdims=True)))
