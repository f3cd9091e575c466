"""The order of sketches by their work at full size."""

from __future__ import annotations

import math
import random

import pytest

from mugraph.devices import device_for
from mugraph.ir.axes import axis_program
from mugraph.ir.dtypes import DType
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Sketch, Step
from mugraph.search.closure.tiers import Tier
from mugraph.search.tasks import Item, Options, canonical
from mugraph.search.work_model import WorkModel

from .programs import rmsnorm

CPU = device_for("cpu")


def found() -> tuple[tuple[Sketch, ...], WorkModel]:
    """The sketches of a program in one context, and the work of its operators."""
    program = axis_program(rmsnorm(64, 1024, 512))
    form, sources = canonical(program)
    work = WorkModel.of(program.sizes, [4] * len(sources), CPU, DType.FP32)
    return Item(form, Tier.OPAQUE_SUMS, 1, Options(), work).search().sketches, work


def seconds(work: WorkModel, sketch: Sketch) -> float:
    """The work of a sketch, step by step."""
    total = 0.0
    for step in sketch.steps:
        axes = step.axes if step.op in ("accumulate", "rescale") else step.axes | step.reduced
        each = work.per_point(step.op, None if step.leaf is None else step.leaf.source)
        total += each * math.prod(work.sizes[axis] for axis in axes)
    return total


def test_sketches_are_ordered_by_the_sum_of_their_steps() -> None:
    sketches, work = found()
    shuffled = list(sketches)
    random.Random(0).shuffle(shuffled)
    taken = [seconds(work, sketch) for sketch in work.cheapest_first(tuple(shuffled))]
    assert taken == pytest.approx(sorted(taken))
    assert len(set(taken)) > 1


def test_sketches_of_equal_work_keep_their_order_whatever_the_order_of_their_steps() -> None:
    axes = frozenset({0})
    leaf = Step("load", (), axes, False, leaf=Leaf(0, ((0,),)))
    one = Sketch((leaf, Step("exp", (0,), axes, False), Step("sqrt", (1,), axes, False)), (2,), None)
    other = Sketch((leaf, Step("sqrt", (0,), axes, False), Step("exp", (1,), axes, False)), (2,), None)
    work = WorkModel.of((48,), (4,), CPU, DType.FP32)
    assert work.cheapest_first((one, other)) == [one, other]
    assert work.cheapest_first((other, one)) == [other, one]


M, N, D, R = range(4)
"""Axes of the products below: rows, columns, and what is summed over."""


def load(source: int, *axes: int) -> Step:
    return Step("load", (), frozenset(axes), False, leaf=Leaf(source, tuple((axis,) for axis in axes)))


def test_a_product_of_concatenations_works_as_much_as_its_two_products() -> None:
    operands = (load(0, M, D), load(1, M, R), load(2, D, N), load(3, R, N))
    result, inner, narrow = frozenset({M, N}), frozenset({D}), frozenset({R})
    joined = Sketch((*operands, Step("concat_contract", (0, 1, 2, 3), result, False, inner | narrow)), (4,), None)
    products = (Step("contract", (0, 2), result, False, inner), Step("contract", (1, 3), result, False, narrow))
    added = Sketch((*operands, *products, Step("add", (4, 5), result, False)), (6,), None)
    work = WorkModel.of((16, 256, 4096, 16), (4,) * 4, CPU, DType.FP32)
    assert work.cheapest_first((added, joined)) == [joined, added]


def test_adding_factors_first_is_less_work_than_a_product_of_their_concatenation() -> None:
    operands = (load(0, M, D), load(1, M, D), load(2, D, N))
    result, inner = frozenset({M, N}), frozenset({D})
    joined = Sketch((*operands, Step("concat_contract", (0, 1, 2, 2), result, False, inner)), (3,), None)
    added = (Step("add", (0, 1), frozenset({M, D}), False), Step("contract", (3, 2), result, False, inner))
    work = WorkModel.of((128, 128, 64), (4,) * 3, CPU, DType.FP32)
    first = Sketch((*operands, *added), (4,), None)
    assert work.cheapest_first((joined, first)) == [first, joined]
