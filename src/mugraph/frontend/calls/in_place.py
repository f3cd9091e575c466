"""Values of tensors that a call changes, written where they lie: a cache takes new keys without being copied.

A functional graph gives what a tensor holds afterwards as a tensor of its own. Where all that it does with the old one is to put
something into a part of it, and that is the value it has in the end, the part can be written at once: no other call reads what
was there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from mugraph.frontend.calls.captured_tensors import lies_alike
from mugraph.frontend.operators.torch_casts import tensor_of

aten = torch.ops.aten
InPlace = Callable[..., torch.Tensor]
"""Called with all arguments of an operator of a functional graph, changes the first one and returns it."""


def _into(part: Callable[..., torch.Tensor]) -> InPlace:
    """What copies a tensor into a part of another one."""

    def write(target: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
        part(target, *where).copy_(source)
        return target

    return write


IN_PLACE: Mapping[object, InPlace] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.select_scatter.default: _into(aten.select.int),
    aten.slice_scatter.default: _into(aten.slice.Tensor),
}
"""By operator that gives a tensor of which a part is another one."""


def ways_in_place(graph: fx.Graph, written: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, InPlace]:
    """The calls of a functional graph that can be made in place, each with how: called with all arguments.

    `written` has the values of placeholders behind the call.
    """
    return {value: IN_PLACE[value.target] for target, value in written.items() if _can_be_written(target, value)}


@dataclass(frozen=True, slots=True)
class Changes:
    """What a graph does to its arguments, by their numbers."""

    changed: tuple[int, ...] = ()
    """Those that get values, in the order of these."""
    returned: Mapping[int, int] = field(default_factory=dict)
    """By number of a result, the changed one that is this result."""


def with_changes_returned(module: fx.GraphModule) -> tuple[fx.GraphModule, Changes]:
    """A graph that AOTAutograd made, without the copies to its arguments that it ends with: it gives what they would hold behind
    its results, of which some may be these arguments.

    Other calls that change something stay where they are.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(module.graph, copies)
    numbers = {copies[node]: number for number, node in enumerate(_placeholders(module.graph))}
    written = [node for node in graph.nodes if node.target is aten.copy_.default and not node.users and node.args[0] in numbers]
    if len({node.args[0] for node in written}) < len(written):
        return module, Changes()
    values = {node: node.args[1] for node in written}
    results: Sequence[Any] = result  # type: ignore[assignment]  # a sequence in these graphs
    graph.output((*(values.get(each, each) for each in results), *values.values()))
    changed = {node: numbers[node.args[0]] for node in written}
    returned = {place: changed[each] for place, each in enumerate(results) if each in changed}
    for node in written:
        graph.erase_node(node)
    return fx.GraphModule(module, graph), Changes(tuple(changed.values()), returned)


def changes_written(run: Callable[..., Sequence[Any]], changes: Changes) -> Callable[..., Sequence[Any]]:
    """Calls of what runs a graph of `with_changes_returned`, with the copies at the end, but for what was written in place."""
    changed, returned = changes.changed, changes.returned
    if not changed:
        return run

    def call(*arguments: Any) -> Sequence[Any]:
        (*results,) = run(*arguments)
        first = len(results) - len(changed)
        for number, value in zip(changed, results[first:], strict=True):
            if value is not arguments[number]:
                arguments[number].copy_(value)
        for place, number in returned.items():
            results[place] = arguments[number]
        return results[:first]

    return call


def values_behind(graph: fx.Graph, changed: Sequence[int]) -> dict[fx.Node, fx.Node]:
    """By placeholder of such a graph, or of one that was made of it, what it holds behind the call."""
    if not changed:
        return {}
    placeholders, (output,) = _placeholders(graph), (node for node in graph.nodes if node.op == "output")
    values = output.args[0][-len(changed) :]
    return {placeholders[number]: value for number, value in zip(changed, values, strict=True)}


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _can_be_written(target: fx.Node, value: fx.Node) -> bool:
    """Whether a placeholder is read by the call that gives its value afterwards alone, as what this puts a part into.

    The value must lie as its readers were recorded with it, which the functional call of some operators does not leave as it was.
    """
    if value.target not in IN_PLACE or value.args[0] is not target or target.op != "placeholder":
        return False
    alone = set(target.users) == {value} and value.all_input_nodes.count(target) == 1
    before, after = tensor_of(target), tensor_of(value)
    if not alone or before is None or after is None:
        return False
    return before.dtype is after.dtype and lies_alike(before, after.stride())
