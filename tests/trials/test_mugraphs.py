"""Random muGraphs of all levels: what they mean, how all blocks at once are evaluated, and what the targets print, agree."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mugraph.devices import device_for
from mugraph.ir import DType, Graph, Level
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.validity import check
from mugraph.runtime import Executable, build
from mugraph.runtime.cuda.emulated import EmulatedCuda
from mugraph.runtime.cuda.machine import Cuda
from mugraph.runtime.triton.interpreted import InterpretedTriton
from mugraph.runtime.triton.machine import Triton
from mugraph.trials.mugraphs import random_mugraph
from mugraph.verifier.batched import evaluate_batched

ROUNDING = 1e-5
_DEVICE = device_for("cuda:sm_90")


def inputs_of(graph: Graph, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]


def expect_agreement(graph: Graph, inputs: Sequence[Any], results: Sequence[Any]) -> None:
    """Each output within fp32's rounding of float64, or within a few times what any fp32 evaluation loses."""
    exact = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    rounded = evaluate(graph, inputs, FloatArithmetic(np.float32))
    for number, (result, wanted, fp32) in enumerate(zip(results, exact, rounded, strict=True)):
        assert result.shape == wanted.shape
        largest = max(float(np.abs(wanted).max()), 1e-6)
        own, lost = (float(np.abs(np.asarray(each) - wanted).max()) / largest for each in (result, fp32))
        assert own <= max(ROUNDING, 8 * lost), f"output {number}"


def run_on(seed: int, kernels: int, machine: InterpretedTriton | EmulatedCuda) -> None:
    graph = random_mugraph(random.Random(seed), kernels)
    inputs = inputs_of(graph, seed)
    results = Executable(graph, machine)(*map(torch.from_numpy, inputs))
    expect_agreement(graph, inputs, [result.numpy() for result in results])
    assert machine.findings == []


def triton() -> InterpretedTriton:
    pytest.importorskip("triton", reason="the interpreter is Triton's; pip install 'mugraph[triton]'")
    return InterpretedTriton(Triton("sm_90", _DEVICE.shared_memory_bytes))


def cuda() -> EmulatedCuda:
    if shutil.which("g++") is None:
        pytest.skip("the emulator compiles kernels with g++")
    return EmulatedCuda(Cuda("sm_90", _DEVICE.shared_memory_bytes, engines=_DEVICE.engines))


def check_meaning(seed: int) -> None:
    graph = random_mugraph(random.Random(seed), 4)
    check(graph)
    inputs = [array.astype(np.float64) for array in inputs_of(graph, seed)]
    at_once = evaluate_batched(graph, inputs, FloatArithmetic())
    for one_by_one, batched in zip(evaluate(graph, inputs, FloatArithmetic()), at_once, strict=True):
        np.testing.assert_allclose(batched, one_by_one, rtol=1e-9, atol=1e-9)


def check_on_cpu(seed: int) -> None:
    graph = random_mugraph(random.Random(seed), 12)
    inputs = inputs_of(graph, seed)
    expect_agreement(graph, inputs, build(graph)(*inputs))


@pytest.mark.parametrize("seed", range(10))
def test_all_blocks_at_once_mean_what_one_by_one_means(seed: int) -> None:
    check_meaning(seed)


@pytest.mark.parametrize("seed", range(2))
def test_the_cpu_computes_what_random_mugraphs_mean(seed: int) -> None:
    check_on_cpu(seed)


def test_triton_computes_what_random_mugraphs_mean() -> None:
    run_on(0, 3, triton())


def test_cuda_computes_what_random_mugraphs_mean() -> None:
    run_on(1, 4, cuda())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 350))
def test_many_more_are_evaluated_alike(seed: int) -> None:
    check_meaning(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 185))
def test_many_more_on_the_cpu(seed: int) -> None:
    check_on_cpu(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 230))
def test_many_more_on_triton(seed: int) -> None:
    run_on(seed, 5, triton())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 330))
def test_many_more_on_cuda(seed: int) -> None:
    run_on(seed, 5, cuda())


def test_a_seed_makes_the_same_mugraph_again() -> None:
    first, again, other = (random_mugraph(random.Random(seed), 3) for seed in (1, 1, 2))
    assert str(first) == str(again) != str(other)


def test_every_level_map_loop_and_accumulator_is_made() -> None:
    """In 40 graphs: nothing that the generator is there for is left to chance."""
    seen: set[object] = set()
    for seed in range(40):
        for graph, node in random_mugraph(random.Random(seed), 4, DType.FP16).walk():
            if node.op == "input_iterator":
                maps = [dim for dim in (*node["imap"], node["fmap"]) if dim is not None]  # type: ignore[misc]
                seen |= {(graph.level, "replica", None in node["imap"]), (graph.level, "shared", len(set(maps)) < len(maps))}  # type: ignore[operator]
                seen.add((graph.level, "permuted", maps != sorted(maps)))
            if node.op.startswith("accumulate"):
                seen.add((graph.level, node.op, node.get("combine")))
            seen.add((graph.level, "loop", graph.loop > 1))
            seen.add((graph.level, "dimensions", len(graph.grid or graph.block)))
    for level in (Level.BLOCK, Level.THREAD):
        wanted: set[object] = {(level, what, True) for what in ("replica", "shared", "permuted", "loop")}
        wanted |= {(level, "accumulate", combine) for combine in ("sum", "max", "concat")}
        wanted |= {(level, "dimensions", count) for count in (1, 2, 3)}
        assert wanted <= seen
    assert (Level.BLOCK, "accumulate_rescaled", None) in seen
