"""What distinguishes the candidates of a result: a row for each, and which of its cells are not those of the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.ir.text import value_names
from mugraph.lower.tile_form import Kernel, Memory
from mugraph.lower.tiles import row_major
from mugraph.results.data import Candidate, Result
from mugraph.results.words import seconds_text
from mugraph.runtime.placement import placement_of
from mugraph.targets.machine import Machine

COLUMNS = ("grid", "loop", "between kernels", "layouts", "predicted", "measured")
"""Heads of the columns; each cell has a line for each kernel or tensor."""


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """A cell: its lines, and whether the first row has something else there."""

    lines: tuple[str, ...]
    differs: bool


def differences(opt: Result) -> list[tuple[ComparedCell, ...]]:
    """A row of `COLUMNS` for each candidate, in their order; none where there are not two to compare."""
    if len(opt.candidates) < 2:
        return []
    rows = [_row(candidate, opt.executable.machine) for candidate in opt.candidates]
    return [tuple(ComparedCell(lines, lines != first) for lines, first in zip(row, rows[0], strict=True)) for row in rows]


def _row(candidate: Candidate, machine: Machine) -> tuple[tuple[str, ...], ...]:
    graph = candidate.graph
    bodies = [node.body for node in graph.kernels()]
    return (
        tuple(
            " × ".join(map(str, body.grid)) if body and body.grid else "one block" if body else "a library call"
            for body in bodies
        ),
        tuple(str(body.loop) if body else "none" for body in bodies),
        tuple(_between(graph)) or ("nothing",),
        tuple(_layouts(graph, machine)),
        (_seconds(candidate.cost),),
        (_seconds(candidate.latency),),
    )


def _seconds(seconds: float | None) -> str:
    return "not known" if seconds is None else seconds_text(seconds)


def _between(graph: Graph) -> Iterator[str]:
    """The tensors that kernels hand to others, such as the partial results of a split reduction."""
    for index, node in enumerate(graph.nodes):
        if node.op == GRAPH_DEFINED:
            for number, tensor in enumerate(node.outputs):
                if graph.users(Value(index, number)):
                    yield str(tensor)


def _layouts(graph: Graph, machine: Machine) -> Iterator[str]:
    """The tensors whose elements do not lie in row-major order, in device memory or in shared memory."""
    try:
        launches = machine.lower(graph)
    except MugraphError:
        yield "not known"
        return
    names, other = value_names(graph), False
    for value, place in placement_of(graph, launches).device_places().items():
        if place.order is not None and not place.order.is_row_major:
            other = True
            yield f"{names[value.node]}: {place}"
    for launch in launches.values():
        kernel = launch.kernel
        if not isinstance(kernel, Kernel):
            other = True
            yield "tiles: the compiler's"
            continue
        inside = value_names(launch.body)
        for value, tile in kernel.tensors:
            if kernel.buffer(tile.buffer).memory is not Memory.SHARED or prod(tile.shape) == 1:
                continue
            kept = [(size, stride) for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1]
            plain = row_major(tuple(size for size, _ in kept))
            if tuple(stride for _, stride in kept) != plain or tile.swizzle is not None:
                other = True
                swizzled = ", swizzled" if tile.swizzle is not None else ""
                yield f"{inside[value.node]} in {kernel.name}: strides {', '.join(map(str, tile.strides))}{swizzled}"
    if not other:
        yield "row-major"
