"""Sums in registers outside of products: started, rescaled, reduced, copied out, each lane working on the elements it holds, and
on the numbers of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from mugraph.devices.products import ROWS
from mugraph.lower.fragments import WarpTiles, holds_rows, loaded_together, stored_together
from mugraph.lower.parts_of_panels import parted_products
from mugraph.lower.register_reductions import reduction_into
from mugraph.lower.register_rows import numbers_of, rows_of
from mugraph.lower.tile_form import Combine, Elementwise, Kernel, Memory, Reduce, Tile
from mugraph.lower.tiles import with_unit_dimensions
from mugraph.lower.warp_groups import tiles_of
from mugraph.targets.c_text import scaled
from mugraph.targets.cuda.loops import COMBINED
from mugraph.targets.cuda.matrices import (
    FRAGMENT_PLACE,
    covers,
    own_task,
    write_batch_offsets,
    write_each_fragment,
    write_place,
)
from mugraph.targets.cuda.source import KernelText, write_expression
from mugraph.targets.cuda.source import number as number_text


def declare_held(text: KernelText) -> None:
    """Declare the fragments of every buffer in registers, the numbers of their rows, or a thread's part of what a reduction
    finds; sums of which warps have parts start from 0 in each."""
    for buffer in text.kernel.buffers:
        if reduction_into(text.kernel, buffer.name) is not None:
            text.line(f"float {buffer.name};")
        elif buffer.memory is Memory.REGISTERS:
            tiles = (tile for s in text.kernel.statements for tile in (s.target, *s.sources) if tile.buffer == buffer.name)
            split = tiles_of(text.kernel, next(tiles))
            start = " = {}" if any(product.target.buffer == buffer.name for product in parted_products(text.kernel)) else ""
            text.line(f"float {buffer.name}[{split.down}][{split.across}][4]{start};")
        elif buffer.memory is Memory.ROWS:
            text.line(f"float {buffer.name}[{_split_of_numbers(text.kernel, buffer.name).down}][{_HALVES}];")


def _split_of_numbers(kernel: Kernel, name: str) -> WarpTiles:
    """How warps share out the rows of which a buffer has numbers."""
    uses = (numbers_of(s, tile) for s in kernel.statements for tile in (s.target, *s.sources) if tile.buffer == name)
    split = next((split for use in uses if use is not None and (split := rows_of(kernel, use.shape)) is not None), None)
    assert split is not None
    return split


def print_held(text: KernelText, statement: Elementwise) -> None:
    """Write an elementwise statement on sums in registers; its other operands lie in memory, one matrix each."""
    held = _Held(text)
    tiles = (statement.target, *statement.sources)
    split = tiles_of(text.kernel, statement.target)
    rows, columns = statement.target.shape[-2:]
    in_memory = [number for number, tile in enumerate(tiles) if held.in_memory(tile)]
    guarded = not covers(split, statement.target) and any(not held.is_of_rows(tiles[number]) for number in in_memory)
    with text.block():
        for number in in_memory:
            text.pointer(f"x{number}", tiles[number], written=number == 0)
        with text.block(f"if (warp < {split.busy})"):
            held.write_rows(split, rows, {number: tiles[number] for number in in_memory})
            held.declare_pairs(dict(enumerate(statement.sources, 1)))
            together = stored_together(statement.target, text.buffer(statement.target))
            if together > 1:
                text.line(f"float y[{together}];")
            write_each_fragment(text, split)
            with text.block():
                text.line(FRAGMENT_PLACE)
                with text.block(f"if (m < {rows} && n < {columns})" if guarded else ""):
                    sources = [held.element(number, tile) for number, tile in enumerate(statement.sources, 1)]
                    value = write_expression(text, statement.expression, sources)
                    held.store(statement.target, value, together)


def print_rows(text: KernelText, statement: Elementwise) -> None:
    """Write a statement on numbers of rows that lanes hold: all four lanes of a row compute it, and the first stores what lies in
    memory."""
    held, shape = _Held(text), statement.target.shape
    target, *sources = tiles = [with_unit_dimensions(tile, shape) for tile in (statement.target, *statement.sources)]
    split, rows = rows_of(text.kernel, shape[:-1]), shape[-2]
    assert split is not None
    in_memory = {number: tile for number, tile in enumerate(tiles) if held.in_memory(tile)}
    guard = _row_guard(split, rows) if in_memory else ""
    with text.block():
        for number, tile in in_memory.items():
            text.pointer(f"x{number}", tile, written=number == 0)
        with text.block(f"if (warp < {split.busy})"):
            if in_memory:
                held.write_rows(split, rows, in_memory)
            with _each_row(text, split):
                if in_memory:
                    text.line(_ROW_PLACE)
                with text.block(f"if ({guard})" if guard else ""):
                    numbers = [held.number(number, tile) for number, tile in enumerate(sources, 1)]
                    value = write_expression(text, statement.expression, numbers)
                    held.store_number(target, value, "lane % 4 == 0", statement.combine)


def print_row_reduction(text: KernelText, reduction: Reduce) -> None:
    """Write a reduction of rows that lanes hold, four lanes a row; the first of these stores the result, or all keep it."""
    held, target = _Held(text), reduction.target
    row = replace(target, shape=(*target.shape, 1), strides=(*target.strides, 0))
    tiles, shape = (row, *reduction.sources), reduction.sources[0].shape
    split, combined = tiles_of(text.kernel, replace(row, shape=shape)), COMBINED[reduction.combine]
    in_memory = {number: tile for number, tile in enumerate(tiles) if held.in_memory(tile)}
    guard = _row_guard(split, shape[-2])
    by_element = any(number and not held.is_of_rows(tile) for number, tile in in_memory.items())
    with text.block():
        for number, tile in in_memory.items():
            text.pointer(f"x{number}", tile, written=number == 0)
        with text.block(f"if (warp < {split.busy})"):
            held.write_rows(split, shape[-2], in_memory)
            text.line(f"float total[{split.down}][{_HALVES}];")
            with _each_row(text, split):
                text.line(f"total[i][r] = {number_text(reduction.combine.identity)};")
            held.declare_pairs(dict(enumerate(reduction.sources, 1)))
            write_each_fragment(text, split)
            with text.block():
                text.line(FRAGMENT_PLACE)
                with text.block(f"if ({guard})" if guard and by_element else ""):
                    sources = [held.element(number, tile) for number, tile in enumerate(reduction.sources, 1)]
                    value = write_expression(text, reduction.expression, sources)
                    text.line(f"total[i][h / 2] = {combined.format('total[i][h / 2]', value)};")
            with _each_row(text, split):
                for lanes in _LANES_OF_ROW:
                    text.line(f"total[i][r] = {combined.format('total[i][r]', f'shfl_xor(total[i][r], {lanes})')};")
                if held.in_memory(row):
                    text.line(_ROW_PLACE)
                stores = " && ".join(["lane % 4 == 0", *([guard] if guard else [])])
                held.store_number(row, "total[i][r]", stores, reduction.combine if reduction.accumulate else None)


_HALVES, _LANES_OF_ROW = 2, (1, 2)
"""Rows of a tile that a lane holds elements of; what the number of a lane is changed by to meet the others of its row."""
_ROW_PLACE = f"const int m = m0 + {ROWS} * i + lane / 4 + 8 * r;"
"""Declares row r of the lane's in band i."""


def _row_guard(split: WarpTiles, rows: int) -> str:
    """The condition under which row m is one of so many; "" where the warps have no others."""
    return "" if split.bands * split.down * split.warps * ROWS == rows else f"m < {rows}"


@contextmanager
def _each_row(text: KernelText, split: WarpTiles) -> Iterator[None]:
    """A loop over the rows i, r of which a lane holds elements."""
    for name, count in (("i", split.down), ("r", _HALVES)):
        text.line("#pragma unroll")
        text.line(f"for (int {name} = 0; {name} < {count}; ++{name})")
    with text.block():
        yield


class _Held:
    """Elements of tiles as the text of a lane's fragment loop names them."""

    def __init__(self, text: KernelText) -> None:
        self.text = text

    def holds(self, tile: Tile) -> bool:
        return self.text.buffer(tile).memory is Memory.REGISTERS

    def in_memory(self, tile: Tile) -> bool:
        return not self.text.buffer(tile).memory.in_registers

    def address(self, number: int, tile: Tile) -> str:
        terms = [f"x{number}_batch", scaled(tile.strides[-2], "m"), scaled(tile.strides[-1], "n")]
        return self.text.element(f"x{number}", tile, terms)

    def write_rows(self, split: WarpTiles, rows: int, in_memory: Mapping[int, Tile]) -> None:
        """Declare where the warp's rows begin, and load what sources in memory have for each of `rows` whole rows."""
        text = self.text
        write_place(text, split, own_task(split))
        write_batch_offsets(text, {f"x{number}": tile for number, tile in in_memory.items()})
        repeated = {number: tile for number, tile in in_memory.items() if number and self.is_of_rows(tile)}
        for number in repeated:
            text.line(f"float of_row{number}[{split.down}][{_HALVES}];")
        if repeated:
            with _each_row(text, split):
                text.line(_ROW_PLACE)
                guard = _row_guard(split, rows)
                with text.block(f"if ({guard})" if guard else ""):
                    for number, tile in repeated.items():
                        text.line(f"of_row{number}[i][r] = {text.loaded(tile, self.address(number, tile))};")

    def store(self, target: Tile, value: str, together: int) -> None:
        """Write element h of a fragment of the target, or, with the last of `together` neighbours, all of them at once."""
        if self.holds(target):
            self.text.line(f"{target.buffer}[i][j][h] = {value};")
            return
        address = self.address(0, target)
        if together == 1:
            self.text.store(target, address, value)
            return
        self.text.line(f"y[h % {together}] = {value};")
        with self.text.block(f"if (h % {together} == {together - 1})"):
            self.text.store_run(target, f"{address} - {together - 1}", "y", together, target.strides[:-1])

    def store_number(self, target: Tile, value: str, stores: str, combine: Combine | None) -> None:
        """Write the number of row i, r of the target, or combine it with the one that is there; in memory by the lane that
        `stores`, a condition."""
        in_memory = self.in_memory(target)
        address = self.address(0, target) if in_memory else ""
        old = self.text.loaded(target, address) if in_memory else f"{target.buffer}[i][r]"
        new = value if combine is None else COMBINED[combine].format(old, value)
        with self.text.block(f"if ({stores})" if in_memory and stores else ""):
            if in_memory:
                self.text.store(target, address, new)
            else:
                self.text.line(f"{old} = {new};")

    def number(self, number: int, tile: Tile) -> str:
        """The text of the number of row i, r of a source."""
        return f"of_row{number}[i][r]" if self.in_memory(tile) else f"{tile.buffer}[i][r]"

    def element(self, number: int, tile: Tile) -> str:
        """The text of element h of a fragment of a source; with the first of two neighbours that lie together, load both."""
        if self.holds(tile):
            return f"{tile.buffer}[i][j][h]"
        if not self.in_memory(tile):
            return f"{tile.buffer}[i][h / 2]"
        if self.is_of_rows(tile):
            return f"of_row{number}[i][h / 2]"
        if not self.comes_in_pairs(tile):
            return self.text.loaded(tile, self.address(number, tile))
        with self.text.block("if (h % 2 == 0)"):
            self.text.load_run(f"pair{number}", tile, self.address(number, tile), 2, tile.strides[:-1])
        return f"pair{number}[h % 2]"

    def is_of_rows(self, tile: Tile) -> bool:
        """Whether a source repeats along rows that warps hold as a whole: of what lies in memory each lane loads it once."""
        return tile.strides[-1] == 0 and holds_rows(self.text.kernel)

    def comes_in_pairs(self, tile: Tile) -> bool:
        """Whether a lane loads two elements of a source at once."""
        return self.in_memory(tile) and loaded_together(tile, self.text.buffer(tile)) > 1

    def declare_pairs(self, sources: Mapping[int, Tile]) -> None:
        """Declare registers for two neighbours of each source that has such."""
        for number, tile in sources.items():
            if self.comes_in_pairs(tile):
                self.text.line(f"float pair{number}[2];")
