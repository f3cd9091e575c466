"""What ATen's operators on parts of tensors mean: slices of tensors, and tensors one behind the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mugraph.errors import UnsupportedOperator
from mugraph.ir.program import ProgramTensor as Tensor


def sliced(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """As Python's slices are; a part without elements is no tensor of programs."""
    taken = range(x.shape[dim])[slice(start, end, step)]
    if not taken:
        raise UnsupportedOperator("a part of a tensor without elements; leave it out")
    return x.slice(dim, taken.start, len(taken), step)


def selected(x: Tensor, dim: int, index: int) -> Tensor:
    """One position of a dimension, which is gone then."""
    return x.slice(dim, index % x.shape[dim], 1).squeeze(dim)


def narrowed(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements from `start` on."""
    return x.slice(dim, start % x.shape[dim], length)


def split(x: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of these sizes, or of `size` elements each and what is left."""
    whole = x.shape[dim]
    sizes = [min(size, whole - start) for start in range(0, whole, size)] if isinstance(size, int) else list(size)
    if min(sizes) < 1:
        raise UnsupportedOperator("a part of a tensor without elements; leave it out")
    return tuple(x.slice(dim, sum(sizes[:number]), part) for number, part in enumerate(sizes))


def chunked(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """So many parts of equal sizes, or fewer."""
    return split(x, -(-x.shape[dim] // chunks), dim)


def unbound(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Every position of a dimension."""
    return tuple(selected(x, dim, index) for index in range(x.shape[dim]))


def concatenated(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """One behind the other."""
    return tensors[0].program.concat(tensors, dim)


def stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """One behind the other along a new dimension."""
    return concatenated([tensor.unsqueeze(dim) for tensor in tensors], dim)


def padded(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """`pad` are pairs (before, behind) from the last dimension on; negative ones cut off."""
    for number, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        x = with_border(x, len(x.shape) - 1 - number, before, behind, value)
    return x


def with_border(x: Tensor, dim: int, before: int, behind: int, value: float) -> Tensor:
    """So many elements of a value on both sides along a dimension; with a negative number, so many less."""
    start, size = max(0, -before), x.shape[dim] + min(0, before) + min(0, behind)
    if size < 1:
        raise UnsupportedOperator("padding that leaves nothing of the tensor")
    inside = x.slice(dim, start, size)
    if value in (math.inf, -math.inf) and max(before, behind) > 0:
        raise UnsupportedOperator(f"padding with {value}, which is no number of the operator table")

    def border(width: int) -> list[Tensor]:
        shape = (*x.shape[:dim], width, *x.shape[dim + 1 :])
        return [x.program.constant(value, x.dtype).expand(*shape)] if width > 0 else []

    return x.program.concat([*border(before), inside, *border(behind)], dim)


def flipped(x: Tensor, dims: Sequence[int]) -> Tensor:
    """In the opposite order along these dimensions; of a number, which has none, 0 may be named."""
    for dim in dims if x.shape else ():
        x = x.slice(dim, x.shape[dim] - 1, x.shape[dim], -1)
    return x


def rolled(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Tensor:
    """Moved on by so many positions; what leaves a dimension at its end comes in again at its beginning."""
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else list(dims)
    if not along:
        return rolled(x.reshape(-1), moves, [0]).reshape(*x.shape)
    for shift, dim in zip(moves, along, strict=True):
        cut = -shift % x.shape[dim]
        if cut:
            x = x.program.concat([x.slice(dim, cut, x.shape[dim] - cut), x.slice(dim, 0, cut)], dim)
    return x


def unfolded(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements, one every `step`, with their elements along a new last dimension."""
    if size < 1:
        raise UnsupportedOperator("windows without elements; leave them out")
    if not x.shape:
        return x.reshape(1)
    dim %= len(x.shape)
    count = (x.shape[dim] - size) // step + 1
    taps = [x.slice(dim, place, count, step).unsqueeze(len(x.shape)) for place in range(size)]
    return x.program.concat(taps, len(x.shape))


def reflected(x: Tensor, pad: Sequence[int]) -> Tensor:
    """`pad` are pairs from the last dimension on: the elements next to the border in the opposite order, without the border."""
    for number, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = len(x.shape) - 1 - number
        last = x.shape[dim] - 1
        head = [x.slice(dim, before, before, -1)] if before else []
        tail = [x.slice(dim, last - 1, behind, -1)] if behind else []
        x = x.program.concat([*head, x, *tail], dim)
    return x


def replicated(x: Tensor, pad: Sequence[int]) -> Tensor:
    """`pad` are pairs from the last dimension on: the element at the border as often as they say."""
    for number, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = len(x.shape) - 1 - number
        last = x.shape[dim] - 1
        head = [x.slice(dim, 0, 1).repeat(dim, before)] if before else []
        tail = [x.slice(dim, last, 1).repeat(dim, behind)] if behind else []
        x = x.program.concat([*head, x, *tail], dim)
    return x
