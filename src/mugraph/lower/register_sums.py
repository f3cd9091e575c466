"""Sums of products in registers: what a loop adds to stays in the fragments of the matrix units until the loop ends.

Two kinds of accumulators qualify: one that products add to, and one that a single elementwise statement makes of its
old value and of a product's result, as the rescaled accumulators of an online softmax. There the result stays in
registers too. Elementwise statements that alone read a sum or a product's result may take it from there (`with_epilogues`).
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.devices.products import WARP
from mugraph.lower.fragments import stays_in_registers
from mugraph.lower.scalar_expressions import Constant, Source
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Statement, Tile
from mugraph.lower.tiles import same_elements, same_sizes, with_unit_dimensions
from mugraph.lower.touched_tiles import touching, with_tiles
from mugraph.lower.warp_groups import held_registers

_MOST_REGISTERS = 64
"""Of a thread, for all sums and products that are held at once: more leave too few for what two resident blocks compute."""


def with_register_sums(kernel: Kernel) -> Kernel:
    """The kernel with every accumulator that qualifies in registers, copied out after the loop."""
    for buffer in kernel.buffers:
        if buffer.memory is Memory.SHARED and all(map(_is_zero_fill, touching(kernel.before, buffer.name))):
            target = _summed(kernel, buffer)
            if target is not None:
                kernel = _in_registers(kernel, buffer, target)
                continue
            updated = _updated(kernel, buffer)
            if updated is not None:
                target, term = updated
                kernel = _held(_in_registers(kernel, buffer, target), term.buffer)
    return kernel


def with_epilogues(kernel: Kernel) -> Kernel:
    """The kernel whose elementwise statements read sums and products that they alone read from registers, not from a copy."""
    for copy in kernel.after:
        if _is_copied_out(kernel, copy):
            kernel = _read_from(kernel, copy)
    for product in kernel.statements:
        if isinstance(product, Matmul) and not product.accumulate and stays_in_registers(product, kernel.threads // WARP):
            kernel = _passed_on(kernel, product)
    return kernel


def _is_copied_out(kernel: Kernel, statement: Statement) -> bool:
    """Whether a statement copies a sum in registers to shared memory."""
    copies = isinstance(statement, Elementwise) and statement.combine is None and statement.expression == Source(0)
    if not copies or kernel.buffer(statement.target.buffer).memory is not Memory.SHARED:
        return False
    (source,) = statement.sources
    return kernel.buffer(source.buffer).memory is Memory.REGISTERS


def _read_from(kernel: Kernel, copy: Statement) -> Kernel:
    """The kernel with a sum in registers read in place of its copy, which is left out, if all its readers can."""
    copied, (held,) = copy.target, copy.sources
    readers = _readers(kernel, copy, kernel.after)
    if not readers:
        return kernel
    in_place = {reader: with_tiles(alike, lambda tile: held if tile == copied else tile) for reader, alike in readers.items()}
    return replace(
        kernel,
        buffers=tuple(buffer for buffer in kernel.buffers if buffer.name != copied.buffer),
        after=tuple(in_place.get(statement, statement) for statement in kernel.after if statement != copy),
        tensors=tuple((value, place) for value, place in kernel.tensors if place.buffer != copied.buffer),
    )


def _passed_on(kernel: Kernel, product: Matmul) -> Kernel:
    """The kernel with a product's result in registers, if there is room and all its readers can read it there."""
    parts = (kernel.before, kernel.body, kernel.after) if kernel.loop > 1 else (kernel.statements,)
    readers = _readers(kernel, product, next(part for part in parts if product in part))
    held = _held(kernel, product.target.buffer)
    if kernel.buffer(product.target.buffer).memory is not Memory.SHARED or not readers or held_registers(held) > _MOST_REGISTERS:
        return kernel

    def alike(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(readers.get(statement, statement) for statement in statements)

    return replace(held, before=alike(kernel.before), body=alike(kernel.body), after=alike(kernel.after))


def _readers(kernel: Kernel, writer: Statement, part: tuple[Statement, ...]) -> dict[Statement, Elementwise]:
    """All other statements that touch what a statement writes, as they read it element by element; none where one cannot.

    They come later in the same `part` of the kernel, which runs equally often.
    """
    later = part[part.index(writer) + 1 :]
    found: dict[Statement, Elementwise] = {}
    for statement in touching(kernel.statements, writer.target.buffer):
        if statement != writer:
            alike = _alike(statement, writer.target) if statement in later else None
            if alike is None:
                return {}
            found[statement] = alike
    return found


def _alike(statement: Statement, tile: Tile) -> Elementwise | None:
    """A statement in the dimensions of a tile, if it computes each element of another one from the same element of it."""
    if not isinstance(statement, Elementwise) or statement.combine is not None or statement.target.buffer == tile.buffer:
        return None
    if not same_sizes(statement.target.shape, tile.shape):
        return None

    def in_place(other: Tile) -> Tile:
        alike = with_unit_dimensions(other, tile.shape)
        return tile if same_elements(alike, tile) else alike

    target = with_unit_dimensions(statement.target, tile.shape)
    alike = replace(statement, target=target, sources=tuple(map(in_place, statement.sources)))
    return alike if {source for source in alike.sources if source.buffer == tile.buffer} == {tile} else None


def _summed(kernel: Kernel, buffer: Buffer) -> Tile | None:
    """The tile of an accumulator that products on matrix units, and nothing else, add to inside the loop."""
    products: list[Matmul] = []
    for statement in touching(kernel.body, buffer.name):
        adds = isinstance(statement, Matmul) and statement.accumulate and buffer.name not in _read(statement)
        if not adds or not isinstance(statement, Matmul) or not stays_in_registers(statement, kernel.threads // WARP):
            return None
        products.append(statement)
    targets = {product.target for product in products}
    return targets.pop() if len(targets) == 1 else None


def _updated(kernel: Kernel, buffer: Buffer) -> tuple[Tile, Tile] | None:
    """The tile of an accumulator that one elementwise statement makes of itself and a product's result, and that result."""
    updates = touching(kernel.body, buffer.name)
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
    users = touching(kernel.statements, term.buffer)
    if len(users) != 2 or update not in users or kernel.buffer(term.buffer).memory is not Memory.SHARED:
        return False
    (product,) = (user for user in users if user is not update)
    made = isinstance(product, Matmul) and product in kernel.body and product.target == term and not product.accumulate
    return made and isinstance(product, Matmul) and stays_in_registers(product, kernel.threads // WARP)


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
