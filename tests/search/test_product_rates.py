"""What a program multiplies by says how fast products of its kernels are taken to be, and which plans come first."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources

import pytest

from mugraph.devices import Device, device_for, roofline_seconds
from mugraph.devices.device import PRODUCT_EFFICIENCY, ProductRate, ProductRates, RightFactor
from mugraph.devices.host import product_rates
from mugraph.ir import DType, Graph
from mugraph.ir.ops import is_contraction
from mugraph.ir.program import Program
from mugraph.ir.text import parse_graph
from mugraph.lower import construct
from mugraph.search import search
from mugraph.search.algorithm1.candidates import _computed_rights, demand, predicted_seconds
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.partition.lower_bounds import Roofline, best_efficiency, library_seconds
from mugraph.search.partition.variants import as_program
from mugraph.search.scheduling.product_rates import with_product_rate
from mugraph.search.scheduling.schedule import Scheduler
from mugraph.search.tasks import Options

from .programs import finished, normalized

CPU = replace(
    device_for("cpu"),
    multiprocessors=1,
    shared_memory_bytes=1 << 19,
    last_level_bytes=1 << 25,
    memory_bandwidth=17e9,
    cache_bandwidth=60e9,
    vector_flops=58e9,
    matmul_flops={DType.FP32: 117e9, DType.BF16: 235e9, DType.FP16: 117e9, DType.FP64: 58e9},
    product_efficiency=PRODUCT_EFFICIENCY,
    library_products={DType.FP16: ProductRate.of(0.15)},
    products={
        RightFactor.PLAIN: ProductRates(library={DType.FP16: ProductRate.of(0.15)}),
        RightFactor.PACKED: ProductRates(dict.fromkeys((DType.FP32, DType.BF16, DType.FP16), ProductRate.of(0.95))),
        RightFactor.BATCHED: ProductRates({DType.FP32: ProductRate.of(0.9), DType.BF16: ProductRate.of(0.75)}),
    },
)
"""One core of the machine that was measured."""
COARSE = Options(finer_tier_seconds=0.0)


def product(left: tuple[int, ...], right: tuple[int, ...], dtype: DType = DType.FP32) -> Graph:
    """A product of two inputs."""
    p = Program()
    return finished(p, p.input("x", left, dtype) @ p.input("w", right, dtype))


def attention(tokens: int, dtype: DType) -> Graph:
    """Attention of 12 heads of 64."""
    p = Program()
    q, k, v = (p.input(name, (12, tokens, 64), dtype) for name in "qkv")
    return finished(p, (q @ k.transpose(-2, -1) * 0.125).softmax(-1) @ v)


def has_product(graph: Graph) -> bool:
    """Whether a library multiplies matrices in a muGraph."""
    return any(node.op == "matmul" for node in graph.nodes)


@pytest.mark.parametrize(
    ("program", "share"),
    [
        (product((12, 128, 64), (12, 64, 128)), 0.9),
        (product((12, 128, 64), (12, 64, 128), DType.BF16), 0.75),
        (product((12, 128, 64), (12, 64, 128), DType.FP16), PRODUCT_EFFICIENCY),  # which was not measured
        (product((12, 8, 64), (12, 64, 128)), PRODUCT_EFFICIENCY),  # of few rows
        (product((12, 128, 512), (12, 512, 512)), PRODUCT_EFFICIENCY),  # of 1 MiB each
        (product((12, 128, 64), (64, 128)), PRODUCT_EFFICIENCY),  # of one matrix
        (product((1, 128, 64), (1, 64, 128)), PRODUCT_EFFICIENCY),
        (product((128, 64), (64, 128)).with_constants(["w"]), 0.95),
        (attention(128, DType.BF16), 0.75),
    ],
)
def test_products_are_as_fast_as_what_they_multiply_by_lets_them_be(program: Graph, share: float) -> None:
    assert with_product_rate(program, CPU).product_efficiency == share


def test_the_slowest_product_of_a_program_counts() -> None:
    p = Program()
    x, k, w = p.input("x", (12, 32, 64)), p.input("k", (12, 64, 64)), p.input("w", (64, 64))
    program = finished(p, x @ k @ w)
    assert with_product_rate(program, CPU).product_efficiency == PRODUCT_EFFICIENCY
    assert with_product_rate(program.with_constants(["w"]), CPU).product_efficiency == 0.9
    elementwise = Program()
    assert with_product_rate(finished(elementwise, elementwise.input("x", (4, 4)).silu()), CPU) == CPU


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90"])
def test_products_of_gpus_are_as_described(target: str) -> None:
    device: Device = device_for(target)
    assert with_product_rate(attention(128, DType.BF16), device) == device


def test_one_kernel_of_attention_comes_before_two_library_products() -> None:
    """Which took 1.2 to 1.5 times as long on the machine that is described, and came first of all products at one share."""
    program = attention(128, DType.FP32)
    assert not has_product(construct(search(program, with_product_rate(program, CPU), options=COARSE).candidates[0].graph))


def library_product(heads_inside: bool, dtype: DType) -> float:
    """Predicted seconds of a product of a batch by the library, whose matrices lie among each other or one after the other."""
    p = Program()
    shape = (128, 12, 64) if heads_inside else (12, 128, 64)
    order = (1, 0, 2) if heads_inside else (0, 1, 2)
    q, k = (p.input(name, shape, dtype).permute(*order) for name in "qk")
    found = search(
        finished(p, q @ k.transpose(-2, -1)), replace(CPU, library_products={}, products={}), options=COARSE
    ).candidates
    return min(candidate.cost for candidate in found if has_product(construct(candidate.graph)))


@pytest.mark.parametrize(("dtype", "copies"), [(DType.BF16, True), (DType.FP32, False), (DType.FP16, False)])
def test_libraries_copy_factors_of_bf16_whose_matrices_lie_among_each_other(dtype: DType, copies: bool) -> None:
    """PyTorch's products did on that machine, and took 1.5 times as long; in fp32 they took as long as of whole matrices."""
    copied = 2 * 2 * 12 * 128 * 64 * dtype.bytes / CPU.memory_bandwidth if copies else 0.0
    assert library_product(True, dtype) - library_product(False, dtype) == pytest.approx(copied, abs=1e-9)


def test_large_products_are_left_to_the_library() -> None:
    """Of rows enough, by a weight that is no constant: on that machine the library is the faster."""
    program = product((512, 2048), (2048, 2048), DType.BF16)
    assert has_product(construct(search(program, with_product_rate(program, CPU), options=COARSE).candidates[0].graph))


def test_kernels_multiply_what_the_library_multiplies_element_by_element() -> None:
    """However many rows there are: PyTorch has no instructions for fp16 on that machine, and was predicted at those for fp32."""
    program = product((512, 2048), (2048, 2048), DType.FP16)
    assert not has_product(construct(search(program, with_product_rate(program, CPU), options=COARSE).candidates[0].graph))
    other = replace(CPU, library_products={}, products={})
    assert has_product(construct(search(program, with_product_rate(program, other), options=COARSE).candidates[0].graph))


@pytest.mark.parametrize("rows", [1, 128])
def test_such_products_take_as_long_for_each_row(rows: int) -> None:
    work = 2.0 * rows * 1024 * 1024
    seconds = library_seconds(CPU, DType.FP16, rows, 1024, 1024, work, 0.0)
    assert seconds == pytest.approx(work / (0.15 * CPU.matmul_flops[DType.FP16]) + CPU.launch_seconds)


# --- a matrix unit -----------------------------------------------------------------------------------------------------

_TABLE = json.loads((resources.files("mugraph.devices") / "cpu.json").read_text(encoding="utf-8"))
_ROW = next(row for row in _TABLE["instruction_sets"] if "amx_tile" in row["requires"])
_RATES = product_rates(_ROW["products"], _ROW["computed_factor_seconds_of_core"])
AMX = replace(
    CPU,
    last_level_bytes=1 << 29,
    matmul_flops={DType.parse(dtype): rate for dtype, rate in _ROW["matmul_flops_per_core"].items()},
    library_products=_RATES[RightFactor.PLAIN].library,
    products=_RATES,
)
"""One core of a machine that has one."""


def normed(rows: int, dtype: DType, *constants: str) -> Graph:
    """RMSNorm and a linear layer."""
    p = Program()
    return finished(p, normalized(p.input("x", (rows, 2048), dtype)) @ p.input("w", (2048, 2048), dtype)).with_constants(
        constants
    )


def first(program: Graph) -> Graph:
    """What is predicted to be fastest on it."""
    return construct(search(program, with_product_rate(program, AMX), options=COARSE).candidates[0].graph)


@pytest.mark.parametrize(
    ("program", "library"),
    [
        (normed(64, DType.BF16), True),  # of which kernels have no unit: they took 8 times as long
        (normed(512, DType.BF16), True),
        (normed(64, DType.BF16, "w"), False),  # the library took 1.4 times as long
        (normed(512, DType.BF16, "w"), False),
        (normed(8, DType.FP32, "w"), False),
        (normed(64, DType.FP32), False),
        (normed(512, DType.FP32), True),
    ],
)
def test_with_a_matrix_unit_the_library_multiplies_by_weights_as_they_lie(program: Graph, library: bool) -> None:
    """And kernels do around it what is no product."""
    graph = first(program)
    assert has_product(graph) == library
    assert any(node.body is not None for node in graph.nodes)


TWO_CORES = replace(AMX, multiprocessors=2, memory_bandwidth=34e9, cache_bandwidth=120e9)
TWO_CORES = replace(TWO_CORES, matmul_flops={dtype: 2 * rate for dtype, rate in AMX.matmul_flops.items()})


def in_two_blocks(rows: int, tile: str, of_x: str, of_w: str, out: str) -> Graph:
    """A product of so many rows with packed weights as a kernel of two blocks."""
    height, width = tile.split(", ")
    return parse_graph(f"""kernel_graph {{
  x: bf16[{rows}, 2048] = input
  w: bf16[2048, 2048] = input constant=1
  %2: bf16[{rows}, 2048] = block_graph(x, w) grid(x=2) {{
    %0: bf16[{height}, 2048] = input_iterator(x) {{x<->{of_x}}}
    %1: bf16[2048, {width}] = input_iterator(w) {{x<->{of_w}}}
    %2: bf16[{tile}] = matmul(%0, %1)
    %3: bf16[{rows}, 2048] = output_saver(%2) {{x<->{out}}}
    return %3
  }}
  return %2
}}""")


@pytest.mark.parametrize("cores", [1, 2])
def test_blocks_of_few_rows_each_read_all_weights(cores: int) -> None:
    """Two blocks of 32 rows took 1.2 to 1.5 times as long as two of half of the columns, on one thread as on two that others
    disturbed, and were predicted alike."""
    device = with_product_rate(product((64, 2048), (2048, 2048), DType.BF16).with_constants(["w"]), (AMX, TWO_CORES)[cores - 1])
    by_rows = predicted_seconds(in_two_blocks(64, "32, 2048", "0", "phi", "0"), device)
    by_columns = predicted_seconds(in_two_blocks(64, "64, 1024", "phi", "1", "1"), device)
    assert 1.2 < by_rows / by_columns < 1.6


@pytest.mark.parametrize(
    ("left", "right", "rows"),
    [
        ((4, 16, 128), (128, 512), 64),
        ((4, 16, 128), (4, 128, 512), 16),
        ((2, 4, 16, 128), (4, 128, 512), 32),
        ((16, 128), (4, 128, 512), 16),
    ],
)
def test_of_weights_that_are_several_matrices_each_multiplies_its_own_rows(
    left: tuple[int, ...], right: tuple[int, ...], rows: int
) -> None:
    """Which were predicted to read as many weights as if each matrix multiplied the rows of all."""
    device = with_product_rate(product(left, right, DType.BF16).with_constants(["w"]), AMX)
    assert device == AMX.multiplying(RightFactor.PACKED, DType.BF16, rows)
    assert device.product_rows == rows


def test_blocks_of_many_rows_may_be_parts_of_them() -> None:
    """Where a part of the rows multiplies as fast as all of them."""
    device = with_product_rate(product((1024, 2048), (2048, 2048), DType.BF16).with_constants(["w"]), TWO_CORES)
    assert device.product_reading == 0
    by_rows = predicted_seconds(in_two_blocks(1024, "512, 2048", "0", "phi", "0"), device)
    by_columns = predicted_seconds(in_two_blocks(1024, "1024, 1024", "phi", "1", "1"), device)
    assert by_rows == pytest.approx(by_columns, rel=0.1)


@pytest.mark.parametrize("device", [AMX, TWO_CORES], ids=["one core", "two cores"])
def test_few_rows_are_not_shared_out_among_blocks(device: Device) -> None:
    """Kernels that normalise and multiply 32 rows of 64 were chosen, and others measured alike where nothing else ran."""
    program = normed(64, DType.BF16, "w")
    graph = construct(search(program, with_product_rate(program, device), options=COARSE).candidates[0].graph)
    heights = [
        body.tensor(node.inputs[0]).shape[-2]
        for body in (kernel.body for kernel in graph.kernels())
        if body is not None
        for node in body.nodes
        if is_contraction(node.op)
    ]
    assert heights == [64]


@pytest.mark.parametrize("rows", [16, 64, 128])
def test_a_schedule_costs_what_its_graph_does_where_reading_factors_counts(rows: int) -> None:
    program = normed(rows, DType.BF16, "w")
    device = with_product_rate(program, TWO_CORES)
    assert device.product_reading > 0.3
    best = search(program, device, options=COARSE).candidates[0]
    assert predicted_seconds(best.graph, device) == pytest.approx(best.cost, rel=0.05)


def test_reading_factors_counts_by_itself_where_all_products_have_as_many_rows() -> None:
    p = Program()
    x, y = (p.input(name, (rows, 2048), DType.BF16) for name, rows in (("x", 64), ("y", 16)))
    w = p.input("w", (2048, 2048), DType.BF16)
    device = with_product_rate(finished(p, x @ w, y @ w).with_constants(["w"]), AMX)
    assert device == replace(
        AMX.multiplying(RightFactor.PACKED, DType.BF16, 16), product_rows=0, product_reading=0.0, product_left=0.0
    )


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_one_row_is_multiplied_as_a_product(dtype: DType) -> None:
    """Elementwise products and their sums were predicted to be faster, and took 1.5 to 1.8 times as long."""
    bodies = [node.body for node in first(normed(1, dtype, "w")).nodes if node.body is not None]
    assert any(is_contraction(node.op) for body in bodies for node in body.nodes)


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_a_library_is_as_fast_whichever_factor_has_few_rows(dtype: DType) -> None:
    """Operands of a product come in any order: a weight that came first had its rows taken for those of the tokens."""
    work = 2.0 * 16 * 4096 * 4096
    few, many = (library_seconds(AMX, dtype, *sides, 4096, work, 0.0) for sides in ((16, 4096), (4096, 16)))
    whole = library_seconds(AMX, dtype, 4096, 4096, 4096, work, 0.0)
    assert few == many > 2 * whole


def test_a_library_multiplies_a_batch_of_large_matrices_by_few_rows_no_faster_than_one_of_small() -> None:
    """Two such products and a softmax came before kernels of attention over a cache of keys, and took 1.5 times as long."""
    p = Program()
    q, k, v = (p.input(name, (2, rows, 128), DType.BF16) for name, rows in zip("qkv", (8, 8192, 8192), strict=True))
    assert not has_product(first(finished(p, (q @ k.transpose(-2, -1)).softmax(-1) @ v)))


def test_products_of_a_batch_are_as_fast_as_rows_of_each_let_them_be() -> None:
    """The unit multiplies one pair of matrices at a time: 32 pairs of 16 rows are no product of 512."""
    device = AMX.multiplying(RightFactor.BATCHED, DType.BF16, 16)
    work = 2.0 * 32 * 16 * 64 * 64
    batch = library_seconds(device, DType.BF16, 32 * 16, 32 * 64, 64, work, 0.0, batch=32) - device.launch_seconds
    each = library_seconds(device, DType.BF16, 16, 64, 64, work / 32, 0.0) - device.launch_seconds
    assert batch == pytest.approx(32 * each)


def scaled(factor: str) -> Graph:
    """Products of queries with keys of a batch in blocks of 64 queries, which scale a factor before."""
    of_q, of_k = ("%3", "%1") if factor == "q" else ("%0", "%3")
    source, shape = ("%0", "[4, 64, 64]") if factor == "q" else ("%1", "[4, 512, 64]")
    return parse_graph(f"""kernel_graph {{
  q: bf16[4, 512, 64] = input
  k: bf16[4, 512, 64] = input
  %2: bf16[4, 512, 512] = block_graph(q, k) grid(x=8) {{
    %0: bf16[4, 64, 64] = input_iterator(q) {{x<->1}}
    %1: bf16[4, 512, 64] = input_iterator(k) {{x<->phi}}
    %2: bf16[] = constant 1/8
    %3: bf16{shape} = mul({source}, %2)
    %4: bf16[4, 64, 512] = transpose({of_k}) permutation=(0, 2, 1)
    %5: bf16[4, 64, 512] = matmul({of_q}, %4)
    %6: bf16[4, 512, 512] = output_saver(%5) {{x<->1}}
    return %6
  }}
  return %2
}}""")


def test_what_blocks_compute_costs_nothing_where_it_is_no_matrix_of_a_batch() -> None:
    """Weights of few bits are numbers in registers, as far as packed ones are."""
    assert not AMX.computed_factor_seconds
    assert not AMX.multiplying(RightFactor.PACKED, DType.BF16, 512).computed_factor_seconds
    p = Program()
    q, k = p.input("q", (4, 64, 64), DType.BF16), p.input("k", (4, 64, 512), DType.BF16)
    scores = q @ k
    assert with_product_rate(finished(p, scores), AMX).computed_factor_seconds
    weight = p.input("w", (4, 512, 64), DType.BF16)
    both = finished(p, scores @ weight).with_constants(["w"])
    assert not with_product_rate(both, AMX).computed_factor_seconds
    rates = {
        RightFactor.PACKED: ProductRates({DType.BF16: ProductRate.of(0.9)}),
        RightFactor.BATCHED: ProductRates({DType.BF16: ProductRate.of(0.3)}, computed={DType.BF16: 1e-9}),
    }
    assert not with_product_rate(both, replace(AMX, products=rates)).computed_factor_seconds, "whose rates rows do not change"


def test_right_factors_that_blocks_compute_cost_what_turning_them_takes() -> None:
    """Attention that scales keys took 1.5 to 1.8 times as long as the same that scales queries, and was predicted alike."""
    device = AMX.multiplying(RightFactor.BATCHED, DType.BF16, 512)
    seconds = [
        demand(kernel.body, device).compute for each in "qk" for kernel in scaled(each).kernels() if kernel.body is not None
    ]
    turned = 4 * 512 * 64 * device.computed_factor_seconds[DType.BF16]
    more = (4 * 512 - 4 * 64) * 64  # elements that are scaled, and are not read as a right factor is
    rate = device.product_efficiency * device.matmul_flops[DType.BF16]
    assert seconds[1] - seconds[0] == pytest.approx(
        turned + more / device.vector_flops - more * device.operations_of_reading / rate
    )


@pytest.mark.parametrize("tokens", [128, 512])
def test_attention_multiplies_by_keys_as_they_are_read_and_by_rows_enough(tokens: int) -> None:
    """Blocks of 16 and 32 queries of 512 copied all keys and values for them, and took twice as long as blocks of 128."""
    program = attention(tokens, DType.BF16)
    graph = construct(search(program, with_product_rate(program, AMX), options=COARSE).candidates[0].graph)
    bodies = [kernel.body for kernel in graph.kernels() if kernel.body is not None]
    products = [(body, node) for body in bodies for node in body.nodes if is_contraction(node.op)]
    assert len(products) == 2
    assert all(body.tensor(node.inputs[0]).shape[-2] >= 64 for body, node in products)
    assert not any(_computed_rights(body, node) for body, node in products)


def test_a_schedule_of_attention_costs_what_its_graph_does() -> None:
    program = attention(128, DType.BF16)
    device = with_product_rate(program, AMX)
    best = search(program, device, options=COARSE).candidates[0]
    assert device.product_reading > 0.1
    assert predicted_seconds(best.graph, device) == pytest.approx(best.cost, rel=0.01)


# --- factors of fp8 ----------------------------------------------------------------------------------------------------

H100 = device_for("cuda:sm_90")
FP8 = (DType.E4M3, DType.E5M2)


def test_two_factors_of_fp8_cost_no_more_than_the_same_in_fp16() -> None:
    """Which kernels multiply them in; a library's product in fp32 is the alternative."""
    in_fp8, in_fp16 = (
        min(
            candidate.cost
            for candidate in search(product((2048, 2048), (2048, 2048), dtype), H100, options=COARSE).candidates
            if not has_product(construct(candidate.graph))
        )
        for dtype in (DType.E4M3, DType.FP16)
    )
    assert roofline_seconds(product((2048, 2048), (2048, 2048), DType.E4M3), H100) <= in_fp8 <= in_fp16


def random_program(seed: int) -> Graph:
    """Products, sums and scales of matrices of fp8, fp16 and fp32, large enough that multiplying takes longer than reading."""
    rng, p, size = random.Random(seed), Program(), 2048
    kinds = [rng.choice((*FP8, *FP8, DType.FP16, DType.FP32)) for _ in range(3)]
    x, y, z = (p.input(name, (size, size), dtype) for name, dtype in zip("xyz", kinds, strict=True))
    made = {
        0: lambda: x @ y,
        1: lambda: (x @ y) * p.input("s", (size, 1), DType.FP32),
        2: lambda: x @ y + z,
        3: lambda: (x * p.input("s", (size, 1), DType.FP16)) @ y,
        4: lambda: x @ y + x @ z,
        5: lambda: (x @ y) @ z,
    }[rng.randrange(6)]()
    return finished(p, made)


def random_packed(seed: int) -> Graph:
    """Products of activations, of which there are few rows, with weights that are packed; some become products of weights."""
    rng, p = random.Random(seed), Program()
    rows, (depth, middle, columns) = rng.choice((16, 64, 128, 256, 512)), (rng.choice((64, 512, 2048)) for _ in range(3))
    x, g = p.input("x", (rows, depth), DType.BF16), p.input("g", (depth,), DType.BF16)
    v, w = p.input("v", (depth, middle), DType.BF16), p.input("w", (middle, columns), DType.BF16)
    made = {
        0: lambda: x @ v,
        1: lambda: (x @ v) @ w,
        2: lambda: (x * g) @ v,
        3: lambda: (x @ v).silu() @ w,
        4: lambda: normalized(x) @ v,
        5: lambda: (x @ v).transpose(-2, -1),
    }[seed % 6]()
    return finished(p, made).with_constants(["v", "w", "g"])


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90", "cpu"])
@pytest.mark.parametrize("seed", range(12))
def test_no_kernel_is_predicted_below_what_bounds_it(seed: int, target: str) -> None:
    program, device = random_program(seed), CPU if target == "cpu" else device_for(target)
    assert_bounded(program, device, (Tier.OPAQUE_SUMS,))


@pytest.mark.parametrize("device", [AMX, TWO_CORES], ids=["one core", "two cores"])
@pytest.mark.parametrize("seed", range(24))
def test_no_kernel_is_predicted_below_what_bounds_it_where_reading_weights_counts(seed: int, device: Device) -> None:
    """Of two weights that are multiplied each has more rows and columns than the program's products, and cost less than the
    bound of these."""
    program = random_packed(seed)
    assert_bounded(program, with_product_rate(program, device), tuple(Tier))


@pytest.mark.parametrize("seed", range(12))
def test_no_candidate_is_predicted_below_what_bounds_it(seed: int) -> None:
    program = random_packed(seed)
    found = search(program, with_product_rate(program, TWO_CORES), options=COARSE)
    assert found.candidates
    assert found.report.least_seconds is not None
    assert all(found.report.least_seconds <= candidate.cost * (1 + 1e-9) for candidate in found.candidates)


def assert_bounded(program: Graph, device: Device, tiers: Sequence[Tier]) -> None:
    """No kernel of a program is predicted below its bounds."""
    looked = Search(program, device)
    axes, produces = looked.axes, tuple(-1 - index for index in range(len(looked.axes.outputs)))
    roofline, compared = Roofline(device, looked.dtype, looked.kernels.tensor_of), 0
    for tier, axis in itertools.product(tiers, (None, *range(len(axes.sizes)))):
        sketches = looked.kernels.structure(axes, tier, axis).sketches
        for sketch, cost in zip(sketches, looked.kernels.costs_of(axes, sketches, produces), strict=True):
            for found in Scheduler([axes.sizes]).least((cost,)).values():
                seconds, compared = found.seconds * (1 + 1e-9), compared + 1
                assert roofline.of(as_program(sketch, axes), produces) <= seconds
                assert roofline.of_launches(axes, sketch, produces, best_efficiency(device)) - device.launch_seconds <= seconds
    assert compared
