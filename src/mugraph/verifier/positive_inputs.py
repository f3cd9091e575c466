"""Which inputs of a program have to be positive for it to have a value: a root or a logarithm is taken of them as they are."""

from __future__ import annotations

from collections.abc import Iterable, Set

from mugraph.ir.graph import ACCUMULATORS, VIEWS, Graph, Node, Value
from mugraph.ir.scalar import Scalar

_UNDEFINED_BELOW_ZERO = frozenset({"sqrt", "log"})
_OF_ONE_SIGN = VIEWS | ACCUMULATORS | {"cast", "repeat", "sum", "max", "sqrt", "output_saver"}
"""Operators whose results are positive where their first operands are."""
_WITH_CONSTANTS = frozenset({"add", "mul", "div"})
"""Operators of which that holds where one operand is a positive constant."""


def positive_inputs(graph: Graph) -> frozenset[int]:
    """The numbers of the inputs of a kernel graph that stand under a root or a logarithm: they themselves, or their sums, maxima,
    and what positive constants make of them. What is made of several tensors may be negative as it likes."""
    positive = _positive(graph, ())
    inputs = (index for index, node in enumerate(graph.nodes) if node.is_input)
    return frozenset(number for number, index in enumerate(inputs) if Value(index) in positive)


def _positive(graph: Graph, outputs: Iterable[Value]) -> Set[Value]:
    """The values of a graph that have to be positive if so many of its outputs have to."""
    positive = set(outputs)
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.body is not None:
            wanted = [output for number, output in enumerate(node.body.outputs) if Value(index, number) in positive]
            inside = _positive(node.body, wanted)
            operands = ((Value(place), inner.get("operand")) for place, inner in enumerate(node.body.nodes))
            positive.update(node.inputs[at] for value, at in operands if isinstance(at, int) and value in inside)
        elif node.op in _UNDEFINED_BELOW_ZERO or (Value(index) in positive and node.op in _OF_ONE_SIGN):
            positive.update(node.inputs[:1])
        elif Value(index) in positive and node.op in _WITH_CONSTANTS:
            others = [value for value in node.inputs if not _is_positive_constant(graph.nodes[value.node])]
            positive.update(others if len(others) == 1 else ())
    return positive


def _is_positive_constant(node: Node) -> bool:
    value = node.get("value")
    return isinstance(value, Scalar) and float(value) > 0
