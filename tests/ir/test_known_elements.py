"""What is known of elements is true of numbers: operators on numbers of each state, beside the arithmetic of states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.known_elements import Known, KnownArithmetic, States
from mugraph.ir.ops import LOWEST, OPERATORS, Call
from mugraph.ir.scalar import Scalar

NUMBERS = {
    Known.NOTHING: (-math.inf, math.nan, math.inf, 0.0, 2.0),
    Known.HIDDEN: (-math.inf,),
    Known.LOWEST: (float(LOWEST),),
    Known.ZERO: (0.0,),
    Known.POSITIVE: (0.125, 3.0),
    Known.NEGATIVE: (-0.125, -3.0),
    Known.FINITE: (-2.5, -1.0, 0.5, 4.0),
}
"""Some of the numbers that an element of each state may be; finite ones not 0, since nothing may be divided by them then."""

ELEMENTWISE = [row for row in OPERATORS.values() if row.scalar is not None and not row.whole]


def holds(state: int, number: float) -> bool:
    """Whether a number may have a state."""
    match Known(state):
        case Known.NOTHING:
            return True
        case Known.HIDDEN:
            return number == -math.inf
        case Known.LOWEST:
            return number == float(LOWEST)
        case Known.ZERO:
            return number == 0
        case Known.POSITIVE:
            return 0 < number < math.inf
        case Known.NEGATIVE:
            return -math.inf < number < 0
    return math.isfinite(number)


def of(state: Known, shape: tuple[int, ...] = ()) -> States:
    """A tensor of which all elements have a state."""
    return np.full(shape, state, np.uint8)


def premise(numbers: Sequence[float], result: float) -> bool:
    """Whether an operator makes a finite number of these, if all are finite."""
    return not all(map(math.isfinite, numbers)) or math.isfinite(result)


@pytest.mark.parametrize("row", ELEMENTWISE, ids=lambda row: row.name)
def test_elementwise_operators(row: Any) -> None:
    call = Call(row.name, ((),) * row.arity, {})
    for states in itertools.product(Known, repeat=row.arity):
        known = row.compute(KnownArithmetic(), call, [of(state, (1,)) for state in states])
        for numbers in itertools.product(*(NUMBERS[state] for state in states)):
            with np.errstate(all="ignore"):
                (result,) = row.compute(FloatArithmetic(), call, [np.array([number]) for number in numbers])
            if premise(numbers, float(result)):
                assert holds(int(known[0]), float(result)), (states, numbers, Known(int(known[0])))


@pytest.mark.parametrize("name", ["sum", "max"])
def test_reductions(name: str) -> None:
    reduce: Callable[..., Any] = getattr(FloatArithmetic(), name)
    for states in itertools.product(Known, repeat=3):
        known = getattr(KnownArithmetic(), name)(np.array(states, np.uint8), 0)
        for numbers in itertools.product(*(NUMBERS[state] for state in states)):
            with np.errstate(all="ignore"):
                result = float(reduce(np.array(numbers), 0)[0])
            if premise(numbers, result):
                assert holds(int(known[0]), result), (states, numbers)


def test_products_of_matrices() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        states = [
            rng.choice([*Known], p=[0.02, 0.03, 0.05, 0.7, 0.07, 0.03, 0.1], size=shape).astype(np.uint8)
            for shape in ((2, 3), (3, 2))
        ]
        numbers = [np.vectorize(lambda state: rng.choice(NUMBERS[Known(state)]))(each) for each in states]
        with np.errstate(all="ignore"):
            result = numbers[0] @ numbers[1]
        known = KnownArithmetic().matmul(*states)
        for state, number in zip(known.ravel(), result.ravel(), strict=True):
            assert holds(int(state), float(number))


def test_what_masks_rest_on() -> None:
    arith = KnownArithmetic()
    hidden = arith.add(of(Known.FINITE, (2, 4)), of(Known.HIDDEN, (2, 4)))
    assert (hidden == Known.HIDDEN).all()
    call = Call("max", ((2, 4),), {"dim": 1, "size": 4, "least": "lowest"})
    largest = OPERATORS["max"].compute(arith, call, [hidden])
    assert (largest == Known.LOWEST).all()
    shares = arith.exp(arith.sub(hidden, largest))
    assert (shares == Known.ZERO).all()
    assert (arith.matmul(shares, of(Known.FINITE, (4, 3))) == Known.ZERO).all()
    assert (arith.sub(hidden, arith.max(hidden, 1)) == Known.NOTHING).all()
    assert arith.opaque("sigmoid", of(Known.HIDDEN)) == Known.ZERO
    assert arith.opaque("infinity", of(Known.FINITE)) == Known.NOTHING
    minus = arith.opaque("infinity", arith.constant(Scalar.of(-1)))
    assert minus == Known.HIDDEN
    assert (arith.opaque("select", of(Known.ZERO, (4,)), of(Known.NOTHING, (4,)), minus) == Known.HIDDEN).all()
    assert (arith.opaque("select", of(Known.FINITE, (4,)), of(Known.NOTHING, (4,)), minus) == Known.NOTHING).all()
    assert (arith.opaque("select", of(Known.NOTHING, (4,)), minus, minus) == Known.HIDDEN).all()


def test_constants_are_the_numbers_of_kernels() -> None:
    arith = KnownArithmetic()
    assert arith.constant(Scalar.of(0.5)) == Known.POSITIVE
    assert arith.constant(Scalar.of(-0.5)) == Known.NEGATIVE
    assert arith.constant(LOWEST) == Known.LOWEST
    assert arith.constant(Scalar.of(1e-60)) == Known.ZERO
    assert arith.constant(Scalar.of(1e39)) == Known.NOTHING
    assert arith.constant(Scalar.of(-1e39)) == Known.HIDDEN
