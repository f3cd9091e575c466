"""Certificates survive JSON, can be repeated, and do not survive tampering."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mugraph.errors import InvalidInput
from mugraph.ir import Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.verifier import Certificate, float_check, recheck, verify_graphs
from mugraph.verifier.certificate import at_most, power_of_two
from mugraph.verifier.vectorized_eval import evaluate_batched

from .graphs import fused_rmsnorm, program, rmsnorm

SHAPES = ((3, 8), (8, 2))


def rational_pair() -> tuple[Graph, Graph]:
    left = program(lambda x, w: (x / x.sum(-1, keepdim=True)) @ w * Fraction(1, 2**150), *SHAPES)
    right = program(lambda x, w: (x @ w) / x.sum(-1, keepdim=True) * Fraction(1, 2**150), *SHAPES)
    return left, right


@pytest.mark.parametrize("pair", [rational_pair(), (rmsnorm(), fused_rmsnorm()), (rmsnorm(), fused_rmsnorm(scale=False))])
def test_json_round_trip(pair: tuple[Graph, Graph]) -> None:
    certificate = verify_graphs(*pair).certificate
    assert Certificate.from_json(json.loads(json.dumps(certificate.to_json()))) == certificate


@pytest.mark.parametrize(("bound", "words"), [(5.334e-14, "5.34e-14"), (0.25, "0.25"), (0.0, "0"), (1, "1")])
def test_a_bound_in_three_digits_is_never_below_it(bound: float, words: str) -> None:
    assert at_most(bound) == words
    assert Decimal(words) >= Decimal(bound)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (1024, "1024"),
        (1025, "2^11"),
        (2**2000 + 1, "2^2001"),
        (2.0**-41, "2^-41"),
        (1.01 * 2.0**-41, "2^-40"),
    ],
)
def test_a_bound_as_a_power_of_two_is_never_below_it(number: float, words: str) -> None:
    assert power_of_two(number) == words


def test_a_terminal_shows_a_certificate_and_a_verdict_in_a_line() -> None:
    verdict = verify_graphs(rmsnorm(), fused_rmsnorm())
    bound = power_of_two(verdict.certificate.error_bound or 0.0)
    assert repr(verdict.certificate) == f"<Certificate: equivalent, but for a probability of at most {bound}>"
    assert repr(verdict) == f"<Verdict: equivalent, but for a probability of at most {bound}>"
    assert repr(replace(verdict, domain="x > 0")).endswith("; only where both are defined: x > 0>")
    assert repr(verdict.undecided("no time")) == "<Verdict: undecided: no time>"
    assert repr(verify_graphs(rmsnorm(), fused_rmsnorm(scale=False))).startswith("<Verdict: different: ")


def test_an_accepted_certificate_can_be_repeated() -> None:
    left, right = rational_pair()
    certificate = verify_graphs(left, right, seed=11).certificate
    assert "every output element is the same function" in certificate.claim
    recheck(Certificate.from_json(certificate.to_json()), left, right)


def test_a_certificate_is_repeated_in_the_fields_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another family may be chosen now, of which another number of tests is needed."""
    left = program(lambda x: x.softmax(-1), (64, 512))
    right = program(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), (64, 512))
    monkeypatch.setattr("mugraph.verifier.bounds._OF_ELEMENT", 0.0)
    before = verify_graphs(left, right, seed=5).certificate
    monkeypatch.setattr("mugraph.verifier.bounds._OF_ELEMENT", 1000.0)
    now = verify_graphs(left, right, seed=6).certificate
    assert before.difference is not None
    assert now.difference is not None
    assert before.difference.family.q_bits > now.difference.family.q_bits
    assert len(before.rounds) > len(now.rounds)
    recheck(before, left, right)
    recheck(now, left, right)
    claimed = replace(now, difference=replace(now.difference, conjugates=0))
    assert claimed.bound_of_entries is not None
    with pytest.raises(InvalidInput, match="difference"):
        recheck(replace(claimed, error_bound=claimed.bound_of_entries), left, right)


def test_a_certificate_of_other_graphs_is_rejected() -> None:
    left, right = rational_pair()
    certificate = verify_graphs(left, right).certificate
    other = program(lambda x, w: (x @ w) / (x.sum(-1, keepdim=True) * 2), *SHAPES)
    with pytest.raises(InvalidInput, match="right graph"):
        recheck(certificate, left, other)
    with pytest.raises(InvalidInput, match="left graph"):
        recheck(certificate, right, right)


def change(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = to

    return apply


CONTRADICTIONS = {
    "a smaller bound": (change("error_bound", to=1e-60), "error_bound"),
    "a smaller degree": (change("difference", "output", "degree", to=1), "error_bound"),
    "a newer format": (change("format", to=99), "written by a newer mugraph"),
    "an older format": (change("format", to=1), "use the mugraph that wrote it"),
    "a composite prime": (change("rounds", 0, "p", to=2147024880), "prime"),
    "omega of another order": (change("rounds", 0, "omega", to=1), "omega"),
    "a test counted twice": (change("rounds", 1, "draw", to=0), "distinct"),
    "fewer tests": (lambda record: record["rounds"].pop(), "error_bound"),
    "a stricter max_error": (change("max_error", to=1e-100), "max_error"),
    "no rounds": (lambda record: record.update(rounds=[], error_bound=None), "accepted"),
    "a missing entry": (lambda record: record.pop("seed"), "seed"),
    "a wrong type": (change("rounds", to=3), "type"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictory_certificates_are_not_read(name: str) -> None:
    tamper, complaint = CONTRADICTIONS[name]
    record = json.loads(json.dumps(verify_graphs(*rational_pair(), max_error=2**-60).certificate.to_json()))
    tamper(record)
    with pytest.raises(InvalidInput, match=complaint):
        Certificate.from_json(record)


def test_consistent_forgeries_fail_when_repeated() -> None:
    left, right = rational_pair()
    record = verify_graphs(left, right).certificate.to_json()
    forged = Certificate.from_json({**record, "seed": record["seed"] + 1})
    with pytest.raises(InvalidInput, match="rounds"):
        recheck(forged, left, right)


def test_accepting_what_was_refuted_fails_when_repeated() -> None:
    left, right = rmsnorm(), fused_rmsnorm(scale=False)
    record = verify_graphs(left, right).certificate.to_json()
    for forgery in ({"accepted": True}, {"accepted": True, "outcome": "equivalent"}):
        with pytest.raises(InvalidInput, match="accepted"):
            Certificate.from_json({**record, **forgery})
    of_another = verify_graphs(left, fused_rmsnorm()).certificate.to_json()
    forged = Certificate.from_json({**of_another, "right": record["right"]})
    with pytest.raises(InvalidInput, match=r"rounds|outcome|difference"):
        recheck(forged, left, right)


def measured() -> Certificate:
    """A certificate with the errors of the graph itself in float32."""

    def run(*inputs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return evaluate_batched(right, inputs, FloatArithmetic(np.float32))

    left, right = rmsnorm(), fused_rmsnorm()
    return replace(verify_graphs(left, right).certificate, floats=float_check(run, left, graph=right))


def test_float_errors_survive_json() -> None:
    certificate = measured()
    again = Certificate.from_json(json.loads(json.dumps(certificate.to_json())))
    assert again == certificate
    assert again.floats is not None
    assert again.floats.stable
    assert "of shape" in again.floats.blamed


FLOAT_CONTRADICTIONS = {
    "a larger error": (change("floats", "inputs", 0, "errors", to=[0.5]), "'stable' is True"),
    "not stable": (change("floats", "stable", to=False), "'stable' is False"),
    "a smaller summary": (change("floats", "max_relative_error", to=0.0), "max_relative_error"),
    "another ratio": (change("floats", "error_ratio", to=0.0), "error_ratio"),
    "another tolerance": (change("floats", "tolerances", to=[1.0]), "tolerances"),
    "an unknown type": (change("floats", "dtypes", to=["fp3"]), "fp3"),
    "too many errors": (change("floats", "inputs", 1, "errors", to=[0.0, 0.0]), "no errors of 1 outputs"),
    "an error below zero": (change("floats", "inputs", 1, "errors", to=[-1.0]), "no errors of 1 outputs"),
    "no inputs": (change("floats", "inputs", to=[]), "floats"),
}


@pytest.mark.parametrize("name", FLOAT_CONTRADICTIONS)
def test_contradicting_float_errors_are_named(name: str) -> None:
    alter, complaint = FLOAT_CONTRADICTIONS[name]
    record = json.loads(json.dumps(measured().to_json()))
    alter(record)
    with pytest.raises(InvalidInput, match=complaint):
        Certificate.from_json(record)


def test_a_graph_is_not_tested_against_itself() -> None:
    left, _ = rational_pair()
    certificate = verify_graphs(left, left).certificate
    assert certificate.accepted
    assert certificate.rounds == ()
    assert certificate.error_bound == 0.0
    recheck(Certificate.from_json(json.loads(json.dumps(certificate.to_json()))), left, left)
    with pytest.raises(InvalidInput, match="does not follow"):
        Certificate.from_json({**certificate.to_json(), "right": "0" * 64})
