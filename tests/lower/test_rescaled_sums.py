"""Sums that are rescaled before products add to them: where they are, and where a product keeps its own result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lower.graphs import attention
from lower.test_pipeline import kernel_of
from mugraph.devices import Engines
from mugraph.ir import DType, GraphBuilder, Level
from mugraph.lower import cooperative, lower, register_scores
from mugraph.lower.check import check
from mugraph.lower.fragments import holds_rows, takes_left_from_registers
from mugraph.lower.rescaled_sums import with_rescaled_sums
from mugraph.lower.scalar_expressions import PRODUCT, Apply, Constant, Source
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Statement
from mugraph.lower.warp_groups import groups_hold_sums, held_registers, uses_warp_groups


def lowered(monkeypatch: pytest.MonkeyPatch, dtype: DType = DType.BF16) -> Kernel:
    """Attention whose product has a result of its own."""
    with monkeypatch.context() as patched:
        patched.setattr(register_scores, "with_rescaled_sums", lambda kernel: kernel)
        return kernel_of(attention(64, 128, 64, 2, dtype), 200_000)


def second_product(kernel: Kernel) -> Matmul:
    return next(s for s in kernel.body if isinstance(s, Matmul) and takes_left_from_registers(kernel, s))


def update(kernel: Kernel) -> Elementwise:
    term = second_product(kernel).target
    return next(s for s in kernel.body if isinstance(s, Elementwise) and term in s.sources)


def test_a_product_adds_to_a_sum_that_was_rescaled_before() -> None:
    kernel = kernel_of(attention(64, 128, 64, 2, DType.BF16), 200_000)
    product = second_product(kernel)
    place = kernel.body.index(product)
    assert product.accumulate
    (rescaled,) = (s for s in kernel.body[:place] if s.target == product.target)
    (scaled,) = (s for s in kernel.body[:place] if s.target == product.left)
    for statement in (rescaled, scaled):
        assert isinstance(statement, Elementwise)
        assert statement.expression == Apply(PRODUCT, (Source(0), Source(1)))
    factors = [kernel.buffer(s.sources[1].buffer).name for s in (rescaled, scaled)]
    assert len(set(factors)) == 2
    assert all(kernel.buffer(name).memory is Memory.ROWS for name in factors)
    check(kernel)


def test_groups_have_room_for_scores_of_128_columns_and_a_sum_of_as_many() -> None:
    """Warps alone would spill: they load right factors to registers."""
    (launch,) = lower(attention(64, 256, 128, 2, DType.BF16)).values()
    kernel = cooperative(launch.kernel, 400_000, engines=Engines(warp_group_rows=64, tensor_maps=True))
    assert uses_warp_groups(kernel)
    assert holds_rows(kernel)
    assert held_registers(kernel) == 2 * 64
    check(kernel)
    assert not holds_rows(cooperative(launch.kernel, 400_000))


@pytest.mark.parametrize("columns", [112, 128])
def test_groups_that_multiply_something_else_make_no_room(columns: int) -> None:
    """Groups have no panels of 112 columns, and then warps multiply scores."""
    kernel, taken = GraphBuilder(Level.KERNEL), 128
    shapes = ((64, 64), (2 * taken, 64), (2 * taken, columns), (2 * taken, 64))
    inputs = [kernel.input(f"x{number}", shape, DType.BF16) for number, shape in enumerate(shapes)]
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=2)
    q, k, v, other = (block.iterator(n, kernel.tensor(each), (None,), 0 if n else None) for n, each in enumerate(inputs))
    scores, apart = (block.add("matmul", q, block.add("transpose", keys, permutation=(1, 0))) for keys in (k, other))
    largest = block.add("max", scores, dim=1, size=taken)
    weights = block.add("exp", block.add("sub", scores, largest))
    results = (
        block.add("accumulate_rescaled", block.add("matmul", weights, v), largest),
        block.add("accumulate", apart, combine="concat", dim=1),
    )
    saved = [block.add("output_saver", result, omap=(0,)) for result in results]
    (launch,) = lower(kernel.build(kernel.graph_defined(block.build(saved), inputs))).values()
    lowered = cooperative(launch.kernel, 227_000, engines=Engines(warp_group_rows=64, tensor_maps=True))
    assert uses_warp_groups(lowered)
    assert holds_rows(lowered) == groups_hold_sums(lowered) == (columns == 128)
    check(lowered)


def test_fp16_would_lose_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = lowered(monkeypatch, DType.FP16)
    assert holds_rows(kernel)
    assert with_rescaled_sums(kernel) == kernel


def with_statement(kernel: Kernel, statement: Statement) -> Kernel:
    """The kernel with one more statement between the product and what adds its result to the sum."""
    place = kernel.body.index(update(kernel))
    return replace(kernel, body=(*kernel.body[:place], statement, *kernel.body[place:]))


def changed(kernel: Kernel, new: Elementwise) -> Kernel:
    return replace(kernel, body=tuple(new if s == update(kernel) else s for s in kernel.body))


HINDRANCES: dict[str, Callable[[Kernel], Kernel]] = {
    "its result is read once more": lambda kernel: with_statement(
        kernel, Elementwise(second_product(kernel).target, (second_product(kernel).target,), Source(0))
    ),
    "its weights change before the sum does": lambda kernel: with_statement(
        kernel, Elementwise(second_product(kernel).left, (), Constant(0.0))
    ),
    "it is computed otherwise": lambda kernel: changed(
        kernel, replace(update(kernel), expression=Apply("({0} * {1} - {2} * {3})", tuple(map(Source, range(4)))))
    ),
    "a factor differs along rows": lambda kernel: changed(
        kernel, replace(update(kernel), sources=(*update(kernel).sources[:3], update(kernel).sources[2]))
    ),
    "another sum is rescaled": lambda kernel: changed(
        kernel, replace(update(kernel), target=replace(update(kernel).target, buffer="other"))
    ),
    "it adds to something already": lambda kernel: replace(
        kernel,
        body=tuple(
            replace(s, accumulate=True) if isinstance(s, Matmul) and s == second_product(kernel) else s for s in kernel.body
        ),
    ),
}


@pytest.mark.parametrize("hindrance", HINDRANCES)
def test_a_product_keeps_its_result_where(hindrance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = lowered(monkeypatch)
    assert with_rescaled_sums(kernel) != kernel
    hindered = HINDRANCES[hindrance](kernel)
    assert with_rescaled_sums(hindered) == hindered
