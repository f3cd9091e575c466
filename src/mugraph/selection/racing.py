"""Which of many contestants are worth many calls: successive halving (Jamieson and Talwalkar, 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mugraph.selection.contestants import Contestant, fastest_first

Lap = Callable[[Sequence[Contestant], int], Sequence[Contestant]]
"""Times contestants by so many bursts of calls each, in their order; those it returns are the first of them, as far as there is
time."""


def race(entries: Sequence[Contestant], lap: Lap, finalists: int) -> list[Contestant]:
    """Fastest first; behind them those that there was no time for.

    All run a lap, the faster half runs another one of twice as many bursts, and so on until only so many `finalists` are left:
    a burst in which others had the cores drops none of the fast ones but in the first lap, if all of its calls waited. Entries
    are put in order by all their laps.
    """
    running, behind, bursts = list(entries), list[Contestant](), 1
    while True:
        timed = list(lap(running, bursts))
        both = [_of_both(before, now) for before, now in zip(running, timed, strict=False)]
        ranked = fastest_first([*both, *running[len(timed) :]])
        if len(running) <= finalists or len(timed) < len(running):
            return [*ranked, *behind]
        staying = max(finalists, (len(running) + 1) // 2)
        running, behind, bursts = ranked[:staying], [*ranked[staying:], *behind], 2 * bursts
        if staying == finalists:
            return [*running, *behind]


def _of_both(before: Contestant, now: Contestant) -> Contestant:
    """A contestant by the lap in which its calls took less, as they are compared: what else runs only stretches them."""
    faster = now if now.compared <= before.compared else before
    return replace(faster, least=min(before.least, now.least))
