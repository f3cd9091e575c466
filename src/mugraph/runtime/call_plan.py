"""A call of a kernel graph, planned once for an array library: what every call repeats is little more than the kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from mugraph.errors import InvalidInput
from mugraph.host.array_interface import Arrays, KernelCall
from mugraph.host.tensor_state import is_traceable, outside_inference_mode
from mugraph.ir.graph import VIEWS, Graph, Node, Value, owner_of
from mugraph.ir.ops import GRAPH_DEFINED, apply_call
from mugraph.lower import needed_nodes
from mugraph.lower.workspace import Workspace, plan_workspace
from mugraph.runtime.packed_operands import Kept, packer
from mugraph.support.picking import picked
from mugraph.targets.machine import Launched


@dataclass(frozen=True, slots=True)
class Written:
    """Where in the slots of a call the array and the address of an output stand, and which arrays kernels can write it to."""

    number: int
    address: int
    fits: Callable[[Any], bool]


Slots = list[Any]
"""The arrays of a call, the inputs first, with a place for every other value and what else there is; then all their addresses in
the same order, of those that kernels read or write."""
Step = Callable[[Slots], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a call does: read the inputs, run the steps, return the outputs, which share no memory with anything else."""

    names: tuple[str, ...]
    readers: tuple[Callable[[Any], Any], ...]
    pointer: Callable[[Any], int]
    steps: tuple[Step, ...]
    outputs: Callable[[Slots], Sequence[Any]]
    blank: tuple[None, ...]
    """Places for what is no input."""
    written: tuple[Written | None, ...] = ()
    """By output, where its array is put that kernels are to write to; None for those that no kernel writes."""

    def read(self, arrays: Sequence[Any]) -> list[Any]:
        """The inputs as kernels read them; raises InvalidInput and ShapeMismatch for arrays that do not fit."""
        if len(arrays) != len(self.readers):
            raise InvalidInput(f"expected {len(self.names)} inputs ({', '.join(self.names)}), got {len(arrays)}")
        return [read(array) for read, array in zip(self.readers, arrays, strict=True)]

    def __call__(self, inputs: Sequence[Any], addresses: Sequence[int], into: Sequence[Any] = ()) -> list[Any]:
        """The outputs for inputs that were read, and their addresses, written `into` the arrays that are given and fit."""
        slots = [*inputs, *self.blank, *addresses, *self.blank]
        for place, array in zip(self.written, into, strict=False):
            if place is not None and array is not None and place.fits(array):
                slots[place.number], slots[place.address] = array, self.pointer(array)
        for step in self.steps:
            step(slots)
        return [*self.outputs(slots)]


def planned(graph: Graph, launches: Mapping[int, Launched], functions: Mapping[str, Callable[..., None]], library: Arrays) -> Run:
    """How to call a kernel graph with arrays of `library`; views that only kernels read are strides inside these."""
    inputs = [index for index, node in enumerate(graph.nodes) if node.is_input]
    others = [Value(i, n) for i, node in enumerate(graph.nodes) if not node.is_input for n in range(len(node.outputs))]
    numbers = {value: number for number, value in enumerate([*map(Value, inputs), *others])}
    slots = Places(numbers, len(numbers) + len(graph.outputs))
    dense = {*graph.outputs, *(value for launch in launches.values() for value in launch.inputs)}
    workspace, nodes = plan_workspace(graph), needed_nodes(graph)
    steps: list[Step] = [_allocation(library, workspace, slots)] if workspace.offsets else []
    allocated = set(workspace.offsets)
    for generated, group in groupby(nodes, lambda index: graph.nodes[index].op == GRAPH_DEFINED):
        if generated:
            launched = [launches[index] for index in group]
            steps.append(_kernels(graph, launched, functions, library, slots, allocated, workspace))
            continue
        for index in group:
            read = [value for value in graph.nodes[index].inputs if value in workspace.offsets]
            steps.extend(_window(graph, value, library, slots, workspace) for value in read)
            steps.append(_pre_defined(graph, index, library, slots, Value(index) in dense))
    outputs: list[int] = []
    taken = set(map(Value, inputs))
    for value in graph.outputs:
        owner = owner_of(graph, value)
        outputs.append(len(numbers) + len(outputs) if owner in taken else numbers[value])
        if owner in taken:
            steps.append(_copy(library, numbers[value], outputs[-1]))
        taken.add(owner)
    names = tuple(str(graph.nodes[index]["name"]) for index in inputs)
    readers = tuple(
        _reader(library.reader(name, graph.nodes[index].output), index in graph.constants)
        for name, index in zip(names, inputs, strict=True)
    )
    blank = (None,) * (slots.count - len(inputs))
    written = _written(graph, outputs, launches, library, slots)
    return Run(names, readers, library.pointer, tuple(steps), picked(outputs), blank, written)


@dataclass(frozen=True, slots=True)
class Places:
    """Where in the slots of a call what stands: the array of a value by its number, the workspace behind them and the copies of
    outputs."""

    numbers: Mapping[Value, int]
    workspace: int

    @property
    def count(self) -> int:
        """Of the arrays; as many addresses follow."""
        return self.workspace + 1

    def address(self, value: Value) -> int:
        """Where the address of a value's array stands."""
        return self.count + self.numbers[value]


def _written(
    graph: Graph, outputs: Sequence[int], launches: Mapping[int, Launched], library: Arrays, slots: Places
) -> tuple[Written | None, ...]:
    """The outputs that kernels write as they are returned."""
    made = {value for launch in launches.values() for value in launch.outputs}
    return tuple(
        Written(number, slots.address(value), library.fitting(graph.tensor(value)))
        if value in made and number == slots.numbers[value]
        else None
        for value, number in zip(graph.outputs, outputs, strict=True)
    )


def _reader(read: Callable[[Any], Any], constant: bool) -> Callable[[Any], Any]:
    """What makes an input contiguous: once, of a weight that is not."""
    if not constant:
        return read
    kept = Kept(outside_inference_mode(read), "contiguous")
    return lambda array: read(array) if not is_traceable(array) or array.is_contiguous() else kept.of(array)


def _allocation(library: Arrays, workspace: Workspace, slots: Places) -> Step:
    """Allocate the workspace; what lies in it has its addresses then."""
    allocate, pointer, space = library.workspace(workspace.bytes), library.pointer, slots.workspace
    inside = [(slots.address(value), offset) for value, offset in workspace.offsets.items()]

    def step(arrays: Slots) -> None:
        arrays[space] = made = allocate()
        start = pointer(made)
        for number, offset in inside:
            arrays[number] = start + offset

    return step


def _kernels(
    graph: Graph,
    launches: Sequence[Launched],
    functions: Mapping[str, Callable[..., None]],
    library: Arrays,
    slots: Places,
    allocated: set[Value],
    workspace: Workspace,
) -> Step:
    """Run compiled kernels. Outputs that are not yet are `allocated`, and then are, unless a call gives their arrays; kernels
    need addresses. Arrays that a call gives may share memory with inputs: there each kernel runs behind those before it."""
    pointer = library.pointer
    written = dict.fromkeys(value for launch in launches for value in launch.outputs)
    made = [value for value in written if value not in allocated]
    parts_follow = any(value in allocated and value not in workspace.offsets for value in written)
    allocated.update(made)
    outputs = [(slots.numbers[value], slots.address(value), library.allocator(graph.tensor(value))) for value in made]
    packings = {
        (number, value): each for number, launch in enumerate(launches) for value, each in launch.packings.items()
    }  # launches of one kernel may pack a weight differently: one as it is, one transposed
    operands = [_operands(number, launch, packings, slots) for number, launch in enumerate(launches)]
    places = [*dict.fromkeys(place for taken in operands for place in taken if isinstance(place, int)), *packings]
    calls = [
        KernelCall(functions[launch.kernel.name], [*map(places.index, taken)], after)
        for launch, taken, after in zip(launches, operands, conflicts(graph, launches, workspace), strict=True)
    ]
    run = in_turn = library.launches(calls)
    if any(call.after < number for number, call in enumerate(calls)):
        in_turn = library.launches([call._replace(after=number) for number, call in enumerate(calls)])
        run = in_turn if parts_follow else run
    addresses = picked([place for place in places if isinstance(place, int)])
    packed = [(slots.numbers[value], Kept(packer(packing), packing)) for (_, value), packing in packings.items()]

    def step(arrays: Slots) -> None:
        launched = run
        for number, address, allocate in outputs:
            if arrays[number] is None:
                arrays[number] = array = allocate()
                arrays[address] = pointer(array)
            else:
                launched = in_turn
        if packed:
            weights = [kept.of(arrays[number]) for number, kept in packed]
            launched(*addresses(arrays), *[weight.address for weight in weights])
        else:
            launched(*addresses(arrays))

    return step


def conflicts(graph: Graph, launches: Sequence[Launched], workspace: Workspace) -> list[int]:
    """For each of the launches that follow each other in a call, how many of the first must be over before it begins: up to the
    last one that writes what it reads or writes, or reads what it writes. Tensors in the workspace may have bytes in common."""

    def share(one: Value, other: Value) -> bool:
        if one == other or not {one, other} <= workspace.offsets.keys():
            return one == other
        first, second = (range(start := workspace.offsets[each], start + graph.tensor(each).bytes) for each in (one, other))
        return max(first.start, second.start) < min(first.stop, second.stop)

    def touch(launch: Launched, written: Sequence[Value]) -> bool:
        touched = {*launch.outputs, *(memory for value in launch.inputs for memory in workspace.memories[value])}
        return any(share(one, other) for one in touched for other in written)

    def conflict(before: Launched, launch: Launched) -> bool:
        return touch(launch, before.outputs) or touch(before, launch.outputs)

    return [
        max((number + 1 for number, before in enumerate(launches[:here]) if conflict(before, launch)), default=0)
        for here, launch in enumerate(launches)
    ]


_Packed = tuple[int, Value]
"""The number of a launch and what it reads packed."""


def _operands(number: int, launch: Launched, packings: Collection[_Packed], slots: Places) -> list[int | _Packed]:
    """For each operand of a launch where its address stands, or that it is packed."""
    inputs = [(number, value) if (number, value) in packings else slots.address(value) for value in launch.inputs]
    return [*inputs, *map(slots.address, launch.outputs)]


def _window(graph: Graph, value: Value, library: Arrays, slots: Places, workspace: Workspace) -> Step:
    """A tensor in the workspace as an array, which the array library reads."""
    offset, tensor, space, target = workspace.offsets[value], graph.tensor(value), slots.workspace, slots.numbers[value]

    def step(arrays: Slots) -> None:
        arrays[target] = library.window(arrays[space], offset, tensor)

    return step


def _copy(library: Arrays, source: int, target: int) -> Step:
    """An array of its own with the values of another."""

    def step(arrays: Slots) -> None:
        arrays[target] = library.copy(arrays[source])

    return step


def _pre_defined(graph: Graph, index: int, library: Arrays, slots: Places, dense: bool) -> Step:
    """Run a node with the array library; only kernels and callers need views to be `dense`, and addresses."""
    if (product := _packed_product(graph, index, library, slots)) is not None:
        return product
    compute = _computation(graph, graph.nodes[index], library)
    if dense and graph.nodes[index].op in VIEWS:
        compute = _then(library.contiguous, compute)
    target, operands = slots.numbers[Value(index)], [slots.numbers[value] for value in graph.nodes[index].inputs]
    address, pointer = slots.address(Value(index)), library.pointer

    def step(arrays: Slots) -> None:
        arrays[target] = made = compute(*[arrays[number] for number in operands])
        if dense:
            arrays[address] = pointer(made)

    return step


def packed_by_library(graph: Graph, library: Arrays) -> dict[tuple[int, Hashable], int]:
    """Bytes of weights that products of a kernel graph have packed by an array library, by a weight's node and the views that are
    packed of it."""
    factors = {factor for index in needed_nodes(graph) if (factor := _packed_factor(graph, index)) is not None}
    return {
        (owner_of(graph, factor).node, _views(graph, factor)): graph.tensor(factor).bytes
        for factor in factors
        if library.packs(graph.tensor(factor))
    }


def _packed_factor(graph: Graph, index: int) -> Value | None:
    """The right factor of a product that is a matrix of weights, or a view of one; None for other nodes."""
    node = graph.nodes[index]
    # by name: the product that a library packs weights of
    if node.op != "matmul" or len({tensor.dtype for tensor in (*map(graph.tensor, node.inputs), node.output)}) > 1:
        return None
    factor = node.inputs[1]
    return factor if owner_of(graph, factor).node in graph.constants and len(graph.tensor(factor).shape) == 2 else None


def _packed_product(graph: Graph, index: int, library: Arrays, slots: Places) -> Step | None:
    """Run a product with weights that the library can pack; None for other nodes."""
    factor = _packed_factor(graph, index)
    if factor is None or not library.packs(graph.tensor(factor)):
        return None
    kept = Kept(_then(library.pack, _viewed(graph, factor, library)), _views(graph, factor))
    left, right = slots.numbers[graph.nodes[index].inputs[0]], slots.numbers[owner_of(graph, factor)]
    target, address, pointer = slots.numbers[Value(index)], slots.address(Value(index)), library.pointer

    def step(arrays: Slots) -> None:
        arrays[target] = made = library.packed_product(arrays[left], kept.of(arrays[right]))
        arrays[address] = pointer(made)

    return step


def _views(graph: Graph, value: Value) -> tuple[Node, ...]:
    """The views through which a value looks at the memory of another, the last first."""
    node = graph.nodes[value.node]
    return () if node.op not in VIEWS else (replace(node, inputs=()), *_views(graph, node.inputs[0]))


def _viewed(graph: Graph, value: Value, library: Arrays) -> Callable[[Any], Any]:
    """What makes a view of the array that owns its memory."""
    node = graph.nodes[value.node]
    if node.op not in VIEWS:
        return lambda array: array
    return _then(_computation(graph, node, library), _viewed(graph, node.inputs[0], library))


def _computation(graph: Graph, node: Node, library: Arrays) -> Callable[..., Any]:
    """Views and matmul by the library's own functions, everything else by its row of the operator table."""
    operands = [graph.tensor(value) for value in node.inputs]
    # by name: array libraries have functions of their own for these
    match node.op:
        case "reshape":
            return lambda x: library.reshape(x, node.output.shape)
        case "transpose":
            order = node.integers("permutation")
            return lambda x: library.transpose(x, order)
        case "slice" if node.integer("step") > 0:
            dim, start, size, step = (node.integer(name) for name in ("dim", "start", "size", "step"))
            there = (*(slice(None),) * dim, slice(start, start + (size - 1) * step + 1, step))
            return lambda x: x[there]
        case "matmul" if len({tensor.dtype for tensor in (*operands, node.output)}) == 1:
            return library.matmul
        case "index_select":
            dim, negative = node.integer("dim"), str(node["negative"])
            return lambda table, index: library.look_up(table, index, dim, negative)
    call = apply_call(node.op, operands, dict(node.attributes))
    return lambda *xs: library.compute(call, xs, node.output)


def _then(last: Callable[[Any], Any], first: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: last(first(*xs))
