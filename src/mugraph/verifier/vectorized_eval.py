"""Evaluating muGraphs at full size: all blocks of a grid at once, along leading batch axes.

`mugraph.ir.evaluate` runs every block by itself, which is the meaning of a muGraph but takes minutes at 128 blocks of 64
iterations. Here a tensor inside a graph-defined operator carries one leading axis per grid dimension, of size 1 where it
does not depend on that dimension; imap, fmap and omap become splits and merges of dimensions. The for-loop stays a loop,
so that memory stays that of one iteration, or of as many as are asked for where tensors are small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from mugraph.errors import InvalidGraph
from mugraph.ir.arithmetic import Arithmetic, Array
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.evaluate import constant_nodes, loop_nodes
from mugraph.ir.graph import ACCUMULATORS, Accumulation, Graph, Level, Node, Value
from mugraph.ir.ops import Call, Scope, apply_call, operator, partition_of
from mugraph.ir.scalar import Scalar
from mugraph.ir.sizes import divisors

V = TypeVar("V")

_PENDING = 16
"""Values an accumulator collects before it combines them: few enough to bound memory, many enough to be fast."""


_FEW_MEMBERS = 4
"""Data movements are applied to so many members of a batch one by one."""

Pulse = Callable[[], object]
"""Called before every operator; it may raise to end the evaluation."""


def evaluate_batched(
    graph: Graph, inputs: Sequence[V], arith: Arithmetic[V], pulse: Pulse = lambda: None, lead: int = 0, at_once: int = 0
) -> list[V]:
    """The outputs of a kernel graph on `inputs` (one tensor per `input` node, in order), as `mugraph.ir.evaluate` gives them.

    Inputs with `lead` axes in front are batches, and so are the outputs; those axes have size 1 in what does not depend on them.
    Iterations of a kernel's loop are evaluated as one where its tensors, of all blocks, have at most `at_once` elements then.
    """
    if graph.level is not Level.KERNEL:
        raise InvalidGraph(f"evaluate_batched takes a kernel graph, not a {graph.level} graph")
    values: dict[Value, V] = {}
    remaining = iter(inputs)
    for index, node in enumerate(graph.nodes):
        if node.is_input:
            values[Value(index)] = next(remaining)
        else:
            _store(values, index, _compute(graph, node, [values[v] for v in node.inputs], arith, lead, pulse, at_once))
    return [values[value] for value in graph.outputs]


def is_selection(body: Graph, node: Node) -> bool:
    """Whether a node accumulates the maximum of one loop-invariant tensor: it is that tensor, brought past the loop."""
    if node.accumulation is not Accumulation.MAX:
        return False
    if body.loop == 1:
        return True
    varying: set[int] = set()
    for index, other in enumerate(body.nodes):
        if (other.is_iterator and other["fmap"] is not None) or any(v.node in varying for v in other.inputs):
            varying.add(index)
    return node.inputs[0].node not in varying


def _store(values: dict[Value, V], index: int, results: Sequence[V]) -> None:
    values.update((Value(index, number), result) for number, result in enumerate(results))


def _compute(
    graph: Graph, node: Node, operands: Sequence[V], arith: Arithmetic[V], lead: int, pulse: Pulse, at_once: int = 0
) -> list[V]:
    """The outputs of a node whose operands have `lead` batch axes."""
    if node.body is not None:
        return _Body(without_dead_nodes(node.body), operands, arith, lead, pulse, at_once).run()
    pulse()
    call = apply_call(node.op, [graph.tensor(v) for v in node.inputs], dict(node.attributes), _scope(graph))
    return [operator(node.op).compute(_Batched(arith, lead) if lead else arith, call, operands)]


def _scope(graph: Graph) -> Scope:
    return Scope(graph.grid or graph.block, graph.loop)


@dataclass(frozen=True, slots=True)
class _Pending(Generic[V]):
    """Values of one operand of an accumulator, oldest first: `levels[i]` holds combinations of _PENDING**i values each."""

    levels: list[list[V]]

    def push(self, value: V) -> None:
        self.levels[0].append(value)

    def combine(self, accumulate: Callable[[Sequence[V]], V]) -> None:
        """Combine every full level into one value of the next, which keeps few values and combines equals with equals."""
        for level, values in enumerate(self.levels):
            if len(values) < _PENDING:
                break
            if level + 1 == len(self.levels):
                self.levels.append([])
            self.levels[level + 1].append(accumulate(values))
            values.clear()

    def values(self) -> list[V]:
        return [value for level in reversed(self.levels) for value in level]


@dataclass(frozen=True, slots=True)
class _Body(Generic[V]):
    """One graph-defined operator applied to operands with `lead` batch axes of the graphs around it."""

    body: Graph
    operands: Sequence[V]
    arith: Arithmetic[V]
    lead: int
    pulse: Pulse
    at_once: int

    @property
    def grid(self) -> tuple[int, ...]:
        return self.body.grid or self.body.block

    def run(self) -> list[V]:
        inside, fixed = loop_nodes(self.body), constant_nodes(self.body)
        collected = self.iterate(inside)
        after: dict[Value, V] = {}
        for index, node in enumerate(self.body.nodes):
            if index in collected:
                operands = [value for pending in collected[index] for value in pending.values()]
                _store(after, index, operands if is_selection(self.body, node) else self.compute(node, operands))
            elif index not in inside or index in fixed:
                self.step(after, index, node, 0)
        return [self.merge(after[value], self.body.nodes[value.node]) for value in self.body.outputs]

    def iterate(self, inside: frozenset[int]) -> dict[int, list[_Pending[V]]]:
        """Run the for-loop: for each accumulator and each of its operands, the values still to be combined."""
        accumulators = {i: node for i, node in enumerate(self.body.nodes) if node.op in ACCUMULATORS}
        collected: dict[int, list[_Pending[V]]] = {i: [_Pending([[]]) for _ in n.inputs] for i, n in accumulators.items()}
        selections = {i for i, node in accumulators.items() if is_selection(self.body, node)}
        for iteration, values in enumerate(self.iterations(inside) if accumulators else ()):
            for index, node in accumulators.items():
                if index in selections and iteration:
                    continue
                for pending, value in zip(collected[index], node.inputs, strict=True):
                    pending.push(values(value))
                    if node.accumulation not in (None, Accumulation.MAX):  # of maxima, tests may not assume that they nest
                        pending.combine(functools.partial(self.fold, node))
        return collected

    def iterations(self, inside: frozenset[int]) -> Iterator[Callable[[Value], V]]:
        """What the nodes inside the loop make, iteration by iteration."""
        count = self.iterations_at_once(inside)
        for start in range(0, self.body.loop, count):
            values: dict[Value, V] = {}
            for index, node in enumerate(self.body.nodes):
                if index in inside:
                    self.step(values, index, node, slice(start, start + count) if count > 1 else start)
            for number in range(count):
                yield functools.partial(self.member, values, number) if count > 1 else values.__getitem__

    def iterations_at_once(self, inside: frozenset[int]) -> int:
        """How many iterations are evaluated as one, a divisor of all; one where batches are around the blocks."""
        largest = max(math.prod(tensor.shape) for index in inside for tensor in self.body.nodes[index].outputs)
        most = 1 if self.lead else self.at_once // max(1, largest * math.prod(self.grid))
        return max(count for count in divisors(self.body.loop) if count <= max(1, most))

    def member(self, values: Mapping[Value, V], number: int, value: Value) -> V:
        """A value of one of the iterations that were evaluated as one: their axis is the one behind the grid's."""
        axis = self.lead + len(self.grid)
        return self.arith.view(values[value], lambda array: np.take(array, min(number, array.shape[axis] - 1), axis))

    def compute(self, node: Node, operands: Sequence[V], more: int = 0) -> list[V]:
        """The outputs of a node whose operands have `more` axes behind those of the grid."""
        return _compute(self.body, node, operands, self.arith, self.lead + len(self.grid) + more, self.pulse, self.at_once)

    def fold(self, accumulator: Node, operands: Sequence[V]) -> V:
        (result,) = self.compute(accumulator, operands)
        return result

    def step(self, values: dict[Value, V], index: int, node: Node, iteration: int | slice) -> None:
        if node.is_iterator:
            values[Value(index)] = self.tile(node, iteration)
        elif node.is_saver:
            values[Value(index)] = values[node.inputs[0]]
        else:
            _store(values, index, self.compute(node, [values[v] for v in node.inputs], int(isinstance(iteration, slice))))

    def tile(self, node: Node, iteration: int | slice) -> V:
        """The tiles that all blocks read in one iteration: dimensions split by imap and fmap, the grid's parts in front; behind
        these a slice of iterations, of size 1 where all read the same."""
        operand = node["operand"]
        if not isinstance(operand, int) or operand >= len(self.operands):
            raise InvalidGraph(
                f"clause 1 (operator specification): input_iterator reads operand {operand!r} of {len(self.operands)}"
            )
        parts = partition_of(Call(node.op, (node.output.shape,), dict(node.attributes), _scope(self.body)))

        def split(array: Array) -> Array:
            shape = list(array.shape[: self.lead])
            part_axes: list[int | None] = [None] * len(parts)
            data_axes = []
            for dim, size in enumerate(array.shape[self.lead :]):
                rest = size
                for position, (count, mapped) in enumerate(parts):
                    if mapped == dim:
                        part_axes[position] = len(shape)
                        shape.append(count)
                        rest //= count
                data_axes.append(len(shape))
                shape.append(rest)
            moved = array.reshape(shape).transpose(
                *range(self.lead), *(axis for axis in part_axes if axis is not None), *data_axes
            )
            grid = [None if axis is None else slice(None) for axis in part_axes[:-1]]
            same = [None] if isinstance(iteration, slice) else []
            loop = same if part_axes[-1] is None else [iteration]
            return np.asarray(moved[(*[slice(None)] * self.lead, *grid, *loop)])

        return self.arith.view(self.operands[operand], split)

    def merge(self, value: V, saver: Node) -> V:
        """One tensor out of all blocks' tiles: the grid's axes merged into the dimensions that omap names."""
        omap, grid, lead = saver["omap"], self.grid, self.lead
        if not isinstance(omap, tuple):
            raise InvalidGraph("clause 1 (operator specification): omap must map every grid dimension to a data dimension")
        inner = lead + len(grid)

        def join(array: Array) -> Array:
            around, tile = array.shape[:lead], array.shape[inner:]
            order = list(range(lead))
            shape = list(around)
            for dim, size in enumerate(tile):
                cut = [position for position in range(len(grid)) if omap[position] == dim]
                order += [*(lead + position for position in cut), inner + dim]
                shape.append(size * int(np.prod([grid[position] for position in cut], dtype=np.int64)))
            return np.broadcast_to(array, (*around, *grid, *tile)).transpose(order).reshape(shape)

        return self.arith.view(value, join)


@dataclass(frozen=True, slots=True)
class _Batched(Generic[V]):
    """The arithmetic `inner`, applied to every member of a batch along the first `lead` axes."""

    inner: Arithmetic[V]
    lead: int

    def constant(self, value: Scalar) -> V:
        return self.inner.view(self.inner.constant(value), lambda array: np.reshape(array, (1,) * self.lead))

    def add(self, x: V, y: V) -> V:
        return self.inner.add(*self.align(x, y))

    def sub(self, x: V, y: V) -> V:
        return self.inner.sub(*self.align(x, y))

    def mul(self, x: V, y: V) -> V:
        return self.inner.mul(*self.align(x, y))

    def div(self, x: V, y: V) -> V:
        return self.inner.div(*self.align(x, y))

    def exp(self, x: V) -> V:
        return self.inner.exp(x)

    def sqrt(self, x: V) -> V:
        return self.inner.sqrt(x)

    def sum(self, x: V, axis: int) -> V:
        return self.inner.sum(x, self.lead + axis)

    def max(self, x: V, axis: int) -> V:
        return self.inner.max(x, self.lead + axis)

    def matmul(self, x: V, y: V) -> V:
        return self.inner.matmul(*self.align(x, y))

    def opaque(self, name: str, *xs: V) -> V:
        return self.inner.opaque(name, *(self.align(*xs) if len(xs) > 1 else xs))

    def view(self, x: V, move: Callable[[Array], Array]) -> V:
        return self.inner.view(x, lambda array: self.rearrange([array], lambda arrays: move(arrays[0])))

    def join(self, xs: Sequence[V], combine: Callable[[Sequence[Array]], Array]) -> V:
        return self.inner.join(xs, lambda arrays: self.rearrange(arrays, combine))

    def rearrange(self, arrays: Sequence[Array], combine: Callable[[Sequence[Array]], Array]) -> Array:
        """Apply a data movement to every member of the batch: to one after the other where they are few, and otherwise what it
        does to the elements' numbers tells where they go."""
        batch = np.broadcast_shapes(*(array.shape[: self.lead] for array in arrays))
        shapes = [array.shape[self.lead :] for array in arrays]
        if math.prod(batch) <= _FEW_MEMBERS:
            spread = [np.broadcast_to(array, (*batch, *shape)) for array, shape in zip(arrays, shapes, strict=True)]
            moved = [np.asarray(combine([array[(*member, ...)] for array in spread])) for member in np.ndindex(batch)]
            return (moved[0] if len(moved) == 1 else np.stack(moved)).reshape(*batch, *moved[0].shape)
        counts = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        starts = np.cumsum([0, *counts])
        numbers = combine([np.arange(a, a + n).reshape(s) for a, n, s in zip(starts, counts, shapes, strict=False)])
        flat = [np.broadcast_to(a, (*batch, *s)).reshape(*batch, n) for a, s, n in zip(arrays, shapes, counts, strict=True)]
        joined = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=-1)
        order = numbers.reshape(-1)
        if not np.array_equal(order, np.arange(starts[-1])):
            joined = joined[..., order]
        return joined.reshape(*batch, *numbers.shape)

    def align(self, *xs: V) -> list[V]:
        """Insert dimensions of size 1 behind the batch axes until all have equally many, so that members broadcast."""
        ranks = [self.rank(x) for x in xs]
        return [self.pad(x, max(ranks) - rank) for x, rank in zip(xs, ranks, strict=True)]

    def pad(self, x: V, count: int) -> V:
        if not count:
            return x
        return self.inner.view(x, lambda array: np.expand_dims(array, tuple(range(self.lead, self.lead + count))))

    def rank(self, x: V) -> int:
        """The rank of a value, members' and batch axes together; 0 for one of which no component is known."""
        ranks = {0}

        def note(array: Array) -> Array:
            ranks.add(array.ndim)
            return array

        self.inner.view(x, note)
        return max(ranks)
