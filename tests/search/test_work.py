"""The order of recipes by their work at full size."""

from __future__ import annotations

import math
import random

import pytest

from mugraph.devices import device_for
from mugraph.ir.dtypes import DType
from mugraph.search.axes import axis_program
from mugraph.search.closure.recipe import Recipe, Step
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.tiers import Tier
from mugraph.search.items import Item, Options, canonical
from mugraph.search.work import Work

from .programs import rmsnorm

CPU = device_for("cpu")


def found() -> tuple[tuple[Recipe, ...], Work]:
    """The recipes of a program in one context, and the work of its operators."""
    program = axis_program(rmsnorm(64, 1024, 512))
    form, sources = canonical(program)
    work = Work.of(program.sizes, [4] * len(sources), CPU, DType.FP32)
    return Item(form, Tier.OPAQUE_SUMS, 1, Options(), work).search().recipes, work


def seconds(work: Work, recipe: Recipe) -> float:
    """The work of a recipe, step by step."""
    total = 0.0
    for step in recipe.steps:
        axes = step.axes if step.op in ("accumulate", "rescale") else step.axes | step.reduced
        each = work.per_point(step.op, None if step.leaf is None else step.leaf.source)
        total += each * math.prod(work.sizes[axis] for axis in axes)
    return total


def test_recipes_are_ordered_by_the_sum_of_their_steps() -> None:
    recipes, work = found()
    shuffled = list(recipes)
    random.Random(0).shuffle(shuffled)
    taken = [seconds(work, recipe) for recipe in work.cheapest_first(tuple(shuffled))]
    assert taken == pytest.approx(sorted(taken))
    assert len(set(taken)) > 1


def test_recipes_of_equal_work_keep_their_order_whatever_the_order_of_their_steps() -> None:
    axes = frozenset({0})
    leaf = Step("load", (), axes, False, leaf=Leaf(0, ((0,),)))
    one = Recipe((leaf, Step("exp", (0,), axes, False), Step("sqrt", (1,), axes, False)), (2,), None)
    other = Recipe((leaf, Step("sqrt", (0,), axes, False), Step("exp", (1,), axes, False)), (2,), None)
    work = Work.of((48,), (4,), CPU, DType.FP32)
    assert work.cheapest_first((one, other)) == [one, other]
    assert work.cheapest_first((other, one)) == [other, one]
