"""Proofs that compose: stacked programs have a bound, and a wrong piece at any depth is no proof."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mugraph.errors import InvalidInput
from mugraph.ir import Graph
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Value
from mugraph.ir.program import ProgramTensor
from mugraph.testing import ProgramSpace, agree, random_program
from mugraph.testing import rewritten as in_other_words
from mugraph.testing.mutants import mutants
from mugraph.verifier import Certificate, cut_points, random_tests, recheck, verify_graphs
from mugraph.verifier.agreements import Agreement, Agreements, Question
from mugraph.verifier.certificate import digest
from mugraph.verifier.close_tensors import CloseTensors
from mugraph.verifier.cut_points import Pair, check_pieces, composed, graphs_of
from mugraph.verifier.known_values import Known
from mugraph.verifier.prover import verify
from mugraph.verifier.random_tests import by_random_tests, in_pieces
from mugraph.verifier.semantics import Semantics
from mugraph.verifier.trials import Trials
from mugraph.verifier.verdicts import Verdict
from mugraph.verifier.zero_divisors import LAWS_FAMILY

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


def of_all_pairs(left: Graph, right: Graph) -> tuple[list[Pair], list[Pair], int]:
    """The close pairs of tensors by the index, and by comparing each with each; and how many of them are undefined somewhere."""
    ours, theirs = (cut_points._values(graph, {}, lambda: None) for graph in (left, right))
    each = [
        Pair(other, value)
        for value in cut_points._computed(right)
        for other in cut_points._computed(left)
        if left.tensor(other).shape == right.tensor(value).shape
        and not (cut_points._is_view(left, other) and cut_points._is_view(right, value))
        and cut_points._agree(ours[other], theirs[value])
    ]
    somewhere = sum(any(array is None for array in (*ours[pair.left], *theirs[pair.right])) for pair in each)
    return list(cut_points._close_pairs(left, right, ours, theirs, lambda: None)), each, somewhere


def random_pairs(count: int) -> Iterator[tuple[Graph, Graph]]:
    """Programs and mutants of them, some of which have no value at some points, each beside the same in other words."""
    space = ProgramSpace(operators=(4, 9), sizes=(1, 2, 3), opaque=True)
    for seed in itertools.count():
        graph, rng = random_program(seed, space), np.random.default_rng(seed)
        for one in (graph, *(mutant.graph for mutant in itertools.islice(mutants(graph, rng), 3))):
            yield one, in_other_words(one, rng)
            count -= 1
            if not count:
                return


def test_pairs_of_an_index_are_those_of_all_pairs() -> None:
    found = undefined = 0
    for left, right in random_pairs(200):
        by_index, each, somewhere = of_all_pairs(left, right)
        assert by_index == each
        found, undefined = found + len(each), undefined + somewhere
    assert found > 500
    assert undefined > 10


def compared_pairs(monkeypatch: pytest.MonkeyPatch, depth: int) -> int:
    """How often two tensors are compared, element by element, of layers upon each other."""
    counted, agree_ = Counter[str](), cut_points._agree
    with monkeypatch.context() as counting:
        counting.setattr(cut_points, "_agree", lambda *columns: counted.update("x") or agree_(*columns))
        pair = stacked(*[as_written] * depth), stacked(*[rewritten] * depth)
        proposed = cut_points._proposals(*pair, [Pair(*pair[0].outputs, *pair[1].outputs)], {})
    assert len(proposed) >= 4 * depth
    return counted["x"]


def test_twice_the_layers_are_twice_the_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared_pairs(monkeypatch, 16) < 2.5 * compared_pairs(monkeypatch, 8)


def visited_values(monkeypatch: pytest.MonkeyPatch, depth: int) -> int:
    """How many values walks from goals to cuts ask about, in a proof of layers upon each other."""
    counted, is_open = Counter[str](), cut_points._Open.__call__
    with monkeypatch.context() as counting:
        counting.setattr(cut_points._Open, "__call__", lambda *asked: counted.update("x") or is_open(*asked))
        assert verify_graphs(stacked(*[as_written] * depth), stacked(*[rewritten] * depth)).equivalent
    return counted["x"]


def test_walks_end_at_the_nearest_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visited_values(monkeypatch, 12) < 2.5 * visited_values(monkeypatch, 6)


STEPS = 70
"""Pieces of a layer, of which no two are equal."""


def steps(x: ProgramTensor, y: ProgramTensor, *, before: bool) -> ProgramTensor:
    """Two equal layers, which scale x and add y many times, each time by another number."""
    for number in (*range(STEPS), *range(STEPS)):
        scale = Fraction(number + 1, number + 2)
        x = (x + y / scale) * scale if before else x * scale + y
    return x


def counted_tests(monkeypatch: pytest.MonkeyPatch, pair: tuple[Graph, Graph]) -> Counter[tuple[str, str]]:
    """How often pieces of a proof were tested, by their graphs."""
    counted, bounded = Counter[tuple[str, str]](), random_tests._Verification.bounded

    def counting(self: random_tests._Verification) -> Verdict | None:
        counted[digest(self.left), digest(self.right)] += 1
        return bounded(self)

    with monkeypatch.context() as patched:
        patched.setattr(random_tests._Verification, "bounded", counting)
        verdict = in_pieces(*pair, {}, 2**-40, None, None)
    assert verdict is not None
    assert verdict.equivalent
    assert len(verdict.certificate.pieces) >= 2 * STEPS
    return counted


def test_pieces_of_equal_layers_are_tested_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tuple(program(lambda x, y, before=before: steps(x, y, before=before), (3, 4), (3, 4)) for before in (False, True))
    left, right = pair
    first = counted_tests(monkeypatch, (left, right))
    assert len(first) > 64
    assert {*first.values()} == {1}
    assert not counted_tests(monkeypatch, (left, right)), "another proof has the pieces of the first"


def test_agreements_are_forgotten_by_their_size() -> None:
    """Those that were asked for last are kept, and one however large it is."""
    few, many = stacked(as_written), stacked(*[as_written] * 4)
    questions = [Question(graph, graph, 0.5, seed) for seed, graph in enumerate([few, few, few, many])]
    agreement = Agreement(Trials(few, few, Semantics.FREE, LAWS_FAMILY, 0), None, 0.25)
    remembered = Agreements(2 * questions[0].nodes)
    for question in questions[:2]:
        remembered.keep(question, agreement)
    assert remembered.find(questions[0]) is agreement
    remembered.keep(questions[2], agreement)
    assert [remembered.find(question) is not None for question in questions] == [True, False, True, False]
    remembered.keep(questions[3], agreement)
    assert [remembered.find(question) is not None for question in questions] == [False, False, False, True]


def test_equal_pieces_with_other_known_values_are_proved_apart() -> None:
    """Of two tables by which x is multiplied one is full of ones, and the other is not."""

    def left(x: ProgramTensor, first: ProgramTensor, second: ProgramTensor) -> ProgramTensor:
        return ((x * first).exp() * second).exp() * x

    def right(x: ProgramTensor, first: ProgramTensor, second: ProgramTensor) -> ProgramTensor:
        return (x.exp() * second).exp() * x

    def wrong(x: ProgramTensor, first: ProgramTensor, second: ProgramTensor) -> ProgramTensor:
        return x.exp().exp() * x

    shapes = ((3, 4), (3, 4), (3, 4))
    known = {1: np.ones((3, 4)), 2: np.full((3, 4), 0.5)}
    good, bad = (program(left, *shapes), program(right, *shapes)), (program(left, *shapes), program(wrong, *shapes))
    assert verify_graphs(*good, known=known).equivalent
    assert verify_graphs(*bad, known=known).equivalent is False
    graphs = cut_points._Numbered.of(good[0]), cut_points._Numbered.of(good[1])
    chain = cut_points._Chain(graphs, known, 2**-50, [asked_of])
    piece = program(lambda x, y: x * y, (3, 4), (3, 4)), program(lambda x, y: x, (3, 4), (3, 4))
    assert chain._answer(*piece, (0, 1)).certificate is not None
    assert chain._answer(*piece, (0, 2)).certificate is None
    assert chain._answer(*piece, (0, 1)) is chain._answer(*piece, (0, 1))


def asked_of(left: Graph, right: Graph, max_error: float, known: Known) -> Certificate | None:
    return random_tests.prove_piece(1, None, left, right, max_error, known)


def work_of_a_proof(monkeypatch: pytest.MonkeyPatch, looks: int) -> tuple[bool, int]:
    """Whether layers upon each other are proved in pieces by a clock that runs out when it was looked at so often; and how many
    quotients were computed, tensors compared with others, and pieces proved, of which none takes two looks."""
    clock, work = itertools.count(1), Counter[str]()

    def counted(function: Any) -> Any:
        def counting(*asked: Any) -> Any:
            work["done"] += 1
            return function(*asked)

        return counting

    pair = stacked(*[as_written] * 8), stacked(*[rewritten] * 8)
    with monkeypatch.context() as patched:
        patched.setattr(cut_points, "late", lambda deadline: deadline is not None and next(clock) > looks)
        patched.setattr(FloatArithmetic, "div", counted(FloatArithmetic.div))
        patched.setattr(CloseTensors, "near", counted(CloseTensors.near))
        found = composed(*pair, {}, 2**-40, [counted(asked_of)], 1.0)
    return found is not None, work["done"]


def test_a_proof_in_pieces_ends_when_its_time_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever that is: as tensors are drawn, computed and compared, and as pieces are proved."""
    proved, work = work_of_a_proof(monkeypatch, 10**9)
    assert proved
    assert work > 200
    before = -1
    for looks in (1, 10, 100, 400, 700, 1000):
        proved, work = work_of_a_proof(monkeypatch, looks)
        assert not proved
        assert before < work <= looks or work == before == 0
        before = work


LONG = 16
"""Layers of a chain."""


@pytest.mark.parametrize("depth", range(LONG))
def test_a_mutant_at_any_depth_of_a_chain_is_refused(depth: int) -> None:
    """By all means together; and by the tests of pieces, where float64 proposes all that it proposes of the right chain."""
    left, right = stacked(*[as_written] * LONG), stacked(*[rewritten] * LONG)
    exponentials, sums = ([index for index, node in enumerate(right.nodes) if node.op == op] for op in ("exp", "add"))
    assert len(exponentials) == len(sums) == LONG
    number = exponentials[depth]
    nodes = [replace(node, op="square") if index == number else node for index, node in enumerate(right.nodes)]
    mutant = right.with_nodes(tuple(nodes), right.outputs)
    assert verify_graphs(left, mutant).equivalent is False

    behind = {number}
    for index, node in enumerate(nodes):
        behind |= {index} if any(value.node in behind for value in node.inputs) else set()
    goals = cut_points._proposals(left, right, [Pair(*left.outputs, *right.outputs)], {})
    chain = cut_points._Chain((cut_points._Numbered.of(left), cut_points._Numbered.of(mutant)), {}, 2**-60, [asked_of])
    within = [goal for goal in goals if goal.right.node <= sums[depth]]
    assert [chain.proves(goal) for goal in within] == [goal.right.node not in behind for goal in within]
    assert any(goal.right.node in behind for goal in within)
