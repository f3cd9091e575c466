"""Reading the text of muGraphs: recursive descent over tokens (the grammar is shown in `mugraph.ir.text`).

It settles syntax and names only; whether the graph is valid is for `mugraph.ir.validity.check` to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import AttributeValue, Graph, Layout, Level, Node, Tensor, Value, attributes_of
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.ir.tokens import Cursor, Token, tokenize

LOOP_NAME = "i"
REPLICA = "phi"
KEYWORDS = frozenset({"return"})

_GRAPHS = {f"{level}_graph": level for level in Level}
_T = TypeVar("_T")


def axis_name(position: int) -> str:
    """What the dimension at `position` of a grid or block is called."""
    return ("x", "y", "z")[position] if position < 3 else f"d{position}"


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
