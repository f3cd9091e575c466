"""The evidence that candidates are kept for."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from mugraph.ir.graph import Graph
from mugraph.ir.readings import readings
from mugraph.verifier import Verdict, by_random_tests, verify_graphs

Evidence = Literal["bounded", "tested"]
"""What candidates are kept for: equivalence with a bound on the error, or also agreement in tests for which there is none."""


def judged(program: Graph, graph: Graph, evidence: Evidence, *, max_error: float, seed: int | None, budget: float) -> Verdict:
    """What tests show of a muGraph; where those without a bound are to count, it is looked at in high precision, too."""
    ask = verify_graphs if evidence == "tested" else by_random_tests
    verdict = ask(program, graph, max_error=max_error, seed=seed, budget=budget)
    return replace(verdict, certificate=replace(verdict.certificate, readings=readings(program)))


def suffices(verdict: Verdict, evidence: Evidence) -> bool:
    """Whether a candidate is kept."""
    return verdict.equivalent or (evidence == "tested" and verdict.certificate.agreed)


def why_dropped(verdict: Verdict) -> str:
    """Why a candidate is not."""
    if not verdict.certificate.agreed:
        return verdict.reason
    return f'{verdict.reason}; evidence="tested" keeps such candidates'
