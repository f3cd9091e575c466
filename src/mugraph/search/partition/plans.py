"""The kernel level: a program as one launch, as partial results and their combination, or cut at stored tensors.

Launches of any derivation without loop are programs themselves, each searched like the whole. Plans are looked for best-first
by roofline: what is never looked at could not have beaten the best plan found.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from mugraph.ir.axes import AxisProgram, AxisSet, Slots, Term
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.ir.sizes import divisors
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier, seen_in, tiers_to
from mugraph.search.kernels import KernelSearch, ScheduledSketch
from mugraph.search.partition.cuts import Cut, CutSpace, most_stored
from mugraph.search.partition.library_cuts import library_cut
from mugraph.search.partition.lower_bounds import Roofline, flops, library_seconds
from mugraph.search.partition.plan import Library, Plan, Stage
from mugraph.search.partition.splits import Split, consumer_of, maximum_slots, splits_of, with_parts
from mugraph.search.partition.variants import Bounded, Parts, Variants
from mugraph.search.scheduling.cost import SketchCost
from mugraph.search.scheduling.masks import least_share

CUT_GAIN = 0.9
"""Every cut is tried whose roofline is below this share of the best plan known."""

_NEAR = 512
"""Of the cuts beyond that, which can win less than a tenth, those of the lowest rooflines are tried, too, where they store fewer
tensors than there may be launches: so many of them for the square of the terms of a program, for the more there are, the longer
a cut takes."""

_SMALL = 12
"""Terms of a program up to which finer tiers look for splits that win less than a tenth, too."""

WORTH_MEASURING = 2.0
"""Plans of another kind than the best one are kept up to this multiple of its predicted seconds: predictions only rank."""

_VARIANTS_SPLIT = 2
"""Of the ways to share an axis between two launches."""
_SPLITS_KEPT = 4
"""Schedules of a pair of launches that share an axis."""
_STAGES_KEPT = 2
"""Plans of each part of a cut that are combined with those of the others."""
_BLOCKS_PER_MULTIPROCESSOR = 4
"""More parts of an axis than that are not tried: every multiprocessor has enough to do."""


@dataclass
class Wanted:
    """Which cuts are worth listing beside a plan of `best` seconds: all that could win a tenth, and of the others those of the
    `near` lowest rooflines (None: all). Cuts that were `tried`, known by their keys, do not count among these.
    """

    best: float
    near: int | None = None
    tried: Set[object] = frozenset()
    below: float = field(init=False)
    """The roofline from which on no cut is wanted, which falls while cuts are listed."""
    _lowest: dict[object, float] = field(default_factory=dict)
    """The rooflines of the `near` lowest cuts so far that cannot win a tenth, by key."""
    _winning: set[object] = field(default_factory=set)
    """Keys of cuts that could win a tenth."""

    def __post_init__(self) -> None:
        self.below = CUT_GAIN * self.best if self.near == 0 else self.best

    def listed(self, cut: Cut) -> None:
        """Take a cut into account."""
        if not self.near or cut.key in self.tried or cut.key in self._winning:
            return
        if cut.floor < CUT_GAIN * self.best:
            self._winning.add(cut.key)
            return
        self._lowest[cut.key] = min(cut.floor, self._lowest.get(cut.key, math.inf))
        if len(self._lowest) > self.near:
            del self._lowest[max(self._lowest, key=self._lowest.__getitem__)]
        if len(self._lowest) == self.near:
            self.below = max(self._lowest.values())

    @property
    def left(self) -> Wanted | None:
        """What is wanted yet if a cut counted among the others that could win a tenth in another derivation."""
        overtaken = not self._winning.isdisjoint(self._lowest)
        return replace(self, tried=self.tried | self._winning, _lowest={}, _winning=set()) if overtaken else None


Several = Callable[[AxisProgram, Tier, int, tuple[int, ...], float], Iterator[Plan]]
"""A search of plans of several launches: program, tier, launches, what it produces, and the best seconds so far."""


@dataclass
class PlanSearch:
    """Best plans of a program; intermediate device tensors are numbered after the program's inputs."""

    kernels: KernelSearch
    inputs: int
    cut_deadline: float = math.inf
    give_up: float = math.inf
    """When the time for several launches is over as well, until something is found."""
    cuts_complete: bool = True
    cuts_tried: int = 0
    cuts_pruned: int = 0
    producers: dict[tuple[AxisProgram, int], tuple[int, ...]] = field(default_factory=dict)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    read_as: dict[int, int] = field(default_factory=dict)
    """Numbers of the program's outputs as device tensors that launches read."""
    memo: dict[tuple[AxisProgram, Tier, int, tuple[int, ...]], tuple[float, list[Plan]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kernels = self.kernels
        self.roofline = Roofline(kernels.device, kernels.dtype, kernels.tensor_of, least_share(kernels.masks))

    @property
    def cuts_until(self) -> float:
        """When the time for several launches is over, as far as is known by now."""
        return min(self.cut_deadline, self.give_up)

    @property
    def late(self) -> bool:
        """Whether the time for several launches is over; if so, not all of them were looked at."""
        late = self.kernels.now() > self.cuts_until
        self.cuts_complete = self.cuts_complete and not late
        return late

    def plans(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], best: float = math.inf
    ) -> Iterator[Plan]:
        """Plans of at most `launches` launches as they are found: one launch, then several.

        Of several launches only plans that might be better than `best` seconds, those of the best plan so far, are looked for.
        """
        for plan in self.single(program, tier, produces):
            best = min(best, plan.seconds)
            yield plan
        if launches > 1:
            promising_first = self.promising_first(program, produces, found=best < math.inf)
            for several in (self.library_plans, *promising_first, self.plans_of_few_launches):
                for plan in several(program, tier, launches, produces, best):
                    best = min(best, plan.seconds)
                    yield plan

    def promising_first(self, program: AxisProgram, produces: tuple[int, ...], found: bool) -> tuple[Several, Several]:
        """Partial results and cuts: cuts first where libraries would multiply so much faster that they are likely to win, and
        where no plan is `found` yet, as cuts have smaller closures."""
        gain = self.roofline.of(program, produces, libraries=True) < CUT_GAIN * self.roofline.of(program, produces)
        return (self.cut_plans, self.partial_plans) if gain or not found else (self.partial_plans, self.cut_plans)

    def single(self, program: AxisProgram, tier: Tier, produces: tuple[int, ...]) -> Iterator[Plan]:
        """The program as one launch."""
        library = self.library(program, produces)
        if library is not None:
            yield Plan((Stage(produces, library),))
        for kernel in self.kernels.kernels(program, tier, produces):
            yield Plan((Stage(produces, kernel),))

    def library(self, program: AxisProgram, produces: tuple[int, ...]) -> Library | None:
        """The program as a pre-defined kernel, when it is nothing but one matrix multiplication."""
        product = _only_product(program)
        if product is None:
            return None
        left, right = (program.terms[i] for i in product.inputs)
        together = left.axes & right.axes & product.axes
        sides = left.axes & product.axes, right.axes & product.axes, together, product.reduced
        rows, columns, batch, depth = (math.prod(program.sizes[axis] for axis in axes) for axes in sides)
        moved = self.roofline.memory(program, produces) * self.kernels.device.memory_bandwidth
        work = flops(program, product)
        copied = sum(self.roofline.tensor_of(side.source).bytes for side in (left, right) if _scattered(program, side, together))
        seconds = library_seconds(self.kernels.device, self.kernels.dtype, rows, columns, depth, work, moved, copied, batch)
        return Library(left, right, product.reduced, (program.outputs[0][1],), program.sizes, seconds)

    # cuts ------------------------------------------------------------------------------------------------------------

    def library_plans(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], best: float
    ) -> Iterator[Plan]:
        """Plans of the program as it is written whose products a GPU's library makes, below `best` seconds."""
        cut = None if self.kernels.device.operands_in_place else library_cut(program)
        if cut is not None and len(cut.groups) <= launches:
            yield from self.cut_plan(cut, tier, len(cut.groups), produces, best)

    def cut_plans(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], best: float
    ) -> Iterator[Plan]:
        """Plans over stored tensors, fewer than there may be launches, that beat `best` seconds: cuts in the order of their
        rooflines.

        If there are too many to be listed in half of the time for cuts, those that are listed by then have the other half.
        """
        near = _NEAR // len(program.terms) ** 2
        return self._cut_plans(program, tier, launches, produces, best, range(launches), near)

    def plans_of_few_launches(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], best: float
    ) -> Iterator[Plan]:
        """Those over more stored tensors, looked for last: there are many more of them, and launches that make several take
        longer to search."""
        numbers = range(launches, most_stored(launches) + 1)
        return self._cut_plans(program, tier, launches, produces, best, numbers, 0) if numbers else iter(())

    def _cut_plans(
        self,
        program: AxisProgram,
        tier: Tier,
        launches: int,
        produces: tuple[int, ...],
        best: float,
        numbers: range,
        near: int,
    ) -> Iterator[Plan]:
        """Plans over such `numbers` of stored tensors; of cuts that could not win a tenth, the `near` of the lowest rooflines."""
        variants = self.variants(program, tier, produces)
        tried: set[object] = set()
        for batch in variants.batches(best):
            for cut in self.cuts(variants, batch, launches, Wanted(best, near, tried), numbers):
                could_win = cut.floor < CUT_GAIN * best
                if cut.key in tried or not (could_win or (near and cut.floor < best)):
                    self.cuts_pruned += 1
                    continue
                if self.late:
                    return
                tried.add(cut.key)
                self.cuts_tried += 1
                near -= not could_win
                for plan in self.cut_plan(cut, tier, launches, produces, best):
                    best = min(best, plan.seconds)
                    yield plan

    def first_cut(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], below: float = math.inf
    ) -> list[Plan]:
        """Plans of the first cut of the program as it is written, of the fewest launches, that has any below so many seconds."""
        for count in range(2, launches + 1):
            written = Variants(program, produces, (), None, self.roofline, self.kernels.options.seed)
            for cut in self.cuts(written, next(written.batches()), count, Wanted(below), range(count)):
                if self.late:
                    return []
                if plans := [*self.cut_plan(cut, tier, count, produces, below)]:
                    return plans
        return []

    def variants(self, program: AxisProgram, tier: Tier, produces: tuple[int, ...]) -> Variants:
        """The derivations of a program, or where there are none of the whole those of its parts."""
        structure = self.kernels.structure(program, tier, None)
        sketches = self.kernels.cheapest_first(program, structure.sketches)
        parts = None if structure.saturated and sketches else Parts(self.sketches_of_part(tier), self.store, lambda: self.late)
        return Variants(program, produces, sketches, parts, self.roofline, self.kernels.options.seed)

    def sketches_of_part(self, tier: Tier) -> Callable[[AxisProgram], Sequence[Sketch]]:
        """Finds the derivations of a part of a program, cheapest first, while there is time for cuts."""

        def sketches(part: AxisProgram) -> Sequence[Sketch]:
            if self.late:
                return ()
            return self.kernels.cheapest_first(part, self.kernels.structure(part, tier, None).sketches)

        return sketches

    def store(self, part: AxisProgram) -> int:
        """The number of the device tensor that is the only output of a part."""
        ((_, slots),) = part.outputs
        (source,) = self.sources_of(part, [slots], self.kernels.dtype)
        return source

    def cuts(
        self, variants: Variants, batch: Sequence[Bounded], launches: int, wanted: Wanted, numbers: range | None = None
    ) -> list[Cut]:
        """The cuts of some derivations that are `wanted` and store such `numbers` of tensors, by their rooflines.

        A quarter of the time for cuts is for making ready, and another one for listing them.
        """
        now = self.kernels.now()
        ready_by, listed_by = (now + share * (self.cuts_until - now) for share in (0.25, 0.5))

        below = wanted.below
        spaces: list[CutSpace] = []
        for space in variants.spaces(batch, below):
            spaces.append(space)
            if self.kernels.now() > ready_by:
                self.cuts_complete = False
                break
        found = list(self.listed(spaces, launches, wanted, listed_by, numbers))
        if wanted.left is not None:
            found += self.listed(spaces, launches, wanted.left, listed_by, numbers)
        self.cuts_pruned += sum(floor >= below for floor, _ in batch) + sum(space.pruned for space in spaces)
        return sorted(found, key=lambda cut: cut.floor)

    def listed(
        self, spaces: Sequence[CutSpace], launches: int, wanted: Wanted, until: float, numbers: range | None
    ) -> Iterator[Cut]:
        """The cuts that are `wanted`, as far as there is time to list them."""

        def bound() -> float:
            in_time = self.kernels.now() <= until
            self.cuts_complete = self.cuts_complete and in_time
            return wanted.below if in_time else -math.inf

        for cut in itertools.chain.from_iterable(space.cuts(launches, bound, numbers) for space in spaces):
            wanted.listed(cut)
            yield cut

    def cut_plan(self, cut: Cut, tier: Tier, launches: int, produces: tuple[int, ...], bound: float) -> Iterator[Plan]:
        """The best plans of one cut below `bound` seconds; given up as soon as its parts cannot add up to less.

        Of parts that were not looked at yet only the traffic counts: derivations with less are launches of another cut.
        """
        read: dict[int, tuple[int, Slots]] = {}
        parts: list[tuple[AxisProgram, tuple[int, ...]]] = []
        for group in cut.groups:
            part = cut.part(group, read)
            made = tuple(source for (term, _), source in zip(cut.program.outputs, produces, strict=True) if term in group)
            written = list(cut.made_by(group))
            made += self.sources_of(part, [slots for _, slots in written[len(made) :]], self.kernels.dtype)
            for (term, slots), source in zip(written, made, strict=True):
                if term in cut.stored:
                    read[term] = self.read_back(source), slots
            parts.append((part, made))
        for part, _ in parts:
            self.kernels.announce(part, tier, (None,))
        spare = launches - len(parts)
        rest = sum(floors := [self.roofline.seconds(self.roofline.memory(*part), 0.0) for part in parts])
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
        key = (program, seen_in(program, tier), min(launches, 2), produces)
        known = self.memo.get(key)
        if known is None or known[0] < bound:
            tiers = tiers_to(program, tier)
            one = itertools.chain.from_iterable(self.single(program, each, produces) for each in tiers)
            plans = _best(one)
            if launches > 1:
                worthwhile = min(bound, CUT_GAIN * plans[0].seconds if plans else math.inf)
                for each in tiers:
                    plans += self.split_plans(program, each, produces, worthwhile)
            known = self.memo[key] = bound, _best(plans)
        return known[1]

    def read_back(self, source: int) -> int:
        """The number under which later launches read a device tensor: outputs of the program have one of their own."""
        if source >= 0:
            return source
        if source not in self.read_as:
            self.read_as[source] = self.inputs + len(self.tensors)
            self.tensors[self.read_as[source]] = self.kernels.tensor_of(source)
        return self.read_as[source]

    def sources_of(self, producer: AxisProgram, slots: Sequence[Slots], dtype: DType) -> tuple[int, ...]:
        """Numbers for the device tensors a producer writes, but for the first ones if it has more outputs than `slots`."""
        key = producer, len(slots)
        if key not in self.producers:
            first = self.inputs + len(self.tensors)
            for offset, dims in enumerate(slots):
                shape = tuple(math.prod(producer.sizes[axis] for axis in slot) for slot in dims)
                self.tensors[first + offset] = Tensor(shape, dtype)
            self.producers[key] = tuple(range(first, first + len(slots)))
        return self.producers[key]

    # partial results -------------------------------------------------------------------------------------------------

    def partial_plans(
        self, program: AxisProgram, tier: Tier, launches: int, produces: tuple[int, ...], best: float
    ) -> Iterator[Plan]:
        """Plans over partial results that are worth measuring beside the best of `best` seconds, or with finer algebra better."""
        coarsest = len(tiers_to(program, tier)) == 1
        gain = 1.0 if len(program.terms) <= _SMALL else CUT_GAIN
        yield from self.split_plans(program, tier, produces, (WORTH_MEASURING if coarsest else gain) * best)

    def split_plans(self, program: AxisProgram, tier: Tier, produces: tuple[int, ...], bound: float) -> Iterator[Plan]:
        """Two launches below `bound` seconds that share a reduced axis: partial results over parts of it, their combination."""
        for axis in self.kernels.loop_axes(program):
            counts = self.part_counts(program, axis)
            if not counts or not any(axis in reduced for reduced in program.reductions):
                continue
            sketches = self.kernels.cheapest_first(program, self.kernels.structure(program, tier, axis).sketches)
            efficiency = self.kernels.device.product_efficiency
            floors = (self.roofline.of_launches(program, sketch, produces, efficiency) for sketch in sketches)
            if min(floors, default=math.inf) >= bound:
                self.cuts_pruned += 1
                continue
            for split in itertools.islice(splits_of(sketches, program.structure), _VARIANTS_SPLIT):
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
        last = consumer_of(split, made)
        combining = self.kernels.scheduler(sizes, frame=self.kernels.frame(last, produces))
        lasts = combining.least(self._costs(last, tier, produces))
        if not lasts:
            return
        rest = np.array([lasts[variant].seconds if variant in lasts else np.inf for variant in range(len(sizes))])
        frame = self.kernels.frame(split.producer, made)
        working = self.kernels.scheduler(sizes, frozenset({split.parts}), frame)
        producing = self._costs(split.producer, tier, made, working.parted)
        for first in working.best(producing, _SPLITS_KEPT, bound, rest):
            kernels = (ScheduledSketch.of(half, sizes[first.variant]) for half in (first, lasts[first.variant]))
            yield Plan(tuple(map(Stage, (made, produces), kernels)))

    def _costs(
        self, program: AxisProgram, tier: Tier, produces: tuple[int, ...], parted: AxisSet = frozenset()
    ) -> tuple[SketchCost, ...]:
        """The cost models of all contexts in all tiers up to this one."""
        costs: dict[Sketch, SketchCost] = {}
        for each in tiers_to(program, tier):
            for some in self.kernels.costs(program, each, produces, parted):
                costs.update((cost.sketch, cost) for cost in some if cost.sketch not in costs)
        return tuple(costs.values())

    def partial_results(self, split: Split) -> tuple[int, ...]:
        """The device tensors between both halves: partial results, and the row maximum where one is exported.

        They have one number whatever the number of parts; the tensor described is that of the split at hand.
        """
        slots = [*split.partial, *([maximum_slots(split)] if split.producer.projective else [])]
        return self.sources_of(split.producer, slots, DType.FP32)


# by name: the sum of products of two elements is what a library's matrix product computes
def _only_product(program: AxisProgram) -> Term | None:
    """The matrix product that is all of a program: one contraction, or elements times those of a vector, and their sum."""
    *loads, root = program.terms
    if len(program.outputs) != 1 or program.outputs[0][0] != len(loads):
        return None
    if root.op == "sum" and len(program.terms) == 4 and program.terms[root.inputs[0]].op == "mul":
        *loads, elements = loads
        if any(load.axes == root.reduced for load in loads) and all(root.reduced <= load.axes for load in loads):
            root = Term("contract", elements.inputs, root.axes, root.reduced)
    is_product = root.op == "contract" and len(loads) == 2 and all(load.op == "load" for load in loads)
    return root if is_product and len(set(root.inputs)) == 2 else None


def _scattered(program: AxisProgram, load: Term, batch: AxisSet) -> bool:
    """Whether matrices of a batch lie among each other in memory, and not one after the other."""
    inner = [axis not in batch for slot in load.slots for axis in slot if program.sizes[axis] > 1]
    return inner != sorted(inner)


def _best(plans: Iterable[Plan]) -> list[Plan]:
    """The best of a part's plans, each once."""
    return heapq.nsmallest(_STAGES_KEPT, dict.fromkeys(plans), key=lambda plan: plan.seconds)
