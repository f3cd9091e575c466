"""Maxima are functions of sets: how often an element comes is all the same, and whether it comes at all is not."""

from __future__ import annotations

import pytest

from mugraph.verifier import verify_graphs

from .graphs import program
from .maxima import DIFFERENT, EQUAL, all_but_one, graphs, maxima_in_a_loop


@pytest.mark.parametrize("name", EQUAL)
def test_repetitions_order_and_overlaps_do_not_count(name: str) -> None:
    verdict = verify_graphs(*graphs(EQUAL[name]), seed=1)
    assert verdict.equivalent, verdict.reason
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_left_out_or_added_counts(name: str) -> None:
    pair = graphs(DIFFERENT[name])
    assert not any(verify_graphs(*order, seed=seed).equivalent for seed in range(3) for order in (pair, pair[::-1]))


def test_one_of_a_thousand_left_out_shows() -> None:
    count = 1024
    left, right = program(all_but_one, (count,)), program(lambda x: x.amax(0, keepdim=True).repeat(0, count), (count,))
    assert not verify_graphs(left, right, seed=0).equivalent
    assert verify_graphs(
        program(lambda x: all_but_one(x).amax(-1, keepdim=True), (count,)),
        program(lambda x: x.amax(0, keepdim=True), (count,)),
        seed=0,
    ).equivalent


def test_maxima_of_many_parts_in_a_loop() -> None:
    whole = program(lambda x: x.reshape(4, 1, 4096).amax(-1), (4, 4096))
    assert verify_graphs(whole, maxima_in_a_loop(4, 4096, 64), seed=0).equivalent
    assert not verify_graphs(
        program(lambda x: x.amax(-1, keepdim=True).repeat(1, 2), (4, 4096)), maxima_in_a_loop(4, 4096, 64, part=2), seed=0
    ).equivalent


def test_many_short_rows_that_a_sum_binds_together() -> None:
    """Rows along which programs act alike are cut to one. These are not."""
    halves = program(lambda x: x.reshape(1 << 12, 4).amax(-1).reshape(1 << 11, 2).amax(-1).sum(0, keepdim=True), (1 << 14,))
    whole = program(lambda x: x.reshape(1 << 11, 8).amax(-1).sum(0, keepdim=True), (1 << 14,))
    assert verify_graphs(halves, whole, seed=0).equivalent
    other = program(lambda x: x.reshape(8, 1 << 11).transpose(0, 1).amax(-1).sum(0, keepdim=True), (1 << 14,))
    assert not verify_graphs(halves, other, seed=0).equivalent
