"""What blocks wait for: the same for sketches and for the graphs they become, and what kernels do when they are lowered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mugraph.devices import Device, device_for
from mugraph.devices.copies import MOST_STAGES, PANEL_BYTES, WAITED_BYTES, WHOLE_BYTES
from mugraph.errors import ExceedsMemory
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.graph import Tensor
from mugraph.ir.program import Program
from mugraph.lower import construct, cooperative, lower
from mugraph.lower.staging import merged_in_memory
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.scheduling.cost_table import CostTable, Demand, kernel_seconds
from mugraph.search.scheduling.emission import emit_block
from mugraph.search.scheduling.loads import LoadedTile, waiting_bytes
from mugraph.search.scheduling.schedule import Scheduler

from .programs import PAPER, finished, normalized

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


def multiplied(*batch: int, rows: int, depth: int, columns: int, turned: bool = False, dtype: DType = DType.FP16) -> Graph:
    """x @ w for each of a batch, w perhaps as [columns, depth]."""
    p = Program()
    x = p.input("x", (*batch, rows, depth), dtype)
    w = p.input("w", (*batch, columns, depth) if turned else (*batch, depth, columns), dtype)
    return finished(p, x @ (w.transpose(-2, -1) if turned else w))


def gated_mlp(batch: int, hidden: int, out: int) -> Graph:
    p = Program()
    x, a, b = p.input("x", (batch, hidden), DType.FP16), *(p.input(n, (hidden, out), DType.FP16) for n in "ab")
    return finished(p, (x @ a).silu() * (x @ b))


def lora(batch: int, hidden: int, out: int, rank: int) -> Graph:
    p = Program()
    x, w = p.input("x", (batch, hidden), DType.FP16), p.input("w", (hidden, out), DType.FP16)
    a, b = p.input("a", (hidden, rank), DType.FP16), p.input("b", (rank, out), DType.FP16)
    return finished(p, x @ w + x @ a @ b)


def rmsnorm(batch: int, hidden: int, out: int) -> Graph:
    p = Program()
    x, g, w = (p.input(n, shape, DType.FP16) for n, shape in (("x", (batch, hidden)), ("g", (hidden,)), ("w", (hidden, out))))
    return finished(p, normalized(x) * g @ w)


def attention(heads: int, queries: int, keys: int, width: int) -> Graph:
    p = Program()
    q, k, v = (p.input(n, (heads, rows, width), DType.FP16) for n, rows in (("q", queries), ("k", keys), ("v", keys)))
    return finished(p, (q @ k.transpose(-2, -1) * width**-0.5).softmax(-1) @ v)


PRODUCTS = {
    "rows of 16 bytes": multiplied(rows=16, depth=1024, columns=512),
    "rows of 11008": multiplied(rows=8, depth=4096, columns=11008),
    "rows of 344 bytes": multiplied(rows=64, depth=384, columns=172),
    "k of 96": multiplied(rows=8, depth=96, columns=256),
    "rows along k": multiplied(rows=32, depth=1024, columns=768, turned=True),
    "rows along a k of 1032": multiplied(rows=8, depth=1032, columns=260, turned=True),
    "24 rows": multiplied(rows=24, depth=512, columns=768),
    "several matrices": multiplied(5, rows=48, depth=256, columns=96),
    "many matrices": multiplied(12, rows=8, depth=128, columns=128),
    "vector units": multiplied(rows=16, depth=512, columns=96, dtype=DType.FP32),
    "two products": gated_mlp(8, 1024, 688),
    "attention": attention(2, 16, 1024, 64),
}
FUSED = {"rmsnorm": rmsnorm(8, 1024, 344), "lora": lora(8, 1024, 1024, 16)}


def predicted_and_lowered(program: Graph, sketches: int, schedules: int) -> list[tuple[float, float]]:
    """Bytes that blocks wait for, of so many sketches under the two best schedules and some that are drawn of those that fit."""
    search, rng, found = Search(program, H100), np.random.default_rng(0), []
    axes, produces = search.axes, tuple(-1 - index for index in range(len(search.axes.outputs)))
    scheduler = Scheduler([axes.sizes])
    costs = list(itertools.chain.from_iterable(search.kernels.costs(axes, Tier.OPAQUE_SUMS, produces)))
    for cost in [costs[i] for i in rng.permutation(len(costs))[:sketches]]:
        space, table = scheduler.space(cost.cut_axes), CostTable([cost])
        everything = np.arange(len(space))
        fitting = everything[table.memory(space, everything)[0] <= H100.shared_memory_bytes]
        best = fitting[np.argsort(table.seconds(space, fitting)[0], kind="stable")[:2]]
        sources = [search.kernels.tensor_of(leaf.source) for leaf in cost.sketch.leaves]
        for index in {*best, *rng.permutation(fitting)[:schedules]}:
            body = emit_block(cost.sketch, space.schedule(int(index)), axes.sizes, sources, cost.outputs)
            kernel = lowered_block(body, sources)
            if kernel is not None:
                chosen = np.array([index])
                (predicted,) = table.waiting(space, chosen, table.memory(space, chosen))
                assert demand(body, H100).waiting == predicted
                found.append((float(predicted[0]), float(loaded_by_threads(kernel))))
    return found


def lowered_block(body: Graph, sources: Sequence[Tensor]) -> Kernel | None:
    """The lowered kernel of a block graph; None where its tiles leave no room."""
    builder = GraphBuilder(Level.KERNEL)
    operands = [builder.input(f"operand{number}", source.shape, source.dtype) for number, source in enumerate(sources)]
    (launch,) = lower(construct(builder.build(builder.graph_defined(body, operands)))).values()
    try:
        return cooperative(launch.kernel, H100.shared_memory_bytes, engines=H100.engines, multiprocessors=H100.multiprocessors)
    except ExceedsMemory:
        return None


@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_of_products_load_what_is_predicted(name: str) -> None:
    compared = predicted_and_lowered(PRODUCTS[name], sketches=12, schedules=6)
    assert [predicted for predicted, _ in compared] == [lowered for _, lowered in compared]
    assert len(compared) > 5


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_factors_of_fp8_are_waited_for_as_graphs_multiply_them(dtype: DType) -> None:
    p = Program()
    x, w = p.input("x", (7, 1024), DType.E4M3), p.input("w", (1024, 256), DType.E4M3)
    program = finished(p, (x.cast(DType.FP32) @ w.cast(DType.FP32)).cast(dtype))
    assert predicted_and_lowered(program, sketches=12, schedules=6)  # which compares costs of sketches with those of graphs


@pytest.mark.parametrize("name", FUSED)
def test_most_kernels_with_other_operators_do(name: str) -> None:
    compared = predicted_and_lowered(FUSED[name], sketches=25, schedules=2)
    assert sum(predicted == lowered for predicted, lowered in compared) >= 0.7 * len(compared)
    assert len(compared) > 50


def product(batch: int, *, scaled: bool = False, loop: int = 4, depth: int = 1024, columns: int = 128) -> Graph:
    """A product of `batch` matrices in a block, perhaps of a weight that is scaled first."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (batch, 16, depth), DType.FP16)
    w = kernel.input("w", (batch, depth, columns), DType.FP16)
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
        tiles = set()
        for statement in part:
            panels = statement.panels if isinstance(statement, Matmul) else None
            streamed = (panels.left, panels.right) if panels is not None else (None,) * len(statement.sources)
            tiles |= {merged_in_memory(t) for t, p in zip(statement.sources, streamed, strict=True) if p is None}
        read = [tile for tile in tiles if tile.buffer in kernel.inputs]
        total += times * sum(math.prod(tile.shape) * kernel.buffer(tile.buffer).dtype.bytes for tile in read)
    return total


MANY, SCALED, SMALL = product(17), product(1, scaled=True), product(1, scaled=True, loop=16)
SHORT_SUMS = product(1, depth=4 * 24)
SHORT_ROWS = product(1, columns=2 * 86)


@pytest.mark.parametrize(
    "graph",
    [product(1), product(2), MANY, SCALED, SMALL, SHORT_SUMS, SHORT_ROWS],
    ids=["one", "several", "many", "scaled", "small", "short sums", "short rows"],
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


TILE = LoadedTile(
    1 << 12, 4, copied=True, streams=False, streams_partly=False, panel=0, whole=0, widened=0, read_elsewhere=True, in_loop=True,
    moves=True,
)  # fmt: skip


def test_there_is_no_ring_without_room_for_two_slots() -> None:
    half = H100.shared_memory_bytes // 2
    fits, exceeds = (replace_tile(streams=True, streams_partly=True, panel=size) for size in (half, half + 16))
    assert waiting_bytes(H100, 0, [fits]) == 0
    assert waiting_bytes(H100, 0, [exceeds]) == waiting_bytes(H100, half, [fits]) == 4 * TILE.bytes


def test_rows_of_no_whole_copies_are_not_copied_ahead() -> None:
    streamed = replace_tile(streams=True, streams_partly=True)
    assert waiting_bytes(H100, 0, [streamed, replace_tile(copied=False)]) == 4 * TILE.bytes


def test_tiles_beside_a_ring_are_copied_ahead_where_there_is_room() -> None:
    streamed = replace_tile(bytes=MOST_STAGES * PANEL_BYTES, streams=True, streams_partly=True)
    held = streamed.bytes + TILE.bytes
    assert waiting_bytes(H100, held, [streamed, TILE]) == 0
    assert waiting_bytes(H100, held, [TILE]) == 4 * TILE.bytes  # nothing to come along with
    assert waiting_bytes(H100, held, [streamed, replace_tile(moves=False)]) == 4 * TILE.bytes
    assert waiting_bytes(H100, held, [streamed, replace_tile(read_elsewhere=False)]) == 4 * TILE.bytes  # by products alone
    assert waiting_bytes(H100, H100.shared_memory_bytes + TILE.bytes, [streamed, TILE]) == 4 * TILE.bytes


def test_a_factor_that_others_read_passes_through_the_ring_if_it_is_small() -> None:
    small, large = (replace_tile(bytes=size, whole=size, streams_partly=True) for size in (WHOLE_BYTES, WHOLE_BYTES + 2))
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
