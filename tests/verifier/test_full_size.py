"""Proofs at the sizes of large models: tensors are compared, and pieces tested, on slices of the hidden layer and of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor
from mugraph.verifier import cut_points
from mugraph.verifier.certificate import Certificate
from mugraph.verifier.cut_points import Pair
from mugraph.verifier.identities import simplified
from mugraph.verifier.known_values import Known
from mugraph.verifier.prover import verify
from mugraph.verifier.random_tests import in_pieces, prove_piece
from mugraph.verifier.vectorized_eval import evaluate_batched

from .graphs import program

ROWS, WIDTH, HIDDEN = 4, 4096, 14336
"""Of Llama-3-8B."""

Gated = Callable[..., ProgramTensor]


def gated(x: ProgramTensor, gate: ProgramTensor, up: ProgramTensor, down: ProgramTensor) -> ProgramTensor:
    """The MLP as it is written."""
    return ((x @ gate).silu() * (x @ up)) @ down


def root(x: ProgramTensor) -> ProgramTensor:
    return ((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-5).sqrt()


def as_written(x: ProgramTensor, gain: ProgramTensor, *weights: ProgramTensor) -> ProgramTensor:
    """Behind normalised rows, and added to the rows."""
    return x + gated(x / root(x) * gain, *weights)


def rewritten(x: ProgramTensor, gain: ProgramTensor, *weights: ProgramTensor) -> ProgramTensor:
    """The same: one product for gate and up, divided by the root afterwards, and silu with an exponential."""
    return _rewritten(x, gain, *weights, more=0)


def wrong(x: ProgramTensor, gain: ProgramTensor, *weights: ProgramTensor) -> ProgramTensor:
    """Another function."""
    return _rewritten(x, gain, *weights, more=1)


def _rewritten(
    x: ProgramTensor, gain: ProgramTensor, gate: ProgramTensor, up: ProgramTensor, down: ProgramTensor, *, more: int
) -> ProgramTensor:
    hidden = gate.shape[-1]
    both = ((x * gain) @ x.program.concat([gate, up], 1)) / root(x)
    left, right = both.slice(1, 0, hidden), both.slice(1, hidden, hidden)
    return x + (left / (1 + (-left).exp()) * (right + more)) @ down


def graph_of(function: Gated, width: int = WIDTH, hidden: int = HIDDEN) -> Graph:
    return program(function, (ROWS, width), (width,), (width, hidden), (width, hidden), (hidden, width))


def by_identities(left: Graph, right: Graph, max_error: float, known: Known) -> Certificate | None:
    """What tests say of both graphs in normal form."""
    return prove_piece(1, None, simplified(left)[0], simplified(right)[0], max_error, known)


def drawn_elements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many elements each evaluation in float64 is given, from here on."""
    given = list[int]()

    def counting(graph: Graph, inputs: Any, *others: Any) -> Any:
        given.append(sum(array.size for array in inputs))
        return evaluate_batched(graph, inputs, *others)

    monkeypatch.setattr(cut_points, "evaluate_batched", counting)
    return given


def test_a_gated_mlp_is_proved_at_full_size_on_a_slice_of_its_hidden_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn_elements(monkeypatch)
    verdict = verify(graph_of(as_written), graph_of(rewritten))
    assert verdict.equivalent, verdict.reason
    assert verdict.error_bound is not None
    assert 0 < verdict.error_bound <= 2**-40
    assert verdict.certificate.pieces
    assert given
    assert max(given) < 8 * WIDTH, "three matrices have 176 million elements"


def test_a_wrong_mlp_is_not_proved_at_full_size() -> None:
    assert in_pieces(graph_of(as_written), graph_of(rewritten), {}, 2**-40, 1, None, by_identities) is not None
    assert in_pieces(graph_of(as_written), graph_of(wrong), {}, 2**-40, 1, None, by_identities) is None


def test_equal_slices_propose_what_all_slices_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = graph_of(as_written, 8, 12), graph_of(rewritten, 8, 12)
    outputs = [Pair(*pair[0].outputs, *pair[1].outputs)]
    of_all = cut_points._proposals(*pair, outputs, {})
    assert cut_points._of_equal_slices(*pair, {}, lambda: None) is None
    monkeypatch.setattr(cut_points, "_MANY", 0)
    given = drawn_elements(monkeypatch)
    assert cut_points._of_equal_slices(*pair, {}, lambda: None) is not None
    assert max(given) < 8 * 8
    assert cut_points._proposals(*pair, outputs, {}) == of_all
    assert len(of_all) > 4
    known = {2: np.ones((8, 12))}
    assert cut_points._of_equal_slices(*pair, known, lambda: None) is None, "columns of a known matrix are not equal"


def test_points_at_which_something_is_divided_by_zero_are_not_of_equal_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of slices may be zero for equal ones alone: then a graph that divides by zero anywhere would not be told."""

    def function(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        return (x / (y - x)).sum(-1, keepdim=True)

    pair = program(function, (3, 8), (3, 8)), program(lambda x, y: function(x, y) * 1, (3, 8), (3, 8))
    monkeypatch.setattr(cut_points, "_MANY", 0)
    assert cut_points._of_equal_slices(*pair, {}, lambda: None) is not None
    monkeypatch.setattr(cut_points, "_POINTS", (*cut_points._POINTS, np.zeros_like))
    assert cut_points._of_equal_slices(*pair, {}, lambda: None) is None
