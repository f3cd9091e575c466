"""What lowering makes of block graphs, and what its checker refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import lower
from mugraph.lower.check import check
from mugraph.lower.tile_form import Combine, Elementwise, Kernel, Matmul, Memory, Reduce
from runtime.block_graphs import many_kernels


def only_kernel(graph: Graph) -> Kernel:
    (launch,) = lower(graph).values()
    return launch.kernel


def test_a_matmul_adds_straight_into_its_accumulator() -> None:
    kernel = only_kernel(rms_norm_linear())
    (product,) = [statement for statement in kernel.body if isinstance(statement, Matmul)]
    assert product.accumulate
    assert product.target.buffer in {statement.target.buffer for statement in kernel.before}


def test_a_square_is_computed_inside_the_sum_that_reads_it() -> None:
    kernel = only_kernel(rms_norm_linear())
    (total,) = [statement for statement in kernel.body if isinstance(statement, Reduce)]
    assert total.sources[0].buffer == kernel.inputs[0]
    assert total.accumulate
    assert total.combine is Combine.SUM


def test_operands_are_read_in_place_and_results_written_in_place() -> None:
    kernel = only_kernel(rms_norm_linear())
    copied = {buffer.name for buffer in kernel.buffers if buffer.memory is Memory.SHARED}
    assert len(copied) == 3
    assert kernel.after[-1].target.buffer == kernel.outputs[0]


def test_loop_invariant_work_runs_once() -> None:
    kernel = only_kernel(attention())
    scaling = [statement for statement in kernel.before if isinstance(statement, Elementwise) and statement.sources]
    assert len(scaling) == 1
    assert not any(kernel.inputs[0] in {tile.buffer for tile in statement.sources} for statement in kernel.body)


@pytest.mark.parametrize("flat", [False, True])
def test_accumulators_with_the_same_shift_share_one_running_maximum(flat: bool) -> None:
    body = only_kernel(attention(flat=flat)).body
    factors = [s.label.name for s in body if isinstance(s, Elementwise) and s.label and s.label.name.endswith("_factor")]
    assert factors == ["old_factor", "new_factor"]


def test_kernel_level_views_are_strides_of_the_kernel_that_reads_them() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (4, 6), DType.FP32)
    transposed = builder.add("transpose", x, permutation=(1, 0))
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    value = block.add("exp", block.iterator(0, builder.tensor(transposed), (0,), None))
    graph = builder.build(builder.graph_defined(block.build([block.add("output_saver", value, omap=(0,))]), [transposed]))
    (launch,) = lower(graph).values()
    assert launch.inputs == (x,)
    (statement,) = launch.kernel.statements
    assert statement.sources[0].strides == (1, 6)


@pytest.mark.parametrize("seed", range(4))
def test_every_lowered_kernel_is_valid(seed: int) -> None:
    for launch in lower(many_kernels(seed, 30, DType.BF16 if seed % 2 else DType.FP32)).values():
        check(launch.kernel)


def test_the_checker_refuses_a_tile_outside_its_buffer() -> None:
    kernel = only_kernel(rms_norm_linear())
    smaller = tuple(replace(b, elements=b.elements - 1) if b.name == "in2" else b for b in kernel.buffers)
    with pytest.raises(InvalidGraph, match="leaves its buffer in2"):
        check(replace(kernel, buffers=smaller))


def test_the_checker_refuses_live_buffers_that_overlap() -> None:
    kernel = only_kernel(rms_norm_linear())
    together = tuple(replace(buffer, offset=0) for buffer in kernel.buffers)
    with pytest.raises(InvalidGraph, match="other data took its place"):
        check(replace(kernel, buffers=together))


def test_a_concat_matmul_into_a_16_bit_output_sums_in_fp32() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (4, 4), DType.BF16)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    value = block.iterator(0, builder.tensor(x), (None,), None)
    saved = block.add("output_saver", block.add("concat_matmul", value, value, value, value), omap=(0,))
    kernel = only_kernel(builder.build(builder.graph_defined(block.build([saved]), [x])))
    check(kernel)
    (first, second, last) = kernel.statements
    assert first.target == second.target
    assert last.target.buffer == kernel.outputs[0]


def test_the_checker_refuses_a_read_before_the_write() -> None:
    kernel = only_kernel(rms_norm_linear())
    with pytest.raises(InvalidGraph, match="read before it is written"):
        check(replace(kernel, before=()))


def test_the_checker_refuses_shapes_that_do_not_match() -> None:
    kernel = only_kernel(rms_norm_linear())
    (product,) = [statement for statement in kernel.body if isinstance(statement, Matmul)]
    broken = replace(product, right=replace(product.right, shape=(7, 24)))
    with pytest.raises(InvalidGraph, match="operand shapes"):
        check(replace(kernel, body=(broken,)))


def test_lowering_starts_at_a_kernel_graph() -> None:
    with pytest.raises(InvalidGraph, match="kernel graph"):
        lower(GraphBuilder(Level.BLOCK).build([]))
