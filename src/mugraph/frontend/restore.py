"""From a call's arguments to the flat list of tensors a program takes, and from its outputs back to what was returned."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.ir.graph import Graph

_NOT_A_TENSOR = object()

Source = Callable[[], torch.Tensor]
"""Gives a tensor that a function brings along, as it is at the time of the call."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One place in the arguments: a tensor of fixed shape and dtype, or a value that was traced as a constant."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    constant: Any = _NOT_A_TENSOR

    @classmethod
    def of(cls, name: str, example: Any) -> Leaf:
        """The place that `example` stands in. Raises InvalidInput for a tensor that has no one shape."""
        if isinstance(example, torch.Tensor):
            if example.is_nested:
                raise InvalidInput(f"argument {name} is a nested tensor; use a dense tensor")
            return cls(name, tuple(example.shape), example.dtype)
        return cls(name, constant=example)

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor stands here."""
        return self.dtype is not None

    def accept(self, value: Any) -> Any:
        """`value` without its gradient; raises ShapeMismatch or InvalidInput when the program was traced with another kind."""
        if not self.is_tensor:
            if type(value) is not type(self.constant) or value != self.constant:
                raise InvalidInput(f"argument {self.name} was {self.constant!r} when optimized, not {value!r}; optimize again")
            return value
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(f"argument {self.name} must be a torch tensor, not {type(value).__name__}")
        if tuple(value.shape) != self.shape or value.dtype is not self.dtype:
            has, wanted = (f"{dtype} {list(shape)}" for dtype, shape in ((value.dtype, value.shape), (self.dtype, self.shape)))
            raise ShapeMismatch(f"argument {self.name} is {has}, optimized for {wanted}; optimize again for other inputs")
        return value.detach() if value.requires_grad else value


@dataclass(frozen=True, slots=True)
class Arguments:
    """How a function is called: its signature, and what stood at each place of the example call."""

    signature: inspect.Signature
    structure: TreeSpec
    leaves: tuple[Leaf, ...]
    positional: bool
    """Whether the example call was positional tensors only, one per leaf, so that such calls need no binding."""

    @classmethod
    def of(cls, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The way `fn(*args, **kwargs)` calls `fn`. Raises InvalidInput when `fn` does not take these arguments."""
        signature = _signature(fn, len(args))
        bound = _bind(signature, args, kwargs)
        with_paths, structure = tree_flatten_with_path(dict(bound.arguments))
        names: list[str] = []
        for path, _ in with_paths:
            names.append(unused_name(_leaf_name(path), names))
        leaves = tuple(Leaf.of(name, example) for name, (_, example) in zip(names, with_paths, strict=True))
        positional = not kwargs and len(args) == len(leaves) and all(isinstance(arg, torch.Tensor) for arg in args)
        return cls(signature, structure, leaves, positional)

    @property
    def tensors(self) -> tuple[Leaf, ...]:
        """The places where tensors stand."""
        return tuple(leaf for leaf in self.leaves if leaf.is_tensor)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors of a call, checked against the example's. Raises ShapeMismatch and InvalidInput naming the argument."""
        if self.positional and not kwargs and len(args) == len(self.leaves):
            values = list(args)
        else:
            values, structure = tree_flatten(dict(_bind(self.signature, args, kwargs).arguments))
            if structure != self.structure:
                names = ", ".join(leaf.name for leaf in self.leaves)
                raise InvalidInput(f"call with the same arguments as when optimized: {names}")
        accepted = [leaf.accept(value) for leaf, value in zip(self.leaves, values, strict=True)]
        return [value for leaf, value in zip(self.leaves, accepted, strict=True) if leaf.is_tensor]

    def call(self, fn: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
        """`fn` with `tensors` at the places of tensors and the constants everywhere else."""
        remaining = iter(tensors)
        values = [next(remaining) if leaf.is_tensor else leaf.constant for leaf in self.leaves]
        bound = inspect.BoundArguments(self.signature, tree_unflatten(values, self.structure))
        return fn(*bound.args, **bound.kwargs)


@dataclass(frozen=True, slots=True)
class Results:
    """What a function returned: at each place one of the program's outputs (by number) or a constant."""

    structure: TreeSpec
    leaves: tuple[tuple[int | None, Any], ...]

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """The outputs where the function has its tensors."""
        return tree_unflatten(
            [constant if number is None else outputs[number] for number, constant in self.leaves], self.structure
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """A PyTorch function as a program, and how to call the program in its place.

    The inputs of `graph` are the tensors among the arguments, then those that `sources` give.
    """

    name: str
    graph: Graph
    arguments: Arguments
    sources: tuple[Source, ...]
    results: Results

    @property
    def captured(self) -> tuple[torch.Tensor, ...]:
        """Parameters, buffers and tensors the function closes over, as they are now."""
        return tuple(source() for source in self.sources)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One tensor per input of `graph`; raises ShapeMismatch or InvalidInput naming the argument that does not fit."""
        return self.arguments.flatten(args, kwargs) + [source().detach() for source in self.sources]

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """The outputs of `graph` as the function returns them: tuples, lists, dicts, None and numbers in place."""
        return self.results.unflatten(outputs)

    def call(self, executable: Callable[..., Sequence[Any]], *args: Any, **kwargs: Any) -> Any:
        """`executable(*tensors)` with the arguments and the result of the traced function."""
        return self.unflatten(executable(*self.flatten(args, kwargs)))


def unused_name(wanted: str, taken: Collection[str]) -> str:
    """The name, numbered from 2 if it is taken."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def _signature(fn: Callable[..., Any], count: int) -> inspect.Signature:
    try:
        return inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):  # functions written in C have none
        kind = inspect.Parameter.POSITIONAL_ONLY
        return inspect.Signature([inspect.Parameter(f"argument{position}", kind) for position in range(count)])


def _bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"the function takes {signature}: {error}") from None
    bound.apply_defaults()
    return bound


def _leaf_name(path: Any) -> str:
    """`x` for argument x, `batch.mask` and `layers.0` inside containers."""
    return ".".join(re.findall(r"\w+", keystr(path)))
