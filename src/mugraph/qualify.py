"""From muGraphs the search proposes to muGraphs worth running: compiled, measured, proved, checked against float64.

Measuring comes before proving, because proving at full size takes seconds: the fastest are proved first, and only as
many as are kept. What was not proved is never returned.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mugraph.deadline import Deadline
from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph
from mugraph.lower.thread_graphs import construct
from mugraph.progress import Event, ProgressCallback
from mugraph.result import Candidate, Rejection
from mugraph.runtime import Executable, build, measure
from mugraph.runtime.cpu import Cpu
from mugraph.runtime.executable import machine_for
from mugraph.samples import runner
from mugraph.verifier import Certificate, FloatReport, Verdict, float_check, verify_graphs
from mugraph.verifier.floats import Runner

_COMPILED = 16
"""Proposals that are compiled and timed roughly, best predicted cost first."""
_FINALISTS = 5
"""Proposals that are timed carefully before proving."""
_KEPT = 3
"""Proposals that are proved, fastest first."""
_PROVING_SECONDS = 10.0
"""No further proof starts after this time once one candidate is kept: big programs do not wait for the runners-up."""
_HOPELESS = 3.0
"""The original program is not timed carefully when one run of it takes this many times as long as a candidate's."""
_ROUGH_ROUNDS, _CAREFUL_ROUNDS = 2, 20
_MEASURING_SECONDS = 3.0
"""After this time no further round starts."""

_Stage = Literal["compile", "measure", "verify"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A muGraph, its predicted seconds, its kernels, and the median and least seconds per call (infinity until measured)."""

    graph: Graph
    cost: float | None
    executable: Executable
    latency: float = math.inf
    least: float = math.inf

    def clearly_faster_than(self, other: Contestant) -> bool:
        """Whether a typical call takes less than even the quickest of the other: busy machines stretch single calls."""
        return self.latency < other.least


@dataclass(frozen=True, slots=True)
class Proved:
    """A contestant with the evidence that it computes the program."""

    entry: Contestant
    certificate: Certificate
    floats: FloatReport

    def candidate(self) -> Candidate:
        """What the user gets of it."""
        latency = self.entry.latency if math.isfinite(self.entry.latency) else None
        error = self.floats.max_relative_error
        return Candidate(self.entry.graph, self.entry.cost, latency, self.certificate, error)


@dataclass
class Qualifier:
    """The stages that one program's proposals go through, with the times and rejections for the report."""

    program: Graph
    target: str
    deadline: Deadline
    progress: ProgressCallback
    seed: int
    max_error: float
    baseline: Runner | None
    """The user's own function, whose rounding errors and range are the measure for candidates."""
    seconds: dict[_Stage, float] = field(default_factory=lambda: {"compile": 0.0, "measure": 0.0, "verify": 0.0})
    rejected: list[Rejection] = field(default_factory=list)

    def original(self) -> Contestant:
        """The program itself, run operator by operator."""
        with self._timed("compile"):
            return Contestant(self.program, None, build(self.program, self.target))

    def compile(self, proposals: Sequence[tuple[Graph, float]]) -> list[Contestant]:
        """Thread graphs and kernels for the first of the proposals: (muGraph, predicted seconds), best first."""
        compiled: list[Contestant] = []
        limit = self.deadline.share(0.3)
        tried = proposals[: _COMPILED if machine_for(self.target).available else _FINALISTS]  # nothing chooses among more
        with self._timed("compile"):
            started = time.monotonic()
            for number, (graph, cost) in enumerate(tried, start=1):
                if compiled and limit is not None and time.monotonic() - started > limit:
                    break
                self._tell("compile", f"candidate {number} of {len(tried)}")
                fused = construct(graph)
                try:
                    compiled.append(Contestant(fused, cost, build(fused, self.target)))
                except MugraphError as error:
                    self.rejected.append(Rejection("compile", str(error), cost))
        return compiled

    def rank(self, compiled: Sequence[Contestant], inputs: Sequence[Any]) -> list[Contestant]:
        """Fastest first: the front runners by a careful measurement, the rest by a rough one."""
        with self._timed("measure"):
            self._tell("measure", f"{len(compiled)} candidates")
            rough = _fastest_first(_measured(compiled, inputs, _ROUGH_ROUNDS))
            finalists = _fastest_first(_measured(rough[:_FINALISTS], inputs, _CAREFUL_ROUNDS))
        return [*finalists, *rough[_FINALISTS:]]

    def prove(self, ranked: Sequence[Contestant]) -> list[Proved]:
        """The first few that agree with float64 and are equivalent to the program, in the order given."""
        kept: list[Proved] = []
        with self._timed("verify"):
            started = time.monotonic()
            for entry in ranked:
                late = self.deadline.passed or time.monotonic() - started > _PROVING_SECONDS
                if len(kept) == _KEPT or (kept and late):
                    break
                self._tell("verify", f"candidate {len(kept) + 1} at full size")
                proved = self._proved(entry)
                if proved is not None:
                    kept.append(proved)
        return kept

    def settle(self, kept: Sequence[Proved], original: Contestant, inputs: Sequence[Any]) -> tuple[list[Proved], Contestant]:
        """The kept ones, fastest first, and the original, all timed in the same rounds."""
        entries = [proved.entry for proved in kept]
        with self._timed("measure"):
            self._tell("measure", "the verified candidates and the original program")
            (original,) = _measured([original], inputs, rounds=1)
            if entries and original.latency > _HOPELESS * min(entry.latency for entry in entries):
                entries = _measured(entries, inputs, _CAREFUL_ROUNDS)
            else:
                *entries, original = _measured([*entries, original], inputs, _CAREFUL_ROUNDS)
        timed = [replace(proved, entry=entry) for proved, entry in zip(kept, entries, strict=True)]
        return sorted(timed, key=lambda proved: proved.entry.latency), original

    def as_it_is(self, original: Contestant) -> Proved:
        """The original program with its evidence, whatever its own error against float64 is."""
        with self._timed("verify"):
            return Proved(original, self._verdict(original).certificate, self.floats(original))

    def _proved(self, entry: Contestant) -> Proved | None:
        """The entry with its evidence; None, with the reason among the rejections, when it fails."""
        floats = self.floats(entry)  # first, because it takes less time
        if not floats.stable:
            self.rejected.append(Rejection("float", floats.reason, entry.cost))
            return None
        verdict = self._verdict(entry)
        if not verdict.equivalent:
            self.rejected.append(Rejection("verify", str(verdict.counterexample or verdict.reason), entry.cost))
            return None
        return Proved(entry, verdict.certificate, floats)

    def floats(self, entry: Contestant) -> FloatReport:
        """The float check of the kernels, or of their stand-ins on this host where the target cannot run here."""
        here = entry.executable.machine.available
        executable = entry.executable if here else Executable(entry.graph, Cpu(rounded_factors=True))
        return float_check(runner(executable), self.program, baseline=self.baseline, seed=self.seed)

    def _verdict(self, entry: Contestant) -> Verdict:
        budget = self.deadline.remaining
        return verify_graphs(self.program, entry.graph, max_error=self.max_error, seed=self.seed, budget=budget)

    @contextmanager
    def _timed(self, stage: _Stage) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += time.monotonic() - started

    def _tell(self, stage: str, text: str) -> None:
        self.progress(Event(stage, text, self.deadline.elapsed))


def _measured(entries: Sequence[Contestant], inputs: Sequence[Any], rounds: int) -> list[Contestant]:
    if not entries:
        return []
    operands = entries[0].executable.machine.moved(inputs)
    timed = [entry.executable.machine.timed(functools.partial(entry.executable, *operands)) for entry in entries]
    times = measure({str(number): one.run for number, one in enumerate(timed)}, rounds, warmup=1, budget=_MEASURING_SECONDS)
    seconds = [[taken / one.times for taken in times[str(number)]] for number, one in enumerate(timed)]
    return [replace(entry, latency=statistics.median(s), least=min(s)) for entry, s in zip(entries, seconds, strict=True)]


def _fastest_first(entries: Sequence[Contestant]) -> list[Contestant]:
    return sorted(entries, key=lambda entry: entry.latency)
