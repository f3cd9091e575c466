"""Work for every thread: sums with fewer results than threads are cut into parts that threads compute side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from mugraph.devices.products import WARP, parts_of_depth
from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.fragments import sizes_of
from mugraph.lower.scalar_expressions import Source
from mugraph.lower.tile_form import Buffer, Combine, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.tiles import row_major

Cut = Callable[[Statement, Kernel, str], tuple[Statement, ...]]
"""A statement as it is, or in two: parts in a tile of the buffer of that name, and their sum."""


def with_parallel_reductions(kernel: Kernel) -> Kernel:
    """Reductions with fewer results than warps, cut in two: each warp reduces a part, then one warp the parts."""
    return _with_cuts(kernel, _reduction_in_parts)


def with_parallel_products(kernel: Kernel) -> Kernel:
    """Products on vector units with fewer tasks than threads, cut along k: threads compute parts, which are then summed."""
    return _with_cuts(kernel, _product_in_parts)


def _with_cuts(kernel: Kernel, cut: Cut) -> Kernel:
    buffers = list(kernel.buffers)

    def part(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for statement in statements:
            pieces = cut(statement, kernel, f"part{len(buffers)}")
            if len(pieces) > 1:
                partial = pieces[0].target
                buffers.append(Buffer(partial.buffer, Memory.SHARED, DType.FP32, math.prod(partial.shape)))
            found.extend(pieces)
        return tuple(found)

    before, body, after = part(kernel.before), part(kernel.body), part(kernel.after)
    return replace(kernel, buffers=tuple(buffers), before=before, body=body, after=after)


def _reduction_in_parts(statement: Statement, kernel: Kernel, name: str) -> tuple[Statement, ...]:
    if not isinstance(statement, Reduce) or not statement.sources:
        return (statement,)
    results, size = math.prod(statement.target.shape), statement.sources[0].shape[-1]
    parts = math.gcd(kernel.threads // WARP // results, size) if results * WARP < kernel.threads else 1
    if parts == 1 or size // parts < WARP:
        return (statement,)
    shape = (*statement.target.shape, parts)
    partial = Tile(name, shape, row_major(shape))
    sources = tuple(tiles.split(tile, tile.rank - 1, parts) for tile in statement.sources)
    return (
        Reduce(partial, sources, statement.expression, statement.combine),
        Reduce(statement.target, (partial,), Source(0), statement.combine, statement.accumulate),
    )


def _product_in_parts(statement: Statement, kernel: Kernel, name: str) -> tuple[Statement, ...]:
    if not isinstance(statement, Matmul):
        return (statement,)
    batch = statement.target.shape[:-2]
    parts = int(parts_of_depth(sizes_of(statement), kernel.threads))
    if parts == 1:
        return (statement,)
    shape = (parts, *statement.target.shape)
    partial = Tile(name, shape, row_major(shape))
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in statement.sources)
    cut_left = tiles.split(left, left.rank - 1, parts)
    cut_right = tiles.split(right, right.rank - 2, parts)
    outside = left.rank - 1
    return (
        replace(
            statement,
            target=partial,
            left=tiles.permuted(cut_left, (outside, *range(outside), outside + 1)),
            right=tiles.permuted(cut_right, (outside - 1, *range(outside - 1), outside, outside + 1)),
            accumulate=False,
        ),
        Reduce(
            statement.target,
            (tiles.permuted(partial, (*range(1, partial.rank), 0)),),
            Source(0),
            Combine.SUM,
            statement.accumulate,
        ),
    )
