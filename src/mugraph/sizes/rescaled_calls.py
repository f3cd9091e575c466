"""Calls of PyTorch as they were recorded at one size, made at any other: sizes in their arguments are multiples of the one that
varies, and which they are is known from the same calls at another size (`mugraph.sizes.pieced_functions`)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from mugraph.frontend.calls.pytree import same_value
from mugraph.frontend.operators.torch_casts import arguments_of_call, tensor_of
from mugraph.sizes.pieced_functions import axes_between, paired


@dataclass(frozen=True, slots=True)
class RescaledCalls:
    """A graph at a `size`, and the same calls at another one."""

    size: int
    others: Mapping[fx.Node, fx.Node]
    """By call, the one at the other size."""
    axes: Mapping[fx.Node, int | None]
    """By tensor, its dimension of the size that varies."""

    @classmethod
    def of(cls, module: fx.GraphModule, size: int, other: fx.GraphModule, other_size: int) -> RescaledCalls:
        """Raises SizeMatters, naming the call, where the two are not the same calls."""
        axes = axes_between(module, size, other, other_size)
        return cls(size, dict(zip(module.graph.nodes, other.graph.nodes, strict=True)), axes)

    def at_any_size(self, module: fx.GraphModule) -> fx.GraphModule:
        """The calls of the graph that these are of, from a size and its arguments of that size."""
        graph = fx.Graph()
        count = graph.placeholder("count")
        copies = dict[fx.Node, fx.Node]()
        for node in module.graph.nodes:
            if node.op == "placeholder":
                copies[node] = graph.placeholder(f"argument_{len(copies)}")
            elif node.op == "output":
                graph.output(fx.map_arg(node.args[0], copies.__getitem__))
            else:
                copies[node] = self.copy(node, graph, count, copies, None)
        return fx.GraphModule(module, graph)

    def copy(
        self, node: fx.Node, graph: fx.Graph, count: fx.Node, copies: Mapping[fx.Node, fx.Node], way: Callable[..., Any] | None
    ) -> fx.Node:
        """Add a call to a graph in which `count` is the size, of `copies` of what it reads; where PyTorch is asked for it in
        another `way`, that is called with all of its arguments."""
        other = self.others[node]
        if way is not None:
            given = self._arguments(arguments_of_call(node), arguments_of_call(other), graph, count, copies)
            return graph.call_function(way, tuple(given))
        args, kwargs = self._arguments((node.args, node.kwargs), (other.args, other.kwargs), graph, count, copies)
        return graph.create_node(node.op, node.target, args, kwargs)

    def _arguments(self, ours: Any, theirs: Any, graph: fx.Graph, count: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> Any:
        (leaves, structure), (others, _) = tree_flatten(ours), tree_flatten(theirs)

        def leaf(one: Any, other: Any) -> Any:
            if isinstance(one, fx.Node):
                return copies[one]
            if same_value(one, other):
                return one
            return graph.call_function(operator.mul, (count, one // self.size))

        return tree_unflatten([leaf(*pair) for pair in zip(leaves, others, strict=True)], structure)

    def is_fixed(self, node: fx.Node) -> bool:
        """Whether a call has no arguments that depend on the size but tensors."""
        other = self.others[node]
        pairs = paired((node.args, node.kwargs), (other.args, other.kwargs))
        return pairs is not None and all(isinstance(one, fx.Node) or same_value(one, other) for one, other in pairs)

    def is_single(self, node: fx.Node) -> bool:
        """Whether slices are single positions of a tensor, or none has its own part."""
        dim, tensor = self.axes[node], tensor_of(node)
        return dim is None or (tensor is not None and tensor.shape[dim] == self.size)

    def is_contiguous(self, node: fx.Node) -> bool:
        """Whether a tensor is contiguous at both sizes, and so at all."""
        tensors = tensor_of(node), tensor_of(self.others[node])
        return all(tensor is not None and tensor.is_contiguous() for tensor in tensors)
