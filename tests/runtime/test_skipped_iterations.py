"""Iterations that a mask leaves without effect: they are left out, and every number, NaN included, is what it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from mugraph.ir import Graph
from mugraph.ir.text import parse_graph
from mugraph.runtime import Executable, build
from mugraph.targets.machine import machine_for
from pairwise import pairwise

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
HEADS, WIDTH = 2, 16

ONLINE = """\
kernel_graph {{
  q: {dtype}[{heads}, {queries}, {width}] = input
  k: {dtype}[{heads}, {keys}, {width}] = input
  v: {dtype}[{heads}, {keys}, {width}] = input
  mask: {dtype}[{queries}, {keys}] = input
  %4: {dtype}[{heads}, {queries}, {width}] = block_graph(v, mask, q, k) grid(x={heads}, y={blocks}) loop(i={loop}) {{
    | %0: {dtype}[1, {columns}, {width}] = input_iterator(v) {{x<->0, y<->phi, i<->1}}
    | %1: {dtype}[{rows}, {columns}] = input_iterator(mask) {{x<->phi, y<->0, i<->1}}
    | %2: {dtype}[1, {rows}, {width}] = input_iterator(q) {{x<->0, y<->1, i<->phi}}
    | %3: {dtype}[1, {columns}, {width}] = input_iterator(k) {{x<->0, y<->phi, i<->1}}
    | %4: {dtype}[] = constant 1/4
    | %5: {dtype}[1, {columns}, {width}] = mul(%3, %4)
    | %6: {dtype}[1, {width}, {columns}] = transpose(%5) permutation=(0, 2, 1)
    | %7: {dtype}[1, {rows}, {columns}] = matmul(%2, %6)
    | %8: {dtype}[1, {rows}, {columns}] = add(%1, %7)
{online}
  }}
  return %4
}}"""

RESCALED = """\
    | %9: {dtype}[1, {rows}, 1] = max(%8) dim=2 least=lowest size={columns}
    | %10: {dtype}[1, {rows}, {columns}] = sub(%8, %9)
    | %11: {dtype}[1, {rows}, {columns}] = exp(%10)
    | %12: {dtype}[1, {rows}, {width}] = matmul(%11, %0)
      %13: {dtype}[1, {rows}, {width}] = accumulate_rescaled(%12, %9)
    | %14: {dtype}[1, {rows}, 1] = sum(%11) dim=2 size={columns}
      %15: {dtype}[1, {rows}, 1] = accumulate_rescaled(%14, %9)
      %16: {dtype}[1, {rows}, {width}] = div(%13, %15)
      %17: {dtype}[{heads}, {queries}, {width}] = output_saver(%16) {{x<->0, y<->1}}
    return %17"""

UNSHIFTED = """\
    | %9: {dtype}[1, {rows}, {columns}] = exp(%8)
    | %10: {dtype}[1, {rows}, {width}] = matmul(%9, %0)
      %11: {dtype}[1, {rows}, {width}] = accumulate(%10) combine=sum
    | %12: {dtype}[1, {rows}, 1] = sum(%9) dim=2 size={columns}
      %13: {dtype}[1, {rows}, 1] = accumulate(%12) combine=sum
      %14: {dtype}[1, {rows}, {width}] = div(%11, %13)
      %15: {dtype}[{heads}, {queries}, {width}] = output_saver(%14) {{x<->0, y<->1}}
    return %15"""

FORMS = {"rescaled": RESCALED, "unshifted": UNSHIFTED}


def attention(form: str, dtype: str, queries: int, keys: int, blocks: int, loop: int) -> Graph:
    """softmax(q @ k.T / 4 + mask) @ v as one kernel whose for-loop goes over the keys."""
    sizes = {"heads": HEADS, "width": WIDTH, "queries": queries, "keys": keys, "blocks": blocks, "loop": loop}
    sizes |= {"rows": queries // blocks, "columns": keys // loop}
    return parse_graph(ONLINE.format(dtype=dtype, online=FORMS[form].format(dtype=dtype, **sizes), **sizes))


def causal(queries: int, keys: int) -> torch.Tensor:
    """Hides from query i what comes after key i."""
    return torch.full((queries, keys), -math.inf).triu(1)


def to_the_end(queries: int, keys: int) -> torch.Tensor:
    """The same for the last queries of longer keys."""
    return torch.full((queries, keys), -math.inf).triu(1 + keys - queries)


def window(queries: int, keys: int) -> torch.Tensor:
    """Shows to each query a few keys before it."""
    return causal(queries, keys).masked_fill(torch.ones(queries, keys).tril(-9).bool(), -math.inf)


def scattered(queries: int, keys: int) -> torch.Tensor:
    """Hides pairs at random, and all keys but the first from some queries."""
    mask = torch.zeros(queries, keys).masked_fill(torch.rand(queries, keys) < 0.7, -math.inf)
    mask[queries // 3 : queries // 2] = -math.inf
    mask[:, 0] = 0.5
    return mask


def with_hidden_rows(queries: int, keys: int) -> torch.Tensor:
    """Hides everything from some queries, alone and for a block's tile."""
    mask = causal(queries, keys)
    mask[1] = mask[queries // 2 :] = -math.inf
    return mask


def of_numbers(queries: int, keys: int) -> torch.Tensor:
    """Hides nothing."""
    return torch.randn(queries, keys)


MASKS = (causal, to_the_end, window, scattered, with_hidden_rows, of_numbers)
SIZES = ((64, 64, 4, 4), (60, 84, 5, 7), (24, 120, 3, 8), (33, 55, 1, 11), (96, 32, 12, 2))
"""Queries, keys, blocks of a head and iterations."""


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of PyTorch's pool, which kernels run on."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def tensors(dtype: str, queries: int, keys: int) -> list[torch.Tensor]:
    """Queries, keys and values."""
    return [torch.randn(HEADS, size, WIDTH).to(TYPES[dtype]) for size in (queries, keys, keys)]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """In float64, as PyTorch computes it: rows that are hidden as a whole are not numbers."""
    q, k, v, mask = (each.double() for each in (q, k, v, mask))
    return torch.softmax(q @ k.transpose(-2, -1) / 4 + mask, -1) @ v


def without_skips(graph: Graph) -> Executable:
    """The same kernels, with every iteration."""
    executable = build(graph)
    plain = machine_for("cpu")
    sources = {name: text.replace("if (*answer == 2) continue;", "") for name, text in executable.sources.items()}
    assert sources != executable.sources
    return Executable(graph, plain, sources)


@pairwise(form=list(FORMS), dtype=list(TYPES), sizes=SIZES, mask=MASKS)
@pytest.mark.usefixtures("threads")
def test_masked_attention_is_what_pytorch_computes(
    form: str, dtype: str, sizes: tuple[int, int, int, int], mask: Callable[[int, int], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    q, k, v = tensors(dtype, *sizes[:2])
    hiding = mask(*sizes[:2]).to(TYPES[dtype])
    executable = build(attention(form, dtype, *sizes))
    (kernel,) = executable.kernels
    assert [skip.value for skip in kernel.skips] == [-math.inf]
    (found,) = executable(q, k, v, hiding)
    torch.testing.assert_close(
        found.double(), reference(q, k, v, hiding), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_only_iteration_is_run_where_accumulators_are_what_it_brings(form: str) -> None:
    torch.manual_seed(5)
    graph = attention(form, "fp32", 32, 32, 4, 1)
    q, k, v = tensors("fp32", 32, 32)
    mask = torch.zeros(32, 32)
    mask[8:16] = -math.inf
    (found,) = build(graph)(q, k, v, mask)
    torch.testing.assert_close(found.double(), reference(q, k, v, mask), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
def test_the_numbers_are_those_of_all_iterations(form: str) -> None:
    """Bit by bit: an iteration without effect has none."""
    torch.manual_seed(1)
    graph = attention(form, "fp32", 64, 96, 4, 6)
    q, k, v = tensors("fp32", 64, 96)
    for mask in MASKS:
        hiding = mask(64, 96)
        torch.testing.assert_close(
            build(graph)(q, k, v, hiding), without_skips(graph)(q, k, v, hiding), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("threads")
def test_hidden_tiles_are_not_read(form: str) -> None:
    """Keys and values that are not numbers spread to whoever multiplies by them."""
    torch.manual_seed(2)
    q, k, v = tensors("fp32", 64, 64)
    mask = causal(64, 64)
    mask[:, 48:] = -math.inf
    expected = reference(q, k, v, mask)
    k[:, 48:], v[:, 48:] = math.nan, math.nan
    graph = attention(form, "fp32", 64, 64, 4, 4)
    torch.testing.assert_close(build(graph)(q, k, v, mask)[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert without_skips(graph)(q, k, v, mask)[0].isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_the_only_iteration_is_run(form: str) -> None:
    """It makes what accumulators are: nothing fills them before."""
    torch.manual_seed(8)
    q, k, v = tensors("fp32", 64, 64)
    mask = torch.zeros(64, 64)
    mask[:32] = -math.inf
    executable = build(attention(form, "fp32", 64, 64, 4, 1))
    assert not executable.kernels[0].skips
    torch.testing.assert_close(
        executable(q, k, v, mask)[0].double(), reference(q, k, v, mask), rtol=1e-5, atol=1e-5, equal_nan=True
    )


def test_a_mask_may_change_between_calls() -> None:
    torch.manual_seed(3)
    q, k, v = tensors("fp32", 64, 64)
    executable, mask = build(attention("rescaled", "fp32", 64, 64, 4, 4)), causal(64, 64)
    for _ in range(3):
        torch.testing.assert_close(
            executable(q, k, v, mask)[0].double(), reference(q, k, v, mask), rtol=1e-5, atol=1e-5, equal_nan=True
        )
        mask = mask.flip(1).clone()
        mask[:, 0] = 0


def test_masks_of_heads_and_turned_masks_are_looked_at_where_they_lie() -> None:
    torch.manual_seed(4)
    text = str(attention("rescaled", "fp32", 64, 64, 4, 4)).replace("input_iterator(mask)", "input_iterator(#1)")
    turned = text.replace("block_graph(v, mask,", "block_graph(v, %9,").replace(
        "  %4: fp32[2, 64, 16] = block", "  %9: fp32[64, 64] = transpose(mask) permutation=(1, 0)\n  %4: fp32[2, 64, 16] = block"
    )
    headed = (
        text.replace("mask: fp32[64, 64]", "mask: fp32[2, 64, 64]")
        .replace("%1: fp32[16, 16]", "%1: fp32[1, 16, 16]")
        .replace("input_iterator(#1) {x<->phi, y<->0, i<->1}", "input_iterator(mask) {x<->0, y<->1, i<->2}")
    )
    q, k, v = tensors("fp32", 64, 64)
    mask = causal(64, 64)
    for graph, given in ((turned, mask.T.contiguous()), (headed, torch.stack([mask, window(64, 64)]))):
        executable = build(parse_graph(graph))
        assert len(executable.kernels[0].skips) == 1
        expected = reference(q, k, v, mask if graph is turned else given)
        torch.testing.assert_close(executable(q, k, v, given)[0].double(), expected, rtol=1e-5, atol=1e-5)


FACTORS = """\
kernel_graph {
  q: fp32[64, 16] = input
  k: fp32[64, 16] = input
  v: fp32[64, 16] = input
  mask: fp32[64, 64] = input
  %4: fp32[64, 16] = block_graph(q, k, v, mask) grid(x=4) loop(i=4) {
    | %0: fp32[16, 16] = input_iterator(q) {x<->0, i<->phi}
    | %1: fp32[16, 16] = input_iterator(k) {x<->phi, i<->0}
    | %2: fp32[16, 16] = input_iterator(v) {x<->phi, i<->0}
    | %3: fp32[16, 16] = input_iterator(mask) {x<->0, i<->1}
    | %4: fp32[16, 16] = transpose(%1) permutation=(1, 0)
    | %5: fp32[16, 16] = matmul(%0, %4)
    | %6: fp32[16, 16] = mul(%3, %5)
    | %7: fp32[16, 16] = matmul(%6, %2)
      %8: fp32[16, 16] = accumulate(%7) combine=sum
      %9: fp32[64, 16] = output_saver(%8) {x<->0}
    return %9
  }
  return %4
}"""


def test_products_that_a_factor_of_zeros_hides_are_left_out() -> None:
    """As of attention without softmax, which multiplies by a mask of ones and zeros."""
    torch.manual_seed(5)
    q, k, v = (torch.randn(64, 16) for _ in range(3))
    mask = torch.ones(64, 64).tril()
    executable = build(parse_graph(FACTORS))
    assert [skip.value for skip in executable.kernels[0].skips] == [0.0]
    expected = (q @ k.T * mask) @ v
    torch.testing.assert_close(executable(q, k, v, mask)[0], expected, rtol=1e-5, atol=1e-5)
    mask[:, 48:] = 0
    expected = (q @ k.T * mask) @ v
    k[48:] = math.nan
    torch.testing.assert_close(executable(q, k, v, mask)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        # a maximum that starts below 0
        ("accumulate(%7) combine=sum", "accumulate(%7) combine=max"),
        # what they make of 0 and of -inf has an effect
        ("mul(%3, %5)", "add(%3, %5)"),
        ("mul(%3, %5)", "sub(%5, %3)"),
        ("mul(%3, %5)", "div(%5, %3)"),
    ],
)
def test_iterations_that_have_an_effect_are_run(what: str, instead: str) -> None:
    assert what in FACTORS
    (kernel,) = build(parse_graph(FACTORS.replace(what, instead))).kernels
    assert not kernel.skips


@pytest.mark.parametrize(
    "after",
    [
        # what every iteration has alike, in a place for each
        ("%10: fp32[16, 64] = accumulate(%0) combine=concat dim=1", "%11: fp32[16, 64] = matmul(%8, %10)", "64"),
        # and summed with rescaling, in every iteration
        ("%11: fp32[16, 16] = accumulate_rescaled(%0, %10)", "%12: fp32[16, 16] = add(%8, %11)", "16"),
    ],
)
def test_iterations_that_keep_what_all_have_alike_are_run(after: tuple[str, str, str]) -> None:
    torch.manual_seed(6)
    kept, joined, width = after
    largest = "    | %10: fp32[16, 1] = max(%0) dim=1 size=16\n" if "rescaled" in kept else ""
    text = FACTORS.replace("%9:", f"%13: fp32[64, {width}] =").replace(
        "= fp32[64, 16] = output_saver(%8)", f"= output_saver({joined[:3]})"
    )
    text = text.replace("      %13", f"{largest}      {kept}\n      {joined}\n      %13").replace("return %9", "return %13")
    text = text.replace("%4: fp32[64, 16] = block", f"%4: fp32[64, {width}] = block")
    graph = parse_graph(text)
    (kernel,) = build(graph).kernels
    assert not kernel.skips


def test_whole_numbers_that_are_added_hide_nothing() -> None:
    text = str(attention("unshifted", "fp32", 64, 64, 4, 4)).replace("mask: fp32[64, 64]", "mask: int8[64, 64]")
    (kernel,) = build(parse_graph(text.replace("%1: fp32[16, 16] =", "%1: int8[16, 16] ="))).kernels
    assert not kernel.skips


def test_sums_of_what_all_iterations_have_alike_count_those_that_are_left_out() -> None:
    torch.manual_seed(7)
    text = FACTORS.replace(
        "      %9: fp32[64, 16] = output_saver(%8)",
        "      %10: fp32[16, 16] = accumulate(%0) combine=sum\n"
        "      %11: fp32[16, 16] = add(%8, %10)\n      %9: fp32[64, 16] = output_saver(%11)",
    )
    executable = build(parse_graph(text))
    assert len(executable.kernels[0].skips) == 1
    q, k, v = (torch.randn(64, 16) for _ in range(3))
    mask = torch.ones(64, 64).tril()
    torch.testing.assert_close(executable(q, k, v, mask)[0], (q @ k.T * mask) @ v + 4 * q, rtol=1e-5, atol=1e-5)


def test_maxima_that_the_program_subtracts_itself_are_run() -> None:
    """Of a hidden tile they are -inf, and -inf - (-inf) is not a number."""
    text = str(attention("rescaled", "fp32", 64, 64, 4, 4))
    (kernel,) = build(parse_graph(text.replace(" least=lowest", ""))).kernels
    assert not kernel.skips
