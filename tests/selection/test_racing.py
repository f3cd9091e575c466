"""Candidates are chosen by what other processes do not stretch: simulated machines, on which no time passes but in calls."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mugraph.ir import DType, GraphBuilder, Level
from mugraph.runtime import Executable
from mugraph.runtime.benchmarking import undisturbed
from mugraph.selection.contestants import Contestant, fastest_first, measured
from mugraph.selection.racing import race
from mugraph.targets.machine import Timed

FINALISTS = 5


class Kernels:
    """What a contestant asks of its kernels."""

    def __init__(self, machine: object, call: Callable[[], None]) -> None:
        self.machine, self.call = machine, call

    def __call__(self) -> None:
        self.call()


class Machine:
    """A machine whose calls wait for cores, each with the same chance, for milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, share: float) -> None:
        self.random, self.share, self.now = random.Random(seed), share, 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def entry(self, seconds: float) -> Contestant:
        """A candidate whose kernels take so long; its predicted seconds tell, too."""

        def call() -> None:
            self.now += seconds + (self.random.expovariate(1 / 0.006) if self.random.random() < self.share else 0.0)

        machine = SimpleNamespace(moved=list, timed=self.timed)
        builder = GraphBuilder(Level.KERNEL)
        graph = builder.build([builder.input("x", (1,), DType.FP32)])
        return Contestant(graph, seconds, cast(Executable, Kernels(machine, call)))

    def timed(self, call: Callable[[], None]) -> Timed:
        return Timed(call, clock=lambda: self.now, waits=True)


def lap(entries: Sequence[Contestant], bursts: int) -> list[Contestant]:
    return [measured([entry], [], rounds=bursts)[0] for entry in entries]


def regret(chosen: Contestant, entries: Sequence[Contestant]) -> float:
    """How much longer the chosen one really takes than the fastest."""
    return real(chosen) / min(map(real, entries)) - 1


def real(entry: Contestant) -> float:
    assert entry.cost is not None
    return entry.cost


@pytest.mark.parametrize("typical", [0.1e-3, 0.9e-3, 4e-3])
def test_where_most_calls_wait_a_candidate_within_a_tenth_of_the_best_is_chosen(
    monkeypatch: pytest.MonkeyPatch, typical: float
) -> None:
    """In nine machines of ten at least; by the typical calls of the same measurement it is not."""
    ours: list[float] = []
    by_typical: list[float] = []
    for seed in range(20):
        machine = Machine(monkeypatch, seed, share=0.6)
        entries = [machine.entry(typical * machine.random.uniform(1.0, 1.5)) for _ in range(16)]
        finalists = race(entries, lap, FINALISTS)[:FINALISTS]
        timed = measured(finalists, [], rounds=20, limit=3.0)
        ours.append(regret(fastest_first(timed)[0], entries))
        by_typical.append(regret(min(timed, key=lambda entry: entry.latency), entries))
    assert sum(each <= 0.1 for each in ours) >= 18
    assert sum(by_typical) > sum(ours)


def test_on_a_quiet_machine_the_fastest_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 0, share=0.0)
    entries = [machine.entry(1e-3 + number * 1e-5) for number in random.Random(1).sample(range(16), 16)]
    ranked = race(entries, lap, FINALISTS)
    assert [real(entry) for entry in ranked] == sorted(map(real, entries))


def test_laps_are_of_the_faster_half_and_of_twice_the_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, laps = Machine(monkeypatch, 0, share=0.0), list[tuple[int, int]]()

    def counted(entries: Sequence[Contestant], bursts: int) -> list[Contestant]:
        laps.append((len(entries), bursts))
        return lap(entries, bursts)

    assert len(race([machine.entry(1e-3) for _ in range(40)], counted, FINALISTS)) == 40
    assert laps == [(40, 1), (20, 2), (10, 4)]
    laps.clear()
    race([machine.entry(1e-3) for _ in range(5)], counted, FINALISTS)
    assert laps == [(5, 1)]


@pytest.mark.parametrize("affordable", [0, 3, 16, 20])
def test_a_race_ends_with_its_time_and_loses_none(monkeypatch: pytest.MonkeyPatch, affordable: int) -> None:
    """Who was not timed comes last, in the order before."""
    machine, left = Machine(monkeypatch, 0, share=0.0), itertools.chain(range(affordable), itertools.repeat(math.inf))
    entries = [machine.entry(2e-3 - number * 1e-5) for number in range(16)]

    def until_then(some: Sequence[Contestant], bursts: int) -> list[Contestant]:
        return lap([entry for entry in some if next(left) < math.inf], bursts)

    ranked = race(entries, until_then, FINALISTS)
    known = min(affordable, 16)
    assert [real(entry) for entry in ranked[:known]] == sorted(real(entry) for entry in entries[:known])
    assert ranked[known:] == entries[known:]


def test_a_lap_in_which_all_calls_waited_takes_nothing_back() -> None:
    entries = [_measured_as(seconds) for seconds in (1e-3, 2e-3, 3e-3)]
    slower: Any = iter((9e-3, 9e-3, 9e-3))
    ranked = race(entries, lambda some, _: [replace(entry, latency=next(slower), undisturbed=9e-3) for entry in some], 2)
    assert [entry.compared for entry in ranked] == [1e-3, 2e-3, 3e-3]


def _measured_as(seconds: float) -> Contestant:
    builder = GraphBuilder(Level.KERNEL)
    graph = builder.build([builder.input("x", (1,), DType.FP32)])
    return Contestant(graph, seconds, cast(Executable, None), latency=seconds, undisturbed=seconds)


@pytest.mark.parametrize(
    ("bursts", "seconds"),
    [
        ([[5.0]], 5.0),
        ([[5.0], [4.0]], 4.0),
        ([[9.0, 1.0, 9.0]], 9.0),  # one that was quick by chance
        ([[9.0, 9.0, 9.0, 2.0, 8.0, 2.0], [7.0, 7.0, 7.0]], 2.0),
        ([[9.0, 9.0, 9.0, 1.0, 1.0]], 9.0),  # too few in a row are left
        ([[3.0, 4.0]], 3.5),
    ],
)
def test_what_counts_is_the_least_median_of_three_calls_in_a_row(bursts: list[list[float]], seconds: float) -> None:
    assert undisturbed(bursts) == seconds
