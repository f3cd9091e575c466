"""Races: the least of many numbers in each of several classes, kept while they come in."""

from __future__ import annotations

import numpy as np

from mugraph.search.scheduling.space import Floats, Indices


class Leaders:
    """The `count` least `seconds` below `bound` of each race, by race, least first; of equal ones those of smaller numbers.

    `worst` are for each race the seconds that another one must not exceed to be among them.
    """

    def __init__(self, races: int, count: int, bound: float = np.inf) -> None:
        self._count, self._bound = count, bound
        self.worst = np.full(races, bound)
        self.races = np.zeros(0, dtype=np.intp)
        self.numbers = np.zeros(0, dtype=np.intp)
        self.seconds = np.zeros(0)

    def add(self, races: Indices, seconds: Floats, numbers: Indices) -> None:
        """Let more run, arrays of one length: which race, in how many seconds, and the number it is known by."""
        fast = (seconds <= self.worst[races]) & (seconds < self._bound)
        races = np.concatenate([self.races, races[fast]])
        seconds = np.concatenate([self.seconds, seconds[fast]])
        numbers = np.concatenate([self.numbers, numbers[fast]])
        order = np.lexsort((numbers, seconds, races))
        place = np.arange(len(order)) - np.searchsorted(races[order], races[order])
        kept = order[place < self._count]
        self.races, self.seconds, self.numbers = races[kept], seconds[kept], numbers[kept]
        last = order[place == self._count - 1]
        self.worst[races[last]] = seconds[last]
