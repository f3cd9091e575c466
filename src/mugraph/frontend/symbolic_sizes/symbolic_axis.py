"""Whether recorded calls do the same to every slice along an axis of symbolic size, whatever the size.

A graph that PyTorch recorded with a symbol for one size is the function at all sizes that its guards allow. `check_slices` walks
it with a rule for each operator (`slice_rules`): where a call carries the axis, and that it does nothing along it. Operators
without a rule are refused, and so is everything else that the symbol decides: numbers, positions, sizes that are no multiple of
it. docs/theory.md has the theorem ("Any size from slices").
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from mugraph.frontend.operators.torch_casts import name_of, tensors_of
from mugraph.frontend.symbolic_sizes.axes import (
    STRETCHES,
    SizeMatters,
    axis_of,
    dim_of,
    is_multiple,
    shape_text,
    stretches_of,
    symbols_of,
)
from mugraph.frontend.symbolic_sizes.slice_rules import Call, in_order, regrouped, rule_of


def check_slices(graph: fx.Graph) -> None:
    """Raise SizeMatters, naming the call, unless a graph with one symbolic size treats all slices along that axis alike.

    Nodes have their tensors without data in `meta["val"]`. Sizes from 2 on are spoken of: PyTorch takes for granted that a
    symbol is neither 0 nor 1.
    """
    check_one_symbol(graph)
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            for tensor in tensors_of(node):
                axis_of(tensor)
        elif node.op == "call_function":
            check_call(node, is_multiple)
        elif node.op == "output":
            if any(symbols_of(source.meta.get("val")) and not tensors_of(source) for source in node.all_input_nodes):
                raise SizeMatters("a number that depends on the size is returned")
            if any(stretches_of(source) > 1 for source in node.all_input_nodes):
                raise SizeMatters("slices are no neighbours in what is returned")
        else:
            raise SizeMatters(f"{node.op} {node.target}: nothing is known of it")


def check_one_symbol(graph: fx.Graph) -> None:
    """Raise SizeMatters unless one size of a graph is symbolic, whatever multiples of it there are."""
    symbols = {symbol for node in graph.nodes for symbol in symbols_of(node.meta.get("val"))}
    if len(symbols) != 1:
        raise SizeMatters(f"the recorded calls have {len(symbols)} symbolic sizes, and one is wanted")


def with_sizes(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph in which calls that compute sizes of sizes have them in `meta["val"]`, too."""
    copies: dict[fx.Node, fx.Node] = {}
    copy = fx.Graph()
    for node in graph.nodes:
        made = copies[node] = copy.node_copy(node, copies.__getitem__)
        if node.op == "call_function" and node.meta.get("val") is None and not isinstance(node.target, torch._ops.OpOverload):
            arguments = fx.map_arg(made.args, lambda source: source.meta.get("val"))
            if not made.kwargs and any(isinstance(leaf, torch.SymInt) for leaf in tree_leaves(arguments)):
                made.meta["val"] = node.target(*arguments)
    return copy


def check_call(node: fx.Node, is_size: Callable[[Any], bool]) -> None:
    """Raise SizeMatters, naming the call, unless it treats all slices along the axis alike.

    `is_size` says which sizes with a symbol may stand in shapes. Of the operands' sizes it holds.
    """
    try:
        _check_call(node, is_size)
    except SizeMatters as error:
        raise SizeMatters(f"{name_of(node)}: {error}") from None


def _check_call(node: fx.Node, is_size: Callable[[Any], bool]) -> None:
    value = node.meta.get("val")
    if node.target is operator.getitem:
        node.meta[STRETCHES] = stretches_of(node.args[0])  # type: ignore[arg-type]
        return
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return  # its readers say whether they may read it
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in ("aten", "prims"):
        raise SizeMatters("it is no operator of ATen")
    call = Call.of(node)
    call.check_numbers(is_size)
    results = tensors_of(node)
    varies = node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags  # from call to call
    if not varies and not any(symbols_of(tensor) for tensor in (*call.operands, *results)):
        return
    if value is None and not varies and not node.users:  # a check of types
        return
    if node.target.namespace == "prims":  # whose names do not mean what ATen's do
        raise SizeMatters("it is no operator of ATen")
    rule = rule_of(node.target)
    if not results:
        raise SizeMatters("it gives no tensor")
    axis = rule(call)
    for tensor in results:
        if dim_of(tensor) != axis and not _is_empty(tensor):
            raise SizeMatters(f"the axis comes out in another dimension of {shape_text(tensor)} than it should")
        if axis is not None and not _is_empty(tensor) and not is_size(tensor.shape[axis]):
            raise SizeMatters(f"a size of {shape_text(tensor)} is none that is followed")
    node.meta[STRETCHES] = regrouped(call) if rule is in_order else call.stretches


def _is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements at any size, as what an operator leaves out has."""
    return any(type(size) is int and not size for size in tensor.shape)
