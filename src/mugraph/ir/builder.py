"""Building graphs node by node, with every operator checked against its row as it is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mugraph.errors import InvalidGraph, UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import LOOKUP, AttributeValue, Graph, Level, Node, Tensor, Value, attributes_of
from mugraph.ir.ops import GRAPH_DEFINED, Scope, apply_call, operator
from mugraph.ir.scalar import Scalar


class GraphBuilder:
    """Collects nodes of one graph; `add` infers shapes and raises ShapeMismatch where an operator's rule is broken."""

    def __init__(self, level: Level, grid: tuple[int, ...] = (), block: tuple[int, ...] = (), loop: int = 1) -> None:
        self.level, self.grid, self.block, self.loop = level, grid, block, loop
        self.nodes: list[Node] = []

    def tensor(self, value: Value) -> Tensor:
        """The tensor a value stands for."""
        return self.nodes[value.node].outputs[value.output]

    def append(self, node: Node) -> Value:
        """Add a finished node; its first output."""
        self.nodes.append(node)
        return Value(len(self.nodes) - 1)

    def add(self, op: str, *inputs: Value, **attributes: AttributeValue) -> Value:
        """Apply the operator `op` to values of this graph."""
        row = operator(op)
        if self.level not in row.levels:
            raise InvalidGraph(f"clause 1 (operator specification): {op} cannot stand at {self.level} level")
        tensors = [self.tensor(value) for value in inputs]
        call = apply_call(op, tensors, attributes, Scope(self.grid or self.block, self.loop))
        return self.append(Node(op, inputs, (row.infer(call, tensors, self.level),), attributes_of(attributes)))

    def input(self, name: str, shape: Sequence[int], dtype: DType) -> Value:
        """An input of the program (kernel level)."""
        return self.add("input", name=name, shape=tuple(shape), dtype=dtype)

    def constant(self, value: int | float | Scalar, dtype: DType) -> Value:
        """An exact scalar, of rank 0; one beside what is only stored is of fp32."""
        return self.add("constant", value=Scalar.of(value), dtype=dtype.of_arithmetic if dtype.is_stored else dtype)

    def iterator(self, operand: int, source: Tensor, imap: tuple[int | None, ...], fmap: int | None) -> Value:
        """Read the parent's operand number `operand`, cut by the grid (`imap`) and the for-loop (`fmap`)."""
        attributes = attributes_of({"operand": operand, "imap": imap, "fmap": fmap})
        row = operator("input_iterator")
        call = apply_call("input_iterator", [source], dict(attributes), Scope(self.grid or self.block, self.loop))
        return self.append(Node("input_iterator", (), (row.infer(call, [source], self.level),), attributes))

    def graph_defined(self, body: Graph, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """Apply a graph of the next level; one value per output of the body."""
        outputs = tuple(Tensor(tensor.shape, tensor.dtype, self.level) for tensor in body.output_tensors)
        first = self.append(Node(GRAPH_DEFINED, tuple(inputs), outputs, (), body))
        return tuple(Value(first.node, index) for index in range(len(outputs)))

    def extend(self, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
        """Add the nodes of a kernel graph, its inputs being these values; its outputs."""
        operands = iter(inputs)
        moved: list[Value] = []
        """For each node, its first output."""
        for node in graph.nodes:
            if node.is_input:
                moved.append(next(operands))
            else:
                read = tuple(Value(moved[value.node].node, moved[value.node].output + value.output) for value in node.inputs)
                moved.append(self.append(replace(node, inputs=read)))
        return [Value(moved[value.node].node, moved[value.node].output + value.output) for value in graph.outputs]

    def build(self, outputs: Sequence[Value]) -> Graph:
        """The finished graph; raises UnsupportedOperator for outputs of integers."""
        if any(self.tensor(value).dtype.is_index for value in outputs):
            raise UnsupportedOperator(f"integers are read by {LOOKUP} alone, and are no output; return them beside the program")
        return Graph(self.level, tuple(self.nodes), tuple(outputs), self.grid, self.block, self.loop)
