"""Interleaved timing; and duels: the faster of two is found, equals are not told apart, and stalled calls decide nothing."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator

import pytest

from mugraph.runtime.benchmarking import Duel, duel, in_turns, measure


class Clock:
    """A time that passes only in the callables it makes: each takes the next of its durations, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr("mugraph.runtime.benchmarking.slowdown", lambda: 1.0)

    def taking(self, durations: Iterator[float]) -> Callable[[], None]:
        def call() -> None:
            self.now += next(durations)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_faster_one_wins_clearly(clock: Clock) -> None:
    outcome = duel(clock.taking(itertools.repeat(0.001)), clock.taking(itertools.repeat(0.0011)))
    assert outcome.clear
    assert outcome.won == outcome.rounds
    assert outcome.speedup == pytest.approx(1.1)


def test_the_slower_one_does_not_win(clock: Clock) -> None:
    outcome = duel(clock.taking(itertools.repeat(0.0011)), clock.taking(itertools.repeat(0.001)))
    assert not outcome.clear
    assert outcome.won == 0


def test_equals_are_not_told_apart(clock: Clock) -> None:
    def noisy() -> Iterator[float]:
        return itertools.cycle([0.001, 0.001, 0.001, 0.00101, 0.00101, 0.00101, 0.001])

    assert not duel(clock.taking(noisy()), clock.taking(noisy())).clear
    assert not duel(clock.taking(itertools.repeat(0.001)), clock.taking(itertools.repeat(0.001))).clear


@pytest.mark.parametrize("stalls", [0.1, 10.0])
def test_a_call_in_four_that_stalls_changes_nothing(clock: Clock, stalls: float) -> None:
    defender = itertools.cycle([0.001, 0.001, 0.001, stalls])
    outcome = duel(clock.taking(itertools.repeat(0.0011)), clock.taking(defender), seconds=1e9)
    assert not outcome.clear
    assert outcome.speedup == pytest.approx(1 / 1.1)


def test_kernels_that_mostly_stall_do_not_win(clock: Clock) -> None:
    challenger = itertools.cycle([0.0005, 0.1, 0.1])
    assert not duel(clock.taking(challenger), clock.taking(itertools.repeat(0.001)), seconds=1e9).clear


def test_a_clock_that_stands_still_while_others_run_tells_sides_apart(clock: Clock) -> None:
    ran, waits = 0.0, itertools.cycle([0.0, 0.003, 0.012, 0.0, 0.021, 0.006, 0.0])

    def taking(seconds: float) -> Callable[[], None]:
        def call() -> None:
            nonlocal ran
            ran += seconds
            clock.now += seconds + next(waits)

        return call

    sides = taking(0.011), taking(0.012)
    assert not duel(*sides).clear
    outcome = duel(*sides, clock=lambda: ran)
    assert outcome.clear
    assert outcome.speedup == pytest.approx(12 / 11)


def test_a_duel_ends_with_its_time_but_not_before_the_fewest_rounds(clock: Clock) -> None:
    slow = duel(clock.taking(itertools.repeat(5.0)), clock.taking(itertools.repeat(5.0)), seconds=0.5)
    quick = duel(clock.taking(itertools.repeat(0.02)), clock.taking(itertools.repeat(0.02)), seconds=1.5)
    assert slow.rounds == 5
    assert 30 <= quick.rounds <= 40  # of one call of each side


@pytest.mark.parametrize(("ours", "theirs", "clear"), [(0.001, 0.0011, True), (0.0011, 0.001, False)])
def test_a_brief_duel_ends_where_one_side_won_all_of_twelve_rounds(clock: Clock, ours: float, theirs: float, clear: bool) -> None:
    whole, brief = (
        duel(clock.taking(itertools.repeat(ours)), clock.taking(itertools.repeat(theirs)), brief=brief) for brief in (False, True)
    )
    assert (brief.rounds, brief.clear, brief.cut_short) == (12, clear, False)
    assert (whole.rounds > 20, whole.clear) == (True, clear)
    assert brief.speedup == pytest.approx(whole.speedup)


def test_a_brief_duel_of_calls_that_are_over_at_once_has_its_time(clock: Clock) -> None:
    outcome = duel(clock.taking(itertools.repeat(2e-5)), clock.taking(itertools.repeat(2.2e-5)), brief=True)
    assert (outcome.rounds > 20, outcome.clear) == (True, True)


@pytest.mark.parametrize("lost", [3, 11])
def test_a_brief_duel_of_which_a_round_was_lost_has_its_time(clock: Clock, lost: int) -> None:
    once = itertools.chain([0.02] * (3 + lost), [0.05], itertools.repeat(0.02))
    outcome = duel(clock.taking(once), clock.taking(itertools.repeat(0.022)), seconds=1.0, brief=True)
    assert (outcome.rounds > 20, outcome.won, outcome.clear) == (True, outcome.rounds - 1, True)


def test_equals_hardly_ever_end_a_brief_duel_early(clock: Clock) -> None:
    chance = random.Random(7)
    rounds, won = [], 0
    for _ in range(400):
        ours, theirs = (clock.taking(0.02 + 0.001 * chance.random() for _ in itertools.count()) for _ in range(2))
        outcome = duel(ours, theirs, seconds=1.0, brief=True)
        rounds.append(outcome.rounds)
        won += outcome.clear
    assert rounds.count(12) <= 2
    assert won <= 400 / 20


@pytest.mark.parametrize(("won", "clear"), [(8, False), (12, False), (13, True), (16, True)])
def test_a_few_rounds_more_than_half_are_chance(won: int, clear: bool) -> None:
    assert Duel(rounds=16, won=won, speedup=1.5).clear is clear
    assert not Duel(rounds=16, won=won, speedup=0.9).clear


@pytest.mark.parametrize(("speedups", "clear"), [([2.5], True), ([1.5], False), ([3.0, 2.5], True), ([9.0, 0.9], False)])
def test_few_rounds_show_only_what_is_obvious(speedups: list[float], clear: bool) -> None:
    assert Duel.of([0.1] * len(speedups), [0.1 * speedup for speedup in speedups]).clear is clear


@pytest.mark.parametrize(("speedups", "clear"), [([1.2], True), ([1.05], False), ([1.5, 1.2], True), ([1.5, 0.9], False)])
def test_of_calls_that_take_seconds_a_few_show_more(speedups: list[float], clear: bool) -> None:
    assert Duel.of([2.0] * len(speedups), [2.0 * speedup for speedup in speedups]).clear is clear


@pytest.mark.parametrize("disturbed", range(5))
def test_one_disturbed_round_of_five_decides_nothing(clock: Clock, disturbed: int) -> None:
    """Calls that take so long have five rounds, of which all must be won."""
    stalls = itertools.chain([0.155] * (3 + disturbed), [0.3], itertools.repeat(0.155))
    outcome = duel(clock.taking(stalls), clock.taking(itertools.repeat(0.19)))
    assert outcome.clear
    assert (outcome.won, outcome.rounds) == (15, 16)


def test_who_wins_every_other_round_does_not_win_a_second_look(clock: Clock) -> None:
    noisy = itertools.chain([0.155] * 3, itertools.cycle([0.155, 0.3]))
    outcome = duel(clock.taking(noisy), clock.taking(itertools.repeat(0.19)))
    assert not outcome.clear
    assert (outcome.won, outcome.rounds) == (8, 16)


def test_a_second_look_is_for_who_leads_and_ends_with_its_time(clock: Clock) -> None:
    behind = itertools.chain([0.19] * 3, itertools.cycle([0.19, 0.19, 0.1, 0.19, 0.1]))
    assert duel(clock.taking(behind), clock.taking(itertools.repeat(0.155))).rounds == 5
    stalls = itertools.chain([1.0] * 3, [2.0], itertools.repeat(1.0))
    assert duel(clock.taking(stalls), clock.taking(itertools.repeat(1.2)), limit=1e9).rounds == 5
    stalls = itertools.chain([0.4] * 3, [1.5], itertools.repeat(0.4))
    outcome = duel(clock.taking(stalls), clock.taking(itertools.repeat(0.5)), limit=1e9)
    assert (outcome.rounds, outcome.clear, outcome.cut_short) == (10, True, False)


def test_a_second_look_that_is_cut_short_says_so(clock: Clock) -> None:
    stalls = itertools.chain([0.155] * 3, [0.3], itertools.repeat(0.155))
    outcome = duel(clock.taking(stalls), clock.taking(itertools.repeat(0.19)), limit=5.0)
    assert (outcome.rounds, outcome.cut_short) == (10, True)


def test_equals_seldom_win_by_a_second_look(clock: Clock) -> None:
    """In one duel of 26; where the test that is made again and again counted, in one of ten."""
    numbers = random.Random(0)

    def equal() -> Callable[[], None]:
        return clock.taking(iter(lambda: numbers.uniform(0.15, 0.2), None))

    outcomes = [duel(equal(), equal()) for _ in range(1000)]
    assert {outcome.rounds for outcome in outcomes} == {5, 16}
    assert sum(outcome.clear for outcome in outcomes) < 55


@pytest.mark.parametrize("begun", range(5, 17))
def test_equals_seldom_win_by_a_second_look_that_is_cut_short(clock: Clock, begun: int) -> None:
    """In one duel of 24 at the most, however many rounds there was time for; of 8, 11 or 14 it would be one in 19."""
    equals = [clock.taking(itertools.repeat(0.2))] * 2
    rounds = len(in_turns(equals, limit=1.3 + 0.4 * begun, again=lambda times: True)[0])
    assert rounds <= begun
    wins = sum(
        math.comb(5, first) * math.comb(rounds - 5, later)
        for first, later in itertools.product(range(6), range(rounds - 4))
        if _of_rounds(5, first).clear or (_of_rounds(5, first).speedup > 1 and _of_rounds(rounds, first + later).clear)
    )
    assert wins / 2**rounds < 1 / 24


def _of_rounds(rounds: int, won: int) -> Duel:
    return Duel.of([1.0] * rounds, [1.1] * won + [0.9] * (rounds - won))


def test_calls_of_tens_of_milliseconds_are_made_one_by_one(clock: Clock) -> None:
    outcome = duel(clock.taking(itertools.repeat(0.02)), clock.taking(itertools.repeat(0.03)), seconds=0.5)
    assert outcome.clear
    assert outcome.rounds >= 10


def test_sides_that_share_what_they_read_have_no_advantage(clock: Clock) -> None:
    """A call takes ten times as long that finds nothing in the caches, as the last one read something else."""
    last = ["nothing"]

    def reading(weights: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            clock.now += seconds if last[0] == weights else 10 * seconds
            last[0] = weights

        return call

    sides = [reading("packed", 1e-4), reading("as they are", 2e-4), reading("as they are", 2e-4)]
    for times, seconds in zip(in_turns(sides, rounds=6), (1e-4, 2e-4, 2e-4), strict=True):
        assert times == [pytest.approx(seconds)] * 6


@pytest.mark.parametrize(("seconds", "calls"), [(2e-4, 25), (1e-3, 10), (8e-3, 3), (2e-2, 1)])
def test_a_round_has_more_calls_of_those_that_are_short(clock: Clock, seconds: float, calls: int) -> None:
    in_turns([clock.taking(itertools.repeat(seconds))], rounds=5)
    assert clock.now == pytest.approx((3 + 5 * calls) * seconds, rel=0.1)


def test_calls_of_microseconds_are_timed_by_the_many(clock: Clock) -> None:
    times = in_turns([clock.taking(itertools.repeat(2e-6))], rounds=4)
    assert times == [[pytest.approx(2e-6)] * 4]
    assert clock.now == pytest.approx((3 + 4 * 50) * 2e-6, rel=0.03)


@pytest.mark.parametrize("stalled", [0, 1, 2])
def test_a_stall_while_warming_up_makes_no_long_call_of_a_short_one(clock: Clock, stalled: int) -> None:
    """As a long one it would be timed by one call a round, the first behind another side's, which waits longest."""
    stalls = itertools.chain([0.13 if number == stalled else 1e-3 for number in range(3)], itertools.cycle([0.1] + 9 * [1e-3]))
    assert in_turns([clock.taking(stalls)], rounds=5) == [[pytest.approx(1e-3)] * 5]


def test_calls_that_wait_are_no_more_than_there_is_time_for(clock: Clock) -> None:
    in_turns([clock.taking(itertools.repeat(0.05))], rounds=5, clock=itertools.count(step=1e-6).__next__)
    assert clock.now == pytest.approx((3 + 5) * 0.05)


def test_what_was_just_called_is_not_warmed_up(clock: Clock) -> None:
    sides = [clock.taking(itertools.repeat(0.5)), clock.taking(itertools.repeat(0.4))]
    assert in_turns(sides, limit=1.0, taken=0.45) == [[pytest.approx(0.5)], [pytest.approx(0.4)]]
    assert clock.now == pytest.approx(0.9)
    ours, theirs = sides
    assert duel(ours, theirs, limit=1.0, taken=0.45).rounds == 1
    assert clock.now == pytest.approx(1.8)


def test_rounds_end_before_the_limit(clock: Clock) -> None:
    assert [len(times) for times in in_turns([clock.taking(itertools.repeat(1.0))] * 2, limit=7.5)] == [2, 2]
    assert [len(times) for times in in_turns([clock.taking(itertools.repeat(1.0))] * 2, limit=0.0)] == [1, 1]
    outcome = duel(clock.taking(itertools.repeat(1.0)), clock.taking(itertools.repeat(1.0)), limit=7.5)
    assert (outcome.rounds, outcome.cut_short) == (2, True)
    assert not duel(clock.taking(itertools.repeat(1.0)), clock.taking(itertools.repeat(1.0)), limit=1e9).cut_short


@pytest.mark.parametrize(
    ("theirs", "limit", "undecided"), [(1.05, 9.0, True), (1.05, 1e9, False), (1.0, 9.0, False), (3.0, 9.0, False)]
)
def test_who_leads_when_time_is_over_may_still_win(clock: Clock, theirs: float, limit: float, undecided: bool) -> None:
    outcome = duel(clock.taking(itertools.repeat(1.0)), clock.taking(itertools.repeat(theirs)), limit=limit)
    assert outcome.undecided is undecided


@pytest.mark.parametrize(("slowdown", "rounds"), [(1.0, 5), (4.0, 20), (1e3, 30)])
def test_duels_have_as_many_rounds_on_a_busy_machine(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, slowdown: float, rounds: int
) -> None:
    monkeypatch.setattr("mugraph.runtime.benchmarking.slowdown", lambda: slowdown)
    equal = clock.taking(itertools.repeat(0.0625))
    assert duel(equal, equal, seconds=0.625).rounds == rounds


def test_a_terminal_shows_a_duel_in_a_line() -> None:
    assert repr(Duel(20, 15, 1.2512)) == "<Duel: 1.25 times as fast, the faster in 15 of 20 rounds>"


def test_duels_are_read_as_they_were_written() -> None:
    for outcome in (Duel(20, 15, 1.25), Duel.of([1.0, 2.0], [3.0, 3.0])):
        assert Duel.from_json(outcome.to_json()) == outcome
    for values in ({}, {"rounds": 1, "won": 1, "speedup": None}, {"rounds": "many", "won": 1, "speedup": 1.0}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Duel.from_json(values)


def test_rounds_are_interleaved_after_the_warmup() -> None:
    calls: list[str] = []
    seconds = measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=1)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}
    assert all(time >= 0 for times in seconds.values() for time in times)


def test_something_may_run_between_calls() -> None:
    calls: list[str] = []
    measure({"a": lambda: calls.append("a")}, repeats=2, warmup=0, between=lambda: calls.append("flush"))
    assert calls == ["flush", "a", "flush", "a"]


def test_a_spent_budget_still_times_everything_once() -> None:
    seconds = measure({"a": lambda: None, "b": lambda: None}, repeats=100, budget=0.0)
    assert [len(times) for times in seconds.values()] == [1, 1]
