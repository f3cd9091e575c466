"""Layouts of tensors between kernels: who has a choice, that the cheapest is taken, and that results stay the same."""

from __future__ import annotations

import itertools
import math
import shutil

import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.lower import lower
from mugraph.lower.access_costs import accesses_of
from mugraph.lower.device_layouts import with_device_layouts
from mugraph.lower.layouts import tiles_of, times_of
from mugraph.lower.lower import Launch
from mugraph.lower.tile_form import Kernel, Tile
from targets.test_cuda import ERRORS, emulated, machine

ROWS, COLUMNS, COPIES = 32, 128, 8


def exponentials(kernel: GraphBuilder) -> Value:
    """A kernel of four blocks that stores exp(x), [ROWS, COLUMNS]."""
    x = kernel.input("x", (ROWS, COLUMNS), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    saved = block.add("output_saver", block.add("exp", block.iterator(0, kernel.tensor(x), (0,), None)), omap=(0,))
    (made,) = kernel.graph_defined(block.build([saved]), [x])
    return made


def scaled(kernel: GraphBuilder, factor: Value) -> Value:
    """A kernel whose blocks each multiply all of `factor` with a part of another tensor."""
    shape = kernel.tensor(factor).shape
    z = kernel.input("z", (COPIES * shape[0], shape[1]), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=(COPIES,))
    whole = block.iterator(0, kernel.tensor(factor), (None,), None)
    part = block.iterator(1, kernel.tensor(z), (0,), None)
    saved = block.add("output_saver", block.add("mul", whole, part), omap=(0,))
    (made,) = kernel.graph_defined(block.build([saved]), [factor, z])
    return made


def chain(transposed: bool, also: str | None = None) -> Graph:
    """Two kernels, the second of which reads the result of the first, perhaps transposed; `also` reads it as well."""
    kernel = GraphBuilder(Level.KERNEL)
    made = exponentials(kernel)
    outputs = [scaled(kernel, kernel.add("transpose", made, permutation=(1, 0)) if transposed else made)]
    if also == "caller":
        outputs.append(made)
    elif also is not None:
        outputs.append(kernel.add(also, made))
    return kernel.build(outputs)


def between(launches: dict[int, Launch]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides of the tensor between two kernels, where it is written and where it is read."""
    first, second = launches.values()
    (value,) = first.outputs
    written = tiles_of(first.kernel, first.kernel.outputs[0])
    read = tiles_of(second.kernel, second.kernel.inputs[second.inputs.index(value)])
    return written[0].strides, read[0].strides


def laid_out(graph: Graph) -> dict[int, Launch]:
    return with_device_layouts(graph, lower(graph))


def test_what_is_read_transposed_is_written_transposed() -> None:
    assert between(laid_out(chain(transposed=True))) == ((1, ROWS), (ROWS, 1))


def test_what_is_read_as_it_is_stays_row_major() -> None:
    graph = chain(transposed=False)
    assert laid_out(graph) == lower(graph)


@pytest.mark.parametrize("also", ["caller", "exp"])
def test_what_the_caller_or_a_library_reads_stays_row_major(also: str) -> None:
    graph = chain(transposed=True, also=also)
    assert laid_out(graph) == lower(graph)


def test_the_choice_asks_for_fewest_sectors() -> None:
    graph = chain(transposed=True)
    plain, chosen = lower(graph), laid_out(graph)
    assert sum(map(sectors_of, kernels(chosen))) < 0.5 * sum(map(sectors_of, kernels(plain)))
    written, read = between(chosen)
    assert sorted(written) == sorted(read) == [1, ROWS]


def kernels(launches: dict[int, Launch]) -> list[Kernel]:
    return [launch.kernel for launch in launches.values()]


def sectors_of(kernel: Kernel) -> float:
    counted = (
        accesses.traffic(accesses.tiles).times(times) for s, times in times_of(kernel) for accesses in accesses_of(kernel, s)
    )
    return math.prod(kernel.grid) * sum(traffic.sectors for traffic in counted)


def test_windows_of_blocks_stay_apart() -> None:
    """Every element that blocks write or read is inside the tensor, and no two blocks of the first kernel write one."""
    first, second = kernels(laid_out(chain(transposed=True)))
    (written,) = (tile for tile in tiles_of(first, first.outputs[0]))
    places = [place for block in range(4) for place in places_of(written, block)]
    assert sorted(places) == list(range(ROWS * COLUMNS))
    (read,) = (tile for tile in tiles_of(second, second.inputs[0]))
    assert sorted(places_of(read, 0)) == list(range(ROWS * COLUMNS))


def places_of(tile: Tile, block: int) -> list[int]:
    start = tile.start.constant + (tile.start.grid[0] * block if tile.start.grid else 0)
    indices = itertools.product(*map(range, tile.shape))
    return [start + sum(i * stride for i, stride in zip(index, tile.strides, strict=True)) for index in indices]


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
def test_results_do_not_depend_on_it() -> None:
    graph, on = chain(transposed=True), machine()
    assert between(on.lower(graph)) == ((1, ROWS), (ROWS, 1))
    assert emulated(graph, on) < ERRORS[DType.FP16]
    assert on.findings == []
