"""The text of Triton kernels: what a reader sees, and the rules by which tiles become tensors of powers of two."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lower.graphs import OTHER_MAXIMA, attention, chain_of_kernels, rms_norm_linear, shifted_by
from mugraph.errors import InvalidGraph, UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import LEAST, OPERATORS
from mugraph.lower import construct
from mugraph.lower.pipeline import TILE_PASSES
from mugraph.lower.tile_text import parse_kernel
from mugraph.targets.triton import print_program, tile_launches
from mugraph.targets.triton.expressions import TORCH_FUNCTIONS, TRITON_FUNCTIONS, in_python, number, unwrapped
from mugraph.targets.triton.kernel import value_names
from mugraph.targets.triton.machine import Triton
from mugraph.targets.triton.printer import kernel_lines
from mugraph.targets.triton.source import host_lines
from mugraph.targets.triton.tensors import Padding, aligned

KERNEL = '''\
@triton.jit
def kernel_3(X_ptr, G_ptr, W_ptr, t3_ptr):
    """t3 [12, 64] from X [12, 64], G [64], W [64, 64]: 2 blocks, 2 iterations each."""
    g0 = tl.program_id(0)
    i16 = tl.arange(0, 16)
    i32 = tl.arange(0, 32)
    m12 = i16 < 12
    acc_5 = tl.zeros((16,), tl.float32)  # [12, 1]
    acc_8 = tl.zeros((16, 32), tl.float32)  # [12, 32]
    for step in tl.range(2, num_stages=4):
        X_0 = tl.load(X_ptr + 32 * step + i16[:, None] * 64 + i32[None, :], mask=m12[:, None], other=0.0).to(tl.float32)  # [12, 32]
        G_1 = tl.load(G_ptr + 32 * step + i32).to(tl.float32)  # [32]
        W_2 = tl.load(W_ptr + 32 * g0 + 2048 * step + i32[:, None] * 64 + i32[None, :])  # [32, 32]
        square_3 = X_0 * X_0  # [12, 32]
        sum_4 = tl.sum(square_3, axis=1)  # [12, 1]
        acc_5 = acc_5 + sum_4  # [12, 1]
        mul_6 = X_0 * G_1[None, :]  # [12, 32]
        acc_8 = tl.dot(to_tf32(mul_6), W_2.to(tl.float32), acc_8, input_precision="tf32")  # [12, 32]
    div_9 = acc_8 / tl.sqrt_rn(acc_5[:, None] * 0.015625)  # [12, 32]
    tl.store(t3_ptr + 32 * g0 + i16[:, None] * 64 + i32[None, :], div_9.to(tl.float16), mask=m12[:, None])  # [12, 32]'''  # noqa: E501


def program_text(graph: Graph) -> str:
    return print_program([launch.kernel for launch in tile_launches(graph).values()], "kernels.py")


def elementwise_graph(op: str, dtype: DType = DType.FP32, name: str = "x", shape: tuple[int, ...] = (8, 16)) -> Graph:
    """One block that applies an operator of one operand to its tile."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input(name, shape, dtype)
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    value = block.add(op, block.iterator(0, kernel.tensor(x), (0,), None))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", value, omap=(0,))]), [x]))


def test_a_kernel_reads_like_one_written_by_hand() -> None:
    text = program_text(rms_norm_linear(rows=12, inner=64, columns=64, dtype=DType.FP16, loop=2))
    assert text[text.index("@triton.jit\ndef kernel_3") : text.index("def run")].strip() == KERNEL


def test_a_kernel_is_the_text_of_its_tile_form() -> None:
    """What `mugraph explain` shows last is all that the printer reads of a block graph."""
    graph = rms_norm_linear(rows=12, inner=64, columns=64, dtype=DType.FP16, loop=2)
    machine = Triton("sm_90", 0)
    stages = {name: text for _, name, text in machine.explain(graph)}
    assert list(stages) == ["lowered", *(name for name, _ in TILE_PASSES)]
    (launch,) = tile_launches(graph).values()
    read_back = replace(launch.kernel, form=parse_kernel(list(stages.values())[-1]))
    assert "\n".join(kernel_lines(read_back)) == KERNEL


def test_the_file_allocates_launches_and_returns() -> None:
    text = program_text(rms_norm_linear(dtype=DType.FP16))
    assert "t3 = torch.empty((4, 48), dtype=torch.float16, device=X.device)" in text
    assert "kernel_3[(2,)](X, G, W, t3, num_warps=4, enable_fp_fusion=False)" in text
    assert "((32, 48), torch.float16),  # W" in text


def test_kernels_that_are_tuned_begin_with_the_configuration_they_would_have() -> None:
    graph = rms_norm_linear(rows=12, inner=64, columns=64, dtype=DType.FP16, loop=2)
    (launch,) = tile_launches(graph).values()
    text = print_program([replace(launch.kernel, tuned=True)], "kernels.py")
    warps = launch.kernel.warps
    wanted = [(stages, count) for count in (warps, warps // 2, 2 * warps) for stages in (4, 3)]
    rows = re.findall(r'triton\.Config\({"stages": (\d+)}, num_warps=(\d+)\),', text)
    assert [(int(stages), int(count)) for stages, count in rows] == wanted
    assert "def kernel_3(X_ptr, G_ptr, W_ptr, t3_ptr, stages: tl.constexpr):" in text
    assert "tl.range(2, num_stages=stages)" in text
    assert "kernel_3[(2,)](X, G, W, t3, enable_fp_fusion=False)" in text
    (plain,) = tile_launches(elementwise_graph("exp")).values()
    assert "stages" not in print_program([replace(plain.kernel, tuned=True)], "kernels.py"), "it has no loop"


def test_kernels_hand_tensors_on_in_one_workspace() -> None:
    text = program_text(chain_of_kernels(4, (4, 48), DType.FP16))
    assert text.count("torch.empty") == 2
    assert "workspace = torch.empty(1024, dtype=torch.uint8, device=X.device)" in text
    assert "t2 = workspace[512:896].view(torch.float16).view((4, 48))" in text


def test_products_of_fp32_are_exact_and_computed_factors_of_fp16_keep_their_range() -> None:
    assert 'input_precision="ieee"' in program_text(rms_norm_linear(inner=256))
    assert 'input_precision="tf32"' in program_text(rms_norm_linear(inner=256, dtype=DType.FP16))
    assert "tl.dot(to_tf32(mul_6), W_2.to(tl.float32)" in program_text(rms_norm_linear(inner=256, dtype=DType.FP16))
    assert "mul_6.to(tl.bfloat16)" in program_text(rms_norm_linear(inner=256, dtype=DType.BF16))


def test_weights_of_safe_softmax_are_multiplied_in_fp16() -> None:
    text = program_text(construct(attention(queries=16, keys=128, width=32, dtype=DType.FP16)))
    (weighted,) = re.findall(r"tl.dot\((exp_\d+.*)\)", text)
    assert re.fullmatch(r"exp_(\d+)\.to\(tl\.float16\), \w+(, acc_\d+)?", weighted)
    assert text.count('"tf32"') == 1, "queries are scaled in the kernel"


@pytest.mark.parametrize("what", OTHER_MAXIMA)
def test_exponentials_less_another_maximum_may_be_too_large_for_fp16(what: str) -> None:
    assert re.search(r"tl.dot\(to_tf32\(exp_\d+\), V_\d+.to\(tl.float32\)", program_text(construct(shifted_by(what))))


@pytest.mark.parametrize("flat", [False, True])
def test_accumulators_with_the_same_shift_share_one_running_maximum(flat: bool) -> None:
    assert program_text(attention(flat=flat)).count("raised_") == 4


def test_factors_that_were_loaded_keep_their_type() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (16, 32), DType.FP16), kernel.input("w", (32, 16), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    tiles = [block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate((x, w))]
    product = block.add("matmul", *tiles)
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", product, omap=(0,))]), [x, w]))
    assert "tl.dot(x_0, w_1)" in program_text(graph)


def test_a_function_that_triton_lacks_is_written_into_the_file() -> None:
    assert "def tanh(x):" in program_text(elementwise_graph("tanh"))
    assert "def tanh(x):" not in program_text(elementwise_graph("exp"))


@pytest.mark.parametrize("functions", [TRITON_FUNCTIONS, TORCH_FUNCTIONS], ids=["triton", "torch"])
def test_every_elementwise_operator_has_a_text(functions: dict[str, str]) -> None:
    for row in OPERATORS.values():
        if row.scalar is not None:
            text = in_python(row.scalar, functions).format("x", "y", "z")
            assert compile(text, row.name, "eval")
            assert "0f" not in text


def test_an_unknown_function_is_named() -> None:
    with pytest.raises(UnsupportedOperator, match="'cosh'"):
        in_python("cosh({0})", TRITON_FUNCTIONS)


def test_numbers_are_those_of_fp32() -> None:
    for value in (1e-5, 1 / 3, -0.1, 1.0, 3e38, 2.0**-140):
        assert np.float32(eval(number(value))) == np.float32(value)
    largest = float(np.finfo(np.float32).max)
    assert eval(number(-largest)) == -largest, "Triton takes what exceeds fp32 for fp64"
    assert number(-math.inf) == 'float("-inf")'


@pytest.mark.parametrize(("text", "inside"), [("(a + b)", "a + b"), ("(a) + (b)", "(a) + (b)"), ("a", "a"), ("((a))", "(a)")])
def test_only_parentheses_around_everything_are_dropped(text: str, inside: str) -> None:
    assert unwrapped(text) == inside


def test_what_cannot_be_counted_or_computed_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match=r"fp64 tensors \(kernel_1, input_iterator\); cast to fp32"):
        tile_launches(elementwise_graph("exp", DType.FP64))
    with pytest.raises(UnsupportedOperator, match=r"x of shape \[65536, 32768\]"):
        tile_launches(elementwise_graph("exp", shape=(65536, 32768)))
    (node,) = elementwise_graph("exp").kernels()
    assert node.body is not None
    with pytest.raises(InvalidGraph, match="block graph"):
        tile_launches(node.body)


@pytest.mark.parametrize("name", ["lambda", "tl", "torch", "i16", "t2", "a.b", "7up", "", "größe", "_"])
def test_any_name_of_an_input_becomes_a_variable(name: str) -> None:
    graph = elementwise_graph("exp", name=name)
    (word, *_) = value_names(graph).values()
    assert word.isidentifier()
    assert word.isascii()
    assert compile(program_text(graph), "kernels.py", "exec")


def test_two_names_that_differ_only_in_punctuation_stay_apart() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("a.b", (4,), DType.FP32), kernel.input("a_b", (4,), DType.FP32)
    names = value_names(kernel.build([kernel.add("add", x, y)]))
    assert len(set(names.values())) == 3


# --- tiles -----------------------------------------------------------------------------------------------------------

extents = st.integers(1, 12)


PLAIN = Padding()
paddings = st.builds(Padding, st.frozensets(st.integers(2, 12), max_size=3), st.sampled_from([1, 16]))
"""Among them those of matrix units that multiply 16 rows."""


@given(st.integers(1, 10_000))
def test_padding_is_the_least_power_of_two(size: int) -> None:
    assert size <= PLAIN.size(size) < 2 * size
    assert PLAIN.size(size).bit_count() == 1


@given(st.integers(2, 40), paddings)
def test_sizes_are_widened_where_a_product_has_them(size: int, padding: Padding) -> None:
    assert padding.size(size) == max(PLAIN.size(size), padding.least if size in padding.widened else 1)


@given(st.lists(extents, max_size=4).map(tuple), paddings)
def test_masks_are_true_of_elements_and_false_of_padding(shape: tuple[int, ...], padding: Padding) -> None:
    text = padding.mask(shape)
    tensor = np.zeros(padding.held(shape), bool)
    tensor[tuple(slice(size) for size in shape if size > 1)] = True
    names = {f"m{size}": np.arange(padding.size(size)) < size for size in shape}
    assert (text == "") == tensor.all()
    if text:
        np.testing.assert_array_equal(np.broadcast_to(eval(text, names), padding.held(shape)), tensor)


@given(st.lists(st.tuples(extents, st.booleans()), min_size=1, max_size=4))
def test_aligned_tiles_broadcast_as_in_numpy(dims: list[tuple[int, bool]]) -> None:
    wide = tuple(size for size, _ in dims)
    narrow = tuple(size if kept else 1 for size, kept in dims)
    narrow = narrow[next((i for i, size in enumerate(narrow) if size > 1), len(narrow)) :]
    tile = np.random.default_rng(0).random(narrow)
    tensor = eval(aligned("x", narrow, wide), {"x": tile.squeeze()})
    np.testing.assert_array_equal(
        np.broadcast_to(tensor, [size for size in wide if size > 1]), np.broadcast_to(tile, wide).squeeze()
    )


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of equally many elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4, 5]), min_size=1, max_size=5))

    def grouped() -> tuple[int, ...]:
        sizes = [1]
        for factor in factors:
            if draw(st.booleans()):
                sizes.append(1)
            sizes[-1] *= factor
        return tuple(sizes)

    return grouped(), grouped()


@given(reshapes(), paddings)
def test_reshapes_said_to_keep_the_order_do(shapes: tuple[tuple[int, ...], tuple[int, ...]], padding: Padding) -> None:
    before, after = shapes
    if not padding.keeps_order(before, after):
        assert any(padding.size(size) != size for size in (*before, *after))
        return
    tensor = np.full(padding.held(before), -1)
    inside = tuple(slice(size) for size in before if size > 1)
    tensor[inside] = np.arange(math.prod(before)).reshape(tensor[inside].shape)
    result = tensor.reshape(padding.held(after))[tuple(slice(size) for size in after if size > 1)]
    np.testing.assert_array_equal(result.ravel(), np.arange(math.prod(before)))


@given(reshapes(), paddings)
def test_elements_are_found_by_number_wherever_padding_is(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], padding: Padding
) -> None:
    """The gather of a reshape that would move padding inwards."""
    before, after = ([size for size in shape if size > 1] for shape in shapes)
    if not after:
        return
    tensor = np.full(padding.held(tuple(before)), -1)
    inside = tuple(slice(size) for size in before)
    tensor[inside] = np.arange(math.prod(before)).reshape(before)
    ranges = {padding.place(size): np.arange(padding.size(size)) for size in after}
    numbers = np.broadcast_to(eval(padding.element_numbers(tuple(after)), ranges), padding.held(tuple(after)))
    places = eval(padding.places_of("n", tuple(before)), {"n": numbers})
    result = tensor.ravel()[places][tuple(slice(size) for size in after)]
    np.testing.assert_array_equal(result.ravel(), np.arange(math.prod(after)))


def test_pre_defined_maxima_over_the_least_number_are_not_below_it() -> None:
    """Of -inf alone the largest is then the least number, and NaN stays NaN."""
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("x", (2, 3), DType.FP32)
    maxima = [kernel.add("max", value, dim=1, size=3, **least) for least in ({}, {"least": LEAST})]
    namespace: dict[str, Any] = {"torch": torch}
    exec("\n".join(host_lines(kernel.build(maxima), {})), namespace)
    inputs = torch.tensor([[-torch.inf] * 3, [0, torch.nan, 1]])
    plain, raised = namespace["run"](inputs)
    exact = evaluate(kernel.build(maxima), [inputs.double().numpy()], FloatArithmetic())
    np.testing.assert_array_equal([plain.numpy(), raised.numpy()], exact)
