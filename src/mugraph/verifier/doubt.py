"""Elements of a program whose value hangs on a comparison, or on a jump of a function, that rounding may decide either way.

A comparison is not continuous: of numbers that are nearly the same, a kernel may find the one less where float64 finds the other
less, and neither is wrong. What follows from such a comparison is doubtful, unless both answers give nearly the same number. So
are functions that jump: of what is nearly a whole number, `floor` gives that one or the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.ir.elementary import JUMPS, WHOLE_NUMBERS
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Scalar
from mugraph.verifier.float_report import TOLERANCES
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

_COMPARING = frozenset({"less", "equal", "truth"})
_CHOOSING = _COMPARING | {"select"}
_JUMPING = _CHOOSING | JUMPS.keys()
_EXACT = _CHOOSING | {"relu", "abs", "infinity", "fmod", "copysign"} | WHOLE_NUMBERS
"""Functions that round nothing."""
_MOST = 0.5
"""Where a larger part of an output is in doubt, all of it is asked for: a check that asks for nothing shows nothing."""


@dataclass(frozen=True, slots=True)
class Doubted:
    """A tensor in float64, and where it is in doubt, an array of booleans of its shape (None: nowhere).

    `exact` says that kernels, which compute in fp32, have just these numbers.
    """

    values: Array
    doubtful: Array | None = None
    exact: bool = False


class DoubtArithmetic:
    """`mugraph.ir.arithmetic.Arithmetic` on tensors in float64 and where they are in doubt.

    Two numbers that have been rounded are nearly the same if they differ by at most `margin` times the largest of their tensors.
    Numbers that are the same in float64 are taken to be so by what the program says, which kernels must preserve.
    """

    def __init__(self, margin: float) -> None:
        self.margin = margin
        self.floats = FloatArithmetic(np.float64)

    def constant(self, value: Scalar) -> Doubted:
        return Doubted(self.floats.constant(value), exact=True)

    def add(self, x: Doubted, y: Doubted) -> Doubted:
        return self._together(self.floats.add(x.values, y.values), x, y)

    def sub(self, x: Doubted, y: Doubted) -> Doubted:
        return self._together(self.floats.sub(x.values, y.values), x, y)

    def mul(self, x: Doubted, y: Doubted) -> Doubted:
        return self._together(self.floats.mul(x.values, y.values), x, y)

    def div(self, x: Doubted, y: Doubted) -> Doubted:
        return self._together(self.floats.div(x.values, y.values), x, y)

    def exp(self, x: Doubted) -> Doubted:
        return Doubted(self.floats.exp(x.values), x.doubtful)

    def sqrt(self, x: Doubted) -> Doubted:
        return Doubted(self.floats.sqrt(x.values), x.doubtful)

    def sum(self, x: Doubted, axis: int) -> Doubted:
        values = self.floats.sum(x.values, axis)
        return Doubted(values, _any(x.doubtful, axis), x.exact and _representable(values))

    def max(self, x: Doubted, axis: int) -> Doubted:
        return Doubted(self.floats.max(x.values, axis), _any(x.doubtful, axis), x.exact)

    def matmul(self, x: Doubted, y: Doubted) -> Doubted:
        values = self.floats.matmul(x.values, y.values)
        doubtful = _either(_any(x.doubtful, -1), _any(y.doubtful, -2), shape=values.shape)
        return Doubted(values, doubtful, x.exact and y.exact and _representable(values))

    def opaque(self, name: str, *xs: Doubted) -> Doubted:
        values = self.floats.opaque(name, *(x.values for x in xs))
        exact = all(x.exact for x in xs)
        # by name: what compares and chooses is not continuous
        if name == "select":
            return Doubted(values, self._choice(values, *xs), exact)
        doubtful = _either(*(x.doubtful for x in xs), shape=values.shape)
        if name in _COMPARING and not exact:
            near = self._near(xs[0], xs[1] if len(xs) > 1 else Doubted(np.zeros(())))
            return Doubted(values, _either(doubtful, near, shape=values.shape), True)
        if name in JUMPS and not exact:
            doubtful = _either(doubtful, self._at_jump(name, *xs), shape=values.shape)
            return Doubted(values, doubtful, name in WHOLE_NUMBERS and _representable(values))
        return Doubted(values, doubtful, exact and name in _EXACT)

    def view(self, x: Doubted, move: Callable[[Array], Array]) -> Doubted:
        return Doubted(np.asarray(move(x.values), np.float64), None if x.doubtful is None else move(x.doubtful), x.exact)

    def join(self, xs: Sequence[Doubted], combine: Callable[[Sequence[Array]], Array]) -> Doubted:
        doubtful = None
        if any(x.doubtful is not None for x in xs):
            doubtful = combine([np.zeros(x.values.shape, bool) if x.doubtful is None else x.doubtful for x in xs])
        return Doubted(combine([x.values for x in xs]), doubtful, all(x.exact for x in xs))

    def _together(self, values: Array, x: Doubted, y: Doubted) -> Doubted:
        exact = x.exact and y.exact and _representable(values)
        return Doubted(values, _either(x.doubtful, y.doubtful, shape=values.shape), exact)

    def _near(self, x: Doubted, y: Doubted) -> Array:
        """Where two tensors differ by so little that rounding may have changed which is less."""
        distance = np.abs(x.values - y.values)
        return np.asarray((distance > 0) & (distance <= self.margin * max(_largest(x.values), _largest(y.values))))

    def _at_jump(self, name: str, *xs: Doubted) -> Array:
        """Where a function jumps so near that rounding may have moved an operand across."""
        with np.errstate(all="ignore"):
            distance = JUMPS[name](*(x.values for x in xs))
        return np.asarray((distance > 0) & (distance <= self.margin * max(_largest(x.values) for x in xs)))

    def _choice(self, values: Array, condition: Doubted, x: Doubted, y: Doubted) -> Array | None:
        """Doubts about what is chosen, and about the choice where its result depends on it."""
        open_choice = condition.doubtful
        if not condition.exact:
            near = self._near(condition, Doubted(np.zeros(())))
            open_choice = _either(open_choice, near, shape=near.shape)
        none = np.zeros((), bool)
        doubtful = np.where(
            condition.values != 0,
            none if x.doubtful is None else x.doubtful,
            none if y.doubtful is None else y.doubtful,
        )
        if open_choice is not None:
            apart = ~(np.abs(x.values - y.values) <= self.margin * _largest(values))
            doubtful = doubtful | (open_choice & apart)
        return np.broadcast_to(doubtful, values.shape) if doubtful.any() else None


def chooses(graph: Graph) -> bool:
    """Whether a muGraph compares, chooses, or has functions that jump."""
    return any(node.op in _JUMPING or node.get("dtype") is DType.BOOL for _, node in graph.walk() if not node.is_input)


def certain_outputs(graph: Graph, inputs: Sequence[Array], pulse: Pulse = lambda: None) -> list[Array]:
    """The outputs of a kernel graph in float64, NaN where they are in doubt: nothing can be asked of a kernel there."""
    floats = [tensor.dtype for tensor in (*(node.output for node in graph.inputs()), *graph.output_tensors)]
    margin = max(TOLERANCES[dtype] for dtype in floats)
    found = evaluate_batched(graph, [Doubted(array, exact=True) for array in inputs], DoubtArithmetic(margin), pulse)
    return [asked(output) for output in found]


def asked(output: Doubted) -> Array:
    """Values, NaN where they are in doubt."""
    if output.doubtful is None or np.mean(output.doubtful) > _MOST:
        return output.values
    return np.where(output.doubtful, np.nan, output.values)


def _any(doubtful: Array | None, axis: int) -> Array | None:
    return None if doubtful is None else np.asarray(np.any(doubtful, axis=axis, keepdims=True))


def _either(*doubts: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Where one of several tensors is in doubt, in the shape that they broadcast to."""
    known = [doubtful for doubtful in doubts if doubtful is not None]
    if not any(doubtful.any() for doubtful in known):
        return None
    found = np.zeros(shape, bool)
    for doubtful in known:
        found |= doubtful
    return found


def _representable(values: Array) -> bool:
    """Whether all numbers are of fp32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.array_equal(values, values.astype(np.float32), equal_nan=True))


def _largest(values: Array) -> float:
    """The largest finite magnitude."""
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
