"""The ring of panels: which asynchronous copies each step of the kernel's products issues, and the wait for a panel.

Panels are numbered in the order of their use. Before panel t is used, every thread waits for its own copies of it, all
threads meet, and the copies of panel t + stages - 1 are issued into the slot that panel t - 1 has left.
"""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.lower.lowered import Matmul, Panels, Statement, Tile
from mugraph.lower.streams import COPY_BYTES
from mugraph.targets.cuda.source import KernelText
from mugraph.targets.source import index_terms, scaled, sum_of


def write_ring(text: KernelText) -> None:
    """Declare `slot`, the one in use, and `next_panel`, which makes it the next panel's; issue the first panels' copies."""
    ring = text.kernel.ring
    if ring is None:
        return
    kernel = text.kernel
    with text.block("const auto fetch = [&](int panel)", end=";"):
        text.line(f"auto *const slot = {ring.buffer} + panel % {ring.stages} * {ring.slot};")
        text.line("const long l = 0;")
        _write_part(text, kernel.before, 1)
        _write_part(text, kernel.body, kernel.loop)
        _write_part(text, kernel.after, 1)
        text.line("cp_async_commit();")
    text.line(f"auto *slot = {ring.buffer};")
    text.line("int used = 0;")
    with text.block("const auto next_panel = [&]()", end=";"):
        text.line(f"cp_async_wait<{ring.stages - 2}>();")
        text.line("__syncthreads();")
        text.line(f"fetch(used + {ring.stages - 1});")
        text.line(f"slot = {ring.buffer} + used++ % {ring.stages} * {ring.slot};")
    text.line(f"for (int panel = 0; panel < {ring.stages - 1}; ++panel)")
    text.line("    fetch(panel);")


def _write_part(text: KernelText, statements: Sequence[Statement], times: int) -> None:
    """The copies of panel number `panel` if it belongs to a part that runs `times` times; what is left of it otherwise."""
    streamed = [(s, s.panels) for s in statements if isinstance(s, Matmul) and s.panels is not None]
    counts = [product.left.shape[-1] // panels.depth for product, panels in streamed]
    if not streamed:
        return
    with text.block(f"if (0 <= panel && panel < {sum(counts) * times})"):
        text.line(f"const long l = panel / {sum(counts)};")
        text.line(f"int p = panel % {sum(counts)};")
        for (product, panels), count in zip(streamed, counts, strict=True):
            with text.block(f"if (0 <= p && p < {count})"):
                _write_copies(text, product, panels)
            text.line(f"p -= {count};")
    text.line(f"panel -= {sum(counts) * times};")


def _write_copies(text: KernelText, product: Matmul, panels: Panels) -> None:
    for factor, place, inner in ((product.left, panels.left, -1), (product.right, panels.right, -2)):
        if place is not None:
            _write_copy(text, factor, place, inner, panels.depth)


def _write_copy(text: KernelText, factor: Tile, place: Tile, inner: int, depth: int) -> None:
    """Copy panel `p` of a factor to its place in the slot, 16 bytes at a time."""
    run = COPY_BYTES // text.dtype(factor).bytes
    along, across = (-1, -2) if place.strides[-1] == 1 else (-2, -1)
    runs, rows = place.shape[along] // run, place.shape[across]
    with text.block(f"for (int e = thread; e < {rows * runs}; e += {text.threads})"):
        text.line(f"const int row = e / {runs}, at = e % {runs} * {run};")
        moved = scaled(factor.strides[inner] * depth, "p")
        start = index_terms(factor.start)
        source = sum_of([factor.buffer, *start, moved, scaled(factor.strides[across], "(long)row"), "at"])
        target = sum_of(["slot", str(place.start.constant), scaled(place.strides[across], "row"), "at"])
        text.line(f"cp_async<{COPY_BYTES}>({target}, {source});")
