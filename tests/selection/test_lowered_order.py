"""Proposals that nothing measures are put in order by what their lowered kernels ask of shared memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.devices import device_for
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import Launch
from mugraph.lower.access_costs import block_traffic, traffic_in_all
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import build
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.selection.contestants import Contestant
from mugraph.selection.lowered_order import by_lowered, turn_seconds
from mugraph.selection.qualification import Qualifier
from mugraph.support.deadline import Deadline
from mugraph.support.progress import silent
from mugraph.targets.cuda.machine import Cuda

TARGET = "cuda:sm_90"
H100, MACHINE = device_for(TARGET), Cuda.described(TARGET)


def rows(grid: int, size: int = 2048) -> Graph:
    """The sums of rows over their squares, `grid` blocks."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (grid * 2, size), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(grid,))
    tile = block.iterator(0, kernel.tensor(x), (0,), None)
    normed = block.add("div", tile, block.add("sum", block.add("square", tile), dim=1, size=size))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", normed, omap=(0,))]), [x]))


def test_what_asks_more_of_shared_memory_goes_behind() -> None:
    little, much = rows(132, 256), rows(132, 4096)
    seconds = [predicted_seconds(graph, H100) for graph in (little, much)]
    turns = [sum(MACHINE.turns(launch.kernel) for launch in MACHINE.lower(construct(graph)).values()) for graph in (little, much)]
    assert turns[0] < turns[1]
    dear = replace(H100, turn_share=1e6)
    proposals = [(much, seconds[0]), (little, seconds[0])]
    assert by_lowered(proposals, MACHINE, dear, Deadline(None), {}) == proposals[::-1]
    free = replace(H100, turn_share=0.0)
    assert by_lowered(proposals, MACHINE, free, Deadline(None), {}) == proposals


def test_the_order_stays_where_time_is_up_or_no_turns_are_counted() -> None:
    proposals = [(rows(132, 4096), 1e-6), (rows(132, 256), 1e-6)]
    assert by_lowered(proposals, MACHINE, H100, Deadline(0.0), {}) == proposals
    assert by_lowered(proposals, MACHINE.stand_in, H100, Deadline(None), {}) == proposals


def test_what_cannot_be_lowered_keeps_its_prediction() -> None:
    too_large, small = rows(132, 1 << 17), rows(132, 256)
    proposals = [(small, 2e-6), (too_large, 1e-6)]
    assert by_lowered(proposals, MACHINE, H100, Deadline(None), {}) == proposals[::-1]


def test_turns_add_what_a_share_of_them_takes_on_the_multiprocessor_that_works_longest() -> None:
    (launch,) = MACHINE.lower(construct(rows(132))).values()
    threads_alone = replace(H100, memory_bandwidth=1e30, cache_bandwidth=1e30)
    expected = H100.turn_share * MACHINE.turns(launch.kernel) / H100.clock_hertz
    assert expected > 0
    assert turn_seconds([launch], MACHINE, threads_alone) == pytest.approx(expected)


def test_the_cost_of_all_traffic_is_that_of_turns_and_sectors() -> None:
    (launch,) = MACHINE.lower(construct(rows(132))).values()
    traffic = block_traffic(launch.kernel)
    assert traffic_in_all(launch.kernel) == traffic.wavefronts + traffic.sectors
    assert min(traffic.wavefronts, traffic.sectors) > 0


def test_what_is_not_measured_is_compiled_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Graph, float]] = []

    def compiled(_: Qualifier, some: list[tuple[Graph, float]], unpacked: bool) -> list[Contestant]:
        begun.extend(some)
        return []

    monkeypatch.setattr(Qualifier, "_compiled", compiled)
    monkeypatch.setattr(Cuda, "turns", lambda _, kernel: 1e6 * (kernel.grid == (264,)))
    much, little = rows(264), rows(132)
    qualifier = Qualifier(rows(132), TARGET, Deadline(None), silent, 0, 2**-40, "bounded", None)
    assert qualifier.compile_and_prove([(much, 1e-6), (little, 2e-6)]) == []
    assert begun == [(little, 2e-6), (much, 1e-6)]


def test_what_is_put_in_order_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[Graph] = []
    lower = Cuda.lower

    def counted(machine: Cuda, graph: Graph) -> dict[int, Launch]:
        lowered.append(graph)
        return lower(machine, graph)

    monkeypatch.setattr(Cuda, "lower", counted)
    proposals = [(rows(132), 1e-6), (rows(264), 1e-6)]
    qualifier = Qualifier(rows(132), TARGET, Deadline(None), silent, 0, 2**-40, "bounded", None)
    monkeypatch.setattr(Qualifier, "prove", lambda _, entries: [])
    for _ in range(2):  # as where a few proposals are tried before the search goes on
        assert qualifier.compile_and_prove(proposals) == []
    assert len(lowered) == len(proposals)
    for graph, _ in proposals:
        entry = qualifier.compiled[graph]
        assert isinstance(entry, Contestant)
        assert entry.executable.sources == build(construct(graph), TARGET).sources
        assert entry.graph == construct(graph)
