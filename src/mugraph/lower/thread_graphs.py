"""Thread graphs by rules: elementwise operators, and a reduction that reads them, become one thread-level operator (paper, 4.2).

Inside a thread graph intermediates live in registers and never visit shared memory. A producer joins the thread graph of its
readers when every rule of `RULES` allows each of these links and all readers are in that one graph, so nothing but its result
leaves it. The result is that of an elementwise operator, or the sum or maximum that the last of them is reduced to. Constants
are copied into every thread graph that reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Graph, Level, Node, Shape, Value
from mugraph.ir.ops import GRAPH_DEFINED, OPERATORS, is_reduction
from mugraph.lower.phases import Phase, phases

_LONGEST = 4096
"""Operators of an expression that is written out as a tree: a value that is read twice counts twice."""


@dataclass(frozen=True, slots=True)
class Link:
    """A value on its way from the node that makes it to one that reads it, both inside one block graph.

    `operations` are those of the consumer's expression if all that may join it does.
    """

    producer: Node
    consumer: Node
    operations: int
    producer_phase: Phase
    consumer_phase: Phase


@dataclass(frozen=True, slots=True)
class FusionRule:
    """A condition that a link must meet for its producer to join its consumer's thread graph."""

    name: str
    allows: Callable[[Link], bool]


def is_elementwise(node: Node) -> bool:
    """Whether a node computes each output element from one element of each operand."""
    # by name: a cast is elementwise, but has no C expression, since buffers convert what they hold
    return node.op == "cast" or (node.op in OPERATORS and OPERATORS[node.op].elementwise)


def _is_cheap_to_repeat(link: Link) -> bool:
    """Whether the consumer reads each element once, or spreads it along trailing dimensions only, where a loop hoists it."""
    narrow, wide = link.producer.output.shape, link.consumer.output.shape
    if is_reduction(link.consumer.op) or _spreads_trailing(narrow, wide):
        return True
    return OPERATORS[link.producer.op].cost <= 1


def _spreads_trailing(narrow: Shape, wide: Shape) -> bool:
    padded = (1,) * (len(wide) - len(narrow)) + narrow
    kept = len(wide)
    while kept and padded[kept - 1] == 1:
        kept -= 1
    return padded[:kept] == wide[:kept]


_ALWAYS = (
    FusionRule("the producer is elementwise", lambda link: is_elementwise(link.producer)),
    FusionRule("both ends run equally often", lambda link: link.producer_phase is link.consumer_phase),
    FusionRule("broadcasting repeats no expensive work", _is_cheap_to_repeat),
    FusionRule("the expression can be written out", lambda link: link.operations <= _LONGEST),
)
CHAINS = (FusionRule("the consumer is elementwise", lambda link: is_elementwise(link.consumer)), *_ALWAYS)
"""Rules of thread graphs without reductions."""
RULES = (
    FusionRule(
        "the consumer is elementwise or a reduction", lambda link: is_elementwise(link.consumer) or is_reduction(link.consumer.op)
    ),
    *_ALWAYS,
)


def construct(graph: Graph, rules: tuple[FusionRule, ...] = RULES) -> Graph:
    """The same muGraph with thread graphs in place of what the rules let join; results are unchanged.

    A kernel graph is rebuilt with every block graph in it constructed; a block graph is fused itself.
    """
    if graph.level is Level.BLOCK:
        return _Fusion(graph, rules).run()
    nodes = tuple(node if node.body is None else replace(node, body=construct(node.body, rules)) for node in graph.nodes)
    return graph.with_nodes(nodes, graph.outputs)


class _Fusion:
    def __init__(self, graph: Graph, rules: tuple[FusionRule, ...]) -> None:
        self.graph = graph
        self.rules = rules
        self.phases = phases(graph)
        self.operations = _operations(graph)
        self.roots: dict[int, int] = {}
        for index in reversed(range(len(graph.nodes))):
            self.roots[index] = self.root(index)
        self.joined = {index for index, root in self.roots.items() if root != index}

    def root(self, index: int) -> int:
        """The node whose thread graph a node is part of, given those of its readers: itself where it is the result."""
        readers = self.graph.users(Value(index))
        roots = {self.roots[reader] for reader in readers}
        if len(roots) != 1 or Value(index) in self.graph.outputs or not all(self.allowed(index, reader) for reader in readers):
            return index
        return roots.pop()

    def allowed(self, index: int, reader: int) -> bool:
        """Whether every rule allows a node to join one that reads it."""
        nodes = self.graph.nodes
        link = Link(nodes[index], nodes[reader], self.operations[reader], self.phases[index], self.phases[reader])
        return all(rule.allows(link) for rule in self.rules)

    def run(self) -> Graph:
        nodes: list[Node] = []
        moved: dict[int, int] = {}
        for index, node in enumerate(self.graph.nodes):
            if index in self.joined or self.only_copied(index, node):
                continue
            members = self.members(index) if is_elementwise(node) or is_reduction(node.op) else []
            if len(members) > 1:
                node = self.thread_node(members)
            inputs = tuple(Value(moved[value.node], value.output) for value in node.inputs)
            moved[index] = len(nodes)
            nodes.append(replace(node, inputs=inputs))
        outputs = tuple(Value(moved[value.node], value.output) for value in self.graph.outputs)
        return self.graph.with_nodes(tuple(nodes), outputs)

    def only_copied(self, index: int, node: Node) -> bool:
        """Whether a node is a constant that only thread graphs read."""
        return node.is_constant and all(is_elementwise(self.graph.nodes[user]) for user in self.graph.users(Value(index)))

    def members(self, root: int) -> list[int]:
        """The nodes of the thread graph that ends in `root`, in topological order."""
        members = {index for index in self.joined if self.roots[index] == root} | {root}
        read = {value.node for index in members for value in self.graph.nodes[index].inputs}
        return sorted(members | {index for index in read if self.graph.nodes[index].is_constant})

    def thread_node(self, members: list[int]) -> Node:
        builder = GraphBuilder(Level.THREAD)
        operands: list[Value] = []
        values: dict[Value, Value] = {}
        for index in members:
            node = self.graph.nodes[index]
            for value in node.inputs:
                if value not in values:
                    values[value] = builder.iterator(len(operands), self.graph.tensor(value), (), None)
                    operands.append(value)
            values[Value(index)] = builder.add(node.op, *(values[value] for value in node.inputs), **dict(node.attributes))
        body = builder.build([builder.add("output_saver", values[Value(members[-1])], omap=())])
        return Node(GRAPH_DEFINED, tuple(operands), self.graph.nodes[members[-1]].outputs, (), body)


def _operations(graph: Graph) -> list[int]:
    """For each node the operators of its expression, were all elementwise operators in it written out where they are read.

    Where these are too many, nothing joins the node, which is then one operator of those that read it.
    """
    lengths: list[int] = []
    for node in graph.nodes:
        read = [value.node for value in node.inputs if is_elementwise(graph.nodes[value.node])]
        lengths.append(1 + sum(lengths[index] if lengths[index] <= _LONGEST else 1 for index in read))
    return lengths
