"""NVIDIA GPUs as a target of Triton kernels: compiled here, launched where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mugraph.devices import device_for
from mugraph.ir.graph import Graph
from mugraph.lower.tile_text import format_kernel
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.gpu import NvidiaGpu
from mugraph.targets.launch import Launcher, LaunchShape
from mugraph.targets.machine import Functions
from mugraph.targets.triton import TileKernel, TileLaunch, print_program, tile_launches
from mugraph.targets.triton.compiler import CompiledTriton, compile_kernel, triton_version, variant_of
from mugraph.targets.triton.kernel import explained
from mugraph.targets.triton.products import is_dot

SOURCE_NAME = "kernels.py"


@dataclass(frozen=True, slots=True)
class Triton(NvidiaGpu):
    """Triton kernels for GPUs of one architecture."""

    name: ClassVar[str] = "triton"

    @classmethod
    def of(cls, target: str) -> Triton:
        """The machine of a target such as `triton:sm_90`; raises TargetUnavailable for an unknown one, or without Triton."""
        triton_version()
        return cls.described(target)

    @classmethod
    def described(cls, target: str) -> Triton:
        """The same, where it need only print."""
        architecture = device_for(target).target.split(":")[1]
        return cls(architecture, device_for(f"cuda:{architecture}").shared_memory_bytes)

    @classmethod
    def recorded(cls, target: str, parameters: Mapping[str, Any]) -> Triton:
        """The machine of a target; what it says of itself follows from the name."""
        return cls.described(target)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The architecture; the text depends on no more."""
        return {"architecture": self.architecture, "shared_bytes": self.shared_bytes}

    @property
    def variant(self) -> str:
        """The variant that Triton makes code for, which from sm_90 on runs on no other GPU."""
        return variant_of(self.architecture)

    @property
    def stand_in(self) -> Cpu:
        """This host, with factors rounded as `tl.dot` gets them."""
        return Cpu(matrix_units=is_dot)

    def lower(self, graph: Graph) -> dict[int, TileLaunch]:
        """The launches of a kernel graph, by node."""
        return tile_launches(graph)

    def explain(self, graph: Graph) -> Iterator[tuple[str, str, str]]:
        """Each kernel after each pass; it is printed from the last form, as passes over threads and memory are Triton's own."""
        for kernel, step, form in explained(graph):
            yield kernel, step, format_kernel(form)

    def print(self, kernels: Sequence[TileKernel]) -> dict[str, str]:
        """One Python file, which runs by itself."""
        return {SOURCE_NAME: print_program(kernels, SOURCE_NAME)} if kernels else {}

    def load(self, kernels: Sequence[TileKernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Functions that launch the kernels on torch's current stream; a GPU is needed when the first one is loaded."""
        return {kernel.name: launcher(self.compiled(kernel, sources), kernel) for kernel in kernels}

    def compiled(self, kernel: TileKernel, sources: Mapping[str, str]) -> CompiledTriton:
        """A kernel of the printed file as machine code; raises what `compile_kernel` raises."""
        return compile_kernel(kernel, sources[SOURCE_NAME], self.architecture, self.shared_bytes)


def launcher(compiled: CompiledTriton, kernel: TileKernel) -> Launcher:
    """How a compiled kernel is launched: as those of the CUDA target are, since what Triton loads is bound to the GPU that was
    current at its first call, and its launches take longer."""
    shape = LaunchShape((kernel.blocks,), compiled.threads, compiled.shared_bytes)
    return Launcher(compiled.cubin, compiled.name, shape, scratch=compiled.parameters - len(kernel.parameters))
