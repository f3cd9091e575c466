"""Triton kernels, run in Triton's interpreter, against float64; and faults planted in their text, which must be noticed."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lower.graphs import SUMMED_PRODUCTS, attention, normalised_scores, pair_of_tiles, rms_norm_linear
from mugraph.devices import device_for
from mugraph.errors import CompilationFailed, TargetUnavailable
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import LEAST, OPERATORS
from mugraph.lower import construct
from mugraph.runtime import Executable
from mugraph.search import search
from mugraph.targets.triton.interpreted import InterpretedTriton, _interpreter
from mugraph.targets.triton.machine import Triton
from runtime.block_graphs import many_kernels

pytest.importorskip("triton", reason="the interpreter is Triton's; pip install 'mugraph[triton]'")

LARGEST_ERROR = {DType.FP16: 2e-3, DType.FP32: 2e-6}
"""What rounding explains, relative to the largest result."""


def interpreted(edit: Callable[[str], str] = str) -> InterpretedTriton:
    return InterpretedTriton(Triton("sm_90", device_for("cuda:sm_90").shared_memory_bytes), edit)


def normal_inputs(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    types = {DType.FP16: np.float16, DType.FP32: np.float32}
    return [rng.standard_normal(node.output.shape).astype(types[node.output.dtype]) for node in graph.inputs()]


def largest_error(graph: Graph, inputs: list[Array], machine: InterpretedTriton) -> float:
    """Against float64, relative to the largest result; NaN where a kernel gives one."""
    exact = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    results = Executable(graph, machine)(*map(torch.from_numpy, inputs))
    pairs = zip(results, exact, strict=True)
    return float(max(np.abs(ours.double().numpy() - theirs).max() / np.abs(theirs).max() for ours, theirs in pairs))


def check_workload(name: str, dtype: DType, batch: int) -> None:
    workload, machine = WORKLOADS[name], interpreted()
    inputs = workload.inputs(batch, dtype, "small")
    program = trace(workload.function(), inputs).graph
    exact = workload.function()(*(tensor.double() for tensor in inputs))
    for candidate in search(program, device_for("triton:sm_90")).candidates[:3]:
        (result,) = Executable(construct(candidate.graph), machine)(*inputs)
        assert ((result.double() - exact).abs().max() / exact.abs().max()).item() < LARGEST_ERROR[dtype]
    assert machine.findings == []


@pytest.mark.parametrize(("name", "dtype", "batch"), [("rmsnorm", DType.FP16, 8), ("gated-mlp", DType.FP32, 1)])
def test_the_best_candidates_are_right(name: str, dtype: DType, batch: int) -> None:
    check_workload(name, dtype, batch)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32])
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_best_candidates_of_all_workloads_are_right(name: str, dtype: DType, batch: int) -> None:
    check_workload(name, dtype, batch)


def check_random_kernels(seed: int) -> None:
    """Tiles of any size, all operators, loops and accumulators; a few times what fp32 loses where nearly equal numbers meet."""
    graph, machine = many_kernels(seed, 6, DType.FP32), interpreted()
    inputs = normal_inputs(graph, seed)
    exact = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    rounded = evaluate(graph, inputs, FloatArithmetic(np.float32))
    results = Executable(graph, machine)(*map(torch.from_numpy, inputs))
    for result, reference, fp32 in zip(results, exact, rounded, strict=True):
        scale = max(np.abs(reference).max(), 1e-6)
        own = np.abs(fp32 - reference).max() / scale
        assert np.abs(result.numpy() - reference).max() / scale < max(1e-5, 8 * own)
    assert machine.findings == []


@pytest.mark.parametrize("seed", [3, 11])
def test_random_kernels_agree_with_the_evaluator(seed: int) -> None:
    check_random_kernels(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_more_random_kernels(seed: int) -> None:
    check_random_kernels(seed)


@pytest.mark.parametrize(
    "graph",
    [
        rms_norm_linear(rows=5, inner=48, columns=40),
        rms_norm_linear(rows=5, inner=300, columns=24, loop=1),
        attention(),
        attention(queries=1, dtype=DType.FP16),
        normalised_scores(queries=3, keys=36, width=20),
    ],
    ids=["rmsnorm", "many values of k", "attention", "decode", "concatenation"],
)
def test_ragged_tiles_loops_and_running_maxima(graph: Graph) -> None:
    machine = interpreted()
    dtype = graph.inputs()[0].output.dtype
    assert largest_error(graph, normal_inputs(graph), machine) < LARGEST_ERROR[dtype]
    assert machine.findings == []


@pytest.mark.parametrize("name", ["part", "largest", "raised", "old_factor"])
def test_inputs_may_be_called_what_the_text_calls_its_own_variables(name: str) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    rows, terms = kernel.input(name, (4, 24), DType.FP32), kernel.input("x", (4, 24), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=2)
    shift, term = block.iterator(0, kernel.tensor(rows), (0,), 1), block.iterator(1, kernel.tensor(terms), (0,), 1)
    rescaled = block.add("accumulate_rescaled", term, shift)
    gathered = block.add("reshape", block.add("exp", block.add("reshape", term, shape=(12, 2))), shape=(2, 12))
    total = block.add("accumulate", block.add("add", shift, gathered), combine="sum")
    results = [block.add("output_saver", value, omap=(0,)) for value in (rescaled, total)]
    graph = kernel.build(kernel.graph_defined(block.build(results), [rows, terms]))
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]


def test_two_views_of_one_tensor_and_a_copy_of_it_have_names_of_their_own() -> None:
    """A reshape that strides cannot say is a copy, which other reshapes of it are called after too."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (1, 5), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    repeated = block.add("repeat", block.add("exp", block.iterator(0, kernel.tensor(x), (None,), None)), dim=0, times=3)
    flat = block.add("reshape", repeated, shape=(1, 15))
    results = [
        block.add("output_saver", flat, omap=(0,)),
        block.add("output_saver", block.add("reshape", flat, shape=(15,)), omap=(0,)),
    ]
    graph = kernel.build(kernel.graph_defined(block.build(results), [x]))
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]


def test_maxima_over_the_least_number_are_put_side_by_side() -> None:
    """Each iteration fills its part of the result with the least number before it computes the maximum there."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4, 10, 6), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=2)
    largest = block.add("max", block.iterator(0, kernel.tensor(x), (None,), 2), dim=1, size=5, least=LEAST)
    joined = block.add("accumulate", largest, combine="concat", dim=2)
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", joined, omap=(0,))]), [x]))
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]


def test_every_elementwise_operator_is_right() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input(name, (3, 50), DType.FP32) for name in "xyz"]
    block = GraphBuilder(Level.BLOCK, grid=(3,))
    tiles = [block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(operands)]
    rows = [row for row in OPERATORS.values() if row.elementwise and not row.whole]
    values = [block.add(row.name, *tiles[: row.arity]) for row in rows]
    results = kernel.graph_defined(block.build([block.add("output_saver", value, omap=(0,)) for value in values]), operands)
    graph = kernel.build(results)
    numbers = np.concatenate([np.linspace(1e-3, 9, 147), [0.29999, 0.3, 88.0]]).astype(np.float32).reshape(3, 50)
    inputs = [numbers, np.flip(numbers).copy(), numbers * (np.arange(150).reshape(3, 50) % 3 > 0).astype(np.float32)]
    exact = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    for row, result, reference in zip(rows, Executable(graph, interpreted())(*map(torch.from_numpy, inputs)), exact, strict=True):
        rounded = reference.astype(np.float32)  # where powers of numbers below 1 are too small for it, as 0
        np.testing.assert_allclose(result.numpy(), rounded, rtol=2e-6, err_msg=row.name)


@pytest.mark.parametrize("case", SUMMED_PRODUCTS)
def test_sums_of_products_of_three_dimensions_are_right(case: str) -> None:
    graph = SUMMED_PRODUCTS[case]
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]


def test_products_of_three_dimensions_are_exact() -> None:
    """Those of zeros, infinities, NaN and subnormal numbers too, with their signs."""
    numbers = np.array([0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan, 1e-30, -1e-20, 3e38], np.float32)
    left, right = numbers.reshape(10, 1, 1), np.stack([numbers, -numbers]).reshape(1, 2, 10)
    graph = pair_of_tiles("mul", left.shape, right.shape)
    (result,) = Executable(graph, interpreted())(torch.from_numpy(left), torch.from_numpy(right))
    with np.errstate(all="ignore"):
        exact = left * right
    np.testing.assert_array_equal(result.numpy(), exact)
    np.testing.assert_array_equal(np.signbit(result.numpy())[~np.isnan(exact)], np.signbit(exact[~np.isnan(exact)]))


@pytest.mark.parametrize("loop", [1, 4])
def test_rows_of_minus_infinity_stay_finite(loop: int) -> None:
    """Keys that a mask hides altogether in the first iterations: -inf minus the maximum must not be NaN."""
    graph, inputs = masked_softmax(loop), normal_inputs(masked_softmax(loop))
    inputs[1][:, :6] = -np.inf
    (result,) = Executable(graph, interpreted())(*map(torch.from_numpy, inputs))
    torch.testing.assert_close(result, torch.ones(4, 1))


def masked_softmax(loop: int) -> Graph:
    """Sums of a masked softmax, which are 1, with a running maximum."""
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input(name, (4, 24), DType.FP32) for name in ("scores", "mask")]
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    scores, mask = (block.iterator(number, kernel.tensor(value), (0,), 1) for number, value in enumerate(operands))
    hidden = block.add("add", scores, mask)
    largest = block.add("max", hidden, dim=1, size=24 // loop, least="lowest")
    weights = block.add("sum", block.add("exp", block.add("sub", hidden, largest)), dim=1, size=24 // loop)
    total = block.add("accumulate_rescaled", weights, largest)
    result = block.add("div", total, total)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), operands))


@pytest.mark.parametrize(("seconds", "columns"), [(60.0, {20, 0}), (0.0, {20})])
def test_some_blocks_of_a_grid_run_as_long_as_there_is_time(seconds: float, columns: set[int]) -> None:
    machine, graph = interpreted(), rms_norm_linear(rows=5, inner=48, columns=40)
    (kernel,) = (launch.kernel for launch in machine.lower(construct(graph)).values())
    result = np.zeros((5, 40), np.float32)
    memory = [array.reshape(-1).view(np.uint32) for array in (*normal_inputs(graph), result)]
    assert machine.run_blocks(kernel, machine.print([kernel]), memory, [1, 0], seconds) == len(columns)
    (exact,) = evaluate(graph, [array.astype(np.float64) for array in normal_inputs(graph)], FloatArithmetic())
    for first in (0, 20):
        part = slice(None), slice(first, first + 20)
        if first in columns:
            np.testing.assert_allclose(result[part], exact[part], rtol=1e-5, atol=1e-6)
        else:
            assert np.isnan(result[part]).all()
    assert machine.findings == []


def test_blocks_of_bf16_kernels_run_on_fp32() -> None:
    machine, graph = interpreted(), rms_norm_linear(rows=5, inner=48, columns=40, dtype=DType.BF16)
    (kernel,) = (launch.kernel for launch in machine.machine.lower(construct(graph)).values())
    inputs = normal_inputs(rms_norm_linear(rows=5, inner=48, columns=40))
    result = np.zeros((5, 40), np.float32)
    assert machine.runs_as(DType.BF16) is DType.FP32
    memory = [array.reshape(-1).view(np.uint32) for array in (*inputs, result)]
    machine.run_blocks(kernel, machine.print([kernel]), memory, [0, 1], 60.0)
    (exact,) = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-6)


# --- faults ----------------------------------------------------------------------------------------------------------


def once(pattern: str, replacement: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        changed, count = re.subn(pattern, replacement, text, count=1)
        assert count == 1, pattern
        return changed

    return edit


FAULTS = {
    "a load without its mask": once(r"(W_2 = .*), mask=.*, other=0.0", r"\1"),
    "padding that is NaN": once(r"(W_2 = .*)other=0.0", r'\1other=float("nan")'),
    "a store without its mask": once(r"(tl.store.*), mask=.*\)", r"\1)"),
    "a wrong stride": once(r"(W_2 = .*) \* 40", r"\1 * 41"),
    "a tile of the wrong block": once(r"(W_2 = .*)20 \* g0", r"\1 0 * g0"),
    "an iteration left out": once(r"tl.range\(4,", "tl.range(3,"),
    "an accumulator that forgets": once(r"acc_5 = acc_5 \+ ", "acc_5 = "),
    "a mask that is too wide": once(r"m12 = i16 < 12", "m12 = i16 < 13"),
    "a mask that is too narrow": once(r"m20 = i32 < 20", "m20 = i32 < 19"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed(fault: str) -> None:
    machine = interpreted(FAULTS[fault])
    graph = rms_norm_linear(rows=5, inner=48, columns=40)
    error = largest_error(graph, normal_inputs(graph), machine)
    assert machine.findings or not error < 1e-4


def test_writes_outside_of_outputs_are_found_although_the_result_is_right() -> None:
    machine = interpreted(once(r"(    tl.store\()(t\d+_ptr)(.*)", r"\1\2\3\n    tl.store(\2 + 1000, 1.0)"))
    graph = rms_norm_linear(rows=5, inner=48, columns=40)
    assert largest_error(graph, normal_inputs(graph), machine) < 1e-5
    assert machine.findings == ["kernel_3 writes outside of its outputs"] * len(machine.findings)
    assert machine.findings


def test_what_the_interpreter_says_is_raised() -> None:
    graph = rms_norm_linear(rows=5, inner=48, columns=40)
    with pytest.raises(CompilationFailed, match=r"interpreter rejected kernel_3: .*X_9"):
        largest_error(graph, normal_inputs(graph), interpreted(once("square_3 = X_0", "square_3 = X_9")))


@pytest.mark.emulator
def test_a_process_that_ended_is_named_and_replaced() -> None:
    """It is ended by whoever runs out of memory, or by hand: the next kernel gets another one."""
    graph = rms_norm_linear()
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]
    process = _interpreter().process
    process.kill()
    process.wait()
    with pytest.raises(TargetUnavailable, match="ended with status"):
        largest_error(graph, normal_inputs(graph), interpreted())
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]


def test_ctrl_c_leaves_the_process_alone() -> None:
    graph = rms_norm_linear()
    largest_error(graph, normal_inputs(graph), interpreted())
    _interpreter().process.send_signal(signal.SIGINT)
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]


@pytest.mark.emulator
def test_an_answer_that_nobody_waited_for_is_no_answer_to_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = rms_norm_linear()
    largest_error(graph, normal_inputs(graph), interpreted())

    def interrupted(_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(_interpreter()), "_line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            largest_error(graph, normal_inputs(graph), interpreted())
    assert largest_error(graph, normal_inputs(graph, seed=1), interpreted()) < LARGEST_ERROR[DType.FP32]


@pytest.mark.parametrize("graph", [rms_norm_linear(dtype=DType.BF16), attention(dtype=DType.BF16)])
def test_kernels_of_bf16_run_in_fp32_on_tensors_of_bf16(graph: Graph) -> None:
    """Triton interprets products of bf16 wrongly."""
    machine, rng = interpreted(), np.random.default_rng(0)
    inputs = [torch.from_numpy(rng.standard_normal(node.output.shape)).to(torch.bfloat16) for node in graph.inputs()]
    exact = evaluate(graph, [tensor.double().numpy() for tensor in inputs], FloatArithmetic())
    for result, wanted in zip(Executable(graph, machine)(*inputs), exact, strict=True):
        assert result.dtype is torch.bfloat16
        error = np.abs(result.double().numpy() - wanted).max() / np.abs(wanted).max()
        assert 0 < error <= 2.0**-8
    assert machine.findings == []


def test_numbers_that_no_tensor_meets_have_a_type() -> None:
    """Literals have none to be rounded from: 0.5, its exponential, the sum of three of these, and a rounding times a tensor."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, loop=3)
    half = block.constant(0.5, DType.FP16)
    power = block.add("exp", half)
    summed = block.add("accumulate", power, combine="sum")
    given = kernel.input("x", (), DType.FP16)
    largest = block.add("accumulate", block.iterator(0, kernel.tensor(given), (), None), combine="max")
    rounded = block.add("mul", block.add("round_bf16", block.constant(1.001, DType.FP16)), largest)
    saved = [block.add("output_saver", value, omap=()) for value in (half, power, summed, rounded)]
    graph = kernel.build(kernel.graph_defined(block.build(saved), [given]))
    results = [result.item() for result in Executable(graph, interpreted())(torch.full((), 7, dtype=torch.float16))]
    np.testing.assert_allclose(results, [0.5, np.exp(0.5), 3 * np.exp(0.5), 7], rtol=1e-3)


def test_rounding_to_fp32_is_nothing_to_pytorch_which_computes_in_it() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.add("round_fp32", kernel.input("x", (4,), DType.FP32))
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    tile = block.add("tanh", block.iterator(0, kernel.tensor(value), (0,), None))
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", tile, omap=(0,))]), [value]))
    assert largest_error(graph, normal_inputs(graph), interpreted()) < LARGEST_ERROR[DType.FP32]
