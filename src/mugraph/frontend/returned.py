"""What functions return: which tensors are the same or lie in the memory of another, and what two functions return, compared.

Kernels write every result to memory of its own, and equal results once. In eager PyTorch a function may return a tensor twice,
an argument, or a view of either, and a change of one then shows in the other: so the views are made again of what was computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from mugraph.errors import InvalidInput
from mugraph.frontend.graph_passes import viewed
from mugraph.frontend.objects import ObjectKind, flat
from mugraph.frontend.pytree import Place, Results, View, check_value
from mugraph.ir.graph import Tensor

Structure = Any
"""A `Container` of structures, an `ReturnedTensor`, or a value that is no tensor."""


@dataclass(frozen=True, slots=True)
class ReturnedTensor:
    """A tensor: the output of that number of a graph."""

    number: int
    tensor: Tensor

    def __str__(self) -> str:
        return str(self.tensor)


@dataclass(frozen=True, slots=True)
class Container:
    """A tuple, list, dict or any other node of PyTorch's trees; the parts of a dict in the order of its keys, sorted."""

    kind: type
    keys: tuple[Any, ...] | None
    """Of a dict; None for containers whose parts have positions."""
    context: Any
    """What else tells containers of a kind apart: the class of a named tuple, the fields of a dataclass."""
    parts: tuple[Structure, ...]

    def __str__(self) -> str:
        texts = [text_of(part) for part in self.parts]
        if self.keys is not None:
            return "{" + ", ".join(f"{key!r}: {text}" for key, text in zip(self.keys, texts, strict=True)) + "}"
        if self.kind is list:
            return f"[{', '.join(texts)}]"
        if self.kind is tuple:
            return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
        name = self.context.__name__ if isinstance(self.context, type) else self.kind.__name__
        return f"{name}({', '.join(texts)})"


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


def outputs_of(structure: Structure) -> list[ReturnedTensor]:
    """The tensors of a structure, in order."""
    if isinstance(structure, Container):
        return [output for part in structure.parts for output in outputs_of(part)]
    return [structure] if isinstance(structure, ReturnedTensor) else []


def difference(left: Structure, right: Structure, same: Callable[[object, object], bool], place: str = "") -> str | None:
    """Where two structures are not alike, in words; None where they are, tensors being alike in shape and dtype."""
    where = f"at {place} " if place else ""
    if isinstance(left, Container) and isinstance(right, Container):
        alike = left.kind is right.kind and left.keys == right.keys and left.context == right.context
        if not alike or len(left.parts) != len(right.parts) or _kinds(left.keys) != _kinds(right.keys):
            return f"{where}one returns {left}, the other {right}"
        keys: Sequence[Any] = range(len(left.parts)) if left.keys is None else left.keys
        differences = (
            difference(one, other, same, f"{place}[{key!r}]")
            for key, one, other in zip(keys, left.parts, right.parts, strict=True)
        )
        return next(filter(None, differences), None)
    if isinstance(left, ReturnedTensor) and isinstance(right, ReturnedTensor):
        alike = (left.tensor.shape, left.tensor.dtype) == (right.tensor.shape, right.tensor.dtype)
    else:
        alike = (
            not isinstance(left, Container | ReturnedTensor)
            and not isinstance(right, Container | ReturnedTensor)
            and same(left, right)
        )
    return None if alike else f"{where}one returns {text_of(left)}, the other {text_of(right)}"


def text_of(structure: Structure) -> str:
    """A structure as one reads it: `(fp32[2, 4], 3)`."""
    return str(structure) if isinstance(structure, Container | ReturnedTensor) else repr(structure)


def _kinds(keys: Sequence[Any] | None) -> list[type] | None:
    return None if keys is None else [type(key) for key in keys]


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
        places[place] = _place(place, node, number, first, placeholders, number in written)
        if places[place].base is None:
            written.add(number)
    for place, leaf in enumerate(leaves):
        if place not in places:
            check_value(f"{name} returns", leaf)
            places[place] = Place(constant=leaf)
    return Results(structure, tuple(places[place] for place in range(len(leaves))))


def _place(place: int, node: fx.Node, number: int, first: dict[fx.Node, int], placeholders: Sequence[str], copied: bool) -> Place:
    if first[node] != place:
        return Place(number=number, base=first[node])
    owner, views = _owner(node)
    if owner.op == "placeholder" and owner.name in placeholders:
        return Place(number=number, input=placeholders.index(owner.name), view=_through(views))
    if owner in first and views:
        return Place(number=number, base=first[owner], view=_through(views))
    return Place(number=number, copied=copied)


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
