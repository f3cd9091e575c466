"""Graphs with two symbolic sizes that stand side by side everywhere, as a batch and a length do, as graphs of rows of one.

Where calls do the same to every row of a tensor of [batch, length, ...], they do so to a tensor of [batch * length, ...], too. So
each tensor without data gets one dimension in the place of the two, and dimensions that calls name are counted anew; what is left
is a graph of one symbolic size, to be checked by `mugraph.frontend.symbolic_sizes.symbolic_axis` (docs/theory.md, "Rows of two
sizes").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map_only

from mugraph.frontend.operators.torch_casts import tensors_of
from mugraph.frontend.symbolic_sizes.axes import STRETCHES, SizeMatters, axis_of, stretches_of, symbols_of
from mugraph.frontend.symbolic_sizes.masked_axis import name_of
from mugraph.frontend.symbolic_sizes.one_symbol import OneSymbol
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices

_MOVING = "view reshape _unsafe_view flatten unflatten unsqueeze squeeze clone contiguous alias detach _to_copy to expand"
_OF_PARTS = (
    "permute transpose t slice narrow select split split_with_sizes chunk cat full zeros ones full_like zeros_like ones_like"
)
_MOVES = frozenset(f"{_MOVING} {_OF_PARTS}".split())
_ALONG = "sum mean amax amin any all logsumexp var std linalg_vector_norm softmax _softmax log_softmax _log_softmax"
_OF_ROWS = "layer_norm native_layer_norm rms_norm _fused_rms_norm matmul mm addmm linear embedding where"
_FOLLOWED = frozenset(f"{_MOVING} {_OF_PARTS} {_ALONG} {_OF_ROWS}".split())
"""Calls whose rules look at nothing but where dimensions stand, the last first, and at those that they name."""
_DIMENSIONS = ("dim", "dims", "dim0", "dim1")
"""Arguments that name dimensions of the first operand."""


@dataclass(frozen=True, slots=True)
class _Symbols:
    """The sizes of two dimensions, of which `first` stands before `second`."""

    first: Any
    second: Any

    def place(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """The first dimension of the rows, and how many they are; None of a tensor that has none. Raises SizeMatters where one
        size stands without the other, or otherwise than before it."""
        sizes = [*map(expression_of, tensor.shape)]
        dims = [dim for dim, size in enumerate(tensor.shape) if symbols_of(size)]
        match dims:
            case []:
                return None
            case [dim] if sizes[dim] == self.first * self.second:
                return dim, 1
            case [dim, other] if other == dim + 1 and (sizes[dim], sizes[other]) == (self.first, self.second):
                return dim, 2
        raise SizeMatters(f"a tensor of shape [{', '.join(map(str, tensor.shape))}] does not have both sizes side by side")


def merged_rows(graph: fx.Graph) -> fx.Graph:
    """A graph of ATen calls with two symbolic sizes as one of rows, of one symbolic size: it says what is done to these, and is
    not to be run. Nodes have their tensors without data in `meta["val"]`, in both graphs.

    Raises SizeMatters where the two do not stand side by side, in one order, or where it is not known how calls count dimensions.
    """
    merging = _Merging(_symbols(graph))
    made, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        copies[node] = merging.copy(node, made, copies)
    return made


class RowCalls:
    """The calls of a graph of ATen calls with two symbolic sizes that do the same to every row, each by itself.

    Raises SizeMatters where no argument has both sizes, or there are others.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._merging = _Merging(_symbols(graph))

    def has(self, node: fx.Node) -> bool:
        """Whether a call on tensors with rows, or with such a result, is one of these."""
        return _alike(node, self._merging.value, self._merging.copy) is not None


class SliceCalls:
    """The calls of a graph of ATen calls that do the same to every slice along one of its symbolic sizes, and whose tensors and
    numbers have no other; to be asked in order, as views before a call say where slices are in what it reads."""

    def __init__(self, symbol: Any) -> None:
        self._symbol = symbol
        self._stretches: dict[fx.Node, int] = {}
        """Of the calls that are such."""

    def has(self, node: fx.Node) -> bool:
        """Whether a call on tensors with this size, or with such a result, is one of these."""
        sizes = {symbol for each in (node, *node.all_input_nodes) for symbol in _symbols_in(each.meta.get("val"))}
        copy = _alike(node, lambda value: value, self._copied) if sizes == {self._symbol} else None
        if copy is not None:
            self._stretches[node] = stretches_of(copy)
        return copy is not None

    def _copied(self, node: fx.Node, made: fx.Graph, copies: dict[fx.Node, fx.Node]) -> fx.Node:
        for source, copy in copies.items():
            copy.meta[STRETCHES] = self._stretches.get(source, 1)
        return made.node_copy(node, copies.__getitem__)


def _symbols_in(value: Any) -> frozenset[Any]:
    """The symbols in a value, in each where it is several: of a number, and of sizes and strides of a tensor."""
    if isinstance(value, (tuple, list)):
        return frozenset(symbol for each in value for symbol in _symbols_in(each))
    return symbols_of(value) | symbols_of(value.stride()) if isinstance(value, torch.Tensor) else symbols_of(value)


def _alike(
    node: fx.Node, value: Callable[[Any], Any], copy: Callable[[fx.Node, fx.Graph, dict[fx.Node, fx.Node]], fx.Node]
) -> fx.Node | None:
    """A call on tensors of symbolic sizes in a graph of its own, added by `copy` to operands of which `value` makes the values;
    None where it does not do the same to every slice."""
    if not isinstance(node.target, torch._ops.OpOverload) or not _has_rows(node):
        return None
    made, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    try:
        for source in node.all_input_nodes:
            copies[source] = made.placeholder(source.name)
            copies[source].meta["val"] = value(source.meta.get("val"))
        call = copy(node, made, copies)
        check_slices(made)
    except SizeMatters:
        return None
    return call


def moves(node: fx.Node) -> bool:
    """Whether a call computes nothing: it gives elements of its operands, or one number, at other places."""
    return name_of(node) in _MOVES


def pairs_of_results(graph: fx.Graph, merged: fx.Graph) -> tuple[int | None, ...]:
    """By tensor that a graph returns, the first of the two dimensions in it that are one in the merged graph; None where
    there are no two of them."""
    return tuple(
        axis_of(after) if before.dim() > after.dim() else None
        for before, after in zip(_results(graph), _results(merged), strict=True)
    )


def _results(graph: fx.Graph) -> list[torch.Tensor]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    nodes = [node for node in tree_leaves(output.args) if isinstance(node, fx.Node)]
    return [tensor for node in nodes for tensor in tensors_of(node)]


def _symbols(graph: fx.Graph) -> _Symbols:
    """The two sizes, in the order in which they stand in the first tensor that has both."""
    symbols = {symbol for node in graph.nodes for symbol in symbols_of(node.meta.get("val"))}
    if len(symbols) != 2:
        raise SizeMatters(f"the recorded calls have {len(symbols)} symbolic sizes, and two are wanted")
    for node in graph.nodes:
        for tensor in tensors_of(node) if node.op == "placeholder" else ():
            sizes: list[Any] = [expression_of(size) for size in tensor.shape if symbols_of(size)]
            if len(sizes) == 2 and {*sizes} == symbols:
                return _Symbols(*sizes)
    raise SizeMatters("no argument has both sizes")


class _Merging:
    """Tensors without data, with one symbol for the rows."""

    def __init__(self, symbols: _Symbols) -> None:
        self.symbols, self._rows = symbols, OneSymbol()

    def value(self, value: Any) -> Any:
        """What stands for a value: tensors with rows, and the number of rows for every number that depends on a size."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.value, value))
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._rows.size if symbols_of(value) else value
        return self._tensor(value) if isinstance(value, torch.Tensor) else value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        place = self.symbols.place(tensor)
        shape = list(tensor.shape)
        if place is not None:
            first, count = place
            shape[first : first + count] = [self._rows.size]
        return self._rows.like(tensor, shape)

    def copy(self, node: fx.Node, made: fx.Graph, copies: dict[fx.Node, fx.Node]) -> fx.Node:
        """A node in the merged graph; raises SizeMatters where it has none."""
        copy = made.node_copy(node, copies.__getitem__)
        copy.meta["val"] = self.value(node.meta.get("val"))
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and _has_rows(node):
            _check_followed(node)
            self.renumber(node, copy)
        return copy

    def renumber(self, node: fx.Node, copy: fx.Node) -> None:
        """Let a call name the dimensions that its operands have now."""
        operand = next((tensor for source in node.all_input_nodes for tensor in tensors_of(source)), None)
        place = None if operand is None else self.symbols.place(operand)
        if operand is None or place is None or place[1] == 1:
            return
        first, rank = place[0], operand.dim()

        def moved(dim: int) -> int:
            counted = dim % rank
            return counted - (counted > first)

        names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
        copy.args = tuple(
            _renamed(given, moved) if name in _DIMENSIONS else given for name, given in zip(names, copy.args, strict=False)
        )
        copy.kwargs = {name: _renamed(given, moved) if name in _DIMENSIONS else given for name, given in copy.kwargs.items()}


def _renamed(dims: Any, moved: Callable[[int], int]) -> Any:
    """Dimensions by their new numbers, each once."""
    return list(dict.fromkeys(map(moved, dims))) if isinstance(dims, (list, tuple)) else tree_map_only(int, moved, dims)


def _check_followed(node: fx.Node) -> None:
    """Raise SizeMatters for a call of which it is not known how it counts dimensions."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if name_of(node) not in _FOLLOWED and torch.Tag.pointwise not in node.target.tags:
        raise SizeMatters(f"{name_of(node)}: it is not known to do the same to every row")


def _has_rows(node: fx.Node) -> bool:
    """Whether a call gives tensors, and gives or reads some of symbolic sizes."""
    made = tensors_of(node)
    read = [tensor for source in node.all_input_nodes for tensor in tensors_of(source)]
    return bool(made) and any(symbols_of(tensor.shape) for tensor in (*made, *read))


def expression_of(size: Any) -> Any:
    """A size as a formula of symbols, or the number that it is."""
    return size.node.expr if isinstance(size, torch.SymInt) else size
