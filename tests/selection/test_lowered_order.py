"""Proposals that nothing measures are put in order by what the threads of their lowered kernels wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.devices import device_for
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import Launch
from mugraph.lower.access_costs import block_traffic, traffic_in_all
from mugraph.lower.thread_graphs import construct
from mugraph.lower.tile_form import Matmul
from mugraph.lower.waits import Waits
from mugraph.runtime import build
from mugraph.search.algorithm1.candidates import demand, predicted_seconds
from mugraph.search.scheduling.cost_table import kernel_seconds
from mugraph.selection.contestants import Contestant
from mugraph.selection.lowered_order import Prices, by_lowered, waiting_seconds
from mugraph.selection.qualification import Qualifier
from mugraph.support.deadline import Deadline
from mugraph.support.progress import silent
from mugraph.targets.cuda.machine import Cuda

TARGET = "cuda:sm_90"
H100, MACHINE = device_for(TARGET), Cuda.described(TARGET)


def rows(grid: int, size: int = 2048, steps: int = 1) -> Graph:
    """Rows over the sums of their squares, so often, `grid` blocks."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (grid * 2, size), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(grid,))
    tile = block.iterator(0, kernel.tensor(x), (0,), None)
    normed = tile
    for _ in range(steps):
        normed = block.add("div", normed, block.add("sum", block.add("square", normed), dim=1, size=size))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", normed, omap=(0,))]), [x]))


def product(loop: int, squares: bool = False) -> Graph:
    """A product of 16 x 2048 and 2048 x 25344 in bf16 of 396 blocks and so many iterations, of the squares of its left factor if
    asked."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (16, 2048), DType.BF16), kernel.input("w", (2048, 396 * 64), DType.BF16)
    block = GraphBuilder(Level.BLOCK, grid=(396,), loop=loop)
    left, right = block.iterator(0, kernel.tensor(x), (None,), 1), block.iterator(1, kernel.tensor(w), (1,), 0)
    left = block.add("square", left) if squares else left
    total = block.add("accumulate", block.add("matmul", left, right), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(1,))]), [x, w]))


def waits(graph: Graph) -> Waits:
    """What blocks of the only kernel wait for."""
    (launch,) = MACHINE.lower(construct(graph)).values()
    return MACHINE.waits(launch.kernel)


def test_what_asks_more_of_shared_memory_goes_behind() -> None:
    little, much = rows(132, 256), rows(132, 4096)
    seconds = [predicted_seconds(graph, H100) for graph in (little, much)]
    assert waits(little).turns < waits(much).turns
    dear = replace(H100, turn_share=1e6)
    proposals = [(much, seconds[0]), (little, seconds[0])]
    assert by_lowered(proposals, MACHINE, dear, Deadline(None), {}) == proposals[::-1]
    unknown = replace(dear, load_seconds=0.0)
    assert by_lowered(proposals, MACHINE, unknown, Deadline(None), {}) == proposals


def test_what_meets_at_more_barriers_goes_behind() -> None:
    few, many = rows(132, 512), rows(132, 512, steps=2)
    assert waits(few).barriers < waits(many).barriers
    free = replace(H100, turn_share=0.0)
    proposals = [(many, 1e-6), (few, 1e-6)]
    assert by_lowered(proposals, MACHINE, free, Deadline(None), {}) == proposals[::-1]


def test_the_order_stays_where_time_is_up_or_no_turns_are_counted() -> None:
    proposals = [(rows(132, 4096), 1e-6), (rows(132, 256), 1e-6)]
    assert by_lowered(proposals, MACHINE, H100, Deadline(0.0), {}) == proposals
    assert by_lowered(proposals, MACHINE.stand_in, H100, Deadline(None), {}) == proposals


def test_what_cannot_be_lowered_keeps_its_prediction() -> None:
    too_large, small = rows(132, 1 << 17), rows(132, 256)
    proposals = [(small, 2e-6), (too_large, 1e-6)]
    assert by_lowered(proposals, MACHINE, H100, Deadline(None), {}) == proposals[::-1]


THREADS_ALONE = replace(H100, memory_bandwidth=1e30, cache_bandwidth=1e30)


@pytest.mark.parametrize("rounds", [1, 2])
def test_turns_and_barriers_add_what_they_take_on_the_multiprocessor_that_works_longest(rounds: int) -> None:
    (launch,) = MACHINE.lower(construct(rows(132 * rounds))).values()
    counted = MACHINE.waits(launch.kernel)
    assert min(counted.turns, counted.barriers) > 0 == counted.latencies
    prices = Prices.of(H100)
    assert prices == (H100.turn_share / H100.clock_hertz, H100.iteration_seconds, 3 * H100.load_seconds)
    expected = rounds * (prices.turn * counted.turns + prices.barrier * counted.barriers)
    assert waiting_seconds([launch], MACHINE, THREADS_ALONE, prices) == pytest.approx(expected)


@pytest.mark.parametrize("loop", [4, 32])
def test_a_ring_takes_a_latency_for_all_panels_that_are_on_their_way_at_a_time(loop: int) -> None:
    (launch,) = MACHINE.lower(construct(product(loop))).values()
    ring = launch.kernel.ring
    assert ring is not None
    panels = 2048 // next(s.panels.depth for s in launch.kernel.body if isinstance(s, Matmul) and s.panels is not None)
    counted = MACHINE.waits(launch.kernel)
    assert counted.latencies == panels / ring.ahead + 1
    latency = 1e-3
    whole = float(kernel_seconds(H100, demand(launch.body, H100)))
    in_turn = 3 / min(3, launch.kernel.resident)
    not_hidden = 0.1 * (whole - H100.launch_seconds)
    expected = H100.launch_seconds + in_turn * latency * counted.latencies + not_hidden - whole
    assert waiting_seconds([launch], MACHINE, H100, Prices(0.0, 0.0, latency)) == pytest.approx(expected)
    assert waiting_seconds([launch], MACHINE, H100, Prices(0.0, 0.0, 1e-9)) == 0.0, "what takes longer hides it"


def test_barriers_of_a_loop_count_in_every_iteration() -> None:
    (once,), (often,) = (MACHINE.lower(construct(product(loop, squares=True))).values() for loop in (4, 32))
    for launch in (once, often):
        kernel = launch.kernel
        inside = sum(len(kernel.before) <= number < len(kernel.before) + len(kernel.body) for number in kernel.barriers)
        outside = len(kernel.barriers) - inside
        assert inside > 0
        assert MACHINE.waits(kernel).barriers == outside + inside * kernel.loop


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
    monkeypatch.setattr(Cuda, "waits", lambda _, kernel: Waits(1e6 * (kernel.grid == (264,)), 0, 0.0, 1))
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
