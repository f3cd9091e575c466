"""Bodies of kernels in which a mask is one number, or chooses between an input and 0: the input is read where it lies."""

from __future__ import annotations

import pytest

from mugraph.lower.held_iterations import with_choices, with_constant_inputs
from mugraph.lower.tile_form import Kernel
from mugraph.lower.tile_text import format_kernel, parse_kernel

KERNEL = """\
kernel kernel_0 loop(4) {{
  buffer in0: {dtype} device[1024]
  buffer in1: bool device[64]
  buffer in2: fp32 device[64]
  buffer out0: fp32 device[16]
  buffer s0: fp32 shared[16]
  buffer s1: fp32 shared[256]
  buffer s2: fp32 shared[16]
  inputs in0, in1, in2
  outputs out0
  before {{
    s0[1, 16 | 16, 1] = "0.0" ()
  }}
  body {{
    {body}
  }}
  after {{
    out0[1, 16 | 16, 1] = #0 (s0[1, 16 | 16, 1])
  }}
}}"""
CHOSEN = 's1[16, 16 | 16, 1] = "select({0}, {1}, {2})"(#0, #1, "0.0") (in1[16, 16 | 1, 0 | 16 i], in0[16, 16 | 16, 1 | 256 i])'
PRODUCT = "s0[1, 16 | 16, 1] += matmul {} (in2[1, 16 | 16, 1 | 16 i], s1[16, 16 | 16, 1])"


def kernel(*body: str, dtype: str = "fp32") -> Kernel:
    return parse_kernel(KERNEL.format(dtype=dtype, body="\n    ".join(body)))


def body_of(made: Kernel) -> list[str]:
    lines = [line.strip() for line in format_kernel(made).splitlines()]
    return lines[lines.index("body {") + 1 : lines.index("after {") - 1]


IN_PLACE = "s0[1, 16 | 16, 1] += matmul fp32 (in2[1, 16 | 16, 1 | 16 i], in0[16, 16 | 16, 1 | 256 i])"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_product_reads_what_a_mask_chooses_where_it_lies_and_in_fp32(dtype: str) -> None:
    made = kernel(CHOSEN, PRODUCT.format(dtype), dtype=dtype)
    assert body_of(with_constant_inputs(made, {"in1": 1.0})) == [IN_PLACE]
    assert body_of(with_choices(made, lambda mask, tile: (mask.buffer, tile.buffer) == ("in1", "in0"))) == [IN_PLACE]


def test_nothing_is_chosen_of_masks_that_may_say_something_else() -> None:
    made = kernel(CHOSEN, PRODUCT.format("fp32"))
    assert body_of(with_choices(made, lambda mask, tile: False)) == body_of(made)
    assert body_of(with_constant_inputs(made, {})) == body_of(made)


def test_a_mask_that_is_false_chooses_the_number() -> None:
    made = with_constant_inputs(kernel(CHOSEN, PRODUCT.format("fp32")), {"in1": 0.0})
    assert body_of(made) == ['s1[16, 16 | 16, 1] = "0.0" ()', PRODUCT.format("fp32")]


def test_choices_inside_expressions_leave_the_other_operands() -> None:
    text = (
        's2[16 | 1] = "({0} * {1})"("select({0}, {1}, {2})"(#1, #0, "1.0"), #2) '
        "(in2[16 | 1 | 16 i], in1[16 | 1 | 16 i], s0[16 | 1])"
    )
    made = with_constant_inputs(kernel(text), {"in1": 1.0})
    assert body_of(made) == ['s2[16 | 1] = "({0} * {1})"(#0, #1) (in2[16 | 1 | 16 i], s0[16 | 1])']


@pytest.mark.parametrize(
    "reader",
    [
        "s0[1, 16 | 16, 1] += matmul fp32 (in2[1, 16 | 16, 1 | 16 i], s1[16, 16 | 16, 1 | 16])",
        "s1[16, 16 | 16, 1] += matmul fp32 (in2[16, 1 | 1, 1 | 16 i], in2[1, 16 | 16, 1 | 16 i])",
    ],
)
def test_copies_that_are_read_in_another_way_stay(reader: str) -> None:
    made = with_constant_inputs(kernel(CHOSEN, reader), {"in1": 1.0})
    assert len(body_of(made)) == 2


def test_copies_of_what_is_in_memory_of_the_block_stay_and_those_that_the_next_iteration_reads() -> None:
    made = kernel("s1[16 | 1] = #0 (s2[16 | 1])", "s2[16 | 1] = #0 (in2[16 | 1 | 16 i])", "s0[16 | 1] += #0 (s1[16 | 1])")
    assert body_of(with_constant_inputs(made, {"in1": 1.0})) == body_of(made)
