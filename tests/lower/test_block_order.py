"""The order of blocks: every order is a bijection, kernels run in it, and the one that is taken saves bytes from memory."""

from __future__ import annotations

import itertools
import math
import re
import shutil
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.devices import device_for
from mugraph.errors import InvalidGraph, InvalidInput
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import Launch, construct
from mugraph.lower.block_order import Part, Sharing, in_order, numbers_of
from mugraph.lower.check import check
from mugraph.lower.tile_form import Bands, Kernel
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.runtime import Executable
from mugraph.search.scheduling.cost_table import times_from_memory
from mugraph.selection.emulated_blocks import spot_check
from mugraph.targets.cuda import emulated as cuda_emulator
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from targets.test_cuda import ERRORS, emulated

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
H100 = Cuda.described("cuda:sm_90")
SMALL = replace(H100, multiprocessors=4, cache_bytes=1 << 14)
"""A GPU on which the blocks of tests do not run at once, and their inputs do not stay in the cache."""


def tiled(rows: int, inner: int, columns: int, grid: tuple[int, int], loop: int, batch: int = 1) -> Graph:
    """x @ w in bf16, of matrices of a batch, where the grid cuts both factors."""
    kernel = GraphBuilder(Level.KERNEL)
    lead = (batch,) if batch > 1 else ()
    x, w = kernel.input("x", (*lead, rows, inner), DType.BF16), kernel.input("w", (*lead, inner, columns), DType.BF16)
    block = GraphBuilder(Level.BLOCK, grid=(*lead, *grid), loop=loop)
    first = (0,) if lead else ()
    left = block.iterator(0, kernel.tensor(x), (*first, len(lead), None), len(lead) + 1)
    right = block.iterator(1, kernel.tensor(w), (*first, None, len(lead) + 1), len(lead))
    total = block.add("accumulate", block.add("matmul", left, right), combine="sum")
    saved = block.add("output_saver", total, omap=(*first, len(lead), len(lead) + 1))
    return construct(kernel.build(kernel.graph_defined(block.build([saved]), [x, w])))


def tall_product() -> Graph:
    """8192 cubed in tiles of 128 x 128."""
    return tiled(8192, 8192, 8192, (64, 64), 64)


def lowered(graph: Graph, machine: Cuda = SMALL) -> Kernel:
    (launch,) = machine.lower(graph).values()
    return launch.kernel


grids = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@given(grids, st.data())
def test_every_block_runs_once(grid: tuple[int, ...], data: st.DataObject) -> None:
    bands = Bands(data.draw(st.integers(0, len(grid) - 1)), data.draw(st.integers(1, 12)))
    places = in_order(grid, bands)
    assert sorted(map(tuple, places.tolist())) == list(itertools.product(*map(range, grid)))


@given(grids, st.data())
def test_bands_are_what_a_loop_over_them_visits(grid: tuple[int, ...], data: st.DataObject) -> None:
    dim, size = data.draw(st.integers(0, len(grid) - 1)), data.draw(st.integers(1, 12))
    visited = [
        (*outer, along, *inner)
        for outer in itertools.product(*map(range, grid[:dim]))
        for start in range(0, grid[dim], size)
        for inner in itertools.product(*map(range, grid[dim + 1 :]))
        for along in range(start, min(start + size, grid[dim]))
    ]
    assert [tuple(place) for place in in_order(grid, Bands(dim, size)).tolist()] == visited


@pytest.mark.parametrize("bands", [None, Bands(0, 3), Bands(1, 4)])
def test_the_numbers_of_blocks_are_those_of_their_places(bands: Bands | None) -> None:
    kernel = replace(lowered(tiled(64, 64, 40, (4, 5), 2, batch=3)), bands=bands)
    blocks = [0, 59, 17, 30, 31]
    places = in_order(kernel.grid, bands)[numbers_of(kernel, blocks)]
    assert np.ravel_multi_index(tuple(places.T), kernel.grid).tolist() == blocks


GRAPHS = {
    "a square": tiled(64, 64, 64, (8, 8), 2),
    "a last band that is narrower": tiled(80, 64, 48, (5, 6), 2),
    "a batch": tiled(48, 32, 40, (6, 5), 1, batch=3),
}
ORDERS = [Bands(0, 2), Bands(0, 3), Bands(1, 2), Bands(1, 4)]


@dataclass(frozen=True, slots=True)
class InBands(Cuda):
    """A GPU whose kernels all run in the same bands."""

    bands: Bands | None = None

    def lower(self, graph: Graph) -> dict[int, Launch]:
        """The launches in this order."""
        launches = Cuda.lower(self, graph).items()
        return {index: replace(launch, kernel=replace(launch.kernel, bands=self.bands)) for index, launch in launches}


IN_BANDS = InBands("sm_90", H100.shared_bytes, engines=H100.engines, multiprocessors=4)


@needs_compiler
@pytest.mark.parametrize("bands", ORDERS, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_right_in_any_order(name: str, bands: Bands) -> None:
    on = EmulatedCuda(replace(IN_BANDS, bands=bands), apart=True)
    assert emulated(GRAPHS[name], on) < ERRORS[DType.BF16]
    assert on.findings == []


PLANTS = {
    "a width that the last band has not": (r"const int width = [^,]*,", "const int width = 3,"),
    "a band that begins at its number": (r"(band = inside / \d+) \* 3", r"\1"),
    "blocks of a band in the place of each other's neighbours": (r"band \+ in_band % width", "band + in_band / 6 % width"),
    "dimensions behind the band as if there was none": (r"in_band / width", "blockIdx.x"),
}


@needs_compiler
@pytest.mark.parametrize("fault", PLANTS)
def test_an_order_that_leaves_blocks_out_shows(fault: str) -> None:
    old, new = PLANTS[fault]

    def planted(text: str) -> str:
        changed, count = re.subn(old, new, text)
        assert count
        return changed

    on = EmulatedCuda(replace(IN_BANDS, bands=Bands(0, 3)), edit=planted)
    error = emulated(GRAPHS["a last band that is narrower"], on)
    assert on.findings or not error < ERRORS[DType.BF16]


@needs_compiler
def test_blocks_that_stand_for_all_are_compared_at_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = Executable(GRAPHS["a batch"], replace(IN_BANDS, bands=Bands(1, 4)))
    checked = spot_check(executable)
    assert checked is not None
    assert (checked.ran > 2, checked.missed, checked.fault) == (True, "", "")
    monkeypatch.setattr(cuda_emulator, "numbers_of", lambda kernel, blocks: blocks)
    elsewhere = spot_check(executable)
    assert elsewhere is not None
    assert "unwritten" in elsewhere.fault or "belong to other blocks" in elsewhere.fault


@pytest.mark.parametrize("bands", [None, *ORDERS], ids=str)
def test_an_order_travels_as_text(bands: Bands | None) -> None:
    kernel = replace(lowered(GRAPHS["a batch"]), bands=bands)
    assert parse_kernel(format_kernel(kernel)) == kernel
    check(kernel)


def test_what_is_no_order_is_refused() -> None:
    kernel = lowered(GRAPHS["a square"])
    for bands in (Bands(2, 4), Bands(-1, 4), Bands(0, 0)):
        with pytest.raises(InvalidGraph, match="bands along no dimension"):
            check(replace(kernel, bands=bands))
    with pytest.raises(InvalidInput, match="bands have two numbers"):
        parse_kernel(format_kernel(replace(kernel, bands=Bands(0, 4))).replace("bands(0, 4)", "bands(0)"))


def one_after_the_other(sharing: Sharing, bands: Bands | None) -> int:
    """Bytes from memory where nothing is ever kept: what blocks that run at once read, each part once."""
    places, moved = in_order(sharing.grid, bands).tolist(), 0
    for start in range(0, len(places), sharing.at_once):
        turn = places[start : start + sharing.at_once]
        moved += sum(part.bytes * len({tuple(place[dim] for dim in part.dims) for place in turn}) for part in sharing.parts)
    return moved


def slice_by_slice(sharing: Sharing, bands: Bands | None, slices: int) -> int:
    """Bytes from memory where blocks that run at once read slice after slice of their parts, in step."""
    places, cached, moved, held = in_order(sharing.grid, bands).tolist(), OrderedDict[object, int](), 0, 0
    for start in range(0, len(places), sharing.at_once):
        turn = places[start : start + sharing.at_once]
        read = {
            (number, *(place[dim] for dim in part.dims)): part.bytes
            for place in turn
            for number, part in enumerate(sharing.parts)
        }
        for piece, (part, size) in itertools.product(range(slices), read.items()):
            if cached.pop((piece, part), None) is None:
                moved, held = moved + size // slices, held + size // slices
            cached[piece, part] = size // slices
            while held > sharing.cache_bytes:
                held -= cached.popitem(last=False)[1]
    return moved


def turn_by_turn(sharing: Sharing, bands: Bands | None, turns: int = 64) -> int:
    """Bytes from memory, told of every part by itself: what was last read in the turn longest ago is forgotten together."""
    places, last, moved = in_order(sharing.grid, bands, turns * sharing.at_once).tolist(), dict[tuple[int, ...], int](), 0
    sizes = [part.bytes for part in sharing.parts]
    for turn, start in enumerate(range(0, len(places), sharing.at_once)):
        for place in places[start : start + sharing.at_once]:
            for number, part in enumerate(sharing.parts):
                key = (number, *(place[dim] for dim in part.dims))
                moved += 0 if key in last else part.bytes
                last[key] = turn
        while sum(sizes[key[0]] for key in last) > sharing.cache_bytes:
            oldest = min(last.values())
            last = {key: read for key, read in last.items() if read > oldest}
    return moved


@settings(max_examples=30)
@given(st.data())
def test_bytes_from_memory_are_those_of_a_cache_that_forgets_turn_by_turn(data: st.DataObject) -> None:
    """Of grids of which few blocks are looked at, too, and of parts that are read at the same places."""
    grid = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 40]), min_size=1, max_size=3).map(tuple))
    dims = st.sets(st.integers(0, len(grid) - 1), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
    parts = data.draw(st.lists(st.builds(Part, dims, st.sampled_from([1, 16, 100])), min_size=1, max_size=4).map(tuple))
    sharing = Sharing(grid, parts, data.draw(st.sampled_from([1, 2, 7])), data.draw(st.sampled_from([1, 50, 300, 10_000])))
    bands = data.draw(st.sampled_from([None, Bands(0, 2), Bands(0, 32)]))
    assert sharing.bytes_from_memory(bands) == turn_by_turn(sharing, bands)


@pytest.mark.parametrize("inner", [32, 64, 128, 256])
@pytest.mark.parametrize("cache_bytes", [1 << 13, 1 << 14, 1 << 15])
def test_what_blocks_read_side_by_side_is_forgotten_together(inner: int, cache_bytes: int) -> None:
    """Also where they read more at once than the cache has room for: of that they find nothing again."""
    sharing = Sharing.of(lowered(tiled(128, inner, 128, (16, 16), inner // 16)), 8, cache_bytes)
    if sharing is None:
        assert 2 * inner * (128 + 128) <= cache_bytes
        return
    for bands in (None, Bands(0, 2), Bands(0, 4), Bands(0, 8), Bands(0, 16)):
        assert sharing.bytes_from_memory(bands) == pytest.approx(slice_by_slice(sharing, bands, 16), rel=0.1)


def test_bands_are_not_wider_than_the_cache_has_room_for() -> None:
    """With k of 8192 the parts of bands of 32 are 86 MB at once, of which nothing is left for the next column in 50 MB."""
    kernel = lowered(tall_product(), H100)
    assert kernel.bands == Bands(0, 16)


@pytest.mark.parametrize("bands", [None, Bands(0, 4), Bands(1, 2)], ids=str)
def test_bytes_from_memory_lie_between_what_is_read_once_and_what_nobody_keeps(bands: Bands | None) -> None:
    sharing = Sharing.of(lowered(tiled(128, 64, 64, (16, 8), 2)), 8, 1)
    assert sharing is not None
    once = 2 * 64 * (128 + 64)
    assert replace(sharing, cache_bytes=once).bytes_from_memory(bands) == once
    assert sharing.bytes_from_memory(bands) == one_after_the_other(sharing, bands)
    between = replace(sharing, cache_bytes=once // 3).bytes_from_memory(bands)
    assert once <= between <= one_after_the_other(sharing, bands)


def test_an_order_that_saves_bytes_is_taken() -> None:
    """16 rows of 8 blocks, 8 at once: one row reads all of w each time, and bands of 4 half of x and a quarter of w."""
    kernel = lowered(tiled(128, 64, 64, (16, 8), 2), replace(SMALL, multiprocessors=4, cache_bytes=4096))
    assert kernel.resident == 2
    assert kernel.bands is not None
    sharing = Sharing.of(kernel, 8, 4096)
    assert sharing is not None
    moved = {size: sharing.bytes_from_memory(Bands(0, size)) for size in (2, 4, 8, 16)}
    assert sharing.bytes_from_memory(kernel.bands) == min(moved.values()) < 0.9 * sharing.bytes_from_memory(None)


@pytest.mark.parametrize(
    "machine",
    [replace(SMALL, cache_bytes=1 << 20), replace(SMALL, cache_bytes=0), replace(SMALL, multiprocessors=256)],
    ids=["all stays in the cache", "no cache is known", "all run at once"],
)
def test_blocks_run_as_they_are_numbered_where_nothing_is_saved(machine: Cuda) -> None:
    assert lowered(tiled(128, 64, 64, (16, 8), 2), machine).bands is None


def test_kernels_whose_blocks_share_nothing_have_no_order_to_choose() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (1024, 1024), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(64, 64))
    saved = block.add("output_saver", block.add("exp", block.iterator(0, kernel.tensor(x), (0, 1), None)), omap=(0, 1))
    alone = construct(kernel.build(kernel.graph_defined(block.build([saved]), [x])))
    assert lowered(alone).bands is None
    assert Sharing.of(lowered(alone), 8, 1) is None


@pytest.mark.parametrize("bands", [None, Bands(1, 2)], ids=str)
def test_the_first_blocks_are_those_of_all(bands: Bands | None) -> None:
    assert in_order((3, 5, 4), bands, 17).tolist() == in_order((3, 5, 4), bands)[:17].tolist()


def test_costs_count_what_the_last_cache_has_no_room_for() -> None:
    """What the order that is taken reads, within a third, for a product that is larger than the cache."""
    device = device_for("cuda:sm_90")
    kernel = lowered(construct(tall_product()), H100)
    sharing = Sharing.of(kernel, H100.multiprocessors * kernel.resident, H100.cache_bytes)
    assert sharing is not None
    assert kernel.bands is not None
    blocks, (rows, columns) = math.prod(kernel.grid), kernel.grid
    sizes = [sharing.parts[number].bytes * count for number, count in enumerate(kernel.grid)]
    predicted = sum(
        size * float(times_from_memory(device, size, 0.0, loads, blocks))
        for size, loads in zip(sizes, (columns, rows), strict=True)
    )
    assert sum(sizes) < predicted
    assert predicted == pytest.approx(sharing.bytes_from_memory(kernel.bands), rel=0.34)
    assert float(times_from_memory(device, device.common_cache_bytes, 0.0, 64, 4096)) == 1
    assert float(times_from_memory(device, device.common_cache_bytes + 1, 0.0, 64, 4096)) > 1
    assert float(times_from_memory(device, 1e9, 0.0, 8, 128)) == 1, "all run at once"
