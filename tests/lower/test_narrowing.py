"""In which bits computed factors are multiplied: those of bf16 in bf16, exponentials of safe softmax in fp16, others in TF32."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from lower.graphs import OTHER_MAXIMA, attention, normalised_scores, rms_norm_linear, shifted_by
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Tensor
from mugraph.ir.ops import OPERATORS, apply_call
from mugraph.lower import construct, lower
from mugraph.lower.check import check
from mugraph.lower.fragments import on_matrix_units
from mugraph.lower.narrowing import with_narrow_factors, with_rounded_factors
from mugraph.lower.scalar_expressions import TF32, Apply, Source
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda


def narrowed(graph: Graph) -> Kernel:
    (launch,) = lower(graph).values()
    return with_narrow_factors(launch.kernel)


def products(kernel: Kernel) -> list[Matmul]:
    return [statement for statement in kernel.statements if isinstance(statement, Matmul)]


def computed_types(kernel: Kernel) -> set[DType]:
    """Element types of the computed factors."""
    factors = (kernel.buffer(tile.buffer) for product in products(kernel) for tile in product.sources)
    return {buffer.dtype for buffer in factors if buffer.memory is Memory.SHARED}


def weighted(op: str, shifted: bool, dtype: DType = DType.FP16) -> Graph:
    """`op(s) @ v` of one block, the operand less its maximum where it is `shifted`."""
    kernel = GraphBuilder(Level.KERNEL)
    s, v = kernel.input("S", (16, 32), dtype), kernel.input("V", (32, 16), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    scores, values = (block.iterator(number, kernel.tensor(tensor), (None,), None) for number, tensor in enumerate((s, v)))
    if shifted:
        scores = block.add("sub", scores, block.add("max", scores, dim=1, size=32))
    result = block.add("matmul", block.add(op, scores), values)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), [s, v]))


def test_a_factor_of_unknown_scale_keeps_the_range_of_fp32() -> None:
    kernel = narrowed(rms_norm_linear(dtype=DType.FP16))
    assert computed_types(kernel) == {DType.FP32}
    assert all(product.tf32 for product in products(kernel))


def test_bf16_has_that_range() -> None:
    kernel = narrowed(rms_norm_linear(dtype=DType.BF16))
    assert computed_types(kernel) == {DType.BF16}
    assert not any(product.tf32 for product in products(kernel))


@pytest.mark.parametrize(
    ("graph", "types"),
    [
        (weighted("exp", shifted=True), {DType.FP16}),
        (weighted("exp", shifted=False), {DType.FP32}),
        (weighted("square", shifted=True), {DType.FP32}),
    ],
)
def test_exponentials_less_their_maximum_fit_into_fp16(graph: Graph, types: set[DType]) -> None:
    kernel = narrowed(graph)
    assert computed_types(kernel) == types
    assert [product.tf32 for product in products(kernel)] == [types == {DType.FP32}]


@pytest.mark.parametrize("what", OTHER_MAXIMA)
def test_exponentials_less_another_maximum_may_be_too_large_for_fp16(what: str) -> None:
    kernel = narrowed(construct(shifted_by(what)))
    assert computed_types(kernel) == {DType.FP32}
    assert [product.tf32 for product in products(kernel)] == [True]


def test_factors_that_others_read_stay_wide_in_memory_and_are_rounded_on_the_way() -> None:
    scores, values = products(kernel := narrowed(attention(dtype=DType.FP16)))
    assert scores.tf32, "queries are scaled inside the block"
    assert not values.tf32
    assert kernel.buffer(values.left.buffer).dtype is DType.FP32


def test_stand_ins_round_what_others_read_too_on_its_way_to_the_product() -> None:
    (launch,) = lower(attention(queries=16, keys=64, width=16, dtype=DType.BF16)).values()
    kernel = with_rounded_factors(launch.kernel, on_matrix_units)
    check(kernel)
    assert computed_types(kernel) == {DType.BF16}
    weights = products(kernel)[1].left.buffer
    (copied,) = [s for s in kernel.statements if s.target.buffer == weights]
    assert kernel.buffer(copied.sources[0].buffer).dtype is DType.FP32


def test_stand_ins_round_to_tf32_what_is_multiplied_in_it() -> None:
    (launch,) = lower(rms_norm_linear(inner=64, dtype=DType.FP16)).values()
    kernel = with_rounded_factors(launch.kernel, on_matrix_units)
    check(kernel)
    assert computed_types(kernel) == {DType.FP32}
    (product,) = products(kernel)
    (copied,) = [s for s in kernel.statements if s.target.buffer == product.left.buffer]
    assert isinstance(copied, Elementwise)
    assert copied.expression == Apply(TF32, (Source(0),))


def test_stand_ins_round_nothing_that_vector_units_multiply() -> None:
    (launch,) = lower(rms_norm_linear(inner=32, dtype=DType.FP16)).values()
    kernel = with_rounded_factors(launch.kernel, on_matrix_units)
    assert [b.name for b in kernel.buffers] == [b.name for b in launch.kernel.buffers], (
        "8 values of k are too few for matrix units"
    )


def test_inputs_are_multiplied_as_they_are() -> None:
    assert not any(product.tf32 for product in products(narrowed(normalised_scores(dtype=DType.FP16))))


def factor_of(made: str, dtype: DType = DType.FP16) -> Graph:
    """What an expression of CHOSEN or COMPUTED makes of x [16, 64], y and a mask, times w [64, 32], in two iterations."""
    kernel = GraphBuilder(Level.KERNEL)
    kinds = {"x": dtype, "y": dtype, "mask": DType.BOOL, "w": dtype}
    inputs = [kernel.input(name, (64, 32) if name == "w" else (16, 64), kind) for name, kind in kinds.items()]
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=2)
    x, y, mask = (block.iterator(number, kernel.tensor(inputs[number]), (None,), 1) for number in range(3))
    w = block.iterator(3, kernel.tensor(inputs[3]), (1,), 0)
    left = {**CHOSEN, **COMPUTED}[made](block, x, y, mask)
    total = block.add("accumulate", block.add("matmul", left, w), combine="sum")
    saved = block.add("output_saver", total, omap=(1,))
    return construct(kernel.build(kernel.graph_defined(block.build([saved]), inputs)))


Made = Callable[[GraphBuilder, Value, Value, Value], Value]


CHOSEN: dict[str, Made] = {
    "relu": lambda block, x, y, mask: block.add("relu", x),
    "abs": lambda block, x, y, mask: block.add("abs", x),
    "negative": lambda block, x, y, mask: block.add("mul", x, block.constant(-1, DType.FP16)),
    "maximum": lambda block, x, y, mask: block.add("maximum", x, y),
    "clamped": lambda block, x, y, mask: block.add("maximum", x, block.constant(-0.5, DType.FP16)),
    "masked": lambda block, x, y, mask: block.add("select", mask, x, block.constant(0, DType.FP16)),
    "chosen by a comparison": lambda block, x, y, mask: block.add("select", block.add("less", x, y), x, y),
    "several": lambda block, x, y, mask: block.add("abs", block.add("select", mask, block.add("relu", x), y)),
}
COMPUTED: dict[str, Made] = {
    "a product": lambda block, x, y, mask: block.add("mul", x, y),
    "twice": lambda block, x, y, mask: block.add("mul", x, block.constant(2, DType.FP16)),
    "a sum": lambda block, x, y, mask: block.add("relu", block.add("add", x, y)),
    "masked by no number of fp16": lambda block, x, y, mask: block.add("select", mask, x, block.constant(1 / 3, DType.FP16)),
    "masked by too large a number": lambda block, x, y, mask: block.add("select", mask, x, block.constant(-(10**6), DType.FP16)),
    "one of them computed": lambda block, x, y, mask: block.add("maximum", x, block.add("square", y)),
}


@pytest.mark.parametrize("made", CHOSEN)
def test_what_is_chosen_of_numbers_of_fp16_is_multiplied_in_fp16(made: str) -> None:
    kernel = narrowed(factor_of(made))
    assert computed_types(kernel) == {DType.FP16}
    assert not any(product.tf32 for product in products(kernel))


@pytest.mark.parametrize("made", COMPUTED)
def test_what_is_computed_may_be_no_number_of_fp16(made: str) -> None:
    kernel = narrowed(factor_of(made))
    assert computed_types(kernel) == {DType.FP32}
    assert all(product.tf32 for product in products(kernel))


@pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if row.picks])
def test_rows_that_pick_give_one_of_these_operands_its_negative_or_zero(name: str) -> None:
    row, rng = OPERATORS[name], np.random.default_rng(0)
    call = apply_call(name, [Tensor((256,), DType.FP16)] * row.arity, {})
    operands = [rng.standard_normal(256) * rng.integers(2, size=256) for _ in range(row.arity)]
    made = np.abs(row.compute(FloatArithmetic(), call, operands))
    assert ((made == 0) | np.any([made == np.abs(operands[place]) for place in row.picks], axis=0)).all()


def test_what_is_chosen_of_numbers_of_other_types_is_none_of_fp16() -> None:
    assert computed_types(narrowed(factor_of("relu", DType.BF16))) == {DType.BF16}
    assert computed_types(narrowed(factor_of("relu", DType.FP32))) == {DType.FP32}


def test_a_factor_that_one_statement_computes_and_another_chooses_stays_wide() -> None:
    """All writers of a buffer must be known, and the buffers that they read."""
    kernel = narrowed(factor_of("relu"))
    (product,) = products(kernel)
    (chosen,) = (s for s in kernel.statements if s.target.buffer == product.left.buffer)
    doubled = Elementwise(chosen.target, chosen.sources, Apply("({0} + {0})", (Source(0),)), combine=None)
    wide = replace(
        kernel, buffers=tuple(replace(b, dtype=DType.FP32) if b.name == product.left.buffer else b for b in kernel.buffers)
    )
    assert computed_types(with_narrow_factors(wide)) == {DType.FP16}
    assert computed_types(with_narrow_factors(replace(wide, before=(doubled,)))) == {DType.FP32}


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("made", CHOSEN)
def test_what_is_chosen_is_right_at_both_ends_of_fp16(made: str, architecture: str) -> None:
    graph = factor_of(made)
    machine = EmulatedCuda(Cuda.of(f"cuda:{architecture}"), apart=True)
    kernels = Executable(graph, machine)
    assert not any("tf32" in text[text.index('extern "C"') :] for text in kernels.sources.values())
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-7, 1e-3, 1.0, 6e4):  # down to numbers of few bits, up to the largest
        x, y = ((2 * torch.rand(16, 64, generator=generator) - 1).mul(scale).half() for _ in range(2))
        mask, w = torch.rand(16, 64, generator=generator) < 0.5, torch.randn(64, 32, generator=generator).div(1e3).half()
        (result,) = kernels(x, y, mask, w)
        (exact,) = evaluate(graph, [each.double().numpy() for each in (x, y, mask, w)], FloatArithmetic())
        allowed = 2.0**-11 * np.abs(exact) + 2.0**-24 + 1e-6 * scale
        assert (np.abs(result.double().numpy() - exact) <= allowed).all()
    assert machine.findings == []


def test_fp32_and_other_types_stay() -> None:
    kernel = narrowed(rms_norm_linear(dtype=DType.FP32))
    assert computed_types(kernel) == {DType.FP32}
    assert not any(product.tf32 for product in products(kernel))
