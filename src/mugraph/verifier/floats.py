"""Floating-point evidence: a compiled candidate against the float64 meaning of the program, on many kinds of inputs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.verifier.batched import Pulse, evaluate_batched
from mugraph.verifier.rounding import RoundedArithmetic, operator_errors, relative_error

SCALES = (1e-3, 1e-1, 1.0, 10.0, 1e3)
"""Standard deviations of normal inputs."""

TOLERANCES = {DType.FP64: 1e-10, DType.FP32: 1e-5, DType.FP16: 4e-3, DType.BF16: 2e-2}
"""Errors that are never called unstable, by the element type of the output."""

_MULTIPLE = 10.0
"""Beyond its tolerance, a candidate may err this many times as much as the program itself does in its own precision."""

Runner = Callable[..., Sequence[Any]]
"""Takes one array per program input, gives the outputs in order."""


Pattern = Callable[[Array], Array]


def _equal_elements(normal: Array) -> Array:
    """Rows of one number each: sums grow with every term, and their rounding errors with them."""
    return np.broadcast_to(normal[..., :1], normal.shape) if normal.ndim else normal


def _one_huge_element(normal: Array) -> Array:
    """One element of each row a thousand times the others: what is small beside it gets lost."""
    if not normal.ndim:
        return normal
    huge = np.argmax(np.abs(normal), axis=-1, keepdims=True)
    factors = np.where(np.arange(normal.shape[-1]) == huge, np.float32(1e3), np.float32(1))
    return np.asarray(normal * factors)


def _mixed_signs(normal: Array) -> Array:
    """Numbers between 1 and 2 with alternating signs: sums of rows cancel."""
    if not normal.ndim:
        return normal
    signs = np.where(np.arange(normal.shape[-1]) % 2 == 0, np.float32(1), np.float32(-1))
    return np.asarray((1 + np.tanh(np.abs(normal))) * signs)


ADVERSARIAL: dict[str, Pattern] = {
    "rows of equal elements": _equal_elements,
    "one huge element per row": _one_huge_element,
    "alternating signs": _mixed_signs,
}
"""Kinds of rows that sums and exponentials are known to suffer from, made of normal numbers of standard deviation 1."""


@dataclass(frozen=True, slots=True)
class ScaleError:
    """Errors on one kind of inputs, one per output: normal ones of one standard deviation, or an adversarial `pattern`.

    An error is the largest absolute deviation from float64, divided by the output's largest absolute value in float64.
    `baseline` is that of the program's own evaluation in its precision, where it had to be consulted. Infinity stands
    for results that are not finite where they should be.
    """

    scale: float
    errors: tuple[float, ...]
    baseline: tuple[float, ...] | None = None
    pattern: str = ""

    @property
    def inputs(self) -> str:
        """The kind of inputs in words."""
        return self.pattern or f"input scale {self.scale:g}"


@dataclass(frozen=True, slots=True)
class FloatReport:
    """Whether a candidate is numerically `stable`, with the `reason` when it is not, and the errors on all kinds of inputs."""

    stable: bool
    reason: str
    scales: tuple[ScaleError, ...]

    @property
    def max_relative_error(self) -> float:
        """The largest error of any output for inputs of standard deviation 1 (of the nearest scale that was checked)."""
        return max(self._nearest.errors)

    @property
    def error_ratio(self) -> float | None:
        """How many times the program's own error in its precision that is, at most; None where the program makes none."""
        own = self._nearest.baseline or ()
        return max((error / base for error, base in zip(self._nearest.errors, own, strict=False) if base), default=None)

    @property
    def _nearest(self) -> ScaleError:
        normal = [entry for entry in self.scales if not entry.pattern]
        return min(normal, key=lambda entry: abs(math.log(entry.scale)))


def float_check(
    run: Runner,
    reference: Graph,
    *,
    baseline: Runner | None = None,
    seed: int = 0,
    scales: Sequence[float] = SCALES,
    graph: Graph | None = None,
    budget: float | None = None,
) -> FloatReport:
    """Compare `run` with the float64 evaluation of the kernel graph `reference` on random and adversarial inputs.

    Inputs are rounded to the dtype of each input (bf16 as float32 arrays of bf16 numbers). A candidate is unstable when a
    result is not finite, or errs by more than the tolerance of its dtype and more than 10 times the error of `baseline`
    (by default the reference evaluated operator by operator, each result rounded to the dtype). Where the program itself
    leaves its number range, nothing is asked of the candidate. With `graph`, the muGraph that `run` computes, the reason
    names the operator that loses the most.

    Raises BudgetExceeded if it takes longer than `budget` seconds.
    """
    pulse = functools.partial(_look_at_the_clock, math.inf if budget is None else time.monotonic() + budget)
    pulse()
    entries: list[ScaleError] = []
    reason = ""
    own_run = baseline or _operator_by_operator(reference, pulse)
    known = _known_outputs(reference, seed)
    for kind in _kinds(reference, seed, scales):
        if kind.name not in known:
            known[kind.name] = _in_float64(reference, kind.inputs, pulse)
        pulse()
        errors = errors_against(known[kind.name], run(*kind.inputs))
        own = None
        if kind.name == _STANDARD or not _within(errors, _tolerances(reference)):
            own = errors_against(known[kind.name], own_run(*kind.inputs))
        entry = ScaleError(kind.scale, errors, own, kind.pattern)
        entries.append(entry)
        if not reason and (reason := _instability(reference, entry)) and graph is not None:
            reason = f"{reason}: {_culprit(graph, kind.inputs)}"
    return FloatReport(not reason, reason, tuple(entries))


def _look_at_the_clock(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise BudgetExceeded("the budget ended before the comparison with float64 did; raise it")


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of inputs: normal numbers of a scale, or a pattern."""

    scale: float
    pattern: str
    inputs: list[Array]

    @property
    def name(self) -> str:
        return self.pattern or f"{self.scale:g}"


_STANDARD = "1"


def _kinds(graph: Graph, seed: int, scales: Sequence[float]) -> Iterator[_Kind]:
    normal = _normal_inputs(graph, seed)
    for scale in scales:
        yield _Kind(scale, "", _scaled(graph, normal, scale))
    for name, pattern in ADVERSARIAL.items():
        yield _Kind(1.0, name, _scaled(graph, [pattern(array) for array in normal], 1.0))


def _culprit(graph: Graph, inputs: Sequence[Array]) -> str:
    """The operator of a candidate that adds the most error; kernels keep 16-bit intermediates in float32."""
    precision = DType.FP64 if any(t.dtype is DType.FP64 for t in graph.output_tensors) else DType.FP32
    errors = operator_errors(graph, inputs, precision)
    return str(errors[0]) if errors else "no operator of it is to blame in exact order"


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
    return tuple(relative_error(right, np.asarray(got, np.float64)) for right, got in zip(expected, actual, strict=True))


@functools.lru_cache(maxsize=4)
def _known_outputs(reference: Graph, seed: int) -> dict[str, tuple[Array, ...]]:
    """The float64 outputs of a program by kind of inputs: many candidates are checked against one program."""
    return {}


def _in_float64(graph: Graph, inputs: Sequence[Array], pulse: Pulse) -> tuple[Array, ...]:
    """The exact outputs, infinite where they leave the range of the outputs' types: no kernel could store them."""
    wide = [array.astype(np.float64) for array in inputs]
    with np.errstate(all="ignore"):
        exact = evaluate_batched(graph, wide, FloatArithmetic(np.float64), pulse)
        return tuple(
            np.where(np.isinf(round_to(tensor.dtype, array)), np.inf, array)
            for array, tensor in zip(exact, graph.output_tensors, strict=True)
        )


def _operator_by_operator(graph: Graph, pulse: Pulse) -> Runner:
    """The program as a framework runs it: every result rounded to the outputs' dtype, accumulation in float32."""
    dtype = functools.reduce(DType.promote, (tensor.dtype for tensor in graph.output_tensors))

    def run(*inputs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return evaluate_batched(graph, inputs, RoundedArithmetic(dtype), pulse)

    return run


def _tolerances(reference: Graph) -> tuple[float, ...]:
    return tuple(TOLERANCES[tensor.dtype] for tensor in reference.output_tensors)


def _within(errors: Sequence[float], limits: Sequence[float]) -> bool:
    return all(error <= limit for error, limit in zip(errors, limits, strict=True))


def _instability(reference: Graph, entry: ScaleError) -> str:
    """Why the candidate is unstable on these inputs, or nothing."""
    own = entry.baseline or tuple(0.0 for _ in entry.errors)
    for output, (error, base, tolerance) in enumerate(zip(entry.errors, own, _tolerances(reference), strict=True)):
        if error <= tolerance or base == math.inf:
            continue
        where = f"output {output} at {entry.inputs}"
        if error == math.inf:
            return f"{where} is not finite, where the program's own result is"
        if error > _MULTIPLE * base:
            return f"{where} errs by {error:.3g} of its largest value, the program itself by {base:.3g}"
    return ""
