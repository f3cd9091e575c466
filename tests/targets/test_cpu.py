"""The C printer: every vector width, every matmul form, the accuracy of the elementary functions, 16-bit rounding."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mugraph.errors import UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import OPERATORS
from mugraph.runtime import Executable, build
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.machine import SOURCE_NAME, Cpu
from mugraph.targets.cpu.products import inner_tile, outer_tile
from pairwise import pairwise
from runtime.block_graphs import many_kernels

FP32 = DType.FP32
UNARY = tuple(name for name, row in OPERATORS.items() if row.elementwise and row.arity == 1 and not row.whole)
WIDTHS = (Vectors(16, 32), Vectors(8, 16), Vectors(4, 16))


def executable_for(graph: Graph, vectors: Vectors) -> Executable:
    return Executable(graph, Cpu(vectors))


def normal_inputs(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]


def reference(graph: Graph, inputs: list[Array]) -> list[Array]:
    return evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
def test_every_vector_width_gives_the_same_results(vectors: Vectors) -> None:
    graph = many_kernels(7, 12, FP32)
    inputs = normal_inputs(graph)
    for result, expected in zip(executable_for(graph, vectors)(*inputs), reference(graph, inputs), strict=True):
        scale = max(float(np.max(np.abs(expected))), 1e-6)
        assert float(np.max(np.abs(result - expected))) / scale < 1e-5


SIZES = ((1, 1, 1), (1, 40, 130), (3, 17, 5), (9, 64, 48), (15, 100, 67), (33, 7, 16), (20, 33, 100))
"""Rows, values of k and columns around the register tiles."""
MANY_ROWS = ((33, 40, 48), (40, 70, 35), (64, 130, 100), (33, 41, 48), (40, 71, 35), (64, 129, 100))
"""Those of which the right factor is copied, of an odd number of values of k, too."""


def products(sizes: Sequence[tuple[int, int, int]] = SIZES, dtype: DType = FP32) -> Graph:
    """Products with each factor plain or transposed."""
    kernel = GraphBuilder(Level.KERNEL)
    outputs: list[Value] = []
    for rows, inner, columns in sizes:
        for left_transposed in (False, True):
            for right_transposed in (False, True):
                shapes = [(2, rows, inner), (1, inner, columns)]
                stored = [
                    (batch, second, first) if transposed else (batch, first, second)
                    for (batch, first, second), transposed in zip(shapes, (left_transposed, right_transposed), strict=True)
                ]
                operands = [kernel.input(f"x{len(kernel.nodes)}", shape, dtype) for shape in stored]
                block = GraphBuilder(Level.BLOCK, grid=(1,))
                factors = []
                for number, transposed in enumerate((left_transposed, right_transposed)):
                    factor = block.iterator(number, kernel.tensor(operands[number]), (None,), None)
                    factors.append(block.add("transpose", factor, permutation=(0, 2, 1)) if transposed else factor)
                saved = block.add("output_saver", block.add("matmul", *factors), omap=(0,))
                outputs.extend(kernel.graph_defined(block.build([saved]), operands))
    return kernel.build(outputs)


@pytest.mark.parametrize("vectors", WIDTHS[:2], ids=lambda vectors: f"{vectors.lanes} lanes")
def test_products_of_every_orientation(vectors: Vectors) -> None:
    graph = products()
    inputs = normal_inputs(graph)
    for result, expected in zip(executable_for(graph, vectors)(*inputs), reference(graph, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-5)


@pairwise(
    vectors=[*WIDTHS, Vectors(16, 32, bf16_pairs=True)],
    dtype=[FP32, DType.BF16, DType.FP16],
    rows=MANY_ROWS,
    several=[False, True],
)
def test_right_factors_are_copied_for_many_rows(
    vectors: Vectors, dtype: DType, rows: tuple[int, int, int], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain and transposed, in one panel and several, the last one of which is shorter, as whole squares and parts of them."""
    torch = pytest.importorskip("torch")
    graph = products([rows], dtype)
    inputs = [torch.from_numpy(array).to(getattr(torch, dtype.torch_name)) for array in normal_inputs(graph)]
    expected = reference(graph, [tensor.double().numpy() for tensor in inputs])
    monkeypatch.setattr("mugraph.targets.cpu.panels._STRIP_BYTES", 128 * vectors.lanes if several else 1 << 20)
    executable = executable_for(graph, vectors)
    assert "right_b" in executable.sources[SOURCE_NAME]
    for result, exact in zip(executable(*inputs), expected, strict=True):
        error = np.abs(result.double().numpy() - exact).max() / np.abs(exact).max()
        assert error < {FP32: 1e-6, DType.BF16: 5e-3, DType.FP16: 1e-3}[dtype]


@pytest.mark.parametrize(("dtype", "pairs"), [(FP32, False), (DType.BF16, True), (DType.FP16, False)])
@pytest.mark.parametrize("rows", [(40, 64, 96), (40, 96, 64)])
def test_right_factors_that_are_too_large_are_copied_in_parts(
    dtype: DType, pairs: bool, rows: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of columns, or of k where sums are not rounded in between, by vectors as on a matrix unit."""
    torch = pytest.importorskip("torch")
    graph = products([rows], dtype)
    inputs = [torch.from_numpy(array).to(getattr(torch, dtype.torch_name)) for array in normal_inputs(graph)]
    expected = reference(graph, [tensor.double().numpy() for tensor in inputs])
    monkeypatch.setattr("mugraph.targets.cpu.copied_factors._COPIED_BYTES", 4 * 64 * 32)
    executable = executable_for(graph, Vectors(16, 32, bf16_pairs=pairs))
    copy = f"{DType.BF16 if pairs else FP32}_t right_b[{64 * 32}]"
    assert (copy in executable.sources[SOURCE_NAME]) == (dtype is FP32 or rows[1] < rows[2])
    for result, exact in zip(executable(*inputs), expected, strict=True):
        error = np.abs(result.double().numpy() - exact).max() / np.abs(exact).max()
        assert error < {FP32: 1e-6, DType.BF16: 5e-3, DType.FP16: 1e-3}[dtype]


@pytest.mark.parametrize(("dtype", "pairs"), [(FP32, False), (DType.BF16, True), (DType.BF16, False)])
@pytest.mark.parametrize("depth", [64, 100, 129])
def test_rows_that_all_of_the_left_factor_meets_stay_in_the_cache(
    dtype: DType, pairs: bool, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panel by panel: values of attention over a cache of 8,192 keys came from memory once more for each four queries."""
    torch = pytest.importorskip("torch")
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,))
    operands = [kernel.input(name, shape, dtype) for name, shape in (("x", (2, 8, depth)), ("w", (2, depth, 48)))]
    factors = [block.iterator(number, kernel.tensor(operand), (None,), None) for number, operand in enumerate(operands)]
    exact = block.add("cast", block.add("matmul", *factors), dtype=FP32) if dtype is not FP32 else block.add("matmul", *factors)
    product = block.add("output_saver", exact, omap=(0,))
    graph = kernel.build(kernel.graph_defined(block.build([product]), operands))
    inputs = [torch.from_numpy(array).to(getattr(torch, dtype.torch_name)) for array in normal_inputs(graph)]
    expected = inputs[0].double() @ inputs[1].double()
    monkeypatch.setattr("mugraph.targets.cpu.products._READ_AGAIN_BYTES", 32 * 48 * dtype.bytes)
    executable = executable_for(graph, Vectors(16, 32, bf16_pairs=pairs))
    assert "k0 += 32" in executable.sources[SOURCE_NAME]
    (result,) = executable(*inputs)
    error = float((result.double() - expected).abs().max() / expected.abs().max())
    assert error < (1e-6 if dtype is FP32 or pairs else 5e-3)


@pytest.mark.parametrize(("dtype", "pairs"), [(FP32, False), (DType.BF16, True), (DType.BF16, False)])
def test_dot_products_ask_for_what_they_read_next(dtype: DType, pairs: bool) -> None:
    """Rows of the left factor where the right one has no more columns, as keys for one query: they came 1.2 times as slowly."""
    asked = {}
    for columns in (1, 64):
        text = executable_for(products([(1024, 128, columns)], dtype), Vectors(16, 32, bf16_pairs=pairs)).sources[SOURCE_NAME]
        asked[columns] = {
            line.split("(")[1][0] for line in text.splitlines() if "__builtin_prefetch(" in line and "ahead" not in line
        }
    assert "a" in asked[1]
    assert "a" not in asked[64]


@pytest.mark.parametrize(("dtype", "pairs"), [(FP32, False), (DType.BF16, True)])
def test_dot_products_of_several_rows_keep_what_these_share_in_registers(dtype: DType, pairs: bool) -> None:
    """One row alone may read it as it multiplies."""
    for rows, held in ((1, False), (2, True)):
        executable = executable_for(products([(rows, 64, 32)], dtype), Vectors(16, 32, bf16_pairs=pairs))
        text = executable.sources[SOURCE_NAME]
        *_, dots = text[: text.index("const vec sums = ")].split("vec c0_0 =")
        assert ("STAYS(b0)" in dots) == held


@pairwise(rows=MANY_ROWS, several=[False, True])
def test_right_factors_of_pairs_are_copied_for_many_rows(
    rows: tuple[int, int, int], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only tensors of bf16 are multiplied in pairs, and only where the host does it."""
    pairs = Vectors(16, 32, bf16_pairs=True)
    test_right_factors_are_copied_for_many_rows(pairs, DType.BF16, rows, several, monkeypatch)
    assert all(
        form in executable_for(products([rows], DType.BF16), pairs).sources[SOURCE_NAME] for form in ("right_b", "pairs a0")
    )


@pytest.mark.parametrize("several", [False, True])
def test_nothing_is_beside_the_last_of_an_odd_number_of_pairs(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies there belongs to the next row or column: infinities stay in those that have them."""
    torch = pytest.importorskip("torch")
    graph = products([(40, 33, 40)], DType.BF16)
    inputs = [torch.from_numpy(array).bfloat16() for array in normal_inputs(graph)]
    for left, right in zip(inputs[::2], inputs[1::2], strict=True):
        (left if left.shape[1] == 40 else left.mT)[0, ::2, 0] = torch.inf
        (right if right.shape[2] == 40 else right.mT)[0, 0, ::3] = torch.nan
    expected = reference(graph, [tensor.double().numpy() for tensor in inputs])
    monkeypatch.setattr("mugraph.targets.cpu.panels._STRIP_BYTES", 2048 if several else 1 << 20)
    for result, exact in zip(executable_for(graph, Vectors(16, 32, bf16_pairs=True))(*inputs), expected, strict=True):
        finite = np.isfinite(exact)
        assert finite.any()
        assert not finite.all()
        assert np.array_equal(np.isfinite(result.double().numpy()), finite)
        np.testing.assert_allclose(result.double().numpy()[finite], exact[finite], rtol=0.01, atol=0.1)


def test_functions_without_choices_of_vectors_are_the_same_bit_for_bit() -> None:
    """Powers and maxima by instructions of AVX-512, and by vectors of half the width, which have no such."""
    patterns = np.random.default_rng(0).integers(0, 1 << 32, (2, 1 << 16), dtype=np.uint32).view(np.float32)
    patterns[:, :7] = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.8, -103.9]
    patterns[1, ::3], patterns[1, 1::3] = patterns[0, ::3], -patterns[0, 1::3]
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input(name, (1 << 16,), FP32) for name in "xy"]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    x, y = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(inputs))
    values = [block.add("maximum", x, y), *(block.add(name, x) for name in ("exp2", "expm1"))]
    saved = [block.add("output_saver", value, omap=(0,)) for value in values]
    graph = kernel.build(kernel.graph_defined(block.build(saved), inputs))
    results = [executable_for(graph, vectors)(*patterns) for vectors in WIDTHS]
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            assert np.array_equal(np.isnan(one), np.isnan(other))
            numbers = ~np.isnan(one)
            assert np.array_equal(one.view(np.uint32)[numbers], other.view(np.uint32)[numbers])


def test_exponentials_of_every_number_are_within_two_units_in_the_last_place() -> None:
    """Of each width, as vectors of sixteen lanes look powers up: down to the smallest subnormal, up to infinity."""
    patterns = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    points = np.concatenate(
        [patterns, np.linspace(-104, 89, 1 << 18, dtype=np.float32), np.array([0.0, -0.0, np.inf, -np.inf], np.float32)]
    )
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", points.shape, FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    saved = block.add("output_saver", block.add("exp", block.iterator(0, kernel.tensor(x), (None,), None)), omap=(0,))
    graph = kernel.build(kernel.graph_defined(block.build([saved]), [x]))
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.exp(points.astype(np.float64))
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    for vectors in WIDTHS:
        (result,) = executable_for(graph, vectors)(points)
        np.testing.assert_array_equal(result[~finite], rounded[~finite])
        assert (np.abs(result[finite] - exact[finite]) < 2 * np.spacing(rounded[finite])).all(), vectors


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
def test_an_exponential_overflows_before_a_sum_with_it(vectors: Vectors) -> None:
    """inf - exp(inf) is no number: a power of two that is multiplied and subtracted in one instruction does not overflow."""
    points = np.array([np.inf, 100.0, -np.inf, 1.0] * 4, np.float32)
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", points.shape, FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    values = block.iterator(0, kernel.tensor(x), (None,), None)
    saved = block.add("output_saver", block.add("sub", values, block.add("exp", values)), omap=(0,))
    (result,) = executable_for(kernel.build(kernel.graph_defined(block.build([saved]), [x])), vectors)(points)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_allclose(result, points - np.exp(points), rtol=1e-6)


def mixed_product(left: DType) -> Graph:
    """A product of a computed left factor, of type `left`, and bf16 weights."""
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input("x", (4, 32), left), kernel.input("w", (32, 16), DType.BF16)]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    x, w = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(operands))
    saved = block.add("output_saver", block.add("matmul", block.add("square", x), w), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), operands))


@pytest.mark.parametrize(("left", "rounded"), [(FP32, False), (DType.BF16, True)])
def test_only_factors_that_are_bf16_in_the_mugraph_are_rounded_to_bf16(left: DType, rounded: bool) -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.full((4, 32), 1 + 2**-7), torch.ones((32, 16))
    inputs = [x.to(torch.bfloat16 if left is DType.BF16 else torch.float32), w.bfloat16()]
    (result,) = executable_for(mixed_product(left), Vectors(16, 32, bf16_pairs=True))(*inputs)
    exact = 32 * (1 + 2**-7) ** 2
    assert (result.float() != exact).all() if rounded else (result == exact).all()


def test_register_tiles_fit_the_registers() -> None:
    for unit in WIDTHS:
        for rows in (1, 3, 8, 16, 100):
            for vectors in (1, 2, 5, 64):
                tall, wide = outer_tile(rows, vectors, unit, (1, 2, 3, 4))
                assert tall * wide + wide + 1 <= unit.registers
                assert tall <= rows
                tall, wide = inner_tile(rows, vectors, unit)
                assert tall * wide <= unit.lanes


def unary_functions(count: int) -> Graph:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (count,), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    value = block.iterator(0, kernel.tensor(x), (None,), None)
    saved = [block.add("output_saver", block.add(name, value), omap=(0,)) for name in UNARY]
    return kernel.build(kernel.graph_defined(block.build(saved), [x]))


def test_elementary_functions_are_accurate() -> None:
    magnitudes = np.concatenate([[0.0], np.logspace(-30, 1.9, 4000)])
    points = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    wide = points.astype(np.float64)
    with np.errstate(all="ignore"):
        for name, result in zip(UNARY, build(unary_functions(points.size))(points), strict=True):
            row = OPERATORS[name]
            exact = row.reference(wide) if row.reference else {"exp": np.exp, "sqrt": np.sqrt, "square": np.square}[name](wide)
            usable = np.isfinite(exact) & (np.abs(exact) > 1.2e-38) & (np.abs(exact) < 3.4e38)
            if name == "gelu":
                usable &= wide > -1.0
            if not usable.any():  # infinities
                np.testing.assert_array_equal(result, exact)
                continue
            error = np.abs(result[usable] - exact[usable]) / np.abs(exact[usable])
            assert float(error.max()) < (3e-7 if name == "exp" else 1e-6), name


def test_special_values() -> None:
    inf, nan = math.inf, math.nan
    points = np.array([0.0, inf, -inf, nan, 200.0, -200.0, -100.0], np.float32)
    results = dict(zip(UNARY, build(unary_functions(points.size))(points), strict=True))
    np.testing.assert_array_equal(results["exp"][:6], [1, inf, 0, nan, inf, 0])
    assert 0 < results["exp"][6] < 1e-43
    np.testing.assert_array_equal(results["log"][:4], [-inf, inf, nan, nan])
    np.testing.assert_array_equal(results["tanh"], [0, 1, -1, nan, 1, -1, -1])
    np.testing.assert_array_equal(results["erf"], [0, 1, -1, nan, 1, -1, -1])
    np.testing.assert_array_equal(results["sigmoid"][:6], [0.5, 1, 0, nan, 1, 0])
    np.testing.assert_array_equal(results["silu"][[0, 3, 4]], [0, nan, 200])
    np.testing.assert_array_equal(results["relu"], [0, inf, 0, nan, 200, 0, 0])
    np.testing.assert_array_equal(results["abs"], [0, inf, inf, nan, 200, 200, 100])
    np.testing.assert_array_equal(results["truth"], [0, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(results["infinity"], [nan, inf, -inf, nan, inf, -inf, -inf])


def test_sixteen_bit_results_round_to_nearest_even() -> None:
    torch = pytest.importorskip("torch")
    values = torch.randn(4001, generator=torch.Generator().manual_seed(0)) * 100
    values = torch.cat([values, torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, math.inf, math.nan, 3.39e38, -0.0])])
    for dtype, kind in ((DType.BF16, torch.bfloat16), (DType.FP16, torch.float16)):
        kernel = GraphBuilder(Level.KERNEL)
        x = kernel.input("x", tuple(values.shape), FP32)
        block = GraphBuilder(Level.BLOCK, grid=(1,))
        cast = block.add("cast", block.iterator(0, kernel.tensor(x), (None,), None), dtype=dtype)
        body = block.build([block.add("output_saver", cast, omap=(0,))])
        (result,) = build(kernel.build(kernel.graph_defined(body, [x])))(values)
        assert torch.equal(result.nan_to_num(7.0), values.to(kind).nan_to_num(7.0))


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16], ids=str)
def test_every_number_of_16_bits_is_converted_there_and_back(vectors: Vectors, dtype: DType) -> None:
    """Subnormal ones, infinities and NaN too, as PyTorch does; and halves of all gaps between them to the even one."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype.torch_name)
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(kind)
    wide = numbers.float()
    between = torch.stack([wide, (wide + wide.roll(1)) / 2]).reshape(-1)
    for given, wanted in ((numbers, FP32), (between, dtype)):
        kernel = GraphBuilder(Level.KERNEL)
        x = kernel.input("x", tuple(given.shape), dtype if given is numbers else FP32)
        block = GraphBuilder(Level.BLOCK, grid=(1,))
        cast = block.add("cast", block.iterator(0, kernel.tensor(x), (None,), None), dtype=wanted)
        graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", cast, omap=(0,))]), [x]))
        (result,) = executable_for(graph, vectors)(given)
        assert torch.equal(result.nan_to_num(7.0), given.to(result.dtype).nan_to_num(7.0))


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16], ids=str)
def test_ends_of_rows_of_16_bits_leave_what_is_behind_them(vectors: Vectors, dtype: DType) -> None:
    """Of every length less than two vectors."""
    torch = pytest.importorskip("torch")
    kernel, given = GraphBuilder(Level.KERNEL), []
    bodies: list[Value] = []
    for size in range(1, 2 * vectors.lanes):
        given.append(torch.arange(3.0 * size).reshape(3, size).to(getattr(torch, dtype.torch_name)))
        x = kernel.input(f"x{size}", (3, size), dtype)
        block = GraphBuilder(Level.BLOCK, grid=(1,))
        doubled = block.add("mul", block.iterator(0, kernel.tensor(x), (None,), None), block.constant(2.0, dtype))
        bodies += kernel.graph_defined(block.build([block.add("output_saver", doubled, omap=(0,))]), [x])
    memory = [torch.full((64 * 3,), 7.0, dtype=each.dtype) for each in given]
    outputs = [each[: given.numel()].view(given.shape) for each, given in zip(memory, given, strict=True)]
    results = executable_for(kernel.build(bodies), vectors).into(given, outputs)
    for each, result, all_of_it in zip(given, results, memory, strict=True):
        assert result.data_ptr() == all_of_it.data_ptr()
        assert torch.equal(result, 2 * each)
        assert (all_of_it[each.numel() :] == 7).all()


def test_fp64_kernels_are_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="fp64"):
        build(many_kernels(0, 1, DType.FP64))


def turning(rows: int, columns: int, dtype: DType) -> Graph:
    """Exponentials of a matrix, transposed, beside a column and a row."""
    kernel = GraphBuilder(Level.KERNEL)
    shapes = {"x": (rows, columns), "column": (columns, 1), "row": (1, rows)}
    operands = [kernel.input(name, shape, dtype) for name, shape in shapes.items()]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    x, column, row = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(operands))
    turned = block.add("exp", block.add("transpose", x, permutation=(1, 0)))
    saved = block.add("output_saver", block.add("add", block.add("mul", turned, column), row), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), operands))


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (5, 7), (33, 20), (4, 100), (70, 3)])
def test_what_lies_across_its_result_is_turned_in_registers(vectors: Vectors, rows: int, columns: int) -> None:
    graph = turning(rows, columns, FP32)
    executable, inputs = executable_for(graph, vectors), normal_inputs(graph)
    (text,) = executable.sources.values()
    assert ("turn(turned" in text) == (min(rows, columns) >= 4)
    (result,), (expected,) = executable(*inputs), reference(graph, inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def column_reductions(rows: int, columns: int) -> Graph:
    """The sum of each column's exponentials, and the largest of each column's differences from a row."""
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input("x", (rows, columns), FP32), kernel.input("v", (1, columns), FP32)]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    x, v = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(operands))
    total = block.add("sum", block.add("exp", x), dim=0, size=rows)
    largest = block.add("max", block.add("sub", x, v), dim=0, size=rows)
    saved = [block.add("output_saver", value, omap=(0,)) for value in (total, largest)]
    return kernel.build(kernel.graph_defined(block.build(saved), operands))


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize("columns", [3, 16, 64, 150])
def test_columns_are_reduced_several_vectors_at_a_time(vectors: Vectors, columns: int) -> None:
    graph = column_reductions(37, columns)
    inputs = normal_inputs(graph)
    for result, expected in zip(executable_for(graph, vectors)(*inputs), reference(graph, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("threads", "clock"), [(1, time.process_time), (2, time.perf_counter)])
def test_on_one_thread_calls_take_what_this_process_takes(
    monkeypatch: pytest.MonkeyPatch, threads: int, clock: Callable[[], float]
) -> None:
    monkeypatch.setattr("mugraph.targets.cpu.machine.kernel_threads", lambda: threads)
    assert Cpu().timed(lambda: None).clock is clock
