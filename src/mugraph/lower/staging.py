"""Inputs on their way before they are needed: what a loop reads beside its products, and what a kernel without a loop reads late.

A statement that loads a tile of device memory itself waits for it, and with it its whole block: the ring is full meanwhile, and
then memory is idle. Such tiles are copied like panels, asynchronously, to slots of their own: while one is read, others are
filled.

The copies for iteration l are issued together with those of the panel before its first one, panel l P - 1 where an iteration has
P, so who has waited for that panel has waited for them too. It is fetched behind the barrier before panel l P - stages is used,
in iteration l - a with a = ceil(stages / P): all threads have done with iterations before that one. So a slots may still be
read, and with one more, a + 1, none is filled too early.

Without a loop, tiles that are first read behind a barrier are copied from the start, so that their way through memory does not
begin when they are needed. They have one slot, and are waited for at the last barrier before their first reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mugraph.devices.copies import COPY_BYTES
from mugraph.lower import tiles
from mugraph.lower.memory import whole_bytes
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Staged, Statement, Tile

_MOST_COPIES = 4
"""Of a thread, for a tile that is read late: with more, the copies themselves hold up what is read first."""


def with_staged_inputs(kernel: Kernel, room: int) -> Kernel:
    """The kernel with the tiles staged that its loop reads anew in every iteration, the largest first, within `room` bytes.

    A kernel without a ring in its loop is returned as it is.
    """
    if kernel.ring is None or kernel.loop == 1 or not panels_of_iteration(kernel):
        return kernel
    readers = (statement for statement in kernel.body if not isinstance(statement, Matmul))
    changing = {merged_in_memory(source) for reader in readers for source in reader.sources if _arrives_alone(kernel, source)}
    order = sorted(changing, key=lambda tile: (tile.buffer, tile.start.parts, tile.shape, tile.strides))
    largest_first = sorted(order, key=lambda tile: -math.prod(tile.shape))
    return _with_staged(kernel, largest_first, room)


def with_early_inputs(kernel: Kernel, room: int) -> Kernel:
    """The kernel, whose barriers are known, with the tiles staged that it first reads behind one, within `room` bytes.

    A kernel with a loop or a ring is returned as it is.
    """
    if kernel.ring is not None or kernel.loop > 1 or not kernel.barriers:
        return kernel
    first = min(kernel.barriers)
    early = {merged_in_memory(source) for statement in kernel.statements[:first] for source in statement.sources}
    readers = (statement for statement in kernel.statements[first:] if not isinstance(statement, Matmul))
    late = (merged_in_memory(source) for reader in readers for source in reader.sources if _comes_in_copies(kernel, source))
    few = kernel.threads * COPY_BYTES * _MOST_COPIES
    return _with_staged(kernel, (tile for tile in dict.fromkeys(late) if tile not in early), room, few)


def _with_staged(kernel: Kernel, candidates: Iterable[Tile], room: int, most: int | None = None) -> Kernel:
    """The kernel with those of some tiles staged, in their order, that fit into `room` bytes and take at most `most`."""
    staged: dict[Tile, str] = {}
    buffers = list(kernel.buffers)
    for tile in candidates:
        dtype = kernel.buffer(tile.buffer).dtype
        buffer = Buffer(f"staged{len(staged)}", Memory.SHARED, dtype, slots(kernel) * math.prod(tile.shape))
        size = whole_bytes(buffer.bytes)
        if size <= room and (most is None or size <= most):
            staged[tile] = buffer.name
            buffers.append(buffer)
            room -= size
    if not staged:
        return kernel
    before, body, after = (tuple(_from_slots(s, staged) for s in part) for part in (kernel.before, kernel.body, kernel.after))
    places = tuple(Staged(name, tile) for tile, name in staged.items())
    return replace(kernel, before=before, body=body, after=after, buffers=tuple(buffers), staged=places)


def arrival(kernel: Kernel) -> int | None:
    """The number of the barrier at which a kernel without a ring waits for what is staged; None where no such barrier stands."""
    names = {staged.buffer for staged in kernel.staged}
    readers = (n for n, statement in enumerate(kernel.statements) if any(tile.buffer in names for tile in statement.sources))
    first = next(readers, None)
    return None if first is None else max((barrier for barrier in kernel.barriers if barrier <= first), default=None)


def panels_of_iteration(kernel: Kernel) -> int:
    """Panels that pass through the ring in one iteration."""
    return panels_of(kernel.body)


def panels_of(statements: Sequence[Statement]) -> int:
    """Panels that pass through the ring for some statements, each run once."""
    products = [s for s in statements if isinstance(s, Matmul)]
    return sum(product.left.shape[-1] // product.panels.depth for product in products if product.panels is not None)


def panels_of_kernel(kernel: Kernel) -> int:
    """Panels that pass through the ring in all."""
    return panels_of(kernel.before) + panels_of_iteration(kernel) * kernel.loop + panels_of(kernel.after)


def slots(kernel: Kernel) -> int:
    """Slots for each staged input: one without a ring."""
    if kernel.ring is None:
        return 1
    return 1 + math.ceil(kernel.ring.stages / panels_of_iteration(kernel))


def _arrives_alone(kernel: Kernel, tile: Tile) -> bool:
    """Whether a tile is another one in every iteration, and comes in whole copies."""
    return tile.start.loop != 0 and _comes_in_copies(kernel, tile)


def _comes_in_copies(kernel: Kernel, tile: Tile) -> bool:
    """Whether a tile is an input's, whose innermost rows are whole copies."""
    if tile.buffer not in kernel.inputs:
        return False
    dense, run = merged_in_memory(tile), COPY_BYTES // kernel.buffer(tile.buffer).dtype.bytes
    moving = [stride for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1 and stride]
    if not dense.shape or dense.strides[-1] != 1 or dense.shape[-1] % run or len(set(moving)) < len(moving):
        return False
    return tiles.alignment(dense, run, -1) == run


def merged_in_memory(tile: Tile) -> Tile:
    """The elements of a tile once each, its dimensions in the order of their strides and joined where they line up."""
    steps = [(stride, size) for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1 and stride]
    steps.sort(reverse=True)
    sizes, strides = tuple(size for _, size in steps), tuple(stride for stride, _ in steps)
    joined = tiles.merged(replace(tile, shape=sizes, strides=strides))
    return replace(tile, shape=tuple(size for size, _ in joined), strides=tuple(stride for _, stride in joined))


def _from_slots(statement: Statement, names: dict[Tile, str]) -> Statement:
    if isinstance(statement, Matmul):
        return statement
    return replace(statement, sources=tuple(_slot(source, names) for source in statement.sources))


def _slot(tile: Tile, names: dict[Tile, str]) -> Tile:
    """The tile where it is staged, from the slot's first element on; as it is where it is not."""
    dense = merged_in_memory(tile)
    if dense not in names:
        return tile
    steps = tuple(zip(dense.strides, tiles.row_major(dense.shape), strict=True))

    def moved(stride: int) -> int:
        """A step in the slot: of the dimension with the longest steps that are no longer."""
        device, shared = next((device, shared) for device, shared in steps if device <= stride)
        return stride // device * shared

    strides = tuple(moved(stride) if size > 1 and stride else 0 for size, stride in zip(tile.shape, tile.strides, strict=True))
    return replace(tile, buffer=names[dense], strides=strides, start=Index())
