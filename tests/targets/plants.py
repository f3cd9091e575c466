"""Faults planted in the CUDA text of one graph."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from mugraph.ir import Graph
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda
from targets.test_cuda import ERRORS, emulated

Plant = tuple[str, str, set[Fault]]
"""A pattern, what stands in its place, and the findings by which that is known; none where it only computes something else."""


@cache
def sound(graph: Graph, machine: Cuda, apart: bool) -> Executable:
    """The kernels of a graph without a fault, on the emulator."""
    return Executable(graph, EmulatedCuda(machine, apart=apart))


def shows(graph: Graph, machine: EmulatedCuda, plant: Plant) -> bool:
    """Whether a fault planted in the kernel of a graph gives an expected finding or a wrong result."""
    pattern, replacement, expected = plant
    kernels = sound(graph, machine.machine, machine.apart)
    (text,) = kernels.sources.values()
    changed, places = re.subn(pattern, replacement, text)
    assert places, "the fault has no place in the kernel"
    on = replace(machine, edit=lambda printed: changed, findings=[])
    right = emulated(graph, on, lowered=kernels) < ERRORS[graph.inputs()[0].output.dtype]
    return bool({finding.fault for finding in on.findings} & expected) or not right
