"""Roots square back for every choice of signs, and programs that need one sign are told apart from what they resemble."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import FieldValue
from mugraph.errors import UndefinedInField
from mugraph.ir import Scalar
from mugraph.ir.program import ProgramTensor
from mugraph.testing import agree, mutants
from mugraph.verifier import random_tests, verify_graphs
from mugraph.verifier.bounds import difference_of
from mugraph.verifier.root_semantics import MOST_RADICANDS, RootedArithmetic, SignChoice, TooManyRadicands
from mugraph.verifier.semantics import Semantics
from mugraph.verifier.trials import Trials

from .graphs import program


def arithmetic(signs: SignChoice) -> RootedArithmetic:
    rng = np.random.default_rng(0)
    pair = FieldFamily(33).draw(rng, count=False)
    return RootedArithmetic(pair, omega=pair.root(rng), seed=0, signs=signs)


def squares(arith: RootedArithmetic, count: int) -> FieldValue:
    x = arith.random((count,), np.random.default_rng(1), q=False)
    return arith.mul(x, x)


def test_all_choices_of_signs_occur_once() -> None:
    signs, seen = SignChoice(), set()
    while True:
        arith = arithmetic(signs)
        radicands = squares(arith, 3)
        roots = arith.sqrt(radicands)
        np.testing.assert_array_equal(arith.mul(roots, roots).p, radicands.p)
        seen.add(tuple(roots.p.tolist()))
        if not signs.advance():
            break
    assert len(seen) == 8
    assert all(len({roots[i] for roots in seen}) == 2 for i in range(3))


def test_equal_radicands_have_equal_roots() -> None:
    signs = SignChoice()
    arith = arithmetic(signs)
    radicands = squares(arith, 3)
    for _ in range(6):
        signs.advance()
        first, second = arith.sqrt(radicands), arith.sqrt(arith.view(radicands, lambda array: array[::-1]))
        np.testing.assert_array_equal(first.p[::-1], second.p)


def test_other_than_few_squares_are_refused() -> None:
    arith = arithmetic(SignChoice())
    with pytest.raises(UndefinedInField, match="no square"):
        arith.sqrt(arith.sub(squares(arith, 2), squares(arith, 2)))
    with pytest.raises(UndefinedInField, match="no square"):
        arith.sqrt(arith.mul(arith.constant(Scalar.of(-1)), squares(arith, 2)))
    with pytest.raises(TooManyRadicands):
        arith.sqrt(squares(arith, MOST_RADICANDS + 1))


Function = Callable[..., ProgramTensor]
VECTOR = (4,)

NEVER: dict[str, tuple[Function, Function, int]] = {
    "absolute values": (lambda x: x.square().sqrt(), lambda x: x, 1),
    "negated absolute values": (lambda x: x.square().sqrt(), lambda x: -x, 1),
    "absolute values in functions": (lambda x: x.square().sqrt().silu(), lambda x: x.silu(), 1),
    "absolute values of sums": (lambda x, y: (x.square() + 2 * x * y + y.square()).sqrt(), lambda x, y: x + y, 2),
    "absolute values as factors": (lambda x, y: (x * x * y).sqrt(), lambda x, y: x * y.sqrt(), 2),
    "opposite radicands": (lambda x, y: (x - y).sqrt() * (x - y).sqrt(), lambda x, y: y - x, 2),
    "one root too many": (lambda x: x.sqrt() * x.sqrt() * x.sqrt(), lambda x: x, 1),
    "opposite roots": (lambda x, y: x.sqrt() + y, lambda x, y: y - x.sqrt(), 2),
}


@pytest.mark.parametrize("name", NEVER)
def test_no_law_of_roots_makes_these_equal(name: str) -> None:
    left, right, inputs = NEVER[name]
    assert not verify_graphs(program(left, *[VECTOR] * inputs), program(right, *[VECTOR] * inputs)).equivalent


BY_LAWS: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "squares of roots": (lambda x, y: x.sqrt() * x.sqrt() * y, lambda x, y: x * y, (VECTOR, VECTOR)),
    "norms": (
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt() / x.square().sum(-1, keepdim=True).sqrt(),
        lambda x: x / x.square().sum(-1, keepdim=True),
        ((3, 4),),
    ),
    "maxima": (lambda x: x.reshape(3, 2, 4).amax(-1).amax(-1), lambda x: x.amax(-1), ((3, 8),)),
    "both": (
        lambda x, y: (x.sqrt() * x.sqrt() + y).reshape(2, 2).amax(-1).amax(-1),
        lambda x, y: (x + y).amax(-1),
        ((1,), VECTOR),
    ),
}


@pytest.mark.parametrize("name", BY_LAWS)
def test_mutants_of_what_is_equal_by_laws_are_rejected(name: str) -> None:
    left, right, shapes = BY_LAWS[name]
    pair = program(left, *shapes), program(right, *shapes)
    verdict = verify_graphs(*pair)
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40
    tried = 0
    for reference, changed in itertools.permutations(pair):
        for mutant in list(mutants(changed))[::4]:
            tried += 1
            assert not verify_graphs(reference, mutant.graph).equivalent or agree(reference, mutant.graph), mutant.change
    assert tried > 3


def test_norms_of_differences_are_within_their_bounds() -> None:
    """The product of sqrt(x) - y over both signs is y * y - x: of degree 2, with coefficients that sum to 2."""
    difference = difference_of(
        program(lambda x, y: x.sqrt(), (1,), (1,)), program(lambda x, y: y, (1,), (1,)), semantics=Semantics.ROOTS
    )
    assert difference is not None
    assert difference.radicand is not None
    norm = difference.output.of_norm(difference.radicand)
    assert norm.degree >= 2**MOST_RADICANDS
    assert norm.bits >= 2**MOST_RADICANDS
    assert difference.error_per_draw < 1e-9


@pytest.mark.parametrize("name", ["opposite radicands", "absolute values twice"])
def test_a_budget_that_ends_before_the_tests_without_bound_accepts_nothing(name: str) -> None:
    """One choice of roots makes sqrt(-x) equal to sqrt(x), and |x| is x at every second point."""
    pairs: dict[str, tuple[Function, Function]] = {
        "opposite radicands": (lambda x: x.sqrt(), lambda x: (-x).sqrt()),
        "absolute values twice": (lambda x: x.square().sqrt().sqrt() * x.square().sqrt().sqrt(), lambda x: x),
    }
    left, right = (program(function, (1,)) for function in pairs[name])
    for seed in range(3):
        verdict = verify_graphs(left, right, budget=0, seed=seed)
        assert not verdict.equivalent
        assert not verdict.certificate.accepted
        assert len(verdict.certificate.rounds) == 1


def test_draws_are_not_repeated_after_the_deadline() -> None:
    """No number has a root together with its negative, so that 160 draws would be in vain."""
    pair = program(lambda x: x.sqrt() + (-x).sqrt(), (1,)), program(lambda x: (-x).sqrt() + x.sqrt(), (1,))
    trials = Trials(*pair, Semantics.ROOTS, FieldFamily(33), 0, deadline=time.monotonic())
    with pytest.raises(UndefinedInField, match="budget"):
        trials.test()
    assert trials.draws <= 8


def test_large_programs_with_roots_are_tested_as_often_as_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tests without a bound, as large inputs get where there are no roots, would take |x| for x now and then."""
    monkeypatch.setattr(random_tests, "_LAWS_ELEMENTS", 1)
    absolute = program(lambda x: x.square().sqrt().sqrt() * x.square().sqrt().sqrt(), (1,))
    assert not any(verify_graphs(absolute, program(lambda x: x, (1,)), seed=seed).equivalent for seed in range(2))
