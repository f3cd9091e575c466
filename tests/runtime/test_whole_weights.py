"""Weights of 8 and 4 bits: inputs of whole numbers, converted, scaled and multiplied in one program."""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import mugraph
from mugraph.checker import Rejected, check_folder
from mugraph.checker.checks import _tested
from mugraph.checker.form import check_shapes
from mugraph.devices import device_for
from mugraph.errors import MugraphError, NotAProgram, ShapeMismatch, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.ir import DType, Graph, GraphBuilder, Level, Tensor
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.serialize import graph_to_json
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import Triton
from mugraph.verifier import verify_graphs
from mugraph.verifier.float_checks import InputKind, arrays_for, fill, kinds
from pairwise import pairwise

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


# --- two numbers of 4 bits in each of 8 ----------------------------------------------------------------------------------


def interleaved(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Neighbours along k in one byte, the first in its lower bits."""
    unpacked = torch.stack((weight & 15, weight >> 4), -1)
    return from_zero_points(x, unpacked.reshape(COLUMNS, DEPTH), scale, zero)


def in_halves(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """The second half of k in the upper bits."""
    return from_zero_points(x, torch.cat((weight & 15, weight >> 4), -1), scale, zero)


def first_in_upper_bits(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    unpacked = torch.stack((weight >> 4, weight & 15), -1)
    return from_zero_points(x, unpacked.reshape(COLUMNS, DEPTH), scale, zero)


def without_unpacking(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return from_zero_points(x, torch.cat((weight, weight >> 4), -1), scale, zero)


def of_4_bits(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, _, scale, _ = given(from_zero_points, dtype)
    packed = torch.randint(0, 256, (COLUMNS, DEPTH // 2), dtype=torch.uint8)
    return x, packed, scale, torch.randint(0, 16, (COLUMNS, GROUPS), dtype=torch.uint8)


def unpacked_in_double(function: Function, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The same, by integer division."""
    x, packed, scale, zero = inputs
    low, high = packed.long() % 16, packed.long() // 16
    unpacked = torch.cat((low, high), -1) if function is in_halves else torch.stack((low, high), -1).reshape(COLUMNS, DEPTH)
    return from_zero_points(x.double(), unpacked, scale.double(), zero)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [interleaved, in_halves])
def test_numbers_of_4_bits_are_unpacked_in_the_kernel(function: Function, dtype: torch.dtype, tmp_path: Path) -> None:
    inputs = of_4_bits(dtype)
    opt = mugraph.superoptimize(function, inputs, profile=False)
    assert opt.found
    assert opt.certificate.accepted
    kernels = [kernel for kernel in opt.graph.kernels() if kernel.op not in ("slice", "reshape")]
    assert [kernel.op for kernel in kernels] == ["graph_defined"]
    error = relative(opt(*inputs), unpacked_in_double(function, inputs))
    assert error < {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    opt.save(tmp_path / "result")
    assert (check_folder(tmp_path / "result").error_bound or 1) < 1e-12
    torch.testing.assert_close(mugraph.load(tmp_path / "result")(*inputs), opt(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("columns", [256, 250])
def test_bits_of_every_whole_number(dtype: torch.dtype, columns: int) -> None:
    limits = torch.iinfo(dtype)
    every = torch.arange(limits.min, limits.max + 1).to(dtype)[:columns]
    x = torch.zeros(2, columns)
    functions: list[Function] = [lambda x, w: x.exp() * (w & 15), lambda x, w: x.exp() * (w >> 4)]
    for function in functions:
        opt = mugraph.superoptimize(function, (x, every), profile=False)
        graph = trace(function, (x, every)).graph
        for result in (opt(x, every), build(graph)(x, every)[0], torch.from_numpy(evaluated(graph, (x, every))).float()):
            assert torch.equal(result, function(x, every))
    others: list[Function] = [lambda x, w: x * (w & 7), lambda x, w: x * (w >> 3)]
    for wrong in others:
        with pytest.raises(NotAProgram, match=rf"bits of a tensor \[{columns}\] of .*int8: use `w & 15` and `w >> 4`"):
            trace(wrong, (x, every))


def test_bits_of_what_is_no_whole_number_are_refused() -> None:
    program = mugraph.Program()
    with pytest.raises(UnsupportedOperator, match=r"low_nibble\(.*fp32.*\): bits are taken of int8 and uint8 alone"):
        program.input("x", (4,)).apply("low_nibble")


@pytest.mark.parametrize("mutant", [first_in_upper_bits, in_halves, without_unpacking])
def test_a_wrong_order_of_bits_is_refused(mutant: Function) -> None:
    refused(interleaved, mutant, of_4_bits(torch.float32))


# --- packed, and dequantized as they are multiplied ---------------------------------------------------------------------


OUTPUTS, INPUTS = 128, 256
Spelling = Callable[..., torch.Tensor]


def as_views(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, group: int) -> torch.Tensor:
    grouped = numbers.view(OUTPUTS, -1, group).to(scale.dtype)
    return ((grouped if zero is None else grouped - zero[..., None]) * scale[..., None]).view(OUTPUTS, INPUTS)


def with_repeated_scales(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, group: int) -> torch.Tensor:
    centred = numbers.to(scale.dtype)
    return (centred if zero is None else centred - zero.repeat_interleave(group, 1)) * scale.repeat_interleave(group, 1)


def with_expanded_scales(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, group: int) -> torch.Tensor:
    def spread(line: torch.Tensor) -> torch.Tensor:
        return line.unsqueeze(-1).expand(*line.shape, group).reshape(OUTPUTS, INPUTS)

    centred = numbers.to(scale.dtype)
    return (centred if zero is None else centred - spread(zero)) * spread(scale)


def affine(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, group: int) -> torch.Tensor:
    """Zero points in the units of the weight."""
    scaled = numbers.view(OUTPUTS, -1, group).to(scale.dtype) * scale[..., None]
    return (scaled if zero is None else scaled - (zero * scale)[..., None]).view(OUTPUTS, INPUTS)


def transposed(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, group: int) -> torch.Tensor:
    """Inputs first."""
    grouped = numbers.T.reshape(-1, group, OUTPUTS).to(scale.dtype)
    centred = grouped if zero is None else grouped - zero.T[:, None, :]
    return (centred * scale.T[:, None, :]).reshape(INPUTS, OUTPUTS).T


def low_first(weight: torch.Tensor) -> torch.Tensor:
    return torch.stack((weight & 15, weight >> 4), -1).reshape(OUTPUTS, INPUTS)


def high_first(weight: torch.Tensor) -> torch.Tensor:
    return torch.stack((weight >> 4, weight & 15), -1).reshape(OUTPUTS, INPUTS)


def halves(weight: torch.Tensor) -> torch.Tensor:
    return torch.cat((weight & 15, weight >> 4), -1)


def bytes_of(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _without_bits(unpack: Spelling, weight: torch.Tensor) -> torch.Tensor:
    """What is unpacked, by integer division."""
    low, high = (weight.long() % 16).double(), (weight.long() // 16).double()
    parts = {low_first: (low, high), high_first: (high, low)}
    if unpack is bytes_of:
        return weight.double()
    if unpack is halves:
        return torch.cat((low, high), -1)
    return torch.stack(parts[unpack], -1).reshape(OUTPUTS, INPUTS)


def packed_and_right(unpack: Spelling, spelled: Spelling, zeros: bool, group: int, rows: int, dtype: torch.dtype) -> Graph:
    """The first muGraph found of one kernel that reads the weight packed, which takes its bytes and agrees with float64."""
    torch.manual_seed(0)
    bits = 8 if unpack is bytes_of else 4
    x = torch.randn(rows, INPUTS).to(dtype)
    weight = torch.randint(0, 256, (OUTPUTS, INPUTS * bits // 8), dtype=torch.uint8)
    weight = weight.view(torch.int8) if bits == 8 and not zeros else weight
    scale = (torch.rand(OUTPUTS, INPUTS // group) * 0.01 + 0.001).to(dtype)
    zero = torch.randint(0, 1 << bits, scale.shape, dtype=torch.uint8) if zeros else None

    def function(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None) -> torch.Tensor:
        numbers = unpack(weight)
        if bits == 4 and zero is None:
            numbers = numbers.to(x.dtype) - 8
        return x @ spelled(numbers, scale, zero if zero is None else zero.to(x.dtype), group).T

    given = (x, weight, scale, zero) if zeros else (x, weight, scale)
    called = function if zeros else lambda x, weight, scale: function(x, weight, scale, None)
    program = trace(called, given).graph
    middle = 8 if bits == 4 and not zeros else 0
    made = spelled(_without_bits(unpack, weight) - middle, scale.double(), zero if zero is None else zero.double(), group)
    exact = x.double() @ made.T
    for candidate in search(program, device_for("cpu")).candidates:
        kernels = [node for node in candidate.graph.kernels() if node.op not in ("slice", "reshape")]
        graph = construct(candidate.graph).with_constants(["weight", "scale", "zero"])
        if [node.op for node in kernels] != ["graph_defined"]:
            continue
        executable = build(graph)
        (launch,) = executable.launches.values()
        packed = {graph.nodes[value.node]["name"]: packing.elements for value, packing in launch.packings.items()}
        if packed.get("weight") == OUTPUTS * INPUTS * bits // 8:
            assert packed.get("scale", scale.numel() if group == INPUTS else 0) == scale.numel()  # of columns it moves behind
            assert relative(executable(*given)[0], exact) < {torch.float32: 3e-6, torch.bfloat16: 1e-2}[dtype]
            return candidate.graph
    raise AssertionError("no muGraph of one kernel reads the weight packed")


@pairwise(unpack=[bytes_of, low_first], zeros=[False, True], group=[32, 64, 128, INPUTS], rows=[1, 8, 64])
def test_groups_of_any_size_are_dequantized_in_registers(unpack: Spelling, zeros: bool, group: int, rows: int) -> None:
    packed_and_right(unpack, as_views, zeros, group, rows, torch.bfloat16)


SPELLINGS = [as_views, with_repeated_scales, with_expanded_scales, affine, transposed]


@pairwise(spelled=SPELLINGS, unpack=[bytes_of, low_first, high_first, halves], zeros=[False, True], rows=[1, 8, 64])
def test_spellings_are_dequantized_in_registers(spelled: Spelling, unpack: Spelling, zeros: bool, rows: int) -> None:
    packed_and_right(unpack, spelled, zeros, 64, rows, torch.float32 if rows == 8 else torch.bfloat16)


@pytest.mark.parametrize("unpack", [bytes_of, low_first])
def test_what_reads_packed_numbers_is_proved_and_checked(unpack: Spelling) -> None:
    torch.manual_seed(0)
    found = packed_and_right(unpack, as_views, True, 64, 1, torch.bfloat16)
    weight = torch.randint(0, 256, (OUTPUTS, INPUTS // (1 if unpack is bytes_of else 2)), dtype=torch.uint8)
    given = torch.randn(1, INPUTS).bfloat16(), weight, torch.rand(OUTPUTS, 4).bfloat16(), weight[:, :4].contiguous()
    program = trace(lambda x, weight, scale, zero: x @ as_views(unpack(weight), scale, zero.to(x.dtype), 64).T, given).graph
    assert verify_graphs(program, found).equivalent
    _tested(saved(program), saved(found), {"difference": {}, "max_error": 2**-40}, None, random.Random(0), lambda line: None)


# --- PyTorch's own products --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_pytorch_with_weights_of_8_bits_are_programs(dtype: torch.dtype) -> None:
    inputs = given(by_rows, dtype)
    opt = mugraph.superoptimize(
        lambda x, w, scale: torch.ops.aten._weight_int8pack_mm(x, w, scale).sigmoid(), inputs, profile=False
    )
    assert opt.found
    assert len(opt.graph.kernels()) == 1
    torch.testing.assert_close(opt(*inputs), torch.ops.aten._weight_int8pack_mm(*inputs).sigmoid(), rtol=1e-2, atol=1e-2)
    refused(by_rows, lambda x, w, scale: torch.ops.aten._weight_int8pack_mm(x, w, 1 / scale), inputs)


def test_dequantization_of_quantized_decomposed_is_a_program() -> None:
    """Per channel and per group, with zero points of a floating-point type or without."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # which registers the operators
    operators = torch.ops.quantized_decomposed
    x, weight = torch.randn(ROWS, DEPTH), torch.randint(-128, 128, (COLUMNS, DEPTH), dtype=torch.int8)
    scale, zero = torch.rand(COLUMNS, GROUPS) * 0.01, torch.randint(-5, 6, (COLUMNS, GROUPS)).float()
    limits = (-128, 127, torch.int8)

    def by_channels(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, z: torch.Tensor | None) -> torch.Tensor:
        made: torch.Tensor = operators.dequantize_per_channel(w, s, z, 0, *limits)
        return x @ made.T

    def by_channel_groups(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, z: torch.Tensor | None) -> torch.Tensor:
        made: torch.Tensor = operators.dequantize_per_channel_group(w, s, z, *limits, GROUP, torch.float32)
        return x @ made.T

    for function, s, z in ((by_channels, scale[:, 0].clone(), zero[:, 0].clone()), (by_channel_groups, scale, zero)):
        graph = trace(function, (x, weight, s, z)).graph
        torch.testing.assert_close(build(graph)(x, weight, s, z)[0], function(x, weight, s, z))
        centred = functools.partial(function, z=None)
        graph = trace(centred, (x, weight, s)).graph
        torch.testing.assert_close(build(graph)(x, weight, s)[0], centred(x, weight, s))
        with pytest.raises(
            NotAProgram, match=r"dequantize_per_channel\w* counts zero points \[48.*\] of int8 modulo 256; convert"
        ):
            trace(function, (x, weight, s, z.to(torch.int8)))
    assert weight.shape[1] % 48
    with pytest.raises(MugraphError, match="divisible"):
        trace(
            lambda x, w, s: x @ operators.dequantize_per_channel_group(w, s, None, *limits, 48, torch.float32).T,
            (x, weight, scale),
        )


def test_what_only_pytorch_knows_how_to_unpack_stays_with_it() -> None:
    """The layout that it packs numbers of 4 bits in depends on the processor, and stands nowhere."""
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (64, 64), dtype=torch.int32), 1)
    scale_and_zero = torch.rand(2, 64, 2, dtype=torch.bfloat16)

    def function(x: torch.Tensor, weight: torch.Tensor, scale_and_zero: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, weight, 32, scale_and_zero)
        return product / (product.float().square().mean(-1, keepdim=True) + 1e-5).sqrt()

    with pytest.raises(NotAProgram, match=r"operator aten\._weight_int4pack_mm_for_cpu .*leaves such operators to PyTorch"):
        trace(function, (x, weight, scale_and_zero))
    opt = mugraph.superoptimize(function, (x, weight, scale_and_zero), profile=False)
    torch.testing.assert_close(opt(x, weight, scale_and_zero), function(x, weight, scale_and_zero), rtol=1e-2, atol=1e-2)


def saved(graph: Graph) -> dict[str, Any]:
    """A graph as the checker reads it."""
    return cast("dict[str, Any]", graph_to_json(graph)["graph"])


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
    refused(function, mutant, given(function, torch.float32))


def refused(function: Function, mutant: Function, inputs: tuple[torch.Tensor, ...]) -> None:
    """Neither the verifier nor the checker takes the mutant for the function."""
    program, other = (trace(f, inputs).graph for f in (function, mutant))
    assert verify_graphs(program, program).equivalent
    assert not verify_graphs(program, other).equivalent
    left, right = map(saved, (program, other))
    certificate = {"difference": {}, "max_error": 2**-40}
    _tested(left, left, certificate, None, random.Random(0), lambda line: None)
    with pytest.raises(Rejected, match=r"is not what program\.json computes"):
        _tested(left, right, certificate, None, random.Random(0), lambda line: None)


def test_a_graph_that_makes_whole_numbers_of_others_is_rejected() -> None:
    """A cast to int8 would be the identity in proofs, which no cast to int8 is."""
    program = mugraph.Program()
    x, w = program.input("x", (4, 8)), program.input("w", (8, 4), "int8")
    program.output((x.cast("bf16") + 1) @ w)
    written = saved(program.graph)
    check_shapes(written, "program.json")
    (conversion,) = (node for node in written["nodes"] if node["op"] == "cast")
    conversion["attributes"]["dtype"], conversion["outputs"][0]["dtype"] = {"dtype": "int8"}, "int8"
    with pytest.raises(Rejected, match="nothing but inputs is int8"):
        check_shapes(written, "program.json")


def test_nothing_but_inputs_is_a_whole_number() -> None:
    program = mugraph.Program()
    x, weight = program.input("x", (4, 8)), program.input("w", (4, 8), "int8")
    with pytest.raises(UnsupportedOperator, match=r"cast.* to int8: only inputs are int8; convert before"):
        x.cast("int8")
    assert (weight * 2).dtype is DType.FP32
    assert weight.transpose(0, 1).dtype is DType.INT8
    assert (weight @ weight.transpose(0, 1)).dtype is DType.FP32
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=2)
    tile = block.iterator(0, Tensor((4, 8), DType.INT8), (None,), 1)
    kept = {combine: block.add("accumulate", tile, combine=combine) for combine in ("sum", "max")}
    kept |= {"concat": block.add("accumulate", tile, combine="concat", dim=1)}
    kept |= {"rescaled": block.add("accumulate_rescaled", tile, tile)}
    assert [name for name, value in kept.items() if block.tensor(value).dtype.is_whole] == ["concat"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x * (w + w),  # 100 + 100 is -56
        lambda x, w: x * (-w),  # of -128: -128
        lambda x, w: x * w.abs(),
        lambda x, w: x * (w * 2),
        lambda x, w: x * w.view(torch.uint8),
        lambda x, w: x * w.to(torch.uint8),
        lambda x, w: x * (w ^ 15),
        lambda x, w: x * ((w & 15) - 8),
        lambda x, w: x * (w << 4),
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


class LinearOf4Bits(nn.Module):
    """A layer that keeps two weights in a byte, with scales and zero points of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 256, (COLUMNS, DEPTH // 2), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(COLUMNS, GROUPS) * 0.01 + 0.001)
        self.register_buffer("zero", torch.randint(0, 16, (COLUMNS, GROUPS), dtype=torch.uint8))
        self.weight: torch.Tensor
        self.scale: torch.Tensor
        self.zero: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(interleaved(x, self.weight, self.scale, self.zero))


def test_layers_with_weights_of_4_bits_are_compiled() -> None:
    torch.manual_seed(0)
    layer, x = LinearOf4Bits(), torch.randn(ROWS, DEPTH)
    with torch.no_grad():
        compiled = torch.compile(layer, backend="mugraph")
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
@pytest.mark.parametrize("function", [by_rows, from_zero_points, interleaved])
def test_kernels_of_gpus_read_whole_numbers(target: str, function: Function) -> None:
    """The best muGraph, as its kernels compute it in the emulator or the interpreter."""
    inputs = of_4_bits(torch.float32) if function is interleaved else given(function, torch.float32)
    opt = mugraph.superoptimize(function, inputs, target=target, profile=False)
    assert opt.found
    machine = EmulatedCuda(Cuda("sm_90", 200_000)) if target.startswith("cuda") else InterpretedTriton(Triton("sm_90", 200_000))
    executable = Executable(construct(opt.graph), machine)
    (result,) = executable(*inputs)
    exact = (unpacked_in_double if function is interleaved else in_double)(function, inputs)
    np.testing.assert_allclose(result.numpy(), exact.numpy(), rtol=1e-4, atol=1e-4)
    assert machine.findings == []


def test_operators_that_stay_with_pytorch_do_not_count_modulo_256() -> None:
    program = mugraph.Program()
    x, w = program.input("x", (4, 8), "int8"), program.input("w", (8, 4), "uint8")
    program.output(x.square(), x + x, x @ w, x * x.transpose(0, 1).transpose(0, 1), x.sum(1), (x * 1.0) - 0.5)
    high, low = torch.full((4, 8), -128, dtype=torch.int8), torch.full((8, 4), 255, dtype=torch.uint8)
    for given in ((high, low), (high.numpy(), low.numpy())):
        results = build(program.graph)(*given)
        for result, wanted in zip(results, (16384, -256, -128 * 255 * 8, 16384, -1024, -128.5), strict=True):
            np.testing.assert_array_equal(np.asarray(result), wanted)


def test_sums_of_booleans_that_stay_with_pytorch_are_numbers() -> None:
    program = mugraph.Program()
    x, y = (program.input(name, (4,), "bool") for name in "xy")
    program.output(x + y, x * y, x.sum(0))
    true = torch.ones(4, dtype=torch.bool)
    for given in ((true, true), (true.numpy(), true.numpy())):
        for result, wanted in zip(build(program.graph)(*given), (2, 1, 4), strict=True):
            np.testing.assert_array_equal(np.asarray(result), wanted)
