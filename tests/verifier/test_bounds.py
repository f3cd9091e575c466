"""Degrees and coefficient sizes really bound the polynomials of a program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from mugraph.ir import GraphBuilder, Level, Scalar
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.verifier.batched import evaluate_batched
from mugraph.verifier.bounds import Difference, difference_of, outside_theory

from .graphs import FP32, attention, fused_rmsnorm, online_attention, program, rmsnorm


class ExactArithmetic(FloatArithmetic):
    """Fractions in arrays of objects."""

    def constant(self, value: Scalar) -> Array:
        return np.array(value.value, dtype=object)


FUNCTIONS: dict[str, tuple[Callable[..., ProgramTensor], Callable[..., ProgramTensor]]] = {
    "products": (lambda x, y: (x @ y) @ x, lambda x, y: x * y),
    "constants": (lambda x, y: x * Fraction(7, 30) + y * Fraction(-5, 12), lambda x, y: x * Fraction(9, 7) - 1000),
    "quotients": (lambda x, y: x / y + y / x, lambda x, y: (x * Fraction(1, 3)) / (y * y)),
    "sums of quotients": (lambda x, y: (x / y) @ x, lambda x, y: ((x / y).sum(-1, keepdim=True) * 5) / y),
    "nested quotients": (lambda x, y: 1 / (1 / x + y), lambda x, y: (x / (x / y + 1)).sum(0, keepdim=True) + y),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reduced_numerators_stay_within_the_bounds(name: str) -> None:
    left, right = (program(function, (2, 2), (2, 2)) for function in FUNCTIONS[name])
    bound = difference_of(left, right)
    rng = np.random.default_rng(0)
    largest, checked = 3, 0
    for _ in range(200):
        inputs = [np.vectorize(Fraction, otypes=[object])(rng.integers(1, largest + 1, (2, 2))) for _ in range(2)]
        try:
            ours, theirs = (evaluate_batched(graph, inputs, ExactArithmetic(object))[0] for graph in (left, right))
        except ZeroDivisionError:
            continue
        for element in (ours - theirs).flat:
            assert abs(Fraction(element).numerator) <= 2**bound.coefficient_bits * largest**bound.degree
            checked += 1
    assert checked > 100


def test_degrees_of_simple_programs() -> None:
    cube, line = program(lambda x: x * x * x, (2,)), program(lambda x: x, (2,))
    assert difference_of(cube, line).degree == 3
    assert difference_of(program(lambda x: 1 / x, (2,)), line).degree == 2
    assert difference_of(program(lambda x, y: (x / y).sum(0), (5,), (5,)), program(lambda x, y: y.sum(0), (5,), (5,))).degree == 6


def test_coefficients_count_terms_and_constants() -> None:
    zero = program(lambda x: x - x, (1, 1024))
    total = difference_of(program(lambda x: x.sum(-1, keepdim=True) * 3, (1, 1024)), zero)
    assert math.log2(3 * 1024) <= total.coefficient_bits <= 16


def test_long_loops_do_not_blow_up_the_degree() -> None:
    loop = 40
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, (loop,), FP32) for name in "xy")
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=loop)
    quotient = block.add("div", *(block.iterator(number, kernel.tensor(x), (None,), 0) for number in (0, 1)))
    saved = block.add("output_saver", block.add("accumulate", quotient, combine="sum"), omap=(0,))
    tiled = kernel.build(kernel.graph_defined(block.build([saved]), [x, y]))
    whole = program(lambda x, y: (x / y).sum(0, keepdim=True), (loop,), (loop,))
    exact = difference_of(whole, whole)
    assert exact.degree == 2 * loop
    assert exact.degree <= difference_of(tiled, tiled).degree <= 4 * exact.degree


def test_more_rounds_and_larger_errors_are_monotone() -> None:
    difference = Difference(degree=1000, coefficient_bits=3000)
    bounds = [difference.error_bound(rounds) for rounds in range(1, 20)]
    assert all(later < earlier for earlier, later in itertools.pairwise(bounds[1:]))
    wanted = difference.rounds_for(2**-40)
    assert wanted is not None
    assert difference.error_bound(wanted) <= 2**-40 < difference.error_bound(wanted - 1)


def test_hopeless_sizes_give_no_bound_instead_of_a_wrong_one() -> None:
    hopeless = Difference(degree=10**400, coefficient_bits=10**400)
    assert hopeless.error_per_draw == 1.0
    assert hopeless.rounds_for(2**-40) is None


def test_operators_outside_the_theory_are_found_at_every_level() -> None:
    assert outside_theory(rmsnorm()) == {"sqrt"}
    assert outside_theory(fused_rmsnorm(squares="max")) == {"sqrt", "max"}
    assert outside_theory(attention()) == {"exp"}
    assert outside_theory(online_attention()) == {"exp", "max", "accumulate_rescaled"}
    assert outside_theory(program(lambda x: x * Scalar.parse("sqrt(2)"), (2,))) == {"sqrt"}
    assert outside_theory(program(lambda x: x / x.sum(0), (2,))) == frozenset()
