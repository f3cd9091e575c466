"""Saved results whose certificates have axes of several outputs, in stretches, or in single iterations: accepted, and no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from checker.test_checker import Document, write
from mugraph.checker import Rejected, check_folder
from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor
from verifier.graphs import program, rows_for_columns, spread_of_rows
from verifier.joint_graphs import PAIRS, projections, projections_in_blocks, softmax_of_rows


@pytest.mark.parametrize("name", PAIRS)
def test_results_with_such_axes_are_accepted(tmp_path: Path, name: str) -> None:
    check_folder(write(tmp_path / "result", PAIRS[name][0](), PAIRS[name][1]()), seed=0)


@pytest.mark.parametrize(("pair", "cut"), [(softmax_of_rows(), 1), ((projections(4, 4), projections_in_blocks(4, 4)), 2)])
def test_axes_of_single_positions_are_proved_again(tmp_path: Path, pair: tuple[Graph, Graph], cut: int) -> None:
    assert check_folder(write(tmp_path / "result", *pair), seed=0).axes == cut


WHOLE: dict[str, Callable[[ProgramTensor], ProgramTensor]] = {
    "a slice that is all of the axis": lambda x: x.exp().apply("slice", dim=1, start=0, size=4, step=1),
    "one tensor put together of one": lambda x: x.exp().apply("concat", dim=1),
    "groups of one": lambda x: x.exp().apply("sum", dim=1, size=1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_axes_that_stand_in_a_dimension_whole_are_proved_again(tmp_path: Path, name: str) -> None:
    left = program(lambda x: WHOLE[name](x) * 2, (2, 4))
    right = program(lambda x: WHOLE[name](x) + WHOLE[name](x), (2, 4))
    assert check_folder(write(tmp_path / "result", left, right), seed=0).axes == 2


@pytest.mark.parametrize(("pair", "inputs"), [(spread_of_rows, [0, None]), (rows_for_columns, [1, 0, None])])
@pytest.mark.parametrize("entry", [{"narrow": False}, {"input_widths": [[1, 1], 1, 1]}])
def test_what_is_said_not_to_be_narrow_is_tested_at_full_size(
    tmp_path: Path, pair: Callable[[], tuple[Graph, Graph]], inputs: list[int | None], entry: Document
) -> None:
    forged = {"accepted": True, "error_bound": 1e-20, "axes": [{"inputs": inputs, **entry}]}
    folder = write(tmp_path / "result", *pair(), lambda files: files["certificate.json"].update(forged))
    with pytest.raises(Rejected):
        check_folder(folder, seed=0)


@pytest.mark.parametrize("late", [0, 1])
def test_a_wrong_output_beside_a_right_one_is_rejected(tmp_path: Path, late: int) -> None:
    right = projections_in_blocks(4, 4, late=late)
    axis = {"inputs": [None, 1, 1], "outputs": [1, 1]}

    def forge(files: dict[str, Document]) -> None:
        files["certificate.json"].update({"accepted": True, "error_bound": 1e-20, "axes": [axis]})

    with pytest.raises(Rejected, match=f"output {late} is not what"):
        check_folder(write(tmp_path / "result", projections(4, 4), right, forge), seed=0)
