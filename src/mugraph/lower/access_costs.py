"""The traffic of a statement's accesses to memory, as a function of the layouts of its tiles.

All accesses of a block are counted, lane by lane (`warp_accesses.py` says where they go), so this is what the statement
takes, not an estimate of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.fragments import (
    PAIR,
    WarpTiles,
    comes_by_ldmatrix,
    holds_rows,
    loaded_together,
    on_matrix_units,
    product_tiles,
    stored_together,
)
from mugraph.lower.register_reductions import reduces_fragments, reduction_of
from mugraph.lower.thread_mapping import (
    WIDEST_ACCESS,
    LoopDim,
    elementwise_share,
    reduction_share,
    result_loops,
    rows_together,
    run_along_k,
)
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.touched_tiles import reads_target, touches_registers
from mugraph.lower.traffic import NONE, Traffic, traffic_of
from mugraph.lower.warp_accesses import (
    fragment_places,
    gathered_places,
    grid_places,
    group_places,
    leaders,
    matrix_places,
    run_places,
    vector_places,
)

_MATRIX_ROW = 8
"""Elements that a lane names to ldmatrix."""
_VALUES_OF_K = 32
"""Values of k for which the reads of a product on vector units are counted; the others cost alike."""


Loops = TypeVar("Loops", Elementwise, Reduce)


@dataclass(frozen=True, slots=True)
class Accesses:
    """Tiles of a statement whose traffic depends on each other's layouts; `traffic` is that of the same tiles in others."""

    tiles: tuple[Tile, ...]
    traffic: Callable[[Sequence[Tile]], Traffic]


def accesses_of(kernel: Kernel, statement: Statement) -> Iterator[Accesses]:
    """The accesses of a statement."""
    laid_out = (statement.target, *statement.sources)
    match statement:
        case Matmul():
            yield Accesses((statement.target,), lambda laid: _result_traffic(kernel, statement, laid[0]))
            for factor, inner in ((statement.left, -1), (statement.right, -2)):
                yield _factor_accesses(kernel, statement, factor, inner)
        case Reduce() if reduces_fragments(kernel, statement):
            times = 1 + statement.accumulate
            yield Accesses((statement.target,), lambda laid: _row_traffic(kernel.buffer(laid[0].buffer), laid[0]).times(times))
            for tile in statement.sources:
                yield Accesses((tile,), lambda laid: _source_traffic(kernel, laid[0]))
        case Reduce():
            yield Accesses(laid_out, lambda laid: _reduction_traffic(kernel, _relaid(statement, laid)))
        case Elementwise() if reduction_of(kernel, statement) is not None:
            yield Accesses((statement.target,), lambda laid: _stores_of_results(kernel, replace(statement, target=laid[0])))
        case Elementwise() if touches_registers(kernel, statement):
            together = stored_together(statement.target, kernel.buffer(statement.target.buffer))
            yield Accesses((statement.target,), lambda laid: _fragment_traffic(kernel.buffer(laid[0].buffer), laid[0], together))
            for tile in statement.sources:
                yield Accesses((tile,), lambda laid: _source_traffic(kernel, laid[0]))
        case Elementwise():
            yield Accesses(laid_out, lambda laid: _elementwise_traffic(kernel, _relaid(statement, laid)))


def block_traffic(kernel: Kernel) -> Traffic:
    """All that the accesses of a block ask of memory, over all iterations."""
    total = NONE
    for part, times in ((kernel.before, 1), (kernel.body, kernel.loop), (kernel.after, 1)):
        for statement in part:
            for accesses in accesses_of(kernel, statement):
                total += accesses.traffic(accesses.tiles).times(times)
    return total


def traffic_in_all(kernel: Kernel) -> float:
    """The same in the unit of `Traffic.cost`."""
    return block_traffic(kernel).cost


def _relaid(statement: Loops, laid: Sequence[Tile]) -> Loops:
    """The statement with other layouts: `laid` are its target and its sources."""
    return replace(statement, target=laid[0], sources=tuple(laid[1:]))


# products -----------------------------------------------------------------------------------------------------------------


def _result_traffic(kernel: Kernel, product: Matmul, tile: Tile) -> Traffic:
    buffer, times = kernel.buffer(tile.buffer), 1 + product.accumulate
    if on_matrix_units(product):
        return _fragment_traffic(buffer, tile).times(times)
    if buffer.memory is Memory.REGISTERS:
        return NONE
    return _vector_result_traffic(buffer, tile, rows_together(product)).times(times)


@lru_cache(maxsize=1 << 12)
def _vector_result_traffic(buffer: Buffer, tile: Tile, tall: int) -> Traffic:
    *batch, rows, columns = tile.shape
    total = NONE
    for row in range(tall):
        bands = -(-(rows - row) // tall)
        sizes, strides = (*batch, bands, columns), (*tile.strides[:-2], tall * tile.strides[-2], tile.strides[-1])
        total += traffic_of(buffer, tile, run_places(sizes, strides, 1) + row * tile.strides[-2])
    return total


@lru_cache(maxsize=1 << 12)
def _fragment_traffic(buffer: Buffer, tile: Tile, run: int = 1) -> Traffic:
    """Lanes take the elements they hold of the target one by one, or `run` neighbours at once."""
    if buffer.memory.in_registers:
        return NONE
    return traffic_of(buffer, tile, fragment_places(tile.shape, tile.strides, run), run)


def _source_traffic(kernel: Kernel, tile: Tile) -> Traffic:
    """Lanes load what meets the elements they hold, neighbours together; one element of each row, where they hold whole rows, of
    what repeats along it."""
    buffer = kernel.buffer(tile.buffer)
    if tile.strides[-1] == 0 and holds_rows(kernel):
        return _fragment_traffic(buffer, replace(tile, shape=(*tile.shape[:-1], 1)))
    return _fragment_traffic(buffer, tile, loaded_together(tile, buffer))


def _row_traffic(buffer: Buffer, tile: Tile) -> Traffic:
    """The first of the lanes that hold a row takes its element of a tile of rows."""
    return _fragment_traffic(buffer, replace(tile, shape=(*tile.shape, 1), strides=(*tile.strides, 0)))


def _factor_accesses(kernel: Kernel, product: Matmul, factor: Tile, inner: int) -> Accesses:
    """The reads of a factor where it lies, or the copies and reads of all its panels.

    What warp groups read of the ring goes past the threads and is not counted, nor what boxes write there.
    """
    buffer, panels, split = kernel.buffer(factor.buffer), product.panels, product_tiles(kernel, product)
    panel = None if panels is None else panels.left if inner == -1 else panels.right
    if panels is None or panel is None:
        return Accesses((factor,), lambda laid: factor_traffic(buffer, product, laid[0], inner, split))
    ring, times = kernel.buffer(panel.buffer), factor.shape[inner] // panels.depth

    def traffic(laid: Sequence[Tile]) -> Traffic:
        if panels.grouped:
            read = NONE
        elif panels.boxed:
            read = _blocks_traffic(ring, product, laid[0], inner, split)
        else:
            read = factor_traffic(ring, product, laid[0], inner, split)
        written = NONE if panels.boxed else copy_traffic(ring, laid[0])
        return (written + read).times(times) + copy_traffic(buffer, factor)

    return Accesses((panel,), traffic)


def factor_traffic(buffer: Buffer, product: Matmul, tile: Tile, inner: int, split: WarpTiles) -> Traffic:
    """The reads of a factor, or of a panel of it, whose k is dimension `inner`, from `tile` in `buffer`, by warps that share out
    the target in `split`.

    What lies in device memory is copied in rows of 16 bytes where it can be, and else gathered.
    """
    if buffer.memory is Memory.REGISTERS:
        return NONE
    if buffer.memory is Memory.DEVICE and _comes_in_rows(buffer, tile):
        return copy_traffic(buffer, tile)
    whole = tiles.broadcast(tile, (*product.target.shape[:-2], *tile.shape[-2:]))
    if on_matrix_units(product):
        return _matrices_traffic(buffer, product.dtype, split, whole, inner)
    return _vector_traffic(buffer, product.target.shape, whole, inner, rows_together(product))


def _blocks_traffic(ring: Buffer, product: Matmul, place: Tile, inner: int, split: WarpTiles) -> Traffic:
    """The reads of a panel in blocks along k, which are all alike, or beside each other, of which each is read for its part."""
    blocks, *shape = place.shape
    block = replace(place, shape=tuple(shape), strides=place.strides[1:])
    return factor_traffic(ring, product, block, inner, split).times(blocks if block.strides[inner] == 1 else 1)


def _comes_in_rows(buffer: Buffer, tile: Tile) -> bool:
    """Whether some dimension of a tile's matrices lies together in aligned runs of 16 bytes."""
    run = WIDEST_ACCESS // buffer.dtype.bytes
    rows = (dim for dim in (-1, -2) if tile.strides[dim] == 1 and tile.shape[dim] % run == 0)
    return any(tiles.alignment(tile, run, dim) == run for dim in rows)


@lru_cache(maxsize=1 << 12)
def _matrices_traffic(buffer: Buffer, dtype: DType, split: WarpTiles, tile: Tile, inner: int) -> Traffic:
    """A factor as matrices of 8 x 8: by ldmatrix where it can, else gathered by lanes."""
    for contiguous in (inner, -3 - inner):
        if comes_by_ldmatrix(tile, buffer, dtype, contiguous, inner):
            return traffic_of(buffer, tile, matrix_places(split, tile.shape, tile.strides, inner, contiguous), _MATRIX_ROW)
    run = tiles.run_along(tile, inner, PAIR)
    return traffic_of(buffer, tile, gathered_places(split, tile.shape, tile.strides, inner, run), run)


@lru_cache(maxsize=1 << 12)
def _vector_traffic(buffer: Buffer, target: tuple[int, ...], tile: Tile, inner: int, rows: int) -> Traffic:
    depth = tile.shape[inner]
    counted, run = min(depth, _VALUES_OF_K), run_along_k(tile, inner)
    return traffic_of(buffer, tile, vector_places(target, tile.strides, inner, rows, counted, run), run).times(depth / counted)


def copy_traffic(buffer: Buffer, tile: Tile) -> Traffic:
    """Copies of all of a tile whose rows are aligned runs, 16 bytes a lane: at its end of them."""
    along = next(dim for dim in reversed(range(tile.rank)) if tile.strides[dim] == 1 and tile.shape[dim] > 1)
    order = [*(dim for dim in range(tile.rank) if dim != along), along]
    run = WIDEST_ACCESS // buffer.dtype.bytes
    places = run_places(tuple(tile.shape[dim] for dim in order), tuple(tile.strides[dim] for dim in order), run)
    return traffic_of(buffer, tile, places, run)


# elementwise statements and reductions ------------------------------------------------------------------------------------


def _elementwise_traffic(kernel: Kernel, statement: Elementwise) -> Traffic:
    share = elementwise_share(kernel, statement)
    total = NONE
    for position, tile in enumerate((statement.target, *statement.sources)):
        times = 1 + (position == 0 and reads_target(statement))
        runs = _runs_traffic(kernel.buffer(tile.buffer), tile, _along(share.dims, position), share.run)
        total += runs.times(times)
    return total


def _along(dims: Sequence[LoopDim], position: int) -> tuple[tuple[int, int], ...]:
    """The size of each loop and the stride of tile number `position` along it."""
    return tuple((dim.size, dim.strides[position]) for dim in dims)


@lru_cache(maxsize=1 << 12)
def _runs_traffic(buffer: Buffer, tile: Tile, loops: tuple[tuple[int, int], ...], run: int) -> Traffic:
    if buffer.memory is Memory.REGISTERS:
        return NONE
    sizes, strides = zip(*loops, strict=True)
    return traffic_of(buffer, tile, run_places(sizes, strides, run), run if strides[-1] else 1)


def _reduction_traffic(kernel: Kernel, statement: Reduce) -> Traffic:
    """Groups of lanes run along the reduced dimension, neighbouring groups along the results."""
    share = reduction_share(kernel, statement)
    total = NONE
    for position, tile in enumerate((statement.target, *statement.sources)):
        loops, buffer = _along(share.dims, position), kernel.buffer(tile.buffer)
        if position == 0:
            total += _results_traffic(buffer, tile, loops[:-1], share.group).times(1 + statement.accumulate)
        else:
            total += _groups_traffic(buffer, tile, loops, share.run, share.group, kernel.threads)
    return total


@lru_cache(maxsize=1 << 12)
def _groups_traffic(
    buffer: Buffer, tile: Tile, loops: tuple[tuple[int, int], ...], run: int, group: int, threads: int
) -> Traffic:
    if buffer.memory is Memory.REGISTERS:
        return NONE
    *kept, (size, stride) = loops
    firsts = grid_places([size for size, _ in kept], [step for _, step in kept])
    return traffic_of(buffer, tile, group_places(firsts, size, stride, run, group, threads), run if stride else 1)


@lru_cache(maxsize=1 << 12)
def _results_traffic(buffer: Buffer, tile: Tile, loops: tuple[tuple[int, int], ...], group: int) -> Traffic:
    if buffer.memory is Memory.REGISTERS:
        return NONE
    return traffic_of(buffer, tile, leaders(grid_places([size for size, _ in loops], [step for _, step in loops]), group))


def _stores_of_results(kernel: Kernel, statement: Elementwise) -> Traffic:
    """A statement that copies the results of a reduction out of registers."""
    reduction = reduction_of(kernel, statement)
    assert reduction is not None
    loops = _along(result_loops(reduction, statement.target), 1)
    return _results_traffic(
        kernel.buffer(statement.target.buffer), statement.target, loops, reduction_share(kernel, reduction).group
    )
