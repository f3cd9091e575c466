"""What a search did: statistics a user and the ablation read, and what they were told while it ran."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

LITTLE = 0.25
"""What could be gained of a prediction beyond what was searched, if that is so little that it is worth a word."""


class Pruning(StrEnum):
    """Why something was left out of a search.

    Pairs of expressions are checked once, however many tensors have them.
    """

    EXPRESSION = "no subexpression of the program"
    SHAPE = "shapes that do not broadcast"
    UNDEFINED = "no value in the field"
    MEMORY = "schedules beyond the memory of a block"
    DOMINATED = "sketches with more work than those scheduled"
    FLOOR = "cuts whose roofline is above the best plan"
    SPACE = "plans outside the space that was asked for"
    PRECISION = "plans that lose precision which others keep"


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a running search: what is being saturated, states so far, best predicted seconds (None: none yet)."""

    stage: str
    states: int
    found: int
    best: float | None
    seconds: float


@dataclass(slots=True)
class TierReport:
    """One tier of abstraction: tensors and edges visited; closures of the whole program, how many saturated, their derivations.

    `operators` is the largest number of block operators to which some context with a graph was listed completely, `bound`
    the number to which all contexts were (None: no context was searched). `unscheduled` derivations were listed, but have more
    work than those that were given schedules. `parts` are contexts of one launch of several, some of them `unfinished`.
    """

    tier: str
    closures: int = 0
    saturated: int = 0
    states: int = 0
    edges: int = 0
    derivations: int = 0
    complete: bool = True
    operators: int = 0
    bound: int | None = None
    unscheduled: int = 0
    cuts_complete: bool = False
    """Whether every cut of what was listed was looked at, or has a roofline that says it is not a tenth better."""
    parts: int = 0
    unfinished: int = 0
    pruned: Counter[Pruning] = field(default_factory=Counter)

    def cut_short(self) -> None:
        """Note that some contexts were not searched."""
        self.complete, self.bound = False, 0

    def add(self, other: TierReport) -> None:
        """Count in what another search did in this tier."""
        self.closures += other.closures
        self.saturated += other.saturated
        self.states += other.states
        self.edges += other.edges
        self.derivations += other.derivations
        self.complete = self.complete and other.complete
        self.unscheduled += other.unscheduled
        self.cuts_complete = self.cuts_complete and other.cuts_complete
        self.parts += other.parts
        self.unfinished += other.unfinished
        self.operators = max(self.operators, other.operators)
        bounds = [bound for bound in (self.bound, other.bound) if bound is not None]
        self.bound = min(bounds, default=None)
        self.pruned.update(other.pruned)

    @property
    def exhausted(self) -> bool:
        """Whether all derivations that the tier can see were listed, up to `bound` operators and at least to those asked for."""
        return 0 < self.closures == self.saturated and self.complete

    @property
    def not_searched(self) -> Iterator[str]:
        """What was found but not followed up, in words."""
        if self.unscheduled:
            yield f"schedules of {self.unscheduled} of {self.derivations} derivations, those of the most work ({self.tier})"
        if self.unfinished:
            yield f"the rest of {self.unfinished} of {self.parts} closures for single launches ({self.tier})"

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "pruned": _counts(self.pruned), "exhausted": self.exhausted}


@dataclass(slots=True)
class SearchReport:
    """Totals of a search; times in seconds. `exhausted_what` says in words what was covered completely."""

    seconds: float = 0.0
    first_found_seconds: float | None = None
    tiers: list[TierReport] = field(default_factory=list)
    cuts_tried: int = 0
    left_out: Counter[Pruning] = field(default_factory=Counter)
    """Schedules, sketches and cuts; `pruned` has the closures' tensors too."""
    conditions: list[str] = field(default_factory=list)
    """What no search of this program looks at (`mugraph.search.report`)."""
    block_operators: int = 0
    max_kernels: int = 0
    interrupted: bool = False
    settled: bool = False
    """Whether no muGraph can be so much better than what was found that it would be worth looking for."""
    refused: str | None = None
    """Why the program was not searched at all."""
    left_to_pieces: bool = False
    """Whether it ended with what it found first, of which nothing was proved, for the degrees of the program are too large for
    tests: pieces of it come first."""
    segments: int = 0
    """Into how many programs a long one was divided; what was searched completely of them says nothing of the whole."""
    best_seconds: float | None = None
    """Predicted for the best candidate."""
    least_seconds: float | None = None
    """Predicted for reading each input that outputs depend on, and writing each output, once, without arithmetic: in the launch
    or two that this takes at least."""
    paddings: list[str] = field(default_factory=list)
    """Dimensions that cannot be cut into useful parts, and what padding them is predicted to bring."""

    @property
    def states(self) -> int:
        """Tensors visited by all closures."""
        return sum(tier.states for tier in self.tiers)

    @property
    def edges(self) -> int:
        """Operator applications visited by all closures."""
        return sum(tier.edges for tier in self.tiers)

    @property
    def pruned(self) -> Counter[Pruning]:
        """What was left out, counted by reason."""
        return sum((tier.pruned for tier in self.tiers), start=self.left_out)

    @property
    def cuts_complete(self) -> bool:
        """Whether the cuts of all tiers are complete."""
        return all(tier.cuts_complete for tier in self.tiers)

    @property
    def exhausted(self) -> bool:
        """Whether all that `exhausted_what` speaks of was enumerated: every tier and all cuts, to the numbers that it says."""
        ended = not self.interrupted and not self.segments and bool(self.tiers)
        return ended and self.cuts_complete and all(tier.exhausted and not tier.unfinished for tier in self.tiers)

    @property
    def not_searched(self) -> list[str]:
        """What was left out though it might be better, in words: by design, or because there was too much of it."""
        return [*(words for tier in self.tiers for words in tier.not_searched), *self.conditions]

    @property
    def exhausted_what(self) -> str:
        """The covered space in words; `not_searched` says what is not part of it."""
        if self.refused is not None:
            return f"nothing was searched: {self.refused}"
        if self.segments:
            return f"nothing was exhausted: the program was searched in {self.segments} segments"
        done = [tier for tier in self.tiers if tier.exhausted and not self.interrupted]
        if not done:
            return f"nothing was exhausted {'before the search was interrupted' if self.interrupted else 'in time'}"
        partial = [f"{tier.tier} up to {tier.bound} operators" for tier in self.tiers if tier not in done and tier.bound]
        nothing = [tier.tier for tier in self.tiers if tier not in done and not tier.bound]
        rest = "".join(
            f"; {what}: {', '.join(tiers)}" for what, tiers in (("exhausted too", partial), ("not exhausted", nothing)) if tiers
        )
        return f"all kernels {_kernels_exhausted(done)} with one for-loop{self._cuts_exhausted()}{rest}{self._nothing_left()}"

    @property
    def gain_left(self) -> float | None:
        """By which part of the best prediction any muGraph could be better: it reads what outputs depend on, and writes them."""
        if self.best_seconds is None or self.least_seconds is None:
            return None
        return max(0.0, 1 - self.least_seconds / self.best_seconds)

    def _nothing_left(self) -> str:
        """That little can be gained beyond what was searched, if so."""
        gain = self.gain_left
        if gain is None or gain >= LITTLE:
            return ""
        least = math.floor(100 * (1 - gain))
        return (
            f"; what reads all that outputs depend on and writes these is predicted to take at least {least}% of the best found"
        )

    def _cuts_exhausted(self) -> str:
        """Which cuts were looked at."""
        if self.max_kernels == 1:
            return ""
        cuts = f"their cuts into up to {self.max_kernels} kernels that could be a tenth better"
        whole = [tier.tier for tier in self.tiers if tier.cuts_complete and tier.exhausted]
        if len(whole) == len(self.tiers):
            return f", and {cuts}"
        return f", and {cuts} ({', '.join(whole)}), other cuts in part" if whole else ", cuts into several kernels in part"

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        data["tiers"] = [tier.to_json() for tier in self.tiers]
        data["pruned"] = _counts(self.pruned)
        del data["left_out"], data["conditions"]
        names = ("gain_left", "states", "edges", "exhausted", "exhausted_what", "cuts_complete", "not_searched")
        data.update((name, getattr(self, name)) for name in names)
        return data


def combined(reports: Sequence[SearchReport], segments: int) -> SearchReport:
    """Totals of several searches: of a program in several forms, and of the segments that it was divided into."""
    tiers: dict[str, TierReport] = {}
    for tier in (tier for report in reports for tier in report.tiers):
        tiers.setdefault(tier.tier, TierReport(tier.tier, cuts_complete=True)).add(tier)
    first = [report.first_found_seconds for report in reports if report.first_found_seconds is not None]
    return SearchReport(
        seconds=sum(report.seconds for report in reports),
        first_found_seconds=min(first, default=None),
        tiers=list(tiers.values()),
        cuts_tried=sum(report.cuts_tried for report in reports),
        left_out=sum((report.left_out for report in reports), start=Counter()),
        conditions=list(dict.fromkeys(condition for report in reports for condition in report.conditions)),
        block_operators=max((report.block_operators for report in reports), default=0),
        max_kernels=max((report.max_kernels for report in reports), default=0),
        interrupted=any(report.interrupted for report in reports),
        settled=not segments and any(report.settled for report in reports),
        segments=segments,
        best_seconds=None if segments else min((r.best_seconds for r in reports if r.best_seconds is not None), default=None),
        least_seconds=None if segments else min((r.least_seconds for r in reports if r.least_seconds is not None), default=None),
        paddings=list(dict.fromkeys(padding for report in reports for padding in report.paddings)),
    )


def _counts(pruned: Counter[Pruning]) -> dict[str, int]:
    return {str(reason): pruned[reason] for reason in Pruning if pruned[reason]}


def _kernels_exhausted(done: Sequence[TierReport]) -> str:
    """Up to how many operators all contexts were enumerated, by tier."""
    tiers_to: dict[int, list[str]] = {}
    for tier in done:
        tiers_to.setdefault(tier.bound or 0, []).append(tier.tier)
    (most, tiers), *others = tiers_to.items()
    return f"up to {most} block operators ({', '.join(tiers)})" + "".join(
        f" and up to {bound} ({', '.join(tiers)})" for bound, tiers in others
    )
