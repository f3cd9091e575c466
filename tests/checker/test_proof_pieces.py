"""Proofs in pieces: the checker cuts the graphs by itself, and takes nothing for equal that no piece shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checker.test_checker import Document, accepted, in_float32, write
from mugraph.checker import Rejected, check_folder
from mugraph.verifier import verify_graphs
from verifier.graphs import rmsnorm
from verifier.stacks import SLICED, as_written, halved, rewritten, stacked

LAYERS = stacked(as_written, as_written), stacked(rewritten, rewritten)


def test_a_proof_in_pieces_is_repeated(tmp_path: Path) -> None:
    lines: list[str] = []
    report = accepted(write(tmp_path / "saved", *LAYERS), tell=lines.append)
    assert report.error_bound is not None
    assert 0 < report.error_bound <= 2**-40
    assert sum(line.startswith("piece ") for line in lines) >= 2


@pytest.mark.parametrize("depth", [0, 1])
def test_a_wrong_layer_is_found_by_evaluation(tmp_path: Path, depth: int) -> None:
    """The proof is of the right layers, and all it says fits the graph."""
    layers = [rewritten, rewritten]
    layers[depth] = halved
    right = verify_graphs(*LAYERS).certificate.to_json()
    wrong = stacked(*layers)
    pieces = [moved(piece, extra=1, depth=depth) for piece in right["pieces"]]

    def forge(files: dict[str, Document]) -> None:
        files["certificate.json"].update({**right, "pieces": pieces, "floats": files["certificate.json"]["floats"]})

    folder = write(tmp_path / "saved", LAYERS[0], wrong, forge, in_float32(rmsnorm(), rmsnorm()))
    with pytest.raises(Rejected, match=r"piece \d+ of the proof: .*found by evaluation"):
        check_folder(folder, seed=0)


def test_tensors_are_not_equal_where_what_both_equal_has_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.verifier.cut_points._is_free", lambda *_: True)
    folder = write(tmp_path / "saved", *SLICED, floats=in_float32(rmsnorm(), rmsnorm()))
    with pytest.raises(Rejected, match="only where others have values"):
        check_folder(folder, seed=0)


def moved(piece: Document, extra: int, depth: int) -> Document:
    """A piece of a graph that has so many nodes more in the layer at this depth, in front of all that pieces are about."""
    graph = stacked(*[rewritten] * 2)
    longer = stacked(*[halved if number == depth else rewritten for number in range(2)])
    assert len(longer.nodes) >= len(graph.nodes) + extra
    place = places(graph.nodes, longer.nodes)
    return {**piece, "right": [place[piece["right"][0]], piece["right"][1]]}


def places(nodes: Any, longer: Any) -> dict[int, int]:
    """Where each node stands among more nodes, by the order of operators."""
    found: dict[int, int] = {}
    remaining = iter(enumerate(longer))
    for index, node in enumerate(nodes):
        found[index] = next(number for number, other in remaining if (other.op, other.outputs) == (node.op, node.outputs))
    return found


def last_piece(**entries: Any) -> Callable[[dict[str, Document]], None]:
    return lambda files: files["certificate.json"]["pieces"][-1].update(entries)


def without_outputs(files: dict[str, Document]) -> None:
    files["certificate.json"]["pieces"].pop()


def of_all_pieces(files: dict[str, Document]) -> None:
    pieces = files["certificate.json"]["pieces"]
    pieces[-1]["cuts"] = [[*range(len(pieces) - 1)]]


FORGED: dict[str, tuple[Callable[[dict[str, Document]], None], str]] = {
    "no output": (without_outputs, "no piece is about the output"),
    "resting on itself": (last_piece(cuts=[[1 << 10]]), "rests on what is not proved before it"),
    "tensors that are not equal": (of_all_pieces, "takes tensors for equal"),
    "an empty cut": (last_piece(cuts=[[]]), "takes tensors for equal"),
    "no such tensor": (last_piece(left=[1 << 10, 0]), "a tensor that is not there"),
    "no such output": (last_piece(right=[0, 1]), "a tensor that is not there"),
    "no certificate": (last_piece(certificate={}), "format None"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_no_proof_is_refused(tmp_path: Path, name: str) -> None:
    change, reason = FORGED[name]
    with pytest.raises(Rejected, match=reason):
        check_folder(write(tmp_path / "saved", *LAYERS, change), seed=0)
