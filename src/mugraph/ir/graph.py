"""The muGraph: one graph type for kernel, block and thread level (paper, section 2).

A kernel graph's nodes run on the whole device, a block graph's nodes inside one thread block, a thread graph's
nodes inside one thread. A *graph-defined* operator is a node whose body is a graph of the next level.
All values are immutable; passes are functions from graph to graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import singledispatch
from typing import NamedTuple

from mugraph.errors import ShapeMismatch
from mugraph.ir.dtypes import DType
from mugraph.ir.scalar import Scalar

Shape = tuple[int, ...]
AttributeValue = int | str | tuple[int | None, ...] | Scalar | DType | None
Attributes = tuple[tuple[str, AttributeValue], ...]


class Accumulation(StrEnum):
    """How an accumulator puts the values of all iterations together (the attribute `combine`)."""

    SUM = "sum"
    MAX = "max"
    CONCAT = "concat"


class Level(StrEnum):
    """Where a graph runs, and so which memory its tensors live in: device, shared, or registers."""

    KERNEL = "kernel"
    BLOCK = "block"
    THREAD = "thread"

    @property
    def inner(self) -> Level | None:
        """The level of the bodies of this level's graph-defined operators; None for threads, which have none."""
        return {Level.KERNEL: Level.BLOCK, Level.BLOCK: Level.THREAD}.get(self)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor is linearised: its dimensions from slowest to fastest varying. It never changes results."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of `shape` (elements per dimension) and `dtype` at a level; no layout means row-major."""

    shape: Shape
    dtype: DType
    level: Level = Level.KERNEL
    layout: Layout | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.dtype.bytes

    def __str__(self) -> str:
        layout = f" layout({', '.join(map(str, self.layout.order))})" if self.layout else ""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{layout}"


class Value(NamedTuple):
    """The `output`-th output of the `node`-th node of a graph: the tensor index (i, j) of the paper's section 4.1."""

    node: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """An operator applied to values of the same graph.

    `op` is a row of `mugraph.ir.ops.OPERATORS`; `attributes` are sorted by name; `body` is present exactly for
    graph-defined operators. Block and thread graphs read the operands of their parent through
    `input_iterator` nodes, whose attribute `operand` counts the parent node's inputs.
    """

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Tensor, ...]
    attributes: Attributes = ()
    body: Graph | None = None

    def __getitem__(self, name: str) -> AttributeValue:
        """The attribute called `name`; raises KeyError when the node has none."""
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no attribute {name!r}")

    def get(self, name: str, default: AttributeValue = None) -> AttributeValue:
        """The attribute called `name`, or `default`."""
        return dict(self.attributes).get(name, default)

    def integer(self, name: str) -> int:
        """The attribute called `name`, an integer; raises ShapeMismatch where it is none."""
        value = self[name]
        if not isinstance(value, int):
            raise ShapeMismatch(f"{self.op}: attribute {name!r} must be an integer, not {value!r}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """The attribute called `name`, a tuple of integers; raises ShapeMismatch where it is none."""
        value = self[name]
        if not isinstance(value, tuple) or None in value:
            raise ShapeMismatch(f"{self.op}: attribute {name!r} must be a tuple of integers, not {value!r}")
        return tuple(item for item in value if item is not None)

    @property
    def is_input(self) -> bool:
        """Whether it names a tensor that the program is given."""
        return self.op == "input"  # by name: these predicates are what others ask in its place

    @property
    def is_constant(self) -> bool:
        """Whether it is an exact number."""
        return self.op == "constant"  # by name: as above

    @property
    def is_iterator(self) -> bool:
        """Whether it reads the tile of a parent's operand that a block or thread has in one iteration."""
        return self.op == "input_iterator"  # by name: as above

    @property
    def is_saver(self) -> bool:
        """Whether it writes a block's or thread's tile of a parent's output."""
        return self.op == "output_saver"  # by name: as above

    @property
    def accumulation(self) -> Accumulation | None:
        """How an accumulator puts the values of all iterations together; None for other nodes, and for rescaled sums."""
        return Accumulation(str(self["combine"])) if self.op == "accumulate" else None  # by name: as above

    @property
    def output(self) -> Tensor:
        """The only output."""
        (tensor,) = self.outputs
        return tensor


def attributes_of(mapping: Mapping[str, AttributeValue]) -> Attributes:
    """Attributes in the canonical (sorted) order nodes keep them in."""
    return tuple(sorted(mapping.items()))


@singledispatch
def text_of(graph: object) -> str:
    """A graph as text; `mugraph.ir.text`, which reads graphs and so is not imported here, registers how."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order, and the values that are the graph's outputs.

    Kernel graphs: `input` nodes name the program's inputs. Block graphs: up to three `grid` dimensions and a
    for-loop of `loop` iterations (1 = no loop); outputs are `output_saver` nodes, in the order of the parent's
    outputs. Thread graphs: `block` dimensions (threads) and their own `loop`.
    """

    level: Level
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    loop: int = 1

    def tensor(self, value: Value) -> Tensor:
        """The tensor a value stands for."""
        return self.nodes[value.node].outputs[value.output]

    @property
    def output_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the outputs, in order."""
        return tuple(self.tensor(value) for value in self.outputs)

    def inputs(self) -> tuple[Node, ...]:
        """The `input` nodes (kernel level) or `input_iterator` nodes (below), in order."""
        return tuple(node for node in self.nodes if node.is_input or node.is_iterator)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of a kernel graph's inputs, in order."""
        return tuple(str(node["name"]) for node in self.nodes if node.is_input)

    @property
    def constants(self) -> frozenset[int]:
        """Indices of the inputs of a kernel graph that do not change between calls, as weights do, so that they may be packed."""
        return frozenset(index for index, node in enumerate(self.nodes) if node.is_input and node.get("constant"))

    def with_constants(self, names: Collection[str]) -> Graph:
        """The same kernel graph, of whose inputs those called so, and no others, do not change between calls."""

        def marked(node: Node) -> Node:
            # by name: an attribute of inputs, which is no operator
            others = {name: value for name, value in node.attributes if name != "constant"}
            return replace(node, attributes=attributes_of(others | ({"constant": 1} if node["name"] in names else {})))

        return self.with_nodes(tuple(marked(node) if node.is_input else node for node in self.nodes), self.outputs)

    def users(self, value: Value) -> tuple[int, ...]:
        """Indices of the nodes that read `value`."""
        return tuple(index for index, node in enumerate(self.nodes) if value in node.inputs)

    def needed(self) -> frozenset[int]:
        """Indices of the nodes that some output depends on, outputs included."""
        needed = {value.node for value in self.outputs}
        for index in reversed(range(len(self.nodes))):
            if index in needed:
                needed.update(value.node for value in self.nodes[index].inputs)
        return frozenset(needed)

    def kernels(self) -> tuple[Node, ...]:
        """A kernel graph's nodes that launch work: all but inputs, constants and views."""
        return tuple(node for node in self.nodes if node.op not in FREE)

    def operator_count(self) -> int:
        """Operators of a block graph as the search limits count them, thread graphs inlined.

        Iterators and computations count; savers, views, constants and scalings by constants do not.
        """
        constants = {Value(index) for index, node in enumerate(self.nodes) if node.is_constant}
        count = 0
        for node in self.nodes:
            if node.body is not None:
                count += node.body.operator_count() - len(node.body.inputs())
            elif node.is_iterator or (node.op not in FREE and constants.isdisjoint(node.inputs)):
                count += 1
        return count

    def walk(self) -> Iterator[tuple[Graph, Node]]:
        """Every node at every level, with the graph it stands in, outermost first."""
        for node in self.nodes:
            yield self, node
            if node.body is not None:
                yield from node.body.walk()

    def with_nodes(self, nodes: tuple[Node, ...], outputs: tuple[Value, ...]) -> Graph:
        """The same graph (level, grid, loop) with other nodes and outputs."""
        return replace(self, nodes=nodes, outputs=outputs)

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        """The graph's text; of a long one the beginning, and how much more there is (`print` shows all of it)."""
        lines = str(self).splitlines()
        if len(lines) <= _REPR_LINES:
            return "\n".join(lines)
        return "\n".join([*lines[:_REPR_LINES], f"... {len(lines) - _REPR_LINES} more lines: print it to see them"])


_REPR_LINES = 40
"""A longer graph would push what was there before off a terminal."""

LOOKUP = "index_select"
"""The operator of a lookup: along dimension `dim` of its first operand, the slices at the places that its second names."""

FREE = frozenset({"input", "constant", "input_iterator", "output_saver", "reshape", "transpose", "slice", LOOKUP, "cast"})
"""Operators that launch no work at kernel level and cost no operator of the search limits."""

VIEWS = frozenset({"reshape", "transpose", "slice"})
"""Operators that only look at their operand's memory in another way."""

ACCUMULATORS = frozenset({"accumulate", "accumulate_rescaled"})
"""Operators that end the for-loop: they take one value per iteration and give one after the last."""


def owner_of(graph: Graph, value: Value) -> Value:
    """The value whose memory a value may lie in: what it is a view of."""
    node = graph.nodes[value.node]
    return owner_of(graph, node.inputs[0]) if node.op in VIEWS else value
