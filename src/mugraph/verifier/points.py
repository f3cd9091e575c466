"""Inputs at which two programs are compared: many kinds of numbers, each given by a recipe that anyone can repeat.

Element `e` of input `i` at point `n` of a search with seed `s` is made of the 64-bit number that SplitMix64's mixing function
gives for counters hashed one after the other: h = mix(mix(mix(mix(s) + n) + i) + e), all modulo 2**64. Its bits make `u`, an
odd multiple of 2**-16 between -1 and 1, and what else a kind of numbers needs. Numbers are float64's, exactly; last, they are
brought into the range of the input's type and rounded to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.graph import Graph, Shape, Tensor
from mugraph.ir.scalar import Scalar

Bits = Array
"""uint64, one number per element."""

_GOLDEN = 0x9E3779B97F4A7C15


def mix(number: Bits) -> Bits:
    """SplitMix64's output for this state."""
    with np.errstate(over="ignore"):
        z = np.asarray(number, np.uint64) + np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def _next(state: Bits, counter: int | Bits) -> Bits:
    with np.errstate(over="ignore"):
        return mix(state + np.asarray(counter, np.uint64))


@dataclass(frozen=True, slots=True)
class _Draw:
    """The bits of one input's elements, and of the input itself."""

    elements: Bits
    input: int

    @property
    def unit(self) -> Array:
        """u, of the low 16 bits."""
        return np.asarray(((self.elements & np.uint64(0xFFFF)).astype(np.float64) * 2 + 1) * 2.0**-16 - 1)

    def below(self, count: int) -> Array:
        """An integer from 0 to count - 1, of other bits."""
        return np.asarray(((self.elements >> np.uint64(32)) % np.uint64(count)).astype(np.int64))

    @property
    def one_hot(self) -> Array:
        """1 for one element that the input's bits name, 0 for the others."""
        array = np.zeros(self.elements.shape)
        array.reshape(-1)[self.input % max(1, array.size)] = 1.0
        return array


KINDS: dict[str, Callable[[_Draw], Array]] = {
    "between -2 and 2": lambda draw: 2 * draw.unit,
    "between 0.5 and 1.5": lambda draw: 1 + draw.unit / 2,
    "between -1.5 and -0.5": lambda draw: -1 + draw.unit / 2,
    "between -16 and 16": lambda draw: 16 * draw.unit,
    "integers between -3 and 3": lambda draw: np.asarray(draw.below(7) - 3.0),
    "between -2**-10 and 2**-10": lambda draw: draw.unit * 2.0**-10,
    "between -2**20 and 2**20": lambda draw: draw.unit * 2.0**20,
    "between 2**10 and 2**20": lambda draw: 2.0 ** (10 + draw.below(10)) * (1 + np.abs(draw.unit)),
    "all ones": lambda draw: np.ones(draw.elements.shape),
    "all zeros": lambda draw: np.zeros(draw.elements.shape),
    "one 1 among zeros": lambda draw: draw.one_hot,
    "of magnitudes from 2**-20 to 2**20": lambda draw: draw.unit * 2.0 ** (draw.below(41) - 20),
    "each input of one sign": lambda draw: (1 if draw.input & 1 else -1) * np.abs(2 * draw.unit),
    "each input of one magnitude": lambda draw: 2.0 ** ((draw.input >> 1) % 21 - 10) * draw.unit,
    "mostly zeros": lambda draw: np.where(draw.below(4) == 0, 2 * draw.unit, 0.0),
    "positive, below 2**-10": lambda draw: np.abs(draw.unit) * 2.0**-10,
    "negative, large": lambda draw: -(2.0**12) * np.abs(draw.unit),
    "all equal": lambda draw: np.full(draw.elements.shape, (draw.input % 4096 - 2048) / 1024),
}
"""Kinds of numbers, by what is said of them."""

NEAR_CONSTANTS = "near the programs' constants"
"""A kind for programs that have constants c: c + u * max(1, |c|) * 2**-k with k from 4 to 27, for one of them or its
negative."""


@dataclass(frozen=True, slots=True)
class Point:
    """Inputs of one kind: the recipe."""

    kind: str
    seed: int
    number: int
    constants: tuple[float, ...] = ()

    def inputs(self, tensors: Sequence[Tensor], fixed: Mapping[int, Array]) -> list[Array]:
        """Float64 arrays of numbers that these inputs can hold, but for those that are `fixed`."""
        start = _next(mix(np.asarray(self.seed % 2**64, np.uint64)), self.number)
        return [
            fixed[i] if i in fixed else _held(self._input(_next(start, i), tensor.shape), tensor.dtype)
            for i, tensor in enumerate(tensors)
        ]

    def _input(self, bits: Bits, shape: Shape) -> Array:
        counters = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape)
        draw = _Draw(_next(bits, counters), int(bits))
        if self.kind != NEAR_CONSTANTS:
            return KINDS[self.kind](draw)
        centres = np.asarray([*self.constants, *(-c for c in self.constants)])[draw.below(2 * len(self.constants))]
        near = 2.0 ** -(4.0 + ((draw.elements >> np.uint64(16)) % np.uint64(24)).astype(np.float64))
        return np.asarray(centres + draw.unit * np.maximum(1.0, np.abs(centres)) * near)

    def to_json(self) -> dict[str, object]:
        """The recipe, for those who want to repeat it."""
        recipe: dict[str, object] = {"kind": self.kind, "seed": self.seed, "number": self.number}
        return {**recipe, "constants": [c.hex() for c in self.constants]} if self.constants else recipe

    def __str__(self) -> str:
        return f"inputs {self.kind}"


def _held(array: Array, dtype: DType) -> Array:
    """The numbers brought into the range of a type, and rounded to its nearest."""
    return round_to(dtype, np.clip(array, dtype.least, dtype.largest)).astype(np.float64)


def points(graphs: Sequence[Graph], seed: int, rounds: int) -> list[Point]:
    """Points of every kind, `rounds` times."""
    constants = _constants(graphs)
    kinds = [*KINDS, NEAR_CONSTANTS] if constants else [*KINDS]
    numbered = enumerate(kind for _ in range(rounds) for kind in kinds)
    return [Point(kind, seed, number, constants if kind == NEAR_CONSTANTS else ()) for number, kind in numbered]


def _constants(graphs: Sequence[Graph]) -> tuple[float, ...]:
    """The constants of programs that are near enough to zero for inputs: 2**20 at most."""
    found = {float(v) for g in graphs for _, node in g.walk() if isinstance(v := node.get("value"), Scalar) and _moderate(v)}
    return tuple(sorted(found))


def _moderate(value: Scalar) -> bool:
    return abs(value.value) <= 1 << 20
