"""The text of kernels whose inputs have a length and strides that a call gives (`mugraph.lower.growing_inputs`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mugraph.lower.argument_strides import digits
from mugraph.lower.phases import Phase
from mugraph.lower.places import Index
from mugraph.lower.tile_form import CutOff, GrowingInput, Kernel, Statement, Window
from mugraph.targets.c_text import index_terms, scaled, sum_of
from mugraph.targets.cpu.source import HELD, Writer


def usual_strides(kernel: Kernel) -> dict[int, int]:
    """For each stride that is an argument, by number, what it is where the input lies in memory for the capacity."""
    sources = [] if kernel.growing is None else [window.source for window in kernel.growing.windows]
    return {number: stride for source in sources for _, number, stride in _usual(source)}


def _usual(source: GrowingInput) -> Iterator[tuple[int, int, int]]:
    """The dimensions of an input whose strides are arguments, their numbers, and what they are in memory for the capacity."""
    for dim, number in _arguments(source):
        yield dim, number, math.prod(source.shape[dim + 1 :])


def compact_strides(kernel: Kernel) -> dict[int, int]:
    """The strides by number that an input has in memory of any length, if that is contiguous: those from its axis on."""
    sources = [] if kernel.growing is None else [window.source for window in kernel.growing.windows]
    return {number: stride for source in sources for dim, number, stride in _usual(source) if dim >= source.axis}


def is_compact(kernel: Kernel) -> str:
    """Whether a call gives these."""
    assert kernel.growing is not None
    given = kernel.growing.sizes
    return " && ".join(f"{given}[{number + 1}] == {stride}" for number, stride in compact_strides(kernel).items())


def growing_buffers(kernel: Kernel) -> set[str]:
    """The inputs that statements read by pointers of their own, the given ones being called `whole_`."""
    return set() if kernel.growing is None else {window.source.buffer for window in kernel.growing.windows}


def dims_along(kernel: Kernel) -> frozenset[int]:
    """The dimensions of the grid that cut an axis whose length is an argument: blocks far along them may have nothing to do."""
    if kernel.slices is not None and kernel.slices.dim is not None:
        return frozenset({kernel.slices.dim})
    if kernel.growing is None:
        return frozenset()
    starts = [window.starts[window.source.axis] for window in kernel.growing.windows]
    grids = [start.grid for start in (*starts, *(start for start, _ in (*kernel.growing.ends, *kernel.growing.held)))]
    return frozenset(dim for grid in grids for dim, step in enumerate(grid) if step)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A statement that stops behind `held` elements along a dimension of its points; along None it does not."""

    statement: Statement
    dim: int | None


@dataclass(frozen=True, slots=True)
class Iterations:
    """A run of iterations of a block: the header of its loop, and the statements of its body."""

    loop: str
    body: Sequence[Bounded]
    whole: bool = True
    """Whether all of what they read is there: tiles may be looked at that tell whether there is something to do."""


def statements_of(kernel: Kernel, phase: Phase) -> Sequence[Bounded]:
    """The statements of a phase."""
    statements = kernel.of_phase(phase)
    if kernel.slices is not None:
        return _bounded(statements, kernel.slices.dims[phase])
    cut_off = None if kernel.growing is None else kernel.growing.cut_off
    return _bounded(statements, cut_off.dims if cut_off is not None and cut_off.phase is phase else (None,) * len(statements))


def _bounded(statements: Sequence[Statement], dims: Sequence[int | None]) -> Sequence[Bounded]:
    return [*map(Bounded, statements, dims)]


def iterations(writer: Writer, kernel: Kernel) -> Iterator[Iterations]:
    """The iterations of a block, in order; declares how many there are."""
    growing = kernel.growing
    first, last = "0", str(kernel.loop)
    if growing is not None and growing.ends:
        last = _declared(writer, kernel, "iterations", "iterations_within", "larger", 0, growing.ends)
    if growing is not None and growing.held:
        first = _declared(writer, kernel, "whole_iterations", "held_within", "smaller", kernel.loop, growing.held)
        yield Iterations(f"for (long l = 0; l < {first}; ++l)", _bounded(growing.body, (None,) * len(growing.body)))
    yield Iterations(f"for (long l = {first}; l < {last}; ++l)", statements_of(kernel, Phase.BODY), growing is None)


def _declared(
    writer: Writer, kernel: Kernel, name: str, within: str, combined: str, start: int, places: Sequence[tuple[Index, int]]
) -> str:
    """Declare how many iterations are before the end of an axis, the `combined` number of all `places` in them."""
    writer.line(f"long {name} = {start};")
    for place, more in places:
        here = sum_of(index_terms(Index(place.constant, place.grid))) or "0"
        elements = f"{_length(kernel, more)} - ({here})"
        writer.line(f"{name} = {combined}({name}, {within}({elements}, {place.loop}, {kernel.loop}));")
    return name


@contextmanager
def reading(writer: Writer, kernel: Kernel, phase: Phase) -> Iterator[None]:
    """Statements of a phase written inside read growing inputs where they lie, or copies of what is left of them."""
    windows = [] if kernel.growing is None else [window for window in kernel.growing.windows if window.phase is phase]
    if not windows:
        yield
        return
    with writer.block():
        for window in windows:
            _print_window(writer, kernel, window)
        if kernel.growing is not None and kernel.growing.cut_off is not None:
            _print_held(writer, kernel, kernel.growing.cut_off)
        yield


def _print_held(writer: Writer, kernel: Kernel, cut_off: CutOff) -> None:
    """Declare how many elements of a tile are held."""
    start = sum_of(index_terms(cut_off.start)) or "0"
    elements = f"{_length(kernel, cut_off.more)} - ({start})"
    writer.line(f"const long {HELD} = larger(smaller({elements}, {cut_off.extent}), 0);")


def _length(kernel: Kernel, more: int) -> str:
    assert kernel.growing is not None
    return f"{kernel.growing.sizes}[0]" + (f" + {more}" if more else "")


def _arguments(source: GrowingInput) -> list[tuple[int, int]]:
    """The dimensions of an input whose strides are arguments, and the numbers of these."""
    return [(dim, number) for dim, stride in enumerate(source.strides) for number in digits(stride) if number is not None]


def _print_window(writer: Writer, kernel: Kernel, window: Window) -> None:
    """Declare the pointer and the strides by which statements read an input: its own, or those of a copy of what is left."""
    assert kernel.growing is not None
    source, dtype = window.source, writer.dtypes[window.source.buffer]
    _print_strides(writer, kernel, source, compact_strides(kernel))
    writer.line(f"const {dtype}_t *{source.buffer} = whole_{source.buffer};")
    if not window.copy:
        return
    for dim, start in enumerate(window.starts):
        writer.line(f"const long {source.buffer}_first{dim} = {sum_of(index_terms(start)) or '0'};")
    held = f"{_length(kernel, source.more)} - {source.buffer}_first{source.axis}"
    writer.line(f"const long {source.buffer}_held = larger({held}, 0);")
    with writer.block(f"if ({source.buffer}_held < {window.extents[source.axis]})"):
        _print_copy(writer, window)
        _print_turn_to_copy(writer, window)


def print_given_strides(writer: Writer, kernel: Kernel, buffer: str) -> None:
    """Declare the strides by which a tile is read of an input of `arguments`, if it is one whose strides are arguments."""
    growing = kernel.growing
    source = next((window.source for window in (growing.windows if growing else ()) if window.source.buffer == buffer), None)
    if growing is not None and source is not None:
        writer.line(f"const int64_t *{growing.sizes} = arguments[{kernel.inputs.index(growing.sizes)}];")
        _print_strides(writer, kernel, source, {})


def _print_strides(writer: Writer, kernel: Kernel, source: GrowingInput, compact: Mapping[int, int]) -> None:
    """Declare the strides of an input, those of `compact` being numbers where a call gives these."""
    assert kernel.growing is not None
    for _, number in _arguments(source):
        given = f"{kernel.growing.sizes}[{number + 1}]"
        writer.line(f"long stride{number} = {f'compact ? {compact[number]} : {given}' if number in compact else given};")


def _print_turn_to_copy(writer: Writer, window: Window) -> None:
    """Let the pointer and the strides of an input be such that they lead to the elements of its copy."""
    source, arguments = window.source, _arguments(window.source)
    for dim, number in arguments:
        writer.line(f"stride{number} = {math.prod(window.extents[dim + 1 :])};")
    places = [f"{source.buffer}_first{dim} * stride{number}" for dim, number in arguments]
    before = sum_of([*places, f"{source.buffer}_first{len(source.shape) - 1}"])
    writer.line(f"{source.buffer} = before_{writer.dtypes[source.buffer]}({window.copy}, {before});")


def _print_copy(writer: Writer, window: Window) -> None:
    """Copy the elements of a window that there are, row by row, with 0 in the place of others."""
    source, dtype = window.source, writer.dtypes[window.source.buffer]
    *outer, row = range(len(source.shape))
    with ExitStack() as loops:
        for dim in outer:
            loops.enter_context(writer.block(f"for (long i{dim} = 0; i{dim} < {window.extents[dim]}; ++i{dim})"))
        length = window.extents[row]
        count = f"{source.buffer}_held" if source.axis == row else f"(i{source.axis} < {source.buffer}_held ? {length} : 0)"
        places = [scaled(source.strides[dim], f"({source.buffer}_first{dim} + i{dim})") for dim in outer]
        there = sum_of([source.buffer, *places, f"{source.buffer}_first{row}"])
        to = sum_of([window.copy, *(scaled(math.prod(window.extents[dim + 1 :]), f"i{dim}") for dim in outer)])
        writer.line(f"copy_first_{dtype}({to}, {there}, {count}, {length});")
