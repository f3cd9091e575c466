"""Maxima that exponents are shifted by, as in safe softmax: they must stay finite where a whole row is -inf.

Exponentials shifted by the maximum of their exponents lie between 0 and 1, so that fp16 holds what matters of them.
"""

from __future__ import annotations

import numpy as np

from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import operator
from mugraph.lower.expressions import Apply, Expression, Source

LOWEST = float(np.finfo(np.float32).min)
"""Start of a maximum that is subtracted in an exponent: finite, so that -inf - max never becomes NaN."""


def is_subtracted(graph: Graph, value: Value) -> bool:
    """Whether some reader in a block graph subtracts the value, as exponents are shifted by their maximum."""
    for node in graph.nodes:
        if node.op == "sub" and node.inputs[1] == value:
            return True
        if node.body is not None and value in node.inputs:
            inside = [Value(i) for i, inner in enumerate(node.body.nodes) if inner.get("operand") == node.inputs.index(value)]
            if any(inner.op == "sub" and inner.inputs[1] in inside for inner in node.body.nodes):
                return True
    return False


def shifted(expression: Expression) -> tuple[Expression, int] | None:
    """The exponent of an exponential before a source was subtracted from it, and that source's number; None for others."""
    templates = operator("exp").scalar, operator("sub").scalar
    match expression:
        case Apply(outer, (Apply(inner, (exponent, Source(index))),)) if (outer, inner) == templates:
            return exponent, index
    return None


def is_maximum_of(graph: Graph, value: Value, other: Value) -> bool:
    """Whether a value of a block graph is the maximum of another one along dimensions that it keeps, of size 1."""
    node = graph.nodes[value.node]
    if node.op != "max" or node.output.shape[node.integer("dim")] != 1:
        return False
    return node.inputs[0] == other or is_maximum_of(graph, node.inputs[0], other)
