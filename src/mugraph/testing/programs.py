"""Random tensor programs of the paper's LAX fragment (its section 5): what nobody wrote with this compiler in mind.

A program grows step by step from its newest tensor, so that every operator matters. Along each path there is at most one
exponentiation, exponents are of order 1, and denominators and radicands are positive, so that float64 evaluates every program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np

from mugraph.errors import InvalidInput
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program, ProgramTensor

T = TypeVar("T")

_ATTEMPTS = 1000
_LARGEST_EXPONENT = 4.0
_SCALES = (Fraction(1, 2), Fraction(2), Fraction(1, 3), Fraction(-1), Fraction(3, 8))
_SHIFTS = (Fraction(1), Fraction(1, 100000), Fraction(1, 2))
_OPAQUE = ("silu", "relu", "gelu", "tanh", "sigmoid")


@dataclass(frozen=True, slots=True)
class ProgramSpace:
    """Which programs are drawn: the least and greatest number of `operators`, the `sizes` of dimensions, and whether
    operators outside LAX (activations, maxima of rows) occur. Raises InvalidInput for an empty space."""

    operators: tuple[int, int] = (3, 10)
    sizes: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    opaque: bool = False

    def __post_init__(self) -> None:
        least, most = self.operators
        if not 1 <= least <= most:
            raise InvalidInput(f"programs of {least} to {most} operators: use 1 or more, the least first")
        if not self.sizes or min(self.sizes) < 1:
            raise InvalidInput(f"sizes {list(self.sizes)}: name at least one, each 1 or more")


def random_program(seed: int, space: ProgramSpace = ProgramSpace()) -> Graph:
    """A program of the space, the same for the same seed; every input is fp32 and every operator feeds an output."""
    rng = np.random.default_rng([seed, 0x1A5])
    least, most = space.operators
    for _ in range(_ATTEMPTS):
        graph = _Growth(space, rng).run(int(rng.integers(least, most, endpoint=True)))
        if least <= len(graph.kernels()) <= most:
            return graph
    raise InvalidInput(f"no program of {least} to {most} operators was met in {_ATTEMPTS} attempts; allow more operators")


@dataclass(frozen=True, slots=True)
class _Known:
    """A tensor and what decides where it may stand: `size` is the order of magnitude of its elements for normal inputs.

    One with `zeros` may have elements that are exactly zero, and so may what is computed from it.
    """

    tensor: ProgramTensor
    exponentiated: bool = False
    positive: bool = False
    size: float = 1.0
    zeros: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape


@dataclass(slots=True)
class _Growth:
    """One program as it grows."""

    space: ProgramSpace
    rng: np.random.Generator
    program: Program = field(default_factory=Program)
    inputs: list[_Known] = field(default_factory=list)
    passed: list[_Known] = field(default_factory=list)

    def run(self, steps: int) -> Graph:
        moves = _MOVES + (_OPAQUE_MOVES if self.space.opaque else ())
        heads = (self.pick((2, 3)),) if self.rng.random() < 0.3 else ()
        current = self.fresh((*heads, self.dimension(), self.dimension()))
        while len(self.passed) < steps:
            grown = self.pick(moves)(self, current)
            if grown is not None:
                self.passed.append(current)
                current = grown
        self.program.output(current.tensor)
        return self.program.graph

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def dimension(self) -> int:
        return self.pick(self.space.sizes)

    def fresh(self, shape: tuple[int, ...]) -> _Known:
        """An input of this shape: one that is there already, now and then."""
        fitting = [known for known in self.inputs if known.shape == shape]
        if fitting and self.rng.random() < 0.5:
            return self.pick(fitting)
        known = _Known(self.program.input(f"x{len(self.inputs)}", shape))
        self.inputs.append(known)
        return known

    def partner(self, shape: tuple[int, ...]) -> _Known:
        """A tensor that broadcasts with the shape: an earlier one, or an input of the same shape or of its last dimension."""
        earlier = [known for known in self.passed if _broadcasts(known.shape, shape) or _broadcasts(shape, known.shape)]
        if earlier and self.rng.random() < 0.5:
            return self.pick(earlier)
        return self.fresh(self.pick((shape, shape[-1:])))

    # --- moves: a tensor computed from the current one, or None where the move does not apply --------------------------

    def multiply_matrices(self, x: _Known) -> _Known:
        *_, columns = x.shape
        if x.shape[-2] > 1 and not x.exponentiated and self.rng.random() < 0.2:  # a Gram matrix uses one tensor along two axes
            y = replace(x, tensor=x.tensor.transpose(-1, -2))
        else:
            y = self.fresh((columns, self.dimension()))
        size = x.size * y.size * (columns if x.positive and y.positive else math.sqrt(columns))
        return _Known(
            x.tensor @ y.tensor, x.exponentiated or y.exponentiated, x.positive and y.positive, size, x.zeros or y.zeros
        )

    def add(self, x: _Known) -> _Known:
        y = self.partner(x.shape)
        positive = x.positive and y.positive
        return _Known(x.tensor + y.tensor, x.exponentiated or y.exponentiated, positive, x.size + y.size, x.zeros or y.zeros)

    def subtract(self, x: _Known) -> _Known | None:
        y = self.partner(x.shape)
        if y.tensor.value == x.tensor.value:
            return None
        pair = (x, y) if self.rng.random() < 0.5 else (y, x)
        exponentiated = x.exponentiated or y.exponentiated
        return _Known(pair[0].tensor - pair[1].tensor, exponentiated, False, x.size + y.size, x.zeros or y.zeros)

    def multiply(self, x: _Known) -> _Known:
        y = self.partner(x.shape)
        exponentiated = x.exponentiated or y.exponentiated
        return _Known(x.tensor * y.tensor, exponentiated, x.positive and y.positive, x.size * y.size, x.zeros or y.zeros)

    def divide(self, x: _Known) -> _Known | None:
        denominators = [known for known in self.passed if known.positive and _broadcasts(known.shape, x.shape)]
        if not denominators:
            return None
        y = self.pick(denominators)
        exponentiated = x.exponentiated or y.exponentiated
        return _Known(x.tensor / y.tensor, exponentiated, x.positive and y.positive, x.size / y.size, x.zeros)

    def scale(self, x: _Known) -> _Known:
        factor = self.pick(_SCALES)
        return replace(x, tensor=x.tensor * factor, positive=x.positive and factor > 0, size=x.size * abs(float(factor)))

    def shift(self, x: _Known) -> _Known:
        amount = self.pick(_SHIFTS)
        return replace(x, tensor=x.tensor + amount, size=x.size + float(amount))

    def reduce(self, x: _Known) -> _Known | None:
        dims = [dim for dim in range(len(x.shape)) if x.shape[dim] > 1]
        if not dims:
            return None
        dim = self.pick(dims)
        if self.rng.random() < 0.5:
            return replace(x, tensor=x.tensor.mean(dim, keepdim=True))
        return replace(x, tensor=x.tensor.sum(dim, keepdim=True), size=x.size * x.shape[dim])

    def square(self, x: _Known) -> _Known:
        return replace(x, tensor=x.tensor.square(), positive=not x.zeros, size=x.size**2)

    def root(self, x: _Known) -> _Known | None:
        return replace(x, tensor=x.tensor.sqrt(), size=math.sqrt(x.size)) if x.positive else None

    def normalise(self, x: _Known) -> _Known:
        mean = x.tensor.square().mean(-1, keepdim=True)
        return replace(x, tensor=x.tensor / (mean + Fraction(1, 100000)).sqrt(), size=1.0)

    def exponentiate(self, x: _Known) -> _Known | None:
        if x.exponentiated:
            return None
        halvings = max(0, math.ceil(math.log2(x.size / _LARGEST_EXPONENT)))
        return _Known((x.tensor * Fraction(1, 2**halvings)).exp(), True, True, math.exp(min(x.size, _LARGEST_EXPONENT)))

    def softmax(self, x: _Known) -> _Known | None:
        weights = self.exponentiate(x)
        if weights is None or x.shape[-1] == 1:
            return None
        return replace(weights, tensor=weights.tensor / weights.tensor.sum(-1, keepdim=True), size=1.0)

    def transpose(self, x: _Known) -> _Known:
        return replace(x, tensor=x.tensor.transpose(-1, -2))

    def activate(self, x: _Known) -> _Known:
        function = self.pick(_OPAQUE)
        return _Known(x.tensor.apply(function), True, False, x.size, x.zeros or function == "relu")

    def subtract_maximum(self, x: _Known) -> _Known | None:
        if x.shape[-1] == 1:
            return None
        return replace(x, tensor=x.tensor - x.tensor.amax(-1, keepdim=True), positive=False, zeros=True)


_Move = Callable[[_Growth, _Known], _Known | None]

_MOVES: tuple[_Move, ...] = (
    _Growth.multiply_matrices, _Growth.multiply_matrices, _Growth.multiply_matrices,
    _Growth.add, _Growth.subtract, _Growth.multiply, _Growth.divide, _Growth.scale, _Growth.shift, _Growth.reduce,
    _Growth.square, _Growth.root, _Growth.normalise, _Growth.exponentiate, _Growth.softmax, _Growth.transpose,
)  # fmt: skip
"""Matrix products are what the programs of the paper are made of, so they are drawn three times as often."""

_OPAQUE_MOVES: tuple[_Move, ...] = (_Growth.activate, _Growth.activate, _Growth.subtract_maximum)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
