"""Equivalence of muGraphs by random tests over finite fields, at full size (paper, section 5)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldPair, FieldValue
from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph
from mugraph.verifier.batched import evaluate_batched
from mugraph.verifier.bounds import REDRAWS, Difference, difference_of, outside_theory
from mugraph.verifier.certificate import Certificate, Round, digest
from mugraph.verifier.counterexamples import Counterexample, floating_point_counterexample, mismatch
from mugraph.verifier.residues import Residues, residues_needed

_UNBOUNDED_ROUNDS = 2
"""Tests of programs for which no bound can be stated."""

_SEMANTICS = {
    "exp": "omega**x modulo p for a random omega of order q: exp(x + y) = exp(x) exp(y), and nothing else, is assumed",
    "accumulate_rescaled": "a sum of products with exp, as the operator is defined",
    "sqrt": "x**((p+1)/4) and x**((3p-1)/4) in turn: multiplicative, roots of every square; sqrt(a)**2 = a holds up to sign",
    "max": "the maximum under a random total order: associative, commutative, idempotent",
}
_RANDOM_FUNCTION = "a random function: equal arguments give equal results, and nothing else is assumed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of `verify_graphs`.

    `equivalent` is True when every test agreed and reached `max_error` or no bound exists; `error_bound` is that of the
    certificate. Otherwise `counterexample` says where the graphs differ; it is None when the question stayed undecided,
    and `reason` says why.
    """

    equivalent: bool
    counterexample: Counterexample | None
    certificate: Certificate

    @property
    def error_bound(self) -> float | None:
        """The probability that a pair which is not equivalent is accepted; None where none can be stated."""
        return self.certificate.error_bound

    @property
    def reason(self) -> str:
        """Why there is no bound or no answer; empty when there is nothing to explain."""
        return self.certificate.reason


def verify_graphs(a: Graph, b: Graph, *, max_error: float = 2**-40, seed: int = 0, budget: float | None = None) -> Verdict:
    """Whether two kernel graphs (with graph-defined nodes or without) compute the same outputs, inputs taken in order.

    Both are evaluated at their full sizes on independent random inputs over random fields, until the bound on the error
    is at most `max_error`, or the `budget` in seconds is spent (one test is always run). Element types and names do not
    matter. Raises InvalidInput unless 0 < max_error < 1.
    """
    if not 0 < max_error < 1:
        raise InvalidInput(f"max_error must lie between 0 and 1, not {max_error}")
    signature = _signature_mismatch(a, b)
    tests = _Tests(a, b, max_error, seed)
    if signature is not None:
        return tests.refuted(signature)
    return tests.run(None if budget is None else time.monotonic() + budget)


def recheck(certificate: Certificate, a: Graph, b: Graph) -> None:
    """Repeat an accepted verification from its record. Raises InvalidInput, naming what does not match."""
    certificate.check()
    for name, graph, recorded in (("left", a, certificate.left), ("right", b, certificate.right)):
        if digest(graph) != recorded:
            raise InvalidInput(f"certificate: the {name} graph is not the one that was verified")
    again = verify_graphs(a, b, max_error=certificate.max_error, seed=certificate.seed).certificate
    for name in ("difference", "semantics", "rounds", "error_bound", "accepted"):
        if getattr(again, name) != getattr(certificate, name):
            raise InvalidInput(f"certificate: {name!r} is not what repeating the verification gives")


def _signature_mismatch(a: Graph, b: Graph) -> Counterexample | None:
    for what, left, right in (
        ("input", _input_shapes(a), _input_shapes(b)),
        ("output", [t.shape for t in a.output_tensors], [t.shape for t in b.output_tensors]),
    ):
        if len(left) != len(right):
            return Counterexample(f"one takes or gives {len(left)} {what}s, the other {len(right)}")
        for number, (shape, other) in enumerate(zip(left, right, strict=True)):
            if shape != other:
                return Counterexample(f"{what} {number} has shape {list(shape)} in one and {list(other)} in the other")
    return None


def _input_shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [node.output.shape for node in graph.nodes if node.op == "input"]


@dataclass(slots=True)
class _Tests:
    """The tests of one pair of graphs, as they accumulate."""

    left: Graph
    right: Graph
    max_error: float
    seed: int
    rounds: list[Round] = field(default_factory=list)
    draws: int = 0
    difference: Difference | None = None

    def run(self, deadline: float | None) -> Verdict:
        if not self.outside():
            self.difference = difference_of(self.left, self.right)
        wanted = self.wanted()
        while len(self.rounds) < wanted:
            if self.rounds and deadline is not None and time.monotonic() > deadline:
                break
            try:
                found = self.test()
            except UndefinedInField as error:
                if self.draws - len(self.rounds) > REDRAWS:
                    return self.undecided(f"undecided: no test could be evaluated: {error}")
                continue
            if found is not None:
                return self.refuted(found)
        return self.agreed()

    def outside(self) -> frozenset[str]:
        return outside_theory(self.left) | outside_theory(self.right)

    def wanted(self) -> int:
        """How many tests `max_error` takes; a fixed number where no bound can be had."""
        if self.difference is None:
            return _UNBOUNDED_ROUNDS
        return self.difference.rounds_for(self.max_error) or _UNBOUNDED_ROUNDS

    def test(self) -> Counterexample | None:
        """Draw fields and inputs, and compare. Raises UndefinedInField where a denominator vanishes."""
        draw = self.draws
        self.draws += 1
        rng = np.random.default_rng([self.seed, draw])
        pair = FieldPair.draw(rng)
        omega = pair.root(rng)
        # Both square roots take part: sqrt(x) and sqrt(-x) agree under one of them.
        mirrored = len(self.rounds) % 2 == 1
        arith = FieldArithmetic(pair, omega=omega, seed=int(rng.integers(2**62)), mirrored=mirrored)
        inputs = [
            arith.random(shape, rng, p=Residues.P in (ours | theirs), q=Residues.Q in (ours | theirs))
            for shape, ours, theirs in zip(
                _input_shapes(self.left), residues_needed(self.left), residues_needed(self.right), strict=True
            )
        ]
        left, right = evaluate_batched(self.left, inputs, arith), evaluate_batched(self.right, inputs, arith)
        self.rounds.append(Round(draw, pair.p, pair.q, omega))
        return _first_difference(left, right, pair)

    def refuted(self, found: Counterexample) -> Verdict:
        if found.index is None:
            return Verdict(False, found, self.certificate(False, found.text))
        visible = floating_point_counterexample(self.left, self.right, self.seed)
        if visible is not None:
            return Verdict(False, visible, self.certificate(False, str(visible)))
        reason = f"{found}; no difference was found in float64, so the programs may agree by a law that fields do not model"
        return Verdict(False, found, self.certificate(False, reason))

    def undecided(self, reason: str) -> Verdict:
        return Verdict(False, None, self.certificate(False, reason))

    def agreed(self) -> Verdict:
        if outside := self.outside():
            names = ", ".join(sorted(outside))
            return Verdict(True, None, self.certificate(True, f"no bound: {names}: outside the theorem for rational programs"))
        bound = self.bound()
        if bound is None:
            return Verdict(True, None, self.certificate(True, "no bound: the degrees are too large for these fields"))
        if bound > self.max_error:
            reason = f"undecided: the budget ended after {len(self.rounds)} tests, which bound the error by {bound:.3g} only"
            return Verdict(False, None, self.certificate(False, reason, bound))
        return Verdict(True, None, self.certificate(True, "", bound))

    def bound(self) -> float | None:
        """The error that the tests so far leave, where `max_error` can be reached at all."""
        if self.difference is None or self.difference.rounds_for(self.max_error) is None:
            return None
        return self.difference.error_bound(len(self.rounds))

    def certificate(self, accepted: bool, reason: str, error_bound: float | None = None) -> Certificate:
        semantics = tuple((name, _SEMANTICS.get(name, _RANDOM_FUNCTION)) for name in sorted(self.outside()))
        return Certificate(
            left=digest(self.left),
            right=digest(self.right),
            seed=self.seed,
            max_error=self.max_error,
            rounds=tuple(self.rounds),
            redraws=self.draws - len(self.rounds),
            difference=self.difference,
            semantics=semantics,
            error_bound=error_bound,
            accepted=accepted,
            reason=reason,
        )


def _first_difference(left: Sequence[FieldValue], right: Sequence[FieldValue], pair: FieldPair) -> Counterexample | None:
    for number, (x, y) in enumerate(zip(left, right, strict=True)):
        components: list[tuple[str, Array, Array]] = [(f"modulo {pair.p}", x.p, y.p)]
        if x.q is not None and y.q is not None:
            components.append((f"modulo {pair.q}", x.q, y.q))
        for arithmetic, ours, theirs in components:
            if not np.array_equal(ours, theirs):
                return mismatch(number, ours, theirs, np.asarray(ours != theirs), arithmetic)
    return None
