"""The ablation of the paper's Figure 13: what the kernels of a muGraph take when one optimization is left out.

Without a GPU there are no times: what stands for them are the figures that each optimization is to lower, counted for one block
of every kernel from its lowered form and taken from the assembler, and the time that the cost model makes of these: threads wait
at barriers and for turns of shared memory, while copies go on. On a CPU kernels are timed; of the four optimizations its target
has thread graphs alone, for it has no banks, no barriers and no tiles that a block would have to place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

from mugraph.devices import Device, device_for
from mugraph.errors import ExceedsMemory
from mugraph.ir.graph import Graph
from mugraph.lower import ALL_PASSES, Launch, Passes, lower
from mugraph.lower.access_costs import block_traffic
from mugraph.lower.staging import panels_of_kernel
from mugraph.lower.thread_graphs import FusionRule
from mugraph.lower.tile_form import Kernel
from mugraph.lower.waits import barriers_beside_ring
from mugraph.runtime import Executable
from mugraph.runtime.benchmarking import medians
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import kernel_seconds
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import Launched

PAPER = "the paper's Figure 13 (GQA, batch 1, A100): leaving one out makes the kernel 5% to 70% slower"
FULL = "all optimizations"

_CALLS = 50
"""Of each variant, in turn."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernels of a muGraph together, each weighed by one of its blocks."""

    barriers: int
    """That a block runs through."""
    wavefronts: float
    """Turns of shared memory that a block's accesses to its tiles take, conflicts included (estimated)."""
    shared_bytes: int
    """Of the kernel that has most."""
    resident_blocks: int
    """Of that kernel on one multiprocessor, as far as shared memory goes."""
    registers: int
    """Of the kernel that has most."""
    spill_bytes: int
    predicted_seconds: float
    """Of all kernels on the whole device."""

    def __str__(self) -> str:
        return (
            f"{self.barriers} barriers, {self.wavefronts:.0f} wavefronts, {self.shared_bytes} bytes shared "
            f"({self.resident_blocks} blocks a multiprocessor), {self.registers} registers, {self.spill_bytes} bytes spilled, "
            f"{1e6 * self.predicted_seconds:.1f} us predicted"
        )


def ablate(graph: Graph, target: str) -> Iterator[tuple[str, Variant | None]]:
    """The figures with all optimizations, then with each left out; None where the kernels do not fit the device without it.

    Raises TargetUnavailable for a target other than cuda, or without its compiler.
    """
    machine, device = Cuda.of(target), device_for(target)
    for name, passes in variants():
        try:
            yield name, _variant(Executable(graph, replace(machine, passes=passes)), device)
        except ExceedsMemory:
            yield name, None


def measure_on_cpu(graph: Graph, inputs: Sequence[Any]) -> dict[str, float]:
    """Median seconds of a call on this CPU with all optimizations that it has, and without thread graphs."""
    machines = {FULL: Cpu(), "no thread graphs": _EveryOperatorStores()}
    calls = {name: partial(Executable(graph, machine), *inputs) for name, machine in machines.items()}
    return medians(calls, _CALLS)


@dataclass(frozen=True)
class _EveryOperatorStores(Cpu):
    """The CPU target without thread graphs."""

    def lower(self, graph: Graph) -> dict[int, Launch]:
        return lower(graph, rules=(FusionRule("never", lambda link: False),))


def variants() -> Iterator[tuple[str, Passes]]:
    """All passes, then all but one for each."""
    yield FULL, ALL_PASSES
    for optimization in fields(Passes):
        yield f"no {optimization.name.replace('_', ' ')}", replace(ALL_PASSES, **{optimization.name: False})


def to_json(rows: Sequence[tuple[str, Variant | None]]) -> dict[str, Any]:
    """The rows as JSON values."""
    return {"paper": PAPER, "variants": {name: None if variant is None else asdict(variant) for name, variant in rows}}


def table(rows: Sequence[tuple[str, Variant | None]]) -> str:
    """The rows as text, one a line."""
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {'does not fit' if variant is None else variant}" for name, variant in rows]
    return "\n".join([*lines, f"({PAPER})"])


def _variant(executable: Executable, device: Device) -> Variant:
    launches = list(executable.machine.lower(executable.graph).values())
    kernels = [launch.kernel for launch in launches]
    shared_bytes = device.shared_memory_bytes
    figures = executable.resources
    largest = max(kernel.shared_bytes for kernel in kernels)
    return Variant(
        barriers=sum(map(_barriers, kernels)),
        wavefronts=sum(block_traffic(kernel).wavefronts for kernel in kernels),
        shared_bytes=largest,
        resident_blocks=shared_bytes // max(largest, 1) if largest > 1024 else shared_bytes // 1024,
        registers=max(kernel.registers for kernel in figures),
        spill_bytes=sum(kernel.spill_bytes for kernel in figures),
        predicted_seconds=sum(_predicted(launch, device) for launch in launches),
    )


def _predicted(launch: Launched, device: Device) -> float:
    """Seconds of a kernel: matrix units work at their rate, accesses take their turns, barriers the time of a step in a loop."""
    products = demand(launch.body, replace(device, vector_flops=math.inf))
    turns = block_traffic(launch.kernel).wavefronts / device.clock_hertz / device.multiprocessors
    counted = products._replace(
        compute=products.compute + turns, loop=1, steps=_barriers(launch.kernel), held=launch.kernel.shared_bytes
    )
    return float(kernel_seconds(device, counted))


def _barriers(kernel: Kernel) -> int:
    """Barriers before statements and panels that one block meets."""
    return barriers_beside_ring(kernel) + panels_of_kernel(kernel)
