"""What ATen's operators do with exact numbers (`exact_numbers.py`), in NumPy arrays of Python objects.

A number that is undefined (0/0, the root or logarithm of a negative number) is NaN and stays NaN. Only casts to a narrower type
round.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from mugraph.testing.exact_numbers import Arithmetic, Fractions, NotRational, Numbers, Unknown


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation in one arithmetic."""

    arith: Arithmetic

    def tensor(self, tensor: torch.Tensor) -> Numbers:
        """The exact values of a tensor."""
        return self.each(self.arith.number, tensor.detach().to(torch.float64).numpy())

    def each(self, function: Callable[..., Any], *arrays: Any) -> Numbers:
        """A function of every element, in arrays of objects, with broadcasting."""
        operands = np.broadcast_arrays(*(np.asarray(array, object) for array in arrays))
        result = np.empty(operands[0].shape, object)
        for index in np.ndindex(result.shape):
            result[index] = function(*(operand[index] for operand in operands))
        return result

    def number(self, x: Any) -> Any:
        return x if isinstance(x, np.ndarray) else self.arith.number(x)

    def apply(self, node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if node.target is operator.getitem:
            return args[0][args[1]]
        packet = getattr(node.target, "overloadpacket", node.target)
        name = str(getattr(packet, "__name__", packet))
        rule = _RULES.get(name)
        if rule is None:
            raise Unknown(f"{name} has no meaning here")
        result = rule(self, *args, **kwargs)
        return self._rounded(node, result) if name in ("_to_copy", "to") else result

    def _rounded(self, node: torch.fx.Node, x: Numbers) -> Numbers:
        """What a cast to a narrower type leaves of a number."""
        before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype  # type: ignore[union-attr]
        if before is torch.bool or after is torch.bool:
            return self.each(lambda number: bool(number) if after is torch.bool else self.arith.number(int(number)), x)
        if torch.finfo(after).bits >= torch.finfo(before).bits and after is not torch.float16:
            return x
        return self.each(lambda number: self._as_stored(number, after), x)

    def _as_stored(self, number: Any, dtype: torch.dtype) -> Any:
        if self.arith.is_nan(number):
            return number
        stored = torch.tensor(float(number), dtype=torch.float64).to(dtype).item()
        if not np.isfinite(stored):
            if isinstance(self.arith, Fractions):
                raise NotRational("an overflow")
            return self.arith.context.nan
        return self.arith.number(stored)

    def reduced(self, x: Numbers, dims: Any, keepdim: bool, combine: Callable[[Any, Any], Any]) -> Numbers:
        """Elements along dimensions combined one after the other."""
        rank = x.ndim
        axes = tuple(range(rank)) if dims is None or (isinstance(dims, Sequence) and not dims) else dims
        axes = tuple(sorted({axis % rank for axis in ((axes,) if isinstance(axes, int) else axes)} if rank else ()))
        kept = [axis for axis in range(rank) if axis not in axes]
        moved = np.transpose(x, (*axes, *kept)).reshape(-1, *(x.shape[axis] for axis in kept))
        result = moved[0]
        for part in moved[1:]:
            result = self.each(combine, result, part)
        result = np.asarray(result, object)
        return result.reshape([1 if axis in axes else x.shape[axis] for axis in range(rank)]) if keepdim else result

    def larger(self, x: Any, y: Any) -> Any:
        return x if self.arith.is_nan(x) or x >= y else y


def _added(x: Any, y: Any) -> Any:
    return x + y


def _add(run: Evaluation, x: Any, y: Any, *, alpha: float = 1) -> Numbers:
    return run.each(_added, run.number(x), run.each(operator.mul, run.number(y), run.number(alpha)))


def _sub(run: Evaluation, x: Any, y: Any, *, alpha: float = 1) -> Numbers:
    return _add(run, x, y, alpha=-alpha)


def _mul(run: Evaluation, x: Any, y: Any) -> Numbers:
    return run.each(operator.mul, run.number(x), run.number(y))


def _div(run: Evaluation, x: Any, y: Any) -> Numbers:
    return run.each(run.arith.div, run.number(x), run.number(y))


def _pow(run: Evaluation, x: Numbers, exponent: Any) -> Numbers:
    if isinstance(x, (int, float)) or isinstance(exponent, np.ndarray):
        return _power(run, np.asarray(run.number(x), object), exponent)
    if exponent == int(exponent):
        power = run.each(lambda number: number ** abs(int(exponent)), x)
        return power if exponent >= 0 else _div(run, 1, power)
    if 2 * exponent == int(2 * exponent):
        return _pow(run, _function("sqrt")(run, x), 2 * exponent)
    return _power(run, x, exponent)


def _power(run: Evaluation, x: Numbers, exponent: Any) -> Numbers:
    """Of positive numbers."""
    return _function("exp")(run, _mul(run, _function("log")(run, x), exponent))


def _whole(name: str) -> Callable[[Evaluation, Numbers], Numbers]:
    """The next whole number in the direction of a name."""

    def floor(x: Any) -> int:
        return math.floor(x) if isinstance(x, Fraction) else int(x.context.floor(x))

    def nearest(x: Any) -> int:
        below = floor(x)
        return below + int(2 * (x - below) > 1 or (2 * (x - below) == 1 and below % 2 == 1))

    choice: dict[str, Callable[[Any], int]] = {
        "floor": floor,
        "ceil": lambda x: -floor(-x),
        "trunc": lambda x: floor(x) if x > 0 else -floor(-x),
        "round": nearest,
    }
    return lambda run, x: run.each(lambda a: a if run.arith.is_nan(a) else run.arith.number(choice[name](a)), x)


def _fmod(run: Evaluation, x: Numbers, y: Any) -> Numbers:
    return _sub(run, x, _mul(run, _whole("trunc")(run, _div(run, x, y)), y))


def _remainder(run: Evaluation, x: Numbers, y: Any) -> Numbers:
    return _sub(run, x, _mul(run, _whole("floor")(run, _div(run, x, y)), y))


def _angle(run: Evaluation, y: Numbers, x: Numbers) -> Numbers:
    if isinstance(run.arith, Fractions):
        raise NotRational("an angle")
    return run.each(run.arith.context.atan2, y, x)


def _function(name: str) -> Callable[[Evaluation, Numbers], Numbers]:
    return lambda run, x: run.each(lambda number: run.arith.function(name, number), x)


def _sigmoid(run: Evaluation, x: Numbers) -> Numbers:
    return _div(run, 1, _add(run, 1, _function("exp")(run, _mul(run, x, -1))))


def _gelu(run: Evaluation, x: Numbers, approximate: str = "none") -> Numbers:
    if approximate == "none":
        inner = _function("erf")(run, _div(run, x, _function("sqrt")(run, np.asarray(run.number(2), object))))
    else:
        cubic = _add(run, x, _mul(run, _mul(run, x, _mul(run, x, x)), 0.044715))
        inner = _function("tanh")(run, _mul(run, cubic, math.sqrt(2 / math.pi)))
    return _mul(run, _mul(run, x, 0.5), _add(run, inner, 1))


def _relu(run: Evaluation, x: Numbers) -> Numbers:
    return run.each(lambda number: run.larger(number, run.number(0)), x)


def _clamp(run: Evaluation, x: Numbers, least: Any = None, most: Any = None) -> Numbers:
    x = x if least is None else _maximum(run, x, least)
    return x if most is None else _minimum(run, x, most)


def _maximum(run: Evaluation, x: Numbers, y: Any) -> Numbers:
    return run.each(run.larger, x, run.number(y))


def _minimum(run: Evaluation, x: Numbers, y: Any) -> Numbers:
    return run.each(operator.neg, _maximum(run, run.each(operator.neg, x), run.each(operator.neg, run.number(y))))


def _mm(run: Evaluation, x: Numbers, y: Numbers) -> Numbers:
    return np.asarray(x @ y, object)


def _addmm(run: Evaluation, added: Numbers, x: Numbers, y: Numbers, *, beta: float = 1, alpha: float = 1) -> Numbers:
    product = _mul(run, _mm(run, x, y), alpha)
    return _add(run, product, _mul(run, added, beta)) if beta else product


def _sum(run: Evaluation, x: Numbers, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Numbers:
    return run.reduced(x, dim, keepdim, _added)


def _mean(run: Evaluation, x: Numbers, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Numbers:
    total = _sum(run, x, dim, keepdim)
    return _div(run, total, x.size // max(1, total.size))


def _amax(run: Evaluation, x: Numbers, dim: Any = None, keepdim: bool = False) -> Numbers:
    return run.reduced(x, dim, keepdim, run.larger)


def _max(run: Evaluation, x: Numbers, dim: Any = None, keepdim: bool = False) -> Any:
    return _amax(run, x) if dim is None else (_amax(run, x, dim, keepdim), None)


def _var(run: Evaluation, x: Numbers, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Numbers:
    centred = _sub(run, x, _mean(run, x, dim, True))
    total = _sum(run, _mul(run, centred, centred), dim, keepdim)
    return _div(run, total, x.size // max(1, total.size) - (1 if correction is None else correction))


def _norm(run: Evaluation, x: Numbers, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Numbers:
    if ord != 2:
        raise Unknown(f"the norm of order {ord}")
    return _function("sqrt")(run, _sum(run, _mul(run, x, x), dim, keepdim))


def _softmax(run: Evaluation, x: Numbers, dim: int, half: bool) -> Numbers:
    powers = _function("exp")(run, x)
    return _div(run, powers, _sum(run, powers, dim, True))


def _log_softmax(run: Evaluation, x: Numbers, dim: int, half: bool) -> Numbers:
    return _function("log")(run, _softmax(run, x, dim, half))


def _layer_norm(
    run: Evaluation, x: Numbers, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Numbers, None, None]:
    dims = tuple(range(-len(shape), 0))
    centred = _sub(run, x, _mean(run, x, dims, True))
    variance = _mean(run, _mul(run, centred, centred), dims, True)
    scaled = _div(run, centred, _function("sqrt")(run, _add(run, variance, eps)))
    scaled = scaled if weight is None else _mul(run, scaled, weight)
    return (scaled if bias is None else _add(run, scaled, bias)), None, None


def _slice(run: Evaluation, x: Numbers, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Numbers:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _padded(run: Evaluation, x: Numbers, pad: Sequence[int], value: Any = 0) -> Numbers:
    """`pad` are pairs (before, behind) from the last dimension on; negative ones cut off."""
    for number, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.ndim - 1 - number
        x = _slice(run, x, dim, max(0, -before), x.shape[dim] + min(0, behind))
        around = [(max(0, before), max(0, behind)) if axis == dim else (0, 0) for axis in range(x.ndim)]
        x = np.pad(x, around, constant_values=run.number(value))
    return x


def _parts(run: Evaluation, x: Numbers, sizes: Sequence[int] | int, dim: int = 0) -> list[Numbers]:
    """Parts of these sizes along a dimension, or of one size and what is left."""
    ends = range(sizes, x.shape[dim], sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1].tolist()
    return np.split(x, list(ends), axis=dim)


def _in_windows(x: Numbers, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Iterator[tuple[Any, Numbers]]:
    """The place of each window of the last two dimensions, and the elements that it has there."""
    steps = stride or size
    counts = [
        (whole + 2 * pad - width) // step + 1 for whole, width, step, pad in zip(x.shape[-2:], size, steps, padding, strict=True)
    ]
    for place in np.ndindex(*counts):
        first = [number * step - pad for number, step, pad in zip(place, steps, padding, strict=True)]
        rows, columns = (slice(max(0, start), start + width) for start, width in zip(first, size, strict=True))
        yield place, x[..., rows, columns]


def _pool(
    x: Numbers, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], combine: Callable[[Numbers], Numbers]
) -> Numbers:
    found = {place: combine(part) for place, part in _in_windows(x, size, stride, padding)}
    rows, columns = (1 + max(place[axis] for place in found) for axis in (0, 1))
    return np.stack([np.stack([found[row, column] for column in range(columns)], -1) for row in range(rows)], -2)


def _avg_pool(
    run: Evaluation,
    x: Numbers,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Numbers:
    if ceil_mode:
        raise Unknown("windows that are cut off have no meaning here")

    def mean(part: Numbers) -> Numbers:
        return _div(run, _sum(run, part, (-2, -1)), math.prod(size if count_include_pad else part.shape[-2:]))

    return _pool(x, size, stride, padding, mean)


def _max_pool(
    run: Evaluation, x: Numbers, size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0, 0)
) -> tuple[Numbers, Numbers]:
    """Where the largest stood is not said."""
    largest = _pool(x, size, stride, padding, lambda part: _amax(run, part, (-2, -1)))
    return largest, np.full(largest.shape, None)


def _expand(run: Evaluation, x: Numbers, sizes: Sequence[int], *, implicit: bool = False) -> Numbers:
    aligned = (1,) * (len(sizes) - x.ndim) + x.shape
    return np.broadcast_to(x, [old if new == -1 else new for old, new in zip(aligned, sizes, strict=True)])


def _squeeze(run: Evaluation, x: Numbers, dim: Any = None) -> Numbers:
    dims = range(x.ndim) if dim is None else ((dim,) if isinstance(dim, int) else dim)
    return np.squeeze(x, tuple({axis % x.ndim for axis in dims if x.shape[axis] == 1})) if x.ndim else x


def _full(run: Evaluation, shape: Sequence[int], value: Any, **layout: Any) -> Numbers:
    return np.full(shape, run.number(value), object)


def _same(run: Evaluation, x: Any, *ignored: Any, **layout: Any) -> Any:
    return x


Rule = Callable[..., Any]

_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "rsub": lambda run, x, y, alpha=1: _sub(run, y, x, alpha=alpha),
    "mul": _mul,
    "div": _div,
    "neg": lambda run, x: _mul(run, x, -1),
    "reciprocal": lambda run, x: _div(run, 1, x),
    "pow": _pow,
    "sqrt": _function("sqrt"),
    "rsqrt": lambda run, x: _div(run, 1, _function("sqrt")(run, x)),
    "exp": _function("exp"),
    "log": _function("log"),
    "log1p": lambda run, x: _function("log")(run, _add(run, x, 1)),
    "tanh": _function("tanh"),
    **{name: _function(name) for name in ("sin", "cos", "tan", "asin", "atan", "sinh", "cosh", "erfc", "expm1")},
    **{name: _whole(name) for name in ("floor", "ceil", "trunc", "round")},
    "exp2": lambda run, x: _function("exp")(run, _mul(run, x, _function("log")(run, np.asarray(run.number(2), object)))),
    "log2": lambda run, x: _div(run, _function("log")(run, x), _function("log")(run, np.asarray(run.number(2), object))),
    "atan2": _angle,
    "fmod": _fmod,
    "remainder": _remainder,
    "copysign": lambda run, x, y: run.each(lambda a, b: abs(a) if b >= 0 else -abs(a), x, y),
    "erf": _function("erf"),
    "abs": lambda run, x: run.each(abs, x),
    "sigmoid": _sigmoid,
    "relu": _relu,
    "gelu": _gelu,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "minimum": _minimum,
    "eq": lambda run, x, y: run.each(operator.eq, x, run.number(y)),
    "gt": lambda run, x, y: run.each(operator.gt, x, run.number(y)),
    "lt": lambda run, x, y: run.each(operator.lt, x, run.number(y)),
    "le": lambda run, x, y: run.each(operator.le, x, run.number(y)),
    "ne": lambda run, x, y: run.each(operator.ne, x, run.number(y)),
    "logical_and": lambda run, x, y: run.each(lambda a, b: bool(a) and bool(b), x, y),
    "logical_or": lambda run, x, y: run.each(lambda a, b: bool(a) or bool(b), x, y),
    "sign": lambda run, x: run.each(lambda a: (a > 0) - (a < 0), x),
    "ge": lambda run, x, y: run.each(operator.ge, x, run.number(y)),
    "logical_not": lambda run, x: run.each(operator.not_, x),
    "any": lambda run, x, dim=None, keepdim=False: run.reduced(x, dim, keepdim, lambda a, b: a or b),
    "where": lambda run, which, x, y: run.each(lambda w, a, b: a if w else b, which, run.number(x), run.number(y)),
    "maximum": _maximum,
    "scalar_tensor": lambda run, value, **layout: np.asarray(run.number(value), object),
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "max": _max,
    "var": _var,
    "linalg_vector_norm": _norm,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "native_layer_norm": _layer_norm,
    "view": lambda run, x, shape: x.reshape(shape),
    "_unsafe_view": lambda run, x, shape: x.reshape(shape),
    "reshape": lambda run, x, shape: x.reshape(shape),
    "transpose": lambda run, x, a, b: np.swapaxes(x, a, b),
    "permute": lambda run, x, dims: np.transpose(x, dims),
    "t": lambda run, x: x.T,
    "unsqueeze": lambda run, x, dim: np.expand_dims(x, dim),
    "squeeze": _squeeze,
    "squeeze_": _squeeze,
    "expand": _expand,
    "repeat": lambda run, x, repeats: np.tile(x, repeats),
    "slice": _slice,
    "select": lambda run, x, dim, index: np.take(x, index, axis=dim),
    "cat": lambda run, parts, dim=0: np.concatenate(parts, axis=dim),
    "flip": lambda run, x, dims: np.flip(x, tuple(dims)),
    "roll": lambda run, x, shifts, dims=(): np.roll(x, shifts, tuple(dims) or None),
    "constant_pad_nd": _padded,
    "split": _parts,
    "avg_pool2d": _avg_pool,
    "max_pool2d_with_indices": _max_pool,
    "split_with_sizes": _parts,
    "full": _full,
    "full_like": lambda run, x, value, **layout: _full(run, x.shape, value),
    "ones_like": lambda run, x, **layout: _full(run, x.shape, 1),
    "zeros_like": lambda run, x, **layout: _full(run, x.shape, 0),
    "alias": _same,
    "clone": _same,
    "detach": _same,
    "lift_fresh_copy": _same,
    "_to_copy": _same,
}
"""What is left of functions after PyTorch's decompositions."""
