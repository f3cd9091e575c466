"""Parts of a graph with symbolic sizes, as a batch or a length, that do the same to every row, each a graph of its own.

In a decoder these are norms, linear layers and what is elementwise, up to the next attention and from there on. Rows are slices
along one size, or along two that stand side by side: whichever has the most calls. A part is all such calls of a stage: stages
never fall on a path, and rise from such calls to others, so nothing outside reads some of it and is read by it in turn. A call is
in the stage where it stands in the graph, if it can be: what is read late is not computed ahead. Here calls are looked at one by
one; whether a part is of rows as a whole is for others to check (`mugraph.frontend.symbolic_sizes.symbolic_axis`, of two sizes
behind `mugraph.frontend.symbolic_sizes.merged_rows`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from mugraph.frontend.operators.torch_casts import draws_random_numbers, tensors_of
from mugraph.frontend.partitioning.library import is_constant, mark_constant
from mugraph.frontend.rewriting.graph_passes import owner_of
from mugraph.frontend.rewriting.node_traits import mutates
from mugraph.frontend.symbolic_sizes.axes import SizeMatters, symbols_of, varies
from mugraph.frontend.symbolic_sizes.merged_rows import RowCalls, SliceCalls, moves
from mugraph.frontend.symbolic_sizes.symbolic_axis import with_sizes


@dataclass(frozen=True, slots=True, eq=False)
class RowPart:
    """Calls of a graph, what they read, what others read of them, and them as a graph, which takes their sizes first."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    module: fx.GraphModule
    numbers: tuple[int, ...]
    """Which of the inputs are the sizes: one, or two of which the rows are."""

    @property
    def form(self) -> str:
        """What parts share that do the same to tensors of the same shapes and types."""
        values = [node.meta["val"] for node in self.module.graph.nodes if node.op == "placeholder"]
        kinds = [f"{value.dtype} {value.device} {tuple(value.shape)}" for value in values if isinstance(value, torch.Tensor)]
        return "\n".join([self.module.code, *kinds])


class _CallsOfRows(Protocol):
    """Calls that do the same to every row."""

    def has(self, node: fx.Node) -> bool: ...


def row_parts(module: fx.GraphModule) -> tuple[fx.GraphModule, list[RowPart]]:
    """A graph of ATen calls in an order in which its parts can stand one behind the other, and these.

    There are none in a graph that changes tensors, or would draw its random numbers in another order then, nor along sizes that
    are no arguments.
    """
    graph = with_sizes(module.graph)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if any(map(mutates, calls)):
        return module, []
    sizes = _sizes(graph)
    found = {axis: _calls_of_rows(rows, calls) for axis, rows in _rows(graph, sizes).items()}
    axis = max(found, key=lambda each: sum(not moves(node) for node in found[each]), default=())
    return _in_parts(module, graph, found[axis], axis) if axis else (module, [])


def _rows(graph: fx.Graph, sizes: Collection[Any]) -> dict[tuple[Any, ...], _CallsOfRows]:
    """By symbols which calls do the same to every row of these: of two together, if there are no others, and of each."""
    rows = dict[tuple[Any, ...], _CallsOfRows]()
    if len(sizes) == 2:
        with suppress(SizeMatters):  # where no argument has both
            rows[tuple(sizes)] = RowCalls(graph)
    return rows | {(symbol,): SliceCalls(symbol) for symbol in sizes}


def _in_parts(
    module: fx.GraphModule, graph: fx.Graph, inside: Collection[fx.Node], axis: Collection[Any]
) -> tuple[fx.GraphModule, list[RowPart]]:
    """The graph in another order with calls of rows in parts, as `row_parts`."""
    stages = _stages(graph, inside)
    order = sorted(graph.nodes, key=lambda node: (node.op == "output", *stages[node]))
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if [*filter(draws_random_numbers, order)] != [*filter(draws_random_numbers, calls)]:
        return module, []
    copies, ordered = dict[fx.Node, fx.Node](), fx.Graph()
    for node in order:
        copies[node] = ordered.node_copy(node, copies.__getitem__)
    sizes = {symbol: node for symbol, node in _sizes(ordered).items() if symbol in axis}
    groups: dict[int, list[fx.Node]] = {}
    for node in calls:
        stage, is_inside = stages[node]
        if is_inside:
            groups.setdefault(stage, []).append(copies[node])
    owned = [_with_memory_of_their_own(groups[stage]) for stage in sorted(groups)]
    parts = [_part(nodes, sizes) for nodes in owned if not all(map(moves, nodes))]
    return fx.GraphModule(module, ordered), [part for part in parts if part is not None]


def _calls_of_rows(rows: _CallsOfRows, calls: Iterable[fx.Node]) -> set[fx.Node]:
    """The calls that do the same to every row of contiguous tensors, and whose results have rows."""
    found = set[fx.Node]()
    for node in calls:
        if node.target is operator.getitem:
            if node.all_input_nodes[0] in found:
                found.add(node)
        elif varies(node) and all(map(_is_contiguous, (node, *node.all_input_nodes))) and rows.has(node):
            found.add(node)
    return found


def _stages(graph: fx.Graph, inside: Collection[fx.Node]) -> dict[fx.Node, tuple[int, bool]]:
    """By node, its stage, and whether it is a call of rows: of the stages that it can have, that of the calls before it in the
    graph, lest results be held for long.

    In the order of these pairs every node stands behind what it reads, and the calls of rows of a stage behind one another.
    """

    def rises(source: fx.Node, reader: fx.Node) -> bool:
        return source in inside and reader not in inside

    first, last, stages = dict[fx.Node, int](), dict[fx.Node, int](), dict[fx.Node, tuple[int, bool]]()
    for node in graph.nodes:
        first[node] = max((first[source] + rises(source, node) for source in node.all_input_nodes), default=0)
    end, now = max(first.values()), 0
    for node in reversed(graph.nodes):
        last[node] = min((last[reader] - rises(node, reader) for reader in node.users), default=end)
    for node in graph.nodes:
        behind = max((stages[source][0] + rises(source, node) for source in node.all_input_nodes), default=0)
        stage = behind if node.target is operator.getitem else min(last[node], max(behind, now))
        stages[node] = stage, node in inside
        now = max(now, stage)
    return stages


def _sizes(graph: fx.Graph) -> dict[Any, fx.Node]:
    """By symbol, the argument that is this size."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt)]
    return {node.meta["val"].node.expr: node for node in placeholders if node.meta["val"].node.expr.is_symbol}


def _with_memory_of_their_own(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Calls but for those that others read, and that are views of what others made, or that others read, too."""
    inside = set(nodes)
    while shared := _sharing([node for node in nodes if node in inside and not node.users.keys() <= inside], inside):
        inside -= shared
    return [node for node in nodes if node in inside]


def _sharing(outputs: Iterable[fx.Node], inside: Collection[fx.Node]) -> set[fx.Node]:
    """Outputs of calls that are views of what is made outside, or of what another output is or is a view of, too."""
    owners = {node: owner_of(node) for node in outputs}
    often = Counter(owners.values())
    return {node for node, owner in owners.items() if owner not in inside or (node is not owner and often[owner] > 1)}


def _part(nodes: Sequence[fx.Node], sizes: Mapping[Any, fx.Node]) -> RowPart | None:
    """Calls as a part; None where a number goes in that is no size, or has to be computed of tensors."""
    calls = [*_before(nodes), *nodes]
    inside = set(calls)
    read = [*dict.fromkeys(source for node in calls for source in node.all_input_nodes if source not in inside)]
    tensors = [node for node in read if node not in sizes.values()]
    outputs = [node for node in nodes if not node.users.keys() <= set(nodes)]
    if not all(isinstance(node.meta.get("val"), torch.Tensor) for node in (*tensors, *outputs)):
        return None
    inputs = [*sizes.values(), *tensors]
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for number, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"x{number}")
        copies[node].meta["val"] = node.meta["val"]
        if is_constant(node):
            mark_constant(copies[node])
    for node in calls:
        arguments = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = graph.create_node(node.op, node.target, *arguments)  # named after what it does: see `form`
        copies[node].meta = dict(node.meta)
    graph.output(tuple(copies[node] for node in outputs))
    return RowPart(tuple(nodes), tuple(inputs), tuple(outputs), fx.GraphModule({}, graph), tuple(range(len(sizes))))


def _before(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """What a part computes itself of what is given: sizes of sizes, and views of tensors of fixed sizes, as weights are."""
    found, waiting = set[fx.Node](), [*nodes]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            known = source in found or source.op != "call_function"
            if not known and (_is_number_of_numbers(source) or _is_view_of_a_fixed_argument(source)):
                found.add(source)
                waiting.append(source)
    return [node for node in nodes[0].graph.nodes if node in found]


def _is_number_of_numbers(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt) and not any(map(tensors_of, node.all_input_nodes))


def _is_view_of_a_fixed_argument(node: fx.Node) -> bool:
    """Whether a node is one that is the same at all sizes: neither of what varies nor at a place that a size decides."""
    owner = owner_of(node)
    given = owner is not node and owner.op != "call_function" and not varies(owner)
    return given and bool(tensors_of(node)) and all(map(tensors_of, node.all_input_nodes)) and not varies(node)


def _is_contiguous(node: fx.Node) -> bool:
    return all(tensor.is_contiguous() for tensor in tensors_of(node) if symbols_of(tensor.shape))
