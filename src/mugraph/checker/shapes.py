"""The shapes and types that a saved graph declares, inferred again: everything else relies on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mugraph.checker.files import Json, Rejected
from mugraph.checker.form import LARGEST, MOST_DIMS
from mugraph.checker.operators import OPERATORS, Shape

Kind = tuple[Shape, str]
"""Shape and type of a tensor."""

_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}


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
    shape = OPERATORS[op].shape(graph, attributes, [shape for shape, _ in sources])
    if len(shape) > MOST_DIMS or math.prod(shape) > LARGEST:
        raise ValueError(f"no machine holds a tensor of shape {list(shape)}")
    return shape, attributes["dtype"]["dtype"] if "dtype" in attributes else _promoted(sources)


def _promoted(kinds: Sequence[Kind]) -> str:
    """The type of a result, as in PyTorch: numbers without dimensions do not count beside tensors."""
    types = {dtype for shape, dtype in kinds if shape} or {dtype for _, dtype in kinds}
    return "fp32" if types == {"fp16", "bf16"} else max(types, key=lambda dtype: _BYTES[dtype])
