"""Calls that were recorded at two sizes, as the same calls at every size: with a symbol for it.

Then it can be asked of a graph that was read from a file, with no function beside it, whether it acts on slices
(`mugraph.frontend.symbolic_sizes.symbolic_axis`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from mugraph.frontend.operators.torch_casts import name_of, tensors_of
from mugraph.frontend.rewriting.permuted_blocks import arranged
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.one_symbol import OneSymbol
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices
from mugraph.sizes.pieced_functions import Axes, axes_between, paired


def check_calls(graph: fx.GraphModule, size: int, other: fx.GraphModule, other_size: int, high: int | None = None) -> Axes:
    """Where the tensors of a graph at one size have the axis, by the same graph at another size, if those calls treat all slices
    alike at every size from 2 to `high`, or to no end.

    What differs is the same multiple of both sizes, and is that multiple of a symbol here, at which all tensors must have the
    shapes that they have in both graphs. Raises SizeMatters, naming the call, for other graphs.
    """
    axes = axes_between(graph, size, other, other_size)
    symbolic = _Symbolic(size, axes, OneSymbol() if high is None else OneSymbol(high=max(high, 3)))
    for one, its in zip(graph.graph.nodes, other.graph.nodes, strict=True):
        symbolic.add(one, its)
    for one, its in zip(graph.graph.nodes, other.graph.nodes, strict=True):
        for node, known in ((one, size), (its, other_size)):
            if one.op != "output" and _shapes(tensors_of(symbolic.nodes[one]), known) != _shapes(tensors_of(node), known):
                raise SizeMatters(f"{name_of(one)}: its result has another shape at size {known} than its calls make at any")
    check_slices(symbolic.graph)
    return axes


def _shapes(tensors: Iterable[torch.Tensor], size: int) -> list[tuple[torch.dtype, list[int]]]:
    """Types and shapes of tensors, with a size for the symbol."""
    return [(tensor.dtype, [_at(each, size) for each in tensor.shape]) for tensor in tensors]


def _at(number: Any, size: int) -> int:
    if not isinstance(number, torch.SymInt):
        return int(number)
    expression = number.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, size)))


@dataclass(slots=True)
class _Symbolic:
    """The graph with a symbol, while it is made of one at a `size`."""

    size: int
    axes: Axes
    symbol: OneSymbol
    graph: fx.Graph = field(default_factory=fx.Graph)
    nodes: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """By node at the size."""
    number: fx.Node = field(init=False)
    """The symbol."""

    def __post_init__(self) -> None:
        self.number = self.graph.placeholder("size")
        self.number.meta["val"] = self.symbol.size

    def add(self, one: fx.Node, its: fx.Node) -> None:
        """Add a node, which is `its` at another size."""
        if one.op == "output":
            self.graph.output(tuple(self.nodes[source] for source in one.args[0]))  # type: ignore[union-attr, index]
        elif one.op == "call_function":
            args, kwargs = self._arguments(one, its)
            made = self._arranged(*args, **kwargs) if one.target is arranged else self._call(one.target, args, kwargs)
            self.nodes[one] = made
        else:
            dim, value = self.axes[one], one.meta["val"]
            shape = [self._scaled(each) if place == dim else each for place, each in enumerate(value.shape)]
            node = self.nodes[one] = self.graph.placeholder(one.name)
            node.meta["val"] = self.symbol.like(value, shape)

    def _scaled(self, number: int) -> Any:
        return number // self.size * self.symbol.size

    def _arguments(self, one: fx.Node, its: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with multiples of the symbol in the place of those of the two sizes."""
        given = (one.args, one.kwargs)
        pairs = paired(given, (its.args, its.kwargs))
        assert pairs is not None, "these are the same calls"
        leaves = [self._argument(*pair) for pair in pairs]
        args, kwargs = tree_unflatten(leaves, tree_flatten(given)[1])
        return tuple(args), dict(kwargs)

    def _argument(self, one: Any, other: Any) -> Any:
        if isinstance(one, fx.Node):
            return self.nodes[one]
        return self._multiple(one) if type(one) is int and one != other else one

    def _multiple(self, number: int) -> fx.Node:
        """A number that is a multiple of the size, as a call that computes it."""
        node = self.graph.call_function(operator.mul, (self.number, number // self.size))
        node.meta["val"] = self._scaled(number)
        return node

    def _call(self, target: Any, args: Iterable[Any], kwargs: dict[str, Any] | None = None) -> fx.Node:
        """A call with what it makes; raises SizeMatters where that is not known at all sizes, as of one that is asked whether it
        is below 100."""
        node = self.graph.call_function(target, tuple(args), kwargs or {})
        values = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        try:
            node.meta["val"] = self.symbol.called(target, *values)
        except SizeMatters as error:
            raise SizeMatters(f"{name_of(node)}: {error}") from None
        except Exception as error:  # whatever PyTorch raises where sizes do not fit
            raise SizeMatters(f"{name_of(node)}: it is not made with a symbol for the size: {error}") from None
        return node

    def _arranged(self, x: fx.Node, matrix: fx.Node, dim: int, blocks: Iterable[tuple[int, int]]) -> fx.Node:
        """What `arranged` calls."""
        aten: Any = torch.ops.aten
        chunks = self._call(aten.chunk.default, (x, matrix.meta["val"].shape[1], dim))
        parts = [self._taken(chunks, number, sign, aten.neg.default) for sign, number in blocks]
        return self._call(aten.cat.default, (parts, dim))

    def _taken(self, chunks: fx.Node, number: int, sign: int, negated: Callable[..., Any]) -> fx.Node:
        part = self._call(operator.getitem, (chunks, number))
        return part if sign > 0 else self._call(negated, (part,))
