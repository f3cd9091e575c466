"""Field arithmetic in which roots obey laws: sqrt(a)**2 is a, and roots distribute over products.

*True roots* of squares, with both signs of each (docs/theory.md): programs that agree for every choice of signs agree whatever
the signs are, so in particular for the roots that are not negative. sqrt(x**2) is x for one sign and -x for the other: it is
neither.

*Factors*: sqrt(x y / z) is computed as sqrt(x) sqrt(y) / sqrt(z). The law holds for the real function sqrt(|x|), which is sqrt(x)
wherever a program is defined. With it applied before evaluation, the root may be any function of what is not a product, and
programs that A_eq makes equal by it still agree.

Both at once are more than the error bounds know of: tests without a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from mugraph.algebra.fields import FieldPair, FieldValue
from mugraph.algebra.modular import multiply, square_root
from mugraph.errors import MugraphError, UndefinedInField
from mugraph.ir.arithmetic import Arithmetic, Array
from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Scalar
from mugraph.verifier.constant_roots import Primes
from mugraph.verifier.semantics import FreeArithmetic, MaximaArithmetic
from mugraph.verifier.vectorized_eval import evaluate_batched


class LawfulArithmetic(MaximaArithmetic):
    """Roots that are multiplicative and square back on squares.

    `radicands` counts the elements roots were taken of; `all_squares` says whether all of them were squares.
    """

    def __init__(self, pair: FieldPair, *, omega: int, seed: int, mirrored: bool) -> None:
        super().__init__(pair, omega=omega, seed=seed, mirrored=mirrored)
        self.radicands = 0
        self.all_squares = True

    def sqrt(self, x: FieldValue) -> FieldValue:
        root = super().sqrt(x)
        squares = self.mul(root, root)
        self.radicands += math.prod(x.shape)
        for ours, theirs in ((squares.known_p, x.known_p), (squares.q, x.q)):
            if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
                self.all_squares = False
        return root


MOST_RADICANDS = 4
"""Different radicands of one evaluation: there are 2**4 choices of signs, and about as many draws until all are squares."""


class TooManyRadicands(MugraphError):
    """A program takes roots of more different numbers than choices of signs can be tried for."""


@dataclass(slots=True)
class SignChoice:
    """A choice of sign for each radicand, in the order in which they were met: False at first."""

    chosen: dict[int, bool] = field(default_factory=dict)

    def of(self, radicand: int) -> bool:
        """The sign of the root of a residue."""
        if radicand not in self.chosen and len(self.chosen) == MOST_RADICANDS:
            raise TooManyRadicands(f"roots are taken of more than {MOST_RADICANDS} different numbers")
        return self.chosen.setdefault(radicand, False)

    def advance(self) -> bool:
        """Go to the next choice; False after the last. What follows the sign that changes is met anew."""
        while self.chosen:
            radicand, sign = self.chosen.popitem()
            if not sign:
                self.chosen[radicand] = True
                return True
        return False


class RootedArithmetic(FreeArithmetic):
    """Residues modulo p alone, and roots by `signs`; exponentials are random functions, too.

    Raises UndefinedInField where a radicand is no square, and TooManyRadicands.
    """

    def __init__(
        self, pair: FieldPair, *, omega: int, seed: int, signs: SignChoice, root_variables: Primes = frozenset()
    ) -> None:
        super().__init__(pair, omega=omega, seed=seed, root_variables=root_variables)
        self.signs = signs

    def constant(self, value: Scalar) -> FieldValue:
        return FieldValue(super().constant(value).p, None)

    def variables(self, count: int) -> FieldValue:
        return FieldValue(super().variables(count).p, None)

    def sqrt(self, x: FieldValue) -> FieldValue:
        radicands, places = np.unique(x.p, return_inverse=True)
        signs = [self.signs.of(int(radicand)) for radicand in radicands]
        roots = square_root(radicands, self._p)
        if not np.array_equal(multiply(roots, roots, self._p), radicands) or not radicands.all():
            raise UndefinedInField("a root of what is no square; draw other fields and inputs")
        return FieldValue(np.where(signs, self._p - roots, roots)[places].reshape(x.p.shape), None)


V = TypeVar("V")

_FACTORS = 6
"""A product of more factors counts as one: no kernel takes the root of such."""
_ONE = Scalar.of(1)


@dataclass(frozen=True, slots=True)
class Product(Generic[V]):
    """A tensor `value` that is `scale` times the product of `over` divided by that of `under`, broadcast together."""

    value: V
    over: tuple[V, ...]
    under: tuple[V, ...] = ()
    scale: Scalar = _ONE


class Factored(Generic[V]):
    """The arithmetic `inner`, whose `sqrt` meets only what is no product, on values that remember what they are products of."""

    def __init__(self, inner: Arithmetic[V]) -> None:
        self.inner = inner

    def constant(self, value: Scalar) -> Product[V]:
        constant = self.inner.constant(value)
        return Product(constant, (constant,)) if value.root else Product(constant, (), (), value)

    def add(self, x: Product[V], y: Product[V]) -> Product[V]:
        return self.scaled(self.inner.add(x.value, y.value), x.scale if x.scale == y.scale else _ONE)

    def sub(self, x: Product[V], y: Product[V]) -> Product[V]:
        return self.scaled(self.inner.sub(x.value, y.value), x.scale if x.scale == y.scale else _ONE)

    def mul(self, x: Product[V], y: Product[V]) -> Product[V]:
        value = self.inner.mul(x.value, y.value)
        return self.product(value, (*x.over, *y.over), (*x.under, *y.under), x.scale * y.scale)

    def div(self, x: Product[V], y: Product[V]) -> Product[V]:
        value = self.inner.div(x.value, y.value)
        if y.scale.value == 0:
            return self.atom(value)
        return self.product(value, (*x.over, *y.under), (*x.under, *y.over), x.scale * y.scale.reciprocal())

    def exp(self, x: Product[V]) -> Product[V]:
        return self.atom(self.inner.exp(x.value))

    def sqrt(self, x: Product[V]) -> Product[V]:
        if x.scale.value < 0:  # sqrt(-x) is no multiple of sqrt(x): where one is defined, the other is not
            return self.atom(self.inner.sqrt(x.value))
        ones = (1,) * len(shape_of(self.inner, x.value) or ())
        root = self.inner.view(self.inner.constant(Scalar(x.scale.value, root=True)), lambda array: np.reshape(array, ones))
        for factor in x.over:
            root = self.inner.mul(root, self.inner.sqrt(factor))
        for factor in x.under:
            root = self.inner.div(root, self.inner.sqrt(factor))
        return self.atom(root)

    def sum(self, x: Product[V], axis: int) -> Product[V]:
        return self.scaled(self.inner.sum(x.value, axis), x.scale)

    def max(self, x: Product[V], axis: int) -> Product[V]:
        return self.atom(self.inner.max(x.value, axis))

    def matmul(self, x: Product[V], y: Product[V]) -> Product[V]:
        return self.scaled(self.inner.matmul(x.value, y.value), x.scale * y.scale)

    def opaque(self, name: str, *xs: Product[V]) -> Product[V]:
        return self.atom(self.inner.opaque(name, *(x.value for x in xs)))

    def view(self, x: Product[V], move: Callable[[Array], Array]) -> Product[V]:
        if len(x.over) + len(x.under) <= 1 and x.over != () and x.over[0] is x.value:
            return self.atom(self.inner.view(x.value, move))
        shape = shape_of(self.inner, x.value)
        if shape is None:
            return self.atom(x.value)

        def moved(array: Array) -> Array:
            return move(np.broadcast_to(array, shape))

        over, under = (tuple(self.inner.view(factor, moved) for factor in factors) for factors in (x.over, x.under))
        return Product(self.inner.view(x.value, move), over, under, x.scale)

    def join(self, xs: Sequence[Product[V]], combine: Callable[[Sequence[Array]], Array]) -> Product[V]:
        scales = {x.scale for x in xs}
        return self.scaled(self.inner.join([x.value for x in xs], combine), scales.pop() if len(scales) == 1 else _ONE)

    def atom(self, value: V) -> Product[V]:
        return Product(value, (value,))

    def scaled(self, value: V, scale: Scalar) -> Product[V]:
        """A sum of multiples by one constant is that multiple of a sum."""
        if scale == _ONE or scale.root or scale.value <= 0:
            return self.atom(value)
        return Product(value, (self.inner.mul(value, self.inner.constant(scale.reciprocal())),), (), scale)

    def product(self, value: V, over: tuple[V, ...], under: tuple[V, ...], scale: Scalar) -> Product[V]:
        if len(over) + len(under) > _FACTORS or scale.root or scale.value == 0:
            return self.atom(value)
        return Product(value, over, under, scale)


def shape_of(arith: Arithmetic[V], value: V) -> tuple[int, ...] | None:
    """The shape of a tensor of an arithmetic, which shows its arrays to views only; None where it has none."""
    shapes: list[tuple[int, ...]] = []

    def note(array: Array) -> Array:
        shapes.append(array.shape)
        return array

    arith.view(value, note)
    return shapes[0] if shapes else None


class Scaled(Factored[V]):
    """The same, but that only constants are taken out of roots: the law sqrt(x y) = sqrt(x) sqrt(y) fails for sqrt(x)**2 = x.

    With both, sqrt(x**2) would be x.
    """

    def product(self, value: V, over: tuple[V, ...], under: tuple[V, ...], scale: Scalar) -> Product[V]:
        return self.scaled(value, scale)


class Remembering(Arithmetic[Any], Protocol):
    """An arithmetic whose tensors remember more than their `value`; `atom` makes one that has nothing to remember."""

    def atom(self, value: Any) -> Any: ...


def evaluate_products(graph: Graph, inputs: Sequence[V], arith: Remembering, at_once: int = 0) -> list[V]:
    """The outputs of a kernel graph under an arithmetic that remembers what tensors are products of; `at_once` as in
    `evaluate_batched`."""
    return [x.value for x in evaluate_batched(graph, [arith.atom(value) for value in inputs], arith, at_once=at_once)]
