"""Pooling and convolution through windows.

Where these tile their tensor, so that each element is in one window, they are a reshape. What windows that overlap, leave gaps
or reach beyond the border have at one place is a slice, and the windows are as many slices as they have places.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Windows:
    """`count` windows along a dimension of `size` elements: window o has those at `step * o - before + dilation * place`, as far
    as there are any, for `width` places. There is a `padding` before and behind the elements, and windows that reach beyond the
    border by more are cut off there."""

    size: int
    width: int
    step: int
    padding: tuple[int, int]
    dilation: int
    count: int

    @classmethod
    def of(cls, size: int, width: int, step: int, padding: tuple[int, int], dilation: int, ceil: bool) -> Windows:
        """As PyTorch and ONNX count them: with `ceil`, one more where it begins in the tensor or the padding before it."""
        rest = size + sum(padding) - dilation * (width - 1) - 1
        count = (-(-rest // step) if ceil else rest // step) + 1
        if ceil and (count - 1) * step >= size + padding[0]:
            count -= 1
        if rest < 0 or count < 1:
            raise UnsupportedOperator(f"windows of {width} of {size} elements, which are larger than the tensor")
        return cls(size, width, step, padding, dilation, count)

    @property
    def tiles(self) -> bool:
        """Whether each element is in one window, but for a rest that no window reaches."""
        tile = self.width == self.step and self.dilation == 1 and not any(self.padding)
        return tile and self.width * self.count <= self.size

    def places(self, window: int) -> tuple[int, ...]:
        """The places of a window that are elements."""
        first = window * self.step - self.padding[0]
        return tuple(place for place in range(self.width) if 0 <= first + place * self.dilation < self.size)

    def reach(self, window: int) -> int:
        """How many places of a window are elements or padding."""
        first, end = window * self.step, self.size + sum(self.padding)
        return sum(first + place * self.dilation < end for place in range(self.width))

    def alike(self) -> Iterator[tuple[range, tuple[int, ...], int]]:
        """Stretches of windows with the same places and the same reach."""
        for (places, reach), group in itertools.groupby(range(self.count), lambda o: (self.places(o), self.reach(o))):
            windows = [*group]
            if not places:
                raise UnsupportedOperator("windows without an element")
            yield range(windows[0], windows[-1] + 1), places, reach

    def elements(self, x: Tensor, dim: int, windows: range, place: int) -> Tensor:
        """What stretches of windows have at a place."""
        start = windows.start * self.step - self.padding[0] + place * self.dilation
        return x.slice(dim, start, len(windows), self.step)


def _tiled(x: Tensor, along: Sequence[Windows]) -> tuple[Tensor, tuple[int, ...]]:
    """The last dimensions split in windows and what is in them, without a rest; and which are inside of windows."""
    for dim, each in enumerate(along, start=len(x.shape) - len(along)):
        x = x.slice(dim, 0, each.width * each.count)
    split, _, inside = windows(x, [each.width for each in along])
    return split, inside


_MOST_PLACES = 128
"""Of windows in all dimensions together, each as often as there are kinds of windows: more are more than can be searched."""


def _pooled(x: Tensor, along: Sequence[Windows], join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The elements of each window of the last dimensions joined, one dimension after the other."""
    if math.prod(sum(len(places) for _, places, _ in windows.alike()) for windows in along) > _MOST_PLACES:
        raise UnsupportedOperator("windows of so many elements, which are no tiles, that all of them are too much to search")
    for dim, windows in enumerate(along, start=len(x.shape) - len(along)):
        stretches = [
            functools.reduce(join, (windows.elements(x, dim, stretch, place) for place in places))
            for stretch, places, _ in windows.alike()
        ]
        x = x.program.concat(stretches, dim)
    return x


def _windows(
    x: Tensor, rank: int, size: Sizes, stride: Sizes, padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False
) -> list[Windows]:
    sizes = _each(size, rank)
    steps = sizes if not isinstance(stride, int) and not len(stride) else _each(stride, rank)
    given = zip(x.shape[-rank:], sizes, steps, _each(padding, rank), _each(dilation, rank), strict=True)
    return [Windows.of(whole, size, step, (pad, pad), apart, ceil_mode) for whole, size, step, pad, apart in given]


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
    return means(x, _windows(x, rank, kernel_size, stride, padding, 1, ceil_mode), count_include_pad, divisor_override)


def means(x: Tensor, along: Sequence[Windows], count_padding: bool, divisor: int | None = None) -> Tensor:
    """The sums of all windows of the last dimensions by their sizes, with the padding in them or without, or by a divisor."""
    if all(each.tiles for each in along):
        split, inside = _tiled(x, along)
        summed = split.sum(inside)
        return summed / (divisor or math.prod(each.width for each in along))
    summed = _pooled(x, along, Tensor.__add__)
    if divisor:
        return summed / divisor
    for dim, each in enumerate(along, start=len(x.shape) - len(along)):
        divided = [
            summed.slice(dim, stretch.start, len(stretch)) / (reach if count_padding else len(places))
            for stretch, places, reach in each.alike()
        ]
        summed = x.program.concat(divided, dim)
    return summed


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
    return largest(x, _windows(x, rank, kernel_size, stride, padding, dilation, ceil_mode))


def largest(x: Tensor, along: Sequence[Windows]) -> Tensor:
    """The maxima of all windows of the last dimensions."""
    if all(each.tiles for each in along):
        split, inside = _tiled(x, along)
        return split.amax(inside)
    return _pooled(x, along, Tensor.maximum)


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
