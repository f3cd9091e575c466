"""The kernel level: a program as one kernel, or cut into several at device tensors that derivations share.

A derivation without loop is itself a program; cutting it at one of its tensors gives a producer and a consumer, each
searched like a program of its own (and so cut again, up to the kernel limit). A cut is only followed when even at
the speed of device memory its pieces could beat the best plan known.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.search.axes import AxisProgram, AxisSet, Slots, Term, pruned
from mugraph.search.cost import GENERATED_EFFICIENCY, NOT_HIDDEN
from mugraph.search.kernels import Kernel, KernelSearch
from mugraph.search.recipe import Recipe, Step
from mugraph.search.schedule import divisors
from mugraph.search.splits import Split, consumer_of, maximum_slots, split_at, split_axis, with_parts
from mugraph.search.tiers import Tier

LIBRARY_EFFICIENCY = 0.8
"""Share of the device's matmul rate a vendor library reaches (MKL and oneDNN: 0.84 to 0.91 at 2048 cubed)."""

LIBRARY_FULL_ROWS = 32
"""Rows (and columns) from which a library reaches that share; below, in proportion (MKL at 8 rows: 0.18)."""

CUT_GAIN = 0.9
"""A cut counts only if it is below this share of the best plan known, and is tried only if its roofline is."""

_PLANS_KEPT = 16
_PARTS_JOINED = 3
_VARIANTS_CUT = 4
_VARIANTS_SPLIT = 2
_BLOCKS_PER_MULTIPROCESSOR = 4


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
    memo: dict[tuple[AxisProgram, int, tuple[int, ...]], tuple[float, list[Plan]]] = field(default_factory=dict)

    def plans(
        self, program: AxisProgram, tier: Tier, kernels: int, produces: tuple[int, ...], bound: float = math.inf
    ) -> Iterator[Plan]:
        """Plans of at most `kernels` launches as they are found: whole-program kernels, then cuts below `bound` seconds."""
        for plan in self.single(program, tier, produces):
            bound = min(bound, plan.seconds)
            yield plan
        if kernels >= len(program.outputs) > 1:
            yield from self.separate(program, tier, kernels, produces)
        if kernels > 1:
            for plan in self.split_plans(program, tier, produces, bound):
                bound = min(bound, plan.seconds)
                yield plan
            yield from self.cut_plans(program, tier, kernels, produces, bound)

    def single(self, program: AxisProgram, tier: Tier, produces: tuple[int, ...]) -> Iterator[Plan]:
        """The program as one launch."""
        library = self.library(program)
        if library is not None:
            yield Plan((Stage(produces, library),))
        for kernel in self.kernels.kernels(program, tier):
            yield Plan((Stage(produces, kernel),))

    def library(self, program: AxisProgram) -> Library | None:
        """The program as a pre-defined kernel, when it is nothing but one matrix multiplication."""
        if len(program.terms) != 3 or len(program.outputs) != 1 or program.terms[program.outputs[0][0]].op != "contract":
            return None
        product = program.terms[program.outputs[0][0]]
        left, right = (program.terms[i] for i in product.inputs)
        rate = self.library_efficiency(program, product) * self.kernels.device.matmul_flops[self.kernels.dtype]
        compute = _flops(program, product) / rate + self.kernels.device.launch_seconds
        seconds = max(compute, self.floor(program))
        return Library(left, right, product.reduced, (program.outputs[0][1],), program.sizes, seconds)

    def library_efficiency(self, program: AxisProgram, product: Term) -> float:
        """Share of the device's matmul rate a library reaches on one product: less on few rows or columns."""
        sides = (program.terms[i].axes & product.axes for i in product.inputs)
        filled = [min(1.0, math.prod(program.sizes[axis] for axis in side) / LIBRARY_FULL_ROWS) for side in sides]
        return LIBRARY_EFFICIENCY * math.prod(filled)

    def cut_plans(
        self, program: AxisProgram, tier: Tier, kernels: int, produces: tuple[int, ...], bound: float
    ) -> Iterator[Plan]:
        """The program in two parts at one intermediate tensor, each part planned in turn; the most promising cuts first."""
        cuts = {self.cut(variant, index) for variant in self.variants(program, tier) for index in _cut_points(variant)}
        floors = {cut: self.floor(cut[0]) + self.floor(cut[1]) for cut in cuts}
        promising = sorted(cuts, key=lambda cut: (floors[cut], self.producers[cut[0]]))
        for part in (part for cut in promising if floors[cut] < CUT_GAIN * bound for part in cut):
            self.kernels.announce(part, tier, (None,))
        for cut in promising:
            if time.perf_counter() > self.cut_deadline:
                self.cuts_complete = False
                return
            if floors[cut] >= CUT_GAIN * bound:
                self.cuts_pruned += 1
                continue
            self.cuts_tried += 1
            for plan in self.joined(*cut, tier, kernels, produces, bound):
                if plan.seconds < CUT_GAIN * bound:
                    bound = plan.seconds
                    yield plan

    def separate(self, program: AxisProgram, tier: Tier, kernels: int, produces: tuple[int, ...]) -> Iterator[Plan]:
        """Every output by launches of its own."""
        each = kernels // len(program.outputs)
        stages: tuple[Stage, ...] = ()
        for output, source in zip(program.outputs, produces, strict=True):
            plans = self.best_plans(pruned(replace(program, outputs=(output,))), tier, each, (source,))
            if not plans:
                return
            stages += plans[0].stages
        yield Plan(stages)

    def split_plans(self, program: AxisProgram, tier: Tier, produces: tuple[int, ...], bound: float) -> Iterator[Plan]:
        """Two launches that share a reduced axis: partial results over parts of it, then their combination."""
        for axis in self.kernels.loop_axes(program):
            counts = self.part_counts(program, axis)
            if not counts or not any(axis in reduced for reduced in program.reductions):
                continue
            if self.floor(program) + self.kernels.device.launch_seconds >= CUT_GAIN * bound:
                self.cuts_pruned += 1
                continue
            self.cuts_tried += 1
            whole = split_axis(program, axis, counts[0])
            parts = len(program.sizes)
            recipes = self.kernels.cheapest_first(whole, self.kernels.structure(whole, tier, None).recipes)
            derived = [_as_program(recipe, whole) for recipe in recipes]
            splits = [split for split in (split_at(variant, parts) for variant in derived) if split is not None]
            for split, count in itertools.product(splits[:_VARIANTS_SPLIT], counts):
                if time.perf_counter() > self.cut_deadline:
                    self.cuts_complete = False
                    return
                for plan in self.split_plan(split, axis, count, tier, produces):
                    if plan.seconds < CUT_GAIN * bound:
                        bound = plan.seconds
                        yield plan

    def part_counts(self, program: AxisProgram, axis: int) -> list[int]:
        """Numbers of parts worth trying: divisors up to a few blocks for every multiprocessor."""
        most = _BLOCKS_PER_MULTIPROCESSOR * self.kernels.device.multiprocessors
        return [count for count in divisors(program.sizes[axis]) if 1 < count <= min(most, program.sizes[axis] // 2)]

    def split_plan(self, split: Split, axis: int, count: int, tier: Tier, produces: tuple[int, ...]) -> Iterator[Plan]:
        """The best kernels of both halves for one number of parts."""
        split = replace(split, producer=with_parts(split.producer, axis, count), whole=with_parts(split.whole, axis, count))
        slots = [*split.partial, *([maximum_slots(split)] if split.producer.projective else [])]
        sources = self.sources_of(split.producer, slots, DType.FP32)
        firsts = sorted(self.single(split.producer, tier, sources), key=lambda plan: plan.seconds)
        consumer = consumer_of(split, sources)
        seconds = sorted(self.single(consumer, tier, produces), key=lambda plan: plan.seconds)
        for first, second in itertools.product(firsts[:_PARTS_JOINED], seconds[:1]):
            yield Plan((*first.stages, *second.stages))

    def sources_of(self, producer: AxisProgram, slots: Sequence[Slots], dtype: DType) -> tuple[int, ...]:
        """Numbers for the device tensors a producer writes."""
        if producer not in self.producers:
            first = self.inputs + len(self.tensors)
            for offset, dims in enumerate(slots):
                shape = tuple(math.prod(producer.sizes[axis] for axis in slot) for slot in dims)
                self.tensors[first + offset] = Tensor(shape, dtype)
            self.producers[producer] = tuple(range(first, first + len(slots)))
        return self.producers[producer]

    def joined(
        self, producer: AxisProgram, consumer: AxisProgram, tier: Tier, kernels: int, produces: tuple[int, ...], bound: float
    ) -> Iterator[Plan]:
        """The best plans of the two parts, one after the other."""
        firsts = self.best_plans(producer, tier, 1, self.producers[producer], bound - self.floor(consumer))
        if not firsts:
            return
        seconds = self.best_plans(consumer, tier, kernels - 1, produces, bound - firsts[0].seconds)
        for first in firsts[:_PARTS_JOINED]:
            for second in seconds[:_PARTS_JOINED]:
                yield Plan((*first.stages, *second.stages))

    def best_plans(
        self, program: AxisProgram, tier: Tier, kernels: int, produces: tuple[int, ...], bound: float = math.inf
    ) -> list[Plan]:
        """The best plans of a part, memoised with the bound they were searched under."""
        key = (program, kernels, produces)
        known = self.memo.get(key)
        if known is None or known[0] < bound:
            found = sorted(self.plans(program, tier, kernels, produces, bound), key=lambda plan: plan.seconds)
            known = self.memo[key] = (bound, found[:_PLANS_KEPT])
        return known[1]

    def variants(self, program: AxisProgram, tier: Tier) -> list[AxisProgram]:
        """The program and its cheapest other derivations, as programs."""
        recipes = self.kernels.cheapest_first(program, self.kernels.structure(program, tier, None).recipes)
        derived = [_as_program(recipe, program) for recipe in recipes[:_VARIANTS_CUT]]
        return list(dict.fromkeys([program, *derived]))

    def floor(self, program: AxisProgram) -> float:
        """A roofline: inputs and outputs cross device memory once, contractions run at the best rate."""
        device = self.kernels.device
        read = {term.source: self.kernels.tensor_of(term.source).bytes for _, term in program.loads()}
        width = self.kernels.dtype.bytes
        written = sum(math.prod(program.sizes[axis] for axis in program.terms[term].axes) * width for term, _ in program.outputs)
        memory = (sum(read.values()) + written) / device.memory_bandwidth
        compute = 0.0
        for term in program.terms:
            if term.op == "contract":
                efficiency = max(GENERATED_EFFICIENCY, self.library_efficiency(program, term))
                compute += _flops(program, term) / (efficiency * device.matmul_flops[self.kernels.dtype])
        return max(memory, compute) + NOT_HIDDEN * min(memory, compute) + device.launch_seconds

    def cut(self, program: AxisProgram, index: int) -> tuple[AxisProgram, AxisProgram]:
        """Producer of term `index`, and the program that loads it instead."""
        axes = sorted(program.terms[index].axes)
        slots: Slots = tuple((axis,) for axis in axes)
        producer = pruned(replace(program, outputs=((index, slots),)))
        (source,) = self.sources_of(producer, [slots], self.kernels.dtype)
        load = Term("load", (), program.terms[index].axes, source=source, slots=slots)
        terms = (*program.terms[:index], load, *program.terms[index + 1 :])
        return producer, pruned(replace(program, terms=terms))


def _flops(program: AxisProgram, product: Term) -> float:
    return 2.0 * math.prod(program.sizes[axis] for axis in product.axes | product.reduced)


def _cut_points(program: AxisProgram) -> list[int]:
    """Terms worth storing: what is computed, but is neither an output nor a mere constant."""
    outputs = {term for term, _ in program.outputs}
    return [i for i, term in enumerate(program.terms) if term.op not in ("load", "constant") and i not in outputs and term.axes]


def _as_program(recipe: Recipe, program: AxisProgram) -> AxisProgram:
    """A recipe without loop, read as a program."""
    terms: list[Term] = []
    moved: dict[int, int] = {}
    for index, step in enumerate(recipe.steps):
        inputs = tuple(moved[i] for i in step.inputs)
        for term in _terms_of(step, inputs, terms):
            terms.append(term)
        moved[index] = len(terms) - 1
    outputs = tuple((moved[goal], slots) for goal, (_, slots) in zip(recipe.goals, program.outputs, strict=True))
    return pruned(replace(program, terms=tuple(terms), outputs=outputs))


def _terms_of(step: Step, inputs: tuple[int, ...], terms: list[Term]) -> Iterator[Term]:
    if step.op == "concat_contract":
        for left, right in ((inputs[0], inputs[2]), (inputs[1], inputs[3])):
            yield Term("contract", (left, right), step.axes, step.reduced & terms[left].axes & terms[right].axes)
        yield Term("add", (len(terms) - 2, len(terms) - 1), step.axes)
    elif step.leaf is not None:
        yield Term("load", (), step.axes, source=step.leaf.source, slots=step.leaf.slots)
    else:
        yield Term(step.op, inputs, step.axes, step.reduced, scalar=step.scalar)
