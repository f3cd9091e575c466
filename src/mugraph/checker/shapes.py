"""The shapes and types that a saved graph declares, inferred again: everything else relies on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mugraph.checker.files import Json, Rejected
from mugraph.checker.form import LARGEST, MOST_DIMS
from mugraph.checker.interpreter import FUNCTIONS

Shape = tuple[int, ...]
Kind = tuple[Shape, str]
"""Shape and type of a tensor."""

_TYPED = frozenset({"input", "constant", "cast"})
"""Operators that say the type of what they give."""
_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
_BROADCAST = FUNCTIONS | {"add", "sub", "mul", "div", "exp", "square", "sqrt", "cast"}


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
    return [kinds[i, j] for i, j in graph["outputs"]]


def _text(kinds: Sequence[Kind]) -> str:
    return " and ".join(f"{list(shape)} of {dtype}" for shape, dtype in kinds)


def _inferred(graph: Json, node: Json, reads: list[Kind], operands: Sequence[Kind]) -> Kind:
    op, attributes = node["op"], node["attributes"]
    sources = [operands[attributes["operand"]]] if op == "input_iterator" else reads
    shape = _shape(graph, op, attributes, [shape for shape, _ in sources])
    if len(shape) > MOST_DIMS or math.prod(shape) > LARGEST:
        raise ValueError(f"no machine holds a tensor of shape {list(shape)}")
    return shape, attributes["dtype"]["dtype"] if op in _TYPED else _promoted(sources)


def _promoted(kinds: Sequence[Kind]) -> str:
    """The type of a result, as in PyTorch: numbers without dimensions do not count beside tensors."""
    types = {dtype for shape, dtype in kinds if shape} or {dtype for _, dtype in kinds}
    return "fp32" if types == {"fp16", "bf16"} else max(types, key=lambda dtype: _BYTES[dtype])


def _shape(graph: Json, op: str, attributes: Json, reads: list[Shape]) -> Shape:
    grid = graph["grid"] or graph["block"]
    if op in _BROADCAST:
        return _broadcast(*reads)
    match op:
        case "input":
            return tuple(attributes["shape"])
        case "constant":
            return ()
        case "input_iterator":
            return _divided(reads[0], [*zip(grid, attributes["imap"], strict=True), (graph["loop"], attributes["fmap"])])
        case "output_saver":
            return _multiplied(reads[0], list(zip(grid, attributes["omap"], strict=True)))
        case "accumulate" if attributes["combine"] == "concat":
            return _multiplied(reads[0], [(graph["loop"], attributes["dim"])])
        case "accumulate":
            return reads[0]
        case "accumulate_rescaled":
            if len(reads[0]) != len(reads[1]) or _broadcast(*reads) != reads[0]:
                raise ValueError(f"exponents of shape {list(reads[1])} do not shift {list(reads[0])}")
            return reads[0]
        case "matmul":
            return _matmul(*reads)
        case "concat_matmul":
            w, x, y, z = reads
            first, second = _matmul(w, y), _matmul(x, z)
            if first != second:
                raise ValueError(f"products of shapes {list(first)} and {list(second)}")
            return first
        case "sum" | "max" if attributes.get("least") in ((None, "lowest") if op == "max" else (None,)):
            return _divided(reads[0], [(attributes["size"], attributes["dim"])])
        case "repeat":
            return _multiplied(reads[0], [(attributes["times"], attributes["dim"])])
        case "transpose":
            return tuple(reads[0][dim] for dim in _permutation(attributes["permutation"], len(reads[0])))
        case "reshape" if min(attributes["shape"], default=1) >= 1 and math.prod(attributes["shape"]) == math.prod(reads[0]):
            return tuple(attributes["shape"])
    raise ValueError("unknown operator or wrong attributes")


def _broadcast(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{*column} - {1} for column in zip(*padded, strict=True)]
    if any(len(there) > 1 for there in sizes):
        raise ValueError(f"shapes {' and '.join(str(list(shape)) for shape in shapes)} do not broadcast")
    return tuple(there.pop() if there else 1 for there in sizes)


def _divided(shape: Shape, parts: Sequence[tuple[int, int | None]]) -> Shape:
    sizes = list(shape)
    for count, dim in parts:
        if dim is not None:
            place = _within(dim, shape)
            sizes[place], rest = divmod(sizes[place], count)
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
    return (*_broadcast(x[:-2], y[:-2]), x[-2], y[-1])
