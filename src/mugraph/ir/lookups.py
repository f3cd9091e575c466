"""Lookups: slices of a table at the places that a tensor of integers names.

What the row of the operator table says of them; programs without them are made in `mugraph.ir.cores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mugraph.errors import IndexOutOfRange
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import LOOKUP, Shape
from mugraph.ir.index_maps import IndexMaps, MapRule, Space

NEGATIVE = ("refused", "wrapped")
"""What negative integers are (the attribute `negative`): an error, or places counted from the end."""


def places(index: Array, rows: int, negative: str) -> Array:
    """Integers as places from 0 on in a dimension of `rows`, an array of int64 of the same shape.

    Raises IndexOutOfRange for the first that is none.
    """
    found = np.asarray(index).astype(np.int64)
    least = -rows if negative == "wrapped" else 0
    wrong = (found < least) | (found >= rows)
    if wrong.any():
        place = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), wrong.shape)))
        raise out_of_range(int(found[place]), place, rows, negative)
    return np.where(found < 0, found + rows, found)


def out_of_range(number: int, place: tuple[int, ...], rows: int, negative: str, name: str = "") -> IndexOutOfRange:
    """The error of a number that names no place in a dimension of `rows`, at `place` of the input called `name`."""
    least = -rows if negative == "wrapped" else 0
    of = f" of input {name!r}" if name else ""
    return IndexOutOfRange(
        f"{LOOKUP}: index {number} at {list(place)}{of} is out of range: pass integers in [{least}, {rows - 1}]"
    )


def taken(dim: int, negative: str) -> Callable[[Sequence[Array]], Array]:
    """What a lookup gives for a table and an array of integers, of any type that holds them."""

    def take(parts: Sequence[Array]) -> Array:
        table, index = parts
        return np.asarray(np.take(table, places(index, table.shape[dim], negative), axis=dim))

    return take


def lookup_shape(table: Shape, index: Shape, dim: int) -> Shape:
    """The dimensions of the integers in place of the one that is looked up."""
    return (*table[:dim], *index, *table[dim + 1 :])


def lookup_maps(dim: int) -> MapRule:
    """Along the dimensions of the integers no index says what is read of the table."""

    def maps(shapes: Sequence[Shape], out: Shape) -> IndexMaps:
        space, rank = Space(), len(shapes[1])
        result = space.iterators(out)
        here = result[dim : dim + rank]
        return space.maps(
            [(*result[:dim], None, *result[dim + rank :]), here], (*result[:dim], *(None,) * rank, *result[dim + rank :])
        )

    return maps
