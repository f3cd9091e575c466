"""Factors of products as streams: panels of a few values of k pass through a ring of slots in shared memory.

One ring serves all products of a kernel and all iterations of its loop, so a panel of the next product, or of the next
iteration, is on its way while this one is multiplied. Each panel has rows as in device memory, plain, swizzled or padded:
whatever it takes fewest wavefronts to copy it there and to read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mugraph.devices.copies import COPY_BYTES, MOST_STAGES, PANEL_BYTES, WHOLE_BYTES
from mugraph.devices.products import in_whole_copies, least_depth, step_of_depth
from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.fragments import product_tiles, sizes_of, sums_stay_in_registers, takes_left_from_registers
from mugraph.lower.memory import beside_another
from mugraph.lower.panels import elements_of, laid_out, others_read, with_shared_panels
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Panels, Ring, Statement, Tile

RING = "ring"


def with_streams(kernel: Kernel, shared_bytes: int, alone: bool = False, whole_rows: bool = False) -> Kernel:
    """The kernel with the factors of its products streamed, as deep as `shared_bytes` of shared memory allow.

    A block `alone` on its multiprocessor has nobody who computes while it waits: its panels may be deeper, and it takes all the
    memory; others leave room for a second block where two slots need no more. With `whole_rows`, rows of panels are not swizzled,
    so that one copy may move a whole row.
    A kernel whose products cannot stream, or whose other buffers leave no room for two slots, is returned as it is.
    """
    dtype = _streamed_type(kernel)
    if dtype is None:
        return kernel
    if alone:
        deep = _with_panels(kernel, dtype, 2 * PANEL_BYTES - 1, shared_bytes, whole_rows)
        return deep or _with_panels(kernel, dtype, PANEL_BYTES, shared_bytes, whole_rows) or kernel
    half = max(beside_another(shared_bytes), kernel.shared_bytes)
    return (
        _with_panels(kernel, dtype, PANEL_BYTES, half, whole_rows)
        or _with_panels(kernel, dtype, PANEL_BYTES, shared_bytes, whole_rows, most=2)
        or kernel
    )


def _with_panels(
    kernel: Kernel, dtype: DType, size: int, shared_bytes: int, whole_rows: bool, most: int = MOST_STAGES
) -> Kernel | None:
    """The kernel with a ring for panels of about `size` bytes and `most` stages, None where there is no room for two of them."""
    largest = max(elements_of(panels) for panels in _all_panels(_streamed(kernel, dtype, size, whole_rows)))
    # Slots have one size: smaller panels would leave theirs half empty.
    streamed = _streamed(kernel, dtype, largest * dtype.bytes, whole_rows)
    slot = max(elements_of(panels) for panels in _all_panels(streamed))
    steps = sum(
        product.left.shape[-1] // product.panels.depth * times
        for part, times in ((streamed.before, 1), (streamed.body, kernel.loop), (streamed.after, 1))
        for product in part
        if isinstance(product, Matmul) and product.panels is not None
    )
    stages = min(most, steps + 1, (shared_bytes - kernel.shared_bytes) // (slot * dtype.bytes))
    if stages < 2:
        return None
    ring = Buffer(RING, Memory.SHARED, dtype, stages * slot)
    return with_shared_panels(replace(streamed, buffers=(*kernel.buffers, ring), ring=Ring(RING, stages, slot)))


def _streamed_type(kernel: Kernel) -> DType | None:
    """The type of the products that stream: slots have one, that of most elements; None where no product can stream."""
    elements: dict[DType, int] = {}
    for product in kernel.statements:
        if isinstance(product, Matmul) and _panels(kernel, product) is not None:
            size = math.prod(product.left.shape) + math.prod(product.right.shape)
            elements[product.dtype] = elements.get(product.dtype, 0) + size
    return max(elements, key=elements.__getitem__, default=None)


def _streamed(kernel: Kernel, dtype: DType, size: int, whole_rows: bool) -> Kernel:
    """The kernel with panels of about `size` bytes wherever products of a type can stream."""

    def streamed(product: Matmul) -> Matmul:
        panels = _panels(kernel, product, size) if product.dtype is dtype else None
        if panels is None:
            return product
        return replace(product, panels=laid_out(product, panels, product_tiles(kernel, product), whole_rows))

    def part(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(streamed(s) if isinstance(s, Matmul) else s for s in statements)

    return replace(kernel, before=part(kernel.before), body=part(kernel.body), after=part(kernel.after))


def _all_panels(kernel: Kernel) -> Iterator[Panels]:
    for statement in kernel.statements:
        if isinstance(statement, Matmul) and statement.panels is not None:
            yield statement.panels


def _panels(kernel: Kernel, product: Matmul, size: int = PANEL_BYTES) -> Panels | None:
    """How a product's factors stream; None where they cannot: not in device memory, too many sums, not aligned."""
    if not (sums_stay_in_registers(product, kernel.threads) or takes_left_from_registers(kernel, product)):
        return None
    candidates: list[Panels] = []
    step = int(step_of_depth(sizes_of(product)))
    for depth in range(step, product.left.shape[-1] + 1, step):
        if product.left.shape[-1] % depth == 0:
            left = _panel(kernel, product, product.left, -1, depth)
            right = _panel(kernel, product, product.right, -2, depth)
            if (left, right) == (None, None):
                return None
            candidates.append(Panels(depth, left, right))
    whole = candidates[-1:]
    if any(tile and others_read(kernel, f) for p in whole for tile, f in ((p.left, product.left), (p.right, product.right))):
        candidates = whole if _plain_elements(whole[0]) * product.dtype.bytes <= WHOLE_BYTES else candidates
    return _best(candidates, product, size)


def _plain_elements(panels: Panels) -> int:
    return sum(math.prod(tile.shape) for tile in (panels.left, panels.right) if tile is not None)


def _best(candidates: Sequence[Panels], product: Matmul, size: int) -> Panels | None:
    """The deepest panels of `size` bytes; deeper ones where their rows would be too short, which go along k."""
    if not candidates:
        return None
    least = int(least_depth(sizes_of(product), _goes_along_k(candidates[0])))
    enough = [panels for panels in candidates if panels.depth >= least]
    usual = [panels for panels in enough if _plain_elements(panels) * product.dtype.bytes <= size]
    return usual[-1] if usual else enough[0]


def _goes_along_k(panels: Panels) -> bool:
    """Whether rows of a panel go along k."""
    factors = ((panels.left, -1), (panels.right, -2))
    return any(tile is not None and tile.strides[inner] == 1 for tile, inner in factors)


def _panel(kernel: Kernel, product: Matmul, factor: Tile, inner: int, depth: int) -> Tile | None:
    """`depth` values of k (dimension `inner`) of a factor in plain rows, None where it is not copied."""
    buffer = kernel.buffer(factor.buffer)
    if buffer.memory is not Memory.DEVICE or buffer.dtype is not product.dtype or not _is_whole_batch(product, factor):
        return None
    shape = list(factor.shape)
    shape[inner] = depth
    run = COPY_BYTES // product.dtype.bytes
    for along in (-1, -2):
        aligned = in_whole_copies(shape[along], product.dtype) and tiles.alignment(factor, run, along) == run
        if factor.strides[along] == 1 and aligned:
            plain = Tile(RING, tuple(shape), tiles.row_major(tuple(shape)))
            return plain if along == -1 else replace(plain, strides=_column_major(shape))
    return None


def _is_whole_batch(product: Matmul, factor: Tile) -> bool:
    """Whether a factor has a matrix of its own for every one of the target."""
    batch = product.target.shape[:-2]
    steps = all(stride for size, stride in zip(factor.shape[:-2], factor.strides[:-2], strict=True) if size > 1)
    return math.prod(batch) == 1 or (factor.shape[:-2] == batch and steps)


def _column_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of matrices whose rows, not columns, are contiguous."""
    *batch, columns, rows = tiles.row_major((*shape[:-2], shape[-1], shape[-2]))
    return (*batch, rows, columns)
