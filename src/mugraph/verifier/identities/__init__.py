"""Programs in a normal form of real identities, so that what needs a property of an operator is decided by tests.

Random tests take every operator outside of sums, products, quotients, exponentials and roots for a random function. Here a
program is rewritten by equations that hold for the real functions: `simplified(f)` has a value wherever `f` has one, and the
same. If tests show that `simplified(f)` and `simplified(g)` agree, then so do `f` and `g` wherever both are defined.
"""

from __future__ import annotations

from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph, Value
from mugraph.verifier.identities.algebra import IdentityAlgebra
from mugraph.verifier.identities.reading import Reader
from mugraph.verifier.identities.rules import RULES
from mugraph.verifier.identities.sign_facts import ExpressionSign, sign
from mugraph.verifier.identities.writing import Writer

__all__ = ["RULES", "ExpressionSign", "signs", "simplified"]

_MOST_NODES = 400
"""Longer programs are left as they are."""


def simplified(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """A kernel graph without bodies in normal form, and the names of the identities that were used, sorted.

    The result takes the same inputs and gives outputs of the same shapes. It is defined wherever the graph is, perhaps at more
    points. A graph that cannot be read or written in axes is returned as it is.
    """
    if len(graph.nodes) > _MOST_NODES:
        return graph, ()
    algebra = IdentityAlgebra(RULES)
    try:
        elements = Reader(graph, algebra).outputs()
        return Writer(graph).graph(elements), tuple(sorted(algebra.used))
    except (MugraphError, ZeroDivisionError, RecursionError):
        return graph, ()


def signs(graph: Graph) -> dict[Value, ExpressionSign]:
    """What is known of the sign of each value of a kernel graph without bodies, wherever it is defined; of some nothing."""
    found: dict[Value, ExpressionSign] = {}
    reader = Reader(graph, IdentityAlgebra(RULES))
    for index in range(len(graph.nodes)):
        try:
            ((_, element),) = reader.values([Value(index)])
        except (MugraphError, ZeroDivisionError, RecursionError):
            continue
        found[Value(index)] = sign(element)
    return found
