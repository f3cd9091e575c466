"""Floating point: what the certificate records of the kernels, and both graphs measured again on slices, in float32.

The kernels themselves are not run: their errors can be checked for consistency only. Whether the muGraph loses precision that
the program keeps, or leaves a number range that the program does not leave, shows in float32 on any slice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from mugraph.checker.form import STORED
from mugraph.checker.interpreter import run
from mugraph.checker.operators import OPERATORS, WHOLE_NUMBERS
from mugraph.checker.saved_files import Json, Rejected
from mugraph.checker.tensors import Array

_TOLERANCES = {"fp64": 1e-10, "fp32": 1e-5, "fp16": 4e-3, "bf16": 2e-2, "bool": 1e-5, **dict.fromkeys(STORED, 1e-5)}
_MULTIPLE = 10.0
_SCALES = (1e-3, 1e-1, 1.0, 10.0, 1e3)
_PATTERNS = ("rows of equal elements", "one huge element per row", "alternating signs")
_SLICES = 4
"""Slices that are measured for each kind of inputs."""


def check_floats(record: Any, dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> None:
    """Raise Rejected unless a certificate's `floats` say, without contradiction, that kernels with outputs of these types and
    shapes are stable on all kinds of inputs."""
    if not isinstance(record, dict) or record.get("stable") is not True or record.get("reason") != "":
        raise Rejected("certificate.json: floats: it does not say that the kernels agree with float64")
    if record.get("dtypes") != list(dtypes) or record.get("tolerances") != [_TOLERANCES[dtype] for dtype in dtypes]:
        raise Rejected("certificate.json: floats: the types or tolerances are not those of the program's outputs")
    entries = {entry["kind"]: entry for entry in record["inputs"]}
    elements, computed = ([*map(math.prod, each)] for each in (shapes, _shapes_computed(record.get("blocks", []), shapes)))
    expected = {f"input scale {scale:g}": (scale, "") for scale in _SCALES} | {name: (1.0, name) for name in _PATTERNS}
    for kind, made in expected.items():
        if kind not in entries or (entries[kind]["scale"], entries[kind]["pattern"]) != made:
            raise Rejected(f"certificate.json: floats: there is no measurement for {kind}")
    for kind, entry in entries.items():
        _check_entry(kind, entry, dtypes)
        _check_sample(kind, entry.get("compared"), elements, computed)
    _check_summary(record, entries["input scale 1"])


def _check_entry(kind: str, entry: Json, dtypes: Sequence[str]) -> None:
    errors = entry["errors"]
    own = entry["own_errors"] or [0.0] * len(errors)
    if len(errors) != len(dtypes) or len(own) != len(dtypes) or any(number is not None and number < 0 for number in errors + own):
        raise Rejected(f"certificate.json: floats: the errors at {kind} are not those of {len(dtypes)} outputs")
    for error, base, dtype in zip(errors, own, dtypes, strict=True):
        excused = base is None or (error is not None and error <= max(_TOLERANCES[dtype], _MULTIPLE * base))
        if not excused:
            raise Rejected(f"certificate.json: floats: the errors at {kind} are not those of stable kernels")


def _shapes_computed(blocks: Sequence[Json], shapes: Sequence[Sequence[int]]) -> list[list[int]]:
    """The shapes of the parts of outputs that a record says were computed, some of the blocks along each axis that it names."""
    computed = [[*shape] for shape in shapes]
    for axis in blocks:
        dims, chosen, count = axis["outputs"], axis["chosen"], axis["blocks"]
        parts = type(chosen) is type(count) is int and 0 < chosen < count and len(dims) == len(shapes)
        places = [(shape, dim) for shape, dim in zip(computed, dims, strict=False) if dim is not None]
        if not (parts and places and all(dim in range(len(shape)) and shape[dim] % count == 0 for shape, dim in places)):
            raise Rejected("certificate.json: floats: the blocks that were computed are no parts of the outputs")
        for shape, dim in places:
            shape[dim] = shape[dim] // count * chosen
    return computed


def _check_sample(kind: str, compared: Any, elements: Sequence[int], computed: Sequence[int]) -> None:
    """How many elements were compared, where it was not all: at most those that were `computed`."""
    if compared is None and list(computed) == list(elements):
        return
    parts = compared is not None and len(compared) == len(elements)
    parts = parts and all(0 < some <= most for some, most in zip(compared, computed, strict=True))
    if not parts:
        raise Rejected(f"certificate.json: floats: the elements compared at {kind} are no parts of the outputs")


def part_compared(record: Any) -> str:
    """Which part of the outputs a record of floats says was compared; empty where it was all of them."""
    record = record or {}
    if record.get("blocks"):
        return "of some blocks of the outputs"
    sampled = any(entry.get("compared") is not None for entry in record.get("inputs", ()))
    return "of samples of their elements for some inputs" if sampled else ""


def _check_summary(record: Json, standard: Json) -> None:
    errors, own = standard["errors"], standard["own_errors"]
    if own is None or None in errors or None in own:
        raise Rejected("certificate.json: floats: errors of standard normal inputs are missing")
    ratio = max((error / base for error, base in zip(errors, own, strict=True) if base), default=None)
    for name, value in (("max_relative_error", max(errors)), ("error_ratio", ratio)):
        said = record.get(name)
        if said != value and not (said and value and math.isclose(said, value, rel_tol=1e-9)):
            raise Rejected(f"certificate.json: floats: {name} does not follow from the errors beside it")


# --- measured again ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Floats:
    """The domain of floating-point numbers of one NumPy type."""

    dtype: Any
    roots_factor: ClassVar[bool] = False

    def number(self, value: Fraction) -> Array:
        return np.asarray(float(value), self.dtype)

    def least(self, value: Fraction) -> Array:
        return self.number(value)

    def root(self, value: Fraction) -> Array:
        return np.asarray(math.sqrt(value), self.dtype)

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(x + y)

    def subtract(self, x: Array, y: Array) -> Array:
        return np.asarray(x - y)

    def multiply(self, x: Array, y: Array) -> Array:
        return np.asarray(x * y)

    def divide(self, x: Array, y: Array) -> Array:
        return np.asarray(x / y)

    def exp(self, x: Array) -> Array:
        return np.asarray(np.exp(x))

    def sum(self, x: Array, axis: int) -> Array:
        return np.asarray(np.sum(x, axis=axis, keepdims=True))

    def function(self, name: str, *xs: Array) -> Array:
        known = np.sqrt if name == "sqrt" else OPERATORS[name].function  # of a root's factors, the domain is asked for roots
        if known is None:
            raise Rejected(f"operator {name!r} is no function")
        return np.asarray(known(*xs), self.dtype)

    def row_function(self, name: str, x: Array, axis: int) -> Array:
        return np.asarray(np.max(x, axis=axis, keepdims=True))

    def move(self, xs: Sequence[Array], move: Callable[[list[Array]], Array]) -> Array:
        return move(list(xs))

    def shape(self, x: Array) -> tuple[int, ...]:
        return x.shape


_NUDGE = 1e-5
"""How far apart, relative to the largest, two numbers are that rounding may exchange."""
_COMPARISONS = ("less", "equal", "truth")


def _whole_numbers(beside: float) -> Callable[[Array], Array]:
    return lambda x: np.asarray(np.abs(x - beside - np.round(x - beside)))


def _multiples(x: Array, y: Array) -> Array:
    times = np.round(x / y)
    return np.where(times == 0, np.inf, np.abs(x - times * y))


_JUMPS: dict[str, tuple[int, Callable[..., Array]]] = {
    **{name: (0, _whole_numbers(beside)) for name, (_, beside) in WHOLE_NUMBERS.items()},
    "fmod": (0, _multiples),
    "atan2": (0, lambda y, x: np.where(x > 0, np.inf, np.abs(y))),
    "copysign": (1, lambda x, y: np.abs(y)),
}
"""Functions that jump: for which of their operands, and how far that is from a jump."""


@dataclass(frozen=True, slots=True)
class Nudged(Floats):
    """Comparisons of numbers that differ by less than rounding may have made them differ are decided one way, or the other.

    So are functions that jump, of what is so near a jump.
    """

    upward: bool = True

    def function(self, name: str, *xs: Array) -> Array:
        decided = Floats.function(self, name, *xs)
        if name in _JUMPS:
            return self._beyond_jump(name, decided, *xs)
        if name not in _COMPARISONS:
            return decided
        x, y = xs if len(xs) == 2 else (xs[0], np.zeros((), self.dtype))
        largest = _largest(x, y)
        near = (x != y) & (np.abs(x - y) <= _NUDGE * largest) & ~(_narrow(x) & _narrow(y))
        return np.asarray(np.where(near, self.upward, decided), self.dtype)

    def _beyond_jump(self, name: str, decided: Array, *xs: Array) -> Array:
        operand, distance_of = _JUMPS[name]
        nudge = _NUDGE * _largest(*xs)
        moved = [x + (nudge if self.upward else -nudge) if place == operand else x for place, x in enumerate(xs)]
        distance = distance_of(*xs)
        rounded = ~np.all(np.broadcast_arrays(*map(_narrow, xs)), axis=0)
        near = (distance > 0) & (distance <= nudge) & rounded
        return np.asarray(np.where(near, Floats.function(self, name, *moved), decided), self.dtype)


def _largest(*xs: Array) -> float:
    """The largest finite magnitude."""
    return max(float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x))) for x in xs)


def _narrow(x: Array) -> Array:
    """Where numbers are of fp32, as inputs are, and hardly anything that was rounded on the way."""
    return np.asarray(x == x.astype(np.float32))


def _compares(graph: Json) -> bool:
    """Whether a graph has comparisons or functions that jump, in bodies too."""
    return any(
        node["op"] in (*_COMPARISONS, *_JUMPS)
        or (node["op"] == "cast" and node["attributes"]["dtype"]["dtype"] == "bool")
        or ("body" in node and _compares(node["body"]))
        for node in graph["nodes"]
    )


def _certain(graph: Json, inputs: Sequence[Array], outputs: list[Array]) -> list[Array]:
    """Outputs in double precision, NaN where they hang on comparisons that rounding may decide; all, if those are most."""
    if not _compares(graph):
        return outputs
    found = []
    others = [run(graph, inputs, Nudged(np.float64, upward)) for upward in (True, False)]
    for number, output in enumerate(outputs):
        largest = float(np.max(np.abs(output), initial=0.0, where=np.isfinite(output)))
        same = [np.isclose(other[number], output, rtol=0, atol=_NUDGE * largest, equal_nan=True) for other in others]
        doubtful = ~(same[0] & same[1])
        found.append(output if np.mean(doubtful) > 0.5 else np.where(doubtful, np.nan, output))
    return found


def measure(left: Json, right: Json, shapes: Sequence[Sequence[int]], rng: random.Random) -> float:
    """The largest error of the right graph in float32, at standard normal inputs, relative to the left one in float64.

    `shapes` are those of the inputs, which both graphs have in common.
    Inputs lose their signs where the left graph is finite nowhere with them: roots and logarithms of an input need it.
    Raises Rejected where it is unstable: more than 10 times the left graph's own error in float32, and 1e-5, for any kind of
    inputs, or not finite where the left graph is.
    """
    numbers = np.random.default_rng(rng.getrandbits(64))
    dtypes = [node["attributes"]["dtype"]["dtype"] for node in left["nodes"] if node["op"] == "input"]
    standard = 0.0
    for kind, scale in ((f"input scale {scale:g}", scale) for scale in _SCALES):
        slices = [_held(_normal(shapes, scale, numbers), dtypes, scale) for _ in range(_SLICES)]
        error = _stable_error(left, right, slices, kind)
        standard = error if scale == 1 else standard
    for pattern in _PATTERNS:
        slices = [_held([_patterned(pattern, x) for x in _normal(shapes, 1.0, numbers)], dtypes, 1.0) for _ in range(_SLICES)]
        _stable_error(left, right, slices, pattern)
    return standard


def _held(arrays: list[Array], dtypes: Sequence[str], scale: float) -> list[Array]:
    """Tensors of numbers that their types have.

    Booleans are 1 where numbers are positive, which are in order unless the scale is 1. Whole numbers of 8 bits, at every scale
    over most of their range, come as they are.
    """
    made = []
    for array, dtype in zip(arrays, dtypes, strict=True):
        if dtype == "bool":
            ordered = np.sort(array, axis=-1) if array.ndim and scale != 1 else array
            array = np.asarray(ordered > 0, np.float32)
        elif dtype in _RANGES:
            low, high = _RANGES[dtype]
            spread = np.tanh(array / np.float32(scale)) * ((high - low) / 2) + (low + high) / 2
            array = np.asarray(np.clip(np.rint(spread), low, high), np.float32)
        elif dtype in _FP8:
            array = _of_fp8(array, *_FP8[dtype])
        made.append(array)
    return made


_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
_FP8 = {"e4m3fn": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}
"""Bits of the mantissa, least exponent of normal numbers, largest number."""


def _of_fp8(array: Array, mantissa: int, least: int, largest: float) -> Array:
    """The nearest numbers of a floating-point type of 8 bits."""
    _, exponents = np.frexp(array)
    step = np.ldexp(np.float64(1), np.maximum(exponents - 1, least) - mantissa)
    return np.asarray(np.clip(np.rint(array / step) * step, -largest, largest), np.float32)


def _normal(shapes: Sequence[Sequence[int]], scale: float, numbers: np.random.Generator) -> list[Array]:
    return [numbers.standard_normal(tuple(shape), np.float32) * np.float32(scale) for shape in shapes]


def _patterned(pattern: str, normal: Array) -> Array:
    if not normal.ndim:
        return normal
    position = np.arange(normal.shape[-1])
    match pattern:
        case "rows of equal elements":
            return np.broadcast_to(normal[..., :1], normal.shape)
        case "one huge element per row":
            huge = np.argmax(np.abs(normal), axis=-1, keepdims=True)
            return np.asarray(normal * np.where(position == huge, np.float32(1e3), np.float32(1)))
    return np.asarray((1 + np.tanh(np.abs(normal))) * np.where(position % 2, np.float32(-1), np.float32(1)))


def _stable_error(left: Json, right: Json, slices: Sequence[list[Array]], kind: str) -> float:
    """The error over all slices."""
    narrow, wide = Floats(np.float32), Floats(np.float64)
    with np.errstate(all="ignore"):
        exact = [run(left, [array.astype(np.float64) for array in inputs], wide) for inputs in slices]
        if not any(np.isfinite(output).any() for outputs in exact for output in outputs):
            slices = [[np.abs(array) for array in inputs] for inputs in slices]
            exact = [run(left, [array.astype(np.float64) for array in inputs], wide) for inputs in slices]
        exact = [
            _certain(left, [array.astype(np.float64) for array in inputs], outputs)
            for inputs, outputs in zip(slices, exact, strict=True)
        ]
        own = _error(exact, [run(left, inputs, narrow) for inputs in slices])
        error = _error(exact, [run(right, inputs, narrow) for inputs in slices])
    if own < math.inf and error > max(_TOLERANCES["fp32"], _MULTIPLE * own):
        raise Rejected(
            f"graph.json: unstable at {kind}: in float32 it errs by {error:.3g} of its largest value, program.json by {own:.3g}"
        )
    return error


def _error(expected: Sequence[list[Array]], actual: Sequence[list[Array]]) -> float:
    """The largest deviation of an output where the expected value is finite in float32, relative to its largest value."""
    worst = 0.0
    for rights, gots in zip(zip(*expected, strict=True), zip(*actual, strict=True), strict=True):
        right, got = np.stack(rights), np.stack([np.broadcast_to(x, y.shape) for x, y in zip(gots, rights, strict=True)])
        finite = np.isfinite(right.astype(np.float32))
        if not finite.any():
            continue
        if not np.isfinite(got[finite]).all():
            return math.inf
        largest = float(np.max(np.abs(right[finite])))
        deviation = float(np.max(np.abs(got[finite] - right[finite])))
        worst = max(worst, deviation / largest if largest else deviation)
    return worst
