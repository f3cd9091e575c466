"""Saved kernels of capacities: whether their masked programs let through nothing of other slots, and compute the same.

Masked programs are run in float64, at a few sizes of each capacity: with numbers, NaN and infinities in the slots that are not
held, and need not be 0, results must be those with 0 there, and each capacity must have the results of the next larger one
(docs/theory.md, "Any size from slots"). That is measured, and no proof. That a function is one of these programs at every size,
nothing in a folder can say.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.checker.constants import constants_of
from mugraph.checker.float_errors import Floats
from mugraph.checker.form import check_shapes, graph_of
from mugraph.checker.interpreter import run
from mugraph.checker.saved_files import Json, Rejected, Undecided, read, read_range, sizes_said
from mugraph.checker.tensors import Array

_GARBAGE = (np.nan, np.inf, -np.inf, 1e3)
"""What lies in slots that are not held, beside 0, of arguments that are not said to have 0 there."""
_SIGNS = ((0, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))
"""Those of numbers that programs are called with, for every other argument, 0 being both: in sums and products of numbers of one
sign a 0 that takes part in a maximum is found."""
_CLOSE = 1e-9
_INDICES = ("int32", "int64")


def check_capacities(folder: Path) -> tuple[int, ...]:
    """The capacities of a saved range, whose masked programs are called again. Raises Rejected, naming what is wrong, and
    Undecided where programs look something up."""
    try:
        document, places = read_range(folder, "capacities")
        programs = {capacity: _Masked.of(place, capacity, document) for capacity, place in places.items()}
        sizes = sizes_said(document["dimension"])
        if sizes[-1] > max(programs):
            raise Rejected("capacities.json: no capacity holds all of its range")
        for program in programs.values():
            _check_other_slots(program, sizes)
        for less, more in itertools.pairwise(programs.values()):
            _compare(less, more, sizes)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"the saved range is malformed ({type(error).__name__}: {error})") from None
    return tuple(programs)


@dataclass(frozen=True, slots=True)
class _Masked:
    """A masked program at a capacity, and what its inputs are."""

    capacity: int
    program: Json
    said: Mapping[str, Any]
    """The document about all of them."""
    constants: list[Array]
    """The last inputs of the program, which no call gives."""

    @classmethod
    def of(cls, folder: Path, capacity: int, said: Mapping[str, Any]) -> _Masked:
        """Raises Rejected unless tensors have the slots of the capacity where that is said."""
        saved = read(folder)
        program = graph_of(saved.document("program.json"), "program.json")
        check_shapes(program, "program.json")
        made = cls(capacity, program, said, constants_of(saved, program))
        shapes = [each["shape"] for each in made.tensors]
        arguments = len(said["inputs"]) + len(said["slots"]) + len(said["counts"])
        numbers = list(range(arguments)) == sorted(said["arguments"]) and len(shapes) == arguments
        if not numbers or len(program["outputs"]) != len(said["outputs"]):
            raise Rejected(f"capacities/{capacity}: its program has other inputs or outputs than capacities.json says")
        if any(first is not None and not 0 <= first < end for first, end in said["slots"]):
            raise Rejected("capacities.json: an input says of no slots that they are held")
        if any(said["inputs"][number] is None for number in said["zeroed"]):
            raise Rejected("capacities.json: an input without slots is said to have 0 in some")
        if any(each["dtype"] in _INDICES for each in made.tensors):
            raise Undecided(f"capacities/{capacity}: its program looks something up, and is not called here")
        outputs = [program["nodes"][i]["outputs"][j]["shape"] for i, j in program["outputs"]]
        dims = [None if place is None else place[0] for place in said["outputs"]]
        placed = [*zip(shapes, made.dims, strict=True), *zip(outputs, dims, strict=True)]
        if any(dim is not None and shape[dim] != made.slots for shape, dim in placed):
            raise Rejected(f"capacities/{capacity}: a tensor has other slots than it holds")
        return made

    @property
    def slots(self) -> int:
        """How many there are."""
        ends = [end for _, end in self.said["slots"]] + [place[1] for place in self.said["outputs"] if place is not None]
        return self.capacity + int(max(0, *ends))

    @property
    def tensors(self) -> list[Json]:
        """The inputs of the program, but for its constants."""
        inputs = [node["outputs"][0] for node in self.program["nodes"] if node["op"] == "input"]
        return inputs[: len(inputs) - len(self.constants)]

    @property
    def dims(self) -> list[int | None]:
        """Where inputs of the program have the axis: those of the function, and what is said of slots."""
        of_arguments = [*self.said["inputs"], *[0] * len(self.said["slots"]), *[None] * len(self.said["counts"])]
        return [of_arguments[number] for number in self.said["arguments"]]

    def called(self, size: int, inputs: Mapping[int, Array], behind: float) -> list[Array]:
        """What is held of the outputs at a size. `inputs` are the arguments of the function, by number, in at least as many slots
        as are held, and what lies behind is a number."""
        given = [self._input(number, size, inputs, behind) for number in self.said["arguments"]]
        outputs = run(self.program, [*given, *self.constants], _DOUBLE)
        return [
            np.asarray(output) if place is None else np.take(np.asarray(output), range(size + place[1]), place[0])
            for output, place in zip(outputs, self.said["outputs"], strict=True)
        ]

    def _input(self, number: int, size: int, inputs: Mapping[int, Array], behind: float) -> Array:
        given, slots = len(self.said["inputs"]), self.said["slots"]
        if number >= given + len(slots):
            count: int = self.said["counts"][number - given - len(slots)]
            return np.full((1,), float(size + count))
        if number >= given:
            first, end = slots[number - given]
            places = np.arange(self.slots)
            return np.asarray((places < size + end) & (places >= (0 if first is None else size + first)), np.float64)
        dim: int | None = self.said["inputs"][number]
        if dim is None:
            return inputs[number]
        return _in_slots(inputs[number], dim, size, self.slots, 0.0 if number in self.said["zeroed"] else behind)

    def examples(self, signs: tuple[int, int]) -> dict[int, Array]:
        """Arguments of the function at the capacity: normal numbers, or those of one sign for each; booleans are true, so that
        nothing is hidden."""
        numbers, made = np.random.default_rng(self.capacity), dict[int, Array]()
        for number, tensor in zip(self.said["arguments"], self.tensors, strict=True):
            normal = numbers.standard_normal(tensor["shape"])
            shown = np.asarray(np.abs(normal) * signs[number % 2] if any(signs) else normal)
            made[number] = np.ones_like(shown) if tensor["dtype"] == "bool" else shown
        return made


_DOUBLE = Floats(np.float64)


def _in_slots(array: Array, dim: int, size: int, slots: int, behind: float) -> Array:
    held = np.take(array, range(size), dim)
    return np.concatenate([held, np.full((*array.shape[:dim], slots - size, *array.shape[dim + 1 :]), behind)], dim)


def _looked_at(sizes: range, capacity: int) -> list[int]:
    """Some sizes that a capacity holds, the smallest and the largest among them, which may be beyond the range."""
    low, step = sizes[0], sizes.step
    below = {number // step * step for number in ((low + capacity) // 2, capacity - 1, capacity)}
    return sorted(size for size in {low, *below} if low <= size <= capacity)


def _check_other_slots(program: _Masked, sizes: range) -> None:
    """Raise Rejected where what lies in slots that are not held reaches a result."""
    for signs in _SIGNS:
        inputs = program.examples(signs)
        for size in _looked_at(sizes, program.capacity):
            with np.errstate(all="ignore"):
                plain = program.called(size, inputs, 0.0)
                others = [program.called(size, inputs, behind) for behind in _GARBAGE]
            if not all(
                np.array_equal(one, other, equal_nan=True) for each in others for one, other in zip(plain, each, strict=True)
            ):
                raise Rejected(f"capacities/{program.capacity}: what lies behind {size} elements reaches a result")


def _compare(less: _Masked, more: _Masked, sizes: range) -> None:
    """Raise Rejected unless two capacities have the same results at sizes that both hold."""
    for signs in _SIGNS:
        inputs = more.examples(signs)
        for size in _looked_at(sizes, less.capacity):
            with np.errstate(all="ignore"):
                ours, theirs = less.called(size, inputs, 0.0), more.called(size, inputs, 0.0)
            for one, other in zip(ours, theirs, strict=True):
                if one.shape != other.shape or not np.allclose(one, other, rtol=_CLOSE, atol=_CLOSE, equal_nan=True):
                    raise Rejected(f"capacities {less.capacity} and {more.capacity}: their results at size {size} differ")
