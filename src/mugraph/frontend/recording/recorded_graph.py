"""A recorded call as a torch graph that runs, whatever operators and types are in it, and though it changes what it is given.

The graph is functional: what a call changes (an argument, a buffer of a module, a cache that is appended to) is one more output,
which is written back when all is computed. It reads its inputs as they lay in memory when it was recorded, because views of
tensors that lie otherwise may not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import OutputKind

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.calling import SignatureRecord, filled
from mugraph.frontend.calls.objects import flat
from mugraph.frontend.calls.pytree import FunctionCalling
from mugraph.frontend.calls.returned_values import Place, Results, check_value
from mugraph.frontend.calls.saved_constants import ConstantsBeside, SavedConstant
from mugraph.frontend.operators.conversion import CHECKS
from mugraph.frontend.operators.torch_casts import name_of
from mugraph.frontend.partitioning.library import mark_constant
from mugraph.frontend.recording.calls import Calls
from mugraph.frontend.recording.export import is_computed
from mugraph.frontend.recording.torch_trace import (
    RecordedCall,
    argument_names,
    captured_sources,
    constant_sources,
    returned_nodes,
    values_of_placeholders,
)
from mugraph.frontend.rewriting.constants import with_constants
from mugraph.frontend.rewriting.graph_passes import copy_returned, owner_of


@dataclass(frozen=True, slots=True)
class TensorsInOrder:
    """How a graph that was read from a file is called: one tensor per input, in order, but for the last ones, which are constants
    that were saved with it; the outputs as `structure` says."""

    name: str
    tensors: Mapping[str, torch.Tensor]
    """By name of the input, a tensor without data."""
    structure: Any
    """As `mugraph.frontend.calls.calling.structure_of` describes it."""
    constants: tuple[SavedConstant, ...] = ()
    signature_record: SignatureRecord | None = None
    _beside: ConstantsBeside = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_beside", ConstantsBeside(self.constants))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(self.tensors)

    @property
    def captured(self) -> tuple[torch.Tensor, ...]:
        """The constants."""
        return self._beside(())

    def captured_beside(self, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The constants where the tensors of a call lie."""
        return self._beside(tensors)

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """None: that the arguments fit is always checked."""
        return None

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments; raises InvalidInput or ShapeMismatch naming the one that does not fit."""
        given = list(self.tensors.items())[: len(self.tensors) - len(self.constants)]
        if kwargs or len(args) != len(given):
            raise InvalidInput(f"call with {len(given)} tensors in this order: {', '.join(name for name, _ in given)}")
        for (name, wanted), value in zip(given, args, strict=True):
            if not isinstance(value, torch.Tensor):
                raise InvalidInput(f"input {name} must be a torch tensor, not {type(value).__name__}")
            if value.shape != wanted.shape or value.dtype is not wanted.dtype:
                has, asked = f"{value.dtype} {list(value.shape)}", f"{wanted.dtype} {list(wanted.shape)}"
                raise ShapeMismatch(f"input {name} is {has}, optimized for {asked}")
        return [*(value.detach() for value in args), *self._beside(args)]

    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
        """The outputs in the recorded structure."""
        return filled(self.structure, outputs)


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """A graph of ATen calls from the inputs of `calling` to its outputs, and then to the values that inputs have afterwards."""

    module: fx.GraphModule
    calling: FunctionCalling | TensorsInOrder
    writes: Mapping[int, int]
    """Input -> the output of `module` that is its value after the call."""
    layouts: tuple[tuple[int, ...], ...]
    """Strides of each input."""

    @property
    def placeholders(self) -> list[fx.Node]:
        """The inputs, in order."""
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> list[fx.Node]:
        """What the function returns, and then the values that inputs have afterwards."""
        return returned_nodes(self.module.graph)

    @property
    def written(self) -> dict[fx.Node, fx.Node]:
        """By input that a call changes, what gives its value afterwards."""
        inputs, outputs = self.placeholders, self.outputs
        return {inputs[number]: outputs[output] for number, output in self.writes.items()}

    @property
    def returned(self) -> int:
        """How many outputs of `module` are what the function returns."""
        return len(self.outputs) - len(self.writes)

    @property
    def device(self) -> str:
        """The kind of device that the tensors lie on: `cpu` or `cuda`."""
        return str(next(iter(values_of_placeholders(self.module.graph).values())).device.type)


def recorded_graph(call: RecordedCall, fixed: Collection[str] = ()) -> RecordedGraph:
    """The graph of a recorded call. Arguments whose names are `fixed` are the same tensors in every call.

    Raises InvalidInput for names of no argument, and for what the function returns where that may hide tensors.
    """
    program = call.recording.in_calls()
    arguments = argument_names(call.recording, program)
    if unknown := next((name for name in fixed if name not in arguments.values()), ""):
        raise InvalidInput(f"constants: {call.name} has no argument called {unknown!r}; it has {', '.join(arguments.values())}")
    constants = with_constants(program.graph, every=True)
    copy_returned(program.graph, constants)  # every call of the function makes them anew
    returned, changed = _outputs(program)
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users} | changed.keys()
    brought = captured_sources(call, program, read, arguments.values())
    captured = {name: source for name, (source, _) in brought.read.items()}
    taken = {*arguments.values(), *(source.name for source in captured.values())}
    captured |= constant_sources(constants, taken)
    order = [*arguments, *captured]
    writes = {order.index(name): len(returned) + number for number, name in enumerate(changed)}
    module = _ordered(program, order, [*returned, *changed.values()])
    constant = captured.keys() | {name for name, argument in arguments.items() if argument in fixed}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in constant - changed.keys():
            mark_constant(node)
    results = _results(call.name, call.recording.returned, returned, changed, order)
    names = tuple(arguments.values()) + tuple(source.name for source in captured.values())
    values = values_of_placeholders(module.graph)
    layouts = tuple(tuple(values[name].stride()) for name in order)
    reads_memory = any(name_of(node) == "as_strided" for node in module.graph.nodes)
    strides = _strides(call, returned, order, layouts, reads_memory)
    calling = FunctionCalling(call.name, call.arguments, tuple(captured.values()), results, strides, names, asked=brought.asked)
    return RecordedGraph(module, calling, writes, layouts)


def _outputs(program: Calls) -> tuple[list[fx.Node], dict[str, fx.Node]]:
    """What a call returns, and by placeholder the new value of what it changes."""
    returned: list[fx.Node] = []
    changed: dict[str, fx.Node] = {}
    placeholders = {str(spec.target): spec.arg.name for spec in program.graph_signature.input_specs if spec.target is not None}
    for node, spec in zip(returned_nodes(program.graph), program.graph_signature.output_specs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            returned.append(node)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            changed[str(spec.target)] = node
        else:
            changed[placeholders[str(spec.target)]] = node
    return returned, changed


def _ordered(program: Calls, order: Sequence[str], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """The graph with its placeholders in an order, without calls that only check or that nobody reads."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for name in order:
        copies[placeholders[name]] = graph.node_copy(placeholders[name])
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "output") and name_of(node) not in CHECKS:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    graph.eliminate_dead_code()
    return fx.GraphModule(program.graph_module, graph)


def _results(name: str, returned: Any, nodes: Sequence[fx.Node], changed: Mapping[str, fx.Node], order: Sequence[str]) -> Results:
    """Outputs where the function has its tensors: an argument that was changed is returned itself, as one that was not is."""
    leaves, structure = flat(returned)
    remaining = iter(enumerate(nodes))
    inputs = {node: order.index(placeholder) for placeholder, node in changed.items()}
    places: list[Place] = []
    for leaf in leaves:
        if is_computed(leaf):
            number, node = next(remaining)
            places.append(Place(number=number, input=inputs.get(node)))
        else:
            check_value(f"{name} returns", leaf)
            places.append(Place(constant=leaf))
    return Results(structure, tuple(places))


def _strides(
    call: RecordedCall, returned: Sequence[fx.Node], order: Sequence[str], layouts: Sequence[tuple[int, ...]], reads_memory: bool
) -> tuple[tuple[int, ...] | None, ...]:
    """By input, the strides it must have, and not only a copy of it: what is returned shares its memory, or depends on them, as
    where a call reads memory and not elements."""
    asked = call.recording.recorder.watch.asks_for_strides or reads_memory
    shared = {owner_of(node).name for node in returned}
    return tuple(layout if asked or name in shared else None for name, layout in zip(order, layouts, strict=True))
