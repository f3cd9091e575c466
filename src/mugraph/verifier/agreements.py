"""Pairs of slices that tests of this process accepted: graphs of the same slices at other sizes are not tested again."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from mugraph.ir.graph import Graph
from mugraph.verifier.bounds import Difference
from mugraph.verifier.trials import Trials


@dataclass(frozen=True, slots=True)
class Agreement:
    """Tests that accepted a pair of slices, and so accept every pair of graphs with these slices: at other sizes, that is."""

    trials: Trials
    difference: Difference | None
    error_bound: float | None


@functools.lru_cache(maxsize=64)
def agreements(left: Graph, right: Graph, max_error: float, seed: int | None) -> list[Agreement]:
    """What is known of two slices: nothing at first, and later at most one agreement, by the seed if one was given."""
    return []
