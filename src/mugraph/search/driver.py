"""The search: tiers of abstraction from coarse to fine, all contexts of each, cuts into several kernels; anytime.

The result is a ranked list of muGraphs, each a valid kernel graph whose outputs equal the program's on random
finite-field inputs at tiny sizes. Evidence at full size is the verifier's part. What is left out by design are the conditions of
docs/theory.md, as far as they touch a program (`left_out`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mugraph.algebra.fields import NestingArithmetic
from mugraph.devices import Device
from mugraph.errors import BudgetExceeded, UndefinedInField, UnsupportedOperator
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Graph, Level, Tensor, Value
from mugraph.ir.liveness import peak_bytes
from mugraph.search.closure.context import Context, TinyInputs, telling_draw
from mugraph.search.closure.hoisting import hoisted
from mugraph.search.closure.safe_softmax import without_neutral_maxima
from mugraph.search.closure.tiers import Tier, distinct_tiers
from mugraph.search.constraints import EVERYTHING, SearchSpace
from mugraph.search.executors import Workers, executor_for
from mugraph.search.kernels import KernelSearch, ScheduledSketch
from mugraph.search.partition.cuts import SHARED_OUT, most_stored
from mugraph.search.partition.padding import worthwhile_paddings
from mugraph.search.partition.plan import Library, Plan, Stage
from mugraph.search.partition.plans import CUT_GAIN, PlanSearch
from mugraph.search.partition.rounding_model import Rehearsal
from mugraph.search.partition.selection import most_promising, orders_lost, refined
from mugraph.search.report import Progress, Pruning, SearchReport
from mugraph.search.scheduling.emission import Positions, emit_block, read_once
from mugraph.search.scheduling.masks import Hidden, Mask, Masks
from mugraph.search.structure_cache import Notes, Shelf
from mugraph.search.tasks import ANY_GAIN, Options

WRITING_SHARE = 0.03
"""Part of a budget for writing out the muGraphs that were found."""

_CLOSURE_SHARE = 0.1
"""Part of a budget one closure may use, so that a program too large for one kernel still gets cut in time."""

_WHOLE_SHARE = 0.4
"""Part of the time of a finer tier for closures of the whole program; where these are too large, parts have what is left."""

_TIER_SHARE = 0.6
"""Part of what is left of a budget after which finer tiers have their turn, whatever is left to do in a coarser one."""

_LEAST_FINER_SECONDS = 0.5
"""Where there is a budget, several kernels are looked for in a finer tier as long as the search has taken by then, or so long."""

_SETTLED_SECONDS, _SETTLED_SHARE = 1.0, 0.1
"""Where there is a budget, for what is left of the coarsest tier once no muGraph can be much better than what was found; no more
than that part of the budget."""

_AT_ONCE = 0.1
"""Part of the time of a closure after which the program's own sketch is offered, if nothing else is known by then."""


@dataclass(frozen=True)
class Proposal:
    """A muGraph equal to the program, and its predicted seconds on the device."""

    graph: Graph
    cost: float


@dataclass
class SearchResult:
    """Candidates, best predicted first, and what the search covered."""

    candidates: list[Proposal]
    report: SearchReport
    in_range: bool = True
    """Whether some candidate, as far as can be told, keeps the range of numbers where the program does."""


@dataclass
class Search:
    """One run of the search over a program for a device."""

    program: Graph
    device: Device
    budget: float | None = None
    progress: Callable[[Progress], None] | None = None
    options: Options = field(default_factory=Options)
    workers: Workers = 1
    shelf: Shelf | None = None
    space: SearchSpace = EVERYTHING
    hoisting: bool = False
    """Whether factors are taken out of functions before the search."""
    hidden: Hidden = field(default_factory=dict)
    """Where inputs are -inf, by name: costs depend on it."""
    patience: float = 1.0
    """Part of the budget after which a search ends that has found nothing that keeps the range of numbers."""

    def __post_init__(self) -> None:
        self.options = self.space.within(self.options)
        self.started = time.perf_counter()
        self.deadline = float("inf") if self.budget is None else self.started + (1 - WRITING_SHARE) * self.budget
        whole = axis_program(self.program)
        if whole.scanned and not self.device.scans:
            raise UnsupportedOperator(
                f"running sums and products are kernels of the CPU alone, not of {self.device.target or self.device.name}; "
                "leave them to PyTorch there, or use target='cpu'"
            )
        plain, seed = _plain(whole.structure, self.options.seed)
        other = hoisted(plain)
        self.hoistable = other is not plain
        """Whether the program has another form with factors taken out of functions."""
        self.axes = (other if self.hoisting else plain).with_sizes(whole.sizes)
        self.options = replace(self.options, seed=seed)
        self.input_tensors = [node.output for node in self.program.inputs()]
        self.dtype = self.program.output_tensors[0].dtype
        self.report = SearchReport(max_kernels=self.options.max_kernels, block_operators=self.options.block_operators)
        self.best: dict[Plan, float] = {}
        self.early: set[Plan] = set()
        """Plans offered before the coarsest tier was searched, which it has not come to yet. They bound nothing there: what is as
        fast would not be found again."""
        self.bodies: dict[tuple[ScheduledSketch, tuple[Tensor, ...]], Graph] = {}
        self.produces = tuple(-1 - index for index in range(len(self.axes.outputs)))
        share = _CLOSURE_SHARE * self.budget if self.budget is not None else float("inf")
        self.kernels = self._kernels(min(self.options.closure_seconds, share))
        self.plans = PlanSearch(self.kernels, len(self.input_tensors))
        if self.budget is not None:
            self.plans.give_up = self.started + self.patience * self.budget
        roofline = self.plans.roofline
        needed = _needed(self.axes.structure, seed)
        moved = sum(map(roofline.reading, needed)) + roofline.writing(self.axes, self.produces)
        self.report.least_seconds = roofline.least(moved, len(needed) + len(self.produces))
        self.rehearsal = Rehearsal(self.axes, len(self.input_tensors), self.plans.read_as)
        self.written = Rehearsal(whole, len(self.input_tensors), {})

    def _kernels(self, closure_seconds: float) -> KernelSearch:
        """A search for kernels that gives closures so many seconds."""
        kernels = KernelSearch(
            self.axes.structure,
            self.device,
            self.dtype,
            self._tensor,
            self.options,
            self.deadline,
            self._tick,
            self.space,
            self.program.input_names,
            self._masks(),
        )
        kernels.closure_seconds = closure_seconds
        return kernels

    def _masks(self) -> Masks:
        """The inputs of the program that are known to hide something, where kernels leave that out."""
        if not self.device.skips_iterations:
            return {}
        named = enumerate(zip(self.program.input_names, self.input_tensors, strict=True))
        return {
            number: Mask(self.hidden[name])
            for number, (name, tensor) in named
            if name in self.hidden and self.hidden[name].shape == tensor.shape
        }

    def run(self) -> SearchResult:
        """Search until everything within the limits is exhausted, the budget is spent, or the user interrupts."""
        executor = self.kernels.executor = executor_for(self.workers, time.time() + self.deadline - time.perf_counter())
        notes = Notes(self.shelf, self.axes, self.options) if self.shelf is not None else None
        if notes is not None:
            notes.recall(self.kernels.known)
        try:
            self._run_tiers()
        except KeyboardInterrupt:
            self.report.interrupted = True
        except (RecursionError, UndefinedInField):
            if not self.best:
                raise
            for report in self.kernels.reports.values():  # what was found before is not lost
                report.cut_short()
        finally:
            executor.close()
        if notes is not None:
            notes.keep(self.kernels.found)
        self.report.tiers = [replace(self.kernels.report(tier)) for tier in distinct_tiers(self.axes)]
        self.report.cuts_tried = self.plans.cuts_tried
        self.report.left_out += self.kernels.pruned + Counter({Pruning.FLOOR: self.plans.cuts_pruned})
        self.report.conditions = list(left_out(self.axes, self.kernels.loop_axes(self.axes), self.options.max_kernels))
        candidates = self._candidates()
        self.report.best_seconds = min((candidate.cost for candidate in candidates), default=None)
        self.report.paddings = self._paddings(candidates)
        self.report.seconds = time.perf_counter() - self.started
        if not candidates and time.perf_counter() > self.deadline:
            raise BudgetExceeded(f"no muGraph was found within {self.budget:g} s; raise the budget")
        return SearchResult(candidates, self.report, any(map(self._in_range, self.best)))

    def _run_tiers(self) -> None:
        coarsest, *finer = distinct_tiers(self.axes)
        self.plans.cut_deadline = self.started + self.options.cut_seconds if self.budget is None else self._share(len(finer))
        self._offer_early(coarsest)  # which may settle, and leave cuts less time
        self._run_tier(coarsest)
        searched = self.kernels.report(coarsest)
        if searched.saturated == searched.closures and self.kernels.now() <= self.kernels.deadline and not self._enough:
            self.best = {plan: seconds for plan, seconds in self.best.items() if plan not in self.early} or self.best
        self.early.clear()
        for number, tier in enumerate(finer, start=1):
            if self.report.settled:
                break
            if self.budget is None:
                seconds = self.options.finer_tier_seconds
                self.kernels.deadline = self.plans.cut_deadline = self.kernels.now() + seconds
                self.kernels.closure_seconds = min(self.options.closure_seconds, _WHOLE_SHARE * seconds)
            else:
                self.plans.cut_deadline = min(self._share(len(finer) - number), self._as_long_again())
            if self.kernels.now() > min(self.kernels.deadline, self.plans.give_up):
                break
            self._run_tier(tier)

    def _share(self, tiers: int) -> float:
        """Until when several kernels are looked for in a tier, if so many finer ones shall have a part of the budget, too."""
        now = self.kernels.now()
        return self.deadline if not tiers else now + _TIER_SHARE * max(0.0, self.deadline - now)

    def _as_long_again(self) -> float:
        """When the search has taken twice as long as by now, or a little longer."""
        now = self.kernels.now()
        return now + max(_LEAST_FINER_SECONDS, now - self.started)

    def _settles(self, plan: Plan) -> bool:
        """Whether no muGraph can be so much better than a plan in range that it would be worth looking for.

        That is not known where masks leave out what is read, nor what a space has of such plans.
        """
        assert self.report.least_seconds is not None
        least = 0.0 if self.kernels.masks else self.report.least_seconds
        gain = max(0.0, 1 - least / plan.seconds)
        return not self.space and (gain < self.options.least_gain or self.options.least_gain >= ANY_GAIN) and self._in_range(plan)

    def _offer_early(self, tier: Tier) -> None:
        """Kernels of a program whose closure is not saturated at once: there are some before it is, or if it never will be.

        They compute the program, or the parts of a cut that is better, as it is written.
        """
        hurried = self._kernels(_AT_ONCE * self.kernels.closure_seconds)
        if hurried.structure(self.axes, tier, None).saturated:
            return
        until = min(self.deadline, self.kernels.now() + self.kernels.closure_seconds)
        plans = replace(self.plans, kernels=hurried, cut_deadline=until, memo={})
        for plan in self._at_once(plans, tier):
            self._found(plan, tier)
            self.early.add(plan)

    def _at_once(self, plans: PlanSearch, tier: Tier) -> Iterator[Plan]:
        """Plans of one kernel, then those of the first cut that is better."""
        best = math.inf
        for plan in plans.single(self.axes, tier, self.produces):
            best = min(best, plan.seconds)
            yield plan
        yield from plans.first_cut(self.axes, tier, self.options.max_kernels, self.produces, CUT_GAIN * best)

    def _run_tier(self, tier: Tier) -> None:
        self._tick(tier.value, 0)
        best = min((seconds for plan, seconds in self.best.items() if plan not in self.early), default=float("inf"))
        self.plans.cuts_complete = True
        for plan in self.plans.plans(self.axes, tier, self.options.max_kernels, self.produces, best):
            self._found(plan, tier)
            self.early.discard(plan)
            if self._enough:
                self.plans.cuts_complete = False
                break
        self.kernels.report(tier).cuts_complete = self.plans.cuts_complete

    def _found(self, plan: Plan, tier: Tier) -> None:
        self.best.setdefault(plan, plan.seconds)
        if self.plans.give_up < math.inf and self._in_range(plan):
            self.plans.give_up = math.inf
        if not self.report.settled and self._settles(plan):
            self.report.settled = True
            if self.budget is not None:
                self.kernels.alone()  # workers would have to start first
                until = self.kernels.now() + min(_SETTLED_SECONDS, _SETTLED_SHARE * self.budget)
                self.kernels.deadline = min(self.kernels.deadline, until)
                self.plans.cut_deadline = min(self.plans.cut_deadline, until)
        if self.report.first_found_seconds is None:
            self._graph(plan)
            self.report.first_found_seconds = time.perf_counter() - self.started
            if not self.report.settled:
                self._announce_finer_tiers(tier)

    @property
    def _enough(self) -> bool:
        """Whether it has settled and found as many plans in range as are enough."""
        enough = self.options.enough
        if enough is None or not self.report.settled or len(self.best) < enough:
            return False
        return sum(map(self._in_range, self.best)) >= enough

    def _in_range(self, plan: Plan) -> bool:
        return self.rehearsal.within(plan, self.written.own_errors)

    def _announce_finer_tiers(self, tier: Tier) -> None:
        """Work for those who would be idle while this process follows the cuts of the coarsest tier."""
        contexts = (None, *self.kernels.loop_axes(self.axes))
        tiers = distinct_tiers(self.axes)
        for finer in tiers[tiers.index(tier) + 1 :]:
            self.kernels.announce(self.axes, finer, contexts)

    def _tick(self, stage: str, states: int) -> None:
        if self.progress is not None:
            total = states + sum(report.states for report in self.kernels.reports.values())
            best = min(self.best.values(), default=None)
            self.progress(Progress(stage, total, len(self.best), best, time.perf_counter() - self.started))

    # results ---------------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Proposal]:
        """The most promising plans as graphs, each graph once; others take the place of what fits neither memory nor space."""
        graphs: dict[Plan, Graph] = {}
        count = self.options.candidates
        refinements = refined(most_promising(self.best, self.rehearsal.errors, count), self.rehearsal, self.kernels)
        left = dict.fromkeys(itertools.chain(self.best, refinements))
        while True:
            chosen = most_promising(left, self.rehearsal.errors, count)
            new = [plan for plan in chosen if plan not in graphs]
            if not new:
                orders = orders_lost([self.rehearsal.errors(plan) for plan in left])
                imprecise = [plan for plan, lost in zip(left, orders, strict=True) if lost != 0]
                self.report.left_out[Pruning.PRECISION] += sum(plan not in chosen for plan in imprecise)
                return [Proposal(graphs[plan], plan.seconds) for plan in chosen]
            for plan in new:
                graph = self._graph(plan)
                fits = peak_bytes(graph) <= self.device.device_memory_bytes
                self.report.left_out[Pruning.MEMORY] += not fits
                asked_for = self.space.holds(graph)
                self.report.left_out[Pruning.SPACE] += not asked_for
                if fits and asked_for and graph not in graphs.values():
                    graphs[plan] = graph
                else:
                    del left[plan]

    def _paddings(self, candidates: Sequence[Proposal]) -> list[str]:
        """Dimensions that had better be padded, unless there is no time left to find out."""
        if self.report.interrupted or time.perf_counter() > self.deadline:
            return []
        self.kernels.deadline = self.deadline  # whatever time the finer tiers had
        best = min((candidate.cost for candidate in candidates), default=float("inf"))
        found = worthwhile_paddings(self.axes, self.program.input_names, self.plans, self.produces, best)
        return [str(padding) for padding in found]

    def _tensor(self, source: int) -> Tensor:
        """The device tensor of a source: a program input, an intermediate of some cut, or as -1-i the program's output i."""
        if source < 0:
            return self.program.output_tensors[-1 - source]
        return self.input_tensors[source] if source < len(self.input_tensors) else self.plans.tensors[source]

    def _graph(self, plan: Plan) -> Graph:
        """The kernel graph of a plan."""
        builder = GraphBuilder(Level.KERNEL)
        values: dict[int, Value] = {}
        for index, node in enumerate(self.program.inputs()):
            values[index] = builder.append(node)
        for stage in plan.stages:
            values.update(zip(stage.produces, self._launch(builder, stage, values), strict=True))
            values.update((read, values[output]) for output, read in self.plans.read_as.items() if output in values)
        outputs = [self._final(builder, values[-1 - index], index) for index in range(len(self.axes.outputs))]
        return builder.build(outputs)

    def _launch(self, builder: GraphBuilder, stage: Stage, values: dict[int, Value]) -> Sequence[Value]:
        if isinstance(stage.kernel, Library):
            return [self._library(builder, stage.kernel, values)]
        kernel = stage.kernel
        operands = [values[leaf.source] for leaf in kernel.sketch.leaves]
        sources = [builder.tensor(value) for value in operands]
        key = kernel, tuple(sources)
        if key not in self.bodies:
            self.bodies[key] = emit_block(kernel.sketch, kernel.schedule, kernel.sizes, sources, kernel.outputs)
        return builder.graph_defined(*read_once(self.bodies[key], operands, sources))

    def _library(self, builder: GraphBuilder, kernel: Library, values: dict[int, Value]) -> Value:
        positions = Positions(builder)
        pair = [positions.fine(values[load.source], load.slots, kernel.sizes.__getitem__) for load in (kernel.left, kernel.right)]
        left, right = positions.oriented(pair[0], pair[1], kernel.reduced)
        product = positions.contract("matmul", [(left, right)], kernel.reduced)
        return positions.coarse(product, kernel.outputs[0], kernel.sizes.__getitem__)

    def _final(self, builder: GraphBuilder, value: Value, index: int) -> Value:
        """Library kernels compute in their operands' dtype; an output has the program's."""
        dtype = self.program.output_tensors[index].dtype
        return value if builder.tensor(value).dtype is dtype else builder.add("cast", value, dtype=dtype)


@lru_cache(maxsize=256)
def _plain(structure: AxisProgram, seed: int) -> tuple[AxisProgram, int]:
    """A program without sizes and neutral maxima, and a seed from `seed` on that draws inputs where it has a value.

    Which maxima are neutral does not depend on sizes. Raises UndefinedInField where the program has no value in a few draws.
    """
    draw = telling_draw(structure, seed)
    return without_neutral_maxima(structure, NestingArithmetic(seed=draw), TinyInputs(draw)), draw


@lru_cache(maxsize=256)
def _needed(program: AxisProgram, seed: int) -> tuple[int, ...]:
    """The sources that outputs depend on: in `(x + y.sum()).softmax()` that is `x` alone."""
    context, arith, inputs = Context.of(program, None), NestingArithmetic(seed=seed), TinyInputs(seed)
    usual = inputs.evaluate(program, context, arith)

    def changes(source: int, draw: int) -> bool:
        """Whether outputs change with a source; so it counts where they have no value then."""
        other = {i: TinyInputs(draw).load(term, context, arith) for i, term in program.loads() if term.source == source}
        with suppress(UndefinedInField):
            values = inputs.evaluate(program, context, arith, other)
            return not all(values[term].agrees_with(usual[term]) for term, _ in program.outputs)
        return True

    return tuple(source for source in dict.fromkeys(term.source for _, term in program.loads()) if changes(source, seed + 1))


def left_out(program: AxisProgram, loop_axes: Sequence[int], kernels: int) -> Iterator[str]:
    """What is not searched of a program whose for-loops may cut `loop_axes`, with up to so many kernels, in words."""
    common = frozenset.intersection(*(program.terms[term].axes for term, _ in program.outputs))
    if any(size > 1 and axis not in common for axis, size in enumerate(program.sizes)):
        yield "grids that cut axes which some output lacks, but for partial results and one axis of each output together"
    if len(loop_axes) > 1:
        yield "for-loops that cut two axes at once"
    if loop_axes:
        yield "for-loops that put an operand past themselves as it was read, where no finished sum meets it"
    if _apart(program):
        yield "elementwise operators that join other axes than the program joins"
    if any(len(reduced) > 1 for reduced in program.reductions):
        yield "sums over some of the axes that the program sums over at once"
    sources = [term.source for _, term in program.loads()]
    if len(set(sources)) < len(sources):
        yield "kernels that read and compute once what the program needs along two axes at once"
    yield "kernels that compute a tensor twice, or that only tiles of one element allow"
    if kernels > 1 and program.reductions:
        yield "partial results of partial results, and of one axis more than two ways to share it out"
    if kernels > 1 and sum(bool(term.inputs) for term in program.terms) > 1:
        yield f"more than {most_stored(kernels)} tensors stored between up to {kernels} kernels, some of which make several"
    if len(program.outputs) + most_stored(kernels) > SHARED_OUT:
        yield f"some of the ways to share out more than {SHARED_OUT} stored tensors and outputs among kernels"


def _apart(program: AxisProgram) -> bool:
    """Whether two tensors of a program have axes of which neither includes the other's."""
    axes = {term.axes for term in program.terms}
    return any(not (left <= right or right <= left) for left, right in itertools.combinations(axes, 2))
