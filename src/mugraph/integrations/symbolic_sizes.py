"""Graphs with symbolic sizes: right at all sizes, and run by kernels at those that keep coming.

Kernels are compiled for sizes, and a size costs seconds. The sizes of a growing cache of keys and values come once each; batches
come in few sizes, thousands of times each. So a size gets kernels when it comes the third time, and only so many sizes do.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

_USES = 3
"""How often a size must come to be worth seconds."""
_REMEMBERED = 4096
"""Sizes that are counted before counting starts anew."""
_log = logging.getLogger("mugraph.torch_compile")

Run = Callable[..., Any]


class SizedGraph:
    """A graph as it runs at any size (`general`), and by what `specialized` makes of its arguments for up to `limit` sizes.

    `numbers` are the arguments that decide all sizes. Safe to call from several threads: while one waits for kernels, the
    others run the general graph. What `specialized` raises is reported, and that size stays with the general graph; with `strict`
    it is raised.
    """

    def __init__(
        self, general: Run, specialized: Callable[[Sequence[Any]], Run], numbers: Sequence[int], limit: int, strict: bool = False
    ) -> None:
        self.general, self.specialized = general, specialized
        self.numbers, self.limit, self.strict = tuple(numbers), limit, strict
        self.runs: dict[tuple[Any, ...], Run] = {}
        """By size, what runs it."""
        self._uses: Counter[tuple[Any, ...]] = Counter()
        self._one_at_a_time = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        sizes = tuple([arguments[number] for number in self.numbers])
        run = self.runs.get(sizes)
        if run is None:
            run = self._counted(sizes, arguments)
        return run(*arguments)

    def _counted(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> Run:
        if len(self.runs) >= self.limit or not self._one_at_a_time.acquire(blocking=False):
            return self.general
        try:
            if len(self._uses) == _REMEMBERED:
                self._uses.clear()
            self._uses[sizes] += 1
            if self._uses[sizes] >= _USES and sizes not in self.runs:
                self.runs[sizes] = self._made(sizes, arguments)
            return self.runs.get(sizes, self.general)
        finally:
            self._one_at_a_time.release()

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
