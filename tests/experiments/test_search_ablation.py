"""The ablation of the paper's Table 4: every variant searches the same programs, and a cell over its time says so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mugraph.cli import main
from mugraph.errors import InvalidInput
from mugraph.experiments.search_ablation import Ablation, Cell, table, to_json

SMALL = Ablation(shape=(4, 12, 10), seconds=30, workers=1, target="cpu", grids=((2,),), loops=(1, 2))
TINY = replace(SMALL, shape=(2, 2, 2), seconds=600)


def test_every_variant_is_exhausted_on_a_tiny_limit_and_each_part_prunes() -> None:
    cells = {name: cell for _, name, cell in TINY.run([4])}
    assert all(cell.exhausted for cell in cells.values())
    assert cells["Algorithm 1"].states == cells["one process"].states
    assert cells["no expressions"].states > cells["one process"].states
    assert cells["no completion bound"].states > cells["one process"].states
    assert cells["the paper's pruning alone"].states > cells["no completion bound"].states
    assert cells["closure"].states == cells["closure, one process"].states
    assert cells["the paper's pruning alone"].cpu_seconds > 0


def test_a_cell_over_its_time_limit_says_so() -> None:
    cell = replace(SMALL, seconds=0.2).variants["no expressions"](9)
    assert not cell.exhausted
    assert cell.items_finished < cell.items
    assert str(cell).startswith("> ")
    assert cell.seconds < 60, "to search all of it takes minutes"


def test_larger_limits_of_a_variant_over_its_time_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(exhausted: bool) -> Cell:
        return Cell(1.0, states=2, verified=0, exhausted=exhausted, items=4, items_finished=4 if exhausted else 3)

    variants = {"quick": lambda limit: cell(exhausted=True), "slow": lambda limit: cell(exhausted=limit < 7)}
    monkeypatch.setattr(Ablation, "variants", property(lambda ablation: dict(variants)))
    cells = list(SMALL.run([7, 3, 8]))
    assert [(limit, name) for limit, name, _ in cells] == [(3, "quick"), (3, "slow"), (7, "quick"), (7, "slow"), (8, "quick")]
    assert table(cells).splitlines()[-1].count("over the time limit, as above") == 1


def test_both_engines_find_graphs_of_the_same_space() -> None:
    """Nine operators without a loop: three operands, the squares, their sum and its root, gain, product and division."""
    without_loops = replace(SMALL, loops=(1,)).variants
    for engine in ("one process", "closure"):
        assert without_loops[engine](8).verified == 0 < without_loops[engine](9).verified


def test_the_table_has_the_papers_row_beside_ours() -> None:
    cells = [(11, "closure", Cell(0.25, 300, 4, True, 12, 12, 0.5)), (11, "one process", Cell(60.0, 9, 0, False, 90, 3, 59.0))]
    head, _, row = table(cells).splitlines()
    assert head.startswith("| operators | closure | one process |")
    ours = ["0.25 s (0.5 CPU s), 300 states, 4 graphs", "> 60.00 s (59.0 CPU s), 9 states, 0 graphs (3 of 90 items)"]
    assert row == f"| 11 | {' | '.join(ours)} | 28, 183, > 36000 |"
    (record,) = to_json(TINY, cells)["rows"]
    assert record["paper_seconds"] == ("28", "183", "> 36000")
    assert record["cells"]["one process"]["exhausted"] is False


@pytest.mark.parametrize("limits", [[], [0], [5, -1]])
def test_limits_below_one_are_refused(limits: list[int]) -> None:
    with pytest.raises(InvalidInput, match="limits of block operators"):
        list(TINY.run(limits))


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ablate", "search", "--limit", "3", "--shape", "2", "2", "2", "--workers", "1", "--json"]
    words += ["--target", "cpu", "--grids", "2", "--loops", "1,2"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [row["limit"] for row in record["rows"]] == [3]
    assert record["rows"][0]["paper_seconds"] is None
    assert "3 operators, closure" in err


def test_the_command_refuses_a_bad_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", "search", "--shape", "1", "2", "2"]) == 2
    assert "dimensions of at least 2" in capsys.readouterr().err


def test_the_command_names_the_limit_of_a_space_that_holds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", "search", "--shape", "2", "2", "2", "--grids", "7", "--target", "cpu"]) == 2
    assert "grid 7: no dimension of the program" in capsys.readouterr().err
