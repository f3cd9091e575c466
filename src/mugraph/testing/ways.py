"""Whether two muGraphs compute the same in the same way, whatever their nodes are called and in which order they stand."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mugraph.ir.graph import VIEWS, Graph, Level, Value
from mugraph.ir.ops import OPERATORS
from mugraph.lower.flattening import flattened


def way(graph: Graph, ways: dict[Hashable, int]) -> tuple[int, ...]:
    """How a kernel graph computes its outputs, as numbers that `ways` gives: operators, operands, grids, loops and maps.

    Views, types, and the order of nodes and of the operands of commutative operators make no difference, nor do thread graphs.
    """
    names: dict[Value, int] = {}
    flat = flattened(graph)
    for index, node in enumerate(flat.nodes):
        operands = [names[value] for value in node.inputs]
        if node.op == "graph_defined" and node.body is not None:
            made = _ways_of_body(node.body, operands, ways)
            names.update((Value(index, number), made[number]) for number in range(len(made)))
        else:
            names[Value(index)] = _numbered(node.op, operands, node.get("name") or node.get("value"), ways)
    return tuple(names[value] for value in flat.outputs)


def _ways_of_body(body: Graph, operands: Sequence[int], ways: dict[Hashable, int]) -> list[int]:
    names: dict[Value, int] = {}
    for index, node in enumerate(body.nodes):
        read = [names[value] for value in node.inputs]
        operand = node.get("operand")
        if isinstance(operand, int):
            said: Hashable = (node["imap"], node.get("fmap") if body.loop > 1 else None, body.grid, body.loop, body.level)
            if body.level is Level.THREAD:
                names[Value(index)] = operands[operand]
            else:
                names[Value(index)] = _numbered(node.op, [operands[operand]], said, ways)
        elif node.body is not None:
            made = _ways_of_body(node.body, read, ways)
            names.update((Value(index, number), made[number]) for number in range(len(made)))
        elif node.is_saver:
            names[Value(index)] = read[0] if body.level is Level.THREAD else _numbered(node.op, read, node["omap"], ways)
        else:
            names[Value(index)] = _numbered(node.op, read, str(node.get("value")) + str(node.get("combine")), ways)
    return [names[value] for value in body.outputs]


def _numbered(op: str, operands: Sequence[int], said: Hashable, ways: dict[Hashable, int]) -> int:
    if op in VIEWS or op == "cast":
        return operands[0]
    if op in OPERATORS and OPERATORS[op].commutative:
        operands = sorted(operands)
    return ways.setdefault((op, tuple(operands), said), len(ways))
