"""Axes for which inputs are taken twice, as rows and as a whole: the checker reads them in its own way, and proves the axis."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checker.test_checker import accepted, in_float32, write
from mugraph.checker import Rejected, check_folder, checks, claimed_axes
from mugraph.checker.axis_digits import Digit
from mugraph.checker.checks import _tested
from mugraph.checker.claimed_axes import Slices, slices_of
from mugraph.checker.inputs_read_twice import with_inputs_twice
from mugraph.ir import Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.testing import agree
from mugraph.verifier import by_random_tests, separate_inputs
from verifier.graphs import mutants, program, rmsnorm
from verifier.test_separate_inputs import FAULTS, FORMS, Turn, by_halves, by_pairs, in_one_kernel, numbers
from verifier.test_separate_inputs import ROWS as TOKENS
from verifier.test_separate_inputs import attention as rotary

ROWS, WIDTH = 4, 2


@pytest.fixture(autouse=True)
def small_graphs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate_inputs, "LARGE", 0)


def document(graph: Graph) -> Any:
    return json.loads(json.dumps(graph_to_json(graph)))["graph"]


def record(left: Graph, right: Graph) -> Any:
    """The certificate of two graphs that are equal, with an axis for which inputs are taken twice."""
    verdict = by_random_tests(left, right)
    assert verdict.equivalent
    found = json.loads(json.dumps(verdict.certificate.to_json()))
    assert any(axis.get("apart") for axis in found["axes"])
    return found


def sliced(left: Graph, right: Graph, axes: Sequence[Any]) -> Slices:
    return slices_of(document(left), document(right), list(axes), random.Random(0))


def shapes(graph: Any) -> list[list[int]]:
    return [node["attributes"]["shape"] for node in graph["nodes"] if node["op"] == "input"]


@pytest.mark.parametrize("turn", FORMS)
def test_rotary_attention_is_checked_on_one_row(tmp_path: Path, turn: Turn) -> None:
    left, right = rotary(turn), rotary(turn, late=True)
    axes = record(left, right)["axes"]
    found = sliced(left, right, axes)
    assert (found.cut, found.joint is not None) == (len(axes), True)
    assert shapes(found.left)[0][0] == 1
    assert shapes(found.left)[-3:] == [[TOKENS, *shapes(found.left)[0][1:]], *shapes(document(left))[4:6]]
    lines: list[str] = []
    folder = write(tmp_path / "saved", left, right, floats=in_float32(rmsnorm(), rmsnorm()))  # exponentials are not shifted
    report = accepted(folder, tell=lines.append)
    assert report.axes == len(axes)
    assert not any("do not show that they agree" in line for line in lines)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("turn", [by_halves, by_pairs])
def test_a_mutant_is_refused_under_the_certificate_of_the_right_graph(tmp_path: Path, turn: Turn, fault: str) -> None:
    left, right = rotary(turn), rotary(turn, late=True)
    wrong = rotary(turn, late=True, fault=fault)
    assert refused(tmp_path / "saved", left, right, wrong)


def refused(folder: Path, left: Graph, right: Graph, wrong: Graph) -> bool:
    """Whether a folder with another graph than its certificate is of is refused, and not for its form."""
    folder = write(folder, left, right, lambda files: files.update({"graph.json": json.loads(json.dumps(graph_to_json(wrong)))}))
    try:
        check_folder(folder, seed=0)
    except Rejected as error:
        return "found by evaluation" in str(error)
    return False


def test_mutants_are_refused_where_they_differ_and_others_accepted(tmp_path: Path) -> None:
    left, right = rotary(by_halves), rotary(by_halves, late=True)
    outcomes: list[bool] = []
    for number, mutant in enumerate([right, *itertools.islice(mutants(right), 0, 200, 5)]):
        if len(mutant.outputs) != 1 or mutant.output_tensors[0].shape != right.output_tensors[0].shape:
            continue
        outcomes.append(refused(tmp_path / str(number), left, right, mutant))
        assert outcomes[-1] is not agree(left, mutant)
    assert outcomes.count(True) > 10
    assert outcomes.count(False) > 0


@pytest.mark.parametrize("blocks", [2, ROWS])
def test_blocks_read_their_rows_and_all_of_them(tmp_path: Path, blocks: int) -> None:
    left = program(lambda x, y: ((x * y) @ (x * y).transpose(0, 1)).exp(), (4, 4), (4, 4))
    right = in_one_kernel(blocks)
    axes = record(left, right)["axes"]
    found = sliced(left, right, axes)
    assert found.cut == len(axes) == 2
    accepted(write(tmp_path / "saved", left, right))
    assert refused(tmp_path / "wrong", left, right, in_one_kernel(blocks, shifted=True))


@pytest.mark.parametrize("turn", FORMS)
def test_a_graph_that_takes_inputs_twice_is_the_graph_where_they_are_the_same(turn: Turn) -> None:
    """Whatever is wanted by slices, in mutants, too."""
    graphs = [rotary(turn), *itertools.islice(mutants(rotary(turn, late=True)), 0, 60, 6), in_one_kernel(2), in_one_kernel(4)]
    made = 0
    for graph in graphs:
        given, (output,) = numbers(graph), graph.output_tensors
        for dim, every in itertools.product(range(len(output.shape)), (False, True)):
            digits = [
                Digit(place, 1, shape[place]) if every or shape[place] == output.shape[dim] else None
                for shape in shapes(document(graph))
                for place in [min(dim, len(shape) - 1)]
            ]
            apart = [number for number, digit in enumerate(digits) if digit is not None]
            try:
                twice = with_inputs_twice(document(graph), digits, [Digit(dim, 1, output.shape[dim])], apart)
            except Rejected:
                continue
            made += 1
            saved = {**graph_to_json(graph), "graph": twice}
            again = evaluate(graph_from_json(saved), [*given, *(given[number] for number in apart)], FloatArithmetic())
            np.testing.assert_allclose(again[0], evaluate(graph, given, FloatArithmetic())[0])
    assert made > 10


def scores(factor: int) -> Graph:
    """Self-attention's exponentials of scores of rows with each other, over their sums."""

    def function(x: ProgramTensor) -> ProgramTensor:
        made = ((x * factor) @ (x / 2).transpose(0, 1)).exp()
        return made / made.sum(-1, keepdim=True)

    return program(function, (ROWS, WIDTH))


def unscaled() -> Graph:
    """What `scores(2)` gives, computed otherwise."""
    return program(lambda x: (x @ x.transpose(0, 1)).exp() / (x @ x.transpose(0, 1)).exp().sum(-1, keepdim=True), (ROWS, WIDTH))


def test_where_rows_and_a_whole_do_not_agree_they_are_tested_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal graphs may be read in ways that differ; here those of one are another graph's."""
    left, right, other = scores(2), unscaled(), document(scores(4))

    def of_another(graph: Any, *how: Any) -> Any:
        return with_inputs_twice(other if graph == document(right) else graph, *how)

    allowed: list[float] = []

    def tested(left: Any, right: Any, certificate: Any, *more: Any) -> tuple[int, float]:
        allowed.append(certificate["max_error"])
        return _tested(left, right, certificate, *more)

    lines: list[str] = []
    with monkeypatch.context() as broken:
        broken.setattr(claimed_axes, "with_inputs_twice", of_another)
        broken.setattr(checks, "_tested", tested)
        accepted(write(tmp_path / "saved", left, right), tell=lines.append)
    assert any("do not show that they agree" in line for line in lines)
    assert allowed == [2**-41, 2**-41], "half of what the certificate asks for, as there are two ways to be accepted"
    assert refused(tmp_path / "wrong", left, right, scores(4))


def test_rows_are_not_apart_where_their_difference_is_divided_by(tmp_path: Path) -> None:
    """A row less itself is zero, computed as it may be; certificate and axes are those of a sum."""

    def over(x: ProgramTensor, sign: int, factor: int) -> ProgramTensor:
        rows, same = x.reshape(ROWS, 1, WIDTH), ((x * 3 + Fraction(1, 3)) * 7 - Fraction(7, 3)) / 21
        return (factor / (factor * rows + sign * factor * same.reshape(1, ROWS, WIDTH))).sum(1)

    def both(sign: int) -> tuple[Graph, Graph]:
        once, twice = (program(lambda x, f=f: over(x, sign, f), (ROWS, WIDTH)) for f in (1, 2))
        return once, twice

    axes = record(*both(1))["axes"]
    assert sliced(*both(1), axes).joint is not None
    assert sliced(*both(-1), axes).joint is None


Change = Callable[[Any], None]
MALFORMED: dict[str, Change] = {
    "an input that does not have the axis": lambda axis: axis.update(apart=[1, 4, 5]),
    "an input twice": lambda axis: axis.update(apart=[0, 4, 4]),
    "no such input": lambda axis: axis.update(apart=[0, 4, 9]),
    "too few inputs": lambda axis: axis.update(apart=[0, 4]),
    "the axis in the whole": lambda axis: axis["inputs"].__setitem__(-1, 0),
    "another dimension of an output": lambda axis: axis.update(outputs=[1]),
    "no dimension of an output": lambda axis: axis.update(outputs=[None]),
    "no slices of a table": lambda axis: axis["inputs"].__setitem__(4, None),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_an_axis_that_is_not_as_it_is_said_to_be_is_not_cut(name: str) -> None:
    left, right = rotary(by_halves), rotary(by_halves, late=True)
    axes = record(left, right)["axes"]
    (apart,) = (axis for axis in axes if axis.get("apart"))
    MALFORMED[name](apart)
    try:
        found = sliced(left, right, axes)
    except (Rejected, LookupError, ValueError, TypeError):  # malformed, as the checker says of a certificate
        return
    assert found.joint is None
    assert TOKENS in shapes(found.left)[0]
