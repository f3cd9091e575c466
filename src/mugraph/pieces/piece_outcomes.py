"""What became of the program of a piece, and why PyTorch runs it where that is so."""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.results.superoptimized import Superoptimized
from mugraph.selection.reasons import ran_out


@dataclass(frozen=True, slots=True)
class PieceOutcome:
    """What was found for a program (None: it could not be optimized), and why torch runs it ("": kernels do)."""

    result: Superoptimized | None
    reason: str = ""
    late: bool = False
    """Whether there was no time at all for it."""
    uncompared: bool = False
    """Whether there are kernels, and too little time was left to see whether they are faster than PyTorch's calls."""

    @property
    def runs(self) -> bool:
        """Whether kernels run it."""
        return self.result is not None and not self.reason

    @property
    def ran_out(self) -> bool:
        """Whether there are no kernels for want of time, and not in earlier processes that had as much."""
        result = self.result
        return self.late or (
            result is not None
            and not result.found
            and not result.report.recalled
            and ran_out(result.report, len(result.candidates))
        )

    @property
    def may_save(self) -> float:
        """The part of their time that a longer search might save where kernels run it, at best: what it must read and write takes
        the rest. Nothing where the search came to an end, in an earlier process, or does not know."""
        if self.result is None or not self.runs or self.result.report.recalled:
            return 0.0
        report = self.result.report
        ended = report.exhausted or report.search.get("settled", False)
        return 0.0 if ended else report.search.get("gain_left") or 0.0

    @property
    def seconds_to_save(self) -> float:
        """Seconds of a call that are that part."""
        return 0.0 if self.result is None else self.may_save * (self.result.best.latency or 0.0)

    @property
    def wants_time(self) -> bool:
        """Whether more time may find kernels, or show that those which were found are faster."""
        return self.ran_out or self.uncompared
