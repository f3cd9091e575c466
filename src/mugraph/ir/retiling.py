"""Kernels with other tiles: the same body under another grid and loop, down to one tile, which needs no kernel."""

from __future__ import annotations

from dataclasses import replace

from mugraph.errors import UnsupportedOperator
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.editing import Edit, Site, edited
from mugraph.ir.graph import ACCUMULATORS, Graph, Level, Node, Tensor, Value


def with_counts(body: Graph, grid: tuple[int, ...], loop: int, sources: list[Tensor]) -> Graph:
    """A block graph that reads `sources` under another grid and loop; reductions of whole tiles reduce the new tiles.

    Whether the new tiles compute the same is for a verifier to say. Raises MugraphError where shapes do not fit.
    """

    def whole(node: Node) -> Edit | None:
        dim, size = node.get("dim"), node.get("size")
        if not isinstance(dim, int) or not isinstance(size, int) or body.tensor(node.inputs[0]).shape[dim] != size:
            return None

        def edit(site: Site) -> Value:
            extent = site.builder.tensor(site.operands[0]).shape[dim]
            return site.copy(attributes={**dict(node.attributes), "size": extent})

        return edit

    edits = {index: edit for index, node in enumerate(body.nodes) if (edit := whole(node)) is not None}
    return edited(replace(body, grid=grid, loop=loop), edits, sources)


def untiled(graph: Graph) -> Graph:
    """The kernel graph with the body of every graph-defined operator in its place, computed in one tile.

    Whether that is the same function is for a verifier to say. Raises MugraphError where a body has no single-tile form.
    """
    builder = GraphBuilder(Level.KERNEL)
    values: dict[Value, Value] = {}
    for index, node in enumerate(graph.nodes):
        operands = [values[value] for value in node.inputs]
        if node.body is None:
            values[Value(index)] = builder.append(replace(node, inputs=tuple(operands)))
        else:
            results = _inlined(builder, node.body, operands)
            values.update((Value(index, number), result) for number, result in enumerate(results))
    return builder.build([values[value] for value in graph.outputs])


def _inlined(builder: GraphBuilder, body: Graph, operands: list[Value]) -> list[Value]:
    single = with_counts(body, (1,) * len(body.grid), 1, [builder.tensor(value) for value in operands])
    values: dict[Value, Value] = {}
    for index, node in enumerate(single.nodes):
        if node.body is not None:
            raise UnsupportedOperator("thread graphs have no single-tile form; take the muGraph before they were constructed")
        operand = node.get("operand")
        if isinstance(operand, int):
            values[Value(index)] = operands[operand]
        elif node.op in ("output_saver", *ACCUMULATORS):
            values[Value(index)] = values[node.inputs[0]]
        else:
            inputs = [values[value] for value in node.inputs]
            values[Value(index)] = builder.add(node.op, *inputs, **dict(node.attributes))
    return [values[value] for value in single.outputs]
