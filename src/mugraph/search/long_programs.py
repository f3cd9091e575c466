"""The search of a program, however long: as a whole, in stretches, or both."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mugraph.devices import Device
from mugraph.errors import BudgetExceeded, InvalidInput, UndefinedInField, UnsupportedOperator
from mugraph.ir.graph import Graph
from mugraph.ir.liveness import peak_bytes
from mugraph.search.algorithm1.cost import predicted_seconds
from mugraph.search.constraints import EVERYTHING, SearchSpace
from mugraph.search.driver import WRITING_SHARE, Candidate, Search, SearchResult
from mugraph.search.parallel import Workers
from mugraph.search.report import Progress, SearchReport, combined
from mugraph.search.segments import Division
from mugraph.search.structure_cache import Shelf
from mugraph.search.tasks import Options

LONG = 100
"""Operators of a program from which on it is searched in stretches, too: few kernels hold more, and cuts have few launches."""

_LONGEST_WHOLE = 400
"""Operators of a program beyond which it is searched in stretches only."""

_WHOLE_SHARE = 0.4
"""Part of a budget for a long program as a whole."""

_STRETCH_SECONDS = 4.0
"""For each stretch of a long program, where no budget was given."""

_LEAST_STRETCH_SECONDS = 0.25
"""Where a budget allows no more for each stretch, some are searched and the others run as they are."""

_COMBINATIONS = 4
"""Candidates that are put together of the stretches': each has as many kernels to be compiled as all of them."""


def search(
    program: Graph,
    device: Device,
    *,
    budget: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    options: Options | None = None,
    workers: Workers = 1,
    shelf: Shelf | None = None,
    space: SearchSpace = EVERYTHING,
) -> SearchResult:
    """Search muGraphs equal to `program` (a kernel graph of pre-defined operators) for `device`.

    `budget` is in seconds; without one, the coarsest tier of abstraction is exhausted and finer ones get a few seconds.
    What was found is kept on the `shelf`, and what earlier searches found is read from there (`mugraph.search.structure_cache`).
    `workers` search beside each other and find what one alone finds (`mugraph.search.parallel`).
    Candidates lie in the `space` (`mugraph.search.constraints`).
    Long programs, and those that have no axis form as a whole, are searched in stretches (`mugraph.search.segments`).
    Raises UnsupportedOperator when no part of the program has an axis form, BudgetExceeded when nothing was found in time, and
    InvalidInput for a space of which nothing can be a muGraph of the program.
    """
    options = options or Options()
    operators = len(program.kernels())
    space.check(program)
    if operators <= LONG:
        try:
            return _searched(program, device, budget, progress, options, workers, shelf, space)
        except UnsupportedOperator:
            if operators < 2:
                raise
    if space.kernels is not None or space.maps:
        raise InvalidInput("kernels and maps cannot be limited here: the program is too long, and is searched in stretches")
    return _LongSearch(program, device, budget, progress, options, workers, shelf, space).run()


def _searched(
    program: Graph,
    device: Device,
    budget: float | None,
    progress: Callable[[Progress], None] | None,
    options: Options,
    workers: Workers,
    shelf: Shelf | None,
    space: SearchSpace,
) -> SearchResult:
    """The search of a program as it is and, before that, with factors taken out of its functions if there are any."""

    def form(seconds: float | None, hoisting: bool) -> Search:
        return Search(program, device, seconds, progress, options, workers, shelf, space, hoisting)

    as_written = form(budget, hoisting=False)
    if not as_written.hoistable:
        return as_written.run()
    started, results = time.perf_counter(), list[SearchResult]()
    with suppress(BudgetExceeded, UndefinedInField, RecursionError):
        results.append(form(budget and budget / 2, hoisting=True).run())
    if not any(result.report.interrupted for result in results):
        left = None if budget is None else max(0.0, budget - (time.perf_counter() - started))
        try:
            results.append(form(left, hoisting=False).run())
        except (BudgetExceeded, UndefinedInField, RecursionError):
            if not results:
                raise
    found: dict[Graph, float] = {}
    for candidate in itertools.chain(*(result.candidates for result in results)):
        found[candidate.graph] = min(candidate.cost, found.get(candidate.graph, candidate.cost))
    candidates = [Candidate(graph, cost) for graph, cost in sorted(found.items(), key=lambda item: item[1])]
    return SearchResult(candidates, combined([result.report for result in results], stretches=0))


@dataclass
class _LongSearch:
    """The search of a program in stretches and, unless it is too long for any kernel, as a whole before that."""

    program: Graph
    device: Device
    budget: float | None
    progress: Callable[[Progress], None] | None
    options: Options
    workers: Workers
    shelf: Shelf | None
    space: SearchSpace

    def run(self) -> SearchResult:
        """The best of both; raises what the whole program was refused for where no stretch has a kernel either."""
        self.started = time.perf_counter()
        refused: Exception | None = None
        results: list[SearchResult] = []
        if len(self.program.kernels()) <= _LONGEST_WHOLE:
            try:
                share = None if self.budget is None else _WHOLE_SHARE * self.budget
                results.append(self._search(self.program, share, self.workers))
            except (UnsupportedOperator, UndefinedInField, BudgetExceeded, RecursionError) as error:
                refused = error
        if not any(result.report.interrupted for result in results):
            try:
                results.append(self._in_stretches())
            except KeyboardInterrupt:  # while the program is divided or put together again; the whole may have candidates
                results.append(SearchResult([], SearchReport(interrupted=True)))
        candidates = sorted(itertools.chain(*(result.candidates for result in results)), key=lambda candidate: candidate.cost)
        report = combined([result.report for result in results], stretches=results[-1].report.stretches)
        if refused is not None and not isinstance(refused, BudgetExceeded) and not candidates and not report.interrupted:
            raise refused
        report.seconds = time.perf_counter() - self.started
        if not candidates and self.budget is not None and report.seconds > self.budget:
            raise BudgetExceeded(f"no muGraph was found within {self.budget:g} s; raise the budget")
        return SearchResult(candidates, report)

    def _in_stretches(self) -> SearchResult:
        """Candidates of which the first has the best kernels of every stretch, the second the second best, and so on."""
        division = Division(self.program, self.device)
        stretches = division.stretches()
        found: dict[Graph, SearchResult] = {}
        most_common = Counter(stretch.graph for stretch in stretches).most_common()
        for position, (graph, _) in enumerate(most_common):
            found[graph] = self._of_stretch(graph, self._seconds_of_next(len(most_common) - position))
            if found[graph].report.interrupted:
                break
        report = combined([result.report for result in found.values()], stretches=len(stretches))
        ranked = [self._ranked(stretch.graph, found.get(stretch.graph)) for stretch in stretches]
        candidates: dict[Graph, float] = {}
        if any(result.candidates for result in found.values()):
            for rank in range(min(_COMBINATIONS, max(map(len, ranked)))):
                chosen = [each[min(rank, len(each) - 1)] for each in ranked]
                graph = division.in_a_row(stretches, [candidate.graph for candidate in chosen])
                if peak_bytes(graph) <= self.device.device_memory_bytes:
                    candidates.setdefault(graph, sum(candidate.cost for candidate in chosen))
        return SearchResult([Candidate(graph, cost) for graph, cost in candidates.items()], report)

    def _seconds_of_next(self, left: int) -> float:
        """Seconds for the next of the stretches that are left: enough to find something as long as there are as many."""
        if self.budget is None:
            return _STRETCH_SECONDS
        remaining = max(0.0, (1 - WRITING_SHARE) * self.budget - (time.perf_counter() - self.started))
        return min(remaining, max(remaining / left, _LEAST_STRETCH_SECONDS))

    def _of_stretch(self, graph: Graph, seconds: float) -> SearchResult:
        """What is found of a stretch: nothing, where it is out of the search's reach or the time is over."""
        try:
            return self._search(graph, seconds, workers=1)  # which it takes longer to start than most stretches are searched
        except (UnsupportedOperator, UndefinedInField, BudgetExceeded, RecursionError):
            return SearchResult([], SearchReport())
        except KeyboardInterrupt:  # before the search began
            return SearchResult([], SearchReport(interrupted=True))

    def _search(self, graph: Graph, seconds: float | None, workers: Workers) -> SearchResult:
        return _searched(graph, self.device, seconds, self.progress, self.options, workers, self.shelf, self.space)

    def _ranked(self, graph: Graph, found: SearchResult | None) -> list[Candidate]:
        """Candidates of a stretch, the best first: as the program has it where nothing was found."""
        if found is None or not found.candidates:
            return [Candidate(graph, predicted_seconds(graph, self.device))]
        return found.candidates
