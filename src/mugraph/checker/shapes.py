"""The form of a saved graph, and the shapes it declares, inferred again: everything else relies on them.

Whatever another reader could understand differently is refused: operands that nobody reads, bodies of operators that have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mugraph.checker.files import Json, Rejected
from mugraph.checker.interpreter import FUNCTIONS

Shape = tuple[int, ...]

_INSIDE = {"kernel": "block", "block": "thread"}
_UNUSED = {"kernel": ("grid", "block", "loop"), "block": ("block",), "thread": ("grid",)}
"""What of a graph's sizes says nothing at a level."""
_NOTHING = {"grid": [], "block": [], "loop": 1}
_DTYPES = frozenset({"fp16", "bf16", "fp32", "fp64"})
_TYPED = frozenset({"input", "constant", "cast"})
"""Operators that say the type of what they give."""
_OPERANDS = {
    **dict.fromkeys(("input", "constant", "input_iterator"), 0),
    **dict.fromkeys(("add", "sub", "mul", "div", "matmul", "accumulate_rescaled"), 2),
    "concat_matmul": 4,
}
"""How many operands an operator has, 1 unless it is listed."""
_BROADCAST = FUNCTIONS | {"add", "sub", "mul", "div", "exp", "square", "sqrt", "cast"}


def check_shapes(graph: Json, name: str) -> None:
    """Raise Rejected, naming file and operator, unless the graph is well formed and every tensor has the shape and a type that
    its operator gives it."""
    try:
        _check(graph, "kernel", [])
    except Rejected as error:
        raise Rejected(f"{name}: {error}") from None


def _check(graph: Json, level: str, operands: Sequence[Shape]) -> list[Shape]:
    _check_level(graph, level)
    shapes: dict[tuple[int, int], Shape] = {}
    for index, node in enumerate(graph["nodes"]):
        reads = [shapes[i, j] for i, j in node["inputs"]]
        _check_node(node, level)
        try:
            inferred = _check_body(node, level, reads) if "body" in node else [_inferred(graph, node, reads, operands)]
        except (ValueError, ZeroDivisionError) as error:
            raise Rejected(f"operator {node['op']} does not fit its operands ({error})") from None
        declared = [tuple(output["shape"]) for output in node["outputs"]]
        if inferred != declared or any(size < 1 for shape in declared for size in shape):
            raise Rejected(f"operator {node['op']} has shape {inferred}, not {declared}")
        shapes.update({(index, number): shape for number, shape in enumerate(inferred)})
    return [shapes[i, j] for i, j in graph["outputs"]]


def _check_body(node: Json, level: str, reads: list[Shape]) -> list[Shape]:
    if level not in _INSIDE:
        raise Rejected(f"a {level} graph has no graphs inside")
    return _check(node["body"], _INSIDE[level], reads)


def _check_level(graph: Json, level: str) -> None:
    if graph["level"] != level or any(graph[part] != _NOTHING[part] for part in _UNUSED[level]):
        raise Rejected(f"a {level} graph does not have the form of one")


def _check_node(node: Json, level: str) -> None:
    op, types = node["op"], [output["dtype"] for output in node["outputs"]]
    numbers = [*(i for pair in node["inputs"] for i in pair), *(size for output in node["outputs"] for size in output["shape"])]
    lists = [*node["inputs"], *(output["shape"] for output in node["outputs"])]
    if not (isinstance(node["attributes"], dict) and {*map(type, lists)} <= {list} and {*map(type, numbers)} <= {int}):
        raise Rejected(f"operator {op!r}: attributes, operands or shapes are not of the form they are saved in")
    if ("body" in node) != (op == "graph_defined"):
        raise Rejected(f"operator {op!r}: a body belongs to graph_defined, and to nothing else")
    if "body" not in node and (len(types) != 1 or len(node["inputs"]) != _OPERANDS.get(op, 1)):
        raise Rejected(f"operator {op!r} has {len(node['inputs'])} operands and {len(types)} results")
    if op == "input" and level != "kernel":
        raise Rejected("inputs stand in kernel graphs only")
    said = [node["attributes"]["dtype"]["dtype"]] if op in _TYPED else types
    if said != types or not _DTYPES.issuperset(types):
        raise Rejected(f"operator {op!r} gives {', '.join(map(str, types))}, which is no type or not the one it says")


def _inferred(graph: Json, node: Json, reads: list[Shape], operands: Sequence[Shape]) -> Shape:
    op, attributes = node["op"], node["attributes"]
    grid = graph["grid"] or graph["block"]
    if op in _BROADCAST:
        return tuple(np.broadcast_shapes(*reads))
    match op:
        case "input":
            return tuple(attributes["shape"])
        case "constant":
            return ()
        case "input_iterator":
            parts = [*zip(grid, attributes["imap"], strict=True), (graph["loop"], attributes["fmap"])]
            return _divided(operands[attributes["operand"]], parts)
        case "output_saver":
            return _multiplied(reads[0], list(zip(grid, attributes["omap"], strict=True)))
        case "accumulate" if attributes["combine"] == "concat":
            return _multiplied(reads[0], [(graph["loop"], attributes["dim"])])
        case "accumulate":
            return reads[0]
        case "accumulate_rescaled":
            if len(reads[0]) != len(reads[1]) or np.broadcast_shapes(*reads) != reads[0]:
                raise ValueError(f"exponents of shape {list(reads[1])} do not shift {list(reads[0])}")
            return reads[0]
        case "matmul":
            return _matmul(*reads)
        case "concat_matmul":
            w, x, y, z = reads
            return tuple(np.broadcast_shapes(_matmul(w, y), _matmul(x, z)))
        case "sum" | "max":
            return _divided(reads[0], [(attributes["size"], attributes["dim"])])
        case "repeat":
            return _multiplied(reads[0], [(attributes["times"], attributes["dim"])])
        case "transpose":
            return tuple(reads[0][dim] for dim in _permutation(attributes["permutation"], len(reads[0])))
        case "reshape" if math.prod(attributes["shape"]) == math.prod(reads[0]):
            return tuple(attributes["shape"])
    raise ValueError("unknown operator or wrong attributes")


def _divided(shape: Shape, parts: Sequence[tuple[int, int | None]]) -> Shape:
    sizes = list(shape)
    for count, dim in parts:
        if dim is not None:
            sizes[_within(dim, shape)], rest = divmod(sizes[dim], count)
            if rest:
                raise ValueError(f"dimension {dim} of {list(shape)} does not divide by {count}")
    return tuple(sizes)


def _multiplied(shape: Shape, parts: Sequence[tuple[int, int]]) -> Shape:
    sizes = list(shape)
    for count, dim in parts:
        sizes[_within(dim, shape)] *= count
    return tuple(sizes)


def _within(dim: int, shape: Shape) -> int:
    if not 0 <= dim < len(shape):
        raise ValueError(f"there is no dimension {dim} in {list(shape)}")
    return dim


def _permutation(dims: list[int], rank: int) -> list[int]:
    if sorted(dims) != list(range(rank)):
        raise ValueError(f"{dims} is no permutation")
    return dims


def _matmul(x: Shape, y: Shape) -> Shape:
    if len(x) < 2 or len(y) < 2 or x[-1] != y[-2]:
        raise ValueError(f"no matrix product of {list(x)} and {list(y)}")
    return (*np.broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1])
