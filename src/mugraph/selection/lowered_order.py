"""The order of proposals by what their lowered kernels ask of shared memory, which is known only after lowering.

Schedules are costed before anything is lowered (`mugraph.search.scheduling.cost_table`), so bank conflicts and what threads load
and store in shared memory have no part in it. Lowered kernels have layouts, and all turns of a block's accesses can be counted.
A part of them, the same for all kernels (`turn_share` of a device), is added to the work of a multiprocessor's threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mugraph.devices import Device
from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph
from mugraph.lower.thread_graphs import construct
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import kernel_seconds
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import Launched, Machine


class LoweredProposal(NamedTuple):
    """A proposal with its thread graphs, and the launches of its kernels by node."""

    graph: Graph
    launches: Mapping[int, Launched]


@runtime_checkable
class CountsTurns(Protocol):
    """A machine that knows how its printer accesses shared memory."""

    def turns(self, kernel: Any) -> float:
        """Turns in which shared memory serves the accesses of a block, bank conflicts included."""
        ...


def by_lowered(
    proposals: Sequence[tuple[Graph, float]],
    machine: Machine,
    device: Device,
    deadline: Deadline,
    lowered: MutableMapping[Graph, LoweredProposal],
) -> list[tuple[Graph, float]]:
    """Proposals (muGraph, predicted seconds), best first by predicted seconds with the turns of shared memory.

    Predicted seconds stay those that they came with, and so does the order where the machine counts no turns, the device has no
    price for them, or the deadline passes before all are lowered. What cannot be lowered has no turns. What others are lowered to
    is put into `lowered` by their muGraphs, and taken from there where it is known.
    """
    if len(proposals) < 2 or not device.turn_share or not isinstance(machine, CountsTurns):
        return list(proposals)
    refined: list[float] = []
    for graph, seconds in proposals:
        if deadline.passed:
            return list(proposals)
        try:
            if graph not in lowered:
                fused = construct(graph)
                lowered[graph] = LoweredProposal(fused, machine.lower(fused))
            refined.append(seconds + turn_seconds(lowered[graph].launches.values(), machine, device))
        except MugraphError:
            refined.append(seconds)
    order = sorted(range(len(proposals)), key=refined.__getitem__)
    return [proposals[number] for number in order]


def turn_seconds(launches: Iterable[Launched], machine: CountsTurns, device: Device) -> float:
    """Predicted seconds that turns of shared memory add to those of generated kernels, at the price of the device."""
    total = 0.0
    for launch in launches:
        asked = demand(launch.body, device)
        each = device.turn_share / device.clock_hertz / device.multiprocessors
        turning = asked._replace(compute=asked.compute + each * machine.turns(launch.kernel))
        total += float(kernel_seconds(device, turning)) - float(kernel_seconds(device, asked))
    return total
