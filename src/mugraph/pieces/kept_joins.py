"""Which larger programs of a graph were tried before: with as much time, later processes try no others.

What became of those that were tried is kept by program, as of all (`mugraph.selection.result_cache`). Without a list of them each
process would spend the time that this saves on larger programs that those before had no time for. How busy the
machine was then, and is now, makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from mugraph.support.store import Store

KIND = "joins"
"""What the store calls such lists."""


@dataclass(frozen=True, slots=True)
class KeptJoins:
    """The lists of a store, for graphs that have `budget` seconds (None: no limit)."""

    store: Store
    budget: float | None

    def tried(self, graph: str) -> frozenset[str] | None:
        """The larger programs that were tried of a graph, both by their digests; None where it had less time, or was not met."""
        record = self.store.get(KIND, graph)
        with suppress(KeyError, TypeError, ValueError):  # a document that is none: the graph was not met
            if record is not None and _seconds(self.budget) <= _seconds(record["budget"]):
                return frozenset(map(str, record["tried"]))
        return None

    def keep(self, graph: str, tried: Iterable[str]) -> None:
        """Keep a list in the place of one that was made in less time."""
        self.store.put(KIND, graph, {"budget": self.budget, "tried": sorted(tried)})


def _seconds(budget: float | None) -> float:
    return math.inf if budget is None else float(budget)
