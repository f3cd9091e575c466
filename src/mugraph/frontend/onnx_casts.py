"""The roundings of an ONNX graph: `mugraph.frontend.roundings`, asked about its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mugraph.frontend.onnx_rows import FLOATS
from mugraph.frontend.roundings import Origin, Step, written_roundings
from mugraph.ir.dtypes import DType

if TYPE_CHECKING:
    import onnx

_MOVING = frozenset(
    {
        "Abs", "Dropout", "Expand", "Flatten", "GlobalMaxPool", "Identity", "Neg", "ReduceMax", "ReduceMin", "Relu", "Reshape",
        "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
"""Operators whose results are among the numbers they are given, up to sign."""


def cast_roundings(graph: onnx.GraphProto, given: Mapping[str, DType]) -> Mapping[str, DType]:
    """The results of casts that round, by name, and the type they round to; `given` are the types of inputs and weights.

    A result that only the caller gets is left out: it is stored rounded anyway. ONNX promotes no types: unless it is a cast, a
    node gives what its first operand of a floating-point type is.
    """
    names = list(given)
    steps = [Step(dtype, Origin.GIVEN) for dtype in given.values()]
    for node in graph.node:
        operands = tuple(names.index(name) for name in node.input if name in names)
        types = [steps[operand].dtype for operand in operands]
        cast = node.op_type in ("Cast", "CastLike")
        dtype = _target(node, types) if cast else next(iter(filter(None, types)), None)
        for name in node.output:
            names.append(name)
            steps.append(Step(dtype, _origin(node, cast, operands), operands[:1] if cast else operands))
    read = {name for node in graph.node for name in node.input}
    rounding = {names[number]: steps[number].dtype for number in written_roundings(steps)}
    return {name: dtype for name, dtype in rounding.items() if dtype is not None and name in read}


def _target(node: onnx.NodeProto, types: list[DType | None]) -> DType | None:
    """The floating-point type that a cast gives, None for others."""
    if node.op_type == "CastLike":
        return types[1] if len(types) > 1 else None
    return next((FLOATS.get(attribute.i) for attribute in node.attribute if attribute.name == "to"), None)


def _origin(node: onnx.NodeProto, cast: bool, operands: tuple[int, ...]) -> Origin:
    if not operands:
        return Origin.NUMBER
    if cast:
        return Origin.CAST
    return Origin.MOVED if node.op_type in _MOVING else Origin.COMPUTED
