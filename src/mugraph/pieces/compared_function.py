"""A function whose parts are programs, or calls of PyTorch, as it is compared: its calls, what it takes and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from mugraph.errors import InvalidInput
from mugraph.frontend import record
from mugraph.frontend.calls.calling import arguments_of
from mugraph.frontend.calls.pytree import FunctionCalling, places_of_tensors, same_value
from mugraph.frontend.calls.structures import Structure, difference
from mugraph.frontend.operators.torch_casts import name_of, note_roundings, tensor_of
from mugraph.frontend.partitioning.partition import unknown_mask
from mugraph.frontend.recording.recorded_graph import RecordedGraph, recorded_graph
from mugraph.frontend.recording.returned import structure_from
from mugraph.frontend.rewriting.node_traits import Inspector, Traits

Variable = int
"""What stands for a tensor."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Type and shape of a tensor that a function takes or returns."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Kind:
        """That of a tensor."""
        return cls(tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

    __repr__ = __str__


@dataclass(eq=False)
class ComparedFunction:
    """One of the functions: its calls, and what is known of the tensors in it."""

    name: str
    recorded: RecordedGraph
    arguments: Mapping[tuple[Any, ...], fx.Node]
    """By place in the example call, the placeholder."""
    captured: Mapping[fx.Node, torch.Tensor]
    returned: Structure
    """With `Kind`s for tensors."""
    inputs: tuple[torch.Tensor, ...]
    """The example call's tensors, a tensor for each placeholder."""
    variables: dict[fx.Node, Variable] = field(default_factory=dict)
    """What stands for a tensor: an input, or the result of a call that is no program."""
    parts: dict[fx.Node, list[Variable]] = field(default_factory=dict)
    """What stands for each of a call's several results."""

    @classmethod
    def of(cls, function: Any, example_inputs: Any) -> ComparedFunction:
        """The function as PyTorch records it for these examples."""
        recorded = recorded_graph(record(function, example_inputs))
        note_roundings(recorded.module.graph)
        calling = recorded.calling
        assert isinstance(calling, FunctionCalling), "what was recorded is a function"
        args, kwargs = arguments_of(example_inputs)
        places, values = places_of_tensors(args, kwargs), calling.values(args, kwargs)
        given = [*calling.arguments.given(args, kwargs), *(None for _ in calling.sources)]
        placeholders = recorded.placeholders
        arguments = {places[which]: node for node, which in zip(placeholders, given, strict=True) if which is not None}
        captured = {node: value for node, value, which in zip(placeholders, values, given, strict=True) if which is None}
        if any(tensor_of(node) is None for node in recorded.outputs):
            raise InvalidInput(f"{calling.name} returns a number that is read from a tensor; return the tensor")
        kinds = [Kind.of(node.meta["val"]) for node in recorded.outputs]
        leaves = (place.constant if place.number is None else kinds[place.number] for place in calling.results.places)
        returned = structure_from(calling.results.structure, leaves)
        return cls(calling.name, recorded, arguments, captured, returned, tuple(values))

    @property
    def nodes(self) -> list[fx.Node]:
        """The calls, in order."""
        return [node for node in self.recorded.module.graph.nodes if node.op == "call_function"]

    @property
    def outputs(self) -> list[fx.Node]:
        """What is returned, then what tensors hold afterwards that the function changes."""
        return self.recorded.outputs

    def unknown_calls(self) -> list[fx.Node]:
        """The calls that are no programs, but for those that only take a part of one's results."""
        inspector = Inspector(self.recorded.device)
        verdicts = {node: inspector.inspect(node) for node in self.nodes}
        return [
            node
            for node, verdict in verdicts.items()
            if name_of(node) != "getitem" and (not isinstance(verdict, Traits) or unknown_mask(node) is not None)
        ]

    def different_arguments(self, other: ComparedFunction) -> str | None:
        """Where the two take other tensors, in words."""
        if self.arguments.keys() != other.arguments.keys():
            return f"one takes {len(self.arguments)} tensors, the other {len(other.arguments)}"
        for place, node in self.arguments.items():
            kinds = [Kind.of(each.meta["val"]) for each in (node, other.arguments[place])]
            if kinds[0] != kinds[1]:
                return f"one takes {node.name} as {kinds[0]}, the other as {kinds[1]}"
        return None

    def different_results(self, other: ComparedFunction) -> str | None:
        """Where the two return other structures or change other arguments, in words."""
        return difference(self.returned, other.returned, _same_leaf) or (
            None if self.written == other.written else "they change other arguments"
        )

    @property
    def written(self) -> list[tuple[Any, ...] | str]:
        """Places of the arguments that are changed, and names of other tensors."""
        placeholders = self.recorded.placeholders
        places = {node: place for place, node in self.arguments.items()}
        names = self.recorded.calling.inputs
        return [places.get(placeholders[number], names[number]) for number in self.recorded.writes]


def _same_leaf(one: object, other: object) -> bool:
    return one == other if isinstance(one, Kind) or isinstance(other, Kind) else same_value(one, other)
