"""Programs and muGraphs that several verifier tests use."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from mugraph.errors import MugraphError
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.testing import agree
from mugraph.verifier import verify_graphs
from mugraph.verifier.prover import verify

FP32 = DType.FP32


def program(function: Callable[..., ProgramTensor], *shapes: tuple[int, ...]) -> Graph:
    """The kernel graph of a function of tensors."""
    written = Program()
    written.output(function(*(written.input(f"x{i}", shape) for i, shape in enumerate(shapes))))
    return written.graph


def overlap(scores: ProgramTensor, wanted: ProgramTensor) -> ProgramTensor:
    """The mean over classes of how far probabilities and what was wanted overlap, as losses of segmentations have it."""
    share = scores.softmax(-1)
    return ((share * wanted).sum(0) / (share.sum(0) + wanted.sum(0) + 1e-3)).mean(-1)


def overlap_of_quotients(scores: ProgramTensor, wanted: ProgramTensor) -> ProgramTensor:
    """The same with divisions by sums of rows behind products."""
    above = (scores - scores.amax(-1, keepdim=True)).exp()
    below = above.sum(-1, keepdim=True)
    common = (above * wanted / below).sum(0)
    return (common / ((above / below + wanted).sum(0) + 1e-3)).sum(-1) / scores.shape[-1]


def assert_proved_equal(pair: tuple[Graph, Graph]) -> None:
    """Two programs agree on numbers, and are proved equal with a small bound."""
    assert agree(*pair)
    verdict = verify_graphs(*pair, seed=1)
    assert verdict.equivalent, verdict.reason
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40


def assert_told_apart(pair: tuple[Graph, Graph]) -> None:
    """Two programs are not called equal by tests, nor by provers, in either order."""
    for order in (pair, pair[::-1]):
        assert not verify_graphs(*order, seed=2).equivalent
        assert verify(*order, seed=3, budget=20).equivalent is False


def rmsnorm(rows: int = 4, hidden: int = 12, columns: int = 8) -> Graph:
    """X * G normalised by the root mean square of X's rows, times W."""

    def function(x: ProgramTensor, g: ProgramTensor, w: ProgramTensor) -> ProgramTensor:
        return (x / ((x * x).sum(-1, keepdim=True) / hidden).sqrt() * g) @ w

    return program(function, (rows, hidden), (hidden,), (hidden, columns))


def fused_rmsnorm(
    rows: int = 4, hidden: int = 12, columns: int = 8, blocks: int = 2, loop: int = 3, *, scale: bool = True, squares: str = "sum"
) -> Graph:
    """RMSNorm in one kernel (paper, figure of its case study): division by the root after the loop."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", (rows, hidden), FP32)
    g = kernel.input("G", (hidden,), FP32)
    w = kernel.input("W", (hidden, columns), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=loop)
    xs = block.iterator(0, kernel.tensor(x), (None,), 1)
    gs = block.iterator(1, kernel.tensor(g), (None,), 0)
    ws = block.iterator(2, kernel.tensor(w), (1,), 0)
    product = block.add("accumulate", block.add("matmul", block.add("mul", xs, gs), ws), combine="sum")
    size = hidden // loop
    squared = block.add("sum", block.add("square", xs), dim=1, size=size)
    total = block.add("accumulate", squared, combine=squares)
    if scale:
        total = block.add("mul", total, block.constant(1 / hidden, FP32))
    result = block.add("div", product, block.add("sqrt", total))
    saved = block.add("output_saver", result, omap=(1,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, g, w]))


def attention(queries: int = 3, keys: int = 8, depth: int = 4) -> Graph:
    """softmax(Q K^T) V without the maximum."""

    def function(q: ProgramTensor, k: ProgramTensor, v: ProgramTensor) -> ProgramTensor:
        weights = (q @ k.transpose(0, 1)).exp()
        return (weights / weights.sum(-1, keepdim=True)) @ v

    return program(function, (queries, depth), (keys, depth), (keys, depth))


def online_attention(queries: int = 3, keys: int = 8, depth: int = 4, loop: int = 2) -> Graph:
    """The same in one kernel, looping over keys with exponents shifted by the running maximum."""
    kernel = GraphBuilder(Level.KERNEL)
    q = kernel.input("Q", (queries, depth), FP32)
    k = kernel.input("K", (keys, depth), FP32)
    v = kernel.input("V", (keys, depth), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(queries,), loop=loop)
    qs = block.iterator(0, kernel.tensor(q), (0,), None)
    ks = block.iterator(1, kernel.tensor(k), (None,), 0)
    vs = block.iterator(2, kernel.tensor(v), (None,), 0)
    scores = block.add("matmul", qs, block.add("transpose", ks, permutation=(1, 0)))
    top = block.add("max", scores, dim=1, size=keys // loop)
    weights = block.add("exp", block.add("sub", scores, top))
    numerator = block.add("accumulate_rescaled", block.add("matmul", weights, vs), top)
    denominator = block.add("accumulate_rescaled", block.add("sum", weights, dim=1, size=keys // loop), top)
    saved = block.add("output_saver", block.add("div", numerator, denominator), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [q, k, v]))


def scaled_sums() -> Graph:
    """Sums of rows that a number computed in the block scales twice: inside the for-loop and after it."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", (2, 8), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=4)
    scale = block.add("mul", block.constant(3, FP32), block.constant(0.5, FP32))
    tile = block.add("mul", block.iterator(0, kernel.tensor(x), (0,), 1), scale)
    total = block.add("accumulate", block.add("sum", tile, dim=1, size=2), combine="sum")
    saved = block.add("output_saver", block.add("mul", total, scale), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def linear_with_bias(loop: int = 20) -> Graph:
    """X W + B in one kernel: the bias is brought past the loop by the maximum of a loop-invariant tensor."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", (3, 2 * loop), FP32)
    w = kernel.input("W", (2 * loop, 4), FP32)
    b = kernel.input("B", (4,), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    xs = block.iterator(0, kernel.tensor(x), (None,), 1)
    ws = block.iterator(1, kernel.tensor(w), (1,), 0)
    bias = block.add("accumulate", block.iterator(2, kernel.tensor(b), (0,), None), combine="max")
    product = block.add("accumulate", block.add("matmul", xs, ws), combine="sum")
    saved = block.add("output_saver", block.add("add", product, bias), omap=(1,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, w, b]))


def gated_columns(size: int = 4, blocks: int = 1, loop: int = 2) -> Graph:
    """silu(X W + B) (X V), with a for-loop over columns that puts parts of the products side by side, and brings B past them."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w, v = (kernel.input(name, (size, size), FP32) for name in "XWV")
    b = kernel.input("B", (size,), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=loop)
    xs = block.iterator(0, kernel.tensor(x), (None,), None)
    ws, vs = (block.iterator(number, kernel.tensor(value), (1,), 1) for number, value in ((1, w), (2, v)))
    bias = block.add("accumulate", block.iterator(3, kernel.tensor(b), (0,), None), combine="max")
    gate, up = (block.add("accumulate", block.add("matmul", xs, part), combine="concat", dim=1) for part in (ws, vs))
    result = block.add("mul", block.add("silu", block.add("add", gate, bias)), up)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(1,))]), [x, w, v, b]))


def in_a_thread_graph(block: GraphBuilder, op: str, *tiles: Value) -> Value:
    """An elementwise operator of tiles, in a thread graph of one thread."""
    thread = GraphBuilder(Level.THREAD, block=(1,))
    inside = [thread.iterator(number, block.tensor(tile), (None,), None) for number, tile in enumerate(tiles)]
    saved = thread.add("output_saver", thread.add(op, *inside), omap=(0,))
    return block.graph_defined(thread.build([saved]), tiles)[0]


def columns_in_thread_graphs(loop: int = 2) -> Graph:
    """exp(X)^2 Y + Y, with a thread graph inside a for-loop over columns."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, (4, 4), FP32) for name in "XY")
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    xs, ys = (block.iterator(number, kernel.tensor(value), (0,), 1) for number, value in ((0, x), (1, y)))
    parts = [block.add("accumulate", part, combine="concat", dim=1) for part in (in_a_thread_graph(block, "exp", xs), ys)]
    product = block.add("mul", block.add("square", parts[0]), parts[1])
    saved = block.add("output_saver", block.add("add", product, parts[1]), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, y]))


def spread_of_rows() -> tuple[Graph, Graph]:
    """Y, and Y plus twice what is between the largest and the least of each column of X, which is nothing if X has one row."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("X", (4, 4), FP32), kernel.input("Y", (1, 4), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=4)
    xs, ys = block.iterator(0, kernel.tensor(x), (None,), 0), block.iterator(1, kernel.tensor(y), (None,), None)
    doubled = in_a_thread_graph(block, "add", xs, xs)
    opposite = in_a_thread_graph(block, "sub", xs, doubled)
    largest, least, beside = (block.add("accumulate", part, combine="max") for part in (doubled, opposite, ys))
    apart = block.add("add", largest, block.add("add", least, least))
    saved = block.add("output_saver", block.add("add", apart, beside), omap=(0,))
    wrong = kernel.build(kernel.graph_defined(block.build([saved]), [x, y]))
    return program(lambda x, y: y, (4, 4), (1, 4)), wrong


def rows_for_columns() -> tuple[Graph, Graph]:
    """X^2 + Y + Z with X as a column, and with X as the row that it is: at 1 x 1 they are the same."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y, z = kernel.input("X", (1, 8), FP32), kernel.input("Y", (8, 1), FP32), kernel.input("Z", (1, 8), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    squares = block.add("square", block.iterator(0, kernel.tensor(x), (1,), None))
    (row,) = kernel.graph_defined(block.build([block.add("output_saver", squares, omap=(0,))]), [x])
    wrong = kernel.build([kernel.add("add", kernel.add("add", row, y), z)])
    return program(lambda x, y, z: x.transpose(0, 1).square() + y + z, (1, 8), (8, 1), (1, 8)), wrong


FAMILIES = (("add", "sub", "mul", "div"), ("square", "sqrt", "exp", "silu"))


def mutants(graph: Graph) -> Iterator[Graph]:
    """Valid graphs that differ from one in one operator or one attribute, in a kernel or beside kernels."""
    document = json.loads(json.dumps(graph_to_json(graph)))
    outside = document["graph"]["nodes"]
    bodies = [node["body"] for node in outside if "body" in node]
    for node in (*outside, *(node for body in bodies for node in body["nodes"])):
        for place, name, values in _changes(node):
            original = place[name]
            for value in values:
                if value == original:
                    continue
                place[name] = value
                with contextlib.suppress(MugraphError):
                    yield graph_from_json(document)
            place[name] = original


def _changes(node: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, list[Any]]]:
    """(where, what, which values) of all changes to a node."""
    for family in FAMILIES:
        if node["op"] in family:
            yield node, "op", list(family)
    dims = {"imap": (None, 0, 1), "omap": (0, 1)}
    for name, value in node["attributes"].items():
        if name in dims:
            yield node["attributes"], name, [list(mapped) for mapped in itertools.product(dims[name], repeat=len(value))]
    if node["op"] == "slice":
        for name in ("start", "size", "step", "dim"):
            yield node["attributes"], name, [-2, -1, 0, 1, 2, 3, 4]
    if node["op"] == "concat":
        yield node, "inputs", [list(order) for order in itertools.product(node["inputs"], repeat=len(node["inputs"]))]
    changes: list[tuple[str, list[Any]]] = [("fmap", [None, 0, 1]), ("combine", ["sum", "max", "concat"])]
    if node["op"] == "accumulate":
        changes.append(("dim", [0, 1]))
    for name, values in changes:
        if name in node["attributes"]:
            yield node["attributes"], name, values
