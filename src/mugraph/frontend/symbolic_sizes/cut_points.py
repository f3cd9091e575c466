"""Calls that are no sums, in the place of whose results two recorded graphs take inputs.

What is equal whatever stands there is equal for what the calls give, where both graphs have the same call of the same operands
(docs/theory.md, "Cutoffs"): a maximum over an axis of varying size, or a root of a mean over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from mugraph.frontend.operators.torch_casts import name_of, tensors_of
from mugraph.frontend.symbolic_sizes.axes import NotCounted
from mugraph.frontend.symbolic_sizes.count_rules import Counted, counted
from mugraph.frontend.symbolic_sizes.index_counts import Size

_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Arguments that are what is written of them."""
_MOST = 8
"""Calls of a graph that inputs stand for, at most."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A call that an input stands for: a number for what it computes, its name, its result's sizes and type, and why it is
    none of sums."""

    number: int
    name: str
    shape: tuple[Size, ...]
    dtype: torch.dtype
    reason: str

    def example(self, sizes: Mapping[str, int]) -> torch.Tensor:
        """A tensor of its shape at sizes."""
        return torch.randn([sizes[size] if isinstance(size, str) else size for size in self.shape], dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class CutCalls:
    """A recorded graph, the nodes that inputs stand for, and what is counted of the rest."""

    cuts: Mapping[fx.Node, Cut]
    counted: Counted


def cut_where_needed(calls: fx.GraphModule, names: Mapping[Any, str], numbers: dict[Any, int]) -> CutCalls:
    """What is counted of recorded calls, with inputs in the place of calls of which nothing is; `numbers` are those of all that
    is computed so far, in this graph and in others with the same arguments. Raises SizeMatters where that is of no use."""
    found: dict[fx.Node, Cut] = {}
    while True:
        graph, copies = _cut(calls, found, [*found.values()])
        try:
            return CutCalls(found, counted(graph, names))
        except NotCounted as error:
            origin = next((node for node, copy in copies.items() if copy is error.node), None)
            if origin is None or origin in found or len(found) == _MOST:
                raise
            found[origin] = _cut_at(calls, origin, names, numbers, error)


def with_inputs(calls: fx.GraphModule, own: Mapping[fx.Node, Cut], cuts: Sequence[Cut]) -> fx.GraphModule:
    """Recorded calls that take results of some as inputs, behind all others: of `cuts`, among which its own are."""
    graph, _ = _cut(calls, own, cuts)
    graph.eliminate_dead_code()
    return fx.GraphModule(calls, graph)


def _cut(calls: fx.GraphModule, own: Mapping[fx.Node, Cut], cuts: Sequence[Cut]) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of a graph with inputs behind all others, one for each cut, and where its nodes are there."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in calls.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.node_copy(node)
    inputs = {cut.number: graph.placeholder(f"cut_{place}") for place, cut in enumerate(cuts)}
    for node in calls.graph.nodes:
        if node in own:
            copies[node] = inputs[own[node].number]
            copies[node].meta["val"] = node.meta["val"]
        elif node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies


def _cut_at(calls: fx.GraphModule, origin: fx.Node, names: Mapping[Any, str], numbers: dict[Any, int], error: NotCounted) -> Cut:
    """An input for a call; raises SizeMatters, as it was raised, where the result may be no function of its operands alone."""
    target, value = origin.target, origin.meta.get("val")
    pure = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" and not target._schema.is_mutable
    if not pure or torch.Tag.nondeterministic_seeded in target.tags:  # type: ignore[union-attr]
        raise error
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or tensors_of(origin) != [value]:
        raise error
    sizes = [names.get(size.node.expr) if isinstance(size, torch.SymInt) else int(size) for size in value.shape]
    if None in sizes:
        raise error
    number = _Numbers(calls, names, numbers).of(origin)
    shape = tuple(size for size in sizes if size is not None)
    return Cut(number, name_of(origin) or origin.name, shape, value.dtype, str(error))


class _Numbers:
    """Numbers for what nodes compute: the same calls of the same operands have one, in all graphs with the same arguments."""

    def __init__(self, calls: fx.GraphModule, names: Mapping[Any, str], numbers: dict[Any, int]) -> None:
        self.calls, self.names, self.numbers = calls, names, numbers
        self.arguments = {node: place for place, node in enumerate(self._placeholders())}
        self.known: dict[fx.Node, int] = {}

    def _placeholders(self) -> list[fx.Node]:
        return [node for node in self.calls.graph.nodes if node.op == "placeholder"]

    def of(self, wanted: fx.Node) -> int:
        """That of a node."""
        for node in self.calls.graph.nodes:
            self.known[node] = self.numbers.setdefault(self._described(node), len(self.numbers))
            if node is wanted:
                break
        return self.known[wanted]

    def _described(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if node.op == "placeholder":
            return "argument", self.arguments[node]
        if isinstance(value, torch.SymInt):
            return "size", self._size(value)
        if node.op == "get_attr":
            tensor = getattr(self.calls, str(node.target))
            place = tensor.data_ptr() or id(tensor)
            return "tensor", place, tuple(tensor.shape), tensor.stride(), str(tensor.dtype)
        if node.op != "call_function":
            return "node", id(node)
        given = tree_map(self._operand, (node.args, dict(sorted(node.kwargs.items()))))
        return str(node.target), repr(given)

    def _operand(self, leaf: Any) -> Any:
        if isinstance(leaf, fx.Node):
            return "of", self.known[leaf]
        if isinstance(leaf, torch.SymInt):
            return "size", self._size(leaf)
        return leaf if leaf is None or isinstance(leaf, _PLAIN) else ("object", id(leaf))

    def _size(self, value: torch.SymInt) -> str:
        """A size in names of dimensions, as PyTorch's symbols are of one graph."""
        expression = value.node.expr
        symbols = {symbol: type(symbol)(f"size of {name}") for symbol, name in self.names.items()}
        return str(expression.xreplace(symbols))
