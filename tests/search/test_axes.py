"""Logical axes: what unifies, what is refined, what is read twice, what is refused."""

from __future__ import annotations

import time

import pytest

from mugraph.errors import UnsupportedOperator
from mugraph.ir.axes import axis_program
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program

from .programs import finished, grouped_heads, rmsnorm, self_attention


def test_rmsnorm_has_three_axes_and_reduces_the_hidden_one() -> None:
    program = axis_program(rmsnorm(batch=4, hidden=16, out=8))
    assert sorted(program.sizes) == [4, 8, 16]
    (hidden,) = (axis for axis, size in enumerate(program.sizes) if size == 16)
    assert program.reductions == {frozenset({hidden})}


def test_views_disappear() -> None:
    p = Program()
    x = p.input("x", (4, 6))
    program = axis_program(finished(p, x.transpose(0, 1).reshape(6, 2, 2).exp()))
    assert [term.op for term in program.terms] == ["load", "exp"]


def test_a_reshape_refines_a_dimension_into_axes() -> None:
    p = Program()
    x, y = p.input("x", (4, 6)), p.input("y", (4, 3))
    program = axis_program(finished(p, x.reshape(4, 2, 3) * y.unsqueeze(1)))
    loads = {term.source: term.slots for _, term in program.loads()}
    assert len(loads[0][1]) == 2
    assert loads[0][1][1:] == loads[1][1]


def test_one_tensor_needed_along_two_axes_is_read_twice() -> None:
    loads = [term for _, term in axis_program(self_attention()).loads()]
    assert {term.source for term in loads} == {0}
    assert len(loads) == 3


def test_values_do_not_depend_on_axes_they_are_repeated_along() -> None:
    program = axis_program(grouped_heads())
    (key,) = (term for _, term in program.loads() if term.source == 1)
    (query,) = (term for _, term in program.loads() if term.source == 0)
    assert sorted(program.sizes[axis] for axis in query.axes - key.axes) == [3, 3]


def test_a_mask_beside_scores_does_not_turn_their_product_round() -> None:
    p = Program()
    q, k, mask = p.input("q", (4, 16)), p.input("k", (64, 16)), p.input("mask", (64,))
    sizes = [axis_program(finished(p, scores.exp())).sizes for scores in (q @ k.transpose(0, 1), mask * (q @ k.transpose(0, 1)))]
    assert sizes == [(4, 16, 64)] * 2


def test_reducing_over_a_repeated_axis_becomes_a_factor() -> None:
    p = Program()
    x = p.input("x", (4, 1))
    program = axis_program(finished(p, x.expand(4, 5).sum(1)))
    factors = [float(term.scalar) for term in program.terms if term.scalar is not None]
    assert factors == [5.0]


def test_equal_terms_are_shared() -> None:
    p = Program()
    x = p.input("x", (4, 6))
    program = axis_program(finished(p, x.exp().transpose(0, 1).transpose(0, 1) + x.exp()))
    assert [term.op for term in program.terms].count("exp") == 1


def test_a_reshape_across_dimensions_is_refused_with_its_sizes() -> None:
    p = Program()
    x = p.input("x", (4, 6))
    with pytest.raises(UnsupportedOperator, match=r"reshape to \[6, 4\].*regroup"):
        axis_program(finished(p, x.reshape(6, 4)))


def repeated(times: int) -> Graph:
    """A chain in which every link needs the one before along two axes, and so do their links."""
    p = Program()
    t, w = p.input("t", (4, 8)), p.input("w", (8, 8))
    for _ in range(times):
        t = (t @ w).silu() * t
    return finished(p, t)


def test_a_chain_of_tensors_needed_along_two_axes_is_read_again_under_others() -> None:
    program = axis_program(repeated(3))
    assert [term.op for term in program.terms].count("silu") == 2**3 - 1


def test_chains_that_double_with_every_link_are_refused_at_once() -> None:
    started = time.process_time()
    with pytest.raises(UnsupportedOperator, match="along so many axes at once"):
        axis_program(repeated(40))
    assert time.process_time() - started < 10  # milliseconds; 2**40 links take forever


def test_more_axes_than_arrays_have_dimensions_are_refused() -> None:
    p = Program()
    products = [p.input(f"x{i}", (4, 6)) @ p.input(f"w{i}", (6, 4)) for i in range(70)]
    with pytest.raises(UnsupportedOperator, match="dimensions of 72 kinds"):
        axis_program(finished(p, sum(products[1:], start=products[0])))
