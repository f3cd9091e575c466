"""Scans: running sums and products along a dimension, from its first position on or (`_back`) from its last.

Every position of the result has what the operand has up to there combined, that position included. Both are written for any
arithmetic: windows of 1, 2, 4, ... neighbours are combined, each of two that do not overlap, so that it takes as many operations
on tensors as a number of positions has binary digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mugraph.ir.arithmetic import Arithmetic, Array, V


class Scan(NamedTuple):
    """What a scan combines elements with, an operator of the table, and whether it begins at the last position."""

    combine: str
    back: bool

    @property
    def opposite(self) -> str:
        """The name of the scan that begins at the other end."""
        return next(name for name, scan in SCANS.items() if scan == self._replace(back=not self.back))


SCANS = {
    "cumsum": Scan("add", back=False),
    "cumsum_back": Scan("add", back=True),
    "cumprod": Scan("mul", back=False),
    "cumprod_back": Scan("mul", back=True),
}
"""By the name of their rows."""


def scanned(scan: Scan, arith: Arithmetic[V], x: V, dim: int, size: int) -> V:
    """The scan of a tensor along its dimension `dim`, which has `size` positions."""
    width = 1
    while width < size:
        near, far = (width, size), (0, size - width)
        later, earlier = (far, near) if scan.back else (near, far)
        whole = _combined(scan, arith, _part(arith, x, dim, later), _part(arith, x, dim, earlier))
        begun = _part(arith, x, dim, (size - width, size) if scan.back else (0, width))
        x = arith.join([whole, begun] if scan.back else [begun, whole], _behind(dim))
        width *= 2
    return x


def _combined(scan: Scan, arith: Arithmetic[V], x: V, y: V) -> V:
    # by name: the operators that scans combine with
    return arith.add(x, y) if scan.combine == "add" else arith.mul(x, y)


def _part(arith: Arithmetic[V], x: V, dim: int, ends: tuple[int, int]) -> V:
    place = (*(slice(None),) * dim, slice(*ends))
    return arith.view(x, lambda array: array[place])


def _behind(dim: int) -> Callable[[Any], Array]:
    return lambda parts: np.concatenate(parts, axis=dim)
