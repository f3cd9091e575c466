"""The form of saved graphs, before anything is computed with them: what Definition 2.1 asks of one, and nothing beyond it.

Whatever another reader could understand differently is refused: keys, attributes and operands that nobody reads, numbers of
another type, constants that are not in lowest terms, bodies of operators that have none. `shapes` infers the declared shapes and
types again: everything else relies on them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence, Set
from fractions import Fraction
from typing import Any

from mugraph.checker.lookups import INTEGERS, NEGATIVE
from mugraph.checker.operators import OPERATORS, Shape
from mugraph.checker.saved_files import Json, Rejected
from mugraph.checker.tensors import LEAST

WHOLE = ("int8", "uint8")
"""Types of whole numbers that are computed with, exactly: each is a number of every floating-point type."""
STORED = (*WHOLE, "e4m3fn", "e5m2")
"""Types of inputs alone, whose numbers are computed with in another type."""
DTYPES = ("fp16", "bf16", "fp32", "fp64", "bool", *STORED, *INTEGERS)
LARGEST = 2**48
"""Elements of a tensor: no machine holds more, and machine words count them."""
MOST_DIMS = 32
_MOST_GRID = 3
_INSIDE = {"kernel": "block", "block": "thread"}
_WITH_BODIES = tuple(_INSIDE)
_TABLE = "src/mugraph/checker/operators.py"
_ACCUMULATORS = ("accumulate", "accumulate_rescaled")
_SCALAR = re.compile(
    r"(?P<sign>-)?(?P<root>sqrt\()?(?P<numerator>\d{1,999})(?:/(?P<denominator>[1-9]\d{0,998}))?(?(root)\))", re.ASCII
)


def graph_of(document: Json, name: str) -> Json:
    """The kernel graph of a saved document. Raises Rejected, naming the file, where it does not have the form of one."""
    try:
        _keys(document, "the file", {"mugraph", "graph"})
        if not _is_integer(document["mugraph"]) or document["mugraph"] != 1:
            raise Rejected("not a graph of format 1")
        _check_graph(document["graph"], "kernel", 0)
    except Rejected as error:
        raise Rejected(f"{name}: {error}") from None
    graph: Json = document["graph"]
    return graph


def _check_graph(graph: Any, level: str, operands: int) -> None:
    """Check a graph of a level inside an operator with so many operands."""
    _keys(graph, f"a {level} graph", {"level", "grid", "block", "loop", "nodes", "outputs"})
    _check_extent(graph, level)
    _expect(isinstance(graph["nodes"], list), "nodes are a list")
    for index, node in enumerate(graph["nodes"]):
        _check_node(graph, node, index, level, operands)
    _expect(isinstance(graph["outputs"], list) and bool(graph["outputs"]), f"a {level} graph has outputs")
    for value in graph["outputs"]:
        _check_value(value, graph["nodes"])
    if level == "kernel":
        names = [node["attributes"]["name"] for node in graph["nodes"] if node["op"] == "input"]
        _expect(len({*names}) == len(names), "inputs have names of their own")
    else:
        _check_paths(graph)


def _check_extent(graph: Json, level: str) -> None:
    """Grid, block and loop are those of the level."""
    _expect(graph["level"] == level, f"a {level} graph does not have the form of one")
    for part, home in (("grid", "block"), ("block", "thread")):
        sizes = graph[part]
        _expect(_are_integers(sizes) and len(sizes) <= _MOST_GRID, f"{part} is a list of up to {_MOST_GRID} integers")
        _expect(
            all(size >= 1 for size in sizes) and (not sizes or level == home), f"a {level} graph does not have the form of one"
        )
    _expect(_is_integer(graph["loop"]) and graph["loop"] >= 1, "loop is a positive integer")
    _expect(level != "kernel" or graph["loop"] == 1, f"a {level} graph does not have the form of one")


def _check_node(graph: Json, node: Any, index: int, level: str, operands: int) -> None:
    _keys(node, "an operator", {"op", "inputs", "outputs", "attributes"}, {"body"})
    op = node["op"]
    row = OPERATORS.get(op) if isinstance(op, str) else None
    is_body = op == "graph_defined"
    _expect(row is not None or is_body, f"unknown operator {op!r}: it is not in the checker's own table, `OPERATORS` in {_TABLE}")
    _expect(level in (_WITH_BODIES if row is None else row.levels), f"operator {op!r} stands in a {level} graph")
    inputs, outputs = node["inputs"], node["outputs"]
    formed = isinstance(inputs, list) and isinstance(outputs, list)
    _expect(formed, f"operator {op!r}: operands or results are not of the form they are saved in")
    for value in inputs:
        _check_value(value, graph["nodes"][:index])
    for output in outputs:
        _check_tensor(output)
    _expect(("body" in node) == is_body, f"operator {op!r}: a body belongs to graph_defined, and to nothing else")
    _check_attributes(node, op, graph, operands)
    if row is None:
        _check_graph(node["body"], _INSIDE[level], len(inputs))
    else:
        fitting = len(outputs) == 1 and (len(inputs) == row.operands or (row.variadic and len(inputs) > row.operands))
        _expect(fitting, f"operator {op!r} has {len(inputs)} operands and {len(outputs)} results")


def _check_value(value: Any, earlier: Sequence[Json]) -> None:
    """[node, output] of an earlier node; operands and outputs both are not of the form they are saved in otherwise."""
    there = _are_integers(value) and len(value) == 2 and 0 <= value[0] < len(earlier)
    _expect(there and 0 <= value[1] < len(earlier[value[0]]["outputs"]), f"an operand or output {value!r} is not of the form")


def _check_tensor(tensor: Any) -> None:
    _keys(tensor, "a tensor", {"shape", "dtype"}, {"layout"})
    shape = tensor["shape"]
    _expect(_are_integers(shape) and len(shape) <= MOST_DIMS, "a shape is not of the form it is saved in")
    _expect(all(size >= 1 for size in shape) and math.prod(shape) <= LARGEST, f"a tensor has shape {shape}")
    _expect(_is_dtype(tensor["dtype"]), f"an operator gives {tensor['dtype']}, which is no type")
    if "layout" in tensor:
        layout = tensor["layout"]
        _expect(_are_integers(layout) and sorted(layout) == list(range(len(shape))), "a layout is an order of dimensions")


# --- attributes --------------------------------------------------------------------------------------------------------


def _check_attributes(node: Json, op: str, graph: Json, operands: int) -> None:
    attributes, row = node["attributes"], OPERATORS.get(op)
    _keys(attributes, f"attributes of {op}", *((row.attributes, row.optional) if row is not None else (frozenset(),)))
    for name, value in attributes.items():
        _expect(_FORMS[name](value), f"operator {op!r}: attributes: {name} is not of the form it is saved in")
    parts = len(graph["grid"] or graph["block"])
    if op == "input_iterator":
        _expect(0 <= attributes["operand"] < operands, f"operator {op!r} reads operand {attributes['operand']} of {operands}")
    for name in ("imap", "omap"):
        _expect(len(attributes.get(name, [0] * parts)) == parts, f"operator {op!r}: {name} does not fit the grid")
    _expect(op != "accumulate" or attributes["combine"] != "concat" or "dim" in attributes, "accumulate names no dimension")


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _are_integers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_integer, value))


def _is_positive(value: Any) -> bool:
    return _is_integer(value) and value >= 1


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and value in DTYPES


def _are_dims(value: Any) -> bool:
    return isinstance(value, list) and all(item is None or _is_integer(item) for item in value)


def _is_typed(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"dtype"} and _is_dtype(value["dtype"])


def _is_exact(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"exact"} and isinstance(value["exact"], str) and _is_least(value["exact"])


def _is_least(text: str) -> bool:
    """Whether a number is written as it is saved: in lowest terms, and as a root only where it is no rational."""
    match = _SCALAR.fullmatch(text)
    if match is None:
        return False
    number = Fraction(int(match["numerator"]), int(match["denominator"] or 1))
    written = f"sqrt({number})" if match["root"] else str(number)
    rational = all(math.isqrt(part) ** 2 == part for part in (number.numerator, number.denominator))
    if (match["root"] and rational) or (match["sign"] and not number):
        return False
    return text == (f"-{written}" if match["sign"] else written)


_FORMS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str),
    "combine": lambda value: isinstance(value, str) and value in ("sum", "max", "concat"),
    "least": lambda value: isinstance(value, str) and value in LEAST,
    "negative": lambda value: isinstance(value, str) and value in NEGATIVE,
    "value": _is_exact,
    "constant": lambda value: value == 1 and _is_integer(value),
    "dtype": _is_typed,
    "imap": _are_dims,
    "fmap": lambda value: value is None or _is_integer(value),
    **dict.fromkeys(("shape", "permutation", "omap"), _are_integers),
    **dict.fromkeys(("operand", "dim", "start", "step"), _is_integer),
    **dict.fromkeys(("size", "times"), _is_positive),
}


# --- paths -------------------------------------------------------------------------------------------------------------


def _check_paths(graph: Json) -> None:
    """Clause 3: every path ends at one saver, and passes one accumulator where there is a for-loop, or none at all."""
    nodes, outputs = graph["nodes"], [i for i, _ in graph["outputs"]]
    for index, node in enumerate(nodes):
        reads_saver = any(nodes[i]["op"] == "output_saver" for i, _ in node["inputs"])
        _expect(not reads_saver, "an output saver is read; a path ends there")
        _expect(node["op"] != "output_saver" or index in outputs, "an output saver saves what is no output")
    _expect(all(nodes[i]["op"] == "output_saver" for i in outputs), "an output passed no output saver")
    if graph["loop"] == 1 and not any(node["op"] in _ACCUMULATORS for node in nodes):
        return
    counts: list[set[int]] = []
    most: list[int] = []
    for node in nodes:
        most.append(max((most[i] for i, _ in node["inputs"]), default=0) + (node["op"] in _ACCUMULATORS))
        before = {0} if node["op"] == "input_iterator" else set().union(*(counts[i] for i, _ in node["inputs"]))
        counts.append({count + (node["op"] in _ACCUMULATORS) for count in before})
    for index in _needed(nodes, outputs):
        passed = counts[index]
        accumulates, saves = nodes[index]["op"] in _ACCUMULATORS, nodes[index]["op"] == "output_saver"
        _expect(not (accumulates and most[index] > 1), "a path passes two for-loop accumulators")
        _expect(len(passed) <= 1, "paths with and without a for-loop accumulator meet")
        _expect(not (saves and passed == {0}), "a value is saved that passed no for-loop accumulator")


def _needed(nodes: Sequence[Json], outputs: Sequence[int]) -> set[int]:
    needed = {*outputs}
    for index in reversed(range(len(nodes))):
        if index in needed:
            needed.update(i for i, _ in nodes[index]["inputs"])
    return needed


def _keys(value: Any, what: str, required: Set[str], optional: Set[str] = frozenset()) -> None:
    _expect(isinstance(value, dict), f"{what}: not of the form of an object")
    _expect(required <= value.keys() <= required | optional, f"{what}: not of the form it is saved in, by its keys")


def _expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise Rejected(complaint)


Kind = tuple[Shape, str]
"""Shape and type of a tensor."""

_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "bool": 1, **dict.fromkeys(STORED, 1), "int32": 4, "int64": 8}
_MOVING = ("index_select", "input_iterator", "output_saver", "reshape", "transpose", "repeat", "slice", "concat")
"""Operators that give booleans or whole numbers where they read such, as concatenating accumulators do."""


_NIBBLES = ("high_nibble", "low_nibble")
"""Operators that take whole numbers alone, and give such numbers."""


def check_shapes(graph: Json, name: str) -> None:
    """Raise Rejected, naming file and operator, unless every tensor of a graph of the right form has the shape and the type
    that its operator gives it."""
    try:
        _check(graph, [])
    except Rejected as error:
        raise Rejected(f"{name}: {error}") from None


def _check(graph: Json, operands: Sequence[Kind]) -> list[Kind]:
    kinds: dict[tuple[int, int], Kind] = {}
    for index, node in enumerate(graph["nodes"]):
        reads = [kinds[i, j] for i, j in node["inputs"]]
        try:
            inferred = _check(node["body"], reads) if "body" in node else [_inferred(graph, node, reads, operands)]
        except ValueError as error:
            raise Rejected(f"operator {node['op']} does not fit its operands ({error})") from None
        declared = [(tuple(output["shape"]), output["dtype"]) for output in node["outputs"]]
        if inferred != declared:
            raise Rejected(f"operator {node['op']} has shape {_text(inferred)}, not {_text(declared)}")
        kinds.update({(index, number): kind for number, kind in enumerate(inferred)})
    results = [kinds[i, j] for i, j in graph["outputs"]]
    if any(dtype in INTEGERS for _, dtype in results):
        raise Rejected("an output is a tensor of integers")
    return results


def _text(kinds: Sequence[Kind]) -> str:
    return " and ".join(f"{list(shape)} of {dtype}" for shape, dtype in kinds)


def _inferred(graph: Json, node: Json, reads: list[Kind], operands: Sequence[Kind]) -> Kind:
    op, attributes = node["op"], node["attributes"]
    sources = [operands[attributes["operand"]]] if op == "input_iterator" else reads
    for number, (shape, dtype) in enumerate(sources):
        if (dtype in INTEGERS) != (number in OPERATORS[op].integers):
            raise ValueError(f"operand {number} is {list(shape)} of {dtype}")
    shape = OPERATORS[op].shape(graph, attributes, [shape for shape, _ in sources])
    if len(shape) > MOST_DIMS or math.prod(shape) > LARGEST:
        raise ValueError(f"no machine holds a tensor of shape {list(shape)}")
    if op in _NIBBLES and sources[0][1] not in WHOLE:
        raise ValueError(f"its operand is of {sources[0][1]}")
    if "dtype" in attributes:
        dtype = attributes["dtype"]["dtype"]
        if dtype in STORED and op != "input":
            raise ValueError(f"nothing but inputs is {dtype}")
        return shape, dtype
    promoted = _promoted([source for number, source in enumerate(sources) if number not in OPERATORS[op].integers])
    moves = op in (*_MOVING, *_NIBBLES) or attributes.get("combine") == "concat"
    return shape, promoted if promoted not in ("bool", *STORED) or moves else "fp32"


def _promoted(kinds: Sequence[Kind]) -> str:
    """The type of a result, as in PyTorch: numbers without dimensions do not count beside tensors."""
    types = {dtype for shape, dtype in kinds if shape} or {dtype for _, dtype in kinds}
    types = types - {"bool", *STORED} or types
    if types == {"fp16", "bf16"} or len(types & set(STORED)) > 1:
        return "fp32"
    return max(types, key=lambda dtype: (_BYTES[dtype], dtype in STORED))
