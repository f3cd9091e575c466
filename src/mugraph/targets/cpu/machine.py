"""This host as a target: C compiled into one shared object, run on torch's thread pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mugraph.devices.host import kernel_threads
from mugraph.errors import InvalidInput
from mugraph.host.array_interface import Arrays
from mugraph.host.arrays import arrays_of
from mugraph.host.thread_pool import load_thread_pool
from mugraph.ir.graph import Graph
from mugraph.lower import Launch, lower, with_shared_kernels
from mugraph.lower.first_slices import Slices, with_first_slices
from mugraph.lower.growing_inputs import Lengths, check_readers, with_lengths
from mugraph.lower.inlining import with_cheap_values_inlined, with_joined_reductions
from mugraph.lower.narrowing import with_copies_of_own_type, with_rounded_factors
from mugraph.lower.skipped_iterations import with_skips
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.lower.tile_text import format_kernel
from mugraph.lower.values_in_outputs import with_values_in_outputs
from mugraph.targets.cpu import Vectors, print_program
from mugraph.targets.cpu.calls import CompiledKernel
from mugraph.targets.cpu.compiler import find_compiler, load_shared
from mugraph.targets.cpu.dequantized_factors import with_dequantized_factors
from mugraph.targets.cpu.matmul import product_stops
from mugraph.targets.cpu.packed_factors import with_packed_factors
from mugraph.targets.machine import LOWERED, Functions, Timed

SOURCE_NAME = "kernels.c"
PASSES = (with_joined_reductions, with_cheap_values_inlined, with_copies_of_own_type, with_values_in_outputs)
"""What is changed in kernels whose blocks are one thread."""
LANES = (4, 8, 16)
"""Floats in a vector register, of the units there are."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Kernels for a vector unit: by default the widest of this host.

    `matrix_units` says which products the matrix units of a GPU multiply, whose kernels stand in for that GPU's in numerical
    checks: factors are rounded as these units round them.
    """

    name: ClassVar[str] = "cpu"

    vectors: Vectors | None = None
    matrix_units: Callable[[Matmul], bool] | None = None

    @classmethod
    def of(cls, target: str) -> Cpu:
        """This host."""
        return cls()

    @classmethod
    def recorded(cls, target: str, parameters: Mapping[str, Any]) -> Cpu:
        """The machine that says this of itself; raises InvalidInput for what is no vector unit."""
        kinds = {name: type(value) for name, value in parameters.items()}
        if kinds != {"lanes": int, "registers": int, "bf16_pairs": bool, "tiles": bool} or parameters["lanes"] not in LANES:
            raise InvalidInput(f"{dict(parameters)} describes no vector unit that kernels are printed for; optimize again")
        return cls(Vectors(**parameters))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Its vector unit."""
        return asdict(self.vectors or find_compiler().vectors)

    @property
    def available(self) -> bool:
        """Always: what is compiled for this host runs here."""
        return True

    @property
    def stand_in(self) -> Cpu:
        """Itself."""
        return self

    def lower(self, graph: Graph) -> dict[int, Launch]:
        """The launches of a kernel graph, by node."""
        launches = self._lowered(graph, graph.constants)
        if self.matrix_units is not None:
            launches = {
                index: replace(launch, kernel=with_rounded_factors(launch.kernel, self.matrix_units))
                for index, launch in launches.items()
            }
        return with_shared_kernels(launches)

    @property
    def takes_numbers(self) -> bool:
        """Kernels read where numbers lie."""
        return False

    def lower_slices(self, graph: Graph, slices: Slices) -> dict[int, Launch]:
        """The launches of a kernel graph that compute its first slices, as many as a call says.

        Raises UnsupportedOperator where slices are not computed one by one.
        """
        stops = partial(product_stops, self.vectors or find_compiler().vectors)
        launches = self._lowered(graph, graph.constants - {value.node for value in slices.inputs})
        return with_shared_kernels(with_first_slices(graph, launches, slices, stops))

    def _lowered(self, graph: Graph, constants: Collection[int]) -> dict[int, Launch]:
        """The launches of a kernel graph that read weights, which are inputs of these numbers, packed where they can."""
        launches = {index: with_skips(launch, graph) for index, launch in lower(graph, passes=PASSES).items()}
        return self._with_packed_weights(launches, constants)

    def lower_growing(self, graph: Graph, lengths: Lengths) -> dict[int, Launch]:
        """The launches of a kernel graph that read inputs where their callers have them, up to a length that a call gives.

        Raises UnsupportedOperator where an input is read in ways that are not known to stay within it.
        """
        check_readers(graph, lengths)
        lowered = lower(graph, passes=PASSES, strides=lengths.strides(graph))
        launches = {index: with_skips(launch, graph) for index, launch in lowered.items()}
        launches = self._with_packed_weights(launches, graph.constants - {value.node for value in lengths.axes})
        stops = partial(product_stops, self.vectors or find_compiler().vectors)
        return with_shared_kernels({index: with_lengths(launch, graph, lengths, stops) for index, launch in launches.items()})

    def _with_packed_weights(self, launches: dict[int, Launch], constants: Collection[int]) -> dict[int, Launch]:
        """The launches of kernels that read weights, which are inputs of these numbers, packed where they can."""
        if not constants:
            return launches
        return {index: self._packed(launch, constants) for index, launch in launches.items()}

    def _packed(self, launch: Launch, constants: Collection[int]) -> Launch:
        """The launch of a kernel that reads weights packed where it can."""
        weights = {
            name: value for name, value in zip(launch.kernel.inputs, launch.inputs, strict=True) if value.node in constants
        }
        vectors = self.vectors or find_compiler().vectors
        kernel, packings = with_dequantized_factors(launch.kernel, weights.keys(), vectors)
        kernel, others = with_packed_factors(kernel, [name for name in weights if name not in packings], vectors)
        packed = {weights[name]: packing for name, packing in (packings | others).items()}
        return replace(launch, kernel=kernel, packings=packed)

    def explain(self, graph: Graph) -> Iterator[tuple[str, str, str]]:
        """Each kernel as it is lowered: a block is one thread, and takes no passes."""
        for kernel in dict.fromkeys(launch.kernel for launch in self.lower(graph).values()):
            yield kernel.name, LOWERED, format_kernel(kernel)

    def print(self, kernels: Sequence[Kernel]) -> dict[str, str]:
        """One C file, in which each kernel stands once."""
        return {SOURCE_NAME: print_program([*dict.fromkeys(kernels)], self.vectors or find_compiler().vectors)} if kernels else {}

    def load(self, kernels: Sequence[Kernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """The kernels of the shared object; raises UntrustedSources for sources of another version of mugraph, too."""
        if not kernels:
            return {}
        load_thread_pool()
        library = load_shared(sources[SOURCE_NAME], cache_directory)
        return {kernel.name: CompiledKernel(library, kernel) for kernel in kernels}

    def arrays(self, inputs: Sequence[Any]) -> Arrays:
        """CPU tensors of PyTorch, or NumPy arrays."""
        return arrays_of(inputs)

    def moved(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs themselves."""
        return list(inputs)

    def timed(self, call: Callable[[], object]) -> Timed:
        """The call itself: it returns when its kernels are done.

        On one thread it takes the time of this process, which other processes of a busy machine do not stretch. The processor
        time of several says nothing of how evenly they share the work, so these take the time that passes.
        """
        alone = kernel_threads() == 1
        return Timed(call, clock=time.process_time if alone else time.perf_counter, waits=not alone)
