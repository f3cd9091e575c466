"""Kernel graphs as the search makes them: launches in order, each of kernels that were searched or of a library's."""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.ir.axes import AxisSet, Slots, Term
from mugraph.search.kernels import ScheduledSketch


@dataclass(frozen=True, slots=True)
class Library:
    """A pre-defined kernel: one matrix multiplication of two device tensors by the vendor's library."""

    left: Term
    right: Term
    reduced: AxisSet
    outputs: tuple[Slots, ...]
    sizes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Stage:
    """A launch: which device tensors it produces (sources of later stages; -1-i for the program's output i), and how."""

    produces: tuple[int, ...]
    kernel: ScheduledSketch | Library


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel graph: stages in launch order."""

    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        """Predicted seconds of all launches."""
        return sum(stage.kernel.seconds for stage in self.stages)

    @property
    def kind(self) -> tuple[tuple[int, int | None], ...]:
        """What tells plans apart that only profiling can compare: for each launch its outputs and the axis of its for-loop."""
        return tuple(
            (len(stage.produces), stage.kernel.sketch.loop_axis if isinstance(stage.kernel, ScheduledSketch) else -1)
            for stage in self.stages
        )
