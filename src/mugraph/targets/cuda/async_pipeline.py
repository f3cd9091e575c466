"""The ring of panels: which asynchronous copies each step of the kernel's products issues, and the wait for a panel.

Panels are numbered in the order of their use. Before panel t is used, its copies are waited for, all threads meet, and the
copies of panel t + stages - 1 are issued into the slot that panel t - 1 has left. In a ring that lags by one, products of panel
t - 1 may still run then, and panel t + stages - 2 takes the slot of panel t - 2. Where a warp beside the block's threads issues
the copies, these meet no more: warps tell it through a barrier in shared memory when they have done with a panel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mugraph.devices.copies import COPY_BYTES
from mugraph.devices.products import WARP
from mugraph.lower.bulk_copies import places, row_elements
from mugraph.lower.line_prefetch import prefetched_bytes
from mugraph.lower.staging import panels_of, panels_of_iteration, panels_of_kernel
from mugraph.lower.tensor_maps import box_copies, tensor_maps
from mugraph.lower.tile_form import Kernel, Matmul, Panels, Ring, Statement, Tile
from mugraph.lower.tiles import row_major
from mugraph.lower.warp_groups import blocked, uses_warp_groups
from mugraph.targets.c_text import index_terms, scaled, sum_of
from mugraph.targets.cuda.loops import each_turn
from mugraph.targets.cuda.source import KernelText

_COPY_VALUES = 16
"""Registers that an unrolled copy takes, whose addresses the compiler keeps for all branches and panels."""
_ISSUER = "if (warp == 0 && elected())"
"""Before what one thread of a block does: the warp is that thread's alone as the compiler sees it."""
MAP_NAME = "map"
"""Of the parameters that are tensor maps, before their number."""
_UNROLLED_ROWS = 8
"""Of a panel that one thread copies, a few instructions each."""
Write = Callable[[KernelText, Matmul, Panels], None]
"""Writes the copies of panel number `p` of a product's factors into `slot`."""


def write_ring(text: KernelText) -> None:
    """Declare `slot`, the one in use, and `next_panel`, which makes it the next panel's; issue the first copies."""
    ring = text.kernel.ring
    if ring is None:
        if text.kernel.staged:
            _write_first_iteration(text)
        return
    if ring.producer:
        _write_producer_ring(text)
    elif ring.bulk:
        _write_bulk_ring(text)
    else:
        _write_thread_ring(text)


# copies by all threads ----------------------------------------------------------------------------------------------------


def _write_thread_ring(text: KernelText) -> None:
    """Every thread copies its share of a panel, 16 bytes at a time, and waits for that before it meets the others."""
    ring = text.kernel.ring
    assert ring is not None
    _write_staging(text)
    with text.block("const auto fetch = [&](int panel)", end=";"):
        if text.kernel.staged:
            text.line("stage(panel);")
        _write_fetch(text, _write_thread_copies)
        text.line("cp_async_commit();")
    _declare_slot(text)
    with text.block("const auto next_panel = [&]()", end=";"):
        text.line(f"cp_async_wait<{ring.ahead - 1}>();")
        if uses_warp_groups(text.kernel):
            text.line("proxy_fence();")
        text.line("__syncthreads();")
        text.line(f"fetch(used + {ring.ahead});")
        text.line(f"slot = {ring.buffer} + used++ % {ring.stages} * {ring.slot};")
    text.line(f"for (int panel = 0; panel < {ring.ahead}; ++panel)")
    text.line("    fetch(panel);")


def _write_staging(text: KernelText) -> None:
    """Declare `stage`, which copies with an iteration's last panel what the next one reads beside products; stage the first."""
    kernel = text.kernel
    if not kernel.staged:
        return
    each = panels_of_iteration(kernel)
    with text.block("const auto stage = [&](int panel)", end=";"):
        text.line(f"const int next = panel + 1 - {panels_of(kernel.before)};")
        with text.block(f"if (0 < next && next < {each * kernel.loop} && next % {each} == 0)"):
            text.line(f"const long l = next / {each};")
            _write_staged_copies(text)
    _write_first_iteration(text)


def _write_first_iteration(text: KernelText) -> None:
    """What the first iteration reads beside its products, ahead of all panels."""
    with text.block():
        text.line("const long l = 0;")
        _write_staged_copies(text)
        text.line("cp_async_commit();")


def write_arrival(text: KernelText) -> None:
    """Wait for what the first iteration reads beside its products; later ones have waited for a panel that came with theirs."""
    kernel = text.kernel
    if not kernel.staged or kernel.ring is None:
        return
    text.line(f"cp_async_wait<{kernel.ring.ahead}>();")
    if not _meet_before_staged(kernel):
        text.line("__syncthreads();")


def _meet_before_staged(kernel: Kernel) -> bool:
    """Whether the loop's threads meet anyway before they read what is staged."""
    names = {staged.buffer for staged in kernel.staged}
    for number, statement in enumerate(kernel.body, len(kernel.before)):
        if number in kernel.barriers or (isinstance(statement, Matmul) and statement.panels is not None):
            return True
        if any(tile.buffer in names for tile in statement.sources):
            break
    return False


def _write_staged_copies(text: KernelText) -> None:
    """The copies for iteration `l`."""
    for staged in text.kernel.staged:
        source = staged.source
        place = Tile(staged.buffer, source.shape, row_major(source.shape))
        copy = _copy(prefetched_bytes(text.kernel, source, -1, source.shape[-1]))
        with _each_copy(text, place):
            target = sum_of([text.base(place), *_row_terms(place, place), "at"])
            origin = sum_of([source.buffer, *index_terms(source.start), *_row_terms(source, place, "(long)"), "at"])
            origin = _present(text, source, origin)
            text.line(f"{copy}({target}, {origin});")


def _write_thread_copies(text: KernelText, product: Matmul, panels: Panels) -> None:
    for factor, place, inner in _copied(product, panels):
        whole, along = product.left if inner == -1 else product.right, -1 if place.strides[-1] == 1 else -2
        copy = _copy(prefetched_bytes(text.kernel, whole, along, panels.depth if along == inner else whole.shape[along]))
        with _each_copy(text, place):
            source, target = _ends(text, factor, place, inner, panels.depth, at=["at"])
            source = _present(text, factor, source)
            text.line(f"{copy}({target}, {source});")


def _present(text: KernelText, tile: Tile, source: str) -> str:
    """Where a copy of elements of one slice reads, and whether it does: zeros arrive of a tile whose memory ends before, and no
    address in it is touched."""
    if not (end := text.end(tile)):
        return source
    text.line(f"const {text.dtype(tile)}_t *const from = {source};")
    return f"from < {end} ? from : {tile.buffer}, from < {end}"


def _copy(line: int) -> str:
    """The function that copies 16 bytes, and has the last cache fetch a line of so many bytes, 0 for none."""
    return f"cp_async<{COPY_BYTES}, {line}>" if line else f"cp_async<{COPY_BYTES}>"


@contextmanager
def _each_copy(text: KernelText, place: Tile) -> Iterator[None]:
    """A loop over a thread's share of the copies of a place: to element `at` of row `row`."""
    run = COPY_BYTES // text.dtype(place).bytes
    runs = row_elements(place) // run
    with each_turn(text, "e", "thread", _rows(place) * runs, text.threads, values=_COPY_VALUES):
        text.line(f"const int row = e / {runs}, at = e % {runs} * {run};")
        yield


# bulk copies --------------------------------------------------------------------------------------------------------------


def _write_bulk_ring(text: KernelText) -> None:
    """A thread of the first warp issues the copies of a panel, a row or a box each; a slot's barrier counts their bytes.

    Every thread waits for the count itself: even phases of a slot's barrier are those of its first, third, ... panel. What is
    staged all threads copy, a group for each panel as in a ring that they fill.
    """
    ring, staged = text.kernel.ring, text.kernel.staged
    assert ring is not None
    _write_staging(text)
    _write_counted_fetch(text, ring)
    _declare_slot(text)
    with text.block("const auto next_panel = [&]()", end=";"):
        if staged:
            text.line(f"cp_async_wait<{ring.ahead - 1}>();")
        text.line("__syncthreads();")
        text.line(_ISSUER)
        text.line(f"    fetch(used + {ring.ahead});")
        if staged:
            text.line(f"stage(used + {ring.ahead});")
            text.line("cp_async_commit();")
        _write_counted_wait(text, ring)
    with text.block(_ISSUER):
        text.line(f"for (int stage = 0; stage < {ring.stages}; ++stage)")
        text.line("    mbarrier_init(arrived + stage, 1);")
        text.line("proxy_fence();")
        text.line(f"for (int panel = 0; panel < {ring.ahead}; ++panel)")
        text.line("    fetch(panel);")
    if staged:
        with text.block(f"for (int panel = 0; panel < {ring.ahead}; ++panel)"):
            text.line("stage(panel);")
            text.line("cp_async_commit();")


def _write_counted_fetch(text: KernelText, ring: Ring) -> None:
    """Declare `fetch`, by which one thread issues the copies of a panel that its slot's barrier counts."""
    text.line(f"mbarrier_t *const arrived = (mbarrier_t *)({ring.buffer} + {ring.stages * ring.slot});")
    with text.block("const auto fetch = [&](int panel)", end=";"):
        text.line(f"mbarrier_t *const count = arrived + panel % {ring.stages};")
        _write_fetch(text, _write_bulk_copies)


def _write_counted_wait(text: KernelText, ring: Ring) -> None:
    """Wait until the bytes of the next panel have been counted, and go on to its slot."""
    text.line(f"mbarrier_wait(arrived + used % {ring.stages}, used / {ring.stages} % 2);")
    text.line(f"slot = {ring.buffer} + used++ % {ring.stages} * {ring.slot};")


def _write_producer_ring(text: KernelText) -> None:
    """One thread of the warp behind the block's own issues the copies of all panels, and this warp does nothing else.

    Before it fills a slot again it waits until every other warp has left it. Phase n of both barriers of a slot is that of its
    n-th panel; to wait for the phase before the first one is to go on at once.
    """
    kernel, ring = text.kernel, text.kernel.ring
    assert ring is not None
    warps, panels = kernel.threads // WARP, panels_of_kernel(kernel)
    _write_counted_fetch(text, ring)
    text.line(f"mbarrier_t *const left = arrived + {ring.stages};")
    with text.block("if (thread == 0)"):
        with text.block(f"for (int stage = 0; stage < {ring.stages}; ++stage)"):
            text.line("mbarrier_init(arrived + stage, 1);")
            text.line(f"mbarrier_init(left + stage, {warps});")
        text.line("proxy_fence();")
    text.line("__syncthreads();")
    with text.block(f"if (warp == {warps})"):
        with text.block("if (elected())"), text.block(f"for (int panel = 0; panel < {panels}; ++panel)"):
            text.line(f"mbarrier_wait(left + panel % {ring.stages}, (panel / {ring.stages} + 1) % 2);")
            text.line("fetch(panel);")
        text.line("return;")
    _declare_slot(text)
    with text.block("const auto next_panel = [&]()", end=";"):
        _write_counted_wait(text, ring)
    with text.block("const auto leave_panel = [&](int panel)", end=";"):
        text.line("if (panel >= 0 && elected())")
        text.line(f"    mbarrier_arrive(left + panel % {ring.stages});")


def _write_bulk_copies(text: KernelText, product: Matmul, panels: Panels) -> None:
    elements = sum(math.prod(place.shape) for place in places(panels))
    text.line(f"mbarrier_arrive_expect(count, {elements * product.dtype.bytes});")
    if panels.boxed:
        _write_boxes(text, product)
        return
    for factor, place, inner in _copied(product, panels):
        text.line(f"#pragma unroll {_UNROLLED_ROWS}")
        with text.block(f"for (int row = 0; row < {_rows(place)}; ++row)"):
            source, target = _ends(text, factor, place, inner, panels.depth)
            if end := text.end(factor):  # bytes are counted, whatever they are
                text.line(f"const {text.dtype(factor)}_t *const from = {source};")
                source = f"from < {end} ? from : {factor.buffer}"
            text.line(f"bulk_copy({target}, {source}, {row_elements(place) * product.dtype.bytes}, count);")


def _write_boxes(text: KernelText, product: Matmul) -> None:
    """One copy for each block of the panels."""
    maps = tensor_maps(text.kernel)
    for copies in box_copies(text.kernel, product):
        assert copies is not None
        tall, wide = copies.matrix.box
        row = [*index_terms(copies.row), scaled(copies.panel_rows, "p")]
        column = [*index_terms(copies.column), scaled(copies.panel_columns, "p")]
        for block, piece in itertools.product(range(copies.blocks), range(copies.pieces)):
            place = copies.place.start.constant + block * copies.place.strides[0] + piece * tall * wide
            corner = f"{_coordinate(column, block * wide)}, {_coordinate(row, piece * tall)}"
            text.line(f"box_copy(slot + {place}, {MAP_NAME}{maps.index(copies.matrix)}, {corner}, count);")


def _coordinate(terms: Sequence[str], step: int) -> str:
    return f"(int)({sum_of([*terms, str(step) if step else '']) or '0'})"


# what both share ----------------------------------------------------------------------------------------------------------


def _declare_slot(text: KernelText) -> None:
    assert text.kernel.ring is not None
    text.line(f"auto *slot = {text.kernel.ring.buffer};")
    text.line("int used = 0;")


def _write_fetch(text: KernelText, write: Write) -> None:
    """The copies of panel number `panel`; none beyond the last one."""
    kernel, ring = text.kernel, text.kernel.ring
    assert ring is not None
    text.line(f"auto *const slot = {ring.buffer} + panel % {ring.stages} * {ring.slot};")
    text.line("const long l = 0;")
    _write_part(text, kernel.before, 1, write)
    _write_part(text, kernel.body, kernel.loop, write)
    _write_part(text, kernel.after, 1, write)


def _write_part(text: KernelText, statements: Sequence[Statement], times: int, write: Write) -> None:
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
                write(text, product, panels)
            text.line(f"p -= {count};")
    text.line(f"panel -= {sum(counts) * times};")


def _copied(product: Matmul, panels: Panels) -> list[tuple[Tile, Tile, int]]:
    """The factors that are copied, their places in the slot, and which of their dimensions k is."""
    right = blocked(product.right, panels.right) if panels.right_in_blocks and panels.right is not None else product.right
    factors = ((product.left, panels.left, -1), (right, panels.right, -2))
    return [(factor, place, inner) for factor, place, inner in factors if place is not None]


def _rows(place: Tile) -> int:
    """Rows of a panel, those of all matrices of a batch."""
    return math.prod(place.shape) // row_elements(place)


def _row_terms(tile: Tile, place: Tile, cast: str = "") -> Iterator[str]:
    """Where row `row` of a panel starts in a tile of the dimensions of its `place`, the last but the row's own fastest."""
    along = -1 if place.strides[-1] == 1 else -2
    inner = 1
    for dim in reversed(range(-place.rank, 0)):
        if dim != along and place.shape[dim] > 1:
            index = "row" if inner == 1 else f"(row / {inner})"
            inner *= place.shape[dim]
            yield scaled(tile.strides[dim], cast + (index if inner == _rows(place) else f"({index} % {place.shape[dim]})"))


def _ends(text: KernelText, factor: Tile, place: Tile, inner: int, depth: int, at: Sequence[str] = ()) -> tuple[str, str]:
    """The addresses of row `row` of panel `p` of a factor, or of its element `at`: where it is copied from, and where to."""
    moved = scaled(factor.strides[inner] * depth, "p")
    source = sum_of([factor.buffer, *index_terms(factor.start), moved, *_row_terms(factor, place, "(long)"), *at])
    return source, text.element(f"slot + {place.start.constant}", place, [*_row_terms(place, place), *at])
