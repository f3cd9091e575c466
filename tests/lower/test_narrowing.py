"""In which bits computed factors are multiplied: those of bf16 in bf16, exponentials of safe softmax in fp16, others in TF32."""

from __future__ import annotations

import pytest

from lower.graphs import OTHER_MAXIMA, attention, normalised_scores, rms_norm_linear, shifted_by
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct, lower
from mugraph.lower.check import check
from mugraph.lower.fragments import on_matrix_units
from mugraph.lower.narrowing import with_narrow_factors, with_rounded_factors
from mugraph.lower.scalar_expressions import TF32, Apply, Source
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory


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


def test_fp32_and_other_types_stay() -> None:
    kernel = narrowed(rms_norm_linear(dtype=DType.FP32))
    assert computed_types(kernel) == {DType.FP32}
    assert not any(product.tf32 for product in products(kernel))
