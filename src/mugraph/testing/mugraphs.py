"""Random valid muGraphs of small sizes: grids, maps, loops, accumulators and operators of all three levels.

`mugraph.testing.programs` makes programs for the search; what is made here is what the search, or a person, might make of them:
several kernels with pre-defined ones between them, block and thread graphs whose maps cut, permute and replicate, for-loops and
everything that can end one, tensors of several types, and layouts. `mugraph.testing.mugraph_features` names what one has.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mugraph.errors import ShapeMismatch
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.evaluate import constant_nodes
from mugraph.ir.graph import Graph, Layout, Level, Node, Shape, Value
from mugraph.ir.ops import LEAST, ROUNDINGS

_BOUNDED = ("tanh", "sigmoid", "relu", "gelu", "silu", "abs")

Pool = list[Value]
_Operator = Callable[[Pool], Pool]


@dataclass(frozen=True, slots=True)
class MuGraphSpace:
    """What muGraphs are drawn from: types of inputs, sizes of their dimensions, parts that a grid or a loop cuts, and the largest
    tensor, in elements. With `layouts`, tensors are given orders of their dimensions; with `statistics`, most loops of blocks
    take sums or maxima of rows, in each iteration or of what they add up."""

    dtypes: tuple[DType, ...] = (DType.FP32,)
    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 12)
    counts: tuple[int, ...] = (1, 2, 3)
    largest: int = 2048
    layouts: bool = False
    statistics: bool = False


SMALL = MuGraphSpace()
LARGE = replace(SMALL, sizes=(1, 2, 8, 16, 16, 24, 32, 48, 64), counts=(1, 2, 4), largest=8192)
"""Products large enough for matrix units, rows long enough for wide loads."""


def random_mugraph(rng: random.Random, kernels: int, space: MuGraphSpace = SMALL) -> Graph:
    """A kernel graph of `kernels` graph-defined nodes, some of which read what earlier ones make, and some pre-defined ones.

    Its values are of moderate size for inputs that are.
    """
    graph = _Program(rng, space).build(kernels)
    return with_random_layouts(graph, rng) if space.layouts else graph


def with_random_layouts(graph: Graph, rng: random.Random) -> Graph:
    """The graph, and all bodies in it, with orders of dimensions for some tensors."""

    def laid_out(node: Node) -> Node:
        body = node.body and with_random_layouts(node.body, rng)
        chosen = (rng.sample(range(len(tensor.shape)), len(tensor.shape)) for tensor in node.outputs)
        pairs = zip(node.outputs, chosen, strict=True)
        outputs = (replace(tensor, layout=Layout(tuple(order)) if rng.random() < 0.3 else None) for tensor, order in pairs)
        return replace(node, outputs=tuple(outputs), body=body)

    return graph.with_nodes(tuple(map(laid_out, graph.nodes)), graph.outputs)


class _Growth:
    """Operators of one level, applied to values that there are."""

    def __init__(self, builder: GraphBuilder, rng: random.Random, space: MuGraphSpace) -> None:
        self.builder, self.rng, self.space = builder, rng, space

    @property
    def level(self) -> Level:
        return self.builder.level

    def shape(self, value: Value) -> Shape:
        return self.builder.tensor(value).shape

    def some(self, pool: Pool) -> Pool:
        """Up to three values, the newest first."""
        return pool[: -1 - self.rng.randint(1, 3) : -1]

    @property
    def elementwise(self) -> list[_Operator]:
        return [self.unary, self.unary, self.binary, self.binary, self.retyped]

    @property
    def operators(self) -> list[_Operator]:
        moving = [self.transposed, self.reshaped, self.repeated]
        of_level = {Level.KERNEL: moving, Level.BLOCK: [*moving, *[self.bodies] * 4], Level.THREAD: []}
        return [*self.elementwise, self.reduced, self.product, *of_level[self.level]]

    def grow(self, pool: Pool, steps: int, operators: Sequence[_Operator] | None = None) -> None:
        for _ in range(steps):
            operator = self.rng.choice(operators or self.operators)
            before = len(self.builder.nodes)
            try:
                found = operator(pool[-4:])
            except ShapeMismatch:
                del self.builder.nodes[before:]
                continue
            pool += [value for value in found if self.builder.tensor(value).elements <= self.space.largest]

    def constant(self, number: float, like: Value | None = None) -> Value:
        dtype = self.rng.choice(self.space.dtypes) if like is None else self.builder.tensor(like).dtype
        return self.builder.constant(number, dtype)

    def positive(self, x: Value) -> Value:
        return self.builder.add("add", self.builder.add("abs", x), self.constant(1, x))

    def unary(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        add = self.builder.add
        made: Sequence[Callable[[], Value]] = (
            *(functools.partial(add, op, x) for op in _BOUNDED),
            lambda: add("exp", add("tanh", x)),
            lambda: add("square", add("tanh", x)),
            lambda: add("sqrt", self.positive(x)),
            lambda: add("log", self.positive(x)),
            lambda: add("mul", x, self.constant(0.5)),
            lambda: add("sub", self.constant(0.25), x),
            lambda: add("add", self.constant(0.5), self.constant(0.25)),
        )
        return [self.rng.choice(made)()]

    def retyped(self, pool: Pool) -> Pool:
        """A value in another type, or rounded to the numbers of one."""
        x, dtype = self.rng.choice(pool), self.rng.choice(self.space.dtypes)
        if self.rng.random() < 0.3 and dtype in ROUNDINGS and (dtype is not DType.FP32 or self.level is Level.KERNEL):
            return [self.builder.add(ROUNDINGS[dtype], x)]
        return [self.builder.add("cast", x, dtype=dtype)]

    def binary(self, pool: Pool) -> Pool:
        x, y = self.rng.choice(pool), self.rng.choice(pool)
        op = self.rng.choice(("add", "sub", "mul", "div", "maximum"))
        y = self.positive(y) if op == "div" else self.builder.add("tanh", y) if op == "mul" else y
        return [self.builder.add(op, x, y)]

    def maximum(self, x: Value, dim: int, size: int) -> Value:
        if self.rng.random() < 0.5:
            return self.builder.add("max", x, dim=dim, size=size, least=LEAST)
        return self.builder.add("max", x, dim=dim, size=size)

    def reduced(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        dim = self.dim_of(x)
        whole = self.shape(x)[dim]
        size = self.rng.choice([size for size in range(1, whole + 1) if whole % size == 0])
        return [self.maximum(x, dim, size) if self.rng.random() < 0.5 else self.builder.add("sum", x, dim=dim, size=size)]

    def dim_of(self, x: Value) -> int:
        if not self.shape(x):
            raise ShapeMismatch("a scalar has no dimensions")
        return self.rng.randrange(len(self.shape(x)))

    def product(self, pool: Pool) -> Pool:
        x, y = (self.factor(self.rng.choice(pool)) for _ in range(2))
        if self.level is Level.THREAD:
            return [self.builder.add("matmul", x, y)]
        if self.rng.random() < 0.3:
            left, right = [x, y], [self.exchanged(x), self.exchanged(y)]
            return [self.builder.add("concat_matmul", *left, *right)]
        return [self.builder.add("matmul", x, self.exchanged(x) if self.rng.random() < 0.7 else y)]

    def factor(self, x: Value) -> Value:
        """A value as it was read, or within a range that sums of products keep moderate."""
        is_read = self.builder.nodes[x.node].op in ("input", "input_iterator")
        return x if is_read and self.rng.random() < 0.7 else self.builder.add("tanh", x)

    def exchanged(self, x: Value) -> Value:
        """A matrix with rows for columns, or one for a whole batch of matrices."""
        rank = len(self.shape(x))
        if rank < 2:
            raise ShapeMismatch("a vector is no matrix")
        if rank > 2 and self.rng.random() < 0.3:
            x = self.builder.add("max", x, dim=0, size=self.shape(x)[0])
        return self.builder.add("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))

    def transposed(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        rank = len(self.shape(x))
        return [self.builder.add("transpose", x, permutation=tuple(self.rng.sample(range(rank), rank)))]

    def reshaped(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        rest, sizes = math.prod(self.shape(x)), []
        for _ in range(self.rng.randint(0, 3)):
            sizes.append(self.rng.choice([size for size in range(1, rest + 1) if rest % size == 0]))
            rest //= sizes[-1]
        return [self.builder.add("reshape", x, shape=(*sizes, *([rest] if rest > 1 or not sizes else [])))]

    def repeated(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        return [self.builder.add("repeat", x, dim=self.dim_of(x), times=self.rng.choice((1, 2, 3)))]

    def bodies(self, pool: Pool) -> Pool:
        """A random graph of the next level, applied to values that may be the same; nothing where a result would be too large."""
        operands = [self.rng.choice(pool) for _ in range(self.rng.randint(1, 3))]
        body = _Body(self, operands).build()
        if any(tensor.elements > self.space.largest for tensor in body.output_tensors):
            return []
        return list(self.builder.graph_defined(body, operands))


class _Program(_Growth):
    """A random kernel graph."""

    def __init__(self, rng: random.Random, space: MuGraphSpace) -> None:
        super().__init__(GraphBuilder(Level.KERNEL), rng, space)

    def build(self, kernels: int) -> Graph:
        pool: Pool = []
        for _ in range(kernels):
            while not (made := self.kernel(pool)):
                pass
            pool += made
            if self.rng.random() < 0.4:
                self.grow(pool, self.rng.randint(1, 3))
        return self.with_outputs(pool)

    def kernel(self, pool: Pool) -> Pool:
        """The results of a graph-defined node; none where it could not be built."""
        before = len(self.builder.nodes)
        try:
            made = self.bodies([self.operand(pool) for _ in range(self.rng.randint(1, 3))])
        except ShapeMismatch:
            made = []
        if not made:
            del self.builder.nodes[before:]
        return made

    def operand(self, pool: Pool) -> Value:
        """A new input, or a value there is, perhaps as a view."""
        if not pool or self.rng.random() < 0.6:
            shape = [self.rng.choice(self.space.sizes) for _ in range(self.rng.choice((0, 1, 2, 2, 2, 3, 3, 4)))]
            while math.prod(shape) > self.space.largest:
                shape.pop()
            return self.builder.input(f"x{len(self.builder.nodes)}", shape, self.rng.choice(self.space.dtypes))
        if self.rng.random() < 0.05:
            return self.constant(0.75)
        value = [self.rng.choice(pool)]
        return (self.transposed(value) if self.rng.random() < 0.3 else value)[0]

    def with_outputs(self, pool: Pool) -> Graph:
        """The graph whose outputs are all values, or some, which may be views, inputs, and the same twice."""
        if self.rng.random() < 0.3:
            return self.builder.build(pool)
        computed = [value for value in pool if not self.builder.nodes[value.node].is_input]
        chosen = [computed[-1], *self.rng.choices(computed, k=self.rng.randint(0, 2))]
        if self.rng.random() < 0.1:
            chosen.append(Value(0))
        graph = self.builder.build(chosen)
        return graph if self.rng.random() < 0.3 else without_dead_nodes(graph)


class _Body(_Growth):
    """A random block or thread graph on operands of the graph around it."""

    def __init__(self, around: _Growth, operands: Pool) -> None:
        self.around, self.operands, self.rng, self.space = around.builder, operands, around.rng, around.space
        rng, loop = around.rng, around.rng.choice((1, *around.space.counts))
        sizes = around.space.counts if rng.random() < 0.7 else rng.sample(around.space.counts, 1)
        self.counts = tuple(rng.choice(sizes) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3))))
        self.is_plain = around.level is Level.BLOCK and rng.random() < 0.4
        if self.is_plain:
            loop, self.counts = 1, self.square_counts()
        if around.level is Level.KERNEL:
            builder = GraphBuilder(Level.BLOCK, grid=self.counts, loop=loop)
        else:
            builder = GraphBuilder(Level.THREAD, block=self.counts, loop=loop)
        super().__init__(builder, rng, around.space)
        self.shifts: Pool = []

    def build(self) -> Graph:
        if self.is_plain:
            return self.one_expression()
        numbers = [number for number in range(len(self.operands)) for _ in range(self.rng.choice((0, 1, 1, 1, 2)))]
        pool = [self.load(number) for number in numbers or [0]]
        if self.rng.random() < 0.15:
            pool.append(self.constant(self.rng.choice((-1, 0, 0.5, 3))))
        self.grow(pool, self.rng.randint(0, 5))
        if self.builder.loop > 1 or self.rng.random() < 0.3:
            fixed = [value for value in pool if value.node in constant_nodes(self.builder.build([]))]
            self.shifts = list(pool)
            pool = [*fixed, *(self.ended(value) for value in self.some(pool))]
            self.grow(pool, self.rng.randint(0, 3))
        saved = [self.save(value) for value in self.some(pool)[: self.rng.choice((1, 1, 2, 3))]]
        if self.rng.random() < 0.05:
            saved.append(self.rng.choice(saved))
        graph = self.builder.build(saved)
        return graph if self.rng.random() < 0.5 else without_dead_nodes(graph)

    def one_expression(self) -> Graph:
        """A graph that computes each element from one of each operand, whose parts need not be those it writes."""
        dims = self.cut_dims(self.counts[0]) if self.counts else []
        if len(dims) < len(self.counts):
            pool = [self.load(number) for number in range(len(self.operands))]
            self.grow(pool, self.rng.randint(1, 3), self.elementwise)
            return self.builder.build([self.save(pool[-1])])
        dims = self.rng.sample(dims, len(self.counts))
        tensor = self.around.tensor(self.operands[0])
        maps = [tuple(self.rng.sample(dims, len(dims))) for _ in range(self.rng.choice((2, 2, 3)))]
        pool = [self.builder.iterator(0, tensor, imap, None) for imap in maps[:-1]]
        self.grow(pool, self.rng.randint(1, 3), self.elementwise)
        whole = [value for value in pool if len(self.shape(value)) == len(tensor.shape)]
        return self.builder.build([self.builder.add("output_saver", whole[-1], omap=maps[-1])])

    def cut_dims(self, count: int) -> list[int]:
        """Dimensions of the first operand that a number of threads can share."""
        return [dim for dim, size in enumerate(self.around.tensor(self.operands[0]).shape) if size % count == 0]

    def square_counts(self) -> tuple[int, ...]:
        """As many threads along each dimension of a block: exchanged, dimensions have parts of the same shapes."""
        count = self.rng.choice([count for count in self.space.counts if self.cut_dims(count)] or self.space.counts)
        return (count,) * self.rng.choice((1, 2, 2, 3))

    # boundaries ----------------------------------------------------------------------------------------------------------

    def load(self, number: int) -> Value:
        """Read an operand: each dimension of the grid, and the loop, cuts one that it divides, or none."""
        tensor = self.around.tensor(self.operands[number])
        left = list(tensor.shape)
        maps: list[int | None] = []
        for count in (*self.counts, self.builder.loop):
            dim = self.rng.choice([None, *(dim for dim, size in enumerate(left) for _ in range(2) if size % count == 0)])
            if dim is not None:
                left[dim] //= count
            maps.append(dim)
        return self.builder.iterator(number, tensor, tuple(maps[:-1]), maps[-1])

    def save(self, value: Value) -> Value:
        rank = len(self.shape(value))
        if self.counts and not rank:
            raise ShapeMismatch("the parts of a scalar have no dimension to lie side by side")
        return self.builder.add("output_saver", value, omap=tuple(self.rng.randrange(rank) for _ in self.counts))

    def ended(self, value: Value) -> Value:
        """A value of the loop collected by an accumulator, or a statistic of its rows."""
        is_drawn = self.space.statistics and self.level is Level.BLOCK and self.shape(value)
        return self.statistic(value) if is_drawn and self.rng.random() < 0.7 else self.accumulated(value)

    def statistic(self, value: Value) -> Value:
        """The sum or maximum of rows over all iterations: reduced in each of them, or what they add up behind the loop."""
        dim = len(self.shape(value)) - 1 if self.rng.random() < 0.7 else self.dim_of(value)
        combine = self.rng.choice(("sum", "sum", "max"))
        if self.rng.random() < 0.5:
            value = self.builder.add("square", self.builder.add("tanh", value))

        def reduced(x: Value) -> Value:
            size = self.shape(x)[dim]
            return self.maximum(x, dim, size) if combine == "max" else self.builder.add("sum", x, dim=dim, size=size)

        if self.rng.random() < 0.3:
            return reduced(self.builder.add("accumulate", value, combine=combine))
        return self.builder.add("accumulate", reduced(value), combine=combine)

    def accumulated(self, value: Value) -> Value:
        rank, is_block = len(self.shape(value)), self.level is Level.BLOCK
        combine = self.rng.choice(["sum", "max", *["concat"] * (rank > 0), *["rescaled"] * is_block])
        if combine == "rescaled":
            return self.builder.add("accumulate_rescaled", value, self.shift_of(value))
        if combine == "concat":
            return self.builder.add("accumulate", value, combine=combine, dim=self.rng.randrange(rank))
        return self.builder.add("accumulate", value, combine=combine)

    def shift_of(self, value: Value) -> Value:
        """Exponents by which the terms of a value are shifted: maxima of it, or of others; those of another accumulator too."""
        shape = self.shape(value)
        others = [other for other in self.shifts if _broadcasts(self.shape(other), shape)]
        shift = self.rng.choice(others) if others and self.rng.random() < 0.5 else value
        for dim, size in enumerate(self.shape(shift)):
            if self.rng.random() < 0.5:
                shift = self.maximum(shift, dim, size)
        self.shifts.append(shift)
        return shift


def _broadcasts(shape: Shape, wanted: Shape) -> bool:
    """Whether a tensor of one shape broadcasts to another of as many dimensions."""
    return len(shape) == len(wanted) and all(size in (1, whole) for size, whole in zip(shape, wanted, strict=True))
