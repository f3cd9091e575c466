"""Random muGraphs of all levels: what they mean, how all blocks at once are evaluated, and what the targets print, agree."""

from __future__ import annotations

import itertools
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Node
from mugraph.ir.text import parse_graph
from mugraph.ir.validity import check
from mugraph.runtime import Executable
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.testing import mugraph_runs
from mugraph.testing.kernel_features import features as lowered_features
from mugraph.testing.mugraph_features import FEATURES, IMPOSSIBLE, features
from mugraph.testing.mugraph_runs import (
    TARGETS,
    Ending,
    Trial,
    compiled,
    constructed,
    errors,
    machine_of,
    outcome,
    trial_of,
    trial_of_seed,
)
from mugraph.testing.mugraphs import LARGE, SMALL, MuGraphSpace, random_mugraph
from mugraph.verifier.vectorized_eval import evaluate_batched

TYPES = (DType.FP16, DType.BF16, DType.FP32)


def check_meaning(seed: int) -> None:
    graph = random_mugraph(random.Random(seed), 4)
    check(graph)
    assert parse_graph(str(graph)) == graph
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
    at_once = evaluate_batched(graph, inputs, FloatArithmetic())
    for one_by_one, batched in zip(evaluate(graph, inputs, FloatArithmetic()), at_once, strict=True):
        np.testing.assert_allclose(batched, one_by_one, rtol=1e-9, atol=1e-9)


def has_fp64(graph: Graph) -> bool:
    """Whether a tensor of a muGraph has a type that targets may refuse."""
    return any(tensor.dtype is DType.FP64 for _, node in graph.walk() for tensor in node.outputs)


def check_on(target: str, seed: int, statistics: bool = False) -> None:
    """Equal, or refused for its tensors of fp64."""
    if target == "triton":
        pytest.importorskip("triton", reason="the interpreter is Triton's; pip install 'mugraph[triton]'")
    if target == "cuda" and shutil.which("g++") is None:
        pytest.skip("the emulator compiles kernels with g++")
    trial = trial_of_seed(seed, statistics)
    check(trial.graph)
    found = outcome(trial, machine_of(target, seed))
    if has_fp64(trial.graph):
        assert found.ending in (Ending.EQUAL, Ending.REFUSED), found.message
    else:
        assert found.ending is Ending.EQUAL, found.message


@pytest.mark.parametrize("seed", range(10))
def test_all_blocks_at_once_mean_what_one_by_one_means(seed: int) -> None:
    check_meaning(seed)


@pytest.mark.parametrize("seed", range(4))
def test_the_cpu_computes_what_random_mugraphs_mean(seed: int) -> None:
    check_on("cpu", seed)


@pytest.mark.parametrize("seed", range(4, 7))
def test_triton_computes_what_random_mugraphs_mean(seed: int) -> None:
    check_on("triton", seed)


@pytest.mark.parametrize("seed", range(7, 10))
def test_cuda_computes_what_random_mugraphs_mean(seed: int) -> None:
    check_on("cuda", seed)


@pytest.mark.parametrize(("target", "seed"), [*(("cuda", seed) for seed in range(6)), ("cpu", 6), ("triton", 7)])
def test_loops_that_take_sums_and_maxima_of_rows(target: str, seed: int) -> None:
    check_on(target, seed, statistics=True)


def test_such_loops_keep_them_in_registers() -> None:
    """In a fifth of such muGraphs at least, and in a tenth of others at most: what the generator is there for is met."""

    def met(statistics: bool) -> int:
        graphs = [trial_of_seed(seed, statistics).graph for seed in range(40)]
        machine = machine_of("cuda")
        lowered = [machine.lower(graph).values() for graph in graphs if not has_fp64(graph)]
        return sum("reductions in registers" in lowered_features(each.kernel for each in launches) for launches in lowered)

    assert met(statistics=False) <= 4 < 8 <= met(statistics=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 10_050))
@pytest.mark.parametrize("target", ["cpu", "cuda", "triton"])
def test_many_more_loops_that_take_sums_and_maxima_of_rows(target: str, seed: int) -> None:
    check_on(target, seed, statistics=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 350))
def test_many_more_are_evaluated_alike(seed: int) -> None:
    check_meaning(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 10_050))
@pytest.mark.parametrize("target", ["cpu", "cuda", "triton"])
def test_many_more_on_every_target(target: str, seed: int) -> None:
    check_on(target, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 60))
def test_triton_compiles_what_its_interpreter_runs(seed: int) -> None:
    """The interpreter knows nothing of products of matrices that compilers make of sums, as Triton 3.7 did in three of these."""
    pytest.importorskip("triton", reason="kernels are compiled by Triton; pip install 'mugraph[triton]'")
    graph = trial_of_seed(seed).graph
    made = compiled(graph, "triton", seed)
    assert made.ending in ((Ending.COMPILED, Ending.REFUSED) if has_fp64(graph) else (Ending.COMPILED,)), made.message


def test_a_seed_makes_the_same_mugraph_again() -> None:
    first, again, other = (random_mugraph(random.Random(seed), 3) for seed in (1, 1, 2))
    assert str(first) == str(again) != str(other)


def test_every_feature_is_made_and_most_pairs_of_them_in_one_kernel() -> None:
    """In 120 graphs: nothing that the generator is there for is left to chance."""
    spaces = [replace(space, dtypes=TYPES, layouts=True) for space in (SMALL, LARGE)]
    kernels = [kernel for seed in range(120) for kernel in features(random_mugraph(random.Random(seed), 3, spaces[seed % 2]))]
    assert {name for kernel in kernels for name in kernel} == set(FEATURES)
    pairs = {pair for kernel in kernels for pair in itertools.combinations(kernel, 2)}
    assert not IMPOSSIBLE & set(map(frozenset, pairs))
    assert len(pairs) > 0.9 * (len(FEATURES) * (len(FEATURES) - 1) // 2 - len(IMPOSSIBLE))


def test_features_are_those_of_one_kernel() -> None:
    first, second = features(two_kernels(DType.FP16))
    assert "block: loop" in first
    assert "block: loop" not in second
    assert {"fp16 tensors", "kernel: several kernels", "kernel: a kernel reads a kernel"} <= set(first) & set(second)


def two_kernels(dtype: DType = DType.FP32) -> Graph:
    """Sums of rows of 2 x 12 numbers in three iterations, and their squares."""
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("x", (2, 12), dtype)
    for loop, op in ((3, "sum"), (1, "square")):
        block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
        tile = block.iterator(0, kernel.tensor(value), (0,), 1 if loop > 1 else None)
        made = block.add(op, tile, dim=1, size=4) if op == "sum" else block.add(op, tile)
        made = block.add("accumulate", made, combine="sum") if loop > 1 else made
        (value,) = kernel.graph_defined(block.build([block.add("output_saver", made, omap=(0,))]), [value])
    return kernel.build([value])


def trial(graph: Graph, seed: int = 0) -> Trial:
    found = trial_of(graph, seed)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", [*range(20, 32), 38])
def test_generated_thread_graphs_are_valid_and_mean_the_same(seed: int) -> None:
    """Of the last one Triton's text has independent lines in another order, so that it is run."""
    machines = [machine_of(target, seed) for target in TARGETS]
    assert constructed(trial_of_seed(seed), machines).ending is Ending.EQUAL


def test_a_thread_graph_that_means_something_else_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mugraph_runs, "construct", edited_exponent)
    assert constructed(trial(two_kernels()), []).ending is Ending.WRONG


def edited_exponent(graph: Graph) -> Graph:
    """The graph with absolute values for squares."""

    def edited(node: Node) -> Node:
        body = None if node.body is None else edited_exponent(node.body)
        return replace(node, op="abs" if node.op == "square" else node.op, body=body)

    return graph.with_nodes(tuple(map(edited, graph.nodes)), graph.outputs)


def test_a_result_beyond_rounding_is_wrong() -> None:
    exact = trial(two_kernels())
    assert outcome(exact, machine_of("cpu")).ending is Ending.EQUAL
    (wanted,), (allowed,) = exact.exact, exact.allowed
    shifted = replace(exact, exact=(wanted + 1.1 * allowed * np.abs(wanted).max(),))
    assert outcome(shifted, machine_of("cpu")).ending is Ending.WRONG
    assert errors(exact.graph, [np.full_like(wanted, np.nan)], exact.exact) == [np.inf]


class _OtherLoop(Cpu):
    """A compiler that forgets the last iteration of every loop."""

    def lower(self, graph):  # type: ignore[no-untyped-def]
        launches = super().lower(graph)
        return {n: replace(one, kernel=replace(one.kernel, loop=max(1, one.kernel.loop - 1))) for n, one in launches.items()}


def test_a_compiler_that_forgets_an_iteration_is_found_out() -> None:
    assert outcome(trial(two_kernels()), _OtherLoop()).ending is Ending.WRONG


@pytest.mark.parametrize(("target", "whole", "short"), [("cuda", "l < 3", "l < 2"), ("triton", "tl.range(3", "tl.range(2")])
def test_faults_planted_in_printed_kernels_are_found_out(target: str, whole: str, short: str) -> None:
    pytest.importorskip("triton", reason="the interpreter is Triton's; pip install 'mugraph[triton]'")
    machine = machine_of(target)
    assert isinstance(machine, EmulatedCuda | InterpretedTriton)

    def shortened(text: str) -> str:
        assert whole in text
        return text.replace(whole, short)

    machine.edit = shortened
    if target == "triton" or shutil.which("g++") is not None:
        assert outcome(trial(two_kernels()), machine).ending is Ending.WRONG


def test_fp64_is_refused_before_anything_runs_and_a_text_that_does_not_compile_is_no_refusal() -> None:
    pytest.importorskip("triton", reason="the interpreter is Triton's; pip install 'mugraph[triton]'")
    refused = outcome(trial(two_kernels(DType.FP64)), machine_of("cpu"))
    assert (refused.ending, refused.reason.split(":")[0]) == (Ending.REFUSED, "UnsupportedOperator")
    broken = machine_of("triton")
    assert isinstance(broken, InterpretedTriton)
    broken.edit = lambda text: text.replace("tl.load", "tl.lode")
    assert outcome(trial(two_kernels()), broken).ending is Ending.CRASHED


def test_what_rounding_decides_is_no_trial() -> None:
    """The difference of numbers that are the same but for rounding."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,))
    value = kernel.input("x", (4,), DType.FP16)
    tile = block.iterator(0, kernel.tensor(value), (None,), None)
    third = block.add("mul", tile, block.constant(3, DType.FP16))
    small = block.add("sub", block.add("sub", third, tile), block.add("add", tile, tile))
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", small, omap=(0,))]), [value]))
    assert trial_of(graph, 0) is None


def test_the_difference_of_two_copies_of_which_one_is_rounded_is_no_trial() -> None:
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,))
    value = kernel.input("x", (4,), DType.BF16)
    quarter = block.add("sub", block.constant(0.25, DType.BF16), block.iterator(0, kernel.tensor(value), (None,), None))
    stored = [block.add("output_saver", copy, omap=(0,)) for copy in (block.add("cast", quarter, dtype=DType.FP32), quarter)]
    wide, narrow = kernel.graph_defined(block.build(stored), [value])
    assert trial_of(kernel.build([kernel.add("sub", wide, narrow)]), 0) is None


def test_tensors_in_memory_stay_in_the_range_of_their_types() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("x", (4,), DType.FP16)
    for _ in range(4):
        value = kernel.add("mul", value, kernel.constant(64, DType.FP16))
    assert trial_of(kernel.build([value]), 0) is None


def test_a_space_has_the_types_and_sizes_that_it_names() -> None:
    space = MuGraphSpace(dtypes=(DType.BF16,), sizes=(7,), counts=(1, 7))
    graph = random_mugraph(random.Random(0), 2, space)
    assert {(node.output.dtype, size) for node in graph.inputs() for size in node.output.shape} == {(DType.BF16, 7)}
    assert isinstance(Executable(graph, Cpu()).graph, Graph)
