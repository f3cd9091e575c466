"""Where matrix units help: computed factors in the bits their units multiply, and sums kept inside the block.

A computed factor of bf16 is rounded to bf16, which has the range of fp32. One of fp16 is rounded to fp16 only where it is known
to lie between 0 and 1, as the exponentials of safe softmax do: other intermediate values are no inputs or outputs of the program,
nobody chose their scale, and fp16 may be too narrow for them (x * g of a normalization that divides later, with inputs and
gains of 1e-3, keeps four bits). TF32 holds those: as many bits as fp16, the range of fp32, at half the rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.exponents import shift_of
from mugraph.lower.expressions import Source
from mugraph.lower.lowered import Buffer, Combine, Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile, reads_target
from mugraph.lower.memory import place


def with_narrow_factors(kernel: Kernel, types: frozenset[DType] = frozenset(DType)) -> Kernel:
    """Shared buffers that only products read, in these products' type, if it is one of `types` and holds their elements.

    Products of fp16 with other computed factors are to multiply in TF32.
    """
    bounded = _exponentials(kernel)
    narrow: dict[str, DType] = {}
    for buffer in kernel.buffers:
        dtype = _factor_type(kernel, buffer)
        if dtype in types and dtype is not None and (dtype is not DType.FP16 or buffer.name in bounded):
            narrow[buffer.name] = dtype

    def in_units(statement: Statement) -> Statement:
        if not isinstance(statement, Matmul) or statement.dtype is not DType.FP16:
            return statement
        factors = {kernel.buffer(tile.buffer) for tile in statement.sources}
        return replace(statement, tf32=any(b.dtype is DType.FP32 and b.name not in bounded for b in factors))

    return replace(
        kernel,
        buffers=tuple(replace(buffer, dtype=narrow.get(buffer.name, buffer.dtype)) for buffer in kernel.buffers),
        before=tuple(map(in_units, kernel.before)),
        body=tuple(map(in_units, kernel.body)),
        after=tuple(map(in_units, kernel.after)),
    )


def with_rounded_factors(kernel: Kernel, types: frozenset[DType]) -> Kernel:
    """The kernel with all that products of `types` multiply rounded as matrix units round it, on the way to them if not before.

    For kernels of a host that stand in for a GPU's: factors that others read as well stay wide, and products read copies.
    """
    kernel = with_narrow_factors(kernel, types)
    copies: list[Buffer] = []

    def rounded(factor: Tile, dtype: DType) -> tuple[Tile, list[Statement]]:
        if kernel.buffer(factor.buffer).dtype is not DType.FP32:
            return factor, []
        copy = Buffer(f"rounded_{len(copies)}", Memory.SHARED, dtype, math.prod(factor.shape))
        copies.append(copy)
        tile = Tile(copy.name, factor.shape, tiles.row_major(factor.shape))
        return tile, [Elementwise(tile, (factor,), Source(0))]

    def part(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for statement in statements:
            if isinstance(statement, Matmul) and statement.dtype in types and not statement.tf32:
                (left, before), (right, behind) = (rounded(factor, statement.dtype) for factor in statement.sources)
                found += [*before, *behind]
                statement = replace(statement, left=left, right=right)
            found.append(statement)
        return tuple(found)

    before, body, after = part(kernel.before), part(kernel.body), part(kernel.after)
    buffers = place((*kernel.buffers, *copies), before, body, after) if copies else kernel.buffers
    return replace(kernel, buffers=buffers, before=before, body=body, after=after)


def _exponentials(kernel: Kernel) -> frozenset[str]:
    """Buffers that hold nothing but exponentials shifted by a maximum, as in safe softmax."""
    maxima = {s.target.buffer for s in kernel.statements if isinstance(s, Reduce) and s.combine is Combine.MAX}
    written: dict[str, bool] = {}
    for statement in kernel.statements:
        shifted = isinstance(statement, Elementwise) and statement.combine is None and _is_shifted(statement, maxima)
        written[statement.target.buffer] = written.get(statement.target.buffer, True) and shifted
    return frozenset(name for name, shifted in written.items() if shifted)


def _is_shifted(statement: Elementwise, maxima: Set[str]) -> bool:
    """Whether a statement is an exponential shifted by what one of the buffers `maxima` holds."""
    shift = shift_of(statement.expression)
    return shift is not None and statement.sources[shift].buffer in maxima


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
