"""The numbers of a result as rows of tables: candidates, what was dropped, what the search visited, where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mugraph.ir.graph import Graph
from mugraph.results.data import Candidate, Report
from mugraph.results.words import extent, seconds_text


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A verified muGraph; `runs` marks the one that the result calls."""

    number: int
    runs: bool
    schedule: tuple[str, ...]
    """Grid and loop of each kernel."""
    operators: str
    predicted: str
    measured: str
    error: str
    error_ratio: str
    blocks_run: str
    """Of its printed kernels, where their machine is not here."""


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """muGraphs that were dropped for the same reason."""

    count: int
    stage: str
    reason: str
    predicted: str
    """Of the best of them."""


@dataclass(frozen=True, slots=True)
class TierRow:
    """One tier of abstraction of the search; counts are written out."""

    tier: str
    exhausted: str
    counts: tuple[str, ...]


TIER_COUNTS = {"closures": "closures", "states": "tensors", "edges": "applications", "derivations": "derivations"}
"""Keys of a tier's report, and the heads of their columns."""


def candidate_row(number: int, candidate: Candidate, runs: bool) -> CandidateRow:
    """The row of a candidate."""
    error, ratio, check = candidate.max_relative_error, candidate.error_ratio, candidate.spot_check
    return CandidateRow(
        number,
        runs,
        tuple(schedule(candidate.graph)),
        ", ".join(str(node.body.operator_count()) for node in candidate.graph.kernels() if node.body is not None),
        optional_seconds(candidate.cost),
        optional_seconds(candidate.latency),
        "" if error is None else f"{error:.1e}",
        "" if ratio is None else f"{ratio:.1f}",
        "" if check is None else f"{check.ran} of {check.blocks}",
    )


def schedule(graph: Graph) -> list[str]:
    """What each kernel of a graph is: its grid and loop, or the operator of the table that runs by itself."""
    return [node.op if node.body is None else extent(node.body) for node in graph.kernels()]


def dropped_rows(report: Report) -> list[DroppedRow]:
    """What was dropped and why, equal reasons together, in the order in which they were met."""
    counts = Counter((rejection.stage, rejection.reason) for rejection in report.rejected)
    best: dict[tuple[str, str], float] = {}
    for rejection in report.rejected:
        if rejection.cost is not None:
            key = (rejection.stage, rejection.reason)
            best[key] = min(rejection.cost, best.get(key, rejection.cost))
    return [DroppedRow(count, *key, optional_seconds(best.get(key))) for key, count in counts.items()]


def tier_rows(search: Mapping[str, Any]) -> list[TierRow]:
    """The tiers of the closure search; none where Algorithm 1 searched."""
    return [
        TierRow(tier["tier"], _exhausted_text(tier), tuple(f"{tier[key]:,}" for key in TIER_COUNTS))
        for tier in search.get("tiers", ())
    ]


def pruned_rows(search: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was left out of the search: reasons and counts, the most frequent first."""
    pruned: Mapping[str, int] = search.get("pruned", {})
    return [(reason, f"{count:,}") for reason, count in sorted(pruned.items(), key=lambda item: -item[1])]


def times(report: Report) -> list[tuple[str, str]]:
    """Where the time of the whole call went."""
    stages = {
        "search": report.seconds,
        "compilation": report.compile_seconds,
        "measurement": report.measure_seconds,
        "verification": report.verify_seconds,
        "whole call": report.total_seconds,
    }
    return [(stage, seconds_text(seconds)) for stage, seconds in stages.items()]


def optional_seconds(seconds: float | None) -> str:
    """A time, or nothing."""
    return "" if seconds is None else seconds_text(seconds)


def _exhausted_text(tier: Mapping[str, Any]) -> str:
    if not tier["bound"]:
        return "no"
    cuts = ", cuts too" if tier["exhausted"] and tier.get("cuts_complete") else ""
    return f"to {tier['bound']} operators{cuts}"
