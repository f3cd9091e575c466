"""Comparisons, choices and booleans on every target: NaN and infinities too, and tensors of one byte per element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.operators.choices import at_most, isnan, logical_not, select
from mugraph.ir import DType, Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor
from mugraph.runtime.executable import Executable
from mugraph.search import search
from mugraph.testing.mugraph_runs import Ending, compiled, machine_of

TARGETS = ("cpu", "cuda", "triton")
SPECIAL = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5], np.float32)


def kernels_of(graph: Graph, target: str, choice: int = 0) -> tuple[Graph, Executable]:
    """A muGraph that the search finds, whole on a machine."""
    machine = machine_of(target)
    found = search(graph, device_for(target if target == "cpu" else f"{target}:sm_90")).candidates
    chosen = found[min(choice, len(found) - 1)].graph
    return chosen, Executable(chosen, machine)


def run(graph: Graph, target: str, *arrays: npt.NDArray[Any]) -> list[npt.NDArray[np.float64]]:
    """What the kernels give, which must be what the graph means."""
    chosen, executable = kernels_of(graph, target)
    assert chosen.kernels()
    kinds = {DType.BOOL: torch.bool, DType.FP16: torch.float16, DType.BF16: torch.bfloat16, DType.FP32: torch.float32}
    given = [torch.from_numpy(array).to(kinds[node.output.dtype]) for array, node in zip(arrays, graph.inputs(), strict=True)]
    results = [np.asarray(result.double().numpy()) for result in executable(*given)]
    assert [kinds[tensor.dtype] for tensor in graph.output_tensors] == [result.dtype for result in executable(*given)]
    with np.errstate(all="ignore"):
        wanted = evaluate(graph, [tensor.double().numpy() for tensor in given], FloatArithmetic())
    for result, exact in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, exact, rtol=1e-2 if DType.BF16 in map(dtype_of, graph.inputs()) else 2e-3, atol=1e-4)
    assert not getattr(executable.machine, "findings", [])
    return results


def dtype_of(node: object) -> DType:
    dtype = node.output.dtype  # type: ignore[attr-defined]
    assert isinstance(dtype, DType)
    return dtype


FUNCTIONS: dict[str, tuple[int, Callable[..., ProgramTensor]]] = {
    "less": (2, lambda x, y: x.apply("less", y)),
    "less than a number": (1, lambda x: x.apply("less", x.program.constant(0.5))),
    "a number less": (1, lambda x: x.program.constant(0).apply("less", x)),
    "equal": (2, lambda x, y: x.apply("equal", y)),
    "at most": (2, at_most),
    "not a number": (1, isnan),
    "select": (3, lambda c, x, y: c.apply("select", x, y)),
    "select numbers": (1, lambda c: select(c, -math.inf, 2)),
    "select infinities": (2, lambda c, x: select(c, x, math.inf)),
    "truth": (1, lambda x: x.apply("truth")),
    "infinity": (1, lambda x: x.apply("infinity")),
    "not a boolean": (1, logical_not),
}


@pytest.mark.parametrize("target", TARGETS)
def test_every_function_at_special_values(target: str) -> None:
    points = np.array(list(itertools.product(SPECIAL, repeat=3)), np.float32).T.reshape(3, 7, 49)
    program = Program()
    inputs = [program.input(name, (7, 49)) for name in "xyz"]
    program.output(*(made(*inputs[:arity]) + 0.25 for arity, made in FUNCTIONS.values()))
    results = run(program.graph, target, *points)
    assert np.isnan(results[list(FUNCTIONS).index("select")]).any()


@pytest.mark.parametrize(
    "function",
    [
        *(torch.relu, torch.nn.functional.relu6, torch.nn.functional.leaky_relu),
        *(lambda x: x.clamp(min=0), lambda x: x.clamp(max=0), lambda x: x.clamp(0, 1), lambda x: x.clamp(-1, 0)),
        lambda x: torch.nn.functional.threshold(x, 0, 0),
    ],
    ids=["relu", "relu6", "leaky_relu", "at least 0", "at most 0", "from 0 on", "up to 0", "threshold"],
)
def test_zeros_keep_the_signs_that_they_have_in_pytorch(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """1 / relu(-0.0) is -inf there, on a CPU."""
    zeros = torch.tensor([[0.0, -0.0, -0.0, 0.0, 0.0]]).expand(7, 5).contiguous()
    _, executable = kernels_of(trace(function, (zeros,)).graph, "cpu")
    (result,) = executable(zeros)
    np.testing.assert_array_equal(np.signbit(np.asarray(result)), np.asarray(torch.signbit(function(zeros))))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [5, 34, 64])
def test_booleans_are_read_and_written(target: str, width: int) -> None:
    program = Program()
    x, mask, row = program.input("x", (6, width)), program.input("m", (6, width), "bool"), program.input("r", (width,), "bool")
    kept = mask.apply("select", x, x.program.constant(0))
    program.output(kept * row, (mask * row).cast("bool"), x.apply("less", kept).cast("bool"), mask.maximum(row) + 0.5)
    rng = np.random.default_rng(0)
    run(
        program.graph,
        target,
        rng.standard_normal((6, width), np.float32),
        *(rng.integers(0, 2, s).astype(np.float32) for s in ((6, width), width)),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_booleans_are_factors_of_products(target: str, dtype: str) -> None:
    program = Program()
    mask, w = program.input("m", (16, 64), "bool"), program.input("w", (64, 32), dtype)
    scores = program.input("s", (16, 32), "bool")
    program.output(
        (mask @ w) * scores, mask @ scores.transpose(0, 1).reshape(32, 16).transpose(0, 1).reshape(32, 16).repeat(0, 2)
    )
    rng = np.random.default_rng(1)
    masks = [rng.integers(0, 2, shape).astype(np.float32) for shape in ((16, 64), (16, 32))]
    run(program.graph, target, masks[0], rng.standard_normal((64, 32), np.float32), masks[1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_attention_with_a_mask(target: str, dtype: str) -> None:
    """Rows that are hidden as a whole are not a number, as in the program."""
    program = Program()
    q, k, v = (program.input(name, shape, dtype) for name, shape in (("q", (2, 8, 16)), ("k", (2, 32, 16)), ("v", (2, 32, 16))))
    mask = program.input("m", (8, 32), "bool")
    program.output(select(mask, -math.inf, q @ k.transpose(-1, -2)).softmax(-1) @ v)
    rng = np.random.default_rng(2)
    hidden = (rng.random((8, 32)) > 0.5).astype(np.float32)
    hidden[3], hidden[5, :16] = 1, 1
    (result,) = run(
        program.graph, target, *(rng.standard_normal(s, np.float32) for s in ((2, 8, 16), (2, 32, 16), (2, 32, 16))), hidden
    )
    assert np.isnan(result[:, 3]).all()
    assert np.isfinite(result[:, :3]).all()


@pytest.mark.parametrize("target", ["cuda", "triton"])
def test_compilers_for_gpus_take_booleans_and_choices(target: str) -> None:
    program = Program()
    x, mask = program.input("x", (16, 64)), program.input("m", (64,), "bool")
    program.output(select(mask, -math.inf, x).softmax(-1), x.apply("less", mask).cast("bool"), at_most(x, 0).cast("bool"))
    graph = search(program.graph, device_for(f"{target}:sm_90")).candidates[0].graph
    assert compiled(graph, target).ending is Ending.COMPILED
