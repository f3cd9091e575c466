"""Which dimensions of a function's arguments vary, as its calls show it: `mugraph.optimize(dynamic=True)`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mugraph.integrations.call_kinds import Kind, kind_of_call
from mugraph.sizes.dims import Dim, Dynamic

Place = tuple[int | str, int]
"""An argument, by position or name, and one of its dimensions."""


class ObservedSizes:
    """The sizes of the tensors among a function's arguments in all calls so far."""

    def __init__(self) -> None:
        self._of_kinds: dict[Kind, _Columns] = {}
        self._one_at_a_time = threading.Lock()

    def dynamic(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dynamic:
        """The dimensions of a call's arguments that differ from those of an earlier call of its kind, this one included.

        Dimensions that were alike in every call have one name. Nothing is dynamic in the first call. All tensors have elements.
        Tensors in containers count as they are. Raises TypeError for values without a hash.
        """
        named: dict[int | str, Any] = {**dict(enumerate(args)), **dict(sorted(kwargs.items()))}
        tensors = {argument: value for argument, value in named.items() if isinstance(value, torch.Tensor)}
        free = {argument: dict.fromkeys(range(tensor.dim())) for argument, tensor in tensors.items()}
        places = [(argument, position) for argument, dims in free.items() for position in dims]
        sizes = [int(tensors[argument].shape[position]) for argument, position in places]
        kind = kind_of_call(args, kwargs, free)
        with self._one_at_a_time:
            columns = self._of_kinds.setdefault(kind, _Columns(sizes))
            columns.add(sizes)
            return columns.dynamic(places)


class _Columns:
    """The calls of one kind as rows of a table, of which is known what tells its columns apart."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.first = tuple(sizes)
        self.varying = [False] * len(sizes)
        self.highest = [0] * len(sizes)
        """The ends of ranges that hold all sizes of each column."""
        self.alike = [0] * len(sizes)
        """Columns of one number were alike in every row."""

    def add(self, sizes: Sequence[int]) -> None:
        """Another row."""
        told_apart = list(zip(self.alike, sizes, strict=True))
        self.alike = [told_apart.index(one) for one in told_apart]
        for column, size in enumerate(sizes):
            self.varying[column] |= size != self.first[column]
            if size > self.highest[column]:
                self.highest[column] = 1 << (2 * size - 1).bit_length()

    def dynamic(self, places: Sequence[Place]) -> Dynamic:
        """The columns that vary, each with the range and the name of the first that was always like it."""
        found: dict[int | str, dict[int, Dim]] = {}
        for column, (argument, position) in enumerate(places):
            if self.varying[column]:
                first, at = places[self.alike[column]]
                name = f"{first if isinstance(first, str) else f'argument{first}'}_{at}"
                found.setdefault(argument, {})[position] = Dim(name, 1, self.highest[column])
        return found
