"""Graphs of `torch.compile` that have kernels of their own at sizes that keep coming.

Kernels that are made for one size alone are the fastest, and cost seconds. No call waits for them (`RecurringSizes`): when a size
comes the third time, they are made in the background, and serve once a call of them returned what the graph does, where a duel
finds them clearly faster than what ran the size. Where calls cannot be made once more, to be compared, as they draw random
numbers, the third one waits for kernels, which serve (`SizedGraph`).
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.integrations.background import Later, Run, Turn
from mugraph.integrations.own_arguments import MOST_TRIES, OwnArguments
from mugraph.runtime.benchmarking import Duel, duel

_USES = 3
"""How often a size must come to be worth seconds."""
_USES_BY_PARTS = 32
"""And where kernels run it already, for any size: those for itself gain less."""
_REMEMBERED = 4096
"""Sizes that are counted before counting starts anew."""

_log = logging.getLogger("mugraph.torch_compile")


class AnySize(Protocol):
    """A graph as it runs at any size: call it. `numbers` are the arguments that decide all sizes."""

    @property
    def numbers(self) -> tuple[int, ...]: ...

    def __call__(self, *arguments: Any) -> Any: ...

    def is_by_parts(self, arguments: Sequence[Any]) -> bool:
        """Whether kernels of its parts are known to run such calls."""

    def for_now(self, arguments: Sequence[Any]) -> Run:
        """What runs such calls, as far as is known."""


@dataclass(frozen=True, slots=True)
class UncutGraph:
    """A graph that is not cut: one way to run it serves any size."""

    run: Run
    numbers: tuple[int, ...]

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)

    def is_by_parts(self, arguments: Sequence[Any]) -> bool:
        """It has none."""
        return False

    def for_now(self, arguments: Sequence[Any]) -> Run:
        """What always does."""
        return self.run


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
                self._turn.take(functools.partial(self._add, sizes), arguments)
        return self.runs.get(sizes, self.general)

    def _worth(self, arguments: Sequence[Any]) -> int:
        """How often the size of a call must come to be worth seconds."""
        return _USES

    def _add(self, sizes: tuple[Any, ...], given: OwnArguments) -> None:
        if sizes not in self.runs and len(self.runs) < self.limit:
            self.runs[sizes] = self._made(sizes, given)

    def _made(self, sizes: tuple[Any, ...], given: OwnArguments) -> Run:
        _log.info("sizes %s of a graph keep coming: they get kernels (%d of %d)", sizes, len(self.runs) + 1, self.limit)
        if len(self.runs) + 1 == self.limit:
            _log.info("no more sizes of this graph get kernels; option sizes=... allows more than %d", self.limit)
        try:
            return self.specialized(given.given)
        except Exception:  # a model must run whatever goes wrong in here
            if self.strict:
                raise
            _log.warning("optimizing a graph for sizes %s failed, it runs without; please report this", sizes, exc_info=True)
            return self.general


class RecurringSizes(SizedGraph):
    """A graph as it runs at any size, and by what `specialized` makes of its arguments for sizes that keep coming.

    No call waits: kernels are made in the background, by `later`. They run their size once they returned what the graph does and,
    with `faster`, were clearly faster than what ran it; else that runs it on. Where arguments changed while they were compared,
    that is done again when the size keeps coming.
    """

    def __init__(
        self,
        general: AnySize,
        specialized: Callable[[Sequence[Any]], Run],
        limit: int,
        later: Later,
        faster: bool = True,
    ) -> None:
        super().__init__(general, specialized, general.numbers, limit, later=later)
        self.any_size, self.faster = general, faster
        self.duels: dict[tuple[Any, ...], Duel] = {}
        """By size, what was found of its kernels, as the challenger."""
        self._disturbed = Counter[tuple[Any, ...]]()
        """By size, comparisons during which arguments changed."""

    def _worth(self, arguments: Sequence[Any]) -> int:
        return _USES_BY_PARTS if self.any_size.is_by_parts(arguments) else _USES

    def _made(self, sizes: tuple[Any, ...], given: OwnArguments) -> Run:
        run = super()._made(sizes, given)
        return run if run is self.general else self._compared(sizes, run, given)

    def _compared(self, sizes: tuple[Any, ...], run: Run, given: OwnArguments) -> Run:
        """What is to run a size of which there are kernels."""
        try:
            with _disable_current_modes(), torch.no_grad():
                return self._better(sizes, run, given)
        except Exception:  # a model must run whatever goes wrong in here
            _log.warning("running a graph at sizes %s failed, it runs as before; please report this", sizes, exc_info=True)
            return self.general

    def _better(self, sizes: tuple[Any, ...], run: Run, given: OwnArguments) -> Run:
        """Kernels for a size that return what the graph does and are faster than what runs it, or else that."""
        usual = self.any_size.for_now(given.given)
        wrong = given.contradiction(usual, run)
        if wrong is None:
            return self._put_off(sizes, run)
        if wrong:
            _log.error("a graph returns something else at sizes %s, it runs as before; please report this: %s", sizes, wrong)
            return self.general
        if not self.faster:
            return run
        self.duels[sizes] = duel(functools.partial(run, *given.given), functools.partial(usual, *given.given))
        _log.info("kernels for sizes %s of a graph, beside what runs any: %s", sizes, self.duels[sizes])
        return run if self.duels[sizes].clear else self.general

    def _put_off(self, sizes: tuple[Any, ...], run: Run) -> Run:
        """What runs a size until its kernels are compared once more."""
        self._uses[sizes] = 0
        self._disturbed[sizes] += 1
        _log.info("arguments changed while kernels for sizes %s of a graph were compared with it", sizes)
        return self.general if self._disturbed[sizes] == MOST_TRIES else functools.partial(self._meanwhile, sizes, run)

    def _meanwhile(self, sizes: tuple[Any, ...], run: Run, *arguments: Any) -> Any:
        """A call by what runs any size, which has kernels compared if the size kept coming."""
        self._uses[sizes] += 1
        if self._uses[sizes] >= self._worth(arguments):
            self._turn.take(functools.partial(self._compare, sizes, run), arguments)
        return self.general(*arguments)

    def _compare(self, sizes: tuple[Any, ...], run: Run, given: OwnArguments) -> None:
        self.runs[sizes] = self._compared(sizes, run, given)
