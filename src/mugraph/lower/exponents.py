"""Exponentials shifted by the maximum of their exponents, as in safe softmax.

Exponentials shifted by the maximum of their exponents lie between 0 and 1, so that fp16 holds what matters of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mugraph.ir import ops
from mugraph.ir.graph import Graph, Node, Value
from mugraph.ir.ops import operator
from mugraph.lower.scalar_expressions import MAXIMUM, Apply, Expression, Source, subexpressions
from mugraph.lower.tile_form import Combine, Elementwise, Kernel, Reduce, Statement

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


def maxima(kernel: Kernel) -> Mapping[str, frozenset[str]]:
    """The buffers that hold maxima, each with the buffers of the elements that these are maxima of."""
    found: dict[str, frozenset[str]] = {}
    for statement in kernel.statements:
        if _is_maximum(statement):
            read = frozenset(tile.buffer for tile in statement.sources)
            found[statement.target.buffer] = found.get(statement.target.buffer, frozenset()) | read
    return found


def _is_maximum(statement: Statement) -> bool:
    match statement:
        case Elementwise(expression=Apply(template, _)) if template == MAXIMUM:
            return True
        case Elementwise(combine=combine) | Reduce(combine=combine):
            return combine is Combine.MAX
    return False


def with_shifted_exponentials(statement: Elementwise | Reduce, maxima: Mapping[str, frozenset[str]], template: str) -> Expression:
    """What a statement computes, with `template` for exponentials of elements less their maximum, by what `maxima` says."""

    def is_maximum(index: int, exponent: Expression) -> bool:
        elements = {statement.sources[part.index].buffer for part in subexpressions(exponent) if isinstance(part, Source)}
        return elements <= maxima.get(statement.sources[index].buffer, frozenset())

    def replaced(expression: Expression) -> Expression:
        if not isinstance(expression, Apply):
            return expression
        shift = shifted(expression)
        outer = template if shift is not None and is_maximum(shift[1], shift[0]) else expression.template
        return Apply(outer, tuple(map(replaced, expression.arguments)))

    return replaced(statement.expression)
