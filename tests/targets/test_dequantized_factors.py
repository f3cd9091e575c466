"""Right factors made of packed whole numbers: scales and zero points of groups along k, numbers of 8 and of 4 bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.text import parse_graph
from mugraph.lower.check import check
from mugraph.lower.thread_graphs import construct
from mugraph.lower.tile_form import Dequantization, Matmul
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.compiler import find_compiler
from mugraph.targets.cpu.machine import SOURCE_NAME, Cpu
from pairwise import pairwise

DTYPES = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}
ERRORS = {DType.FP32: 2e-6, DType.BF16: 1e-2, DType.FP16: 2e-3}
HOSTS = [Vectors(16, 32), Vectors(8, 16), Vectors(4, 16), Vectors(16, 32, bf16_pairs=True)]
TILED = Vectors(16, 32, bf16_pairs=True, tiles=True)
CONSTANTS = ["weight", "scale", "zero"]
Shape = tuple[int, int, int, int]
"""Rows, depth, columns, and numbers of a group."""


@dataclass(frozen=True)
class Case:
    """A product of rows with a weight of as many columns, whose groups along k have a scale each, and perhaps a zero point."""

    rows: int
    depth: int
    columns: int
    group: int
    bits: int = 8
    zeros: bool = True
    dtype: DType = DType.BF16
    stored: DType = DType.UINT8
    grid: int = 1
    loop: int = 1

    def graph(self) -> Graph:
        """One kernel: blocks of columns, iterations over k. Numbers of 4 bits are neighbours along k in a byte."""
        kernel = GraphBuilder(Level.KERNEL)
        x = kernel.input("x", (self.rows, self.depth), self.dtype)
        weight = kernel.input("weight", (self.columns, self.depth * self.bits // 8), self.stored)
        groups = self.depth // self.group
        scale = kernel.input("scale", (self.columns, groups), self.dtype)
        zero = [kernel.input("zero", (self.columns, groups), DType.UINT8)] if self.zeros else []
        lefts = [x]
        if self.bits == 4:
            pairs = kernel.add("reshape", x, shape=(self.rows, self.depth // 2, 2))
            parts = [kernel.add("slice", pairs, dim=2, start=start, size=1, step=1) for start in (0, 1)]
            lefts = [kernel.add("reshape", part, shape=(self.rows, self.depth // 2)) for part in parts]
        operands = [*lefts, weight, scale, *zero]
        block = GraphBuilder(Level.BLOCK, grid=(self.grid,), loop=self.loop)
        along = 1 if self.loop > 1 else None
        rows = [block.iterator(n, kernel.tensor(left), (None,), along) for n, left in enumerate(lefts)]
        numbers, *lines = (
            block.iterator(len(lefts) + n, kernel.tensor(value), (0,), along) for n, value in enumerate(operands[len(lefts) :])
        )
        halves = ("low_nibble", "high_nibble") if self.bits == 4 else ("",)
        factors = [self.factor(block, numbers if not half else block.add(half, numbers), lines) for half in halves]
        made = block.add("concat_matmul", *rows, *factors) if len(factors) == 2 else block.add("matmul", rows[0], factors[0])
        if self.loop > 1:
            made = block.add("accumulate", made, combine="sum")
        saved = block.add("output_saver", block.add("cast", made, dtype=self.dtype), omap=(1,))
        return kernel.build(kernel.graph_defined(block.build([saved]), operands))

    def factor(self, block: GraphBuilder, numbers: Value, lines: list[Value]) -> Value:
        """The right factor of numbers [columns, k], scales and zero points."""
        columns, depth = block.tensor(numbers).shape
        groups = depth * 8 // (self.bits * self.group) if self.bits == 4 else depth // self.group
        made = block.add("reshape", numbers, shape=(columns, groups, depth // groups))
        scale, *zeros = (block.add("reshape", line, shape=(columns, groups, 1)) for line in lines)
        for zero in zeros:
            made = block.add("sub", made, zero)
        made = block.add("reshape", block.add("mul", made, scale), shape=(columns, depth))
        return block.add("transpose", made, permutation=(1, 0))

    def inputs(self, seed: int = 0) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        weight = torch.randint(0, 256, (self.columns, self.depth * self.bits // 8)).to(torch.uint8)
        groups = self.depth // self.group
        scale = (torch.rand(self.columns, groups) + 0.1).to(DTYPES[self.dtype])
        zero = [torch.randint(0, 1 << self.bits, (self.columns, groups)).to(torch.uint8)] if self.zeros else []
        weight = weight.view(torch.int8) if self.stored is DType.INT8 else weight
        return [torch.randn(self.rows, self.depth).to(DTYPES[self.dtype]), weight, scale, *zero]


def exact(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """In float64, by integer division."""
    x, weight, scale, *zeros = inputs
    numbers = weight.long()
    if case.bits == 4:
        numbers = torch.stack((numbers % 16, numbers // 16), -1).reshape(case.columns, case.depth)
    grouped = numbers.reshape(case.columns, -1, case.group).double()
    for zero in zeros:
        grouped = grouped - zero.double()[..., None]
    return x.double() @ (grouped * scale.double()[..., None]).reshape(case.columns, case.depth).T


def largest_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def dequantizing(graph: Graph, vectors: Vectors | None = None) -> Executable:
    """The executable, all of whose products make their right factors of packed numbers."""
    executable = Executable(graph.with_constants(CONSTANTS), Cpu(vectors))
    for launch in executable.launches.values():
        check(launch.kernel)
        assert parse_kernel(format_kernel(launch.kernel)) == launch.kernel
        assert all(made_by(statement) for statement in launch.kernel.statements if isinstance(statement, Matmul))
    return executable


def made_by(product: Matmul) -> Dequantization | None:
    return product.dequantized


def emulated(graph: Graph) -> Executable:
    """For a host with matrix units, whose registers are arrays here."""
    marked, machine = graph.with_constants(CONSTANTS), Cpu(TILED)
    sources = machine.print([launch.kernel for launch in machine.lower(marked).values()])
    assert "MULTIPLY_TILES" in sources[SOURCE_NAME].split("static void kernel", 1)[-1]
    return Executable(marked, machine, {name: f"#define EMULATED_TILES\n{text}" for name, text in sources.items()})


SHAPES = [(1, 128, 16, 64), (1, 1024, 230, 32), (3, 1536, 40, 1536), (9, 192, 64, 32), (2, 2048, 33, 1024)]
"""Fewer columns than a strip has, more, and a rest of some; panels of several groups, and groups of several panels."""


def dequantizes(vectors: Vectors, case: Case) -> None:
    """Assert that the product of a case reads its weight packed on a host, and gives what it gives in float64."""
    inputs, executable = case.inputs(), dequantizing(case.graph(), vectors)
    (result,) = executable(*inputs)
    assert largest_error(result, exact(case, inputs)) < ERRORS[case.dtype]
    numbers, lines = case.columns * case.depth * case.bits // 8, case.columns * case.depth // case.group
    assert executable.packed_bytes == numbers + lines * (case.dtype.bytes + case.zeros)


@pairwise(vectors=HOSTS, dtype=list(DTYPES), shape=SHAPES, bits=[8, 4], zeros=[False, True])
def test_products_dequantize_packed_numbers(vectors: Vectors, dtype: DType, shape: Shape, bits: int, zeros: bool) -> None:
    dequantizes(vectors, Case(*shape, bits, zeros, dtype))


@pairwise(shape=SHAPES, bits=[8, 4], zeros=[False, True])
def test_products_of_pairs_dequantize_packed_numbers(shape: Shape, bits: int, zeros: bool) -> None:
    """Only tensors of bf16 are multiplied in pairs, and only where the host does it."""
    dequantizes(HOSTS[-1], Case(*shape, bits, zeros, DType.BF16))


TILED_SHAPES = [(4, 128, 16, 64), (16, 256, 80, 64), (17, 512, 48, 128), (40, 256, 112, 256), (11, 1024, 64, 512)]


@pytest.mark.parametrize("real", [False, True], ids=["emulated", "real"])
@pairwise(panel=[64, 1 << 20], shape=TILED_SHAPES, bits=[8, 4], zeros=[False, True])
def test_matrix_units_multiply_packed_numbers(
    real: bool, panel: int, shape: Shape, bits: int, zeros: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 16 rows of numbers as they are, and sums that are scaled; more of what they stand for, rounded to bf16."""
    if real and not find_compiler().vectors.tiles:
        pytest.skip("this host has no matrix unit, or does not let us use it")
    monkeypatch.setattr("mugraph.targets.cpu.matrix_tiles._PANEL_BYTES", panel)
    monkeypatch.setattr("mugraph.targets.cpu.matrix_tiles._PANEL", 64)
    case = Case(*shape, bits, zeros)
    inputs, graph = case.inputs(), case.graph()
    (result,) = dequantizing(graph, TILED)(*inputs) if real else emulated(graph)(*inputs)
    assert largest_error(result, exact(case, inputs)) < ERRORS[DType.BF16]


@pairwise(vectors=[HOSTS[1], HOSTS[3], None], bits=[8, 4], rows=[1, 8], grid=[1, 3], loop=[1, 4])
def test_windows_of_blocks_and_iterations_follow_each_other(
    vectors: Vectors | None, bits: int, rows: int, grid: int, loop: int
) -> None:
    case = Case(rows, 512, 96, 64, bits, grid=grid, loop=loop)
    inputs = case.inputs()
    (result,) = dequantizing(case.graph(), vectors)(*inputs)
    assert largest_error(result, exact(case, inputs)) < ERRORS[DType.BF16]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 16, 32])
def test_every_number_is_multiplied(bits: int, rows: int) -> None:
    """Rows of one 1 each pick rows of the weight, bit for bit."""
    for start in range(0, 32 * 8 // bits, rows):
        case = Case(rows, 32 * 8 // bits, 256, 32 * 8 // bits, bits, zeros=False)
        x = torch.eye(case.depth, dtype=torch.bfloat16)[start : start + rows]
        weight = torch.arange(256).to(torch.uint8)[:, None].repeat(1, 32)
        scale = torch.ones(256, 1, dtype=torch.bfloat16)
        (result,) = dequantizing(case.graph())(x, weight, scale)
        assert torch.equal(result.double(), exact(case, [x, weight, scale])), (bits, rows, start)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 16, 32])
def test_the_left_factor_keeps_all_its_bits(bits: int, rows: int) -> None:
    """The number after 1 in bf16 times powers of two is exact, wherever it stands."""
    powers = torch.tensor([(1 << low) | (1 << high) if bits == 4 else 1 << high for low, high in product(range(4), range(4, 8))])
    case = Case(rows, 32, 64, 32, bits, zeros=False)
    weight = powers.repeat(64 * 32 * bits // 8 // 16).reshape(64, -1).to(torch.uint8)
    scale = torch.ones(64, 1, dtype=torch.bfloat16)
    for start in range(0, 32, rows):
        x = (torch.eye(32) * (1 + 2**-7)).bfloat16()[start : start + rows]
        (result,) = dequantizing(case.graph())(x, weight, scale)
        assert torch.equal(result.double(), exact(case, [x, weight, scale])), start


def test_signed_numbers() -> None:
    for vectors, rows in product((HOSTS[0], HOSTS[1], None), (1, 8)):
        case = Case(rows, 128, 64, 32, zeros=False, stored=DType.INT8)
        inputs = case.inputs()
        assert inputs[1].min() < 0
        assert largest_error(dequantizing(case.graph(), vectors)(*inputs)[0], exact(case, inputs)) < ERRORS[DType.BF16]


@pytest.mark.parametrize("bits", [8, 4])
def test_zero_points_in_fp32_do_not_cancel_behind_long_sums(bits: int) -> None:
    """Of equal rows of the left factor, a sum of numbers less the sum of zero points would be small against both."""
    case = Case(2, 4096, 32, 4096, bits, dtype=DType.FP32)
    x, weight, scale, zero = case.inputs()
    x[:] = 1.0
    zero[:] = 1 << (bits - 1)
    inputs = [x, weight, scale, zero]
    assert largest_error(dequantizing(case.graph())(*inputs)[0], exact(case, inputs)) < 2e-6


def test_what_changes_is_packed_again() -> None:
    case = Case(2, 128, 48, 32, bits=4)
    executable, inputs = dequantizing(case.graph()), case.inputs()
    assert largest_error(executable(*inputs)[0], exact(case, inputs)) < 1e-2
    for tensor, change in zip(inputs[1:], (17, 0.25, 3), strict=True):
        tensor[3, 1] += change
        assert largest_error(executable(*inputs)[0], exact(case, inputs)) < 1e-2


def test_layers_that_share_a_kernel_are_packed_once_each() -> None:
    from unittest import mock

    from mugraph.targets.cpu.packer import pack

    case = Case(2, 128, 48, 32)
    executable, layers = dequantizing(case.graph()), [case.inputs(seed) for seed in range(3)]
    with mock.patch("mugraph.runtime.packed_operands.pack", side_effect=pack) as packs:
        for _ in range(3):
            for inputs in layers:
                assert largest_error(executable(*inputs)[0], exact(case, inputs)) < 1e-2
    assert packs.call_count == 9


@pytest.mark.parametrize("constant", [["weight"], ["scale", "zero"], ["weight", "scale"]])
def test_factors_of_what_is_not_constant_are_computed_where_it_lies(constant: list[str]) -> None:
    case = Case(2, 128, 48, 32)
    executable, inputs = build(case.graph().with_constants(constant)), case.inputs()
    assert not executable.packs
    assert largest_error(executable(*inputs)[0], exact(case, inputs)) < 1e-2


def test_numbers_that_others_read_stay_where_they_are() -> None:
    """And so do those of groups so small that scales would take much of the memory, and of fewer columns than a vector has."""
    kernel = GraphBuilder(Level.KERNEL)
    x, weight = kernel.input("x", (8, 32), DType.FP32), kernel.input("weight", (32, 32), DType.UINT8)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    rows, numbers = (block.iterator(n, kernel.tensor(value), (None,), None) for n, value in enumerate((x, weight)))
    low = block.add("low_nibble", numbers)
    both = [block.add("matmul", rows, low), block.add("exp", block.add("mul", numbers, block.constant(0.01, DType.FP32)))]
    saved = [block.add("output_saver", value, omap=(0,)) for value in both]
    graph = kernel.build(kernel.graph_defined(block.build(saved), [x, weight]))
    assert not build(graph.with_constants(["weight"])).packs
    for case in (Case(2, 128, 48, 8), Case(2, 128, 3, 32)):
        executable, inputs = build(case.graph().with_constants(CONSTANTS)), case.inputs()
        assert not executable.packs
        assert largest_error(executable(*inputs)[0], exact(case, inputs)) < 1e-2


@pytest.mark.parametrize("change", ["group", "sources", "strips"])
def test_a_dequantization_that_does_not_fit_is_no_valid_kernel(change: str) -> None:
    from mugraph.errors import InvalidGraph

    executable = dequantizing(Case(2, 128, 48, 32).graph(), HOSTS[0])
    (kernel,) = (launch.kernel for launch in executable.launches.values())
    (product_,) = (statement for statement in kernel.statements if isinstance(statement, Matmul))
    made = product_.dequantized
    assert made is not None
    wrong = {
        "group": replace(product_, dequantized=replace(made, group=64)),
        "sources": replace(product_, dequantized=replace(made, sources=made.sources[:1])),
        "strips": replace(product_, strips=None),
    }[change]
    part = tuple(wrong if statement is product_ else statement for statement in kernel.after)
    with pytest.raises(InvalidGraph, match="its factor is not made of packed rows for groups of k"):
        check(replace(kernel, after=part))


def test_two_products_of_one_weight_have_scales_of_their_own() -> None:
    """Numbers less zero points, which both read, and what each makes of them may be statements of their own."""
    weight = torch.randint(0, 256, (16, 96), dtype=torch.uint8)
    zero, *scales = ((torch.rand(16, 3, 1) + 0.1).bfloat16() for _ in range(3))

    def both(x: torch.Tensor, weight: torch.Tensor, zero: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack((weight & 15, weight >> 4), -1).reshape(16, 3, 64).to(x.dtype)
        first, second = (((numbers - zero) * scale).reshape(16, 192) for scale in scales)
        return x @ first.T + x @ second.T

    inputs = [torch.randn(16, 192).bfloat16(), weight, zero, *scales]
    program = trace(both, inputs).graph
    wanted = both(inputs[0].double(), weight, *(line.double() for line in (zero, *scales)))
    for candidate in search(program, device_for("cpu"), budget=5.0).candidates:
        graph = construct(candidate.graph).with_constants(program.input_names[1:])
        (found,) = Executable(graph, Cpu())(*inputs)
        assert largest_error(found, wanted) < ERRORS[DType.BF16]


BEHIND_A_PRODUCT = """\
kernel_graph {
  x: fp32[8, 64] = input
  a: fp32[64, 256] = input
  weight: int8[128, 256] = input
  scale: fp32[128, 8] = input
  %4: fp32[8, 128] = block_graph(x, a, weight, scale) grid(x=2) loop(i=2) {
    | %0: fp32[8, 64] = input_iterator(x) {x<->phi, i<->phi}
    | %1: fp32[64, 128] = input_iterator(a) {x<->phi, i<->1}
    | %2: int8[64, 128] = input_iterator(weight) {x<->0, i<->1}
    | %3: fp32[64, 4] = input_iterator(scale) {x<->0, i<->1}
    | %4: fp32[8, 128] = matmul(%0, %1)
    | %5: fp32[8, 128] = relu(%4)
    | %6: int8[64, 4, 32] = reshape(%2)
    | %7: fp32[64, 4, 1] = reshape(%3)
    | %8: fp32[64, 4, 32] = mul(%6, %7)
    | %9: fp32[64, 128] = reshape(%8)
    | %10: fp32[128, 64] = transpose(%9) permutation=(1, 0)
    | %11: fp32[8, 64] = matmul(%5, %10)
      %12: fp32[8, 64] = accumulate(%11) combine=sum
      %13: fp32[8, 128] = output_saver(%12) {x<->1}
    return %13
  }
  return %4
}"""


@pytest.mark.parametrize("constants", [["weight", "scale"], []])
def test_single_numbers_that_are_not_zero_are_found_wherever_they_lie(constants: list[str]) -> None:
    """Tiles of zeros have no effect: where they lie packed nobody looks at them."""
    torch.manual_seed(0)
    executable = build(parse_graph(BEHIND_A_PRODUCT).with_constants(constants))
    assert executable.packs == bool(constants)
    assert bool(executable.kernels[0].skips) != bool(constants)
    x, a = torch.randn(8, 64), torch.randn(64, 256)
    for row, column in ((3, 200), (20, 100), (70, 10), (100, 250)):
        for sparse in ("weight", "scale"):
            weight, scale = torch.zeros(128, 256, dtype=torch.int8), torch.zeros(128, 8)
            weight[(row, column) if sparse == "weight" else ...] = 5
            scale[(row, column // 32) if sparse == "scale" else ...] = 0.5
            expected = torch.relu(x @ a) @ (weight * scale.repeat_interleave(32, 1)).T
            torch.testing.assert_close(executable(x, a, weight, scale)[0], expected, rtol=1e-4, atol=1e-3)
