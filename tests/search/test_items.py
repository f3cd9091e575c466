"""Work items: what a context holds depends on the item alone, not on sizes, sources, or who searches it."""

from __future__ import annotations

from dataclasses import replace

from mugraph.devices import device_for
from mugraph.ir.dtypes import DType
from mugraph.search.axes import AxisProgram, axis_program
from mugraph.search.closure.tiers import Tier
from mugraph.search.engine import Search
from mugraph.search.items import NOTHING, Item, Options, canonical, reading
from mugraph.search.structures import KNOWN
from mugraph.search.work import Work

from .programs import gated_mlp, rmsnorm

CPU = device_for("cpu")


def item(program: AxisProgram, sizes: tuple[int, ...], loop_axis: int | None = None) -> Item:
    """The item of a context at some sizes."""
    form, sources = canonical(program)
    return Item(form, Tier.FULL, loop_axis, Options(), Work.of(sizes, [4] * len(sources), CPU, DType.FP32))


def renumbered(program: AxisProgram, sources: tuple[int, ...]) -> AxisProgram:
    """The program reading source `sources[i]` wherever it read i."""
    terms = (replace(t, source=sources[t.source]) if t.op == "load" else t for t in program.terms)
    return replace(program, terms=tuple(terms))


def test_sizes_and_sources_do_not_tell_items_apart() -> None:
    small, large = axis_program(rmsnorm(4, 16, 8)), axis_program(rmsnorm(400, 16, 800))
    moved = renumbered(large, (7, 3, 5))
    assert item(small, small.sizes) == item(moved, moved.sizes)
    assert item(small, small.sizes).key == item(moved, moved.sizes).key
    assert canonical(moved)[1] == (7, 3, 5)


def test_what_was_found_for_one_numbering_reads_the_sources_of_another() -> None:
    program = axis_program(gated_mlp())
    moved = renumbered(program, (4, 9, 2))
    found = reading(item(program, program.sizes).search(), canonical(moved)[1])
    assert {leaf.source for recipe in found.recipes for leaf in recipe.leaves} == {4, 9, 2}
    first = item(program, program.sizes).search().recipes[0]
    assert [leaf.source for leaf in found.recipes[0].leaves] == [(4, 9, 2)[leaf.source] for leaf in first.leaves]


def test_the_structure_is_the_same_at_any_size_and_every_time() -> None:
    program = axis_program(rmsnorm())
    few, many = (item(program, sizes, loop_axis=1).search() for sizes in ((2, 8, 4096), (4096, 8, 2)))
    assert few == many
    assert len(few.recipes) > 1


def test_an_item_that_there_was_no_time_for_is_searched_when_there_is() -> None:
    KNOWN.clear()
    late = Search(rmsnorm(), CPU, budget=0.0)
    assert late.kernels.structure(late.axes, Tier.OPAQUE_SUMS, None) == NOTHING
    assert not NOTHING.as_good_as(1.0)
    patient = Search(rmsnorm(), CPU)
    assert patient.kernels.structure(patient.axes, Tier.OPAQUE_SUMS, None).recipes
