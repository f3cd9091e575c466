"""Tracing a PyTorch callable into a program.

The route is torch.export in its non-strict mode: the function runs once on tensors without data, every ATen operator it
calls is recorded with its line of Python, mutation becomes explicit, and shapes are numbers. What is not in the table of
`mugraph.frontend.operators.aten` is then decomposed by PyTorch where it can be (einsum, mv, ...), while softmax, layer_norm,
attention and the like stay whole, to be spelled out by our rows in the form the search wants.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from mugraph.errors import InvalidInput, NotAProgram, UnsupportedOperator
from mugraph.frontend.calls.calling import unused_name
from mugraph.frontend.calls.captured_tensors import CapturedSource
from mugraph.frontend.calls.origins import origins
from mugraph.frontend.calls.pytree import Arguments, Traced
from mugraph.frontend.calls.returned_values import Results
from mugraph.frontend.operators.aten import ROWS
from mugraph.frontend.operators.choices import is_negative_zero
from mugraph.frontend.operators.conversion import Signature, convert, only_chosen_or_compared
from mugraph.frontend.operators.torch_casts import DTYPES, INTEGERS
from mugraph.frontend.recording.calls import Calls
from mugraph.frontend.recording.export import Recording, record
from mugraph.frontend.recording.returned import results_of
from mugraph.frontend.recording.watch import asked_in_vain
from mugraph.frontend.rewriting.constants import KNOWN_MASKS, Constants, with_constants
from mugraph.frontend.rewriting.graph_passes import copy_returned
from mugraph.ir.scalar import Scalar

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})
"""The classes of tensors that have numbers, or stand for one that has."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a function as PyTorch has recorded it: a program, or what is cut into programs and PyTorch's own calls."""

    name: str
    fn: Callable[..., Any]
    arguments: Arguments
    recording: Recording


def recorded_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> RecordedCall:
    """`fn(*args, **kwargs)` as PyTorch records it, once.

    Raises InvalidInput, UnsupportedOperator and ShapeMismatch, with the line of Python at fault, for what it cannot record.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    arguments = Arguments.of(fn, args, kwargs)
    return RecordedCall(name, fn, arguments, record(name, fn, arguments, _examples(name, arguments, args, kwargs)))


def traced(call: RecordedCall) -> Traced:
    """The program that a recorded call is. Raises InvalidInput for tensors that no program takes and for functions that change
    what they are given or return nothing, NotAProgram for operators outside the table."""
    name, recording = call.name, call.recording
    program = recording.in_rows()
    values = values_of_placeholders(program.graph)
    for placeholder, what in argument_names(recording, program).items():
        _check_numbers(f"argument {what}", values[placeholder])
    _refuse_mutation(call, program)
    signature, captured, asked = _signature(call, program)
    nodes = returned_nodes(program.graph)
    if not nodes:
        raise InvalidInput(f"{name} returns no tensor; return the tensors to compute")
    try:
        graph, numbers = convert(program.graph, signature, nodes, {**ROWS, **KNOWN_MASKS})
    except UnsupportedOperator as error:
        raise NotAProgram(f"{error}; mugraph.superoptimize leaves such operators to PyTorch") from None
    placeholders = list(signature.inputs)
    results = results_of(name, recording.returned, nodes, numbers, placeholders)
    strides = _strides(recording, values_of_placeholders(program.graph), results, placeholders)
    return Traced(name, call.arguments, captured, results, strides, tuple(graph.input_names), graph, asked=asked)


def _examples(name: str, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """The tensors of the example call; raises InvalidInput for the kinds that cannot be recorded."""
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
        if type(tensor) not in _PLAIN:
            raise InvalidInput(
                f"argument {leaf.name} of {name} is a {type(tensor).__name__}, and kernels read plain tensors: pass one, as "
                "x.as_subclass(torch.Tensor) or what it is made of, or use torch.compile(backend='mugraph')"
            )
        _check_place(f"argument {leaf.name}", tensor)
    if not tensors:
        raise InvalidInput(f"{name} is called without a tensor; a program needs at least one torch tensor as argument")
    return tuple(tensors)


def _check_place(what: str, tensor: torch.Tensor) -> None:
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        raise InvalidInput(f"{what} is on {tensor.device}; trace with tensors on the CPU or a CUDA device")
    if tensor.layout is not torch.strided:
        raise InvalidInput(f"{what} is {tensor.layout}; use a dense tensor")


def _check_numbers(what: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in DTYPES | INTEGERS:
        known = "float16, bfloat16, float32, float64, bool, int8, uint8, float8_e4m3fn or float8_e5m2"
        raise InvalidInput(f"{what} has dtype {tensor.dtype}; use {known}")
    if tensor.numel() == 0:
        raise InvalidInput(f"{what} has shape {list(tensor.shape)} without elements; every dimension must be at least 1")


def _refuse_mutation(call: RecordedCall, program: Calls) -> None:
    arguments = argument_names(call.recording, program)
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            target = str(spec.target)
            what = f"its argument {arguments[target]}" if target in arguments else _owned_name(target)
            if target in program.graph_signature.user_inputs and target not in arguments:
                what = "a tensor it closes over"
            raise InvalidInput(f"{call.name} changes {what} in place; return the new value instead")


def values_of_placeholders(graph: torch.fx.Graph) -> dict[str, torch.Tensor]:
    """The tensors without data that stand for the inputs of a graph, by the name of the placeholder."""
    return {node.name: node.meta["val"] for node in graph.nodes if node.op == "placeholder"}


def argument_names(recording: Recording, program: Calls) -> dict[str, str]:
    """The name of the argument that each placeholder of an argument is."""
    leaves = recording.recorder.arguments.tensors
    return dict(zip(_user_inputs(program)[: len(leaves)], (leaf.name for leaf in leaves), strict=True))


def _user_inputs(program: Calls) -> list[str]:
    """The placeholders of the arguments' tensors, then of the captured ones that no module owns."""
    specs = program.graph_signature.input_specs
    return [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]


@dataclass(frozen=True, slots=True)
class CapturedSources:
    """Where the tensors come from that a function brings along."""

    read: Mapping[str, tuple[CapturedSource, torch.Tensor]]
    """By placeholder, those that calls read; those that the function itself writes down are the last ones."""
    asked: tuple[CapturedSource, ...]
    """Those of which it asks for shape, type or the like, which are numbers by now, and that somebody may replace."""


def captured_sources(call: RecordedCall, program: Calls, read: Collection[str], taken: Collection[str]) -> CapturedSources:
    """Where the tensors come from that are no arguments, those of the placeholders in `read` being read; their names are none of
    `taken`."""
    known, names, written, watch = origins(call.fn), set(taken), call.recording.literals, call.recording.recorder.watch
    sources: dict[str, tuple[CapturedSource, torch.Tensor]] = {}
    asked: list[CapturedSource] = []
    for each in sorted(_captured(call.recording, program), key=lambda each: each.placeholder in written):
        ways = known.get(id(each.tensor), ())
        name = each.name or next((way.name for way in ways), "captured")
        if each.placeholder in read:
            name = unused_name(name, names)
            source = CapturedSource.of(name, each.tensor, ways, computed=each.placeholder in written)
            sources[each.placeholder] = source, each.tensor
            names.add(name)
        unread = each.reached and each.placeholder not in read
        if each.asks_gradient or (unread and ways):
            by_strides = watch.asks_for_strides and unread  # those of inputs are looked at as all inputs' are
            asked.append(CapturedSource.of_asked(name, each.tensor, ways, by_strides, each.asks_gradient))
        if each.asks_gradient and each.tensor.grad is not None:
            raise asked_in_vain(call.name, "a tensor that it brings along for its gradient")
    return CapturedSources(sources, tuple(asked))


def constant_sources(values: Constants, taken: Collection[str]) -> dict[str, CapturedSource]:
    """By placeholder, sources of what a function computes of no tensor."""
    return {name: CapturedSource.of(unused_name(name, set(taken)), tensor, (), computed=True) for name, tensor in values.items()}


def _signature(call: RecordedCall, program: Calls) -> tuple[Signature, tuple[CapturedSource, ...], tuple[CapturedSource, ...]]:
    """What the placeholders are, and where the captured tensors come from, in the order of the program's inputs; and those that
    are none.

    What the function computes of no tensor becomes numbers, and further inputs that it brings along.
    """
    inputs = argument_names(call.recording, program)
    numbers: dict[str, Scalar | float] = {}
    sources: list[CapturedSource] = []
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    literals = call.recording.literals
    brought = captured_sources(call, program, read, inputs.values())
    for placeholder, (source, tensor) in brought.read.items():
        if placeholder in literals and tensor.dim() == 0 and _is_exact(tensor.item()):
            numbers[placeholder] = Scalar.of(tensor.item())
            continue
        _check_place(f"tensor {source.name} of the function", tensor)
        _check_numbers(f"tensor {source.name} of the function", tensor)
        inputs[placeholder] = source.name
        sources.append(source)
    constants = with_constants(program.graph)
    copy_returned(program.graph, constants)  # every call of the function makes them anew
    chosen = {node.name for node in program.graph.nodes if node.op == "placeholder" and only_chosen_or_compared(node)}
    for placeholder, source in constant_sources(constants, inputs.values()).items():
        tensor = constants[placeholder]
        number = tensor.item() if tensor.dim() == 0 else None
        if _is_exact(number):
            numbers[placeholder] = Scalar.of(number)
            continue
        if isinstance(number, float) and placeholder in chosen:
            numbers[placeholder] = number
            continue
        inputs[placeholder] = source.name
        sources.append(source)
    return Signature(inputs, numbers), tuple(sources), brought.asked


def _is_exact(number: Any) -> TypeGuard[int | float]:
    """Whether a number is an exact constant: real, finite, and not -0.0."""
    return isinstance(number, int | float) and math.isfinite(number) and not is_negative_zero(number)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A tensor that is no argument: its placeholder, its name in a module ("" where it has none) and its value."""

    placeholder: str
    name: str
    tensor: torch.Tensor
    reached: bool
    """Whether the function came to it, be it only to ask for its shape."""
    asks_gradient: bool
    """Whether the function asks for its gradient."""


def _captured(recording: Recording, program: Calls) -> Iterator[_Captured]:
    """The tensors that are no arguments; those without a name come in the order in which the function comes to them."""
    others, watch = _user_inputs(program)[len(recording.recorder.arguments.tensors) :], recording.recorder.watch
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            target, tensor = str(spec.target), _owned(recording, program, spec)
            asked = target in watch.reached_of_modules, target in watch.gradients_asked
            yield _Captured(spec.arg.name, _owned_name(target), tensor, *asked)
    reached = {id(tensor): number for number, tensor in enumerate(watch.reached)}
    captured = [*zip(others, recording.captured, strict=True)]
    for placeholder, tensor in sorted(captured, key=lambda each: reached.get(id(each[1]), len(reached))):
        yield _Captured(placeholder, "", tensor, id(tensor) in reached, id(tensor) in watch.gradients_asked)


def _owned(recording: Recording, program: Calls, spec: InputSpec) -> torch.Tensor:
    """A tensor of the function as a module, or one that it writes down."""
    target = str(spec.target)
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        tensor = operator.attrgetter(target)(recording.recorder)
    else:
        tensor = program.constants.get(target)
    if not isinstance(tensor, torch.Tensor):
        raise InvalidInput(f"the function uses {_owned_name(target)}, which is not a tensor; leave it outside the function")
    return tensor


def _owned_name(target: str) -> str:
    """What to call a parameter or buffer (its path in the module) or a tensor the function closes over."""
    return "captured" if target.startswith("lifted_tensor_") else target.removeprefix("fn.")


def returned_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes whose tensors a graph returns, in order."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    return list(output.args[0])


def _strides(
    recording: Recording, values: Mapping[str, torch.Tensor], results: Results, placeholders: Sequence[str]
) -> tuple[tuple[int, ...] | None, ...]:
    """By input, its strides where what the function returns depends on them: it asks for them, or returns views."""
    viewed = {place.input for place in results.places}
    asked = recording.recorder.watch.asks_for_strides
    strides = (tuple(values[placeholder].stride()) for placeholder in placeholders)
    return tuple(stride if asked or number in viewed else None for number, stride in enumerate(strides))
