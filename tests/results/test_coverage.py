"""How much of a function runs as kernels, in numbers and words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mugraph.cli.output import print_coverage
from mugraph.devices import device_for
from mugraph.ir.program import Program
from mugraph.results.coverage import Amount, Coverage, LeftCalls, coverage_lines, coverage_rows, divided, of_program, ranked
from mugraph.results.data import Report
from mugraph.search import search


def normalised_product() -> Program:
    program = Program()
    x, w = program.input("x", (8, 64)), program.input("w", (64, 32))
    program.output((x / (x.square().mean(-1, keepdim=True) + 1).sqrt()) @ w)
    return program


COVERAGE = Coverage(
    Amount(600, 50, 3e-3),
    Amount(200, 900),
    (LeftCalls("cumsum", "no such operator", 2, Amount(200, 50, 1e-3), ("model.py:3", "model.py:9")),),
    2,
)


def test_shares_are_of_everything() -> None:
    assert COVERAGE.byte_share == 0.8
    assert COVERAGE.flop_share == 0.95
    assert COVERAGE.time_share == 0.75
    assert Coverage(Amount(), Amount(), ()).byte_share == 0.0
    assert Coverage(Amount(1, 1), Amount(), ()).time_share is None


def test_coverage_survives_json() -> None:
    assert Coverage.from_json(json.loads(json.dumps(COVERAGE.to_json()))) == COVERAGE
    with pytest.raises(TypeError):
        Coverage.from_json({**COVERAGE.to_json(), "left": [{"operator": 3}]})


def test_coverage_in_words() -> None:
    first, second = coverage_lines(COVERAGE)
    assert first == "kernels run 80% of the bytes, 95% of the operations, 75% of the time (2 programs)"
    assert second == "PyTorch: 20% of the bytes in 2 x cumsum (model.py:3, model.py:9): no such operator"
    rows = coverage_rows(COVERAGE)
    assert [row.what for row in rows] == ["muGraphs", "library kernels in them", "PyTorch: 2 × cumsum"]
    assert [row.bytes for row in rows] == ["60%", "20%", "20%"]
    assert [row.seconds for row in rows] == ["75%", "above", "25%"]


@pytest.mark.parametrize(
    ("library", "runs", "line"),
    [
        (
            Amount(200, 900),
            "the library's kernels with packed weights and PyTorch's calls",
            "the library's kernels with packed weights run 50% of the bytes, 95% of the operations; no muGraph runs",
        ),
        (
            Amount(),
            "PyTorch's calls, some of which are made in another way",
            "kernels run 0% of the bytes, 0% of the operations (0 programs)",
        ),
    ],
    ids=["packed weights", "other calls"],
)
def test_what_is_found_without_any_mugraph_says_so(library: Amount, runs: str, line: str) -> None:
    """Kernels had been "found" for 0 programs."""
    left = LeftCalls("cumsum", "no such operator", 2, Amount(200, 50))
    coverage = Coverage(Amount(), library, (left,), 0)
    assert coverage.without_mugraphs == runs
    assert next(coverage_lines(coverage)) == line
    assert [row.what for row in coverage_rows(coverage)][:-1] == ["library kernels, packed weights"][: library.bytes]
    report = Report(True, {"exhausted": True, "exhausted_what": ""}, 0, (), 0.0, 0.0, 0.0, 2.0, None, 0, coverage=coverage)
    assert f"found no muGraph: {runs} run the function" in repr(report)
    assert "Report: found;" in repr(replace(report, coverage=replace(coverage, pieces=2)))
    assert "Report: nothing better found;" in repr(replace(report, found=False))
    assert COVERAGE.without_mugraphs == ""


def test_the_shares_are_a_line_above_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_coverage(replace(COVERAGE, left=()))
    assert capsys.readouterr().out.splitlines()[0].startswith("kernels run 100% of the bytes, 100% of the operations")


def test_like_calls_are_put_together_most_bytes_first() -> None:
    calls = [LeftCalls("sort", "why", 1, Amount(1), ("a.py:1",)), LeftCalls("cat", "why", 1, Amount(5), ("a.py:2",))]
    together = ranked([*calls, LeftCalls("sort", "why", 1, Amount(3), ("a.py:1",)), LeftCalls("sort", "other", 1, Amount(9))])
    assert [(each.operator, each.calls, each.amount.bytes) for each in together] == [
        ("sort", 1, 9),
        ("cat", 1, 5),
        ("sort", 2, 4),
    ]


def test_programs_are_divided_between_kernels_and_the_library() -> None:
    program = normalised_product().graph
    whole = of_program(program, program)
    assert whole.mugraphs.flops == 0
    assert whole.byte_share == 1.0
    fused = next(each.graph for each in search(program, device_for("cpu")).candidates if len(each.graph.kernels()) == 1)
    kernels = of_program(program, fused)
    assert kernels.library == Amount()
    assert kernels.mugraphs.bytes == whole.library.bytes + whole.mugraphs.bytes == 4 * (8 * 64 + 64 * 32 + 8 * 32)
    left = of_program(program, None, "slower")
    assert left.byte_share == 0.0
    assert left.left[0].reason == "slower"
    assert divided(Amount(100, 10), fused) == (Amount(100, 10), Amount())
