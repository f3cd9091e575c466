"""What a muGraph has of all that one may have: by these names, what trials of random muGraphs have met is a figure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import ACCUMULATORS, VIEWS, Graph, Level, Node, Value
from mugraph.ir.ops import GRAPH_DEFINED, OPERATORS, ROUNDINGS

_GROUPS = {"matmul": "product", "concat_matmul": "product of concatenations", "sum": "sum", "max": "maximum", "repeat": "repeat"}
_ENDS = ("accumulate sum", "accumulate max", "accumulate concat")
_COMPUTED = ("elementwise", *(name for name in _GROUPS.values()), "view", "cast", "rounding", "constant")


def _of_level(level: Level, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{level}: {name}" for name in names)


_MAPS = (
    *(f"{dims} dimensions" for dims in range(4)),
    *("imap replicates", "imap cuts", "imap cuts one dim several times", "imap permutes"),
    *("fmap cuts", "fmap none", "fmap cuts a dim that imap cuts", "omap shares a dim", "omap permutes"),
    *("loop", "loop without a varying input", *_ENDS, "accumulates an invariant", "accumulates without a loop", "after the loop"),
    *("several outputs", "a saver twice", "an operand read twice", "an operand not read", "layout"),
)
_NOT_IN_THREADS = frozenset({"product of concatenations", "repeat", "view"})

FEATURES = (
    *(f"{dtype} tensors" for dtype in DType if dtype is not DType.FP64 and dtype.is_floating),
    "several types",
    *_of_level(Level.KERNEL, (*_COMPUTED, "several kernels", "a kernel reads a kernel", "a view between kernels")),
    *_of_level(Level.KERNEL, ("pre-defined between kernels", "memory between kernels", "several outputs", "an output twice")),
    *_of_level(Level.KERNEL, ("an input as output", "an input twice", "layout")),
    *_of_level(Level.BLOCK, (*_MAPS, *_COMPUTED, "accumulate rescaled", "thread graph", "dead nodes")),
    *_of_level(Level.THREAD, (*_MAPS, *(name for name in _COMPUTED if name not in _NOT_IN_THREADS))),
)
"""All of them; types of tensors first, then by level."""

_CUT, _WRITTEN = ("imap cuts one dim several times", "imap permutes"), ("omap shares a dim", "omap permutes")
_WITH_TWO = (*_CUT, *_WRITTEN)
_OF_LOOPS = (
    "loop",
    "loop without a varying input",
    "fmap cuts",
    "fmap none",
    "fmap cuts a dim that imap cuts",
    "accumulates an invariant",
)
_EXCLUDED = (
    *itertools.combinations((f"{dims} dimensions" for dims in range(4)), 2),
    *(("0 dimensions", name) for name in ("imap replicates", "imap cuts", "fmap cuts a dim that imap cuts", *_WITH_TWO)),
    *(("1 dimensions", name) for name in _WITH_TWO),
    *(("accumulates without a loop", name) for name in _OF_LOOPS),
    *(("loop without a varying input", name) for name in ("fmap cuts", "fmap cuts a dim that imap cuts")),
)
IMPOSSIBLE = frozenset(frozenset(f"{Level.BLOCK}: {name}" for name in pair) for pair in _EXCLUDED)
"""Pairs that no kernel has both of, for it has one block graph; of thread graphs a kernel may have several."""


def features(graph: Graph) -> list[list[str]]:
    """For each generated kernel of a kernel graph its features and those of the graph, by name, in the order of `FEATURES`."""
    whole = {*_types(graph), *_of_program(graph), *(f"{graph.level}: {name}" for node in graph.nodes for name in _of_node(node))}
    kernels = [whole | _of_kernel(node) for node in graph.nodes if node.op == GRAPH_DEFINED]
    return [[name for name in FEATURES if name in found] for found in kernels]


def _of_kernel(kernel: Node) -> set[str]:
    """Features of the block graph of a graph-defined node, and of the thread graphs in it."""
    assert kernel.body is not None
    bodies = [kernel, *(node for node in kernel.body.nodes if node.body is not None)]
    found = {f"{around.level}: {name}" for around, node in kernel.body.walk() for name in _of_node(node)}
    for node in bodies:
        assert node.body is not None
        found |= {f"{node.body.level}: {name}" for name in (*_of_maps(node.body), *_of_loop(node.body), *_of_borders(node))}
    return found


def _types(graph: Graph) -> Iterator[str]:
    dtypes = {tensor.dtype for _, node in graph.walk() for tensor in node.outputs}
    yield from (f"{dtype} tensors" for dtype in dtypes)
    if len(dtypes) > 1:
        yield "several types"


def _of_node(node: Node) -> Iterator[str]:
    if any(tensor.layout is not None for tensor in node.outputs):
        yield "layout"
    if node.op in _GROUPS:
        yield _GROUPS[node.op]
    elif node.op in VIEWS:
        yield "view"
    elif node.op in ROUNDINGS.values():
        yield "rounding"
    elif node.op in OPERATORS and OPERATORS[node.op].elementwise:
        yield "elementwise"
    elif node.op in ("cast", "constant"):
        yield node.op
    elif node.op == GRAPH_DEFINED:
        yield "thread graph"
    elif node.op == "accumulate_rescaled":
        yield "accumulate rescaled"
    elif node.op == "accumulate":
        yield f"accumulate {node['combine']}"


def _of_program(graph: Graph) -> Iterator[str]:
    """How kernels hang together."""
    made: dict[Value, set[str]] = {}
    found: set[str] = set()
    kernels = [index for index, node in enumerate(graph.nodes) if node.op == GRAPH_DEFINED]
    for index, node in enumerate(graph.nodes):
        ways = set[str]().union(*(made.get(value, ()) for value in node.inputs))
        if index in kernels:
            found |= ways
            found |= {"an input twice"} if len(set(node.inputs)) < len(node.inputs) else set()
            ways = {"a kernel reads a kernel"}
        elif ways:
            ways |= {"a view between kernels" if node.op in VIEWS else "pre-defined between kernels"}
        made.update((Value(index, number), ways) for number in range(len(node.outputs)))
    inner = [Value(index, number) for index in kernels for number in range(len(graph.nodes[index].outputs))]
    if any(value not in graph.outputs and all(user in kernels for user in graph.users(value)) for value in inner):
        found.add("memory between kernels")
    if len(kernels) > 1:
        found.add("several kernels")
    if len(graph.outputs) > 1:
        found.add("several outputs")
    if len(set(graph.outputs)) < len(graph.outputs):
        found.add("an output twice")
    if any(graph.nodes[value.node].is_input for value in graph.outputs):
        found.add("an input as output")
    yield from (f"{Level.KERNEL}: {name}" for name in found)


def _of_maps(body: Graph) -> Iterator[str]:
    """How a body's maps cut what it reads, and put together what it makes; dimensions of the grid of one block do not count."""
    counts = body.grid or body.block
    yield f"{len(counts)} dimensions"
    for node in body.nodes:
        if node.is_iterator:
            imap = node["imap"]
            assert isinstance(imap, tuple)
            cut = [dim for dim, count in zip(imap, counts, strict=True) if count > 1 and dim is not None]
            if any(dim is None and count > 1 for dim, count in zip(imap, counts, strict=True)):
                yield "imap replicates"
            if cut:
                yield "imap cuts"
            yield from _of_order(cut, "imap cuts one dim several times", "imap permutes")
            if body.loop > 1:
                yield "fmap none" if node["fmap"] is None else "fmap cuts"
                if node["fmap"] in cut:
                    yield "fmap cuts a dim that imap cuts"
        elif node.is_saver:
            written = [dim for dim, count in zip(node.integers("omap"), counts, strict=True) if count > 1]
            yield from _of_order(written, "omap shares a dim", "omap permutes")


def _of_order(dims: list[int], shared: str, permuted: str) -> Iterator[str]:
    if len(set(dims)) < len(dims):
        yield shared
    if dims != sorted(dims):
        yield permuted


def _of_loop(body: Graph) -> Iterator[str]:
    inside = loop_nodes(body)
    varying = {index for index, node in enumerate(body.nodes) if node.is_iterator and node["fmap"] is not None}
    for index, node in enumerate(body.nodes):
        if any(value.node in varying for value in node.inputs) and node.op not in ACCUMULATORS:
            varying.add(index)
    ends = [node for node in body.nodes if node.op in ACCUMULATORS]
    if body.loop > 1:
        yield "loop"
        if not varying:
            yield "loop without a varying input"
        if any(node.inputs[0].node not in varying for node in ends):
            yield "accumulates an invariant"
    elif ends:
        yield "accumulates without a loop"
    free = ("output_saver", "constant", *ACCUMULATORS)
    if ends and any(index not in inside and node.op not in free for index, node in enumerate(body.nodes)):
        yield "after the loop"


def _of_borders(node: Node) -> Iterator[str]:
    """What a body reads of its operands, and makes."""
    body = node.body
    assert body is not None
    read = [inner.integer("operand") for inner in body.nodes if inner.is_iterator]
    if len(body.outputs) > 1:
        yield "several outputs"
    if len(set(body.outputs)) < len(body.outputs):
        yield "a saver twice"
    if len(set(read)) < len(read):
        yield "an operand read twice"
    if len(set(read)) < len(node.inputs):
        yield "an operand not read"
    if len(body.needed()) < len(body.nodes):
        yield "dead nodes"
