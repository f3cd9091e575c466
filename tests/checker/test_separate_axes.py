"""Axes for which the verifier takes an input twice: the checker keeps their size, and tests the graphs as they are there."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mugraph.checker import Rejected
from mugraph.checker.checks import _slice, _tested
from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor
from mugraph.ir.serialize import graph_to_json
from mugraph.verifier import by_random_tests, separate_inputs
from verifier.graphs import program

ROWS, WIDTH = 4, 2


def scores(factor: int) -> Graph:
    """Self-attention's exponentials of scores of rows with each other, over their sums."""

    def function(x: ProgramTensor) -> ProgramTensor:
        made = ((x * factor) @ (x / 2).transpose(0, 1)).exp()
        return made / made.sum(-1, keepdim=True)

    return program(function, (ROWS, WIDTH))


def document(graph: Graph) -> Any:
    return json.loads(json.dumps(graph_to_json(graph)))["graph"]


def test_inputs_that_are_taken_twice_keep_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate_inputs, "LARGE", 0)
    left = scores(2)
    right = program(lambda x: (x @ x.transpose(0, 1)).exp() / (x @ x.transpose(0, 1)).exp().sum(-1, keepdim=True), (ROWS, WIDTH))
    verdict = by_random_tests(left, right)
    assert verdict.equivalent
    record = json.loads(json.dumps(verdict.certificate.to_json()))
    assert record["axes"][0]["apart"] == [0]
    sides = document(left), document(right)
    assert _slice(*sides, record["axes"]) == (*sides, 0)
    rounds, bound = _tested(*sides, record, None, random.Random(0), lambda line: None)
    assert rounds > 0
    assert bound <= 2**-40
    with pytest.raises(Rejected):
        _tested(*_slice(document(scores(4)), sides[1], record["axes"])[:2], record, None, random.Random(0), lambda line: None)
