"""What a search proposes for a program: by which engine, in which part of the search space, and in how much time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from mugraph.devices import Device
from mugraph.errors import BudgetExceeded, InvalidInput, UndefinedInField, UnsupportedOperator
from mugraph.ir.graph import Graph
from mugraph.search import Options, Progress, Proposal, SearchReport, SearchResult, SearchSpace
from mugraph.search import search as closure_search
from mugraph.search.algorithm1 import EnumerationOptions, EnumerationResult, enumerate_graphs
from mugraph.search.executors import Workers, local_processes
from mugraph.search.long_programs import LONG
from mugraph.search.report import Pruning
from mugraph.search.scheduling.masks import Hidden
from mugraph.search.structure_cache import Shelf
from mugraph.search.tasks import ANY_GAIN, CANDIDATES
from mugraph.selection.structure_key import candidates_by_form, form_of
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, ProgressCallback, silent

_SEARCH_SHARE = 0.5
"""The part of a budget the search may use; compiling, measuring and verifying take the rest."""

_LONG_SEARCH_SHARE = 0.3
"""That part for programs that are searched in segments, each candidate of which has many kernels to be compiled and proved."""

_EXPLAINING_SECONDS = 5.0
"""For the search without one of the limits of a space in which nothing was found."""

_LEAST_GAIN = 0.1
"""Part of the best prediction that finer algebra is searched for: predictions are not more exact."""

Engine = Literal["closure", "enumerate"]
Found = SearchResult | EnumerationResult


def engine_of(name: str) -> Engine:
    """The search engine called `name`; raises InvalidInput naming the known ones otherwise."""
    for engine in get_args(Engine):
        if name == engine:
            return cast(Engine, engine)
    raise InvalidInput(f"unknown search engine {name!r}; use one of {', '.join(get_args(Engine))}")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A search that is asked for."""

    program: Graph
    device: Device
    engine: Engine
    space: SearchSpace
    workers: Workers
    shelf: Shelf
    candidates: int = CANDIDATES
    """As many as are wanted of a closure search."""
    hidden: Hidden = field(default_factory=dict)
    """Where inputs are -inf in the example, by name."""
    least_gain: float = _LEAST_GAIN
    """Part of the best prediction; where no muGraph can win as much, a closure search ends."""
    enough: int | None = None
    """Plans with which it ends then."""

    def found(self, deadline: Deadline, tell: ProgressCallback) -> Found:
        """What is found in this part of what is left of a budget; raises InvalidInput where a space was searched in vain."""
        long = len(self.program.kernels()) > LONG
        result = self._search(deadline.share(_LONG_SEARCH_SHARE if long else _SEARCH_SHARE), deadline, tell)
        if self.space and not result.candidates and result.report.exhausted:
            raise InvalidInput(f"no muGraph of the program was found in the space asked for{self._why(result)}")
        return result

    @property
    def may_end_early(self) -> bool:
        """Whether a search may end with what it finds first, as that of a space does not."""
        return self.engine == "closure" and not self.space

    def first(self, deadline: Deadline, tell: ProgressCallback, enough: int | None = None) -> tuple[Found, bool]:
        """What is found by the time that anything is which keeps the range of numbers, or that `enough` plans do which are looked
        at alone, and whether more may be found."""
        found = replace(self, least_gain=ANY_GAIN, workers=1, enough=enough).found(deadline, tell)
        if not isinstance(found, SearchResult):
            return found, False
        left = found.report.gain_left
        may_gain = bool(self.hidden) or left is None or left >= self.least_gain or enough is not None
        better = may_gain and (found.report.settled or found.report.segments > 0) and not found.report.interrupted
        return replace(found, report=replace(found.report, settled=found.report.settled and not better)), better

    def of_forms(self, likes: Sequence[Graph], deadline: Deadline, tell: ProgressCallback, *, alone: bool) -> Found:
        """What is found by the time that all forms of some muGraphs are among it, or else what a search of any form finds. Where
        these `alone` are wanted and none of them is among that, what there is without a least gain: one may have been left
        out."""
        if not self.may_end_early:
            return replace(self, least_gain=0.0).found(deadline, tell)
        found, better = self.first(deadline, tell)
        if not isinstance(found, SearchResult):
            return found
        if better and self._missing(found, likes):
            found = self.further(found, deadline, tell)
        elif better:  # which it left out, should none of these be proved
            found = replace(found, report=replace(found.report, settled=not found.report.segments))
        settled = found.report.settled or found.report.segments > 0 or (better and not found.candidates)
        left_out = alone and settled and not found.report.interrupted
        if left_out and self._missing(found, likes) == len({form_of(like) for like in likes}):
            found = replace(self, least_gain=0.0).further(found, deadline, tell)
        return replace(found, candidates=_by_cost(found.candidates))

    def _missing(self, found: SearchResult, likes: Sequence[Graph]) -> int:
        """How many forms none of the candidates has; that of the program as it is written needs none."""
        by_form = candidates_by_form(found.candidates, likes)
        return sum(not of_form and form != form_of(self.program) for form, of_form in by_form.items())

    def beyond(self, settled: SearchResult, deadline: Deadline, tell: ProgressCallback) -> SearchResult:
        """What a search that `settled` left out, as many muGraphs as it proposed beside them; what it found where that is all."""
        wider = replace(self, least_gain=0.0, candidates=self.candidates + len(settled.candidates))
        joined = _joined(settled, wider.found(deadline, tell))
        return replace(joined, candidates=_by_cost(joined.candidates))

    def further(self, first: SearchResult, deadline: Deadline, tell: ProgressCallback) -> SearchResult:
        """What is found where a search goes on that ended with `first`: as it ranks that, by kinds and precision, too."""
        return _joined(first, self.found(deadline, tell))

    def _search(self, budget: float | None, deadline: Deadline, tell: ProgressCallback) -> Found:
        begun = deadline.elapsed
        if engine_of(self.engine) == "enumerate":
            limit, processes = math.inf if budget is None else budget, local_processes(self.workers)
            options = EnumerationOptions(time_limit=limit, processes=processes).within(self.space)
            return enumerate_graphs(self.program, self.device, options)

        def report(moment: Progress) -> None:
            best = "" if moment.best is None else f", best predicted {moment.best * 1e3:.3g} ms"
            text = f"{moment.stage}, {moment.states} tensors, {moment.found} muGraphs{best}"
            done = None if budget is None else min(1.0, (deadline.elapsed - begun) / max(budget, 1e-9))
            tell(Event("search", text, deadline.elapsed, done))

        try:
            return closure_search(
                self.program,
                self.device,
                budget=budget,
                progress=report,
                options=Options(candidates=self.candidates, least_gain=self.least_gain, enough=self.enough),
                workers=self.workers,
                shelf=self.shelf,
                space=self.space,
                hidden=self.hidden,
            )
        except BudgetExceeded:
            return SearchResult([], SearchReport(seconds=deadline.elapsed - begun))
        except (UndefinedInField, UnsupportedOperator) as error:  # out of the search's reach: the program runs as it is
            return SearchResult([], SearchReport(seconds=deadline.elapsed - begun, refused=str(error)))
        except RecursionError:
            too_long = "its chains of operators are too long to search"
            return SearchResult([], SearchReport(seconds=deadline.elapsed - begun, refused=too_long))

    def _why(self, result: Found) -> str:
        """The limits of which each alone keeps everything out, and that of the device."""
        reasons = []
        for name, wider in self.space.relaxations():
            without = replace(self, space=wider)
            if without._search(_EXPLAINING_SECONDS, Deadline(_EXPLAINING_SECONDS), silent).candidates:
                reasons.append(f"without its limit on {name} there are some")
        if isinstance(result, SearchResult) and (large := result.report.pruned[Pruning.MEMORY]):
            limit = f"{self.device.shared_memory_bytes} bytes of shared memory that a block has on {self.device.name}"
            reasons.append(f"{large} schedules in it need more than the {limit}")
        return "; ".join((f": {self.space}", *reasons))


def _by_cost(candidates: Sequence[Proposal]) -> list[Proposal]:
    """Candidates, best predicted first."""
    return sorted(candidates, key=lambda each: each.cost)


def _joined(first: SearchResult, found: Found) -> SearchResult:
    """What two searches found one after the other, that of the better prediction in front; the first where that is all."""
    if not isinstance(found, SearchResult) or not found.candidates:
        return replace(first, report=replace(first.report, interrupted=found.report.interrupted))
    better, other = sorted((found, first), key=lambda each: min((c.cost for c in each.candidates), default=math.inf))
    candidates = {each.graph: each for each in (*better.candidates, *other.candidates)}
    seconds = first.report.seconds + found.report.seconds
    report = replace(found.report, first_found_seconds=first.report.first_found_seconds, seconds=seconds)
    return SearchResult([*candidates.values()], report, found.in_range)
