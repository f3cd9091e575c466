"""Exact scalars: what a float literal means, arithmetic, and text."""

from __future__ import annotations

import math
from fractions import Fraction

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
        (1 / math.sqrt(128), "sqrt(1/128)"),
        (-math.sqrt(2), "-sqrt(2)"),
        (4.0**0.5, "2"),
        (1e-12, "1/1000000000000"),
        (0.044715, "8943/200000"),
        (math.sqrt(2 / 3), "sqrt(2/3)"),
        (1e-4 * math.sqrt(128), "sqrt(1/781250)"),
    ],
)
def test_a_float_is_read_as_the_simplest_exact_number_it_stands_for(number: float, text: str) -> None:
    assert str(Scalar.of(number)) == text


@pytest.mark.parametrize("number", [math.pi, math.e, 1.2345678912, 3.14159265, 0.3989422804014327])
def test_a_number_that_is_no_root_is_not_read_as_one(number: float) -> None:
    assert not Scalar.of(number).root
    assert float(Scalar.of(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_exact_number_rounds_to_the_float_within_four_ulps(number: float) -> None:
    assert abs(float(Scalar.of(number)) - number) <= 4 * math.ulp(number)


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
