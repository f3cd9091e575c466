"""Items the executors are tried with, and what they hold."""

from __future__ import annotations

import math
from functools import cache

from mugraph.algebra.fields import FieldArithmetic
from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.axes import axis_program
from mugraph.ir.dtypes import DType
from mugraph.search.closure.context import TinyInputs
from mugraph.search.closure.safe_softmax import without_neutral_maxima
from mugraph.search.closure.tiers import Tier
from mugraph.search.structures import FoundStructure
from mugraph.search.tasks import Item, Options, canonical
from mugraph.search.work_model import WorkModel

from ..programs import attention

PATIENT = Options(closure_seconds=math.inf, cut_seconds=math.inf, finer_tier_seconds=math.inf)
"""No limits of time, so that results do not depend on what else the machine does."""


def items_of(program: Graph, tier: Tier) -> list[Item]:
    """One item for every context of a program."""
    axes = without_neutral_maxima(axis_program(program), FieldArithmetic(seed=0), TinyInputs(0))
    form, sources = canonical(axes)
    work = WorkModel.of(axes.sizes, [4] * len(sources), device_for("cpu"), DType.FP32)
    return [Item(form, tier, loop, Options(), work) for loop in (None, *range(len(axes.sizes)))]


@cache
def attention_items() -> tuple[tuple[Item, FoundStructure], ...]:
    """Some items of normalised attention, which take more than a second each, with what they hold."""
    return tuple((item, item.search()) for item in items_of(attention(normalize=True), Tier.FULL)[:3])
