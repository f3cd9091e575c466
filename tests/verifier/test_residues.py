"""Only the residues that outputs depend on are drawn."""

from __future__ import annotations

from mugraph.verifier.residues import ResidueParts, residues_needed
from mugraph.verifier.semantics import Semantics

from .graphs import attention, fused_rmsnorm, online_attention, program

P, Q, NONE = ResidueParts.P, ResidueParts.Q, ResidueParts.NONE


def test_rational_programs_need_nothing_modulo_q() -> None:
    assert residues_needed(fused_rmsnorm()) == [P, P, P]


def test_exponents_are_needed_modulo_q_and_values_modulo_p() -> None:
    assert residues_needed(attention()) == [Q, Q, P]
    assert residues_needed(online_attention()) == [Q, Q, P]
    assert residues_needed(program(lambda x, y: x * (x + y).exp(), (2,), (2,))) == [P | Q, Q]


def test_opaque_functions_need_all_there_is() -> None:
    assert residues_needed(program(lambda x, y: x.silu() + y.amax(-1), (2,), (2,))) == [P | Q, P]


def test_inputs_without_use_need_nothing() -> None:
    assert residues_needed(program(lambda x, y: x, (2,), (2,))) == [P, NONE]


def test_exponentials_of_exponentials_need_all_there_is() -> None:
    """The outer one is a function of what the inner one left, which is known modulo p only."""
    towers = program(lambda x, w: (x.exp() @ w).exp(), (2, 3), (3, 2))
    assert all(residues_needed(towers, semantics) == [P | Q, P | Q] for semantics in Semantics)
    assert residues_needed(program(lambda x, y: x.exp() * y.exp(), (2,), (2,))) == [Q, Q]
