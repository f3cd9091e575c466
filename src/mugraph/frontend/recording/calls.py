"""The calls of a function as PyTorch has recorded them and taken them apart, to be changed by whoever asks for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature


@dataclass(frozen=True, slots=True)
class Calls:
    """A graph of ATen calls, what its inputs and outputs are, and the tensors that it reads beside its inputs."""

    graph: fx.Graph
    graph_module: fx.GraphModule
    """What holds the submodules and tensors that calls of the graph name; its own graph may be another."""
    graph_signature: ExportGraphSignature
    constants: Mapping[str, Any]
    """By name, what is no parameter or buffer."""

    @classmethod
    def of(cls, program: ExportedProgram) -> Calls:
        """The calls of a program, whose own graph stays as it is whatever becomes of the copy: nodes have the same names."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in program.graph.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return cls(graph, program.graph_module, program.graph_signature, program.constants)


def calls_any(program: ExportedProgram, operators: Collection[Any]) -> bool:
    """Whether a program, or a graph that it calls, has a call of one of some operators."""
    graphs = (module.graph for module in program.graph_module.modules() if isinstance(module, fx.GraphModule))
    return any(node.target in operators for graph in graphs for node in graph.nodes if node.op == "call_function")
