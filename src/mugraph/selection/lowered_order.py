"""The order of proposals by what the threads of their lowered kernels wait for, which is known only after lowering.

Schedules are costed before anything is lowered (`mugraph.search.scheduling.cost_table`), so bank conflicts, what threads load and
store in shared memory, barriers and the panels of rings have no part in it. In lowered kernels all of these can be counted. Turns
and barriers are added to the work of a multiprocessor's threads, at prices that are the same for all kernels, and the copies into
a ring take the latency of a busy memory as often as the panels that are on their way at a time are renewed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mugraph.devices import Device
from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph
from mugraph.lower.thread_graphs import construct
from mugraph.lower.waits import Waits
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import NOT_HIDDEN, kernel_seconds
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import Launched, Machine


class LoweredProposal(NamedTuple):
    """A proposal with its thread graphs, and the launches of its kernels by node."""

    graph: Graph
    launches: Mapping[int, Launched]


class Prices(NamedTuple):
    """Seconds of what blocks wait for."""

    turn: float
    barrier: float
    latency: float

    @classmethod
    def of(cls, device: Device) -> Prices:
        """A barrier delays threads as much as an operator of an iteration does."""
        return cls(device.turn_share / device.clock_hertz, device.iteration_seconds, device.busy_load_seconds)


@runtime_checkable
class CountsWaits(Protocol):
    """A machine that knows how its printer accesses shared memory, where threads meet, and how rings are filled."""

    def waits(self, kernel: Any) -> Waits:
        """What a block of a lowered kernel waits for."""
        ...


def by_lowered(
    proposals: Sequence[tuple[Graph, float]],
    machine: Machine,
    device: Device,
    deadline: Deadline,
    lowered: MutableMapping[Graph, LoweredProposal],
) -> list[tuple[Graph, float]]:
    """Proposals (muGraph, predicted seconds), best first by predicted seconds with what their kernels wait for.

    Predicted seconds stay those that they came with, and so does the order where the machine counts nothing, no latency of the
    device is known, or the deadline passes before all are lowered. What cannot be lowered waits for nothing. What others are
    lowered to is put into `lowered` by their muGraphs, and taken from there where it is known.
    """
    if len(proposals) < 2 or not device.load_seconds or not isinstance(machine, CountsWaits):
        return list(proposals)
    prices = Prices.of(device)
    refined: list[float] = []
    for graph, seconds in proposals:
        if deadline.passed:
            return list(proposals)
        try:
            if graph not in lowered:
                fused = construct(graph)
                lowered[graph] = LoweredProposal(fused, machine.lower(fused))
            refined.append(seconds + waiting_seconds(lowered[graph].launches.values(), machine, device, prices))
        except MugraphError:
            refined.append(seconds)
    order = sorted(range(len(proposals)), key=refined.__getitem__)
    return [proposals[number] for number in order]


def waiting_seconds(launches: Iterable[Launched], machine: CountsWaits, device: Device, prices: Prices) -> float:
    """Predicted seconds that what blocks wait for adds to those of generated kernels."""
    return sum(_added(launch, machine.waits(launch.kernel), device, prices) for launch in launches)


def _added(launch: Launched, waits: Waits, device: Device, prices: Prices) -> float:
    """Latencies are one more roof, which does not hide all of the others."""
    asked = demand(launch.body, device)
    held_up = (prices.turn * waits.turns + prices.barrier * waits.barriers) / device.multiprocessors
    working = float(kernel_seconds(device, asked._replace(compute=asked.compute + held_up)))
    rounds = math.ceil(float(asked.blocks) / device.multiprocessors)
    in_turn = rounds / min(rounds, waits.beside)
    arriving = device.launch_seconds + in_turn * waits.latencies * prices.latency
    arriving += NOT_HIDDEN * (working - device.launch_seconds)
    return max(working, arriving) - float(kernel_seconds(device, asked))
