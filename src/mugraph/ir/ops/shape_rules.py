"""Shape rules of the operator table: the shape of a result, of those of the operands and of the attributes of a call.

Each has the name of the operators that follow it, and raises ShapeMismatch for operands or attributes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mugraph.errors import ShapeMismatch
from mugraph.ir.graph import Shape
from mugraph.ir.lookups import NEGATIVE, lookup_shape
from mugraph.ir.ops.row import Call

LEAST = "lowest"
"""What the attribute `least` of a maximum may be: then the maximum is over its elements and the number `LOWEST`.

Maxima by which the search shifts exponents have it: of a tile that a mask fills with -inf, -inf less its own maximum would not be
a number, where the program, whose rows are longer than a tile, has exp(-inf) = 0.
"""


def broadcast(call: Call) -> Shape:
    """The shape that the operands broadcast to."""
    try:
        return tuple(np.broadcast_shapes(*call.shapes))
    except (ValueError, OverflowError):
        raise call.fail("shapes do not broadcast") from None


def matmul(call: Call, left: int = 0, right: int = 1) -> Shape:
    """[..., m, n] of operands [..., m, k] and [..., k, n], those of these two numbers, whose other dimensions broadcast."""
    x, y = call.shapes[left], call.shapes[right]
    if len(x) < 2 or len(y) < 2:
        raise call.fail("matmul needs at least two dimensions on each side")
    if x[-1] != y[-2]:
        raise call.fail(f"inner dimensions {x[-1]} and {y[-2]} differ")
    try:
        batch = np.broadcast_shapes(x[:-2], y[:-2])
    except (ValueError, OverflowError):
        raise call.fail("batch dimensions do not broadcast") from None
    return (*batch, x[-2], y[-1])


def concat_matmul(call: Call) -> Shape:
    """The one shape of the products of the first and third operand and of the second and fourth."""
    first, second = matmul(call, 0, 2), matmul(call, 1, 3)
    if first != second:
        raise call.fail(f"the two products have shapes {list(first)} and {list(second)}")
    return first


def grouped(call: Call) -> Shape:
    """`dim` divided by `size`: each group of `size` neighbours becomes one element."""
    dim, size = call.dim(), call.integer("size")
    if call.attributes.get("least", LEAST) != LEAST:
        raise call.fail(f"least is {call.attributes['least']!r}; a maximum may have least={LEAST}")
    shape = call.shapes[0]
    if size < 1 or shape[dim] % size:
        raise call.fail(f"dimension {dim} does not divide into groups of {size}")
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])


def reshape(call: Call) -> Shape:
    """`shape`, which has as many elements as the operand."""
    shape = call.integers("shape")
    if min(shape, default=1) < 1 or math.prod(shape) != math.prod(call.shapes[0]):
        raise call.fail(f"cannot reshape to {list(shape)}")
    return shape


def transpose(call: Call) -> Shape:
    """The dimensions in the order of `permutation`."""
    permutation = call.integers("permutation")
    if sorted(permutation) != list(range(len(call.shapes[0]))):
        raise call.fail(f"{list(permutation)} is not a permutation of its dimensions")
    return tuple(call.shapes[0][dim] for dim in permutation)


def repeat(call: Call) -> Shape:
    """`dim` multiplied by `times`."""
    dim, times = call.dim(), call.integer("times")
    if times < 1:
        raise call.fail(f"cannot repeat {times} times")
    shape = call.shapes[0]
    return (*shape[:dim], shape[dim] * times, *shape[dim + 1 :])


def slice_(call: Call) -> Shape:
    """`dim` cut to `size` elements, from `start` on in steps of `step`, which may be negative."""
    dim, start, size, step = call.dim(), call.integer("start"), call.integer("size"), call.integer("step")
    shape = call.shapes[0]
    last = start + (size - 1) * step
    if size < 1 or not step or not (0 <= start < shape[dim] and 0 <= last < shape[dim]):
        raise call.fail(f"dimension {dim} does not have {size} elements from {start} on in steps of {step}")
    return (*shape[:dim], size, *shape[dim + 1 :])


def concat(call: Call) -> Shape:
    """The operands, of any number, one behind the other along `dim`."""
    dim, (first, *others) = call.dim(), call.shapes
    if any(len(shape) != len(first) for shape in others):
        raise call.fail("their ranks differ")
    if any(size != first[d] for shape in others for d, size in enumerate(shape) if d != dim):
        raise call.fail(f"they differ in other dimensions than {dim}, along which they are put together")
    return (*first[:dim], sum(shape[dim] for shape in call.shapes), *first[dim + 1 :])


def scan(call: Call) -> Shape:
    """The shape of the operand, which has a dimension `dim`."""
    call.dim()
    return call.shapes[0]


def lookup(call: Call) -> Shape:
    """The dimensions of the integers in place of dimension `dim` of the table."""
    if call.attributes["negative"] not in NEGATIVE:
        raise call.fail(f"negative is {call.attributes['negative']!r}; use {' or '.join(NEGATIVE)}")
    table, index = call.shapes
    return lookup_shape(table, index, call.dim())


def _partition(call: Call, shape: Shape, parts: Sequence[tuple[int, int | None]], multiply: bool) -> Shape:
    sizes = list(shape)
    for count, dim in parts:
        if dim is None:
            continue
        if not 0 <= dim < len(sizes):
            raise call.fail(f"maps to dimension {dim} of {list(shape)}")
        if multiply:
            sizes[dim] *= count
        elif sizes[dim] % count:
            raise call.fail(f"dimension {dim} of {list(shape)} does not divide into {count} equal parts")
        else:
            sizes[dim] //= count
    return tuple(sizes)


def _map(call: Call, name: str) -> tuple[int | None, ...]:
    value = call.attributes.get(name)
    if not isinstance(value, tuple) or len(value) != len(call.scope.grid):
        raise ShapeMismatch(f"{call.op}: {name} must name a dimension or none for each of {len(call.scope.grid)} grid dims")
    return tuple(item if isinstance(item, int) else None for item in value)


def partition_of(call: Call) -> tuple[tuple[int, int | None], ...]:
    """(parts, dimension) for each grid dimension and then the for-loop: how an iterator cuts its tensor."""
    fmap = call.attributes.get("fmap")
    loop = (call.scope.loop, fmap if isinstance(fmap, int) else None)
    return (*zip(call.scope.grid, _map(call, "imap"), strict=True), loop)


def input_iterator(call: Call) -> Shape:
    """The part that one iteration of a block reads: divided along `imap` by the grid and along `fmap` by the loop."""
    return _partition(call, call.shapes[0], partition_of(call), multiply=False)


def output_saver(call: Call) -> Shape:
    """The parts of all blocks together: multiplied along `omap` by the grid."""
    omap = _map(call, "omap")
    if None in omap:
        raise call.fail("every grid dimension must map to a data dimension of the output (omap)")
    return _partition(call, call.shapes[0], tuple(zip(call.scope.grid, omap, strict=True)), multiply=True)


def accumulate(call: Call) -> Shape:
    """The shape of one iteration; of a concatenation, that of all of them along `dim`."""
    combine = call.attributes["combine"]
    if combine == "concat":
        return _partition(call, call.shapes[0], ((call.scope.loop, call.dim()),), multiply=True)
    if combine not in ("sum", "max"):
        raise call.fail(f"unknown accumulator {combine!r}; use sum, max or concat")
    return call.shapes[0]


def accumulate_rescaled(call: Call) -> Shape:
    """The shape of the terms, to which the shifts of their exponents broadcast."""
    if broadcast(call) != call.shapes[0] or len(call.shapes[1]) != len(call.shapes[0]):
        raise call.fail("the exponent shift must broadcast to the accumulated tensor, and have its rank; reshape it")
    return call.shapes[0]
