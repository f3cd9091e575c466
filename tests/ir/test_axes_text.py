"""Axis programs print and parse, and what the analysis of axes makes of programs is what it was."""

from __future__ import annotations

import pytest
import torch

from mugraph.errors import InvalidInput, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS, workload
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.axes_text import format_axes, parse_axes
from mugraph.testing.programs import random_program

GOLDEN = """
axis_program a=8 b=64 c=128 {
  %0 = load #0 [a, b]
  %1 = square(%0)
  %2 = sum(%1) over b
  %3 = constant 1/64
  %4 = mul(%2, %3)
  %5 = sqrt(%4)
  %6 = div(%0, %5)
  %7 = load #1 [b, c]
  %8 = contract(%6, %7) over b
  return %8 [a, c]
}
""".strip()

GROUPED = """
axis_program a=2 b=4 c=16 d=8 {
  %0 = load #0 [a, b, c]
  %1 = load #1 [a b, d]
  %2 = mul(%0, %1)
  return %2 [a, b, c, d]
}
"""


REGROUPED = """
axis_program a=2 b=4 c=16 {
  %0 = load #0 [a b, c]
  %1 = load #1 [a b]
  %2 = mul(%0, %1)
  %3 = sum(%2) over a
  %4 = sum(%3) over c
  return %4 [b]
}
"""


def program(name: str) -> AxisProgram:
    return axis_program(trace(workload(name).function(), workload(name).inputs(size="small")).graph)


def test_the_analysis_of_a_normalised_product() -> None:
    def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x / (x * x).mean(-1, keepdim=True).sqrt()) @ w

    assert format_axes(axis_program(trace(normalised, (torch.ones(8, 64), torch.ones(64, 128))).graph)) == GOLDEN


def test_the_analysis_of_regrouped_dimensions() -> None:
    def grouped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.view(2, 4, 16) * w.view(2, 4, 1)).sum((0, 2))

    found = axis_program(trace(grouped, (torch.ones(8, 16), torch.ones(8))).graph)
    assert format_axes(found) == REGROUPED.strip()


def test_the_text_is_what_it_was() -> None:
    assert format_axes(parse_axes(GOLDEN)) == GOLDEN
    assert parse_axes(GOLDEN).terms[8].reduced == {1}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_print_and_parse(name: str) -> None:
    found = program(name)
    assert parse_axes(format_axes(found)) == found


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_print_and_parse(seed: int) -> None:
    try:
        found = axis_program(random_program(seed))
    except UnsupportedOperator as error:  # some have no axis form
        pytest.skip(str(error))
    assert parse_axes(format_axes(found)) == found


def test_dimensions_of_several_axes() -> None:
    found = parse_axes(GROUPED)
    assert found.terms[1].slots == ((0, 1), (3,))
    assert parse_axes(format_axes(found)) == found


def test_finer_sets_and_projective_programs() -> None:
    text = GROUPED.replace("d=8", "d=8 finer [a b, c] projective")
    found = parse_axes(text)
    assert found.finer == {frozenset({0, 1}), frozenset({2})}
    assert found.projective
    assert parse_axes(format_axes(found)) == found


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("%1 = square(%0)", "line 5, column 3: expected %2 or return"),
        ("%2 = square(%4)", "a value defined above"),
        ("%2 = matmul(%0, %1)", "an elementwise operator, a scan, contract, sum or max"),
        ("%2 = contract(%0) over c", "contract takes 2 operands, not 1"),
        ("%2 = sum(%1) over c", "runs over axes of its operands"),
        ("%2 = sum(%0) over e", r"an axis \(a, b, c, d\)"),
        ("%2 = load #0 [a, a]", "a tensor has an axis twice"),
    ],
)
def test_what_is_no_axis_program(wrong: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_axes(GROUPED.replace("%2 = mul(%0, %1)", wrong))
