"""Programs and PyTorch functions run on random arrays, whatever their dtype, structure and parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput
from mugraph.frontend import trace
from mugraph.runtime import build
from mugraph.selection.inputs import random_tensors, runner, torch_runner
from mugraph.verifier import float_checks


def halved_and_summed(x: torch.Tensor) -> dict[str, Any]:
    return {"half": x / 2, "number": 3, "sum": [x.sum(-1)]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_function_and_kernels_see_the_same_numbers(dtype: torch.dtype) -> None:
    traced = trace(halved_and_summed, (torch.ones(4, 8, dtype=dtype),))
    original = torch_runner(halved_and_summed, traced, ())
    assert original is not None
    x = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)
    for ours, theirs in zip(runner(build(traced.graph))(x), original(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2)


def test_parameters_of_a_module_are_inputs_of_its_runner() -> None:
    module = torch.nn.Linear(8, 4)
    run = torch_runner(module, trace(module, (torch.ones(2, 8),)), ())
    assert run is not None
    x, weight, bias = np.ones((2, 8), np.float32), np.full((4, 8), 2.0, np.float32), np.full(4, 0.5, np.float32)
    np.testing.assert_array_equal(run(x, weight, bias)[0], np.full((2, 4), 16.5))


def test_tensors_a_function_closes_over_cannot_be_replaced() -> None:
    weight = torch.ones(8, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ weight

    assert torch_runner(function, trace(function, (torch.ones(2, 8),)), ()) is None


def test_random_tensors_fit_the_program() -> None:
    program = mugraph.Program()
    program.output(program.input("x", (2, 3)) * program.input("y", (2, 3)))
    x, y = random_tensors(program.graph, seed=0)
    assert (x.shape, x.dtype) == ((2, 3), np.float32)
    assert not np.array_equal(x, y)
    in_bf16 = mugraph.Program()
    in_bf16.output(in_bf16.input("x", (2, 3), "bf16").exp())
    (z,) = random_tensors(in_bf16.graph, seed=0)
    assert z.dtype is torch.bfloat16


@pytest.mark.parametrize("period", [7, 5, 1000])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 7)], ids=str)
def test_random_tensors_are_the_numbers_of_checks(period: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers repeat after a period in either, whatever holds them, and those under roots have no signs."""
    monkeypatch.setattr(float_checks, "_PERIOD", period)
    for dtypes in (("fp32", "fp16", "fp64"), ("bf16", "fp32"), ("fp32", "int8", "uint8", "bool", "fp16", "bf16")):
        program = mugraph.Program()
        read = [program.input(f"x{number}", shape, dtype) for number, dtype in enumerate(dtypes)]
        program.output(read[0].sqrt())
        for each in read[1:]:
            program.output(each.cast("fp64"))
        tensors = random_tensors(program.graph, seed=3)
        for tensor, wanted, node in zip(
            tensors, float_checks.random_inputs(program.graph, 3), program.graph.inputs(), strict=True
        ):
            got = np.asarray(tensor.double() if isinstance(tensor, torch.Tensor) else tensor)
            np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))
            assert got.shape == node.output.shape
            if node.output.dtype.is_floating:
                flat = got.reshape(-1)
                np.testing.assert_array_equal(flat[period:], flat[: max(flat.size - period, 0)])


def test_numbers_that_a_function_refuses_are_run_operator_by_operator() -> None:
    likely = torch.rand(2, 8)
    traced = trace(torch.nn.functional.binary_cross_entropy, (likely, likely))
    run = torch_runner(torch.nn.functional.binary_cross_entropy, traced, (likely, likely))
    assert run is not None
    beyond = np.full((2, 8), 0.5), np.full((2, 8), 1.5)
    np.testing.assert_allclose(run(*beyond)[0], math.log(2), rtol=1e-6)
    with pytest.raises(InvalidInput, match="cannot be run on tensors like"):
        torch_runner(torch.nn.functional.binary_cross_entropy, traced, (likely + 1, likely))(*beyond)  # type: ignore[misc]
