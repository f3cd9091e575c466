"""What of a budget each of several pieces has: by what it takes, and by what it is predicted to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mugraph.devices.host import slowdown
from mugraph.support.deadline import NO_LIMIT, Deadline

if TYPE_CHECKING:
    from mugraph.frontend.partitioning.partition import Piece

_WORTH_RETRYING = 1.2
"""Pieces whose time ran out are tried again with at least so many times as much."""

_LEAST_SECONDS = 5.0
"""Of processor time, what most pieces need to have kernels found, compiled, compared and proved."""

_FIRST_SECONDS = 1.0
"""Of processor time, after which a piece waits for the others once something of it is proved, where there is little for each."""

_SECONDS_OF_AN_OPERATOR = 0.05
"""Of processor time, what each operator takes at least of a program that is searched, compiled and proved as a whole: of 54
operators all took 4 seconds, and of 75 six were not enough."""

_COMPARED_SHARE = 0.25
"""The largest part of what is left of the time for its graph that is kept for the duel of a piece."""

_BY_WORTH = 0.5
"""The part of the time that pieces share by the seconds that they save; they share the rest by their operators."""


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of a budget for one of several pieces: the most, and those after which it ends once something is proved."""

    budget: float | None
    enough: float | None
    until: Deadline = NO_LIMIT
    """Of everything that is done about their graph: what was found of one is compared with PyTorch's calls by then."""

    @classmethod
    def of(cls, deadline: Deadline, fraction: float, until: Deadline | None = None, kept: float = 0.0) -> Share:
        """That part of what is left, or as much as most pieces need: some have kernels then, and not none.

        It is compared `until` another deadline, or the same, of which so many seconds are `kept` for that.
        """
        fair, remaining = deadline.share(fraction), deadline.remaining
        if fair is None or remaining is None:
            return cls(None, None)
        until = deadline if until is None else until
        before = until.leaving(kept, _COMPARED_SHARE).remaining
        most = remaining if before is None else min(remaining, before)
        return cls(min(max(fair, least_seconds()), most), min(fair, most), until)

    @property
    def of_the_first(self) -> Share:
        """The same, of which no more is wanted than the first muGraph that is proved, and what is found until `first_seconds`."""
        return self if self.enough is None else replace(self, enough=min(self.enough, first_seconds()))

    def of_at_most(self, seconds: float | None) -> Share:
        """The same, but no more than so many seconds where these are any."""
        less = seconds is not None and (self.budget is None or seconds < self.budget)
        return replace(self, budget=seconds) if less else self

    def exceeds(self, before: Share) -> bool:
        """Whether it is so much more than was given before that it may find what that did not."""
        return self.budget is not None and before.budget is not None and self.budget > _WORTH_RETRYING * before.budget


def fraction_of(key: str, waiting: Sequence[str], pieces: Mapping[str, Piece], worth: Mapping[str, float]) -> float:
    """The part of the time for one of the pieces that wait for it, by name: half of it by their operators, which is about what
    they take, and half by `worth`, the seconds of a call of their graph that each is predicted to save."""
    operators = size_of(pieces[key]) / sum(size_of(pieces[each]) for each in waiting)
    saved = sum(worth[each] for each in waiting)
    return operators if not saved else (1 - _BY_WORTH) * operators + _BY_WORTH * worth[key] / saved


def size_of(piece: Piece) -> int:
    """The operators of a piece, about proportional to which is the time that it takes."""
    return max(len(piece.program.kernels()), 1)


def least_seconds() -> float:
    """What most pieces need on this machine, as busy as it is."""
    return _LEAST_SECONDS * slowdown()


def first_seconds() -> float:
    """What most pieces need here for the first muGraph that is proved, once the search of them ends as soon as there is one."""
    return _FIRST_SECONDS * slowdown()


def seconds_of_whole(operators: int) -> float:
    """What a program of so many operators needs as a whole on this machine, as busy as it is."""
    return _SECONDS_OF_AN_OPERATOR * operators * slowdown()


def is_scarce(deadline: Deadline, pieces: int) -> bool:
    """Whether there is less time than most of so many pieces need."""
    return not deadline.allows(pieces * least_seconds())
