"""Functions with the properties they have, for pairs that are equal by these (docs/theory.md, "Functions with properties").

`Knowing` is a domain over another one. Its tensors say what they are products of, which parts are never negative, and which
increasing function of what they are; a function of that domain is applied to what is left when its properties were used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from mugraph.checker.interpreter import run
from mugraph.checker.operators import ROUNDINGS
from mugraph.checker.saved_files import Json
from mugraph.checker.tensors import Array, Domain, Raw

_MOST_PARTS = 6
_INCREASING = ROUNDINGS.keys() | {"relu", "sigmoid", "tanh", "log"}
_NEVER_NEGATIVE = frozenset({"relu", "abs", "sigmoid", "less", "equal", "truth"})
_SHIFT = "+"
_UNIT = Fraction(1)


@dataclass(frozen=True, slots=True)
class PropertyPart:
    """A tensor that is not known to be a product.

    If `function` is not empty, it is that increasing function of `operand`; if it begins with +, the sum with a constant.
    """

    raw: Raw
    never_negative: bool = False
    function: str = ""
    operand: Known | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor of the inner domain, which is s * product(over) / product(under) for a constant s; `square` is s |s|, not 0."""

    raw: Raw
    over: tuple[PropertyPart, ...]
    under: tuple[PropertyPart, ...] = ()
    square: Fraction = _UNIT

    @property
    def never_negative(self) -> bool:
        return self.square > 0 and all(part.never_negative for part in self.over + self.under)

    @property
    def is_number(self) -> bool:
        return not (self.over or self.under)

    @property
    def only(self) -> PropertyPart | None:
        """The part it is a multiple of."""
        return self.over[0] if (len(self.over), len(self.under)) == (1, 0) else None


def lone(part: PropertyPart) -> Known:
    """A tensor that is one part."""
    return Known(part.raw, (part,))


@dataclass(frozen=True, slots=True)
class Knowing:
    """The domain of what is known of tensors of `inner`."""

    inner: Domain
    roots_factor: ClassVar[bool] = True

    def wrap(self, raw: Raw) -> Known:
        """A tensor of which nothing is known."""
        return lone(PropertyPart(raw))

    # numbers ---------------------------------------------------------------------------------------------------------

    def number(self, value: Fraction) -> Known:
        raw = self.inner.number(value)
        return Known(raw, (), (), value * abs(value)) if value else self.wrap(raw)

    def least(self, value: Fraction) -> Known:
        return self.wrap(self.inner.least(value))

    def root(self, value: Fraction) -> Known:
        return Known(self.inner.root(value), (), (), value)

    def constant(self, square: Fraction) -> Known:
        """The constant s with s |s| = square."""
        rational = _rational(square)
        if rational is not None:
            return self.number(rational)
        root = self.root(abs(square))
        return root if square > 0 else self.multiply(root, self.number(Fraction(-1)))

    # rational operators ----------------------------------------------------------------------------------------------

    def add(self, x: Known, y: Known) -> Known:
        total = self.total(self.inner.add(x.raw, y.raw), [x, y], x.never_negative and y.never_negative)
        return self.shift(total, y, x.square) if x.is_number else self.shift(total, x, y.square if y.is_number else None)

    def subtract(self, x: Known, y: Known) -> Known:
        difference = self.total(self.inner.subtract(x.raw, y.raw), [x, y], False)
        return self.shift(difference, x, -y.square if y.is_number else None)

    def shift(self, total: Known, x: Known, square: Fraction | None) -> Known:
        """The sum of x and a constant, as that."""
        if square is None or total.only is None:
            return total
        operand = self.multiple(x, 1 / total.square)
        return replace(total, over=(replace(total.only, function=f"{_SHIFT}{square / total.square}", operand=operand),))

    def multiply(self, x: Known, y: Known) -> Known:
        return self.limited(Known(self.inner.multiply(x.raw, y.raw), x.over + y.over, x.under + y.under, x.square * y.square))

    def divide(self, x: Known, y: Known) -> Known:
        return self.limited(Known(self.inner.divide(x.raw, y.raw), x.over + y.under, x.under + y.over, x.square / y.square))

    def limited(self, x: Known) -> Known:
        return x if len(x.over) + len(x.under) <= _MOST_PARTS else self.total(x.raw, [x], x.never_negative)

    def sum(self, x: Known, axis: int) -> Known:
        return self.total(self.inner.sum(x.raw, axis), [x], x.never_negative)

    def total(self, raw: Raw, summands: Sequence[Known], never_negative: bool) -> Known:
        """A sum, as the multiple that its summands have in common."""
        square = _common([x.square for x in summands])
        if square == 1:
            return lone(PropertyPart(raw, never_negative))
        rest = self.inner.multiply(raw, self.constant(1 / square).raw)
        return Known(raw, (PropertyPart(rest, never_negative and square > 0),), (), square)

    def multiple(self, x: Known, square: Fraction) -> Known:
        return x if square == 1 else self.multiply(x, self.constant(square))

    def all_times(self, x: Known, factors: Iterable[Known], divisors: Iterable[Known]) -> Known:
        for factor in factors:
            x = self.multiply(x, factor)
        for divisor in divisors:
            x = self.divide(x, divisor)
        return x

    # functions -------------------------------------------------------------------------------------------------------

    def exp(self, x: Known) -> Known:
        return lone(PropertyPart(self.inner.exp(x.raw), True, "exp", x))

    def function(self, name: str, *xs: Known) -> Known:
        if len(xs) > 1:
            return lone(PropertyPart(self.inner.function(name, *(x.raw for x in xs)), name in _NEVER_NEGATIVE))
        (x,) = xs
        match name:
            case "sqrt":
                return self.square_root(x)
            case "relu" if not x.never_negative and not x.is_number:
                return self.relu(x)
            case "abs" if not x.is_number:
                return self.all_times(self.shaped(x, abs(x.square)), map(self.absolute, x.over), map(self.absolute, x.under))
            case "relu" if x.never_negative:
                return x
            case "log" if x.square > 0 and not x.is_number:
                return self.logarithm(x)
            case _ if name in ROUNDINGS:
                return self.rounded(name, x)
        return self.any_function(name, x)

    def any_function(self, name: str, x: Known) -> Known:
        never_negative = name in _NEVER_NEGATIVE or (name in ROUNDINGS and x.never_negative)
        part = PropertyPart(self.inner.function(name, x.raw), never_negative)
        return lone(replace(part, function=name, operand=x) if name in _INCREASING else part)

    def square_root(self, x: Known) -> Known:
        """The root of a multiple of one part; the interpreter takes the roots of products apart."""
        rational = _rational(x.square)
        if x.only is None or rational is None or rational < 0:
            return lone(PropertyPart(self.inner.function("sqrt", x.raw), True))
        root = lone(PropertyPart(self.inner.function("sqrt", x.only.raw), True, "sqrt", lone(x.only)))
        return self.multiple(root, rational)

    def relu(self, x: Known) -> Known:
        """What is never negative comes out, and what was rounded is rounded afterwards."""
        sign = Fraction(1 if x.square > 0 else -1)
        mixed = [lone(part) for part in x.over if not part.never_negative]
        below = [lone(part) for part in x.under if not part.never_negative]
        inside = self.all_times(self.shaped(x, sign), mixed, below)
        if inside.only is not None and inside.only.function in ROUNDINGS and inside.only.operand is not None:
            rectified = self.function("relu", self.multiple(inside.only.operand, sign))
            result = self.any_function(inside.only.function, rectified)
        else:
            result = self.any_function("relu", inside)
        outside = [lone(part) for part in x.over if part.never_negative]
        divisors = [lone(part) for part in x.under if part.never_negative]
        return self.all_times(self.multiple(result, abs(x.square)), outside, divisors)

    def absolute(self, part: PropertyPart) -> Known:
        if part.never_negative:
            return lone(part)
        if part.function in ROUNDINGS and part.operand is not None:
            return self.any_function(part.function, self.function("abs", part.operand))
        return self.any_function("abs", lone(part))

    def rounded(self, name: str, x: Known) -> Known:
        if x.square < 0:
            return self.multiple(self.rounded(name, self.multiple(x, Fraction(-1))), Fraction(-1))
        known = x.only is not None and x.only.function == name and x.square == 1
        return x if known else self.any_function(name, x)

    def logarithm(self, x: Known) -> Known:
        logs = [self.logarithm_of(part) for part in x.over]
        logs += [self.multiple(self.logarithm_of(part), Fraction(-1)) for part in x.under]
        if x.square != 1:
            logs.append(self.any_function("log", self.constant(x.square)))
        total = logs[0]
        for each in logs[1:]:
            total = self.add(total, each)
        return self.multiply(self.shaped(x, _UNIT), total)

    def logarithm_of(self, part: PropertyPart) -> Known:
        return part.operand if part.function == "exp" and part.operand is not None else self.any_function("log", lone(part))

    def row_function(self, name: str, x: Known, axis: int) -> Known:
        """max(c x) = c max(x) for c > 0, and max(f(x)) = f(max(x)) for increasing f."""
        shape = self.inner.shape(x.raw)
        if name != "max" or shape[axis] == 1:
            return self.wrap(self.inner.row_function(name, x.raw, axis)) if name != "max" else x
        rest = self.multiple(x, 1 / abs(x.square))
        part = rest.only if rest.square == 1 else None
        if part is not None and part.operand is not None and self.inner.shape(part.operand.raw) == shape:
            found = self.again(part.function, self.row_function(name, part.operand, axis))
        else:
            found = lone(PropertyPart(self.inner.row_function(name, rest.raw, axis), rest.never_negative))
        return self.multiple(found, abs(x.square))

    def again(self, function: str, x: Known) -> Known:
        if function.startswith(_SHIFT):
            return self.add(x, self.constant(Fraction(function.removeprefix(_SHIFT))))
        return self.exp(x) if function == "exp" else self.function(function, x)

    # movements -------------------------------------------------------------------------------------------------------

    def shaped(self, x: Known, square: Fraction) -> Known:
        """A constant with as many dimensions as x."""
        rank, constant = len(self.inner.shape(x.raw)), self.constant(square)
        return replace(constant, raw=self.inner.move([constant.raw], lambda arrays: np.reshape(arrays[0], (1,) * rank)))

    def move(self, xs: Sequence[Known], move: Callable[[list[Array]], Array]) -> Known:
        raw, shapes = self.inner.move([x.raw for x in xs], move), [self.inner.shape(x.raw) for x in xs]
        if len({(len(x.over), len(x.under), x.square) for x in xs}) > 1:
            return self.total(raw, xs, all(x.never_negative for x in xs))

        def moved(arrays: list[Array]) -> Array:
            return move([np.broadcast_to(array, shape) for array, shape in zip(arrays, shapes, strict=True)])

        def together(parts: tuple[PropertyPart, ...]) -> PropertyPart:
            operands = [part.operand for part in parts if part.operand is not None]
            common = len(operands) == len(parts) and len({part.function for part in parts}) == 1
            part = PropertyPart(self.inner.move([part.raw for part in parts], moved), all(part.never_negative for part in parts))
            return replace(part, function=parts[0].function, operand=self.move(operands, moved)) if common else part

        over = tuple(map(together, zip(*(x.over for x in xs), strict=True)))
        return Known(raw, over, tuple(map(together, zip(*(x.under for x in xs), strict=True))), xs[0].square)

    def shape(self, x: Known) -> tuple[int, ...]:
        return self.inner.shape(x.raw)


def outputs(graph: Json, inputs: Sequence[Raw], domain: Domain, properties: bool) -> list[Raw]:
    """The outputs of a kernel graph, where functions may have their properties."""
    if not properties:
        return run(graph, inputs, domain)
    knowing = Knowing(domain)
    return [x.raw for x in run(graph, [knowing.wrap(x) for x in inputs], knowing)]


def _rational(square: Fraction) -> Fraction | None:
    """The rational s with s |s| = square, if there is one."""
    above, below = math.isqrt(abs(square.numerator)), math.isqrt(square.denominator)
    if (above**2, below**2) != (abs(square.numerator), square.denominator):
        return None
    return Fraction(above if square > 0 else -above, below)


def _common(squares: Sequence[Fraction]) -> Fraction:
    """Of the constant that multiples by these have in common, s |s|: the greatest one if they are rational, else 1."""
    if len({*squares}) == 1:
        return squares[0]
    scales = [scale for scale in map(_rational, squares) if scale is not None]
    if len(scales) < len(squares):
        return _UNIT
    below = math.lcm(*(scale.denominator for scale in scales))
    return Fraction(math.gcd(*(int(scale * below) for scale in scales)), below) ** 2
