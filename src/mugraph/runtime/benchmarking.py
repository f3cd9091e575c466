"""Timing callables on a machine that does other things too: interleaved, so that what disturbs one disturbs all; and a test of
which of two is the faster. Between rounds it is asked whether whoever measures is to stop (`mugraph.support.stopping`)."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from mugraph.devices.host import slowdown
from mugraph.support.stopping import check

M = TypeVar("M")

Clock = Callable[[], float]
"""Gives seconds since some time."""

Burst = Sequence[float]
"""Seconds of each of some calls that follow each other; of calls of microseconds one number, their mean."""

_WARMUP = 3
_CALLS, _BURST_CALLS = 3, 25
"""Consecutive calls of a side in one round, at least and at most, of which the median counts: one stalled call decides nothing,
and what a side finds in the caches is its own. Of sides that read the same weights only the first would find them in memory,
beside one that has packed them and finds none of its own."""
_BURST_SECONDS = 0.01
"""They take about so long. Of calls that take longer, a round makes one: more rounds tell more than the middle one of three."""
_TOGETHER_SECONDS, _TOGETHER_CALLS = 1e-4, 100
"""Calls of microseconds are timed together, for so long, or so many: reading the clock costs as much as one."""
_WARM_SECONDS = 0.4
"""A side is warm after so long. The quickest of its calls until then tells how many a round makes: where threads that spin wait
for a core, a call of microseconds now and then takes a tenth of a second, and would be taken for a long one."""
_FEWEST, _MOST = 5, 60
_SECONDS = 0.5
"""After this time, and the fewest rounds, no further round starts."""
_SECOND_LOOK, _SECOND_SECONDS = 16, 10.0
"""Rounds of a duel that the challenger leads at first without winning it clearly, and the time after which none of them starts:
of five rounds of long calls a single one that was disturbed decides, of so many three may be lost. Equals win one such duel in
26; one in 32 has all of five rounds won."""
_COUNTED = (9, 10, 13, _SECOND_LOOK)
"""Of a second look that time ends, so many rounds count, or those before it: equals win one such duel in 24 at the most. Of 8, 11
or 14 rounds it would be one in 19."""
_ONE_SIDED = 12
"""After so many rounds a duel may end all of which one side won: equals do so in one duel of 2048."""
_LEAST_BRIEF = 0.05
"""Seconds that these rounds take at least: shorter ones may lie within one slice of the scheduler, and all be disturbed alike."""
_STRETCHED = 6.0
"""On a busy machine rounds start for so many times as long at the most."""
_OBVIOUS, _OBVIOUS_AT_LENGTH = 2.0, 1.1
"""Where there is time for a few rounds only, the challenger is faster that is so many times as fast in all of them: of calls that
take less than AT_LENGTH seconds, which one stall delays much, and of others."""
_AT_LENGTH = 0.5


def measure(
    callables: Mapping[str, Callable[[], object]],
    repeats: int = 20,
    warmup: int = 2,
    between: Callable[[], object] | None = None,
    budget: float | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call, by name: `repeats` rounds in which every callable runs once.

    `between` runs before every timed call (to flush caches, say) and is not timed. After `budget` seconds no new
    round starts, but every callable is timed at least once.
    """
    for function in callables.values():
        for _ in range(warmup):
            function()
    seconds: dict[str, list[float]] = {name: [] for name in callables}
    started = time.perf_counter()
    for _ in range(max(repeats, 1)):
        for name, function in callables.items():
            if between is not None:
                between()
            before = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - before)
        if budget is not None and time.perf_counter() - started > budget:
            break
        check()
    return seconds


def medians(calls: Mapping[str, Callable[[], object]], repeats: int, budget: float | None = None) -> dict[str, float]:
    """Seconds of a typical call of each, by name, as `measure` times them."""
    return {name: statistics.median(seconds) for name, seconds in measure(calls, repeats, budget=budget).items()}


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of a call over the rounds in which it was timed: the median and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """The spread of at least one measurement."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0])
        low, median, high = statistics.quantiles(seconds, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True, repr=False)
class Duel:
    """The outcome of a duel: in how many of its rounds the challenger took less time, and the median of the rounds' ratios."""

    rounds: int
    won: int
    speedup: float
    """Time of the defender over that of the challenger."""
    ours: Spread | None = None
    """Of the challenger."""
    theirs: Spread | None = None
    """Of the defender."""
    cut_short: bool = False
    """Whether a limit ended the rounds, of which there would have been more."""

    def __repr__(self) -> str:
        return f"<Duel: {self.speedup:.3g} times as fast, the faster in {self.won} of {self.rounds} rounds>"

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Duel:
        """The outcome of rounds, at least one: seconds of a call of each side."""
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        won = sum(ratio > 1 for ratio in ratios)
        return cls(len(ratios), won, statistics.median(ratios), Spread.of(ours), Spread.of(theirs))

    @property
    def clear(self) -> bool:
        """Whether the challenger is the faster, and equals would win so often in less than one duel of forty."""
        if self.rounds < _FEWEST:
            at_length = self.ours is not None and self.ours.median >= _AT_LENGTH
            return self.won == self.rounds and self.speedup >= (_OBVIOUS_AT_LENGTH if at_length else _OBVIOUS)
        return self.speedup > 1 and self.won - self.rounds / 2 > math.sqrt(self.rounds)  # two deviations of a fair coin

    @property
    def leads(self) -> bool:
        """Whether the challenger is the faster, but not clearly so: more rounds may tell."""
        return self.speedup > 1 and not self.clear

    @property
    def undecided(self) -> bool:
        """Whether a limit ended the rounds while the challenger led."""
        return self.cut_short and self.leads

    def to_json(self) -> dict[str, Any]:
        """The duel as JSON values, without whether it was cut short: what was is not kept."""
        values = asdict(self)
        del values["cut_short"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Duel:
        """The duel `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        ours, theirs = (None if values[side] is None else Spread(**values[side]) for side in ("ours", "theirs"))
        return cls(int(values["rounds"]), int(values["won"]), float(values["speedup"]), ours, theirs)


def duel(
    challenger: Callable[[], object],
    defender: Callable[[], object],
    seconds: float = _SECONDS,
    clock: Clock | None = None,
    limit: float = math.inf,
    taken: float = math.inf,
    brief: bool = False,
) -> Duel:
    """Time two callables in interleaved rounds that they begin in turns, both warm, for about so many seconds, where other work
    has the cores longer (`stretched`), and of long calls up to `_SECOND_LOOK` rounds where the challenger leads and it is not
    clear that it is the faster; `limit` and `taken` are as in `bursts_in_turns`.

    A `brief` one ends where one side won all of the first `_ONE_SIDED` rounds, unless these were over at once: who is the faster
    is asked, and not by how much.
    """
    cut: list[bool] = []
    with raised_as_they_were():
        sides = challenger, defender
        end = functools.partial(cut.append, True)
        options: dict[str, Any] = {"decided": _one_sided} if brief else {}
        times = in_turns(sides, stretched(seconds), limit, clock=clock, cut_short=end, again=first_leads, taken=taken, **options)
    return replace(Duel.of(*times), cut_short=bool(cut))


def _one_sided(times: Sequence[Sequence[float]]) -> bool:
    """Whether the same of two sides took less time in all rounds."""
    outcome = Duel.of(*times)
    return outcome.won in (0, outcome.rounds)


def first_leads(times: Sequence[Sequence[float]]) -> bool:
    """Whether the first of some sides, seconds of a call in each round, is faster than the second one but not clearly so."""
    return len(times) > 1 and Duel.of(*times[:2]).leads


class SideFailed(Exception):
    """A call raised while it was timed: that of the side `number`; the cause is what it raised."""

    def __init__(self, number: int) -> None:
        super().__init__(f"side {number} raised while it was timed")
        self.number = number


@contextmanager
def raised_as_they_were() -> Iterator[None]:
    """Where it does not matter whose call raised: what it raised instead of SideFailed."""
    try:
        yield
    except SideFailed as failed:
        raise failed.__cause__ or failed from None


def in_turns(
    sides: Sequence[Callable[[], object]],
    seconds: float = _SECONDS,
    limit: float = math.inf,
    rounds: int = _MOST,
    clock: Clock | None = None,
    cut_short: Callable[[], object] = lambda: None,
    again: Callable[[Sequence[Sequence[float]]], bool] = lambda times: False,
    taken: float = math.inf,
    decided: Callable[[Sequence[Sequence[float]]], bool] = lambda times: False,
) -> list[list[float]]:
    """Seconds of a typical call of each side, in up to so many `rounds`, as `bursts_in_turns` times them. Raises SideFailed.

    `again` is asked of these, when the time is over, whether there is a second look, and `decided` as there.
    """

    def typical(asked: Callable[[Sequence[Sequence[float]]], bool]) -> Callable[[Sequence[Sequence[Burst]]], bool]:
        return lambda bursts: asked(_typical(bursts))

    return _typical(bursts_in_turns(sides, seconds, limit, rounds, clock, cut_short, typical(again), taken, typical(decided)))


def _typical(bursts: Sequence[Sequence[Burst]]) -> list[list[float]]:
    """Seconds of a typical call of each side, in each round."""
    return [[statistics.median(calls) for calls in of_side] for of_side in bursts]


def bursts_in_turns(
    sides: Sequence[Callable[[], object]],
    seconds: float = _SECONDS,
    limit: float = math.inf,
    rounds: int = _MOST,
    clock: Clock | None = None,
    cut_short: Callable[[], object] = lambda: None,
    again: Callable[[Sequence[Sequence[Burst]]], bool] = lambda bursts: False,
    taken: float = math.inf,
    decided: Callable[[Sequence[Sequence[Burst]]], bool] = lambda bursts: False,
) -> list[list[Burst]]:
    """Of each side, a burst of calls for each of up to so many `rounds`, all warm; another side begins each round.

    Where a call of each side has just `taken` so many seconds (infinitely many: none was made), they are warm.

    No round but the first starts that may end after `limit` seconds, warming up included, and `cut_short` is called where that
    ends them. Fewer rounds than `_SECOND_LOOK` may be made that many, of which as many as are `_COUNTED` are returned: when the
    time is over, `again` is asked once. Behind `_ONE_SIDED` rounds, unless these were over at once, `decided` is asked whether
    they suffice. Calls are timed by `clock`, by default that of the wall. Raises SideFailed.
    """
    begun = time.perf_counter()
    bursts = [_of_side(number, _burst_of, side, clock or time.perf_counter, taken) for number, side in enumerate(sides)]
    times: list[list[Burst]] = [[] for _ in sides]
    started = time.perf_counter()
    longest, second_look, counted = 0.0, False, 0
    while (done := len(times[0])) < rounds:
        check()
        before = time.perf_counter()
        if (done >= _FEWEST and before - started >= seconds) or second_look:
            second_look = done < _SECOND_LOOK and before - started < _SECOND_SECONDS and (second_look or again(times))
            if not second_look:
                break
            counted = done if done in _COUNTED else counted or done
        if done == _ONE_SIDED and before - started >= _LEAST_BRIEF and decided(times):
            break
        if done and before - begun + longest > limit:
            cut_short()
            break
        for turn in range(len(sides)):
            number = (done + turn) % len(sides)
            times[number].append(_of_side(number, bursts[number]))
        longest = max(longest, time.perf_counter() - before)
    if counted and done not in _COUNTED:
        return [of_side[:counted] for of_side in times]
    return times


def undisturbed(bursts: Sequence[Burst]) -> float:
    """Seconds of a call while nothing else had the cores: the least median of a few calls in a row, or the least of bursts that
    are one number each, of long calls and of very short ones.

    Where other work has the cores for most of the time, the typical call is one that waited, and tells how long. A single call
    that was quick by chance decides nothing either.
    """
    starts = ((calls, start) for calls in bursts for start in range(0, max(1, len(calls) - _CALLS + 1), _CALLS))
    return min(statistics.median(calls[start : start + _CALLS]) for calls, start in starts)


def stretched(seconds: float) -> float:
    """In how long about as many rounds are timed on this machine, as busy as it is, as in so many seconds where it is quiet."""
    return seconds * min(slowdown(), _STRETCHED)


def quickest(sides: Sequence[Callable[[], object]]) -> int:
    """Which of some callables takes the least time, by the medians of a few rounds. Raises SideFailed."""
    times = [statistics.median(taken) for taken in in_turns(sides, _SECONDS, rounds=_FEWEST)]
    return times.index(min(times))


def while_serving(document: Mapping[str, Any], serving: bool) -> dict[str, Any]:
    """A document of something measured now, which says whether this process was `serving` a model."""
    return {**document, "serving": serving}


def still_counts(document: Mapping[str, Any], serving: bool) -> bool:
    """Whether what was measured then need not be measured now, whatever the load was then and is now.

    What was measured beside a model, which favours what makes few calls, stands where there is one again.
    """
    return serving or not document.get("serving", False)


def _of_side(number: int, measure: Callable[..., M], *given: Any) -> M:
    try:
        return measure(*given)
    except Exception as error:
        raise SideFailed(number) from error


def _burst_of(call: Callable[[], object], clock: Clock, taken: float) -> Callable[[], Burst]:
    """What a round makes of a callable that is warm now: its calls, and the seconds of each.

    It is called to be so unless it has just `taken` so many seconds.

    How many calls there is time for the clock of the wall tells: others do not go on while a call waits.
    """
    begun = time.perf_counter()
    for _ in range(_WARMUP if math.isinf(taken) else 0):
        check()
        taken = min(taken, *_each(call, time.perf_counter, 1))
        if time.perf_counter() - begun > _WARM_SECONDS:
            break
    if taken > _BURST_SECONDS:
        return functools.partial(_each, call, clock, 1)
    if _CALLS * taken > _TOGETHER_SECONDS:
        return functools.partial(_each, call, clock, min(_BURST_CALLS, max(_CALLS, int(_BURST_SECONDS / taken))))
    return functools.partial(_together, call, clock, min(_TOGETHER_CALLS, math.ceil(_TOGETHER_SECONDS / max(taken, 1e-9))))


def _each(call: Callable[[], object], clock: Clock, calls: int) -> Burst:
    """Seconds of each of a few calls."""
    times: list[float] = []
    for _ in range(calls):
        before = clock()
        call()
        times.append(clock() - before)
    return times


def _together(call: Callable[[], object], clock: Clock, calls: int) -> Burst:
    """Seconds of a call on average, of many that are timed together."""
    before = clock()
    for _ in range(calls):
        call()
    return [(clock() - before) / calls]
