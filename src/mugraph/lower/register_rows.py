"""Rows in registers: what scores are reduced to, and what follows of it row by row, stays with the lanes that hold the row.

Four lanes hold a row of what lies in fragments (`register_scores.py`), and after two shuffles all four know its maximum or sum.
So they all compute what is made of that, one number for each row, as the factors of an online softmax are, and take these where
they multiply elements of the row. Nothing is stored, so nobody waits for it. What lies in memory is stored by the first of them.

A buffer of a number for each row qualifies where such lanes run every statement that touches it: reductions of rows, elementwise
statements on such numbers alone, and those on fragments that read a number for all of its row. Where only statements behind the
loop are of other kinds, the numbers are copied out for these, as sums of products are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower.fragments import WarpTiles, takes_left_from_registers
from mugraph.lower.places import Index
from mugraph.lower.register_reductions import reduces_fragments
from mugraph.lower.scalar_expressions import Source
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.tiles import same_elements, same_sizes, with_unit_dimensions
from mugraph.lower.touched_tiles import touching, with_tiles
from mugraph.lower.warp_groups import tiles_of


def with_register_rows(kernel: Kernel) -> Kernel:
    """The kernel with every buffer that qualifies in registers, for the rows of each left factor that lies there."""
    for shape in dict.fromkeys(left.shape[:-1] for left in _held_left_factors(kernel)):
        kernel = _of_rows(kernel, shape)
    return kernel


def rows_of(kernel: Kernel, shape: Shape) -> WarpTiles | None:
    """How warps share out rows [*matrices, rows] of what lies in registers; None where no product takes its left factor in such
    rows from there."""
    return next((tiles_of(kernel, left) for left in _held_left_factors(kernel) if left.shape[:-1] == shape), None)


def works_on_rows(kernel: Kernel, statement: Statement) -> bool:
    """Whether a statement computes a number for each row in registers, of such numbers and of what lies in memory."""
    memories = {kernel.buffer(tile.buffer).memory for tile in (statement.target, *statement.sources)}
    return Memory.ROWS in memories and Memory.REGISTERS not in memories


def may_hold_rows(kernel: Kernel, name: str) -> bool:
    """Whether lanes that hold rows of fragments can run all statements that touch a buffer, each with its own rows' numbers."""
    users = touching(kernel.statements, name)
    uses = [numbers_of(statement, tile) for statement in users for tile in _tiles(statement) if tile.buffer == name]
    numbers = [use for use in uses if use is not None and _is_whole(kernel.buffer(name), use)]
    alike = 0 < len(numbers) == len(uses) and all(same_elements(each, numbers[0]) for each in numbers)
    return alike and all(_runs_by_rows(kernel, statement, name) for statement in users)


def numbers_of(statement: Statement, tile: Tile) -> Tile | None:
    """A tile without the dimension along rows, as a statement uses it; None where it has several numbers for one."""
    if isinstance(statement, Reduce) and tile.shape == statement.target.shape:
        return tile
    repeats = tile.rank > 0 and (tile.shape[-1] == 1 or tile.strides[-1] == 0)
    return replace(tile, shape=tile.shape[:-1], strides=tile.strides[:-1]) if repeats else None


def _runs_by_rows(kernel: Kernel, statement: Statement, name: str) -> bool:
    """Whether lanes that hold rows run a statement, which gives a buffer of their numbers no more than one for each."""
    match statement:
        case Elementwise():
            shape, fragments = statement.target.shape[:-1], _fragments(kernel, statement)
            fits = statement.target.buffer != name if fragments else _computes_numbers(kernel, statement, name)
        case Reduce():
            shape, fragments = statement.target.shape, _fragments(kernel, statement)
            fits = reduces_fragments(kernel, statement)
        case _:
            return False
    split = rows_of(kernel, shape)
    return fits and split is not None and all(_alike(tiles_of(kernel, tile), split) for tile in fragments)


def _computes_numbers(kernel: Kernel, statement: Elementwise, name: str) -> bool:
    """Whether a statement computes a number for each row, which no lane reads in memory while another one stores it."""
    target = statement.target
    kept = target.buffer == name or kernel.buffer(target.buffer).memory is Memory.ROWS
    apart = kept or (statement.combine is None and all(source.buffer != target.buffer for source in statement.sources))
    return target.shape[-1:] == (1,) and apart


def _alike(first: WarpTiles, second: WarpTiles) -> bool:
    """Whether two splits give each lane the same whole rows."""
    return first.panels == second.panels == 1 and replace(first, across=second.across) == second


def _is_whole(buffer: Buffer, numbers: Tile) -> bool:
    """Whether a tile is all of a buffer of fp32, where lanes may keep elements apart from each other."""
    if numbers.start != Index() or numbers.swizzle is not None or numbers.lookup is not None:
        return False
    return math.prod(numbers.shape) == buffer.elements and buffer.dtype is DType.FP32


def _fragments(kernel: Kernel, statement: Statement) -> list[Tile]:
    return [tile for tile in _tiles(statement) if kernel.buffer(tile.buffer).memory is Memory.REGISTERS]


def _held_left_factors(kernel: Kernel) -> list[Tile]:
    return [s.left for s in kernel.statements if isinstance(s, Matmul) and takes_left_from_registers(kernel, s)]


def _tiles(statement: Statement) -> tuple[Tile, ...]:
    return (statement.target, *statement.sources)


def _of_rows(kernel: Kernel, shape: Shape) -> Kernel:
    """The kernel with all buffers that qualify for rows of `shape` in registers, one after the other, as long as more do."""
    held, names = _with_one_column(kernel, shape), [buffer.name for buffer in kernel.buffers if _may_move(buffer, shape)]
    unchanged = held
    while (found := next(filter(None, (_in_registers(held, name) for name in names)), None)) is not None:
        held = found
    return kernel if held is unchanged else held


def _may_move(buffer: Buffer, shape: Shape) -> bool:
    """Whether a buffer is the block's own, and as large as there are rows."""
    return buffer.memory is Memory.SHARED and buffer.elements == math.prod(shape)


def _with_one_column(kernel: Kernel, shape: Shape) -> Kernel:
    """The kernel with its elementwise statements on numbers for rows in the dimensions of these, and one of size 1."""

    def alike(statement: Statement) -> Statement:
        of_numbers = isinstance(statement, Elementwise) and same_sizes(statement.target.shape, shape)
        if not of_numbers or _fragments(kernel, statement):
            return statement
        return with_tiles(statement, lambda tile: with_unit_dimensions(tile, (*shape, 1)))

    before, body, after = (tuple(map(alike, part)) for part in (kernel.before, kernel.body, kernel.after))
    return replace(kernel, before=before, body=body, after=after)


def _in_registers(kernel: Kernel, name: str) -> Kernel | None:
    """The kernel with a buffer in registers, if need be up to the end of the loop; None where it does not qualify or is there."""
    buffer = kernel.buffer(name)
    if buffer.memory is not Memory.SHARED:
        return None
    if may_hold_rows(kernel, name):
        moved = replace(buffer, memory=Memory.ROWS)
        return replace(kernel, buffers=tuple(moved if each is buffer else each for each in kernel.buffers))
    copied = _copied_out(kernel, buffer)
    return copied if copied is not None and may_hold_rows(copied, _held_name(name)) else None


def _copied_out(kernel: Kernel, buffer: Buffer) -> Kernel | None:
    """The kernel with another buffer in registers up to the end of the loop, from where its numbers go to this one; None where
    the loop does not touch it."""
    uses = (numbers_of(statement, tile) for statement in kernel.body for tile in _tiles(statement) if tile.buffer == buffer.name)
    numbers = next((use for use in uses if use is not None), None)
    if kernel.loop == 1 or numbers is None:
        return None
    column = replace(numbers, shape=(*numbers.shape, 1), strides=(*numbers.strides, 0))

    def renamed(tile: Tile) -> Tile:
        return replace(tile, buffer=_held_name(buffer.name)) if tile.buffer == buffer.name else tile

    return replace(
        kernel,
        buffers=(*kernel.buffers, replace(buffer, name=_held_name(buffer.name), memory=Memory.ROWS)),
        before=tuple(with_tiles(statement, renamed) for statement in kernel.before),
        body=tuple(with_tiles(statement, renamed) for statement in kernel.body),
        after=(Elementwise(column, (renamed(column),), Source(0)), *kernel.after),
        tensors=tuple((value, place) for value, tile in kernel.tensors for place in dict.fromkeys((renamed(tile), tile))),
    )


def _held_name(name: str) -> str:
    return f"{name}_held"
