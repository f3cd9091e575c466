"""Scalar expressions: what an elementwise statement computes for one element, kept in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mugraph.errors import InvalidGraph
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Node
from mugraph.ir.ops import TRUTH, is_reduction, operator
from mugraph.ir.scalar import Scalar


@dataclass(frozen=True, slots=True)
class Source:
    """The element of the statement's source number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, rounded to the type of computation by the target."""

    value: float


@dataclass(frozen=True, slots=True)
class Apply:
    """A C-family template over {0}, {1}, ... (the `scalar` of a row of the operator table) applied to arguments."""

    template: str
    arguments: tuple[Expression, ...]


Expression = Source | Constant | Apply

MAXIMUM = "max({0}, {1})"
SUM = "({0} + {1})"
PRODUCT = "({0} * {1})"
RESCALED = "({0} * {1} + {2} * {3})"
CHOICE = operator("select").scalar
TF32 = "tf32({0})"
"""Rounding to the numbers of TF32, where no unit does it."""


ROUNDED = "rounded({0})"
"""A product or quotient as it is rounded, which no compiler puts into one instruction with the sum that reads it."""


def apply_row(op: str, arguments: Sequence[Expression]) -> Expression:
    """The expression of an elementwise row of the operator table; a cast is its argument."""
    # by name: numbers are fp32 in an expression, and buffers convert what they hold
    if op == "cast":
        return arguments[0]
    template = operator(op).scalar
    if template is None:
        raise InvalidGraph(f"clause 1 (operator specification): {op} is not elementwise and cannot stand in a thread graph")
    return Apply(template, tuple(arguments))


def row_of(node: Node) -> str:
    """The row of a node's expression: that of casts to booleans is another operator's."""
    # by name: of the casts, these alone change numbers
    return TRUTH if node.op == "cast" and node["dtype"] is DType.BOOL else node.op


def constant_of(node: Node) -> Constant:
    """The number a `constant` node stands for."""
    value = node["value"]
    assert isinstance(value, Scalar)
    return Constant(float(value))


def reduced_expression(graph: Graph) -> tuple[Expression, Node | None]:
    """What a thread graph with one output computes for one element, and the sum or maximum of these that it saves, if any.

    Source(i) is an element of the parent's operand i.
    """
    values: list[Expression] = []
    reduction: Node | None = None
    for node in graph.nodes:
        arguments = [values[value.node] for value in node.inputs]
        if node.is_iterator:
            values.append(Source(node.integer("operand")))
        elif node.is_constant:
            values.append(constant_of(node))
        elif node.is_saver:
            values.append(arguments[0])
        elif is_reduction(node.op):
            reduction = node
            values.append(arguments[0])
        else:
            values.append(apply_row(row_of(node), arguments))
    (output,) = graph.outputs
    return values[output.node], reduction


def renumbered(expression: Expression, sources: Sequence[Expression]) -> Expression:
    """The expression with Source(i) replaced by `sources[i]`."""
    match expression:
        case Source(index):
            return sources[index]
        case Apply(template, arguments):
            return Apply(template, tuple(renumbered(argument, sources) for argument in arguments))
    return expression


_SUMS = frozenset(operator(name).scalar for name in ("add", "sub"))
_PRODUCTS = frozenset(operator(name).scalar for name in ("mul", "square", "div"))


def as_written(expression: Expression, read_elsewhere: bool = False) -> Expression:
    """The expression with products and quotients rounded before they are added or subtracted, as operators one by one do it;
    `read_elsewhere` if that may be in another statement.

    The maximum that exponents are shifted by was rounded in another statement. A product that is not rounded is up to half a
    unit in the last place larger: of exponents of 10^9 and more, exp makes infinity of that.
    """
    if isinstance(expression, Apply):
        summed = expression.template in _SUMS
        expression = Apply(expression.template, tuple(as_written(each, summed) for each in expression.arguments))
    return Apply(ROUNDED, (expression,)) if read_elsewhere and _is_product(expression) else expression


def _is_product(expression: Expression) -> bool:
    return isinstance(expression, Apply) and expression.template in _PRODUCTS


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """Every distinct subexpression, arguments before what they are arguments of."""
    seen: set[Expression] = set()

    def visit(node: Expression) -> Iterator[Expression]:
        if node in seen:
            return
        seen.add(node)
        arguments: Sequence[Expression] = node.arguments if isinstance(node, Apply) else ()
        for argument in arguments:
            yield from visit(argument)
        yield node

    yield from visit(expression)
