"""A torch graph with symbolic sizes, and the graph it is at sizes that are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

Number = int | float | bool


def numbers_of(module: fx.GraphModule) -> tuple[int, ...] | None:
    """Which arguments of a graph are numbers that decide all its sizes; None where its tensors have sizes of other origin.

    () for a graph whose sizes are all fixed. None also where a number is no integer: equal ones (0.0 and -0.0) may differ.
    """
    placeholders = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    if any(isinstance(value, (torch.SymFloat, torch.SymBool)) for value in placeholders):
        return None
    numbers = tuple(index for index, value in enumerate(placeholders) if isinstance(value, torch.SymInt))
    given = {str(placeholders[index].node.expr) for index in numbers}
    tensors = [value for value in placeholders if isinstance(value, torch.Tensor)]
    needed = {symbol for tensor in tensors for symbol in _symbols(tensor)}
    return numbers if needed <= given else None


def concrete(module: fx.GraphModule, arguments: Sequence[Any]) -> fx.GraphModule:
    """The graph of `module` for the sizes, strides and numbers of these arguments, which tensors with other contents may follow.

    What the graph computes of sizes becomes constants. The arguments are those of `module`. Raises what torch raises for sizes
    that the graph cannot have, or that depend on the contents of tensors.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    given = iter(arguments)
    with torch.no_grad(), FakeTensorMode() as mode:
        for node in module.graph.nodes:
            if node.op == "output":
                graph.output(fx.map_arg(node.args[0], copies.__getitem__))
                continue
            if node.op == "placeholder":
                value: Any = next(given)
            elif node.op == "get_attr":
                value = getattr(module, node.target)
            else:
                value = _computed(node, copies)
            if isinstance(value, torch.Tensor) and node.op != "call_function":
                value = mode.from_tensor(value, static_shapes=True)
            known = isinstance(value, Number)
            if node.op == "call_function" and known:
                copies[node] = value
                continue
            copy = graph.node_copy(node, copies.__getitem__)
            copy.meta["val"] = value
            copies[node] = value if known else copy
    return fx.GraphModule(module, graph)


def _computed(node: fx.Node, copies: dict[fx.Node, Any]) -> Any:
    """What a call gives for tensors without data."""

    def value(source: fx.Node) -> Any:
        copy = copies[source]
        return copy.meta["val"] if isinstance(copy, fx.Node) else copy

    arguments: Any = fx.map_arg(node.args, value)
    options: Any = fx.map_arg(node.kwargs, value)
    assert callable(node.target), "calls of modules and methods are no ATen calls"
    return node.target(*arguments, **options)


def _symbols(tensor: torch.Tensor) -> Iterator[str]:
    """The symbols in a tensor's sizes, strides and offset."""
    for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset()):
        if isinstance(size, torch.SymInt):
            yield from map(str, size.node.expr.free_symbols)
