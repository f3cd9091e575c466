"""Where two programs differ, in terms a user can check: an output element and its two values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.verifier.batched import evaluate_batched

_VISIBLE = 1e-6
"""Differences in float64 below this fraction of an output's largest element count as rounding.

Elements that are not finite on one side are no evidence: a root of a negative number, or an overflow on the way."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A difference between two programs.

    `text` says it in a sentence. For a differing element, `output` and `index` name it, `left` and `right` are its values,
    and `inputs` the float64 inputs that produce them (None when the values are residues of a finite field).
    """

    text: str
    output: int | None = None
    index: tuple[int, ...] | None = None
    left: float | None = None
    right: float | None = None
    inputs: tuple[Array, ...] | None = None

    def repeated(self, shapes: Sequence[tuple[int, ...]]) -> Counterexample:
        """The same at inputs of these shapes, which have larger dimensions where the inputs have size 1."""
        if self.inputs is None:
            return self
        inputs = tuple(np.broadcast_to(array, shape) for array, shape in zip(self.inputs, shapes, strict=True))
        return replace(self, inputs=inputs)

    def __str__(self) -> str:
        return self.text


def mismatch(
    output: int, left: Array, right: Array, differs: Array, arithmetic: str, inputs: tuple[Array, ...] | None = None
) -> Counterexample:
    """The first element of output number `output` where the mask `differs` is set."""
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differs)), differs.shape))
    mine, other = left[index].item(), right[index].item()
    text = f"output {output} differs at {list(index)}: {mine:.10g} against {other:.10g} ({arithmetic})"
    return Counterexample(text, output, index, mine, other, inputs)


def floating_point_counterexample(a: Graph, b: Graph, seed: int) -> Counterexample | None:
    """Float64 inputs on which two graphs of one signature visibly differ, or None when a few random ones show nothing."""
    arith = FloatArithmetic(np.float64)
    for description, inputs in _float_inputs(a, np.random.default_rng(seed)):
        with np.errstate(all="ignore"):
            results = evaluate_batched(a, inputs, arith), evaluate_batched(b, inputs, arith)
        for number, (left, right) in enumerate(zip(*results, strict=True)):
            differs = _visibly_different(left, right)
            if differs.any():
                return mismatch(number, left, right, differs, f"float64, {description}", tuple(inputs))
    return None


def _float_inputs(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, list[Array]]]:
    shapes = [node.output.shape for node in graph.nodes if node.op == "input"]
    normal = [rng.normal(size=shape) for shape in shapes]
    yield "normal inputs", normal
    yield "negated normal inputs", [-array for array in normal]
    yield "inputs between 0.5 and 1.5", [rng.uniform(0.5, 1.5, shape) for shape in shapes]
    yield "normal inputs times 0.01", [rng.normal(0, 0.01, shape) for shape in shapes]


def _visibly_different(left: Array, right: Array) -> Array:
    finite = np.isfinite(left) & np.isfinite(right)
    scale = float(np.max(np.abs(left[finite]), initial=0.0))
    return np.asarray(np.abs(np.where(finite, left - right, 0.0)) > max(_VISIBLE * scale, math.ulp(0.0)))
