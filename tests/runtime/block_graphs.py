"""Random valid block graphs: every operator, odd sizes, broadcasts, views, all accumulators."""

from __future__ import annotations

import random
from dataclasses import replace

from mugraph.errors import ShapeMismatch
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value

SIZES = (1, 2, 3, 5, 16, 17, 40)
BOUNDED = ("tanh", "sigmoid", "relu", "gelu", "silu", "abs", "square")


def random_kernel(builder: GraphBuilder, rng: random.Random, dtype: DType) -> tuple[Value, ...]:
    """Add inputs and one graph-defined node to a kernel graph; the node's outputs."""
    return _RandomBlock(builder, rng, dtype).add()


def many_kernels(seed: int, count: int, dtype: DType) -> Graph:
    """A kernel graph of `count` independent random graph-defined nodes, so that one compilation tests them all."""
    rng = random.Random(seed)
    builder = GraphBuilder(Level.KERNEL)
    outputs = [value for _ in range(count) for value in random_kernel(builder, rng, dtype)]
    return builder.build(outputs)


def pruned(graph: Graph) -> Graph:
    """The graph without nodes that no output depends on: inside a loop they would break clause 3 of validity."""
    alive: set[int] = set()
    stack = [value.node for value in graph.outputs]
    while stack:
        index = stack.pop()
        if index not in alive:
            alive.add(index)
            stack.extend(value.node for value in graph.nodes[index].inputs)
    moved = {index: position for position, index in enumerate(sorted(alive))}
    nodes = (graph.nodes[index] for index in sorted(alive))
    kept = tuple(replace(node, inputs=tuple(Value(moved[v.node], v.output) for v in node.inputs)) for node in nodes)
    return graph.with_nodes(kept, tuple(Value(moved[value.node], value.output) for value in graph.outputs))


class _RandomBlock:
    def __init__(self, kernel: GraphBuilder, rng: random.Random, dtype: DType) -> None:
        self.kernel, self.rng, self.dtype = kernel, rng, dtype
        self.grid = tuple(rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 3)))
        self.loop = rng.choice((1, 1, 2, 3))
        self.block = GraphBuilder(Level.BLOCK, grid=self.grid, loop=self.loop)
        self.operands: list[Value] = []

    def add(self) -> tuple[Value, ...]:
        pool = [self.load(looped=True) for _ in range(self.rng.randint(1, 3))]
        pool += [self.load(looped=False)]
        self.grow(pool, self.rng.randint(2, 6))
        results = [self.accumulated(value) for value in pool[-3:]]
        if self.rng.random() < 0.5:
            results.append(self.rescaled(pool))
        if self.rng.random() < 0.5:
            results.append(self.load(looped=False))
        self.grow(results, self.rng.randint(0, 4))
        saved = [self.save(value) for value in results[-2:]]
        return self.kernel.graph_defined(pruned(self.block.build(saved)), self.operands)

    def load(self, looped: bool) -> Value:
        tile = [self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 3))]
        imap = tuple(self.rng.choice((None, *range(len(tile)))) for _ in self.grid)
        fmap = self.rng.choice((None, *range(len(tile)))) if looped else None
        shape = list(tile)
        for count, dim in (*zip(self.grid, imap, strict=True), (self.loop, fmap)):
            if dim is not None:
                shape[dim] *= count
        operand = len(self.operands)
        self.operands.append(self.kernel.input(f"x{len(self.kernel.nodes)}", shape, self.dtype))
        return self.block.iterator(operand, self.kernel.tensor(self.operands[-1]), imap, fmap)

    def save(self, value: Value) -> Value:
        rank = len(self.block.tensor(value).shape)
        if rank == 0:
            value, rank = self.block.add("reshape", value, shape=(1,)), 1
        return self.block.add("output_saver", value, omap=tuple(self.rng.randrange(rank) for _ in self.grid))

    def accumulated(self, value: Value) -> Value:
        rank = len(self.block.tensor(value).shape)
        combine = self.rng.choice(("sum", "max", "concat") if rank else ("sum", "max"))
        if combine == "concat":
            return self.block.add("accumulate", value, combine=combine, dim=self.rng.randrange(rank))
        return self.block.add("accumulate", value, combine=combine)

    def rescaled(self, pool: list[Value]) -> Value:
        value = self.rng.choice(pool)
        shift = value
        for dim, size in enumerate(self.block.tensor(value).shape):
            if self.rng.random() < 0.7:
                shift = self.block.add("max", shift, dim=dim, size=size)
        return self.block.add("accumulate_rescaled", value, shift)

    def grow(self, pool: list[Value], steps: int) -> None:
        for _ in range(steps):
            grow = self.rng.choice(
                (
                    self.unary,
                    self.unary,
                    self.binary,
                    self.binary,
                    self.reduce,
                    self.transpose,
                    self.reshape,
                    self.repeat,
                    self.product,
                )
            )
            try:
                value = grow(pool)
            except ShapeMismatch:
                continue
            if self.block.tensor(value).elements <= 20_000:
                pool.append(value)

    def any(self, pool: list[Value]) -> Value:
        return self.rng.choice(pool[-4:])

    def constant(self, number: float) -> Value:
        return self.block.constant(number, self.dtype)

    def bounded(self, x: Value) -> Value:
        return self.block.add("tanh", x)

    def positive(self, x: Value) -> Value:
        return self.block.add("add", self.block.add("square", x), self.constant(1))

    def unary(self, pool: list[Value]) -> Value:
        x = self.any(pool)
        op = self.rng.choice((*BOUNDED, "exp", "sqrt", "log", "scale", "cast"))
        match op:
            case "exp":
                return self.block.add("exp", self.bounded(x))
            case "sqrt" | "log":
                return self.block.add(op, self.positive(x))
            case "scale":
                return self.block.add("mul", x, self.constant(0.5))
            case "cast":
                return self.block.add("cast", x, dtype=self.dtype)
        return self.block.add(op, self.bounded(x) if op == "square" else x)

    def binary(self, pool: list[Value]) -> Value:
        x, y = self.any(pool), self.any(pool)
        op = self.rng.choice(("add", "sub", "mul", "div"))
        if op == "div":
            y = self.block.add("add", self.block.add("abs", y), self.constant(1))
        if op == "mul":
            y = self.block.add("tanh", y)
        return self.block.add(op, x, y)

    def reduce(self, pool: list[Value]) -> Value:
        x = self.any(pool)
        shape = self.block.tensor(x).shape
        if not shape:
            return x
        dim = self.rng.randrange(len(shape))
        sizes = [size for size in range(1, shape[dim] + 1) if shape[dim] % size == 0]
        return self.block.add(self.rng.choice(("sum", "max")), x, dim=dim, size=self.rng.choice(sizes))

    def transpose(self, pool: list[Value]) -> Value:
        x = self.any(pool)
        permutation = list(range(len(self.block.tensor(x).shape)))
        self.rng.shuffle(permutation)
        return self.block.add("transpose", x, permutation=tuple(permutation))

    def reshape(self, pool: list[Value]) -> Value:
        x = self.any(pool)
        elements = self.block.tensor(x).elements
        divisors = [size for size in range(1, elements + 1) if elements % size == 0]
        first = self.rng.choice(divisors)
        rest = self.rng.choice([size for size in divisors if (elements // first) % size == 0])
        return self.block.add("reshape", x, shape=(first, elements // first // rest, rest))

    def repeat(self, pool: list[Value]) -> Value:
        x = self.any(pool)
        rank = len(self.block.tensor(x).shape)
        return self.block.add("repeat", x, dim=self.rng.randrange(rank), times=self.rng.choice((2, 3))) if rank else x

    def product(self, pool: list[Value]) -> Value:
        x, y = self.any(pool), self.any(pool)
        x, y = (value if len(self.block.tensor(value).shape) >= 2 else self.matrix(value) for value in (x, y))
        if self.block.tensor(x).shape[-1] != self.block.tensor(y).shape[-2]:
            y = self.swapped(x)
        x = self.block.add("tanh", x)
        if self.rng.random() < 0.3:
            return self.block.add("concat_matmul", x, x, y, y)
        return self.block.add("matmul", x, y)

    def matrix(self, x: Value) -> Value:
        return self.block.add(
            "reshape", x, shape=self.rng.choice(((1, self.block.tensor(x).elements), (self.block.tensor(x).elements, 1)))
        )

    def swapped(self, x: Value) -> Value:
        rank = len(self.block.tensor(x).shape)
        return self.block.add("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))
