"""Tiles as Triton holds them: no dimensions of size 1, and every other size rounded up to a power of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape

ELEMENT_TYPES = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}
"""What Triton and PyTorch call the element types."""


@dataclass(frozen=True, slots=True)
class TileText:
    """A tile by the text of its value; `shape` is that of the muGraph.

    The Triton tensor has `held(shape)`: a tile of [1, 12, 64] is a tensor of [16, 64], whose last four rows are padding. What
    is in the padding nobody may read, unless `zero_padded`. Elements are fp32 unless `narrow`; in fp32 too they may all be
    numbers of the type `exact`, as they were loaded, or `bounded`, between 0 and 1 as the exponentials of safe softmax are.
    """

    text: str
    shape: Shape
    narrow: DType | None = None
    exact: DType | None = None
    bounded: bool = False
    zero_padded: bool = False

    @property
    def wide(self) -> str:
        """The text of the tile in fp32."""
        return self.text if self.narrow is None else f"{self.text}.to(tl.float32)"


def padded(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (size - 1).bit_length()


def sizes(shape: Shape) -> tuple[int, ...]:
    """The dimensions of a tile that its tensor has, without padding."""
    return tuple(size for size in shape if size > 1)


def held(shape: Shape) -> tuple[int, ...]:
    """The shape of the tensor that holds a tile."""
    return tuple(map(padded, sizes(shape)))


def axis_of(shape: Shape, dim: int) -> int:
    """Which dimension of the tensor is dimension `dim`, of more than one element, of the tile."""
    return len(sizes(shape[:dim]))


def along(text: str, axis: int, rank: int) -> str:
    """A vector as a tensor of `rank` dimensions, all but `axis` of size 1."""
    return text if rank == 1 else f"{text}[{', '.join(':' if other == axis else 'None' for other in range(rank))}]"


def aligned(text: str, shape: Shape, wanted: Shape) -> str:
    """The text of a tile of `shape` as a tensor that broadcasts against one for `wanted`, as in NumPy."""
    own = (1,) * (len(wanted) - len(shape)) + tuple(shape)
    index = [":" if size > 1 else "None" for size, other in zip(own, wanted, strict=True) if other > 1]
    return text if ":" not in index or "None" not in index else f"{text}[{', '.join(index)}]"


def place(size: int) -> str:
    """The name of the numbers 0, 1, ..., one for each element of a dimension of `size` and its padding."""
    return f"i{padded(size)}"


def inside(size: int) -> str:
    """The name of which of these numbers are no padding."""
    return f"m{size}"


def ragged_axes(shape: Shape, only: Sequence[int] | None = None) -> dict[int, int]:
    """The size without padding of each dimension of the tensor that has padding (of those in `only`)."""
    dims = enumerate(sizes(shape))
    return {axis: size for axis, size in dims if padded(size) != size and (only is None or axis in only)}


def mask(shape: Shape, only: Sequence[int] | None = None) -> str:
    """What is true of the elements that are no padding along any dimension (of those in `only`); empty where none has any."""
    rank = len(sizes(shape))
    return " & ".join(along(inside(size), axis, rank) for axis, size in ragged_axes(shape, only).items())
