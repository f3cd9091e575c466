"""Proofs that compose: stacked programs have a bound, and a wrong piece at any depth is no proof."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mugraph.errors import InvalidInput
from mugraph.ir import Graph
from mugraph.ir.graph import Value
from mugraph.ir.program import ProgramTensor
from mugraph.testing import agree
from mugraph.testing.mutants import mutants
from mugraph.verifier import Certificate, cut_points, recheck, verify_graphs
from mugraph.verifier.certificate import digest
from mugraph.verifier.cut_points import Pair, check_pieces, graphs_of
from mugraph.verifier.known_values import Known
from mugraph.verifier.prover import verify
from mugraph.verifier.random_tests import by_random_tests

from .graphs import program
from .stacks import ROWS, SLICED, WIDTH, as_written, halved, rewritten, stacked

DEPTH = 3


@pytest.mark.parametrize("depth", [2, DEPTH, 12])
def test_a_bound_at_every_depth(depth: int) -> None:
    verdict = verify_graphs(stacked(*[as_written] * depth), stacked(*[rewritten] * depth))
    assert verdict.equivalent, verdict.reason
    certificate = verdict.certificate
    assert certificate.pieces
    assert verdict.error_bound is not None
    assert 0 < verdict.error_bound <= 2**-40
    bounds = [piece.certificate.error_bound or 0.0 for piece in certificate.pieces]
    failed = certificate.passed_over * certificate.pieces[0].certificate.max_error
    assert verdict.error_bound == pytest.approx(sum(bounds) + failed)


@pytest.mark.parametrize("depth", range(DEPTH))
def test_a_wrong_layer_is_found_at_every_depth(depth: int) -> None:
    layers = [rewritten] * DEPTH
    layers[depth] = halved
    verdict = verify_graphs(stacked(*[as_written] * DEPTH), stacked(*layers))
    assert verdict.equivalent is False
    assert verdict.counterexample is not None


def test_no_mutant_is_accepted_and_no_equal_stack_refused() -> None:
    """Of the mutants none agrees, which an oracle says that knows nothing of pieces."""
    left, right = stacked(*[as_written] * 2), stacked(*[rewritten] * 2)
    equal = [stacked(*layers) for layers in itertools.product((as_written, rewritten), repeat=2)]
    assert [verify_graphs(left, graph).equivalent for graph in equal] == [True] * 4
    found = list(mutants(right))
    for number in np.random.default_rng(0).permutation(len(found))[:60]:
        mutant = found[number].graph
        assert not agree(left, mutant), found[number]
        assert not verify_graphs(left, mutant, budget=20.0).equivalent, found[number]


def test_a_cut_that_hides_what_is_needed_is_passed_over() -> None:
    """Both multiply the sum of x by one number, of which each knows what it is only below the cut."""

    def left(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        e = (x @ y).exp()
        return (e / (e.sum(-1, keepdim=True))).exp() * x.sum(-1, keepdim=True)

    def right(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        e = ((x * 2) @ (y / 2)).exp()
        return (e / ((x @ y).exp().sum(-1, keepdim=True))).exp() * x.sum(-1, keepdim=True)

    shapes = ((3, 4), (4, 4))
    assert verify_graphs(program(left, *shapes), program(right, *shapes)).equivalent


def test_what_is_equal_to_one_tensor_is_not_equal_where_that_has_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """sqrt(x)**2 is x by one law of roots, and sqrt(x * x) by another: these are equal where x is not negative."""
    verdict = verify_graphs(*SLICED)
    assert verdict.equivalent is False
    assert verdict.counterexample is not None
    with monkeypatch.context() as broken:
        broken.setattr(cut_points, "_is_free", lambda *_: True)
        wrong = verify_graphs(*SLICED)
    assert wrong.equivalent
    with pytest.raises(InvalidInput, match="equal only where all of it is defined"):
        recheck(wrong.certificate, *SLICED)


def test_what_divides_by_zero_everywhere_is_not_equal_to_what_does_not() -> None:
    """x - x is a cut, which as a variable is not zero, and its square can be divided by; what is divided by that cancels."""

    def left(x: ProgramTensor) -> ProgramTensor:
        zero = x - x
        cancels = x * x / (zero * zero + 2)
        return zero - cancels + cancels

    def right(x: ProgramTensor) -> ProgramTensor:
        zero = x - x
        cancels = x * x / (2 / (zero * zero))
        return zero - cancels + cancels

    verdict = verify_graphs(program(left, (3, 4)), program(right, (3, 4)))
    assert verdict.equivalent is False
    assert "the right is undefined" in verdict.reason


def test_no_bound_of_the_whole_is_computed_after_pieces_took_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.verifier.random_tests._PIECES_FIRST", 0)
    monkeypatch.setattr("mugraph.verifier.random_tests.composed", lambda *_: time.sleep(0.3))
    monkeypatch.setattr("mugraph.verifier.random_tests.difference_of", lambda *_, **__: pytest.fail("of the whole"))
    verdict = by_random_tests(stacked(as_written), stacked(rewritten), budget=0.3)
    assert verdict.certificate.tests == "unfinished"
    assert len(verdict.certificate.rounds) == 1


def certificate_of_layers() -> tuple[Graph, Graph, Certificate]:
    left, right = stacked(*[as_written] * 2), stacked(*[rewritten] * 2)
    return left, right, verify_graphs(left, right, seed=5).certificate


def test_it_survives_json_and_can_be_repeated() -> None:
    left, right, certificate = certificate_of_layers()
    read = Certificate.from_json(json.loads(json.dumps(certificate.to_json())))
    assert read == certificate
    recheck(read, left, right)


def test_pieces_are_about_what_they_say() -> None:
    left, right, certificate = certificate_of_layers()
    for piece, (ours, theirs, _) in zip(certificate.pieces, graphs_of(left, right, certificate.pieces), strict=True):
        assert ours.output_tensors[0].shape == left.tensor(piece.left).shape
        assert [node.output.shape for node in ours.inputs()] == [node.output.shape for node in theirs.inputs()]
        assert agree(ours, theirs)


def _without_outputs(certificate: Certificate, left: Graph) -> Certificate:
    kept = tuple(piece for piece in certificate.pieces if piece.left not in left.outputs)
    return replace(certificate, pieces=kept)


def _changed(certificate: Certificate, /, **entries: Any) -> Certificate:
    """The last piece, which has cuts, with other entries."""
    *others, last = certificate.pieces
    return replace(certificate, pieces=(*others, replace(last, **entries)))


def test_what_is_no_proof_is_refused() -> None:
    left, right, certificate = certificate_of_layers()
    last = len(certificate.pieces) - 1
    with pytest.raises(InvalidInput, match="no piece for some of the outputs"):
        recheck(_bounded(_without_outputs(certificate, left)), left, right)
    with pytest.raises(InvalidInput, match="nothing is proved before it"):
        recheck(_changed(certificate, cuts=((last,),)), left, right)
    with pytest.raises(InvalidInput, match="not shown to be equal"):
        recheck(_changed(certificate, cuts=((0, 1),)), left, right)
    with pytest.raises(InvalidInput, match="no tensors of the graphs"):
        recheck(_changed(certificate, left=Value(len(left.nodes))), left, right)
    with pytest.raises(InvalidInput, match="does not follow"):
        recheck(replace(certificate, error_bound=2.0**-200), left, right)
    nested = replace(certificate, max_error=certificate.pieces[0].certificate.max_error)
    with pytest.raises(InvalidInput, match="in pieces itself"):
        recheck(_bounded(_changed(certificate, certificate=nested)), left, right)
    less = replace(certificate, passed_over=-1)
    with pytest.raises(InvalidInput, match="passed_over"):
        recheck(_bounded(less), left, right)
    wrong = stacked(rewritten, halved)
    with pytest.raises(InvalidInput, match="is not the one"):
        recheck(certificate, left, wrong)


def _bounded(certificate: Certificate) -> Certificate:
    return replace(certificate, error_bound=certificate.bound_of_entries)


def test_pieces_may_be_equal_by_identities_of_functions() -> None:
    """Gates upon gates, written with exponentials on one side, and read from parts of one product."""

    def left(x: ProgramTensor, w: ProgramTensor, v: ProgramTensor) -> ProgramTensor:
        for _ in range(2):
            x = x + (x @ w).silu() * (x @ v)
        return x

    def right(x: ProgramTensor, w: ProgramTensor, v: ProgramTensor) -> ProgramTensor:
        for _ in range(2):
            both = x @ x.program.concat([w, v], 1)
            gate, up = (both.slice(1, start, WIDTH) for start in (0, WIDTH))
            x = x + gate / (1 + (-gate).exp()) * up
        return x

    shapes = ((ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH))
    verdict = verify(program(left, *shapes), program(right, *shapes))
    assert verdict.equivalent, verdict.reason
    assert verdict.certificate.pieces
    assert any("silu" in name for name in verdict.properties)
    pieces = verdict.certificate.pieces
    sides = graphs_of(program(left, *shapes), program(right, *shapes), pieces)
    by_identities = [piece for piece, (ours, _, _) in zip(pieces, sides, strict=True) if piece.certificate.left != digest(ours)]
    assert verdict.certificate.passed_over >= len(by_identities) > 0, "tests of these pieces as they are may have been wrong, too"


def test_a_tensor_that_no_output_needs_is_no_cut() -> None:
    left, right, certificate = certificate_of_layers()
    unused = left.with_nodes((*left.nodes, left.nodes[certificate.pieces[0].left.node]), left.outputs)
    with pytest.raises(InvalidInput, match="no output needs"):
        check_pieces(unused, right, [replace(certificate.pieces[0], left=Value(len(left.nodes))), *certificate.pieces[1:]])


HEADS, ROWS_OF_HEAD, KEYS, WIDTH_OF_HEAD = 4, 6, 6, 2
"""Queries of heads that share keys, rotary embeddings and a mask."""


def turned(x: ProgramTensor, cos: ProgramTensor, sin: ProgramTensor, half: ProgramTensor) -> ProgramTensor:
    """Rows [..., tokens, width] of which halves are turned by the angles of their tokens."""
    swapped = (half @ x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)).reshape(*x.shape)
    return x * cos + swapped * sin


def shared_keys(*given: ProgramTensor, late: bool, shift: int = 0) -> ProgramTensor:
    """Attention in which all heads share keys; scores are divided before or after they are multiplied with values."""
    q, k, v, cos, sin, half, mask = given
    split = q.reshape(ROWS_OF_HEAD, HEADS, WIDTH_OF_HEAD).transpose(0, 1)
    queries = turned(split, cos, sin, half).reshape(HEADS * ROWS_OF_HEAD, WIDTH_OF_HEAD)
    scores = (queries @ turned(k, cos, sin, half).transpose(0, 1)).reshape(HEADS, ROWS_OF_HEAD, KEYS)
    if shift:
        mask = mask.program.concat([mask.slice(0, shift, KEYS - shift), mask.slice(0, 0, shift)], 0)
    weights = (scores * mask).exp().reshape(HEADS * ROWS_OF_HEAD, KEYS)
    sums = weights.sum(-1, keepdim=True)
    mixed = (weights @ v) / sums if late else (weights / sums) @ v
    return mixed.reshape(HEADS, ROWS_OF_HEAD, WIDTH_OF_HEAD).transpose(0, 1).reshape(ROWS_OF_HEAD, HEADS * WIDTH_OF_HEAD)


def keys_shared(**changes: Any) -> Graph:
    """The graph of `shared_keys`."""
    turn, keys = (ROWS_OF_HEAD, WIDTH_OF_HEAD), (KEYS, WIDTH_OF_HEAD)
    shapes = ((ROWS_OF_HEAD, HEADS * WIDTH_OF_HEAD), keys, keys, turn, turn, (2, 2), (ROWS_OF_HEAD, KEYS))
    return program(lambda *given: shared_keys(*given, **changes), *shapes)


def elements(*graphs: Graph) -> int:
    return sum(tensor.elements for graph in graphs for node in graph.nodes for tensor in node.outputs)


@pytest.mark.parametrize("known", [{}, {5: np.array([[0.0, -1.0], [1.0, 0.0]])}])
def test_tensors_are_compared_on_one_head_where_they_are_large(monkeypatch: pytest.MonkeyPatch, known: Known) -> None:
    """Of merged heads a quarter of the scores is computed, and what is equal on it is proposed."""
    pair = keys_shared(late=False), keys_shared(late=True)
    outputs = [Pair(*both) for both in zip(*(graph.outputs for graph in pair), strict=True)]
    whole = cut_points._proposals(*pair, outputs, known)
    assert elements(*cut_points._small(*pair, known)) == elements(*pair) or not known
    monkeypatch.setattr(cut_points, "_FEW", 0)
    small = cut_points._small(*pair, known)
    assert elements(*small) < elements(*pair) / 2
    assert {tensor.shape for tensor in (node.output for node in small[0].nodes) if tensor.shape[-1:] == (KEYS,)} <= {
        (WIDTH_OF_HEAD, KEYS),
        (ROWS_OF_HEAD, KEYS),
        (1, ROWS_OF_HEAD, KEYS),
    }
    assert len(whole) > 4
    assert cut_points._proposals(*pair, outputs, known) == whole
    verdict = verify_graphs(*pair, known=known)
    assert verdict.equivalent


def test_a_mask_that_is_shifted_by_a_row_is_told_on_one_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_points, "_FEW", 0)
    monkeypatch.setattr("mugraph.verifier.random_tests._PIECES_FIRST", 0)
    pair = keys_shared(late=False), keys_shared(late=True, shift=1)
    assert not by_random_tests(*pair).equivalent
    assert verify_graphs(*pair).equivalent is False
