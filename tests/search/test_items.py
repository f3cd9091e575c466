"""Work items: what a context holds depends on the item alone, not on sizes, sources, or who searches it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.devices import device_for
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.dtypes import DType
from mugraph.ir.program import Program
from mugraph.search import tasks
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.structures import KNOWN
from mugraph.search.tasks import NOTHING, Item, Options, canonical, reading
from mugraph.search.work_model import WorkModel

from .programs import finished, gated_mlp, rmsnorm

CPU = device_for("cpu")


def item(program: AxisProgram, sizes: tuple[int, ...], loop_axis: int | None = None) -> Item:
    """The item of a context at some sizes."""
    form, sources = canonical(program)
    return Item(form, Tier.FULL, loop_axis, Options(), WorkModel.of(sizes, [4] * len(sources), CPU, DType.FP32))


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
    assert {leaf.source for sketch in found.sketches for leaf in sketch.leaves} == {4, 9, 2}
    first = item(program, program.sizes).search().sketches[0]
    assert [leaf.source for leaf in found.sketches[0].leaves] == [(4, 9, 2)[leaf.source] for leaf in first.leaves]


def test_the_structure_is_the_same_at_any_size_and_every_time() -> None:
    program = axis_program(rmsnorm())
    few, many = (item(program, sizes, loop_axis=1).search() for sizes in ((2, 8, 4096), (4096, 8, 2)))
    assert few == many
    assert len(few.sketches) > 1


def test_where_not_all_derivations_can_be_listed_the_cheapest_are() -> None:
    program = axis_program(rmsnorm())
    everything = item(program, program.sizes).search()
    few = replace(
        item(program, program.sizes), options=Options(max_derivations=len(everything.sketches) - 1, cheapest_derivations=2)
    )
    some = few.search()
    assert everything.complete
    assert not some.complete
    assert some.operators == everything.operators - 1
    cheapest = few.work.cheapest_first(everything.sketches)[0]
    assert len(some.sketches) == 2
    assert few.work.cheapest_first(some.sketches)[0] == cheapest


def test_derivations_are_listed_again_only_where_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tasks._derivations
    counts: list[int] = []

    def counted(extractor: Extractor, limits: ExtractionLimits) -> list[Sketch]:
        counts.append(extractor.count(limits.operators, 1 << 30))
        return listed(extractor, limits)

    monkeypatch.setattr(tasks, "_derivations", counted)
    p = Program()
    x = p.input("x", (8, 64))
    shifted = x - x.amax(-1, keepdim=True)
    program = axis_program(finished(p, shifted - shifted.exp().sum(-1, keepdim=True).apply("log")))
    found = item(program, program.sizes, loop_axis=1).search()
    assert found.complete
    assert not found.sketches
    assert found.operators == Options().most_block_operators
    assert counts
    assert sorted(set(counts)) == counts


def test_a_program_whose_smallest_graph_is_larger_than_asked_for_is_listed_to_one_operator_more() -> None:
    program = axis_program(rmsnorm())
    everything = item(program, program.sizes).search()
    asked = replace(item(program, program.sizes), options=Options(block_operators=4)).search()
    least = min(sketch.operators for sketch in asked.sketches)
    assert asked.complete
    assert asked.operators == least + 1 > 5
    assert set(asked.sketches) == {sketch for sketch in everything.sketches if sketch.operators <= least + 1}


def test_an_item_that_there_was_no_time_for_is_searched_when_there_is() -> None:
    KNOWN.clear()
    late = Search(rmsnorm(), CPU, budget=0.0)
    assert late.kernels.structure(late.axes, Tier.OPAQUE_SUMS, None) == NOTHING
    assert not NOTHING.as_good_as(1.0)
    patient = Search(rmsnorm(), CPU)
    assert patient.kernels.structure(patient.axes, Tier.OPAQUE_SUMS, None).sketches
