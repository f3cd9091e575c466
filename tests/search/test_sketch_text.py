"""Sketches print and parse: every one that the search finds for the workloads, and those that somebody wrote."""

from __future__ import annotations

import pytest

from mugraph.devices import device_for
from mugraph.errors import InvalidInput
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.sketch_text import format_sketch, parse_sketch
from mugraph.search.driver import Search

from .programs import PAPER, attention

CPU = device_for("cpu")

NORM = """
sketch a b c loop b {
  | %0: a b = load #0 [a, b]
  | %1: b c = load #1 [b, c]
  | %2: a c = contract(%0, %1) over b
  | %3: a b = square(%0)
  | %4: a = sum(%3) over b
    %5: a c = accumulate(%2) over b
    %6: a = accumulate(%4) over b
    %7: a = sqrt(%6)
    %8: a c = div(%5, %7)
  return %8
}
""".strip()


def sketches(name: str) -> list[Sketch]:
    run = Search(attention() if name == "attention" else PAPER[name](), CPU)
    run.run()
    structures = run.kernels.found.values()
    return [sketch for structure in structures for sketch in (*structure.sketches, *structure.safe_sketches)]


@pytest.mark.parametrize("name", ["attention", "rmsnorm", "gqa", "lora", "gated-mlp"])
def test_what_the_search_finds_prints_and_parses(name: str) -> None:
    found = sketches(name)
    assert len({sketch.loop_axis for sketch in found}) > 1
    for sketch in found:
        assert parse_sketch(format_sketch(sketch)) == sketch


def test_safe_attention_has_every_kind_of_step() -> None:
    text = "\n".join(map(format_sketch, sketches("attention")))
    for word in ("rescale(", "accumulate_max(", "max(", "least lowest", "constant", "contract("):
        assert word in text


def test_the_text_is_what_it_was() -> None:
    sketch = parse_sketch(NORM)
    assert format_sketch(sketch) == NORM
    assert sketch.loop_axis == 1
    assert [step.in_loop for step in sketch.steps] == [True] * 5 + [False] * 4
    assert sketch.parallel_axes == {0, 2}


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("sketch a", "sketch b", "line 1, column 8: expected axis a, found 'b'"),
        ("loop b", "loop d", "line 1, column 19: expected the axis of the for-loop, found 'd'"),
        (" loop b", "", "line 2, column 3: a step inside the for-loop of a sketch without one"),
        ("sqrt(%6)", "sqrt(%7)", "line 9, column 18: expected a value defined above, found '%7'"),
        ("sqrt(%6)", "sqrt(%6, %5)", "line 9, column 13: sqrt reads 1 steps, not 2"),
        ("sqrt(%6)", "root(%6)", "line 9, column 13: expected load, constant, or the operator of a step, found 'root'"),
        ("load #0 [a, b]", "load #0 [a, d]", r"line 2, column 27: expected an axis \(a, b, c\), found 'd'"),
        ("%4: a =", "%5: a =", "line 6, column 5: expected %4 or return, found '%5'"),
        ("return %8", "return %9", "line 11, column 10: expected a value defined above"),
        ("}", "} }", "expected the end of the text"),
        ("sum(%3) over b", "sum(%3) over b least highest", "expected lowest, found 'highest'"),
    ],
)
def test_what_is_no_sketch(old: str, new: str, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        parse_sketch(NORM.replace(old, new, 1))
