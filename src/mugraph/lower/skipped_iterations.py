"""Iterations of a block's for-loop that change nothing, told by one tile of an input: all -inf, as a mask hides scores, or all 0.

What an iteration computes of such a tile follows from the block graph (`mugraph.ir.known_elements`): scores that -inf is added to
are -inf, their exponentials 0, the product of these with values 0, and an accumulator that 0 is added to stays as it is.
docs/theory.md, "Iterations that change nothing", has the argument and its premise, which iterations behind the end of an axis do
without (`is_neutral`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mugraph.ir.evaluate import iteration_values, loop_nodes
from mugraph.ir.graph import ACCUMULATORS, VIEWS, Graph, Node
from mugraph.ir.known_elements import Known, KnownArithmetic, States, leave_maximum, leave_rescaled, leave_sum
from mugraph.ir.ops import is_contraction
from mugraph.lower.exponents import least_made
from mugraph.lower.lower import Launch
from mugraph.lower.phases import Phase, phases
from mugraph.lower.tile_form import Load, Skip, Tile

_TELLING = {-math.inf: Known.HIDDEN, 0.0: Known.ZERO}
"""The numbers that a tile may consist of when an iteration has nothing to do."""


def with_skips(launch: Launch, graph: Graph) -> Launch:
    """The launch of a kernel of a kernel graph, with the tiles that tell which iterations may be left out."""
    return replace(launch, kernel=replace(launch.kernel, skips=tuple(_skips(launch, graph))))


def is_neutral(launch: Launch, zero: Collection[str]) -> bool:
    """Whether an iteration changes nothing where all that it reads of the buffers `zero` is 0, whatever it reads of others."""
    behind = {load.node for load in launch.kernel.loads if load.phase is Phase.BODY and load.tile.buffer in zero}
    loaded = {
        index: np.full(node.output.shape, Known.ZERO if index in behind else Known.NOTHING, np.uint8)
        for index, node in enumerate(launch.body.nodes)
        if node.is_iterator
    }
    return _changes_nothing(launch.body, loaded)


def _skips(launch: Launch, graph: Graph) -> Iterator[Skip]:
    body, kernel = launch.body, launch.kernel
    if kernel.loop == 1:
        return  # accumulators are what the only iteration makes: nothing fills them before
    roots = dict(zip(kernel.inputs, launch.inputs, strict=True))
    for load in _candidates(body, kernel.loads):
        root = roots[load.tile.buffer].node
        if not graph.nodes[root].is_input:
            continue
        held = [number for number in _TELLING if math.isfinite(number) or graph.nodes[root].output.dtype.is_floating]
        dependent = {name for name, value in roots.items() if value.node in _reached(graph, root)}
        for number in held:
            known = {each.node: _loaded(each.tile, load.tile, _TELLING[number], dependent) for each in kernel.loads}
            if _changes_nothing(body, known):
                yield Skip(load.tile, number)


def _candidates(body: Graph, loads: Sequence[Load]) -> list[Load]:
    """The tiles that may tell: cut by the loop, themselves no factors, beside a product that does not depend on them.

    Looking at such a tile takes less time than the product by one factor's length.
    """
    inside = loop_nodes(body)
    products = {index for index in inside if is_contraction(body.nodes[index].op)}
    telling = (load for load in loads if load.phase is Phase.BODY and load.tile.lookup is None)
    return [load for load in telling if products - _reached(body, load.node) and not products & _viewed(body, load.node)]


def _reached(graph: Graph, node: int, through: Callable[[Node], bool] = lambda node: True) -> set[int]:
    """A node and all that depend on it by nodes `through` which values pass."""
    found = {node}
    for index, each in enumerate(graph.nodes):
        if any(value.node in found and (value.node == node or through(graph.nodes[value.node])) for value in each.inputs):
            found.add(index)
    return found


def _viewed(body: Graph, node: int) -> set[int]:
    """The nodes that read an iterator's tile as it is, or in other dimensions."""
    return _reached(body, node, lambda each: each.op in VIEWS or each.op == "cast")  # by name: a cast changes no number


def _loaded(tile: Tile, telling: Tile, state: Known, dependent: Collection[str]) -> States:
    """What is known of a tile when the elements of another are known: nothing if it lies in a buffer that depends on this one."""
    known = state if tile == telling else Known.NOTHING if tile.buffer in dependent else Known.FINITE
    return np.full(tile.shape, known, np.uint8)


def _changes_nothing(body: Graph, loaded: Mapping[int, States]) -> bool:
    """Whether every accumulator stays as it is in an iteration that brings these tiles."""
    values, when = iteration_values(body, loaded, KnownArithmetic()), phases(body)
    accumulators = (node for node in body.nodes if node.op in ACCUMULATORS)
    return all(
        _is_neutral(body, node, [values[value] for value in node.inputs])
        for node in accumulators
        if not _is_computed_behind(node, when[node.inputs[0].node])
    )


def _is_computed_behind(node: Node, when: Phase) -> bool:
    """Whether an accumulator is no part of the iterations: a sum or maximum of what all of them have alike."""
    # by name: accumulators of other kinds have a place, or a factor, for each iteration
    return node.op == "accumulate" and node["combine"] in ("sum", "max") and when is not Phase.BODY


def _is_neutral(body: Graph, node: Node, operands: Sequence[States]) -> bool:
    """Whether an accumulator stays as it is when it meets these elements."""
    # by name: how accumulators combine is what they are
    if node.op == "accumulate_rescaled":
        return leave_rescaled(*operands)
    if body.loop == 1:  # it is what the iteration brings, and nothing without
        return False
    (elements,) = operands
    # by name: a way to combine, which is no operator
    if node["combine"] == "sum":
        return leave_sum(elements)
    # by name: a way to combine, which is no operator
    return node["combine"] == "max" and leave_maximum(elements, math.isfinite(least_made(body, node.inputs[0])))
