"""A kernel graph that runs: its graph-defined kernels compiled for a target, the rest through the array library."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Hashable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mugraph.devices.targets import TARGETS, load
from mugraph.host.array_interface import Arrays, Recognizer, RunInputs
from mugraph.host.arrays import torch_arrays
from mugraph.ir.graph import Graph, owner_of
from mugraph.lower.tile_form import Kernel
from mugraph.runtime.call_plan import Run, packed_by_library, planned
from mugraph.runtime.placement import Placement, placement_of
from mugraph.targets.emulator import Emulator
from mugraph.targets.gpu import NvidiaGpu, gpu_index
from mugraph.targets.machine import KernelResources, Launched, Machine, machine_for

_RECOGNIZED = 4
"""Kinds of inputs that an executable recognizes, the latest first: on several GPUs, with and without inference mode."""


def build(graph: Graph, target: str = "cpu", cache_directory: Path | None = None) -> Executable:
    """Compile a kernel graph for a target: `cpu`, or `cuda:sm_90`, `triton:sm_90` and their like, which need no GPU for that.

    Raises TargetUnavailable for a target that cannot be compiled for here, InvalidGraph and UnsupportedOperator for
    graphs the target cannot run. Objects are cached in `cache_directory` (by default the user's, see
    `mugraph.support.store.cache_directory`).
    """
    return Executable(graph, machine_for(target), cache_directory=cache_directory)


def digest(sources: Mapping[str, str]) -> str:
    """A SHA-256 of named sources, to notice when saved ones were changed."""
    parts = (part for name in sorted(sources) for part in (name, sources[name]))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Executable:
    """Call it with one array per input of the graph, in order; it returns the list of outputs.

    All inputs are torch tensors on the target's device, or on a CPU all NumPy arrays, of exactly the graph's shapes and
    dtypes; contiguous ones are read in place. Safe to call from several threads. `graph` is the muGraph, `sources` the
    generated text by file name, `machine` the target, `launches` those of the generated kernels, by node.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        sources: Mapping[str, str] | None = None,
        cache_directory: Path | None = None,
        launches: Mapping[int, Launched] | None = None,
    ) -> None:
        """`sources` are compiled where given, else printed; `launches` are what the machine lowers the graph to, where that is
        known. Raises what `build` raises."""
        self.graph, self.machine = graph, machine
        launches = machine.lower(graph) if launches is None else launches
        kernels = [launch.kernel for launch in launches.values()]
        self.sources = machine.print(kernels) if sources is None else dict(sources)
        self._functions = machine.load(kernels, self.sources, cache_directory)
        self.launches = launches
        self._runs: dict[Arrays, Run] = {}
        self._recognized: tuple[tuple[Recognizer, RunInputs], ...] = ()

    def with_own_weights(self) -> Executable:
        """The same kernels for other weights, which are packed beside these."""
        if not self.packs:
            return self
        other = copy.copy(self)
        other._runs, other._recognized = {}, ()
        return other

    def forget_weights(self) -> None:
        """Give back the memory of weights that were packed; the next call packs them."""
        if self.packs:
            self._runs, self._recognized = {}, ()

    @property
    def packs(self) -> bool:
        """Whether constant inputs of `graph` are kept packed, by which their memory is taken once more."""
        return bool(self.packed_bytes)

    @property
    def packed_bytes(self) -> int:
        """What packed weights take."""
        return sum(self.packed_weights.values())

    @property
    def packed_weights(self) -> dict[tuple[int, Hashable], int]:
        """What packed weights take: by the number of the input that is packed, and how it is; who packs alike has it once."""
        if not self.graph.constants or self.machine.name != "cpu":  # by name: no other target keeps any
            return {}
        by_library = packed_by_library(self.graph, torch_arrays()) if find_spec("torch") is not None else {}
        by_kernels = {
            (owner_of(self.graph, value).node, packing): packing.elements * self.graph.tensor(value).dtype.bytes
            for launch in self.launches.values()
            for value, packing in launch.packings.items()
        }
        inputs = (index for index, node in enumerate(self.graph.nodes) if node.is_input)
        numbers = {index: number for number, index in enumerate(inputs)}
        return {(numbers[node], how): size for (node, how), size in (by_library | by_kernels).items()}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The generated kernels as lowered for the target, in order of launch."""
        return tuple(launch.kernel for launch in self.launches.values())

    @property
    def placement(self) -> Placement:
        """Where the tensors of `graph` lie."""
        return placement_of(self.graph, self.launches)

    @property
    def resources(self) -> Sequence[KernelResources]:
        """What each generated kernel takes of a GPU, in order of launch; empty for other machines."""
        place = TARGETS[self.machine.name].resources
        if place is None or not self.sources or isinstance(self.machine, Emulator):
            return ()
        resources: Sequence[KernelResources] = load(place)(self.machine, tuple(self.launches.values()), self.sources)
        return resources

    @property
    def digest(self) -> str:
        """The digest of `sources`."""
        return digest(self.sources)

    def __call__(self, *arrays: Any) -> list[Any]:
        outputs = self.recognized(arrays)
        return self._read(arrays) if outputs is None else outputs

    def into(self, arrays: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The outputs for these arrays: kernels write those of `outputs` that are given (others are None) and of the right shape
        and type, contiguous on the right device. The list has them where they were written, and new arrays otherwise."""
        made = self.recognized(arrays, outputs)
        return self._read(arrays, outputs) if made is None else made

    def recognized(self, arrays: Sequence[Any], into: Sequence[Any] = ()) -> list[Any] | None:
        """The outputs for arrays that cannot be told from those of an earlier call, where these were read in place; else None."""
        for recognize, run in self._recognized:
            addresses = recognize(arrays)
            if addresses is not None:
                return run(arrays, addresses, into)
        return None

    def load(self, device: int | None = None) -> None:
        """Load all kernels onto a GPU, by default torch's current one, so that no call has to; nothing on a CPU.

        Raises TargetUnavailable where there is no such GPU, LaunchFailed where its driver refuses.
        """
        if isinstance(self.machine, NvidiaGpu):
            self._run(torch_arrays(f"cuda:{gpu_index(device)}"))

    def _read(self, arrays: Sequence[Any], into: Sequence[Any] = ()) -> list[Any]:
        """The outputs, each input read with all that may be wrong with it; later calls with such inputs are recognized."""
        library = self.machine.arrays(arrays)
        library.expect_values(arrays)
        run = self._run(library)
        inputs = run.read(arrays)
        outputs = library.on_device(run)(inputs, [*map(library.pointer, inputs)], into)
        if all(read is given for read, given in zip(inputs, arrays, strict=True)):
            self._recognize(library, run, inputs)
        return outputs

    def _run(self, library: Arrays) -> Run:
        run = self._runs.get(library)
        if run is None:
            run = self._runs[library] = planned(self.graph, self.launches, self._functions, library)
        return run

    def _recognize(self, library: Arrays, run: Run, inputs: Sequence[Any]) -> None:
        recognizer = library.recognizer(inputs)
        if recognizer is not None and recognizer(inputs) is not None:  # within a mode it may not be
            self._recognized = ((recognizer, library.on_device(run)), *self._recognized)[:_RECOGNIZED]
