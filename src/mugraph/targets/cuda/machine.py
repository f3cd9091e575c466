"""NVIDIA GPUs as a target: CUDA C++ compiled by NVRTC here, launched where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from mugraph.devices import NO_ENGINES, Engines, device_for
from mugraph.ir.graph import Graph
from mugraph.lower import ALL_PASSES, Launch, Passes, lower, with_shared_kernels
from mugraph.lower.device_layouts import with_device_layouts
from mugraph.lower.first_slices import Slices, any_product, with_first_slices
from mugraph.lower.fragments import on_matrix_units
from mugraph.lower.lower import require_no_lookups
from mugraph.lower.pipeline import stages
from mugraph.lower.tensor_maps import tensor_maps
from mugraph.lower.thread_graphs import FusionRule
from mugraph.lower.tile_form import Kernel
from mugraph.lower.tile_text import format_kernel
from mugraph.lower.waits import Waits, waits_of
from mugraph.support.store import Store
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.cuda import print_program
from mugraph.targets.cuda.nvrtc import SOURCE_NAME, compile_cubin, compiler_version
from mugraph.targets.cuda.slices import rows_of_maps
from mugraph.targets.gpu import NvidiaGpu
from mugraph.targets.launch import Launcher, LaunchShape, SlicedLaunch
from mugraph.targets.machine import LOWERED, Functions

_NEVER = FusionRule("never", lambda link: False)
_NAMED_IF_KNOWN = ("cache_bytes", "bytes_in_flight")
"""What a machine says of the memory of its device, if that is known."""


@dataclass(frozen=True, slots=True)
class Cuda(NvidiaGpu):
    """CUDA C++ for GPUs of one architecture.

    `engines` are the units beside the threads that kernels may use; a target's machine has all that its devices have.
    """

    name: ClassVar[str] = "cuda"

    passes: Passes = ALL_PASSES
    engines: Engines = NO_ENGINES
    multiprocessors: int = 0
    cache_bytes: int = 0
    """Of the last cache, for what all blocks read, for which they are put in order; 0: they run as they are numbered."""
    bytes_in_flight: int = 0
    """That are to be on their way to a multiprocessor; 0: rings are as deep as panels of the usual size want them."""

    @classmethod
    def of(cls, target: str) -> Cuda:
        """The machine of a target such as `cuda:sm_90`; raises TargetUnavailable for an unknown one, or without a compiler."""
        compiler_version()
        return cls.described(target)

    @classmethod
    def described(cls, target: str) -> Cuda:
        """The same, where it need only print."""
        device = device_for(target)
        return cls(
            device.target.split(":")[1],
            device.shared_memory_bytes,
            engines=device.engines,
            multiprocessors=device.multiprocessors,
            cache_bytes=device.common_cache_bytes,
            bytes_in_flight=device.bytes_in_flight,
        )

    @classmethod
    def recorded(cls, target: str, parameters: Mapping[str, Any]) -> Cuda:
        """The machine of a target; what it says of itself follows from the name, but that blocks have no order where it names no
        cache, or that for a whole one where it names that, and that rings are as deep as usual where it names no bytes in flight.
        """
        named: dict[str, Any] = {name: 0 for name in _NAMED_IF_KNOWN if name not in parameters}
        whole = device_for(target).shared_cache_bytes
        if parameters.get("cache_bytes") == whole:
            named["cache_bytes"] = whole
        return replace(cls.described(target), **named)

    @property
    def stand_in(self) -> Cpu:
        """This host, with factors rounded as the matrix units round them."""
        return Cpu(matrix_units=on_matrix_units)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The architecture, its units, how many multiprocessors its device has, and what is known of its memory."""
        known = {name: number for name in _NAMED_IF_KNOWN if (number := getattr(self, name))}
        return known | {
            "architecture": self.architecture,
            "shared_bytes": self.shared_bytes,
            "engines": asdict(self.engines),
            "multiprocessors": self.multiprocessors,
        }

    def lower(self, graph: Graph) -> dict[int, Launch]:
        """The launches of a kernel graph, by node; raises ExceedsMemory where a block's tiles do not fit."""
        return self._finished(self._between_kernels(graph))

    def _finished(self, launches: Mapping[int, Launch]) -> dict[int, Launch]:
        """The launches with kernels behind all passes."""
        finished = {kernel: self._after_each_pass(kernel)[-1][1] for kernel in _kernels(launches)}
        return {index: replace(launch, kernel=finished[launch.kernel]) for index, launch in launches.items()}

    @property
    def takes_numbers(self) -> bool:
        """Kernels take the number of slices in the place of an address, which a launch brings along."""
        return True

    def lower_slices(self, graph: Graph, slices: Slices) -> dict[int, Launch]:
        """The launches of a kernel graph that compute its first slices, as many as a call says.

        Raises UnsupportedOperator where slices are not computed one by one, and ExceedsMemory as `lower` does.
        """
        return self._finished(self._between_kernels(graph, slices))

    def waits(self, kernel: Kernel) -> Waits:
        """What a block of a lowered kernel waits for."""
        return waits_of(kernel)

    def explain(self, graph: Graph) -> Iterator[tuple[str, str, str]]:
        """Each kernel after each pass."""
        for lowered in _kernels(self._between_kernels(graph)):
            for name, kernel in (LOWERED, lowered), *self._after_each_pass(lowered):
                yield kernel.name, name, format_kernel(kernel)

    def _between_kernels(self, graph: Graph, slices: Slices | None = None) -> dict[int, Launch]:
        """The launches with kernels as they are lowered for one thread, on device tensors in their layouts; where there are
        `slices`, these compute the first of them."""
        launches = lower(graph) if self.passes.thread_graphs else lower(graph, rules=(_NEVER,))
        require_no_lookups(launches)
        if slices is not None:
            launches = with_first_slices(graph, launches, slices, any_product)
        shared = with_shared_kernels(with_device_layouts(graph, launches) if self.passes.layouts else launches)
        return _chained(shared) if self.engines.early_launches and len(shared) > 1 else shared

    def _after_each_pass(self, kernel: Kernel) -> list[tuple[str, Kernel]]:
        memory = (self.cache_bytes, self.bytes_in_flight)
        return [*stages(kernel, self.shared_bytes, self.passes, self.engines, self.multiprocessors, *memory)]

    def print(self, kernels: Sequence[Kernel]) -> dict[str, str]:
        """One CUDA C++ file, in which each kernel stands once."""
        return {SOURCE_NAME: print_program([*dict.fromkeys(kernels)])} if kernels else {}

    def load(self, kernels: Sequence[Kernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Functions that launch the kernels on torch's current stream; a GPU is needed when the first one is loaded."""
        if not kernels:
            return {}
        store = Store.of(None) if cache_directory is None else Store(cache_directory)
        cubin = compile_cubin(sources[SOURCE_NAME], self.architecture, store)
        return {kernel.name: Launcher(cubin, kernel.name, launch_shape(kernel)) for kernel in kernels}


def _chained(launches: Mapping[int, Launch]) -> dict[int, Launch]:
    """The launches with kernels that may be launched before those before them are over."""
    return {index: replace(launch, kernel=replace(launch.kernel, chained=True)) for index, launch in launches.items()}


def _kernels(launches: Mapping[int, Launch]) -> list[Kernel]:
    """The kernels of launches, each once, in their order."""
    return [*dict.fromkeys(launch.kernel for launch in launches.values())]


def launch_shape(kernel: Kernel) -> LaunchShape:
    """How a lowered kernel is launched: its printer numbers the blocks along one dimension, and puts tensor maps last."""
    blocks = 1
    for count in kernel.grid:
        blocks *= count
    names = (*kernel.inputs, *kernel.outputs)
    maps = tuple((names.index(matrix.buffer), matrix) for matrix in tensor_maps(kernel))
    return LaunchShape(
        (blocks,),
        kernel.launched_threads,
        kernel.shared_bytes,
        maps,
        kernel.chained,
        SlicedLaunch.of(kernel, rows_of_maps(kernel)),
    )
