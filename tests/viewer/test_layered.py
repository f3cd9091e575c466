"""Layered drawings: nothing overlaps, arrows go down and around boxes, bands keep apart."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.results.viewer.layered import Arrow, Box, Layering, arrange

Problem = tuple[list[tuple[float, float]], list[Arrow], list[int]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Boxes of any sizes in topological order, forward edges, and nondecreasing bands."""
    count = draw(st.integers(1, 14))
    sizes = draw(st.lists(st.tuples(st.floats(20, 300), st.floats(10, 120)), min_size=count, max_size=count))
    bands = sorted(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    pairs = [(source, target) for target in range(count) for source in range(target)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * count)) if pairs else []
    ends = st.sampled_from([0.25, 0.5, 0.75])
    return sizes, [Arrow(source, target, draw(ends), draw(ends)) for source, target in chosen], bands


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share more than their sides."""
    sideways = one.left < other.right - 1e-6 and other.left < one.right - 1e-6
    return sideways and one.top < other.bottom - 1e-6 and other.top < one.bottom - 1e-6


@settings(max_examples=50, deadline=None)
@given(problems())
def test_boxes_never_overlap_and_stay_on_the_paper(problem: Problem) -> None:
    sizes, edges, bands = problem
    drawn = arrange(sizes, edges, bands)
    assert [(box.width, box.height) for box in drawn.boxes] == sizes
    for one, other in combinations(drawn.boxes, 2):
        assert not overlap(one, other)
    for box in drawn.boxes:
        assert box.left >= -1e-6
        assert box.top >= 0
        assert box.right <= drawn.width + 1e-6
        assert box.bottom <= drawn.height + 1e-6


@settings(max_examples=50, deadline=None)
@given(problems())
def test_arrows_lead_down_from_box_to_box_and_through_none(problem: Problem) -> None:
    sizes, edges, bands = problem
    drawn = arrange(sizes, edges, bands)
    for edge, route in zip(edges, drawn.routes, strict=True):
        source, target = drawn.boxes[edge.source], drawn.boxes[edge.target]
        assert route[0] == pytest.approx((source.left + edge.exit * source.width, source.bottom))
        assert route[-1] == pytest.approx((target.left + edge.entry * target.width, target.top))
        assert all(lower >= upper - 1e-6 for (_, upper), (_, lower) in pairwise(route))
        for number, (start, end) in enumerate(pairwise(route)):
            corridor = Box(min(start[0], end[0]), start[1], abs(start[0] - end[0]), end[1] - start[1])
            if number % 2 == 0:
                assert corridor.width == 0
            assert not any(overlap(corridor, box) for box in drawn.boxes if corridor.width or box not in (source, target))


@settings(max_examples=30, deadline=None)
@given(problems())
def test_bands_lie_below_each_other_and_hold_their_boxes(problem: Problem) -> None:
    sizes, edges, bands = problem
    drawn = arrange(sizes, edges, bands)
    assert set(drawn.bands) == set(bands)
    for node, band in enumerate(bands):
        for number, frame in drawn.bands.items():
            box = drawn.boxes[node]
            within = frame.top - 1e-6 <= box.top and box.bottom <= frame.bottom + 1e-6
            assert within == (number == band)


def crossings(drawn: Layering) -> int:
    """Pairs of straight lines between the ends of edges that cross."""
    lines = [(route[0][0], route[-1][0]) for route in drawn.routes]
    return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(lines, 2))


def test_layers_are_ordered_so_that_arrows_do_not_cross() -> None:
    sizes = [(50.0, 20.0)] * 6
    edges = [Arrow(0, 5), Arrow(1, 4), Arrow(2, 3)]
    assert crossings(arrange(sizes, edges)) == 0


def test_operands_arrive_from_left_to_right() -> None:
    drawn = arrange([(50.0, 20.0)] * 3, [Arrow(1, 2, 0.5, 0.25), Arrow(0, 2, 0.5, 0.75)])
    assert drawn.boxes[1].right < drawn.boxes[0].left


def test_boxes_stand_beside_what_they_lead_to() -> None:
    chain = [Arrow(0, 1), Arrow(1, 2), Arrow(2, 4), Arrow(3, 4)]
    drawn = arrange([(50.0, 20.0)] * 5, chain)
    assert drawn.boxes[3].top == drawn.boxes[2].top


def test_lone_chains_are_straight() -> None:
    drawn = arrange([(50.0, 20.0), (120.0, 20.0), (80.0, 20.0)], [Arrow(0, 1), Arrow(1, 2)])
    assert len({round(box.left + box.width / 2, 6) for box in drawn.boxes}) == 1


def test_nothing_takes_no_room() -> None:
    assert arrange([], []) == Layering((), (), {}, 0.0, 0.0)


def test_long_arrows_pass_boxes_of_any_width_in_a_straight_line() -> None:
    sizes = [(40.0, 20.0), (200.0, 20.0), (60.0, 20.0), (180.0, 20.0), (40.0, 20.0)]
    drawn = arrange(sizes, [*(Arrow(node, node + 1, 0.5, 0.75) for node in range(4)), Arrow(0, 4, 0.5, 0.25)])
    *_, long = drawn.routes
    assert len({x for x, _ in long[2:-2]}) == 1
