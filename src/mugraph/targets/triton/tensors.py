"""Tiles as Triton holds them: no dimensions of size 1, and every other size rounded up to a power of two.

A tile in other dimensions is its tensor permuted and reshaped where padding stays behind, else gathered element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower.places import Index
from mugraph.lower.scalar_expressions import PRODUCT
from mugraph.lower.tile_form import Tile
from mugraph.lower.tiles import row_major
from mugraph.targets.c_text import scaled, sum_of
from mugraph.targets.triton.expressions import TIMES

_OWN_NAMES = {DType.E4M3: "float8e4nv", DType.E5M2: "float8e5"}
ELEMENT_TYPES = {dtype: _OWN_NAMES.get(dtype, dtype.torch_name) for dtype in DType}
"""What Triton calls the element types: most as PyTorch does."""


@dataclass(frozen=True, slots=True)
class TileText:
    """A tile by the text of its value; `shape` is that of the tile form.

    The Triton tensor has `held(shape)`: a tile of [1, 12, 64] is a tensor of [16, 64], whose last four rows are padding. What
    is in the padding nobody may read, unless `zero_padded`. Elements are fp32 unless `narrow`; in fp32 too they may all be
    numbers of the type `exact`, as they were loaded.
    """

    text: str
    shape: Shape
    narrow: DType | None = None
    exact: DType | None = None
    zero_padded: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def wide(self) -> str:
        """The text of the tile in fp32."""
        return self.text if self.narrow is None else f"{self.text}.to(tl.float32)"


def sizes(shape: Shape) -> tuple[int, ...]:
    """The dimensions of a tile that its tensor has, without padding."""
    return tuple(size for size in shape if size > 1)


def axis_of(shape: Shape, dim: int) -> int:
    """Which dimension of the tensor is dimension `dim`, of more than one element, of the tile."""
    return len(sizes(shape[:dim]))


def product_of(shape: Shape) -> str:
    """The template of a product of two tiles that broadcast to `shape`, which may be summed."""
    return TIMES if len(sizes(shape)) > 2 else PRODUCT


def along(text: str, axis: int, rank: int) -> str:
    """A vector as a tensor of `rank` dimensions, all but `axis` of size 1."""
    return text if rank == 1 else f"{text}[{', '.join(':' if other == axis else 'None' for other in range(rank))}]"


def aligned(text: str, shape: Shape, wanted: Shape) -> str:
    """The text of a tile of `shape` as a tensor that broadcasts against one for `wanted`, as in NumPy."""
    own = (1,) * (len(wanted) - len(shape)) + tuple(shape)
    index = [":" if size > 1 else "None" for size, other in zip(own, wanted, strict=True) if other > 1]
    return text if ":" not in index or "None" not in index else f"{text}[{', '.join(index)}]"


def inside(size: int) -> str:
    """The name of which of the numbers 0, 1, ... of a dimension's places are no padding."""
    return f"m{size}"


@dataclass(frozen=True, slots=True)
class Padding:
    """How sizes of tiles are rounded up in a kernel: to powers of two, and those of `widened` to `least` at least.

    A size is padded alike wherever it occurs.
    """

    widened: frozenset[int] = frozenset()
    least: int = 1

    def size(self, size: int) -> int:
        """A size of more than one element with its padding."""
        power = 1 << (size - 1).bit_length()
        return max(power, self.least) if size in self.widened else power

    def held(self, shape: Shape) -> tuple[int, ...]:
        """The shape of the tensor that holds a tile."""
        return tuple(map(self.size, sizes(shape)))

    def place(self, size: int) -> str:
        """The name of the numbers 0, 1, ..., one for each element of a dimension of `size` and its padding."""
        return f"i{self.size(size)}"

    def ragged_axes(self, shape: Shape, only: Sequence[int] | None = None) -> dict[int, int]:
        """The size without padding of each dimension of the tensor that has padding (of those in `only`)."""
        dims = enumerate(sizes(shape))
        return {axis: size for axis, size in dims if self.size(size) != size and (only is None or axis in only)}

    def mask(self, shape: Shape, only: Sequence[int] | None = None) -> str:
        """What is true of the elements that are no padding along any dimension (of those in `only`); empty where none has any."""
        rank = len(sizes(shape))
        return " & ".join(along(inside(size), axis, rank) for axis, size in self.ragged_axes(shape, only).items())

    def keeps_order(self, before: Shape, after: Shape) -> bool:
        """Whether a tensor of `held(before)` reshaped to `held(after)` has the same elements in its first places, padding behind.

        Sizes are compared in groups of equal product. Padding then only grows the slowest dimension of a group; within, it would
        shift what follows. Groups of which one was widened differ in their places.
        """
        first, second = list(sizes(before)), list(sizes(after))
        while first or second:
            left, right = [first.pop(0)], [second.pop(0)]
            while math.prod(left) != math.prod(right):
                if math.prod(left) < math.prod(right):
                    left.append(first.pop(0))
                else:
                    right.append(second.pop(0))
            if math.prod(self.held(tuple(left))) != math.prod(self.held(tuple(right))):
                return False
            if left != right and any(self.size(size) != size for size in (*left[1:], *right[1:])):
                return False
        return True

    def element_numbers(self, shape: Shape) -> str:
        """For each element of a tile's tensor its number in row-major order; padding has numbers beyond."""
        dims = sizes(shape)
        return sum_of(
            [
                scaled(stride, along(self.place(size), axis, len(dims)))
                for axis, (size, stride) in enumerate(zip(dims, row_major(dims), strict=True))
            ]
        )

    def places_of(self, numbers: str, shape: Shape) -> str:
        """Where elements of these numbers lie in a tile's tensor of one dimension: `//` and `%` stay inside of it."""
        dims = sizes(shape)
        terms = []
        for size, stride, held_stride in zip(dims, row_major(dims), row_major(self.held(shape)), strict=True):
            divided = numbers if stride == 1 else f"{numbers} // {stride}"
            terms.append(scaled(held_stride, f"({divided} % {size})"))
        return sum_of(terms)


@dataclass(frozen=True, slots=True)
class View:
    """How the tensor of one tile becomes that of another with the same elements.

    Dimensions are put in the order `before`, cut and joined to `sizes`, and put in the order `after`.
    """

    before: tuple[int, ...]
    sizes: Shape
    after: tuple[int, ...]

    @classmethod
    def between(cls, held: Tile, wanted: Tile) -> View:
        """That from the tile `held` to the tile `wanted`, without the dimensions that this one repeats (of stride 0)."""
        axes = [dim for dim, size in enumerate(held.shape) if size > 1]
        others = [dim for dim, size in enumerate(wanted.shape) if size > 1 and wanted.strides[dim]]
        groups = _groups(held, axes, wanted, others)
        before = [axes.index(dim) for own, _ in groups for dim in own]
        made = [dim for _, group in groups for dim in group]
        return cls(tuple(before), tuple(wanted.shape[dim] for dim in made), tuple(made.index(dim) for dim in others))


def _groups(held: Tile, axes: Sequence[int], wanted: Tile, others: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two tiles of the same elements, slowest first, in the smallest groups that hold the same parts of them.

    The groups stand in the order of the first tile's dimensions, where that makes any difference.
    """
    first = sorted(axes, key=lambda dim: -held.strides[dim])
    second = sorted(others, key=lambda dim: -wanted.strides[dim])
    groups: list[tuple[list[int], list[int]]] = []
    while first and second:
        own, group = [first.pop(0)], [second.pop(0)]
        while (count := _elements(held, own)) != (wanted_count := _elements(wanted, group)):
            smaller, rest = (own, first) if count < wanted_count else (group, second)
            smaller.append(rest.pop(0))
        groups.append((own, group))
    return sorted(groups, key=lambda pair: min(pair[0]))


def _elements(tile: Tile, dims: Sequence[int]) -> int:
    return math.prod(tile.shape[dim] for dim in dims)


def window_of(tile: Tile) -> object:
    """A tile without the dimensions that say nothing: those of size 1, and along which it repeats."""
    dims = tuple((size, stride) for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1 and stride)
    return tile.buffer, _start(tile), dims


def same_tensor(first: Tile, second: Tile) -> bool:
    """Whether two tiles are the same elements in the same dimensions, so that one tensor holds either."""
    return window_of(first) == window_of(second)


def elements_of(tile: Tile) -> object:
    """Which elements a tile has, in whatever dimensions."""
    runs: list[tuple[int, int]] = []
    dims = ((stride, size) for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1 and stride)
    for stride, size in sorted(dims, reverse=True):
        runs.append((stride, size * runs.pop()[1]) if runs and runs[-1][0] == stride * size else (stride, size))
    return tile.buffer, _start(tile), tuple(runs)


def _start(tile: Tile) -> object:
    return tile.start.constant, tile.start.grid if any(tile.start.grid) else (), tile.start.loop


def with_slots(tile: Tile, count: int) -> Tile:
    """What `count` iterations write of whom each writes a tile: its dimensions and one for the loop."""
    step = tile.start.loop
    dims = enumerate(zip(tile.shape, tile.strides, strict=True))
    dim = next((dim for dim, (size, stride) in dims if size > 1 and stride < step), tile.rank)
    shape = (*tile.shape[:dim], count, *tile.shape[dim:])
    return replace(tile, shape=shape, strides=(*tile.strides[:dim], step, *tile.strides[dim:]), start=Index())


def is_sorted(order: Sequence[int]) -> bool:
    """Whether dimensions in this order are as they were."""
    return list(order) == sorted(order)
