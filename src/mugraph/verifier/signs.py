"""Which signs the elements of tensors can have, whatever the inputs are, and what that leaves to be required of the inputs.

Squares, exponentials and roots are not negative, nor what is added, multiplied, divided or maximised of such. So much is enough
for the radicands that norms take roots of, and for the denominators of softmax. Where it is not enough, roots, logarithms and
divisions are conditions on the inputs, named by formulas. It is `Arithmetic` on what is known of signs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from functools import reduce
from itertools import product
from operator import or_

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.formulas import Binding, Formula, Writing
from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Scalar
from mugraph.verifier.vectorized_eval import evaluate_batched

_LONGEST = 72
"""Characters after which a formula is replaced by the inputs it is made of."""
_LONGEST_CONSTANT = 12
_MOST_FACTORS = 8


class Signs(IntFlag):
    """Which signs an element can have."""

    NEGATIVE = 1
    ZERO = 2
    POSITIVE = 4
    NOT_NEGATIVE = 6
    NOT_ZERO = 5
    ANY = 7


@dataclass(frozen=True, slots=True, eq=False)
class Sign:
    """One tensor, equal to itself alone: the signs of its elements, a formula, and the inputs it is made of.

    `zero` is a shorter formula that is 0 where the tensor is, if one is known. A product of several has these as `factors`, with
    how often each stands in it.
    """

    possible: Signs
    formula: Formula
    inputs: tuple[str, ...] = ()
    zero: Formula | None = None
    factors: tuple[tuple[Sign, int], ...] = ()

    @property
    def vanishing(self) -> Formula:
        """A formula that is 0 where the tensor is."""
        return self.zero or self.formula


@dataclass(frozen=True, slots=True)
class Condition:
    """What an operation needs: the signs `needed` of the elements of a tensor that can have the signs `possible`."""

    operation: str
    formula: str
    needed: Signs
    possible: Signs

    @property
    def impossible(self) -> bool:
        """Whether it holds at no inputs."""
        return not self.needed & self.possible

    def __str__(self) -> str:
        relation = {Signs.NOT_NEGATIVE: ">=", Signs.POSITIVE: ">", Signs.NOT_ZERO: "!="}[self.needed]
        return f"{self.formula} {relation} 0"


@dataclass(slots=True)
class _Signed:
    """The arithmetic, which collects the conditions that are not met by signs alone."""

    conditions: dict[Condition, None] = field(default_factory=dict)
    writing: Writing = field(default_factory=Writing)

    def constant(self, value: Scalar) -> Sign:
        text = str(value)
        formula = self.writing.constant(text) if len(text) <= _LONGEST_CONSTANT else Formula(f"{float(value):.6g}")
        return Sign(_of_number(value), formula)

    def add(self, x: Sign, y: Sign) -> Sign:
        return self.made(_sums(x.possible, y.possible), self.writing.add(x.formula, y.formula), x, y)

    def sub(self, x: Sign, y: Sign) -> Sign:
        possible = Signs.ZERO if x is y else _sums(x.possible, _negated(y.possible))
        return self.made(possible, self.writing.sub(x.formula, y.formula), x, y)

    def mul(self, x: Sign, y: Sign) -> Sign:
        factors = _multiplied(x, y)
        possible = reduce(_products, (factor.possible if count % 2 else _square(factor.possible) for factor, count in factors))
        made = self.made(possible, self.writing.mul(x.formula, y.formula), x, y, zero=_zero_of_product(x, y))
        return replace(made, factors=factors) if len(factors) <= _MOST_FACTORS else made

    def div(self, x: Sign, y: Sign) -> Sign:
        self.require("a division", y, Signs.NOT_ZERO)
        divisor = y.possible & Signs.NOT_ZERO
        possible = Signs.POSITIVE if x is y else _products(x.possible, divisor)
        return self.made(possible, self.writing.div(x.formula, y.formula), x, y, zero=x.vanishing)

    def matmul(self, x: Sign, y: Sign) -> Sign:
        return self.sum(self.mul(x, self.view(y, lambda array: array)), -1)

    def exp(self, x: Sign) -> Sign:
        return self.made(Signs.POSITIVE, self.writing.exp(x.formula), x)

    def sqrt(self, x: Sign) -> Sign:
        self.require("a square root", x, Signs.NOT_NEGATIVE)
        return self.made(x.possible & Signs.NOT_NEGATIVE, self.writing.sqrt(x.formula), x, zero=x.vanishing)

    def sum(self, x: Sign, axis: int) -> Sign:
        return self.made(_sums(x.possible, x.possible), _reduction("sum", x.formula), x)

    def max(self, x: Sign, axis: int) -> Sign:
        return self.made(x.possible, _reduction("max", x.formula), x)

    def opaque(self, name: str, *xs: Sign) -> Sign:
        for operation, needed, what in _NEEDS.get(name, ()):
            self.require(operation, what(self, *xs), needed)
        possible = _OF_FUNCTIONS.get(name, _any)(*(x.possible for x in xs))
        return self.made(possible, self.writing.opaque(name, *(x.formula for x in xs)), *xs)

    def view(self, x: Sign, move: Callable[[Array], Array]) -> Sign:
        return Sign(
            x.possible, x.formula, x.inputs, x.zero
        )  # its elements stand elsewhere: with the tensor itself they make no squares

    def join(self, xs: Sequence[Sign], combine: Callable[[Sequence[Array]], Array]) -> Sign:
        texts = list(dict.fromkeys(x.formula.text for x in xs))
        formula = xs[0].formula if len(texts) == 1 else Formula(", ".join(texts), Binding.SUM)
        return Sign(reduce(or_, (x.possible for x in xs)), formula, tuple(dict.fromkeys(name for x in xs for name in x.inputs)))

    def require(self, operation: str, x: Sign, needed: Signs) -> None:
        if x.possible & ~needed:
            formula = x.vanishing if needed is Signs.NOT_ZERO else x.formula
            self.conditions[Condition(operation, formula.text, needed, x.possible)] = None

    def made(self, possible: Signs, formula: Formula, *operands: Sign, zero: Formula | None = None) -> Sign:
        inputs = tuple(dict.fromkeys(name for operand in operands for name in operand.inputs))
        if len(formula.text) > _LONGEST:
            formula = Formula(f"f({', '.join(inputs)})")
        return Sign(possible, formula, inputs, zero)


def _beside_one(signed: _Signed, x: Sign) -> tuple[Sign, Sign, Sign]:
    """By how much a tensor exceeds -1 and 1, and 1 exceeds it."""
    one = signed.constant(Scalar.of(1))
    return signed.add(x, one), signed.sub(x, one), signed.sub(one, x)


_Need = tuple[str, Signs, Callable[..., Sign]]
_ARC_SINE: tuple[_Need, ...] = (
    ("an inverse sine", Signs.NOT_NEGATIVE, lambda signed, x: _beside_one(signed, x)[0]),
    ("an inverse sine", Signs.NOT_NEGATIVE, lambda signed, x: _beside_one(signed, x)[2]),
)
_NEEDS: dict[str, tuple[_Need, ...]] = {
    **{name: (("a logarithm", Signs.POSITIVE, lambda signed, x: x),) for name in ("log", "log2")},
    "log1p": (("a logarithm", Signs.POSITIVE, lambda signed, x: _beside_one(signed, x)[0]),),
    "asin": _ARC_SINE,
    "acos": tuple((operation.replace("sine", "cosine"), needed, what) for operation, needed, what in _ARC_SINE),
    "acosh": (("an inverse hyperbolic cosine", Signs.NOT_NEGATIVE, lambda signed, x: _beside_one(signed, x)[1]),),
    "atanh": tuple(("an inverse hyperbolic tangent", Signs.POSITIVE, what) for _, _, what in _ARC_SINE),
    "pow": (("a power", Signs.NOT_NEGATIVE, lambda signed, x, y: x),),
    "fmod": (("a remainder", Signs.NOT_ZERO, lambda signed, x, y: y),),
}
"""What functions need that are not defined everywhere: in which operation, which signs, and of what is made of their operands."""


def conditions(
    graph: Graph, known: Mapping[int, Signs] | None = None, names: Sequence[str] | None = None
) -> tuple[Condition, ...]:
    """What a kernel graph needs of its inputs to be defined, as far as signs do not show that it always holds.

    `known` are signs of inputs by number; others can have any. Formulas name inputs as the graph does, or by `names`.
    """
    signs, given = _Signed(), known or {}
    named = enumerate(graph.input_names if names is None else names)
    operands = [Sign(given.get(number, Signs.ANY), Formula(name), (name,)) for number, name in named]
    evaluate_batched(without_dead_nodes(graph), operands, signs)
    return tuple(signs.conditions)


def signs_of(values: Mapping[int, Array]) -> dict[int, Signs]:
    """The signs that occur among given values of inputs."""
    return {number: _occurring(array) for number, array in values.items()}


def _occurring(array: Array) -> Signs:
    tests = {Signs.NEGATIVE: array < 0, Signs.ZERO: array == 0, Signs.POSITIVE: array > 0}
    return reduce(or_, (sign for sign, mask in tests.items() if np.any(mask)), Signs(0))


def total(graph: Graph) -> bool:
    """Whether every root and logarithm of a kernel graph is certainly of numbers that are not negative."""
    return not any(c.needed != Signs.NOT_ZERO and c.possible & Signs.NEGATIVE for c in conditions(graph))


def _zero_of_product(x: Sign, y: Sign) -> Formula | None:
    """Squares and multiples that are not 0 vanish where the factor does."""
    if x is y or not y.possible & Signs.ZERO:
        return x.vanishing
    return None if x.possible & Signs.ZERO else y.vanishing


def _multiplied(x: Sign, y: Sign) -> tuple[tuple[Sign, int], ...]:
    """The factors of a product, with how often each stands in it."""
    counts = Counter[Sign]()
    for sign in (x, y):
        counts.update(dict(sign.factors or ((sign, 1),)))
    return tuple(counts.items())


def _of_number(value: Scalar) -> Signs:
    if value.value == 0:
        return Signs.ZERO
    return Signs.POSITIVE if value.value > 0 else Signs.NEGATIVE


def _each(possible: Signs) -> list[Signs]:
    return [sign for sign in (Signs.NEGATIVE, Signs.ZERO, Signs.POSITIVE) if sign & possible]


def _sums(x: Signs, y: Signs) -> Signs:
    def one(a: Signs, b: Signs) -> Signs:
        if a is b or b is Signs.ZERO:
            return a
        return b if a is Signs.ZERO else Signs.ANY

    return reduce(or_, (one(a, b) for a, b in product(_each(x), _each(y))), Signs(0))


def _products(x: Signs, y: Signs) -> Signs:
    def one(a: Signs, b: Signs) -> Signs:
        if Signs.ZERO in (a, b):
            return Signs.ZERO
        return Signs.POSITIVE if a is b else Signs.NEGATIVE

    return reduce(or_, (one(a, b) for a, b in product(_each(x), _each(y))), Signs(0))


def _negated(x: Signs) -> Signs:
    return _products(x, Signs.NEGATIVE)


def _square(x: Signs) -> Signs:
    return reduce(or_, (_products(a, a) for a in _each(x)), Signs(0))


def _relu(x: Signs) -> Signs:
    return (x & Signs.NOT_NEGATIVE) | (Signs.ZERO if x & Signs.NEGATIVE else Signs(0))


def _any(*xs: Signs) -> Signs:
    return Signs.ANY


def _not_negative(*xs: Signs) -> Signs:
    return Signs.NOT_NEGATIVE


def _either(condition: Signs, x: Signs, y: Signs) -> Signs:
    return y if condition is Signs.ZERO else x | y if condition & Signs.ZERO else x


def _same(x: Signs) -> Signs:
    return x


_OF_FUNCTIONS: dict[str, Callable[..., Signs]] = {
    "abs": _square,
    "relu": _relu,
    "sigmoid": lambda x: Signs.POSITIVE,
    "tanh": _same,
    "silu": _same,
    "gelu": _same,
    "erf": _same,
    "less": _not_negative,
    "equal": _not_negative,
    "truth": _not_negative,
    "select": _either,
}
"""The signs of functions' values; of others, nothing is known."""


def _reduction(name: str, formula: Formula) -> Formula:
    """A sum of sums, or a maximum of maxima, is one over more elements."""
    nested = formula.binding is Binding.ATOM and formula.text.startswith(f"{name}(")
    return formula if nested else Formula(f"{name}({formula.text})")
