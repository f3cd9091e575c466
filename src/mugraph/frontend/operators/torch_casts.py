"""Element types in torch's words and ours, and the roundings of a torch graph (`mugraph.frontend.operators.roundings`).

Whether a cast rounds depends on the whole graph, so `note_roundings` leaves the answers in the nodes before the graph is cut up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from mugraph.frontend.operators.roundings import PrecisionOrigin, PrecisionStep, written_roundings
from mugraph.ir.dtypes import DType

TORCH_DTYPES: Mapping[DType, torch.dtype] = {dtype: getattr(torch, dtype.torch_name) for dtype in DType}

DTYPES = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items() if not dtype.is_index}
"""Types that are computed with."""

INTEGERS = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items() if dtype.is_index}
"""Types of tensors that programs only take as inputs, to look something up at them."""

FLOATS = {torch_dtype: dtype for torch_dtype, dtype in DTYPES.items() if dtype.is_floating}


_NOTE = "rounds"
_CASTS = frozenset({"_to_copy", "type_as"})
_CASTING_OPERANDS = frozenset({"sum", "mean", "cumsum", "cumprod", "nansum", "softmax", "log_softmax", "linalg_vector_norm"})
"""Operators that first cast their operand to their argument `dtype`."""
_MOVING = frozenset(
    {
        "_unsafe_view", "abs", "alias", "amax", "amin", "aminmax", "arranged", "cat", "clamp", "clamp_max", "clamp_min", "clone",
        "constant_pad_nd", "detach", "embedding", "flip", "gather", "getitem", "index", "index_select", "lift_fresh_copy",
        "masked_fill", "max", "maximum", "min", "minimum", "neg", "pad", "pixel_shuffle", "pixel_unshuffle", "relu", "repeat",
        "roll", "select_scatter", "slice_scatter", "stack", "upsample_nearest2d", "where",
        *(f"{name}{rank}d" for name in ("max_pool", "reflection_pad", "replication_pad") for rank in (1, 2, 3)),
        "max_pool2d_with_indices", "max_pool3d_with_indices",
    }
)  # fmt: skip
"""Operators besides views whose results are among the numbers they are given, up to sign."""
_KEEPING = frozenset(
    {
        "_unsafe_view", "alias", "arranged", "cat", "clone", "detach", "embedding", "flip", "gather", "getitem", "index",
        "index_select", "lift_fresh_copy", "repeat", "roll", "stack",
    }
)  # fmt: skip
"""Those whose results are among these numbers as they are."""
_OF_BITS = frozenset({"bitwise_and", "__and__", "bitwise_right_shift", "__rshift__"})
"""Those that take bits of whole numbers, of which rows know those that count."""


def tensor_of(node: fx.Node) -> torch.Tensor | None:
    """The tensor without data that a node gives; None for what is no lone tensor."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors without data that a node gives, alone or side by side."""
    value = node.meta.get("val")
    return [part for part in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(part, torch.Tensor)]


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that PyTorch's operators take: numbers of fp8, which few of them do, in fp32."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def computes_stored(node: fx.Node) -> DType | None:
    """The type, one that programs only store, that a call computes numbers of: more than to move such or to take bits of them.

    Whole numbers of 8 bits are counted modulo 256, those of fp8 are rounded to it. None for other calls.
    """
    stored = {part.dtype for part in tensors_of(node) if part.dtype in DTYPES and DTYPES[part.dtype].is_stored}
    if not stored:
        return None
    moved = getattr(node.target, "is_view", False) or name_of(node) in _KEEPING | _OF_BITS
    read = [source.meta.get("val") for source in node.all_input_nodes]
    kinds = {tensor.dtype for tensor in read if isinstance(tensor, torch.Tensor)} - {torch.bool, *INTEGERS}
    computed = not moved or bool(kinds - stored) or any(isinstance(argument, torch.dtype) for argument in node.args)
    return DTYPES[stored.pop()] if computed else None


_DROPPING = {"dropout": 0, "dropout_p": 0, "train": False, "training": False}
"""Arguments with which operators that may draw random numbers draw none."""


def arguments_by_name(node: fx.Node) -> dict[str, Any]:
    """All arguments that an operator of torch is called with, by name, in the order of its schema."""
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments
    given = node.kwargs | dict(zip((argument.name for argument in arguments), node.args, strict=False))
    return {argument.name: given.get(argument.name, argument.default_value) for argument in arguments}


def arguments_of_call(node: fx.Node) -> tuple[Any, ...]:
    """All arguments that an operator of torch is called with, in the order of its schema."""
    return tuple(arguments_by_name(node).values())


def draws_random_numbers(node: fx.Node) -> bool:
    """Whether what a call gives is drawn anew each time."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = arguments_by_name(node)
    return not any(given.get(name) == none for name, none in _DROPPING.items())


_OWN = frozenset({"aten", "prims"})
"""Namespaces of operators that give results and change operands, and do nothing else."""


def has_effects(node: fx.Node) -> bool:
    """Whether a call may do more than its schema says, so that nobody is to make it for a measurement: operators that others
    registered may count and print, collectives wait for other processes, and operators that run other graphs may draw numbers."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return str(node.target) != "autograd_function_apply"  # whose graphs are looked at on their own
    packet = getattr(node.target, "overloadpacket", node.target)
    return isinstance(packet, torch._ops.OpOverloadPacket) and packet._qualified_op_name.split("::")[0] not in _OWN


def note_roundings(graph: fx.Graph, numbers: Collection[str] = ()) -> None:
    """Write into every call of a whole graph whether it is a cast that rounds; `numbers` are placeholders with a known number."""
    nodes = list(graph.nodes)
    positions = {node: number for number, node in enumerate(nodes)}
    steps = [_step(node, positions, numbers) for node in nodes]
    rounding = written_roundings(steps)
    for number, node in enumerate(nodes):
        if node.op == "call_function":
            node.meta[_NOTE] = number in rounding


def noted(graph: fx.Graph) -> bool:
    """Whether the graph, or the one it is a part of, has been looked at."""
    return any(_NOTE in node.meta for node in graph.nodes)


def is_rounding_cast(node: fx.Node) -> bool:
    """Whether a call is a cast that rounds, as far as that was written into it."""
    return bool(node.meta.get(_NOTE))


def rounds(node: fx.Node) -> bool:
    """Whether a call is a cast that rounds, for somebody else than the caller, to whom results are stored rounded anyway."""
    return is_rounding_cast(node) and any(user.op != "output" for user in node.users)


def lazy_module(root: fx.GraphModule | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    """A graph as a module with the tensors of another, whose Python is written when it is called first: most of those that passes
    make are never called."""
    return _LazyGraphModule(root, graph)


def text_of_tensor(tensor: torch.Tensor) -> str:
    """Type, device, shape and strides of a tensor; to print one without data takes many times as long."""
    return f"{tensor.dtype} {tensor.device} {list(tensor.shape)} {tensor.stride()}"


def rounded_operands(node: fx.Node) -> DType | None:
    """The type that a call with an argument `dtype` first rounds its operand to; None for calls that round nothing there."""
    if name_of(node) not in _CASTING_OPERANDS or not isinstance(node.target, torch._ops.OpOverload):
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    given = (dict(zip(names, node.args, strict=False)) | node.kwargs).get("dtype")
    operand = _dtype(node.all_input_nodes[0])
    narrow = FLOATS.get(given) if isinstance(given, torch.dtype) else None
    return narrow if narrow is not None and operand is not None and not narrow.contains(operand) else None


def name_of(node: fx.Node) -> str:
    """The operator's name without namespace and overload, as the rows have it: `add` for aten.add.Tensor."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _step(node: fx.Node, positions: dict[fx.Node, int], numbers: Collection[str]) -> PrecisionStep:
    operands = tuple(positions[source] for source in node.all_input_nodes)
    return PrecisionStep(_dtype(node), _origin(node, numbers), operands if node.op == "call_function" else ())


def _origin(node: fx.Node, numbers: Collection[str]) -> PrecisionOrigin:
    value = node.meta.get("val")
    if node.name in numbers or (node.op == "get_attr" and isinstance(value, torch.Tensor) and value.dim() == 0):
        return PrecisionOrigin.NUMBER
    if node.op != "call_function" or not node.all_input_nodes:
        return PrecisionOrigin.GIVEN
    name = name_of(node)
    if name in _CASTS:
        return PrecisionOrigin.CAST
    moved = getattr(node.target, "is_view", False) or name in _MOVING
    return PrecisionOrigin.MOVED if moved else PrecisionOrigin.COMPUTED


def _dtype(node: fx.Node) -> DType | None:
    """The floating-point type of the tensor that a node gives, of the first of several."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    return FLOATS.get(first.dtype) if isinstance(first, torch.Tensor) else None
