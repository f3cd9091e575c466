"""Kernels of the CPU with running sums and products: against float64, of every width, layout, size and type; others refuse."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.errors import InvalidGraph, UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.arithmetic import Array
from mugraph.ir.scans import SCANS
from mugraph.lower import lower
from mugraph.lower.check import check
from mugraph.lower.tile_form import Elementwise, Scan
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.runtime import Executable
from mugraph.targets.cpu import Vectors
from mugraph.targets.machine import machine_for

from .test_cpu import WIDTHS, executable_for, reference

SHAPES = ((1, 1), (1, 7), (7, 1), (3, 17), (17, 3), (13, 31), (5, 64), (64, 5), (2, 131), (131, 2), (2, 3, 37), (37, 3, 2))


def around(op: str, shape: tuple[int, ...], dim: int, dtype: DType = DType.FP32, grid: bool = False) -> Graph:
    """2 scan(x * y) + 1 in one kernel, whose blocks have an element each of the first other dimension if it has a `grid`."""
    others = [other for other in range(len(shape)) if other != dim]
    cut = others[0] if grid and others else None
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input(name, shape, dtype) for name in "xy"]
    block = GraphBuilder(Level.BLOCK, grid=(1 if cut is None else shape[cut],))
    x, y = (block.iterator(number, kernel.tensor(value), (cut,), None) for number, value in enumerate(operands))
    scanned = block.add(op, block.add("mul", x, y), dim=dim)
    result = block.add("add", block.add("mul", scanned, block.constant(2, dtype)), block.constant(1, dtype))
    saved = block.add("output_saver", result, omap=(0 if cut is None else cut,))
    return kernel.build(kernel.graph_defined(block.build([saved]), operands))


def alone(op: str, shape: tuple[int, ...], dim: int, dtype: DType) -> Graph:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", shape, dtype)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    tile = block.iterator(0, kernel.tensor(x), (None,), None)
    saved = block.add("output_saver", block.add(op, tile, dim=dim), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def numbers(shape: tuple[int, ...], op: str, seed: int = 0) -> Array:
    """Numbers whose running products stay near 1."""
    rng = np.random.default_rng(seed)
    spread = 1.0 if SCANS[op].combine == "add" else 0.05
    return ((SCANS[op].combine != "add") + spread * rng.standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize("op", SCANS)
def test_scans_between_their_neighbours_are_those_of_float64(op: str, vectors: Vectors) -> None:
    for shape in SHAPES:
        for dim in range(len(shape)):
            graph = around(op, shape, dim, grid=sum(shape) % 2 > 0)
            inputs = [numbers(shape, op, seed) for seed in (1, 2)]
            (result,), (expected,) = executable_for(graph, vectors)(*inputs), reference(graph, inputs)
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-5, err_msg=f"{shape} along {dim}")


@pytest.mark.parametrize("op", SCANS)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_is_as_accurate_as_its_result_can_be(op: str, dim: int) -> None:
    """What runs is kept in double precision, so that rounding the result is all that is lost, however long it is."""
    x = numbers((3, 20011) if dim else (20011, 3), op)
    graph = alone(op, x.shape, dim, DType.FP32)
    (result,), (expected,) = executable_for(graph, WIDTHS[0])(x), reference(graph, [x])
    np.testing.assert_array_less(
        np.abs(result - expected.astype(np.float32)), np.spacing(np.abs(expected.astype(np.float32))) * 1.01
    )


def test_shared_products_before_a_scan_are_rounded_once() -> None:
    """Two readers of the product: it is stored, and both have what it is."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4, 19), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    square = block.add("square", block.iterator(0, kernel.tensor(x), (None,), None))
    saved = [
        block.add("output_saver", value, omap=(0,)) for value in (block.add("cumsum", square, dim=1), block.add("exp", square))
    ]
    graph = kernel.build(kernel.graph_defined(block.build(saved), [x]))
    values = numbers((4, 19), "cumsum")
    for result, expected in zip(executable_for(graph, WIDTHS[0])(values), reference(graph, [values]), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("op", SCANS)
def test_numbers_that_are_not_finite_go_on_along_the_scan_and_nowhere_else(op: str) -> None:
    x = np.ones((3, 37), np.float32)
    x[1, 20], x[2, 5], x[2, 30] = np.nan, np.inf, -np.inf
    for graph, values in ((alone(op, (3, 37), 1, DType.FP32), x), (alone(op, (37, 3), 0, DType.FP32), x.T.copy())):
        for vectors in WIDTHS:
            with np.errstate(invalid="ignore"):
                (result,), (expected,) = executable_for(graph, vectors)(values), reference(graph, [values])
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", SCANS)
def test_results_of_16_bits_are_rounded_once(op: str, name: str) -> None:
    """At least as near to float64 as PyTorch's own."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)
    for shape, dim in (((5, 257), 1), ((257, 5), 0), ((3, 1), 1)):
        x = torch.from_numpy(numbers(shape, op, seed=3)).to(kind)
        graph = alone(op, shape, dim, DType.BF16 if name == "bfloat16" else DType.FP16)
        (result,) = executable_for(graph, WIDTHS[0])(x)
        turned = x.flip(dim) if SCANS[op].back else x
        eager = (torch.cumsum if SCANS[op].combine == "add" else torch.cumprod)(turned, dim)
        eager = eager.flip(dim) if SCANS[op].back else eager
        exact = torch.from_numpy(reference(graph, [x.double().numpy()])[0])
        assert result.dtype == kind
        torch.testing.assert_close(result, exact.to(kind), rtol=torch.finfo(kind).eps, atol=torch.finfo(kind).smallest_normal)
        assert (result.double() - exact).abs().max() <= (eager.double() - exact).abs().max()


@pytest.mark.parametrize("op", SCANS)
def test_tensors_that_are_not_contiguous(op: str) -> None:
    torch = pytest.importorskip("torch")
    graph = alone(op, (6, 23), 1, DType.FP32)
    values = torch.from_numpy(numbers((23, 12), op))
    for x in (values.t()[::2], values[:, :6].t(), values[:1, :1].expand(6, 23)):
        (result,) = executable_for(graph, WIDTHS[0])(x)
        np.testing.assert_allclose(result, reference(graph, [x.numpy()])[0], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("op", SCANS)
def test_what_stands_before_a_scan_is_computed_inside_it_and_the_text_says_so(op: str) -> None:
    (launch,) = lower(around(op, (4, 24), 1)).values()
    kernel = launch.kernel
    check(kernel)
    (scan,) = [statement for statement in kernel.statements if isinstance(statement, Scan)]
    assert len(scan.sources) == 2
    assert (scan.op, scan.dim, scan.back) == (SCANS[op].combine, 1, SCANS[op].back)
    assert [type(statement) for statement in kernel.statements] == [Scan, Elementwise]
    assert parse_kernel(format_kernel(kernel)) == kernel


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
def test_kernels_for_gpus_refuse(target: str) -> None:
    with pytest.raises(UnsupportedOperator, match=r"running sums and products .*\[4, 24\].*target='cpu'"):
        Executable(around("cumsum", (4, 24), 1), machine_for(target))


def test_no_thread_graph_has_a_scan() -> None:
    with pytest.raises(InvalidGraph, match="cumsum cannot stand at thread level"):
        GraphBuilder(Level.THREAD, grid=(1,)).add("cumsum", Value(0), dim=1)
