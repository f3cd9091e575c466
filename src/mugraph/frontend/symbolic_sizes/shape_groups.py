"""Which dimensions of an operand and a result stand for each other, where some have a size that varies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.index_counts import Size

Shape = tuple[Size, ...]


def broadcast(shape: Shape, result: Shape) -> dict[int, int]:
    """Where the dimensions of an operand are in a result, but for those that are repeated there."""
    more = len(result) - len(shape)
    return {dim: more + dim for dim, size in enumerate(shape) if size == result[more + dim]}


def regrouped(shape: Shape, result: Shape) -> list[tuple[list[int], list[int]]]:
    """The dimensions of an operand and of a result with the same elements in the same order, in groups: one dimension of varying
    size, or those of fixed size between two. Raises SizeMatters where one of varying size does not stay whole."""
    ours, theirs = _groups(shape), _groups(result)

    def sizes(groups: Sequence[Sequence[int]], of: Shape) -> list[Size]:
        return [of[group[0]] if number % 2 else math.prod(int(of[dim]) for dim in group) for number, group in enumerate(groups)]

    if sizes(ours, shape) != sizes(theirs, result):
        raise SizeMatters(f"a dimension of varying size does not stay whole from {[*shape]} to {[*result]}")
    return [*zip(ours, theirs, strict=True)]


def _groups(shape: Shape) -> list[list[int]]:
    """Dimensions of fixed size, in turns with single ones of varying size."""
    groups: list[list[int]] = [[]]
    for dim, size in enumerate(shape):
        if isinstance(size, str):
            groups += [[dim], []]
        else:
            groups[-1].append(dim)
    return groups


def together(one: Shape, other: Shape) -> Shape:
    """The sizes of two shapes that are broadcast to each other."""
    return tuple(theirs if ours == 1 else ours for ours, theirs in zip(one, other, strict=True))
