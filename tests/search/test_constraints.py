"""The space that is asked for: what it holds, that every engine keeps to it, and that nothing else is lost."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mugraph import Program, SearchSpace
from mugraph.devices import device_for
from mugraph.errors import InvalidInput
from mugraph.ir.graph import Graph
from mugraph.ir.text import parse_graph
from mugraph.search import search
from mugraph.search.algorithm1 import EnumerationOptions, enumerate_graphs
from mugraph.search.constraints import Frame

CPU, H100 = device_for("cpu"), device_for("cuda:sm_90")


def rmsnorm(rows: int = 16, hidden: int = 64, columns: int = 128) -> Graph:
    p = Program()
    x, g, w = p.input("x", (rows, hidden)), p.input("g", (hidden,)), p.input("w", (hidden, columns))
    p.output(x / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt() * g @ w)
    return p.graph


def attention() -> Graph:
    p = Program()
    q, k, v = (p.input(name, (2, rows, 16)) for name, rows in (("q", 4), ("k", 512), ("v", 512)))
    p.output((q @ k.transpose(-2, -1)).softmax(-1) @ v)
    return p.graph


def chain() -> Graph:
    p = Program()
    a, b, c = (p.input(name, (256, 256)) for name in "abc")
    p.output(((a @ b) @ c).silu())
    return p.graph


SPACES = [
    SearchSpace(grids=[8]),
    SearchSpace(grids=[(4, 2), 16], loops=[1, 4]),
    SearchSpace(loops=[2]),
    SearchSpace(kernels=1),
    SearchSpace(kernels=2, grids=[8], loops=[1, 2]),
    SearchSpace(block_operators=9),
    SearchSpace(kernels=1, block_operators=11, grids=[4, 8, 16]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("program", [rmsnorm, attention, chain], ids=lambda each: each.__name__)
def test_every_candidate_lies_in_the_space(program: Any, space: SearchSpace) -> None:
    found = search(program(), H100, space=space).candidates
    assert all(space.holds(candidate.graph) for candidate in found)
    for graph in (candidate.graph for candidate in found):
        bodies = [node.body for node in graph.kernels() if node.body is not None]
        assert len(graph.kernels()) <= (space.kernels or 5)
        assert all(body.operator_count() <= (space.block_operators or 24) for body in bodies)
        assert all(space.loops is None or body.loop in space.loops for body in bodies)
        assert all(space.allowed_grids is None or body.grid in space.allowed_grids for body in bodies)


@pytest.mark.parametrize("program", [rmsnorm, attention], ids=lambda each: each.__name__)
def test_the_best_of_all_is_found_in_a_space_that_is_just_large_enough(program: Any) -> None:
    best = search(program(), H100).candidates[0]
    bodies = [node.body for node in best.graph.kernels() if node.body is not None]
    space = SearchSpace(
        kernels=len(best.graph.kernels()),
        block_operators=max(body.operator_count() for body in bodies),
        grids=[body.grid for body in bodies],
        loops=[body.loop for body in bodies],
    )
    assert search(program(), H100, space=space).candidates[0].cost == best.cost


def test_a_space_costs_no_more_than_what_it_leaves_out() -> None:
    """Every schedule that the search without limits lists for this grid and loop is found with them, at the same cost."""
    everything = {c.graph: c.cost for c in search(rmsnorm(), CPU).candidates}
    (grid, loop) = next((n.body.grid, n.body.loop) for graph in everything for n in graph.kernels() if n.body is not None)
    space = SearchSpace(kernels=1, grids=[grid], loops=[loop])
    limited = {c.graph: c.cost for c in search(rmsnorm(), CPU, space=space).candidates}
    for graph, cost in everything.items():
        if space.holds(graph):
            assert cost >= min(limited.values())


MAPS = [
    {"x": "x<->phi, i<->1", "return": "x<->1"},
    {"x": "x<->0", "w": "x<->phi"},
    {"w": "{x<->1, y<->phi}", "x": "y<->0"},
    {"x": "x<->phi, y<->0"},
    {"g": "i<->phi", "x": "i<->phi", "w": "i<->phi"},
    {"x": "i<->1"},
]


@pytest.mark.parametrize("maps", MAPS, ids=str)
@pytest.mark.parametrize("grids", [None, [(2, 8)], [(8, 2), 8]], ids=str)
def test_tensors_are_cut_as_asked(maps: dict[str, str], grids: Any) -> None:
    space = SearchSpace(kernels=1, maps=maps, grids=grids)
    found = [candidate.graph for candidate in search(rmsnorm(), CPU, space=space).candidates]
    assert found
    assert all(space.holds(graph) for graph in found)
    for name, wanted in maps.items():
        for label, dim in re.findall(r"(\w)<->(\w+)", wanted):
            for line in (line for graph in found for line in str(graph).splitlines()):
                reads = "output_saver" in line if name == "return" else f"input_iterator({name})" in line
                if reads and f"{label}<->" in line and "thread" not in line:
                    assert f"{label}<->{dim}" in line


@pytest.mark.parametrize(
    "space",
    [
        SearchSpace(kernels=1, maps={"k": "x<->0, y<->phi, i<->1", "v": "i<->1"}),
        SearchSpace(kernels=2, maps={"k": "x<->1, y<->0", "q": "y<->0"}),
        SearchSpace(kernels=2, grids=[(2, 8), (8, 2)], maps={"return": "x<->0"}),
    ],
    ids=str,
)
def test_parts_of_attention_are_cut_as_asked(space: SearchSpace) -> None:
    found = [candidate.graph for candidate in search(attention(), H100, space=space).candidates]
    assert found
    assert all(space.holds(graph) for graph in found)


def test_a_grid_is_given_in_the_order_of_its_dimensions() -> None:
    for grid in ((2, 8), (8, 2)):
        (kernel,) = search(rmsnorm(), CPU, space=SearchSpace(kernels=1, grids=[grid])).candidates[0].graph.kernels()
        assert kernel.body is not None
        assert kernel.body.grid == grid


@pytest.mark.parametrize(
    "space",
    [
        SearchSpace(grids=[2], loops=[1, 2], block_operators=7),
        SearchSpace(grids=[2], loops=[2], block_operators=7, maps={"x": "x<->0, i<->phi"}),
        SearchSpace(grids=[2], loops=[1], block_operators=5),
    ],
    ids=str,
)
def test_algorithm_1_keeps_to_the_space_and_finds_in_it_what_it_finds_without(space: SearchSpace) -> None:
    p = Program()
    x, w = p.input("x", (4, 4)), p.input("w", (4, 6))
    p.output(x / x.sum(-1, keepdim=True) @ w)
    assert space.block_operators is not None
    wide = EnumerationOptions(max_block_operators=space.block_operators, grids=((2,),), loops=(1, 2))
    everything = enumerate_graphs(p.graph, CPU, wide)
    limited = enumerate_graphs(p.graph, CPU, EnumerationOptions().within(space))
    assert everything.report.exhausted
    assert limited.report.exhausted
    assert {c.graph for c in limited.candidates} == {c.graph for c in everything.candidates if space.holds(c.graph)}
    assert limited.report.states <= everything.report.states


def test_what_a_space_holds_is_read_off_whole_graphs() -> None:
    graph = parse_graph("""
        kernel_graph {
          x: fp32[8, 16] = input
          %y: fp32[8, 16] = block_graph(x) grid(x=4, y=1) loop(i=2) {
            | %x: fp32[2, 8] = input_iterator(x) {x<->0, y<->phi, i<->1}
            | %e: fp32[2, 8] = silu(%x)
              %a: fp32[2, 16] = accumulate(%e) combine=concat dim=1
              %s: fp32[8, 16] = output_saver(%a) {x<->0, y<->1}
            return %s
          }
          return %y
        }""")
    inside: list[dict[str, Any]] = [
        {}, {"kernels": 1}, {"block_operators": 3}, {"grids": [4]}, {"grids": [(4, 1)]}, {"loops": [2, 4]},
        {"maps": {"x": "x<->0, i<->1"}}, {"maps": {"x": "z<->1"}}, {"maps": {"return": "x<->0"}},
    ]  # fmt: skip
    outside: list[dict[str, Any]] = [
        {"block_operators": 2}, {"grids": [(2, 2)]}, {"grids": [1]}, {"loops": [1]},
        {"maps": {"x": "x<->1"}}, {"maps": {"x": "i<->phi"}}, {"maps": {"return": "x<->1"}},
    ]  # fmt: skip
    assert all(SearchSpace(**limits).holds(graph) for limits in inside)
    assert not any(SearchSpace(**limits).holds(graph) for limits in outside)


def test_a_frame_arranges_axes_as_the_maps_name_them() -> None:
    frame = Frame(grids=((2, 4),), tensors=((((7,), (9,)), (("x", 1),)),))
    assert frame.arranged((((7,), 4), ((9,), 2))) == (((9,), 2), ((7,), 4))
    assert frame.arranged((((7,), 2), ((9,), 4))) is None
    assert frame.arranged((((7, 8), 4), ((6, 9), 2))) == (((6, 9), 2), ((7, 8), 4))  # cut together with axes of other tensors
    assert Frame().arranged((((7,), 2),)) == (((7,), 2),)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"kernels": 0}, "kernels is a number of at least 1"),
        ({"block_operators": True}, "block_operators is a number of at least 1"),
        ({"grids": []}, "grids is empty"),
        ({"grids": 128}, "grids is a list, not 128"),
        ({"grids": [(1, 128)]}, "grid (1, 128): blocks along each dimension"),
        ({"grids": [(2, 2, 2, 2)]}, "grid 2x2x2x2: a grid has at most 3 dimensions and 65536 blocks"),
        ({"grids": [1 << 17]}, "grid 131072: a grid has at most 3 dimensions"),
        ({"loops": [0]}, "for-loop 0: a for-loop has 1 iteration"),
        ({"grids": [7]}, "grid 7: no dimension of the program (x [16, 64], g [64], w [64, 128], output [16, 128]) has 7"),
        ({"loops": [3]}, "for-loop 3: no dimension of the program"),
        ({"maps": {"y": "x<->1"}}, "the program has no input 'y'; it reads x, g, w"),
        ({"maps": {"g": "x<->1"}}, "g {x<->1} cuts a dimension that g, of 1, does not have"),
        ({"maps": {"x": "x->1"}}, "maps: x is given 'x->1'; write"),
        ({"maps": {"return": "x<->phi"}}, "maps: return is given 'x<->phi'; write"),
    ],
)
def test_limits_that_mean_nothing_are_named(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{re.escape(words)}|: {re.escape(words)}") as caught:
        search(rmsnorm(), H100, space=SearchSpace(**limits))
    assert "\n" not in str(caught.value)


def test_a_space_says_what_it_is() -> None:
    space = SearchSpace(kernels=1, block_operators=9, grids=[(8, 16), 1], loops=[1, 4], maps={"x": "x<->phi"})
    assert str(space) == "at most 1 kernel; at most 9 block operators; grids 8x16, 1; for-loops 1, 4; x {x<->phi}"
    assert not SearchSpace()
    assert [name for name, _ in space.relaxations()] == ["kernels", "block_operators", "grids", "loops", "maps"]


@pytest.mark.parametrize("program", [rmsnorm, attention, chain], ids=lambda each: each.__name__)
def test_the_space_around_a_mugraph_holds_it_and_is_searched_to_it(program: Any) -> None:
    for candidate in search(program(), H100).candidates[:4]:
        space = SearchSpace.of(candidate.graph)
        assert space.holds(candidate.graph)
        assert search(program(), H100, space=space).candidates[0].cost <= candidate.cost
