"""Sketches computed step by step on samples of their tensors, in any arithmetic.

Arrays have a dimension for every axis, and a last one for the for-loop's part of the axis it cuts: the slices of all
iterations are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from mugraph.ir.arithmetic import Arithmetic, V
from mugraph.ir.axes import AxisSet
from mugraph.ir.ops import OPERATORS, Call
from mugraph.search.closure.saturation import Leaf, scalar_value
from mugraph.search.closure.semantic import Context, bits
from mugraph.search.closure.sketch import Sketch, Step

_NO_CALL = Call("", (), {})


class Evaluator(Generic[V]):
    """The meaning of steps where only values up to shifts of exponents count: running maxima and rescalings do nothing.

    `load` gives the sample of a tensor that is read.
    """

    def __init__(self, context: Context, arith: Arithmetic[V], load: Callable[[Leaf], V]) -> None:
        self.context, self.arith, self.load = context, arith, load

    def value(self, sketch: Sketch, step: Step, xs: Sequence[V]) -> V:
        """The result of a step of `sketch` on operands `xs`."""
        match step.op:
            case "load":
                assert step.leaf is not None
                return self.load(step.leaf)
            case "constant":
                assert step.scalar is not None
                return scalar_value(step.scalar, self.context, self.arith)
            case "carry" | "concat":
                return xs[0]
            case "accumulate_max":
                return self.running_maximum(xs[0])
            case "accumulate":
                return self.total(xs[0], [self.context.axes])
            case "rescale":
                return self.rescaled(xs[0], xs[1])
            case "sum" | "contract" | "concat_contract":
                return self._summed(sketch, step, xs)
            case "max":
                value = xs[0]
                for part in self._parts(sketch, step, step.reduced):
                    value = self.arith.max(value, part)
                return value
        result: V = OPERATORS[step.op].compute(self.arith, _NO_CALL, xs)
        return result

    def total(self, x: V, parts: Sequence[int]) -> V:
        """The sum of `x` over some of its dimensions."""
        for part in parts:
            x = self.arith.sum(x, part)
        return x

    def running_maximum(self, x: V) -> V:
        """What a maximum over the iterations stands for."""
        return x

    def rescaled(self, x: V, maximum: V) -> V:
        """The sum over iterations of what each shifted by its own `maximum`."""
        return self.total(x, [self.context.axes])

    def _summed(self, sketch: Sketch, step: Step, xs: Sequence[V]) -> V:
        if step.op == "sum":
            return self.total(xs[0], self._parts(sketch, step, step.reduced))
        if step.op == "contract":
            return self.total(self.arith.mul(xs[0], xs[1]), self._parts(sketch, step, step.reduced))
        operands = [sketch.steps[i] for i in step.inputs]
        halves = [
            self.total(
                self.arith.mul(xs[left], xs[right]),
                self._parts(sketch, step, step.reduced & operands[left].axes & operands[right].axes),
            )
            for left, right in ((0, 2), (1, 3))
        ]
        return self.arith.add(*halves)

    def _parts(self, sketch: Sketch, step: Step, axes: AxisSet) -> list[int]:
        """The parts of `axes` that a step reduces: not that of the loop, unless it is after it or works on whole tensors."""
        mask = self.context.mask(axes)
        if step.in_loop and not any(sketch.steps[i].whole for i in step.inputs):
            mask &= ~self.context.loop_bit
        return bits(mask)
