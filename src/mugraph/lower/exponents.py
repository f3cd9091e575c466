"""Exponentials shifted by the maximum of their exponents, as in safe softmax.

Exponentials shifted by the maximum of their exponents lie between 0 and 1, so that fp16 holds what matters of them.
"""

from __future__ import annotations

import math

from mugraph.ir import ops
from mugraph.ir.graph import Graph, Node, Value
from mugraph.ir.ops import operator
from mugraph.lower.scalar_expressions import Apply, Expression, Source

LOWEST = float(ops.LOWEST)
"""Start of a running maximum: finite, so that -inf - max never becomes NaN."""


def least_of(node: Node) -> float | None:
    """The number that a maximum is over besides its elements; None without one."""
    return None if node.get("least") is None else LOWEST


def least_made(graph: Graph, value: Value) -> float:
    """What a maximum is over besides its elements, where a value is one, made by a node or in a thread graph; else -inf."""
    maker = graph.nodes[value.node]
    if maker.body is not None:
        saver = maker.body.nodes[maker.body.outputs[value.output].node]
        maker = maker.body.nodes[saver.inputs[0].node]
    least = least_of(maker)
    return -math.inf if least is None else least


def shifted(expression: Expression) -> tuple[Expression, int] | None:
    """The exponent of an exponential before a source was subtracted from it, and that source's number; None for others."""
    templates = operator("exp").scalar, operator("sub").scalar
    match expression:
        case Apply(outer, (Apply(inner, (exponent, Source(index))),)) if (outer, inner) == templates:
            return exponent, index
    return None
