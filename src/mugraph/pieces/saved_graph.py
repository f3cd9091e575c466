"""A torch graph that was cut into programs, as JSON: its calls in order, and which of them each program stands for.

Nothing is made of a name but an operator of ATen that computes tensors from tensors and numbers, or an attribute of `torch` of
the kind that is expected there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.calling import SignatureRecord
from mugraph.frontend.calls.saved_constants import SavedConstant
from mugraph.frontend.operators.aten import ROWS
from mugraph.frontend.operators.torch_casts import note_roundings
from mugraph.frontend.partitioning.channels_last import with_images
from mugraph.frontend.partitioning.library import convolutions, is_constant, linear_layers, mark_constant
from mugraph.frontend.partitioning.partition import Left, Partition, Piece, piece_of
from mugraph.frontend.recording.quiet import quietly
from mugraph.frontend.recording.recorded_graph import RecordedGraph, TensorsInOrder
from mugraph.frontend.rewriting.permuted_blocks import arranged
from mugraph.frontend.source_lines import line_of_node, with_line
from mugraph.pieces.data import CutGraph

_OTHERS: dict[str, Callable[..., Any]] = {"getitem": operator.getitem, "arranged": arranged}
"""What a saved graph calls besides operators of ATen."""
_NAMED: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Kinds of arguments that are attributes of `torch`."""


def cut_to_json(cut: CutGraph, programs: Sequence[int]) -> dict[str, Any]:
    """A cut graph as JSON values; `programs` are the numbers of the results of its pieces.

    Raises InvalidInput for a graph that calls other operators than ATen's, or with arguments that JSON cannot describe.
    """
    lines = {node.name: line_of_node(node) for node in cut.recorded.module.graph.nodes}
    return {
        **calls_to_json(cut.recorded),
        "lines": {name: line for name, line in lines.items() if line},
        "pieces": [
            {
                "calls": [node.name for node in piece.nodes],
                "level": piece.level,
                "program": program,
                "images": sorted(piece.images),
                "image_results": sorted(piece.image_results),
            }
            for piece, program in zip(cut.partition.pieces, programs, strict=True)
        ],
        "library": [{"calls": [node.name for node in kernel.nodes], "level": kernel.level} for kernel in cut.partition.library],
        "layout": str(cut.plan.layout),
        "left": [{"call": left.node.name, "reason": left.reason, "level": left.level} for left in cut.partition.left],
    }


def calls_to_json(recorded: RecordedGraph) -> dict[str, Any]:
    """The inputs, calls and outputs of a graph as JSON values."""
    graph = recorded.module.graph
    return {
        "inputs": [
            {
                "node": node.name,
                "name": name,
                "strides": list(layout),
                "constant": is_constant(node),
                **_tensor_to_json(node.meta["val"]),
            }
            for node, name, layout in zip(recorded.placeholders, recorded.calling.inputs, recorded.layouts, strict=True)
        ],
        "device": recorded.device,
        "calls": [_call_to_json(recorded.module, node) for node in graph.nodes if node.op in ("call_function", "get_attr")],
        "outputs": [node.name for node in recorded.outputs],
        "writes": {str(number): output for number, output in recorded.writes.items()},
    }


def _tensor_to_json(tensor: torch.Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}


def _call_to_json(module: fx.GraphModule, node: fx.Node) -> dict[str, Any]:
    if node.op == "get_attr":
        tensor = getattr(module, str(node.target))
        return {"name": node.name, "matrix": tensor.tolist(), **_tensor_to_json(tensor)}
    name = _name_of_call(node)
    if name not in _OTHERS:
        _operator(name)
    return {
        "name": node.name,
        "calls": name,
        "args": [_value_to_json(value) for value in node.args],
        "kwargs": {key: _value_to_json(value) for key, value in node.kwargs.items()},
    }


def _value_to_json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (list, tuple)):
        return [_value_to_json(item) for item in value]
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, known in _NAMED.items():
        if isinstance(value, known):
            return {kind: str(value).removeprefix("torch.")}
    raise InvalidInput(f"a call of PyTorch has an argument of type {type(value).__name__}, which cannot be saved")


def _value_from_json(value: Any, nodes: Mapping[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_value_from_json(item, nodes) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, written),) = value.items()
    match kind:
        case "node":
            return nodes[written]
        case "float":
            return float(written)
        case "complex":
            return complex(*written)
        case "device":
            return torch.device(written)
    found = getattr(torch, written)
    if not isinstance(found, _NAMED[kind]):
        raise ValueError(f"{written} is no {kind}")
    return found


def _operator(name: str) -> torch._ops.OpOverload:
    """The functional operator of ATen that is called `aten.NAME.OVERLOAD`; raises InvalidInput for every other name."""
    parts = name.split(".")
    packet = getattr(torch.ops.aten, parts[1], None) if len(parts) == 3 and parts[0] == "aten" else None
    found = getattr(packet, parts[2], None) if isinstance(packet, torch._ops.OpOverloadPacket) else None
    if not isinstance(found, torch._ops.OpOverload) or str(found) != name:
        raise InvalidInput(f"PyTorch's part calls {name}, which is no operator of ATen; it cannot be saved")
    if parts[1].startswith("_") and parts[1] not in ROWS and not parts[1].startswith("_fft_"):
        raise InvalidInput(f"PyTorch's part calls {name}, an operator of PyTorch's own use; it cannot be saved")
    schema = found._schema
    files = any(argument.name in ("filename", "path") for argument in schema.arguments)
    if files or schema.is_mutable or not all(str(given.type).startswith(("Tensor", "List[Tensor]")) for given in schema.returns):
        raise InvalidInput(f"PyTorch's part calls {name}, which does more than to compute tensors; it cannot be saved")
    return found


def inputs_of(document: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, PyTorch's name of the type, and shape of the inputs of the graph that `cut_to_json` wrote."""
    return [(str(item["name"]), str(item["dtype"]), tuple(item["shape"])) for item in document["inputs"]]


def cut_from_json(
    document: Mapping[str, Any],
    name: str,
    structure: Any,
    constants: tuple[SavedConstant, ...] = (),
    signature: SignatureRecord | None = None,
) -> tuple[RecordedGraph, Partition]:
    """The graph that `cut_to_json` wrote, called with its tensors in order, but for its constants, and how it is cut.

    Raises UnsupportedOperator or InvalidInput for an operator that is none of ATen's, or a piece that is no program; KeyError,
    TypeError, ValueError, AttributeError, IndexError or RuntimeError for what is no such document.
    """
    graph, nodes, matrices = fx.Graph(), dict[str, fx.Node](), dict[str, torch.Tensor]()
    device = str(document["device"])
    with quietly(), torch.no_grad(), FakeTensorMode() as mode:
        for item in document["inputs"]:
            nodes[item["node"]] = node = graph.placeholder(item["node"])
            if item.get("constant", True):
                mark_constant(node)
            node.meta["val"] = torch.empty_strided(item["shape"], item["strides"], dtype=_dtype(item["dtype"]), device=device)
        for item in document["calls"]:
            if "matrix" in item:
                with _disable_current_modes():
                    matrices[item["name"]] = torch.tensor(item["matrix"], dtype=_dtype(item["dtype"]), device=device)
                nodes[item["name"]] = node = graph.create_node("get_attr", item["name"], name=item["name"])
                node.meta["val"] = mode.from_tensor(matrices[item["name"]])
                continue
            nodes[item["name"]] = node = _called(graph, item, nodes, document["lines"].get(item["name"], ""))
            node.meta["val"] = _result(node)
    graph.output(tuple(nodes[each] for each in document["outputs"]))
    note_roundings(graph)
    pieces = [_piece(item, nodes) for item in document["pieces"]]
    left = [Left(nodes[item["call"]], str(item["reason"]), int(item["level"])) for item in document["left"]]
    inside = {node for piece in pieces for node in piece.nodes}
    layers = linear_layers((node for node in graph.nodes if node not in inside), device)
    known = {kernel.nodes: kernel for kernel in (*convolutions(graph, device), *layers)}
    library = []
    for item in document["library"]:
        calls, level = tuple(nodes[each] for each in item["calls"]), int(item["level"])
        if calls in known:
            library.append(replace(known[calls], level=level))
        else:
            left += [Left(node, "the library packs no weights of it here", level) for node in calls]
    inputs = {str(item["name"]): nodes[item["node"]].meta["val"] for item in document["inputs"]}
    recorded = RecordedGraph(
        fx.GraphModule(matrices, graph),
        TensorsInOrder(name, inputs, structure, constants, signature),
        {int(number): int(output) for number, output in document["writes"].items()},
        tuple(tuple(item["strides"]) for item in document["inputs"]),
    )
    return recorded, Partition(tuple(pieces), tuple(left), tuple(library))


def _piece(item: Mapping[str, Any], nodes: Mapping[str, fx.Node]) -> Piece:
    piece = piece_of([nodes[each] for each in item["calls"]], int(item["level"]))
    return with_images(piece, item.get("images", ()), item.get("image_results", ()))


def _called(graph: fx.Graph, item: Mapping[str, Any], nodes: Mapping[str, fx.Node], line: str) -> fx.Node:
    name = item["calls"]
    target = _OTHERS.get(name) or _operator(name)
    args = _value_from_json(item["args"], nodes)
    kwargs = {key: _value_from_json(value, nodes) for key, value in item["kwargs"].items()}
    if target is arranged:
        args[-1] = tuple(tuple(block) for block in args[-1])
    node = graph.create_node("call_function", target, tuple(args), kwargs, name=item["name"])
    return with_line(node, line)


def _result(node: fx.Node) -> Any:
    """What a call gives, without data; raises ValueError, which names the operator, for operands that do not fit it."""
    arguments, options = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    try:
        return node.target(*arguments, **options)  # type: ignore[operator]
    except Exception as error:  # PyTorch asserts, divides and looks up with what it is given
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{node.name} calls {_name_of_call(node)} with what does not fit: {reason}") from None


def _name_of_call(node: fx.Node) -> str:
    return next((name for name, target in _OTHERS.items() if target is node.target), str(node.target))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no type of tensors")
    return found
