"""Parts of a program that share nothing but inputs are searched one by one where there are many, and of many operators."""

from __future__ import annotations

import functools

from mugraph.devices import device_for
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.validity import check
from mugraph.search import search
from mugraph.search.long_programs import ProgramDivision
from mugraph.verifier import verify_graphs

CPU = device_for("cpu")


def pooled(windows: int, taps: int) -> Program:
    """The largest of neighbours, at several places of a row, each place on its own."""
    program = Program()
    x = program.input("x", (4, 64))
    for window in range(windows):
        shifted = [x.slice(1, window + tap, 32 - window) for tap in range(taps)]
        program.output(functools.reduce(ProgramTensor.maximum, shifted))
    return program


def test_what_shares_only_inputs_is_apart() -> None:
    program = Program()
    x, y = program.input("x", (4, 8)), program.input("y", (4, 8))
    first, second = (x + y).exp(), (x * y).exp()
    program.output(first * 2, second * 3, first + 1, x - y)
    parts = ProgramDivision(program.graph, CPU).components()
    assert [len(part) for part in parts] == [4, 3, 1]
    assert sorted(index for part in parts for index in part) == sorted(index for part in parts for index in set(part))


def test_a_program_of_many_parts_is_searched() -> None:
    program = pooled(7, 9).graph
    result = search(program, CPU, budget=300)
    assert result.report.segments == 7
    for candidate in result.candidates:
        check(candidate.graph)
        assert len(candidate.graph.kernels()) == 7
    assert verify_graphs(program, result.candidates[0].graph, seed=1).outcome == "equivalent"


def test_a_short_program_is_searched_as_a_whole() -> None:
    result = search(pooled(4, 3).graph, CPU, budget=300)
    assert any(len(candidate.graph.kernels()) == 1 for candidate in result.candidates)
