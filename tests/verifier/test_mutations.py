"""Small changes anywhere inside a fused kernel are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mugraph.errors import MugraphError
from mugraph.ir import Graph, GraphBuilder, Node, Value
from mugraph.verifier import verify_graphs

from .graphs import fused_rmsnorm, linear_with_bias, online_attention

BINARY = ("add", "sub", "mul", "div")
UNARY = ("exp", "square", "sqrt", "silu", "relu")


def changed_nodes(node: Node) -> Iterator[Node]:
    """Variants of one node: another operator of its arity, swapped operands, another map or accumulator."""
    for family in (BINARY, UNARY):
        if node.op in family:
            yield from (replace(node, op=other) for other in family if other != node.op)
    if node.op in ("sub", "div", "matmul"):
        yield replace(node, inputs=node.inputs[::-1])
    changes = {"combine": ("sum", "max"), "fmap": (None, 0, 1), "imap": ((None,), (0,), (1,)), "omap": ((0,), (1,))}
    for name, value in node.attributes:
        for other in changes.get(name, ()):
            if other != value:
                yield replace(node, attributes=tuple((key, other if key == name else kept) for key, kept in node.attributes))


def rebuilt(body: Graph, index: int, changed: Node, sources: Graph, inputs: tuple[Value, ...]) -> Graph:
    """The body with one node changed and every shape inferred again; raises a MugraphError where shapes do not fit."""
    builder = GraphBuilder(body.level, body.grid, body.block, body.loop)
    for position, original in enumerate(body.nodes):
        node = changed if position == index else original
        attributes = dict(node.attributes)
        if node.op == "input_iterator":
            operand, imap, fmap = attributes["operand"], attributes["imap"], attributes["fmap"]
            assert isinstance(operand, int)
            assert isinstance(imap, tuple)
            assert fmap is None or isinstance(fmap, int)
            builder.iterator(operand, sources.tensor(inputs[operand]), imap, fmap)
        else:
            builder.add(node.op, *node.inputs, **attributes)
    return builder.build(body.outputs)


def mutants(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Well-formed kernel graphs that differ from `graph`, with one kernel, in one node of its body, and what changed."""
    kernel = graph.nodes[-1]
    assert kernel.body is not None
    for index, node in enumerate(kernel.body.nodes):
        for changed in changed_nodes(node):
            try:
                body = rebuilt(kernel.body, index, changed, graph, kernel.inputs)
            except MugraphError:
                continue
            if [t.shape for t in body.output_tensors] == [t.shape for t in kernel.outputs]:
                mutant = graph.with_nodes((*graph.nodes[:-1], replace(kernel, body=body)), graph.outputs)
                yield (
                    f"%{index} {node.op} {dict(node.attributes)} -> {changed.op} {changed.inputs} {dict(changed.attributes)}",
                    mutant,
                )


@pytest.mark.parametrize(("build", "at_least"), [(fused_rmsnorm, 20), (online_attention, 10), (linear_with_bias, 5)])
def test_no_mutant_is_accepted(build: Callable[[], Graph], at_least: int) -> None:
    original = build()
    accepted, count = [], 0
    for change, mutant in mutants(original):
        count += 1
        if verify_graphs(original, mutant).equivalent:
            accepted.append(change)
    assert not accepted
    assert count >= at_least
