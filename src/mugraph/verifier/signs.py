"""Which tensors of a graph have no negative elements, whatever the inputs are: `Arithmetic` on what is known of signs.

Squares, exponentials and roots have none, nor what is added, multiplied, divided or maximised of such. So much is enough for the
radicands that norms take roots of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Scalar
from mugraph.verifier.batched import evaluate_batched


@dataclass(frozen=True, slots=True, eq=False)
class Sign:
    """One tensor, equal to itself alone."""

    nonnegative: bool


@dataclass(slots=True)
class _Signs:
    """`doubtful` says whether a root or logarithm was taken of what may be negative."""

    doubtful: bool = False

    def constant(self, value: Scalar) -> Sign:
        return Sign(value.value >= 0)

    def add(self, x: Sign, y: Sign) -> Sign:
        return Sign(x.nonnegative and y.nonnegative)

    def sub(self, x: Sign, y: Sign) -> Sign:
        return Sign(False)

    def mul(self, x: Sign, y: Sign) -> Sign:
        return Sign(x is y or (x.nonnegative and y.nonnegative))

    div = mul
    matmul = add

    def exp(self, x: Sign) -> Sign:
        return Sign(True)

    def sqrt(self, x: Sign) -> Sign:
        self.doubtful |= not x.nonnegative
        return Sign(True)

    def sum(self, x: Sign, axis: int) -> Sign:
        return Sign(x.nonnegative)

    max = sum

    def opaque(self, name: str, x: Sign) -> Sign:
        self.doubtful |= name == "log" and not x.nonnegative
        return Sign(False)

    def view(self, x: Sign, move: Callable[[Array], Array]) -> Sign:
        return Sign(x.nonnegative)  # its elements stand elsewhere: with the tensor itself they make no squares

    def join(self, xs: Sequence[Sign], combine: Callable[[Sequence[Array]], Array]) -> Sign:
        return Sign(all(x.nonnegative for x in xs))


def total(graph: Graph) -> bool:
    """Whether every root and logarithm of a kernel graph is certainly of numbers that are not negative."""
    signs = _Signs()
    evaluate_batched(graph, [Sign(False) for _ in graph.inputs()], signs)
    return not signs.doubtful
