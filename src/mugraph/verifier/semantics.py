"""What operators outside rational arithmetic mean in the tests, and what agreement under that meaning says of the real ones."""

from __future__ import annotations

from enum import StrEnum

from mugraph.ir.graph import Graph
from mugraph.ir.ops import ROUNDINGS, Kind, operator
from mugraph.ir.scalar import Scalar
from mugraph.verifier.vectorized_eval import is_selection


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
_MEANINGS: dict[Semantics, dict[str, str]] = {
    Semantics.FREE: {
        "exp": f"{_EXP}; a random function of what passed through exp before",
        "accumulate_rescaled": "a sum of products with exp, as the operator is defined",
        "sqrt": "sqrt(x y / z) is sqrt(x) sqrt(y) / sqrt(z), of anything else a random function; roots of constants are exact; "
        "what agrees, agrees for every such function, and sqrt(|x|) is one",
        "max": _MAX,
    },
    Semantics.PROPERTIES: {
        "exp": f"{_EXP}; a random function of what passed through exp before",
        "accumulate_rescaled": "a sum of products with exp, as the operator is defined",
        "sqrt": "sqrt(x y / z) is sqrt(x) sqrt(y) / sqrt(z), and not negative; else a random function, as which sqrt(|x|) counts",
        "relu": f"{_HOMOGENEOUS} {_RANDOM}",
        "abs": f"of a product the product of those of its factors; {_HOMOGENEOUS} {_RANDOM}",
        "log": f"of a product the sum of those of its factors, of exp(x) it is x; else {_RANDOM}, as which log(|x|) counts",
        "max": f"c max(x) for c x and c > 0, f(max(x)) for f(x) and increasing f; else {_MAX}",
        **dict.fromkeys(ROUNDINGS.values(), _ROUNDED),
    },
    Semantics.ROOTS: {
        "sqrt": "either root of the radicand modulo p, in draws where all radicands are squares, for every choice of the signs; "
        "what agrees, agrees for the roots that are not negative",
        "max": _MAX,
    },
    Semantics.LAWS: {
        "exp": _EXP,
        "accumulate_rescaled": "a sum of products with exp, as the operator is defined",
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
        if node.op == "accumulate" and node["combine"] == "max" and not is_selection(around, node):
            names.add("max")
        if node.is_constant and isinstance(value := node["value"], Scalar) and value.root:
            names.add("sqrt")
    return frozenset(names)
