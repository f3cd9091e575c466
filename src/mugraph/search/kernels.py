"""Kernels of one program: closures over all contexts and tiers, their recipes, and the best schedules of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mugraph.algebra.fields import FieldArithmetic
from mugraph.devices import Device
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.ir.ops import OPERATORS, Call
from mugraph.search.axes import AxisProgram, Slots
from mugraph.search.closure import Closure, Edge, Limits, Saturation, TinyInputs
from mugraph.search.context import Context
from mugraph.search.cost import RecipeCost
from mugraph.search.emission import Schedule
from mugraph.search.extraction import ExtractionLimits, Extractor
from mugraph.search.recipe import Recipe
from mugraph.search.report import TierReport
from mugraph.search.schedule import best_schedules, cuttable
from mugraph.search.stabilize import Stabilizer
from mugraph.search.tiers import Tier


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of a search (paper, section 8: 5 kernel and 11 block operators).

    Each context is enumerated up to the first of the `block_operators` limits under which it has a graph at all.
    """

    max_kernels: int = 5
    block_operators: tuple[int, ...] = (11, 14, 17, 20)
    max_nodes: int = 20_000
    max_derivations: int = 1000
    scheduled_recipes: int = 24
    schedules_per_recipe: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A graph-defined kernel: a recipe under a schedule, its predicted seconds, and the slots of what it writes."""

    recipe: Recipe
    schedule: Schedule
    outputs: tuple[Slots, ...]
    seconds: float


@dataclass
class KernelSearch:
    """Finds kernels for programs; `tensor_of` describes the device tensor of every source a program may load."""

    device: Device
    dtype: DType
    tensor_of: Callable[[int], Tensor]
    options: Options
    deadline: float
    tick: Callable[[str, int], None]
    reports: dict[Tier, TierReport] = field(default_factory=dict)
    operators_reached: int = 0

    def kernels(self, program: AxisProgram, tier: Tier) -> Iterator[Kernel]:
        """Kernels computing all outputs of `program` in one launch, best schedules of the cheapest recipes of each context."""
        report = self.reports.setdefault(tier, TierReport(tier.value))
        outputs = tuple(slots for _, slots in program.outputs)
        for loop_axis in (None, *self.loop_axes(program)):
            if time.perf_counter() > self.deadline:
                report.complete = False
                return
            recipes = self.recipes(program, tier, loop_axis, report)
            for recipe in recipes[: self.options.scheduled_recipes]:
                cost = self.cost_of(program, recipe, outputs)
                for seconds, schedule in best_schedules(cost, outputs, self.options.schedules_per_recipe):
                    yield Kernel(cost.recipe, schedule, outputs, seconds)

    def loop_axes(self, program: AxisProgram) -> list[int]:
        """Axes a for-loop may cut: largest first."""
        tensors = [*(term.slots for _, term in program.loads()), *(slots for _, slots in program.outputs)]
        axes = [axis for axis in range(len(program.sizes)) if cuttable(axis, tensors)]
        return sorted(axes, key=lambda axis: -program.sizes[axis])

    def recipes(
        self, program: AxisProgram, tier: Tier, loop_axis: int | None, report: TierReport, safe: bool = True
    ) -> list[Recipe]:
        """Every recipe of a context within the limits; `safe` shifts the exponentials that may be."""
        options = self.options
        arith, inputs = FieldArithmetic(seed=options.seed), TinyInputs(options.seed)
        context = Context.of(program, loop_axis)
        closure = Closure(program, context, tier)
        label = f"{tier.value}, " + (
            "no loop" if loop_axis is None else f"loop over axis {loop_axis} ({program.sizes[loop_axis]})"
        )
        Saturation(closure, arith, inputs, Limits(options.max_nodes, self.deadline), lambda nodes: self.tick(label, nodes)).run()
        report.closures += 1
        report.saturated += closure.saturated
        report.states += len(closure.nodes)
        report.edges += closure.edge_count
        if not all(closure.goals):
            return []
        extractor = Extractor(closure, lambda edge: self.edge_seconds(program, closure, edge))
        goals = tuple(found[0] for found in closure.goals)
        found: list[Recipe] = []
        for operators in options.block_operators:
            limits = ExtractionLimits(operators, options.max_derivations, deadline=self.deadline)
            found = [recipe for _, recipe in extractor.derivations(goals, limits)]
            self.operators_reached = max(self.operators_reached, operators if found else 0)
            if found or not limits.complete:
                break
        report.derivations += len(found)
        report.complete = report.complete and limits.complete
        if safe and any(step.op == "exp" for recipe in found for step in recipe.steps):
            stabilizer = Stabilizer(program, context, arith, inputs)
            found = [stabilizer.stabilize(recipe) for recipe in found]
        return list(dict.fromkeys(found))

    def edge_seconds(self, program: AxisProgram, closure: Closure, edge: Edge) -> float:
        """Work of one operator at full size on the whole device: the order in which derivations are enumerated."""
        axes = [axis for axis in range(len(program.sizes)) if (closure.nodes[edge.target].mask | edge.reduced) >> axis & 1]
        points = 1.0
        for axis in axes:
            points *= program.sizes[axis]
        if edge.leaf is not None:
            return points * self.tensor_of(edge.leaf.source).dtype.bytes / self.device.memory_bandwidth
        if edge.op in ("contract", "concat_contract"):
            return 2.0 * points / self.device.matmul_flops[self.dtype]
        row = OPERATORS.get(edge.op)
        flops = row.flops(Call(edge.op, (), {}), (1,)) if row is not None and row.elementwise else 1
        return flops * points / self.device.vector_flops

    def cost_of(self, program: AxisProgram, recipe: Recipe, outputs: Sequence[Slots]) -> RecipeCost:
        """The cost model of a recipe of `program`."""
        sources = [self.tensor_of(leaf.source) for leaf in recipe.leaves]
        return RecipeCost(recipe, program.sizes, sources, outputs, self.dtype, self.device)
