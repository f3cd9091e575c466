"""Equivalence of muGraphs by random tests over finite fields, at full size (paper, section 5)."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.ir.definitions import spelled_out
from mugraph.ir.graph import Graph
from mugraph.support.deadline import late
from mugraph.support.seeds import seed_or_fresh
from mugraph.verifier.agreements import AGREEMENTS, Agreement, Question
from mugraph.verifier.bounds import Difference, difference_of
from mugraph.verifier.certificate import Certificate, Outcome, Tests, at_most, digest
from mugraph.verifier.counterexamples import Counterexample, find_witness, signature_mismatch
from mugraph.verifier.cut_points import Prove, check_pieces, composed, graphs_of, of_inputs, semantics_of
from mugraph.verifier.known_values import NOTHING, Known, check_known
from mugraph.verifier.parallel_axes import ParallelAxis, Slice, shared_slice, simple_slice
from mugraph.verifier.root_semantics import TooManyRadicands
from mugraph.verifier.semantics import WITH_PROPERTIES, Semantics, beyond_rational, meanings
from mugraph.verifier.separate_inputs import separate_slice
from mugraph.verifier.through_cores import CorePair, core_pair
from mugraph.verifier.trials import Trials, input_shapes
from mugraph.verifier.verdicts import Verdict
from mugraph.verifier.zero_divisors import LAWS_FAMILY, nowhere_defined

_LAWS_ELEMENTS = 1 << 26
"""Tests for which no bound can be stated are repeated until this many elements of inputs were drawn, ..."""
_LAWS_ROUNDS = (2, 32)
"""... but at least and at most so many times."""
_PIECES_FIRST = 1 << 16
"""Elements of the inputs of a test beyond which a proof in pieces is tried first."""
_MANY_OPERATORS = 100
"""Operators beyond which that is so in any case: finding slices takes long."""
_LOOKED_AT_IN_SLICES = 60
"""Operators up to which the slices of a graph are found before it is known that it is to be proved: of some 100 that took ten
times as long as their degrees in full size."""
_ROOTS_ROUNDS = 40
"""Tests without a bound where there are roots: with one root of each number, each hides a wrong sign in every second draw."""
_NEITHER_LAW_ALONE = (
    "the programs agree by sqrt(x y) = sqrt(x) sqrt(y) and sqrt(x)**2 = x together, or with exp(x + y) = exp(x) exp(y), and only "
    "each of the first by itself has one; take the roots of products in the same way in both programs"
)


def check_max_error(max_error: object) -> None:
    """Raises InvalidInput unless 0 < max_error < 1."""
    if not (isinstance(max_error, (int, float)) and 0 < max_error < 1):
        raise InvalidInput(f"max_error must lie between 0 and 1, not {max_error!r}")


def verify_graphs(
    a: Graph, b: Graph, *, max_error: float = 2**-40, seed: int | None = None, budget: float | None = None, known: Known = NOTHING
) -> Verdict:
    """Whether two kernel graphs (with graph-defined nodes or without) compute the same outputs, inputs taken in order.

    Random tests show equivalence (`by_random_tests`). Where they do not, float64 and high precision look for inputs at which the
    graphs differ, which makes them different; else the question is undecided.
    """
    deadline = None if budget is None else time.monotonic() + budget
    verdict = by_random_tests(a, b, max_error=max_error, seed=seed, budget=budget, known=known)
    if verdict.outcome is Outcome.UNDECIDED and (cores := core_pair(a, b, known)) is not None:
        return of_cores(looked_at(verdict, cores.left, cores.right, deadline, cores.known), a, b, cores)
    return looked_at(verdict, a, b, deadline, known)


def of_cores(verdict: Verdict, a: Graph, b: Graph, cores: CorePair) -> Verdict:
    """What a verdict on the cores of two graphs that look something up says of the graphs themselves."""
    if verdict.outcome is Outcome.DIFFERENT and not cores.realisable:
        verdict = replace(verdict, counterexample=None).undecided(
            "they differ in what they compute of what is looked up, and some of that is looked up at one place more than once"
        )
    return replace(verdict, certificate=replace(verdict.certificate, left=digest(a), right=digest(b)))


def looked_at(verdict: Verdict, a: Graph, b: Graph, deadline: float | None, known: Known = NOTHING) -> Verdict:
    """The verdict, with a witness where an undecided question has one that is found before the deadline."""
    if verdict.outcome is not Outcome.UNDECIDED or late(deadline):
        return verdict
    witness = find_witness(a, b, seed=verdict.certificate.seed, fixed=known, deadline=deadline)
    if witness is not None:
        return verdict.refuted(witness)
    if late(deadline):
        return verdict
    return verdict.undecided(
        f"{verdict.reason.removeprefix('undecided: ')}; neither float64 nor high precision shows a difference"
    )


def by_random_tests(
    a: Graph, b: Graph, *, max_error: float = 2**-40, seed: int | None = None, budget: float | None = None, known: Known = NOTHING
) -> Verdict:
    """What random tests say of two kernel graphs: equivalent with a bound, or undecided; different by signature only.

    Both are evaluated on independent random inputs over random fields, at full size but for axes that are proved parallel,
    until the bound on the error is at most `max_error`, or the `budget` in seconds is spent (one test is always run).
    Where that shows nothing, a proof is put together of those of pieces (`mugraph.verifier.cut_points`).
    What is equal at no input, as one graph divides by zero whatever it is given, is not called equivalent.
    Where no bound can be had, a fixed number of tests is run for what that is worth. The inputs in `known` have the values
    given there, and no others. A pair whose slices agreed before, because it is another size of its parallel axes, is not tested
    again unless a `seed` is given (by default it is drawn from the operating system), and a graph is not tested against itself.
    Element types and names do not matter. Raises InvalidInput unless 0 < max_error < 1, and for known values that are no numbers.
    """
    check_max_error(max_error)
    check_known(known)
    mismatch = signature_mismatch(a, b)
    if mismatch is not None:
        return mismatched(a, b, mismatch, max_error, seed)
    if digest(a) == digest(b):
        return Verdict(Certificate.of_itself(digest(a), max_error, seed_or_fresh(seed)))
    deadline = None if budget is None else time.monotonic() + budget
    verification = _Verification(*_sides(a, b, known), max_error, seed, deadline)
    cut = functools.partial(in_pieces, a, b, known, max_error, seed, deadline)
    attempts: list[Callable[[], Verdict | None]] = [verification.with_bound, cut]
    verdict: Verdict | None = None
    for attempt in (*(reversed(attempts) if verification.is_large else attempts), verification.of_many_exponentials):
        in_time = not late(deadline)
        verdict = attempt() or verdict
        if (verdict is not None and verdict.equivalent) or (in_time and late(deadline)):  # bounds of what is large take long
            break
    verdict = verdict or verification.by_laws()
    if verdict.equivalent and (nowhere := nowhere_defined(verification.left, verification.right, verification.known)):
        verdict = verdict.undecided(nowhere)
    return replace(verdict, certificate=replace(verdict.certificate, left=digest(a), right=digest(b)))


def are_large(a: Graph, b: Graph, known: Known = NOTHING) -> bool:
    """Whether tests of two kernel graphs on the same inputs are large, so that a proof in pieces is tried first."""
    if signature_mismatch(a, b) is not None:
        return False
    return len(a.kernels()) > _MANY_OPERATORS or _Verification(*_sides(a, b, known), 0.5, None, None).is_large


def is_beyond_tests(graph: Graph, max_error: float = 2**-40) -> bool:
    """Whether the degrees of a kernel graph alone are too large for a bound of tests: of what equals it, proofs in pieces at most
    have one (`mugraph.verifier.cut_points`).

    Degrees in full size are as large as in slices or larger. Where these have no bound, slices are looked at, unless it is long.
    """
    left, right, known = _sides(graph, graph, NOTHING)
    if not _have_no_bound(left, right, max_error):
        return False
    if len(graph.kernels()) > _LOOKED_AT_IN_SLICES:
        return True
    own = _Verification(left, right, known, max_error, None, None).slice
    return _have_no_bound(own.left, own.right, max_error)


def _have_no_bound(left: Graph, right: Graph, max_error: float) -> bool:
    """Whether tests of two graphs of large degrees have no bound."""
    return all(
        difference_of(left, right, semantics=semantics).rounds_for(max_error) is None
        for semantics in (Semantics.FREE, Semantics.ROOTS)
    )


def recheck(certificate: Certificate, a: Graph, b: Graph, known: Known = NOTHING) -> None:
    """Repeat the tests of a verification from its record, in fields of the family that it names, whichever would be chosen now.

    Raises InvalidInput, naming what does not match.
    """
    certificate.check()
    for name, graph, recorded in (("left", a, certificate.left), ("right", b, certificate.right)):
        if digest(graph) != recorded:
            raise InvalidInput(f"certificate: the {name} graph is not the one that was verified")
    mismatch = signature_mismatch(a, b)
    if mismatch is not None:
        raise InvalidInput(f"certificate: {mismatch}")
    if certificate.accepted and not certificate.untested and (nowhere := nowhere_defined(*_sides(a, b, known))):
        raise InvalidInput(f"certificate: {nowhere}")
    if certificate.pieces:
        _recheck_pieces(certificate, *_cores(a, b, known))
        return
    if certificate.untested:
        again = Certificate.of_itself(digest(a), certificate.max_error, certificate.seed)
    else:
        apart = any(axis.apart for axis in certificate.axes)
        sides = _sides(a, b, known)
        asked = _Verification(*sides, certificate.max_error, certificate.seed, None, certificate.difference, apart)
        again = asked.tested().certificate
    for name in ("axes", "difference", "semantics", "rounds", "error_bound", "outcome"):
        if getattr(again, name) != getattr(certificate, name):
            raise InvalidInput(f"certificate: {name!r} is not what repeating the verification gives")


def _recheck_pieces(certificate: Certificate, left: Graph, right: Graph, known: Known) -> None:
    check_pieces(left, right, certificate.pieces)
    if certificate.axes and certificate.axes != simple_slice(left, right).axes:
        raise InvalidInput("certificate: 'axes' is not what repeating the verification gives")
    for piece, (ours, theirs, inputs) in zip(certificate.pieces, graphs_of(left, right, certificate.pieces), strict=True):
        recheck(piece.certificate, ours, theirs, of_inputs(known, inputs))


def in_pieces(
    a: Graph, b: Graph, known: Known, max_error: float, seed: int | None, deadline: float | None, *more: Prove
) -> Verdict | None:
    """The verdict of a proof that is put together of those of pieces; None where there is none.

    Tests with a bound show that the sides of a piece are equal; if they do not, `more` may.
    """
    provers: list[Prove] = [functools.partial(prove_piece, seed, deadline), *more]
    left, right, values = _cores(a, b, known)
    found = None if late(deadline) else composed(left, right, values, max_error, provers, deadline)
    if found is None:
        return None
    pieces, passed_over = found
    axes = () if values else simple_slice(left, right).axes
    whole = Certificate(digest(a), digest(b), seed_or_fresh(seed), max_error, (), 0, axes, None, (), None, *_AGREED)
    whole = replace(whole, pieces=pieces, passed_over=passed_over, semantics=semantics_of(pieces))
    return Verdict(replace(whole, error_bound=whole.bound_of_entries))


def prove_piece(
    seed: int | None, deadline: float | None, a: Graph, b: Graph, max_error: float, known: Known
) -> Certificate | None:
    """What tests for which there are bounds say of two graphs; None where they say nothing, or no time is left."""
    if late(deadline):
        return None
    if digest(a) == digest(b):
        return Certificate.of_itself(digest(a), max_error, seed_or_fresh(seed))
    verdict = _Verification(*_sides(a, b, known), max_error, seed, deadline).with_bound()
    return None if verdict is None else replace(verdict.certificate, left=digest(a), right=digest(b))


_TOO_LARGE = "the degrees are too large for these fields; verify parts of the program apart"
_AGREED = (Outcome.EQUIVALENT, Tests.AGREED, "")


def _cores(a: Graph, b: Graph, known: Known) -> tuple[Graph, Graph, Known]:
    """Two graphs, or the cores of those that look something up, and the known values of their inputs."""
    cores = core_pair(a, b, known)
    return (a, b, known) if cores is None else (cores.left, cores.right, cores.known)


def _sides(a: Graph, b: Graph, known: Known) -> tuple[Graph, Graph, Known]:
    """The same of two graphs whose operators are spelled out, which is what is tested."""
    return _cores(spelled_out(a), spelled_out(b), known)


@dataclass(slots=True)
class _Verification:
    """One pair of graphs on the way to a verdict."""

    left: Graph
    right: Graph
    known: Known
    max_error: float
    seed: int | None
    deadline: float | None
    recorded: Difference | None = None
    """The bounds of a verification that is repeated."""
    apart: bool = True
    """Whether inputs that are read in two ways may be two, as long as tests agree."""
    slice: Slice = field(init=False)
    joint: Slice = field(init=False)
    """The slices in which no input is two, which are tested where the others do not agree."""
    difference: Difference | None = field(init=False)
    trials: Trials = field(init=False)
    different: Verdict | None = None
    """What is to be said if nothing is known but that tests under free semantics differ."""
    obstacle: str = ""
    """Why tests with a bound do not decide."""

    def __post_init__(self) -> None:
        self.joint = shared_slice(self.left, self.right, self.is_uniform, simple=False)
        self.slice = separate_slice(self.joint, self.is_uniform, self.known) if self.apart else self.joint

    def is_uniform(self, before: Graph, after: Graph, axis: ParallelAxis) -> bool:
        """Whether no known value stands along an axis: one slice of it would not stand for all."""
        return all(axis.inputs[number] is None for number in self.known)

    def with_bound(self) -> Verdict | None:
        """What is known of the slices, or else what tests say for which there are bounds; None where no such test decides."""
        verdict = self.of_slices_with_bound()
        if (verdict is not None and verdict.equivalent) or self.slice is self.joint or late(self.deadline):
            return verdict
        self.slice, self.different, self.obstacle = self.joint, None, ""
        return self.of_slices_with_bound()

    def of_slices_with_bound(self) -> Verdict | None:
        """The same of the slices as they are."""
        if self.known:
            return self.bounded()
        question = Question(self.slice.left, self.slice.right, self.max_error, self.seed)
        if (before := AGREEMENTS.find(question)) is not None:
            self.trials, self.difference = before.trials, before.difference
            return Verdict(self.certificate(Outcome.EQUIVALENT, Tests.AGREED, "", before.error_bound))
        verdict = self.bounded()
        if verdict is not None and verdict.equivalent:
            AGREEMENTS.keep(question, Agreement(self.trials, self.difference, verdict.error_bound))
        return verdict

    def bounded(self) -> Verdict | None:
        """What tests say for which there are bounds."""
        return self.freely() or self.by_properties() or self.by_roots()

    def tested(self) -> Verdict:
        """What tests say, also those without a bound."""
        return self.bounded() or self.of_many_exponentials() or self.by_laws()

    def difference_under(self, semantics: Semantics) -> Difference:
        """What bounds the difference of the slices."""
        sides = self.slice.left, self.slice.right
        return difference_of(*sides, semantics=semantics, known=self.known, recorded=self.recorded)

    def freely(self) -> Verdict | None:
        """The verdict of tests under free semantics, of which only square roots and properties may know better; None if so."""
        self.difference = self.difference_under(Semantics.FREE)
        if (rounds := self.difference.rounds_for(self.max_error)) is None:
            self.obstacle = _TOO_LARGE
            return None
        found = self.tests(Semantics.FREE, rounds, self.difference)
        if isinstance(found, str):
            return self.undecided(found, Tests.IMPOSSIBLE)
        if found is None:
            return self.agreed_with_bound()
        self.different = self.differing(found)
        return None if self.outside_lax & {"sqrt", *WITH_PROPERTIES} else self.different

    def by_properties(self) -> Verdict | None:
        """The verdict of tests in which functions have their properties, of which only square roots may know better."""
        if self.different is None or not self.outside_lax & WITH_PROPERTIES:
            return None
        difference = self.difference_under(Semantics.PROPERTIES)
        if (rounds := difference.rounds_for(self.max_error)) is not None:
            self.difference = difference
            if self.tests(Semantics.PROPERTIES, rounds, difference) is None:
                return self.agreed_with_bound()
        # by name: roots have semantics of their own, which are tried next
        return None if "sqrt" in self.outside_lax else self.different

    def by_roots(self) -> Verdict | None:
        """The verdict of tests in which roots square back, where they agree."""
        return None if self.obstacle else self._under_roots()

    def of_many_exponentials(self) -> Verdict | None:
        """The verdict of tests in which exponentials are functions like others, and roots square back, where they agree.

        There may be many more of them than where products of them are those of sums.
        """
        # by name: only exponentials have other degrees there
        return self._under_roots() if self.obstacle == _TOO_LARGE and "exp" in self.outside_lax else None

    def _under_roots(self) -> Verdict | None:
        self.difference = self.difference_under(Semantics.ROOTS)
        if (rounds := self.difference.rounds_for(self.max_error)) is None:
            self.obstacle = self.obstacle or "the degrees of their square roots are too large; verify parts of the program apart"
            return None
        found = self.tests(Semantics.ROOTS, rounds, self.difference)
        if found is None:
            return self.agreed_with_bound()
        self.obstacle = self.obstacle or (found if isinstance(found, str) else _NEITHER_LAW_ALONE)
        return None

    def by_laws(self) -> Verdict:
        """What tests under all laws show, without a bound."""
        wanted = self.rounds_without_bound()
        found = self.tests(Semantics.LAWS, wanted)
        if isinstance(found, str):
            return self.undecided(found, Tests.IMPOSSIBLE)
        if found is not None:
            return self.differing(found)
        if (tests := len(self.trials.rounds)) < wanted:  # one root of each number may hide what the other shows
            ended = f"the budget ended after {tests} of {wanted} tests, for which no bound can be stated"
            return self.undecided(ended, Tests.UNFINISHED)
        return self.undecided(f"agrees in {tests} tests, for which no bound can be stated: {self.obstacle}", Tests.AGREED)

    def rounds_without_bound(self) -> int:
        """How many tests under all laws are to agree."""
        # by name: tests of roots go through all choices of signs
        if "sqrt" in self.outside_lax:
            return _ROOTS_ROUNDS
        elements = sum(math.prod(shape) for shape in input_shapes(self.slice.left))
        least, most = _LAWS_ROUNDS
        return min(most, max(least, _LAWS_ELEMENTS // max(1, elements)))

    @property
    def is_large(self) -> bool:
        """Whether pieces are tried first, each of which may have slices of its own."""
        return sum(math.prod(shape) for shape in input_shapes(self.slice.left)) > _PIECES_FIRST

    @property
    def outside_lax(self) -> frozenset[str]:
        """Operators that are no rational functions."""
        return beyond_rational(self.left) | beyond_rational(self.right)

    def tests(self, semantics: Semantics, rounds: int, difference: Difference | None = None) -> Counterexample | str | None:
        """Run tests: the first difference, None when all agreed, or why the question stays open; one is run in any case.

        They are those that `difference` bounds; without it there is no bound.
        """
        family, count, alike, roots = LAWS_FAMILY, False, False, frozenset[int]()
        if difference is not None:
            family, count, alike = difference.family, difference.exponentials, difference.alike
            roots = frozenset(difference.root_variables)
        asked = self.slice.left, self.slice.right, semantics, family, seed_or_fresh(self.seed)
        self.trials = Trials(*asked, count, alike, self.deadline, self.known, roots)
        while len(self.trials.rounds) < rounds and not (self.trials.rounds and late(self.deadline)):
            try:
                found = self.trials.test()
            except (UndefinedInField, TooManyRadicands) as error:
                return str(error)
            if found is not None:
                return found
        return None

    def agreed_with_bound(self) -> Verdict:
        assert self.difference is not None
        bound = self.difference.error_bound(len(self.trials.rounds))
        if bound > self.max_error:
            tests = len(self.trials.rounds)
            ended = f"the budget ended after {tests} tests, which bound the error by {at_most(bound)} only"
            return self.undecided(ended, Tests.UNFINISHED, bound)
        return Verdict(self.certificate(Outcome.EQUIVALENT, Tests.AGREED, "", bound))

    def undecided(self, reason: str, tests: Tests, bound: float | None = None) -> Verdict:
        return Verdict(self.certificate(Outcome.UNDECIDED, tests, f"undecided: {reason}", bound))

    def differing(self, found: Counterexample) -> Verdict:
        """Residues that differ are no witness: the programs may agree by a law that fields do not model."""
        reason = f"the tests see a difference, which a law of real numbers that they do not model may explain ({found})"
        return self.undecided(f"{reason}; {self.obstacle}" if self.obstacle else reason, Tests.DIFFERED)

    def certificate(self, outcome: Outcome, tests: Tests, reason: str, error_bound: float | None = None) -> Certificate:
        bounded = self.trials.semantics is not Semantics.LAWS
        return Certificate(
            left=digest(self.left),
            right=digest(self.right),
            seed=self.trials.seed,
            max_error=self.max_error,
            rounds=tuple(self.trials.rounds),
            redraws=self.trials.invalid,
            axes=self.slice.axes,
            difference=self.difference if bounded else None,
            semantics=meanings(self.outside_lax, self.trials.semantics),
            error_bound=error_bound,
            outcome=outcome,
            tests=tests,
            reason=reason,
        )


def mismatched(a: Graph, b: Graph, found: Counterexample, max_error: float, seed: int | None) -> Verdict:
    """The verdict on programs that differ by what was found without tests."""
    left, right, drawn = digest(a), digest(b), seed_or_fresh(seed)
    outcome, tests = Outcome.DIFFERENT, Tests.IMPOSSIBLE
    return Verdict(Certificate(left, right, drawn, max_error, (), 0, (), None, (), None, outcome, tests, str(found)), found)
