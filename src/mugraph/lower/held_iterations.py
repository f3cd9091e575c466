"""The body of a kernel in iterations in which a mask is one number: what it chooses is read where it lies.

A mask hides what is behind the end of an axis, and takes a pass over a tile for that. Before the end it chooses the same operand
for every element: the value is a copy, and of what the caller has in memory nobody needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mugraph.lower.inlining import with_copies_of_inputs_inlined
from mugraph.lower.phases import Phase
from mugraph.lower.scalar_expressions import CHOICE, Apply, Constant, Expression, Source, renumbered, subexpressions
from mugraph.lower.tile_form import Elementwise, Kernel, Reduce, Scan, Statement, Tile


def with_constant_inputs(kernel: Kernel, numbers: Mapping[str, float], phase: Phase = Phase.BODY) -> Kernel:
    """The kernel with a phase for when that reads one number wherever it reads the buffers `numbers`."""
    made = tuple(_simplified(statement, numbers) for statement in kernel.of_phase(phase))
    return with_copies_of_inputs_inlined(kernel.with_phase(phase, made))


def with_choices(kernel: Kernel, is_held: Callable[[Tile, Tile], bool]) -> Kernel:
    """The kernel with inputs in the place of what masks choose between them and 0, where they are 0 already wherever the mask is:
    where that `is_held` of the mask and the input."""
    body = tuple(_chosen_by_zero(statement, is_held) for statement in kernel.body)
    return with_copies_of_inputs_inlined(replace(kernel, body=body))


def _chosen_by_zero(statement: Statement, is_held: Callable[[Tile, Tile], bool]) -> Statement:
    match statement:
        case Elementwise(expression=Apply(template=template, arguments=(Source(mask), Source(chosen), Constant(value=number)))):
            if template == CHOICE and number == 0 and is_held(statement.sources[mask], statement.sources[chosen]):
                return replace(statement, sources=(statement.sources[chosen],), expression=Source(0))
    return statement


def _simplified(statement: Statement, numbers: Mapping[str, float]) -> Statement:
    """The statement without the operands that are known, and those that are not chosen."""
    if not isinstance(statement, Elementwise | Reduce | Scan):
        return statement
    known = [
        Constant(numbers[tile.buffer]) if tile.buffer in numbers else Source(number)
        for number, tile in enumerate(statement.sources)
    ]
    expression = _chosen(renumbered(statement.expression, known))
    read = sorted({part.index for part in subexpressions(expression) if isinstance(part, Source)})
    places: list[Expression] = [Source(read.index(number) if number in read else 0) for number in range(len(known))]
    sources = tuple(statement.sources[number] for number in read)
    return replace(statement, sources=sources, expression=renumbered(expression, places))


def _chosen(expression: Expression) -> Expression:
    """The expression with choices made whose condition is a number."""
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(map(_chosen, expression.arguments))
    if expression.template == CHOICE and isinstance(arguments[0], Constant):
        return arguments[1 if arguments[0].value else 2]
    return Apply(expression.template, arguments)
