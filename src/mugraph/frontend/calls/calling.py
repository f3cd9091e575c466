"""How a program is called, without PyTorch: one tensor per input, and the outputs in a structure that JSON describes.

`mugraph.frontend.calls.pytree` is the same for PyTorch functions, whose arguments and results are any pytrees.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.saved_constants import ConstantsBeside, SavedConstant
from mugraph.ir.graph import Graph, Shape
from mugraph.support.picking import picked
from mugraph.support.schema import expect


class Arranging(Protocol):
    """How outputs are arranged."""

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """The outputs in the structure the function returns."""
        ...


class Calling(Protocol):
    """How a program is called; `mugraph.frontend.Traced` is one for PyTorch callables."""

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One tensor per input of the program's graph, of its shape; raises ShapeMismatch naming the argument."""
        ...

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """What `flatten` gives for the call if its tensors fit, which is not checked; None where it takes more to say."""
        ...

    @property
    def captured(self) -> Sequence[Any]:
        """The last inputs, which calls do not give but the function brings along, as they are now."""
        ...

    def captured_beside(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The same for a call with these tensors: what never changes lies on their device."""
        ...

    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
        """The graph's outputs, a tensor each, in the structure the function returns; `inputs` are what `flatten` gave."""
        ...

    @property
    def constants(self) -> tuple[SavedConstant, ...]:
        """The last of `captured`, which the function computes of no tensor; raises StorageError for what cannot be saved."""
        ...

    @property
    def signature_record(self) -> SignatureRecord | None:
        """How the function is called, and the names of what it brings along; None where that is not known."""
        ...


@dataclass(frozen=True, slots=True)
class AskedTensor:
    """A tensor that a function brings along and asks what it is, without reading anything of it."""

    names: tuple[str, ...]
    """All names that lead to it."""
    dtype: str
    """PyTorch's name of its type."""
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """None where what the function does does not depend on them."""

    def to_json(self) -> dict[str, Any]:
        """The tensor as JSON values."""
        strides = None if self.strides is None else list(self.strides)
        return {"names": list(self.names), "dtype": self.dtype, "shape": list(self.shape), "strides": strides}

    @classmethod
    def from_json(cls, values: Any) -> AskedTensor:
        """What `to_json` wrote; raises TypeError for anything else."""
        expect(values, {"names": [str], "dtype": str, "shape": [int], "strides": ([int], None)}, "signature.asked")
        strides = None if values["strides"] is None else tuple(values["strides"])
        return cls(tuple(values["names"]), values["dtype"], tuple(values["shape"]), strides)


@dataclass(frozen=True, slots=True)
class SignatureRecord:
    """How a function of PyTorch is called, as JSON can say it: results are bound by it (`mugraph.frontend.calls.binding`)."""

    function: str
    """Its name."""
    arguments: Any
    """Positional and keyword arguments of its example call, in a structure as `structure_of` describes it: its tensors in the
    order of the inputs, and constants. None where JSON cannot describe them."""
    captured: tuple[tuple[str, ...], ...]
    """For each tensor that it brings along, constants left out, all names that lead to it."""
    strides: tuple[tuple[int, ...] | None, ...]
    """By input, the strides that it must have, where what the function returns depends on them."""
    asked: tuple[AskedTensor, ...] = ()
    """Tensors that are no inputs, and which it asks what they are."""

    def is_called_as(self, other: SignatureRecord) -> bool:
        """Whether functions, whatever their names, take the same arguments and bring along tensors of the same names."""
        ours, theirs = (record.to_json() | {"function": ""} for record in (self, other))
        return same_json(ours, theirs)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {
            "function": self.function,
            "arguments": self.arguments,
            "captured": [list(names) for names in self.captured],
            "strides": [None if strides is None else list(strides) for strides in self.strides],
            "asked": [each.to_json() for each in self.asked],
        }

    @classmethod
    def from_json(cls, values: Any) -> SignatureRecord | None:
        """What `to_json` wrote, or None of null; raises TypeError for anything else."""
        if values is None:
            return None
        form = {"function": str, "captured": [[str]], "strides": [([int], None)]}
        expect(values, form, "signature")
        captured = tuple(map(tuple, values["captured"]))
        strides = tuple(None if each is None else tuple(each) for each in values["strides"])
        asked = values.get("asked", [])  # folders of earlier versions say nothing of them
        expect(asked, list, "signature.asked")
        return cls(values["function"], values.get("arguments"), captured, strides, tuple(map(AskedTensor.from_json, asked)))


class ArgumentsAlone:
    """What is called with every input: no function brings any along."""

    __slots__ = ()

    @property
    def constants(self) -> tuple[SavedConstant, ...]:
        """None."""
        return ()

    @property
    def signature_record(self) -> SignatureRecord | None:
        """None: it is not called as a function is."""
        return None

    @property
    def captured(self) -> Sequence[Any]:
        """None: every input is an argument."""
        return ()

    def captured_beside(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """None either."""
        return ()


@dataclass(frozen=True, slots=True)
class Positional:
    """One tensor per input of `graph`, in order, but for the last ones, which are constants that were saved with it; outputs
    arranged as `structure` (see `structure_of`) says."""

    graph: Graph
    structure: Any
    constants: tuple[SavedConstant, ...] = ()
    signature_record: SignatureRecord | None = None
    _inputs: tuple[tuple[str, Shape], ...] = field(init=False, repr=False, compare=False)
    """Name and shape of every input that calls give: calls are many."""
    _beside: ConstantsBeside = field(init=False, repr=False, compare=False)
    _select: Callable[[Sequence[Any]], Any] | None = field(init=False, repr=False, compare=False)
    """`structure` as a function of the outputs, where it is one or a tuple of them."""

    def __post_init__(self) -> None:
        shapes = (node.output.shape for node in self.graph.inputs())
        inputs = tuple(zip(self.graph.input_names, shapes, strict=True))
        object.__setattr__(self, "_inputs", inputs[: len(inputs) - len(self.constants)])
        object.__setattr__(self, "_beside", ConstantsBeside(self.constants))
        object.__setattr__(self, "_select", _selection(self.structure))

    @classmethod
    def of(cls, graph: Graph) -> Positional:
        """The calling of a program without a Python function: a lone output as it is, several as a tuple."""
        outputs = [{"output": number} for number in range(len(graph.outputs))]
        return cls(graph, outputs[0] if len(outputs) == 1 else {"tuple": outputs})

    @property
    def captured(self) -> Sequence[Any]:
        """The constants, on the CPU as NumPy arrays where PyTorch is not loaded."""
        return self._beside(())

    def captured_beside(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The constants where the tensors of a call lie."""
        return self._beside(tensors)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments, checked against the inputs' shapes, and the constants; raises InvalidInput for what has no shape."""
        if kwargs or len(args) != len(self._inputs):
            names = ", ".join(name for name, _ in self._inputs)
            raise InvalidInput(f"call with {len(self._inputs)} tensors in this order: {names}")
        for (name, shape), value in zip(self._inputs, args, strict=True):
            if not hasattr(value, "shape"):
                raise InvalidInput(f"input {name} must be a tensor, not {type(value).__name__}")
            if value.shape != shape:
                raise ShapeMismatch(f"input {name} has shape {list(value.shape)}, optimized for {list(shape)}")
        return [*args, *self._beside(args)]

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """The arguments and the constants, if there are no others."""
        if kwargs:
            return None
        return (*args, *self._beside(args)) if self.constants else args

    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
        """The outputs in the recorded structure."""
        if self._select is not None:
            return self._select(outputs)
        return filled(self.structure, outputs)


def selection(numbers: int | Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    """From a program's outputs to the one of that number, or to the tuple of several; quicker than a walk through a structure."""
    return itemgetter(numbers) if isinstance(numbers, int) else picked(numbers)


def _selection(structure: Any) -> Callable[[Sequence[Any]], Any] | None:
    match structure:
        case {"output": int(number)}:
            return selection(number)
        case {"tuple": list(items)} if all(type(item) is dict and item.keys() == {"output"} for item in items):
            return selection([item["output"] for item in items])
    return None


def arguments_of(example_inputs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments: a tuple or list is the former, a mapping the latter, anything else one argument."""
    if isinstance(example_inputs, Mapping):
        return (), example_inputs
    if isinstance(example_inputs, (tuple, list)):
        return example_inputs, {}
    return (example_inputs,), {}


def unused_name(wanted: str, taken: Collection[str]) -> str:
    """The name, numbered from 2 if it is taken."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for the tensor of that number, or a copy of it, while a structure is described."""

    number: int
    copied: bool = False

    def clone(self) -> Slot:
        """The same tensor in memory of its own."""
        return Slot(self.number, copied=True)


def structure_of(calling: Arranging, outputs: int) -> Any:
    """What `calling` makes of its outputs, as JSON: {'output': number}, {'copy': number} and {'constant': value} inside
    {'tuple': [...]}, {'list': [...]} and {'dict': {...}}.

    Raises InvalidInput for containers that JSON cannot describe.
    """
    return described(calling.unflatten([Slot(number) for number in range(outputs)]))


def described(value: Any) -> Any:
    """A structure of slots as JSON, as `structure_of` says."""
    if isinstance(value, Slot):
        return {"copy" if value.copied else "output": value.number}
    if value is None or type(value) in (bool, int, float, str):
        return {"constant": value}
    if type(value) is tuple or (isinstance(value, tuple) and all(type(size) is int for size in value)):  # as torch.Size is
        return {"tuple": [described(item) for item in value]}
    if type(value) is list:
        return {"list": [described(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: described(item) for key, item in value.items()}}
    raise InvalidInput(f"an output of type {type(value).__name__} cannot be saved; return tensors, tuples, lists or dicts")


def same_json(one: Any, other: Any) -> bool:
    """Whether JSON values are the same as text, in which NaN is itself, and 1 is neither 1.0 nor true."""
    return json.dumps(one) == json.dumps(other)


def filled(structure: Any, outputs: Sequence[Any]) -> Any:
    """The outputs in a structure that `structure_of` described; raises InvalidInput for what describes none."""
    match structure:
        case {"output": int(number)} if 0 <= number < len(outputs):
            return outputs[number]
        case {"copy": int(number)} if 0 <= number < len(outputs):
            return copy.copy(outputs[number]) if isinstance(outputs[number], np.ndarray) else outputs[number].clone()
        case {"constant": value}:
            return value
        case {"tuple": list(items)}:
            return tuple(filled(item, outputs) for item in items)
        case {"list": list(items)}:
            return [filled(item, outputs) for item in items]
        case {"dict": dict(items)}:
            return {key: filled(item, outputs) for key, item in items.items()}
    raise InvalidInput(f"{structure!r} does not describe a structure of outputs")
