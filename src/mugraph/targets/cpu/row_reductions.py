"""Reductions along the dimension of the vectors: partial vectors of a row, folded across their lanes, and, where there are enough
rows, as many of these at a time as vectors have lanes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from mugraph.lower.scalar_expressions import Expression
from mugraph.lower.thread_mapping import LoopDim
from mugraph.lower.tile_form import Combine, Elementwise, Reduce, Scan
from mugraph.targets.c_text import sum_of
from mugraph.targets.cpu.read_ahead import LINE_BYTES, place_of, takes_long
from mugraph.targets.cpu.source import HELD, UNROLLED, Lanes, Writer


class Nest(Protocol):
    """What is asked of a loop nest that is printed (`mugraph.targets.cpu.loops`)."""

    @property
    def writer(self) -> Writer: ...
    @property
    def statement(self) -> Elementwise | Reduce | Scan: ...
    @property
    def loops(self) -> Sequence[LoopDim]: ...
    @property
    def vector(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def expression(self) -> Expression: ...
    @property
    def combine(self) -> Combine | None: ...
    @property
    def accumulates(self) -> bool: ...
    @property
    def neutral(self) -> str: ...
    def scope(self) -> AbstractContextManager[object]: ...
    def define(self, depth: int, lanes: Lanes) -> None: ...
    def reduced_value(self, lanes: Lanes) -> str: ...
    def combined(self, left: str, right: str) -> str: ...
    def address(self, pointer: str, number: int, depth: int) -> str: ...
    def store(self, value: str, lanes: Lanes, accumulate: bool, apart: int | None = None) -> None: ...


def rows_together(nest: Nest, depth: int) -> int:
    """Reduce as many rows at a time as vectors have lanes, which takes about one shuffle for each, and not one for each
    halving of a vector. How many rows of the loop at `depth`, around the vector loop, that is done for."""
    rows, lanes = nest.loops[depth], nest.lanes
    inside = depth + 1 == nest.vector == len(nest.loops) - 1 and nest.loops[nest.vector].reduced
    done = rows.size // lanes * lanes
    if not inside or rows.bounded or nest.loops[nest.vector].bounded or not done:
        return 0
    with nest.writer.block(f"for (long first = 0; first < {done}; first += {lanes})"):
        nest.writer.line("vec across[LANES];")
        with nest.writer.block("for (long row = 0; row < LANES; ++row)"), nest.scope():
            nest.writer.line(f"const long i{depth} = first + row;")
            nest.define(depth + 1, lanes)
            nest.writer.line(f"across[row] = {_partial_vectors(nest, depth + 1)};")
        nest.writer.line(f"const long i{depth} = first;")
        nest.store(f"all_{nest.combine}(across)", lanes, nest.accumulates, rows.strides[0])
    return done


def vector_reduction(nest: Nest, depth: int) -> None:
    """The reduced dimension is the vector dimension: several partial vectors, then one sum across lanes."""
    _folded(nest, _partial_vectors(nest, depth))


def bounded_reduction(nest: Nest, depth: int) -> None:
    """The same of what is held: each partial vector has the elements that it has where all are."""
    whole = nest.loops[depth].size // nest.lanes
    partials = min(UNROLLED, max(whole, 1))
    for number in range(partials):
        nest.writer.line(f"vec total{number} = splat({nest.neutral});")
    nest.writer.line("long i = 0;")
    with nest.writer.block(f"for (; i + {partials * nest.lanes} <= {HELD}; i += {partials * nest.lanes})"):
        for number in range(partials):
            _partial(nest, depth, number, f"i + {number * nest.lanes}", nest.lanes)
    for number in range(partials):
        with nest.writer.block(f"if (i < {HELD})"):
            lanes = f"smaller({HELD} - i, {nest.lanes})"
            if number and number == whole % partials:  # where all are held, the first vector has what whole ones leave
                with nest.writer.block(f"if (i == {whole * nest.lanes})"):
                    _partial(nest, depth, 0, "i", lanes)
                with nest.writer.block("else"):
                    _partial(nest, depth, number, "i", lanes)
            else:
                _partial(nest, depth, number, "i", lanes)
            nest.writer.line(f"i += {nest.lanes};")
    _folded(nest, _as_one(nest, partials))


def _partial_vectors(nest: Nest, depth: int) -> str:
    """Reduce a row to vectors that add up to its sum, or among which its maximum is; what they are as one."""
    size, lanes = nest.loops[depth].size, nest.lanes
    whole = size // lanes
    partials = min(UNROLLED, max(whole, 1))
    for number in range(partials):
        nest.writer.line(f"vec total{number} = splat({nest.neutral});")
    unrolled = whole // partials * partials
    if unrolled:
        with nest.writer.block(f"for (long i = 0; i < {unrolled * lanes}; i += {partials * lanes})"):
            _ask_ahead(nest, depth, partials * lanes)
            for number in range(partials):
                _partial(nest, depth, number, f"i + {number * lanes}", lanes)
    for chunk in range(unrolled, whole):
        _partial(nest, depth, chunk - unrolled, str(chunk * lanes), lanes)
    if size > whole * lanes:
        _partial(nest, depth, 0, str(whole * lanes), size - whole * lanes)
    return _as_one(nest, partials)


def _partial(nest: Nest, depth: int, number: int, position: str, lanes: Lanes) -> None:
    with nest.writer.block(), nest.scope():
        nest.writer.line(f"const long i{depth} = {position};")
        nest.define(depth + 1, lanes)
        value = nest.reduced_value(lanes)
        if lanes != nest.lanes:
            value = f"keep_first({value}, {nest.neutral}, {lanes})"
        nest.writer.line(f"total{number} = {nest.combined(f'total{number}', value)};")


def _as_one(nest: Nest, partials: int) -> str:
    """So many partial vectors, combined."""
    return functools.reduce(nest.combined, (f"total{number}" for number in range(partials)))


def _folded(nest: Nest, partial: str) -> None:
    """Write the sum or maximum across the lanes of a partial vector to the target."""
    nest.writer.line(f"const vec total = splat(total_{nest.combine}({partial}));")
    nest.store("total", 1, nest.accumulates)


def _ask_ahead(nest: Nest, depth: int, elements: int) -> None:
    """Ask for what the next block reads where this one reads the next so many elements, if it takes long with them."""
    if not takes_long(nest.expression):
        return
    for number, tile in enumerate(nest.statement.sources):
        step = nest.writer.ahead.get(place_of(tile), 0)
        if step and nest.loops[depth].strides[number + 1] == 1:
            start = sum_of([nest.address(f"x{number}", number + 1, depth), "i"])
            for behind in range(step, step + elements, LINE_BYTES // nest.writer.dtype(tile).bytes):
                nest.writer.line(f"__builtin_prefetch({start} + {behind}, 0, 2);")
