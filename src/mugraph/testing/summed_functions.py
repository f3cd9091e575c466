"""Random functions of tensors with an axis of any size, which run on PyTorch's tensors and on residues of a prime alike.

They are made of what the theorem of cutoffs speaks of (docs/theory.md, "Cutoffs"): local elements, sums and means over the axis,
products, quotients, and the size as a number. Of residues they are exact: what differs does so at nearly every point.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.frontend.symbolic_sizes.count_rules import Counted, counted
from mugraph.frontend.symbolic_sizes.index_counts import Cutoff, Quotient, cutoffs
from mugraph.frontend.symbolic_sizes.one_symbol import OneSymbol

PRIME = 2**61 - 1
WIDTH = 2
Function = Callable[[Any, Any, Any], Any]
"""Of two tensors [n, WIDTH] and one [WIDTH, WIDTH]."""
Apply = Callable[..., Any]


class Residues:
    """A tensor of integers modulo PRIME with the operators that functions here call on tensors."""

    def __init__(self, elements: npt.NDArray[Any]) -> None:
        self.elements = np.asarray(elements, object) % PRIME

    @classmethod
    def random(cls, shape: Sequence[int], draw: random.Random) -> Residues:
        """Drawn uniformly."""
        return cls(np.array([draw.randrange(PRIME) for _ in range(int(np.prod(shape)))], object).reshape(tuple(shape)))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    @property
    def T(self) -> Residues:
        return Residues(self.elements.T)

    def __add__(self, other: Any) -> Residues:
        return Residues(self.elements + _elements(other))

    def __sub__(self, other: Any) -> Residues:
        return Residues(self.elements - _elements(other))

    def __mul__(self, other: Any) -> Residues:
        return Residues(self.elements * _elements(other))

    def __truediv__(self, other: Any) -> Residues:
        """Raises ZeroDivisionError where an element of `other` is 0."""
        divisors = np.asarray(_elements(other), object) % PRIME
        if not np.all(divisors):
            raise ZeroDivisionError("a residue is 0")
        return Residues(self.elements * np.vectorize(lambda each: pow(int(each), -1, PRIME), otypes=[object])(divisors))

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, other: Any) -> Residues:
        return Residues(np.full(self.shape, other, object)) / self

    def __matmul__(self, other: Residues) -> Residues:
        return Residues(self.elements @ other.elements)

    def sum(self, dim: int, keepdim: bool = False) -> Residues:
        return Residues(self.elements.sum(dim, keepdims=keepdim))

    def mean(self, dim: int, keepdim: bool = False) -> Residues:
        return self.sum(dim, keepdim) / self.shape[dim]


def _elements(other: Any) -> Any:
    return other.elements if isinstance(other, Residues) else other


LOCAL: tuple[Apply, ...] = (
    lambda x, w: x @ w,
    lambda x, w: x * x,
    lambda x, w: x + 1,
    lambda x, w: x * 3 - x * x * x,
    lambda x, w: x / (1 + x * x),
)
"""What does the same to every row, and nothing with others."""
SUMMED: tuple[Apply, ...] = (
    lambda x, w: x * 0 + x.sum(0, keepdim=True),
    lambda x, w: (x * x.shape[0] - x * (x.shape[0] - 1)).sum(0, keepdim=True) + 0 * x,
    lambda x, w: x * x.mean(0, keepdim=True),
    lambda x, w: x * x.sum(0, keepdim=True) / x.shape[0],
    lambda x, w: x - x.mean(0, keepdim=True),
    lambda x, w: (x * x.shape[0] - x.sum(0, keepdim=True)) / x.shape[0],
    lambda x, w: x @ x.T @ x,
    lambda x, w: x @ (x.T @ x),
    lambda x, w: x * x.shape[0],
    lambda x, w: x * (x.shape[0] - 2) + 2 * x,
    lambda x, w: x / x.shape[0],
    lambda x, w: x * (x.shape[0] - 2),
)
"""What sums over all rows, or asks how many there are: the first ten are five, each in two ways."""
_PAIRS = 10
QUOTIENTS: tuple[Apply, ...] = (lambda x, w: x / (1 + (x * x).sum(0, keepdim=True)), lambda x, w: x / x.sum(0, keepdim=True))
TWO: tuple[Apply, ...] = (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y)
RESULTS: tuple[Apply, ...] = (lambda x: x.sum(0), lambda x: x, lambda x: x @ x.T)
"""What is returned of rows: none of them, each, or each pair."""
Step = tuple[str, int, float, float]
Plan = tuple[tuple[Step, ...], int]


def random_plan(draw: random.Random, steps: int, quotients: float = 0.1) -> Plan:
    """A function as data: which operators, on which of the values so far."""
    kinds = {"local": 0.35, "summed": 0.25, "two": 0.4 - quotients, "quotient": quotients}
    chosen = draw.choices([*kinds], [*kinds.values()], k=steps)
    plan = [(kind, draw.randrange(1000), draw.random(), draw.random()) for kind in chosen]
    return tuple(plan), draw.choices(range(len(RESULTS)), (6, 3, 1))[0]


_OPERATORS = {"local": LOCAL, "summed": SUMMED, "quotient": QUOTIENTS, "two": TWO}


def function_of(plan: Plan) -> Function:
    """The function that a plan describes."""
    steps, result = plan

    def function(x: Any, y: Any, w: Any) -> Any:
        values = [x, y]
        for kind, choice, first, second in steps:
            a, b = (values[-1 - int(len(values) * part**2)] for part in (first, second))
            operators = _OPERATORS[kind]
            values.append(operators[choice % len(operators)](a, b if kind == "two" else w))
        return RESULTS[result](values[-1])

    return function


def in_other_words(plan: Plan, draw: random.Random) -> Plan:
    """A plan of the same function, some of whose sums are written in their other way."""
    steps, result = plan

    def other(step: Step) -> Step:
        kind, choice, first, second = step
        place = choice % len(SUMMED)
        return (kind, place ^ 1, first, second) if kind == "summed" and place < _PAIRS and draw.random() < 0.7 else step

    return tuple(map(other, steps)), result


def with_mistake(plan: Plan, draw: random.Random) -> Plan:
    """A plan in which one operator is another one of its kind, or reads another value."""
    steps, result = plan
    number = draw.randrange(len(steps))
    kind, choice, first, second = steps[number]
    changed = draw.choice([(kind, choice + draw.randrange(1, 5), first, second), (kind, choice, draw.random(), second)])
    return (*steps[:number], changed, *steps[number + 1 :]), result


def counts_of(function: Function) -> Counted:
    """What the rules count of a function, with a symbol for the size; raises SizeMatters where they do not."""
    one = OneSymbol()
    rows, weights = (one.like(torch.empty(0), shape) for shape in ((one.size, WIDTH), (WIDTH, WIDTH)))
    graph = make_fx(function, tracing_mode="symbolic")(rows, rows, weights).graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = ((output.args[0],),)
    return counted(graph, {one.size.node.expr: "n"})


def at_point(function: Function, size: int, seed: int) -> npt.NDArray[Any] | None:
    """The elements of a function's result at a random point of a size; None where it is not defined."""
    draw = random.Random(seed)
    inputs = [Residues.random(shape, draw) for shape in ((size, WIDTH), (size, WIDTH), (WIDTH, WIDTH))]
    try:
        return np.asarray(function(*inputs).elements, object)
    except ZeroDivisionError:
        return None


@dataclass(eq=False)
class Member:
    """A function with what the rules count of it and its values at random points; raises SizeMatters where nothing is known."""

    function: Function

    def __post_init__(self) -> None:
        (self.output,) = counts_of(self.function).outputs
        self._values: dict[tuple[int, int], npt.NDArray[Any] | None] = {}

    def agrees(self, other: Member, size: int, seed: int) -> bool | None:
        """Whether both agree at a random point of a size; None where one is not defined."""
        ours, theirs = (each._at(size, seed) for each in (self, other))
        return None if ours is None or theirs is None else np.array_equal(ours, theirs)

    def _at(self, size: int, seed: int) -> npt.NDArray[Any] | None:
        if (size, seed) not in self._values:
            self._values[size, seed] = at_point(self.function, size, seed)
        return self._values[size, seed]

    def deciding_sizes(self, other: Member) -> range:
        """The sizes at which equality with another function is equality at all."""
        cutoff = cutoffs(self.output.bounds, other.output.bounds, self.output.shape).get("n", Cutoff())
        return range(cutoff.first, cutoff.first + cutoff.count)

    def is_accepted(self, other: Member, sizes: Iterable[int], seed: int) -> bool:
        """Whether both agree at random points of sizes, and are defined there."""
        return all(self.agrees(other, size, seed) for size in sizes)


@dataclass(frozen=True, slots=True)
class Span:
    """Functions whose linear combinations are compared with 0, and the sizes that decide about all of these."""

    functions: tuple[Function, ...]
    sizes: range
    seed: int

    def vanishing(self, sizes: Iterable[int]) -> list[list[int]]:
        """A basis of the combinations that are 0 at sizes."""
        return _null_space(
            [row for size in sizes for point in range(_POINTS) for row in self._rows(size, point)], len(self.functions)
        )

    def vanish_at_all(self, sizes: Iterable[int]) -> bool:
        """Whether the combinations that are 0 at these sizes are so at all up to 8, and at two more than are decided by."""
        basis = self.vanishing(sizes)
        others = range(1, max(8, self.sizes[-1] + 2) + 1)
        rows = [row for size in others for row in self._rows(size, _POINTS)]
        return all(sum(map(int.__mul__, row, each)) % PRIME == 0 for row in rows for each in basis)

    def _rows(self, size: int, point: int) -> list[list[int]]:
        values = [at_point(function, size, self.seed + 1000 * point + size) for function in self.functions]
        return [
            [int(each) for each in row] for row in zip(*(value.ravel() for value in values if value is not None), strict=True)
        ]


_POINTS = 6
"""At which combinations are asked to be 0, of each size: with several elements each, more than there are functions."""


def span_of_sums(draw: random.Random) -> Span:
    """Products of up to three sums of local functions over rows, and of numbers made of the size, each product once."""
    local = draw.sample(LOCAL, 2)

    def total(power: int, of: Apply) -> Function:
        return lambda x, y, w: _power(of(x, w), power).sum(0)

    factors: list[Function] = [total(power, of) for of in local for power in (1, 2)]
    factors += [lambda x, y, w: 0 * x.sum(0) + x.shape[0], lambda x, y, w: 0 * x.sum(0) + (x.shape[0] - 3)]
    chosen = [each for count in (1, 2, 3) for each in itertools.combinations_with_replacement(range(len(factors)), count)]
    numbers = [each for each in chosen if all(number >= 2 * len(local) for number in each)]
    products = [*numbers, *draw.sample([each for each in chosen if each not in numbers], 11)]

    def product(numbers: Sequence[int]) -> Function:
        return lambda x, y, w: functools.reduce(operator.mul, (factors[number](x, y, w) for number in sorted(numbers)))

    functions = tuple(map(product, products))
    bounds = [counts_of(function).outputs[0].bounds for function in functions]
    cutoff = cutoffs(functools.reduce(operator.add, bounds), Quotient(), ())["n"]
    return Span(functions, range(cutoff.first, cutoff.first + cutoff.count), draw.randrange(1 << 30))


def _power(x: Any, power: int) -> Any:
    return functools.reduce(operator.mul, [x] * power)


def _null_space(rows: list[list[int]], width: int) -> list[list[int]]:
    """A basis of what a matrix takes to 0 modulo PRIME."""
    matrix, pivots = [[*row] for row in rows], list[int]()
    for column in range(width):
        place = len(pivots)
        found = next((number for number in range(place, len(matrix)) if matrix[number][column] % PRIME), None)
        if found is None:
            continue
        matrix[place], matrix[found] = matrix[found], matrix[place]
        inverse = pow(matrix[place][column], -1, PRIME)
        matrix[place] = [each * inverse % PRIME for each in matrix[place]]
        for number, row in enumerate(matrix):
            if number != place and row[column] % PRIME:
                matrix[number] = [(mine - row[column] * its) % PRIME for mine, its in zip(row, matrix[place], strict=True)]
        pivots.append(column)
    basis = []
    for free in (column for column in range(width) if column not in pivots):
        vector = [0] * width
        vector[free] = 1
        for place, column in enumerate(pivots):
            vector[column] = -matrix[place][free] % PRIME
        basis.append(vector)
    return basis
