"""The user's own function as a rival of a result: both called as the user calls them, warm, in turns, overhead included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.devices.host import slowdown
from mugraph.runtime.baselines import BaselineComparison, compare
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import Machine

_SECONDS, _SECONDS_COMPILED = 0.5, 5.0
"""For so long rounds start: against the function alone on a quiet machine, and against what torch.compile makes of it, too."""
_LEFT, _LEFT_KEPT, _LEFT_MOST = 5.0, 3.0, 9.0
"""Seconds that are there in any case: ten rounds of calls of a fifth of a second, which decide what the search was for, where one
disturbed call in five does not; where some were kept for them; and on a busy machine at the most."""


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
        self, result: Callable[..., Any], machine: Machine, deadline: Deadline, *, compiled: bool, kept: bool = False
    ) -> BaselineComparison:
        """Whole calls of a result beside the function's and, if `compiled`, those of what torch.compile makes of it.

        There is at least a round, and time for some, also where nothing is left until the deadline; on a busy machine no more
        time where some was `kept` for them. Calls take longer there, and differ as much more, so that more rounds are needed to
        tell them apart.
        """
        slower, left = slowdown(), deadline.remaining
        seconds = _SECONDS_COMPILED if compiled else _SECONDS * slower**2
        beyond = _LEFT_KEPT if kept else min(_LEFT * slower, _LEFT_MOST)
        limit = math.inf if left is None or compiled else max(left, beyond)
        return compare(result, self.fn, self.args, self.kwargs, seconds=seconds, limit=limit, compiled=compiled, machine=machine)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
