"""What a target needs to run lowered kernels, behind one small interface, and what its compiled kernels take of a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from mugraph.devices.targets import load, resolved, target_row
from mugraph.errors import InvalidInput
from mugraph.host.array_interface import Arrays
from mugraph.ir.graph import Graph, Value
from mugraph.lower.first_slices import Slices
from mugraph.lower.lower import DimensionOrder
from mugraph.lower.packing import Packing
from mugraph.lower.tile_form import Tile


@dataclass(frozen=True, slots=True)
class KernelResources:
    """One kernel's launch and what the assembler says of it."""

    name: str
    grid: tuple[int, ...]
    loop: int
    threads: int
    """Of one block."""
    registers: int
    """Of one thread."""
    shared_bytes: int
    """Of one block."""
    spill_bytes: int
    """Stores and loads of registers that did not fit, in the code of one thread."""
    engines: tuple[str, ...]
    """Units beside the threads that it uses: `bulk copies`, `tensor maps`, `warp groups`."""


Functions = Mapping[str, Callable[..., None]]
"""By kernel name, what runs it: called with the addresses of its buffers, inputs first."""


LOWERED = "lowered"
"""What stands for a pass where there was none yet."""


class Timed(NamedTuple):
    """A call as it is measured: `run` makes it `times` times and returns when all are done, and `clock` tells the seconds.

    `waits`: what it waits for is other processes, too, and `clock` goes on then.
    """

    run: Callable[[], object]
    times: int = 1
    clock: Callable[[], float] = time.perf_counter
    waits: bool = False


class Launched(Protocol):
    """The launch of a kernel, whatever kernels a target makes: what the kernel is called, and what it reads and writes."""

    @property
    def kernel(self) -> Any:
        """What `Machine.print` and `Machine.load` of the same target take; it has a `name`."""
        ...

    @property
    def body(self) -> Graph:
        """The block graph that it was made from: that of its node, or what passes made of it."""
        ...

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The kernel graph's values whose memory it reads."""
        ...

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The kernel graph's values that it makes, or makes parts of."""
        ...

    @property
    def results(self) -> tuple[tuple[int, Tile], ...]:
        """For each output of the body, the number of the value that it writes, and the window of it."""
        ...

    @property
    def orders(self) -> Mapping[Value, DimensionOrder]:
        """How those of them lie in memory that are not row-major."""
        ...

    @property
    def packings(self) -> Mapping[Value, Packing]:
        """How inputs are packed that the kernel does not read where they lie."""
        ...


class Machine(Protocol):
    """A target: how graphs are lowered for it, printed, loaded, and on which arrays they run."""

    @property
    def name(self) -> str:
        """Of the target's row in `mugraph.devices.targets.TARGETS`."""
        ...

    @property
    def available(self) -> bool:
        """Whether kernels can run here, and not only be compiled."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What the text it prints depends on besides the graph, as JSON values."""
        ...

    @property
    def stand_in(self) -> Machine:
        """A machine of this host whose kernels round where this one's do: for numerical checks where these cannot run."""
        ...

    def lower(self, graph: Graph) -> Mapping[int, Launched]:
        """The launches of a kernel graph, by node."""
        ...

    @property
    def takes_numbers(self) -> bool:
        """Whether a kernel is given a number of slices itself, in the place of an address, or where 64 bits of it lie."""
        ...

    def lower_slices(self, graph: Graph, slices: Slices) -> Mapping[int, Launched]:
        """The launches of a kernel graph that compute its first slices, as many as a call says.

        Raises UnsupportedOperator where these are not computed one by one, and for targets that have no such kernels.
        """
        ...

    def explain(self, graph: Graph) -> Iterator[tuple[str, str, str]]:
        """How a kernel graph is lowered: (name of a kernel, name of a pass, its text after that pass), the first `LOWERED`."""
        ...

    def print(self, kernels: Sequence[Any]) -> dict[str, str]:
        """The sources of kernels, by file name; raises UnsupportedOperator for what the target cannot compute."""
        ...

    def load(self, kernels: Sequence[Any], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Compile sources; raises CompilationFailed, and TargetUnavailable without a compiler."""
        ...

    def arrays(self, inputs: Sequence[Any]) -> Arrays:
        """The library of the inputs; raises InvalidInput for arrays that the target does not run on."""
        ...

    def moved(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs where the target's kernels read them."""
        ...

    def timed(self, call: Callable[[], object]) -> Timed:
        """What measures a call."""
        ...


class TargetMachine(Machine, Protocol):
    """What a row of the table of targets names: the class of a machine, from the target's name."""

    @classmethod
    def of(cls, target: str) -> Self:
        """The machine of a target such as `cuda:sm_90`; raises TargetUnavailable where nothing can be compiled for it."""
        ...

    @classmethod
    def recorded(cls, target: str, parameters: Mapping[str, Any]) -> Self:
        """The machine that described itself by `parameters`; it need only print. Raises InvalidInput for what none says."""
        ...


def machine_for(target: str) -> Machine:
    """The machine of a target's name; raises TargetUnavailable where there is none."""
    target = resolved(target)
    machine: type[TargetMachine] = load(target_row(target).machine)
    return machine.of(target)


def recorded_machine(target: str, parameters: Mapping[str, Any]) -> Machine:
    """The machine for a target that says `parameters` of itself, which prints the same text anywhere and need not run here.

    Raises TargetUnavailable for an unknown target, InvalidInput for what no machine of this version says.
    """
    kind: type[TargetMachine] = load(target_row(target).machine)
    machine = kind.recorded(target, parameters)
    if machine.parameters != parameters:
        raise InvalidInput(f"no machine for {target} describes itself as {dict(parameters)}; optimize again")
    return machine
