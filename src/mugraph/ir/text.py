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

Reading is by recursive descent over tokens. It settles syntax and names only; whether the graph is valid is for
`mugraph.ir.validity.check` to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import AttributeValue, Graph, Layout, Level, Node, Tensor, Value, attributes_of, text_of
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.ir.scalar import Scalar
from mugraph.ir.tokens import Cursor, Token, tokenize

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
    # by name: the grammar writes the maps of iterators and savers in braces
    if op not in ("input_iterator", "output_saver"):
        return ()
    is_iterator = op == "input_iterator"  # by name: as above
    dims = attributes.pop("imap" if is_iterator else "omap", ())
    pairs = [(axis_name(position), dim) for position, dim in enumerate(dims if isinstance(dims, tuple) else ())]
    fmap = attributes.pop("fmap", None)
    if is_iterator and (loop != 1 or fmap is not None):
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


LOOP_NAME = "i"
REPLICA = "phi"
KEYWORDS = frozenset({"return"})

_GRAPHS = {f"{level}_graph": level for level in Level}
_T = TypeVar("_T")


def axis_name(position: int) -> str:
    """What the dimension at `position` of a grid or block is called."""
    return ("x", "y", "z")[position] if position < 3 else f"d{position}"


# by name: a line of the text says some attributes by its own form
def implied_attributes(op: str, name: str, outputs: Sequence[Tensor]) -> dict[str, AttributeValue]:
    """Attributes of an operator that a line says by the name and type of what it makes."""
    attributes: dict[str, AttributeValue] = {"name": name} if op == "input" else {}
    if outputs and op in ("input", "constant", "cast"):
        attributes["dtype"] = outputs[0].dtype
    if outputs and op in ("input", "reshape"):
        attributes["shape"] = outputs[0].shape
    return attributes


def parse_graph(text: str) -> Graph:
    """The graph a text stands for; raises InvalidInput with line and column where the text breaks the grammar."""
    parser = _Parser(tokenize(text))
    head = parser.expect("name", "kernel_graph, block_graph or thread_graph", _GRAPHS)
    graph = parser.graph(_GRAPHS[head.text], None)
    parser.expect("end", "the end of the text")
    return graph


class _Parser(Cursor):
    """Every method reads one construct of the grammar and moves past it."""

    # --- graphs ---

    def graph(self, level: Level, operands: Mapping[str, int] | None) -> Graph:
        grid, block, loop = self._extent()
        scope = _Scope(level, operands or {})
        self.punctuation("{")
        while not (self.at("return") and not self.at(":", 1)):
            self._node(scope)
        self.take()
        outputs = self.separated(lambda: self._reference(scope))
        closing = self.peek()
        self.punctuation("}")
        graph = Graph(level, tuple(scope.nodes), tuple(outputs), grid, block, loop)
        if scope.marked and (wrong := sorted(scope.marked ^ loop_nodes(graph))):
            name, lacks = list(scope.names)[wrong[0]], wrong[0] not in scope.marked
            place = f"{name} is inside and has none" if lacks else f"{name} has one and is not inside"
            raise closing.fail(f"the bars do not mark exactly the nodes inside the for-loop of this graph: {place}")
        return graph

    def _extent(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        sizes: dict[str, tuple[int, ...]] = {}
        while not self.at("{"):
            keyword = self.expect("name", "grid(...), block(...), loop(...) or '{'", {"grid", "block", "loop"})
            if keyword.text in sizes:
                raise keyword.fail(f"{keyword.text} is given twice")
            sizes[keyword.text] = self._axis_sizes(keyword.text == "loop")
        return sizes.get("grid", ()), sizes.get("block", ()), sizes.get("loop", (1,))[0]

    def _axis_sizes(self, loop: bool) -> tuple[int, ...]:
        """`(x=4, y=2)`, or `(i=16)` for the loop."""
        sizes: list[int] = []

        def entry() -> None:
            name = LOOP_NAME if loop else axis_name(len(sizes))
            self.expect("name", f"dimension {name}", {name})
            self.punctuation("=")
            sizes.append(self.integer())

        opening = self.peek()
        self.listed("(", entry, ")")
        if not sizes or (loop and len(sizes) > 1):
            raise opening.fail("a for-loop has one dimension, a grid or block at least one")
        return tuple(sizes)

    # --- nodes ---

    def _node(self, scope: _Scope) -> None:
        inside = self.accept("|")
        name = self.peek()
        if name.kind not in ("name", "value"):
            raise name.error("a node, such as %3: fp32[4] = exp(%2), or return")
        self.take()
        self.punctuation(":")
        outputs = self.separated(lambda: self._tensor(scope.level))
        self.punctuation("=")
        node = self._operation(scope, name, tuple(outputs))
        scope.define(name, node, inside)

    # by name: the grammar has words of its own for iterators, constants and maps
    def _operation(self, scope: _Scope, name: Token, outputs: tuple[Tensor, ...]) -> Node:
        op = self.expect("name", "an operator")
        if op.text in _GRAPHS:
            inner = scope.level.inner
            if inner is not _GRAPHS[op.text]:
                raise op.error("an operator" + (f" or a {inner}_graph" if inner else ""))
            return self._graph_defined(scope, inner, outputs)
        attributes = implied_attributes(op.text, name.text, outputs)
        inputs: list[Value] = []
        if op.text == "input_iterator":
            attributes["operand"] = self._operand(scope)
        elif self.at("("):
            inputs = self.listed("(", lambda: self._reference(scope), ")")
        if op.text == "constant":
            attributes["value"] = self.scalar()
        attributes.update(self._attributes())
        if op.text in ("input_iterator", "output_saver"):
            attributes.update(self._maps(op.text))
        return Node(op.text, tuple(inputs), outputs, attributes_of(attributes))

    def _graph_defined(self, scope: _Scope, level: Level, outputs: tuple[Tensor, ...]) -> Node:
        names: list[str] = []

        def operand() -> Value:
            start = self.position
            value = self._reference(scope)
            names.append("".join(token.text for token in self.tokens[start : self.position]))
            return value

        inputs = self.listed("(", operand, ")") if self.at("(") else []
        attributes = self._attributes()
        unique = {text: number for number, text in enumerate(names) if names.count(text) == 1}
        return Node(GRAPH_DEFINED, tuple(inputs), outputs, attributes_of(attributes), self.graph(level, unique))

    def _operand(self, scope: _Scope) -> int:
        self.punctuation("(")
        token = self.take()
        text = token.text
        if token.kind == "value" and self.accept("."):
            text += f".{self.integer()}"
        self.punctuation(")")
        if token.kind == "operand":
            return int(text[1:])
        if text not in scope.operands:
            raise token.error("an operand of this graph, by its name outside or as #0, #1, ...")
        return scope.operands[text]

    def _reference(self, scope: _Scope) -> Value:
        token = self.take()
        if token.kind not in ("name", "value") or token.text not in scope.names:
            raise token.error("a value defined above")
        output = self.integer() if self.accept(".") else 0
        return Value(scope.names[token.text], output)

    def _tensor(self, level: Level) -> Tensor:
        name = self.expect("name", f"a type such as fp32[16, 64] ({', '.join(DType)})", set(DType))
        shape = tuple(self.listed("[", self.integer, "]"))
        layout = None
        if self.at("layout"):
            self.take()
            layout = Layout(tuple(self.listed("(", self.integer, ")")))
        return Tensor(shape, DType(name.text), level, layout)

    # --- attributes ---

    def _attributes(self) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {}
        while self.peek().kind == "name" and self.at("=", 1):
            name = self.take()
            self.take()
            if name.text in attributes:
                raise name.fail(f"attribute {name.text} is given twice")
            attributes[name.text] = self._literal()
        return attributes

    def _literal(self) -> AttributeValue:
        token = self.peek()
        if self.at("("):
            return tuple(self.listed("(", self._dimension, ")"))
        if self.at("exact") and self.at("(", 1):
            self.take()
            (scalar,) = self.listed("(", self.scalar, ")")
            return scalar
        self.take()
        match token.kind:
            case "number":
                return int(token.text)
            case "string":
                return token.unquoted()
            case "name":
                return None if token.text == "none" else DType(token.text) if token.text in set(DType) else token.text
        raise token.error("a number, a word, a string or a tuple")

    # by name: the grammar writes the maps of iterators and savers in braces
    def _maps(self, op: str) -> dict[str, AttributeValue]:
        """The braces of an iterator (imap and fmap) or saver (omap); an fmap that is left out is the replica dimension."""
        dims: list[int | None] = []
        fmaps: list[int | None] = []

        def entry() -> None:
            if op == "input_iterator" and not fmaps and self.accept(LOOP_NAME):
                target = fmaps
            else:
                name, target = axis_name(len(dims)), dims
                self.expect("name", f"dimension {name}", {name})
            self.expect("arrow", "'<->'")
            target.append(self._dimension(REPLICA))

        self.listed("{", entry, "}")
        return {"imap": tuple(dims), "fmap": fmaps[0] if fmaps else None} if op == "input_iterator" else {"omap": tuple(dims)}

    def _dimension(self, absent: str = "none") -> int | None:
        return None if self.accept(absent) else self.integer()


class _Scope:
    """The names and nodes of the graph being read, and the names its operands have outside."""

    def __init__(self, level: Level, operands: Mapping[str, int]) -> None:
        self.level, self.operands = level, operands
        self.nodes: list[Node] = []
        self.names: dict[str, int] = {}
        self.marked: set[int] = set()

    def define(self, name: Token, node: Node, inside: bool) -> None:
        if name.text in self.names:
            raise name.fail(f"{name.text} is defined twice")
        self.names[name.text] = len(self.nodes)
        if inside:
            self.marked.add(len(self.nodes))
        self.nodes.append(node)
