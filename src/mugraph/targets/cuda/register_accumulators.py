"""Sums in registers outside of products: started, rescaled, copied out, each lane working on the elements it holds."""

from __future__ import annotations

from mugraph.lower.fragments import stored_together
from mugraph.lower.parts_of_panels import parted_products
from mugraph.lower.register_reductions import reduction_into
from mugraph.lower.tile_form import Elementwise, Memory, Tile
from mugraph.lower.warp_groups import tiles_of
from mugraph.targets.c_text import scaled
from mugraph.targets.cuda.matrices import (
    FRAGMENT_PLACE,
    covers,
    own_task,
    write_batch_offsets,
    write_each_fragment,
    write_place,
)
from mugraph.targets.cuda.source import KernelText, write_expression


def declare_held_sums(text: KernelText) -> None:
    """Declare the fragments of every buffer in registers, or a thread's part of what a reduction finds; sums of which warps have
    parts start from 0 in each."""
    for buffer in text.kernel.buffers:
        if reduction_into(text.kernel, buffer.name) is not None:
            text.line(f"float {buffer.name};")
        elif buffer.memory is Memory.REGISTERS:
            tiles = (tile for s in text.kernel.statements for tile in (s.target, *s.sources) if tile.buffer == buffer.name)
            split = tiles_of(text.kernel, next(tiles))
            start = " = {}" if any(product.target.buffer == buffer.name for product in parted_products(text.kernel)) else ""
            text.line(f"float {buffer.name}[{split.down}][{split.across}][4]{start};")


def touches_registers(text: KernelText, statement: Elementwise) -> bool:
    """Whether a statement reads or writes sums in registers."""
    return any(map(_Held(text).holds, (statement.target, *statement.sources)))


def print_held(text: KernelText, statement: Elementwise) -> None:
    """Write an elementwise statement on sums in registers; its other operands lie in memory, one matrix each."""
    held = _Held(text)
    tiles = (statement.target, *statement.sources)
    split = tiles_of(text.kernel, statement.target)
    rows, columns = statement.target.shape[-2:]
    in_memory = [number for number, tile in enumerate(tiles) if not held.holds(tile)]
    guarded = in_memory and not covers(split, statement.target)
    with text.block():
        for number in in_memory:
            text.pointer(f"x{number}", tiles[number], written=number == 0)
        with text.block(f"if (warp < {split.busy})"):
            write_place(text, split, own_task(split))
            write_batch_offsets(text, {f"x{number}": tiles[number] for number in in_memory})
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


class _Held:
    """Elements of tiles as the text of a lane's fragment loop names them."""

    def __init__(self, text: KernelText) -> None:
        self.text = text

    def holds(self, tile: Tile) -> bool:
        return self.text.buffer(tile).memory is Memory.REGISTERS

    def address(self, number: int, tile: Tile) -> str:
        terms = [f"x{number}_batch", scaled(tile.strides[-2], "m"), scaled(tile.strides[-1], "n")]
        return self.text.element(f"x{number}", tile, terms)

    def store(self, target: Tile, value: str, together: int) -> None:
        """Write element h of a fragment of the target, or, with the last of `together` neighbours, all of them at once."""
        if self.holds(target):
            self.text.line(f"{target.buffer}[i][j][h] = {value};")
            return
        address, dtype = self.address(0, target), self.text.dtype(target)
        if together == 1:
            self.text.line(f"*({address}) = from_float<{dtype}_t>({value});")
            return
        self.text.line(f"y[h % {together}] = {value};")
        with self.text.block(f"if (h % {together} == {together - 1})"):
            self.text.line(f"store_run<{dtype}_t, {together}>({address} - {together - 1}, y);")

    def element(self, number: int, tile: Tile) -> str:
        return f"{tile.buffer}[i][j][h]" if self.holds(tile) else f"to_float(*({self.address(number, tile)}))"
