"""How much memory the tensors of one graph need at once, in the order its nodes stand in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import ACCUMULATORS, VIEWS, Accumulation, Graph, Level, Node, Value
from mugraph.ir.ops import OPERATORS, is_reduction


def peak_bytes(graph: Graph, operands_in_place: bool = False) -> int:
    """Largest number of bytes live at one node of this graph, its own tensors only; of a thread graph, per thread.

    A tensor lives from the node that makes it to the last that reads it or a view of it. Accumulators live as long as
    the for-loop runs, and a kernel graph's inputs and outputs always. Constants are part of the code, savers write to
    the level above, and views own nothing. What a block or thread computes is kept in fp32 at least.
    `operands_in_place`: iterators take nothing, for the block reads its operands where they lie.
    """
    births, deaths = _ranges(graph)
    change = [0] * (len(graph.nodes) + 1)
    streamed = graph.level is Level.THREAD and _elementwise_only(graph)
    for index, node in enumerate(graph.nodes):
        size = 0 if _owns_nothing(graph, node, operands_in_place) else _stored(graph, node, streamed)
        change[births[index]] += size
        change[deaths[index] + 1] -= size
    live = peak = 0
    for difference in change:
        live += difference
        peak = max(peak, live)
    return peak


def _elementwise_only(graph: Graph) -> bool:
    """Whether a thread can run the graph element by element, and so never holds a whole tensor.

    It can where what it computes of single elements is saved, or only combined in sums or maxima that are saved.
    """
    free = ("input_iterator", "output_saver", "constant", "cast")
    combined = [index for index, node in enumerate(graph.nodes) if is_reduction(node.op)]
    saved = all(graph.nodes[user].is_saver for index in combined for user in graph.users(Value(index)))
    others = (node for index, node in enumerate(graph.nodes) if index not in combined)
    return saved and all(node.op in free or (node.op in OPERATORS and OPERATORS[node.op].elementwise) for node in others)


def _owns_nothing(graph: Graph, node: Node, operands_in_place: bool) -> bool:
    in_place = operands_in_place and graph.level is Level.BLOCK and node.is_iterator
    return in_place or node.is_constant or node.is_saver or _is_view(graph, node)


def _stored(graph: Graph, node: Node, streamed: bool) -> int:
    """Bytes of a node's outputs, or of one element of each where they are streamed."""
    computed = graph.level is not Level.KERNEL and not node.is_iterator
    narrowest = DType.FP32.bytes if computed else 1
    return sum(max(tensor.dtype.bytes, narrowest) * (1 if streamed else tensor.elements) for tensor in node.outputs)


def live_ranges(
    reads: Sequence[Sequence[int]], accumulators: Collection[int], inside: Collection[int]
) -> tuple[list[int], list[int]]:
    """First and last operator during which each operator's result takes memory.

    `reads[i]` are the operators whose memory the i-th one reads; those `inside` the for-loop run again and again, so what
    `accumulators` collect is there from its first operator to its last.
    """
    births = list(range(len(reads)))
    deaths = list(births)
    for index, operands in enumerate(reads):
        for operand in operands:
            deaths[operand] = index
    for index in accumulators:
        births[index] = min(inside)
        deaths[index] = max(deaths[index], *inside)
    return births, deaths


def _ranges(graph: Graph) -> tuple[list[int], list[int]]:
    """The live ranges of a graph's nodes; a kernel graph's inputs and outputs are always live."""
    reads = [[_owner(graph, value) for value in node.inputs] for node in graph.nodes]
    accumulators = [index for index, node in enumerate(graph.nodes) if node.op in ACCUMULATORS]
    births, deaths = live_ranges(reads, accumulators, loop_nodes(graph))
    if graph.level is Level.KERNEL:
        inputs = {index for index, node in enumerate(graph.nodes) if node.is_input}
        for index in inputs | {_owner(graph, value) for value in graph.outputs}:
            deaths[index] = len(graph.nodes) - 1
        for index in inputs:
            births[index] = 0
    return births, deaths


def _is_view(graph: Graph, node: Node) -> bool:
    """Whether a node gives its operand's memory: a reshape or transpose, or an operand carried unchanged past the loop."""
    if node.accumulation is Accumulation.MAX:
        source = graph.nodes[node.inputs[0].node]
        return source.is_iterator and source.get("fmap") is None
    return node.op in VIEWS


def _owner(graph: Graph, value: Value) -> int:
    """The node whose memory a value lies in, looking through views."""
    node = graph.nodes[value.node]
    return _owner(graph, node.inputs[0]) if _is_view(graph, node) else value.node
