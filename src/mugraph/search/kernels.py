"""Kernels of one program: closures over all contexts and tiers, their recipes, and the best schedules of each."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from mugraph.algebra.fields import FieldArithmetic
from mugraph.devices import Device
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.ir.ops import OPERATORS, Call
from mugraph.search.axes import AxisProgram, Slots
from mugraph.search.closure import Closure, Edge, Leaf, Limits, Saturation, TinyInputs
from mugraph.search.context import Context
from mugraph.search.cost import RecipeCost
from mugraph.search.emission import Schedule
from mugraph.search.extraction import ExtractionLimits, Extractor
from mugraph.search.recipe import Recipe, Step
from mugraph.search.report import TierReport
from mugraph.search.schedule import best_schedules, cuttable
from mugraph.search.stabilize import Stabilizer, exponentials
from mugraph.search.structures import KNOWN, Structure, StructureCache
from mugraph.search.tiers import Tier


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of a search (paper, section 8: 5 kernel and 11 block operators).

    Each context is enumerated up to `block_operators`, or to one more than its smallest graph has if that is larger.
    """

    max_kernels: int = 5
    block_operators: int = 11
    most_block_operators: int = 24
    max_nodes: int = 20_000
    closure_seconds: float = 4.0
    max_derivations: int = 1000
    scheduled_recipes: int = 24
    schedules_per_recipe: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A graph-defined kernel: a recipe under a schedule, the slots of what it writes, sizes of axes, predicted seconds."""

    recipe: Recipe
    schedule: Schedule
    outputs: tuple[Slots, ...]
    sizes: tuple[int, ...]
    seconds: float


@dataclass
class KernelSearch:
    """Finds kernels for programs that are parts of a `whole`; `tensor_of` describes the device tensors programs load."""

    whole: AxisProgram
    device: Device
    dtype: DType
    tensor_of: Callable[[int], Tensor]
    options: Options
    deadline: float
    tick: Callable[[str, int], None]
    reports: dict[Tier, TierReport] = field(default_factory=dict)
    closure_seconds: float = math.inf
    first_tier: dict[tuple[tuple[int, ...], Recipe], Tier] = field(default_factory=dict)
    known: StructureCache = KNOWN
    structures: dict[tuple[AxisProgram, Tier, int | None], Structure] = field(default_factory=dict)

    def kernels(self, program: AxisProgram, tier: Tier) -> Iterator[Kernel]:
        """Kernels computing all outputs of `program` in one launch, best schedules of the cheapest recipes of each context.

        A program whose closure without a loop ends early and empty is not tried with loops: it has to be cut.
        """
        for loop_axis in (None, *self.loop_axes(program)):
            if time.perf_counter() > self.deadline:
                if program.structure == self.whole:
                    self.report(tier).complete = False
                return
            structure = self.structure(program, tier, loop_axis)
            for recipe in self.cheapest_first(program, structure.safe_recipes)[: self.options.scheduled_recipes]:
                if self.first_tier.setdefault((program.sizes, recipe), tier) is not tier:
                    continue  # a coarser tier had it already
                outputs = _output_slots(program, recipe)
                cost = self.cost_of(program, recipe, outputs)
                for seconds, schedule in best_schedules(cost, outputs, self.options.schedules_per_recipe):
                    yield Kernel(recipe, schedule, outputs, program.sizes, seconds)
            if not structure.saturated and not structure.recipes:
                return

    def report(self, tier: Tier) -> TierReport:
        """The statistics of a tier."""
        return self.reports.setdefault(tier, TierReport(tier.value))

    def loop_axes(self, program: AxisProgram) -> list[int]:
        """Axes a for-loop may cut: largest first."""
        tensors = [*(term.slots for _, term in program.loads()), *(slots for _, slots in program.outputs)]
        axes = [axis for axis in range(len(program.sizes)) if cuttable(axis, tensors)]
        return sorted(axes, key=lambda axis: -program.sizes[axis])

    def structure(self, program: AxisProgram, tier: Tier, loop_axis: int | None) -> Structure:
        """Every recipe of a context within the limits; searched once per process, whatever the sizes."""
        key = (program.structure, tier, loop_axis)
        if key not in self.structures:
            structure = self.known.get((*key, self.options))
            if structure is None:
                structure = self._search(program, tier, loop_axis)
                if structure.saturated and structure.complete:
                    self.known.put((*key, self.options), structure)
            structure.count_in(self.report(tier), whole=program.structure == self.whole)
            self.structures[key] = structure
        return self.structures[key]

    def cheapest_first(self, program: AxisProgram, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Recipes by their work at the program's sizes, whatever sizes they were found at."""
        return sorted(recipes, key=lambda recipe: sum(self.step_seconds(program, step) for step in recipe.steps))

    def _search(self, program: AxisProgram, tier: Tier, loop_axis: int | None) -> Structure:
        arith, inputs = FieldArithmetic(seed=self.options.seed), TinyInputs(self.options.seed)
        closure = Closure(program, Context.of(program, loop_axis), tier)
        where = "no loop" if loop_axis is None else f"loop over an axis of {program.sizes[loop_axis]}"
        limits = Limits(self.options.max_nodes, min(self.deadline, time.perf_counter() + self.closure_seconds))
        Saturation(closure, arith, inputs, limits, partial(self.tick, f"{tier.value}, {where}")).run()
        found, operators = self._extract(closure)
        safe = found
        if any(step.op == "exp" for recipe in found for step in recipe.steps):
            stabilizer = Stabilizer(program, closure.context, arith, inputs)
            shifted = map(stabilizer.export if program.projective else stabilizer.stabilize, found)
            made = list(dict.fromkeys(filter(None, shifted)))
            safe = [recipe for recipe in made if not exponentials(recipe)] or made
        return Structure(
            recipes=tuple(sorted(found, key=_canonical)),
            safe_recipes=tuple(sorted(safe, key=_canonical)),
            states=len(closure.nodes),
            edges=closure.edge_count,
            saturated=closure.saturated,
            complete=operators >= self.options.block_operators,
            operators=operators,
        )

    def _extract(self, closure: Closure) -> tuple[list[Recipe], int]:
        """The derivations of all goals, up to the limit that the smallest of them asks for; how far they are complete."""
        extractor = Extractor(closure, lambda edge: self.edge_seconds(closure.program, closure, edge))
        if not all(closure.goals):
            return [], self.options.most_block_operators
        found: list[Recipe] = []
        for operators in range(self.options.block_operators, self.options.most_block_operators + 1):
            limits = ExtractionLimits(operators, self.options.max_derivations, deadline=self.deadline)
            smaller, found = found, [*dict.fromkeys([*self._derivations(extractor, limits), *found])]
            if not limits.complete:
                return found, operators - 1
            if smaller or (found and operators == self.options.block_operators):
                break
        return found, operators

    def _derivations(self, extractor: Extractor, limits: ExtractionLimits) -> list[Recipe]:
        choices = itertools.product(*extractor.closure.goals)
        found = (recipe for goals in choices for _, recipe in extractor.derivations(goals, limits))
        return list(dict.fromkeys(found))

    def edge_seconds(self, program: AxisProgram, closure: Closure, edge: Edge) -> float:
        """Work of one edge: the order in which derivations are enumerated."""
        parts = closure.nodes[edge.target].mask | edge.reduced
        axes = [axis for axis in range(len(program.sizes)) if parts >> axis & 1]
        return self.work_seconds(program, edge.op, axes, edge.leaf)

    def step_seconds(self, program: AxisProgram, step: Step) -> float:
        """Work of one step, the same as that of the edge it comes from."""
        axes = step.axes if step.op in ("accumulate", "rescale") else step.axes | step.reduced
        return self.work_seconds(program, step.op, axes, step.leaf)

    def work_seconds(self, program: AxisProgram, op: str, axes: Iterable[int], leaf: Leaf | None) -> float:
        """Work of one operator over `axes` at full size on the whole device."""
        points = float(math.prod(program.sizes[axis] for axis in axes))
        if leaf is not None:
            return points * self.tensor_of(leaf.source).dtype.bytes / self.device.memory_bandwidth
        if op in ("contract", "concat_contract"):
            return 2.0 * points / self.device.matmul_flops[self.dtype]
        row = OPERATORS.get(op)
        flops = row.flops(Call(op, (), {}), (1,)) if row is not None and row.elementwise else 1
        return flops * points / self.device.vector_flops

    def cost_of(self, program: AxisProgram, recipe: Recipe, outputs: Sequence[Slots]) -> RecipeCost:
        """The cost model of a recipe of `program`."""
        sources = [self.tensor_of(leaf.source) for leaf in recipe.leaves]
        return RecipeCost(recipe, program.sizes, sources, outputs, self.dtype, self.device)


def _canonical(recipe: Recipe) -> tuple[object, ...]:
    """A key for an order of recipes that depends on neither sizes nor the device."""
    return tuple((step.op, step.inputs, sorted(step.axes), sorted(step.reduced), str(step.scalar)) for step in recipe.steps)


def _output_slots(program: AxisProgram, recipe: Recipe) -> tuple[Slots, ...]:
    """Dimensions of a kernel's outputs: the program's, and for a maximum the recipe exports those that all of them share.

    Whoever reads the maximum counts on these dimensions (`mugraph.search.splits`): one without some of them is repeated.
    """
    outputs = tuple(slots for _, slots in program.outputs)
    shared = tuple(slot for slot in outputs[0] if all(slot in slots for slots in outputs))
    return (*outputs, *[shared] * (len(recipe.goals) - len(outputs)))
