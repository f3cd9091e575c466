"""What a muGraph means: evaluate all its levels under any arithmetic.

The grid and the for-loop are run literally, block by block and iteration by iteration, so that imap, fmap, omap and
accumulators are tested by every evaluation. This is the oracle of all targets, not a fast path.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from mugraph.errors import InvalidGraph
from mugraph.ir.arithmetic import Arithmetic, Array
from mugraph.ir.graph import ACCUMULATORS, Graph, Level, Node, Shape, Value
from mugraph.ir.ops import GRAPH_DEFINED, Call, Scope, apply_call, operator, partition_of

V = TypeVar("V")


def evaluate(graph: Graph, inputs: Sequence[V], arith: Arithmetic[V]) -> list[V]:
    """The outputs of a kernel graph on `inputs` (one tensor per `input` node, in order)."""
    if graph.level is not Level.KERNEL:
        raise InvalidGraph(f"evaluate takes a kernel graph, not a {graph.level} graph")
    values: dict[Value, V] = {}
    remaining = iter(inputs)
    for index, node in enumerate(graph.nodes):
        if node.is_input:
            values[Value(index)] = next(remaining)
        elif node.op == GRAPH_DEFINED:
            for output, result in enumerate(_run_body(graph, node, [values[v] for v in node.inputs], arith)):
                values[Value(index, output)] = result
        else:
            values[Value(index)] = _apply(graph, node, [values[v] for v in node.inputs], arith)
    return [values[value] for value in graph.outputs]


def _call(graph: Graph, node: Node) -> Call:
    tensors = [graph.tensor(value) for value in node.inputs]
    return apply_call(node.op, tensors, dict(node.attributes), Scope(graph.grid or graph.block, graph.loop))


def _apply(graph: Graph, node: Node, operands: Sequence[V], arith: Arithmetic[V]) -> V:
    result: V = operator(node.op).compute(arith, _call(graph, node), operands)
    return result


def _run_body(parent: Graph, node: Node, operands: Sequence[V], arith: Arithmetic[V]) -> list[V]:
    """All blocks of a graph-defined operator, joined by each output's omap."""
    body = node.body
    if body is None:
        raise InvalidGraph(f"clause 1 (operator specification): {GRAPH_DEFINED} without a body")
    grid = body.grid or body.block
    blocks = {index: evaluate_block(body, index, operands, arith) for index in itertools.product(*map(range, grid))}
    return [_assemble(body, number, blocks, arith) for number in range(len(body.outputs))]


def _assemble(body: Graph, number: int, blocks: Mapping[tuple[int, ...], list[V]], arith: Arithmetic[V]) -> V:
    """Concatenate output `number` of all blocks: the last grid dimension first, since omaps may share a dimension."""
    omap = body.nodes[body.outputs[number].node]["omap"]
    grid = body.grid or body.block
    parts = {index: results[number] for index, results in blocks.items()}
    for position in reversed(range(len(grid))):
        dim = omap[position] if isinstance(omap, tuple) else None
        if dim is None:
            raise InvalidGraph("clause 1 (operator specification): omap must map every grid dimension to a data dimension")
        joined: dict[tuple[int, ...], V] = {}
        for index in itertools.product(*map(range, grid[:position])):
            joined[index] = _concatenate([parts[(*index, last)] for last in range(grid[position])], dim, arith)
        parts = joined
    return parts[()]


def _concatenate(parts: Sequence[V], dim: int, arith: Arithmetic[V]) -> V:
    if len(parts) == 1:
        return parts[0]
    return arith.join(parts, lambda arrays: np.concatenate(arrays, axis=dim))


def block_slices(body: Graph, number: int, block: tuple[int, ...], shape: Shape) -> tuple[slice, ...]:
    """Where a block's part of output `number`, a tensor of `shape`, lies in it."""
    grid, omap = body.grid or body.block, body.nodes[body.outputs[number].node].integers("omap")
    parts = [(0, 1)] * len(shape)
    for at, count, dim in zip(block, grid, omap, strict=True):
        place, whole = parts[dim]
        parts[dim] = (place * count + at, whole * count)
    sizes = [size // whole for size, (_, whole) in zip(shape, parts, strict=True)]
    return tuple(slice(place * size, (place + 1) * size) for size, (place, _) in zip(sizes, parts, strict=True))


def evaluate_block(body: Graph, block: tuple[int, ...], operands: Sequence[V], arith: Arithmetic[V]) -> list[V]:
    """The parts of the outputs that one block makes: the loop body once per iteration, then the nodes after the loop once."""
    inside, needed, fixed = loop_nodes(body), body.needed(), constant_nodes(body)
    history: dict[Value, list[V]] = {}
    for iteration in range(body.loop):
        values: dict[Value, V] = {}
        for index, node in enumerate(body.nodes):
            if index in inside:
                _step(body, index, node, values, operands, (*block, iteration), arith)
        for value, result in values.items():
            history.setdefault(value, []).append(result)
    after: dict[Value, V] = {}
    for index, node in enumerate(body.nodes):
        if index not in needed or index in inside - fixed:
            continue
        if node.op in ACCUMULATORS:
            per_iteration = [result for value in node.inputs for result in history[value]]
            after[Value(index)] = _apply(body, node, per_iteration, arith)
        else:
            _step(body, index, node, after, operands, (*block, 0), arith)
    return [after[value] for value in body.outputs]


def iteration_values(body: Graph, loaded: Mapping[int, V], arith: Arithmetic[V]) -> dict[Value, V]:
    """What the nodes inside the for-loop compute in one iteration in which the iterators, by node, bring the tiles `loaded`."""
    inside = loop_nodes(body)
    values = {Value(index): tile for index, tile in loaded.items()}
    for index, node in enumerate(body.nodes):
        if index in inside and index not in loaded:
            _step(body, index, node, values, (), (), arith)
    return values


def _step(
    body: Graph,
    index: int,
    node: Node,
    values: dict[Value, V],
    operands: Sequence[V],
    part: tuple[int, ...],
    arith: Arithmetic[V],
) -> None:
    if node.is_iterator:
        values[Value(index)] = _load(body, node, operands, part, arith)
    elif node.is_saver:
        values[Value(index)] = values[node.inputs[0]]
    elif node.op == GRAPH_DEFINED:
        for output, result in enumerate(_run_body(body, node, [values[v] for v in node.inputs], arith)):
            values[Value(index, output)] = result
    else:
        values[Value(index)] = _apply(body, node, [values[v] for v in node.inputs], arith)


def _load(body: Graph, node: Node, operands: Sequence[V], part: tuple[int, ...], arith: Arithmetic[V]) -> V:
    operand = node["operand"]
    if not isinstance(operand, int) or operand >= len(operands):
        raise InvalidGraph(f"clause 1 (operator specification): input_iterator reads operand {operand!r} of {len(operands)}")
    call = Call(node.op, (node.output.shape,), dict(node.attributes), Scope(body.grid or body.block, body.loop))
    cuts = [(count, dim, position) for (count, dim), position in zip(partition_of(call), part, strict=True) if dim is not None]

    def cut(array: Array) -> Array:
        for count, dim, position in cuts:
            size = array.shape[dim] // count
            array = array[(slice(None),) * dim + (slice(position * size, (position + 1) * size),)]
        return array

    return arith.view(operands[operand], cut)


def constant_nodes(body: Graph) -> frozenset[int]:
    """Indices of the nodes that no iterator reaches: what they make may be read inside the for-loop and after it."""
    found: set[int] = set()
    for index, node in enumerate(body.nodes):
        if not node.is_iterator and all(value.node in found for value in node.inputs):
            found.add(index)
    return frozenset(found)


def loop_nodes(body: Graph) -> frozenset[int]:
    """Indices of the nodes inside the for-loop: those from which an accumulator is reached (none without a loop)."""
    if not any(node.op in ACCUMULATORS for node in body.nodes):
        return frozenset()
    inside: set[int] = set()
    stack = [v.node for node in body.nodes if node.op in ACCUMULATORS for v in node.inputs]
    while stack:
        index = stack.pop()
        if index not in inside:
            inside.add(index)
            stack.extend(value.node for value in body.nodes[index].inputs)
    return frozenset(inside)
