"""Copies of less than a line of the last cache: which have the rest of it fetched, because the same block takes it next."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
import torch

from lower.graphs import linear_along_k, rms_norm_linear
from mugraph.devices import NO_ENGINES, Engines
from mugraph.ir import DType, Graph
from mugraph.lower import cooperative, lower
from mugraph.lower.line_prefetch import prefetched_bytes
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Buffer, Memory, Tile
from mugraph.runtime import Executable
from mugraph.targets.cuda import print_program
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda

COPY = re.compile(r"cp_async<16(?:, (\d+))?>\(")


def lines(graph: Graph, engines: Engines = NO_ENGINES) -> set[str]:
    """The hints of a kernel's copies, "" for those without one."""
    (launch,) = lower(graph).values()
    text = print_program([cooperative(launch.kernel, 100_000, engines=engines)])
    return {match[1] or "" for match in COPY.finditer(text)}


@pytest.mark.parametrize(
    ("taken", "loop", "expected"),
    [(16, 8, "128"), (32, 8, "128"), (64, 8, "256"), (128, 8, ""), (32, 1, ""), (64, 1, ""), (32, 3, ""), (64, 3, "")],
)
def test_the_line_is_fetched_where_later_iterations_take_all_of_it(taken: int, loop: int, expected: str) -> None:
    assert lines(linear_along_k(taken, loop, columns=32)) == {expected}


def test_panels_of_one_iteration_take_each_others_neighbours() -> None:
    assert lines(linear_along_k(512, 1, rows=128, columns=128)) == {"256"}, "panels of 64 values of k"


def test_rows_of_which_other_blocks_take_the_rest_are_copied_as_they_are() -> None:
    narrow = rms_norm_linear(rows=8, inner=1024, columns=64, grid=2, loop=8, dtype=DType.BF16)
    assert lines(narrow) == {""}, "weights in rows of 32 columns, x and the gains in rows of two lines"


def test_inputs_that_are_staged_have_hints_too() -> None:
    assert "128" in lines(rms_norm_linear(rows=8, inner=256, columns=64, grid=2, loop=8, dtype=DType.BF16))


def test_warp_groups_read_panels_that_were_copied_with_hints() -> None:
    groups = Engines(warp_group_rows=1)
    assert lines(linear_along_k(32, 8, rows=64, columns=128), groups) == {"128"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (Tile("x", (16, 32), (256, 1), Index(loop=32)), 128),
        (Tile("x", (16, 32), (256, 1), Index(constant=64, loop=32)), 128),
        (Tile("x", (16, 32), (256, 1), Index(constant=32, loop=32)), 0),
        (Tile("x", (16, 32), (256, 1), Index(grid=(32,), loop=32)), 0),
        (Tile("x", (16, 32), (272, 1), Index(loop=32)), 0),
        (Tile("x", (16, 32), (256, 1), Index(loop=64)), 0),
        (Tile("x", (1, 32), (7, 1), Index(loop=32)), 128),
    ],
)
def test_a_row_begins_with_a_line_and_steps_to_its_neighbour(source: Tile, expected: int) -> None:
    (launch,) = lower(linear_along_k(32, 8)).values()
    kernel = replace(launch.kernel, buffers=(Buffer("x", Memory.DEVICE, DType.BF16, 16 * 256),))
    assert prefetched_bytes(kernel, source, 1, 32) == expected


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize("taken", [32, 64])
def test_hints_change_no_result(taken: int) -> None:
    graph, generator = linear_along_k(taken, 4), torch.Generator().manual_seed(0)
    machine = EmulatedCuda(Cuda("sm_80", 100_000))
    inputs = [torch.randn(node.output.shape, generator=generator).bfloat16() for node in graph.inputs()]
    hinted = Executable(graph, machine)
    plain = Executable(graph, machine, {name: COPY.sub("cp_async<16>(", text) for name, text in hinted.sources.items()})
    assert plain.sources != hinted.sources
    (first,), (second,) = hinted(*inputs), plain(*inputs)
    assert torch.equal(first, second)
    exact = inputs[0].double() @ inputs[1].double().T
    assert float((first.double() - exact).abs().max()) < 1e-2 * float(exact.abs().max())
