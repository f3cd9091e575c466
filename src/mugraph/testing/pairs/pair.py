"""Pairs of functions whose relation is known by construction, and the families that they are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch

from mugraph.ir.program import Program

Function = Callable[..., Any]
Subject = Function | Program
Shape = tuple[int, ...]


class Truth(StrEnum):
    """How two functions are related, as functions of real numbers with every constant the number that it is."""

    EQUAL = "equal"
    DIFFERENT = "different"
    PART = "equal on a part"
    """One of them is undefined on a set of positive measure, and they are equal where both are defined."""
    NEARLY = "equal but for a null set"
    """One of them is undefined on a set without volume, as x / x is at 0."""
    EMPTY = "empty domain"
    """No point at which both are defined."""
    READING = "equal as read"
    """Equal when a float is read as the fraction or root that it was rounded from, and a few ulp apart otherwise."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two functions, example inputs of both (positional, or by keyword), and what is true of them.

    `options` are those of `mugraph.verify`. Where `by_values` is not set, what distinguishes the functions, or makes them
    equal, is no value that a real function has: structures, types, which tensor was captured, the freedom to round.
    """

    note: str
    left: Subject
    right: Subject
    inputs: tuple[Any, ...] | Mapping[str, Any] | None
    truth: Truth
    options: Mapping[str, Any] = field(default_factory=dict)
    by_values: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """Pairs of one kind, over shapes, axes and constants; `construct` is what of a program they try."""

    name: str
    construct: str
    make: Callable[[], Iterator[Pair]]

    def pairs(self) -> list[Pair]:
        """All pairs of the family, made anew."""
        return list(self.make())


FAMILIES: dict[str, Family] = {}
"""All families by name."""


def register(name: str, construct: str, make: Callable[[], Iterator[Pair]]) -> None:
    """Add a family. Raises ValueError for a name that is taken."""
    if name in FAMILIES:
        raise ValueError(f"two families are called {name!r}")
    FAMILIES[name] = Family(name, construct, make)


def family(construct: str) -> Callable[[Callable[[], Iterator[Pair]]], Callable[[], Iterator[Pair]]]:
    """Register a generator of pairs as the family of its own name."""

    def registered(make: Callable[[], Iterator[Pair]]) -> Callable[[], Iterator[Pair]]:
        register(make.__name__.replace("_", " "), construct, make)
        return make

    return registered


def tensors(*shapes: Shape, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Normal tensors of these shapes, the same at every call."""
    generator = torch.Generator().manual_seed(len(shapes))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def pair(truth: Truth, note: str, left: Subject, right: Subject, *shapes: Shape, **options: Any) -> Pair:
    """A pair of functions of fp32 tensors of these shapes."""
    return Pair(note, left, right, tensors(*shapes), truth, options)
