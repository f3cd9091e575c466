"""Sums of products in registers: what a loop adds to stays in the fragments of the matrix units until the loop ends.

Two kinds of accumulators qualify: one that products add to, and one that a single elementwise statement makes of its
old value and of a product's result, as the rescaled accumulators of an online softmax. There the result stays in
registers too.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower.expressions import Constant, Source
from mugraph.lower.fragments import WARP, stays_in_registers
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Statement, Tile, with_tiles


def with_register_sums(kernel: Kernel) -> Kernel:
    """The kernel with every accumulator that qualifies in registers, copied out after the loop."""
    for buffer in kernel.buffers:
        if buffer.memory is Memory.SHARED and all(map(_is_zero_fill, _touching(kernel.before, buffer))):
            target = _summed(kernel, buffer)
            if target is not None:
                kernel = _in_registers(kernel, buffer, target)
                continue
            updated = _updated(kernel, buffer)
            if updated is not None:
                target, term = updated
                kernel = _held(_in_registers(kernel, buffer, target), term.buffer)
    return kernel


def _summed(kernel: Kernel, buffer: Buffer) -> Tile | None:
    """The tile of an accumulator that products on matrix units, and nothing else, add to inside the loop."""
    products: list[Matmul] = []
    for statement in _touching(kernel.body, buffer):
        adds = isinstance(statement, Matmul) and statement.accumulate and buffer.name not in _read(statement)
        if not adds or not isinstance(statement, Matmul) or not stays_in_registers(statement, kernel.threads // WARP):
            return None
        products.append(statement)
    targets = {product.target for product in products}
    return targets.pop() if len(targets) == 1 else None


def _updated(kernel: Kernel, buffer: Buffer) -> tuple[Tile, Tile] | None:
    """The tile of an accumulator that one elementwise statement makes of itself and a product's result, and that result."""
    updates = _touching(kernel.body, buffer)
    if len(updates) != 1 or not isinstance(updates[0], Elementwise) or updates[0].combine is not None:
        return None
    (update,) = updates
    own = [tile for tile in update.sources if tile.buffer == buffer.name]
    if update.target.buffer != buffer.name or own != [update.target]:
        return None
    for term in update.sources:
        if _is_only_result(kernel, term, update):
            return update.target, term
    return None


def _is_only_result(kernel: Kernel, term: Tile, update: Statement) -> bool:
    """Whether a tile is all that a product gives, which registers can hold and `update` alone reads."""
    users = _touching(kernel.statements, kernel.buffer(term.buffer))
    if len(users) != 2 or update not in users or kernel.buffer(term.buffer).memory is not Memory.SHARED:
        return False
    (product,) = (user for user in users if user is not update)
    made = isinstance(product, Matmul) and product in kernel.body and product.target == term and not product.accumulate
    return made and isinstance(product, Matmul) and stays_in_registers(product, kernel.threads // WARP)


def _touching(statements: tuple[Statement, ...], buffer: Buffer) -> list[Statement]:
    return [s for s in statements if buffer.name == s.target.buffer or buffer.name in _read(s)]


def _read(statement: Statement) -> set[str]:
    return {tile.buffer for tile in statement.sources}


def _is_zero_fill(statement: Statement) -> bool:
    return isinstance(statement, Elementwise) and not statement.sources and statement.expression == Constant(0.0)


def _in_registers(kernel: Kernel, buffer: Buffer, target: Tile) -> Kernel:
    """The kernel with an accumulator in registers up to the end of the loop, and from there in its buffer."""
    held = replace(buffer, name=f"{buffer.name}_held", memory=Memory.REGISTERS)

    def renamed(tile: Tile) -> Tile:
        return replace(tile, buffer=held.name) if tile.buffer == buffer.name else tile

    def filled(statement: Statement) -> Statement:
        """A fill with zeros as the fragments of the sum; all else as it is."""
        return replace(statement, target=renamed(target)) if statement.target.buffer == buffer.name else statement

    return replace(
        kernel,
        buffers=(*kernel.buffers, held),
        before=tuple(map(filled, kernel.before)),
        body=tuple(with_tiles(statement, renamed) for statement in kernel.body),
        after=(Elementwise(target, (renamed(target),), Source(0)), *kernel.after),
        tensors=tuple((value, place) for value, tile in kernel.tensors for place in dict.fromkeys((renamed(tile), tile))),
    )


def _held(kernel: Kernel, name: str) -> Kernel:
    """The kernel with a buffer in registers."""
    buffers = (replace(b, memory=Memory.REGISTERS) if b.name == name else b for b in kernel.buffers)
    return replace(kernel, buffers=tuple(buffers))
