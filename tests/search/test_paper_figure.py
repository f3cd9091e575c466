"""Algorithm 1 finds the muGraph of the paper's figure 5b, with the constants of the mean and the epsilon."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import pytest

from mugraph.devices import device_for
from mugraph.ir import DType, Graph
from mugraph.ir.program import Program
from mugraph.ir.text import parse_graph
from mugraph.lower.thread_graphs import construct
from mugraph.search import SearchSpace
from mugraph.search.algorithm1 import EnumerationOptions, enumerate_graphs
from mugraph.testing.containment import way

FIGURE = Path(__file__).parents[2] / "examples" / "paper" / "rmsnorm.mugraph"


def rmsnorm(rows: int, hidden: int, columns: int) -> Graph:
    p = Program()
    shapes = {"x": (rows, hidden), "g": (hidden,), "w": (hidden, columns)}
    x, g, w = (p.input(name, shape, DType.FP16) for name, shape in shapes.items())
    p.output((x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * g) @ w)
    return p.graph


def smaller(text: str) -> Graph:
    """The figure with a quarter of the blocks and iterations, tiles of other sizes than there are of each axis."""
    sizes = {"1024": "48", "4096": "80", "128": "4", "64": "12", "32": "20"}
    lines = [re.sub(r"(?<![\w%./])\d+(?!\w)", lambda number: sizes.get(number[0], number[0]), line) for line in text.splitlines()]
    return parse_graph("\n".join(lines).replace("i=16", "i=4").replace("1/1024", "1/48"))


def has_the_figure(figure: Graph, program: Graph) -> bool:
    """Whether Algorithm 1, followed by the rules for thread graphs, finds a graph in the space of the figure around it."""
    options = EnumerationOptions().within(SearchSpace.of(figure))
    result = enumerate_graphs(program, device_for("cuda:sm_80"), options)
    assert result.report.exhausted
    ways: dict[Hashable, int] = {}
    wanted = way(figure, ways)
    same = [graph for candidate in result.candidates if way(graph := construct(candidate.graph), ways) == wanted]
    return any("thread" in str(graph) for graph in same)


def test_it_finds_the_figure_at_a_smaller_size() -> None:
    assert has_the_figure(smaller(FIGURE.read_text()), rmsnorm(16, 48, 80))


@pytest.mark.slow
def test_it_finds_the_figure() -> None:
    assert has_the_figure(parse_graph(FIGURE.read_text()), rmsnorm(16, 1024, 4096))


def test_a_limit_of_fewer_operators_leaves_it_out() -> None:
    figure = smaller(FIGURE.read_text())
    fewer = replace(SearchSpace.of(figure), block_operators=figure_operators(figure) - 1)
    result = enumerate_graphs(rmsnorm(16, 48, 80), device_for("cuda:sm_80"), EnumerationOptions().within(fewer))
    assert result.report.exhausted
    assert not result.candidates


def figure_operators(figure: Graph) -> int:
    (kernel,) = figure.kernels()
    assert kernel.body is not None
    return kernel.body.operator_count()
