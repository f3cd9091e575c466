"""Loops put into loopless graphs: whatever is lifted computes the program, in as many ways as there are to read operands."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
import torch

from mugraph.algebra.fields import FieldArithmetic
from mugraph.algebra.linearity import is_linear
from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Level
from mugraph.ir.program import Program
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import build
from mugraph.runtime.executable import Executable
from mugraph.search import search
from mugraph.search.algorithm1.engine import FieldTest
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.loop_insertion import Fmaps, loops_to_some_end, with_loop
from mugraph.search.closure.safe_softmax import without_neutral_maxima
from mugraph.search.closure.saturation import Closure, Limits, Saturation
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.scheduling.emission import KernelOutput, Schedule, emit_block
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda

from .programs import PAPER, chain, finished, lora, normalized, outputs, random_inputs, rmsnorm


def quotient() -> Graph:
    """y x / |x|: only x is needed before the loop ends."""
    p = Program()
    x, y = p.input("x", (4, 12)), p.input("y", (4, 12))
    return finished(p, y * (x / x.square().sum(-1, keepdim=True).sqrt()))


def unit_rows() -> Graph:
    """x / |x|: rows are read once, for the sum and for the quotient."""
    p = Program()
    return finished(p, normalized(p.input("x", (4, 12))))


PROGRAMS = {
    **PAPER,
    "chain": chain,
    "quotient": quotient,
    "unit rows": unit_rows,
}


def plain(program: Graph) -> AxisProgram:
    """The program the engine searches."""
    return without_neutral_maxima(axis_program(program), FieldArithmetic(seed=0), TinyInputs(0))


def saturated(program: AxisProgram) -> Closure:
    closure = Closure(program, Context.of(program, None), Tier.OPAQUE_SUMS)
    Saturation(closure, FieldArithmetic(seed=0), TinyInputs(0), Limits()).run()
    assert closure.saturated
    return closure


def sketches(closure: Closure, operators: int, most: int = 60) -> list[Sketch]:
    """The first derivations of the outputs."""
    extractor = Extractor(closure, lambda edge: 1.0)
    limits = ExtractionLimits(operators, derivations=most)
    return [sketch for goals in itertools.product(*closure.goals) for _, sketch in extractor.derivations(goals, limits)]


def as_graph(program: Graph, axes: AxisProgram, sketch: Sketch) -> Graph:
    """One kernel with a for-loop of two iterations in a single block."""
    builder = GraphBuilder(Level.KERNEL)
    inputs = [builder.append(node) for node in program.inputs()]
    operands = [inputs[leaf.source] for leaf in sketch.leaves]
    outputs = [KernelOutput(slots, tensor.dtype) for (_, slots), tensor in zip(axes.outputs, program.output_tensors, strict=True)]
    body = emit_block(sketch, Schedule((), 2), axes.sizes, [builder.tensor(value) for value in operands], outputs)
    return builder.build(builder.graph_defined(body, operands))


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"qknorm"}))
def test_whatever_is_lifted_computes_the_program(name: str) -> None:
    program = PROGRAMS[name]()
    axes, test = plain(program), FieldTest(program, seed=5)
    loopless = saturated(axes)
    tried = 0
    for loop_axis, size in enumerate(axes.sizes):
        if size % 2 == 0:
            for fmaps in Fmaps:
                for sketch in sketches(with_loop(loopless, loop_axis, fmaps), 18, most=15):
                    assert test.accepts(as_graph(program, axes, sketch)), (loop_axis, fmaps, sketch)
                    tried += 1
    assert tried > 10


def test_an_operand_that_waits_for_a_sum_is_read_whole() -> None:
    program = quotient()
    axes = plain(program)
    inner = axes.sizes.index(12)
    found = [*filter(loops_to_some_end, sketches(with_loop(saturated(axes), inner, Fmaps.WORTHWHILE), 11))]
    readings = {frozenset((step.leaf.source, step.whole) for step in sketch.steps if step.leaf) for sketch in found}
    assert frozenset({(0, False), (1, True)}) in readings
    candidates = [candidate.graph for candidate in search(program, device_for("cpu")).candidates]
    assert all(map(FieldTest(program, seed=1).accepts, candidates))


def test_an_operand_is_kept_where_a_finished_sum_is_applied_to_it() -> None:
    axes = plain(unit_rows())
    inner = axes.sizes.index(12)
    found = [*filter(loops_to_some_end, sketches(with_loop(saturated(axes), inner, Fmaps.WORTHWHILE), 8))]
    assert found
    for sketch in found:
        (load,) = [index for index, step in enumerate(sketch.steps) if step.op == "load"]
        assert sorted(step.op for step in sketch.steps if load in step.inputs) == ["concat", "square"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize("program", [quotient(), unit_rows()], ids=["read whole", "kept"])
def test_operands_past_the_loop_run_right(program: Graph) -> None:
    axes = plain(program)
    found = sketches(with_loop(saturated(axes), axes.sizes.index(12), Fmaps.WORTHWHILE), 11)
    tensors, (wanted,) = [torch.from_numpy(array).float() for array in random_inputs(program)], outputs(program)
    sketch = max(filter(loops_to_some_end, found), key=lambda sketch: sum(step.whole for step in sketch.steps))
    graph = construct(as_graph(program, axes, sketch))
    on = EmulatedCuda(Cuda("sm_90", 200_000))
    for (result,) in (build(graph, "cpu")(*tensors), Executable(graph, on)(*tensors)):
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert on.findings == []


def test_a_loop_that_only_puts_operands_together_is_no_loop() -> None:
    axes = plain(chain())
    loopless = saturated(axes)
    inner = axes.terms[0].slots[1][0]
    everything = sketches(with_loop(loopless, inner, Fmaps.ALL), 11)
    ends = {*filter(loops_to_some_end, everything)}
    assert len(ends) < len(everything)
    for sketch in ends:
        assert any(step.op == "accumulate" for step in sketch.steps)
    assert all(map(loops_to_some_end, sketches(loopless, 11)))


@pytest.mark.parametrize("program", [rmsnorm(), lora()])
def test_aligned_operands_are_all_cut(program: Graph) -> None:
    axes = plain(program)
    loopless = saturated(axes)
    for loop_axis in range(len(axes.sizes)):
        for sketch in sketches(with_loop(loopless, loop_axis, Fmaps.ALIGNED), 11):
            assert not any(step.whole for step in sketch.steps)
            loads = {index for index, step in enumerate(sketch.steps) if step.leaf and loop_axis in step.axes}
            assert not any(step.op == "concat" and loads.intersection(step.inputs) for step in sketch.steps)


@pytest.mark.parametrize(
    ("op", "summed", "linear"),
    [
        ("add", (0, 1), True),
        ("add", (0,), False),
        ("sub", (0, 1), True),
        ("mul", (0,), True),
        ("mul", (0, 1), False),
        ("div", (0,), True),
        ("div", (1,), False),
        ("matmul", (1,), True),
        ("sum", (0,), True),
        ("max", (0,), False),
        ("exp", (0,), False),
        ("square", (0,), False),
        ("silu", (0,), False),
    ],
)
def test_which_operators_may_be_applied_to_summands(op: str, summed: tuple[int, ...], linear: bool) -> None:
    assert is_linear(op, summed) is linear
