"""The cost model's memory is the block graph's, for every schedule; predicted seconds are bounded below by the roofline."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from mugraph.devices import Device, device_for
from mugraph.devices.device import ProductRate, ProductRates, RightFactor
from mugraph.ir import DType, Graph
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Level
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.program import Program
from mugraph.search import search
from mugraph.search.algorithm1.candidates import demand, predicted_seconds, run_of_tile
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Sketch, Step
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.partition.lower_bounds import LIBRARY_EFFICIENCY, Roofline, best_efficiency
from mugraph.search.partition.variants import as_program
from mugraph.search.scheduling.cost import IndexSpace, SketchCost
from mugraph.search.scheduling.cost_table import CostTable, Demand, kernel_seconds, short_run_factor
from mugraph.search.scheduling.emission import KernelOutput, emit_block
from mugraph.search.scheduling.schedule import Scheduler
from mugraph.search.scheduling.space import Grids, Schedules

from .programs import PAPER, finished

CPU = device_for("cpu")
COPYING = dataclasses.replace(CPU, operands_in_place=False)


def narrow() -> Graph:
    """A product of bf16 tensors with a reduction over two axes and outputs that are repeated."""
    p = Program()
    x, w = p.input("x", (4, 8), DType.BF16), p.input("w", (3, 8, 6), DType.BF16)
    y = x @ w
    return finished(p, y, y.square().sum(-1, keepdim=True).sum(0, keepdim=True).repeat(0, 3))


PROGRAMS = {**PAPER, "narrow": narrow}


@pytest.mark.parametrize("device", [CPU, COPYING], ids=["operands in place", "operands copied"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_that_of_the_block_graph(name: str, device: Device) -> None:
    search = Search(PROGRAMS[name](), device)
    program, produces = search.axes, tuple(-1 - index for index in range(len(search.axes.outputs)))
    scheduler, compared = Scheduler([program.sizes]), 0
    rng = np.random.default_rng(0)
    for cost in itertools.chain.from_iterable(search.kernels.costs(program, Tier.OPAQUE_SUMS, produces)):
        space = scheduler.space(cost.cut_axes)
        (predicted,) = CostTable([cost]).memory(space, np.arange(len(space)))
        sources = [search.kernels.tensor_of(leaf.source) for leaf in cost.sketch.leaves]
        for index in rng.permutation(len(space))[:4]:
            body = emit_block(cost.sketch, space.schedule(int(index)), program.sizes, sources, cost.outputs)
            assert predicted[index] == peak_bytes(body, device.operands_in_place)
            compared += 1
    assert compared


@pytest.mark.parametrize("name", PAPER)
def test_no_schedule_is_predicted_below_the_roofline_of_its_derivation(name: str) -> None:
    search = Search(PAPER[name](), CPU)
    program, produces = search.axes, tuple(-1 - index for index in range(len(search.axes.outputs)))
    roofline = Roofline(CPU, search.dtype, search.kernels.tensor_of)
    sketches = search.kernels.structure(program, Tier.OPAQUE_SUMS, None).sketches
    scheduler = Scheduler([program.sizes])
    for sketch, cost in zip(sketches, search.kernels.costs_of(program, sketches, produces), strict=True):
        assert roofline.of(as_program(sketch, program), produces) <= scheduler.least((cost,))[0].seconds * (1 + 1e-9)
    assert sketches


def test_a_product_of_concatenations_is_computed_as_two_products() -> None:
    m, n, d, r = (frozenset({axis}) for axis in range(4))
    shapes = (m | d, m | r, d | n, r | n)
    loads = [
        Step("load", (), axes, False, leaf=Leaf(source, tuple((axis,) for axis in sorted(axes))))
        for source, axes in enumerate(shapes)
    ]
    sketch = Sketch((*loads, Step("concat_contract", (0, 1, 2, 3), m | n, False, d | r)), (4,), None)
    cost = SketchCost(sketch, (DType.FP32,) * 4, (KernelOutput(((0,), (1,)), DType.FP32),), CPU)
    each = 2 / (CPU.product_efficiency * CPU.matmul_flops[DType.FP32])
    assert cost.compute == pytest.approx({IndexSpace(m | n | d): each, IndexSpace(m | n | r): each})


@pytest.mark.parametrize("target", ["cpu", pytest.param("cuda:sm_80", marks=pytest.mark.slow), "cuda:sm_90"])
@pytest.mark.parametrize("name", PAPER)
def test_a_finished_graph_costs_what_its_schedule_was_predicted_to(name: str, target: str) -> None:
    device, compared = device_for(target), 0
    for candidate in search(PAPER[name](), device).candidates:
        if all(kernel.body is not None for kernel in candidate.graph.kernels()):
            assert predicted_seconds(candidate.graph, device) == pytest.approx(candidate.cost, rel=0.05)
            compared += 1
    assert compared


def seconds(device: Device, **changes: float) -> float:
    """A kernel of a block for each multiprocessor, but for some changes."""
    usual = {
        "blocks": device.multiprocessors,
        "loop": 8,
        "memory": 5e7,
        "cache": 5e5,
        "compute": 1e-8,
        "steps": 5,
        "held": 50_000,
    }
    return float(kernel_seconds(device, Demand(**(usual | changes))))


def test_copies_hide_the_steps_of_a_loop_where_operands_are_copied_ahead() -> None:
    gpu = device_for("cuda:sm_90")
    more = 8 * 20 * gpu.iteration_seconds
    assert 0 < seconds(gpu, steps=25) - seconds(gpu) < 0.2 * more
    assert seconds(CPU, steps=25) - seconds(CPU) == pytest.approx(8 * 20 * CPU.iteration_seconds)
    assert seconds(gpu, steps=25, memory=0, cache=0) - seconds(gpu, memory=0, cache=0) == pytest.approx(more)


def test_idle_multiprocessors_cost_less_where_blocks_run_side_by_side() -> None:
    gpu = device_for("cuda:sm_80")
    even, uneven = gpu.multiprocessors, gpu.multiprocessors + 20
    times = [seconds(gpu, blocks=n, compute=0, steps=0, held=held) for n in (even, uneven) for held in (10_000, 160_000)]
    assert times[0] == times[1] < times[2] < times[3]


def test_rows_of_half_a_vector_cost_a_tenth_and_half_a_sector_twice_as_much() -> None:
    gpu = device_for("cuda:sm_90")
    assert [round(float(short_run_factor(gpu, float(run), 1e6)), 2) for run in (128, 64, 32, 16)] == [1.0, 1.0, 1.1, 2.43]
    assert short_run_factor(gpu, 16.0, 16.0) == 1.0  # there is no more of it


@pytest.mark.parametrize(
    ("grid", "loop", "run"),
    [
        ({0: 8}, None, 128 * 64),  # whole rows
        ({1: 8}, None, 8),  # a part of each row
        ({0: 128, 1: 8}, None, 64),  # a part of one row, after which the next block has the next
        ({0: 64, 1: 8}, None, 8),  # parts of two rows
        ({0: 128}, (1, 8), 64),  # as iterations have it
        ({1: 8}, (0, 128), 8),  # the next iteration has another row
    ],
)
def test_blocks_that_run_in_turn_read_on_where_those_before_ended(
    grid: dict[int, int], loop: tuple[int, int] | None, run: int
) -> None:
    """A tensor of 128 x 64 elements, cut by the grid and by a loop along another axis."""
    axis, count = loop or (None, 1)
    grids = Grids([128, 64], {(cut,): np.array([float(parts)]) for cut, parts in grid.items()}, np.array([0]))
    assert np.squeeze(Schedules(grids, axis, [count]).run(((0,), (1,)), loop is not None, in_turn=True)) == run
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (128, 64), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=tuple(grid.values()), loop=count)
    read = block.iterator(0, kernel.tensor(x), tuple(grid), axis)
    body = block.build([read])
    assert run_of_tile(body, body.nodes[0], block.tensor(read).shape, (128, 64), in_turn=True) == run


def test_a_scalar_is_one_run() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    body = block.build([block.iterator(0, kernel.tensor(kernel.input("x", (), DType.FP32)), (None,), None)])
    assert run_of_tile(body, body.nodes[0], (), (), in_turn=True) == 1


def test_tiles_beyond_the_first_level_cache_cost_their_traffic_on_a_cpu() -> None:
    device = dataclasses.replace(CPU, first_level_bytes=32768)
    small, fitting, large = (
        float(kernel_seconds(device, Demand(blocks=8, loop=1, memory=1e6, cache=1e6, compute=0.0, steps=0, held=held)))
        for held in (0.0, 32768.0, 131072.0)
    )
    assert small == fitting < large
    unknown = dataclasses.replace(device, first_level_bytes=0)
    assert float(kernel_seconds(unknown, Demand(8, 1, 1e6, 1e6, 0.0, 0, 131072.0))) == small


def test_rows_that_push_their_tiles_out_of_the_first_level_cache_are_not_taken_together() -> None:
    """Residual steps of 512 rows of 2,048 in fp32: two rows a block read one vector less, and took 1.3 times as long as one."""
    one, two = (
        Demand(blocks, 1, memory=12 * 2**20, cache=cache * 2**10, compute=5.3e-7 * 512 / blocks, steps=0, held=held * 2**10)
        for blocks, cache, held in ((512, 32, 16), (256, 56, 32))
    )
    host = device_for("cpu")
    assert float(kernel_seconds(host, one)) < float(kernel_seconds(host, two))


@pytest.mark.parametrize("name", PAPER)
def test_a_finished_graph_costs_what_was_predicted_where_little_stays_in_the_last_cache(name: str) -> None:
    device = dataclasses.replace(CPU, last_level_bytes=2048)
    for candidate in search(PAPER[name](), device).candidates:
        if all(kernel.body is not None for kernel in candidate.graph.kernels()):
            assert predicted_seconds(candidate.graph, device) == pytest.approx(candidate.cost, rel=0.05)


def _by_rows(grid: int, loop: int) -> Graph:
    """A product of 8 rows with a weight [64, 32], whose rows are cut by a grid or a loop, so that the weight is read for each."""
    kernel = GraphBuilder(Level.KERNEL)
    rows, weight = kernel.input("rows", (8, 64), DType.FP32), kernel.input("weight", (64, 32), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(grid,), loop=loop)
    factors = [block.iterator(0, kernel.tensor(rows), (0,), 0), block.iterator(1, kernel.tensor(weight), (None,), None)]
    product = block.add("accumulate", block.add("matmul", *factors), combine="concat", dim=0)
    return block.build([block.add("output_saver", product, omap=(0,))])


@pytest.mark.parametrize(("grid", "loop"), [(1, 4), (4, 1), (2, 2)])
def test_what_does_not_stay_in_the_last_cache_is_read_from_memory_again(grid: int, loop: int) -> None:
    weight, others = 4 * 64 * 32, 4 * 8 * (64 + 32)
    parts = weight + others // grid
    one_core = dataclasses.replace(CPU, multiprocessors=1, vector_bytes=4)
    staying, leaving = (dataclasses.replace(one_core, last_level_bytes=size) for size in (parts, parts - 1))
    assert demand(_by_rows(grid, loop), staying).memory == weight + others
    assert demand(_by_rows(grid, loop), leaving).memory == 4 * weight + others
    both = dataclasses.replace(staying, multiprocessors=2, shared_memory_bytes=(parts + 1) // 2)
    assert demand(_by_rows(grid, loop), both).memory == weight + others  # which both have in caches of their own
    both = dataclasses.replace(both, shared_memory_bytes=(parts - 1) // 2)  # both read it, as far as there are blocks for both
    assert demand(_by_rows(grid, loop), both).memory == min(2, grid) * weight + others
    assert demand(_by_rows(grid, loop), dataclasses.replace(leaving, multiprocessors=2)).memory == 4 * weight + others
    gpu = dataclasses.replace(device_for("cuda:sm_90"), vector_bytes=4, sector_bytes=4)
    assert demand(_by_rows(grid, loop), gpu).memory == weight + others


def test_a_product_of_kernels_takes_its_share_of_the_rate() -> None:
    """That of the device's description, which bounds of all launches keep to."""
    measured = ProductRates(library={DType.BF16: ProductRate(((16, 0.3), (64, 0.95)))})
    unmeasured = dataclasses.replace(CPU, library_products={}, products={})
    quick = dataclasses.replace(unmeasured, product_efficiency=2 * CPU.product_efficiency)
    product = 2 * 8 * 64 * 32 / (CPU.product_efficiency * CPU.matmul_flops[DType.FP32])
    saved = demand(_by_rows(1, 1), unmeasured).compute - demand(_by_rows(1, 1), quick).compute
    assert saved == pytest.approx(product / 2)
    assert best_efficiency(quick) == quick.product_efficiency
    assert best_efficiency(dataclasses.replace(unmeasured, product_efficiency=0.1)) == LIBRARY_EFFICIENCY
    assert best_efficiency(dataclasses.replace(unmeasured, products={RightFactor.PACKED: measured})) == 0.95


def factors_of_fp16() -> dict[str, tuple[Graph, bool]]:
    """Products of what is made of inputs of fp16, and whether fp16 has it."""
    made: dict[str, tuple[Graph, bool]] = {}
    for name, exact in (
        ("relu", True),
        ("negative", True),
        ("negative maximum", True),
        ("clamped", True),
        ("both", True),
        ("gains", False),
        ("third", False),
    ):
        p = Program()
        x, w, g = (p.input(each, shape, DType.FP16) for each, shape in (("x", (2048, 2048)), ("w", (2048, 2048)), ("g", (2048,))))
        factor = {
            "relu": lambda x, g: x.relu(),
            "negative": lambda x, g: -x.relu(),
            "negative maximum": lambda x, g: (-x).maximum(g),
            "clamped": lambda x, g: x.maximum(-0.5),
            "both": lambda x, g: x.relu(),
            "gains": lambda x, g: x * g,
            "third": lambda x, g: x.maximum(1 / 3),
        }[name](x, g)
        made[name] = finished(p, factor @ (w.relu() if name == "both" else w)), exact
    return made


FACTORS = factors_of_fp16()


@pytest.mark.parametrize("name", FACTORS)
def test_what_fp16_has_is_multiplied_at_its_rate(name: str) -> None:
    program, exact = FACTORS[name]
    gpu = device_for("cuda:sm_90")
    slower = dataclasses.replace(gpu, tf32_flops=1e12)
    kernels = [c.graph for c in search(program, gpu, budget=20).candidates if len([*c.graph.kernels()]) == 1]
    assert kernels
    for graph in kernels:
        assert (predicted_seconds(graph, gpu) == predicted_seconds(graph, slower)) == exact
    costs = [search(program, device, budget=20).candidates for device in (gpu, slower)]
    fused = [[c.cost for c in each if len([*c.graph.kernels()]) == 1] for each in costs]
    assert all(fused)
    assert (min(fused[0]) == min(fused[1])) == exact
