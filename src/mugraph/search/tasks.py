"""Work items of the search: one context of one program in one tier, and what it holds.

An item says everything its result depends on, so it may be searched in any process, on any machine, as often as one likes,
and the search of a whole program is the same however its items are spread (`mugraph.search.executors`).
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mugraph.algebra import ExpressionTooLarge
from mugraph.algebra.fields import NestingArithmetic
from mugraph.errors import UndefinedInField
from mugraph.ir.axes import AxisProgram
from mugraph.search.closure.context import Context, TinyInputs, maxima_of_two, telling_draw
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.loop_insertion import loops_to_some_end, with_loop, worthwhile
from mugraph.search.closure.min_operators import deepened
from mugraph.search.closure.safe_softmax import Stabilizer, exponentials
from mugraph.search.closure.saturation import Closure, Leaf, Limits, Saturation, Transcription
from mugraph.search.closure.sketch import Sketch, SketchTuple, Step
from mugraph.search.closure.tiers import Expressions, Tier
from mugraph.search.structures import FoundStructure, Key, Recent, as_long
from mugraph.search.work_model import WorkModel

_MOST_AS_WRITTEN = 200
"""Block operators of the program's own derivation, where no other is known; longer ones are cut into several kernels."""


CANDIDATES = 16
"""As many as are compiled and measured (`mugraph.selection.qualification`)."""

ANY_GAIN = 1.0
"""The gain that a search ends without whatever it has found."""


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of a search (paper, section 8: 5 kernel and 11 block operators).

    Each context is enumerated up to `block_operators`, to one more than the smallest graph of the program has, or to its own
    smallest graph, whichever is largest, but not beyond `most_block_operators`. If that is no more than `block_operators`, no
    kernel has more, and no tensor is looked at for which there is no room. Limits of time hold where no budget was given,
    `closure_seconds` always; what they cut short is reported and not kept, so that they do not tell options apart.
    """

    max_kernels: int = 5
    block_operators: int = 11
    most_block_operators: int = 24
    max_nodes: int = 20_000
    """Of one closure of the coarsest tier."""
    max_finer_nodes: int = 5_000
    """Of one closure of a finer tier, where sums multiply; larger ones are bounded by operators instead."""
    max_derivations: int = 6000
    """Of one context and number of operators. If there are more, the cheapest are listed, and the report says so."""
    cheapest_derivations: int = 1000
    scheduled_sketches: int = 24
    schedules_per_sketch: int = 4
    seed: int = 0
    candidates: int = field(default=CANDIDATES, compare=False)
    """As many as are proposed."""
    closure_seconds: float = field(default=4.0, compare=False)
    """Of one context."""
    cut_seconds: float = field(default=10.0, compare=False)
    """From the start of the search to the last cut into several kernels that is tried."""
    finer_tier_seconds: float = field(default=8.0, compare=False)
    """Of each tier beyond the coarsest."""
    least_gain: float = field(default=0.0, compare=False)
    """Part of the best prediction. Where no muGraph can win as much, whatever the algebra, finer tiers are left out."""
    enough: int | None = field(default=None, compare=False)
    """Plans that keep the range of numbers with which a search ends that settled; None to look at all of the coarsest tier."""

    @property
    def limited(self) -> bool:
        """Whether no kernel may have more block operators than those asked for."""
        return self.most_block_operators <= self.block_operators


@dataclass(frozen=True, slots=True)
class Item:
    """One context: a program in canonical form (`canonical`), the tier, the axis the for-loop cuts, and the limits.

    A complete structure depends on these alone. Where a limit cuts the list of derivations short, `work` decides
    which of them are listed first.
    """

    program: AxisProgram
    tier: Tier
    loop_axis: int | None
    options: Options
    work: WorkModel = field(compare=False)
    seconds: float = field(default=math.inf, compare=False)
    """The closure is left unsaturated after this time, and loops in the program's own derivation are looked for as long."""

    @property
    def key(self) -> Key:
        """What a complete structure is known by."""
        return self.program, self.tier, self.loop_axis, self.options

    @property
    def where(self) -> str:
        """The item in words."""
        loop = "no loop" if self.loop_axis is None else f"loop over an axis of {self.work.sizes[self.loop_axis]}"
        return f"{self.tier.value}, {loop}"

    @property
    def nothing(self) -> FoundStructure:
        """What is known where the search did not end in time."""
        return NOTHING

    def search(self, deadline: float = math.inf, tick: Callable[[int], None] = lambda states: None) -> FoundStructure:
        """Everything the context holds within the limits, or what was found of it by `deadline` (of `time.perf_counter`).

        That is nothing where expressions are nested too deeply, or the program has no value in the field.
        """
        try:
            return self._searched(deadline, tick)
        except (RecursionError, UndefinedInField):
            return NOTHING

    def _searched(self, deadline: float, tick: Callable[[int], None]) -> FoundStructure:
        started = time.perf_counter()
        seed = self.options.seed if not any(maxima_of_two(self.program)) else telling_draw(self.program, self.options.seed)
        arith, inputs = NestingArithmetic(seed=seed), TinyInputs(seed)
        loopless = self._loopless(arith, inputs, min(self.seconds, deadline - started), tick)
        closure = self._in_context(loopless.closure)
        found, operators = self._extract(loopless, closure, deadline, self.options.most_block_operators)
        late = False
        if not found and self.tier is Tier.OPAQUE_SUMS and self._out_of_reach(loopless):
            until = deadline if self.loop_axis is None else min(deadline, time.perf_counter() + self.seconds)
            found = self._as_written(loopless, arith, inputs, until)
            late = time.perf_counter() > until
        safe = found
        # by name: only exponentials overflow where no maximum was subtracted
        if any(step.op == "exp" for sketch in found for step in sketch.steps):
            safe = self._safe(found, Stabilizer(self.program, closure.context, arith, inputs), deadline)
        timed_out = loopless.timed_out or late or time.perf_counter() > deadline
        return FoundStructure(
            sketches=SketchTuple(sorted(found, key=_in_canonical_order)),
            safe_sketches=SketchTuple(sorted(safe, key=_in_canonical_order)),
            states=len(closure.nodes),
            edges=closure.edge_count,
            saturated=loopless.bound >= self.options.block_operators,
            complete=operators >= self.options.block_operators,
            operators=operators,
            pruned=tuple(sorted(closure.pruned.items())),
            seconds=time.perf_counter() - started,
            given=min(self.seconds, deadline - started) if timed_out else 0.0,
            timed_out=timed_out,
        )

    def _in_context(self, loopless: Closure) -> Closure:
        """The closure of this item's loop axis, if there is one; where outputs were not reached, nothing is put into the loop."""
        if self.loop_axis is None:
            return loopless
        if not all(loopless.goals):
            return Closure(self.program, Context.of(self.program, self.loop_axis), self.tier, goals=loopless.goals)
        return with_loop(loopless, self.loop_axis, worthwhile(self.program, self.loop_axis))

    def _out_of_reach(self, loopless: _Loopless) -> bool:
        """Whether the outputs may have been missed: the closure was cut short, or all derivations are too long to be listed."""
        most = self.options.most_block_operators
        return loopless.bound < most or Extractor(loopless.closure, lambda edge: 1.0).fewest_operators(most) > most

    def _as_written(self, reached: _Loopless, arith: NestingArithmetic, inputs: TinyInputs, deadline: float) -> list[Sketch]:
        """The program's own derivation, unless it is too long for any kernel, and a loop wherever one may stand in it."""
        own = Closure(self.program, reached.closure.context, self.tier)
        own.expressions = reached.closure.expressions
        Transcription(own, arith, inputs, Limits()).run()
        closure = self._in_context(own)
        most = self.options.most_block_operators if self.options.limited else min(_MOST_AS_WRITTEN, len(closure.nodes))
        found, _ = self._extract(replace(reached, closure=own), closure, deadline, most)
        return found

    def _safe(self, found: list[Sketch], stabilizer: Stabilizer, deadline: float) -> list[Sketch]:
        """The derivations with safe exponentials, or all if none is; those that were reached by the deadline."""
        shift = stabilizer.export if self.program.projective else stabilizer.stabilize
        in_time = itertools.takewhile(lambda _: time.perf_counter() < deadline, found[1:])
        made = list(dict.fromkeys(filter(None, map(shift, itertools.chain(found[:1], in_time)))))
        return [sketch for sketch in made if not exponentials(sketch)] or made

    def _loopless(self, arith: NestingArithmetic, inputs: TinyInputs, seconds: float, tick: Callable[[int], None]) -> _Loopless:
        """The tensors of graphs without loop that are reached in so many seconds; the same for every loop axis."""
        key = (self.program, self.tier, self.options)
        known = _LOOPLESS.get(key)
        if known is None or not known.as_good_as(seconds):
            deadline = time.perf_counter() + seconds
            closure, bound = self._closure(arith, inputs, deadline, tick)
            late = time.perf_counter() > deadline
            known = _Loopless(closure, bound, seconds, timed_out=late and bound < self.options.block_operators)
            _LOOPLESS.put(key, known)
        return known

    def _closure(
        self, arith: NestingArithmetic, inputs: TinyInputs, deadline: float, tick: Callable[[int], None]
    ) -> tuple[Closure, int]:
        """What `_loopless` says, computed, and for how many operators its tensors are all there.

        What is too large to be saturated is bounded by the operators asked for, or more where that costs little; derivations
        beyond them are read off what was saturated before. Where the program's own expressions are too large for a tier, or
        nested too deeply, nothing is reached.
        """
        whole = Closure(self.program, Context.of(self.program, None), self.tier)
        nodes = self.options.max_nodes if self.tier is Tier.OPAQUE_SUMS else self.options.max_finer_nodes
        try:
            whole.expressions = Expressions(self.program, self.tier, whole.context, deadline)
            Saturation(whole, arith, inputs, Limits(0 if self.options.limited else nodes, deadline), tick).run()
        except (ExpressionTooLarge, RecursionError):
            whole.goals = [[] for _ in self.program.outputs]
            return whole, 0
        if whole.saturated:
            return whole, self.options.most_block_operators
        limits = Limits(self.options.max_nodes, deadline)
        try:
            most = 0 if self.options.limited else self.options.most_block_operators
            bounded, bound = deepened(whole, arith, inputs, limits, self.options.block_operators, tick, most)
        except RecursionError:  # landmarks follow how expressions are nested
            return whole, 0
        return (bounded if all(bounded.goals) or self.options.limited else whole), bound

    def _extract(self, loopless: _Loopless, closure: Closure, deadline: float, most: int) -> tuple[list[Sketch], int]:
        """The derivations of all goals up to the limit of operators, or if that is larger those of the smallest size there is,
        which is at most `most`; how far they are complete.

        Beyond the operators asked for, loops cut every operand that has their axis, if outputs can be computed that way.
        """
        bound = loopless.bound
        if not all(closure.goals):
            return [], bound
        smallest = Extractor(loopless.closure, lambda edge: 1.0).fewest_operators(most)
        limit = min(max(self.options.block_operators, smallest + 1), most)
        extractor = Extractor(closure, lambda edge: self.work.of_edge(closure, edge))
        found: list[Sketch] = []
        listed = 0
        for operators in range(limit, most + 1):
            count = extractor.count(operators, self.options.max_derivations, deadline)
            if count > listed:  # or else they are those that were listed before
                limits = self._limits(operators, count, deadline)
                found, listed = _derivations(extractor, limits), count
                if not limits.complete:
                    return found, min(bound, operators - 1)
            if found:
                break
        return found, min(bound, operators)

    def _limits(self, operators: int, count: int, deadline: float) -> ExtractionLimits:
        """All of `count` derivations, or if these are too many to be listed the cheapest."""
        if count <= self.options.max_derivations:
            return ExtractionLimits(operators, self.options.max_derivations, expansions=sys.maxsize, deadline=deadline)
        return ExtractionLimits(operators, self.options.cheapest_derivations, deadline=deadline)


@dataclass(frozen=True, slots=True)
class _Loopless:
    """A closure without loop, for how many operators its tensors are all there, the seconds it was given, and whether it was cut
    short by them."""

    closure: Closure
    bound: int
    given: float
    timed_out: bool

    def as_good_as(self, seconds: float) -> bool:
        """Whether so many seconds would reach no more."""
        return not self.timed_out or as_long(self.given, seconds)


_LOOPLESS: Recent[tuple[AxisProgram, Tier, Options], _Loopless] = Recent(capacity=8)
"""The closures that loops were last put into: the contexts of one program and tier are searched one after the other."""

NOTHING = FoundStructure(
    SketchTuple(), SketchTuple(), states=0, edges=0, saturated=False, complete=False, operators=0, timed_out=True
)
"""What is known of an item whose search did not end in time."""


@lru_cache(maxsize=4096)
def canonical(program: AxisProgram) -> tuple[AxisProgram, tuple[int, ...]]:
    """The program without sizes and with sources numbered in the order they are loaded, and the sources of these numbers.

    Parts of programs read intermediate tensors, which are numbered as the search meets them: what a part holds does not
    depend on that.
    """
    sources = tuple(dict.fromkeys(term.source for _, term in program.loads()))
    number = {source: position for position, source in enumerate(sources)}
    terms = tuple(replace(t, source=number[t.source]) if t.op == "load" else t for t in program.terms)
    return replace(program.structure, terms=terms), sources


@lru_cache(maxsize=4096)
def reading(structure: FoundStructure, sources: tuple[int, ...]) -> FoundStructure:
    """The structure of a canonical program with its loads reading `sources` instead of 0, 1, ..."""
    if sources == tuple(range(len(sources))):
        return structure
    loads: dict[Step, Step] = {}

    def step_reading(step: Step) -> Step:
        if step.leaf is None:
            return step
        if step not in loads:
            loads[step] = replace(step, leaf=replace(step.leaf, source=sources[step.leaf.source]))
        return loads[step]

    def all_reading(sketches: SketchTuple) -> SketchTuple:
        return SketchTuple(Sketch(tuple(map(step_reading, sketch.steps)), sketch.goals, sketch.loop_axis) for sketch in sketches)

    return replace(structure, sketches=all_reading(structure.sketches), safe_sketches=all_reading(structure.safe_sketches))


def _derivations(extractor: Extractor, limits: ExtractionLimits) -> list[Sketch]:
    found = (sketch for goals in extractor.goals() for _, sketch in extractor.derivations(goals, limits))
    return list(dict.fromkeys(filter(loops_to_some_end, found)))


def _in_canonical_order(sketch: Sketch) -> tuple[object, ...]:
    """A key for an order of sketches that depends on neither sizes nor the device."""
    return tuple(map(_step_key, sketch.steps))


@lru_cache(maxsize=1 << 16)
def _step_key(step: Step) -> tuple[object, ...]:
    return step.op, step.inputs, sorted(step.axes), sorted(step.reduced), str(step.scalar), _leaf_key(step.leaf), step.whole


def _leaf_key(leaf: Leaf | None) -> tuple[object, ...]:
    return () if leaf is None else (leaf.source, leaf.slots)
