"""GPUs as targets of Triton kernels, which are compiled here: NVIDIA's, on which they are also launched, and AMD's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mugraph.devices import device_for
from mugraph.devices.device import any_gpu
from mugraph.errors import TargetUnavailable, UnsupportedOperator
from mugraph.ir.graph import Graph
from mugraph.lower.first_slices import Slices
from mugraph.lower.tile_text import format_kernel
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.gpu import NvidiaGpu, TorchGpu
from mugraph.targets.launch import Launcher, LaunchShape
from mugraph.targets.machine import Functions
from mugraph.targets.triton import TileKernel, TileLaunch, print_program, tile_launches
from mugraph.targets.triton.compiler import CompiledTriton, NvidiaKernel, compile_kernel, triton_version, variant_of
from mugraph.targets.triton.kernel import explained
from mugraph.targets.triton.units import AMD, Units, units_of

SOURCE_NAME = "kernels.py"


@dataclass(frozen=True, slots=True)
class TritonMachine(TorchGpu, ABC):
    """Triton kernels for GPUs of one architecture."""

    name: ClassVar[str] = "triton"

    @staticmethod
    def of(target: str) -> TritonMachine:
        """The machine of a target such as `triton:sm_90`; raises TargetUnavailable for an unknown one, or without Triton."""
        triton_version()
        return TritonMachine.described(target)

    @staticmethod
    def described(target: str) -> TritonMachine:
        """The same, where it need only print."""
        architecture = device_for(target).target.split(":")[1]
        kind, gpu = TritonOnAmd if architecture in AMD else Triton, any_gpu(architecture)
        assert gpu is not None, "it has a device"
        return kind(architecture, gpu.shared_memory_bytes)

    @staticmethod
    def recorded(target: str, parameters: Mapping[str, Any]) -> TritonMachine:
        """The machine of a target; what it says of itself follows from the name."""
        return TritonMachine.described(target)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The architecture; the text depends on no more."""
        return {"architecture": self.architecture, "shared_bytes": self.shared_bytes}

    @property
    def units(self) -> Units:
        """What the text depends on of the architecture."""
        return units_of(self.architecture)

    @property
    def stand_in(self) -> Cpu:
        """This host, with factors rounded as `tl.dot` gets them."""
        return Cpu(matrix_units=self.units.rounds_factors)

    @property
    def takes_numbers(self) -> bool:
        """Kernels take the number of slices in the place of an address, which a launch brings along."""
        return True

    def lower_slices(self, graph: Graph, slices: Slices) -> dict[int, TileLaunch]:
        """The launches of a kernel graph that compute its first slices, as many as a call says.

        Raises UnsupportedOperator where slices are not computed one by one, and as `lower` does.
        """
        return self._launches(graph, slices)

    def lower(self, graph: Graph) -> dict[int, TileLaunch]:
        """The launches of a kernel graph, by node; raises UnsupportedOperator for inputs of a type that Triton does not read."""
        return self._launches(graph)

    def _launches(self, graph: Graph, slices: Slices | None = None) -> dict[int, TileLaunch]:
        for node in graph.inputs():
            if node.output.dtype in self.units.unread:
                raise UnsupportedOperator(
                    f"Triton reads no {node.output.dtype} on {self.architecture} (input {node['name']}); use target='cuda:...'"
                )
        return tile_launches(graph, self.units, slices)

    def explain(self, graph: Graph) -> Iterator[tuple[str, str, str]]:
        """Each kernel after each pass; it is printed from the last form, as passes over threads and memory are Triton's own."""
        for kernel, step, form in explained(graph):
            yield kernel, step, format_kernel(form)

    def print(self, kernels: Sequence[TileKernel]) -> dict[str, str]:
        """One Python file, which runs by itself."""
        return {SOURCE_NAME: print_program(kernels, SOURCE_NAME)} if kernels else {}

    def tuned_source(self, graph: Graph, name: str) -> str:
        """The file `name` of a kernel graph, whose kernels are timed in a few configurations at their first launch."""
        return print_program([replace(launch.kernel, tuned=True) for launch in self.lower(graph).values()], name)

    @property
    @abstractmethod
    def available(self) -> bool:
        """Whether kernels are launched here."""

    @abstractmethod
    def load(self, kernels: Sequence[TileKernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Compile the kernels, to functions that launch them or say why they do not."""

    def compiled(self, kernel: TileKernel, sources: Mapping[str, str]) -> CompiledTriton:
        """A kernel of the printed file as machine code; raises what `compile_kernel` raises."""
        return compile_kernel(kernel, sources[SOURCE_NAME], self.architecture, self.shared_bytes)


@dataclass(frozen=True, slots=True)
class Triton(NvidiaGpu, TritonMachine):
    """For NVIDIA's GPUs: compiled here, launched where there is one."""

    @property
    def variant(self) -> str:
        """The variant that Triton makes code for, which from sm_90 on runs on no other GPU."""
        return variant_of(self.architecture)

    def load(self, kernels: Sequence[TileKernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Functions that launch the kernels on torch's current stream; a GPU is needed when the first one is loaded."""
        return {kernel.name: launcher(self.compiled(kernel, sources), kernel) for kernel in kernels}

    def compiled(self, kernel: TileKernel, sources: Mapping[str, str]) -> NvidiaKernel:
        """A kernel of the printed file as machine code that the driver loads."""
        made = TritonMachine.compiled(self, kernel, sources)
        assert isinstance(made, NvidiaKernel)
        return made


@dataclass(frozen=True, slots=True)
class TritonOnAmd(TritonMachine):
    """For AMD's GPUs: compiled here, and launched by the printed file."""

    @property
    def available(self) -> bool:
        """No: kernels are launched by the driver of NVIDIA's GPUs."""
        return False

    def load(self, kernels: Sequence[TileKernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Compile the kernels, to functions that say how to run them."""
        for kernel in kernels:
            self.compiled(kernel, sources)
        return {kernel.name: partial(self._refuse, kernel.name) for kernel in kernels}

    def _refuse(self, name: str, *addresses: int) -> None:
        raise TargetUnavailable(
            f"kernel {name} for {self.architecture} is not launched from here: call `run` of its {SOURCE_NAME} on such a GPU"
        )


def launcher(compiled: NvidiaKernel, kernel: TileKernel) -> Launcher:
    """How a compiled kernel is launched: as those of the CUDA target are, since what Triton loads is bound to the GPU that was
    current at its first call, and its launches take longer."""
    shape = LaunchShape((kernel.blocks,), compiled.threads, compiled.shared_bytes, sliced=kernel.sliced)
    return Launcher(compiled.cubin, compiled.name, shape, scratch=compiled.parameters - len(kernel.parameters))
