"""Small muGraphs that several tests lower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.graph import Shape


def rms_norm_linear(
    rows: int = 4, inner: int = 32, columns: int = 48, grid: int = 2, loop: int = 4, dtype: DType = DType.FP32
) -> Graph:
    """RMSNorm followed by a linear layer in one kernel: two accumulators, division after the loop (paper, Figure 4)."""
    kernel = GraphBuilder(Level.KERNEL)
    x, g, w = (
        kernel.input("X", (rows, inner), dtype),
        kernel.input("G", (inner,), dtype),
        kernel.input("W", (inner, columns), dtype),
    )
    block = GraphBuilder(Level.BLOCK, grid=(grid,), loop=loop)
    xs = block.iterator(0, kernel.tensor(x), (None,), 1)
    gs = block.iterator(1, kernel.tensor(g), (None,), 0)
    ws = block.iterator(2, kernel.tensor(w), (1,), 0)
    squares = block.add("accumulate", block.add("sum", block.add("square", xs), dim=1, size=inner // loop), combine="sum")
    product = block.add("accumulate", block.add("matmul", block.add("mul", xs, gs), ws), combine="sum")
    mean = block.add("mul", squares, block.constant(1 / inner, dtype))
    result = block.add("div", product, block.add("sqrt", mean))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(1,))]), [x, g, w]))


def linear_along_k(taken: int, loop: int, rows: int = 16, columns: int = 64, dtype: DType = DType.BF16) -> Graph:
    """x @ w.T, both factors in rows along k, of which an iteration takes `taken` values."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = (kernel.input(name, (size, taken * loop), dtype) for name, size in (("x", rows), ("w", columns)))
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=loop)
    xs, ws = (block.iterator(number, kernel.tensor(v), (None,), 1) for number, v in enumerate((x, w)))
    multiplied = block.add("matmul", xs, block.add("transpose", ws, permutation=(1, 0)))
    total = block.add("accumulate", multiplied, combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(0,))]), [x, w]))


def attention(
    queries: int = 3,
    keys: int = 24,
    width: int = 20,
    loop: int = 4,
    dtype: DType = DType.FP32,
    grid: int = 2,
    flat: bool = False,
    masked: bool = False,
    bounded: bool = False,
) -> Graph:
    """Attention with a running maximum over a loop over keys, the queries' scaling inside the loop but invariant in it.

    With `flat` the sums of the weights are kept without their last dimension. With `masked` a tensor [2, queries, keys] is
    added to the scores. With `bounded` maxima are finite where all scores are -inf.
    """
    kernel = GraphBuilder(Level.KERNEL)
    names = [kernel.input(name, (2, size, width), dtype) for name, size in (("Q", queries), ("K", keys), ("V", keys))]
    block = GraphBuilder(Level.BLOCK, grid=(grid,), loop=loop)
    q = block.iterator(0, kernel.tensor(names[0]), (0,), None)
    k, v = (block.iterator(number, kernel.tensor(names[number]), (0,), 1) for number in (1, 2))
    scaled = block.add("mul", q, block.constant(0.25, dtype))
    scores = block.add("matmul", scaled, block.add("transpose", k, permutation=(0, 2, 1)))
    if masked:
        names.append(kernel.input("M", (2, queries, keys), dtype))
        scores = block.add("add", scores, block.iterator(3, kernel.tensor(names[3]), (0,), 2))
    least = {"least": "lowest"} if bounded else {}
    largest = block.add("max", scores, dim=2, size=keys // loop, **least)
    weights = block.add("exp", block.add("sub", scores, largest))
    summed, shift = block.add("sum", weights, dim=2, size=keys // loop), largest
    if flat:
        summed, shift = (block.add("reshape", value, shape=(2 // grid, queries)) for value in (summed, shift))
    total = block.add("accumulate_rescaled", summed, shift)
    total = block.add("reshape", total, shape=(2 // grid, queries, 1)) if flat else total
    mixed = block.add("accumulate_rescaled", block.add("matmul", weights, v), largest)
    result = block.add("div", mixed, total)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), names))


def normalised_scores(queries: int = 8, keys: int = 128, width: int = 64, loop: int = 2, dtype: DType = DType.FP32) -> Graph:
    """Products of queries with keys divided by the keys' lengths: the keys are read by a product and by a reduction."""
    kernel = GraphBuilder(Level.KERNEL)
    names = [kernel.input(name, (size, width), dtype) for name, size in (("Q", queries), ("K", keys))]
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=loop)
    q, k = block.iterator(0, kernel.tensor(names[0]), (None,), None), block.iterator(1, kernel.tensor(names[1]), (None,), 0)
    squares = block.add("sum", block.add("square", k), dim=1, size=width)
    scores = block.add("matmul", q, block.add("transpose", k, permutation=(1, 0)))
    lengths = block.add("transpose", block.add("sqrt", squares), permutation=(1, 0))
    result = block.add("accumulate", block.add("div", scores, lengths), combine="concat", dim=1)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), names))


def elementwise_kernel(kernel: GraphBuilder, op: str, operands: Sequence[Value], grid: int = 2) -> Value:
    """Add a kernel of an elementwise operator, its blocks along the first dimension; the kernel's result."""
    block = GraphBuilder(Level.BLOCK, grid=(grid,))
    tiles = [block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(operands)]
    saved = block.add("output_saver", block.add(op, *tiles), omap=(0,))
    (result,) = kernel.graph_defined(block.build([saved]), operands)
    return result


def chain_of_kernels(count: int = 6, shape: tuple[int, int] = (64, 256), dtype: DType = DType.FP32) -> Graph:
    """Kernels that each read the result of the one before alone."""
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("X", shape, dtype)
    for number in range(count):
        value = elementwise_kernel(kernel, ("tanh", "exp", "sigmoid")[number % 3], [value])
    return kernel.build([value])


OTHER_MAXIMA = ("of another tensor", "of one term", "of a smaller multiple", "of other rows")


def shifted_by(what: str) -> Graph:
    """`exp(s - m) @ v` of one block in fp16, m one of `OTHER_MAXIMA`, which do not keep the exponents below 0."""
    kernel, size = GraphBuilder(Level.KERNEL), 32
    inputs = [kernel.input(name, (size, size), DType.FP16) for name in ("S", "T", "V")]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    s, t, v = (block.iterator(number, kernel.tensor(tensor), (None,), None) for number, tensor in enumerate(inputs))
    largest = block.add("max", t if what == "of another tensor" else s, dim=1, size=size)
    exponent = s
    match what:
        case "of one term":
            exponent = block.add("add", s, t)
        case "of a smaller multiple":
            exponent = block.add("mul", s, block.constant(4, DType.FP16))
        case "of other rows":
            largest = block.add("transpose", largest, permutation=(1, 0))
    result = block.add("matmul", block.add("exp", block.add("sub", exponent, largest)), v)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), inputs))


def pair_of_tiles(op: str, left: Shape, right: Shape, dim: int | None = None) -> Graph:
    """One block that computes `op` of two tiles, and sums of it along `dim`."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,))
    inputs = [kernel.input(name, shape, DType.FP32) for name, shape in (("x", left), ("y", right))]
    tiles = [block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(inputs)]
    result = block.add(op, *tiles)
    if dim is not None:
        result = block.add("sum", result, dim=dim, size=block.tensor(result).shape[dim])
    body = block.build([block.add("output_saver", result, omap=(0,))])
    return kernel.build(kernel.graph_defined(body, inputs))


SUMMED_PRODUCTS: Mapping[str, Graph] = {
    "k = 2": pair_of_tiles("matmul", (16, 2), (2, 16)),
    "k = 4": pair_of_tiles("matmul", (64, 4), (4, 32)),
    "k = 8": pair_of_tiles("matmul", (12, 6), (6, 12)),
    "over k": pair_of_tiles("mul", (16, 16, 1), (1, 16, 16), dim=1),
    "over rows": pair_of_tiles("mul", (16, 16, 1), (1, 16, 16), dim=0),
    "over columns": pair_of_tiles("mul", (16, 16, 1), (1, 16, 16), dim=2),
    "a column": pair_of_tiles("mul", (16, 1, 1), (1, 4, 16), dim=1),
    "four dimensions": pair_of_tiles("mul", (16, 4, 1, 16), (1, 4, 16, 16), dim=1),
}
"""Sums of products that Triton 3.7 takes for products of matrices where they are written with `*`, or rejects as it tries to."""
