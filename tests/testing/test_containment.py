"""What Algorithm 1 finds is in the closures, or breaks a condition by name; and what were missing would be seen to be."""

from __future__ import annotations

from collections import Counter

import pytest

from mugraph.devices import device_for
from mugraph.experiments.search_ablation import rmsnorm
from mugraph.ir import Graph
from mugraph.ir.text import parse_graph
from mugraph.search import SearchSpace
from mugraph.search.algorithm1 import EnumerationOptions, enumerate_graphs
from mugraph.testing.containment import IN_CLOSURE, LISTED, MISSED, Derivations

PROGRAM = rmsnorm(8, 12, 20)
OPERATORS = 11


@pytest.fixture(scope="module")
def found() -> list[Graph]:
    """The graphs of two blocks that share the columns, with a for-loop of two iterations over whatever they cut."""
    space = SearchSpace(kernels=1, block_operators=OPERATORS, grids=[2], loops=[2], maps={"w": "x<->1", "x": "x<->phi"})
    result = enumerate_graphs(PROGRAM, device_for("cpu"), EnumerationOptions().within(space))
    assert result.report.exhausted
    return [candidate.graph for candidate in result.candidates]


def test_every_graph_is_in_the_closures_or_breaks_a_condition(found: list[Graph]) -> None:
    derivations = Derivations(PROGRAM, OPERATORS)
    places = Counter(map(derivations.of, found))
    assert places[MISSED] == 0
    assert places[LISTED] > 20 < places[IN_CLOSURE] + places[LISTED]
    assert {place for place in places if place.startswith("breaks")}


def test_a_derivation_that_is_not_there_is_missed(found: list[Graph]) -> None:
    whole, shorter = Derivations(PROGRAM, OPERATORS), Derivations(PROGRAM, OPERATORS - 1)
    kept = [graph for graph in found if whole.of(graph) == LISTED]
    assert MISSED in {shorter.of(graph) for graph in kept}


MIXED = """
kernel_graph {
  x: fp16[8, 12] = input
  g: fp16[12] = input
  w: fp16[12, 20] = input
  %z: fp16[8, 20] = block_graph(x, g, w) grid(x=2) {
      %x: fp16[8, 12] = input_iterator(x) {x<->phi}
      %g: fp16[12] = input_iterator(g) {x<->phi}
      %w: fp16[12, 10] = input_iterator(w) {x<->1}
      %xg: fp16[8, 12] = mul(%x, %g)
      %product: fp16[8, 10] = matmul(%xg, %w)
      %squares: fp16[8, 12] = mul(%x, %x)
      %sum: fp16[8, 1] = sum(%squares) dim=1 size=12
      %root: fp16[8, 1] = sqrt(%sum)
      %quotient: fp16[8, 10] = div(%product, %root)
      %saved: fp16[8, 20] = output_saver(%quotient) {x<->1}
    return %saved
  }
  return %z
}
"""


def test_operands_and_squares_are_compared_as_what_they_are() -> None:
    derivations = Derivations(PROGRAM, OPERATORS)
    assert derivations.of(parse_graph(MIXED)) == LISTED
    assert derivations.of(parse_graph(MIXED.replace("mul(%x, %x)", "square(%x)"))) == LISTED
    other_way = MIXED.replace("mul(%x, %g)", "div(%x, %g)")
    assert derivations.of(parse_graph(other_way)) == MISSED


def test_a_tensor_computed_twice_breaks_the_sixth_condition() -> None:
    """The same root by two operators, each of which divides once."""
    root = "      %root: fp16[8, 1] = sqrt(%sum)\n"
    again = root.replace("%root", "%again") + "      %half: fp16[8, 10] = div(%product, %again)\n"
    twice = MIXED.replace(root, root + again).replace("div(%product, %root)", "div(%half, %root)")
    assert Derivations(PROGRAM, OPERATORS).of(parse_graph(twice)) == "breaks condition 6"
