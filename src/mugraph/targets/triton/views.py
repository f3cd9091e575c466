"""Tiles in another shape: by a reshape of their tensors where padding stays behind, else element by element."""

from __future__ import annotations

import math

from mugraph.ir.graph import Shape
from mugraph.lower.tiles import row_major
from mugraph.targets.c_text import scaled, sum_of
from mugraph.targets.triton.tile import along, held, padded, place, sizes


def keeps_order(before: Shape, after: Shape) -> bool:
    """Whether a tensor of `held(before)` reshaped to `held(after)` has the same elements in its first places, padding behind.

    Sizes are compared in groups of equal product. Padding then only grows the slowest dimension of a group; within, it would
    shift what follows.
    """
    first, second = list(sizes(before)), list(sizes(after))
    while first or second:
        left, right = [first.pop(0)], [second.pop(0)]
        while math.prod(left) != math.prod(right):
            if math.prod(left) < math.prod(right):
                left.append(first.pop(0))
            else:
                right.append(second.pop(0))
        if left != right and any(padded(size) != size for size in (*left[1:], *right[1:])):
            return False
    return True


def element_numbers(shape: Shape) -> str:
    """For each element of a tile's tensor its number in row-major order; padding has numbers beyond."""
    dims = sizes(shape)
    return sum_of(
        [
            scaled(stride, along(place(size), axis, len(dims)))
            for axis, (size, stride) in enumerate(zip(dims, row_major(dims), strict=True))
        ]
    )


def places_of(numbers: str, shape: Shape) -> str:
    """Where elements of these numbers lie in a tile's tensor of one dimension: what comes of `//` and `%` stays inside of it."""
    dims = sizes(shape)
    terms = []
    for size, stride, held_stride in zip(dims, row_major(dims), row_major(held(shape)), strict=True):
        divided = numbers if stride == 1 else f"{numbers} // {stride}"
        terms.append(scaled(held_stride, f"({divided} % {size})"))
    return sum_of(terms)
