"""Programs and muGraphs with axes that several outputs have, or that lie in stretches of a dimension."""

from __future__ import annotations

from collections.abc import Callable

from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.program import Program, ProgramTensor
from mugraph.verifier.axis_marks import ONE

from .graphs import FP32
from .graphs import program as program_of_one

ROWS, INNER = 2, 4


def program(function: Callable[..., tuple[ProgramTensor, ...]], *shapes: tuple[int, ...]) -> Graph:
    """The kernel graph of a function with several results."""
    written = Program()
    written.output(*function(*(written.input(f"x{i}", shape) for i, shape in enumerate(shapes))))
    return written.graph


def projections(*columns: int, together: bool = False) -> Graph:
    """exp(x) times several matrices with so many columns, beside each other or `together` in one tensor."""

    def function(x: ProgramTensor, *weights: ProgramTensor) -> tuple[ProgramTensor, ...]:
        results = [x.exp() @ weight for weight in weights]
        return (x.program.concat(results, 1),) if together else tuple(results)

    return program(function, (ROWS, INNER), *((INNER, count) for count in columns))


def projections_in_blocks(
    *columns: int, blocks: int = 2, together: bool = False, loop: int = 1, late: int | None = None
) -> Graph:
    """The same in one kernel, each block with its part of the columns of each; the result number `late` is squared besides."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x0", (ROWS, INNER), FP32)
    weights = [kernel.input(f"x{i + 1}", (INNER, count), FP32) for i, count in enumerate(columns)]
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=loop)
    rows = block.add("exp", block.iterator(0, kernel.tensor(x), (None,), None))
    saved = []
    for number, weight in enumerate(weights):
        made = block.add("matmul", rows, block.iterator(number + 1, kernel.tensor(weight), (1,), 1 if loop > 1 else None))
        if number == late:
            made = block.add("square", made)
        if loop > 1:
            made = block.add("accumulate", made, combine="concat", dim=1)
        saved.append(block.add("output_saver", made, omap=(1,)))
    results = kernel.graph_defined(block.build(saved), [x, *weights])
    return kernel.build([kernel.add("concat", *results, dim=1)] if together else list(results))


def packed_attention(parts: int = 3, heads: int = 2, width: int = 2, tokens: int = 3) -> Graph:
    """Attention of queries, keys and values that one dimension has beside each other, all heads of each."""

    def function(x: ProgramTensor) -> ProgramTensor:
        split = x.reshape(tokens, parts, heads, width)
        q, k, v = (split.slice(1, i, 1).reshape(tokens, heads, width).transpose(0, 1) for i in range(3))
        scores = (q @ k.transpose(1, 2)).exp()
        return ((scores / scores.sum(-1, keepdim=True)) @ v).transpose(0, 1).reshape(tokens, heads * width)

    return program_of_one(function, (tokens, parts * heads * width))


def packed_in_blocks(
    parts: int = 3, heads: int = 2, width: int = 2, tokens: int = 3, blocks: int = 2, order: str = "qkv"
) -> Graph:
    """The same, in so many blocks, each with a loop over its heads; what is cut from the input as it stands in `order`."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x0", (tokens, parts * heads * width), FP32)
    sliced = {
        name: kernel.add("slice", x, dim=1, start=place * heads * width, size=heads * width, step=1)
        for place, name in enumerate("qkv")
    }
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=heads // blocks)
    reads = [sliced[name] for name in order]
    q, k, v = (block.iterator(i, kernel.tensor(value), (1,), 1) for i, value in enumerate(reads))
    scores = block.add("exp", block.add("matmul", q, block.add("transpose", k, permutation=(1, 0))))
    mixed = block.add("matmul", block.add("div", scores, block.add("sum", scores, dim=1, size=tokens)), v)
    together = block.add("accumulate", mixed, combine="concat", dim=1)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", together, omap=(1,))]), reads))


def softmax_of_rows(rows: int = 4, blocks: int = 2) -> tuple[Graph, Graph]:
    """exp(x) / the sums of its rows, and the same with a row in each iteration."""
    left = program_of_one(lambda x: x.exp() / x.exp().sum(1, keepdim=True), (rows, 3))
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x0", (rows, 3), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=rows // blocks)
    row = block.add("exp", block.iterator(0, kernel.tensor(x), (0,), 0))
    made = block.add("accumulate", block.add("div", row, block.add("sum", row, dim=1, size=3)), combine="concat", dim=0)
    saved = block.add("output_saver", made, omap=(0,))
    return left, kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def crossed_rows(stretches: int, slices: int = 4) -> Graph:
    """What rows of all slices, stretch by stretch, are added to, slice by slice."""
    return program(
        lambda x, y: (y + x.reshape(stretches, slices, 3).transpose(0, 1),), (stretches * slices, 3), (slices, stretches, 3)
    )


def crossed_in_blocks(stretches: int, slices: int = 4, blocks: int = 2) -> Graph:
    """The same, each block with its part of the stretches."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("x0", (stretches * slices, 3), FP32), kernel.input("x1", (slices, stretches, 3), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    rows, others = block.iterator(0, kernel.tensor(x), (0,), None), block.iterator(1, kernel.tensor(y), (1,), None)
    lying = block.add("reshape", rows, shape=(stretches // blocks, slices, 3))
    made = block.add("add", others, block.add("transpose", lying, permutation=(1, 0, 2)))
    saved = block.add("output_saver", made, omap=(1,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, y]))


PAIRS: dict[str, tuple[Callable[[], Graph], Callable[[], Graph], tuple[object, ...]]] = {
    "three weights of one size": (
        lambda: projections(4, 4, 4),
        lambda: projections_in_blocks(4, 4, 4),
        (4, (None, 1, 1, 1), (ONE,) * 4, (1, 1, 1), (ONE,) * 3),
    ),
    "weights of different sizes": (
        lambda: projections(8, 4, 4),
        lambda: projections_in_blocks(8, 4, 4),
        (4, (None, 1, 1, 1), (ONE, (2,), ONE, ONE), (1, 1, 1), ((2,), ONE, ONE)),
    ),
    "weights in iterations": (
        lambda: projections(8, 4),
        lambda: projections_in_blocks(8, 4, loop=2),
        (4, (None, 1, 1), (ONE, (2,), ONE), (1, 1), ((2,), ONE)),
    ),
    "results in one tensor": (
        lambda: projections(8, 4, 4, together=True),
        lambda: projections_in_blocks(8, 4, 4, together=True),
        (4, (None, 1, 1, 1), (ONE, (2,), ONE, ONE), (1,), ((2, 1, 1),)),
    ),
    "heads in three stretches": (
        packed_attention,
        packed_in_blocks,
        (2, (1,), ((2, 2, 2),), (1,), ((2,),)),
    ),
    "heads in three stretches, one in each iteration": (
        lambda: packed_attention(heads=4, width=1),
        lambda: packed_in_blocks(heads=4, width=1),
        (4, (1,), ((1, 1, 1),), (1,), (ONE,)),
    ),
    "rows in two stretches, one in each block": (
        lambda: crossed_rows(2),
        lambda: crossed_in_blocks(2),
        (4, (0, 0), ((1, 1), ONE), (0,), (ONE,)),
    ),
    "rows in iterations": (
        lambda: softmax_of_rows()[0],
        lambda: softmax_of_rows()[1],
        (4, (0,), (ONE,), (0,), (ONE,)),
    ),
}
"""Of a program and a muGraph an axis: size, dimension in each input, how slices lie there, and the same of outputs."""
