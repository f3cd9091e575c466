"""Reductions whose results stay in registers through the loop: which ones, what becomes of them, and what the checker refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lower.graphs import attention, rms_norm_linear
from lower.test_pipeline import kernel_of
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import lower
from mugraph.lower.access_costs import block_traffic
from mugraph.lower.check import check
from mugraph.lower.register_reductions import reduction_into, with_reductions_in_loop, with_register_reductions
from mugraph.lower.scalar_expressions import Constant, Source
from mugraph.lower.tile_form import Combine, Elementwise, Kernel, Memory, Reduce
from mugraph.lower.tile_text import format_kernel, parse_kernel


def statistics(
    rows: int = 12, columns: int = 96, loop: int = 3, dtype: DType = DType.FP32, taken: bool = True, late: str = ""
) -> Graph:
    """Amounts of the sums and the maxima of rows, over a loop over rows (not `taken`) or over parts of columns.

    `late`: what is accumulated element by element and reduced behind the loop, one part or the other or both; `and read` there.
    """
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, columns) if taken else (rows * loop, columns), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=loop)
    value = block.add("tanh", block.iterator(0, kernel.tensor(x), (None,), 1 if taken else 0))
    size = columns // loop if taken else columns
    parts = []
    for op in ("sum", "max"):
        if op in late:
            whole = block.add("accumulate", value, combine=op)
            parts.append(block.add(op, whole, dim=1, size=size))
            parts += [whole] * ("and read" in late)
        else:
            parts.append(block.add("accumulate", block.add(op, value, dim=1, size=size), combine=op))
    saved = [block.add("output_saver", block.add("abs", part), omap=(0,)) for part in parts]
    return kernel.build(kernel.graph_defined(block.build(saved), [x]))


def in_registers(kernel: Kernel) -> list[Reduce]:
    found = (reduction_into(kernel, buffer.name) for buffer in kernel.buffers)
    return [reduction for reduction in found if reduction is not None]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("rows", [1, 12])
def test_sums_and_maxima_of_rows_stay_in_registers(rows: int, taken: bool) -> None:
    kernel = kernel_of(statistics(rows, taken=taken))
    assert [reduction.combine for reduction in in_registers(kernel)] == [Combine.SUM, Combine.MAX]
    assert all(reduction.accumulate for reduction in in_registers(kernel))
    assert {kernel.buffer(s.target.buffer).memory for s in kernel.body if isinstance(s, Reduce)} == {Memory.REGISTERS}
    assert parse_kernel(format_kernel(kernel)) == kernel
    check(kernel)


def test_the_parts_of_a_wide_reduction_are_put_together_behind_the_loop() -> None:
    kernel = kernel_of(rms_norm_linear(rows=1, inner=4096, columns=32, grid=1, loop=4, dtype=DType.FP16))
    (parts,) = in_registers(kernel)
    assert parts.target.shape == (1, 1, kernel.threads // 32)
    (whole,) = (s for s in kernel.after if isinstance(s, Reduce))
    assert whole.target.shape == (1, 1)
    assert not whole.accumulate
    check(kernel)


@pytest.mark.parametrize("late", ["sum", "max", "sum and max"])
@pytest.mark.parametrize("rows", [1, 12])
def test_what_is_reduced_behind_the_loop_alone_is_reduced_in_it(rows: int, late: str) -> None:
    kernel, early = kernel_of(statistics(rows, late=late)), kernel_of(statistics(rows))
    assert {reduction.combine for reduction in in_registers(kernel)} == {*Combine}
    assert not any(isinstance(s, Elementwise) and s.combine is not None for s in kernel.body)
    assert block_traffic(kernel) == block_traffic(early)
    assert kernel.shared_bytes == early.shared_bytes
    check(kernel)


def test_what_is_read_element_by_element_too_is_not() -> None:
    kernel = kernel_of(statistics(late="sum and read"))
    assert [reduction.combine for reduction in in_registers(kernel)] == [Combine.MAX]
    assert any(isinstance(s, Elementwise) and s.combine is Combine.SUM for s in kernel.body)
    check(kernel)


def test_a_maximum_of_sums_is_no_sum_of_maxima() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (12, 96), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=3)
    total = block.add("accumulate", block.iterator(0, builder.tensor(x), (None,), 1), combine="sum")
    saved = block.add("output_saver", block.add("max", total, dim=1, size=32), omap=(0,))
    kernel = kernel_of(builder.build(builder.graph_defined(block.build([saved]), [x])))
    assert in_registers(kernel) == []
    check(kernel)


def test_the_loop_of_a_normalization_stores_no_statistics() -> None:
    graph = rms_norm_linear(rows=16, inner=1024, columns=64, grid=2, loop=4, dtype=DType.BF16)
    kernel = kernel_of(graph)
    (squares,) = in_registers(kernel)
    (copy,) = (s for s in kernel.after if squares.target in s.sources)
    stored = replace(
        kernel,
        before=(Elementwise(copy.target, (), Constant(0.0)), *kernel.before),
        body=tuple(replace(s, target=copy.target) if s == squares else s for s in kernel.body),
        after=tuple(s for s in kernel.after if s != copy),
    )
    assert block_traffic(kernel).wavefronts < block_traffic(stored).wavefronts


def test_what_else_the_loop_reads_is_stored_in_it() -> None:
    assert in_registers(kernel_of(attention(queries=16, keys=128, width=64, loop=4, dtype=DType.BF16))) == []


def test_results_that_are_more_than_threads_are_stored() -> None:
    """A thread would hold several."""
    kernel = kernel_of(statistics(rows=512, columns=8, loop=2))
    assert kernel.threads < 512
    assert in_registers(kernel) == []


def test_a_kernel_without_a_loop_stays_as_it_is() -> None:
    (launch,) = lower(rms_norm_linear(loop=1)).values()
    assert with_register_reductions(with_reductions_in_loop(launch.kernel)) is launch.kernel


def test_sums_start_in_every_lane_from_nothing() -> None:
    """Each of several lanes would add another start; a maximum may have one."""
    (launch,) = lower(statistics()).values()
    started = tuple(Elementwise(s.target, (), Constant(1.0)) for s in launch.kernel.before)
    held = with_register_reductions(replace(launch.kernel, threads=128, before=started))
    assert [reduction.combine for reduction in in_registers(held)] == [Combine.MAX]


def test_the_checker_refuses_to_read_what_only_some_lanes_have() -> None:
    kernel = kernel_of(statistics())
    first, *_ = in_registers(kernel)
    (copy,) = (s for s in kernel.after if first.target in s.sources)
    read = Elementwise(copy.target, (first.target, first.target), Source(0))
    with pytest.raises(InvalidGraph, match="is a sum in registers"):
        check(replace(kernel, after=tuple(read if s == copy else s for s in kernel.after)))
    with pytest.raises(InvalidGraph, match="is a sum in registers"):
        check(replace(kernel, threads=8))


def test_the_checker_refuses_a_start_that_lanes_would_add_up() -> None:
    kernel = kernel_of(statistics())
    total, largest = in_registers(kernel)
    for reduction, refused in ((largest, False), (total, True)):
        before = (s for s in kernel.before if s.target != reduction.target)
        changed = replace(kernel, before=(Elementwise(reduction.target, (), Constant(1.0)), *before))
        if refused:
            with pytest.raises(InvalidGraph, match="is a sum in registers"):
                check(changed)
        else:
            check(changed)
