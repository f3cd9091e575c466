"""The calls that PyTorch recorded of a function with symbols for sizes, as a function of its arguments at any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils._pytree import tree_flatten

from mugraph.frontend import trace
from mugraph.frontend.calls.pytree import Traced
from mugraph.frontend.rewriting.graph_passes import concrete
from mugraph.frontend.symbolic_sizes.axes import SizeMatters

_KINDS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


class _AsRecorded(torch.nn.Module):
    """Recorded calls that are called as the function is. The tensors that they bring along are this module's, which is recorded
    once: those in the closure of a function have to be found first."""

    def __init__(self, calls: fx.GraphModule, unflatten: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.calls = calls
        self.unflatten = unflatten

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.unflatten(self.calls(*tree_flatten((args, kwargs))[0]))


def program_of_calls(
    calls: fx.GraphModule, unflatten: Callable[[list[Any]], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Traced:
    """Recorded calls as a program, at the sizes of these arguments; `unflatten` makes of results what the function returns."""
    at_size = concrete(calls, tree_flatten((tuple(args), dict(kwargs)))[0])
    return trace(_AsRecorded(at_size, unflatten), dict(kwargs) or tuple(args))


def calls_of_arguments(program: ExportedProgram) -> fx.GraphModule:
    """A recorded function as a graph of its arguments alone: the tensors that it brings along are the module's.

    Raises SizeMatters for one that changes a tensor, or returns something else than tensors.
    """
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise SizeMatters("it changes a tensor")
    if not all(isinstance(spec.arg, TensorArgument) for spec in program.graph_signature.output_specs):
        raise SizeMatters("it returns something else than tensors")
    if not program.graph_signature.output_specs:
        raise SizeMatters("it returns no tensor")
    tensors: dict[str, torch.Tensor] = {}
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    brought = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.kind in _KINDS}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in brought:
            name, target = f"tensor_{len(tensors)}", brought[node.name]
            tensors[name] = program.state_dict[target] if target in program.state_dict else program.constants[target]
            copies[node] = graph.get_attr(name)
            copies[node].meta["val"] = node.meta["val"]
        elif node.op == "get_attr":
            raise SizeMatters("it chooses between graphs, or repeats one")
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(tensors, graph)
