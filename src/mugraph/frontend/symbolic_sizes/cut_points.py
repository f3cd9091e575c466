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
from torch.utils._pytree import tree_leaves, tree_map

from mugraph.frontend.calls.calling import unused_name
from mugraph.frontend.operators.torch_casts import name_of, tensors_of
from mugraph.frontend.symbolic_sizes.axes import NotCounted
from mugraph.frontend.symbolic_sizes.count_rules import Counted, counted
from mugraph.frontend.symbolic_sizes.index_counts import Size
from mugraph.frontend.symbolic_sizes.spelled_calls import spelled

_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Arguments that are what is written of them."""
_OF_EXPONENTS = frozenset({"exp", "softmax", "_softmax"})
"""Of these the operand has an input in its place, so that they are positive, whatever it is."""
_MOST = 8
"""Calls of a graph that inputs stand for, at most."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What an input stands for: a number for what it computes, its name, its result's sizes and type, and why it is none of
    sums; and which `kind` of function it is of which `operands`, tensors of real numbers."""

    number: int
    name: str
    shape: tuple[Size, ...]
    dtype: torch.dtype
    reason: str
    kind: str
    operands: tuple[fx.Node, ...]
    stands_for_operand: bool = False
    """Whether the input stands for its operand itself."""

    def example(self, sizes: Mapping[str, int]) -> torch.Tensor:
        """A tensor of its shape at sizes."""
        return torch.randn([sizes[size] if isinstance(size, str) else size for size in self.shape], dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class CutCalls:
    """Recorded calls, some of them in other words, the nodes that inputs stand for, and what is counted of the rest."""

    calls: fx.GraphModule
    cuts: Mapping[fx.Node, Cut]
    counted: Counted


def cut_where_needed(calls: fx.GraphModule, names: Mapping[Any, str], numbers: dict[Any, int]) -> CutCalls:
    """What is counted of recorded calls, with inputs in the place of calls of which nothing is, in other words either; `numbers`
    are those of all that is computed so far, in this graph and in others with the same arguments. Raises SizeMatters where that
    is of no use."""
    calls, found = _copied(calls), dict[fx.Node, Cut]()
    while True:
        graph, copies = _cut(calls, found, [*found.values()])
        try:
            return CutCalls(calls, found, counted(graph, names))
        except NotCounted as error:
            origin = next((node for node, copy in copies.items() if copy is error.node), None)
            if origin is None or origin in found:
                raise
            if not spelled(calls.graph, origin):
                if len({cut.number for cut in found.values()}) == _MOST:
                    raise
                found |= _cut_at(calls, origin, names, numbers, error, found)


def counted_with(cut: CutCalls, operands: Sequence[fx.Node], names: Mapping[Any, str]) -> Counted:
    """What is counted of the results of recorded calls, and of the operands of some of them."""
    graph, _ = _cut(cut.calls, cut.cuts, [*cut.cuts.values()], operands)
    return counted(graph, names)


def with_inputs(
    calls: fx.GraphModule, own: Mapping[fx.Node, Cut], cuts: Sequence[Cut], operands: Sequence[fx.Node] = ()
) -> fx.GraphModule:
    """Recorded calls that take results of some as inputs, behind all others: of `cuts`, among which its own are. They give
    `operands`, too, behind all results."""
    graph, _ = _cut(calls, own, cuts, operands)
    graph.eliminate_dead_code()
    return fx.GraphModule(calls, graph)


def _copied(calls: fx.GraphModule) -> fx.GraphModule:
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in calls.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(calls, graph)


def _cut(
    calls: fx.GraphModule, own: Mapping[fx.Node, Cut], cuts: Sequence[Cut], operands: Sequence[fx.Node] = ()
) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of a graph with inputs behind all others, one for each number of cuts, and where its nodes are there.

    An operand that an input stands for is given as it is computed, and not as that input."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in calls.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.node_copy(node)
    taken = dict.fromkeys(cut.number for cut in cuts)
    names = {str(node.target) for node in copies}
    inputs = {number: graph.placeholder(unused_name(f"cut_{place}", names)) for place, number in enumerate(taken)}
    given = dict[fx.Node, fx.Node]()
    for node in calls.graph.nodes:
        if node in own:
            if node in operands and own[node].stands_for_operand:
                given[node] = graph.node_copy(node, copies.__getitem__)
            copies[node] = inputs[own[node].number]
            copies[node].meta["val"] = node.meta["val"]
        elif node.op == "output":
            more = tuple(given.get(operand, copies[operand]) for operand in operands)
            results: Any = fx.map_arg(node.args[0], copies.__getitem__)
            copies[node] = graph.output((*results, *more))
        elif node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies


def _cut_at(
    calls: fx.GraphModule,
    origin: fx.Node,
    names: Mapping[Any, str],
    numbers: dict[Any, int],
    error: NotCounted,
    found: Mapping[fx.Node, Cut],
) -> dict[fx.Node, Cut]:
    """An input for a call, or for the operand of an exponential; raises SizeMatters, as it was raised, where the result may be no
    function of its operands alone."""
    known = _Numbers(calls, names, numbers)
    (first, *_) = [*origin.all_input_nodes, None]
    if name_of(origin) in _OF_EXPONENTS and first is not None and first not in found and first.op == "call_function":
        number = known.known[first]
        sizes = _sizes_of(first, names)
        if sizes is not None:
            cut = Cut(number, "exponent", sizes, first.meta["val"].dtype, str(error), f"exponent {sizes}", (first,), True)
            return {node: cut for node in calls.graph.nodes if known.known[node] == number}
    target, sizes = origin.target, _sizes_of(origin, names)
    pure = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" and not target._schema.is_mutable
    if sizes is None or not pure or torch.Tag.nondeterministic_seeded in target.tags:  # type: ignore[union-attr]
        raise error
    number, kind = known.known[origin], known.kind(origin)
    given = tree_leaves((origin.args, dict(sorted(origin.kwargs.items()))))
    operands = tuple(leaf for leaf in given if isinstance(leaf, fx.Node) and _is_real(leaf))
    return {origin: Cut(number, name_of(origin) or origin.name, sizes, origin.meta["val"].dtype, str(error), kind, operands)}


def _sizes_of(node: fx.Node, names: Mapping[Any, str]) -> tuple[Size, ...] | None:
    """The sizes of the one tensor of real numbers that a node gives; None where it is none of these sizes."""
    value = node.meta.get("val")
    if value is None or not _is_real(node) or tensors_of(node) != [value]:
        return None
    sizes = [names.get(size.node.expr) if isinstance(size, torch.SymInt) else int(size) for size in value.shape]
    return None if None in sizes else tuple(size for size in sizes if size is not None)


def _is_real(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class _Numbers:
    """Numbers for what nodes compute: the same calls of the same operands have one, in all graphs with the same arguments."""

    def __init__(self, calls: fx.GraphModule, names: Mapping[Any, str], numbers: dict[Any, int]) -> None:
        self.calls, self.names, self.numbers = calls, names, numbers
        self.arguments = {node: place for place, node in enumerate(self._placeholders())}
        self.known: dict[fx.Node, int] = {}
        for node in calls.graph.nodes:
            self.known[node] = numbers.setdefault(self._described(node), len(numbers))

    def _placeholders(self) -> list[fx.Node]:
        return [node for node in self.calls.graph.nodes if node.op == "placeholder"]

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

    def kind(self, node: fx.Node) -> str:
        """What a call does, whatever its operands of real numbers are, if it has such."""

        def operand(leaf: Any) -> Any:
            real = isinstance(leaf, fx.Node) and _is_real(leaf)
            return ("any", _sizes_of(leaf, self.names), str(leaf.meta["val"].dtype)) if real else self._operand(leaf)

        return f"{node.target} {tree_map(operand, (node.args, dict(sorted(node.kwargs.items()))))!r}"

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
