"""What a result for a range of sizes took to make, stage by stage: that of all results for single sizes, and what is asked beside
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mugraph.results.data import Report
from mugraph.results.superoptimized import Superoptimized

Stage = Literal["search", "compile", "measure", "verify"]


@dataclass(slots=True)
class StageTimes:
    """Wall-clock seconds by stage. Those of results for single sizes are what their reports say, also of results that others took
    the place of; what is asked of the function as a whole counts as verification, kernels of first slices as compilation."""

    search: float = 0.0
    compile: float = 0.0
    measure: float = 0.0
    verify: float = 0.0

    @classmethod
    def of_report(cls, report: Report) -> StageTimes:
        """Those of a result for a single size; of one that was recalled, what it had taken."""
        return cls(report.seconds, report.compile_seconds, report.measure_seconds, report.verify_seconds)

    @property
    def making(self) -> float:
        """Of everything but measurement."""
        return self.search + self.compile + self.verify

    @contextmanager
    def of(self, stage: Stage) -> Iterator[None]:
        """Time a stage in which no result for a single size is made."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._add(stage, time.monotonic() - started)

    def counting(self, optimize: Callable[..., Superoptimized]) -> Callable[..., Superoptimized]:
        """The same, with the stages of what it makes added to these."""

        def optimized(*args: Any, **settings: Any) -> Superoptimized:
            made = optimize(*args, **settings)
            if not made.report.recalled:  # whose numbers are those of an earlier run
                told = StageTimes.of_report(made.report)
                for stage in get_args(Stage):
                    self._add(stage, getattr(told, stage))
            return made

        return optimized

    def _add(self, stage: Stage, seconds: float) -> None:
        setattr(self, stage, getattr(self, stage) + seconds)
