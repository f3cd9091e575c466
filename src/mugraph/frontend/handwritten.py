"""muGraphs that somebody wrote: read, checked against Definition 2.1 and the device, and put in the place of a program."""

from __future__ import annotations

from dataclasses import replace

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.ir.graph import Graph, Level, Node, Value
from mugraph.ir.text import parse_graph
from mugraph.ir.validity import MemoryLimits, check


def in_place_of(program: Graph, written: str | Graph, device: MemoryLimits) -> Graph:
    """The muGraph `written`, valid on the device, with the inputs of `program` in their order.

    Its inputs are those of the program of the same name, or if it has others, those at the same places. Raises InvalidInput for
    what is no kernel graph, with line and column of the text at fault, InvalidGraph naming the clause and the node that breaks
    it, and ShapeMismatch where inputs or outputs are not the program's.
    """
    graph = parse_graph(written) if isinstance(written, str) else written
    if not isinstance(graph, Graph) or graph.level is not Level.KERNEL:
        what = f"a {graph.level} graph" if isinstance(graph, Graph) else f"a {type(graph).__name__}"
        raise InvalidInput(f"a muGraph that takes the place of a program is a kernel graph, or the text of one, not {what}")
    check(graph, device)
    _check_outputs(program, graph)
    return _reading(program, graph)


def _check_outputs(program: Graph, graph: Graph) -> None:
    wanted = [(tensor.shape, tensor.dtype) for tensor in program.output_tensors]
    if wanted != [(tensor.shape, tensor.dtype) for tensor in graph.output_tensors]:
        ours, theirs = (", ".join(map(str, each.output_tensors)) for each in (graph, program))
        raise ShapeMismatch(f"the muGraph returns {ours}, and the program {theirs}; return tensors like these, in this order")


def _reading(program: Graph, graph: Graph) -> Graph:
    """The graph with the input nodes of the program in front, in their order, and all else behind."""
    sources = {name: Value(number) for number, name in enumerate(program.input_names)}
    inputs = [node for node in graph.nodes if node.is_input]
    if not all(node["name"] in sources for node in inputs):
        if len(inputs) != len(sources):
            theirs, ours = ", ".join(graph.input_names), ", ".join(sources)
            raise ShapeMismatch(f"the muGraph reads {theirs}, and the program {ours}; give its inputs these names")
        sources = dict(zip(graph.input_names, sources.values(), strict=True))
    nodes, place = list(program.inputs()), dict[int, int]()
    for index, node in enumerate(graph.nodes):
        if node.is_input:
            place[index] = sources[str(node["name"])].node
            _check_input(node, nodes[place[index]])
        else:
            place[index] = len(nodes)
            nodes.append(replace(node, inputs=tuple(Value(place[value.node], value.output) for value in node.inputs)))
    return graph.with_nodes(tuple(nodes), tuple(Value(place[value.node], value.output) for value in graph.outputs))


def _check_input(given: Node, wanted: Node) -> None:
    if (given.output.shape, given.output.dtype) != (wanted.output.shape, wanted.output.dtype):
        raise ShapeMismatch(
            f"input {given['name']} of the muGraph is {given.output}, and the program's {wanted['name']} is {wanted.output}; "
            "write the muGraph for these sizes, or give example inputs of its own"
        )
