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
from mugraph.host.array_interface import Recognizer
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
from mugraph.runtime.call_plan import planned
from mugraph.sizes.sliced_programs import Places
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.targets.cpu.machine import Cpu
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
    """The number of slices that kernels were told last, and where that lies, which nobody changes."""

    slices: int
    argument: array[int]
    address: int


class SlicedKernels:
    """Call it with one tensor per input of a kernel graph, of which those that have a place in `inputs` have the same number of
    slices along that dimension, from 1 to `capacity`; it returns the list of outputs, which have as many.

    Raises UnsupportedOperator for kernels that cannot be printed so, as those of other targets than `cpu`, and where slices do
    not lie one behind the other. Calls raise ShapeMismatch and InvalidInput for tensors that do not fit. Safe to call from
    several threads.
    """

    least = 1

    def __init__(self, executable: Executable, inputs: Places, outputs: Places, capacity: int) -> None:
        machine, graph = executable.machine, executable.graph
        if not isinstance(machine, Cpu):
            raise UnsupportedOperator(f"kernels for {machine.name} take no number of slices")
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
        launches = machine.lower_slices(counted, slices)
        kernels = [launch.kernel for launch in launches.values()]
        self.sources = machine.print(kernels)
        self._library = torch_arrays()
        run = planned(counted, launches, machine.load(kernels, self.sources, None), self._library)
        self._run = replace(run, written=tuple(place and replace(place, fits=_anything) for place in run.written))
        self._recognizers: tuple[Recognizer, ...] = ()
        """Those of the latest calls first."""
        self._told = _Told(0, array("q"), 0)
        self._in_a_row = 0, 0
        """The number of slices of the latest call of what `at` gives, and how many in a row had it."""

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        count = self._count(tensors)
        outputs = [torch.empty(made.shape(count), dtype=TORCH_DTYPES[made.tensor.dtype], device="cpu") for made in self._made]
        self.into(tensors, outputs)
        return outputs

    def at(self, count: int) -> Callable[..., list[torch.Tensor]]:
        """These kernels for one number of slices: from the second call on, inputs are recognized at once with all of their sizes,
        as those of other kernels are (`mugraph.runtime.executable`), so that a call takes as little as theirs."""
        argument = array("q", (count,))
        told = argument.buffer_info()[0]
        shared, own = (
            [self._library.allocator(made.of_count(count), varying) for made in self._made] for varying in (True, False)
        )
        recognized: Recognizer = _never
        is_first = True

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            nonlocal recognized, is_first
            read: Sequence[torch.Tensor] = tensors
            addresses = recognized(tensors)
            if addresses is None:
                read, addresses = self._placed(tensors, count)
                if not is_first:
                    recognized = self._recognizer(read, tensors) or recognized
                is_first = False
            latest, calls = self._in_a_row
            self._in_a_row = count, calls + 1 if latest == count else 1
            outputs = [allocate() for allocate in (own if latest == count and calls >= _RENTED else shared)]
            self._run([*read, argument], [*addresses, told], outputs)
            return outputs

        return run

    def into(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Write the outputs to contiguous tensors of their types, which have as many slices."""
        count = self._count(tensors)
        tensors, addresses = self._placed(tensors, count)
        told = self._told
        if told.slices != count:
            argument = array("q", (count,))
            told = self._told = _Told(count, argument, argument.buffer_info()[0])
        self._run([*tensors, told.argument], [*addresses, told.address], outputs)

    def _count(self, tensors: Sequence[torch.Tensor]) -> int:
        """The number of slices."""
        number, dim = self._axes[0]
        if number >= len(tensors) or dim >= tensors[number].dim():
            raise InvalidInput(f"expected {len(self._given)} inputs, input {number} with its slices in dimension {dim}")
        count = int(tensors[number].shape[dim])
        if not 0 < count <= self.capacity:
            raise ShapeMismatch(f"input {number} has {count} slices; there are kernels for 1 to {self.capacity}")
        return count

    def _placed(self, tensors: Sequence[torch.Tensor], count: int) -> tuple[Sequence[torch.Tensor], list[int]]:
        """The inputs as kernels read them, and their addresses."""
        addresses = self._recognized(tensors, count)
        if addresses is None:
            tensors = self._read(tensors, count)
            addresses = [*map(self._library.pointer, tensors)]
        return tensors, addresses

    def _recognized(self, tensors: Sequence[torch.Tensor], count: int) -> list[int] | None:
        """The addresses of tensors that cannot be told from those of an earlier call, but by the number of slices; else None."""
        recognizers = self._recognizers
        for recognize in recognizers:
            addresses = recognize(tensors)
            if addresses is not None:
                alike = all(tensors[number].shape[dim] == count and tensors[number].is_contiguous() for number, dim in self._axes)
                return addresses if alike else None
        return None

    def _read(self, tensors: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        """The inputs as kernels read them, each with all that may be wrong with it; later calls with such are recognized."""
        if len(tensors) != len(self._given):
            raise InvalidInput(f"expected {len(self._given)} inputs, got {len(tensors)}")
        self._library.expect_values(tensors)
        read = [
            self._library.reader(name, given.of_count(count))(tensor) if isinstance(given, _Sliced) else reader(tensor)
            for name, reader, given, tensor in zip(self._run.names, self._run.readers, self._given, tensors, strict=False)
        ]
        if (recognizer := self._recognizer(read, tensors, dict(self._axes))) is not None:
            self._recognizers = (recognizer, *self._recognizers)[:_RECOGNIZED]
        return read

    def _recognizer(
        self, read: Sequence[torch.Tensor], given: Sequence[torch.Tensor], varying: Mapping[int, int] = MappingProxyType({})
    ) -> Recognizer | None:
        """What recognizes inputs like these, if they were read where they lie; their sizes may differ along what is `varying`."""
        if any(made is not tensor for made, tensor in zip(read, given, strict=True)):
            return None
        recognizer = self._library.recognizer(read, varying)
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
    also where the compiler fails, which is logged: there are kernels for all slices."""
    capacity = next(example[number].shape[dim] for number, dim in enumerate(inputs) if dim is not None)
    try:
        kernels = SlicedKernels(executable, inputs, outputs, capacity)
    except UnsupportedOperator:
        return None
    except (CompilationFailed, TargetUnavailable) as error:
        _log.warning("first slices have no kernels of their own, and run by those for all: %s", error)
        return None
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
    return torch.full(tensor.shape, value, dtype=tensor.dtype)


def _canary(tensor: torch.Tensor) -> torch.Tensor:
    """Memory like that of a tensor with bytes that no result has."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype)
    _bits(made).fill_(0xA5)
    return made


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
