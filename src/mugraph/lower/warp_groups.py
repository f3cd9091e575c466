"""Products of warp groups: four warps multiply 64 rows at once, and read the right factor from shared memory as they go on.

The right factor passes through the ring in rows of 128, 64 or 32 bytes whose chunks are exchanged ("swizzled"), which is what
the matrix unit wants for reading rows and columns alike without bank conflicts. Rows go along the dimension that is
contiguous in device memory; rows that are longer are cut into blocks, one block after another. The left factor comes in
registers, wherever it lies, so it may be computed, and have any number of rows. Where it passes through the ring in such rows
as well, the unit reads it there, and threads go on to the next panel while it multiplies: the ring lags behind by one panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from mugraph.devices.products import COLUMNS, ROWS, WARP
from mugraph.ir.graph import Shape
from mugraph.lower import tiles
from mugraph.lower.bulk_copies import row_elements
from mugraph.lower.fragments import WarpTiles, holds_rows, on_matrix_units, split_of
from mugraph.lower.layouts import swizzle_of
from mugraph.lower.memory import lifetimes
from mugraph.lower.panels import elements_of
from mugraph.lower.places import Index
from mugraph.lower.register_reductions import reduction_into
from mugraph.lower.tile_form import Kernel, Matmul, Memory, Panels, Statement, Tile
from mugraph.lower.touched_tiles import touches_registers, touching

GROUP = 4
"""Warps of a group."""
GROUP_ROWS = GROUP * ROWS
SWIZZLES = (128, 64, 32)
"""Bytes of rows, the best first: longer ones are fewer."""
ROW_COUNT = 8
"""Rows after which chunks are exchanged as in the first ones."""
PLACE_BYTES = ROW_COUNT * SWIZZLES[0]
"""Places of right factors start at multiples of it."""
_FEWEST = 16
"""Columns that make the shortest rows: several groups do not share fewer."""
SIZES = (8, 16, 32, 64, 128)
"""Columns that a group multiplies at once: half as many registers of each thread hold sums."""
_FEWEST_STAGES = 3
"""Of a ring that lags: a slot that is read, one that is being filled, and one whose products may still run."""


def with_warp_groups(kernel: Kernel, fewest_rows: int = 1) -> Kernel:
    """The kernel with its products of `fewest_rows` rows or more on warp groups, as far as they can be.

    Sums in registers are shared out alike, so either all products that add to such sums are, or none. A kernel whose ring other
    statements read too is returned as it is.
    """
    ring = kernel.ring
    if ring is None or kernel.threads % (GROUP * WARP) or others_read(kernel, ring.buffer):
        return kernel
    products = [s for s in kernel.statements if isinstance(s, Matmul)]
    streamed = {s: panels for s in products if s.target.shape[-2] >= fewest_rows and (panels := _panels(kernel, s)) is not None}
    if any(touches_registers(kernel, s) and s not in streamed for s in products):
        streamed = {product: panels for product, panels in streamed.items() if not touches_registers(kernel, product)}
    if not streamed:
        return kernel

    def part(statements: Iterable[Statement]) -> tuple[Statement, ...]:
        return tuple(replace(s, panels=streamed[s]) if isinstance(s, Matmul) and s in streamed else s for s in statements)

    changed = replace(kernel, before=part(kernel.before), body=part(kernel.body), after=part(kernel.after))
    return with_slots(changed)


def group_tiles(target: Shape, threads: int) -> WarpTiles | None:
    """How the groups of a block share out the target of a product, a task each; None where they cannot."""
    *batch, rows, columns = target
    bands = -(-rows // GROUP_ROWS)
    together = threads // (GROUP * WARP) // bands
    fitting = (size for size in SIZES if columns % size == 0 and size * together >= columns and size >= min(columns, _FEWEST))
    size = next(fitting, None)
    if size is None or math.prod(batch) > 1:
        return None
    return WarpTiles(1, size // COLUMNS, bands, columns // size, 1, GROUP)


def held_registers(kernel: Kernel) -> int:
    """Registers of a lane that the fragments of products in registers take at most at once: of what is still read, and of what a
    product multiplies; elementwise statements put their results in the place of what nothing reads later."""
    alive, taken = lifetimes(kernel.before, kernel.body, kernel.after), dict[str, int]()
    for buffer in kernel.buffers:
        if buffer.memory is Memory.REGISTERS and reduction_into(kernel, buffer.name) is None:
            tiles = (tile for s in kernel.statements for tile in (s.target, *s.sources) if tile.buffer == buffer.name)
            split = tiles_of(kernel, next(tiles))
            taken[buffer.name] = split.down * split.across * 4
    at_each = (
        sum(size for name, size in taken.items() if alive[name].first <= number < alive[name].last + isinstance(s, Matmul))
        for number, s in enumerate(kernel.statements)
    )
    return max(at_each, default=0)


def tiles_of(kernel: Kernel, tile: Tile) -> WarpTiles:
    """How warps share out a sum in registers: as groups do in kernels that have products of groups with such sums."""
    found = group_tiles(tile.shape, kernel.threads) if groups_hold_sums(kernel) else None
    return found or split_of(kernel, tile)


def groups_hold_sums(kernel: Kernel) -> bool:
    """Whether groups multiply what makes sums in registers, and not only other products."""
    products = (s for s in kernel.statements if isinstance(s, Matmul) and _is_held(kernel, s.target))
    return any(product.panels is not None and product.panels.grouped for product in products)


def sum_registers(kernel: Kernel) -> int:
    """Registers of a lane that sums take at most at once: those that are held, and those of one product beside them."""
    products = (s for s in kernel.statements if isinstance(s, Matmul) and s.panels is not None and on_matrix_units(s))
    splits = (tiles_of(kernel, product.target) for product in products if not _is_held(kernel, product.target))
    return held_registers(kernel) + max((split.down * split.across * 4 for split in splits), default=0)


def with_lag(kernel: Kernel, room: int, most: int) -> Kernel:
    """The kernel with a ring whose products are not waited for before the next panel's are issued, if units read all panels.

    It has one slot more where that is within `room` bytes of shared memory, and as many as it needs within `most`.
    """
    ring = kernel.ring
    products = [s for s in kernel.statements if isinstance(s, Matmul) and s.panels is not None]
    if ring is None or not all(left_in_slot(product) and _are_all_busy(kernel, product) for product in products):
        return kernel
    buffer = kernel.buffer(ring.buffer)
    beside = kernel.shared_bytes - buffer.bytes
    for stages, limit in ((max(ring.stages + 1, _FEWEST_STAGES), room), (max(ring.stages, _FEWEST_STAGES), most)):
        lagging = replace(ring, stages=stages, lag=1)
        if beside + lagging.bytes(buffer.dtype) <= limit:
            larger = replace(buffer, elements=lagging.bytes(buffer.dtype) // buffer.dtype.bytes)
            return replace(kernel, ring=lagging, buffers=tuple(larger if each is buffer else each for each in kernel.buffers))
    return kernel


def left_in_slot(product: Matmul) -> bool:
    """Whether groups read the left factor of a product where it lies in the ring: boxes of rows along k, whole groups of rows."""
    panels = product.panels
    if panels is None or not panels.grouped or not panels.boxed or panels.left is None:
        return False
    return columns_first(panels.left) and panels.left.shape[-2] % GROUP_ROWS == 0


def _are_all_busy(kernel: Kernel, product: Matmul) -> bool:
    """Whether every group of a block has a task: where some branch around products, the assembler may add a wait for each."""
    split = group_tiles(product.target.shape, kernel.threads)
    return split is not None and split.busy * WARP == kernel.threads


def runs_on(kernel: Kernel, product: Matmul) -> bool:
    """Whether what an iteration multiplies may still run in the next one: nothing else in the loop touches the sum."""
    return kernel.ring is not None and kernel.ring.lag > 0 and left_in_slot(product) and adds_alone(kernel, product)


def adds_alone(kernel: Kernel, product: Matmul) -> bool:
    """Whether a product adds to a sum in registers that nothing else in the loop touches."""
    alone = touching(kernel.body, product.target.buffer) == [product]
    return alone and product.accumulate and _is_held(kernel, product.target)


def uses_warp_groups(kernel: Kernel) -> bool:
    """Whether some product of a kernel is on warp groups."""
    return any(isinstance(s, Matmul) and s.panels is not None and s.panels.grouped for s in kernel.statements)


def columns_first(place: Tile) -> bool:
    """Whether the rows of a factor's place go along its columns: of a right factor, not along k."""
    return place.strides[-1] == 1


def blocked(factor: Tile, place: Tile) -> Tile:
    """A factor, or a panel of it, with the dimensions of its place in blocks: blocks of rows before the others."""
    along = -1 if columns_first(place) else -2
    matrix = replace(factor, shape=factor.shape[-2:], strides=factor.strides[-2:])
    split = tiles.split(matrix, along + 2, matrix.shape[along] // row_elements(place))
    return split if along == -2 else tiles.permuted(split, (1, 0, 2))


def _panels(kernel: Kernel, product: Matmul) -> Panels | None:
    """The panels of a product for warp groups, the right factor's first in its slot; None where it cannot be on them."""
    panels, split = product.panels, group_tiles(product.target.shape, kernel.threads)
    if panels is None or panels.right is None or split is None or product.tf32 or not on_matrix_units(product):
        return None
    if touches_registers(kernel, product) and holds_rows(kernel) and split.panels > 1:
        return None
    depth, columns = panels.right.shape[-2:]
    along = columns_first(panels.right)
    run = (split.across * COLUMNS if along else depth) * product.dtype.bytes
    row_bytes = next((size for size in SWIZZLES if run % size == 0), None)
    if row_bytes is None:
        return None
    wide = row_bytes // product.dtype.bytes
    shape = (columns // wide, depth, wide) if along else (depth // wide, wide, columns)
    strides = (depth * wide, wide, 1) if along else (columns * wide, 1, wide)
    right = Tile(panels.right.buffer, shape, strides, swizzle=swizzle_of(row_bytes, product.dtype.bytes))
    left = panels.left and replace(panels.left, start=Index(depth * columns))
    return Panels(depth, left, right, grouped=True)


def with_slots(kernel: Kernel) -> Kernel:
    """The kernel with slots that hold its panels and begin where places in blocks may."""
    assert kernel.ring is not None
    buffer = kernel.buffer(kernel.ring.buffer)
    step = PLACE_BYTES // buffer.dtype.bytes
    largest = max(elements_of(s.panels) for s in kernel.statements if isinstance(s, Matmul) and s.panels is not None)
    ring = replace(kernel.ring, slot=-(-largest // step) * step)
    buffers = (replace(each, elements=ring.stages * ring.slot) if each is buffer else each for each in kernel.buffers)
    return replace(kernel, ring=ring, buffers=tuple(buffers))


def _is_held(kernel: Kernel, tile: Tile) -> bool:
    return kernel.buffer(tile.buffer).memory is Memory.REGISTERS


def grouped_alike(kernel: Kernel) -> bool:
    """Whether groups multiply all products that have a target or a left factor in registers, or none of them: what lies there is
    shared out in one way."""
    held = (s for s in kernel.statements if isinstance(s, Matmul) and touches_registers(kernel, s))
    return len({product.panels is not None and product.panels.grouped for product in held}) < 2


def others_read(kernel: Kernel, buffer: str) -> bool:
    """Whether a statement reads a buffer as an operand, and not as a panel."""
    return any(tile.buffer == buffer for statement in kernel.statements for tile in statement.sources)
