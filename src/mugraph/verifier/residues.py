"""Which residues of its inputs a program's outputs depend on: drawing only those halves the work of a test.

An output is compared modulo p. Up to an exponentiation, where the exponent matters modulo q only, every operator's result
modulo one prime depends on its operands modulo the same prime. So the keys of an attention are needed modulo q, its
values modulo p, and a program without exponentials needs nothing modulo q.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Flag, auto

from mugraph.ir.graph import Graph, Node, Value
from mugraph.ir.ops import Kind, operator
from mugraph.verifier.semantics import Semantics, beyond_rational


class ResidueParts(Flag):
    """Modulo p, modulo q, both or neither."""

    NONE = 0
    P = auto()
    Q = auto()


def residues_needed(graph: Graph, semantics: Semantics = Semantics.LAWS) -> list[ResidueParts]:
    """For each input of a kernel graph, in order, the residues that its outputs modulo p depend on.

    Under FREE semantics a random function takes both residues of its argument, so where there is one all are needed. An
    exponential of what passed through one is a random function under all of them.
    """
    # by name: exponentials alone are no random functions
    free_functions = semantics in (Semantics.FREE, Semantics.PROPERTIES) and not beyond_rational(graph) <= {"exp"}
    if free_functions or _nests_exponentials(graph):
        return [ResidueParts.P | ResidueParts.Q for node in graph.nodes if node.is_input]
    needs = _needs(graph, [ResidueParts.P] * len(graph.outputs))
    return [needs.get(Value(index), ResidueParts.NONE) for index, node in enumerate(graph.nodes) if node.is_input]


def _nests_exponentials(graph: Graph) -> bool:
    """Whether the argument of some exponential passed through another one."""
    return _exponentials(graph, [False] * len(graph.inputs()))[1]


def _exponentials(graph: Graph, inputs: Sequence[bool]) -> tuple[list[bool], bool]:
    """Which outputs of a graph passed through an exponential, given which inputs did; and whether one did that had before."""
    passed: dict[Value, bool] = {}
    waiting, nested = list(reversed(inputs)), False
    for index, node in enumerate(graph.nodes):
        operands = [passed[value] for value in node.inputs]
        results = [any(operands)]
        if node.body is not None:
            results, deeper = _exponentials(node.body, operands)
            nested = nested or deeper
        elif node.is_input:
            results = [waiting.pop()]
        elif node.is_iterator and isinstance(operand := node["operand"], int):
            results = [inputs[operand]]
        elif operator(node.op).kind is Kind.EXPONENTIATION:
            nested = nested or operands[-1]  # the last operand is the exponent
            results = [True]
        passed.update((Value(index, number), result) for number, result in enumerate(results))
    return [passed[value] for value in graph.outputs], nested


def _needs(graph: Graph, outputs: Sequence[ResidueParts]) -> dict[Value, ResidueParts]:
    """What is needed of each value of a graph whose outputs are needed as stated."""
    needs: dict[Value, ResidueParts] = {}
    for value, needed in zip(graph.outputs, outputs, strict=True):
        needs[value] = needs.get(value, ResidueParts.NONE) | needed
    for index, node in reversed(list(enumerate(graph.nodes))):
        results = [needs.get(Value(index, number), ResidueParts.NONE) for number in range(len(node.outputs))]
        for value, needed in zip(node.inputs, _operands(node, results), strict=True):
            needs[value] = needs.get(value, ResidueParts.NONE) | needed
    return needs


def _operands(node: Node, results: Sequence[ResidueParts]) -> list[ResidueParts]:
    """What is needed of a node's operands for the stated residues of its results."""
    if node.body is not None:
        return _body_operands(node.body, results, len(node.inputs))
    needed = [results[0]] * len(node.inputs)
    match operator(node.op).kind:
        case Kind.EXPONENTIATION if results[0]:
            return [*needed[:-1], ResidueParts.Q]  # the last operand is the exponent
        # by name: a maximum is one of its elements, and has their residues
        case Kind.OPAQUE if results[0] and node.op not in ("max", "maximum"):
            return [ResidueParts.P | ResidueParts.Q] * len(needed)
    return needed


def _body_operands(body: Graph, results: Sequence[ResidueParts], count: int) -> list[ResidueParts]:
    needs = _needs(body, results)
    operands = [ResidueParts.NONE] * count
    for index, node in enumerate(body.nodes):
        if node.is_iterator and isinstance(operand := node["operand"], int):
            operands[operand] |= needs.get(Value(index), ResidueParts.NONE)
    return operands
