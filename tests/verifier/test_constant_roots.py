"""Roots of constants whose primes no field has room for are variables: more is equal than before, and nothing wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mugraph.checker.constant_roots import parts_of, variable_ones
from mugraph.ir import Graph, Scalar
from mugraph.ir.program import ProgramTensor
from mugraph.testing import mutants
from mugraph.verifier import Certificate, recheck, verify_graphs
from mugraph.verifier.certificate import Outcome
from mugraph.verifier.constant_roots import families_for, primes_of, root_parts

from .graphs import program

RARE = (73, 89, 1009)
VARIABLES = frozenset(RARE)
NUMBERS = st.fractions(Fraction(1, 10**6), 10**6)
Root = Callable[[Fraction, frozenset[int]], tuple[Fraction, Fraction, tuple[int, ...]]]
Expression = Callable[[ProgramTensor], ProgramTensor]


def layer_norm(width: int, *, spread_first: bool = False) -> Graph:
    """Rows less their mean, divided by their unbiased deviation and a little more."""

    def normed(x: ProgramTensor) -> ProgramTensor:
        centred = x - x.sum(-1, keepdim=True) / width
        squares = (centred * centred).sum(-1, keepdim=True)
        deviation = squares.sqrt() * Scalar.parse(f"sqrt(1/{width - 1})") if spread_first else (squares / (width - 1)).sqrt()
        return centred / (deviation + Scalar.parse("1/1000000"))

    return program(normed, (3, width))


@pytest.mark.parametrize("parts_of_root", [root_parts, parts_of])
def test_factors_that_are_too_large_to_be_found_are_taken_out_whole(parts_of_root: Root) -> None:
    value = Fraction(3 * 1000003 * 1000033, 1000037)
    free = primes_of(value) - {3}
    assert free == {1000003 * 1000033, 1000037}
    rational, exact, variables = parts_of_root(value, free)
    assert (rational, exact, frozenset(variables)) == (Fraction(1, 1000037), Fraction(3), free)


@given(NUMBERS, st.sets(st.sampled_from((2, 3, 73, 89, 1009))))
def test_parts_of_a_root_multiply_to_it(value: Fraction, chosen: set[int]) -> None:
    value *= 73**2 * Fraction(1, 89**3)
    for parts_of_root in (root_parts, parts_of):
        rational, exact, variables = parts_of_root(value, frozenset(chosen))
        assert rational**2 * exact * math.prod(variables) == value
        assert set(variables) <= chosen
        assert not primes_of(exact) & chosen


def test_small_primes_stay_squares_while_there_are_fields() -> None:
    assert families_for({2, 3, 7})[1] == frozenset()
    families, variables = families_for({2, 3, *RARE})
    assert variables == VARIABLES
    assert {family.modulus for family in families} == {24}
    assert variable_ones({2, 3, *RARE}) == {89, 1009}


def test_the_checker_keeps_what_the_verifier_keeps_exact() -> None:
    primes = [3, 5, 7, 11, 13, 17, 31, 73]
    for chosen in range(1 << len(primes)):
        some = {prime for number, prime in enumerate(primes) if chosen >> number & 1}
        assert variable_ones(some) <= families_for(some)[1]


@pytest.mark.parametrize("width", [512, 768, 1024, 2048, 10_000])
def test_unbiased_deviations_are_equal_with_a_bound(width: int) -> None:
    verdict = verify_graphs(layer_norm(width), layer_norm(width, spread_first=True), seed=0)
    assert verdict.certificate.outcome is Outcome.EQUIVALENT
    assert verdict.error_bound is not None
    assert verdict.error_bound < 2**-40
    difference = verdict.certificate.difference
    assert difference is not None
    assert set(difference.root_variables) == primes_of(Fraction(width - 1)) - primes_of(Fraction(difference.family.modulus))
    recheck(Certificate.from_json(verdict.certificate.to_json()), layer_norm(width), layer_norm(width, spread_first=True))


ROOTS: dict[str, tuple[Expression, Expression]] = {
    "a factor": (lambda x: (x * 1009).sqrt(), lambda x: x.sqrt() * Scalar.parse("sqrt(1009)")),
    "a divisor": (lambda x: (x / 1009).sqrt(), lambda x: x.sqrt() * Scalar.parse("sqrt(1009)") / 1009),
    "several": (lambda x: (x * 73 / 89).sqrt(), lambda x: x.sqrt() / Scalar.parse("sqrt(89)") * Scalar.parse("sqrt(73)")),
    "a power": (lambda x: (x * 73**3).sqrt(), lambda x: x.sqrt() * Scalar.parse("sqrt(73)") * 73),
    "in an exponential": (lambda x: ((x * 1009).sqrt() * 3).exp(), lambda x: (x.sqrt() * Scalar.parse("sqrt(9081)")).exp()),
}


@pytest.mark.parametrize("name", ROOTS)
def test_roots_of_rare_primes_leave_roots_of_products(name: str) -> None:
    left, right = (program(expression, (4,)) for expression in ROOTS[name])
    assert verify_graphs(left, right, seed=0).equivalent
    for mutant in mutants(right):
        assert not verify_graphs(left, mutant.graph, seed=0).equivalent, mutant


@pytest.mark.parametrize("wrong", ["sqrt(1013)", "1009", "sqrt(1/1009)", "-sqrt(1009)", "sqrt(2018)"])
def test_another_constant_is_another_root(wrong: str) -> None:
    left = program(lambda x: (x * 1009).sqrt(), (4,))
    assert not verify_graphs(left, program(lambda x: x.sqrt() * Scalar.parse(wrong), (4,)), seed=0).equivalent


def test_what_needs_a_variable_to_square_back_is_not_called_different() -> None:
    root = Scalar.parse("sqrt(1009)")
    left, right = program(lambda x: (x * root + 1) * root, (4,)), program(lambda x: x * 1009 + root, (4,))
    assert verify_graphs(left, right, seed=0).certificate.outcome in (Outcome.UNDECIDED, Outcome.EQUIVALENT)
