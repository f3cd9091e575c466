"""Pairs of slices that tests of this process accepted: graphs of the same slices at other sizes are not tested again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from mugraph.ir.graph import Graph
from mugraph.support.forking import lock_of_process
from mugraph.verifier.bounds import Difference
from mugraph.verifier.trials import Trials

_NODES = 1 << 16
"""Nodes of all graphs that are remembered: some thousand pieces of layers, or both sides of twenty programs of 32 layers."""


class Question(NamedTuple):
    """What tests are asked of two slices: whether they are equal, up to an error, by a seed if one was given."""

    left: Graph
    right: Graph
    max_error: float
    seed: int | None

    @property
    def nodes(self) -> int:
        """Those of both graphs, at every level."""
        return sum(1 for graph in (self.left, self.right) for _ in graph.walk())


@dataclass(frozen=True, slots=True)
class Agreement:
    """Tests that accepted a pair of slices, and so accept every pair of graphs with these slices: at other sizes, that is."""

    trials: Trials
    difference: Difference | None
    error_bound: float | None


@dataclass(slots=True)
class Agreements:
    """Agreements of graphs of so many `nodes` altogether, those that were asked for last; one is kept however large it is."""

    nodes: int
    _found: OrderedDict[Question, Agreement] = field(default_factory=OrderedDict)
    _kept: int = 0
    _lock: threading.Lock = field(default_factory=lock_of_process)

    def find(self, question: Question) -> Agreement | None:
        """The tests that accepted two slices; None where none did, or it is forgotten."""
        with self._lock:
            if question in self._found:
                self._found.move_to_end(question)
            return self._found.get(question)

    def keep(self, question: Question, agreement: Agreement) -> None:
        """Remember the first agreement on two slices."""
        with self._lock:
            if question in self._found:
                return
            self._found[question] = agreement
            self._kept += question.nodes
            while self._kept > self.nodes and len(self._found) > 1:
                forgotten, _ = self._found.popitem(last=False)
                self._kept -= forgotten.nodes


AGREEMENTS = Agreements(_NODES)
"""Those of this process."""
