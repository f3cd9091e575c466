"""Functions with the properties they have: relu(c x) = c relu(x) for c >= 0, max(f(x)) = f(max(x)) for increasing f, and others.

Under free semantics, relu is any function. Here values remember what they are products of and which function gave them, and
functions are applied to what the properties leave: each result is that of the real function wherever a program is defined
(docs/theory.md, "Functions with properties"). What remains to be applied is any function, as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

import numpy as np

from mugraph.ir.arithmetic import Arithmetic, Array
from mugraph.ir.ops import LOWEST, ROUNDINGS
from mugraph.ir.scalar import Scalar
from mugraph.verifier.root_semantics import shape_of

V = TypeVar("V")

_FACTORS = 6
"""A product of more factors counts as one."""
_ONE, _MINUS_ONE = Scalar.of(1), Scalar.of(-1)
_ROUNDINGS = frozenset(ROUNDINGS.values())
_INCREASING = frozenset({"relu", "sigmoid", "tanh", "log"}) | _ROUNDINGS
_NONNEGATIVE = frozenset({"relu", "abs", "sigmoid", "less", "equal", "truth"})

Name = str | Scalar
"""A function of one variable: one of the operator table, or the sum with a constant."""


@dataclass(frozen=True, slots=True)
class Factor(Generic[V]):
    """A tensor that is no known product; `nonnegative` if it is, and `image` if it is an increasing function of a tensor."""

    value: V
    nonnegative: bool = False
    image: tuple[Name, CharacterProduct[V]] | None = None


@dataclass(frozen=True, slots=True)
class CharacterProduct(Generic[V]):
    """A tensor `value` that is `scale` times the product of `over` divided by that of `under`; the scale is not 0."""

    value: V
    over: tuple[Factor[V], ...]
    under: tuple[Factor[V], ...] = ()
    scale: Scalar = _ONE

    @property
    def nonnegative(self) -> bool:
        """Whether it is known to be at least 0."""
        return self.scale.value > 0 and all(factor.nonnegative for factor in (*self.over, *self.under))

    @property
    def alone(self) -> Factor[V] | None:
        """The factor that it is a multiple of."""
        return self.over[0] if len(self.over) == 1 and not self.under else None

    @property
    def image(self) -> tuple[Name, CharacterProduct[V]] | None:
        """The increasing function that it is, and of what."""
        return self.alone.image if self.alone is not None and self.scale == _ONE else None


class Characters(Generic[V]):
    """The arithmetic `inner`, whose functions meet only what their properties leave of an argument."""

    def __init__(self, inner: Arithmetic[V]) -> None:
        self.inner = inner

    def atom(
        self, value: V, nonnegative: bool = False, image: tuple[Name, CharacterProduct[V]] | None = None
    ) -> CharacterProduct[V]:
        return CharacterProduct(value, (Factor(value, nonnegative, image),))

    # rational operators ----------------------------------------------------------------------------------------------

    def constant(self, value: Scalar) -> CharacterProduct[V]:
        constant = self.inner.constant(value)
        return self.atom(constant) if value is LOWEST or value.value == 0 else CharacterProduct(constant, (), (), value)

    def add(self, x: CharacterProduct[V], y: CharacterProduct[V]) -> CharacterProduct[V]:
        total = self.total(self.inner.add(x.value, y.value), _content([x.scale, y.scale]), x.nonnegative and y.nonnegative)
        return self.shifted(total, y, x) if not x.over and not x.under else self.shifted(total, x, y)

    def sub(self, x: CharacterProduct[V], y: CharacterProduct[V]) -> CharacterProduct[V]:
        difference = self.total(self.inner.sub(x.value, y.value), _content([x.scale, y.scale]))
        return self.shifted(difference, x, self.negative(y)) if not y.over and not y.under else difference

    def shifted(self, total: CharacterProduct[V], x: CharacterProduct[V], constant: CharacterProduct[V]) -> CharacterProduct[V]:
        """A sum that is known to be one of `x` and a constant, if it is."""
        if constant.over or constant.under or total.alone is None:
            return total
        operand = x if total.scale == _ONE else self.times(x, total.scale.reciprocal())
        image = constant.scale * total.scale.reciprocal(), operand
        return CharacterProduct(total.value, (Factor(total.alone.value, total.alone.nonnegative, image),), (), total.scale)

    def mul(self, x: CharacterProduct[V], y: CharacterProduct[V]) -> CharacterProduct[V]:
        return self.product(self.inner.mul(x.value, y.value), (*x.over, *y.over), (*x.under, *y.under), x.scale * y.scale)

    def div(self, x: CharacterProduct[V], y: CharacterProduct[V]) -> CharacterProduct[V]:
        value = self.inner.div(x.value, y.value)
        return self.product(value, (*x.over, *y.under), (*x.under, *y.over), x.scale * y.scale.reciprocal())

    def sum(self, x: CharacterProduct[V], axis: int) -> CharacterProduct[V]:
        return self.total(self.inner.sum(x.value, axis), x.scale, x.nonnegative)

    def matmul(self, x: CharacterProduct[V], y: CharacterProduct[V]) -> CharacterProduct[V]:
        return self.total(self.inner.matmul(x.value, y.value), x.scale * y.scale, x.nonnegative and y.nonnegative)

    def total(self, value: V, scale: Scalar, nonnegative: bool = False) -> CharacterProduct[V]:
        """A sum of multiples by one constant is that multiple of a sum."""
        if scale == _ONE:
            return self.atom(value, nonnegative)
        part = self.inner.mul(value, self.inner.constant(scale.reciprocal()))
        return CharacterProduct(value, (Factor(part, nonnegative and scale.value > 0),), (), scale)

    def product(self, value: V, over: tuple[Factor[V], ...], under: tuple[Factor[V], ...], scale: Scalar) -> CharacterProduct[V]:
        if len(over) + len(under) > _FACTORS:
            return self.total(value, scale)
        return CharacterProduct(value, over, under, scale)

    def times(self, x: CharacterProduct[V], scale: Scalar) -> CharacterProduct[V]:
        """A multiple."""
        return x if scale == _ONE else self.mul(x, CharacterProduct(self.inner.constant(scale), (), (), scale))

    def negative(self, x: CharacterProduct[V]) -> CharacterProduct[V]:
        return self.times(x, _MINUS_ONE)

    # functions -------------------------------------------------------------------------------------------------------

    def exp(self, x: CharacterProduct[V]) -> CharacterProduct[V]:
        return self.atom(self.inner.exp(x.value), True, ("exp", x))

    def sqrt(self, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """sqrt(c x y / z) = sqrt(c) sqrt(x) sqrt(y) / sqrt(z) for c > 0."""
        if x.scale.value < 0 or x.scale.root:
            return self.atom(self.inner.sqrt(x.value), True)
        over, under = ([self.atom(self.inner.sqrt(each.value), True) for each in factors] for factors in (x.over, x.under))
        if not under and len(over) == 1 and x.scale == _ONE:
            return self.atom(over[0].value, True, ("sqrt", x))
        return self.collected(self.ones(x), over, under, x.scale.sqrt())

    # by name: each of these has laws of its own, which the docstrings below state
    def opaque(self, name: str, *xs: CharacterProduct[V]) -> CharacterProduct[V]:
        x = xs[0]
        if len(xs) > 1:
            return self.atom(self.inner.opaque(name, *(x.value for x in xs)), name in _NONNEGATIVE)
        if name in ("relu", "abs"):
            return self.homogeneous(name, x)
        if name in _ROUNDINGS:
            return self.rounded(name, x)
        return self.logarithm(x) if name == "log" else self.applied(name, x)

    def applied(self, name: str, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """Any function, of which no more is known than that it increases, or is nowhere negative."""
        nonnegative = name in _NONNEGATIVE or (name in _ROUNDINGS and x.nonnegative)
        return self.atom(self.inner.opaque(name, x.value), nonnegative, (name, x) if name in _INCREASING else None)

    def homogeneous(self, name: str, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """f(c x / y) = c f(x) / y for c >= 0 and y > 0; |x y| = |x| |y|; and f(round(x)) = round(f(x))."""
        if x.nonnegative:
            return x
        if not x.over and not x.under:
            return self.applied(name, x)
        # by name: |x y| = |x| |y| holds of it alone
        if name == "abs":
            over, under = ([self.magnitude(each) for each in factors] for factors in (x.over, x.under))
            return self.collected(self.ones(x), over, under, _absolute(x.scale))
        outer, inner = ([self.of(f) for f in x.over if f.nonnegative is known] for known in (True, False))
        under, below = ([self.of(f) for f in x.under if f.nonnegative is known] for known in (True, False))
        sign = _ONE if x.scale.value > 0 else _MINUS_ONE
        rest = x if not (outer or under) and x.scale == sign else self.collected(self.ones(x), inner, below, sign)
        return self.collected(self.mul(self.ones(x), self.rectified(rest)), outer, under, _absolute(x.scale))

    def rectified(self, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """relu of what no factor and no constant comes out of but -1."""
        if x.alone is not None and x.alone.image is not None and x.alone.image[0] in _ROUNDINGS:
            name, operand = x.alone.image
            return self.applied(str(name), self.homogeneous("relu", self.times(operand, x.scale)))
        return self.applied("relu", x)

    def magnitude(self, factor: Factor[V]) -> CharacterProduct[V]:
        """The absolute value of a factor."""
        if factor.nonnegative:
            return self.of(factor)
        if factor.image is not None and factor.image[0] in _ROUNDINGS:
            return self.applied(str(factor.image[0]), self.homogeneous("abs", factor.image[1]))
        return self.applied("abs", self.of(factor))

    def rounded(self, name: str, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """round(-x) = -round(x), and what was rounded is."""
        if x.scale.value < 0:
            return self.negative(self.rounded(name, self.negative(x)))
        return x if x.image is not None and x.image[0] == name else self.applied(name, x)

    def logarithm(self, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """log(c x y / z) = log(c) + log(x) + log(y) - log(z) for c > 0, and log(exp(x)) = x."""
        if x.scale.value < 0 or not (x.over or x.under):
            return self.applied("log", x)
        over, under = ([self.logarithm_of(each) for each in factors] for factors in (x.over, x.under))
        if x.scale != _ONE:
            over.append(self.applied("log", self.constant(x.scale)))
        result, *others = [*over, *map(self.negative, under)]
        for each in others:
            result = self.add(result, each)
        return self.mul(self.ones(x), result)

    def logarithm_of(self, factor: Factor[V]) -> CharacterProduct[V]:
        # by name: log(exp(x)) = x
        if factor.image is not None and factor.image[0] == "exp":
            return factor.image[1]
        return self.applied("log", self.of(factor))

    def max(self, x: CharacterProduct[V], axis: int) -> CharacterProduct[V]:
        """max(c x) = c max(x) for c > 0, and max(f(x)) = f(max(x)) for increasing f."""
        shape = shape_of(self.inner, x.value)
        if shape is not None and shape[axis] == 1:
            return x
        rest = self.times(x, _absolute(x.scale).reciprocal())
        if rest.image is not None and shape_of(self.inner, rest.image[1].value) == shape:
            name, operand = rest.image
            found = self.again(name, self.max(operand, axis))
        else:
            found = self.atom(self.inner.max(rest.value, axis), rest.nonnegative)
        return self.times(found, _absolute(x.scale))

    def again(self, name: Name, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """An increasing function of `x`."""
        if isinstance(name, Scalar):
            return self.add(x, CharacterProduct(self.inner.constant(name), (), (), name))
        # by name: exponentials and roots are no opaque functions here
        return self.exp(x) if name == "exp" else self.sqrt(x) if name == "sqrt" else self.opaque(name, x)

    # products and movements --------------------------------------------------------------------------------------------

    def of(self, factor: Factor[V]) -> CharacterProduct[V]:
        return CharacterProduct(factor.value, (factor,))

    def ones(self, x: CharacterProduct[V]) -> CharacterProduct[V]:
        """The constant 1, with as many dimensions as x."""
        rank = len(shape_of(self.inner, x.value) or ())
        return CharacterProduct(self.inner.view(self.inner.constant(_ONE), lambda array: np.reshape(array, (1,) * rank)), ())

    def collected(
        self, start: CharacterProduct[V], over: Sequence[CharacterProduct[V]], under: Sequence[CharacterProduct[V]], scale: Scalar
    ) -> CharacterProduct[V]:
        """The product of `start`, all of these and a constant, divided by those in `under`."""
        for each in over:
            start = self.mul(start, each)
        for each in under:
            start = self.div(start, each)
        return self.times(start, scale)

    def view(self, x: CharacterProduct[V], move: Callable[[Array], Array]) -> CharacterProduct[V]:
        value, shape = self.inner.view(x.value, move), shape_of(self.inner, x.value)
        if shape is None:
            return self.atom(value)

        def moved(array: Array) -> Array:
            return move(np.broadcast_to(array, shape))

        def factor(each: Factor[V]) -> Factor[V]:
            image = None if each.image is None else (each.image[0], self.view(each.image[1], moved))
            same = each.value is x.value
            return Factor(value if same else self.inner.view(each.value, moved), each.nonnegative, image)

        return CharacterProduct(value, tuple(map(factor, x.over)), tuple(map(factor, x.under)), x.scale)

    def join(self, xs: Sequence[CharacterProduct[V]], combine: Callable[[Sequence[Array]], Array]) -> CharacterProduct[V]:
        """Products of as many factors are such a product together; others the multiple that they have in common."""
        value, shapes = self.inner.join([x.value for x in xs], combine), [shape_of(self.inner, x.value) or () for x in xs]
        if len({(len(x.over), len(x.under), x.scale) for x in xs}) > 1:
            return self.total(value, _content([x.scale for x in xs]))

        def whole(arrays: Sequence[Array]) -> Array:
            return combine([np.broadcast_to(array, shape) for array, shape in zip(arrays, shapes, strict=True)])

        def factor(parts: Sequence[Factor[V]]) -> Factor[V]:
            images = [part.image for part in parts if part.image is not None]
            image = None
            if len(images) == len(parts) and len({name for name, _ in images}) == 1:
                image = images[0][0], self.join([operand for _, operand in images], whole)
            joined = self.inner.join([part.value for part in parts], whole)
            return Factor(joined, all(part.nonnegative for part in parts), image)

        over, under = (tuple(map(factor, zip(*parts, strict=True))) for parts in ([x.over for x in xs], [x.under for x in xs]))
        return CharacterProduct(value, over, under, xs[0].scale)


def _content(scales: Sequence[Scalar]) -> Scalar:
    """The multiple that multiples by these constants have in common: the greatest one, if they are rational."""
    if len({*scales}) == 1:
        return scales[0]
    if any(scale.root for scale in scales):
        return _ONE
    below = math.lcm(*(scale.value.denominator for scale in scales))
    return Scalar(Fraction(math.gcd(*(int(scale.value * below) for scale in scales)), below))


def _absolute(scale: Scalar) -> Scalar:
    return scale if scale.value > 0 else scale * _MINUS_ONE
