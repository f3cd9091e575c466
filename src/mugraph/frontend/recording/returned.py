"""What functions return: which tensors are the same or lie in the memory of another, and in which structure.

Kernels write every result to memory of its own, in the order of its dimensions, and equal results once. In eager PyTorch a
function may return a tensor twice, an argument, or a view of either, and a change of one then shows in the other: so the views
are made again of what was computed. Tensors may also lie otherwise, as images with their channels last do, and callers may ask
for views that only such a tensor has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.objects import ObjectKind, flat
from mugraph.frontend.calls.returned_values import Place, Results, View, check_value, order_in_memory
from mugraph.frontend.calls.structures import Container, Structure
from mugraph.frontend.rewriting.graph_passes import viewed


def structure_from(spec: Any, leaves: Iterator[Any]) -> Structure:
    """The structure of a torch `TreeSpec` with these leaves."""
    if spec.is_leaf():
        return next(leaves)
    parts = [structure_from(child, leaves) for child in spec.children()]
    if isinstance(spec.context, ObjectKind):
        return Container(spec.context.kind, None, spec.context.names, tuple(parts))
    if spec.type is not dict:
        return Container(spec.type, None, spec.context, tuple(parts))
    pairs = sorted(zip(spec.context, parts, strict=True), key=lambda pair: (type(pair[0]).__name__, repr(pair[0])))
    return Container(dict, tuple(key for key, _ in pairs), None, tuple(part for _, part in pairs))


def results_of(
    name: str, returned: Any, nodes: Sequence[fx.Node], numbers: Sequence[int], placeholders: Sequence[str]
) -> Results:
    """The results of the function `name`: its tensors are `nodes`, and the program's outputs `numbers`, in order.

    Raises InvalidInput for two views of a tensor that is neither returned nor an argument, and for objects that may hide tensors.
    """
    leaves, structure = flat(returned)
    tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    first: dict[fx.Node, int] = {}
    for place, node in zip(tensors, nodes, strict=True):
        first.setdefault(node, place)
    _check_views(name, first)
    places: dict[int, Place] = {}
    written: set[int] = set()
    for place, node, number in zip(tensors, nodes, numbers, strict=True):
        alone = Place(number=number, copied=number in written, order=order_in_memory(leaves[place]))
        places[place] = _place(place, node, alone, first, placeholders)
        if places[place].base is None:
            written.add(number)
    for place, leaf in enumerate(leaves):
        if place not in places:
            check_value(f"{name} returns", leaf)
            places[place] = Place(constant=leaf)
    return Results(structure, tuple(places[place] for place in range(len(leaves))))


def _place(place: int, node: fx.Node, alone: Place, first: dict[fx.Node, int], placeholders: Sequence[str]) -> Place:
    """Where a tensor comes from that would stand `alone` if it lay in no memory of others."""
    number = alone.number
    if first[node] != place:
        return Place(number=number, base=first[node])
    owner, views = _owner(node)
    if owner.op == "placeholder" and owner.name in placeholders:
        return Place(number=number, input=placeholders.index(owner.name), view=_through(views))
    if owner in first and views:
        return Place(number=number, base=first[owner], view=_through(views))
    return alone


def _check_views(name: str, first: dict[fx.Node, int]) -> None:
    owners = Counter(_owner(node)[0] for node in first)
    for owner, count in owners.items():
        if count > 1 and owner not in first and owner.op != "placeholder":
            raise InvalidInput(f"{name} returns {count} views of one tensor; return clones of them, or the tensor too")


def _owner(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor in whose memory that of a node lies, and the calls that lead from it to the node."""
    views: list[fx.Node] = []
    while (source := viewed(node)) is not None:
        views.insert(0, node)
        node = source
    return node, views


def _through(views: Sequence[fx.Node]) -> View:
    """The calls, one after the other, on another tensor."""

    def view(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInput("a result that is a view of another, or of an argument, cannot be saved; return its clone")
        made = {views[0].all_input_nodes[0]: tensor} if views else {}
        for node in views:
            assert callable(node.target), "views are calls of ATen operators"
            arguments: Any = fx.map_arg(node.args, made.__getitem__)
            options: Any = fx.map_arg(node.kwargs, made.__getitem__)
            made[node] = node.target(*arguments, **options)
        return made[views[-1]] if views else tensor

    return view
