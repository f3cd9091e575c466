"""Whether two graphs have values at nearly all inputs, where they are quotients of sums of exponentials.

Such functions are analytic, so that those that divide by zero at no input of one draw do so almost nowhere. Of graphs that have a
value nowhere every claim is true: docs/theory.md, "Cutoffs", needs this of each size that is tested.
"""

from __future__ import annotations

from fractions import Fraction

from mugraph.algebra.families import Q_BITS, FieldFamily
from mugraph.errors import MugraphError, UndefinedInField
from mugraph.ir.definitions import spelled_out
from mugraph.ir.editing import Edit, Site, edited
from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import Kind, operator
from mugraph.ir.scalar import Scalar
from mugraph.support.seeds import seed_or_fresh
from mugraph.verifier.known_values import NOTHING, Known
from mugraph.verifier.root_semantics import TooManyRadicands
from mugraph.verifier.semantics import Semantics
from mugraph.verifier.trials import Trials

_FAMILY = FieldFamily(Q_BITS[0], 840)
_KINDS = (Kind.DATA, Kind.MULTILINEAR, Kind.DIVISION)


def without_generic_values(left: Graph, right: Graph, known: Known = NOTHING, seed: int | None = None) -> str:
    """Why two kernel graphs on the same inputs may have values nowhere, in words, or are no quotients of sums of exponentials of
    rational functions; empty where neither is so.

    A maximum may be what exponents of a softmax are shifted by, and nothing else. A draw in finite fields at which nothing is
    divided by zero shows that no denominator is zero as a formula; roots of constants stand for either root.
    """
    try:
        ours, theirs = (_in_exponentials(spelled_out(graph)) for graph in (left, right))
        for graph in (ours, theirs):
            if beyond := {node.op for _, node in graph.walk() if node.body is None and not _is_plain(node.op)}:
                return f"{', '.join(sorted(beyond))} is no quotient of sums of exponentials"
            if _has_nested_exponentials(graph):
                return "an exponent has exponentials in it"
        Trials(ours, theirs, Semantics.LAWS, _FAMILY, seed_or_fresh(seed), known=known).test()
    except (UndefinedInField, TooManyRadicands, MugraphError) as error:
        return str(error)
    return ""


def _is_plain(op: str) -> bool:
    return operator(op).kind in _KINDS or op == "exp"  # by name: what these functions are sums of


def _has_nested_exponentials(graph: Graph) -> bool:
    """Whether the exponent of some exponential of a kernel graph is computed of another one."""
    passed: set[int] = set()
    for number, node in enumerate(graph.nodes):
        computed = any(value.node in passed for value in node.inputs)
        if computed and node.op == "exp":  # by name, as above
            return True
        if computed or node.op == "exp":
            passed.add(number)
    return False


def _in_exponentials(graph: Graph) -> Graph:
    """A kernel graph whose sigmoids are quotients, and whose exponents are not shifted."""
    found = {number: _SPELLED[node.op] for number, node in enumerate(graph.nodes) if node.op in _SPELLED}
    return edited(graph, found) if found else graph


def _number(site: Site, value: int) -> Value:
    return site.builder.add("constant", value=Scalar(Fraction(value)), dtype=site.node.output.dtype)


def _zero(site: Site) -> Value:
    """0 in the place of a maximum: a softmax is the same whatever number its exponents are shifted by."""
    total = site.builder.add("sum", *site.operands, **dict(site.node.attributes))
    return site.builder.add("mul", total, _number(site, 0))


def _sigmoid(site: Site) -> Value:
    """1 / (1 + exp(-x))"""
    (x,) = site.operands
    power = site.builder.add("exp", site.builder.add("mul", x, _number(site, -1)))
    return site.builder.add("div", _number(site, 1), site.builder.add("add", power, _number(site, 1)))


def _silu(site: Site) -> Value:
    """x / (1 + exp(-x))"""
    return site.builder.add("mul", *site.operands, _sigmoid(site))


def _tanh(site: Site) -> Value:
    """1 - 2 / (exp(2 x) + 1)"""
    (x,) = site.operands
    power = site.builder.add("exp", site.builder.add("mul", x, _number(site, 2)))
    part = site.builder.add("div", _number(site, -2), site.builder.add("add", power, _number(site, 1)))
    return site.builder.add("add", part, _number(site, 1))


_SPELLED: dict[str, Edit] = {"max": _zero, "sigmoid": _sigmoid, "silu": _silu, "tanh": _tanh}
