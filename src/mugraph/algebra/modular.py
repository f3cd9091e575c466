"""Exact arithmetic on tensors of residues modulo a prime below 2**51, in NumPy; faster where it is below 2**31.

Residues are int64 arrays with elements in [0, modulus); the modulus is an int64 array of rank 0. Small tensors pay few
microseconds per operation; large ones are worked on in blocks that stay in the cache, which halves the time of reading
and writing temporaries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mugraph.errors import UndefinedInField
from mugraph.ir.arithmetic import broadcast_shape
from mugraph.ir.tiled_products import tiled_product

Residues = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

_SMALL = 4096
_SMALL_MATMUL = 4096
_BLOCK = 1 << 16
_LIMB = 16
_LIMB_MASK = (1 << _LIMB) - 1
_EXACT_INNER = 1 << (53 - 2 * (_LIMB + 1))

NARROW = 1 << 31
"""Products of residues below it fit an int64."""
WIDE = 1 << 51
"""Quotients of products of residues below it are known to within 1 from float64."""
_WIDE_SUMMANDS = 1 << 12
_WIDE_SMALL_MATMUL = 1 << 21
_WIDE_BLOCK = 1 << 14
_WIDE_LIMB = 17
_WIDE_FEW = 64
"""Elements whose powers Python has sooner than NumPy, which takes 0.7 ms for one as for a hundred."""
_WIDE_INNER = 1 << (53 - 2 * _WIDE_LIMB - 2)


def _is_wide(modulus: Residues) -> bool:
    return modulus.item() >= NARROW  # comparing the array itself takes longer than a small product


def uniform(modulus: int, shape: tuple[int, ...], rng: np.random.Generator) -> Residues:
    """Independent uniform residues."""
    result = np.empty(shape, np.int64)
    words = np.uint32 if modulus <= NARROW else np.int64
    for block in blocks(shape):
        result[block] = rng.integers(0, modulus, np.shape(result[block]), words)
    return result


def reduce(x: Residues, modulus: Residues) -> Residues:
    """`x` modulo `modulus`, in [0, modulus); NumPy vectorises division by a scalar but not the remainder."""
    if x.size < _SMALL:
        return np.remainder(x, modulus)
    quotient = np.floor_divide(x, modulus)
    quotient *= modulus
    return np.subtract(x, quotient, out=quotient)


def multiply(x: Residues, y: Residues, modulus: Residues) -> Residues:
    """Products of residues, broadcast together, block by block.

    A wide product is known modulo 2**64, and its quotient by the modulus, from floats, to within 1: that determines it.
    """
    if not _is_wide(modulus):
        return reduce(x * y, modulus)
    if x.size + y.size <= _WIDE_BLOCK // 2:  # small ones pay for their shape
        return _wide_products(x, y, modulus)
    shape = broadcast_shape(x.shape, y.shape)
    result = np.empty(shape, np.int64)
    x, y = np.broadcast_to(x, shape), np.broadcast_to(y, shape)
    for block in blocks(shape, _WIDE_BLOCK):
        result[block] = _wide_products(x[block], y[block], modulus)
    return result


def power_each(x: Residues, exponent: int | Residues, moduli: Residues) -> Residues:
    """Powers of elements of `x`, each modulo a number of its own, below 2**51; one exponent or one each, 0 or more."""
    reciprocals = 1.0 / moduli
    result = np.ones_like(moduli)
    for bit in reversed(range(int(np.max(exponent, initial=0)).bit_length())):
        result = _wide_products(result, result, moduli, reciprocals)
        result = _wide_products(result, np.where(exponent >> bit & 1, x, 1), moduli, reciprocals)
    return result


def _wide_products(x: Residues, y: Residues, modulus: Residues, reciprocal: Reals | float | None = None) -> Residues:
    """Products modulo one number, or modulo one each, whose reciprocals are given."""
    reciprocal = 1.0 / float(modulus) if reciprocal is None else reciprocal
    with np.errstate(over="ignore"):
        quotient = np.asarray(np.multiply(x, y, dtype=np.float64) * reciprocal).astype(np.int64)
        rest = np.asarray(x * y)
        quotient *= modulus
        rest -= quotient
    _take_least(rest, np.add(rest, modulus, out=quotient))
    return _take_least(rest, np.subtract(rest, modulus, out=quotient))


def _take_least(x: Residues, y: Residues) -> Residues:
    """`x`, changed to those elements of `y` that are smaller where negative numbers count as larger than all others."""
    np.minimum(x.view(np.uint64), y.view(np.uint64), out=x.view(np.uint64))
    return x


def total(x: Residues, axis: int, modulus: Residues) -> Residues:
    """The sum along an axis, which is kept with size 1."""
    if x.shape[axis] > _WIDE_SUMMANDS and _is_wide(modulus):
        starts = np.arange(0, x.shape[axis], _WIDE_SUMMANDS)
        return total(reduce(np.add.reduceat(x, starts, axis=axis), modulus), axis, modulus)
    return reduce(np.add.reduce(x, axis=axis, keepdims=True), modulus)


def combine(operation: np.ufunc, x: Residues, y: Residues, modulus: Residues) -> Residues:
    """The sum, difference or product of residues, broadcast together."""
    if x.size + y.size < _BLOCK:
        return _combined(operation, x, y, modulus)
    result = np.empty(broadcast_shape(x.shape, y.shape), np.int64)
    x, y = np.broadcast_to(x, result.shape), np.broadcast_to(y, result.shape)
    for block in blocks(result.shape):
        result[block] = _combined(operation, x[block], y[block], modulus)
    return result


def _combined(operation: np.ufunc, x: Residues, y: Residues, modulus: Residues) -> Residues:
    if operation is np.multiply:
        return multiply(x, y, modulus)
    result = np.asarray(operation(x, y))
    if result.size < _SMALL:
        return reduce(result, modulus)
    return _take_least(result, result - modulus if operation is np.add else result + modulus)


def blocks(shape: tuple[int, ...], most: int = _BLOCK) -> Iterator[tuple[int | slice, ...]]:
    """Indices of parts of at most so many elements that cover a tensor."""
    depth, rest = 0, math.prod(shape)
    while rest > most:
        rest //= shape[depth]
        depth += 1
    if not depth:
        yield ()
        return
    step = most // rest
    for outer in np.ndindex(*shape[: depth - 1]):
        for start in range(0, shape[depth - 1], step):
            yield (*outer, slice(start, start + step))


def _power(x: Residues, exponent: int, modulus: Residues) -> Residues:
    """Powers of residues, one exponent for all, 1 or more."""
    if x.size <= _WIDE_FEW and _is_wide(modulus):
        number = modulus.item()
        return np.array([pow(each, exponent, number) for each in x.ravel().tolist()], np.int64).reshape(x.shape)
    result = x
    for bit in bin(exponent)[3:]:
        result = multiply(result, result, modulus)
        if bit == "1":
            result = multiply(result, x, modulus)
    return result


def root_exponent(modulus: int, mirrored: bool = False) -> int:
    """An exponent e such that x**e is a square root of every square x, for a modulus that is 3 modulo 4.

    There are two: they agree on squares and differ in the sign elsewhere, so one of them maps -1 to 1 and the other to -1.
    """
    return (3 * modulus - 1) // 4 if mirrored else (modulus + 1) // 4


def square_root(x: Residues, modulus: Residues, mirrored: bool = False) -> Residues:
    """x**root_exponent(modulus, mirrored): multiplicative, and a square root of every square."""
    return _power(x, root_exponent(int(modulus), mirrored), modulus)


def inverse(x: Residues, modulus: Residues) -> Residues:
    """Inverses of all elements; raises UndefinedInField when one is zero.

    Only the product of all elements is inverted: pairwise products upwards, inverses of the parts downwards.
    """
    levels = [np.ascontiguousarray(x).reshape(-1)]
    while len(levels[-1]) > 1:
        level = levels[-1]
        if len(level) % 2:
            levels[-1] = level = np.concatenate([level, [1]])
        levels.append(multiply(level[0::2], level[1::2], modulus))
    if not x.size:
        return x
    product = int(levels.pop()[0])
    if product == 0:
        raise UndefinedInField("division by zero in the finite field; draw other inputs")
    inverses = np.array([pow(product, -1, int(modulus))])
    for level in reversed(levels):
        swapped = level.reshape(-1, 2)[:, ::-1]
        inverses = multiply(swapped, inverses[: len(swapped), None], modulus).reshape(-1)
    return inverses[: x.size].reshape(x.shape)


def matmul(x: Residues, y: Residues, modulus: Residues) -> Residues:
    """The exact product of the last two dimensions; the others broadcast."""
    if _is_wide(modulus):
        return _wide_matmul(x, y, modulus)
    if max(x.size * y.shape[-1], y.size * x.shape[-2]) <= _SMALL_MATMUL:
        products = reduce(x[..., :, :, None] * y[..., None, :, :], modulus)
        return reduce(np.add.reduce(products, axis=-2), modulus)
    batch = broadcast_shape(x.shape[:-2], y.shape[:-2])
    x, y = (operand.reshape((1,) * (len(batch) + 2 - operand.ndim) + operand.shape) for operand in (x, y))
    result = np.empty((*batch, x.shape[-2], y.shape[-1]), np.int64)
    _matmul_parts(x[..., :_EXACT_INNER], y[..., :_EXACT_INNER, :], modulus, result)
    for start in range(_EXACT_INNER, x.shape[-1], _EXACT_INNER):
        part, rest = slice(start, start + _EXACT_INNER), np.empty_like(result)
        _matmul_parts(x[..., part], y[..., part, :], modulus, rest)
        result = reduce(result + rest, modulus)
    return result


def _wide_matmul(x: Residues, y: Residues, modulus: Residues) -> Residues:
    """Three limbs of 17 bits a residue, and six float64 products, exact up to inner size _WIDE_INNER; or all at once."""
    if x.size * y.shape[-1] <= _WIDE_SMALL_MATMUL and y.size * x.shape[-2] <= _WIDE_SMALL_MATMUL:
        products = multiply(x[..., :, :, None], y[..., None, :, :], modulus)
        return np.squeeze(total(products, -2, modulus), -2)
    result: Residues | None = None
    for start in range(0, x.shape[-1], _WIDE_INNER):
        part = slice(start, start + _WIDE_INNER)
        product = np.zeros((), np.int64)
        for place in reversed(_wide_places(_wide_limbs(x[..., part]), _wide_limbs(y[..., part, :]))):
            here = reduce(place.astype(np.int64), modulus)
            product = reduce(multiply(product, np.array(1 << _WIDE_LIMB), modulus) + here, modulus)
        result = product if result is None else reduce(result + product, modulus)
    assert result is not None
    return result


def _wide_places(xs: Sequence[Reals], ys: Sequence[Reals]) -> tuple[Reals, ...]:
    """The product of numbers of three limbs, place by place, exactly: x0 y1 + x1 y0 is (x0 + x1)(y0 + y1) - x0 y0 - x1 y1."""
    (x0, x1, x2), (y0, y1, y2) = xs, ys
    low, middle, high = tiled_product(x0, y0), tiled_product(x1, y1), tiled_product(x2, y2)
    crossed = tiled_product(x0 + x1, y0 + y1), tiled_product(x0 + x2, y0 + y2), tiled_product(x1 + x2, y1 + y2)
    return (low, crossed[0] - low - middle, crossed[1] - low - high + middle, crossed[2] - middle - high, high)


def _wide_limbs(x: Residues) -> list[Reals]:
    mask = (1 << _WIDE_LIMB) - 1
    return [(x >> place * _WIDE_LIMB & mask).astype(np.float64) for place in range(3)]


def _matmul_parts(x: Residues, y: Residues, modulus: Residues, result: Residues) -> None:
    """Split the larger operand along its slowest dimension into parts that fit the cache, since converting residues to
    floats and back costs more than multiplying; the inner dimension is left to `_matmul_strips`."""
    larger = x if x.size > y.size else y
    if result.ndim > 2 and (result.shape[0] == 1 or (larger.shape[0] > 1 and larger.size >= _BLOCK * larger.shape[0])):
        for member in range(result.shape[0]):
            _matmul_parts(_member(x, member), _member(y, member), modulus, result[member])
    elif result.ndim > 2 and larger.shape[0] > 1:
        for part in _parts(larger.shape[0], larger.size):
            _matmul_strips(x if x.shape[0] == 1 else x[part], y if y.shape[0] == 1 else y[part], modulus, result[part])
    elif larger is y and y.strides[-2] < y.strides[-1]:
        for part in _parts(y.shape[-1], y.size):
            _matmul_strips(x, y[..., part], modulus, result[..., part])
    elif larger is x and x.strides[-1] < x.strides[-2]:
        for part in _parts(x.shape[-2], x.size):
            _matmul_strips(x[..., part, :], y, modulus, result[..., part, :])
    else:
        _matmul_strips(x, y, modulus, result)


def _member(x: Residues, index: int) -> Residues:
    return np.asarray(x[index if x.shape[0] > 1 else 0])


def _parts(length: int, size: int) -> Iterator[slice]:
    """Slices of a dimension of `length` that cut a tensor of `size` elements into parts of about _BLOCK."""
    step = max(1, _BLOCK * length // size)
    return (slice(start, start + step) for start in range(0, length, step))


def _matmul_strips(x: Residues, y: Residues, modulus: Residues, result: Residues) -> None:
    """Karatsuba on 16-bit halves: three float64 products, exact for inner sizes up to _EXACT_INNER, summed over strips of it."""
    low: Reals | float = 0.0
    middle: Reals | float = 0.0
    high: Reals | float = 0.0
    for strip in _parts(x.shape[-1], max(x.size, y.size)):
        x_low, x_high = _halves(x[..., strip])
        y_low, y_high = _halves(y[..., strip, :])
        low = low + tiled_product(x_low, y_low)
        high = high + tiled_product(x_high, y_high)
        middle = middle + tiled_product(np.add(x_low, x_high, out=x_low), np.add(y_low, y_high, out=y_low))
    exact_low, exact_high = np.asarray(low).astype(np.int64), np.asarray(high).astype(np.int64)
    exact_middle = np.asarray(middle).astype(np.int64) - exact_low - exact_high
    upper = reduce((reduce(exact_high, modulus) << _LIMB) + exact_middle, modulus)
    result[...] = reduce((upper << _LIMB) + exact_low, modulus)


def _halves(x: Residues) -> tuple[Reals, Reals]:
    return (x & _LIMB_MASK).astype(np.float64), (x >> _LIMB).astype(np.float64)
