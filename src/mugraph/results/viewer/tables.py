"""The numbers of a result as rows of tables: candidates, what was dropped, what the search visited, where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from mugraph.devices import device_for, roofline_seconds
from mugraph.devices.roofline import compulsory_bytes, product_flops
from mugraph.ir.graph import Graph
from mugraph.lower.tile_form import Buffer, Kernel, Memory
from mugraph.results.data import Candidate, Report, Result
from mugraph.results.viewer.labels import bytes_words
from mugraph.results.words import extent, seconds_text
from mugraph.runtime.baselines import OURS, BaselineComparison
from mugraph.runtime.benchmarking import Spread


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


@dataclass(frozen=True, slots=True)
class BufferRow:
    """A buffer of a lowered kernel beside the tensors of device memory."""

    name: str
    memory: str
    dtype: str
    size: str
    offset: str
    """Of its first byte in the block's memory; empty for registers."""


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A way to run the function, as it was timed; `ours` marks the result's own calls."""

    name: str
    ours: bool
    median: str
    quartiles: str
    ratio: str
    share: str
    """What the roofline allows, of the median."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a call of the program must do at least, with units: floating-point operations of products, bytes, time."""

    flops: str
    bytes: str
    floor: str


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


def buffer_rows(opt: Result) -> dict[int, tuple[BufferRow, ...]]:
    """The buffers that the blocks of each kernel have, as they were lowered, by the kernel's node."""
    shared = "the worker's scratch memory" if opt.target == "cpu" else "shared memory"
    words = {Memory.SHARED: shared, Memory.REGISTERS: "registers", Memory.ROWS: "registers"}
    found: dict[int, tuple[BufferRow, ...]] = {}
    for index, launch in opt.executable.placement.launches.items():
        if isinstance(launch.kernel, Kernel):
            own = (buffer for buffer in launch.kernel.buffers if buffer.memory in words)
            found[index] = tuple(_buffer_row(buffer, words[buffer.memory]) for buffer in own)
    return found


def _buffer_row(buffer: Buffer, memory: str) -> BufferRow:
    offset = str(buffer.offset) if buffer.memory is Memory.SHARED else ""
    return BufferRow(buffer.name, memory, str(buffer.dtype), bytes_words(buffer.bytes), offset)


def timed_rows(comparison: BaselineComparison | None, floor: float | None) -> list[TimedRow]:
    """A result's calls and those of each baseline, the fastest first; none where nothing was compared. `floor` is the time that
    no schedule can beat, where that is known."""
    if comparison is None:
        return []
    duels = comparison.duels
    timed: list[tuple[str, Spread | None, float | None]] = [(name, duel.theirs, duel.speedup) for name, duel in duels.items()]
    timed += [(OURS, duel.ours, None) for duel in duels.values()][:1]
    known = sorted(
        ((spread.median, name, spread, speedup) for name, spread, speedup in timed if spread is not None), key=itemgetter(0)
    )
    return [
        TimedRow(
            name,
            speedup is None,
            seconds_text(median),
            f"{seconds_text(spread.low)} to {seconds_text(spread.high)}",
            "" if speedup is None else _ratio_text(speedup),
            "" if floor is None else f"{floor / median:.0%}",
        )
        for median, name, spread, speedup in known
    ]


def work(opt: Result) -> Work:
    """What a call of the program must do at least."""
    return Work(
        f"{sum(product_flops(opt.program).values()):,.0f} floating-point operations of products",
        bytes_words(compulsory_bytes(opt.program)),
        seconds_text(roofline_seconds(opt.program, device_for(opt.target))),
    )


def _ratio_text(speedup: float) -> str:
    return f"{speedup:.2f}× faster" if speedup >= 1 else f"{1 / speedup:.2f}× slower"


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
    """Where the time went, and how long it took in all."""
    stages = {
        "search": report.seconds,
        "compilation": report.compile_seconds,
        "measurement": report.measure_seconds,
        "verification": report.verify_seconds,
        "in all": report.total_seconds,
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
