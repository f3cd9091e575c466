"""muGraphs that several tests of the representation use: the paper's RMSNorm, and random valid graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from mugraph.errors import ShapeMismatch
from mugraph.ir import DType, Graph, GraphBuilder, Layout, Level, Node, Value
from mugraph.ir.graph import AttributeValue, Shape, Tensor
from mugraph.ir.ops import OPERATORS

NAMES = ("X", "layer.weight", "_0", "two words", "return", 'quo"te', "größe", "x1", "input")
SIZES = (1, 2, 3, 4, 6, 8)
BOUNDARIES = {"input", "constant", "input_iterator", "output_saver", "accumulate", "accumulate_rescaled"}

INPUTS = [dtype for dtype in DType if not (dtype.is_index or dtype.is_whole)]
NUMBERS = [dtype for dtype in INPUTS if not dtype.is_stored]


def rmsnorm_mugraph(thread_graph: bool = True) -> Graph:
    """The paper's best muGraph for RMSNorm and MatMul: X[16, 1024], G[1024], W[1024, 4096], 128 blocks, 16 iterations."""
    kernel = GraphBuilder(Level.KERNEL)
    operands = [
        kernel.input("X", (16, 1024), DType.FP16),
        kernel.input("G", (1024,), DType.FP16),
        kernel.input("W", (1024, 4096), DType.FP16),
    ]
    block = GraphBuilder(Level.BLOCK, grid=(128,), loop=16)
    maps: list[tuple[int | None, int]] = [(None, 1), (None, 0), (1, 0)]
    x, g, w = (
        block.iterator(number, kernel.tensor(operand), (imap,), fmap)
        for number, (operand, (imap, fmap)) in enumerate(zip(operands, maps, strict=True))
    )
    squares = block.add("sum", block.add("square", x), dim=1, size=64)
    product = block.add("accumulate", block.add("matmul", block.add("mul", x, g), w), combine="sum")
    mean = block.add("mul", block.add("accumulate", squares, combine="sum"), block.constant(1 / 1024, DType.FP16))
    normalise = _normalise_in_threads if thread_graph else _normalise
    result = normalise(block, product, mean)
    saved = block.add("output_saver", result, omap=(1,))
    (z,) = kernel.graph_defined(block.build([saved]), operands)
    return kernel.build([z])


def _normalise(block: GraphBuilder, product: Value, mean: Value) -> Value:
    return block.add("div", product, block.add("sqrt", mean))


def _normalise_in_threads(block: GraphBuilder, product: Value, mean: Value) -> Value:
    thread = GraphBuilder(Level.THREAD, block=(32,))
    numerator = thread.iterator(0, block.tensor(product), (1,), None)
    denominator = thread.add("sqrt", thread.iterator(1, block.tensor(mean), (None,), None))
    saved = thread.add("output_saver", thread.add("div", numerator, denominator), omap=(1,))
    return block.graph_defined(thread.build([saved]), [product, mean])[0]


def mutated(graph: Graph, index: int, change: Callable[[Node], Node]) -> Graph:
    """The graph with one node changed."""
    nodes = list(graph.nodes)
    nodes[index] = change(nodes[index])
    return replace(graph, nodes=tuple(nodes))


def with_body(graph: Graph, index: int, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with the body of one node changed."""

    def changed(node: Node) -> Node:
        assert node.body is not None
        return replace(node, body=change(node.body))

    return mutated(graph, index, changed)


# --- random valid graphs -------------------------------------------------------------------------------------------------


@st.composite
def kernel_graphs(draw: st.DrawFn) -> Graph:
    """Small valid muGraphs with bodies at all levels, odd input names, layouts, and every kind of attribute."""
    builder = GraphBuilder(Level.KERNEL)
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)):
        builder.input(name, draw(shapes()), draw(st.sampled_from(INPUTS)))
    _grow(draw, builder, [Value(index) for index in range(len(builder.nodes))], steps=6, bodies=Level.BLOCK)
    values = _values(builder)
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return _with_layouts(draw, builder.build(outputs))


def shapes() -> st.SearchStrategy[Shape]:
    """Shapes of rank 1 to 3 with few elements, whose dimensions often agree and divide."""
    return st.lists(st.sampled_from(SIZES), min_size=1, max_size=3).map(tuple)


def _values(builder: GraphBuilder) -> list[Value]:
    return [Value(index, output) for index, node in enumerate(builder.nodes) for output in range(len(node.outputs))]


def _grow(draw: st.DrawFn, builder: GraphBuilder, values: list[Value], steps: int, bodies: Level | None) -> None:
    """Apply random operators to `values`, appending what they give; those whose operands do not match are skipped."""
    rows = [row for row in OPERATORS.values() if builder.level in row.levels and not row.whole]
    names = sorted({row.name for row in rows} - BOUNDARIES)
    for _ in range(draw(st.integers(0, steps))):
        choice = draw(st.sampled_from([*names, "constant", "body"]))
        if choice == "body":
            if bodies is not None:
                values += _apply_body(draw, builder, values, bodies)
        elif choice == "constant":
            values.append(
                builder.constant(draw(st.sampled_from((0, -3, 0.5, 1 / 3, 2**0.5, 1e-5))), draw(st.sampled_from(NUMBERS)))
            )
        else:
            operands = [draw(st.sampled_from(values)) for _ in range(OPERATORS[choice].arity)]
            attributes = _attributes(draw, choice, builder.tensor(operands[0]))
            try:
                values.append(builder.add(choice, *operands, **attributes))
            except ShapeMismatch:
                continue


def _attributes(draw: st.DrawFn, op: str, operand: Tensor) -> dict[str, AttributeValue]:
    dims = range(len(operand.shape))
    dim = draw(st.sampled_from(dims)) if dims else 0
    match op:
        case "sum" | "max":
            return {"dim": dim, "size": draw(st.sampled_from(_divisors(operand.shape[dim]))) if dims else 1}
        case "repeat":
            return {"dim": dim, "times": draw(st.integers(1, 2))}
        case "reshape":
            return {"shape": draw(st.sampled_from([(operand.elements,), (1, operand.elements), (1, *operand.shape)]))}
        case "transpose":
            return {"permutation": tuple(draw(st.permutations(dims)))}
        case "cast":
            return {"dtype": draw(st.sampled_from(NUMBERS))}
    return {}


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _apply_body(draw: st.DrawFn, builder: GraphBuilder, values: list[Value], level: Level) -> list[Value]:
    operands = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    extent = tuple(draw(st.lists(st.integers(1, 2), max_size=3)))
    inner = GraphBuilder(
        level,
        grid=extent if level is Level.BLOCK else (),
        block=extent if level is Level.THREAD else (),
        loop=draw(st.sampled_from((1, 2))),
    )
    loaded = [_iterator(draw, inner, number, builder.tensor(operand)) for number, operand in enumerate(operands)]
    _grow(draw, inner, loaded, steps=3, bodies=Level.THREAD if level is Level.BLOCK else None)
    results = loaded
    if inner.loop > 1 or draw(st.booleans()):
        results = _accumulators(draw, inner, loaded)
        _grow(draw, inner, results, steps=3, bodies=None)
    wanted = [_saver(draw, inner, draw(st.sampled_from(results)), len(extent)) for _ in range(draw(st.integers(1, 2)))]
    saved = [value for value in wanted if value is not None]
    return list(builder.graph_defined(inner.build(saved), operands)) if len(saved) == len(wanted) else []


def _iterator(draw: st.DrawFn, inner: GraphBuilder, number: int, source: Tensor) -> Value:
    rank = len(source.shape)
    maps = st.sampled_from([None, *range(rank)])
    for _ in range(4):
        try:
            return inner.iterator(number, source, tuple(draw(maps) for _ in inner.grid or inner.block), draw(maps))
        except ShapeMismatch:
            continue
    return inner.iterator(number, source, (None,) * len(inner.grid or inner.block), None)


def _accumulators(draw: st.DrawFn, inner: GraphBuilder, values: Sequence[Value]) -> list[Value]:
    results: list[Value] = []
    for value in draw(st.lists(st.sampled_from(values), min_size=1, max_size=2)):
        combine = draw(st.sampled_from(("sum", "max", "concat", "rescaled")))
        if combine == "rescaled" and inner.level is Level.BLOCK:
            results.append(inner.add("accumulate_rescaled", value, value))
        elif combine == "concat" and inner.tensor(value).shape:
            results.append(inner.add("accumulate", value, combine="concat", dim=0))
        else:
            results.append(inner.add("accumulate", value, combine="max" if combine == "max" else "sum"))
    return results


def _saver(draw: st.DrawFn, inner: GraphBuilder, value: Value, extent: int) -> Value | None:
    """The value saved with a random omap; None for a scalar of several threads, which no omap can place."""
    dims = range(len(inner.tensor(value).shape))
    if extent and not dims:
        if inner.level is Level.THREAD:
            return None
        value, dims = inner.add("reshape", value, shape=(1,)), range(1)
    return inner.add("output_saver", value, omap=tuple(draw(st.sampled_from(dims)) for _ in range(extent)))


def _with_layouts(draw: st.DrawFn, graph: Graph) -> Graph:
    nodes = []
    for node in graph.nodes:
        tensor = node.outputs[0]
        if draw(st.integers(0, 3)) == 0:
            layout = Layout(tuple(draw(st.permutations(range(len(tensor.shape))))))
            node = replace(node, outputs=(replace(tensor, layout=layout), *node.outputs[1:]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
