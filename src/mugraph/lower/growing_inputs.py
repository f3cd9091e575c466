"""Kernels that read inputs where their caller has them, up to a length that a call gives.

A kernel was made for a capacity. Its tiles of an input with such an axis have strides that are arguments, and it is known what
part of the input a phase reads, its window. Where all of a window is before the length, statements read the caller's memory;
elsewhere a copy with 0 in the place of what is behind. So a kernel computes what it would of the input in memory for the
capacity, with 0 behind the length, and reads nothing there. Iterations that would read nothing but 0 are left out
where they change nothing, and masks are not asked in iterations that are all before the length (docs/theory.md, "Lengths as
arguments").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from mugraph.errors import UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower.argument_strides import BASE, digits, stride_argument
from mugraph.lower.held_elements import Along, AxisTiles, Stopping, stopping
from mugraph.lower.held_iterations import with_choices, with_constant_inputs
from mugraph.lower.lower import Launch, kernel_windows, needed_nodes
from mugraph.lower.memory import whole_bytes, with_places
from mugraph.lower.phases import Phase
from mugraph.lower.places import Index
from mugraph.lower.skipped_iterations import is_neutral
from mugraph.lower.tile_form import Buffer, CutOff, Growing, GrowingInput, Kernel, Matmul, Memory, Skip, Statement, Tile, Window

SIZES = "sizes"
"""The input that has the length, and behind it the strides."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The dimension of an input along which there are `more` elements more than a call says."""

    dim: int
    more: int


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """A vector of booleans that is true from `first` elements more than the length (None: from the beginning) to before `end`."""

    first: int | None
    end: int

    @property
    def begin(self) -> tuple[float, int]:
        """What it says at its beginning, and up to how many elements more than the length."""
        return (1.0, self.end) if self.first is None else (0.0, self.first)


@dataclass(frozen=True, slots=True)
class Lengths:
    """The inputs of a kernel graph that are as long as a call says, or say how long that is.

    `axes` are the dimensions of inputs, `masks` vectors as long as the axis. `sizes` is an input of whole numbers: the
    length, and behind it strides of the inputs of `axes` in order, of all dimensions but the last one, which is contiguous.
    """

    axes: Mapping[Value, Axis]
    masks: Mapping[Value, HeldSlots]
    sizes: Value

    def strides(self, graph: Graph) -> dict[Value, tuple[int, ...]]:
        """The strides of each input as arguments."""
        numbers, found = count(), dict[Value, tuple[int, ...]]()
        for value in self.axes:
            outer = graph.tensor(value).shape[:-1]
            found[value] = (*(stride_argument(next(numbers)) for _ in outer), 1)
        return found


def check_readers(graph: Graph, lengths: Lengths) -> None:
    """Raise UnsupportedOperator where others than generated kernels read inputs of these lengths, or where they are returned."""
    strides = lengths.strides(graph)
    windows = kernel_windows(graph, strides)
    others = [node for node in map(graph.nodes.__getitem__, needed_nodes(graph, strides)) if node.op != GRAPH_DEFINED]
    for value in (*graph.outputs, *(value for node in others for value in node.inputs)):
        if windows[value][0] in lengths.axes:
            raise UnsupportedOperator("an input whose length is an argument is read between kernels, all of it at once")


Stops = Callable[[Kernel, Matmul, int], bool]
"""Whether a product of a kernel can be printed along a dimension of its points up to where inputs end."""


def with_lengths(launch: Launch, graph: Graph, lengths: Lengths, stops: Stops) -> Launch:
    """The launch of a kernel, lowered with the strides of `lengths`, that takes a length and strides as arguments.

    Where products that have to stop at the end do so, statements compute no elements behind it.
    Raises UnsupportedOperator where an input is read in a way of which windows are not known.
    """
    strides, read = lengths.strides(graph), dict(zip(launch.kernel.inputs, launch.inputs, strict=True))
    sources = [
        GrowingInput(buffer, graph.tensor(value).shape, axis.dim, axis.more, strides[value])
        for buffer, value in read.items()
        if (axis := lengths.axes.get(value)) is not None
    ]
    masks = {buffer: lengths.masks[value] for buffer, value in read.items() if value in lengths.masks}
    kernel = with_choices(launch.kernel, partial(_is_held, {source.buffer: source for source in sources}, masks))
    windows = tuple(window for source in sources for window in _windows(kernel, source))
    neutral = is_neutral(launch, {*masks, *(source.buffer for source in sources)})
    ends = tuple(dict.fromkeys(_ends(kernel, windows, masks))) if neutral else ()
    stopped = _stopped(kernel, windows, masks, stops) if ends or not any(_of_body(windows)) else None
    sizes = Buffer(SIZES, Memory.DEVICE, DType.INT64, graph.tensor(lengths.sizes).elements)
    if stopped is not None:
        body, kernel, cut_off = stopped
        until = tuple(dict.fromkeys(_held(kernel, windows, {})))
        growing, copies = Growing(windows, ends, until, body, SIZES, cut_off), list[Buffer]()
    else:
        windows = tuple(replace(window, copy=f"copy{number}") for number, window in enumerate(windows))
        held = with_constant_inputs(kernel, {buffer: slots.begin[0] for buffer, slots in masks.items()}).body
        until = tuple(dict.fromkeys(_held(kernel, windows, masks))) if held != kernel.body else ()
        growing, copies = Growing(windows, ends, until, held, SIZES), [*_copies(kernel, windows)]
    skips = tuple(skip for skip in kernel.skips if until and _is_before_the_end(kernel, skip, windows, masks))
    buffers = (*kernel.buffers, sizes, *copies)
    made = replace(kernel, inputs=(*kernel.inputs, SIZES), buffers=buffers, skips=skips, growing=growing)
    return replace(launch, kernel=made, inputs=(*launch.inputs, lengths.sizes))


def _is_before_the_end(kernel: Kernel, skip: Skip, windows: Sequence[Window], masks: Collection[str]) -> bool:
    """Whether an iteration whose windows end before the length may be asked a tile that tells whether it has something to do.

    What says how long inputs are has nothing to tell there.
    """
    tile = skip.tile
    if tile.buffer in masks:
        return False
    window = next((window for window in _of_body(windows) if window.source.buffer == tile.buffer), None)
    if window is None:
        return all(source.source.buffer != tile.buffer for source in windows)
    told = _around(kernel, window.source, Phase.BODY, [tile])
    return (told.starts, told.extents) == (window.starts, window.extents)


def _stopped(
    kernel: Kernel, windows: Sequence[Window], masks: Mapping[str, HeldSlots], stops: Stops
) -> tuple[tuple[Statement, ...], Kernel, CutOff] | None:
    """The body of a kernel in iterations that end before the length, the kernel for tiles that inputs end within, and how its
    statements stop there. It has no masks in the only phase that reads windows, which computes nothing of what is behind.

    None where windows and masks end at several places, or what is left out would be noticed.
    """
    ends = {_end(window) for window in windows}
    if len(ends) != 1:
        return None
    ((phase, start, extent, more),) = ends
    told = {tile.buffer for statement in kernel.of_phase(phase) for tile in statement.sources if tile.buffer in masks}
    if extent == 1 or any(masks[buffer].begin != (1.0, more) for buffer in told):
        return None
    along: dict[str, Along] = {window.source.buffer: partial(_lies_along, window.source) for window in windows}
    tiles = AxisTiles({**along, **dict.fromkeys(told, _mask_lies_along)}, start, extent)
    if stopping(tiles, kernel, phase) is None:
        return None
    held = with_constant_inputs(kernel, dict.fromkeys(told, 1.0), phase)
    found = stopping(tiles, held, phase, neutral=False)
    if found is None or not all(_can_stop(held, each, stops) for each in found):
        return None
    made = with_places(held.with_phase(phase, tuple(each.statement for each in found)))
    return held.body, made, CutOff(phase, start, extent, more, tuple(each.dim for each in found))


def _end(window: Window) -> tuple[Phase, Index, int, int]:
    """When a window is read, where it starts along the axis of its input, how long it is, and where the input ends."""
    axis = window.source.axis
    return window.phase, window.starts[axis], window.extents[axis], window.source.more


def _can_stop(kernel: Kernel, each: Stopping, stops: Stops) -> bool:
    return each.dim is None or not isinstance(each.statement, Matmul) or stops(kernel, each.statement, each.dim)


def _lies_along(source: GrowingInput, tile: Tile) -> tuple[list[int], Index]:
    """How far a step along each dimension of a tile goes along the axis of its input, and where it starts there."""
    return [_steps(source, stride)[source.axis] for stride in tile.strides], _along(source, source.axis, tile.start)


def _mask_lies_along(tile: Tile) -> tuple[Sequence[int], Index]:
    return tile.strides, _plain(tile.start)


def _plain(start: Index) -> Index:
    """A start without a grid that it does not depend on."""
    return start if any(start.grid) else replace(start, grid=())


def _is_held(sources: Mapping[str, GrowingInput], masks: Mapping[str, HeldSlots], mask: Tile, tile: Tile) -> bool:
    """Whether a mask says of each element of a tile whether the input that it is read of has it."""
    source, slots = sources.get(tile.buffer), masks.get(mask.buffer)
    if source is None or slots is None or slots.first is not None or slots.end != source.more or mask.lookup is not None:
        return False
    along, start = _lies_along(source, tile)
    alike = all(size == 1 or steps == own for size, steps, own in zip(tile.shape, along, mask.strides, strict=True))
    return alike and start == _plain(mask.start)


def _copies(kernel: Kernel, windows: Iterable[Window]) -> Iterator[Buffer]:
    """A buffer for the copy of each window, behind all others."""
    offset = whole_bytes(kernel.shared_bytes)
    for window in windows:
        dtype = kernel.buffer(window.source.buffer).dtype
        copy = Buffer(window.copy, Memory.SHARED, dtype, math.prod(window.extents), offset)
        offset += whole_bytes(copy.bytes)
        yield copy


def _windows(kernel: Kernel, source: GrowingInput) -> Iterator[Window]:
    """What each phase reads of an input."""
    sources = [tile for statement in kernel.statements for tile in statement.sources]
    lookups = [tile for tile in sources if tile.lookup is not None]
    if source.buffer in {buffer for tile in lookups if tile.lookup for buffer in (tile.buffer, tile.lookup.index.buffer)}:
        raise UnsupportedOperator(f"{kernel.name}: an input whose length is an argument is looked up in, or at")
    for phase, statements in zip(Phase, (kernel.before, kernel.body, kernel.after), strict=True):
        tiles = [tile for statement in statements for tile in statement.sources if tile.buffer == source.buffer]
        if tiles:
            yield _around(kernel, source, phase, tiles)


def _around(kernel: Kernel, source: GrowingInput, phase: Phase, tiles: Sequence[Tile]) -> Window:
    """The smallest window that holds tiles whose starts move alike."""
    starts, extents = list[Index](), list[int]()
    for dim in range(len(source.shape)):
        firsts = [_along(source, dim, tile.start) for tile in tiles]
        ends = [first.constant + _span(source, dim, tile) for first, tile in zip(firsts, tiles, strict=True)]
        least = min(firsts, key=lambda first: first.constant)
        if any(replace(first, constant=least.constant) != least for first in firsts):
            raise UnsupportedOperator(f"{kernel.name}: an input whose length is an argument is read in several ways at once")
        starts.append(least)
        extents.append(max(ends) - least.constant + 1)
    return Window(source, phase, tuple(starts), tuple(extents))


def _along(source: GrowingInput, dim: int, start: Index) -> Index:
    """Where along a dimension of its input a tile starts."""
    return _plain(start.mapped(lambda coefficient: _steps(source, coefficient)[dim]))


def _span(source: GrowingInput, dim: int, tile: Tile) -> int:
    """How far the last element of a tile lies behind its first along a dimension of its input."""
    return sum((size - 1) * _steps(source, stride)[dim] for size, stride in zip(tile.shape, tile.strides, strict=True))


def _steps(source: GrowingInput, coefficient: int) -> list[int]:
    """How many elements a coefficient stands for along each dimension of an input."""
    found = digits(max(coefficient, 0))
    steps = [found.pop(next(iter(digits(stride))), 0) for stride in source.strides]
    if coefficient < 0 or found or any(step > BASE // 2 for step in steps):  # digits of negative steps
        raise UnsupportedOperator(f"{source.buffer}: an input whose length is an argument is read backwards")
    return steps


def _ends(kernel: Kernel, windows: Sequence[Window], masks: Mapping[str, HeldSlots]) -> Iterator[tuple[Index, int]]:
    """Where iterations begin to read inputs and masks along their axes, and how many elements more than the length these have."""
    for window in _of_body(windows):
        yield window.starts[window.source.axis], window.source.more
    for tile, slots in _masks_of_body(kernel, masks):
        yield tile.start, slots.end


def _held(kernel: Kernel, windows: Sequence[Window], masks: Mapping[str, HeldSlots]) -> Iterator[tuple[Index, int]]:
    """Where iterations cease to read inputs and masks, and for how many elements more than the length these say one thing."""
    for window in _of_body(windows):
        axis = window.source.axis
        yield _further(window.starts[axis], window.extents[axis]), window.source.more
    for tile, slots in _masks_of_body(kernel, masks):
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tile.shape, tile.strides, strict=True))
        yield _further(tile.start, extent), slots.begin[1]


def _further(start: Index, elements: int) -> Index:
    return replace(start, constant=start.constant + elements)


def _of_body(windows: Sequence[Window]) -> Iterator[Window]:
    return (window for window in windows if window.phase is Phase.BODY)


def _masks_of_body(kernel: Kernel, masks: Mapping[str, HeldSlots]) -> Iterator[tuple[Tile, HeldSlots]]:
    for tile in (tile for statement in kernel.body for tile in statement.sources if tile.buffer in masks):
        if tile.lookup is not None or min(*tile.start.parts, *tile.strides, 0) < 0:
            raise UnsupportedOperator(f"{kernel.name}: what says how long inputs are is looked up, or read backwards")
        yield tile, masks[tile.buffer]
