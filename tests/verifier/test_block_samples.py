"""Where a stand-in takes long for all blocks of an output, some are computed, and what is wrong with all is wrong with these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mugraph.checker.float_errors import check_floats
from mugraph.checker.saved_files import Rejected
from mugraph.errors import InvalidInput
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.program import Program
from mugraph.ir.validity import check
from mugraph.lower import construct
from mugraph.results.summary import floats_text
from mugraph.runtime import Executable
from mugraph.selection.inputs import runner
from mugraph.targets.cpu.machine import Cpu
from mugraph.verifier import FloatReport, block_samples, float_check
from mugraph.verifier.block_samples import BlockSample, block_axes

ROWS, INNER, COLUMNS = 192, 96, 320
ROW_BLOCKS, COLUMN_BLOCKS = 12, 10


@pytest.fixture(autouse=True)
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes long, and few blocks are enough."""
    monkeypatch.setattr(block_samples, "_WHOLE", 0.0)
    monkeypatch.setattr(block_samples, "_SAMPLED", 0.0)


def program(dtype: DType = DType.FP16) -> Graph:
    """The rows of x, divided by their mean square, times w."""
    written = Program()
    x, w = written.input("x", (ROWS, INNER), dtype), written.input("w", (INNER, COLUMNS), dtype)
    written.output((x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()) @ w)
    return written.graph


def fused(
    dtype: DType = DType.FP16,
    epsilon: float = 1e-5,
    changed: Callable[[GraphBuilder, Value], Value] = lambda block, made: made,
) -> Graph:
    """The same as one kernel of 12 x 10 blocks of three iterations, which multiplies first; `changed` is done to the result."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (ROWS, INNER), dtype), kernel.input("w", (INNER, COLUMNS), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(ROW_BLOCKS, COLUMN_BLOCKS), loop=3)
    rows = block.iterator(0, kernel.tensor(x), (0, None), 1)
    weight = block.iterator(1, kernel.tensor(w), (None, 1), 0)
    squares = block.add("accumulate", block.add("sum", block.add("square", rows), dim=1, size=INNER // 3), combine="sum")
    product = block.add("accumulate", block.add("matmul", rows, weight), combine="sum")
    mean = block.add("mul", squares, block.constant(1 / INNER, dtype))
    made = block.add("div", product, block.add("sqrt", block.add("add", mean, block.constant(epsilon, dtype))))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", changed(block, made), omap=(0, 1))]), [x, w]))


def report_of(graph: Graph) -> FloatReport:
    """What is found of a muGraph at a sample of its blocks, compiled for this host."""
    sample = BlockSample.of(program(), graph)
    assert sample is not None
    return sample.reported(float_check(runner(Executable(construct(sample.graph), Cpu())), sample.program, graph=sample.graph))


def test_a_sample_has_whole_blocks_of_the_same_tiles() -> None:
    sample = BlockSample.of(program(), fused())
    assert sample is not None
    assert [each.slices for each in sample.axes] == [ROWS // ROW_BLOCKS, COLUMNS // COLUMN_BLOCKS]
    assert sample.at == (4, 4)
    check(sample.graph)
    ours, whole = (graph.kernels()[0].body for graph in (sample.graph, fused()))
    assert ours is not None
    assert whole is not None
    assert (ours.grid, ours.loop) == ((4, 4), whole.loop)
    assert [node.output.shape for node in ours.nodes][:-1] == [node.output.shape for node in whole.nodes][:-1]
    assert [node.output.shape for node in sample.program.inputs()] == [(64, INNER), (INNER, 128)]


def test_blocks_of_single_elements_are_taken_together() -> None:
    axes = block_axes(program(), program())
    assert [(each.slices, each.blocks) for each in axes] == [(16, 12), (16, 20)]


def test_of_a_prime_number_of_slices_as_many_are_taken_as_tiles_have() -> None:
    written = Program()
    x, w = written.input("x", (193, INNER), DType.FP16), written.input("w", (INNER, 7), DType.FP16)
    written.output(x @ w)
    sample = BlockSample.of(written.graph, written.graph)
    assert sample is not None
    assert [(each.slices, each.blocks) for each in sample.axes] == [(1, 193), (1, 7)]
    assert sample.at == (16, 7)


def norms(grid: tuple[int, ...], epsilon: float = 0.0) -> tuple[Graph, Graph]:
    """The norms of 16 x 32 rows as a program, and in blocks that cut the first dimensions; squares have an `epsilon` too much."""
    written = Program()
    written.output(written.input("x", (16, 32, 24), DType.FP16).square().sum(-1, keepdim=True).sqrt())
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (16, 32, 24), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=grid)
    squares = block.add("square", block.iterator(0, kernel.tensor(x), tuple(range(len(grid))), None))
    made = block.add("sum", block.add("add", squares, block.constant(epsilon, DType.FP16)), dim=2, size=24)
    saved = block.add("output_saver", block.add("sqrt", made), omap=tuple(range(len(grid))))
    return written.graph, kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def test_slices_that_blocks_have_apart_are_taken_one_by_one() -> None:
    assert [(each.slices, each.blocks, each.least) for each in block_axes(*norms((16, 2)))] == [(1, 16, 1), (16, 2, 1)]
    assert [(each.slices, each.blocks, each.least) for each in block_axes(*norms((16,)))] == [(1, 16, 1), (1, 32, 16)]
    for grid, at in {(16, 2): (4, 2), (16,): (4, 16), (4, 32): (4, 4)}.items():
        sample = BlockSample.of(*norms(grid))
        assert sample is not None
        assert sample.at == at
        ours, whole = (graph.kernels()[0].body for graph in (sample.graph, norms(grid)[1]))
        assert ours is not None
        assert whole is not None
        assert grid == (16,) or ours.nodes[0].output.shape == whole.nodes[0].output.shape


def test_what_takes_long_in_few_blocks_along_each_axis_is_taken_at_few_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_samples, "_LONG", 0.0)
    for grid, at in {(16, 2): (2, 2), (16,): (2, 16), (4, 32): (2, 2), (1, 32): (4,)}.items():
        sample = BlockSample.of(*norms(grid))
        assert sample is not None
        assert sample.at == at
        for epsilon in (0.0, 1.0):
            graph = norms(grid, epsilon)[1]
            sample = BlockSample.of(norms(grid)[0], graph)
            assert sample is not None
            report = sample.reported(float_check(runner(Executable(construct(sample.graph), Cpu())), sample.program))
            assert report.stable == (not epsilon)
            assert [(each.chosen, each.blocks) for each in report.blocks] == [
                (count, axis.blocks) for count, axis in zip(at, sample.axes, strict=True) if count < axis.blocks
            ]


def test_what_is_cheap_or_cannot_be_cut_is_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Program()
    x = written.input("x", (ROWS, INNER), DType.FP16)
    written.output(x.square().sum((0, 1)).sqrt())
    assert BlockSample.of(written.graph, written.graph) is None
    monkeypatch.setattr(block_samples, "_WHOLE", 1e9)
    assert BlockSample.of(program(), fused()) is None


def test_more_blocks_are_taken_where_they_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_samples, "_SAMPLED", 6e4)
    sample = BlockSample.of(program(), fused())
    assert sample is not None
    assert (4, 4) < sample.at < (ROW_BLOCKS, COLUMN_BLOCKS)


def test_the_report_says_which_part_was_compared() -> None:
    report = report_of(fused())
    assert report.stable
    assert [(each.outputs, each.chosen, each.blocks) for each in report.blocks] == [((0,), 4, 12), ((1,), 4, 10)]
    assert report.elements == (ROWS * COLUMNS,)
    assert {entry.compared for entry in report.scales} == {(64 * 128,)}
    assert FloatReport.from_json(report.to_json()) == report
    text = floats_text(report)
    assert "4 of 12 blocks along dimension 0 of the output and 4 of 10 blocks along dimension 1 of the output" in text
    assert "8,192 of 61,440 elements" in text
    check_floats(report.to_json(), ["fp16"], [(ROWS, COLUMNS)])


FORGED: dict[str, Callable[[dict[str, object]], object]] = {
    "more compared than computed": lambda record: record["inputs"][0].update(compared=[64 * 128 + 1]),  # type: ignore[index]
    "all compared": lambda record: record["inputs"][3].update(compared=None),  # type: ignore[index]
    "more blocks than there are": lambda record: record["blocks"][0].update(chosen=13),  # type: ignore[index]
    "no block": lambda record: record["blocks"][0].update(chosen=0),  # type: ignore[index]
    "half a block": lambda record: record["blocks"][0].update(chosen=4.5),  # type: ignore[index]
    "parts that are all": lambda record: [each.update(chosen=each["blocks"]) for each in record["blocks"]],  # type: ignore[attr-defined]
    "blocks of several sizes": lambda record: record["blocks"][0].update(blocks=11),  # type: ignore[index]
    "blocks of no output": lambda record: record["blocks"][0].update(outputs=[None]),  # type: ignore[index]
    "blocks along no dimension": lambda record: record["blocks"][0].update(outputs=[-1]),  # type: ignore[index]
    "blocks of another output": lambda record: record["blocks"][0].update(outputs=[0, 1]),  # type: ignore[index]
}


@pytest.mark.parametrize("forgery", FORGED)
def test_records_of_blocks_are_of_one_piece(forgery: str) -> None:
    record = report_of(fused()).to_json()
    FORGED[forgery](record)
    with pytest.raises(InvalidInput):
        FloatReport.from_json(record)
    with pytest.raises(Rejected):
        check_floats(record, ["fp16"], [(ROWS, COLUMNS)])


def test_blocks_are_along_dimensions_that_outputs_have() -> None:
    record = report_of(fused()).to_json()
    record["blocks"][0].update(outputs=[2])
    with pytest.raises(Rejected, match="are no parts of the outputs"):
        check_floats(record, ["fp16"], [(ROWS, COLUMNS)])


def test_what_every_block_does_wrong_is_found() -> None:
    def shifted(block: GraphBuilder, made: Value) -> Value:
        return block.add("add", made, block.constant(0.125, DType.FP16))

    report = report_of(fused(changed=shifted))
    assert not report.stable
    assert "output 0 at input scale 0.001 errs by" in report.reason


def test_what_is_wrong_for_one_kind_of_inputs_is_found() -> None:
    report = report_of(fused(epsilon=1e-7))
    assert "output 0 at input scale 0.001 errs by" in report.reason
    assert report.max_relative_error < 4e-3


def test_errors_are_those_of_the_whole() -> None:
    report = report_of(fused())
    whole = float_check(runner(Executable(construct(fused()), Cpu())), program(), graph=fused())
    assert whole.stable
    np.testing.assert_allclose(report.max_relative_error, whole.max_relative_error, rtol=0.6)
