"""Faults planted in the text of generated CUDA kernels: what a code generator could forget, one place at a time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from mugraph.lower.lowered import Kernel, Memory
from mugraph.lower.memory import lifetimes

Plant = tuple[str, str]
"""The kind of a fault, and the kernels' text with it."""


def plants(kernels: Sequence[Kernel], text: str) -> Iterator[Plant]:
    """Every fault of every kind that has a place in the text."""
    for kind, pattern, replacement in (*_REMOVED, *_STRIDES, _SWIZZLE):
        for match in re.finditer(pattern, text):
            if not _is_idle(text[: match.end()]):
                yield kind, text[: match.start()] + match.expand(replacement) + text[match.end() :]
    for first, second in _alive_together(kernels):
        yield "overlap", _placed_alike(text, first, second)


_REMOVED = (
    ("barrier", r"__syncthreads\(\);", ""),
    ("wait", r"cp_async_wait<\d+>\(\);", ""),
    ("mask", r"if \(m < \d+ && n < \d+\)", ""),
    ("mask", r"if \(m < \d+\)", ""),
    ("mask", r"if \(wanted < \d+( && [^)]*)?\)", ""),
    ("mask", r"e = thread; e < (\d+);", r"e = thread; e < \1 + blockDim.x;"),
)
_AT = r"(?:Swizzle<\d, \d, \d>::at\()?"
_ROWS = r"(e < (\d+); e \+= \d+\) \{\s*const int row = e / (?!\2,)[^;]*;\s*cp_async<16>\(slot \+ \d+ \+ " + _AT + ")"
_STRIDES = (
    # Factors of one row are read and written at row 0 alone, whatever the stride: those are left out.
    ("layout", _ROWS + r"(\d+) \* row", r"\1(\3 - 8) * row"),
    ("layout", r"(ldmatrix(?:_transposed)?<\d>\(\w+\[\w\], [^;]*? )(\d+) \* \((?!min\([^;]*, 0\))", r"\1(\2 + 8) * ("),
)
_SWIZZLE = ("swizzle", r"Swizzle<(\d), (\d), (\d)>", r"Swizzle<\1, \2, \3 + 1>")


def _is_idle(text: str) -> bool:
    """Whether the text ends in a mask that is always true: bands of rows that divide the rows."""
    mask = re.search(r"m = band \* (\d+) \+ r;\s*if \(m < (\d+)\)\Z", text)
    return mask is not None and int(mask[2]) % int(mask[1]) == 0


def _alive_together(kernels: Sequence[Kernel]) -> Iterator[tuple[str, str]]:
    """Pairs of shared buffers that hold data at the same time, the declarations of which name them."""
    for kernel in kernels:
        alive = lifetimes(kernel.before, kernel.body, kernel.after)
        shared = [b.name for b in kernel.buffers if b.memory is Memory.SHARED and b.name in alive]
        for first, second in itertools.combinations(shared, 2):
            # A statement may write its result over a source that nothing reads later.
            if max(alive[first].first, alive[second].first) < min(alive[first].last, alive[second].last):
                yield first, second


def _placed_alike(text: str, first: str, second: str) -> str:
    """The second buffer moved to where the first one lies."""
    taken, moved = (re.search(rf"const {name} = \(\w+ \*\)\(shared_memory\(\) \+ (\d+)\)", text) for name in (first, second))
    assert taken is not None
    assert moved is not None
    return text[: moved.start(1)] + taken[1] + text[moved.end(1) :]
