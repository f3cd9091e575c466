"""Kernels of a capacity that read tensors where they lie, up to a length that a call gives (`mugraph.lower.growing_inputs`).

They are printed once more from the muGraph that was proved for the capacity, and compute what its kernels would of the same
tensors in memory for the capacity, with 0 behind them (docs/theory.md, "Lengths as arguments").
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from mugraph.errors import InvalidInput, ShapeMismatch, UnsupportedOperator
from mugraph.frontend.calls.calling import Calling
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES
from mugraph.frontend.symbolic_sizes.slots import SlotPlaces
from mugraph.host.array_interface import Recognizer
from mugraph.host.arrays import torch_arrays
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Node, Tensor, Value, attributes_of
from mugraph.lower.growing_inputs import SIZES, Axis, HeldSlots, Lengths
from mugraph.results.data import Result
from mugraph.runtime import Executable
from mugraph.runtime.call_plan import planned
from mugraph.search.constraints import SearchSpace
from mugraph.targets.cpu.machine import Cpu

T = TypeVar("T", bound=Hashable)
_RECOGNIZED = 4
"""Kinds of tensors that calls are recognized by."""
_SLOTS = 32
"""Of one iteration: what is left of an input in the last one is copied, and computed with 0 behind it."""


def short_iterations(slots: int) -> SearchSpace | None:
    """The part of the search space that suits kernels which copy what is left of tensors in the last tile; None if it is all."""
    return SearchSpace(loops=(slots // _SLOTS,)) if slots >= 2 * _SLOTS else None


class _Told(NamedTuple):
    """The length and the strides that kernels were told last, and where that lies, which nobody changes."""

    sizes: tuple[int, ...]
    arguments: array[int]
    address: int


class GrowingKernels:
    """Call it with one tensor per input of a kernel graph, of which those of `axes` are all shorter than it says, along these
    dimensions and by as much; it returns the list of outputs, of the graph's shapes.

    `masks` are inputs that say what is held; both are by number of the input.
    Tensors whose last dimension is not contiguous are copied first. Raises UnsupportedOperator for kernels that cannot be printed
    so, as those of other targets than `cpu`; calls raise ShapeMismatch and InvalidInput for tensors that do not fit. Safe to call
    from several threads.
    """

    def __init__(self, executable: Executable, axes: Mapping[int, Axis], masks: Mapping[int, HeldSlots]) -> None:
        machine, graph = executable.machine, executable.graph
        if not isinstance(machine, Cpu):
            raise UnsupportedOperator(f"kernels for {machine.name} take no lengths as arguments")
        if not axes:
            raise UnsupportedOperator("no input has the axis whose length is an argument")
        given = [Value(index) for index, node in enumerate(graph.nodes) if node.is_input]
        lengths = Lengths(
            {given[number]: axis for number, axis in axes.items()},
            {given[number]: slots for number, slots in masks.items()},
            Value(len(graph.nodes)),
        )
        graph = _with_sizes(graph, lengths)
        launches = machine.lower_growing(graph, lengths)
        kernels = [launch.kernel for launch in launches.values()]
        self.copies = any(window.copy for kernel in kernels if kernel.growing for window in kernel.growing.windows)
        """Whether they copy what is left of an input where it ends within a tile."""
        self.sources = machine.print(kernels)
        functions = machine.load(kernels, self.sources, None)
        self._library = torch_arrays()
        self._run = planned(graph, launches, functions, self._library)
        self._growing = [(number, graph.tensor(given[number]), axis) for number, axis in axes.items()]
        self._others = [(number, read) for number, read in enumerate(self._run.readers[:-1]) if number not in axes]
        self._along = [(number, axis.dim, axis.more) for number, axis in axes.items()]
        number, axis = next(iter(axes.items()))
        self._most = graph.tensor(given[number]).shape[axis.dim] - axis.more
        self._recognizers: tuple[Recognizer, ...] = ()
        """Those of the latest calls first."""
        self._told = _Told((), array("q"), 0)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        made = self.recognized(tensors)
        return self._read(tensors) if made is None else made

    def recognized(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The outputs for tensors that cannot be told from those of an earlier call, but by their length; else None."""
        recognizers = self._recognizers
        for recognize in recognizers:
            addresses = recognize(tensors)
            if addresses is not None:
                if recognize is not recognizers[0]:
                    self._recognizers = (recognize, *(other for other in recognizers if other is not recognize))
                return self._recognized(tensors, addresses)
        return None

    def at_once(self, tensors: Sequence[torch.Tensor], given: int) -> Callable[[Sequence[Any]], list[Any] | None] | None:
        """What gives the outputs for tensors in the place of the first `given` ones that cannot be told from these by shape,
        strides or anything else, and the others stay; else None. It looks at nothing but that.

        None where these are not recognized, as they have to be read one by one.
        """
        addresses = next((found for recognize in self._recognizers if (found := recognize(tensors)) is not None), None)
        if addresses is None:
            return None
        recognize, told = self._library.recognizer(tensors[:given]), self._told_of(tensors)
        if recognize is None or told is None:
            return None
        run = self._run
        kept, kept_addresses = [*tensors[given:], told.arguments], [*addresses[given:], told.address]

        def outputs(tensors: Sequence[Any]) -> list[Any] | None:
            addresses = recognize(tensors)
            return None if addresses is None else run([*tensors, *kept], [*addresses, *kept_addresses])

        return outputs

    def _recognized(self, tensors: Sequence[torch.Tensor], addresses: list[int]) -> list[torch.Tensor] | None:
        """The outputs for tensors that are read where they lie; None where their lengths differ, or are too large."""
        told = self._told_of(tensors)
        return None if told is None else self._run([*tensors, told.arguments], [*addresses, told.address])

    def _told_of(self, tensors: Sequence[torch.Tensor]) -> _Told | None:
        """What kernels are told of tensors; None where their lengths differ, or are too large."""
        number, dim, more = self._along[0]
        length = tensors[number].shape[dim] - more
        sizes: tuple[int, ...] = (length,)
        for number, dim, more in self._along:
            tensor = tensors[number]
            if tensor.shape[dim] - more != length:
                return None
            sizes += tensor.stride()[:-1]
        if not 0 < length <= self._most:
            return None
        told = self._told
        if told.sizes != sizes:
            arguments = array("q", sizes)
            told = self._told = _Told(sizes, arguments, arguments.buffer_info()[0])
        return told

    def _read(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs, each input read with all that may be wrong with it; later calls with such inputs are recognized."""
        if len(tensors) != len(self._growing) + len(self._others):
            raise InvalidInput(f"expected {len(self._growing) + len(self._others)} inputs, got {len(tensors)}")
        number, dim, more = self._along[0]
        length = int(tensors[number].shape[dim]) - more
        inputs = [*tensors]
        for number, tensor, axis in self._growing:
            inputs[number] = self._readable(tensors[number], tensor, axis, length)
        for number, read in self._others:
            inputs[number] = read(tensors[number])
        made = self._recognized(inputs, [*map(self._library.pointer, inputs)])
        assert made is not None, "what was read fits"
        if all(read is given for read, given in zip(inputs, tensors, strict=True)):
            self._recognize(inputs)
        return made

    def _recognize(self, inputs: Sequence[torch.Tensor]) -> None:
        recognizer = self._library.recognizer(inputs, {number: dim for number, dim, _ in self._along})
        if recognizer is not None and recognizer(inputs) is not None:  # within a mode it may not be
            self._recognizers = (recognizer, *self._recognizers)[:_RECOGNIZED]

    def _readable(self, given: torch.Tensor, tensor: Tensor, axis: Axis, length: int) -> torch.Tensor:
        """A shorter `tensor` as kernels read it: itself, or a copy."""
        size, shape = length + axis.more, tensor.shape
        if given.shape != (*shape[: axis.dim], size, *shape[axis.dim + 1 :]) or length <= 0 or size > shape[axis.dim]:
            raise ShapeMismatch(
                f"a tensor of {list(given.shape)} is none of {list(shape)} with {size} along dimension {axis.dim}"
            )
        if given.dtype is not TORCH_DTYPES[tensor.dtype] or given.device.type != "cpu" or given.layout is not torch.strided:
            raise InvalidInput(f"a tensor is {given.dtype} on {given.device}; this muGraph was built for {tensor.dtype} on cpu")
        contiguous = given.stride()[-1] == 1 or shape[-1] == 1  # of one element of an axis later calls may have more
        if contiguous and not given.is_neg() and not given._is_zerotensor():
            return given
        return given.clone(memory_format=torch.contiguous_format).resolve_neg()


def _with_sizes(graph: Graph, lengths: Lengths) -> Graph:
    """The graph with the input of the length and the strides, which no node of it reads."""
    arguments = 1 + sum(len(graph.tensor(value).shape) - 1 for value in lengths.axes)
    node = Node("input", (), (Tensor((arguments,), DType.INT64),), attributes_of({"name": SIZES}))
    return replace(graph, nodes=(*graph.nodes, node))


def growing_arguments(masked: SlotPlaces, arguments: Sequence[T]) -> tuple[dict[T, Axis], dict[T, HeldSlots]]:
    """Which arguments of a masked graph have its axis, and which say what is held of it."""
    inputs, others = arguments[: len(masked.inputs)], arguments[len(masked.inputs) :]
    places = [(argument, place) for argument, place in zip(inputs, masked.inputs, strict=True) if place is not None]
    masks = zip(others[: len(masked.slots)], masked.slots, strict=True)
    axes = {argument: Axis(place.dim, place.more) for argument, place in places}
    return axes, {argument: HeldSlots(slots.first, slots.end) for argument, slots in masks}


@dataclass(frozen=True, slots=True)
class GrowingCall:
    """A result for a masked graph at a capacity, called with inputs of any smaller size, followed by what is held and counts."""

    calling: Calling
    kernels: GrowingKernels

    def __call__(self, *arguments: torch.Tensor) -> Any:
        given = self.calling.plain(arguments, {})
        assert given is not None, "as in the example call"
        return self.calling.unflatten(self.kernels(*given), given)

    def recognized(self, arguments: Sequence[torch.Tensor]) -> Any:
        """What a call returns if its tensors cannot be told from those of an earlier call, but by their length; else None."""
        given = self.calling.plain(arguments, {})
        made = None if given is None else self.kernels.recognized(given)
        return None if made is None or given is None else self.calling.unflatten(made, given)

    def at_once(self, arguments: Sequence[torch.Tensor], given: int) -> Callable[[Sequence[Any]], Any] | None:
        """What returns what calls do with tensors that cannot be told from the first `given` arguments, of this very size, and
        None for others; None where kernels read something else than the arguments in order, or nothing recognizes these."""
        inputs = self.calling.plain(arguments, {})
        if inputs is None or len(inputs) != len(arguments) or any(map(operator.is_not, inputs, arguments)):
            return None
        outputs = self.kernels.at_once(inputs, given)
        if outputs is None:
            return None
        unflatten, kept = self.calling.unflatten, arguments[given:]

        def returned(tensors: Sequence[Any]) -> Any:
            made = outputs(tensors)
            return None if made is None else unflatten(made, (*tensors, *kept))

        return returned


def argument_numbers(calling: Calling, example: Sequence[torch.Tensor]) -> list[int | None]:
    """For each input of a program which argument of the call it is; None for what calls do not give. `example` is such a call."""
    told_apart = [tensor.clone() for tensor in example]  # also where one tensor is given twice
    numbers = {id(tensor): number for number, tensor in enumerate(told_apart)}
    return [numbers.get(id(tensor)) for tensor in calling.flatten(told_apart, {})]


def growing_call(result: Result, masked: SlotPlaces, example: Sequence[torch.Tensor]) -> GrowingCall | None:
    """What runs a result for the masked graph at a capacity on tensors where they lie; None where its kernels cannot. `example`
    are the arguments of a call at the capacity."""
    calling = result.calling
    if calling.plain(example, {}) is None:
        return None
    order = argument_numbers(calling, example)
    if None in (numbers := [order.index(number) if number in order else None for number in range(len(example))]):
        return None
    try:
        kernels = GrowingKernels(
            result.executable, *growing_arguments(masked, [number for number in numbers if number is not None])
        )
    except UnsupportedOperator:
        return None
    return GrowingCall(calling, kernels)
