"""What a drawing says of each node: words in its box, the role that gives its colour, and more when one points at it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mugraph.ir.formulas import Formula, formulas
from mugraph.ir.graph import ACCUMULATORS, Graph, Level, Node, Tensor, Value
from mugraph.ir.ops import Kind, operator
from mugraph.ir.text import LOOP_NAME, axis_name, format_node, value_names
from mugraph.lower.phases import Phase, phases
from mugraph.results.words import extent

REPLICA = "φ"
MEMORY = {
    Level.KERNEL: "device memory",
    Level.THREAD: "registers",
}
"""Where a level's tensors live, whatever they are lowered to (paper, section 2)."""

_WHEN = {
    Phase.BEFORE: "the same in every iteration: done once before the for-loop",
    Phase.BODY: "in every iteration of the for-loop",
    Phase.AFTER: "after the for-loop",
}
# by name: these say in one word what they do to a tensor, which moves nothing
_VIEWS = frozenset({"reshape", "transpose"})
_LONGEST = 30
"""Characters of one line in a box; the rest is seen by pointing at it."""


class Role(StrEnum):
    """What a node does, as far as colours tell."""

    DATA = "data"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    ACCUMULATOR = "accumulator"
    GRAPH = "graph"


ROLE_WORDS = {
    Role.DATA: "data: inputs, outputs, views",
    Role.ELEMENTWISE: "element by element",
    Role.REDUCTION: "products and reductions",
    Role.ACCUMULATOR: "accumulators of the for-loop",
    Role.GRAPH: "graph-defined operators",
}


@dataclass(frozen=True, slots=True)
class Label:
    """The first line of `lines` names the operator, `name` its result; `hover` is shown when one points at the box."""

    role: Role
    name: str
    lines: tuple[str, ...]
    hover: str


@dataclass(frozen=True, slots=True)
class Operands:
    """What the iterators of a body read: a name and a formula for each operand of the node it belongs to."""

    names: tuple[str, ...] = ()
    formulas: tuple[Formula, ...] = ()


class Labels:
    """The labels of a graph's nodes; `around` says what its iterators read."""

    def __init__(self, graph: Graph, around: Operands = Operands()) -> None:
        self.graph, self.around = graph, around
        self.names = [_given_name(node) or name for node, name in zip(graph.nodes, value_names(graph), strict=True)]
        self._formulas = formulas(graph, self.names, around.formulas)
        self._when = phases(graph) if graph.level is Level.BLOCK and graph.loop > 1 else None

    def is_inlined(self, index: int) -> bool:
        """Whether a node is a constant that is written into the boxes of its readers."""
        node, users = self.graph.nodes[index], self.graph.users(Value(index))
        inlined = node.is_constant and Value(index) not in self.graph.outputs
        return inlined and all(self.graph.nodes[user].body is None for user in users)

    def is_folded(self, index: int) -> bool:
        """Whether a node only looks at a tensor in another shape or order, which is told of the arrow that it is a part of."""
        return self.graph.nodes[index].op in _VIEWS

    def seen_through(self, value: Value) -> Value:
        """What a view is a view of; any other value itself."""
        while self.is_folded(value.node):
            value = self.graph.nodes[value.node].inputs[0]
        return value

    def label(self, index: int) -> Label:
        """The label of node `index`."""
        node = self.graph.nodes[index]
        lines = (self._title(node), *self._details(node))
        return Label(_role(node), self.names[index], tuple(map(_clipped, lines)), self._hover(index))

    def output(self, number: int) -> Label:
        """The label of an output of a kernel graph."""
        value = self.graph.outputs[number]
        name = "output" if len(self.graph.outputs) == 1 else f"output {number}"
        return Label(Role.DATA, name, (name, str(self.graph.tensor(value))), f"{name} of the program\n{self.value_hover(value)}")

    def operands(self, index: int) -> Operands:
        """What the body of node `index` reads."""
        inputs = self.graph.nodes[index].inputs
        return Operands(
            tuple(self._reference(value) for value in inputs),
            tuple(self._formulas[value.node][value.output] for value in inputs),
        )

    def value_hover(self, value: Value) -> str:
        """A tensor that an arrow carries, and how it is looked at."""
        words = f"{self._name(value)}: {_tensor_words(self.graph.tensor(value))}"
        while self.is_folded(value.node):
            words += f"\n{format_node(self.graph, value.node)}"
            value = self.graph.nodes[value.node].inputs[0]
        return words

    def _name(self, value: Value) -> str:
        return f"{self.names[value.node]}.{value.output}" if value.output else self.names[value.node]

    def _reference(self, value: Value) -> str:
        """A tensor as the level below speaks of it: by what it is a tile of, or by the operator that makes it."""
        node = self.graph.nodes[value.node]
        if node.is_input:
            return self.names[value.node]
        if node.is_iterator:
            return self._operand(node)
        return f"{self._title(node) if node.body is not None else node.op} {self._name(value)}"

    def _operand(self, node: Node) -> str:
        operand = node["operand"]
        if isinstance(operand, int) and operand < len(self.around.names):
            return self.around.names[operand]
        return f"operand {operand}"

    def _title(self, node: Node) -> str:
        if node.is_input:
            return str(node["name"])
        if node.is_iterator:
            return self._operand(node)
        if node.is_saver:
            return "output"
        if node.is_constant:
            return str(node["value"])
        if node.body is not None:
            return "kernel" if self.graph.level is Level.KERNEL else "thread graph"
        return node.op + self._constants(node)

    def _constants(self, node: Node) -> str:
        """The operands as far as they are constants: `(·, 1/4096)`."""
        known = [str(self.graph.nodes[v.node]["value"]) if self.is_inlined(v.node) else "·" for v in node.inputs]
        return f"({', '.join(known)})" if any(text != "·" for text in known) else ""

    def _details(self, node: Node) -> list[str]:
        details = []
        if node.body is not None:
            details.append(extent(node.body) if node.body.level is Level.BLOCK else _operator_names(node.body))
        types = [str(tensor) for tensor in node.outputs]
        details.append(types[0] if len(types) == 1 else f"{len(types)} outputs")
        maps = _maps(node, self.graph)
        return [*details, maps] if maps else details

    def _hover(self, index: int) -> str:
        node = self.graph.nodes[index]
        known = [f"input {self.names[index]}"] if node.is_input else [format_node(self.graph, index)]
        lines = known + [_tensor_words(tensor) for tensor in node.outputs]
        lines += [f"= {formula.text}" for formula in self._formulas[index] if formula.text != self.names[index]]
        if self._when is not None and not node.is_saver:
            lines.append(_WHEN[self._when[index]] if node.op not in ACCUMULATORS else "collects over the for-loop")
        return "\n".join(lines)


def _given_name(node: Node) -> str | None:
    return str(node["name"]) if node.is_input else None


def _role(node: Node) -> Role:
    if node.body is not None:
        return Role.GRAPH
    row = operator(node.op)
    if node.op in ACCUMULATORS:
        return Role.ACCUMULATOR
    if row.kind is Kind.DATA:
        return Role.DATA
    return Role.ELEMENTWISE if row.elementwise else Role.REDUCTION


def _operator_names(body: Graph) -> str:
    shown = (node for node in body.nodes if not (node.is_iterator or node.is_saver or node.is_constant))
    return ", ".join(node.op for node in shown)


def _maps(node: Node, graph: Graph) -> str:
    """The imap and fmap of an iterator, or the omap of a saver: `x→1 i→0`; the replica dimension is φ."""
    dims = node.get("imap" if node.is_iterator else "omap", ())
    pairs = [(axis_name(position), dim) for position, dim in enumerate(dims if isinstance(dims, tuple) else ())]
    if node.is_iterator and graph.loop > 1:
        fmap = node.get("fmap")
        pairs.append((LOOP_NAME, fmap if isinstance(fmap, int) else None))
    return "  ".join(f"{axis}→{REPLICA if dim is None else dim}" for axis, dim in pairs)


def _tensor_words(tensor: Tensor) -> str:
    """A tensor and its size. Where a block's tile lies, and in which type, is decided by lowering, and no part of the graph."""
    where = "" if tensor.level is Level.BLOCK else f" in {MEMORY[tensor.level]}"
    return f"{tensor}, {bytes_words(tensor.bytes)}{where}"


def bytes_words(count: int) -> str:
    """A size in binary units: `512 B`, `64 KiB`, `1.5 MiB`."""
    size, units = float(count), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    for larger in units:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.4g} {unit}"


def _clipped(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
