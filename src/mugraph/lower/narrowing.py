"""Where matrix units help: computed factors in the 16 bits their units multiply, and sums kept inside the block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.expressions import Source
from mugraph.lower.lowered import Buffer, Elementwise, Kernel, Matmul, Memory, Statement, Tile, reads_target


def with_narrow_factors(kernel: Kernel, types: frozenset[DType] = frozenset(DType)) -> Kernel:
    """Shared buffers that only products read, in these products' type, if it is one of `types`: they have it in the muGraph."""
    narrow = {buffer.name: dtype for buffer in kernel.buffers if (dtype := _factor_type(kernel, buffer)) in types}
    buffers = (replace(buffer, dtype=narrow.get(buffer.name) or buffer.dtype) for buffer in kernel.buffers)
    return replace(kernel, buffers=tuple(buffers))


def _factor_type(kernel: Kernel, buffer: Buffer) -> DType | None:
    """The one type of all products that read a buffer; None where something else reads it, or a sum is kept in it."""
    if buffer.memory is not Memory.SHARED:
        return None
    types: set[DType] = set()
    for statement in kernel.statements:
        if statement.target.buffer == buffer.name and reads_target(statement):
            return None
        if buffer.name in {tile.buffer for tile in statement.sources}:
            if not isinstance(statement, Matmul):
                return None
            types.add(statement.dtype)
    return types.pop() if len(types) == 1 else None


def with_private_sums(kernel: Kernel) -> Kernel:
    """Sums that build up in an output, moved to shared memory and copied out once: other blocks may write the same output."""
    for statement in kernel.statements:
        if reads_target(statement) and statement.target.buffer in kernel.outputs:
            return with_private_sums(_private(kernel, statement.target))
    return kernel


def _private(kernel: Kernel, tile: Tile) -> Kernel:
    name = f"sum_{tile.buffer}_{len(kernel.buffers)}"
    own = Tile(name, tile.shape, tiles.row_major(tile.shape))
    size = 1
    for extent in tile.shape:
        size *= extent

    def moved(statements: Iterable[Statement]) -> tuple[Statement, ...]:
        return tuple(replace(s, target=own) if s.target == tile else s for s in statements)

    return replace(
        kernel,
        buffers=(*kernel.buffers, Buffer(name, Memory.SHARED, DType.FP32, size)),
        before=moved(kernel.before),
        body=moved(kernel.body),
        after=(*moved(kernel.after), Elementwise(tile, (own,), Source(0))),
    )
