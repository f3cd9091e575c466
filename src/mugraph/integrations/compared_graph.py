"""Graphs of `torch.compile` that are cut into parts for any size, beside the same graphs as a whole.

What runs the parts of a graph is chosen part by part, and each choice may be right while all of them are slower than the graph as
it was: every part is a call of Python, and chunks are taken out and joined. So both ways are called with what the first call of a
class of sizes gives, must return the same, and take turns at the clock; and so do parts and PyTorch's calls of the graph, for the
whole may be slower than these. A class has all sizes between two powers of two.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.integrations.background import Turn
from mugraph.integrations.masked_run import Decision
from mugraph.integrations.own_arguments import MOST_TRIES, OwnArguments
from mugraph.runtime.benchmarking import Duel, duel

Run = Callable[..., Any]

_SECONDS = 0.25
"""In how long a class is decided, on a quiet machine and but for calls that take long."""

_log = logging.getLogger("mugraph.torch_compile")


class ComparedGraph:
    """A graph by its parts (`cut`) at each class of sizes where, as the first call of the class found, these are faster than the
    graph as a `whole` and than PyTorch's `calls` of it, and as a whole at the others. `numbers` are the arguments that decide all
    sizes.

    Which it is, is looked at again after some calls, behind calls where `turn` can. The graph is run as a whole for good once its
    parts raise while they are compared, or return something else; both is reported, and with `strict` what was raised is raised.
    Where arguments changed meanwhile, the next call compares. Calls draw no random numbers. Safe to call from several threads:
    while one compares, the others run the whole, and all do where that is done in the background, by `turn`.
    """

    def __init__(
        self,
        cut: Run,
        whole: Run,
        numbers: Sequence[int],
        calls: Run | None = None,
        strict: bool = False,
        turn: Turn | None = None,
    ) -> None:
        self.cut, self.whole, self.calls, self.strict = cut, whole, calls, strict
        self.numbers = tuple(numbers)
        self.decided: dict[tuple[int, ...], Decision] = {}
        """By class whether parts are the faster ones."""
        self.duels: dict[tuple[int, ...], list[Duel]] = {}
        """By class what the last comparisons showed, with parts as the challenger, until they lost one."""
        self._prepared = set[tuple[int, ...]]()
        """Classes of which a call was made by parts, that these could ask for kernels."""
        self._failed = False
        self._disturbed = 0
        self._turn = turn or Turn()

    def __call__(self, *arguments: Any) -> Any:
        sizes = self._class_of(arguments)
        decision = self.decided.get(sizes)
        if decision is None or decision.is_due():
            decision = self._looked_at(sizes, arguments)
        run = self.cut if decision is not None and decision.faster else self.whole
        return run(*arguments)

    def is_by_parts(self, arguments: Sequence[Any]) -> bool:
        """Whether parts are known to run calls of this class of sizes; it does not count as one."""
        decision = self.decided.get(self._class_of(arguments))
        return decision is not None and decision.faster and not self._failed

    def for_now(self, arguments: Sequence[Any]) -> Run:
        """What runs such calls, as far as is known."""
        return self.cut if self.is_by_parts(arguments) else self.whole

    def _class_of(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """By how many bits sizes have."""
        return tuple([arguments[number].bit_length() for number in self.numbers])

    def _looked_at(self, sizes: tuple[int, ...], arguments: Sequence[Any]) -> Decision | None:
        """What is decided of a class by comparing, or was where that is left to others; None where nothing was."""
        if not self._failed and sizes not in self._prepared:
            self._turn.take(functools.partial(self._prepare, sizes), arguments)
        if not self._failed and sizes in self._prepared:
            self._turn.take(functools.partial(self._decide, sizes), arguments, again=sizes in self.decided)
        return None if self._failed else self.decided.get(sizes)

    def _prepare(self, sizes: tuple[int, ...], given: OwnArguments) -> None:
        """Make a call by parts, which must return what the graph does; the next call does it again where arguments changed."""
        wrong = self._tried(lambda: given.contradiction(self.whole, self.cut))
        if wrong:
            self._failed = True
            _log.error("a graph returns something else by parts, it is run as a whole; please report this: %s", wrong)
        if wrong == "":
            self._prepared.add(sizes)
        elif not self._failed:
            self._disturbed += 1
            self._failed = self._disturbed == MOST_TRIES
            _log.info("arguments of a graph changed while it was compared with its parts, for the %d. time", self._disturbed)

    def _decide(self, sizes: tuple[int, ...], given: OwnArguments) -> None:
        duels = self._tried(lambda: self._duels(given.given))
        if duels is not None:
            self.duels[sizes] = duels
            self.decided[sizes] = Decision.behind(self.decided.get(sizes), duels[-1].speedup > 1)
            _log.info("a graph by parts, at sizes of %s bits: %s", sizes, "; ".join(map(str, duels)))

    def _duels(self, arguments: Sequence[Any]) -> list[Duel]:
        """Parts beside each other way, until they lose."""
        duels: list[Duel] = []
        for other in filter(None, (self.whole, self.calls)):
            duels.append(duel(functools.partial(self.cut, *arguments), functools.partial(other, *arguments), _SECONDS))
            if duels[-1].speedup <= 1:
                break
        return duels

    def _tried(self, work: Callable[[], Any]) -> Any:
        """What work without gradients makes; None where something is raised, which is reported."""
        try:
            with _disable_current_modes(), torch.no_grad():
                return work()
        except Exception:  # a model must run whatever goes wrong in here
            self._failed = True
            if self.strict:
                raise
            _log.warning("running a graph by parts failed, it is run as a whole; please report this", exc_info=True)
            return None
