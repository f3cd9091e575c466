"""Recipes read as programs, to be cut into several kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from mugraph.ir.axes import AxisProgram, AxisSet, Slots, Term, pruned
from mugraph.search.closure.sketch import Recipe, Step
from mugraph.search.partition.cuts import in_normal_order


@lru_cache(maxsize=1 << 12)
def as_program(recipe: Recipe, program: AxisProgram) -> AxisProgram:
    """A recipe without loop, read as a program."""
    terms: list[Term] = []
    moved: list[int] = []
    for step in recipe.steps:
        inputs = tuple(moved[i] for i in step.inputs)
        for term in _terms_of(step, inputs, terms, frozenset()):
            terms.append(term)
        moved.append(len(terms) - 1)
    outputs = tuple((moved[goal], slots) for goal, (_, slots) in zip(recipe.goals, program.outputs, strict=True))
    return in_normal_order(pruned(replace(program, terms=tuple(terms), outputs=outputs)))


def iterations_as_parts(recipe: Recipe, program: AxisProgram) -> AxisProgram | None:
    """A recipe with a loop, read as a program in which the iterations are an axis: parts that are summed last.

    The loop axis becomes (parts x rest): the new axis varies slowest, and has size 1 as yet; the rest keeps the old number.
    None where iterations are put side by side, or an operand is read whole in each of them.
    """
    axis, parts = recipe.loop_axis, frozenset({len(program.sizes)})
    if axis is None or any(axis in slot for _, slots in program.outputs for slot in slots):
        return None
    terms: list[Term] = []
    moved: list[int] = []
    looped: list[bool] = []
    """Whether each step's result differs from iteration to iteration."""
    for step in recipe.steps:
        inputs = tuple(moved[i] for i in step.inputs)
        reads = step.leaf is not None and any(axis in slot for slot in step.leaf.slots)
        looped.append(step.in_loop and (reads or any(looped[i] for i in step.inputs)))
        unchanged = step.whole or (reads and not step.in_loop) or (step.op == "accumulate" and not looped[step.inputs[0]])
        if step.op == "concat" or unchanged:
            return None
        if step.op == "carry":
            moved.append(*inputs)
            continue
        if step.op == "accumulate":
            terms.append(Term("sum", inputs, step.axes, parts))
        else:
            for term in _terms_of(step, inputs, terms, parts if looped[-1] else frozenset()):
                terms.append(term)
        if reads:
            terms[-1] = replace(terms[-1], slots=_refined(terms[-1].slots, axis, *parts))
        moved.append(len(terms) - 1)
    outputs = tuple((moved[goal], slots) for goal, (_, slots) in zip(recipe.goals, program.outputs, strict=True))
    return in_normal_order(pruned(AxisProgram(tuple(terms), outputs, (*program.sizes, 1), program.finer)))


def _refined(slots: Slots, axis: int, parts: int) -> Slots:
    """Dimensions in which an axis is (parts x rest)."""
    return tuple(tuple(a for old in slot for a in ((parts, axis) if old == axis else (old,))) for slot in slots)


def _terms_of(step: Step, inputs: tuple[int, ...], terms: Sequence[Term], more: AxisSet) -> Iterator[Term]:
    """The terms of one step, which has `more` axes than it says; `terms` are those before."""
    axes = step.axes | more
    if step.op == "concat_contract":
        for left, right in ((inputs[0], inputs[2]), (inputs[1], inputs[3])):
            yield Term("contract", (left, right), axes, step.reduced & terms[left].axes & terms[right].axes)
        yield Term("add", (len(terms) - 2, len(terms) - 1), axes)
    elif step.leaf is not None:
        yield Term("load", (), axes, source=step.leaf.source, slots=step.leaf.slots)
    else:
        yield Term(step.op, inputs, axes, step.reduced, scalar=step.scalar)
