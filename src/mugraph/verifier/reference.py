"""A program in float64, evaluated slice by slice where it treats slices alike, so that temporaries stay in the cache.

All such axes (`mugraph.verifier.parallel_axes`) let a few different slices stand for many: inputs in which they repeat give
outputs in which they repeat, and a kernel that runs on all of them can be compared with a reference that was computed for the
few. Where all differ and the whole is dear, it is computed for a sample of them (`mugraph.verifier.samples`).
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Node, Shape
from mugraph.ir.ops import is_contraction
from mugraph.ir.sizes import divisors
from mugraph.ir.tiled_products import tiled_product
from mugraph.verifier.cancellation import shaken_outputs
from mugraph.verifier.doubt import certain_outputs, chooses
from mugraph.verifier.parallel_axes import ParallelAxis, shared_slice, slice_of, take_slices
from mugraph.verifier.samples import Places
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

_SMALLEST = 1 << 14
"""Slices of fewer elements cost more calls than they save time."""
_GROWTH = 1.25
"""An axis is not cut where slices have so many times the elements of the whole between them: inputs without it are read again."""
_FEW = 1 << 20
"""Elements of the inputs of the few slices, unless one of each axis has more, ..."""
_FEW_WORK = float(1 << 22)
"""... and the work that they are (`Reference.work`)."""

_PRODUCTS = 16
"""Multiplications of a product of matrices that take as long as computing an element."""
_WIDENED = 1 << 18
"""Elements of a factor that are converted to float64 at once."""
_AT_ONCE = 1 << 22
"""Elements that are copied between two looks at the clock."""

Evaluation = Callable[[Graph, Sequence[Array]], Sequence[Array]]
"""The outputs of a kernel graph on inputs."""
Counts = tuple[int, ...]
"""How many different slices there are along each axis; they repeat."""


@dataclass(frozen=True)
class Reference:
    """A kernel graph of pre-defined operators, and the same at size 1 of the axes that are worth cutting: its `unit`.

    The slices along `kept` axes are evaluated together.
    """

    program: Graph
    unit: Graph
    cut: tuple[ParallelAxis, ...]
    kept: tuple[ParallelAxis, ...]

    @classmethod
    def of(cls, program: Graph) -> Reference:
        """The axes along which a program treats slices alike; of those kept, the one that most elements depend on first."""
        kept: list[tuple[int, ParallelAxis]] = []

        def worthwhile(before: Graph, after: Graph, axis: ParallelAxis) -> bool:
            slice_elements = _elements(after)
            worth = slice_elements >= _SMALLEST and axis.size * slice_elements <= _GROWTH * _elements(before)
            if not worth:
                kept.append((slice_elements, axis))
            return worth

        found = shared_slice(program, program, worthwhile)
        return cls(program, found.left, found.axes, tuple(axis for _, axis in sorted(kept, key=lambda pair: pair[0])))

    @property
    def axes(self) -> tuple[ParallelAxis, ...]:
        """Those that are cut, and those that are kept."""
        return (*self.cut, *self.kept)

    @property
    def all(self) -> Counts:
        """All slices different."""
        return tuple(axis.size for axis in self.axes)

    @functools.cached_property
    def few(self) -> Counts:
        """As many different slices as _FEW elements make, and _FEW_WORK, at least one of each axis, and rather of those kept."""
        counts = [1] * len(self.cut) + [axis.size for axis in self.kept]
        for position in (*range(len(self.cut), len(counts)), *range(len(self.cut))):
            some = divisors(self.axes[position].size)
            are_few = functools.partial(self._are_few, counts, position)
            counts[position] = some[max(0, bisect.bisect_left(some, True, key=lambda count: not are_few(count)) - 1)]
        return tuple(counts)

    def _are_few(self, others: Sequence[int], position: int, count: int) -> bool:
        counts = [*others[:position], count, *others[position + 1 :]]
        return sum(map(math.prod, self.input_shapes(counts))) <= _FEW and self.work(counts) <= _FEW_WORK

    def input_shapes(self, counts: Sequence[int]) -> list[Shape]:
        """The shapes of inputs with so many slices."""
        return [self._resized(node.output.shape, self._input_dims(i), counts) for i, node in enumerate(self.program.inputs())]

    def full_inputs(
        self,
        inputs: Sequence[Array],
        counts: Counts,
        into: Sequence[Array],
        pulse: Pulse = lambda: None,
        but: Container[int] = (),
    ) -> None:
        """Fill arrays of the program's input shapes by repeating slices, `but` for those of these numbers."""
        for number, (array, full) in enumerate(zip(inputs, into, strict=True)):
            if number not in but:
                _repeat(array, self._input_dims(number), counts, full, pulse)

    def repeated(self, number: int, array: Array, counts: Counts) -> tuple[Shape, Any, Array]:
        """The slices of an input as they repeat: a shape of the whole input, an index of it, and what repeats there."""
        dims, whole = self._input_dims(number), self.program.inputs()[number].output.shape
        return _sizes_repeated(whole, dims, counts), ..., _once(array, dims)

    def full_outputs(self, outputs: Sequence[Array], counts: Counts) -> tuple[Array, ...]:
        """The program's outputs, made of those of the different slices; dimensions that repeat as (repetitions, different)."""
        tensors = enumerate(zip(outputs, self.program.output_tensors, strict=True))
        return tuple(_repeated(array, self._output_dims(number), counts, tensor.shape) for number, (array, tensor) in tensors)

    def chosen_inputs(self, inputs: Sequence[Array], places: Places) -> list[Array]:
        """The slices of the program's inputs at all combinations of positions along the axes."""
        return [chosen_elements(array, self._input_dims(number), places) for number, array in enumerate(inputs)]

    def chosen_outputs(self, outputs: Sequence[Array], places: Places) -> list[Array]:
        """The slices of the program's outputs there."""
        return [chosen_elements(array, self._output_dims(number), places) for number, array in enumerate(outputs)]

    def places_of(self, output: int, index: Sequence[int]) -> Places:
        """Where the slices are that an element of an output is in; 0 along axes that the output does not have."""
        return tuple(np.array([0 if dim is None else index[dim]]) for dim in self._output_dims(output))

    def index_of(self, output: int, index: Sequence[int], places: Places) -> tuple[int, ...]:
        """Where an element of the slices of an output at these places is in the whole."""
        found = list(index)
        for dim, positions in zip(self._output_dims(output), places, strict=True):
            if dim is not None:
                found[dim] = int(positions[index[dim]])
        return tuple(found)

    def work(self, counts: Sequence[int]) -> float:
        """About how much work so many slices are, in elements that are computed or read."""
        graph, cut = self._together(tuple(counts)), math.prod(counts[: len(self.cut)])
        return cut * work_of(graph)

    def outputs(self, inputs: Sequence[Array], counts: Counts, pulse: Pulse) -> tuple[Array, ...]:
        """The outputs of the different slices, in float64, some of them perhaps beyond the range of the outputs' types.

        As `outputs_at` gives them.
        """
        return self.outputs_at(inputs, _first(counts), pulse)

    def outputs_at(self, inputs: Sequence[Array], places: Places, pulse: Pulse) -> tuple[Array, ...]:
        """The outputs of the slices at all combinations of positions along the axes, likewise.

        They are NaN where they hang on comparisons that rounding may decide either way (`mugraph.verifier.doubt`).
        """
        choosing = chooses(self.program)

        def evaluated(graph: Graph, slices: Sequence[Array]) -> Sequence[Array]:
            if choosing:
                return certain_outputs(graph, [array.astype(np.float64) for array in slices], pulse)
            return evaluate_batched(graph, slices, Widening(), pulse)

        return self._by_slices(inputs, places, evaluated, range(len(self.cut)))

    def shaken_outputs(self, inputs: Sequence[Array], counts: Counts, seed: int, pulse: Pulse) -> tuple[Array, ...]:
        """The outputs of the different slices where each result is changed a little."""
        shaken = functools.partial(shaken_outputs, rng=np.random.default_rng(seed), pulse=pulse)
        return self._by_slices(inputs, _first(counts), shaken, range(len(self.cut)))

    def in_turn(self, inputs: Sequence[Array], counts: Counts, evaluated: Evaluation) -> tuple[Array, ...]:
        """The outputs of the different slices as `evaluated` gives them, along one of the kept axes, too, in turn if that is no
        more work: along the shortest, as heads of attention, so that what is between inputs and outputs is smaller."""
        kept = [position for position in range(len(self.cut), len(self.axes)) if self._is_free(position, counts)]
        shortest = sorted(kept, key=counts.__getitem__)[:1]
        return self._by_slices(inputs, _first(counts), evaluated, [*range(len(self.cut)), *shortest])

    def _is_free(self, position: int, counts: Counts) -> bool:
        """Whether evaluating slices along an axis in turn takes no more work than all together, and reading them takes less.

        Not where each is so small that calls are most of what it takes.
        """
        size, whole = counts[position], self.work(counts)
        one = [1 if other == position else count for other, count in enumerate(counts)]
        read = sum(map(math.prod, self.input_shapes(one)))
        is_worth_a_call = self.work([1] * len(self.cut) + one[len(self.cut) :]) >= _SMALLEST
        return size > 1 and is_worth_a_call and size * self.work(one) <= _GROWTH * whole and size * read <= whole

    def _by_slices(
        self, inputs: Sequence[Array], places: Places, evaluated: Evaluation, turns: Sequence[int]
    ) -> tuple[Array, ...]:
        """The outputs of the slices at these places, evaluated for one position after the other along the axes `turns`."""
        tensors, counts = self.program.output_tensors, tuple(map(len, places))
        together = self._together(tuple(1 if position in turns else count for position, count in enumerate(counts)))
        found = [np.empty(self._resized(t.shape, self._output_dims(i), counts)) for i, t in enumerate(tensors)]
        written = [[self._output_dims(number)[position] for position in turns] for number in range(len(found))]
        with np.errstate(all="ignore"):
            for index in np.ndindex(*(counts[position] for position in turns)):
                here = [*places]
                for position, number in zip(turns, index, strict=True):
                    here[position] = places[position][number : number + 1]
                slices = self.chosen_inputs(inputs, tuple(here))
                for target, dims, result in zip(found, written, evaluated(together, slices), strict=True):
                    slice_of(target, dims, index)[...] = result
        return tuple(found)

    def _together(self, counts: Counts) -> Graph:
        """The unit with so many slices along the kept axes."""
        graph = self.unit
        for axis, count in zip(self.kept, counts[len(self.cut) :], strict=True):
            if count < axis.size:
                graph, _ = take_slices(graph, axis.inputs, count)
        return graph

    def _input_dims(self, number: int) -> list[int | None]:
        return [axis.inputs[number] for axis in self.axes]

    def _output_dims(self, number: int) -> list[int | None]:
        return [axis.outputs[number] for axis in self.axes]

    def _resized(self, shape: Shape, dims: Sequence[int | None], counts: Sequence[int]) -> Shape:
        sizes = list(shape)
        for dim, count in zip(dims, counts, strict=True):
            if dim is not None:
                sizes[dim] = count
        return tuple(sizes)


def _elements(graph: Graph) -> int:
    return sum(math.prod(node.output.shape) for node in graph.inputs())


def work_of(program: Graph, products: int = _PRODUCTS) -> float:
    """About how many elements a graph of pre-defined operators reads and computes, `products` multiplications of a product of
    matrices counted as one."""
    return sum(_node_work(program, node, products) for node in program.nodes)


def _node_work(graph: Graph, node: Node, products: int) -> float:
    terms = graph.tensor(node.inputs[0]).shape[-1] if is_contraction(node.op) else 0
    return node.output.elements * (1 + terms / products)


def _repeat(array: Array, dims: Sequence[int | None], counts: Counts, into: Array, pulse: Pulse) -> None:
    """Fill `into` with `array`, repeated along `dims`, of which `array` has `counts` elements."""
    repeated = _repeated(array, dims, counts, into.shape)
    parts = into.reshape(repeated.shape)
    if not parts.ndim:
        parts[...] = repeated
        return
    step = max(1, len(parts) * _AT_ONCE // parts.size)
    for start in range(0, len(parts), step):
        pulse()
        parts[start : start + step] = repeated[start : start + step]


def _repeated(array: Array, dims: Sequence[int | None], counts: Counts, shape: Shape) -> Array:
    """`array`, which has `counts` elements along `dims`, repeated to a shape, of which dimensions that repeat become two."""
    return np.broadcast_to(_once(array, dims), _sizes_repeated(shape, dims, counts))


def _once(array: Array, dims: Sequence[int | None]) -> Array:
    """`array` with a dimension of size 1 before each of those along which it repeats."""
    source = list(array.shape)
    for dim in sorted((dim for dim in dims if dim is not None), reverse=True):
        source.insert(dim, 1)
    return array.reshape(source)


def _sizes_repeated(shape: Shape, dims: Sequence[int | None], counts: Sequence[int]) -> Shape:
    """A shape of which dimensions that repeat are two."""
    return tuple(size for parts in _split(shape, dims, counts) for size in parts)


def _first(counts: Counts) -> Places:
    """So many positions along each axis, from 0."""
    return tuple(map(np.arange, counts))


def chosen_elements(array: Array, dims: Sequence[int | None], places: Places) -> Array:
    """The elements at these positions along `dims`; a view where there is one of each, or all."""
    single = [(dim, int(positions[0])) for dim, positions in zip(dims, places, strict=True) if len(positions) == 1]
    array = slice_of(array, [dim for dim, _ in single], [position for _, position in single])
    for dim, positions in zip(dims, places, strict=True):
        if dim is not None and len(positions) < array.shape[dim]:
            array = np.take(array, positions, axis=dim)
    return array


def spread(array: Array, dims: Sequence[int | None], places: Places, shape: Shape, other: Any = 0) -> Array:
    """An array of a shape with the elements of another at these positions along `dims`, and the number `other` elsewhere; the
    array itself where it has all."""
    if array.shape == shape:
        return array
    runs: list[list[tuple[slice, slice]]] = [[(slice(None), slice(None))] for _ in shape]
    for dim, positions in zip(dims, places, strict=True):
        if dim is not None:
            runs[dim] = [*_runs(positions)]
    whole = np.full(shape, other, array.dtype) if other else np.zeros(shape, array.dtype)  # of zeros a system makes no pages
    for parts in itertools.product(*runs):  # a copy by index takes a system several times as long
        whole[tuple(into for into, _ in parts)] = array[tuple(source for _, source in parts)]
    return whole


def _runs(positions: Array) -> Iterator[tuple[slice, slice]]:
    """Stretches of positions that follow each other, and where they stand among the positions."""
    ends = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    for first, last in itertools.pairwise(ends):
        yield slice(int(positions[first]), int(positions[last - 1]) + 1), slice(first, last)


def _split(shape: Shape, dims: Sequence[int | None], counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every dimension as (repetitions, different) where it repeats."""
    different = {dim: count for dim, count in zip(dims, counts, strict=True) if dim is not None}
    for dim, size in enumerate(shape):
        yield (size // different[dim], different[dim]) if dim in different else (size,)


class Widening(FloatArithmetic):
    """float64 on arrays of narrower types, which are converted as they are read: a large factor never exists in float64.

    Maxima and views of narrower arrays stay narrow, which changes no value.
    """

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(np.add(x, y, dtype=np.float64))

    def sub(self, x: Array, y: Array) -> Array:
        return np.asarray(np.subtract(x, y, dtype=np.float64))

    def mul(self, x: Array, y: Array) -> Array:
        return np.asarray(np.multiply(x, y, dtype=np.float64))

    def div(self, x: Array, y: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.divide(x, y, dtype=np.float64))

    def exp(self, x: Array) -> Array:
        return super().exp(_wide(x))

    def sqrt(self, x: Array) -> Array:
        return super().sqrt(_wide(x))

    def sum(self, x: Array, axis: int) -> Array:
        return np.asarray(np.sum(x, axis=axis, keepdims=True, dtype=np.float64))

    def opaque(self, name: str, *xs: Array) -> Array:
        return super().opaque(name, *map(_wide, xs))

    def matmul(self, x: Array, y: Array) -> Array:
        if x.ndim > 2 or y.ndim > 2 or max(x.size, y.size) <= _WIDENED or x.dtype == y.dtype == np.float64:
            return super().matmul(_wide(x), _wide(y))
        if x.size > y.size:
            return np.asarray(self.matmul(y.T, x.T).T)
        return _by_parts(_wide(x), y)


def _wide(x: Array) -> Array:
    return x.astype(np.float64, copy=False)


def _by_parts(x: Array, y: Array) -> Array:
    """The product of two matrices, the second converted in parts along the dimension in which its elements are far apart.

    All parts lie in the same memory: it takes a system longer to make pages than to convert what lies in them.
    """
    depth, columns = y.shape
    across = y.strides[0] < y.strides[1]
    step = max(1, max(_WIDENED, x.size) // (depth if across else columns))
    result = np.zeros((len(x), columns))
    wide = np.empty((step, depth if across else columns))  # as y lies in memory
    for start in range(0, columns if across else depth, step):
        part = slice(start, start + step)
        if across:
            factor = wide[: result[:, part].shape[1]].T
            factor[...] = y[:, part]
            result[:, part] = tiled_product(x, factor)
        else:
            factor = wide[: len(y[part])]
            factor[...] = y[part]
            result += tiled_product(x[:, part], factor)
    return result
