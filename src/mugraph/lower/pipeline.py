"""Kernels whose blocks are many threads: the passes from what `lower_block` makes to what a GPU printer reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mugraph.devices import NO_ENGINES, Engines
from mugraph.errors import ExceedsMemory
from mugraph.lower.access_costs import traffic_in_all
from mugraph.lower.bulk_copies import with_bulk_copies
from mugraph.lower.fragments import WARP
from mugraph.lower.layouts import with_layouts
from mugraph.lower.memory import beside_another, place, whole_bytes
from mugraph.lower.narrowing import with_narrow_factors, with_private_sums
from mugraph.lower.order import by_depth, with_barriers
from mugraph.lower.parallel import with_parallel_products, with_parallel_reductions
from mugraph.lower.register_sums import with_epilogues, with_register_sums
from mugraph.lower.staging import arrival, with_early_inputs, with_staged_inputs
from mugraph.lower.streams import with_streams
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Reduce, Statement
from mugraph.lower.warp_groups import uses_warp_groups, with_warp_groups

_THREADS_MAX = 256
"""More threads than these leave each too few registers for fragments."""
_ELEMENTS_PER_THREAD = 4
_EARLY_BYTES = 1 << 15
"""Of shared memory, for what a kernel without a loop reads late."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The optimizations of section 6 of the paper, each of which changes speed and never results: they can be left out."""

    thread_graphs: bool = True
    """Elementwise chains in registers; else every operator stores its result."""
    layouts: bool = True
    """Dimension orders, swizzles and padding of shared tiles by integer programming; else row-major."""
    order: bool = True
    """Statements by depth, with barriers where threads depend on each other; else as they come, with a barrier each."""
    memory: bool = True
    """Buffers that are never alive together share bytes; else each has its own."""


ALL_PASSES = Passes()


def cooperative(
    kernel: Kernel,
    shared_bytes: int,
    passes: Passes = ALL_PASSES,
    engines: Engines = NO_ENGINES,
    multiprocessors: int = 0,
) -> Kernel:
    """The kernel for blocks of many threads that share `shared_bytes` of memory at most, its results unchanged.

    `engines` are the units beside the threads that it may use. With no more blocks than `multiprocessors` each has one to
    itself, and takes what memory it can use; otherwise room is left for a second one where that is possible.

    Raises ExceedsMemory where its tiles do not fit.
    """
    kernel = with_narrow_factors(with_private_sums(kernel))
    kernel = replace(kernel, threads=block_threads(kernel))
    kernel = with_register_sums(with_parallel_products(with_parallel_reductions(kernel)))
    alone = math.prod(kernel.grid) <= multiprocessors
    found = _placed_with_copies(kernel, shared_bytes, passes, engines, alone)
    held = with_epilogues(kernel) if passes.thread_graphs else kernel
    if held is not kernel:
        other = _placed_with_copies(held, shared_bytes, passes, engines, alone)
        found = found if _is_worse(other, found) else other
    if found.shared_bytes > shared_bytes:
        raise ExceedsMemory(
            f"{found.name} needs {found.shared_bytes} bytes of shared memory, but a block has {shared_bytes}; "
            "choose a larger grid or more iterations"
        )
    return replace(found, resident=1 if alone or found.shared_bytes > beside_another(shared_bytes) else 2)


def _placed_with_copies(kernel: Kernel, shared_bytes: int, passes: Passes, engines: Engines, alone: bool) -> Kernel:
    """The kernel with everything in its place: layouts, the ring and staged inputs where they fit, barriers."""
    kernel = _laid_out(kernel, shared_bytes, passes)
    kernel = _streamed(kernel, shared_bytes, passes, engines, alone)
    kernel = _with_barriers(kernel, passes)
    return _with_early_inputs(kernel, shared_bytes, passes)


def _is_worse(kernel: Kernel, other: Kernel) -> bool:
    """Whether a kernel takes more shared memory, traffic or barriers than another one, or lacks a ring or warp groups it has."""
    lacks = (kernel.ring is None) != (other.ring is None) or uses_warp_groups(kernel) < uses_warp_groups(other)
    takes_more = kernel.shared_bytes > other.shared_bytes or len(kernel.barriers) > len(other.barriers)
    return lacks or takes_more or traffic_in_all(kernel) > traffic_in_all(other)


def _laid_out(kernel: Kernel, shared_bytes: int, passes: Passes) -> Kernel:
    """The kernel with its statements ordered, and its shared buffers laid out and placed."""
    kernel = by_depth(kernel) if passes.order else kernel
    laid = _placed(with_layouts(kernel), passes) if passes.layouts else None
    return laid if laid is not None and laid.shared_bytes <= shared_bytes else _placed(kernel, passes)


def _streamed(kernel: Kernel, shared_bytes: int, passes: Passes, engines: Engines, alone: bool) -> Kernel:
    """The kernel with its ring, if it gets one: for warp groups, else for bulk copies, whose rows stay whole, else for warps."""
    if engines.warp_group_rows:
        grouped = _placed(with_warp_groups(with_streams(kernel, shared_bytes, alone), engines.warp_group_rows), passes)
        if uses_warp_groups(grouped) and grouped.shared_bytes <= shared_bytes:
            return grouped
    if engines.bulk_row_bytes:
        streamed = with_streams(kernel, shared_bytes, alone, whole_rows=True)
        bulk = _placed(with_bulk_copies(streamed, engines.bulk_row_bytes), passes)
        if bulk.ring is not None and bulk.ring.bulk and bulk.shared_bytes <= shared_bytes:
            return bulk
    streamed = _placed(with_streams(kernel, shared_bytes, alone), passes)
    if streamed.shared_bytes > shared_bytes:
        return kernel
    taken = whole_bytes(streamed.shared_bytes)
    room = shared_bytes if alone or taken > beside_another(shared_bytes) else beside_another(shared_bytes)
    staged = _placed(with_staged_inputs(streamed, room - taken), passes)
    return staged if staged.shared_bytes <= shared_bytes else streamed


def _with_early_inputs(kernel: Kernel, shared_bytes: int, passes: Passes) -> Kernel:
    """The kernel with what it reads late staged, where that leaves room for a second block and a barrier before its readers.

    Threads share out elements by where they lie, so the staged kernel has barriers of its own.
    """
    early = with_early_inputs(kernel, _EARLY_BYTES)
    if early is kernel:
        return kernel
    early = _with_barriers(_placed(early, passes), passes)
    return early if arrival(early) is not None and early.shared_bytes <= beside_another(shared_bytes) else kernel


def _with_barriers(kernel: Kernel, passes: Passes) -> Kernel:
    """The kernel with the barriers that its threads need, or with all."""
    return with_barriers(kernel) if passes.order else replace(kernel, barriers=frozenset(range(len(kernel.statements))))


def _placed(kernel: Kernel, passes: Passes) -> Kernel:
    """The kernel with an offset for each shared buffer; what copies arrive in is alive from the first statement to the last.

    The ring lies at 0, a multiple of whatever its panels want to start at, so that no byte is left out before it.
    """
    ring = [buffer for buffer in kernel.buffers if buffer.name in kernel.arriving]
    others = [buffer for buffer in kernel.buffers if buffer not in ring]
    if not passes.memory:
        return replace(kernel, buffers=_one_after_another([*ring, *others]))
    placed, taken = place(others, kernel.before, kernel.body, kernel.after), sum(whole_bytes(buffer.bytes) for buffer in ring)
    behind = (replace(b, offset=b.offset + taken) if b.memory is Memory.SHARED else b for b in placed)
    return replace(kernel, buffers=(*behind, *_one_after_another(ring)))


def _one_after_another(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """The buffers, those in shared memory sharing no byte."""
    found, end = [], 0
    for buffer in buffers:
        if buffer.memory is Memory.SHARED:
            buffer = replace(buffer, offset=end)
            end += whole_bytes(buffer.bytes)
        found.append(buffer)
    return tuple(found)


def block_threads(kernel: Kernel) -> int:
    """Threads of a block, a power of two of whole warps: a few elements each of the statement that has most."""
    widest = max((_width(statement) for statement in kernel.statements), default=1)
    wanted = 1 << (-(-widest // _ELEMENTS_PER_THREAD) - 1).bit_length()
    return min(max(wanted, WARP), _THREADS_MAX)


def _width(statement: Statement) -> int:
    """Elements that threads can work on at the same time."""
    elements = math.prod(statement.target.shape)
    match statement:
        case Reduce():
            return elements * max((tile.shape[-1] for tile in statement.sources), default=1)
        case Matmul():
            return elements * min(WARP, statement.left.shape[-1])
    return elements
