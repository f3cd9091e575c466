"""Where matrix units help: computed factors in the bits their units multiply, and sums kept inside the block.

A computed factor of bf16 is rounded to bf16, which has the range of fp32. One of fp16 is rounded to fp16 only where it is known
to lie between 0 and 1, as the exponentials of safe softmax do: other intermediate values are no inputs or outputs of the program,
nobody chose their scale, and fp16 may be too narrow for them (x * g of a normalization that divides later, with inputs and
gains of 1e-3, keeps four bits). TF32 holds those: as many bits as fp16, the range of fp32, at half the rate. What is chosen of
inputs of fp16, as a maximum or a masked element is, or the negative of one, has been in fp16 all along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.ir.ops import OPERATORS
from mugraph.lower import tiles
from mugraph.lower.exponents import shifted
from mugraph.lower.factor_copies import FactorCopies
from mugraph.lower.memory import place
from mugraph.lower.scalar_expressions import (
    CHOICE,
    PRODUCT,
    TF32,
    Apply,
    Constant,
    Expression,
    Source,
    renumbered,
    subexpressions,
)
from mugraph.lower.tile_form import Buffer, Combine, Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.touched_tiles import reads_target


def with_narrow_factors(kernel: Kernel) -> Kernel:
    """Shared buffers that only products read, in these products' type, if it holds their elements.

    Products of fp16 with other computed factors are to multiply in TF32.
    """
    bounded = _exponentials(kernel) | _in_fp16(kernel)
    narrow: dict[str, DType] = {}
    for buffer in kernel.buffers:
        dtype = _factor_type(kernel, buffer)
        if dtype is not None and (dtype is not DType.FP16 or buffer.name in bounded):
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


def _in_fp16(kernel: Kernel) -> frozenset[str]:
    """Buffers that are written in a wider type and hold nothing but numbers of fp16: elements of buffers of that type, or of one
    that it contains, and constants, as they are, negated, or chosen by operators that compute no others."""
    narrow = {buffer.name for buffer in kernel.buffers if DType.FP16.contains(buffer.dtype)}
    found = set(narrow)
    writers: dict[str, list[Statement]] = {}
    for statement in kernel.statements:
        writers.setdefault(statement.target.buffer, []).append(statement)

    def is_chosen(statement: Statement) -> bool:
        if not isinstance(statement, Elementwise) or statement.combine is not None:
            return False
        read = frozenset(number for number, tile in enumerate(statement.sources) if tile.buffer in found)
        return _is_in_fp16(statement.expression, read)

    while more := {name for name, made in writers.items() if name not in found and all(map(is_chosen, made))}:
        found |= more
    return frozenset(found - narrow)


_PICKED = {row.scalar: row.picks for row in OPERATORS.values() if row.picks}
"""Of operators that choose, by their templates, the operands that they choose of."""


def _is_in_fp16(expression: Expression, read: Set[int]) -> bool:
    """Whether fp16 has what an expression gives where it has the elements of the sources `read`."""
    match expression:
        case Source(index):
            return index in read
        case Constant(value):
            return DType.FP16.has(value)
        case Apply(template, (number, Constant(-1.0)) | (Constant(-1.0), number)) if template == PRODUCT:
            return _is_in_fp16(number, read)
        case Apply(template, arguments):
            picked = [arguments[place] for place in _PICKED.get(template, ())]
            return bool(picked) and all(_is_in_fp16(each, read) for each in picked)


def with_copies_of_own_type(kernel: Kernel) -> Kernel:
    """Shared buffers that hold nothing but elements of inputs of bf16, and 0, in that type: they take half the memory, and
    products multiply them as they would the inputs."""
    copies = {buffer.name for buffer in kernel.buffers if _holds_copies(kernel, buffer)}
    buffers = (replace(buffer, dtype=DType.BF16) if buffer.name in copies else buffer for buffer in kernel.buffers)
    return replace(kernel, buffers=tuple(buffers))


def _holds_copies(kernel: Kernel, buffer: Buffer) -> bool:
    writers = [statement for statement in kernel.statements if statement.target.buffer == buffer.name]
    return bool(writers) and buffer.memory is Memory.SHARED and all(_copies(kernel, writer) for writer in writers)


def _copies(kernel: Kernel, statement: Statement) -> bool:
    """Whether all that a statement writes are elements of inputs of bf16, or 0."""
    if not isinstance(statement, Elementwise) or statement.combine is not None:
        return False
    copied = [*_chosen(statement.expression)]
    read = [statement.sources[part.index].buffer for part in copied if isinstance(part, Source)]
    others = [part for part in copied if not isinstance(part, Source)]
    return (
        bool(read)
        and all(isinstance(part, Constant) and part.value == 0 for part in others)
        and all(name in kernel.inputs and kernel.buffer(name).dtype is DType.BF16 for name in read)
    )


def _chosen(expression: Expression) -> Iterator[Expression]:
    """What a value may be that choices make."""
    if isinstance(expression, Apply) and expression.template == CHOICE:
        for argument in expression.arguments[1:]:
            yield from _chosen(argument)
    else:
        yield expression


def with_rounded_factors(kernel: Kernel, in_units: Callable[[Matmul], bool]) -> Kernel:
    """The kernel with every number rounded that matrix units would round, by statements: for a host without such units.

    `in_units` says which products of 16-bit types these multiply.
    """
    kernel = with_narrow_factors(kernel)
    copies = FactorCopies("rounded_")

    def part(statements: Iterable[Statement]) -> Iterator[Statement]:
        for statement in statements:
            if isinstance(statement, Matmul) and statement.dtype.bytes == 2 and in_units(statement):
                rounded = (DType.FP32, Apply(TF32, (Source(0),))) if statement.tf32 else (statement.dtype, Source(0))
                yield from copies.before(statement, is_fp32, *rounded)
            else:
                yield statement

    def is_fp32(factor: Tile) -> bool:
        return kernel.buffer(factor.buffer).dtype is DType.FP32

    before, body, after = (tuple(part(statements)) for statements in (kernel.before, kernel.body, kernel.after))
    buffers = place((*kernel.buffers, *copies.buffers), before, body, after)
    return replace(kernel, buffers=buffers, before=before, body=body, after=after)


def _exponentials(kernel: Kernel) -> frozenset[str]:
    """Buffers that hold nothing but exponentials shifted by the maximum of their own exponents, as in safe softmax."""
    maxima: set[object] = set()
    written: dict[str, bool] = {}
    for statement in kernel.statements:
        name = statement.target.buffer
        shifted = isinstance(statement, Elementwise) and statement.combine is None and _is_shifted(statement, maxima)
        written[name] = written.get(name, True) and shifted
        if isinstance(statement, Reduce) and statement.combine is Combine.MAX and statement.sources:
            repeated = replace(statement.target, shape=statement.sources[0].shape, strides=(*statement.target.strides, 0))
            maxima.add(_beside(repeated, statement.expression, statement.sources))
    return frozenset(name for name, shifted in written.items() if shifted)


def _is_shifted(statement: Elementwise, maxima: Set[object]) -> bool:
    """Whether a statement is an exponential of numbers less the maximum of just these, which is among `maxima`."""
    shift = shifted(statement.expression)
    return shift is not None and _beside(statement.sources[shift[1]], shift[0], statement.sources) in maxima


def _beside(tile: Tile, expression: Expression, sources: Sequence[Tile]) -> object:
    """Which elements of a tile meet which values of an expression of sources of its shape.

    It is the same where the same elements meet the same values, unless dimensions are cut or ordered too differently to tell.
    """
    order = [part.index for part in subexpressions(expression) if isinstance(part, Source)]
    numbered = renumbered(expression, [Source(order.index(i) if i in order else i) for i in range(len(sources))])
    read = (tile, *(sources[index] for index in order))
    places = tuple((one.buffer, one.start, one.swizzle, one.lookup) for one in read)
    return numbered, places, tuple(sorted(tiles.merged(*read)))


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
        tensors=tuple((value, own if lies == tile else lies) for value, lies in kernel.tensors),
    )
