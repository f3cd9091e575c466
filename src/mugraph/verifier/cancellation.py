"""What errors of a result are relative to where its terms cancel: how large the numbers were that it is the difference of.

A value that is 0 but for what float64 rounds has no digit that float64 could tell, and no kernel can be asked for one. What can
be asked is that it errs little beside what was added up. Running error analysis knows how much that is: next to every value goes
how far it moves if each operation on the way to it errs by its result, to first order. In each precision, the part of a result
that rounding changes, times that, is about what it makes of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Scalar
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

_ROUNDING = 2.0**-53
"""How much of a result float64 rounds away."""
_STEP = 2.0**-20
"""How far arguments of functions are moved to see what becomes of their errors, relative to them or to 1."""


def error_scales(graph: Graph, inputs: Sequence[Array], pulse: Pulse) -> list[Array]:
    """For each element of the outputs of a kernel graph how far it moves if each operation errs by its result, in float64."""
    scaled = [_Scaled(array.astype(np.float64), np.zeros(array.shape)) for array in inputs]
    with np.errstate(all="ignore"):
        return [output.scale for output in evaluate_batched(graph, scaled, _ErrorScales(), pulse)]


def cancelled_scale(largest: float, scales: Array) -> float | None:
    """What errors of an output are relative to whose `largest` value float64 cannot tell from 0; None where it can."""
    scale = float(np.max(scales, initial=0.0, where=np.isfinite(scales)))
    return scale if largest <= _ROUNDING * scale else None


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Values, and how far they move."""

    value: Array
    scale: Array


class _ErrorScales:
    """`mugraph.ir.arithmetic.Arithmetic` on such pairs. Where it is not known how far a value moves, that is taken for less."""

    def __init__(self) -> None:
        self.floats = FloatArithmetic()

    def constant(self, value: Scalar) -> _Scaled:
        number = self.floats.constant(value)
        return _Scaled(number, np.zeros(number.shape))

    def add(self, x: _Scaled, y: _Scaled) -> _Scaled:
        return self._of(self.floats.add(x.value, y.value), x.scale + y.scale)

    def sub(self, x: _Scaled, y: _Scaled) -> _Scaled:
        return self._of(self.floats.sub(x.value, y.value), x.scale + y.scale)

    def mul(self, x: _Scaled, y: _Scaled) -> _Scaled:
        return self._of(self.floats.mul(x.value, y.value), np.abs(x.value) * y.scale + x.scale * np.abs(y.value))

    def div(self, x: _Scaled, y: _Scaled) -> _Scaled:
        value = self.floats.div(x.value, y.value)
        return self._of(value, (x.scale + np.abs(value) * y.scale) / np.abs(y.value))

    def exp(self, x: _Scaled) -> _Scaled:
        value = self.floats.exp(x.value)
        return self._of(value, value * x.scale)

    def sqrt(self, x: _Scaled) -> _Scaled:
        value = self.floats.sqrt(x.value)
        return self._of(value, x.scale / (2 * value))

    def sum(self, x: _Scaled, axis: int) -> _Scaled:
        moved = self.floats.sum(x.scale + np.abs(x.value), axis)
        return _Scaled(self.floats.sum(x.value, axis), moved)

    def max(self, x: _Scaled, axis: int) -> _Scaled:
        return _Scaled(self.floats.max(x.value, axis), self.floats.max(x.scale, axis))

    def matmul(self, x: _Scaled, y: _Scaled) -> _Scaled:
        left, right = np.abs(x.value), np.abs(y.value)
        moved = self.floats.matmul(x.scale + left, right) + self.floats.matmul(left, y.scale)
        return _Scaled(self.floats.matmul(x.value, y.value), moved)

    def opaque(self, name: str, *xs: _Scaled) -> _Scaled:
        value = self.floats.opaque(name, *(x.value for x in xs))
        moved = np.zeros(value.shape)
        for number, x in enumerate(xs):
            step = _STEP * np.maximum(1.0, np.abs(x.value))
            others = [[*(other.value for other in xs)] for _ in range(2)]
            others[0][number], others[1][number] = x.value - step, x.value + step
            slopes = [np.abs(self.floats.opaque(name, *arguments) - value) / step for arguments in others]
            moved = moved + np.minimum(*slopes) * x.scale  # of the flatter side, for functions that jump
        return self._of(value, moved)

    def view(self, x: _Scaled, move: Callable[[Array], Array]) -> _Scaled:
        return _Scaled(move(x.value), move(x.scale))

    def join(self, xs: Sequence[_Scaled], combine: Callable[[Sequence[Array]], Array]) -> _Scaled:
        return _Scaled(combine([x.value for x in xs]), combine([x.scale for x in xs]))

    def _of(self, value: Array, moved: Array) -> _Scaled:
        return _Scaled(value, moved + np.abs(value))
