"""Weights of 8 bits: inputs of whole numbers, converted, scaled and multiplied in one program."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mugraph
from mugraph.checker import Rejected, check_folder
from mugraph.checker.checks import _tested
from mugraph.checker.form import check_shapes
from mugraph.errors import MugraphError, NotAProgram, ShapeMismatch, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.ir import DType, Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.serialize import graph_to_json
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import Triton
from mugraph.verifier import verify_graphs
from mugraph.verifier.float_checks import InputKind, arrays_for, fill, kinds

ROWS, COLUMNS, DEPTH, GROUP = 4, 48, 64, 16
GROUPS = DEPTH // GROUP

Function = Callable[..., torch.Tensor]


def by_rows(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x @ (weight.to(x.dtype) * scale[:, None]).T


def by_groups(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scaled = weight.reshape(COLUMNS, GROUPS, GROUP).to(x.dtype) * scale[..., None]
    return x @ scaled.reshape(COLUMNS, DEPTH).T


def from_zero_points(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    centred = weight.reshape(COLUMNS, GROUPS, GROUP).to(x.dtype) - zero.to(x.dtype)[..., None]
    return x @ (centred * scale[..., None]).reshape(COLUMNS, DEPTH).T


def given(function: Function, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x = torch.randn(ROWS, DEPTH).to(dtype)
    signed = torch.randint(-128, 128, (COLUMNS, DEPTH), dtype=torch.int8)
    scale = (torch.rand(COLUMNS, GROUPS) * 0.01 + 0.001).to(dtype)
    if function is by_rows:
        return x, signed, scale[:, 0].contiguous()
    if function is by_groups:
        return x, signed, scale
    unsigned, zero = (torch.randint(0, 256, size, dtype=torch.uint8) for size in ((COLUMNS, DEPTH), (COLUMNS, GROUPS)))
    return x, unsigned, scale, zero


def in_double(function: Function, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return function(*(tensor.double() for tensor in inputs))


def relative(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [by_rows, by_groups, from_zero_points])
def test_dequantization_is_part_of_one_kernel(function: Function, dtype: torch.dtype, tmp_path: Path) -> None:
    inputs = given(function, dtype)
    opt = mugraph.superoptimize(function, inputs, profile=False)
    assert opt.found
    assert opt.certificate.accepted
    (kernel,) = opt.graph.kernels()
    assert kernel.op == "graph_defined"
    kept = {node["name"]: node.output.dtype for node in opt.graph.inputs()}
    assert kept["weight"] is (DType.UINT8 if function is from_zero_points else DType.INT8)
    exact = in_double(function, inputs)
    assert relative(opt(*inputs), exact) < {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    opt.save(tmp_path / "result")
    assert (check_folder(tmp_path / "result").error_bound or 1) < 1e-12
    again = mugraph.load(tmp_path / "result")
    assert again.graph == opt.graph
    torch.testing.assert_close(again(*inputs), opt(*inputs), rtol=0, atol=0)


def test_the_scale_of_a_row_moves_behind_the_product() -> None:
    opt = mugraph.superoptimize(by_rows, given(by_rows, torch.bfloat16), profile=False)
    (kernel,) = opt.graph.kernels()
    assert kernel.body is not None
    order = [node.op for node in kernel.body.nodes if node.op in ("matmul", "mul")]
    assert order == ["matmul", "mul"]
    assert all(node.output.dtype is DType.INT8 for node in kernel.body.nodes if node.op == "transpose")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_kernels_read_every_whole_number(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    every = torch.arange(limits.min, limits.max + 1, dtype=torch.int64).to(dtype)
    x = torch.rand(3, 256) + 0.5
    opt = mugraph.superoptimize(lambda x, w: (x * w).exp2() - x * w.to(x.dtype), (x / 64, every), profile=False)
    torch.testing.assert_close(opt(x / 64, every), (x / 64 * every).exp2() - x / 64 * every, rtol=1e-5, atol=1e-5)
    for wrong in (torch.uint8 if dtype is torch.int8 else torch.int8, torch.float32):
        with pytest.raises(ShapeMismatch, match=rf"argument w is {wrong} \[256\], optimized for {dtype} \[256\]; optimize again"):
            opt(x / 64, every.to(wrong))


# --- what is wrong is refused ------------------------------------------------------------------------------------------


def wrong_group(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return by_groups(x, weight, scale.roll(1, 1))


def strided_groups(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scales by the remainder of the place, not by the quotient."""
    scaled = weight.reshape(COLUMNS, GROUP, GROUPS).to(x.dtype) * scale[:, None, :]
    return x @ scaled.reshape(COLUMNS, DEPTH).T


def scale_of_first_group(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x @ weight.to(x.dtype).T * scale[:, 0]


def no_zero_point(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return by_groups(x, weight, scale) + 0 * zero.to(x.dtype).sum()


def added_zero_point(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return from_zero_points(x, weight, scale, -zero.to(x.dtype))


def scaled_zero_point_too_late(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Zero points in the units of the result, not of the weight."""
    scaled = weight.reshape(COLUMNS, GROUPS, GROUP).to(x.dtype) * scale[..., None] - zero.to(x.dtype)[..., None]
    return x @ scaled.reshape(COLUMNS, DEPTH).T


def zero_point_of_another_group(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return from_zero_points(x, weight, scale, zero.roll(1, 1))


@pytest.mark.parametrize(
    ("function", "mutant"),
    [
        (by_groups, wrong_group),
        (by_groups, strided_groups),
        (by_groups, scale_of_first_group),
        (from_zero_points, no_zero_point),
        (from_zero_points, added_zero_point),
        (from_zero_points, scaled_zero_point_too_late),
        (from_zero_points, zero_point_of_another_group),
    ],
)
def test_a_wrong_scale_or_zero_point_is_refused(function: Function, mutant: Function) -> None:
    inputs = given(function, torch.float32)
    program, other = (trace(f, inputs).graph for f in (function, mutant))
    assert verify_graphs(program, program).equivalent
    assert not verify_graphs(program, other).equivalent
    left, right = (graph_to_json(graph)["graph"] for graph in (program, other))
    certificate = {"difference": {}, "max_error": 2**-40}
    _tested(left, left, certificate, None, random.Random(0), lambda line: None)
    with pytest.raises(Rejected, match=r"is not what program\.json computes"):
        _tested(left, right, certificate, None, random.Random(0), lambda line: None)


def test_a_graph_that_makes_whole_numbers_of_others_is_rejected() -> None:
    """A cast to int8 would be the identity in proofs, which no cast to int8 is."""
    program = mugraph.Program()
    x, w = program.input("x", (4, 8)), program.input("w", (8, 4), "int8")
    program.output((x.cast("bf16") + 1) @ w)
    saved = graph_to_json(program.graph)["graph"]
    check_shapes(saved, "program.json")
    (cast,) = (node for node in saved["nodes"] if node["op"] == "cast")
    cast["attributes"]["dtype"], cast["outputs"][0]["dtype"] = {"dtype": "int8"}, "int8"
    with pytest.raises(Rejected, match="nothing but inputs is int8"):
        check_shapes(saved, "program.json")


def test_nothing_but_inputs_is_a_whole_number() -> None:
    program = mugraph.Program()
    x, weight = program.input("x", (4, 8)), program.input("w", (4, 8), "int8")
    with pytest.raises(UnsupportedOperator, match=r"cast.* to int8: only inputs are int8; convert before"):
        x.cast("int8")
    assert (weight * 2).dtype is DType.FP32
    assert weight.transpose(0, 1).dtype is DType.INT8
    assert (weight @ weight.transpose(0, 1)).dtype is DType.FP32


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x * (w + w),  # 100 + 100 is -56
        lambda x, w: x * (-w),  # of -128: -128
        lambda x, w: x * w.abs(),
        lambda x, w: x * (w * 2),
        lambda x, w: x * w.view(torch.uint8),
        lambda x, w: x * w.to(torch.uint8),
        lambda x, w: x * (w & 15),
        lambda x, w: x * (w >> 4),
        lambda x, w: x * x.to(torch.int8),
        lambda x, w: x * torch.maximum(w, w.flip(0)),
    ],
)
def test_what_counts_modulo_256_is_no_program(function: Function) -> None:
    inputs = torch.randn(4, 8), torch.randint(-128, 128, (4, 8), dtype=torch.int8)
    with pytest.raises(NotAProgram, match=r"operator aten\.\w+ .*modulo 256; convert to a floating-point type before"):
        trace(function, inputs)
    opt = mugraph.superoptimize(function, inputs, profile=False)
    torch.testing.assert_close(opt(*inputs), function(*inputs))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_wider_integers_are_not_computed_with(dtype: torch.dtype) -> None:
    with pytest.raises(MugraphError, match=r"dtype torch\.int16; use|convert numbers to a floating-point type"):
        trace(lambda x, w: x * w.float(), (torch.randn(4), torch.arange(4).to(dtype)))


# --- test data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("kind", [*kinds()], ids=str)
def test_random_weights_are_whole_numbers_of_the_whole_range(dtype: DType, kind: InputKind) -> None:
    program = mugraph.Program()
    program.output(program.input("w", (64, 64), dtype) * 1.5)
    arrays = arrays_for(program.graph, [(64, 64)])
    fill(program.graph, arrays, kind, seed=3)
    (weight,) = arrays
    np.testing.assert_array_equal(weight, np.rint(weight))
    assert dtype.holds(weight).all()
    if not kind.pattern:
        assert (weight.min(), weight.max()) == (dtype.least, dtype.largest)
        assert len(np.unique(weight)) > 200
    assert weight.std() > 10


def evaluated(graph: Graph, inputs: tuple[torch.Tensor, ...]) -> np.ndarray[Any, Any]:
    arrays = [tensor.double().numpy() for tensor in inputs]
    return np.asarray(evaluate(graph, arrays, FloatArithmetic())[0])


@pytest.mark.parametrize("function", [by_rows, by_groups, from_zero_points])
def test_programs_mean_what_pytorch_computes(function: Function) -> None:
    inputs = given(function, torch.float64)
    np.testing.assert_allclose(evaluated(trace(function, inputs).graph, inputs), function(*inputs).numpy(), rtol=1e-12)


# --- modules, other targets --------------------------------------------------------------------------------------------


class Linear(nn.Module):
    """A layer that keeps its weight in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (COLUMNS, DEPTH), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(COLUMNS) * 0.01 + 0.001)
        self.weight: torch.Tensor
        self.scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(by_rows(x, self.weight, self.scale))


def test_layers_with_weights_of_8_bits_are_compiled() -> None:
    torch.manual_seed(0)
    layer, x = Linear(), torch.randn(ROWS, DEPTH)
    with torch.no_grad():
        compiled = torch.compile(layer, backend="mugraph")
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)
        layer.weight += 1  # in place: packed weights are packed again
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
@pytest.mark.parametrize("function", [by_rows, from_zero_points])
def test_kernels_of_gpus_read_whole_numbers(target: str, function: Function) -> None:
    """The best muGraph, as its kernels compute it in the emulator or the interpreter."""
    inputs = given(function, torch.float32)
    opt = mugraph.superoptimize(function, inputs, target=target, profile=False)
    assert opt.found
    machine = EmulatedCuda(Cuda("sm_90", 200_000)) if target.startswith("cuda") else InterpretedTriton(Triton("sm_90", 200_000))
    executable = Executable(construct(opt.graph), machine)
    (result,) = executable(*inputs)
    np.testing.assert_allclose(result.numpy(), in_double(function, inputs).numpy(), rtol=1e-4, atol=1e-4)
    assert machine.findings == []
