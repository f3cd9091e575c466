"""Which iterations change nothing where what they read of some inputs is 0, and strides that are arguments."""

from __future__ import annotations

import itertools

import pytest

from mugraph.lower.argument_strides import BASE, digits, has_arguments, stride_argument
from mugraph.lower.neutral_iterations import is_neutral
from mugraph.lower.tile_form import Kernel
from mugraph.lower.tile_text import parse_kernel
from mugraph.targets.c_text import number_text, scaled

KERNEL = """\
kernel kernel_0 loop(4) {{
  buffer in0: fp32 device[64]
  buffer in1: bool device[64]
  buffer out0: fp32 device[16]
  buffer s0: fp32 shared[16]
  buffer s1: fp32 shared[16]
  buffer s2: fp32 shared[16]
  inputs in0, in1
  outputs out0
  before {{
    s0[16 | 1] = "{start}" ()
  }}
  body {{
    {body}
  }}
  after {{
    out0[16 | 1] = #0 (s0[16 | 1])
  }}
}}"""
X, MASK, ACC, TEMPORARY, RAISED = "in0[16 | 1 | 16 i]", "in1[16 | 1 | 16 i]", "s0[16 | 1]", "s1[16 | 1]", "s2[16 | 1]"
LOWEST = "-3.4028234663852886e+38"
SELECTED = '"select({0}, {1}, {2})"'


def kernel(*body: str, start: str = "0.0") -> Kernel:
    return parse_kernel(KERNEL.format(start=start, body="\n    ".join(body)))


NEUTRAL = {
    "a sum of zeros": (kernel(f"{ACC} += #0 ({X})"), {"in0"}),
    "a sum of products with zeros": (kernel(f'{ACC} += "({{0}} * {{1}})"(#0, #1) ({X}, {MASK})'), {"in1"}),
    "a sum of what a mask chooses": (kernel(f'{ACC} += {SELECTED}(#0, #1, "0.0") ({MASK}, {X})'), {"in1"}),
    "a maximum of what a mask chooses": (kernel(f'{ACC} max= {SELECTED}(#0, #1, "-inf") ({MASK}, {X})'), {"in1"}),
    "a maximum that begins with the number beside it": (
        kernel(f'{ACC} max= {SELECTED}(#0, #1, "{LOWEST}") ({MASK}, {X})', start=LOWEST),
        {"in1"},
    ),
    "a running maximum by way of another buffer": (
        kernel(
            f'{TEMPORARY} = {SELECTED}(#0, #1, "{LOWEST}") ({MASK}, {X})',
            f'{RAISED} = "max({{0}}, {{1}})"(#0, #1) ({ACC}, {TEMPORARY})',
            f"{ACC} = #0 ({RAISED})",
            start=LOWEST,
        ),
        {"in1"},
    ),
}
OTHER = {
    "a sum of others": (kernel(f"{ACC} += #0 ({X})"), {"in1"}),
    "a maximum of zeros": (kernel(f"{ACC} max= #0 ({X})", start=LOWEST), {"in0"}),
    "a sum of exponentials of zeros": (kernel(f'{ACC} += "exp({{0}})"(#0) ({X})'), {"in0"}),
    "a mask that chooses the other operand": (kernel(f'{ACC} += {SELECTED}(#0, "0.0", #1) ({MASK}, {X})'), {"in1"}),
    "a maximum that begins lower": (
        kernel(f'{ACC} max= {SELECTED}(#0, #1, "{LOWEST}") ({MASK}, {X})', start="-inf"),
        {"in1"},
    ),
    "a maximum that may fall": (
        kernel(
            f'{ACC} = "({{0}} - {{1}})"(#0, #1) ({ACC}, {X})',
            f'{ACC} max= {SELECTED}(#0, #1, "{LOWEST}") ({MASK}, {X})',
            start=LOWEST,
        ),
        {"in0", "in1"},
    ),
    "a buffer that is stored anew": (kernel(f"{ACC} = #0 ({X})"), {"in0"}),
    "elements in another order": (kernel("s0[4, 4 | 4, 1] = #0 (s0[4, 4 | 1, 4])"), {"in0"}),
    "a part of a buffer": (kernel("s0[8 | 1] = #0 (s0[8 | 1 | 8])"), {"in0"}),
    "a difference of two tiles": (kernel('s0[8 | 1] += "({0} - {1})"(#0, #1) (s0[8 | 1], s0[8 | 1 | 8])'), {"in0"}),
    "what is written to an output": (kernel(f"out0[16 | 1] = #0 ({X})"), {"in0"}),
    "what an earlier iteration left": (kernel(f"{ACC} += #0 ({TEMPORARY})", f"{TEMPORARY} = #0 ({X})"), {"in0"}),
}


@pytest.mark.parametrize("what", NEUTRAL)
def test_neutral(what: str) -> None:
    made, zero = NEUTRAL[what]
    assert is_neutral(made, zero)


@pytest.mark.parametrize("what", OTHER)
def test_not_neutral(what: str) -> None:
    made, zero = OTHER[what]
    assert not is_neutral(made, zero)


def test_numerals_of_strides_are_what_they_say() -> None:
    first, second = stride_argument(0), stride_argument(1)
    for once, twice, number in itertools.product((0, 1, 3, 4096), repeat=3):
        coefficient = once * first + twice * second + number
        assert digits(coefficient) == {key: times for key, times in ((None, number), (0, once), (1, twice)) if times}
        assert has_arguments(coefficient) == (once > 0 or twice > 0)
    assert 64 * second != first
    assert BASE > 1 << 32


def test_strides_that_are_arguments_as_text() -> None:
    first, second = stride_argument(0), stride_argument(1)
    assert scaled(0, "g0") == ""
    assert scaled(1, "g0") == "g0"
    assert scaled(128, "g0") == "128 * g0"
    assert scaled(first, "g0") == "stride0 * g0"
    assert scaled(128 * second, "g0") == "(128 * stride1) * g0"
    assert number_text(first + 3 * second + 2) == "(2 + stride0 + 3 * stride1)"
