"""Near-miss mutants of programs and muGraphs: one small mistake each, of the kinds that compilers and their authors make.

A mutant is a valid muGraph with the signature of the original. Whether it computes something else is not decided here:
swapping the operands of a symmetric expression changes nothing. `mugraph.testing.oracle` decides that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from mugraph.errors import MugraphError
from mugraph.ir.editing import Edit, Site, edited
from mugraph.ir.graph import ACCUMULATORS, AttributeValue, Graph, Level, Tensor, Value
from mugraph.ir.ops import operator
from mugraph.ir.scalar import Scalar
from mugraph.ir.validity import check

PAPER_P, PAPER_Q = 227, 113
"""The paper's primes. x**227 is x modulo 227, and x**12657 is x modulo both, since 12656 is a multiple of 226 and of 112."""

_POWERS = (PAPER_P, 12657)
_FAMILIES = (
    ("add", "sub", "mul", "div", "maximum", "less", "equal"),
    ("exp", "square", "sqrt", "silu", "relu"),
    ("sum", "max"),
    ("exp", "exp2", "expm1"),
    ("log", "log2", "log1p"),
    ("sin", "cos", "tan", "sinh", "tanh"),
    ("asin", "acos", "atan", "atanh", "asinh"),
    ("cosh", "acosh", "exp"),
    ("erf", "erfc", "tanh"),
    ("floor", "ceil", "trunc", "round", "truth"),
    ("atan2", "fmod", "pow", "copysign", "less", "div"),
    ("truth", "abs", "infinity"),
)
"""Operators that are taken for each other."""

Change = tuple[str, Edit]
"""What is wrong, in words, and what stands in the node's place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kernel graph with one mistake: its `kind`, and the `change` that was made to which node."""

    kind: str
    change: str
    graph: Graph


def mutants(graph: Graph, rng: np.random.Generator | None = None) -> Iterator[Mutant]:
    """All valid mutants of a kernel graph that have its inputs and output shapes; in an order drawn by `rng`, if given."""
    shapes = [tensor.shape for tensor in graph.output_tensors]
    attempts = list(_attempts(graph, ()))
    for number in range(len(attempts)) if rng is None else rng.permutation(len(attempts)):
        kind, change, mutated = attempts[number]
        try:
            mutant = mutated()
            if mutant != graph and [tensor.shape for tensor in mutant.output_tensors] == shapes:
                check(mutant)
                yield Mutant(kind, change, mutant)
        except MugraphError:
            continue  # its shapes do not fit, or it is no muGraph


def _attempts(graph: Graph, sources: Sequence[Tensor]) -> Iterator[tuple[str, str, Callable[[], Graph]]]:
    """What may be wrong with a graph of any level that reads `sources`, and what makes it so; raises MugraphError where it does
    not fit."""
    for index, node in enumerate(graph.nodes):
        for kind, mistakes in _MISTAKES.items():
            for text, edit in mistakes(graph, index):
                yield kind, f"%{index} {node.op}: {text}", partial(edited, graph, {index: edit}, sources)
        if node.body is not None:
            for kind, change, body in _attempts(node.body, [graph.tensor(value) for value in node.inputs]):
                yield kind, f"%{index}, {change}", partial(_with_body, graph, index, body, sources)
    for first, second in itertools.combinations(range(len(graph.outputs)), 2):
        outputs = list(graph.outputs)
        outputs[first], outputs[second] = outputs[second], outputs[first]
        reordered = partial(graph.with_nodes, graph.nodes, tuple(outputs))
        yield "outputs reordered", f"outputs {first} and {second}", reordered


def _with_body(graph: Graph, index: int, made: Callable[[], Graph], sources: Sequence[Tensor]) -> Graph:
    """A graph with another body in one node."""
    body = made()
    return edited(graph, {index: lambda site: site.builder.graph_defined(body, site.operands)[0]}, sources)


# --- mistakes: for a node of a graph, what may stand in its place ------------------------------------------------------


def _other_operator(graph: Graph, index: int) -> Iterator[Change]:
    op = graph.nodes[index].op
    others = dict.fromkeys(other for family in _FAMILIES if op in family for other in family if other != op)
    yield from ((other, _as_operator(other)) for other in others)


def _as_operator(op: str) -> Edit:
    return lambda site: site.builder.add(op, *site.operands, **dict(site.node.attributes))


def _operands_swapped(graph: Graph, index: int) -> Iterator[Change]:
    node = graph.nodes[index]
    # by name: parts in another order are mistakes of their own
    if node.body is not None or len(node.inputs) not in (2, 3) or operator(node.op).commutative or node.op == "concat":
        return
    for first, second in itertools.combinations(range(len(node.inputs)), 2):
        yield f"operands {first} and {second} swapped", _swapped(first, second)


def _swapped(first: int, second: int) -> Edit:
    def edit(site: Site) -> Value:
        operands = list(site.operands)
        operands[first], operands[second] = operands[second], operands[first]
        return site.copy(operands=tuple(operands))

    return edit


def _operator_dropped(graph: Graph, index: int) -> Iterator[Change]:
    """Scales, roots and activations left out, operands of sums and products forgotten."""
    for position, value in enumerate(graph.nodes[index].inputs):
        if graph.tensor(value).shape == graph.nodes[index].outputs[0].shape:
            yield f"replaced by operand {position}", _operand(position)


def _operand(position: int) -> Edit:
    return lambda site: site.operands[position]


def _wrong_operand(graph: Graph, index: int) -> Iterator[Change]:
    """Another value of the same shape read instead: the nearest before the node."""
    for position, value in enumerate(graph.nodes[index].inputs):
        alike = (
            Value(other)
            for other in reversed(range(index))
            if other != value.node and graph.nodes[other].outputs[0].shape == graph.tensor(value).shape
        )
        for stranger in itertools.islice(alike, 2):
            yield f"operand {position} is %{stranger.node}", _reading(position, stranger)


def _reading(position: int, stranger: Value) -> Edit:
    """`stranger` is a value of the original; up to the node that is edited, mutants number theirs alike."""
    return lambda site: site.copy(operands=(*site.operands[:position], stranger, *site.operands[position + 1 :]))


def _wrong_constant(graph: Graph, index: int) -> Iterator[Change]:
    value = graph.nodes[index].get("value")
    if not isinstance(value, Scalar):
        return
    exact = value.value
    near = {
        "numerator + 1": Fraction(exact.numerator + 1, exact.denominator),
        "denominator + 1": Fraction(exact.numerator, exact.denominator + 1),
        "denominator - 1": Fraction(exact.numerator, max(1, exact.denominator - 1)),
        "negated": -exact,
        "doubled": 2 * exact,
        "plus the paper's p": exact + PAPER_P,
        "plus the paper's q": exact + PAPER_Q,
        "plus the paper's p q": exact + PAPER_P * PAPER_Q,
    }
    scalars = {text: Scalar(other, value.root) for text, other in near.items()}
    scalars["root taken or dropped"] = Scalar(exact, not value.root)
    for text, other in scalars.items():
        yield from _attribute(graph, index, "value", other, text)


def _wrong_axis(graph: Graph, index: int) -> Iterator[Change]:
    node = graph.nodes[index]
    permutation = node.get("permutation")
    if isinstance(permutation, tuple):
        for other in itertools.islice(itertools.permutations(permutation), 1, 24):
            yield from _attribute(graph, index, "permutation", other)
    elif node.get("dim") is not None:
        for dim in range(len(graph.tensor(node.inputs[0]).shape)):
            yield from _attribute(graph, index, "dim", dim)


def _wrong_length(graph: Graph, index: int) -> Iterator[Change]:
    """Sums and maxima over groups that are too short or too long."""
    size = graph.nodes[index].get("size")
    if isinstance(size, int):
        for other in sorted({1, size // 2, size // 3, size - 1, size + 1, 2 * size} - {0}):
            yield from _attribute(graph, index, "size", other)


def _wrong_part(graph: Graph, index: int) -> Iterator[Change]:
    """Slices that start one position off, in another order or with another step; parts put together in another order."""
    node = graph.nodes[index]
    # by name: no other operator tells positions apart
    if node.op == "slice":
        start, size, step = (node.integer(name) for name in ("start", "size", "step"))
        last = start + (size - 1) * step
        for first, stride in ((start - 1, step), (start + 1, step), (start - size, step), (start + size, step), (last, -step)):
            yield f"from {first} on in steps of {stride}", _part(first, stride)
        for stride in (step - 1, step + 1):
            yield f"in steps of {stride}", _part(start, stride)
    elif node.op == "concat":
        for first, second in itertools.combinations(range(len(node.inputs)), 2):
            yield f"parts {first} and {second} exchanged", _swapped(first, second)


def _part(start: int, step: int) -> Edit:
    return lambda site: site.copy(attributes={**dict(site.node.attributes), "start": start, "step": step})


def _wrong_condition(graph: Graph, index: int) -> Iterator[Change]:
    """Conditions that hold where they should not, or where two numbers are the same."""
    op = graph.nodes[index].op
    if op in ("less", "equal", "truth"):
        yield "negated", _negated
    if op == "less":
        yield "or equal", _or_equal


def _negated(site: Site) -> Value:
    one = site.builder.add("constant", value=Scalar.of(1), dtype=site.builder.tensor(site.copy()).dtype)
    return site.builder.add("sub", one, site.copy())


def _or_equal(site: Site) -> Value:
    return site.builder.add("add", site.copy(), site.builder.add("equal", *site.operands))


def _wrong_map(graph: Graph, index: int) -> Iterator[Change]:
    """imap, fmap and omap: every other dimension or none, one entry at a time, where there is more than one part to map."""
    node = graph.nodes[index]
    parts = graph.grid or graph.block
    for name, value in node.attributes:
        if name not in ("imap", "fmap", "omap"):
            continue
        for dim in (None, *range(len(node.output.shape))):
            if isinstance(value, tuple):
                for position in range(len(value)):
                    if parts[position] > 1:
                        yield from _attribute(graph, index, name, (*value[:position], dim, *value[position + 1 :]))
            elif graph.loop > 1:
                yield from _attribute(graph, index, name, dim)


def _wrong_accumulator(graph: Graph, index: int) -> Iterator[Change]:
    match graph.nodes[index].op:
        case "accumulate":
            yield from _attribute(graph, index, "combine", "sum")
            yield from _attribute(graph, index, "combine", "max")
        case "accumulate_rescaled":
            yield "not rescaled", lambda site: site.builder.add("accumulate", site.operands[0], combine="sum")


def _transposed(graph: Graph, index: int) -> Iterator[Change]:
    """A matrix read in the wrong order of its dimensions: its elements are there, in other places."""
    node = graph.nodes[index]
    if node.op in ("input", "input_iterator") and graph.level is not Level.THREAD:
        *_, rows, columns = (1, 1, *node.output.shape)
        if rows > 1 and columns > 1:
            yield "read in transposed order", _read_transposed


def _read_transposed(site: Site) -> Value:
    value = site.copy()
    shape = site.builder.tensor(value).shape
    last = len(shape) - 1
    flipped = site.builder.add("transpose", value, permutation=(*range(last - 1), last, last - 1))
    return site.builder.add("reshape", flipped, shape=shape)


def _power(graph: Graph, index: int) -> Iterator[Change]:
    """x**n for x, where n is 1 modulo the orders of the paper's fields."""
    op = graph.nodes[index].op
    if op not in ("constant", "output_saver", *ACCUMULATORS):
        for exponent in _POWERS if op in ("input", "input_iterator") else _POWERS[:1]:
            yield f"to the power of {exponent}", _raised(exponent)


def _raised(exponent: int) -> Edit:
    def edit(site: Site) -> Value:
        power = base = site.copy()
        for bit in bin(exponent)[3:]:
            power = site.builder.add("square", power)
            if bit == "1":
                power = site.builder.add("mul", power, base)
        return power

    return edit


def _attribute(graph: Graph, index: int, name: str, value: AttributeValue, text: str = "") -> Iterator[Change]:
    """The node with one attribute changed, unless it has that value already."""
    now = graph.nodes[index].get(name)
    if now != value:
        change = f"{name} = {value} for {now}"
        yield f"{change} ({text})" if text else change, _with_attribute(name, value)


def _with_attribute(name: str, value: AttributeValue) -> Edit:
    return lambda site: site.copy(attributes={**dict(site.node.attributes), name: value})


_MISTAKES: dict[str, Callable[[Graph, int], Iterator[Change]]] = {
    "operator swapped": _other_operator,
    "operands swapped": _operands_swapped,
    "operator dropped": _operator_dropped,
    "wrong operand": _wrong_operand,
    "wrong constant": _wrong_constant,
    "wrong axis": _wrong_axis,
    "wrong length": _wrong_length,
    "wrong part": _wrong_part,
    "wrong condition": _wrong_condition,
    "wrong map": _wrong_map,
    "wrong accumulator": _wrong_accumulator,
    "transposed input": _transposed,
    "power": _power,
}
