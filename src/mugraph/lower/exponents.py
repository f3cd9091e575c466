"""Maxima that exponents are shifted by, as in safe softmax: they must stay finite where a whole row is -inf.

Exponentials shifted by the maximum of their row lie between 0 and 1, so that fp16 holds what matters of them.
"""

from __future__ import annotations

import numpy as np

from mugraph.ir.graph import Graph, Value
from mugraph.lower.expressions import DIFFERENCE, EXPONENTIAL, Apply, Expression, Source

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


def shift_of(expression: Expression) -> int | None:
    """The number of the source that an exponential subtracts in its exponent; None for any other expression."""
    match expression:
        case Apply(outer, (Apply(inner, (_, Source(index))),)) if (outer, inner) == (EXPONENTIAL, DIFFERENCE):
            return index
    return None
