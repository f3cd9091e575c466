"""The ablation of the paper's Table 4: every variant searches the same programs, and a cell over its time says so."""

from __future__ import annotations

import json

import pytest

from mugraph.cli import main
from mugraph.errors import InvalidInput
from mugraph.experiments.search_ablation import Ablation, Cell, table, to_json

TINY = Ablation(shape=(2, 2, 2), seconds=30, workers=1)


def test_every_variant_is_exhausted_on_a_tiny_limit_and_the_check_prunes() -> None:
    cells = {name: cell for _, name, cell in TINY.run([3])}
    assert all(cell.exhausted for cell in cells.values())
    assert cells["Algorithm 1"].states == cells["one process"].states
    assert cells["no expressions"].states > cells["one process"].states
    assert cells["no dead-tensor bound"].states > cells["one process"].states
    assert cells["closure"].states == cells["closure, one process"].states


def test_a_cell_over_its_time_limit_says_so() -> None:
    hurried = Ablation(shape=(4, 12, 10), seconds=0.2, workers=1)
    cell = hurried.variants["no expressions"](9)
    assert not cell.exhausted
    assert cell.items_finished < cell.items
    assert str(cell).startswith("> ")
    assert cell.seconds < 5


def test_the_table_has_the_papers_row_beside_ours() -> None:
    cells = [(11, "closure", Cell(0.25, 300, 4, True, 12, 12)), (11, "one process", Cell(60.0, 9, 0, False, 90, 3))]
    head, _, row = table(cells).splitlines()
    assert head.startswith("| operators | closure | one process |")
    assert row == "| 11 | 0.25 s, 300 states, 4 graphs | > 60.00 s, 9 states, 0 graphs (3 of 90 items) | 28, 183, > 36000 |"
    (record,) = to_json(TINY, cells)["rows"]
    assert record["paper_seconds"] == ("28", "183", "> 36000")
    assert record["cells"]["one process"]["exhausted"] is False


@pytest.mark.parametrize("limits", [[], [0], [5, -1]])
def test_limits_below_one_are_refused(limits: list[int]) -> None:
    with pytest.raises(InvalidInput, match="limits of block operators"):
        list(TINY.run(limits))


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ablate", "search", "--limit", "3", "--shape", "2", "2", "2", "--workers", "1", "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [row["limit"] for row in record["rows"]] == [3]
    assert record["rows"][0]["paper_seconds"] is None
    assert "3 operators, closure" in err


def test_the_command_refuses_a_bad_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", "search", "--shape", "1", "2", "2"]) == 2
    assert "dimensions of at least 2" in capsys.readouterr().err
