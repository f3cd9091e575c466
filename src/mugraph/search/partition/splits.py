"""Splitting a reduced axis over the grid: partial results in one kernel, their combination in a second.

The axis becomes (parts x rest). In a derivation that reduces the rest first, the tensors whose parts are summed last are the
*partial results*: the producer computes them with the parts as a parallel axis, so that blocks of one row work side by side,
and the consumer sums over the parts (FlashDecoding, split-K). Where the partial results contain exponentials, a
common factor per row is free to choose: the producer shifts by its own row maximum and exports it, the consumer rescales.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from mugraph.algebra.fields import FieldValue, NestingArithmetic
from mugraph.errors import UndefinedInField
from mugraph.ir.axes import AxisProgram, AxisSet, Slots, Term, pruned
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.sketch import Sketch
from mugraph.search.partition.variants import iterations_as_parts


@dataclass(frozen=True, slots=True)
class Split:
    """A program in two parts.

    `producer` computes the partial results `frontier` of the `whole` program, with dimensions `partial`, and is projective if
    it exports a row maximum, on which the outputs do not depend; `consumer_of` builds the consumer once sources are
    numbered. `parts` is the axis summed last, `results` the values of the partial results at tiny sizes.
    """

    producer: AxisProgram
    whole: AxisProgram
    frontier: tuple[int, ...]
    partial: tuple[Slots, ...]
    parts: int
    results: frozenset[tuple[Slots, bytes]]

    def with_sizes(self, sizes: tuple[int, ...]) -> Split:
        """The same split of a program of other sizes."""
        return replace(self, producer=self.producer.with_sizes(sizes), whole=self.whole.with_sizes(sizes))


def with_parts(sizes: Sequence[int], axis: int, parts: int, count: int) -> tuple[int, ...]:
    """The sizes of a split program's axes with another number of `parts` of `axis`."""
    changed = list(sizes)
    changed[axis], changed[parts] = sizes[axis] * sizes[parts] // count, count
    return tuple(changed)


@lru_cache(maxsize=1 << 12)
def split_of(sketch: Sketch, structure: AxisProgram) -> Split | None:
    """The split in which the iterations of a sketch with a loop are parts, if there is one, for a program without sizes."""
    whole = iterations_as_parts(sketch, structure)
    return None if whole is None else split_at(whole, len(structure.sizes))


def splits_of(sketches: Iterable[Sketch], structure: AxisProgram) -> Iterator[Split]:
    """The splits that sketches of one program without sizes are, in the order of the sketches.

    Of those with the same partial results one is enough: both halves are searched for all their derivations.
    """
    seen: set[frozenset[tuple[Slots, bytes]]] = set()
    for split in filter(None, (split_of(sketch, structure) for sketch in sketches)):
        if split.results not in seen:
            seen.add(split.results)
            yield split


def split_at(program: AxisProgram, parts: int) -> Split | None:
    """Cut a derivation of a split program where its parts are summed last.

    None if it never works on parts alone, or has no value in the field.
    """
    last = [i for i, term in enumerate(program.terms) if parts in term.reduced]
    # by name: partial results are combined by sums; a contraction would sum products of them
    if not last or any(program.terms[i].reduced != {parts} or program.terms[i].op != "sum" for i in last):
        return None
    frontier = tuple(dict.fromkeys(program.terms[i].inputs[0] for i in last))
    after = _downstream(program, last)
    if any(i in after for i in frontier) or not all(parts in program.terms[i].axes for i in frontier):
        return None
    shared = {i for term in after for i in program.terms[term].inputs} - after - set(frontier)
    if any(program.terms[i].inputs for i in shared):
        return None
    partial = tuple(_slots(program.terms[i].axes, parts) for i in frontier)
    arith, inputs, context = NestingArithmetic(seed=0), TinyInputs(seed=0), Context.of(program, None)
    try:
        values = inputs.evaluate(program, context, arith)
    except UndefinedInField:
        return None
    results = frozenset((slots, values[i].p.tobytes()) for i, slots in zip(frontier, partial, strict=True))

    def common_factors_cancel() -> bool:
        """Whether one factor on all partial results of a row leaves the outputs as they are."""
        row = context.mask(frozenset.intersection(*(program.terms[i].axes for i in frontier)) - {parts})
        shape = tuple(size if row >> part & 1 else 1 for part, size in enumerate(context.shape))
        factor = FieldValue(arith.random(shape, np.random.default_rng(0)).p, None)
        scaled = inputs.evaluate(program, context, arith, {i: arith.mul(values[i], factor) for i in frontier})
        return all(np.array_equal(scaled[term].p, values[term].p) for term, _ in program.outputs)

    made = pruned(replace(program, outputs=tuple(zip(frontier, partial, strict=True))))
    # by name: only exponentials are shifted by a maximum
    projective = any(term.op == "exp" for term in made.terms) and common_factors_cancel()
    return Split(replace(made, projective=projective), program, frontier, partial, parts, results)


def maximum_slots(split: Split) -> Slots:
    """Dimensions of the exported row maximum: the axes that all partial results share."""
    common = frozenset.intersection(*(split.whole.terms[i].axes for i in split.frontier))
    return _slots(common, split.parts)


def _slots(axes: AxisSet, parts: int) -> Slots:
    """Dimensions of a partial result: the parts vary slowest, so that every block writes contiguous runs."""
    return ((parts,), *((axis,) for axis in sorted(axes - {parts})))


def consumer_of(split: Split, sources: tuple[int, ...]) -> AxisProgram:
    """The program that loads the partial results from `sources` (the row maximum last, if exported) and combines them."""
    terms: list[Term] = []
    moved: dict[int, int] = {}

    def push(term: Term) -> int:
        terms.append(term)
        return len(terms) - 1

    factor = None
    if split.producer.projective:
        slots = maximum_slots(split)
        axes = frozenset(axis for slot in slots for axis in slot)
        maximum = push(Term("load", (), axes, source=sources[-1], slots=slots))
        common = push(Term("max", (maximum,), axes - {split.parts}, frozenset({split.parts})))
        factor = push(Term("exp", (push(Term("sub", (maximum, common), axes)),), axes))
    for index, slots, source in zip(split.frontier, split.partial, sources, strict=False):
        axes = split.whole.terms[index].axes
        loaded = push(Term("load", (), axes, source=source, slots=slots))
        moved[index] = loaded if factor is None else push(Term("mul", (loaded, factor), axes))
    for index in _needed(split.whole, stop=set(split.frontier)):
        term = split.whole.terms[index]
        moved[index] = push(replace(term, inputs=tuple(moved[i] for i in term.inputs)))
    outputs = tuple((moved[index], slots) for index, slots in split.whole.outputs)
    return pruned(AxisProgram(tuple(terms), outputs, split.whole.sizes))


def _downstream(program: AxisProgram, roots: list[int]) -> set[int]:
    reached = set(roots)
    for index, term in enumerate(program.terms):
        if reached.intersection(term.inputs):
            reached.add(index)
    return reached


def _needed(program: AxisProgram, stop: set[int]) -> Iterator[int]:
    """Terms the outputs need, down to but without `stop`, in topological order."""
    needed: set[int] = set()
    stack = [term for term, _ in program.outputs]
    while stack:
        index = stack.pop()
        if index not in needed and index not in stop:
            needed.add(index)
            stack.extend(program.terms[index].inputs)
    return iter(sorted(needed))
