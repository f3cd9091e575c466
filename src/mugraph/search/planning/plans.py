"""The kernel level: a program as one launch, as partial results and their combination, or cut at stored tensors.

Launches of any derivation without loop are programs themselves, each searched like the whole. Plans are looked for best-first
by roofline: what is never looked at could not have beaten the best plan found.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.ir.sizes import divisors
from mugraph.search.axes import AxisProgram, AxisSet, Slots, Term
from mugraph.search.closure.tiers import Tier
from mugraph.search.kernels import Kernel, KernelSearch
from mugraph.search.planning.cuts import Cut, CutSpace, in_normal_order
from mugraph.search.planning.derivations import as_program
from mugraph.search.planning.roofline import Roofline, flops
from mugraph.search.planning.splits import Split, consumer_of, maximum_slots, splits_of, with_parts
from mugraph.search.scheduling.cost import RecipeCost

CUT_GAIN = 0.9
"""A cut counts only if it is below this share of the best plan known, and is tried only if its roofline is."""

WORTH_MEASURING = 2.0
"""Plans of another kind than the best one are kept up to this multiple of its predicted seconds: predictions only rank."""

_VARIANTS_CUT = 8
"""Derivations of a program, cheapest first, that are cut beside the program as it is written."""
_VARIANTS_SPLIT = 2
"""Of the ways to share an axis between two launches."""
_SPLITS_KEPT = 4
"""Schedules of a pair of launches that share an axis."""
_STAGES_KEPT = 2
"""Plans of each part of a cut that are combined with those of the others."""
_BLOCKS_PER_MULTIPROCESSOR = 4
"""More parts of an axis than that are not tried: every multiprocessor has enough to do."""


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
    kernel: Kernel | Library


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
            (len(stage.produces), stage.kernel.recipe.loop_axis if isinstance(stage.kernel, Kernel) else -1)
            for stage in self.stages
        )


Several = Callable[[AxisProgram, Tier, int, tuple[int, ...], float], Iterator[Plan]]
"""A search of plans of several launches: program, tier, launches, what it produces, and the best seconds so far."""


@dataclass
class PlanSearch:
    """Best plans of a program; intermediate device tensors are numbered after the program's inputs."""

    kernels: KernelSearch
    inputs: int
    cut_deadline: float = math.inf
    cuts_complete: bool = True
    cuts_tried: int = 0
    cuts_pruned: int = 0
    producers: dict[AxisProgram, tuple[int, ...]] = field(default_factory=dict)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    read_as: dict[int, int] = field(default_factory=dict)
    """Numbers of the program's outputs as device tensors that launches read."""
    memo: dict[tuple[AxisProgram, Tier, int, tuple[int, ...]], tuple[float, list[Plan]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roofline = Roofline(self.kernels.device, self.kernels.dtype, self.kernels.tensor_of)

    @property
    def late(self) -> bool:
        """Whether the time for several launches is over; if so, not all of them were looked at."""
        late = self.kernels.now() > self.cut_deadline
        self.cuts_complete = self.cuts_complete and not late
        return late

    def plans(self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...]) -> Iterator[Plan]:
        """Plans of at most `launches` launches as they are found: one launch, then several."""
        best = math.inf
        for plan in self.single(program, tier, produces):
            best = min(best, plan.seconds)
            yield plan
        if launches > 1:
            for several in self.promising_first(program, produces):
                for plan in several(program, tier, launches, produces, best):
                    best = min(best, plan.seconds)
                    yield plan

    def promising_first(self, program: AxisProgram, produces: tuple[int, ...]) -> tuple[Several, Several]:
        """Partial results and cuts: cuts first where libraries would multiply so much faster that they are likely to win."""
        gain = self.roofline.of(program, produces, libraries=True) < CUT_GAIN * self.roofline.of(program, produces)
        return (self.cut_plans, self.partial_plans) if gain else (self.partial_plans, self.cut_plans)

    def single(self, program: AxisProgram, tier: Tier, produces: tuple[int, ...]) -> Iterator[Plan]:
        """The program as one launch."""
        library = self.library(program, produces)
        if library is not None:
            yield Plan((Stage(produces, library),))
        for kernel in self.kernels.kernels(program, tier, produces):
            yield Plan((Stage(produces, kernel),))

    def library(self, program: AxisProgram, produces: tuple[int, ...]) -> Library | None:
        """The program as a pre-defined kernel, when it is nothing but one matrix multiplication."""
        if len(program.terms) != 3 or len(program.outputs) != 1 or program.terms[program.outputs[0][0]].op != "contract":
            return None
        product = program.terms[program.outputs[0][0]]
        left, right = (program.terms[i] for i in product.inputs)
        device = self.kernels.device
        rate = self.roofline.library_efficiency(program, product) * device.matmul_flops[self.kernels.dtype]
        compute = flops(program, product) / rate + device.launch_seconds
        seconds = max(compute, self.roofline.of(program, produces))
        return Library(left, right, product.reduced, (program.outputs[0][1],), program.sizes, seconds)

    # cuts ------------------------------------------------------------------------------------------------------------

    def cut_plans(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], best: float
    ) -> Iterator[Plan]:
        """Plans over stored tensors that beat `best` seconds, cuts in the order of their rooflines.

        If there are too many to be listed in half of the time for cuts, those that are listed by then have the other half.
        """
        listed_by = (self.kernels.now() + self.cut_deadline) / 2

        def bound() -> float:
            in_time = self.kernels.now() <= listed_by
            self.cuts_complete = self.cuts_complete and in_time
            return CUT_GAIN * best if in_time else -math.inf

        spaces = [CutSpace(variant, self.roofline, produces) for variant in self.variants(program, tier)]
        found = [cut for space in spaces for cut in space.cuts(launches, bound)]
        self.cuts_pruned += sum(space.pruned for space in spaces)
        for number, cut in enumerate(sorted(found, key=lambda cut: cut.floor)):
            if cut.floor >= CUT_GAIN * best:
                self.cuts_pruned += len(found) - number
                return
            if self.late:
                return
            self.cuts_tried += 1
            for plan in self.cut_plan(cut, tier, launches, produces, CUT_GAIN * best):
                best = min(best, plan.seconds)
                yield plan

    def cut_plan(self, cut: Cut, tier: Tier, launches: int, produces: tuple[int, ...], bound: float) -> Iterator[Plan]:
        """The best plans of one cut below `bound` seconds; given up as soon as its parts cannot add up to less."""
        stored: dict[int, tuple[int, Slots]] = {}
        parts: list[tuple[AxisProgram, tuple[int, ...]]] = []
        for group in cut.groups:
            part = cut.part(group, stored)
            made = tuple(source for (term, _), source in zip(cut.program.outputs, produces, strict=True) if term in group)
            written = list(cut.made_by(group))
            made += self.sources_of(part, [slots for _, slots in written[len(made) :]], self.kernels.dtype)
            stored.update((term, (self.read_back(source), slots)) for (term, slots), source in zip(written, made, strict=True))
            parts.append((part, made))
        for part, _ in parts:
            self.kernels.announce(part, tier, (None,))
        spare = launches - len(parts)
        rest = sum(floors := [self.roofline.of(*part) for part in parts])
        stages: list[list[Plan]] = []
        for (part, made), floor in sorted(zip(parts, floors, strict=True), key=lambda pair: -pair[1]):
            plans = self.best_plans(part, tier, 1 + spare, made, bound - rest + floor)
            if not plans or rest - floor + plans[0].seconds >= bound:
                return
            rest += plans[0].seconds - floor
            stages.append(plans)
        in_order = {made: position for position, (_, made) in enumerate(parts)}
        stages.sort(key=lambda plans: in_order[plans[0].stages[-1].produces])
        for chosen in itertools.product(*stages):
            plan = Plan(tuple(stage for part in chosen for stage in part.stages))
            if plan.seconds < bound and len(plan.stages) <= launches:
                yield plan

    def best_plans(self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], bound: float) -> list[Plan]:
        """The best plans of a part as one launch, or below `bound` seconds as partial results if `launches` allow."""
        key = (program, tier, min(launches, 2), produces)
        known = self.memo.get(key)
        if known is None or known[0] < bound:
            plans = heapq.nsmallest(_STAGES_KEPT, self.single(program, tier, produces), key=lambda plan: plan.seconds)
            if launches > 1:
                worthwhile = min(bound, CUT_GAIN * plans[0].seconds if plans else math.inf)
                plans += self.split_plans(program, tier, produces, worthwhile)
            known = self.memo[key] = bound, heapq.nsmallest(_STAGES_KEPT, plans, key=lambda plan: plan.seconds)
        return known[1]

    def variants(self, program: AxisProgram, tier: Tier) -> list[AxisProgram]:
        """The program and its cheapest other derivations, as programs."""
        recipes = self.kernels.cheapest_first(program, self.kernels.structure(program, tier, None).recipes)
        derived = [as_program(recipe, program.structure) for recipe in recipes[:_VARIANTS_CUT]]
        return [form.with_sizes(program.sizes) for form in dict.fromkeys([in_normal_order(program.structure), *derived])]

    def read_back(self, source: int) -> int:
        """The number under which later launches read a device tensor: outputs of the program have one of their own."""
        if source >= 0:
            return source
        if source not in self.read_as:
            self.read_as[source] = self.inputs + len(self.tensors)
            self.tensors[self.read_as[source]] = self.kernels.tensor_of(source)
        return self.read_as[source]

    def sources_of(self, producer: AxisProgram, slots: Sequence[Slots], dtype: DType) -> tuple[int, ...]:
        """Numbers for the device tensors a producer writes."""
        if producer not in self.producers:
            first = self.inputs + len(self.tensors)
            for offset, dims in enumerate(slots):
                shape = tuple(math.prod(producer.sizes[axis] for axis in slot) for slot in dims)
                self.tensors[first + offset] = Tensor(shape, dtype)
            self.producers[producer] = tuple(range(first, first + len(slots)))
        return self.producers[producer]

    # partial results -------------------------------------------------------------------------------------------------

    def partial_plans(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], best: float
    ) -> Iterator[Plan]:
        """Plans over partial results that are worth measuring beside the best plan of `best` seconds."""
        yield from self.split_plans(program, tier, produces, WORTH_MEASURING * best)

    def split_plans(self, program: AxisProgram, tier: Tier, produces: tuple[int, ...], bound: float) -> Iterator[Plan]:
        """Two launches below `bound` seconds that share a reduced axis: partial results over parts of it, their combination."""
        for axis in self.kernels.loop_axes(program):
            counts = self.part_counts(program, axis)
            if not counts or not any(axis in reduced for reduced in program.reductions):
                continue
            if self.roofline.of(program, produces) + self.kernels.device.launch_seconds >= bound:
                self.cuts_pruned += 1
                continue
            recipes = self.kernels.cheapest_first(program, self.kernels.structure(program, tier, axis).recipes)
            for split in itertools.islice(splits_of(recipes, program.structure), _VARIANTS_SPLIT):
                if self.late:
                    return
                split = split.with_sizes(with_parts((*program.sizes, 1), axis, split.parts, counts[0]))
                worthwhile = [count for count in counts if self.split_floor(split, count, produces) < bound]
                if worthwhile:
                    self.cuts_tried += 1
                    yield from self.split_plan(split, axis, worthwhile, tier, produces, bound)
                else:
                    self.cuts_pruned += 1

    def part_counts(self, program: AxisProgram, axis: int) -> list[int]:
        """Numbers of parts worth trying: divisors up to a few blocks for every multiprocessor."""
        most = _BLOCKS_PER_MULTIPROCESSOR * self.kernels.device.multiprocessors
        return [count for count in divisors(program.sizes[axis]) if 1 < count <= min(most, program.sizes[axis] // 2)]

    def split_floor(self, split: Split, count: int, produces: tuple[int, ...]) -> float:
        """The roofline of both launches without their arithmetic: partial results of `count` parts are written and read."""
        elements = sum(math.prod(split.whole.sizes[axis] for slot in slots for axis in slot) for slots in split.partial)
        partial = self.roofline.transfer(elements * count // split.whole.sizes[split.parts], DType.FP32)
        return self.roofline.seconds(self.roofline.memory(split.whole, produces) + 2 * partial, 0.0, launches=2)

    def split_plan(
        self, split: Split, axis: int, counts: Sequence[int], tier: Tier, produces: tuple[int, ...], bound: float
    ) -> Iterator[Plan]:
        """The best kernels of both halves over all numbers of parts; blocks of the first work on one part each."""
        made = self.partial_results(split)
        sizes = [with_parts(split.whole.sizes, axis, split.parts, count) for count in counts]
        lasts = self.kernels.scheduler(sizes).least(self._costs(consumer_of(split, made), tier, produces))
        if not lasts:
            return
        rest = np.array([lasts[variant].seconds if variant in lasts else np.inf for variant in range(len(sizes))])
        working = self.kernels.scheduler(sizes, parted=frozenset({split.parts}))
        producing = self._costs(split.producer, tier, made, working.parted)
        for first in working.best(producing, _SPLITS_KEPT, bound, rest):
            kernels = (Kernel.of(half, sizes[first.variant]) for half in (first, lasts[first.variant]))
            yield Plan(tuple(map(Stage, (made, produces), kernels)))

    def _costs(
        self, program: AxisProgram, tier: Tier, produces: tuple[int, ...], parted: AxisSet = frozenset()
    ) -> tuple[RecipeCost, ...]:
        """The cost models of all contexts."""
        return tuple(itertools.chain.from_iterable(self.kernels.costs(program, tier, produces, parted)))

    def partial_results(self, split: Split) -> tuple[int, ...]:
        """The device tensors between both halves: partial results, and the row maximum where one is exported.

        They have one number whatever the number of parts; the tensor described is that of the split at hand.
        """
        slots = [*split.partial, *([maximum_slots(split)] if split.producer.projective else [])]
        return self.sources_of(split.producer, slots, DType.FP32)
