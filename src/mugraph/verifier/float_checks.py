"""Floating-point evidence: a compiled candidate against the float64 meaning of the program, on many kinds of inputs.

Inputs are normal numbers of many scales, and rows known to do harm. Programs have no value for negative numbers under roots and
logarithms, and nothing would be compared there.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.graph import Graph, Shape
from mugraph.verifier.domain import positive_inputs
from mugraph.verifier.float_report import TOLERANCES, FloatReport, ScaleError
from mugraph.verifier.parallel_axes import shared_slice, slices_at
from mugraph.verifier.reference import Reference
from mugraph.verifier.rounding import RoundedArithmetic, operator_errors, relative_error
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

SCALES = (1e-3, 1e-1, 1.0, 10.0, 1e3)
"""Standard deviations of normal inputs."""

_PERIOD = (1 << 22) + 15
"""Normal numbers repeat after so many, a prime: no two rows, tiles or slices of a tensor are alike, and rounding is cheap."""

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
class InputKind:
    """A kind of inputs: normal numbers of standard deviation `scale`, or an adversarial `pattern` made of such."""

    scale: float
    pattern: str = ""

    @property
    def standard(self) -> bool:
        """Whether these are standard normal numbers."""
        return self.scale == 1 and not self.pattern

    def __str__(self) -> str:
        return self.pattern or f"input scale {self.scale:g}"


def kinds(scales: Sequence[float] = SCALES) -> Iterator[InputKind]:
    """Normal numbers of these scales, and every pattern."""
    yield from map(InputKind, scales)
    yield from (InputKind(1.0, name) for name in ADVERSARIAL)


def arrays_for(graph: Graph, shapes: Sequence[Shape]) -> list[Array]:
    """One array without values per input of a kernel graph, of the `shapes` given and the type that holds the input's dtype."""
    dtypes = (node.output.dtype for node in graph.inputs())
    return [np.empty(shape, round_to(dtype, 0.0).dtype) for dtype, shape in zip(dtypes, shapes, strict=True)]


def fill(graph: Graph, arrays: Sequence[Array], kind: InputKind, seed: int) -> None:
    """Fill contiguous arrays, one per input of a kernel graph, with numbers rounded to the inputs' dtypes.

    Booleans are 0 or 1, one as often as the other. Numbers lose their signs where roots and logarithms are taken of an input
    itself: it stands for a variance or a probability.
    """
    rng = np.random.default_rng([seed, 0xF10A7])
    positive = positive_inputs(graph)
    for number, (node, array) in enumerate(zip(graph.inputs(), arrays, strict=True)):
        normal = rng.standard_normal(min(_PERIOD, array.size), np.float32) * np.float32(kind.scale)
        if node.output.dtype is DType.BOOL:
            array[...] = _booleans(kind, np.resize(normal, array.shape))
            continue
        if kind.pattern:
            array[...] = round_to(node.output.dtype, ADVERSARIAL[kind.pattern](np.resize(normal, array.shape)))
        else:
            _repeat(round_to(node.output.dtype, normal), array.reshape(-1))
        if number in positive:
            np.abs(array, out=array)


def _booleans(kind: InputKind, normal: Array) -> Array:
    """0 and 1, made of normal numbers: one as often as the other, in the kind's pattern, or in runs from either end of a row.

    Runs hide whole tiles of rows that are not hidden as a whole.
    """
    if kind.pattern:
        return np.asarray(ADVERSARIAL[kind.pattern](normal) > 0, np.float32)
    if kind.scale == 1 or not normal.ndim:
        return np.asarray(normal > 0, np.float32)
    share = np.mod(np.abs(normal[..., :1]) * (1 / kind.scale), 1)
    places = np.arange(normal.shape[-1]) / normal.shape[-1]
    return np.asarray(places < share if kind.scale < 1 else places >= share, np.float32)


def _repeat(numbers: Array, into: Array) -> None:
    for start in range(0, into.size, _PERIOD):
        rest = into[start : start + _PERIOD]
        rest[...] = numbers[: rest.size]


def random_inputs(graph: Graph, seed: int, scale: float = 1.0) -> list[Array]:
    """One array per input of a kernel graph: normal numbers of standard deviation `scale`, rounded to the input's dtype."""
    arrays = arrays_for(graph, [node.output.shape for node in graph.inputs()])
    fill(graph, arrays, InputKind(scale), seed)
    return arrays


_UNEXPLAINED = 10.0
"""What errs this many times as much as any of its operators owes it to something else."""

Runner = Callable[..., Sequence[Any]]
"""Takes one array per program input, gives the outputs in order."""


def float_check(
    run: Runner,
    reference: Graph,
    *,
    baseline: Runner | None = None,
    seed: int = 0,
    scales: Sequence[float] = SCALES,
    graph: Graph | None = None,
    budget: float | None = None,
    complete: bool = True,
) -> FloatReport:
    """Compare `run` with the float64 evaluation of the kernel graph `reference` on random and adversarial inputs.

    Inputs are rounded to the dtype of each input (bf16 as float32 arrays of bf16 numbers), and reused from kind to kind. Along
    axes that are parallel in the program, all slices of standard normal inputs differ, and those of other kinds repeat
    after a few (`mugraph.verifier.reference`); always all elements of all outputs are compared. A candidate is unstable when a
    result is not finite, or errs by more than the tolerance of its dtype and more than 10 times the error of `baseline`
    (by default the reference evaluated operator by operator, each result rounded to the dtype). Where the program itself
    leaves its number range, nothing is asked of the candidate. With `graph`, the muGraph that `run` computes, the report
    names the operator that loses the most. Unless `complete`, it ends with the first kind of inputs that shows instability.

    Raises BudgetExceeded if it takes longer than `budget` seconds.
    """
    pulse = functools.partial(_look_at_the_clock, math.inf if budget is None else time.monotonic() + budget)
    pulse()
    known = _known(reference, seed)
    inputs = arrays_for(reference, [node.output.shape for node in reference.inputs()])
    own_run = baseline or operator_by_operator(reference, pulse)
    dtypes = tuple(tensor.dtype for tensor in reference.output_tensors)
    entries: list[ScaleError] = []
    reason = blamed = ""
    for kind in kinds(scales):
        expected = known.outputs(kind, inputs, pulse)
        pulse()
        with np.errstate(all="ignore"):  # of kernels of NumPy's; what leaves the number range is judged below
            actual = run(*inputs)
        entry = ScaleError(kind.scale, errors_against(expected, actual, dtypes), None, kind.pattern)
        if kind.standard or entry.exceeds(dtypes):
            entry = ScaleError(kind.scale, entry.errors, errors_against(expected, own_run(*inputs), dtypes), kind.pattern)
        entries.append(entry)
        why = entry.instability(dtypes)
        if graph is not None and (kind.standard or why) and not reason:
            worst = _worst(expected, actual, dtypes)
            blamed = _culprit(reference, graph, inputs, worst, entry.errors[worst[0]])
        reason = reason or (f"{why}: {blamed}" if why and blamed else why)
        if reason and not complete:
            break
    return FloatReport(not reason, reason, tuple(entries), dtypes, blamed)


def errors_against(expected: Sequence[Array], actual: Sequence[Any], dtypes: Sequence[DType]) -> tuple[float, ...]:
    """For each output its error as `ScaleError` defines it, over the elements whose exact values its type holds."""
    pairs = zip(expected, actual, dtypes, strict=True)
    return tuple(relative_error(*_in_range(right, got, dtype), right) for right, got, dtype in pairs)


def _in_range(expected: Array, actual: Any, dtype: DType) -> tuple[Array, Array]:
    """Exact values and results as they are compared; where an output leaves the range of its type, in the terms of the type.

    Exact values beyond the range are infinite then: no kernel could store them. Those within it are small differences of large
    numbers, whose overflow is a matter of rounding: results that are infinite count as the type's largest number.
    """
    got = np.asarray(actual, np.float64)
    if np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)) <= dtype.largest:
        return expected, got
    return np.where(dtype.holds(expected), expected, np.inf), np.where(np.isinf(got), np.copysign(dtype.largest, got), got)


def _look_at_the_clock(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise BudgetExceeded("the budget ended before the comparison with float64 did; raise it")


@dataclass(frozen=True, slots=True)
class _Known:
    """The float64 outputs of a program by kind of inputs: many candidates are checked against one program."""

    reference: Reference
    seed: int
    by_kind: dict[InputKind, tuple[Array, ...]] = field(default_factory=dict)

    def outputs(self, kind: InputKind, inputs: Sequence[Array], pulse: Pulse) -> tuple[Array, ...]:
        """Fill the inputs with those of a kind, and return the outputs."""
        reference = self.reference
        counts = reference.all if kind.standard else reference.few
        different = inputs if counts == reference.all else arrays_for(reference.program, reference.input_shapes(counts))
        fill(reference.program, different, kind, self.seed)
        if different is not inputs:
            reference.full_inputs(different, counts, into=inputs, pulse=pulse)
        if kind not in self.by_kind:
            self.by_kind[kind] = reference.outputs(different, counts, pulse)
        return reference.full_outputs(self.by_kind[kind], counts)


@functools.lru_cache(maxsize=4)
def _known(program: Graph, seed: int) -> _Known:
    return _Known(Reference.of(program), seed)


def operator_by_operator(graph: Graph, pulse: Pulse = lambda: None) -> Runner:
    """The program as a framework runs it: every result rounded to the outputs' dtype, accumulation in float32."""
    dtype = functools.reduce(DType.promote, (tensor.dtype for tensor in graph.output_tensors)).of_arithmetic

    def run(*inputs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return evaluate_batched(graph, inputs, RoundedArithmetic(dtype), pulse)

    return run


def _worst(expected: Sequence[Array], actual: Sequence[Any], dtypes: Sequence[DType]) -> tuple[int, tuple[int, ...]]:
    """Output and index of the element that errs the most, relative to its output's largest."""
    worst, found = -1.0, (0, (0,) * expected[0].ndim)
    for number, (right, actually, dtype) in enumerate(zip(expected, actual, dtypes, strict=True)):
        exact, got = _in_range(right, actually, dtype)
        with np.errstate(invalid="ignore"):
            deviation = np.where(np.isfinite(exact), np.abs(got - exact), 0.0)
        deviation[np.isnan(deviation)] = math.inf
        place = int(np.argmax(deviation))
        error = float(deviation.flat[place]) / (float(np.max(np.abs(right), initial=0.0, where=np.isfinite(right))) or 1.0)
        if error > worst:
            worst, found = error, (number, tuple(map(int, np.unravel_index(place, right.shape))))
    return found


def _culprit(program: Graph, graph: Graph, inputs: Sequence[Array], worst: tuple[int, tuple[int, ...]], error: float) -> str:
    """The operator of a candidate that adds the most error to the slice with its worst element, and whether it explains it.

    Operators compute in float32 there, and what is stored is not rounded to 16 bits.
    """
    dtypes = {tensor.dtype for node in graph.nodes for tensor in node.outputs}
    precision = DType.FP64 if any(t.dtype is DType.FP64 for t in graph.output_tensors) else DType.FP32
    cut = shared_slice(program, graph)
    errors = operator_errors(cut.right, slices_at(cut.axes, inputs, *worst), precision)
    if not errors:
        return "no operator of it is to blame in exact order"
    narrow = " and ".join(sorted(str(dtype) for dtype in dtypes if dtype.bytes == 2))
    if narrow and _UNEXPLAINED * errors[0].growth < error <= TOLERANCES[graph.output_tensors[worst[0]].dtype]:
        return f"rounding to {narrow} where values are stored; of the operators, computed in {precision}, {errors[0]}"
    return str(errors[0])
