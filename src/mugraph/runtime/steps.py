"""A call of a kernel graph, planned once for an array library: what every call repeats is little more than the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.errors import InvalidInput
from mugraph.ir.graph import VIEWS, Graph, Node, Value
from mugraph.ir.ops import GRAPH_DEFINED, apply_call
from mugraph.lower import needed_nodes
from mugraph.lower.workspace import Workspace, plan_workspace
from mugraph.runtime.arrays import Arrays
from mugraph.runtime.machine import Launched

Slots = list[Any]
"""The arrays of a call: the inputs in order, then a place for every other value."""
Step = Callable[[Slots], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a call does: read the inputs, run the steps, return the outputs, which share no memory with anything else."""

    names: tuple[str, ...]
    readers: tuple[Callable[[Any], Any], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    others: int
    """Places for what is no input."""

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs; raises InvalidInput and ShapeMismatch for inputs that do not fit."""
        if len(arrays) != len(self.readers):
            raise InvalidInput(f"expected {len(self.names)} inputs ({', '.join(self.names)}), got {len(arrays)}")
        slots = [read(array) for read, array in zip(self.readers, arrays, strict=True)]
        slots += [None] * self.others
        for step in self.steps:
            step(slots)
        return [slots[number] for number in self.outputs]


def planned(graph: Graph, launches: Mapping[int, Launched], functions: Mapping[str, Callable[..., None]], library: Arrays) -> Run:
    """How to call a kernel graph with arrays of `library`; views that only kernels read are strides inside these."""
    inputs = [index for index, node in enumerate(graph.nodes) if node.op == "input"]
    others = [Value(i, n) for i, node in enumerate(graph.nodes) if node.op != "input" for n in range(len(node.outputs))]
    slots = {value: number for number, value in enumerate([*map(Value, inputs), *others])}
    dense = {*graph.outputs, *(value for launch in launches.values() for value in launch.inputs)}
    workspace, nodes = plan_workspace(graph), needed_nodes(graph)
    space = len(slots) + len(graph.outputs)
    steps: list[Step] = [_allocation(library, workspace, space)] if workspace.offsets else []
    for index in nodes:
        if graph.nodes[index].op == GRAPH_DEFINED:
            steps.append(_kernel(graph, launches[index], functions, library, slots, workspace, space))
        else:
            read = [value for value in graph.nodes[index].inputs if value in workspace.offsets]
            steps.extend(_window(graph, value, library, slots[value], workspace, space) for value in read)
            steps.append(_pre_defined(graph, index, library, slots, Value(index) in dense))
    outputs: list[int] = []
    taken = set(map(Value, inputs))
    for value in graph.outputs:
        owner = _owner(graph, value)
        outputs.append(len(slots) + len(outputs) if owner in taken else slots[value])
        if owner in taken:
            steps.append(_copy(library, slots[value], outputs[-1]))
        taken.add(owner)
    names = tuple(str(graph.nodes[index]["name"]) for index in inputs)
    readers = tuple(library.reader(name, graph.nodes[index].output) for name, index in zip(names, inputs, strict=True))
    return Run(names, readers, tuple(steps), tuple(outputs), len(others) + len(outputs) + 1)


def _owner(graph: Graph, value: Value) -> Value:
    """The value whose memory a value may lie in: what it is a view of."""
    node = graph.nodes[value.node]
    return _owner(graph, node.inputs[0]) if node.op in VIEWS else value


def _allocation(library: Arrays, workspace: Workspace, space: int) -> Step:
    """Allocate the workspace, at place `space`."""
    allocate = library.workspace(workspace.bytes)

    def step(arrays: Slots) -> None:
        arrays[space] = allocate()

    return step


def _kernel(
    graph: Graph,
    launch: Launched,
    functions: Mapping[str, Callable[..., None]],
    library: Arrays,
    slots: Mapping[Value, int],
    workspace: Workspace,
    space: int,
) -> Step:
    """Run a compiled kernel, its outputs allocated but for those in the workspace, whose addresses are all that it needs."""
    function, pointer, offsets = functions[launch.kernel.name], library.pointer, workspace.offsets
    outputs = [(slots[value], library.allocator(graph.tensor(value))) for value in launch.outputs if value not in offsets]
    values = (*launch.inputs, *launch.outputs)
    operands = [(space, offsets[value]) if value in offsets else (slots[value], 0) for value in values]

    def step(arrays: Slots) -> None:
        for number, allocate in outputs:
            arrays[number] = allocate()
        function(*[pointer(arrays[number]) + offset for number, offset in operands])

    return step


def _window(graph: Graph, value: Value, library: Arrays, target: int, workspace: Workspace, space: int) -> Step:
    """A tensor in the workspace as an array, which the array library reads."""
    offset, tensor = workspace.offsets[value], graph.tensor(value)

    def step(arrays: Slots) -> None:
        arrays[target] = library.window(arrays[space], offset, tensor)

    return step


def _copy(library: Arrays, source: int, target: int) -> Step:
    """An array of its own with the values of another."""

    def step(arrays: Slots) -> None:
        arrays[target] = library.copy(arrays[source])

    return step


def _pre_defined(graph: Graph, index: int, library: Arrays, slots: Mapping[Value, int], dense: bool) -> Step:
    """Run a node with the array library; only kernels and callers need views to be `dense`."""
    compute = _computation(graph, graph.nodes[index], library)
    if dense and graph.nodes[index].op in VIEWS:
        compute = _then(library.contiguous, compute)
    target, operands = slots[Value(index)], [slots[value] for value in graph.nodes[index].inputs]

    def step(arrays: Slots) -> None:
        arrays[target] = compute(*[arrays[number] for number in operands])

    return step


def _computation(graph: Graph, node: Node, library: Arrays) -> Callable[..., Any]:
    """Views and matmul by the library's own functions, everything else by its row of the operator table."""
    operands = [graph.tensor(value) for value in node.inputs]
    match node.op:
        case "reshape":
            return lambda x: library.reshape(x, node.output.shape)
        case "transpose":
            order = node.integers("permutation")
            return lambda x: library.transpose(x, order)
        case "matmul" if len({tensor.dtype for tensor in (*operands, node.output)}) == 1:
            return library.matmul
    call = apply_call(node.op, operands, dict(node.attributes))
    return lambda *xs: library.compute(call, xs, node.output)


def _then(last: Callable[[Any], Any], first: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: last(first(*xs))
