"""What blocks wait for: the same for sketches and for the graphs they become, and what kernels do when they are lowered."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mugraph.devices import Device, device_for
from mugraph.devices.copies import MOST_STAGES, PANEL_BYTES, WAITED_BYTES, WHOLE_BYTES
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct, cooperative, lower
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.scheduling.cost_table import CostTable, Demand, kernel_seconds
from mugraph.search.scheduling.emission import emit_block
from mugraph.search.scheduling.loads import LoadedTile, waiting_bytes
from mugraph.search.scheduling.schedule import Scheduler

from .programs import PAPER

H100 = device_for("cuda:sm_90")


@pytest.mark.parametrize("name", PAPER)
def test_sketches_wait_for_what_their_graphs_wait_for(name: str) -> None:
    search = Search(PAPER[name](), H100)
    program, produces = search.axes, tuple(-1 - index for index in range(len(search.axes.outputs)))
    scheduler, compared = Scheduler([program.sizes]), 0
    rng = np.random.default_rng(0)
    for cost in itertools.chain.from_iterable(search.kernels.costs(program, Tier.OPAQUE_SUMS, produces)):
        space, table = scheduler.space(cost.cut_axes), CostTable([cost])
        chosen = rng.permutation(len(space))[:4]
        (predicted,) = table.waiting(space, chosen, table.memory(space, chosen))
        sources = [search.kernels.tensor_of(leaf.source) for leaf in cost.sketch.leaves]
        for index, waiting in zip(chosen, predicted, strict=True):
            body = emit_block(cost.sketch, space.schedule(int(index)), program.sizes, sources, cost.outputs)
            assert demand(body, H100).waiting == waiting
            compared += 1
    assert compared


def product(batch: int, *, scaled: bool = False, loop: int = 4) -> Graph:
    """A product of `batch` matrices in a block, perhaps of a weight that is scaled first."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (batch, 16, 1024), DType.FP16)
    w = kernel.input("w", (batch, 1024, 128), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    rows = block.iterator(0, kernel.tensor(x), (None,), 2)
    weight = block.iterator(1, kernel.tensor(w), (2,), 1)
    right = block.add("tanh", weight) if scaled else weight
    total = block.add("accumulate", block.add("matmul", rows, right), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(2,))]), [x, w]))


def loaded_by_threads(kernel: Kernel) -> int:
    """Bytes of inputs that a lowered kernel's statements read where they lie in device memory, not through its ring."""
    total = 0
    for part, times in ((kernel.before, 1), (kernel.body, kernel.loop), (kernel.after, 1)):
        for statement in part:
            panels = statement.panels if isinstance(statement, Matmul) else None
            streamed = (panels.left, panels.right) if panels is not None else (None,) * len(statement.sources)
            for tile, panel in zip(statement.sources, streamed, strict=True):
                if tile.buffer in kernel.inputs and panel is None:
                    total += times * math.prod(tile.shape) * kernel.buffer(tile.buffer).dtype.bytes
    return total


MANY, SCALED, SMALL = product(17), product(1, scaled=True), product(1, scaled=True, loop=16)


@pytest.mark.parametrize(
    "graph", [product(1), product(2), MANY, SCALED, SMALL], ids=["one", "several", "many", "scaled", "small"]
)
def test_lowered_kernels_load_what_the_model_expects(graph: Graph) -> None:
    (launch,) = lower(construct(graph)).values()
    lowered = cooperative(launch.kernel, H100.shared_memory_bytes, engines=H100.engines, multiprocessors=H100.multiprocessors)
    assert demand(launch.body, H100).waiting == loaded_by_threads(lowered)


def test_what_keeps_its_sums_streams_and_large_computed_factors_wait() -> None:
    few, several, many, scaled = (demand(_body(graph), H100).waiting for graph in (product(1), product(2), MANY, SCALED))
    assert few == several == 0
    assert many == 17 * (16 + 64) * 1024 * DType.FP16.bytes
    assert scaled == 1024 * 64 * DType.FP16.bytes


def _body(graph: Graph) -> Graph:
    (body,) = (node.body for node in graph.kernels() if node.body is not None)
    return body


TILE = LoadedTile(bytes=1 << 12, times=4, streams=False, streams_partly=False, widened=0, in_loop=True, moves=True)


def test_tiles_beside_a_ring_are_copied_ahead_where_there_is_room() -> None:
    streamed = replace_tile(bytes=MOST_STAGES * PANEL_BYTES, streams=True, streams_partly=True)
    held = streamed.bytes + TILE.bytes
    assert waiting_bytes(H100, held, [streamed, TILE]) == 0
    assert waiting_bytes(H100, held, [TILE]) == 4 * TILE.bytes  # nothing to come along with
    assert waiting_bytes(H100, held, [streamed, replace_tile(moves=False)]) == 4 * TILE.bytes
    assert waiting_bytes(H100, H100.shared_memory_bytes + TILE.bytes, [streamed, TILE]) == 4 * TILE.bytes


def test_a_factor_that_others_read_passes_through_the_ring_if_it_is_small() -> None:
    small, large = (replace_tile(bytes=size, streams_partly=True) for size in (WHOLE_BYTES, WHOLE_BYTES + 2))
    assert waiting_bytes(H100, 0, [small]) == 0
    assert waiting_bytes(H100, 0, [large]) == 4 * large.bytes


def replace_tile(**changes: Any) -> LoadedTile:
    return TILE._replace(**changes)


def waits(device: Device, blocks: int, waiting: float) -> float:
    usual = Demand(blocks, 4, memory=1e6, cache=1e5, compute=0.0, steps=4, held=5e4)
    return float(kernel_seconds(device, usual._replace(waiting=waiting)) - kernel_seconds(device, usual))


def test_waiting_takes_the_latency_of_every_load_that_no_other_block_hides() -> None:
    fast = replace(H100, memory_bandwidth=1e18)
    alone, beside, four = (waits(fast, rounds * H100.multiprocessors, 1e5) for rounds in (1, 2, 4))
    assert alone == pytest.approx(1e5 / WAITED_BYTES * H100.load_seconds, rel=1e-4)
    assert beside == pytest.approx(alone, rel=1e-4)
    assert four == pytest.approx(2 * alone, rel=1e-4)
    assert waits(device_for("triton:sm_90"), 132, 1e5) == 0
