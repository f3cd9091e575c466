"""Kernels write the parts of a concatenation where they belong, and nothing copies them."""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
import pytest
import torch

from mugraph.devices import device_for
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Level, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.ir.program import Program
from mugraph.lower import concatenations, needed_nodes
from mugraph.runtime import Executable, build
from mugraph.search.driver import SearchResult
from mugraph.search.long_programs import search
from mugraph.selection.emulated_blocks import spot_check
from mugraph.targets.emulator import emulator_of
from mugraph.targets.machine import Machine, machine_for


def turned() -> Program:
    """Halves of rows exchanged, one with the opposite sign."""
    program = Program()
    x, y = program.input("x", (6, 16)), program.input("y", (6, 16))
    program.output(program.concat([x.slice(1, 8, 8) * y.slice(1, 0, 8), (x.slice(1, 0, 8) + y.slice(1, 8, 8)).exp()], 1))
    return program


def nested() -> Program:
    """Rows of rows: parts in both dimensions."""
    program = Program()
    x = program.input("x", (4, 8))
    upper = program.concat([x.slice(1, 0, 2).exp(), x.slice(1, 2, 6) * 2], 1)
    lower = program.concat([x.slice(1, 0, 5) + 1, x.slice(1, 5, 3).square()], 1)
    program.output(program.concat([upper, lower], 0))
    return program


def read_again() -> Program:
    """A part that is an output, too, lies where that is; the other one is copied with it."""
    program = Program()
    x = program.input("x", (4, 8))
    part = x.exp()
    program.output(program.concat([part, x * 3], 0), part)
    return program


def of_an_input() -> Program:
    """One part is what the caller gave."""
    program = Program()
    x, new = program.input("cache", (2, 6, 8)), program.input("new", (2, 1, 8))
    program.output(program.concat([x, (new * 0.5).exp()], 1))
    return program


IN_PLACE, COPIED = (turned, nested), (read_again, of_an_input)


def found(program: Program, budget: float = 5) -> SearchResult:
    return search(program.graph, device_for("cpu"), budget=budget)


def on(target: str, graph: Graph) -> Executable:
    """The graph on this host: its C, its CUDA in the emulator, or its Triton in the interpreter."""
    machine = machine_for(target)
    emulator = None if machine.available else emulator_of(machine)
    return Executable(graph, machine if emulator is None else cast("Machine", emulator))


def joins(graph: Graph) -> list[int]:
    return [index for index, node in enumerate(graph.nodes) if node.op == "concat"]


@pytest.mark.parametrize("make", [*IN_PLACE, *COPIED], ids=lambda make: make.__name__)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90", "triton:sm_90"])
def test_a_program_is_computed(make: object, target: str) -> None:
    assert callable(make)
    program = make()
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(node.output.shape).astype(np.float32) for node in program.graph.inputs()]
    exact = evaluate(program.graph, [array.astype(np.float64) for array in given], FloatArithmetic())
    for candidate in found(program).candidates[:3]:
        executable = on(target, candidate.graph)
        results = executable(*executable.machine.moved([torch.from_numpy(array) for array in given]))
        for got, wanted in zip(results, exact, strict=True):
            np.testing.assert_allclose(got.cpu(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", IN_PLACE, ids=lambda make: make.__name__)
def test_nothing_copies_what_kernels_write_in_place(make: object) -> None:
    assert callable(make)
    for candidate in found(make()).candidates:
        graph = candidate.graph
        assert joins(graph)
        assert not set(needed_nodes(graph)) & set(joins(graph))
        executable = build(graph)
        (output,) = graph.outputs
        assert {value for launch in executable.launches.values() for value in launch.outputs} >= {output}


@pytest.mark.parametrize("make", COPIED, ids=lambda make: make.__name__)
def test_parts_that_others_read_are_copied(make: object) -> None:
    assert callable(make)
    for candidate in found(make()).candidates:
        assert not concatenations(candidate.graph)
        assert set(joins(candidate.graph)) <= set(needed_nodes(candidate.graph))


def test_a_concatenation_between_kernels_lies_in_the_workspace() -> None:
    first = found(turned()).candidates[0].graph
    builder = GraphBuilder(Level.KERNEL)
    inputs = [builder.append(node) for node in first.inputs()]
    (made,) = builder.extend(first, inputs)
    (last,) = builder.extend(first, [made, inputs[1]])
    graph = builder.build([last])
    executable = build(graph)
    rng = np.random.default_rng(1)
    given = [rng.standard_normal((6, 16)).astype(np.float32) for _ in range(2)]
    wanted = evaluate(graph, [array.astype(np.float64) for array in given], FloatArithmetic())
    np.testing.assert_allclose(executable(*given)[0], wanted[0], rtol=1e-4, atol=1e-5)
    text = str(executable.placement)
    assert "workspace" in text
    assert "a part of a concatenation, written in place" in text


emulated_here = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU, and no block is emulated")


@emulated_here
@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
def test_blocks_that_write_parts_are_checked(target: str) -> None:
    graph = found(turned()).candidates[0].graph
    executable = build(graph, target)
    report = spot_check(executable)
    assert report is not None
    assert not report.fault
    assert report.ran


@emulated_here
def test_a_block_that_writes_into_another_part_is_noticed() -> None:
    graph = found(turned()).candidates[0].graph
    executable = build(graph, "cuda:sm_90")
    (index,) = (index for index, node in enumerate(graph.nodes) if node.op == GRAPH_DEFINED)
    launch = executable.launches[index]
    (first, window), *others = launch.results
    moved = dataclasses.replace(window, start=dataclasses.replace(window.start, constant=window.start.constant + 1))
    executable.launches[index] = dataclasses.replace(launch, results=((first, moved), *others))  # type: ignore[index, type-var]
    report = spot_check(executable)
    assert report is not None
    assert "unwritten" in report.fault or "belong to other blocks" in report.fault or "errs" in report.fault


def test_values_of_one_kernel_in_two_places_are_copied() -> None:
    program = Program()
    x = program.input("x", (4, 8))
    twice = x.exp()
    program.output(program.concat([twice, twice], 0))
    for candidate in found(program).candidates:
        assert Value(candidate.graph.outputs[0].node) not in map(Value, concatenations(candidate.graph))
