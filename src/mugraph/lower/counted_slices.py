"""Which slices of those it was made for a kernel computes, where a call says how many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstSlices:
    """How a kernel computes as many slices as a call says, the first of those it was made for (`mugraph.lower.first_slices`).

    A slice is `rows` rows. Block b along dimension `dim` of the grid, or every block if that is None, has `extent` of them from
    `step * b` on. `dims` has for each statement, phase by phase, the dimension of its points along which it stops behind the last
    row; None for one that does not stop. `count` is the input that has the number of slices. Where a block may begin at any row,
    `apart` has the operands with rows, and how many elements one of these lies behind the other there.

    `sizes` are the operands with slices, and how many elements of each lie together in one. Those of `ends` have no more slices
    in memory than a call says; others are the graph's own, between kernels.
    """

    count: str
    rows: int
    dim: int | None
    step: int
    extent: int
    dims: tuple[tuple[int | None, ...], ...]
    apart: tuple[tuple[str, int], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    ends: frozenset[str] = frozenset()

    @property
    def is_ragged(self) -> bool:
        """Whether a block may have rows behind the last one, where statements stop."""
        return any(dim is not None for dims in self.dims for dim in dims)

    def elements(self, name: str) -> int:
        """Of a slice, in an operand that has slices."""
        return dict(self.sizes)[name]

    def begun(self, slices: int, blocks: int) -> int:
        """How many of the `blocks` along `dim` begin before the last row of so many slices."""
        return min(-(-slices * self.rows // self.step), blocks)
