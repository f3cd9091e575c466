"""muGraphs as text, in the spirit of the paper's figures; `parse_graph` reads back exactly what `format_graph` prints.

    kernel_graph {
      X: fp32[16, 64] = input
      W: fp32[64, 32] = input
      %2: fp32[16, 32] = block_graph(X, W) grid(x=4) loop(i=2) {
        | %0: fp32[16, 32] = input_iterator(X) {x<->phi, i<->1}
        | %1: fp32[32, 8] = input_iterator(W) {x<->1, i<->0}
        | %2: fp32[16, 8] = matmul(%0, %1)
          %3: fp32[16, 8] = accumulate(%2) combine=sum
          %4: fp32[16, 32] = output_saver(%3) {x<->1}
        return %4
      }
      return %2
    }

A line is a node: its name, the tensors it makes, its operator, operands and attributes. Names are those of the
inputs, or % and the node's position; %2.1 is the second output of %2. Braces after an iterator or saver hold its imap and
fmap, or its omap: phi is the replica dimension. A body's iterators name what they read as the graph around does (#0 is
operand 0, where the same value is passed twice or nothing is around). The bar marks the nodes inside the for-loop.
Attributes that repeat the type (the shape of a reshape, the dtype of a cast) are left out.

Whoever writes such a text may give nodes other names; what stands between // and the end of a line is a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import AttributeValue, Graph, Value, text_of
from mugraph.ir.parse import KEYWORDS, LOOP_NAME, REPLICA, axis_name, implied_attributes, parse_graph
from mugraph.ir.scalar import Scalar

__all__ = ["format_graph", "format_node", "parse_graph"]

Path = tuple[int, ...]
"""A node by its position in its graph, behind those of the nodes around it."""
_NAME = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


@text_of.register
def format_graph(graph: Graph, comments: Mapping[Path, str] = MappingProxyType({})) -> str:
    """The graph and all bodies in it, one node per line, without a final newline; `comments` end the lines of nodes."""
    return "\n".join((f"{_header(graph)} {{", *_body_lines(graph, None, comments, ()), "}"))


def format_node(graph: Graph, index: int) -> str:
    """One node of the graph, in one line: of a body, only its header."""
    return _line(graph, index, value_names(graph), None)


def value_names(graph: Graph) -> list[str]:
    """What each node's first output is called: an input by its name where that is a plain word of its own."""
    names = [f"%{index}" for index in range(len(graph.nodes))]
    taken: set[str] = set()
    for index, node in enumerate(graph.nodes):
        name = node.get("name") if node.is_input else None
        if isinstance(name, str) and _NAME.fullmatch(name) and name not in taken | KEYWORDS:
            names[index] = name
            taken.add(name)
    return names


def _body_lines(graph: Graph, operands: Sequence[str] | None, comments: Mapping[Path, str], path: Path) -> Iterator[str]:
    names, inside = value_names(graph), loop_nodes(graph)
    for index, node in enumerate(graph.nodes):
        mark = "" if not inside else "| " if index in inside else "  "
        line = f"  {mark}{_line(graph, index, names, operands)}"
        comment = f"  // {comments[*path, index]}" if (*path, index) in comments else ""
        if node.body is None:
            yield f"{line}{comment}"
            continue
        yield f"{line} {{{comment}"
        passed = [_reference(names, value) for value in node.inputs]
        yield from (f"  {mark and '  '}{inner}" for inner in _body_lines(node.body, passed, comments, (*path, index)))
        yield f"  {mark and '  '}}}"
    yield f"  return {', '.join(_reference(names, value) for value in graph.outputs)}"


def _header(graph: Graph) -> str:
    """Level and extent of a graph: `block_graph grid(x=4) loop(i=2)`."""
    words = [f"{graph.level}_graph"]
    for keyword, sizes in (("grid", graph.grid), ("block", graph.block)):
        if sizes:
            words.append(f"{keyword}({', '.join(f'{axis_name(position)}={size}' for position, size in enumerate(sizes))})")
    if graph.loop != 1:
        words.append(f"loop({LOOP_NAME}={graph.loop})")
    return " ".join(words)


def _line(graph: Graph, index: int, names: Sequence[str], operands: Sequence[str] | None) -> str:
    node = graph.nodes[index]
    types = ", ".join(map(str, node.outputs))
    inputs = [_reference(names, value) for value in node.inputs]
    implied = implied_attributes(node.op, names[index], node.outputs)
    attributes = {key: value for key, value in node.attributes if key not in implied or implied[key] != value}
    if node.is_iterator:
        inputs.append(_operand_name(attributes.pop("operand", None), operands))
    operator, *extent = (node.op,) if node.body is None else _header(node.body).split(" ", 1)
    words = [operator + (f"({', '.join(inputs)})" if inputs else "")]
    if node.is_constant:
        words.append(str(attributes.pop("value", "?")))
    maps = _maps(node.op, attributes, graph.loop)
    words += [f"{key}={_literal(value)}" for key, value in attributes.items()]
    return f"{names[index]}: {types} = {' '.join((*words, *maps, *extent))}"


def _reference(names: Sequence[str], value: Value) -> str:
    name = names[value.node] if 0 <= value.node < len(names) else f"%{value.node}"
    return f"{name}.{value.output}" if value.output else name


def _operand_name(operand: AttributeValue, operands: Sequence[str] | None) -> str:
    if operands and isinstance(operand, int) and 0 <= operand < len(operands) and operands.count(operands[operand]) == 1:
        return operands[operand]
    return f"#{operand}"


def _maps(op: str, attributes: dict[str, AttributeValue], loop: int) -> tuple[str, ...]:
    """The braces of an iterator or saver; what they say is taken out of `attributes`."""
    if op not in ("input_iterator", "output_saver"):
        return ()
    dims = attributes.pop("imap" if op == "input_iterator" else "omap", ())
    pairs = [(axis_name(position), dim) for position, dim in enumerate(dims if isinstance(dims, tuple) else ())]
    fmap = attributes.pop("fmap", None)
    if op == "input_iterator" and (loop != 1 or fmap is not None):
        pairs.append((LOOP_NAME, fmap if isinstance(fmap, int) else None))
    return (f"{{{', '.join(f'{axis}<->{REPLICA if dim is None else dim}' for axis, dim in pairs)}}}",)


def _literal(value: AttributeValue) -> str:
    match value:
        case None:
            return "none"
        case Scalar():
            return f"exact({value})"
        case DType():
            return str(value)
        case tuple():
            return f"({', '.join(map(_literal, value))})"
        case str():
            return value if _NAME.fullmatch(value) and value not in {"none", "exact", *DType} else json.dumps(value)
        case int():
            return str(value)
