"""Reductions in registers: what a loop sums up of rows, or their maxima, stays with the threads that found it until it ends.

A group of lanes reduces for each result. Where nothing else in the loop touches the accumulator, every lane keeps what it found
of its own elements over all iterations; the group meets once, behind the loop, and one of its lanes stores the result. A
reduction that was cut into parts for several warps keeps the parts, and these are put together behind the loop, too.

What a loop adds up element by element and only a reduction behind it reads, as the squares of rows in many muGraphs, is reduced
in the loop instead, where one accumulator takes the place of a tile.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.lower.scalar_expressions import Constant, Source
from mugraph.lower.tile_form import Buffer, Combine, Elementwise, Kernel, Memory, Reduce, Statement, Tile
from mugraph.lower.tiles import row_major, same_elements, same_sizes, with_unit_dimensions
from mugraph.lower.touched_tiles import reads_target, touching


def with_reductions_in_loop(kernel: Kernel) -> Kernel:
    """The kernel that reduces in its loop what it accumulates there element by element and reduces, alike, behind the loop."""
    for statement in kernel.after if kernel.loop > 1 else ():
        if isinstance(statement, Reduce) and (term := _reduced_term(kernel, statement)) is not None:
            kernel = _reduced_in_loop(kernel, statement, term)
    return kernel


def with_register_reductions(kernel: Kernel) -> Kernel:
    """The kernel with every accumulator of its loop that one reduction alone touches in registers, stored behind the loop."""
    for statement in kernel.body if kernel.loop > 1 else ():
        if not isinstance(statement, Reduce) or reduces_fragments(kernel, statement):
            continue
        if (start := _start(kernel, statement)) is not None:
            parts = _reduction_to_parts(kernel, statement)
            if parts is not None and keeps_results(kernel, parts):
                kernel = _in_registers(*_with_parts_behind(kernel, statement, parts, start), start)
            elif keeps_results(kernel, statement):
                kernel = _in_registers(kernel, statement, start)
    return kernel


def keeps_results(kernel: Kernel, reduction: Reduce) -> bool:
    """Whether no thread has a part in more than one result."""
    return math.prod(reduction.target.shape) <= kernel.threads


def reduction_into(kernel: Kernel, name: str) -> Reduce | None:
    """The reduction whose results a buffer in registers holds; None of any other buffer."""
    if kernel.buffer(name).memory is not Memory.REGISTERS:
        return None
    return next((s for s in kernel.body if isinstance(s, Reduce) and s.target.buffer == name), None)


def reduction_of(kernel: Kernel, statement: Elementwise) -> Reduce | None:
    """The reduction whose results in registers a statement starts or copies out; None of any other statement."""
    found = (reduction_into(kernel, tile.buffer) for tile in (statement.target, *statement.sources))
    return next((reduction for reduction in found if reduction is not None), None)


def reduces_fragments(kernel: Kernel, reduction: Reduce) -> bool:
    """Whether a reduction takes rows that lanes hold in the fragments of a product (`register_scores.py`)."""
    return any(kernel.buffer(tile.buffer).memory is Memory.REGISTERS for tile in reduction.sources)


def starts_every_lane(combine: Combine, start: Constant) -> bool:
    """Whether what is combined from several lanes is right if each of them starts with a number."""
    return combine is Combine.MAX or start.value == combine.identity


def _start(kernel: Kernel, statement: Statement) -> Constant | None:
    """What an accumulator starts as that a statement alone touches in the loop, if each of several threads may start with it;
    else None."""
    if not isinstance(statement, Reduce | Elementwise) or not reads_target(statement) or statement.combine is None:
        return None
    buffer, fills = kernel.buffer(statement.target.buffer), touching(kernel.before, statement.target.buffer)
    whole = math.prod(statement.target.shape) == buffer.elements and buffer.memory is Memory.SHARED
    if not whole or len(fills) != 1 or touching(kernel.body, buffer.name) != [statement]:
        return None
    (fill,) = fills
    start = fill.expression if isinstance(fill, Elementwise) and fill.combine is None else None
    if not isinstance(start, Constant):
        return None
    return start if starts_every_lane(statement.combine, start) else None


def _reduced_term(kernel: Kernel, reduction: Reduce) -> Elementwise | None:
    """What the loop accumulates in all that a reduction behind it takes, and nothing else reads; None where that is not so."""
    source, target = reduction.sources[0] if len(reduction.sources) == 1 else reduction.target, reduction.target
    users = [user for user in touching((*kernel.body, *kernel.after), source.buffer) if user != reduction]
    term = users[0] if len(users) == 1 and users[0] in kernel.body else None
    if not isinstance(term, Elementwise) or term.combine is not reduction.combine or _start(kernel, term) is None:
        return None
    alike = same_sizes(term.target.shape, source.shape) and same_elements(with_unit_dimensions(term.target, source.shape), source)
    fresh = touching(kernel.statements, target.buffer)[0] == reduction and not reads_target(reduction)
    memories = {kernel.buffer(tile.buffer).memory for tile in term.sources}
    whole = math.prod(target.shape) == kernel.buffer(target.buffer).elements and not any(target.start.parts)
    shared = whole and kernel.buffer(target.buffer).memory is Memory.SHARED and Memory.REGISTERS not in memories
    return term if alike and fresh and shared and reduction.expression == Source(0) and keeps_results(kernel, reduction) else None


def _reduced_in_loop(kernel: Kernel, reduction: Reduce, term: Elementwise) -> Kernel:
    """The kernel whose loop reduces what it accumulated, in the place of both statements."""
    (source,), start = reduction.sources, _start(kernel, term)
    assert start is not None
    terms = tuple(with_unit_dimensions(tile, source.shape) for tile in term.sources)
    reducing = replace(reduction, sources=terms, expression=term.expression, accumulate=True)
    before = (s for s in kernel.before if s.target.buffer != source.buffer)
    return replace(
        kernel,
        buffers=tuple(buffer for buffer in kernel.buffers if buffer.name != source.buffer),
        before=(*before, Elementwise(reduction.target, (), start)),
        body=tuple(reducing if s == term else s for s in kernel.body),
        after=tuple(s for s in kernel.after if s != reduction),
        tensors=tuple((value, place) for value, place in kernel.tensors if place.buffer != source.buffer),
    )


def _reduction_to_parts(kernel: Kernel, statement: Reduce) -> Reduce | None:
    """The reduction to parts that a statement alone reads, and only puts together; None where it does more."""
    if statement.expression != Source(0) or len(statement.sources) != 1:
        return None
    (source,) = statement.sources
    makers = [user for user in touching(kernel.statements, source.buffer) if user != statement]
    maker = makers[0] if len(makers) == 1 and makers[0] in kernel.body else None
    if not isinstance(maker, Reduce) or maker.accumulate or maker.combine is not statement.combine or maker.target != source:
        return None
    return maker


def _with_parts_behind(kernel: Kernel, statement: Reduce, parts: Reduce, start: Constant) -> tuple[Kernel, Reduce]:
    """The kernel whose loop accumulates parts, which a statement puts together behind it; and the reduction to parts."""
    adding = replace(parts, accumulate=True)
    before = (s for s in kernel.before if s.target.buffer != statement.target.buffer)
    behind = replace(
        kernel,
        before=(*before, Elementwise(parts.target, (), start)),
        body=tuple(adding if s == parts else s for s in kernel.body if s != statement),
        after=(replace(statement, accumulate=False), *kernel.after),
    )
    return behind, adding


def _in_registers(kernel: Kernel, reduction: Reduce, start: Constant) -> Kernel:
    """The kernel with the results of a reduction in registers up to the end of the loop, and from there in their buffer."""
    target, dtype = reduction.target, kernel.buffer(reduction.target.buffer).dtype
    held = Tile(f"{target.buffer}_held", target.shape, row_major(target.shape))
    before = (s for s in kernel.before if s.target.buffer != target.buffer)
    return replace(
        kernel,
        buffers=(*kernel.buffers, Buffer(held.buffer, Memory.REGISTERS, dtype, math.prod(held.shape))),
        before=(*before, Elementwise(held, (), start)),
        body=tuple(replace(s, target=held) if s == reduction else s for s in kernel.body),
        after=(Elementwise(target, (held,), Source(0)), *kernel.after),
    )
