"""Random valid muGraphs of small sizes: grids, maps, loops, accumulators and operators of all three levels.

`mugraph.trials.programs` makes programs for the search; what is made here is what the search, or a person, might make of them:
block and thread graphs whose maps cut, permute and replicate, with for-loops and everything that can end one.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence

from mugraph.errors import ShapeMismatch
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dead_nodes import without_dead_nodes
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Level, Shape, Value
from mugraph.ir.ops import LEAST

_SIZES = (1, 2, 3, 4, 5, 6, 8, 12)
_LARGEST = 2048
"""Elements of a tensor, at most."""
_BOUNDED = ("tanh", "sigmoid", "relu", "gelu", "silu", "abs")

Pool = list[Value]


def random_mugraph(rng: random.Random, kernels: int, dtype: DType = DType.FP32) -> Graph:
    """A kernel graph of `kernels` graph-defined nodes, some of which read what earlier ones make; all results are outputs.

    Its values are of moderate size for inputs that are.
    """
    builder = GraphBuilder(Level.KERNEL)
    made: Pool = []
    count = 0
    while count < kernels:
        operands = [_operand(builder, rng, dtype, made) for _ in range(rng.randint(1, 3))]
        results = _applied(builder, rng, dtype, operands)
        made += results
        count += bool(results)
    return builder.build(made)


def _operand(builder: GraphBuilder, rng: random.Random, dtype: DType, made: Pool) -> Value:
    """A new input, or a result of an earlier node, as it is or after an operator of a library."""
    if not made or rng.random() < 0.7:
        shape = [rng.choice(_SIZES) for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, 3))]
        return builder.input(f"x{len(builder.nodes)}", shape, dtype)
    value = builder.add("tanh", rng.choice(made)) if rng.random() < 0.5 else rng.choice(made)
    rank = len(builder.tensor(value).shape)
    return builder.add("transpose", value, permutation=tuple(rng.sample(range(rank), rank))) if rng.random() < 0.3 else value


def _applied(builder: GraphBuilder, rng: random.Random, dtype: DType, operands: Pool) -> Pool:
    """Apply a random graph of the next level to values of a graph; its results, none where it would be too large."""
    try:
        body = _Body(builder, rng, dtype, operands).build()
    except ShapeMismatch:
        return []
    if any(tensor.elements > _LARGEST for tensor in body.output_tensors):
        return []
    return list(builder.graph_defined(body, operands))


class _Body:
    """A random block or thread graph on operands of the graph around it."""

    def __init__(self, around: GraphBuilder, rng: random.Random, dtype: DType, operands: Pool) -> None:
        self.around, self.rng, self.dtype, self.operands = around, rng, dtype, operands
        counts = tuple(rng.choice((1, 2, 3)) for _ in range(rng.randint(0, 3)))
        loop = rng.choice((1, 1, 2, 3))
        if around.level is Level.KERNEL:
            self.builder = GraphBuilder(Level.BLOCK, grid=counts or (1,), loop=loop)
        else:
            self.builder = GraphBuilder(Level.THREAD, block=counts, loop=loop)
        self.counts = self.builder.grid or self.builder.block

    @property
    def is_block(self) -> bool:
        return self.builder.level is Level.BLOCK

    def build(self) -> Graph:
        pool = [self.load(number) for number in range(len(self.operands)) for _ in range(self.rng.choice((1, 1, 2)))]
        self.grow(pool, self.rng.randint(0, 5))
        if self.builder.loop > 1 or self.rng.random() < 0.3:
            pool = [self.accumulated(value) for value in self.some(pool)]
            self.grow(pool, self.rng.randint(0, 3))
        saved = [self.save(value) for value in self.some(pool)[: self.rng.choice((1, 1, 2))]]
        graph = self.builder.build(saved)
        return graph if self.rng.random() < 0.5 else without_dead_nodes(graph)

    def shape(self, value: Value) -> Shape:
        return self.builder.tensor(value).shape

    def some(self, pool: Pool) -> Pool:
        """Up to three values, the newest first."""
        return pool[: -1 - self.rng.randint(1, 3) : -1]

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

    def accumulated(self, value: Value) -> Value:
        rank = len(self.shape(value))
        combine = self.rng.choice(["sum", "max", *["concat"] * (rank > 0), *["rescaled"] * self.is_block])
        if combine == "rescaled":
            return self.builder.add("accumulate_rescaled", value, self.shift_of(value))
        if combine == "concat":
            return self.builder.add("accumulate", value, combine=combine, dim=self.rng.randrange(rank))
        return self.builder.add("accumulate", value, combine=combine)

    def shift_of(self, value: Value) -> Value:
        for dim, size in enumerate(self.shape(value)):
            if self.rng.random() < 0.7:
                value = self.maximum(value, dim, size)
        return value

    # operators -----------------------------------------------------------------------------------------------------------

    def grow(self, pool: Pool, steps: int) -> None:
        anywhere = [self.unary, self.unary, self.binary, self.binary, self.reduced, self.product]
        in_blocks = [self.transposed, self.reshaped, self.repeated, self.threads, self.threads]
        for _ in range(steps):
            operator: Callable[[Pool], Pool] = self.rng.choice([*anywhere, *(in_blocks if self.is_block else [])])
            before = len(self.builder.nodes)
            try:
                found = operator(pool[-4:])
            except ShapeMismatch:
                del self.builder.nodes[before:]
                continue
            pool += [value for value in found if self.builder.tensor(value).elements <= _LARGEST]

    def constant(self, number: float) -> Value:
        return self.builder.constant(number, self.dtype)

    def positive(self, x: Value) -> Value:
        return self.builder.add("add", self.builder.add("abs", x), self.constant(1))

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
            lambda: add("cast", x, dtype=self.dtype),
        )
        return [self.rng.choice(made)()]

    def binary(self, pool: Pool) -> Pool:
        x, y = self.rng.choice(pool), self.rng.choice(pool)
        op = self.rng.choice(("add", "sub", "mul", "div"))
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
        x, y = (self.builder.add("tanh", self.rng.choice(pool)) for _ in range(2))
        if self.is_block and self.rng.random() < 0.7:
            y = self.exchanged(x)
        if self.is_block and self.rng.random() < 0.3:
            return [self.builder.add("concat_matmul", x, x, y, y)]
        return [self.builder.add("matmul", x, y)]

    def exchanged(self, x: Value) -> Value:
        rank = len(self.shape(x))
        if rank < 2:
            raise ShapeMismatch("a vector is no matrix")
        return self.builder.add("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))

    def transposed(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        rank = len(self.shape(x))
        return [self.builder.add("transpose", x, permutation=tuple(self.rng.sample(range(rank), rank)))]

    def reshaped(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        elements = math.prod(self.shape(x))
        first = self.rng.choice([size for size in range(1, elements + 1) if elements % size == 0])
        rest = elements // first
        second = self.rng.choice([size for size in range(1, rest + 1) if rest % size == 0])
        return [self.builder.add("reshape", x, shape=(first, second, rest // second))]

    def repeated(self, pool: Pool) -> Pool:
        x = self.rng.choice(pool)
        return [self.builder.add("repeat", x, dim=self.dim_of(x), times=self.rng.choice((2, 3)))]

    def threads(self, pool: Pool) -> Pool:
        return _applied(self.builder, self.rng, self.dtype, [self.rng.choice(pool) for _ in range(self.rng.randint(1, 2))])
