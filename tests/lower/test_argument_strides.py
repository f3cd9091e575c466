"""Strides that are arguments, as numbers and as text."""

from __future__ import annotations

import itertools

from mugraph.lower.argument_strides import BASE, digits, has_arguments, stride_argument
from mugraph.targets.c_text import number_text, scaled


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
