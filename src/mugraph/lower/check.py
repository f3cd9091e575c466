"""The validity of the lowered form: what every kernel must satisfy whatever made it.

Statements agree in shape, sums are kept in fp32, tiles stay inside their buffers for every block and iteration, shared
memory is written before it is read, and no buffer is overwritten by another that shares its bytes while it is needed.
Where a block has several threads, a barrier stands between statements that one thread may reach before another has
done with the elements they share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mugraph.devices.products import COLUMNS
from mugraph.errors import InvalidGraph
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower import tiles
from mugraph.lower.bulk_copies import COPY_BYTES, MOST_BYTES, places, row_elements
from mugraph.lower.layouts import swizzle_of
from mugraph.lower.order import first_conflict
from mugraph.lower.parts_of_panels import can_take_parts
from mugraph.lower.places import Index, Swizzle
from mugraph.lower.producer_warps import can_have_producer
from mugraph.lower.register_reductions import keeps_results, reduction_into, reduction_of, starts_every_lane
from mugraph.lower.register_rows import may_hold_rows
from mugraph.lower.register_scores import can_take_left, holds_whole_rows
from mugraph.lower.scalar_expressions import Constant, Source, subexpressions
from mugraph.lower.staging import arrival, panels_of_iteration, slots
from mugraph.lower.tensor_maps import box_copies
from mugraph.lower.tile_form import (
    Buffer,
    Dequantization,
    Elementwise,
    Kernel,
    Matmul,
    Memory,
    Panels,
    Reduce,
    Scan,
    Staged,
    Statement,
    Tile,
)
from mugraph.lower.tiles import same_elements, same_sizes, with_unit_dimensions
from mugraph.lower.touched_tiles import reads_target
from mugraph.lower.warp_groups import (
    PLACE_BYTES,
    ROW_COUNT,
    SWIZZLES,
    blocked,
    columns_first,
    group_tiles,
    grouped_alike,
    left_in_slot,
)


def check(kernel: Kernel) -> None:
    """Raise InvalidGraph, naming the kernel, the statement and the rule, when a kernel is not valid."""
    for number, statement in enumerate(kernel.statements):
        where = f"{kernel.name}, statement {number} ({type(statement).__name__})"
        for rule, broken in _statement_rules(kernel, statement):
            if broken:
                raise InvalidGraph(f"{where}: {rule}")
    if not all(_arrives_in_time(kernel, staged) for staged in kernel.staged):
        raise InvalidGraph(f"{kernel.name}: a staged input does not fit its slots, or they would be filled too early")
    if not all(_may_tell(kernel, skip.tile) for skip in kernel.skips):
        raise InvalidGraph(f"{kernel.name}: an iteration without effect is told by something else than a tile of an input")
    if kernel.bands is not None and not (0 <= kernel.bands.dim < len(kernel.grid) and kernel.bands.size > 0):
        raise InvalidGraph(f"{kernel.name}: its blocks run in bands along no dimension of its grid, or in empty ones")
    _check_contents(kernel)
    if kernel.threads > 1:
        _check_threads(kernel)


def _statement_rules(kernel: Kernel, statement: Statement) -> Iterator[tuple[str, bool]]:
    yield "operand shapes do not match the target", not _shapes_agree(statement)
    yield "a kernel input is written", statement.target.buffer in kernel.inputs
    rounds = kernel.buffer(statement.target.buffer).dtype is not DType.FP32
    yield "partial sums are rounded to 16 bits", reads_target(statement) and rounds
    for tile in (statement.target, *statement.sources):
        yield f"a tile leaves its buffer {tile.buffer}", not _inside(kernel, tile)
        yield (
            f"{tile.buffer} is looked up, which only inputs outside products are",
            not _may_be_looked_up(kernel, statement, tile),
        )
        yield f"{tile.buffer} is swizzled, which only whole buffers in shared memory are", not _may_be_swizzled(kernel, tile)
        held = kernel.buffer(tile.buffer).memory is Memory.REGISTERS
        yield f"{tile.buffer} is a sum in registers, which only products add to", held and not _may_hold(kernel, statement, tile)
        rows = kernel.buffer(tile.buffer).memory is Memory.ROWS
        yield (
            f"{tile.buffer} has numbers of rows in registers, which only lanes that hold these know",
            rows and not may_hold_rows(kernel, tile.buffer),
        )
    if isinstance(statement, Matmul) and statement.dequantized is not None:
        yield (
            "its factor is not made of packed rows for groups of k",
            not _made_of_groups(kernel, statement, statement.dequantized),
        )
    if isinstance(statement, Matmul) and statement.panels is not None:
        yield "its panels are not what warp groups read", not _read_by_groups(kernel, statement, statement.panels)
        bulk, boxed = kernel.ring is not None and kernel.ring.bulk, statement.panels.boxed
        yield (
            "its panels are not rows that bulk copies move",
            bulk and not boxed and not _moved_in_rows(statement, statement.panels),
        )
        yield "its panels are not boxes of tensor maps", boxed and not (bulk and _made_of_boxes(kernel, statement))
        yield "its panels do not fit the slots of the kernel's ring", not _panels_fit(kernel, statement, statement.panels)


def _shapes_agree(statement: Statement) -> bool:
    target = statement.target.shape
    match statement:
        case Elementwise():
            return all(source.shape == target for source in statement.sources)
        case Scan():
            return all(source.shape == target for source in statement.sources) and 0 <= statement.dim < len(target)
        case Reduce():
            return all(source.shape[:-1] == target for source in statement.sources) and _same_last(statement.sources)
        case Matmul():
            (*_, rows, inner), (*_, depth, columns) = statement.left.shape, statement.right.shape
            return inner == depth and target[-2:] == (rows, columns) and _batches_agree(statement)


def _made_of_groups(kernel: Kernel, product: Matmul, made: Dequantization) -> bool:
    """Whether slopes and offsets have a row for each group of k, and panels are of whole groups or groups of whole panels."""
    depth, columns = product.right.shape[-2:]
    if product.strips is None or made.group < 1 or depth % made.group or kernel.buffer(product.right.buffer).dtype.bytes != 1:
        return False
    panel = product.strips.depth
    read = {number.index for each in (made.slope, made.offset) for number in subexpressions(each) if isinstance(number, Source)}
    rows = all(tile.shape[-2:] == (depth // made.group, columns) for tile in made.sources)
    inputs = all(tile.buffer in kernel.inputs for tile in (product.right, *made.sources))
    return (
        rows
        and inputs
        and read <= {*range(len(made.sources))}
        and (panel >= depth or not (panel % made.group and made.group % panel))
    )


def _same_last(sources: tuple[Tile, ...]) -> bool:
    return len({source.shape[-1] for source in sources}) <= 1


def _batches_agree(product: Matmul) -> bool:
    return all(_broadcasts(factor.shape[:-2], product.target.shape[:-2]) for factor in (product.left, product.right))


def _broadcasts(shape: Shape, target: Shape) -> bool:
    aligned = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(size in (1, expected) for size, expected in zip(shape, aligned, strict=True))


def _inside(kernel: Kernel, tile: Tile) -> bool:
    ends = [stride * (size - 1) for size, stride in zip(tile.shape, tile.strides, strict=True)]
    ends += [coefficient * (count - 1) for count, coefficient in zip(kernel.grid, tile.start.grid, strict=False)]
    ends.append(tile.start.loop * (kernel.loop - 1))
    if tile.lookup is not None:
        ends.append(tile.lookup.stride * (tile.lookup.rows - 1))
    first = tile.start.constant + sum(end for end in ends if end < 0)
    last = tile.start.constant + sum(end for end in ends if end > 0)
    if tile.swizzle is not None:
        last = _last_of_block(last, tile.swizzle)
    if tile.lookup is not None and not (tile.lookup.index.shape == tile.shape and _inside(kernel, tile.lookup.index)):
        return False
    return first >= 0 and last < kernel.buffer(tile.buffer).elements


def _last_of_block(place: int, swizzle: Swizzle) -> int:
    """The farthest that a swizzle can move an element which would lie at `place`."""
    return place // swizzle.block * swizzle.block + swizzle.block - 1


def _may_tell(kernel: Kernel, tile: Tile) -> bool:
    """Whether a tile can be looked at before an iteration."""
    return kernel.loop > 1 and tile.buffer in kernel.inputs and tile.lookup is None and _inside(kernel, tile)


def _may_be_looked_up(kernel: Kernel, statement: Statement, tile: Tile) -> bool:
    """Whether integers may say where a tile's elements lie: of tables that are inputs, at integers that are inputs."""
    if tile.lookup is None:
        return True
    integers = tile.lookup.index.buffer
    read = tile is not statement.target and not isinstance(statement, Matmul) and tile.swizzle is None
    return read and {tile.buffer, integers} <= {*kernel.inputs} and kernel.buffer(integers).dtype.is_index


def _may_be_swizzled(kernel: Kernel, tile: Tile) -> bool:
    """Whether all tiles of a buffer find its elements in the same places; panels of the ring say so themselves."""
    if kernel.ring is not None and tile.buffer == kernel.ring.buffer:
        return True
    uses = [use for s in kernel.statements for use in (s.target, *s.sources) if use.buffer == tile.buffer]
    if all(use.swizzle is None for use in uses):
        return True
    alike = all(use.swizzle == tile.swizzle and use.start == Index() for use in uses)
    return alike and kernel.buffer(tile.buffer).memory is Memory.SHARED


def _check_contents(kernel: Kernel) -> None:
    """Run the statements on the names of buffers alone; two iterations show everything that the loop carries around."""
    body = kernel.body if kernel.loop == 1 else (*kernel.body, *kernel.body)
    intact: set[str] = {*kernel.inputs, *(staged.buffer for staged in kernel.staged)}
    shared = {buffer.name: buffer for buffer in kernel.buffers if buffer.memory is Memory.SHARED}
    for statement in (*kernel.before, *body, *kernel.after):
        if isinstance(statement, Matmul) and statement.panels is not None and kernel.ring is not None:
            whole = statement.panels.depth == statement.left.shape[-1]
            intact = intact | {kernel.ring.buffer} if whole else intact - {kernel.ring.buffer}
        read = [tile.buffer for tile in statement.sources]
        if reads_target(statement):
            read.append(statement.target.buffer)
        for name in read:
            if name not in intact:
                raise InvalidGraph(f"{kernel.name}: {name} is read before it is written, or after other data took its place")
        target = shared.get(statement.target.buffer)
        if target is not None:
            intact -= {name for name, buffer in shared.items() if _collide(buffer, target)}
        intact.add(statement.target.buffer)


def _collide(first: Buffer, second: Buffer) -> bool:
    return first.offset < second.offset + second.bytes and second.offset < first.offset + first.bytes


def _may_hold(kernel: Kernel, statement: Statement, tile: Tile) -> bool:
    """Whether a statement is a product, or starts a sum in registers, or copies one out; or does so of a reduction's results.

    Fragments are one tile of a buffer to all statements, whole rows of it where one reduces them or multiplies by them.
    """
    if reduction_into(kernel, tile.buffer) is None and not _is_one_tile(kernel, tile):
        return False
    match statement:
        case Matmul():
            held = tile is statement.target or (tile is statement.left and can_take_left(kernel, statement))
            return held and reduction_into(kernel, tile.buffer) is None and grouped_alike(kernel)
        case Elementwise():
            reduction = reduction_of(kernel, statement)
            return statement.combine is None and (reduction is None or _starts_or_copies(statement, reduction))
        case Reduce() if tile is not statement.target:
            stored = kernel.buffer(statement.target.buffer).memory is not Memory.REGISTERS
            return stored and tile.rank > 1 and reduction_into(kernel, tile.buffer) is None and holds_whole_rows(kernel, tile)
        case Reduce():
            keeps = statement.accumulate and keeps_results(kernel, statement)
            return keeps and reduction_into(kernel, tile.buffer) == statement
    return False


def _is_one_tile(kernel: Kernel, tile: Tile) -> bool:
    """Whether all tiles of a buffer are the same elements of matrices, but for dimensions of size 1 before these."""
    uses = [use for s in kernel.statements for use in (s.target, *s.sources) if use.buffer == tile.buffer]
    alike = (use.shape[-2:] == tile.shape[-2:] and same_sizes(use.shape, tile.shape) for use in uses)
    return all(alike) and all(same_elements(with_unit_dimensions(use, tile.shape), tile) for use in uses)


def _starts_or_copies(statement: Elementwise, reduction: Reduce) -> bool:
    """Whether a statement starts what lanes have of a reduction's results, or copies the results out, and does no more."""
    match statement.expression:
        case Constant() as start:
            return statement.target.buffer == reduction.target.buffer and starts_every_lane(reduction.combine, start)
        case Source():
            return len(statement.sources) == 1
    return False


def _arrives_in_time(kernel: Kernel, staged: Staged) -> bool:
    """Whether slots are as large as the tile, whole copies bring it, and none is filled before it has been read."""
    buffer, source = kernel.buffer(staged.buffer), staged.source
    readers = [tile for s in kernel.statements for tile in s.sources if tile.buffer == staged.buffer]
    written = any(s.target.buffer == staged.buffer for s in kernel.statements)
    elsewhere = any(tile in s.sources for s in (*kernel.before, *kernel.after) for tile in readers)
    slot = Buffer(staged.buffer, Memory.SHARED, buffer.dtype, math.prod(source.shape))
    one_slot = replace(kernel, buffers=(*(b for b in kernel.buffers if b is not buffer), slot))
    run = COPY_BYTES // buffer.dtype.bytes
    whole = bool(source.shape) and source.strides[-1] == 1 and source.shape[-1] % run == 0
    if kernel.ring is None:
        arrives = kernel.loop == 1 and arrival(kernel) is not None
    else:
        arrives = panels_of_iteration(kernel) > 0 and not elsewhere
    return (
        arrives
        and buffer.elements == slots(kernel) * slot.elements
        and source.buffer in kernel.inputs
        and kernel.buffer(source.buffer).dtype is buffer.dtype
        and whole
        and tiles.alignment(source, run, -1) == run
        and _inside(kernel, source)
        and not written
        and all(tile.start == Index() and _inside(one_slot, tile) for tile in readers)
    )


def _panels_fit(kernel: Kernel, product: Matmul, panels: Panels) -> bool:
    if kernel.ring is None or kernel.buffer(kernel.ring.buffer).bytes < kernel.ring.bytes(product.dtype):
        return False
    used: list[range] = []
    for factor, place, shape in (
        (product.left, panels.left, (*product.left.shape[:-1], panels.depth)),
        (product.right, panels.right, (*product.right.shape[:-2], panels.depth, product.right.shape[-1])),
    ):
        if place is None:
            continue
        last = sum(step * (size - 1) for size, step in zip(place.shape, place.strides, strict=True))
        last = place.start.constant + (last if place.swizzle is None else _last_of_block(last, place.swizzle))
        in_blocks = panels.left_in_blocks if place is panels.left else panels.right_in_blocks
        if product.left.shape[-1] % panels.depth or factor.buffer not in kernel.inputs or not _is_panel(place, shape, in_blocks):
            return False
        used.append(range(place.start.constant, last + 1))
    used.sort(key=lambda part: part.start)
    apart = len(used) < 2 or used[0].stop <= used[1].start
    if panels.parts > 1 and not (product in kernel.body and can_take_parts(kernel, product, panels.parts)):
        return False
    lag = kernel.ring.lag == 0 or (kernel.ring.lag == 1 and left_in_slot(product))
    ahead = kernel.ring.stages > 1 + kernel.ring.lag and (not kernel.ring.producer or can_have_producer(kernel))
    return ahead and lag and apart and all(part.stop <= kernel.ring.slot for part in used)


def _is_panel(place: Tile, shape: Shape, in_blocks: bool) -> bool:
    """Whether a place has the shape of a panel, or, in blocks, its dimensions."""
    if not in_blocks:
        return place.shape == shape
    return place.rank == 3 and blocked(Tile(place.buffer, shape, (0,) * len(shape)), place).shape == place.shape


def _read_by_groups(kernel: Kernel, product: Matmul, panels: Panels) -> bool:
    """Whether a right factor in blocks begins where chunks are exchanged as in its first row, and groups have whole rows."""
    place, split, width = panels.right, group_tiles(product.target.shape, kernel.threads), product.dtype.bytes
    if not panels.grouped:
        return True
    if kernel.ring is None or place is None or split is None or (kernel.ring.bulk and not panels.boxed):
        return False
    wide = row_elements(place)
    whole = not columns_first(place) or split.across * COLUMNS % wide == 0
    starts = (kernel.buffer(kernel.ring.buffer).offset, kernel.ring.slot * width, place.start.constant * width)
    swizzled = wide * width in SWIZZLES and place.swizzle == swizzle_of(wide * width, width)
    return whole and swizzled and not any(start % PLACE_BYTES for start in starts)


def _moved_in_rows(product: Matmul, panels: Panels) -> bool:
    """Whether rows of panels lie together at both ends, in multiples of what bulk copies need, and barriers can count them."""
    step = COPY_BYTES // product.dtype.bytes
    for factor, place in ((product.left, panels.left), (product.right, panels.right)):
        if place is not None:
            along = place.strides.index(1) - place.rank
            aligned = tiles.alignment(factor, step, along) == tiles.alignment(place, step, along) == step
            if place.swizzle is not None or factor.strides[along] != 1 or place.shape[along] % step or not aligned:
                return False
    return sum(math.prod(place.shape) for place in places(panels)) * product.dtype.bytes <= MOST_BYTES


def _made_of_boxes(kernel: Kernel, product: Matmul) -> bool:
    """Whether blocks of panels are boxes inside matrices, begin where the engine's pattern does, and can be counted."""
    assert kernel.ring is not None
    width, taken = product.dtype.bytes, 0
    starts = [kernel.buffer(kernel.ring.buffer).offset, kernel.ring.slot * width]
    for copies in box_copies(kernel, product):
        if copies is None:
            return False
        place, (tall, wide) = copies.place, copies.matrix.box
        row_step, block_step, rows = place.strides[-2 if columns_first(place) else -1], place.strides[0], copies.pieces * tall
        pieces = copies.pieces == 1 or tall % ROW_COUNT == 0
        dense = (row_step == wide or rows == 1) and block_step >= rows * wide and block_step % (ROW_COUNT * wide) == 0 and pieces
        if not dense or wide * width not in SWIZZLES or place.swizzle != swizzle_of(wide * width, width):
            return False
        starts.append(place.start.constant * width)
        taken += math.prod(place.shape) * width
    return taken <= MOST_BYTES and not any(start % PLACE_BYTES for start in starts)


def _check_threads(kernel: Kernel) -> None:
    """What several threads of a block must not do to each other."""
    conflict = first_conflict(kernel)
    if conflict is not None:
        raise InvalidGraph(f"{kernel.name}, statement {conflict}: no barrier between it and one that it depends on")
    for number, statement in enumerate(kernel.statements):
        target = statement.target
        if any(tile.buffer == target.buffer and not same_elements(tile, target) for tile in statement.sources):
            raise InvalidGraph(f"{kernel.name}, statement {number}: a thread reads elements that another one writes")
    for arriving in (buffer for buffer in kernel.buffers if buffer.name in kernel.arriving):
        for buffer in kernel.buffers:
            if buffer is not arriving and buffer.memory is Memory.SHARED and _collide(buffer, arriving):
                raise InvalidGraph(f"{kernel.name}: {buffer.name} lies where copies arrive in {arriving.name}")
