"""Graphs that run in pieces, which compute the first slices alone, as many as a call has.

The pieces are the programs that a torch graph was cut into (`mugraph.pieces.plan`). Of each of them kernels are made for its
first slices (`mugraph.sizes.sliced_kernels`), where that can be; linear layers of the library take any number of rows, and
PyTorch's calls are made with their sizes for as many slices (`mugraph.sizes.rescaled_calls`), those of pieces without such
kernels, too.
"""

from __future__ import annotations

import operator
from collections import ChainMap
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from mugraph.errors import MugraphError, ShapeMismatch
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import Left, Partition, Piece
from mugraph.frontend.partitioning.splice import Kernels, Step, in_order, laid_out
from mugraph.frontend.rewriting.node_traits import mutates
from mugraph.frontend.rewriting.watched_calls import values_of
from mugraph.pieces.cutting import difference
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.library_ways import layers_of
from mugraph.pieces.packed_memory import within_memory
from mugraph.pieces.packed_weights import packed
from mugraph.pieces.plan import Plan
from mugraph.sizes.pieced_functions import LEAST
from mugraph.sizes.rescaled_calls import RescaledCalls
from mugraph.sizes.sliced_kernels import SlicedKernels, first_slices, sliced_kernels
from mugraph.sizes.sliced_programs import Places, SlicedProgram
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.targets.machine import Machine, machine_for

_WITHOUT = "its kernels do not compute first slices alone"

Runs = Sequence[Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class SlicedPieces:
    """Call it with one argument per placeholder of a graph, of which those that have a place in `inputs` have the same number of
    slices along that dimension, from `least` to `capacity`; it returns the list of the graph's results, which have as many.

    Calls raise ShapeMismatch and InvalidInput for tensors that do not fit. Safe to call from several threads.
    """

    runs: Runs
    """What is called in the graph besides PyTorch: kernels of first slices, those of what reads no slices, and the library's."""
    inputs: Places
    least: int
    capacity: int
    machine: Machine
    graph: Callable[..., list[Any]]
    """From the number of slices, `runs` for so many and the arguments to the results."""

    def __call__(self, *arguments: Any) -> list[Any]:
        number, dim = next((number, dim) for number, dim in enumerate(self.inputs) if dim is not None)
        return self._run(self._checked(arguments[number].shape[dim]), self.runs, arguments)

    def at(self, count: int) -> Callable[..., list[Any]]:
        """These kernels for one number of slices, as `SlicedKernels.at`."""
        runs = [each.at(count) if isinstance(each, SlicedKernels) else each for each in self.runs]
        return partial(self._at, self._checked(count), runs)

    def first(self, count: int, example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The first slices of arguments that have more."""
        return first_slices(self.inputs, count, example)

    def _at(self, count: int, runs: Runs, *arguments: Any) -> list[Any]:
        return self._run(count, runs, arguments)

    def _run(self, count: int, runs: Runs, arguments: Sequence[Any]) -> list[Any]:
        for argument, dim in zip(arguments, self.inputs, strict=True):
            if dim is not None and argument.shape[dim] != count:
                raise ShapeMismatch(f"an input has {argument.shape[dim]} slices where {count} are expected")
        with torch.no_grad():
            return self.graph(count, *runs, *arguments)

    def _checked(self, count: int) -> int:
        if not self.least <= count <= self.capacity:
            raise ShapeMismatch(f"{count} slices; there are kernels for {self.least} to {self.capacity}")
        return count


def sliced_pieces(
    module: fx.GraphModule,
    plan: Plan,
    inputs: Places,
    outputs: Places,
    example: Sequence[Any],
    deadline: Deadline = NO_LIMIT,
    calls: RescaledCalls | None = None,
) -> SlicedPieces | None:
    """What computes the first slices of a graph, cut as `plan` says; None where that would be PyTorch's calls alone, where these
    are in it and not known for other sizes (`calls`), and where the deadline passes before that is known.

    `inputs` and `outputs` say where arguments and results have the slices, `example` is a call with all of them.
    """
    whole = plan.partition
    if any(map(mutates, module.graph.nodes)) or (calls is None and (whole.left or whole.library)):
        return None
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = tuple(output.args[0])
    values = values_of(module, example, {*results, *(node for piece in whole.pieces for node in piece.inputs)})
    kernels, dims = _kernels(module, plan, inputs, values, deadline, calls)
    if calls is None and len(kernels) < len(whole.pieces):
        return None
    partition = _partition(plan, kernels, calls)
    placed = all(dims.get(node) == dim for node, dim in zip(results, outputs, strict=True))
    if deadline.passed or not placed or not (partition.pieces or partition.library):
        return None
    runs: dict[Step, Callable[..., Any]] = {piece: kernels[piece] for piece in partition.pieces}
    runs |= {layer: packed(layer, Layout.CONTIGUOUS) for layer in partition.library}
    graph = _counted(module, partition, [*runs], plan.others, calls)
    number, place = next((number, dim) for number, dim in enumerate(inputs) if dim is not None)
    machine = next((plan.results[piece].executable.machine for piece in partition.pieces), machine_for("cpu"))
    by_kernels = len(runs) == len(partition.pieces) and not partition.left
    least, capacity = 1 if by_kernels else LEAST, example[number].shape[place]
    if capacity <= least:
        return None
    made = SlicedPieces([*runs.values()], inputs, least, capacity, machine, graph.forward)
    wanted = [None if node is None else values[node] for node in results]
    return made if by_kernels or _agrees(made, example, wanted, outputs, deadline) else None


def _kernels(
    module: fx.GraphModule,
    plan: Plan,
    inputs: Places,
    values: Mapping[fx.Node, Any],
    deadline: Deadline,
    calls: RescaledCalls | None,
) -> tuple[dict[Piece, Kernels], dict[fx.Node, int | None]]:
    """What computes the first slices of pieces, of those that something does, and where tensors have them: as `calls` say, or
    without these what is known of pieces so far. It ends at the first that nothing computes then."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    dims: dict[fx.Node, int | None] = {node: None for node in module.graph.nodes if node.op == "get_attr"}
    dims |= dict(zip(placeholders, inputs, strict=True)) if calls is None else calls.axes
    found = dict[Piece, Kernels]()
    for piece in [step for step in in_order(module.graph, plan.partition) if isinstance(step, Piece)]:
        given = [_without_gradient(values[node]) for node in piece.inputs]
        places = tuple(dims[node] for node in piece.inputs)
        one = _first_of(piece, plan, places, given, deadline) if _is_plain(piece, calls) else None
        made = {} if one is None else {node: one[1][number] for node, number in zip(piece.outputs, piece.numbers, strict=True)}
        if calls is None:
            dims |= made
        if one is not None and all(dims[node] == dim for node, dim in made.items()):
            found[piece] = one[0]
        elif calls is None:
            break
    return found, dims


def _first_of(
    piece: Piece, plan: Plan, inputs: Places, example: Sequence[torch.Tensor], deadline: Deadline
) -> tuple[Kernels, Places] | None:
    """What computes the first slices of a piece, and where its outputs have them; None where nothing does."""
    executable = plan.results[piece].executable
    if all(dim is None for dim in inputs):
        return executable.with_own_weights(), (None,) * len(executable.graph.outputs)
    try:
        outputs = SlicedProgram.of(piece.program, inputs).outputs
    except MugraphError:
        return None
    kernels = sliced_kernels(executable, inputs, outputs, example, deadline)
    return None if kernels is None else (kernels, outputs)


def _is_plain(piece: Piece, calls: RescaledCalls | None) -> bool:
    """Whether a piece runs on tensors as they are, in which slices are single positions, and its results each are one contiguous
    tensor."""
    if piece.masks or piece.causal_masks or piece.images or piece.image_results or len({*piece.numbers}) < len(piece.numbers):
        return False
    if calls is None:
        return all(node.meta["val"].is_contiguous() for node in piece.outputs)
    return all(map(calls.is_contiguous, piece.outputs)) and all(map(calls.is_single, piece.inputs))


def _partition(plan: Plan, kernels: Container[Piece], calls: RescaledCalls | None) -> Partition:
    """What runs first slices: pieces without kernels for these are PyTorch's calls and linear layers of the library, which keeps
    what takes any number of rows."""
    whole = plan.partition
    if calls is None:
        return whole
    dropped = [piece for piece in whole.pieces if piece not in kernels]
    others = [kernel for kernel in whole.library if not _is_of_any_size(kernel, calls)]
    partition = whole.without([*dropped, *others], _WITHOUT)
    layers = [layer for piece in dropped for layer in layers_of(piece) if _is_of_any_size(layer, calls)]
    fitting = within_memory([*partition.library, *layers])
    return partition.with_library(layer for layer in layers if layer in fitting)


def _is_of_any_size(kernel: LibraryKernel, calls: RescaledCalls) -> bool:
    return kernel.geometry is None and kernel.ends is None and all(map(calls.is_fixed, kernel.nodes))


def _counted(
    module: fx.GraphModule,
    partition: Partition,
    steps: Sequence[Step],
    others: Mapping[fx.Node, Callable[..., Any]],
    calls: RescaledCalls | None,
) -> fx.GraphModule:
    """The graph from the number of slices, what runs some `steps`, and its arguments; PyTorch is asked for `others` otherwise."""
    graph = fx.Graph()
    count = graph.placeholder("count")
    runs = {step: graph.placeholder(f"run_{number}") for number, step in enumerate(steps)}
    copies = dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.placeholder(f"argument_{len(copies)}")
    laid = ChainMap(_as_recorded(module, partition, graph, count, copies, calls), copies)
    copies |= {node: graph.node_copy(node) for node in module.graph.nodes if node.op == "get_attr"}
    for step in in_order(module.graph, partition):
        if isinstance(step, Left):
            assert calls is not None, "else nothing is left to PyTorch"
            copies[step.node] = calls.copy(step.node, graph, count, laid, others.get(step.node))
            continue
        operands = [copies[node] for node in step.inputs] if isinstance(step, Piece) else [laid[node] for node in step.operands]
        made = graph.call_function(_called, (runs[step], *operands))
        if isinstance(step, LibraryKernel):
            copies[step.result] = made
            continue
        for node, number in zip(step.outputs, step.numbers, strict=True):
            copies[node] = graph.call_function(operator.getitem, (made, number))
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    graph.output([None if node is None else copies[node] for node in output.args[0]])
    return fx.GraphModule(module, graph)


def _as_recorded(
    module: fx.GraphModule,
    partition: Partition,
    graph: fx.Graph,
    count: fx.Node,
    copies: Mapping[fx.Node, fx.Node],
    calls: RescaledCalls | None,
) -> dict[fx.Node, fx.Node]:
    """The arguments that PyTorch and the library read, laid out as they were recorded: views of other ones need not exist."""
    read = {node for step in partition.left for node in step.node.all_input_nodes}
    read |= {node for layer in partition.library for node in layer.operands}
    laid = dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        if calls is not None and node.op == "placeholder" and node in read:
            strides, dim = tuple(node.meta["val"].stride()), calls.axes[node]
            laid[node] = graph.call_function(_laid_out, (copies[node], count, strides, dim, calls.size))
    return laid


def _laid_out(tensor: torch.Tensor, count: int, strides: tuple[int, ...], dim: int | None, size: int) -> torch.Tensor:
    """A tensor of so many slices along `dim`, as one of `size` slices with these strides is laid out."""
    if dim is not None and strides[dim]:
        whole = size * strides[dim]
        strides = tuple(stride if stride % whole else stride // size * count for stride in strides)
    return laid_out(tensor, strides)


def _agrees(made: SlicedPieces, example: Sequence[Any], wanted: Sequence[Any], outputs: Places, deadline: Deadline) -> bool:
    """Whether first slices are what PyTorch's calls give of an example: beside each other, as sums have other orders at other
    sizes. Not where the deadline passes, or where a call raises."""
    places = [number for number, dim in enumerate(made.inputs) if dim is not None]
    for count in sorted({made.least, made.capacity // 2 + 1, made.capacity - 1}):
        given = made.first(count, example)
        run, slices = partial(_on_slices, made.at(count), given, places), [given[number] for number in places]
        try:
            if deadline.passed or difference(run, partial(_first_results, made, count, wanted, outputs), slices, {}):
                return False
        except (MugraphError, RuntimeError):  # of ours, or of PyTorch
            return False
    return True


def _on_slices(run: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], *slices: torch.Tensor) -> Any:
    """A call of arguments, of which these have the slices; the others, which may be large, are the same in each."""
    replaced = dict(zip(places, slices, strict=True))
    return run(*(replaced.get(number, argument) for number, argument in enumerate(arguments)))


def _first_results(made: SlicedPieces, count: int, wanted: Sequence[Any], outputs: Places, *_: Any) -> list[Any]:
    return [
        each if dim is None else each.narrow(dim, 0, each.shape[dim] // made.capacity * count)
        for each, dim in zip(wanted, outputs, strict=True)
    ]


def _called(run: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    return run(*map(_without_gradient, tensors))


def _without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as calls are recognized by: of parameters they would be looked at one by one."""
    return tensor.detach() if tensor.requires_grad else tensor
