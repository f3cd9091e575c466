"""From muGraphs the search proposes to muGraphs worth running: compiled, measured, proved, checked against float64.

Measuring comes before proving, because proving at full size takes seconds: the fastest are proved first, and only as
many as are kept. What was not proved is never returned.
"""

from __future__ import annotations

import functools
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
from mugraph.samples import runner
from mugraph.verifier import FloatReport, Verdict, float_check, verify_graphs

_COMPILED = 16
"""Proposals that are compiled and timed roughly, best predicted cost first."""
_FINALISTS = 5
"""Proposals that are timed carefully."""
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
class Compiled:
    """A muGraph, its predicted and measured seconds per call, and its compiled kernels."""

    graph: Graph
    cost: float | None
    executable: Executable
    latency: float | None = None


@dataclass
class Qualifier:
    """The stages that one program's proposals go through, with the times and rejections for the report."""

    program: Graph
    target: str
    deadline: Deadline
    progress: ProgressCallback
    seed: int
    max_error: float
    seconds: dict[_Stage, float] = field(default_factory=lambda: {"compile": 0.0, "measure": 0.0, "verify": 0.0})
    rejected: list[Rejection] = field(default_factory=list)

    def original(self) -> Compiled:
        """The program itself, run operator by operator."""
        with self._timed("compile"):
            return Compiled(self.program, None, build(self.program, self.target))

    def compile(self, proposals: Sequence[tuple[Graph, float]]) -> list[Compiled]:
        """Thread graphs and kernels for the first of the proposals: (muGraph, predicted seconds), best first."""
        compiled: list[Compiled] = []
        limit = self.deadline.share(0.3)
        with self._timed("compile"):
            started = time.monotonic()
            for number, (graph, cost) in enumerate(proposals[:_COMPILED], start=1):
                if compiled and limit is not None and time.monotonic() - started > limit:
                    break
                self._tell("compile", f"candidate {number} of {min(len(proposals), _COMPILED)}")
                fused = construct(graph)
                try:
                    compiled.append(Compiled(fused, cost, build(fused, self.target)))
                except MugraphError as error:
                    self.rejected.append(Rejection("compile", str(error), cost))
        return compiled

    def measure(self, compiled: Sequence[Compiled], original: Compiled, inputs: Sequence[Any]) -> tuple[list[Compiled], Compiled]:
        """The fastest few of the compiled with their latencies, fastest first, and the original with its own."""
        with self._timed("measure"):
            self._tell("measure", f"{len(compiled)} candidates")
            finalists = _with_latencies(compiled, inputs, _ROUGH_ROUNDS)
            finalists = sorted(finalists, key=_latency)[:_FINALISTS]
            (original,) = _with_latencies([original], inputs, 1)
            if finalists and _latency(original) > _HOPELESS * _latency(finalists[0]):
                timed = _with_latencies(finalists, inputs, _CAREFUL_ROUNDS)
            else:
                *timed, original = _with_latencies([*finalists, original], inputs, _CAREFUL_ROUNDS)
            return sorted(timed, key=_latency), original

    def prove(self, compiled: Sequence[Compiled]) -> list[tuple[Compiled, Candidate]]:
        """The first few that are equivalent to the program and agree with float64, in the order given."""
        kept: list[tuple[Compiled, Candidate]] = []
        with self._timed("verify"):
            started = time.monotonic()
            for entry in compiled:
                late = self.deadline.passed or time.monotonic() - started > _PROVING_SECONDS
                if len(kept) == _KEPT or (kept and late):
                    break
                self._tell("verify", f"candidate {len(kept) + 1} at full size")
                candidate = self.proved(entry)
                if candidate is not None:
                    kept.append((entry, candidate))
        return kept

    def proved(self, entry: Compiled) -> Candidate | None:
        """The entry with its evidence; None, with the reason among the rejections, when it fails."""
        verdict, floats = self._evidence(entry)
        if verdict.equivalent and floats.stable:
            return _candidate(entry, verdict, floats)
        if verdict.equivalent:
            self.rejected.append(Rejection("float", floats.reason, entry.cost))
        else:
            self.rejected.append(Rejection("verify", str(verdict.counterexample or verdict.reason), entry.cost))
        return None

    def as_it_is(self, original: Compiled) -> Candidate:
        """The original program with its evidence, whatever its own error against float64 is."""
        with self._timed("verify"):
            return _candidate(original, *self._evidence(original))

    def _evidence(self, entry: Compiled) -> tuple[Verdict, FloatReport]:
        """Random tests of the graph over finite fields, and of its kernels against float64."""
        budget = self.deadline.remaining
        verdict = verify_graphs(self.program, entry.graph, max_error=self.max_error, seed=self.seed, budget=budget)
        return verdict, float_check(runner(entry.executable), self.program, seed=self.seed)

    @contextmanager
    def _timed(self, stage: _Stage) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += time.monotonic() - started

    def _tell(self, stage: str, text: str) -> None:
        self.progress(Event(stage, text, self.deadline.elapsed))


def _candidate(entry: Compiled, verdict: Verdict, floats: FloatReport) -> Candidate:
    return Candidate(entry.graph, entry.cost, entry.latency, verdict.certificate, floats.max_relative_error)


def _with_latencies(compiled: Sequence[Compiled], inputs: Sequence[Any], rounds: int) -> list[Compiled]:
    runs = {str(number): functools.partial(entry.executable, *inputs) for number, entry in enumerate(compiled)}
    times = measure(runs, rounds, warmup=1, budget=_MEASURING_SECONDS)
    return [replace(entry, latency=statistics.median(times[str(number)])) for number, entry in enumerate(compiled)]


def _latency(entry: Compiled) -> float:
    return float("inf") if entry.latency is None else entry.latency
