"""Floating-point evidence: a compiled candidate against the float64 meaning of the program, over input scales."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Scalar
from mugraph.verifier.batched import Pulse, evaluate_batched

SCALES = (1e-3, 1e-1, 1.0, 10.0, 100.0)
TOLERANCES = {DType.FP64: 1e-10, DType.FP32: 1e-5, DType.FP16: 4e-3, DType.BF16: 2e-2}
"""Errors that are never called unstable, by the element type of the output."""

_MULTIPLE = 10.0
"""Beyond its tolerance, a candidate may err this many times as much as the program itself does in its own precision."""

Runner = Callable[..., Sequence[Any]]
"""Takes one array per program input, gives the outputs in order."""


@dataclass(frozen=True, slots=True)
class ScaleError:
    """Errors for normal inputs of one standard deviation, one per output.

    An error is the largest absolute deviation from float64, divided by the output's largest absolute value in float64.
    `baseline` is that of the program's own evaluation in its precision, where it had to be consulted. Infinity stands
    for results that are not finite where they should be.
    """

    scale: float
    errors: tuple[float, ...]
    baseline: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class FloatReport:
    """Whether a candidate is numerically `stable`, with the `reason` when it is not, and the errors at every scale."""

    stable: bool
    reason: str
    scales: tuple[ScaleError, ...]

    @property
    def max_relative_error(self) -> float:
        """The largest error of any output for inputs of standard deviation 1 (of the nearest scale that was checked)."""
        nearest = min(self.scales, key=lambda entry: abs(math.log(entry.scale)))
        return max(nearest.errors)


def float_check(
    run: Runner,
    reference: Graph,
    *,
    baseline: Runner | None = None,
    seed: int = 0,
    scales: Sequence[float] = SCALES,
    budget: float | None = None,
) -> FloatReport:
    """Compare `run` with the float64 evaluation of the kernel graph `reference` on random inputs of several scales.

    Inputs are normal, rounded to the dtype of each input (bf16 as float32 arrays of bf16 numbers). A candidate is
    unstable when a result is not finite, or errs by more than the tolerance of its dtype and more than 10 times the
    error of `baseline` (by default the reference evaluated operator by operator, each result rounded to the dtype).
    Where the program itself leaves its number range, nothing is asked of the candidate.

    Raises BudgetExceeded if it takes longer than `budget` seconds.
    """
    pulse = functools.partial(_look_at_the_clock, math.inf if budget is None else time.monotonic() + budget)
    pulse()
    entries: list[ScaleError] = []
    reason = ""
    normal = _normal_inputs(reference, seed)
    known = _known_outputs(reference, seed)
    for scale in scales:
        inputs = _scaled(reference, normal, scale)
        if scale not in known:
            known[scale] = _in_float64(reference, inputs, pulse)
        expected = known[scale]
        pulse()
        entry = ScaleError(scale, errors_against(expected, run(*inputs)))
        if not _within(entry.errors, _tolerances(reference)):
            own = (baseline or _operator_by_operator(reference, pulse))(*inputs)
            entry = ScaleError(scale, entry.errors, errors_against(expected, own))
        entries.append(entry)
        reason = reason or _instability(reference, entry)
    return FloatReport(not reason, reason, tuple(entries))


def _look_at_the_clock(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise BudgetExceeded("the budget ended before the comparison with float64 did; raise it")


def random_inputs(graph: Graph, seed: int, scale: float = 1.0) -> list[Array]:
    """One array per input of a kernel graph: normal numbers of standard deviation `scale`, rounded to the input's dtype."""
    return _scaled(graph, _normal_inputs(graph, seed), scale)


def _normal_inputs(graph: Graph, seed: int) -> list[Array]:
    rng = np.random.default_rng([seed, 0xF10A7])
    return [rng.standard_normal(node.output.shape, np.float32) for node in graph.nodes if node.op == "input"]


def _scaled(graph: Graph, normal: Sequence[Array], scale: float) -> list[Array]:
    dtypes = (node.output.dtype for node in graph.nodes if node.op == "input")
    return [round_to(dtype, array * np.float32(scale)) for dtype, array in zip(dtypes, normal, strict=True)]


def errors_against(expected: Sequence[Array], actual: Sequence[Any]) -> tuple[float, ...]:
    """For each output its error as `ScaleError` defines it, over the elements where the expected value is finite."""
    return tuple(_error(right, np.asarray(got, np.float64)) for right, got in zip(expected, actual, strict=True))


def _error(expected: Array, actual: Array) -> float:
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    if not np.isfinite(actual[finite]).all():
        return math.inf
    deviation = float(np.max(np.abs(actual[finite] - expected[finite])))
    largest = float(np.max(np.abs(expected[finite])))
    return deviation / largest if largest else deviation


@functools.lru_cache(maxsize=4)
def _known_outputs(reference: Graph, seed: int) -> dict[float, tuple[Array, ...]]:
    """The float64 outputs of a program by input scale: many candidates are checked against one program."""
    return {}


def _in_float64(graph: Graph, inputs: Sequence[Array], pulse: Pulse) -> tuple[Array, ...]:
    wide = [array.astype(np.float64) for array in inputs]
    with np.errstate(all="ignore"):
        return tuple(evaluate_batched(graph, wide, FloatArithmetic(np.float64), pulse))


def _operator_by_operator(graph: Graph, pulse: Pulse) -> Runner:
    """The program as a framework runs it: every result rounded to the outputs' dtype, accumulation in float32."""
    dtype = functools.reduce(DType.promote, (tensor.dtype for tensor in graph.output_tensors))

    def run(*inputs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return evaluate_batched(graph, inputs, _RoundedArithmetic(dtype), pulse)

    return run


class _RoundedArithmetic(FloatArithmetic):
    """Arithmetic whose every operation rounds its result to one element type."""

    def __init__(self, rounded: DType) -> None:
        super().__init__(round_to(rounded, 0.0).dtype)
        self.rounded = rounded

    def constant(self, value: Scalar) -> Array:
        return round_to(self.rounded, super().constant(value))

    def add(self, x: Array, y: Array) -> Array:
        return round_to(self.rounded, super().add(x, y))

    def sub(self, x: Array, y: Array) -> Array:
        return round_to(self.rounded, super().sub(x, y))

    def mul(self, x: Array, y: Array) -> Array:
        return round_to(self.rounded, super().mul(x, y))

    def div(self, x: Array, y: Array) -> Array:
        return round_to(self.rounded, super().div(x, y))

    def exp(self, x: Array) -> Array:
        return round_to(self.rounded, super().exp(x))

    def sqrt(self, x: Array) -> Array:
        return round_to(self.rounded, super().sqrt(x))

    def opaque(self, name: str, x: Array) -> Array:
        return round_to(self.rounded, super().opaque(name, x))

    def sum(self, x: Array, axis: int) -> Array:
        return round_to(self.rounded, super().sum(x.astype(self._wide), axis))

    def matmul(self, x: Array, y: Array) -> Array:
        return round_to(self.rounded, super().matmul(x.astype(self._wide), y.astype(self._wide)))

    @property
    def _wide(self) -> type[np.floating[Any]]:
        return np.float64 if self.rounded is DType.FP64 else np.float32


def _tolerances(reference: Graph) -> tuple[float, ...]:
    return tuple(TOLERANCES[tensor.dtype] for tensor in reference.output_tensors)


def _within(errors: Sequence[float], limits: Sequence[float]) -> bool:
    return all(error <= limit for error, limit in zip(errors, limits, strict=True))


def _instability(reference: Graph, entry: ScaleError) -> str:
    """Why the candidate is unstable at this scale, or nothing."""
    own = entry.baseline or tuple(0.0 for _ in entry.errors)
    for output, (error, base, tolerance) in enumerate(zip(entry.errors, own, _tolerances(reference), strict=True)):
        if error <= tolerance or base == math.inf:
            continue
        where = f"output {output} at input scale {entry.scale:g}"
        if error == math.inf:
            return f"{where} is not finite, where the program's own result is"
        if error > _MULTIPLE * base:
            return f"{where} errs by {error:.3g} of its largest value, the program itself by {base:.3g}"
    return ""
