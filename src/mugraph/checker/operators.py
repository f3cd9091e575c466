"""The checker's own table of operators: what the paper and the documentation say of each, written down a second time.

A row has all that the checker knows of an operator. A test compares the table with that of `mugraph.ir.ops`, row by row; neither
is made from the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.checker.axis_digits import DigitRule, grouped, kept, regrouped, taken
from mugraph.checker.saved_files import Json, Rejected
from mugraph.checker.scans import SCANS, running
from mugraph.checker.tensors import (
    Array,
    Domain,
    DomainTensor,
    added,
    common_scale,
    constant,
    joined,
    moved,
    multiplied,
    plain,
    product,
    quotient,
    reduced,
    root,
    scaled,
)

Shape = tuple[int, ...]
ShapeRule = Callable[[Json, Json, Sequence[Shape]], Shape]
"""The shape of a result, from the graph that the operator stands in, its attributes, and the shapes it reads."""
Meaning = Callable[[Json, list[DomainTensor], Domain], DomainTensor]
"""What an operator computes, from its attributes and operands."""
Carried = Callable[[Json, Sequence[Sequence[int]], int, int, Sequence[int]], int | None]
"""The dimension of a result along which a dimension of an operand runs, from the attributes, the shapes of all operands, the
operand's number, its dimension, and the result's shape; None where it is mixed or split."""

ANYWHERE = ("kernel", "block", "thread")
_IN_BODIES = ("block", "thread")
_OUTSIDE_THREADS = ("kernel", "block")


@dataclass(frozen=True, slots=True)
class Row:
    """An operator: where it may stand, how many operands it has, what it says besides, and what it is.

    One that is `variadic` may have more operands. Inputs, iterators, savers and accumulators are computed by the interpreter (no
    `meaning`). Of elementwise functions with a `function`, nothing but that is assumed, and only in floating point.
    """

    levels: tuple[str, ...]
    operands: int
    shape: ShapeRule
    meaning: Meaning | None = None
    carried: Carried | None = None
    digits: DigitRule | None = None
    """How digits of a dimension move where that is not how dimensions do."""
    attributes: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    function: Callable[..., Any] | None = None
    variadic: bool = False
    integers: frozenset[int] = frozenset()
    """Operands of integers; no other operand has any."""

    def computed(self, attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
        """The result; raises Rejected for what is no operator on tensors."""
        if self.meaning is None:
            raise Rejected("it computes nothing by itself")
        return self.meaning(attributes, xs, domain)


# --- shapes ------------------------------------------------------------------------------------------------------------


def _broadcast(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{*column} - {1} for column in zip(*padded, strict=True)]
    if any(len(there) > 1 for there in sizes):
        raise ValueError(f"shapes {' and '.join(str(list(shape)) for shape in shapes)} do not broadcast")
    return tuple(there.pop() if there else 1 for there in sizes)


def _elementwise_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    return _broadcast(*reads)


def _divided(shape: Shape, parts: Sequence[tuple[int, int | None]]) -> Shape:
    sizes = list(shape)
    for count, dim in parts:
        if dim is not None:
            place = _within(dim, shape)
            sizes[place], rest = divmod(sizes[place], count)
            if rest:
                raise ValueError(f"dimension {dim} of {list(shape)} does not divide by {count}")
    return tuple(sizes)


def _multiplied_sizes(shape: Shape, parts: Sequence[tuple[int, int]]) -> Shape:
    sizes = list(shape)
    for count, dim in parts:
        sizes[_within(dim, shape)] *= count
    return tuple(sizes)


def _within(dim: int, shape: Shape) -> int:
    if not 0 <= dim < len(shape):
        raise ValueError(f"there is no dimension {dim} in {list(shape)}")
    return dim


def _matmul_shape(x: Shape, y: Shape) -> Shape:
    if len(x) < 2 or len(y) < 2 or x[-1] != y[-2]:
        raise ValueError(f"no matrix product of {list(x)} and {list(y)}")
    return (*_broadcast(x[:-2], y[:-2]), x[-2], y[-1])


def _concat_matmul_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    w, x, y, z = reads
    first, second = _matmul_shape(w, y), _matmul_shape(x, z)
    if first != second:
        raise ValueError(f"products of shapes {list(first)} and {list(second)}")
    return first


def _tile_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    grid = graph["grid"] or graph["block"]
    return _divided(reads[0], [*zip(grid, attributes["imap"], strict=True), (graph["loop"], attributes["fmap"])])


def _saved_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    grid = graph["grid"] or graph["block"]
    return _multiplied_sizes(reads[0], list(zip(grid, attributes["omap"], strict=True)))


def _looked_up_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    table, places = reads
    dim = _within(attributes["dim"], table)
    return (*table[:dim], *places, *table[dim + 1 :])


def _looked_up(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    """Of integers that are known, as they are in floating point alone."""

    def take(parts: list[Array]) -> Array:
        table, places = parts[0], np.asarray(parts[1]).astype(np.int64)
        if attributes["negative"] == "wrapped":
            places = np.where(places < 0, places + table.shape[attributes["dim"]], places)
        if (places < 0).any():
            raise ValueError("an integer is negative")
        return np.asarray(np.take(table, places, attributes["dim"]))

    return plain(domain.move([x.raw for x in xs], take))


def _accumulated_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    return _multiplied_sizes(reads[0], [(graph["loop"], attributes["dim"])]) if attributes["combine"] == "concat" else reads[0]


def _rescaled_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    if len(reads[0]) != len(reads[1]) or _broadcast(*reads) != reads[0]:
        raise ValueError(f"exponents of shape {list(reads[1])} do not shift {list(reads[0])}")
    return reads[0]


def _grouped_shape(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    return _divided(reads[0], [(attributes["size"], attributes["dim"])])


def _reshaped(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    shape = tuple(attributes["shape"])
    if min(shape, default=1) < 1 or math.prod(shape) != math.prod(reads[0]):
        raise ValueError(f"{list(reads[0])} is not regrouped to {list(shape)}")
    return shape


def _transposed(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    order = attributes["permutation"]
    if sorted(order) != list(range(len(reads[0]))):
        raise ValueError(f"{order} is no permutation")
    return tuple(reads[0][dim] for dim in order)


def _sliced(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    ((shape,), dim) = reads, _within(attributes["dim"], reads[0])
    positions = _positions(attributes)
    if not positions or not attributes["step"] or min(positions) < 0 or max(positions) >= shape[dim]:
        raise ValueError(f"{list(shape)} does not have all of the positions asked for along dimension {dim}")
    return (*shape[:dim], len(positions), *shape[dim + 1 :])


def _positions(attributes: Json) -> range:
    start, size, step = attributes["start"], attributes["size"], attributes["step"]
    return range(start, start + size * step, step) if step else range(0)


def _scanned(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    _within(attributes["dim"], reads[0])
    return reads[0]


def _concatenated(graph: Json, attributes: Json, reads: Sequence[Shape]) -> Shape:
    dim = _within(attributes["dim"], reads[0])
    around = {(*shape[:dim], *shape[dim + 1 :]) for shape in reads if len(shape) == len(reads[0])}
    if len(around) != 1 or any(len(shape) != len(reads[0]) for shape in reads):
        raise ValueError(f"tensors that are put together along dimension {dim} differ in others")
    return (*reads[0][:dim], sum(shape[dim] for shape in reads), *reads[0][dim + 1 :])


# --- where dimensions go -----------------------------------------------------------------------------------------------


def _from_right(attributes: Json, shapes: Sequence[Sequence[int]], number: int, dim: int, result: Sequence[int]) -> int:
    return len(result) - len(shapes[number]) + dim


def _but_inner(attributes: Json, shapes: Sequence[Sequence[int]], number: int, dim: int, result: Sequence[int]) -> int | None:
    inner = len(shapes[number]) - (1 if number < len(shapes) // 2 else 2)
    return None if dim == inner else _from_right(attributes, shapes, number, dim, result)


def _but_dim(attributes: Json, shapes: Sequence[Sequence[int]], number: int, dim: int, result: Sequence[int]) -> int | None:
    return None if dim == attributes["dim"] else dim


def _beside_places(attributes: Json, shapes: Sequence[Sequence[int]], number: int, dim: int, result: Sequence[int]) -> int | None:
    if number or dim == attributes["dim"]:
        return None
    return dim if dim < attributes["dim"] else dim + len(shapes[1]) - 1


def _but_joined(attributes: Json, shapes: Sequence[Sequence[int]], number: int, dim: int, result: Sequence[int]) -> int | None:
    return None if attributes["combine"] == "concat" and dim == attributes["dim"] else dim


def _permuted(attributes: Json, shapes: Sequence[Sequence[int]], number: int, dim: int, result: Sequence[int]) -> int:
    return int(attributes["permutation"].index(dim))


def _same_dim(attributes: Json, shapes: Sequence[Sequence[int]], number: int, dim: int, result: Sequence[int]) -> int | None:
    """The dimension of a reshaped tensor with the same elements before it and as many along it."""
    shape, target = shapes[number], attributes["shape"]
    same = (d for d, size in enumerate(target) if size == shape[dim] and math.prod(target[:d]) == math.prod(shape[:dim]))
    return next(same, None)


# --- rows --------------------------------------------------------------------------------------------------------------


def function(name: str, floats: Callable[..., Any], operands: int = 1) -> Row:
    """An elementwise function, of which only its values in floating point are known."""
    return Row(
        ANYWHERE,
        operands,
        _elementwise_shape,
        lambda attributes, xs, domain: plain(domain.function(name, *(x.raw for x in xs))),
        _from_right,
        function=floats,
    )


def _elementwise(operands: int, meaning: Meaning) -> Row:
    return Row(ANYWHERE, operands, _elementwise_shape, meaning, _from_right)


def _scan(what: str, back: bool) -> Row:
    def meaning(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
        (x,), dim = xs, attributes["dim"]
        result = running(what, x.raw, dim, back, domain)
        return scaled(result, x.scale, domain) if what == "sum" else plain(result)

    return Row(_OUTSIDE_THREADS, 1, _scanned, meaning, _but_dim, attributes=frozenset({"dim"}))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _to_bf16(x: Array) -> Array:
    """The nearest numbers with 8 significant bits and the range of float32, ties to even."""
    single = np.asarray(x, np.float32)
    bits = single.view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return np.where(np.isnan(single), single, nearest.view(np.float32))


ROUNDINGS: dict[str, Callable[[Array], Any]] = {
    "round_fp16": lambda x: x.astype(np.float16),
    "round_bf16": _to_bf16,
    "round_fp32": lambda x: x.astype(np.float32),
}
"""Elementwise functions that a program rounds by; in a field they are functions like any other."""


WHOLE_NUMBERS: dict[str, tuple[Callable[[Array], Any], float]] = {
    "floor": (np.floor, 0.0),
    "ceil": (np.ceil, 0.0),
    "trunc": (lambda x: np.where(x < 0, np.ceil(x), np.floor(x)), 0.0),
    "round": (np.round, 0.5),
}
"""Functions that give whole numbers, and how far from whole numbers they jump."""


_FUNCTIONS: dict[str, Callable[[Array], Any]] = {
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2,
    "tanh": np.tanh,
    "log": np.log,
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log2": np.log2,
    "log1p": np.log1p,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    **{name: whole for name, (whole, _) in WHOLE_NUMBERS.items()},
    "high_nibble": lambda x: (x - np.mod(x, 16)) / 16,
    "low_nibble": lambda x: np.mod(x, 16),
    "truth": lambda x: np.where(x == 0, 0, 1),
    "infinity": lambda x: np.where(x == 0, np.nan, np.copysign(np.inf, x)),
    **ROUNDINGS,
}
"""Elementwise functions of which nothing is assumed, in floating point."""


_CHOICES: dict[str, tuple[int, Callable[..., Any]]] = {
    "less": (2, lambda x, y: np.where(y > x, 1, 0)),
    "equal": (2, lambda x, y: np.where(x == y, 1, 0)),
    "atan2": (2, np.arctan2),
    "fmod": (2, np.fmod),
    "pow": (2, np.float_power),
    "copysign": (2, lambda x, y: np.where(np.signbit(y), -np.abs(x), np.abs(x))),
    "select": (3, lambda condition, x, y: np.where(condition == 0, y, x)),
}
"""Functions of several operands, with how many."""


def _cast(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    """The same numbers, but for booleans, of which any number other than 0 becomes 1."""
    return plain(domain.function("truth", xs[0].raw)) if attributes["dtype"]["dtype"] == "bool" else xs[0]


def _number(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    return constant(attributes["value"]["exact"], domain)


def _difference(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    return scaled(domain.subtract(xs[0].raw, xs[1].raw), common_scale([x.scale for x in xs]), domain)


def _larger_of_two(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    def pair(arrays: list[Array]) -> Array:
        return np.stack(np.broadcast_arrays(*arrays), axis=0)

    both = domain.move([x.raw for x in xs], pair)
    return plain(domain.move([domain.row_function("max", both, 0)], lambda arrays: arrays[0][0]))


def _group_sums(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    return scaled(reduced("sum", xs[0].raw, attributes["dim"], attributes["size"], domain), xs[0].scale, domain)


def _group_maxima(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    return plain(reduced("max", xs[0].raw, attributes["dim"], attributes["size"], domain, attributes.get("least")))


def _repeated(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    return moved(xs[0], lambda array: np.concatenate([array] * attributes["times"], axis=attributes["dim"]), domain)


def _taken(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    return moved(xs[0], lambda array: np.take(array, _positions(attributes), axis=attributes["dim"]), domain)


def _one_behind_the_other(attributes: Json, xs: list[DomainTensor], domain: Domain) -> DomainTensor:
    return joined(xs, attributes["dim"], domain)


OPERATORS: dict[str, Row] = {
    "input": Row(
        ("kernel",), 0, lambda graph, attributes, reads: tuple(attributes["shape"]),
        attributes=frozenset({"name", "shape", "dtype"}), optional=frozenset({"constant"}),
    ),
    "constant": Row(ANYWHERE, 0, lambda graph, attributes, reads: (), _number, attributes=frozenset({"value", "dtype"})),
    "input_iterator": Row(_IN_BODIES, 0, _tile_shape, attributes=frozenset({"operand", "imap", "fmap"})),
    "output_saver": Row(_IN_BODIES, 1, _saved_shape, attributes=frozenset({"omap"})),
    "accumulate": Row(
        _IN_BODIES, 1, _accumulated_shape, None, _but_joined, kept,
        attributes=frozenset({"combine"}), optional=frozenset({"dim"}),
    ),
    "accumulate_rescaled": Row(("block",), 2, _rescaled_shape, None, _from_right),
    "matmul": Row(
        ANYWHERE, 2, lambda graph, attributes, reads: _matmul_shape(*reads),
        lambda attributes, xs, domain: multiplied(xs[0], xs[1], domain), _but_inner,
    ),
    "concat_matmul": Row(
        _OUTSIDE_THREADS, 4, _concat_matmul_shape,
        lambda attributes, xs, domain: added(multiplied(xs[0], xs[2], domain), multiplied(xs[1], xs[3], domain), domain),
        _but_inner,
    ),
    "sum": Row(ANYWHERE, 1, _grouped_shape, _group_sums, _but_dim, grouped, attributes=frozenset({"dim", "size"})),
    "max": Row(
        ANYWHERE, 1, _grouped_shape, _group_maxima, _but_dim, grouped,
        attributes=frozenset({"dim", "size"}), optional=frozenset({"least"}),
    ),
    **{name: _scan(*meaning) for name, meaning in SCANS.items()},
    "add": _elementwise(2, lambda attributes, xs, domain: added(xs[0], xs[1], domain)),
    "sub": _elementwise(2, _difference),
    "mul": _elementwise(2, lambda attributes, xs, domain: product(xs[0], xs[1], domain)),
    "div": _elementwise(2, lambda attributes, xs, domain: quotient(xs[0], xs[1], domain)),
    "square": _elementwise(1, lambda attributes, xs, domain: product(xs[0], xs[0], domain)),
    "maximum": _elementwise(2, _larger_of_two),
    "exp": _elementwise(1, lambda attributes, xs, domain: plain(domain.exp(xs[0].raw))),
    "sqrt": _elementwise(1, lambda attributes, xs, domain: root(xs[0], domain)),
    "cast": Row(
        ANYWHERE, 1, _elementwise_shape, _cast, _from_right, attributes=frozenset({"dtype"}),
    ),
    "reshape": Row(
        _OUTSIDE_THREADS, 1, _reshaped,
        lambda attributes, xs, domain: moved(xs[0], lambda array: array.reshape(attributes["shape"]), domain),
        _same_dim, regrouped, attributes=frozenset({"shape"}),
    ),
    "transpose": Row(
        _OUTSIDE_THREADS, 1, _transposed,
        lambda attributes, xs, domain: moved(xs[0], lambda array: array.transpose(attributes["permutation"]), domain),
        _permuted, attributes=frozenset({"permutation"}),
    ),
    "repeat": Row(
        _OUTSIDE_THREADS, 1,
        lambda graph, attributes, reads: _multiplied_sizes(reads[0], [(attributes["times"], attributes["dim"])]),
        _repeated, _but_dim, kept, attributes=frozenset({"dim", "times"}),
    ),
    "slice": Row(
        ("kernel",), 1, _sliced, _taken, _but_dim, taken, attributes=frozenset({"dim", "start", "size", "step"}),
    ),
    "index_select": Row(
        ("kernel",), 2, _looked_up_shape, _looked_up, _beside_places,
        attributes=frozenset({"dim", "negative"}), integers=frozenset({1}),
    ),
    "concat": Row(
        ("kernel",), 1, _concatenated, _one_behind_the_other, _but_dim, kept, attributes=frozenset({"dim"}), variadic=True,
    ),
    **{name: function(name, floats) for name, floats in _FUNCTIONS.items()},
    **{name: function(name, floats, operands) for name, (operands, floats) in _CHOICES.items()},
    "round_fp32": replace(function("round_fp32", ROUNDINGS["round_fp32"]), levels=("kernel",)),
}  # fmt: skip
"""By name. A graph-defined operator has no row: it is its body."""
