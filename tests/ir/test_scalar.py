"""Exact scalars: what a float literal means, arithmetic, and text."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mugraph.errors import InvalidInput
from mugraph.ir import Scalar

scalars = st.builds(Scalar, st.fractions(max_denominator=10**6), st.booleans())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3, "3"),
        (-2.0, "-2"),
        (0.5, "1/2"),
        (0.1, "1/10"),
        (1e-5, "1/100000"),
        (1 / 4096, "1/4096"),
        (1 / 3, "1/3"),
        (128**-0.5, "sqrt(1/128)"),
        (-math.sqrt(2), "-sqrt(2)"),
        (4.0**0.5, "2"),
        (1e-12, "1/1000000000000"),
        (0.044715, "8943/200000"),
        (math.sqrt(2 / 3), "sqrt(2/3)"),
        (1e-4 * math.sqrt(128), "sqrt(1/781250)"),
        (0.7071067811865476, "sqrt(1/2)"),
        (1 / math.sqrt(64), "1/8"),
        (0.70710678, "35355339/50000000"),
        (1e300, str(10**300)),
        (-0.0, "0"),
        (2.0**-30, "1/1073741824"),
        (16777217.0, "16777217"),
    ],
)
def test_a_float_is_read_as_the_simplest_exact_number_it_stands_for(number: float, text: str) -> None:
    assert str(Scalar.of(number)) == text


@pytest.mark.parametrize(
    "number",
    [
        1.0000000000000004,
        0.33333333333333337,
        math.nextafter(0.1, 1),
        math.nextafter(math.sqrt(2), 2),
        1 / math.sqrt(128),  # not the float nearest to sqrt(1/128): two roundings
        math.sqrt(2 / math.pi),
        math.pi,
        1.2345678912345,
        5e-324,
        2.5e-310,
        float(np.float32(0.1)),
        float(np.float32(1 / 3)),
        float(np.float32(math.sqrt(2))),
        float(np.float16(0.1)),
    ],
)
def test_every_other_float_is_the_number_that_it_is(number: float) -> None:
    assert Scalar.of(number) == Scalar(Fraction(number))
    assert Scalar.of(-number) == Scalar(Fraction(-number))
    assert not Scalar.of(number).readings


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_number_that_is_read_rounds_to_the_float(number: float) -> None:
    assert float(Scalar.of(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_reading_is_noted_where_the_number_differs(number: float) -> None:
    scalar = Scalar.of(number)
    differs = scalar.root or scalar.value != Fraction(number)
    assert scalar.readings == (frozenset({(str(scalar), number)}) if differs else frozenset())


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_of_narrower_types_stand_for_themselves(number: float) -> None:
    assert Scalar.of(number) == Scalar(Fraction(number))


@given(st.integers(1, 2**16), st.integers(1, 2**15), st.booleans())
def test_short_fractions_and_their_roots_are_read_back_from_the_nearest_float(over: int, under: int, root: bool) -> None:
    scalar = Scalar(Fraction(over, under), root)
    assert Scalar.of(float(scalar)) == scalar


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**9, max_denominator=10**9))
def test_the_float_of_a_root_is_the_nearest(square: Fraction) -> None:
    root = float(Scalar(square, root=True))
    low, high = (Fraction(root) + Fraction(math.nextafter(root, end)) for end in (0.0, math.inf))
    assert (low / 2) ** 2 <= square <= (high / 2) ** 2


def test_readings_follow_arithmetic_and_decide_nothing() -> None:
    tenth, half = Scalar.of(0.1), Scalar.of(0.5)
    assert tenth == Scalar(Fraction(1, 10))
    assert hash(tenth) == hash(Scalar(Fraction(1, 10)))
    assert repr(tenth) == repr(Scalar(Fraction(1, 10)))
    assert tenth.readings == {("1/10", 0.1)}
    assert not half.readings
    for derived in (tenth * half, half + tenth, tenth.reciprocal(), tenth.sqrt()):
        assert derived.readings == tenth.readings
    assert not Scalar.of(Fraction(1, 10)).readings
    assert not Scalar.of(7).readings


def test_roots_have_no_sums_and_no_roots() -> None:
    with pytest.raises(InvalidInput, match=r"sqrt\(2\) \+ 1 is neither"):
        Scalar(Fraction(2), root=True) + Scalar.of(1)
    with pytest.raises(InvalidInput, match="square root of -2 is neither"):
        Scalar.of(-2).sqrt()


@pytest.mark.parametrize("number", [math.pi, math.e, 1.2345678912, 3.14159265, 0.3989422804014327])
def test_a_number_that_is_no_root_is_not_read_as_one(number: float) -> None:
    assert not Scalar.of(number).root
    assert float(Scalar.of(number)) == number


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(InvalidInput, match="is not finite; only finite constants can be verified"):
        Scalar.of(number)


def test_roots_of_squares_are_rational() -> None:
    assert Scalar(Fraction(9, 4), root=True) == Scalar(Fraction(3, 2))
    assert Scalar(Fraction(-9), root=True) == Scalar(Fraction(-3))
    assert Scalar(Fraction(2), root=True).root


@given(scalars)
def test_text_reads_back(scalar: Scalar) -> None:
    assert Scalar.parse(str(scalar)) == scalar


@pytest.mark.parametrize("text", ["", "x", "1/0", "0.5", "1e3", "sqrt(2", "sqrt(-2)", "--1", "1/-2", " 1", "sqrt()", "1_0", "²"])
def test_text_of_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not an exact scalar such as 1/4096"):
        Scalar.parse(text)


@given(scalars, scalars)
def test_products_are_exact(x: Scalar, y: Scalar) -> None:
    assert math.isclose(float(x * y), float(x) * float(y), rel_tol=1e-12, abs_tol=1e-300)
    assert x * y == y * x


@given(scalars.filter(lambda scalar: scalar.value != 0))
def test_a_scalar_times_its_reciprocal_is_one(scalar: Scalar) -> None:
    assert scalar * scalar.reciprocal() == Scalar(Fraction(1))


def test_zero_has_no_reciprocal() -> None:
    with pytest.raises(InvalidInput, match="division by the constant 0"):
        Scalar.of(0).reciprocal()
