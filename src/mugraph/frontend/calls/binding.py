"""A saved result called as the function that it was made of, with the parameters of a module, or what a function closes over.

The folder says how the function is called, and by which names it reaches the tensors that it brings along
(`mugraph.frontend.calls.calling.SignatureRecord`); those of the module that have these names now, and whenever it is called, are
read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.calling import AskedTensor, Calling, SignatureRecord, Slot, filled, structure_of
from mugraph.frontend.calls.captured_tensors import CapturedSource
from mugraph.frontend.calls.origins import Origin, origins
from mugraph.frontend.calls.pytree import Arguments, FunctionCalling, default_of, same_value
from mugraph.frontend.calls.returned_values import Place, Results
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES
from mugraph.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Input:
    """An input of what is bound: its name, and the shape and type of its tensors."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def example(self) -> torch.Tensor:
        """A tensor without data."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


def inputs_of(graph: Graph) -> list[Input]:
    """The inputs of a program."""
    tensors = [node.output for node in graph.inputs()]
    return [
        Input(name, tuple(tensor.shape), TORCH_DTYPES[tensor.dtype])
        for name, tensor in zip(graph.input_names, tensors, strict=True)
    ]


def bound_calling(calling: Calling, inputs: Sequence[Input], outputs: int, module: Callable[..., Any]) -> FunctionCalling:
    """How what has these inputs and so many outputs, which was called otherwise, is called as `module`, a module or function.

    Raises InvalidInput and ShapeMismatch, naming the argument or tensor that does not fit.
    """
    record, constants = calling.signature_record, calling.constants
    what = getattr(module, "__name__", type(module).__name__)
    if not callable(module):
        raise InvalidInput(f"a result is bound to a module or function, not to a {what}")
    if record is None:
        raise InvalidInput("the result does not say how its function is called; save one of a PyTorch function with this version")
    if record.arguments is None:
        raise InvalidInput(
            f"arguments of {record.function} are objects that a folder does not describe; call with tensors in order"
        )
    count = len(inputs) - len(record.captured) - len(constants)
    if count < 0 or len(record.strides) != len(inputs):
        raise InvalidInput(f"what is said of the inputs of {record.function} does not fit them; optimize and save again")
    arguments = _arguments(record, inputs[:count], module, what)
    brought = zip(inputs[count:], record.captured, strict=False)
    known = _tensors_by_name(module)
    sources = [_source(each, names, known, record.function, what) for each, names in brought]
    values = _values_of(calling)
    sources += [CapturedSource.of(each.name, value, (), computed=True) for each, value in zip(constants, values, strict=True)]
    results = calling.results if isinstance(calling, FunctionCalling) else _results(calling, outputs)
    asked = tuple(_asked(each, known, record.function, what) for each in record.asked)
    names = tuple(each.name for each in inputs)
    bound = FunctionCalling(what, arguments, tuple(sources), results, record.strides, names, asked=asked)
    _ = bound.captured  # raises where one does not fit
    return bound


def _values_of(calling: Calling) -> list[torch.Tensor]:
    """The constants on the CPU, or where the function has them: the same tensors, whatever is bound."""
    if isinstance(calling, FunctionCalling):
        return [source() for source in calling.sources if source.computed]
    return list(calling.captured)  # of what was read from a folder nothing else


def _arguments(record: SignatureRecord, inputs: Sequence[Input], module: Callable[..., Any], what: str) -> Arguments:
    """The arguments of the example call, as `module` takes them."""
    tensors = [each.example for each in inputs]
    call = filled(record.arguments, tensors)
    match call:
        case (tuple(args), dict(named)):
            kwargs = {name: value for name, value in named.items() if not _is_default(module, name, value)}
        case _:
            raise InvalidInput(f"what is said of the arguments of {record.function} is none of a call; optimize and save again")
    arguments = Arguments.of(module, args, kwargs)
    placed = [(leaf.name, id(tensor)) for leaf, tensor in zip(arguments.tensors, arguments.flatten(args, kwargs), strict=True)]
    wanted = [(each.name, id(tensor)) for each, tensor in zip(inputs, tensors, strict=True)]
    if placed != wanted:
        ours, theirs = (", ".join(name for name, _ in names) for names in (wanted, placed))
        raise InvalidInput(f"{record.function} takes the tensors {ours}, and {what} {theirs}; bind what the result was made of")
    return arguments


def _is_default(module: Callable[..., Any], name: str, value: Any) -> bool:
    """Whether a named argument is what the function has for it by default, so that calls need not give it."""
    return not isinstance(value, torch.Tensor) and same_value(default_of(module, name), value)


def _tensors_by_name(module: Callable[..., Any]) -> Mapping[str, Mapping[int, Origin]]:
    """By name, the ways of that name to tensors that a module or function reaches, by the identity of the tensor."""
    known: dict[str, dict[int, Origin]] = {}
    for identity, ways in origins(module).items():
        for way in ways:
            known.setdefault(way.name, {}).setdefault(identity, way)
    return known


def _source(
    wanted: Input, names: Sequence[str], known: Mapping[str, Mapping[int, Origin]], function: str, what: str
) -> CapturedSource:
    """Where an input comes from, which all of `names` lead to."""
    if not names:
        raise InvalidInput(f"{wanted.name} of {function} is a tensor that no name leads to; call with tensors in order")
    ways: list[Origin] = []
    for name in names:
        found = known.get(name, {})
        if len(found) != 1:
            has = f"{len(found)} tensors of that name" if found else "none"
            raise InvalidInput(f"{function} reads a tensor {name}, and {what} has {has}; bind what the result was made of")
        ways += found.values()
    return CapturedSource(wanted.name, wanted.shape, wanted.dtype, tuple(ways))


def _asked(wanted: AskedTensor, known: Mapping[str, Mapping[int, Origin]], function: str, what: str) -> CapturedSource:
    """Where a tensor comes from that the function asks what it is; it may lie on any device."""
    dtype = getattr(torch, wanted.dtype, None)
    if not isinstance(dtype, torch.dtype) or not wanted.names:
        raise InvalidInput(f"what is said of the tensors of {function} is of none; optimize and save again")
    source = _source(Input(wanted.names[0], wanted.shape, dtype), wanted.names, known, function, what)
    return replace(source, strides=wanted.strides)


def _results(calling: Calling, outputs: int) -> Results:
    """Where what is called has its outputs."""
    slots = [Slot(number) for number in range(outputs)]
    leaves, tree = tree_flatten(filled(structure_of(calling, outputs), slots))
    places = [
        Place(number=leaf.number, copied=leaf.copied) if isinstance(leaf, Slot) else Place(constant=leaf) for leaf in leaves
    ]
    return Results(tree, tuple(places))
