"""Kernels that compute the first slices of those they were made for, in tensors where these lie (`mugraph.lower.first_slices`).

They are printed once more from the muGraph that was proved for all slices, and compute of each slice what its kernels compute of
it (docs/theory.md, "Slices as an argument").
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from mugraph.errors import CompilationFailed, InvalidInput, ShapeMismatch, TargetUnavailable, UnsupportedOperator
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES
from mugraph.host.array_interface import Arrays, Recognizer, RunInputs
from mugraph.host.arrays import torch_arrays
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Node, Shape, Tensor, Value, attributes_of
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower.first_slices import COUNT, Slices
from mugraph.lower.lower import kernel_windows
from mugraph.lower.places import Index
from mugraph.lower.tiles import row_major
from mugraph.runtime import Executable
from mugraph.runtime.benchmarking import medians
from mugraph.runtime.call_plan import Run, planned
from mugraph.sizes.emulated_slices import agree_in_blocks
from mugraph.sizes.sliced_programs import Places
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.targets.gpu import TorchGpu
from mugraph.targets.machine import Machine

_log = logging.getLogger("mugraph.sizes")

_RECOGNIZED = 4
"""Kinds of tensors that calls are recognized by."""
_RENTED = 24
"""Calls in a row with one number of slices whose outputs have memory that numbers share (`mugraph.host.lent_memory`), which takes
3 or 4 microseconds longer. Those behind have PyTorch's, whose pages may be new once: that costs as much as 24 calls save."""
_MANY_BYTES = 1 << 26
"""Of slices, from which on fewer sizes are compared."""
_ROUNDS, _SECONDS = 20, 0.5
"""In which sizes are timed beside each other, and how long at most."""


class _Told(NamedTuple):
    """The number of slices that kernels were told last, where that lies, which nobody changes, and what they take for an address:
    that of it, or itself."""

    slices: int
    argument: array[int]
    address: int


class _Place(NamedTuple):
    """Where tensors of calls lie, and what a call does there: with the outputs of a caller, and with those of allocators."""

    library: Arrays
    plan: Run
    run: RunInputs
    made: RunInputs


class SlicedKernels:
    """Call it with one tensor per input of a kernel graph, of which those that have a place in `inputs` have the same number of
    slices along that dimension, from 1 to `capacity`; it returns the list of outputs, which have as many.

    Raises UnsupportedOperator for kernels that cannot be printed so, and where slices do not lie one behind the other. Calls
    raise ShapeMismatch and InvalidInput for tensors that do not fit. Safe to call from several threads.
    """

    least = 1

    def __init__(self, executable: Executable, inputs: Places, outputs: Places, capacity: int) -> None:
        machine, graph = executable.machine, executable.graph
        given = [Value(index) for index, node in enumerate(graph.nodes) if node.is_input]
        self.capacity, self.graph, self.machine = capacity, graph, machine
        self._axes = [(number, dim) for number, dim in enumerate(inputs) if dim is not None]
        self._made = [_Sliced.of(graph.tensor(value), dim, capacity) for value, dim in zip(graph.outputs, outputs, strict=True)]
        self._given = [
            graph.tensor(value) if dim is None else _Sliced.of(graph.tensor(value), dim, capacity)
            for value, dim in zip(given, inputs, strict=True)
        ]
        if any(graph.tensor(given[number]).shape[dim] != capacity for number, dim in self._axes):
            raise UnsupportedOperator("an input has more than one element of the dimension in a slice")
        slices = Slices(frozenset(given[number] for number, _ in self._axes), capacity, Value(len(graph.nodes)))
        counted = _with_count(replace(graph, outputs=_memories(graph)))
        self._counted, self.launches = counted, machine.lower_slices(counted, slices)
        kernels = [launch.kernel for launch in self.launches.values()]
        self.sources = machine.print(kernels)
        self._functions = machine.load(kernels, self.sources, None)
        self._places: dict[Arrays, _Place] = {}
        self._host = None if isinstance(machine, TorchGpu) else self._place_of(torch_arrays())
        """Where tensors of all calls lie, unless that is on a GPU, of which there may be several."""
        self._recognizers: tuple[tuple[Recognizer, _Place], ...] = ()
        """Those of the latest calls first."""
        self._told = _Told(0, array("q"), 0)
        self._in_a_row = 0, 0
        """The number of slices of the latest call of what `at` gives, and how many in a row had it."""

    def _place_of(self, library: Arrays) -> _Place:
        """What a call does with tensors of a library."""
        if library not in self._places:
            plan = planned(self._counted, self.launches, self._functions, library)
            plan = replace(plan, written=tuple(place and replace(place, fits=_anything) for place in plan.written))
            self._places[library] = _Place(library, plan, library.on_device(plan), library.on_device(_allocating(plan)))
        return self._places[library]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        count = self._count(tensors)
        some = tensors[self._axes[0][0]]
        outputs = [some.new_empty(made.shape(count), dtype=TORCH_DTYPES[made.tensor.dtype]) for made in self._made]
        self.into(tensors, outputs)
        return outputs

    def at(self, count: int) -> Callable[..., list[torch.Tensor]]:
        """These kernels for one number of slices: from the second call on, inputs are recognized at once with all of their sizes,
        as those of other kernels are (`mugraph.runtime.executable`), so that a call takes as little as theirs."""
        told = self._telling(count)
        host = self._host
        allocators = {} if host is None else {host.library: self._allocators(host, count)}
        known: tuple[Recognizer, _Place] | None = None
        is_first = True

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            nonlocal known, is_first
            read: Sequence[torch.Tensor] = tensors
            recognize, place = known or (_never, self._host)
            addresses = recognize(tensors)
            if addresses is None or place is None:
                read, addresses, place = self._placed(tensors, count)
                if not is_first and (recognizer := self._recognizer(place, read, tensors)) is not None:
                    known = recognizer, place
                is_first = False
            latest, calls = self._in_a_row
            self._in_a_row = count, calls + 1 if latest == count else 1
            made = allocators.get(place.library) or allocators.setdefault(place.library, self._allocators(place, count))
            own = latest == count and calls >= _RENTED
            return place.made([*read, told.argument], [*addresses, told.address], made[own])

        return run

    def _allocators(self, place: _Place, count: int) -> list[list[Callable[[], Any]]]:
        """What makes outputs of so many slices, in memory that numbers share, and in their own."""
        tensors = [made.of_count(count) for made in self._made]
        return [[place.library.allocator(tensor, varying) for tensor in tensors] for varying in (True, False)]

    def _telling(self, count: int) -> _Told:
        """What kernels are told of a number of slices."""
        argument = array("q", (count,))
        return _Told(count, argument, count if self.machine.takes_numbers else argument.buffer_info()[0])

    def into(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Write the outputs to contiguous tensors of their types, which have as many slices; on a GPU they begin as its own
        do."""
        count = self._count(tensors)
        tensors, addresses, place = self._placed(tensors, count)
        told = self._told
        if told.slices != count:
            told = self._told = self._telling(count)
        place.run([*tensors, told.argument], [*addresses, told.address], outputs)

    def _count(self, tensors: Sequence[torch.Tensor]) -> int:
        """The number of slices."""
        number, dim = self._axes[0]
        if number >= len(tensors) or dim >= tensors[number].dim():
            raise InvalidInput(f"expected {len(self._given)} inputs, input {number} with its slices in dimension {dim}")
        count = int(tensors[number].shape[dim])
        if not 0 < count <= self.capacity:
            raise ShapeMismatch(f"input {number} has {count} slices; there are kernels for 1 to {self.capacity}")
        return count

    def _placed(self, tensors: Sequence[torch.Tensor], count: int) -> tuple[Sequence[torch.Tensor], list[int], _Place]:
        """The inputs as kernels read them, their addresses, and where they lie."""
        known = self._recognized(tensors, count)
        if known is not None:
            return tensors, *known
        place = self._host or self._place_of(self.machine.arrays(tensors))
        tensors = self._read(place, tensors, count)
        return tensors, [*map(place.library.pointer, tensors)], place

    def _recognized(self, tensors: Sequence[torch.Tensor], count: int) -> tuple[list[int], _Place] | None:
        """The addresses of tensors that cannot be told from those of an earlier call, but by the number of slices, and where they
        lie; else None."""
        recognizers = self._recognizers
        for recognize, place in recognizers:
            addresses = recognize(tensors)
            if addresses is not None:
                alike = all(tensors[number].shape[dim] == count and tensors[number].is_contiguous() for number, dim in self._axes)
                return (addresses, place) if alike else None
        return None

    def _read(self, place: _Place, tensors: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        """The inputs as kernels read them, each with all that may be wrong with it; later calls with such are recognized."""
        if len(tensors) != len(self._given):
            raise InvalidInput(f"expected {len(self._given)} inputs, got {len(tensors)}")
        library, plan = place.library, place.plan
        library.expect_values(tensors)
        read = [
            library.reader(name, given.of_count(count))(tensor) if isinstance(given, _Sliced) else reader(tensor)
            for name, reader, given, tensor in zip(plan.names, plan.readers, self._given, tensors, strict=False)
        ]
        if (recognizer := self._recognizer(place, read, tensors, dict(self._axes))) is not None:
            self._recognizers = ((recognizer, place), *self._recognizers)[:_RECOGNIZED]
        return read

    def _recognizer(
        self,
        place: _Place,
        read: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor],
        varying: Mapping[int, int] = MappingProxyType({}),
    ) -> Recognizer | None:
        """What recognizes inputs like these, if they were read where they lie; their sizes may differ along what is `varying`."""
        if any(made is not tensor for made, tensor in zip(read, given, strict=True)):
            return None
        recognizer = place.library.recognizer(read, varying)
        return recognizer if recognizer is not None and recognizer(read) is not None else None  # within a mode it may not be

    def first(self, count: int, example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The first slices of inputs that have more."""
        dims = dict(self._axes)
        return first_slices([dims.get(number) for number in range(len(example))], count, example)

    def agree_with(self, executable: Executable, example: Sequence[torch.Tensor], deadline: Deadline = NO_LIMIT) -> bool:
        """Whether these kernels compute of the first slices of an example just what others do, which compute all, read no numbers
        behind them and write none: at the smallest and largest sizes, and between. That is not so where the deadline passes."""
        with torch.inference_mode():
            wanted = executable(*example)
            read = sum(example[number].nbytes for number, _ in self._axes)
            counts = _corners(self.capacity) if read < _MANY_BYTES else sorted({1, self.capacity // 2 + 1, self.capacity})
            return all(not deadline.passed and self._agree_at(count, example, wanted) for count in counts)

    def _agree_at(self, count: int, example: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
        tensors = self.first(count, example)
        for number, dim in self._axes:
            tensors[number] = _nothing(example[number]).narrow(dim, 0, count).copy_(tensors[number])
        places = [(made.dim, count * made.width) for made in self._made]
        memory = [_canary(output) for output in wanted]
        self.into(tensors, [whole.narrow(dim, 0, size) for whole, (dim, size) in zip(memory, places, strict=True)])
        expected = [_canary(output) for output in wanted]
        for whole, output, (dim, size) in zip(expected, wanted, places, strict=True):
            whole.narrow(dim, 0, size).copy_(output.narrow(dim, 0, size))
        return all(map(torch.equal, map(_bits, memory), map(_bits, expected)))


@dataclass(frozen=True, slots=True)
class _Sliced:
    """A tensor for all slices: so many elements of dimension `dim` belong to each, and none before it has more than one."""

    tensor: Tensor
    dim: int
    width: int

    @classmethod
    def of(cls, tensor: Tensor, dim: int | None, capacity: int) -> _Sliced:
        """Raises UnsupportedOperator for a tensor that does not lie slice by slice in memory."""
        if (
            dim is None
            or dim >= len(tensor.shape)
            or math.prod(tensor.shape[:dim]) != 1
            or tensor.shape[dim] % capacity
            or tensor.layout is not None
        ):
            raise UnsupportedOperator("slices do not lie one behind the other")
        return cls(tensor, dim, tensor.shape[dim] // capacity)

    def shape(self, count: int) -> Shape:
        """The shape for so many slices."""
        shape = self.tensor.shape
        return (*shape[: self.dim], count * self.width, *shape[self.dim + 1 :])

    def of_count(self, count: int) -> Tensor:
        """The tensor for so many slices."""
        return replace(self.tensor, shape=self.shape(count))


def _memories(graph: Graph) -> tuple[Value, ...]:
    """For each output what kernels write that is it, perhaps in other dimensions; raises UnsupportedOperator where there is none,
    or one for several."""
    windows = kernel_windows(graph)
    found = []
    for value in graph.outputs:
        root, tile = windows[value]
        whole = tile.shape == graph.tensor(value).shape and tile.strides == row_major(tile.shape) and tile.start == Index()
        if graph.nodes[root.node].op != GRAPH_DEFINED or not whole or graph.tensor(root).elements != graph.tensor(value).elements:
            raise UnsupportedOperator("a result is not written by kernels alone")
        found.append(root)
    if len({*found}) < len(found):
        raise UnsupportedOperator("two results are one in other dimensions")
    return tuple(found)


def _with_count(graph: Graph) -> Graph:
    """The graph with the input of the number of slices, which no node of it reads."""
    node = Node("input", (), (Tensor((1,), DType.INT64),), attributes_of({"name": COUNT}))
    return replace(graph, nodes=(*graph.nodes, node))


def _allocating(plan: Run) -> RunInputs:
    """What a call does whose outputs are made by allocators."""

    def run(inputs: Sequence[Any], addresses: Sequence[int], into: Sequence[Any] = ()) -> list[Any]:
        return plan(inputs, addresses, [allocate() for allocate in into])

    return run


def _anything(array: object) -> bool:
    return True


def _never(tensors: Sequence[Any]) -> list[int] | None:
    return None


def sliced_kernels(
    executable: Executable,
    inputs: Places,
    outputs: Places,
    example: Sequence[torch.Tensor],
    deadline: Deadline = NO_LIMIT,
) -> SlicedKernels | None:
    """The kernels of a muGraph that compute its first slices; None where they cannot, where their results for the first slices
    of an `example` of all differ in a bit from those of its own kernels, and where the deadline passes before that is known. None
    also where the compiler fails, which is logged: there are kernels for all slices. Where their machine is not here, blocks of
    them are compared on its emulator."""
    capacity = next(example[number].shape[dim] for number, dim in enumerate(inputs) if dim is not None)
    try:
        kernels = SlicedKernels(executable, inputs, outputs, capacity)
    except UnsupportedOperator:
        return None
    except (CompilationFailed, TargetUnavailable) as error:
        _log.warning("first slices have no kernels of their own, and run by those for all: %s", error)
        return None
    machine = executable.machine
    if not machine.available:
        seen = agree_in_blocks(executable, kernels.launches, kernels.sources, capacity, deadline)
        return kernels if seen else None
    if isinstance(machine, TorchGpu) and any(tensor.device.type == "cpu" for tensor in example):
        example = machine.moved(example)  # as what is drawn for a result that was loaded
    if not kernels.agree_with(executable, example, deadline):
        return None
    with torch.inference_mode(False), torch.no_grad():
        kernels(*kernels.first(1, example))  # by which calls at all sizes are recognized
    return kernels


def first_slices(places: Sequence[int | None], count: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """So many slices of each of several tensors that has them in some dimension."""
    return [tensor if dim is None else tensor.narrow(dim, 0, count) for tensor, dim in zip(tensors, places, strict=True)]


class FirstSlices(Protocol):
    """Kernels of a program (`SlicedKernels`) or of several (`mugraph.sizes.sliced_pieces`) that compute their first slices."""

    @property
    def least(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def machine(self) -> Machine: ...
    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]: ...
    def at(self, count: int) -> Callable[..., list[torch.Tensor]]: ...
    def first(self, count: int, example: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...


class InPart(NamedTuple):
    """The kernels that compute the first slices of a `whole`, and which part of the time of all so many of them take. None of one
    that has no such kernels."""

    whole: Callable[..., Any]
    """What computes all slices of the same inputs."""
    kernels: FirstSlices | None
    parts: Mapping[int, float]

    @classmethod
    def by(cls, whole: Callable[..., Any], kernels: FirstSlices | None, low: int) -> InPart:
        """Those of kernels: nothing is timed, and first slices, `low` of them at least, are taken to need all the time."""
        return cls(whole, kernels, {} if kernels is None else {max(low, kernels.least): 1.0, kernels.capacity: 1.0})

    @classmethod
    def of(
        cls,
        executable: Executable,
        inputs: Places,
        outputs: Places,
        example: Sequence[torch.Tensor],
        low: int,
        deadline: Deadline = NO_LIMIT,
    ) -> InPart:
        """Those of a muGraph, by inputs for all slices."""
        return cls.by(executable, sliced_kernels(executable, inputs, outputs, example, deadline), low)

    def measured(self, example: Sequence[torch.Tensor], deadline: Deadline = NO_LIMIT) -> InPart:
        """The same, timed at a few sizes in turns with the kernels that compute all, while there is time."""
        kernels = self.kernels
        if kernels is None or deadline.passed:
            return self
        sizes = some_first(kernels.capacity, min(self.parts))
        runs = {size: partial(kernels, *kernels.first(size, example)) for size in sizes}
        calls = {f"{size}": run for size, run in runs.items()} | {"all": partial(self.whole, *example)}
        timed = {name: kernels.machine.timed(call).run for name, call in calls.items()}
        seconds_left = _SECONDS if deadline.remaining is None else min(_SECONDS, deadline.remaining)
        with torch.inference_mode():
            seconds = medians(timed, _ROUNDS, seconds_left)
        parts = {size: seconds[f"{size}"] / seconds["all"] for size in runs}
        return self._replace(parts={**parts, kernels.capacity: 1.0})


def some_first(capacity: int, least: int) -> list[int]:
    """At which numbers of first slices it is measured what part of the time of all they take: a few, from the least on, and the
    next to it, since threads share few slices unevenly."""
    return sorted({max(capacity * quarter // 4, least) for quarter in range(4)} | {min(least + 1, capacity)} - {capacity})


def _corners(capacity: int) -> list[int]:
    """Numbers of slices: around both ends and around powers of two, and primes."""
    near = {power + more for power in (1, 4, 16, 64, 256, 1024) for more in (-1, 0, 1)} | {7, 11, 23, capacity // 2 + 1}
    return sorted({count for count in (*near, capacity - 1, capacity) if 0 < count <= capacity})


def example_inputs(graph: Graph) -> list[torch.Tensor]:
    """Numbers for the inputs of a kernel graph."""
    return [example_of(node.output.shape, TORCH_DTYPES[node.output.dtype]) for node in graph.inputs()]


def example_of(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Normal floating-point numbers, any booleans, and 0 for integers, which is in the range of every table."""
    generator = torch.Generator().manual_seed(0)
    if dtype in (torch.float32, torch.float64):
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(2, shape, generator=generator).to(dtype) if dtype is torch.bool else torch.zeros(shape, dtype=dtype)


def _nothing(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like another, of what no result may depend on."""
    value = torch.nan if tensor.dtype.is_floating_point else True if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).max
    return torch.full(tensor.shape, value, dtype=tensor.dtype, device=tensor.device)


def _canary(tensor: torch.Tensor) -> torch.Tensor:
    """Memory like that of a tensor with bytes that no result has."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    _bits(made).fill_(0xA5)
    return made


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
