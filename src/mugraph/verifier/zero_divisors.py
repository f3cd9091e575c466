"""Whether a program divides by zero whatever its inputs are: then it has a value nowhere, and equality with it says nothing.

Tests of two graphs notice: none can be evaluated. A proof that puts an input in the place of a tensor does not: x - x as an input
can be divided by, and so can x_i - y where x_i - x_i is zero. So such proofs ask here. Signs show most divisors not to be zero
(sums of exponentials, of squares and a constant). Others are evaluated over finite fields, in which zero is never a matter of
rounding, with roots that are multiplicative and square back on squares, and with the properties that functions have.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from mugraph.algebra.families import Q_BITS, FieldFamily
from mugraph.algebra.fields import FieldArithmetic, FieldPair, FieldValue
from mugraph.errors import UndefinedInField
from mugraph.ir.definitions import spelled_out
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.graph import Graph, Node, Value
from mugraph.ir.ops import Kind, operator
from mugraph.ir.scalar import Scalar
from mugraph.verifier.characters import Characters
from mugraph.verifier.known_values import NOTHING, Known, residues
from mugraph.verifier.parallel_axes import simple_slice, uniform_slice
from mugraph.verifier.root_semantics import LawfulArithmetic, evaluate_products
from mugraph.verifier.semantics import WITH_PROPERTIES, FreeArithmetic, beyond_rational
from mugraph.verifier.signs import Signs, conditions, signs_of
from mugraph.verifier.vectorized_eval import evaluate_batched

LAWS_FAMILY = FieldFamily(Q_BITS[0], 840)
"""In these fields 2, 3, 5 and 7 are squares; roots of other primes in constants are multiplicative, and square back or do not."""
_DRAWS = 4
"""A divisor of n elements that is not zero for all inputs has a zero in each of so many draws with a probability of about
(n d / 2^49)^4, if they are fractions of degree d."""
_SQUARES = 24
"""Draws among which one is looked for in which all radicands are squares."""
_FEW_RADICANDS = 6
"""Of more there is hardly such a draw, unless they are squares of inputs or inputs."""
_DRAWS_OF_MANY = 4
"""Of more radicands so many draws are looked at, before there is one of squares."""
_SIGNS = (0, 1, -1)
"""Inputs are any numbers, squares, or squares times -1, in turns: as if they had any signs, or one."""


def nowhere_defined(left: Graph, right: Graph, known: Known = NOTHING) -> str:
    """Why two kernel graphs on the same inputs are equal at no input: one of them divides by zero at all. Empty if neither does.

    Inputs in `known` have the values given there. One slice of parallel axes is looked at: it has a value if any input has one.
    """
    left, right = spelled_out(left), spelled_out(right)
    if not any(_is_doubtful(graph, known) for graph in (left, right)):
        return ""
    found = uniform_slice(left, right, known) if known else simple_slice(left, right)
    for side, graph in (("left", found.left), ("right", found.right)):
        if _is_doubtful(graph, known) and not _has_a_value(graph, known):
            return f"the {side} graph divides by zero whatever its inputs are, so that nothing is said of any input"
    return ""


def _is_doubtful(graph: Graph, known: Known) -> bool:
    """Whether signs do not show that nothing is divided by zero."""
    return any(condition.needed is Signs.NOT_ZERO for condition in conditions(_divisions(graph), signs_of(known)))


def _has_a_value(graph: Graph, known: Known) -> bool:
    """Whether nothing is divided by zero in some draw of the inputs but for those that are known."""
    asked = _divisions(graph)
    return _defined_by_laws(asked, known) and _defined_by_properties(asked, known)


def _divisions(graph: Graph) -> Graph:
    """The graph of all that is divided, as far as outputs need it."""
    needed = graph.needed()
    nodes = ((index, node) for index, node in enumerate(graph.nodes) if index in needed and _divides(node))
    quotients = (Value(index, output) for index, node in nodes for output in range(len(node.outputs)))
    return without_dead_nodes(graph.with_nodes(graph.nodes, tuple(quotients)))


def _divides(node: Node) -> bool:
    if node.body is not None:
        return any(map(_divides, node.body.nodes))
    return operator(node.op).kind is Kind.DIVISION


def _defined_by_laws(graph: Graph, known: Known) -> bool:
    """Whether a graph has a value in some draw in which all roots are of squares or, where there is no such draw, in every draw.

    Where a root is of no square, a divisor that is zero need not be, and one that is not zero may be.
    """
    defined, of_squares = list[bool](), 0
    for (pair, rng), sign in zip(_draws(_SQUARES), itertools.cycle(_SIGNS), strict=False):
        arith = LawfulArithmetic(pair, omega=pair.root(rng), seed=int(rng.integers(2**62)), mirrored=False)
        inputs = _inputs(graph, known, arith, rng, sign)
        defined.append(_is_defined(functools.partial(evaluate_batched, graph, inputs, arith)))
        if arith.all_squares:
            if defined[-1]:
                return True
            of_squares += 1
        many = arith.radicands > _FEW_RADICANDS and len(defined) >= _DRAWS_OF_MANY
        if of_squares == _DRAWS or (many and not of_squares):
            break
    return not of_squares and all(defined)


def _defined_by_properties(graph: Graph, known: Known) -> bool:
    """Whether a graph has a value in some draw where functions have their properties, or applies no function that has any."""
    if not beyond_rational(graph) & WITH_PROPERTIES:
        return True
    for pair, rng in _draws(_DRAWS):
        free = FreeArithmetic(pair, omega=pair.root(rng), seed=int(rng.integers(2**62)))
        inputs = _inputs(graph, known, free, rng)
        if _is_defined(functools.partial(evaluate_products, graph, inputs, Characters(free))):
            return True
    return False


def _draws(count: int) -> Iterator[tuple[FieldPair, np.random.Generator]]:
    """Fields, and what else is drawn."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield LAWS_FAMILY.draw(rng, count=False), rng


def _inputs(graph: Graph, known: Known, arith: FieldArithmetic, rng: np.random.Generator, sign: int = 0) -> list[FieldValue]:
    """Random inputs but for those that are known; with a sign, squares times it."""
    drawn = list[FieldValue]()
    for number, node in enumerate(graph.inputs()):
        value = residues(known[number], arith.pair) if number in known else arith.random(node.output.shape, rng)
        if sign and number not in known:
            value = arith.mul(arith.constant(Scalar.of(sign)), arith.mul(value, value))
        drawn.append(value)
    return drawn


def _is_defined(evaluate: Callable[[], object]) -> bool:
    try:
        evaluate()
    except UndefinedInField:
        return False
    return True
