"""What runs the printed text of a machine's kernels on a host without it, so that their results and faults can be seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mugraph.devices.targets import TARGETS, load
from mugraph.host.array_interface import Arrays
from mugraph.host.arrays import torch_arrays
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.lower.tile_form import Kernel
from mugraph.targets.machine import Machine, Timed

Memory = npt.NDArray[np.unsignedinteger[Any]]
"""A device tensor as it lies in memory: one number of as many bits for each element."""


GAP = 1 << 14
"""Bytes before, between and behind tensors that are kept apart, at least; they begin at multiples of it."""
POISON = 0xFF
"""What gaps are filled with, and outputs before they are written: NaN to whoever reads it."""


def places_apart(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where tensors of so many bytes begin that are kept apart in one piece of memory, and the bytes of that."""
    offsets, top = list[int](), GAP
    for size in sizes:
        offsets.append(top)
        top += -(-(size + GAP) // GAP) * GAP
    return offsets, top


def launched_elements(form: Kernel, addresses: Sequence[int]) -> dict[str, int]:
    """How many elements each operand of a kernel has in a launch, given their addresses, one of which may be a number of
    slices."""
    names, slices = (*form.inputs, *form.outputs), form.slices
    found = {name: form.buffer(name).elements for name in names}
    if slices is not None:
        count = addresses[names.index(slices.count)]
        found |= {name: count * slices.elements(name) for name in slices.ends}
    return found


class Emulator(ABC):
    """Runs what `machine` prints, on CPU tensors of PyTorch; `findings` are the faults of all launches so far."""

    machine: Any
    findings: MutableSequence[Any]
    title: ClassVar[str]
    """What it is called in reports."""
    seconds_per_operation: ClassVar[float]
    """About how long a multiplication or an element of a tile takes, a tile beside its elements, and a byte of device memory."""
    seconds_per_tile: ClassVar[float]
    seconds_per_byte: ClassVar[float]

    @classmethod
    @abstractmethod
    def of(cls, machine: Any) -> Self:
        """The emulator of a machine."""

    @property
    def name(self) -> str:
        """That of the machine."""
        name: str = self.machine.name
        return name

    @property
    def available(self) -> bool:
        """Always: it runs here."""
        return True

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Those of the machine."""
        parameters: Mapping[str, Any] = self.machine.parameters
        return parameters

    @property
    def takes_numbers(self) -> bool:
        """As those of the machine."""
        takes: bool = self.machine.takes_numbers
        return takes

    @property
    def stand_in(self) -> Machine:
        """That of the machine."""
        stand_in: Machine = self.machine.stand_in
        return stand_in

    def explain(self, graph: Graph) -> Iterator[tuple[str, str, str]]:
        """What the machine explains."""
        yield from self.machine.explain(graph)

    def print(self, kernels: Sequence[Any]) -> dict[str, str]:
        """What the machine prints."""
        printed: dict[str, str] = self.machine.print(kernels)
        return printed

    def arrays(self, inputs: Sequence[Any]) -> Arrays:
        """CPU tensors of PyTorch."""
        return torch_arrays()

    def moved(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs themselves."""
        return list(inputs)

    def timed(self, call: Callable[[], object]) -> Timed:
        """The call itself; its time says nothing of a GPU."""
        return Timed(call)

    @abstractmethod
    def form(self, kernel: Any) -> Kernel:
        """The tile form of a kernel."""

    def runs_as(self, dtype: DType) -> DType:
        """The element type that `run_blocks` takes tensors of a type in: another where it would compute wrongly in the type."""
        return dtype

    @abstractmethod
    def prepare(self, sources: Mapping[str, str]) -> None:
        """What takes time before a text can run; raises TargetUnavailable or CompilationFailed where it cannot run here."""

    @abstractmethod
    def run_blocks(
        self, kernel: Any, sources: Mapping[str, str], memory: Sequence[Memory], blocks: Sequence[int], seconds: float
    ) -> int:
        """Run blocks of a kernel on its operands, inputs first, and return how many: none is begun after `seconds` but the first.

        They are numbered with the last dimension of the grid first, which has those of a launch where the kernel takes a number
        of slices: an input of one number of 64 bits. Outputs have all bits set, a NaN, where none of them writes. Raises
        CompilationFailed where the text is wrong.
        """


def emulator_of(machine: Machine) -> Emulator | None:
    """What runs a machine's kernels on this host; None for those that run here anyway."""
    place = TARGETS[machine.name].emulator
    if place is None:
        return None
    emulator: type[Emulator] = load(place)
    return emulator.of(machine)
