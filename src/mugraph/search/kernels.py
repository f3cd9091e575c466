"""Kernels of one program: the sketches of all contexts and tiers, and the best schedules of each."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mugraph.devices import Device
from mugraph.ir.axes import AxisProgram, AxisSet, Slots
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier, distinct_tiers, seen_in
from mugraph.search.constraints import ANY_SCHEDULE, EVERYTHING, OUTPUT, Frame, SearchSpace
from mugraph.search.executors import Executor, Serial, Task
from mugraph.search.report import Pruning, TierReport
from mugraph.search.scheduling.cost import SketchCost
from mugraph.search.scheduling.emission import KernelOutput, Schedule
from mugraph.search.scheduling.masks import Masks
from mugraph.search.scheduling.schedule import Scheduled, Scheduler
from mugraph.search.scheduling.space import Sizes, cuttable
from mugraph.search.structures import KNOWN, FoundStructure, Key, StructureCache
from mugraph.search.tasks import NOTHING, Item, Options, canonical, reading
from mugraph.search.work_model import WorkModel

_PART_SHARE = 0.1
"""Part of the time of a closure that finer algebra has for a part of a program: there are many, and most take much less."""


@dataclass(frozen=True, slots=True)
class ScheduledSketch:
    """A graph-defined kernel: a sketch under a schedule, what it writes, sizes of axes, predicted seconds."""

    sketch: Sketch
    schedule: Schedule
    outputs: tuple[KernelOutput, ...]
    sizes: tuple[int, ...]
    seconds: float

    def __hash__(self) -> int:
        """Of what tells kernels of one program apart: plans are looked up by it."""
        return hash((self.sketch, self.schedule, self.seconds))

    @classmethod
    def of(cls, found: Scheduled, sizes: tuple[int, ...]) -> ScheduledSketch:
        """A sketch that was scheduled for axes of `sizes`."""
        return cls(found.cost.sketch, found.schedule, found.cost.outputs, sizes, found.seconds)


@dataclass
class KernelSearch:
    """Finds kernels for programs that are parts of a `whole`; `tensor_of` describes device tensors, the outputs as -1, -2, ...

    `inputs` are the names of the whole program's inputs, which are the first device tensors: the `space` may speak of them,
    and `masks`, by source, say where some are -inf.
    """

    whole: AxisProgram
    device: Device
    dtype: DType
    tensor_of: Callable[[int], Tensor]
    options: Options
    deadline: float
    tick: Callable[[str, int], None]
    space: SearchSpace = EVERYTHING
    inputs: Sequence[str] = ()
    masks: Masks = field(default_factory=dict)
    reports: dict[Tier, TierReport] = field(default_factory=dict)
    closure_seconds: float = math.inf
    pruned: Counter[Pruning] = field(default_factory=Counter)
    first_tier: dict[tuple[tuple[int, ...], Sketch], Tier] = field(default_factory=dict)
    known: StructureCache = KNOWN
    spared: float = 0.0
    executor: Executor[FoundStructure] = field(default_factory=Serial)
    announced: dict[Key, Task[FoundStructure]] = field(default_factory=dict)
    found: dict[Key, FoundStructure] = field(default_factory=dict)
    structures: dict[tuple[AxisProgram, Tier, int | None], FoundStructure] = field(default_factory=dict)
    schedulers: dict[tuple[tuple[Sizes, ...], AxisSet, Frame], Scheduler] = field(default_factory=dict)

    def kernels(self, program: AxisProgram, tier: Tier, produces: Sequence[int]) -> Iterator[ScheduledSketch]:
        """Kernels computing all outputs of `program` in one launch, best schedules of the cheapest sketches of each context.

        Sketches that a coarser tier had are left to it. `produces` are the device tensors that the outputs become.
        """
        scheduler = self.scheduler([program.sizes], frame=self.frame(program, produces))
        passed_over = scheduler.too_large
        for costs in self.costs(program, tier, produces):
            seen = seen_in(program, tier)
            new = [cost for cost in costs if self.first_tier.setdefault((program.sizes, cost.sketch), seen) is seen]
            for found in scheduler.best_of_each(tuple(new), self.options.schedules_per_sketch):
                yield ScheduledSketch.of(found, program.sizes)
        self.pruned[Pruning.MEMORY] += scheduler.too_large - passed_over

    def costs(
        self, program: AxisProgram, tier: Tier, produces: Sequence[int], parted: AxisSet = frozenset()
    ) -> Iterator[tuple[SketchCost, ...]]:
        """For each context the cost models of its cheapest sketches.

        The grid will cut the axes `parted` into single elements, so that loops may cut what is within these parts.
        A program whose closure without a loop ends early and empty is not tried with loops: it has to be cut.
        """
        loop_axes = self.loop_axes(program, parted)
        for loop_axis in (None, *loop_axes):
            if self.now() > self.deadline:
                if program.structure == self.whole:
                    self.report(tier).cut_short()
                return
            structure = self.structure(program, tier, loop_axis)
            if seen_in(program, tier) is Tier.OPAQUE_SUMS and not structure.saturated and not structure.sketches:
                if program.structure == self.whole:
                    self.report(tier).cut_short()
                return
            if loop_axis is None:
                self.announce(program, tier, loop_axes)
            cheapest = self.cheapest_first(program, structure.safe_sketches)
            if self.space:
                cheapest = [sketch for sketch in cheapest if self.space.admits(sketch, self.inputs)]
            dominated = len(cheapest[self.options.scheduled_sketches :])
            self.pruned[Pruning.DOMINATED] += dominated
            if program.structure == self.whole:
                self.report(tier).unscheduled += dominated
            yield self.costs_of(program, tuple(cheapest[: self.options.scheduled_sketches]), produces)

    def scheduler(self, variants: Sequence[Sizes], parted: AxisSet = frozenset(), frame: Frame = ANY_SCHEDULE) -> Scheduler:
        """The scheduler for some sizes of axes: programs of the same sizes share what depends on these alone."""
        key = (tuple(variants), parted, frame)
        if key not in self.schedulers:
            self.schedulers[key] = Scheduler(variants, parted, frame, self.masks)
        return self.schedulers[key]

    def frame(self, program: AxisProgram, produces: Sequence[int]) -> Frame:
        """What the space leaves of the schedules of a launch that makes the outputs of `program`."""
        if not self.space:
            return ANY_SCHEDULE
        loads = [(self.inputs[load.source], load.slots) for _, load in program.loads() if load.source < len(self.inputs)]
        outputs = [(OUTPUT, slots) for source, (_, slots) in zip(produces, program.outputs, strict=False) if source < 0]
        return self.space.frame([*loads, *outputs])

    def report(self, tier: Tier) -> TierReport:
        """The statistics of a tier."""
        seen = seen_in(self.whole, tier)
        if seen not in self.reports:
            (name,) = (each for each in distinct_tiers(self.whole) if seen_in(self.whole, each) is seen)
            self.reports[seen] = TierReport(name.value)
        return self.reports[seen]

    def loop_axes(self, program: AxisProgram, parted: AxisSet = frozenset()) -> list[int]:
        """Axes a for-loop may cut where the grid cuts `parted` into single elements: largest first."""
        tensors = [*(term.slots for _, term in program.loads()), *(slots for _, slots in program.outputs)]
        axes = [axis for axis in range(len(program.sizes)) if cuttable(axis, tensors, parted) and axis not in parted]
        axes = [axis for axis in axes if axis not in program.scanned]
        return sorted(axes, key=lambda axis: -program.sizes[axis])

    def structure(self, program: AxisProgram, tier: Tier, loop_axis: int | None) -> FoundStructure:
        """Every sketch of a context within the limits; searched once per process, whatever the sizes and sources."""
        key = (program.structure, seen_in(program, tier), loop_axis)
        structure = self.structures.get(key)
        if structure is None:
            item, sources = self.item(program, tier, loop_axis)
            found = self.found.get(item.key)
            if found is None:
                found = self.found[item.key] = self._search(item)
                found.count_in(self.report(tier), whole=program.structure == self.whole)
            structure = self.structures[key] = reading(found, sources)
        return structure

    def _search(self, item: Item) -> FoundStructure:
        """What the process knows of an item, if that is all the time left would find, or else what the executor finds.

        The time that an unfinished search once took counts as spent, so that a program is searched as far as the first time.
        """
        given = min(item.seconds, self.deadline - self.now())
        known = self.known.get(item.key)
        if known is not None and known.as_good_as(given):
            if not known.exhausted:
                self.spared += min(known.seconds, given)
            return known
        if given <= 0:
            return NOTHING
        task = self.announced.pop(item.key, None) or self.executor.submit(item)
        structure = task.result(self.deadline - self.spared, self.tick)
        if structure is not NOTHING:
            self.known.put(item.key, structure)
        return structure

    def now(self) -> float:
        """The time, as if nothing had been known of what was searched before and left unfinished."""
        return time.perf_counter() + self.spared

    def announce(self, program: AxisProgram, tier: Tier, loop_axes: Sequence[int | None]) -> None:
        """Let workers, if there are any, begin with contexts that `structure` may be asked for."""
        if isinstance(self.executor, Serial):
            return
        for loop_axis in loop_axes:
            item, _ = self.item(program, tier, loop_axis)
            if item.key not in self.announced and item.key not in self.found and self.known.get(item.key) is None:
                self.announced[item.key] = self.executor.submit(item)

    def alone(self) -> None:
        """Search everything in this process from now on, and wait for no worker."""
        self.executor = Serial()
        self.announced.clear()

    def item(self, program: AxisProgram, tier: Tier, loop_axis: int | None) -> tuple[Item, tuple[int, ...]]:
        """The work item of a context, and the sources that its loads 0, 1, ... stand for."""
        form, sources = canonical(program.structure)
        seen = seen_in(program, tier)
        in_a_hurry = seen is not Tier.OPAQUE_SUMS and program.structure != self.whole
        seconds = _PART_SHARE * self.closure_seconds if in_a_hurry else self.closure_seconds
        return Item(form, seen, loop_axis, self.options, self.work(program, sources), seconds), sources

    def cheapest_first(self, program: AxisProgram, sketches: tuple[Sketch, ...]) -> list[Sketch]:
        """Sketches by their work at the program's sizes, whatever sizes they were found at."""
        last = max((term.source for _, term in program.loads()), default=-1)
        return self.work(program, range(last + 1)).cheapest_first(sketches)

    def work(self, program: AxisProgram, sources: Sequence[int]) -> WorkModel:
        """What the operators of a program cost, whose loads 0, 1, ... stand for `sources`."""
        read = [self.tensor_of(source).dtype for source in sources]
        return WorkModel.of(program.sizes, [dtype.bytes for dtype in read], self.device, self.dtype, read)

    def costs_of(self, program: AxisProgram, sketches: tuple[Sketch, ...], produces: Sequence[int]) -> tuple[SketchCost, ...]:
        """The cost models of sketches of `program`."""
        read = {term.source for _, term in program.loads()}
        sources = tuple((source, self.tensor_of(source).dtype) for source in sorted(read))
        made = tuple(self.tensor_of(source).dtype for source in produces)
        return _costs_of(program.structure, sketches, sources, made, self.device)


@lru_cache(maxsize=1 << 12)
def _costs_of(
    structure: AxisProgram,
    sketches: tuple[Sketch, ...],
    sources: tuple[tuple[int, DType], ...],
    made: tuple[DType, ...],
    device: Device,
) -> tuple[SketchCost, ...]:
    """The cost models of sketches, which know no sizes: the same for every search that meets the sketches together."""
    dtypes = dict(sources)
    costs: list[SketchCost] = []
    for sketch in sketches:
        outputs = tuple(itertools.starmap(KernelOutput, zip(_output_slots(structure, sketch), made, strict=True)))
        costs.append(SketchCost(sketch, tuple(dtypes[leaf.source] for leaf in sketch.leaves), outputs, device))
    return tuple(costs)


def _output_slots(program: AxisProgram, sketch: Sketch) -> tuple[Slots, ...]:
    """Dimensions of a kernel's outputs: the program's, and for a maximum the sketch exports those that all of them share.

    Whoever reads the maximum counts on these dimensions (`mugraph.search.partition.splits`): one without some of them is
    repeated.
    """
    outputs = tuple(slots for _, slots in program.outputs)
    shared = tuple(slot for slot in outputs[0] if all(slot in slots for slots in outputs))
    return (*outputs, *[shared] * (len(sketch.goals) - len(outputs)))
