"""Sketches print and parse, and a text that is none says where."""

from __future__ import annotations

import pytest

from mugraph.devices import device_for
from mugraph.errors import InvalidInput
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS, workload
from mugraph.search import Options
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.sketch_text import format_sketch, parse_sketch
from mugraph.search.driver import Search

ONLINE = """
sketch a b loop b {
  | %0: a b = load #0 [a, b]
  | %1: a = max(%0) over b least lowest
  | %2: a b = sub(%0, %1)
  | %3: a b = exp(%2)
  | %4: a = sum(%3) over b
    %5: a = rescale(%4, %1) over b
  return %5
}
"""

WHOLE = """
sketch a b loop a {
  | %0: a b = load #0 [a, 1, b] whole
    %1: a b = carry(%0)
    %2: 1 = constant -sqrt(1/8)
    %3: a b = mul(%1, %2)
  return %3, %1
}
"""


def sketches_of(name: str) -> set[Sketch]:
    """All sketches of a workload's closures and of those of its parts, in the coarsest tier."""
    program = trace(workload(name).function(), workload(name).inputs(size="small")).graph
    run = Search(program, device_for("cpu"), options=Options(finer_tier_seconds=0.0))
    run.run()
    structures = run.kernels.found.values()
    return {sketch for structure in structures for sketch in (*structure.sketches, *structure.safe_sketches)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_sketches_of_workloads_print_and_parse(name: str) -> None:
    sketches = sketches_of(name)
    assert sketches
    for sketch in sketches:
        assert parse_sketch(format_sketch(sketch)) == sketch


@pytest.mark.parametrize("text", [ONLINE, WHOLE])
def test_the_text_of_a_sketch_is_unique(text: str) -> None:
    assert format_sketch(parse_sketch(text)) == text.strip()


def test_a_sketch_says_phases_loads_and_constants() -> None:
    sketch = parse_sketch(WHOLE)
    assert [step.in_loop for step in sketch.steps] == [True, False, False, False]
    assert sketch.loop_axis == 0
    assert sketch.goals == (3, 1)
    assert sketch.steps[0].whole
    assert sketch.leaves[0].slots == ((0,), (), (1,))
    assert str(sketch.steps[2].scalar) == "-sqrt(1/8)"


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("%2: a b", "%3: a b", "line 5, column 5: expected %2 or return"),
        ("sub(%0, %1)", "sub(%0, %4)", "line 5, column 23: expected a value defined above"),
        ("sub(%0, %1)", "sub(%0)", "line 5, column 15: sub reads 2 steps, not 1"),
        ("sub(%0, %1)", "matmul(%0, %1)", "line 5, column 15: expected load, constant, or the operator of a step"),
        ("%2: a b", "%2: a", r"line 5, column 5: a step 'sub' over the axes \[0\], whose result has \[0, 1\]"),
        ("%2: a b", "%2: a c", r"line 5, column 11: expected '='"),
        ("sub(%0, %1)", "sub(%0, %1) over b", "line 5, column 5: a step 'sub' that reduces axes"),
        ("sub(%0, %1)", "sub(%0, %1) least lowest", "line 5, column 5: a step 'sub' with the constant"),
        ("sub(%0, %1)", "sub(%0, %1) whole", "line 5, column 5: sub makes a whole tensor of a slice"),
        ("  | %4", "    %4", "line 7, column 5: sum joins tensors of different phases"),
        ("    %5", "  | %5", "line 8, column 5: rescale does not lead out of the for-loop"),
        (" loop b", "", "line 3, column 5: a step inside the for-loop of a sketch without one"),
        (" loop b", " loop c", "line 2, column 17: expected the axis of the for-loop"),
        ("[a, b]", "[a, a]", "line 3, column 5: a step 'load' of a tensor that has an axis twice"),
        ("[a, b]", "[a]", r"line 3, column 5: a step 'load' over the axes \[0, 1\], whose result has \[0\]"),
        ("[a, b]", "[a, b a]", "line 3, column 5: a step 'load' of a tensor that has an axis twice"),
        ("return %5", "return %3", "line 9, column 10: %3 stands inside the for-loop"),
        ("return %5", "return", "line 10, column 1: expected a value defined above"),
    ],
)
def test_a_text_that_is_no_sketch_says_where(right: str, wrong: str, why: str) -> None:
    assert ONLINE.count(right) == 1
    with pytest.raises(InvalidInput, match=why):
        parse_sketch(ONLINE.replace(right, wrong))
