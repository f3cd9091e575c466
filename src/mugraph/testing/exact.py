"""What a PyTorch function is as a function of real numbers: its ATen operators on fractions, or on mpmath's numbers of 200 bits.

This shares nothing with the frontend, the table of operators or the fields: PyTorch records the function and takes its composite
operators apart, and what is left is computed here, element by element, in NumPy arrays of Python objects. A number that is
undefined (0/0, the root or logarithm of a negative number) is NaN and stays NaN. Only casts to a narrower type round.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

Numbers = np.ndarray[Any, Any]
"""An array of objects: all Fraction, or all mpf."""

BITS = 200

_EXPONENT_BITS = 32


class NotRational(ArithmeticError):
    """A value that is no fraction was asked for in fractions."""


class Unknown(NotImplementedError):
    """An operator that is not interpreted here."""


class Unsaid(OverflowError):
    """An exponential too large for numbers of BITS bits to say anything of it."""


class Fractions:
    """Exact arithmetic. A vanishing denominator raises ZeroDivisionError, anything but rational functions NotRational."""

    def number(self, value: float | int) -> Any:
        if not math.isfinite(value):
            raise NotRational(value)
        return Fraction(value)

    def div(self, x: Any, y: Any) -> Any:
        return x / y

    def function(self, name: str, x: Any) -> Any:
        raise NotRational(name)

    def is_nan(self, x: Any) -> bool:
        return False


class Reals:
    """Real numbers of BITS bits; what is undefined is NaN. Raises Unsaid for exponentials of huge numbers."""

    def __init__(self) -> None:
        self.context = mpmath.MPContext()
        self.context.prec = BITS

    def number(self, value: Any) -> Any:
        if isinstance(value, Fraction):
            return self.context.mpf(value.numerator) / value.denominator
        return self.context.mpf(value)

    def div(self, x: Any, y: Any) -> Any:
        return self.context.nan if y == 0 else x / y

    def function(self, name: str, x: Any) -> Any:
        if self.is_nan(x) or (name == "sqrt" and x < 0) or (name == "log" and x <= 0):
            return self.context.nan
        if name == "exp" and self.context.mag(x) > _EXPONENT_BITS:
            raise Unsaid(name)
        value = getattr(self.context, name)(x)
        return value if isinstance(value, self.context.mpf) else self.context.nan

    def is_nan(self, x: Any) -> bool:
        return bool(self.context.isnan(x))


Arithmetic = Fractions | Reals


@dataclass(frozen=True, slots=True)
class Recorded:
    """A function as ATen operators on `inputs` tensors; `structure` describes what it returned."""

    graph: torch.fx.GraphModule
    structure: Any
    constants: tuple[Any, ...]
    """The leaves it returned that are no tensors."""

    def outputs(self, inputs: Sequence[Numbers], arith: Arithmetic) -> list[Numbers]:
        """The tensors it returns for these numbers."""
        run = _Run(arith)
        values: dict[torch.fx.Node, Any] = {}
        remaining = iter(inputs)
        for node in self.graph.graph.nodes:
            match node.op:
                case "placeholder":
                    values[node] = next(remaining)
                case "get_attr":
                    values[node] = run.tensor(operator.attrgetter(str(node.target))(self.graph))
                case "call_function":
                    args, kwargs = (torch.fx.map_arg(part, values.__getitem__) for part in (node.args, node.kwargs))
                    values[node] = run.apply(node, args, kwargs)
                case "output":
                    return [values[out] for out in node.args[0]]
        raise AssertionError("a graph without outputs")


def recorded(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Recorded:
    """Record a call of `fn` on flat tensors; every position is an input of its own, though tensors may be the same."""
    leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    returned: list[tuple[Any, tuple[Any, ...]]] = []

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        filled = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        inner_args, inner_kwargs = torch.utils._pytree.tree_unflatten(filled, structure)
        out, spec = tree_flatten(fn(*inner_args, **inner_kwargs))
        returned.append((spec, tuple(leaf for leaf in out if not isinstance(leaf, torch.Tensor))))
        return [leaf for leaf in out if isinstance(leaf, torch.Tensor)]

    examples = [leaves[position].detach().clone() for position in positions]
    with _SpelledOut(), torch.no_grad():
        graph = make_fx(flat, decomposition_table=_decompositions())(*examples)
    return Recorded(graph, *returned[-1])


class _SpelledOut(TorchFunctionMode):
    """Attention and norms as what they mean: PyTorch's own forms round a root of the scale, and epsilon."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if func is torch.nn.functional.rms_norm:
            return _rms_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if enable_gqa:
        times = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(times, -3), v.repeat_interleave(times, -3)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return torch.softmax(scores if attn_mask is None else scores + attn_mask, -1) @ v


def _rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    normed = x / torch.sqrt((x * x).mean(dims, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
    return normed if weight is None else normed * weight


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's, looked up once: it takes a second. Rotations stay, which would become numbers of positions."""
    found = core_aten_decompositions().items()  # type: ignore[no-untyped-call]  # torch's
    return {operation: meaning for operation, meaning in found if operation is not torch.ops.aten.roll.default}


# --- operators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
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


def _add(run: _Run, x: Any, y: Any, *, alpha: float = 1) -> Numbers:
    return run.each(_added, run.number(x), run.each(operator.mul, run.number(y), run.number(alpha)))


def _sub(run: _Run, x: Any, y: Any, *, alpha: float = 1) -> Numbers:
    return _add(run, x, y, alpha=-alpha)


def _mul(run: _Run, x: Any, y: Any) -> Numbers:
    return run.each(operator.mul, run.number(x), run.number(y))


def _div(run: _Run, x: Any, y: Any) -> Numbers:
    return run.each(run.arith.div, run.number(x), run.number(y))


def _pow(run: _Run, x: Numbers, exponent: Any) -> Numbers:
    if isinstance(x, (int, float)) or isinstance(exponent, np.ndarray):
        return _power(run, np.asarray(run.number(x), object), exponent)
    if exponent == int(exponent):
        power = run.each(lambda number: number ** abs(int(exponent)), x)
        return power if exponent >= 0 else _div(run, 1, power)
    if 2 * exponent == int(2 * exponent):
        return _pow(run, _function("sqrt")(run, x), 2 * exponent)
    return _power(run, x, exponent)


def _power(run: _Run, x: Numbers, exponent: Any) -> Numbers:
    """Of positive numbers."""
    return _function("exp")(run, _mul(run, _function("log")(run, x), exponent))


def _whole(name: str) -> Callable[[_Run, Numbers], Numbers]:
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


def _fmod(run: _Run, x: Numbers, y: Any) -> Numbers:
    return _sub(run, x, _mul(run, _whole("trunc")(run, _div(run, x, y)), y))


def _remainder(run: _Run, x: Numbers, y: Any) -> Numbers:
    return _sub(run, x, _mul(run, _whole("floor")(run, _div(run, x, y)), y))


def _angle(run: _Run, y: Numbers, x: Numbers) -> Numbers:
    if isinstance(run.arith, Fractions):
        raise NotRational("an angle")
    return run.each(run.arith.context.atan2, y, x)


def _function(name: str) -> Callable[[_Run, Numbers], Numbers]:
    return lambda run, x: run.each(lambda number: run.arith.function(name, number), x)


def _sigmoid(run: _Run, x: Numbers) -> Numbers:
    return _div(run, 1, _add(run, 1, _function("exp")(run, _mul(run, x, -1))))


def _gelu(run: _Run, x: Numbers, approximate: str = "none") -> Numbers:
    if approximate == "none":
        inner = _function("erf")(run, _div(run, x, _function("sqrt")(run, np.asarray(run.number(2), object))))
    else:
        cubic = _add(run, x, _mul(run, _mul(run, x, _mul(run, x, x)), 0.044715))
        inner = _function("tanh")(run, _mul(run, cubic, math.sqrt(2 / math.pi)))
    return _mul(run, _mul(run, x, 0.5), _add(run, inner, 1))


def _relu(run: _Run, x: Numbers) -> Numbers:
    return run.each(lambda number: run.larger(number, run.number(0)), x)


def _clamp(run: _Run, x: Numbers, least: Any = None, most: Any = None) -> Numbers:
    x = x if least is None else _maximum(run, x, least)
    return x if most is None else _minimum(run, x, most)


def _maximum(run: _Run, x: Numbers, y: Any) -> Numbers:
    return run.each(run.larger, x, run.number(y))


def _minimum(run: _Run, x: Numbers, y: Any) -> Numbers:
    return run.each(operator.neg, _maximum(run, run.each(operator.neg, x), run.each(operator.neg, run.number(y))))


def _mm(run: _Run, x: Numbers, y: Numbers) -> Numbers:
    return np.asarray(x @ y, object)


def _addmm(run: _Run, added: Numbers, x: Numbers, y: Numbers, *, beta: float = 1, alpha: float = 1) -> Numbers:
    product = _mul(run, _mm(run, x, y), alpha)
    return _add(run, product, _mul(run, added, beta)) if beta else product


def _sum(run: _Run, x: Numbers, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Numbers:
    return run.reduced(x, dim, keepdim, _added)


def _mean(run: _Run, x: Numbers, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Numbers:
    total = _sum(run, x, dim, keepdim)
    return _div(run, total, x.size // max(1, total.size))


def _amax(run: _Run, x: Numbers, dim: Any = None, keepdim: bool = False) -> Numbers:
    return run.reduced(x, dim, keepdim, run.larger)


def _max(run: _Run, x: Numbers, dim: Any = None, keepdim: bool = False) -> Any:
    return _amax(run, x) if dim is None else (_amax(run, x, dim, keepdim), None)


def _var(run: _Run, x: Numbers, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Numbers:
    centred = _sub(run, x, _mean(run, x, dim, True))
    total = _sum(run, _mul(run, centred, centred), dim, keepdim)
    return _div(run, total, x.size // max(1, total.size) - (1 if correction is None else correction))


def _norm(run: _Run, x: Numbers, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Numbers:
    if ord != 2:
        raise Unknown(f"the norm of order {ord}")
    return _function("sqrt")(run, _sum(run, _mul(run, x, x), dim, keepdim))


def _softmax(run: _Run, x: Numbers, dim: int, half: bool) -> Numbers:
    powers = _function("exp")(run, x)
    return _div(run, powers, _sum(run, powers, dim, True))


def _log_softmax(run: _Run, x: Numbers, dim: int, half: bool) -> Numbers:
    return _function("log")(run, _softmax(run, x, dim, half))


def _layer_norm(run: _Run, x: Numbers, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Numbers, None, None]:
    dims = tuple(range(-len(shape), 0))
    centred = _sub(run, x, _mean(run, x, dims, True))
    variance = _mean(run, _mul(run, centred, centred), dims, True)
    scaled = _div(run, centred, _function("sqrt")(run, _add(run, variance, eps)))
    scaled = scaled if weight is None else _mul(run, scaled, weight)
    return (scaled if bias is None else _add(run, scaled, bias)), None, None


def _slice(run: _Run, x: Numbers, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Numbers:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _padded(run: _Run, x: Numbers, pad: Sequence[int], value: Any = 0) -> Numbers:
    """`pad` are pairs (before, behind) from the last dimension on; negative ones cut off."""
    for number, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.ndim - 1 - number
        x = _slice(run, x, dim, max(0, -before), x.shape[dim] + min(0, behind))
        around = [(max(0, before), max(0, behind)) if axis == dim else (0, 0) for axis in range(x.ndim)]
        x = np.pad(x, around, constant_values=run.number(value))
    return x


def _parts(run: _Run, x: Numbers, sizes: Sequence[int] | int, dim: int = 0) -> list[Numbers]:
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
    run: _Run,
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
    run: _Run, x: Numbers, size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0, 0)
) -> tuple[Numbers, Numbers]:
    """Where the largest stood is not said."""
    largest = _pool(x, size, stride, padding, lambda part: _amax(run, part, (-2, -1)))
    return largest, np.full(largest.shape, None)


def _expand(run: _Run, x: Numbers, sizes: Sequence[int], *, implicit: bool = False) -> Numbers:
    aligned = (1,) * (len(sizes) - x.ndim) + x.shape
    return np.broadcast_to(x, [old if new == -1 else new for old, new in zip(aligned, sizes, strict=True)])


def _squeeze(run: _Run, x: Numbers, dim: Any = None) -> Numbers:
    dims = range(x.ndim) if dim is None else ((dim,) if isinstance(dim, int) else dim)
    return np.squeeze(x, tuple({axis % x.ndim for axis in dims if x.shape[axis] == 1})) if x.ndim else x


def _full(run: _Run, shape: Sequence[int], value: Any, **layout: Any) -> Numbers:
    return np.full(shape, run.number(value), object)


def _same(run: _Run, x: Any, *ignored: Any, **layout: Any) -> Any:
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
