"""Views of tiles against NumPy's views of the same memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Shape
from mugraph.lower import tiles
from mugraph.lower.tile_form import Tile

shapes = st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4).map(tuple)


def whole(shape: Shape) -> Tile:
    return Tile("x", shape, tiles.row_major(shape))


def read(tile: Tile) -> Array:
    """Memory positions a tile covers, as an array of its shape."""
    positions = np.full(tile.shape, tile.start.constant)
    for index in itertools.product(*map(range, tile.shape)):
        positions[index] += sum(i * stride for i, stride in zip(index, tile.strides, strict=True))
    return positions


def memory(shape: Shape) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape)


@settings(deadline=None)
@given(shapes, st.data())
def test_permuted(shape: Shape, data: st.DataObject) -> None:
    permutation = data.draw(st.permutations(range(len(shape))))
    tile = tiles.permuted(whole(shape), permutation)
    assert np.array_equal(read(tile), memory(shape).transpose(permutation))
    assert tiles.permuted(tile, tiles.inverse(permutation)) == whole(shape)


@settings(deadline=None)
@given(shapes, st.data())
def test_reshaped_of_a_permuted_tile_is_right_or_refused(shape: Shape, data: st.DataObject) -> None:
    permutation = data.draw(st.permutations(range(len(shape))))
    elements = int(np.prod(shape))
    first = data.draw(st.sampled_from([size for size in range(1, elements + 1) if elements % size == 0]))
    tile = tiles.reshaped(tiles.permuted(whole(shape), permutation), (first, elements // first))
    if tile is not None:
        assert np.array_equal(read(tile), memory(shape).transpose(permutation).reshape(first, -1))


@settings(deadline=None)
@given(shapes)
def test_reshaped_of_a_contiguous_tile_always_works(shape: Shape) -> None:
    elements = int(np.prod(shape))
    for first in (size for size in range(1, elements + 1) if elements % size == 0):
        tile = tiles.reshaped(whole(shape), (first, 1, elements // first))
        assert tile is not None
        assert np.array_equal(read(tile), memory(shape).reshape(first, 1, -1))


def test_reshaped_refuses_what_strides_cannot_say() -> None:
    assert tiles.reshaped(tiles.permuted(whole((2, 3)), (1, 0)), (6,)) is None


@settings(deadline=None)
@given(shapes)
def test_broadcast(shape: Shape) -> None:
    wide = (5, *(7 if size == 1 else size for size in shape))
    assert np.array_equal(read(tiles.broadcast(whole(shape), wide)), np.broadcast_to(memory(shape), wide))


@pytest.mark.parametrize(("dim", "size"), [(0, 2), (0, 4), (1, 3), (1, 1)])
def test_grouped(dim: int, size: int) -> None:
    array = memory((4, 6))
    split = array.reshape(*array.shape[:dim], array.shape[dim] // size, size, *array.shape[dim + 1 :])
    assert np.array_equal(read(tiles.grouped(whole((4, 6)), dim, size)), np.moveaxis(split, dim + 1, -1))


def test_split_and_inserted_spell_repeat() -> None:
    source = tiles.inserted(whole((2, 3)), 1, 4)
    target = tiles.split(whole((2, 12)), 1, 4)
    assert source.shape == target.shape == (2, 4, 3)
    copied = np.empty((2, 12), int)
    copied.reshape(-1)[read(target).ravel()] = memory((2, 3)).reshape(-1)[read(source).ravel()]
    assert np.array_equal(copied, np.tile(memory((2, 3)), (1, 4)))


def test_cut_moves_the_start_with_the_block_and_the_iteration() -> None:
    tile = tiles.cut(whole((8, 6)), ((2, 0), (3, 1), (4, 0)))
    assert tile.shape == (1, 2)
    assert (tile.start.grid, tile.start.loop) == ((24, 2), 6)


def test_cut_into_one_part_does_not_move() -> None:
    assert tiles.cut(whole((8, 6)), ((1, 0), (1, 1))) == whole((8, 6))


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (2, 1, 1, 3), (2, 3, 1)])
def test_dimensions_of_size_one_move_no_element(shape: Shape) -> None:
    tile = tiles.permuted(whole((3, 1, 2)), (2, 1, 0))
    assert tiles.same_sizes(tile.shape, shape)
    assert np.array_equal(read(tiles.with_unit_dimensions(tile, shape)), read(tile).reshape(shape))
    assert not tiles.same_sizes(tile.shape, (3, 2))
