"""Running sums and products, in the checker's own words: a dimension of n positions as about sqrt(n) rows of as many.

Each row is scanned position by position, then what whole rows come to is, row by row, and joins what stands behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mugraph.checker.tensors import Array, Domain, Raw

SCANS: dict[str, tuple[str, bool]] = {
    "cumsum": ("sum", False),
    "cumsum_back": ("sum", True),
    "cumprod": ("product", False),
    "cumprod_back": ("product", True),
}
"""By name: what is running, and whether it begins at the last position."""


def running(what: str, raw: Raw, dim: int, back: bool, domain: Domain) -> Raw:
    """The running sum or product along a dimension of a tensor."""
    shape = domain.shape(raw)
    size = shape[dim]
    width = math.isqrt(size - 1) + 1
    rows = -(-size // width)
    combined = domain.add if what == "sum" else domain.multiply

    def table(array: Array) -> Array:
        """The last element again where the last row is not full: what stands behind all others changes none of them."""
        line = np.moveaxis(np.broadcast_to(array, shape), dim, 0)
        line = line[::-1] if back else line
        more = np.broadcast_to(line[-1:], (rows * width - size, *line.shape[1:]))
        return np.concatenate([line, more]).reshape(rows, width, *line.shape[1:])

    def untabled(array: Array) -> Array:
        line = array.reshape(rows * width, *array.shape[2:])[:size]
        return np.moveaxis(line[::-1] if back else line, 0, dim)

    within = _in_turn(_moved(raw, table, domain), 1, width, combined, domain)
    if rows == 1:
        return _moved(within, untabled, domain)
    before = _in_turn(_moved(within, lambda array: array[:-1, -1:], domain), 0, rows - 1, combined, domain)
    rest = combined(_moved(within, lambda array: array[1:], domain), before)
    whole = domain.move([within, rest], lambda arrays: np.concatenate([arrays[0][:1], arrays[1]]))
    return _moved(whole, untabled, domain)


def _in_turn(raw: Raw, axis: int, size: int, combined: Callable[[Raw, Raw], Raw], domain: Domain) -> Raw:
    """One position after the other."""
    lead = (slice(None),) * axis

    def at(position: int) -> Raw:
        return _moved(raw, lambda array: array[(*lead, slice(position, position + 1))], domain)

    found = [at(0)]
    for position in range(1, size):
        found.append(combined(found[-1], at(position)))
    return domain.move(found, lambda arrays: np.concatenate(arrays, axis=axis))


def _moved(raw: Raw, move: Callable[[Array], Array], domain: Domain) -> Raw:
    return domain.move([raw], lambda arrays: move(arrays[0]))
