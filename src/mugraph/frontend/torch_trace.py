"""Tracing a PyTorch callable into a program.

The route is torch.export in its non-strict mode: the function runs once on tensors without data, every ATen operator it
calls is recorded with its line of Python, mutation becomes explicit, and shapes are numbers. What is not in the table of
`mugraph.frontend.aten` is then decomposed by PyTorch where it can be (einsum, mv, ...), while softmax, layer_norm,
attention and the like stay whole, to be spelled out by our rows in the form the search wants.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from mugraph.errors import InvalidInput, NotAProgram, UnsupportedOperator
from mugraph.frontend.aten import ROWS
from mugraph.frontend.calling import unused_name
from mugraph.frontend.constants import KNOWN_MASKS, with_constants
from mugraph.frontend.conversion import Signature, convert
from mugraph.frontend.export import Recording, record
from mugraph.frontend.origins import origins
from mugraph.frontend.pytree import Arguments, CapturedSource, Results, Traced
from mugraph.frontend.returned import results_of
from mugraph.frontend.torch_casts import DTYPES
from mugraph.ir.scalar import Scalar

_IN_PIECES = 'torch.compile(f, backend="mugraph"), which leaves such operators to PyTorch'


def trace_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
    """The program that `fn(*args, **kwargs)` computes; see `mugraph.frontend.trace`."""
    name = getattr(fn, "__name__", type(fn).__name__)
    arguments = Arguments.of(fn, args, kwargs)
    recording = record(name, fn, arguments, _examples(name, arguments, args, kwargs))
    _refuse_mutation(name, recording)
    signature, captured = _with_constants(recording, *_signature(fn, recording))
    nodes = _returned_nodes(recording)
    if not nodes:
        raise InvalidInput(f"{name} returns no tensor; return the tensors to compute")
    try:
        graph, numbers = convert(recording.program.graph, signature, nodes, {**ROWS, **KNOWN_MASKS})
    except UnsupportedOperator as error:
        raise NotAProgram(f"{error}; or use {_IN_PIECES}") from None
    placeholders = list(signature.inputs)
    results = results_of(name, recording.returned, nodes, numbers, placeholders)
    return Traced(name, graph, arguments, captured, results, _strides(recording, results, placeholders))


def _examples(name: str, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """The tensors of the example call; raises InvalidInput for the kinds no program can take."""
    for leaf in arguments.leaves:
        if isinstance(leaf.constant, np.ndarray):
            raise InvalidInput(f"argument {leaf.name} of {name} is a NumPy array; pass torch.from_numpy(array)")
        if not leaf.is_tensor and origins(leaf.constant):
            raise InvalidInput(
                f"argument {leaf.name} of {name} holds tensors in a {type(leaf.constant).__name__}; pass them in a dict"
            )
    with torch.no_grad():
        tensors = arguments.flatten(args, kwargs)
    for leaf, tensor in zip(arguments.tensors, tensors, strict=True):
        _check_tensor(f"argument {leaf.name}", tensor)
    if not tensors:
        raise InvalidInput(f"{name} is called without a tensor; a program needs at least one torch tensor as argument")
    return tuple(tensors)


def _check_tensor(what: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in DTYPES:
        raise InvalidInput(f"{what} has dtype {tensor.dtype}; use float16, bfloat16, float32 or float64")
    if tensor.numel() == 0:
        raise InvalidInput(f"{what} has shape {list(tensor.shape)} without elements; every dimension must be at least 1")
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        raise InvalidInput(f"{what} is on {tensor.device}; trace with tensors on the CPU or a CUDA device")
    if tensor.layout is not torch.strided:
        raise InvalidInput(f"{what} is {tensor.layout}; use a dense tensor")


def _refuse_mutation(name: str, recording: Recording) -> None:
    arguments = _argument_names(recording)
    signature = recording.program.graph_signature
    for spec in signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            target = str(spec.target)
            what = f"its argument {arguments[target]}" if target in arguments else _owned_name(target)
            if target in signature.user_inputs and target not in arguments:
                what = "a tensor it closes over"
            raise InvalidInput(f"{name} changes {what} in place; return the new value instead")


def _argument_names(recording: Recording) -> dict[str, str]:
    """The name of the argument that each placeholder of an argument is."""
    placeholders = _user_inputs(recording)[: len(recording.recorder.arguments.tensors)]
    return dict(zip(placeholders, (leaf.name for leaf in recording.recorder.arguments.tensors), strict=True))


def _user_inputs(recording: Recording) -> list[str]:
    """The placeholders of the arguments' tensors, then of the captured ones that no module owns."""
    specs = recording.program.graph_signature.input_specs
    return [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]


def _signature(fn: Callable[..., Any], recording: Recording) -> tuple[Signature, tuple[CapturedSource, ...]]:
    """What the placeholders are, and where the captured tensors come from, in the order of the program's inputs."""
    inputs = _argument_names(recording)
    numbers: dict[str, Scalar] = {}
    sources: list[CapturedSource] = []
    known = origins(fn)
    for placeholder, wanted, tensor in _captured(recording):
        if placeholder in recording.literals and tensor.dim() == 0:
            numbers[placeholder] = Scalar.of(tensor.item())
            continue
        ways = known.get(id(tensor), ())
        source = CapturedSource.of(wanted or next((way.name for way in ways), "captured"), tensor, ways)
        name = unused_name(source.name, set(inputs.values()))
        _check_tensor(f"tensor {name} of the function", tensor)
        inputs[placeholder] = name
        sources.append(source)
    return Signature(inputs, numbers), tuple(sources)


def _with_constants(
    recording: Recording, signature: Signature, captured: tuple[CapturedSource, ...]
) -> tuple[Signature, tuple[CapturedSource, ...]]:
    """The same with what the function computes of no tensor: numbers, and further inputs that it brings along."""
    inputs, numbers, sources = dict(signature.inputs), dict(signature.numbers), list(captured)
    for placeholder, tensor in with_constants(recording.program.graph).items():
        if tensor.dim() == 0 and math.isfinite(number := float(tensor)):
            numbers[placeholder] = Scalar.of(number)
            continue
        name = unused_name(placeholder, set(inputs.values()))
        inputs[placeholder] = name
        sources.append(CapturedSource.of(name, tensor, ()))
    return Signature(inputs, numbers), tuple(sources)


def _captured(recording: Recording) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Placeholder, name in a module ("" where it has none) and value of the tensors that are read and are no arguments."""
    read = {node.name for node in recording.program.graph.nodes if node.op == "placeholder" and node.users}
    others = _user_inputs(recording)[len(recording.recorder.arguments.tensors) :]
    for spec in recording.program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT and spec.arg.name in read:
            target = str(spec.target)
            yield spec.arg.name, _owned_name(target), _owned(recording, spec)
    for placeholder, tensor in zip(others, recording.captured, strict=True):
        if placeholder in read:
            yield placeholder, "", tensor


def _owned(recording: Recording, spec: InputSpec) -> torch.Tensor:
    """A tensor of the function as a module, or one that it writes down."""
    target = str(spec.target)
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        tensor = operator.attrgetter(target)(recording.recorder)
    else:
        tensor = recording.program.constants.get(target)
    if not isinstance(tensor, torch.Tensor):
        raise InvalidInput(f"the function uses {_owned_name(target)}, which is not a tensor; leave it outside the function")
    return tensor


def _owned_name(target: str) -> str:
    """What to call a parameter or buffer (its path in the module) or a tensor the function closes over."""
    return "captured" if target.startswith("lifted_tensor_") else target.removeprefix("fn.")


def _returned_nodes(recording: Recording) -> list[torch.fx.Node]:
    """The nodes whose tensors the function returns, in order."""
    (output,) = (node for node in recording.program.graph.nodes if node.op == "output")
    return list(output.args[0])


def _strides(recording: Recording, results: Results, placeholders: Sequence[str]) -> tuple[tuple[int, ...] | None, ...]:
    """By input, its strides where what the function returns depends on them: it asks for them, or returns views."""
    values = {node.name: node.meta["val"] for node in recording.program.graph.nodes if node.op == "placeholder"}
    viewed = {place.input for place in results.places}
    asked = recording.recorder.watch.asks_for_strides
    strides = (tuple(values[placeholder].stride()) for placeholder in placeholders)
    return tuple(stride if asked or number in viewed else None for number, stride in enumerate(strides))
