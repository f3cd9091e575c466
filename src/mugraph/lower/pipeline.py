"""Kernels whose blocks are many threads: the passes from what `lower_block` makes to what a GPU printer reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mugraph.devices import NO_ENGINES, Engines
from mugraph.devices.products import at_once, threads_for
from mugraph.errors import ExceedsMemory
from mugraph.lower.access_costs import traffic_in_all
from mugraph.lower.block_order import with_block_order
from mugraph.lower.bulk_copies import with_bulk_copies
from mugraph.lower.bytes_in_flight import with_bytes_in_flight
from mugraph.lower.fragments import sizes_of
from mugraph.lower.issue_slots import copy_slots
from mugraph.lower.layouts import with_layouts
from mugraph.lower.memory import beside_another, place, whole_bytes
from mugraph.lower.narrowing import with_narrow_factors, with_private_sums
from mugraph.lower.order import by_depth, with_barriers
from mugraph.lower.parallel import with_parallel_products, with_parallel_reductions
from mugraph.lower.parts_of_panels import with_parts
from mugraph.lower.producer_warps import with_producer
from mugraph.lower.register_reductions import with_reductions_in_loop, with_register_reductions
from mugraph.lower.register_rows import with_register_rows
from mugraph.lower.register_scores import with_register_scores
from mugraph.lower.register_sums import with_epilogues, with_register_sums
from mugraph.lower.staging import arrival, with_early_inputs, with_staged_inputs
from mugraph.lower.streams import with_streams
from mugraph.lower.tensor_maps import tensor_maps, with_boxes
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Reduce, Statement
from mugraph.lower.warp_groups import groups_hold_sums, sum_registers, uses_warp_groups, with_lag, with_warp_groups
from mugraph.lower.widening import with_widened_factors

_EARLY_BYTES = 1 << 15
"""Of shared memory, for what a kernel without a loop reads late."""

_SHARED_SUMS = 5 << 12
"""Registers of a block for sums, of 65,536, with which a second one runs beside it: 80 for each of 256 threads, of 128."""


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


@dataclass(frozen=True, slots=True)
class Block:
    """What the blocks of a kernel have: shared memory, units beside their threads, multiprocessors, a last cache, and a memory
    that is busy with so many bytes on their way to a multiprocessor."""

    shared_bytes: int
    passes: Passes
    engines: Engines
    alone: bool
    multiprocessors: int = 0
    cache_bytes: int = 0
    bytes_in_flight: int = 0
    made: dict[tuple[str, Kernel], Kernel] = field(default_factory=dict, compare=False)
    """What passes made so far, by name and kernel: a choice that looks ahead makes what comes after it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of lowering, by the name under which `mugraph explain` shows what it makes."""

    name: str
    make: Callable[[Kernel, Block], Kernel]

    def run(self, kernel: Kernel, block: Block) -> Kernel:
        """The kernel after this pass."""
        key = (self.name, kernel)
        if key not in block.made:
            block.made[key] = self.make(kernel, block)
        return block.made[key]


def cooperative(
    kernel: Kernel,
    shared_bytes: int,
    passes: Passes = ALL_PASSES,
    engines: Engines = NO_ENGINES,
    multiprocessors: int = 0,
    cache_bytes: int = 0,
    bytes_in_flight: int = 0,
) -> Kernel:
    """The kernel for blocks of many threads that share `shared_bytes` of memory at most, its results unchanged.

    `engines` are the units beside the threads that it may use. With no more blocks than `multiprocessors` each has one to
    itself, and takes what memory it can use; otherwise room is left for a second one where that is possible. Blocks run in an
    order for a last cache of `cache_bytes`, or as they are numbered where that is 0. Rings of short panels are as deep as it
    takes to have `bytes_in_flight` on their way to a multiprocessor.

    Raises ExceedsMemory where its tiles do not fit.
    """
    *_, (_, lowered) = stages(kernel, shared_bytes, passes, engines, multiprocessors, cache_bytes, bytes_in_flight)
    return lowered


def tile_stages(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """The name of each of `TILE_PASSES`, with the kernel after it."""
    for name, make in TILE_PASSES:
        kernel = make(kernel)
        yield name, kernel


def stages(
    kernel: Kernel,
    shared_bytes: int,
    passes: Passes = ALL_PASSES,
    engines: Engines = NO_ENGINES,
    multiprocessors: int = 0,
    cache_bytes: int = 0,
    bytes_in_flight: int = 0,
) -> Iterator[tuple[str, Kernel]]:
    """The name of each pass of `PIPELINE`, with the kernel after it; arguments and errors are those of `cooperative`."""
    alone = math.prod(kernel.grid) <= multiprocessors
    block = Block(shared_bytes, passes, engines, alone, multiprocessors, cache_bytes, bytes_in_flight)
    for step in PIPELINE:
        kernel = step.run(kernel, block)
        yield step.name, kernel
    if kernel.shared_bytes > shared_bytes:
        raise ExceedsMemory(
            f"{kernel.name} needs {kernel.shared_bytes} bytes of shared memory, but a block has {shared_bytes}; "
            "choose a larger grid or more iterations"
        )


def _epilogues(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with sums of products read from the threads' registers, unless that makes it worse in the end."""
    held = with_epilogues(kernel) if block.passes.thread_graphs else kernel
    if held is kernel:
        return kernel
    finished, other = (functools.reduce(lambda made, step: step.run(made, block), _PLACING, start) for start in (held, kernel))
    return kernel if _is_worse(finished, other) else held


def _register_scores(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with the left factors of products in registers where warps hold whole rows, unless that makes it worse in the
    end."""
    for grouped in (True, False) if block.engines.warp_group_rows else (False,):
        held = with_register_scores(kernel, grouped) if block.passes.thread_graphs else kernel
        if held is kernel:
            continue
        steps = (_REGISTER_ROWS, *_PLACING)
        finished, other = (functools.reduce(lambda made, step: step.run(made, block), steps, start) for start in (held, kernel))
        fits = finished.shared_bytes <= block.shared_bytes and groups_hold_sums(finished) >= grouped
        if fits and not _is_worse(finished, other, _beside_copies):
            return held
    return kernel


def _register_rows(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with the numbers that its blocks have for each row of scores in registers, unless that makes it worse in the
    end."""
    held = with_register_rows(kernel)
    if held == kernel:
        return kernel
    finished, other = (functools.reduce(lambda made, step: step.run(made, block), _PLACING, start) for start in (held, kernel))
    return kernel if _is_worse(finished, other, _beside_copies) else held


def _beside_copies(kernel: Kernel) -> int:
    """Bytes of shared memory that a block takes for other things than copies on their way, of which more is better."""
    return kernel.shared_bytes - sum(kernel.buffer(name).bytes for name in kernel.arriving)


def _widened(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with factors of fewer bits widened in shared memory, if that leaves room for its ring."""
    widened = with_widened_factors(kernel)
    if widened is kernel:
        return kernel
    finished, other = (
        functools.reduce(lambda made, step: step.run(made, block), _SHARED_OUT, start) for start in (widened, kernel)
    )
    fits = finished.shared_bytes <= block.shared_bytes and (finished.ring is not None or other.ring is None)
    return widened if fits else kernel


def _bytes(kernel: Kernel) -> int:
    return kernel.shared_bytes


def _is_worse(kernel: Kernel, other: Kernel, shared: Callable[[Kernel], int] = _bytes) -> bool:
    """Whether a kernel takes more shared memory, traffic or barriers than another one, or lacks a ring or warp groups it has."""
    lacks = (kernel.ring is None) != (other.ring is None) or uses_warp_groups(kernel) < uses_warp_groups(other)
    takes_more = shared(kernel) > shared(other) or len(kernel.barriers) > len(other.barriers)
    return lacks or takes_more or traffic_in_all(kernel) > traffic_in_all(other)


def _laid_out(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with its shared buffers laid out and placed."""
    laid = _placed(with_layouts(kernel), block.passes) if block.passes.layouts else None
    return laid if laid is not None and laid.shared_bytes <= block.shared_bytes else _placed(kernel, block.passes)


def _streamed(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with its ring, if it gets one, filled by boxes where that takes fewer issue slots than what else would fill it,
    and brings as many inputs ahead."""
    streamed = _without_boxes(kernel, block)
    if not block.engines.tensor_maps or streamed.ring is None:
        return streamed
    rows = block.engines.warp_group_rows
    plain = with_streams(kernel, block.shared_bytes, _is_alone(kernel, block))
    grouped = with_warp_groups(plain, rows) if rows else plain
    boxed = _lagging(_placed(with_boxes(grouped), block.passes), block)
    fits = bool(tensor_maps(boxed)) and boxed.shared_bytes <= block.shared_bytes and len(boxed.staged) >= len(streamed.staged)
    return boxed if fits and copy_slots(boxed) < copy_slots(streamed) else streamed


def _without_boxes(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with its ring, if it gets one: for warp groups, else for bulk copies, whose rows stay whole, else for warps."""
    shared_bytes, passes, engines, alone = block.shared_bytes, block.passes, block.engines, _is_alone(kernel, block)
    if engines.warp_group_rows:
        grouped = _placed(with_warp_groups(with_streams(kernel, shared_bytes, alone), engines.warp_group_rows), passes)
        if uses_warp_groups(grouped) and grouped.shared_bytes <= shared_bytes:
            return _staged(grouped, block)
    if engines.bulk_row_bytes:
        streamed = with_streams(kernel, shared_bytes, alone, whole_rows=True)
        bulk = _placed(with_bulk_copies(streamed, engines.bulk_row_bytes), passes)
        if bulk.ring is not None and bulk.ring.bulk and bulk.shared_bytes <= shared_bytes:
            return _staged(bulk, block)
    streamed = _placed(with_streams(kernel, shared_bytes, alone), passes)
    return _staged(streamed, block) if streamed.shared_bytes <= shared_bytes else kernel


def _staged(kernel: Kernel, block: Block) -> Kernel:
    """The kernel, whose ring has its place, with what its loop reads beside products staged where there is room."""
    room = _room(kernel, block) - whole_bytes(kernel.shared_bytes)
    staged = _placed(with_staged_inputs(kernel, room), block.passes)
    return staged if staged.shared_bytes <= block.shared_bytes else kernel


def _lagging(kernel: Kernel, block: Block) -> Kernel:
    """The kernel, whose ring has its place, staged like any other, with a ring that lags where it keeps all that is staged."""
    staged = _staged(kernel, block)
    taken = staged.shared_bytes - kernel.shared_bytes
    lagging = with_lag(kernel, _room(kernel, block) - taken, block.shared_bytes - taken)
    lagging = _staged(_placed(lagging, block.passes), block)
    fits = lagging.shared_bytes <= block.shared_bytes and len(lagging.staged) >= len(staged.staged)
    return lagging if fits else staged


def _room(kernel: Kernel, block: Block) -> int:
    """Bytes of shared memory that a block may take: half of them where it leaves room for a second one."""
    beside = beside_another(block.shared_bytes)
    shares = not _is_alone(kernel, block) and whole_bytes(kernel.shared_bytes) <= beside
    return beside if shares else block.shared_bytes


def _is_alone(kernel: Kernel, block: Block) -> bool:
    """Whether a block has its multiprocessor to itself: there are no more blocks, or its sums leave a second one no registers."""
    return block.alone or kernel.threads * sum_registers(kernel) > _SHARED_SUMS


def _with_early_inputs(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with what it reads late staged, where that leaves room for a second block and a barrier before its readers.

    Threads share out elements by where they lie, so the staged kernel has barriers of its own.
    """
    early = with_early_inputs(kernel, _EARLY_BYTES)
    if early is kernel:
        return kernel
    early = _with_barriers(_placed(early, block.passes), block)
    return early if arrival(early) is not None and early.shared_bytes <= beside_another(block.shared_bytes) else kernel


def _with_barriers(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with the barriers that its threads need, or with all."""
    return with_barriers(kernel) if block.passes.order else replace(kernel, barriers=frozenset(range(len(kernel.statements))))


def _with_producer(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with a warp that copies, where its barriers find room and no thread needs to meet another then either."""
    if not block.engines.producer_warps:
        return kernel
    producing = _placed(with_producer(kernel), block.passes)
    fits = producing.shared_bytes <= _room(kernel, block)
    return producing if fits and _with_barriers(producing, block) == producing else kernel


def _deepened(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with as many bytes on their way as keep memory busy, half of them where a second block has others."""
    wanted = block.bytes_in_flight if _is_alone(kernel, block) else math.ceil(block.bytes_in_flight / 2)
    deeper = with_bytes_in_flight(kernel, wanted, _room(kernel, block))
    return kernel if deeper is kernel else _placed(deeper, block.passes)


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
    return int(threads_for(max((_width(statement) for statement in kernel.statements), default=1)))


def _width(statement: Statement) -> int:
    """Elements that threads can work on at the same time."""
    elements = math.prod(statement.target.shape)
    match statement:
        case Reduce():
            return elements * max((tile.shape[-1] for tile in statement.sources), default=1)
        case Matmul():
            return int(at_once(sizes_of(statement)))
    return elements


def _resident(kernel: Kernel, block: Block) -> Kernel:
    """The kernel with the number of blocks that are to run beside each other on a multiprocessor."""
    return replace(
        kernel, resident=1 if _is_alone(kernel, block) or kernel.shared_bytes > beside_another(block.shared_bytes) else 2
    )


_PLACING = (
    Pass("order", lambda kernel, block: by_depth(kernel) if block.passes.order else kernel),
    Pass("layouts", _laid_out),
    Pass("copies", _streamed),
    Pass("parts", lambda kernel, block: with_parts(kernel)),
    Pass("barriers", _with_barriers),
    Pass("early-inputs", _with_early_inputs),
    Pass("producer", _with_producer),
)
"""Everything gets its place: layouts, the ring and staged inputs where they fit, barriers."""


def _whatever_the_block(name: str, make: Callable[[Kernel], Kernel]) -> Pass:
    return Pass(name, lambda kernel, block: make(kernel))


TILE_PASSES: tuple[tuple[str, Callable[[Kernel], Kernel]], ...] = (
    ("private-sums", with_private_sums),
    ("narrow-factors", with_narrow_factors),
)
"""Those that say nothing of threads and memory, by name: what a target takes that decides about these by itself."""

_REGISTER_ROWS = Pass("register-rows", _register_rows)

_SHARED_OUT = (
    Pass("threads", lambda kernel, block: replace(kernel, threads=block_threads(kernel))),
    Pass("reductions-in-loop", lambda kernel, block: with_reductions_in_loop(kernel)),
    Pass("parallel-reductions", lambda kernel, block: with_parallel_reductions(kernel)),
    Pass("parallel-products", lambda kernel, block: with_parallel_products(kernel)),
    Pass("register-sums", lambda kernel, block: with_register_sums(kernel)),
    Pass("epilogues", _epilogues),
    Pass("register-scores", _register_scores),
    _REGISTER_ROWS,
    Pass("register-reductions", lambda kernel, block: with_register_reductions(kernel)),
    *_PLACING,
)
"""The work of a block is shared out among threads, and everything gets its place."""

PIPELINE = (
    *(_whatever_the_block(name, make) for name, make in TILE_PASSES),
    Pass("widen-factors", _widened),
    *_SHARED_OUT,
    Pass("bytes-in-flight", _deepened),
    Pass("resident", _resident),
    Pass("block-order", lambda kernel, block: with_block_order(kernel, block.multiprocessors, block.cache_bytes)),
)
"""All passes over a kernel of many threads, in order. Each changes speed and never results."""
