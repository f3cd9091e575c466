"""Pooling and convolution through windows that tile their tensor: each element is in one window, so that these are reshapes.

What slides by less than a window, or reads beyond the border, reads elements several times, which no reshape does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mugraph.errors import UnsupportedOperator
from mugraph.ir.program import ProgramTensor as Tensor

Sizes = int | Sequence[int]


def windows(x: Tensor, size: Sequence[int]) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """The last dimensions of `x`, each split in two: [..., windows, in a window, ...]; and which are which, from the left.

    Raises UnsupportedOperator where windows of that size do not tile them.
    """
    lead = len(x.shape) - len(size)
    split: list[int] = []
    for whole, part in zip(x.shape[lead:], size, strict=True):
        if part == 0 or whole % part:
            raise UnsupportedOperator(f"windows of {part} of {whole} elements, which they do not tile")
        split += [whole // part, part]
    across = tuple(lead + 2 * number for number in range(len(size)))
    return x.reshape(*x.shape[:lead], *split), across, tuple(place + 1 for place in across)


def _tiling(x: Tensor, rank: int, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes = 1) -> tuple[int, ...]:
    """The sizes of windows that begin where others end; raises UnsupportedOperator for other ones."""
    sizes = _each(size, rank)
    steps = sizes if not isinstance(stride, int) and not len(stride) else _each(stride, rank)
    if steps != sizes or any(_each(padding, rank)) or _each(dilation, rank) != (1,) * rank:
        raise UnsupportedOperator("windows that overlap, leave gaps, or reach beyond the border")
    return sizes


def _each(sizes: Sizes, rank: int) -> tuple[int, ...]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return given * rank if len(given) == 1 else given


def avg_pool(
    rank: int,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of the last `rank` dimensions."""
    split, _, inside = windows(x, _tiling(x, rank, kernel_size, stride, padding))
    summed = split.sum(inside)
    return summed / (divisor_override or math.prod(split.shape[place] for place in inside))


def max_pool(
    rank: int,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window of the last `rank` dimensions."""
    split, _, inside = windows(x, _tiling(x, rank, kernel_size, stride, padding, dilation))
    return split.amax(inside)


def max_pool_with_indices(rank: int, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
    """What `max_pool` gives; where the largest stood, no program says."""
    return max_pool(rank, *arguments, **options), None


def adaptive_avg_pool(rank: int, x: Tensor, output_size: Sizes) -> Tensor:
    """The means of as many windows as are asked for along each of the last `rank` dimensions."""
    wanted = [own if count is None else count for own, count in zip(x.shape[-rank:], _each(output_size, rank), strict=True)]
    if any(count == 0 or own % count for own, count in zip(x.shape[-rank:], wanted, strict=True)):
        raise UnsupportedOperator(f"{wanted} windows of {list(x.shape[-rank:])} elements, which overlap")
    size = [own // count for own, count in zip(x.shape[-rank:], wanted, strict=True)]
    return avg_pool(rank, x, size)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Products of weights [outputs, inputs of a group, window] with each window of [batch, inputs, ...]: a point, or a patch."""
    rank = len(weight.shape) - 2
    if transposed or len(x.shape) != rank + 2:
        raise UnsupportedOperator("convolution that is transposed, or of what has no batch")
    outputs, size = weight.shape[0], weight.shape[2:]
    split, across, inside = windows(x, _tiling(x, rank, size, stride, padding, dilation))
    features, places = math.prod(weight.shape[1:]), [split.shape[place] for place in across]
    patches = split.permute(0, 1, *inside, *across).reshape(x.shape[0], groups, features, math.prod(places))
    if groups == 1:
        product = weight.reshape(outputs, features) @ patches.reshape(x.shape[0], features, math.prod(places))
    else:
        product = (weight.reshape(groups, outputs // groups, features) @ patches).reshape(x.shape[0], outputs, -1)
    given = product if bias is None else product + bias.reshape(1, -1, 1)
    return given.reshape(x.shape[0], outputs, *places)
