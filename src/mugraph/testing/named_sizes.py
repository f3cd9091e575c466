"""Functions of tensors with an axis of any size, written down as programs with names for sizes
(`mugraph.checker.size_templates`).

They are called on tensors here that write what is done with them, without PyTorch, and without any size: a program that is
traced at some sizes takes a thousand times as long, and tells nothing that is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from mugraph.testing.summed_functions import WIDTH

NAME = "n"
Size = int | str
Template = dict[str, Any]


class Number:
    """A polynomial in the size, which Python's numbers can be added to and multiplied by."""

    def __init__(self, coefficients: dict[int, int]) -> None:
        self.coefficients = {power: number for power, number in coefficients.items() if number}

    @classmethod
    def of(cls, value: Number | int) -> Number:
        """A number, or a size."""
        return value if isinstance(value, Number) else cls({0: value})

    def __add__(self, other: Number | int) -> Number:
        theirs = Number.of(other).coefficients
        powers = {*self.coefficients, *theirs}
        return Number({power: self.coefficients.get(power, 0) + theirs.get(power, 0) for power in powers})

    def __sub__(self, other: Number | int) -> Number:
        return self + Number.of(other) * -1

    def __mul__(self, other: Number | int) -> Number:
        theirs, made = Number.of(other).coefficients, dict[int, int]()
        for power, number in self.coefficients.items():
            for more, times in theirs.items():
                made[power + more] = made.get(power + more, 0) + number * times
        return Number(made)

    __radd__, __rmul__ = __add__, __mul__

    @property
    def value(self) -> dict[str, Any]:
        """The number as a constant's value."""
        if self.coefficients.keys() <= {0}:
            return {"exact": str(self.coefficients.get(0, 0))}
        terms = sorted(self.coefficients.items())
        return {"terms": [[str(Fraction(number)), {NAME: power} if power else {}] for power, number in terms]}


class Writer:
    """The nodes of a program that is being written."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def add(self, op: str, made: Sequence[Size], operands: Sequence[Written] = (), **attributes: Any) -> Written:
        """One more node, of this shape."""
        outputs = [{"shape": [*made], "dtype": "fp32"}]
        inputs = [[each.number, 0] for each in operands]
        self.nodes.append({"op": op, "inputs": inputs, "outputs": outputs, "attributes": attributes})
        return Written(self, len(self.nodes) - 1, tuple(made))

    def input(self, name: str, shape: Sequence[Size]) -> Written:
        return self.add("input", shape, name=name, shape=[*shape], dtype={"dtype": "fp32"})

    def number(self, value: Number | int) -> Written:
        return self.add("constant", (), value=Number.of(value).value, dtype={"dtype": "fp32"})


class Written:
    """A tensor of a program that is being written, with the operators that functions here call on tensors."""

    def __init__(self, writer: Writer, number: int, sizes: tuple[Size, ...]) -> None:
        self.writer, self.number, self.sizes = writer, number, sizes

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes, of which one that varies is a polynomial."""
        return tuple(Number({1: 1}) if isinstance(size, str) else size for size in self.sizes)

    @property
    def T(self) -> Written:
        order = [*range(len(self.sizes))][::-1]
        return self.writer.add("transpose", self.sizes[::-1], [self], permutation=order)

    def _with(self, op: str, other: Any, flipped: bool = False) -> Written:
        theirs = other if isinstance(other, Written) else self.writer.number(other)
        rank = max(len(self.sizes), len(theirs.sizes))
        padded = [(1,) * (rank - len(each.sizes)) + each.sizes for each in (self, theirs)]
        shape = [right if left == 1 else left for left, right in zip(*padded, strict=True)]
        return self.writer.add(op, shape, [theirs, self] if flipped else [self, theirs])

    def __add__(self, other: Any) -> Written:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Written:
        return self._with("sub", other)

    def __mul__(self, other: Any) -> Written:
        return self._with("mul", other)

    def __truediv__(self, other: Any) -> Written:
        return self._with("div", other)

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, other: Any) -> Written:
        return self._with("div", other, flipped=True)

    def __matmul__(self, other: Written) -> Written:
        return self.writer.add("matmul", (*self.sizes[:-1], other.sizes[-1]), [self, other])

    def sum(self, dim: int, keepdim: bool = False) -> Written:
        """Summed over all of a dimension."""
        shape = [*self.sizes[:dim], 1, *self.sizes[dim + 1 :]]
        made = self.writer.add("sum", shape, [self], dim=dim, size=self.sizes[dim])
        gone = [*shape[:dim], *shape[dim + 1 :]]
        return made if keepdim else self.writer.add("reshape", gone, [made], shape=gone)

    def mean(self, dim: int, keepdim: bool = False) -> Written:
        """The same, divided by the size."""
        total = self.sum(dim, keepdim)
        return total._with("div", self.shape[dim])


def template_of_function(function: Callable[[Any, Any, Any], Any]) -> Template:
    """A function of two tensors [n, WIDTH] and one [WIDTH, WIDTH] as a program with a name for the size."""
    writer = Writer()
    rows = [writer.input(name, (NAME, WIDTH)) for name in ("x", "y")]
    made = function(rows[0], rows[1], writer.input("w", (WIDTH, WIDTH)))
    return {"nodes": writer.nodes, "outputs": [[made.number, 0]]}
