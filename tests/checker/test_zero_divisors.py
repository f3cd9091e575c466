"""What divides by zero whatever its inputs are is refused, where a certificate's pieces or rows do not meet that zero."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from checker.test_checker import accepted, in_float32, write
from checker.test_separate_axes import document
from mugraph.checker import Rejected, check_folder
from mugraph.checker.zero_divisors import divides_by_zero
from mugraph.lower.thread_graphs import construct
from mugraph.verifier import random_tests
from verifier.graphs import attention, fused_rmsnorm, online_attention, program, rmsnorm
from verifier.stacks import as_written, rewritten, stacked
from verifier.test_zero_divisors import NOT_ZERO, SHAPES, SIGNED, ZEROS, beside_roots, in_blocks, pair


@pytest.mark.parametrize("name", ["the same", "rounded apart"])
def test_a_proof_in_pieces_of_what_divides_by_zero_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The certificate is of tests that were run, and all it says of the pieces is true."""
    monkeypatch.setattr(random_tests, "nowhere_defined", lambda *_: "")
    left, right = pair(ZEROS[name])
    pieces = random_tests.in_pieces(left, right, {}, 2.0**-40, 0, None)
    assert pieces is not None
    monkeypatch.setattr("checker.test_checker.verify_graphs", lambda *_: pieces)
    folder = write(tmp_path / "saved", left, right, floats=in_float32(rmsnorm(), rmsnorm()))
    with pytest.raises(Rejected, match="divides by zero whatever its inputs are"):
        check_folder(folder, seed=0)


@pytest.mark.parametrize("name", ZEROS)
def test_zeros_are_found(name: str) -> None:
    left, right = map(document, pair(ZEROS[name]))
    assert divides_by_zero(right, random.Random(0))
    assert not divides_by_zero(left, random.Random(0))


@pytest.mark.parametrize("name", NOT_ZERO)
def test_other_numbers_are_not_zero(name: str) -> None:
    graph = program(lambda x, y: x / NOT_ZERO[name](x, y), *SHAPES)
    assert not divides_by_zero(document(graph), random.Random(0))


def test_blocks_are_looked_into() -> None:
    assert divides_by_zero(document(in_blocks(zero=True)), random.Random(0))
    assert not divides_by_zero(document(in_blocks(zero=False)), random.Random(0))


def test_what_signs_show_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.checker.zero_divisors._has_value", lambda *_: pytest.fail("evaluated"))
    softmax = program(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), (2, 4))
    squares = program(lambda x, y: y / ((x * x).sum(-1, keepdim=True) + 1).sqrt() / (x.square() + 2), (2, 4), (2, 4))
    for graph in (attention(), online_attention(loop=4), construct(online_attention(loop=4)), softmax, squares):
        assert not divides_by_zero(document(graph), random.Random(0))


def test_what_signs_do_not_show_is_evaluated() -> None:
    """None of it is zero, and a rule that is too bold would hide the last."""
    for graph in (rmsnorm(), fused_rmsnorm(), stacked(as_written), stacked(rewritten)):
        assert not divides_by_zero(document(graph), random.Random(0))
    for zero in (
        program(lambda x: x / (x.square() - x * x), (3,)),
        program(lambda x: x / (x.relu() * 0), (3,)),
        program(lambda x: x / (x.exp() * -1 + x.exp()), (3,)),
        program(lambda x: x / (0 / x.exp()), (3,)),
        program(lambda x: x / (x - x).sum(-1, keepdim=True), (3,)),
        program(lambda x: x / (x.exp() / x + x.exp() / (x * -1)), (3,)),
    ):
        assert divides_by_zero(document(zero), random.Random(0))


@pytest.mark.parametrize("seed", range(4))
def test_a_single_root_is_looked_at_where_it_is_of_a_square(seed: int) -> None:
    """Of half of all numbers there is none in a field, and what is taken for it has another square."""
    zero = program(lambda x: x / (x.sqrt() * x.sqrt() - x), (1,))
    assert divides_by_zero(document(zero), random.Random(seed))
    both = program(lambda x: x / (x.sqrt() * (x * -1).sqrt() - x), (1,))
    assert divides_by_zero(document(both), random.Random(seed)), "only zero has both roots"
    other = program(lambda x: x / (x.sqrt() * (x * -1).sqrt() - x * 2), (1,))
    assert not divides_by_zero(document(other), random.Random(seed)), "which is none of what the laws of roots show"


def test_roots_of_many_numbers_hide_no_zero() -> None:
    """Each draw of such does in half of all cases, and four do in one of 16."""
    found = [divides_by_zero(document(beside_roots()), random.Random(seed)) for seed in range(16)]
    assert found.count(True) > 12


@pytest.mark.parametrize("name", ["twice a number that has a root", "a number and its absolute value"])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_zero_for_half_of_all_signs_is_not_zero(seed: int, name: str) -> None:
    whole = program(lambda x: (x / SIGNED[name](x)).sum(-1), (1, 32))
    assert not divides_by_zero(document(whole), random.Random(seed))


def test_proofs_in_pieces_of_what_has_a_value_are_accepted(tmp_path: Path) -> None:
    report = accepted(write(tmp_path / "saved", stacked(as_written, as_written), stacked(rewritten, rewritten)))
    assert report.rounds > 1
