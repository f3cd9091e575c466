"""Exponentials shifted by the maximum of their exponents, as in safe softmax.

Exponentials shifted by the maximum of their exponents lie between 0 and 1, so that fp16 holds what matters of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mugraph.ir import ops
from mugraph.ir.graph import Graph, Node, Value
from mugraph.ir.ops import operator
from mugraph.lower.scalar_expressions import MAXIMUM, Apply, Expression, Source
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


def maxima(kernel: Kernel) -> Mapping[str, frozenset[Expression]]:
    """The buffers that hold maxima, each with what these are maxima of, as `_in_buffers` has it."""
    found: dict[str, frozenset[Expression]] = {}
    for statement in kernel.statements:
        if of := frozenset(_in_buffers(each, statement) for each in _maximised(statement)):
            found[statement.target.buffer] = found.get(statement.target.buffer, frozenset()) | of
    return found


def _maximised(statement: Statement) -> tuple[Expression, ...]:
    """What a statement computes the maximum of; nothing if it computes something else."""
    match statement:
        case Elementwise(combine=None, expression=Apply(template, arguments)) if template == MAXIMUM:
            return arguments
        case Elementwise(combine=Combine.MAX, expression=expression) | Reduce(combine=Combine.MAX, expression=expression):
            return (expression,)
    return ()


def _in_buffers(expression: Expression, statement: Statement) -> Expression:
    """An expression, with the names of buffers, as functions of nothing, in the place of the sources of its statement."""
    match expression:
        case Source(index):
            return Apply(statement.sources[index].buffer, ())
        case Apply(template, arguments):
            return Apply(template, tuple(_in_buffers(each, statement) for each in arguments))
    return expression


def with_shifted_exponentials(
    statement: Elementwise | Reduce, maxima: Mapping[str, frozenset[Expression]], template: str
) -> Expression:
    """What a statement computes, with `template` for exponentials of what is less a maximum of it, by what `maxima` says."""

    def replaced(expression: Expression) -> Expression:
        if not isinstance(expression, Apply):
            return expression
        shift = shifted(expression)
        of = frozenset[Expression]() if shift is None else maxima.get(statement.sources[shift[1]].buffer, frozenset())
        outer = template if shift is not None and _in_buffers(shift[0], statement) in of else expression.template
        return Apply(outer, tuple(map(replaced, expression.arguments)))

    return replaced(statement.expression)
