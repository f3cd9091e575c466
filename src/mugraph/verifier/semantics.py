"""What operators outside rational arithmetic mean in the tests, and what agreement under that meaning says of the real ones.

Under the free semantics (docs/theory.md), what is not LAX is a random function, and maxima nest.
"""

from __future__ import annotations

import functools
import math
from enum import StrEnum
from typing import Any

import numpy as np

from mugraph.algebra.fields import FieldValue, NestingArithmetic
from mugraph.algebra.modular import Residues
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Accumulation, Graph
from mugraph.ir.ops import LOWEST, ROUNDINGS, TRUTH, Kind, operator
from mugraph.ir.scalar import Scalar
from mugraph.verifier.constant_roots import Primes, root_parts
from mugraph.verifier.variables import Maxima, Numbers, RandomFunction, pattern
from mugraph.verifier.vectorized_eval import is_selection


class MaximaArithmetic(NestingArithmetic):
    """Random functions of the residue modulo p, and maxima that are random functions of the set of their elements.

    Values are drawn as arguments are met, so that graphs which are to be compared are evaluated by one such arithmetic; which
    values those are depends on the order. The maximum of equal elements is that element. What passed through an exponential
    before a maximum did so after it.
    """

    def __init__(self, *args: Any, root_variables: Primes = frozenset(), **options: Any) -> None:
        super().__init__(*args, **options)
        self._rng = np.random.default_rng(self.seed)
        self._least: FieldValue | None = None
        self._root_variables = root_variables
        self._roots: dict[int, FieldValue] = {}
        self._functions: dict[str, RandomFunction] = {}
        self._products: list[tuple[FieldValue, FieldValue, FieldValue]] = []
        self._maxima = {known: Maxima(self.variables, residues) for known, residues in ((True, _modulo_p), (False, _modulo_q))}

    def variables(self, count: int) -> FieldValue:
        """A vector of fresh random values."""
        return self.random((count,), self._rng)

    def constant(self, value: Scalar) -> FieldValue:
        """A number; the least one of maxima is a variable, since graphs that agree whatever it is agree for what it is.

        So are the roots of the primes in `root_variables`.
        """
        if value is LOWEST:
            if self._least is None:
                self._least = self._variable()
            return self._least
        if not value.root:
            return super().constant(value)
        parts = root_parts(abs(value.value), self._root_variables)
        root = super().constant(Scalar(parts.exact if value.value > 0 else -parts.exact, root=True))
        if not parts.variables and parts.rational == 1:
            return root
        root = self.mul(root, super().constant(Scalar(parts.rational)))
        return functools.reduce(self.mul, map(self._root_of, parts.variables), root)

    def _variable(self) -> FieldValue:
        """A fresh random value."""
        return self.view(self.variables(1), lambda residues: residues.reshape(()))

    def _root_of(self, prime: int) -> FieldValue:
        """The variable that is the square root of a prime."""
        if prime not in self._roots:
            self._roots[prime] = self._variable()
        return self._roots[prime]

    @property
    def pattern(self) -> tuple[str, ...]:
        """Which arguments of functions, and which elements and values of maxima, have been the same so far."""
        met = [self._functions[name].met for name in sorted(self._functions)] + [maxima.met for maxima in self._maxima.values()]
        return tuple(pattern(residues) for residues in met)

    def matmul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        """The product; a large one of factors that were multiplied before, as by the graph it is compared with, is known."""
        if math.prod(x.shape) * y.shape[-1] < _REMEMBERED:
            return super().matmul(x, y)
        for left, right, product in self._products:
            if _are_same(left, x) and _are_same(right, y):
                return product
        product = super().matmul(x, y)
        if math.prod(x.shape) + math.prod(y.shape) <= _REMEMBERED_ELEMENTS:
            self._products = [*self._products[1 - _REMEMBERED_PRODUCTS :], (x, y, product)]
        return product

    def opaque(self, name: str, *xs: FieldValue) -> FieldValue:
        if name not in self._functions:
            self._functions[name] = RandomFunction(self.variables)
        return self._functions[name](*(x.p for x in xs))

    def max(self, x: FieldValue, axis: int) -> FieldValue:
        if (x.known_p is None and x.q is None) or x.shape[axis] == 1:
            return x
        maxima = self._maxima[x.known_p is not None]
        rows = np.moveaxis(_modulo_q(x) if x.known_p is None else x.p, axis, -1)
        numbers = np.expand_dims(maxima.numbers(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1]), axis)
        first = self.view(x, lambda residues: np.take(residues, [0], axis))
        if (numbers < 0).all():
            return first
        values = maxima.values(numbers)
        return FieldValue(_chosen(numbers, first.known_p, values.known_p), _chosen(numbers, first.q, values.q))


_REMEMBERED = 1 << 22
"""Products of so many multiplications are remembered, ..."""
_REMEMBERED_PRODUCTS, _REMEMBERED_ELEMENTS = 12, 1 << 22
"""... the last few, of factors of so many elements at most."""


def _are_same(x: FieldValue, y: FieldValue) -> bool:
    """Whether two tensors have the same residues, and the same are known of both."""
    parts = zip(x, y, strict=True)
    return all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in parts)


def _modulo_p(value: FieldValue) -> Residues:
    return value.p


def _modulo_q(value: FieldValue) -> Residues:
    assert value.q is not None
    return value.q


def _chosen(numbers: Numbers, elements: Residues | None, values: Residues | None) -> Array | None:
    """Maxima of sets with a number, and elements of those without; None where elements have no residues."""
    return None if elements is None or values is None else np.where(numbers < 0, elements, values)


class FreeArithmetic(MaximaArithmetic):
    """`sqrt` and opaque functions are random functions of their argument, and so is an exponential of what passed through an
    exponential: nothing is assumed but that equals give equals."""

    def sqrt(self, x: FieldValue) -> FieldValue:
        return self.opaque("sqrt", x)


class Semantics(StrEnum):
    """The meanings tests are run under, in the order in which they are tried.

    Under FREE, what is not LAX is a random function, so agreement holds whatever function stands there; roots are
    multiplicative, and maxima nest. PROPERTIES is the same but for the properties that relu, abs, log, roundings and maxima
    have. Under ROOTS, roots square back instead, and exponentials are random functions, too. There are bounds for these.
    LAWS lets roots do both, with exponentials; no bound is known for it.
    """

    FREE = "free"
    PROPERTIES = "properties"
    ROOTS = "roots"
    LAWS = "laws"


_RANDOM_FUNCTION = "a random function: equal arguments give equal results; what agrees, agrees for every function"
_MAX = (
    "a random function of the set of elements, which for maxima are those they were taken over, and of one element that element"
)
WITH_PROPERTIES = frozenset({"relu", "abs", "log", "max"}) | frozenset(ROUNDINGS.values())
"""Operators to which PROPERTIES makes a difference."""
_HOMOGENEOUS = "is c times that of x / c for what is known not to be negative; of a rounding it is the rounding of it; else"
_RANDOM = "a random function; what agrees, agrees for every function with these properties"
_ROUNDED = f"of -x minus that of x, of what it rounded that itself; else {_RANDOM}"
_EXP = "omega**x modulo p for a random omega of order q, so that exp(x + y) = exp(x) exp(y)"
_RESCALED = "a sum of products with exp, as the operator is defined"
_MEANINGS: dict[Semantics, dict[str, str]] = {
    Semantics.FREE: {
        "exp": f"{_EXP}; a random function of what passed through exp before",
        "accumulate_rescaled": _RESCALED,
        "sqrt": "sqrt(x y / z) is sqrt(x) sqrt(y) / sqrt(z), of anything else a random function; "
        "roots of constants are exact, or variables for primes in `root_variables`; "
        "what agrees, agrees for every such function, and sqrt(|x|) is one",
        "max": _MAX,
    },
    Semantics.PROPERTIES: {
        "exp": f"{_EXP}; a random function of what passed through exp before",
        "accumulate_rescaled": _RESCALED,
        "sqrt": "sqrt(x y / z) is sqrt(x) sqrt(y) / sqrt(z), and not negative; else a random function, as which sqrt(|x|) counts",
        "relu": f"{_HOMOGENEOUS} {_RANDOM}",
        "abs": f"of a product the product of those of its factors; {_HOMOGENEOUS} {_RANDOM}",
        "log": f"of a product the sum of those of its factors, of exp(x) it is x; else {_RANDOM}, as which log(|x|) counts",
        "max": f"c max(x) for c x and c > 0, f(max(x)) for f(x) and increasing f; else {_MAX}",
        **dict.fromkeys(ROUNDINGS.values(), _ROUNDED),
    },
    Semantics.ROOTS: {
        "accumulate_rescaled": _RESCALED,
        "sqrt": "either root of the radicand modulo p, in draws where all radicands are squares, for every choice of the signs; "
        "what agrees, agrees for the roots that are not negative",
        "max": _MAX,
    },
    Semantics.LAWS: {
        "exp": _EXP,
        "accumulate_rescaled": _RESCALED,
        "sqrt": "x**((p+1)/4) and x**((3p-1)/4) in turn: multiplicative, roots of every square; "
        "a difference counts where all radicands are squares, if they are few",
        "max": _MAX,
    },
}


def meanings(names: frozenset[str], semantics: Semantics) -> tuple[tuple[str, str], ...]:
    """Each operator with its meaning in words, sorted by name."""
    return tuple((name, _MEANINGS[semantics].get(name, _RANDOM_FUNCTION)) for name in sorted(names))


def beyond_rational(graph: Graph) -> frozenset[str]:
    """The operators of a graph that are not rational functions of their operands; constants with a root count as sqrt."""
    rational = (Kind.DATA, Kind.MULTILINEAR, Kind.DIVISION)
    names = {node.op for _, node in graph.walk() if node.body is None and operator(node.op).kind not in rational}
    for around, node in graph.walk():
        # by name: of the casts, those to booleans compute something
        if node.op == "cast" and node["dtype"] is DType.BOOL:
            names.add(TRUTH)
        if node.accumulation is Accumulation.MAX and not is_selection(around, node):
            names.add("max")
        if node.is_constant and isinstance(value := node["value"], Scalar) and value.root:
            names.add("sqrt")
    return frozenset(names)
