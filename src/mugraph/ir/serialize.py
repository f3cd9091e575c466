"""muGraphs as JSON: {"mugraph": 1, "graph": {...}}, written plainly and read strictly.

A reader of saved results must not trust them: every key and type is checked, with the path to what is wrong in the
error, and the graph is then checked against Definition 2.1, which infers all shapes again. What is read would be written the
same: constants that are not in lowest terms and attributes that no operator reads are refused. `mugraph.checker.form` says the
same for itself, and both are tried with the same mutants of saved graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from mugraph.errors import InvalidInput
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Attributes, AttributeValue, Graph, Layout, Level, Node, Tensor, Value, attributes_of
from mugraph.ir.ops import GRAPH_DEFINED, OPERATORS
from mugraph.ir.scalar import Scalar
from mugraph.ir.validity import check

VERSION = 1

Json = dict[str, object]
_T = TypeVar("_T")


def graph_to_json(graph: Graph) -> Json:
    """The graph and all bodies in it as objects that `json.dump` takes."""
    return {"mugraph": VERSION, "graph": _graph_object(graph)}


def graph_from_json(document: object) -> Graph:
    """What `graph_to_json` wrote. Raises InvalidInput naming the key at fault, and InvalidGraph for an invalid graph."""
    top = _Reader(document, "$")
    top.keys("mugraph", "graph")
    version = top["mugraph"].integer()
    if version != VERSION:
        raise top["mugraph"].fail(f"format version {version} is not {VERSION}; save the graph again with this mugraph")
    graph = _read_graph(top["graph"])
    check(graph)
    return graph


# --- writing -----------------------------------------------------------------------------------------------------------


def _graph_object(graph: Graph) -> Json:
    return {
        "level": str(graph.level),
        "grid": list(graph.grid),
        "block": list(graph.block),
        "loop": graph.loop,
        "nodes": [_node_object(node) for node in graph.nodes],
        "outputs": [list(value) for value in graph.outputs],
    }


def _node_object(node: Node) -> Json:
    written: Json = {
        "op": node.op,
        "inputs": [list(value) for value in node.inputs],
        "outputs": [_tensor_object(tensor) for tensor in node.outputs],
        "attributes": {name: _attribute_object(value) for name, value in node.attributes},
    }
    if node.body is not None:
        written["body"] = _graph_object(node.body)
    return written


def _tensor_object(tensor: Tensor) -> Json:
    written: Json = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    if tensor.layout is not None:
        written["layout"] = list(tensor.layout.order)
    return written


def _attribute_object(value: AttributeValue) -> object:
    match value:
        case Scalar():
            return {"exact": str(value)}
        case DType():
            return {"dtype": str(value)}
        case tuple():
            return list(value)
    return value


# --- reading -----------------------------------------------------------------------------------------------------------


class _Reader:
    """A part of the document with the path that leads to it; each method insists on one type."""

    def __init__(self, value: object, path: str) -> None:
        self.value, self.path = value, path

    def fail(self, why: str) -> InvalidInput:
        return InvalidInput(f"{self.path}: {why}")

    def keys(self, *required: str, optional: tuple[str, ...] = ()) -> None:
        """Insist on an object with these keys and no others."""
        present = self.mapping().keys()
        for key in required:
            if key not in present:
                raise self.fail(f"key {key!r} is missing")
        for key in present:
            if key not in (*required, *optional):
                raise self.fail(f"unknown key {key!r}; known keys are {', '.join((*required, *optional))}")

    def mapping(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        return self.value

    def __getitem__(self, key: str) -> _Reader:
        return _Reader(self.mapping()[key], f"{self.path}.{key}")

    def items(self) -> list[_Reader]:
        if not isinstance(self.value, list):
            raise self._expected("an array")
        return [_Reader(item, f"{self.path}[{position}]") for position, item in enumerate(self.value)]

    def integer(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._expected("an integer")
        return self.value

    def integers(self) -> tuple[int, ...]:
        return tuple(item.integer() for item in self.items())

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self._expected("a string")
        return self.value

    def scalar(self) -> Scalar:
        """{"exact": text}, with the text that is written for the number."""
        self.keys("exact")
        exact = self["exact"].parsed(Scalar.parse)
        if str(exact) != self["exact"].string():
            raise self["exact"].fail(f"{self['exact'].string()!r} is written {str(exact)!r}")
        return exact

    def dtype(self) -> DType:
        """{"dtype": name}."""
        self.keys("dtype")
        return self["dtype"].parsed(DType.parse)

    def dims(self) -> tuple[int | None, ...]:
        return tuple(None if item.value is None else item.integer() for item in self.items())

    def dim_or_none(self) -> int | None:
        return None if self.value is None else self.integer()

    def parsed(self, parse: Callable[[str], _T]) -> _T:
        """A string that `parse` understands."""
        text = self.string()
        try:
            return parse(text)
        except InvalidInput as error:
            raise self.fail(str(error)) from None

    def _expected(self, what: str) -> InvalidInput:
        return self.fail(f"expected {what}, found {type(self.value).__name__}")


def _read_graph(reader: _Reader, wanted: Level | None = None) -> Graph:
    reader.keys("level", "grid", "block", "loop", "nodes", "outputs")
    level = reader["level"].parsed(_level)
    if wanted is not None and level is not wanted:
        raise reader["level"].fail(f"expected a {wanted} graph here, found a {level} graph")
    nodes: list[Node] = []
    for item in reader["nodes"].items():
        nodes.append(_read_node(item, level, nodes))
    return Graph(
        level,
        tuple(nodes),
        tuple(_read_value(item, nodes) for item in reader["outputs"].items()),
        reader["grid"].integers(),
        reader["block"].integers(),
        reader["loop"].integer(),
    )


def _read_node(reader: _Reader, level: Level, earlier: list[Node]) -> Node:
    reader.keys("op", "inputs", "outputs", "attributes", optional=("body",))
    op, body = reader["op"].string(), None
    if "body" in reader.mapping():
        if level.inner is None:
            raise reader["body"].fail(f"a node of a {level} graph has no body")
        body = _read_graph(reader["body"], level.inner)
    return Node(
        op,
        tuple(_read_value(item, earlier) for item in reader["inputs"].items()),
        tuple(_read_tensor(item, level) for item in reader["outputs"].items()),
        _read_attributes(reader["attributes"], op),
        body,
    )


def _read_value(reader: _Reader, nodes: list[Node]) -> Value:
    """A [node, output] pair that names a value made before."""
    pair = reader.integers()
    if len(pair) != 2:
        raise reader.fail("expected [node, output]")
    node, output = pair
    if not 0 <= node < len(nodes) or not 0 <= output < len(nodes[node].outputs):
        raise reader.fail(f"no earlier node makes the value {list(pair)}")
    return Value(node, output)


def _read_tensor(reader: _Reader, level: Level) -> Tensor:
    reader.keys("shape", "dtype", optional=("layout",))
    layout = Layout(reader["layout"].integers()) if "layout" in reader.mapping() else None
    return Tensor(reader["shape"].integers(), reader["dtype"].parsed(DType.parse), level, layout)


_FORMS: dict[str, Callable[[_Reader], AttributeValue]] = {
    **dict.fromkeys(("name", "combine"), _Reader.string),
    **dict.fromkeys(("operand", "dim", "size", "times"), _Reader.integer),
    **dict.fromkeys(("shape", "permutation", "omap"), _Reader.integers),
    "imap": _Reader.dims,
    "fmap": _Reader.dim_or_none,
    "dtype": _Reader.dtype,
    "value": _Reader.scalar,
}
"""Of the attributes of the table's own rows; others are read as what they look like."""


def _read_attributes(reader: _Reader, op: str) -> Attributes:
    row = OPERATORS.get(op)
    if row is not None:
        reader.keys(*row.attributes, optional=row.optional)
    elif op == GRAPH_DEFINED:
        reader.keys()
    return attributes_of({name: _FORMS.get(name, _read_attribute)(reader[name]) for name in reader.mapping()})


def _read_attribute(reader: _Reader) -> AttributeValue:
    match reader.value:
        case str():
            return reader.string()
        case list():
            return reader.dims()
        case {"exact": _}:
            return reader.scalar()
        case {"dtype": _}:
            return reader.dtype()
    return reader.dim_or_none()


def _level(text: str) -> Level:
    try:
        return Level(text)
    except ValueError:
        raise InvalidInput(f"unknown level {text!r}; use one of {', '.join(Level)}") from None
