"""Balls contain the numbers that they stand for, in float64 and with many digits, and say what does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.scalar import Scalar
from mugraph.verifier.enclosures import Ball, Balls, NotEnclosed, State
from mugraph.verifier.float_balls import FloatBalls
from mugraph.verifier.precise import PreciseBalls

ARITHMETICS = [FloatBalls(), PreciseBalls(256), PreciseBalls(1280)]
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
MODERATE = st.floats(-300, 300)
by_arithmetic = pytest.mark.parametrize("arith", ARITHMETICS, ids=lambda arith: arith.name)


@pytest.fixture(autouse=True)
def _no_warnings_of_what_is_unknown() -> Iterator[None]:
    """As where looks are taken: what leaves the range of numbers is unknown."""
    with np.errstate(all="ignore"):
        yield


def vector(arith: Balls, *numbers: float) -> Ball:
    return arith.tensor(np.asarray(numbers, np.float64))


def contains(arith: Balls, ball: Ball, number: Fraction, index: tuple[int, ...] = (0,)) -> bool:
    """Whether an element is unknown, or its ball contains the number."""
    if ball.state[index] != State.KNOWN:
        return bool(ball.state[index] == State.UNKNOWN)
    middle, radius = arith.fractions(ball, index)
    return abs(middle - number) <= radius


@by_arithmetic
@given(FLOATS)
def test_tensors_contain_their_numbers(arith: Balls, x: float) -> None:
    assert contains(arith, vector(arith, x), Fraction(x))
    if arith.name != ARITHMETICS[1].name:
        assert arith.fractions(vector(arith, x), (0,)) == (Fraction(x), Fraction(0)) or abs(x) < 1e-300


@by_arithmetic
@given(FLOATS, FLOATS)
def test_one_operation(arith: Balls, x: float, y: float) -> None:
    a, b = vector(arith, x), vector(arith, y)
    assert contains(arith, arith.add(a, b), Fraction(x) + Fraction(y))
    assert contains(arith, arith.sub(a, b), Fraction(x) - Fraction(y))
    assert contains(arith, arith.mul(a, b), Fraction(x) * Fraction(y))
    if y:
        assert contains(arith, arith.div(a, b), Fraction(x) / Fraction(y))
    else:
        assert arith.div(a, b).state[0] == State.UNDEFINED


@by_arithmetic
@settings(max_examples=50)
@given(st.lists(MODERATE, min_size=4, max_size=4), st.sampled_from([1.0, 1e-9, 3e5]))
def test_several_operations_on_what_was_rounded(arith: Balls, numbers: list[float], scale: float) -> None:
    x, y, z, w = (Fraction(number) * Fraction(scale) for number in numbers)
    a, b, c, d = (arith.mul(vector(arith, number), vector(arith, scale)) for number in numbers)
    third = arith.exact(Fraction(1, 3))
    found = arith.sub(arith.mul(arith.mul(a, third), b), arith.mul(arith.add(c, third), d))
    assert contains(arith, found, x * y / 3 - (z + Fraction(1, 3)) * w)
    assert contains(
        arith, arith.div(arith.add(a, third), arith.add(arith.mul(b, b), third)), (x + Fraction(1, 3)) / (y * y + Fraction(1, 3))
    )
    assert contains(arith, arith.opaque("relu", arith.sub(a, third)), max(x - Fraction(1, 3), Fraction(0)))
    assert contains(arith, arith.opaque("abs", arith.sub(a, third)), abs(x - Fraction(1, 3)))


@by_arithmetic
@given(st.lists(MODERATE, min_size=6, max_size=6), st.lists(MODERATE, min_size=6, max_size=6))
@settings(max_examples=30)
def test_reductions_and_products_of_matrices(arith: Balls, left: list[float], right: list[float]) -> None:
    third = arith.exact(Fraction(1, 3))
    x = arith.mul(arith.tensor(np.asarray(left).reshape(2, 3)), third)
    y = arith.mul(arith.tensor(np.asarray(right).reshape(3, 2)), third)
    xs, ys = ([Fraction(n) / 3 for n in numbers] for numbers in (left, right))
    assert contains(arith, arith.matmul(x, y), sum((xs[3 + k] * ys[2 * k + 1] for k in range(3)), Fraction(0)), (1, 1))
    assert contains(arith, arith.sum(x, 1), sum(xs[:3], Fraction(0)), (0, 0))
    assert contains(arith, arith.max(x, 1), max(xs[3:]), (1, 0))


def _by_mpmath(name: str) -> Callable[[Any], Any]:
    functions: dict[str, Callable[[Any], Any]] = {
        "exp": mpmath.exp,
        "log": mpmath.log,
        "sqrt": mpmath.sqrt,
        "tanh": mpmath.tanh,
        "erf": mpmath.erf,
        "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
        "silu": lambda x: x / (1 + mpmath.exp(-x)),
        "gelu": lambda x: x * (1 + mpmath.erf(x / mpmath.sqrt(2))) / 2,
    }
    return functions[name]


@by_arithmetic
@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "erf", "sigmoid", "silu", "gelu"])
def test_functions(arith: Balls, name: str) -> None:
    numbers = [*np.random.default_rng(0).uniform(-40, 40, 20), 0.0, 1e-30, -1e-30, 1.0, 700.0, -700.0, 1e-9, 1 + 2**-50]
    numbers = [abs(x) + 2**-70 if name == "log" else abs(x) if name == "sqrt" else x for x in numbers]
    apply = {"exp": arith.exp, "sqrt": arith.sqrt}.get(name, lambda ball: arith.opaque(name, ball))
    ball = apply(vector(arith, *numbers))
    with mpmath.workdps(900):
        for place, x in enumerate(numbers):
            value = _by_mpmath(name)(mpmath.mpf(x))
            exact = Fraction(int(mpmath.floor(value * mpmath.mpf(2) ** 2800)), 1 << 2800)
            if ball.state[place] == State.KNOWN:
                middle, radius = arith.fractions(ball, (place,))
                assert abs(middle - exact) <= radius + Fraction(1, 1 << 2800), (name, x)
                assert radius <= (abs(exact) + abs(Fraction(x)) + 1) * Fraction(1, 1 << 40), (
                    "and it is not much wider than it must be"
                )
            else:
                assert abs(x) == 700


ELEMENTARY: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(mpmath, name)
        for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
    },
    **{name: getattr(mpmath, name) for name in ("expm1", "log1p", "erfc", "floor", "ceil")},
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "trunc": lambda x: mpmath.floor(x) if x > 0 else mpmath.ceil(x),
    "round": mpmath.nint,
}
OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "atan2": mpmath.atan2,
    "fmod": lambda x, y: x - y * ELEMENTARY["trunc"](x / y),
    "pow": lambda x, y: x**y if x > 0 else mpmath.nan,
    "copysign": lambda x, y: abs(x) if y > 0 else -abs(x),
}


def check_enclosed(arith: Balls, ball: Ball, place: int, value: Any) -> None:
    """Whether a ball contains a number, and is not much wider than it must be; what is no real number is not known."""
    if isinstance(value, mpmath.mpc) or not mpmath.isfinite(value):
        assert ball.state[place] != State.KNOWN
        return
    exact = Fraction(int(mpmath.floor(value * mpmath.mpf(2) ** 2800)), 1 << 2800)
    assert ball.state[place] == State.KNOWN
    middle, radius = arith.fractions(ball, (place,))
    assert abs(middle - exact) <= radius + Fraction(1, 1 << 2800)
    assert radius <= (abs(exact) + 1) * Fraction(1, 1 << 36)


@by_arithmetic
@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions(arith: Balls, name: str) -> None:
    rng = np.random.default_rng(0)
    numbers = [
        *rng.uniform(-20, 20, 20),
        *rng.uniform(-1, 1, 20),
        0.0,
        1e-12,
        -1e-12,
        1.0,
        -1.0,
        0.5,
        2.5,
        -1.5,
        2.0,
        2 - 2**-40,
        100.0,
    ]
    ball = arith.opaque(name, vector(arith, *numbers))
    with mpmath.workdps(900):
        for place, x in enumerate(numbers):
            pole = name in ("log2", "log1p", "atanh") and abs(x) == (name != "log2")
            value = mpmath.nan if pole and not (name == "log1p" and x == 1) else ELEMENTARY[name](mpmath.mpf(x))
            check_enclosed(arith, ball, place, value)


@by_arithmetic
@pytest.mark.parametrize("name", OF_TWO)
def test_elementary_functions_of_two_operands(arith: Balls, name: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-9, 9, (2, 60))
    ball = arith.opaque(name, vector(arith, *x), vector(arith, *y))
    with mpmath.workdps(900):
        for place, (a, b) in enumerate(zip(x, y, strict=True)):
            check_enclosed(arith, ball, place, OF_TWO[name](mpmath.mpf(a), mpmath.mpf(b)))


@by_arithmetic
def test_balls_across_a_jump_contain_both_sides(arith: Balls) -> None:
    third = arith.div(vector(arith, 1.0), vector(arith, 3.0))
    one = arith.mul(third, vector(arith, 3.0))
    for name, sides in {"floor": (0, 1), "ceil": (1, 2), "trunc": (0, 1)}.items():
        assert all(contains(arith, arith.opaque(name, one), Fraction(side)) for side in sides)
    half = arith.mul(one, vector(arith, 0.5))
    assert all(contains(arith, arith.opaque("round", half), Fraction(side)) for side in (0, 1))
    zero = arith.sub(one, vector(arith, 1.0))
    assert all(contains(arith, arith.opaque("copysign", vector(arith, 2.0), zero), Fraction(side)) for side in (-2, 2))
    assert arith.opaque("atan2", zero, vector(arith, -1.0)).state[0] == State.UNKNOWN
    assert all(
        contains(arith, arith.opaque("fmod", one, third), value) for value in (Fraction(0), Fraction(1, 3) - Fraction(1, 10**300))
    )


@by_arithmetic
@given(MODERATE, st.floats(0, 2))
@settings(max_examples=30)
def test_sines_of_wide_balls(arith: Balls, x: float, width: float) -> None:
    spread = arith.around(Fraction(0), Fraction(width))
    wide = arith.add(vector(arith, x), spread)
    for name in ("sin", "cos"):
        for at in (x - width, x, x + width):
            with mpmath.workdps(400):
                value = ELEMENTARY[name](mpmath.mpf(x) + (mpmath.mpf(at > x) - mpmath.mpf(at < x)) * mpmath.mpf(width))
                exact = Fraction(int(mpmath.floor(value * mpmath.mpf(2) ** 1200)), 1 << 1200)
            middle, radius = arith.fractions(arith.opaque(name, wide), (0,))
            assert abs(middle - exact) <= radius + Fraction(1, 1 << 1200)


@by_arithmetic
def test_what_does_not_exist(arith: Balls) -> None:
    zero = vector(arith, 0.0)
    doubtful = arith.sub(arith.mul(vector(arith, 1.0), arith.exact(Fraction(1, 3))), arith.exact(Fraction(1, 3)))
    assert arith.sqrt(vector(arith, -1e-300)).state[0] != State.KNOWN
    assert arith.sqrt(vector(arith, -1.0)).state[0] == State.UNDEFINED
    assert arith.sqrt(zero).state[0] == State.KNOWN
    assert arith.opaque("log", zero).state[0] == State.UNDEFINED
    assert arith.div(zero, zero).state[0] == State.UNDEFINED
    assert arith.sqrt(doubtful).state[0] == State.UNKNOWN
    assert arith.div(zero, doubtful).state[0] == State.UNKNOWN
    assert arith.opaque("log", arith.sqrt(doubtful)).state[0] == State.UNKNOWN, "what may not exist is not known to be outside"
    undefined = arith.sqrt(vector(arith, -1.0))
    assert arith.mul(undefined, zero).state[0] == State.UNDEFINED
    joined = arith.join([undefined, zero], lambda parts: np.stack(list(parts)))
    assert arith.sum(joined, 0).state[0, 0] == arith.max(joined, 0).state[0, 0] == State.UNDEFINED
    square = arith.view(joined, lambda array: array.reshape(1, 2))
    assert arith.matmul(square, arith.tensor(np.ones((2, 1)))).state[0, 0] == State.UNDEFINED


def test_overflow_is_unknown_in_float64_and_a_number_with_digits() -> None:
    small, large = FloatBalls(), PreciseBalls(256)
    assert small.exp(vector(small, 1000.0)).state[0] == State.UNKNOWN
    assert large.exp(vector(large, 1000.0)).state[0] == State.KNOWN
    assert large.exp(vector(large, 1e6)).state[0] == State.UNKNOWN, "nobody waits for millions of digits"


@by_arithmetic
@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32, DType.BF16])
def test_roundings(arith: Balls, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    numbers = np.concatenate(
        [rng.normal(size=200), rng.normal(size=50) * 1e-6, [0.0, 1 + 2**-9, 1 + 3 * 2**-9, 65519.0, 2.0**-25]]
    )
    ball = arith.opaque(f"round_{dtype}", arith.tensor(numbers))
    for place, number in enumerate(round_to(dtype, numbers).astype(np.float64)):
        assert contains(arith, ball, Fraction(number), (place,))
        assert arith.fractions(ball, (place,))[1] == 0 or dtype is DType.BF16
    assert arith.opaque("round_fp16", vector(arith, 65520.0)).state[0] == State.UNKNOWN


@dataclass(frozen=True)
class _Read:
    """A scalar with the floats that it was read from."""

    value: Fraction
    readings: tuple[tuple[str, float], ...]
    root: bool = False

    def __str__(self) -> str:
        return str(Scalar(self.value, self.root))

    def __float__(self) -> float:
        return float(Scalar(self.value, self.root))


@pytest.mark.parametrize("kind", [FloatBalls, lambda written: PreciseBalls(256, written)])
def test_constants_are_taken_as_read_or_as_written(kind: Callable[[bool], Balls]) -> None:
    read, written = kind(False), kind(True)
    tenth: Any = _Read(Fraction(1, 10), (("1/10", 0.1),))
    root: Any = _Read(Fraction(1, 128), (("sqrt(1/128)", 0.08838834764831845),), root=True)
    hundredth: Any = _Read(Fraction(1, 100), (("1/10", 0.1),))
    assert contains(read, read.constant(tenth), Fraction(1, 10), ())
    assert written.fractions(written.constant(tenth), ()) == (Fraction(0.1), Fraction(0))
    assert written.fractions(written.constant(root), ()) == (Fraction(0.08838834764831845), Fraction(0))
    assert contains(written, written.constant(hundredth), Fraction(1, 100), ())
    assert contains(written, written.constant(hundredth), Fraction(0.1) ** 2, ())


@by_arithmetic
def test_unknown_functions_are_refused(arith: Balls) -> None:
    with pytest.raises(NotEnclosed, match="'bessel'"):
        arith.opaque("bessel", vector(arith, 1.0))
