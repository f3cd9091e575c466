"""Graphs of `torch.compile` that have kernels of their own at sizes that keep coming.

Kernels that are made for one size alone are the fastest, and cost seconds. Calls of a graph that PyTorch runs at other sizes
(`SizedGraph`) wait for them when a size comes the third time. One that runs at any size at once, by its parts or as a whole
(`RecurringSizes`), waits for nothing: kernels are made in the background, and serve where a duel finds them clearly faster than
what ran the size.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.integrations.background import Later, Run, Turn
from mugraph.integrations.compared_graph import ComparedGraph
from mugraph.pieces.cutting import contradiction
from mugraph.runtime.benchmarking import Duel, duel

_USES = 3
"""How often a size must come to be worth seconds."""
_USES_BY_PARTS = 32
"""And where kernels run it already, for any size: those for itself gain less."""
_REMEMBERED = 4096
"""Sizes that are counted before counting starts anew."""

_log = logging.getLogger("mugraph.torch_compile")


class SizedGraph:
    """A graph as it runs at any size (`general`), and by what `specialized` makes of its arguments for up to `limit` sizes.

    `numbers` are the arguments that decide all sizes. Safe to call from several threads: while one waits for kernels, the
    others run the general graph, and all do where they are made in the background, by `later`. What `specialized` raises is
    reported, and that size stays with the general graph; with `strict` it is raised.
    """

    def __init__(
        self,
        general: Run,
        specialized: Callable[[Sequence[Any]], Run],
        numbers: Sequence[int],
        limit: int,
        strict: bool = False,
        later: Later | None = None,
    ) -> None:
        self.general, self.specialized = general, specialized
        self.numbers, self.limit, self.strict = tuple(numbers), limit, strict
        self.runs: dict[tuple[Any, ...], Run] = {}
        """By size, what runs it."""
        self._uses: Counter[tuple[Any, ...]] = Counter()
        self._turn = Turn(later)

    def __call__(self, *arguments: Any) -> Any:
        sizes = tuple([arguments[number] for number in self.numbers])
        run = self.runs.get(sizes)
        if run is None:
            run = self._counted(sizes, arguments)
        return run(*arguments)

    def _counted(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> Run:
        if len(self.runs) < self.limit:
            if len(self._uses) == _REMEMBERED:
                self._uses.clear()
            self._uses[sizes] += 1
            if self._uses[sizes] >= self._worth(arguments):
                self._turn.take(functools.partial(self._add, sizes, arguments))
        return self.runs.get(sizes, self.general)

    def _worth(self, arguments: Sequence[Any]) -> int:
        """How often the size of a call must come to be worth seconds."""
        return _USES

    def _add(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> None:
        if sizes not in self.runs and len(self.runs) < self.limit:
            self.runs[sizes] = self._made(sizes, arguments)

    def _made(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> Run:
        _log.info("sizes %s of a graph keep coming: they get kernels (%d of %d)", sizes, len(self.runs) + 1, self.limit)
        if len(self.runs) + 1 == self.limit:
            _log.info("no more sizes of this graph get kernels; option sizes=... allows more than %d", self.limit)
        try:
            return self.specialized(arguments)
        except Exception:  # a model must run whatever goes wrong in here
            if self.strict:
                raise
            _log.warning("optimizing a graph for sizes %s failed, it runs without; please report this", sizes, exc_info=True)
            return self.general


class RecurringSizes(SizedGraph):
    """A graph as it is `compared` at any size, and by what `specialized` makes of its arguments for sizes that keep coming.

    No call waits: kernels are made in the background, by `later`. They run their size once they returned what the graph does, and
    were clearly faster than what ran it, by its parts or as a whole; else that runs it on.
    """

    def __init__(self, compared: ComparedGraph, specialized: Callable[[Sequence[Any]], Run], limit: int, later: Later) -> None:
        super().__init__(compared, specialized, compared.numbers, limit, later=later)
        self.compared = compared
        self.duels: dict[tuple[Any, ...], Duel] = {}
        """By size, what was found of its kernels, as the challenger."""

    def _worth(self, arguments: Sequence[Any]) -> int:
        return _USES_BY_PARTS if self.compared.is_by_parts(arguments) else _USES

    def _made(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> Run:
        run = super()._made(sizes, arguments)
        try:
            with _disable_current_modes(), torch.no_grad():
                return run if run is not self.general and self._is_better(sizes, run, arguments) else self.general
        except Exception:  # a model must run whatever goes wrong in here
            _log.warning("running a graph at sizes %s failed, it runs as before; please report this", sizes, exc_info=True)
            return self.general

    def _is_better(self, sizes: tuple[Any, ...], run: Run, arguments: Sequence[Any]) -> bool:
        """Whether kernels for a size return what the graph does, and are clearly faster than what runs it."""
        usual = self.compared.for_now(arguments)
        if wrong := contradiction(usual(*arguments), run(*arguments)):
            _log.error("a graph returns something else at sizes %s, it runs as before; please report this: %s", sizes, wrong)
            return False
        self.duels[sizes] = duel(functools.partial(run, *arguments), functools.partial(usual, *arguments))
        _log.info("kernels for sizes %s of a graph, beside what runs any: %s", sizes, self.duels[sizes])
        return self.duels[sizes].clear
