"""What functions return as structures of tensors and other values, compared. Programs have them too, so nothing needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.ir.graph import Tensor

Structure = Any
"""A `Container` of structures, an `ReturnedTensor`, or a value that is no tensor."""


@dataclass(frozen=True, slots=True)
class ReturnedTensor:
    """A tensor: the output of that number of a graph."""

    number: int
    tensor: Tensor

    def __str__(self) -> str:
        return str(self.tensor)


@dataclass(frozen=True, slots=True)
class Container:
    """A tuple, list, dict or any other node of PyTorch's trees; the parts of a dict in the order of its keys, sorted."""

    kind: type
    keys: tuple[Any, ...] | None
    """Of a dict; None for containers whose parts have positions."""
    context: Any
    """What else tells containers of a kind apart: the class of a named tuple, the fields of a dataclass."""
    parts: tuple[Structure, ...]

    def __str__(self) -> str:
        texts = [text_of(part) for part in self.parts]
        if self.keys is not None:
            return "{" + ", ".join(f"{key!r}: {text}" for key, text in zip(self.keys, texts, strict=True)) + "}"
        if self.kind is list:
            return f"[{', '.join(texts)}]"
        if self.kind is tuple:
            return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
        name = self.context.__name__ if isinstance(self.context, type) else self.kind.__name__
        return f"{name}({', '.join(texts)})"


def outputs_of(structure: Structure) -> list[ReturnedTensor]:
    """The tensors of a structure, in order."""
    if isinstance(structure, Container):
        return [output for part in structure.parts for output in outputs_of(part)]
    return [structure] if isinstance(structure, ReturnedTensor) else []


def difference(left: Structure, right: Structure, same: Callable[[object, object], bool], place: str = "") -> str | None:
    """Where two structures are not alike, in words; None where they are, tensors being alike in shape and dtype."""
    where = f"at {place} " if place else ""
    if isinstance(left, Container) and isinstance(right, Container):
        alike = left.kind is right.kind and left.keys == right.keys and left.context == right.context
        if not alike or len(left.parts) != len(right.parts) or _kinds(left.keys) != _kinds(right.keys):
            return f"{where}one returns {left}, the other {right}"
        keys: Sequence[Any] = range(len(left.parts)) if left.keys is None else left.keys
        differences = (
            difference(one, other, same, f"{place}[{key!r}]")
            for key, one, other in zip(keys, left.parts, right.parts, strict=True)
        )
        return next(filter(None, differences), None)
    if isinstance(left, ReturnedTensor) and isinstance(right, ReturnedTensor):
        alike = (left.tensor.shape, left.tensor.dtype) == (right.tensor.shape, right.tensor.dtype)
    else:
        alike = (
            not isinstance(left, Container | ReturnedTensor)
            and not isinstance(right, Container | ReturnedTensor)
            and same(left, right)
        )
    return None if alike else f"{where}one returns {text_of(left)}, the other {text_of(right)}"


def text_of(structure: Structure) -> str:
    """A structure as one reads it: `(fp32[2, 4], 3)`."""
    return str(structure) if isinstance(structure, Container | ReturnedTensor) else repr(structure)


def _kinds(keys: Sequence[Any] | None) -> list[type] | None:
    return None if keys is None else [type(key) for key in keys]
