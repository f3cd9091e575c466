"""The user's own function as a rival of a result: both called as the user calls them, warm, in turns, overhead included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.devices.host import seconds_when_busy, slowdown
from mugraph.runtime.baselines import BaselineComparison, compare
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import Machine

_SECONDS, _SECONDS_COMPILED = 0.5, 5.0
"""For so long rounds start: against the function alone on a quiet machine, and against what torch.compile makes of it, too."""
_BEYOND = 1.0
"""Seconds that are there in any case, also when the budget is spent."""
_KEPT_SECONDS, _KEPT_CALLS, _KEPT_SHARE = 1.0, 24, 0.3
"""Seconds of a quiet machine that a search leaves for calls of a program and of the function, for how many there is time at least
(two of each that warm it up, ten rounds: five of which one is disturbed do not decide), and the largest part of what is left."""


def before_calls(deadline: Deadline, seconds: float) -> Deadline:
    """The deadline of a search that leaves time for whole calls of so many predicted seconds each."""
    return deadline.leaving(seconds_when_busy(_KEPT_SECONDS, _KEPT_CALLS * seconds), _KEPT_SHARE)


@dataclass(frozen=True, slots=True)
class OwnCall:
    """A call of the user's function, with the example arguments."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def on(self, machine: Machine, tensors: Sequence[Any]) -> OwnCall | None:
        """The call where the machine's kernels read its `tensors`; None where the function cannot be called there.

        Tensors that lie elsewhere are moved, unless some are no arguments of their own: captured, or in containers.
        """
        moved = machine.moved(tensors)
        if _same(moved, tensors):
            return self
        if not _same([*self.args, *self.kwargs.values()], tensors):
            return None
        named = zip(self.kwargs, moved[len(self.args) :], strict=True)
        return OwnCall(self.fn, moved[: len(self.args)], dict(named))

    def beside(
        self,
        result: Callable[..., Any],
        machine: Machine,
        deadline: Deadline,
        *,
        compiled: bool,
        taken: float = math.inf,
        tell: Callable[[str], None] = lambda text: None,
    ) -> BaselineComparison:
        """Whole calls of a result beside the function's and, if `compiled`, those of what torch.compile makes of it. Where calls
        of both have just `taken` so many seconds, they are warm. `tell` is told what is compiled, and what is timed.

        There is at least a round, and a second for some, also where nothing is left until the deadline. On a busy machine calls
        take longer, and differ as much more, so that more rounds are needed to tell them apart.
        """
        slower, left = slowdown(), deadline.remaining
        seconds = _SECONDS_COMPILED if compiled else _SECONDS * slower**2
        limit = math.inf if left is None or compiled else max(left, _BEYOND)
        settings: dict[str, Any] = {"seconds": seconds, "limit": limit, "compiled": compiled, "machine": machine, "taken": taken}
        return compare(result, self.fn, self.args, self.kwargs, tell=tell, **settings)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
