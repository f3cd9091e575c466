"""Thread graphs by rules: chains of elementwise operators become one thread-level graph-defined operator (paper, 4.2).

Inside a thread graph intermediates live in registers and never visit shared memory. A producer joins its consumer
when every rule of `RULES` allows it; since it then has that one consumer, thread graphs are trees. Constants
are copied into every thread graph that reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Graph, Level, Node, Shape, Value
from mugraph.ir.ops import GRAPH_DEFINED, OPERATORS, apply_call
from mugraph.lower.phases import Phase, phases


@dataclass(frozen=True, slots=True)
class Link:
    """A value on its way from the node that makes it to one that reads it, both inside one block graph."""

    producer: Node
    consumer: Node
    readers: int
    producer_phase: Phase
    consumer_phase: Phase


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that a link must meet for its producer to join its consumer's thread graph."""

    name: str
    allows: Callable[[Link], bool]


def is_elementwise(node: Node) -> bool:
    """Whether a node computes each output element from one element of each operand."""
    return node.op == "cast" or (node.op in OPERATORS and OPERATORS[node.op].elementwise)


def _is_cheap_to_repeat(link: Link) -> bool:
    """Whether the consumer reads each element once, or spreads it along trailing dimensions only, where a loop hoists it."""
    narrow, wide = link.producer.output.shape, link.consumer.output.shape
    if _spreads_trailing(narrow, wide):
        return True
    row = OPERATORS[link.producer.op]
    return row.flops(apply_call(row.name, (), {}), (1,)) <= 1


def _spreads_trailing(narrow: Shape, wide: Shape) -> bool:
    padded = (1,) * (len(wide) - len(narrow)) + narrow
    kept = len(wide)
    while kept and padded[kept - 1] == 1:
        kept -= 1
    return padded[:kept] == wide[:kept]


RULES = (
    Rule("both ends are elementwise", lambda link: is_elementwise(link.producer) and is_elementwise(link.consumer)),
    Rule("the producer has one reader", lambda link: link.readers == 1),
    Rule("both ends run equally often", lambda link: link.producer_phase is link.consumer_phase),
    Rule("broadcasting repeats no expensive work", _is_cheap_to_repeat),
)


def construct(graph: Graph, rules: tuple[Rule, ...] = RULES) -> Graph:
    """The same muGraph with thread graphs in place of elementwise chains; results are unchanged.

    A kernel graph is rebuilt with every block graph in it constructed; a block graph is fused itself.
    """
    if graph.level is Level.BLOCK:
        return _Fusion(graph, rules).run()
    nodes = tuple(node if node.body is None else replace(node, body=construct(node.body, rules)) for node in graph.nodes)
    return graph.with_nodes(nodes, graph.outputs)


class _Fusion:
    def __init__(self, graph: Graph, rules: tuple[Rule, ...]) -> None:
        self.graph = graph
        self.rules = rules
        self.phases = phases(graph)
        self.joined = {index for index, node in enumerate(graph.nodes) if self.joins(index, node)}

    def joins(self, index: int, node: Node) -> bool:
        """Whether a node disappears into the thread graph of its reader."""
        readers = self.graph.users(Value(index))
        if len(readers) != 1 or Value(index) in self.graph.outputs:
            return False
        (reader,) = readers
        link = Link(node, self.graph.nodes[reader], len(readers), self.phases[index], self.phases[reader])
        return all(rule.allows(link) for rule in self.rules)

    def run(self) -> Graph:
        nodes: list[Node] = []
        moved: dict[int, int] = {}
        for index, node in enumerate(self.graph.nodes):
            if index in self.joined or self.only_copied(index, node):
                continue
            members = self.members(index) if is_elementwise(node) else []
            if len(members) > 1:
                node = self.thread_node(members)
            inputs = tuple(Value(moved[value.node], value.output) for value in node.inputs)
            moved[index] = len(nodes)
            nodes.append(replace(node, inputs=inputs))
        outputs = tuple(Value(moved[value.node], value.output) for value in self.graph.outputs)
        return self.graph.with_nodes(tuple(nodes), outputs)

    def only_copied(self, index: int, node: Node) -> bool:
        """Whether a node is a constant that only thread graphs read."""
        return node.op == "constant" and all(is_elementwise(self.graph.nodes[user]) for user in self.graph.users(Value(index)))

    def members(self, root: int) -> list[int]:
        """The nodes of the thread graph that ends in `root`, in topological order."""
        found = {root}
        stack = [root]
        while stack:
            for value in self.graph.nodes[stack.pop()].inputs:
                if value.node in self.joined or self.graph.nodes[value.node].op == "constant":
                    found.add(value.node)
                    stack.append(value.node)
        return sorted(found)

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
