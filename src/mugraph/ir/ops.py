"""The operator table: one row per operator, and everything the rest of mugraph knows about it (paper, Table 1).

A row gives the levels an operator may stand at, its shape rule, its structure and index maps, its meaning under any `Arithmetic`
(floats and finite fields alike), its abstract expression, its kind for the verifier's theorem, its cost, and how C-like
targets print it. Adding an operator is adding a row (see docs/adding-an-operator.md).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.ir.arithmetic import Abstraction, Arithmetic, Array, broadcast_shape
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.elementary import FUNCTIONS as ELEMENTARY
from mugraph.ir.elementary import erf
from mugraph.ir.graph import LOOKUP, AttributeValue, Graph, Level, Node, Shape, Tensor
from mugraph.ir.index_maps import (
    IndexMaps,
    MapRule,
    Structure,
    contraction_maps,
    elementwise_maps,
    grouped_maps,
    part_maps,
    repeated_maps,
    reshaped_maps,
    transposed_maps,
)
from mugraph.ir.lookups import NEGATIVE, lookup_maps, lookup_shape, taken
from mugraph.ir.scalar import Scalar
from mugraph.ir.scans import SCANS, Scan, scanned


class Kind(StrEnum):
    """What an operator is to the verifier (paper, Definition 5.1) and to the thread-graph rules."""

    DATA = "data"
    MULTILINEAR = "multilinear"
    DIVISION = "division"
    EXPONENTIATION = "exponentiation"
    SQUARE_ROOT = "square root"
    OPAQUE = "opaque"
    DEFINED = "defined"
    """What the operators are that it is made of: proofs read these in its place."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What surrounds a node: the grid and the for-loop of its block graph."""

    grid: tuple[int, ...] = ()
    loop: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """One application of an operator: the shapes it sees, its attributes, and its surroundings."""

    op: str
    shapes: tuple[Shape, ...]
    attributes: Mapping[str, AttributeValue]
    scope: Scope = Scope()

    def integer(self, name: str) -> int:
        """The integer attribute called `name`."""
        value = self.attributes.get(name)
        if not isinstance(value, int):
            raise ShapeMismatch(f"{self.op}: attribute {name!r} must be an integer, not {value!r}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """The attribute called `name`, a tuple of integers."""
        value = self.attributes.get(name)
        if not isinstance(value, tuple) or not all(isinstance(item, int) for item in value):
            raise ShapeMismatch(f"{self.op}: attribute {name!r} must be a tuple of integers, not {value!r}")
        return tuple(item for item in value if item is not None)

    def dim(self, name: str = "dim") -> int:
        """The attribute called `name`, a dimension of the first operand."""
        dim = self.integer(name)
        if not 0 <= dim < len(self.shapes[0]):
            raise ShapeMismatch(f"{self.op}: dimension {dim} of an operand of shape {list(self.shapes[0])}")
        return dim

    def fail(self, why: str) -> ShapeMismatch:
        """A ShapeMismatch that names the operator and its operands' shapes."""
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        return ShapeMismatch(f"{self.op}({shapes}): {why}")


ShapeRule = Callable[[Call], Shape]
ComputeRule = Callable[[Arithmetic[Any], Call, Sequence[Any]], Any]
AbstractRule = Callable[[Abstraction[Any], Call, Sequence[Any]], Any]

LEAST = "lowest"
"""What the attribute `least` of a maximum may be: then the maximum is over its elements and the number `LOWEST`.

Maxima by which the search shifts exponents have it: of a tile that a mask fills with -inf, -inf less its own maximum would not be
a number, where the program, whose rows are longer than a tile, has exp(-inf) = 0.
"""

LOWEST = Scalar.of(-DType.FP32.largest)
"""The least number of the type in which kernels compute; the verifier, to which it is a variable, knows it as this object."""

_KERNEL_BLOCK_THREAD = frozenset(Level)
_KERNEL = frozenset({Level.KERNEL})
_KERNEL_BLOCK = frozenset({Level.KERNEL, Level.BLOCK})
_BLOCK_THREAD = frozenset({Level.BLOCK, Level.THREAD})


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of the table.

    `structure` and `maps` say at which points it computes, and what it reads and writes at each (`mugraph.ir.index_maps`); leaves
    and boundaries have no maps, and a contraction lists in `products` the pairs of operands whose products it adds up.
    `shape`, `compute` and `express` are the operator's shape rule, meaning and abstract expression, `cost` its floating-point
    operations at each point; `arity` is the number of its operands, the least one if it is `variadic`. Elementwise operators have
    `scalar`, a C-family expression over {0}, {1} (functions in it are named as in C's math library or supplied by each target's
    prelude), and opaque ones a NumPy `reference`. `attributes` names what a node must carry, `optional` what it may carry too. An
    operator that others define has a `definition`: for a call, the program that it stands for (`mugraph.ir.definitions`).
    """

    name: str
    paper: str | None
    arity: int
    kind: Kind
    structure: Structure
    levels: frozenset[Level]
    shape: ShapeRule
    compute: ComputeRule
    express: AbstractRule
    maps: Callable[[Call], MapRule] | None = None
    cost: int = 0
    products: tuple[tuple[int, int], ...] = ()
    attributes: tuple[str, ...] = ()
    scalar: str | None = None
    reference: Callable[..., Array] | None = None
    commutative: bool = False
    optional: tuple[str, ...] = ()
    variadic: bool = False
    definition: Callable[[Call], Graph] | None = None
    indices: tuple[int, ...] = ()
    """Operands that are integers, and of which nothing but places is made."""
    whole: bool = False
    """Whether it takes whole numbers of 8 bits, and gives such numbers."""

    @property
    def elementwise(self) -> bool:
        """Whether each output element depends on one element of each operand (so it may join a thread graph)."""
        return self.scalar is not None

    def index_maps(self, call: Call, out: Shape) -> IndexMaps | None:
        """The points at which a call with a result of shape `out` computes; None for leaves and boundaries."""
        return None if self.maps is None else self.maps(call)(call.shapes, out)

    def flops(self, call: Call, out: Shape) -> int:
        """Floating-point operations of a call with a result of shape `out`; of an accumulator, in one iteration."""
        if self.definition is not None:
            return flops_of(self.definition(call))
        if not self.cost or self.maps is None:
            return 0
        if self.structure in (Structure.ELEMENTWISE, Structure.SCAN):
            return self.cost * math.prod(out)
        if self.products:
            return self.cost * sum(math.prod(out) * call.shapes[left][-1] for left, _ in self.products)
        return self.cost * self.maps(call)(call.shapes, out).points

    def infer(self, call: Call, inputs: Sequence[Tensor], level: Level) -> Tensor:
        """The output tensor; raises ShapeMismatch when the operands break the operator's specification."""
        if len(inputs) != self.arity and not (self.variadic and len(inputs) > self.arity):
            raise ShapeMismatch(f"{self.name} takes {self.arity} operands{' or more' * self.variadic}, not {len(inputs)}")
        for name in self.attributes:
            if name not in call.attributes:
                raise ShapeMismatch(f"{self.name}: attribute {name!r} is missing")
        for number, tensor in enumerate(inputs):
            if tensor.dtype.is_index != (number in self.indices):
                raise UnsupportedOperator(self._mistyped(number, tensor))
            if self.whole and not tensor.dtype.is_whole:
                raise UnsupportedOperator(f"{self.name}({tensor}): bits are taken of int8 and uint8 alone; pass whole numbers")
        dtype = call.attributes.get("dtype")
        if isinstance(dtype, DType) and dtype.is_stored and self.name != "input":
            read = ", ".join(map(str, inputs))
            raise UnsupportedOperator(
                f"{self.name}({read}) to {dtype}: only inputs are {dtype}; convert before, and pass the result"
            )
        if not isinstance(dtype, DType):
            if "dtype" in self.attributes:
                raise ShapeMismatch(f"{self.name}: attribute 'dtype' must be a dtype, not {dtype!r}")
            numbers = [tensor for number, tensor in enumerate(inputs) if number not in self.indices]
            dtypes = [tensor.dtype for tensor in numbers if tensor.shape] or [tensor.dtype for tensor in numbers]
            counting = [dtype for dtype in dtypes if dtype.is_floating] or dtypes
            dtype = self._stored(call, functools.reduce(DType.promote, counting))
        return Tensor(self.shape(call), dtype, level)

    def _mistyped(self, number: int, tensor: Tensor) -> str:
        """Why an operand with integers, or without, cannot be its operand of that number."""
        what = f"{self.name}: operand {number} of shape {list(tensor.shape)} is {tensor.dtype}"
        if number in self.indices:
            return f"{what}; places are named by integers, of int64 or int32"
        return f"{what}; of integers only {LOOKUP} can read places; convert numbers to a floating-point type before"

    def _stored(self, call: Call, dtype: DType) -> DType:
        """What is computed of booleans is no boolean, nor of a type that is only stored; what only moves them is."""
        moves = self.kind is Kind.DATA or call.attributes.get("combine") == "concat"
        return dtype if moves or self.whole else dtype.of_arithmetic


TRUTH = "truth"
"""The operator that gives 1 for whatever is not 0, as casts to booleans do."""

ROUNDINGS = {dtype: f"round_{dtype}" for dtype in (DType.FP16, DType.BF16, DType.FP32)}
"""The operators that round to the numbers of a type."""


def operator(name: str) -> Operator:
    """The row called `name`; raises UnsupportedOperator otherwise."""
    try:
        return OPERATORS[name]
    except KeyError:
        raise UnsupportedOperator(f"operator {name!r} is not in the operator table") from None


def is_contraction(op: str) -> bool:
    """Whether an operator multiplies matrices."""
    return op in OPERATORS and OPERATORS[op].structure is Structure.CONTRACTION


def is_reduction(op: str) -> bool:
    """Whether an operator reduces groups of neighbours along a dimension to one element each."""
    return op in OPERATORS and OPERATORS[op].structure is Structure.REDUCTION


def is_scan(op: str) -> bool:
    """Whether an operator combines what stands along a dimension position by position."""
    return op in OPERATORS and OPERATORS[op].structure is Structure.SCAN


def index_maps_of(node: Node, shapes: Sequence[Shape]) -> IndexMaps | None:
    """The index maps of a node whose operands have these shapes; None for leaves and boundaries without."""
    return operator(node.op).index_maps(Call(node.op, tuple(shapes), dict(node.attributes)), node.output.shape)


def flops_of(graph: Graph, nodes: Iterable[Node] | None = None) -> int:
    """Floating-point operations of a graph's pre-defined operators: of all, or of some of its nodes."""
    total = 0
    for node in graph.nodes if nodes is None else nodes:
        if node.body is None:
            call = apply_call(node.op, [graph.tensor(value) for value in node.inputs], dict(node.attributes))
            total += operator(node.op).flops(call, node.output.shape)
    return total


def apply_call(op: str, inputs: Sequence[Tensor], attributes: Mapping[str, AttributeValue], scope: Scope = Scope()) -> Call:
    """The call of `op` on tensors: what the rules of a row are given."""
    return Call(op, tuple(tensor.shape for tensor in inputs), attributes, scope)


# --- shape rules -----------------------------------------------------------------------------------------------------


def _broadcast(call: Call) -> Shape:
    try:
        return tuple(np.broadcast_shapes(*call.shapes))
    except (ValueError, OverflowError):
        raise call.fail("shapes do not broadcast") from None


def _matmul_shape(call: Call, left: int = 0, right: int = 1) -> Shape:
    x, y = call.shapes[left], call.shapes[right]
    if len(x) < 2 or len(y) < 2:
        raise call.fail("matmul needs at least two dimensions on each side")
    if x[-1] != y[-2]:
        raise call.fail(f"inner dimensions {x[-1]} and {y[-2]} differ")
    try:
        batch = np.broadcast_shapes(x[:-2], y[:-2])
    except (ValueError, OverflowError):
        raise call.fail("batch dimensions do not broadcast") from None
    return (*batch, x[-2], y[-1])


def _concat_matmul_shape(call: Call) -> Shape:
    first, second = _matmul_shape(call, 0, 2), _matmul_shape(call, 1, 3)
    if first != second:
        raise call.fail(f"the two products have shapes {list(first)} and {list(second)}")
    return first


def _grouped_shape(call: Call) -> Shape:
    dim, size = call.dim(), call.integer("size")
    if call.attributes.get("least", LEAST) != LEAST:
        raise call.fail(f"least is {call.attributes['least']!r}; a maximum may have least={LEAST}")
    shape = call.shapes[0]
    if size < 1 or shape[dim] % size:
        raise call.fail(f"dimension {dim} does not divide into groups of {size}")
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])


def _reshape_shape(call: Call) -> Shape:
    shape = call.integers("shape")
    if min(shape, default=1) < 1 or math.prod(shape) != math.prod(call.shapes[0]):
        raise call.fail(f"cannot reshape to {list(shape)}")
    return shape


def _transpose_shape(call: Call) -> Shape:
    permutation = call.integers("permutation")
    if sorted(permutation) != list(range(len(call.shapes[0]))):
        raise call.fail(f"{list(permutation)} is not a permutation of its dimensions")
    return tuple(call.shapes[0][dim] for dim in permutation)


def _repeat_shape(call: Call) -> Shape:
    dim, times = call.dim(), call.integer("times")
    if times < 1:
        raise call.fail(f"cannot repeat {times} times")
    shape = call.shapes[0]
    return (*shape[:dim], shape[dim] * times, *shape[dim + 1 :])


def _slice_shape(call: Call) -> Shape:
    dim, start, size, step = call.dim(), call.integer("start"), call.integer("size"), call.integer("step")
    shape = call.shapes[0]
    last = start + (size - 1) * step
    if size < 1 or not step or not (0 <= start < shape[dim] and 0 <= last < shape[dim]):
        raise call.fail(f"dimension {dim} does not have {size} elements from {start} on in steps of {step}")
    return (*shape[:dim], size, *shape[dim + 1 :])


def _concat_shape(call: Call) -> Shape:
    dim, (first, *others) = call.dim(), call.shapes
    if any(len(shape) != len(first) for shape in others):
        raise call.fail("their ranks differ")
    if any(size != first[d] for shape in others for d, size in enumerate(shape) if d != dim):
        raise call.fail(f"they differ in other dimensions than {dim}, along which they are put together")
    return (*first[:dim], sum(shape[dim] for shape in call.shapes), *first[dim + 1 :])


def _scanned_shape(call: Call) -> Shape:
    call.dim()
    return call.shapes[0]


def _lookup_shape(call: Call) -> Shape:
    if call.attributes["negative"] not in NEGATIVE:
        raise call.fail(f"negative is {call.attributes['negative']!r}; use {' or '.join(NEGATIVE)}")
    table, index = call.shapes
    return lookup_shape(table, index, call.dim())


def _partition(call: Call, shape: Shape, parts: Sequence[tuple[int, int | None]], multiply: bool) -> Shape:
    sizes = list(shape)
    for count, dim in parts:
        if dim is None:
            continue
        if not 0 <= dim < len(sizes):
            raise call.fail(f"maps to dimension {dim} of {list(shape)}")
        if multiply:
            sizes[dim] *= count
        elif sizes[dim] % count:
            raise call.fail(f"dimension {dim} of {list(shape)} does not divide into {count} equal parts")
        else:
            sizes[dim] //= count
    return tuple(sizes)


def _map(call: Call, name: str) -> tuple[int | None, ...]:
    value = call.attributes.get(name)
    if not isinstance(value, tuple) or len(value) != len(call.scope.grid):
        raise ShapeMismatch(f"{call.op}: {name} must name a dimension or none for each of {len(call.scope.grid)} grid dims")
    return tuple(item if isinstance(item, int) else None for item in value)


def partition_of(call: Call) -> tuple[tuple[int, int | None], ...]:
    """(parts, dimension) for each grid dimension and then the for-loop: how an iterator cuts its tensor."""
    fmap = call.attributes.get("fmap")
    loop = (call.scope.loop, fmap if isinstance(fmap, int) else None)
    return (*zip(call.scope.grid, _map(call, "imap"), strict=True), loop)


def _iterator_shape(call: Call) -> Shape:
    return _partition(call, call.shapes[0], partition_of(call), multiply=False)


def _saver_shape(call: Call) -> Shape:
    omap = _map(call, "omap")
    if None in omap:
        raise call.fail("every grid dimension must map to a data dimension of the output (omap)")
    return _partition(call, call.shapes[0], tuple(zip(call.scope.grid, omap, strict=True)), multiply=True)


def _accumulate_shape(call: Call) -> Shape:
    combine = call.attributes["combine"]
    if combine == "concat":
        return _partition(call, call.shapes[0], ((call.scope.loop, call.dim()),), multiply=True)
    if combine not in ("sum", "max"):
        raise call.fail(f"unknown accumulator {combine!r}; use sum, max or concat")
    return call.shapes[0]


def _rescaled_shape(call: Call) -> Shape:
    if _broadcast(call) != call.shapes[0] or len(call.shapes[1]) != len(call.shapes[0]):
        raise call.fail("the exponent shift must broadcast to the accumulated tensor, and have its rank; reshape it")
    return call.shapes[0]


# --- meanings --------------------------------------------------------------------------------------------------------


def _regroup(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], shape[dim] // size, size, *shape[dim + 1 :])


def _grouped(reduce: str) -> ComputeRule:
    def compute(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
        dim, size = call.dim(), call.integer("size")
        split = arith.view(xs[0], lambda x: x.reshape(_regroup(x.shape, dim, size)))
        if call.attributes.get("least") is not None:
            split = arith.join([split, arith.constant(LOWEST)], _with_one_more(dim + 1))
        reduced = arith.sum(split, dim + 1) if reduce == "sum" else arith.max(split, dim + 1)
        return arith.view(reduced, lambda x: x.reshape((*x.shape[: dim + 1], *x.shape[dim + 2 :])))

    return compute


def _with_one_more(axis: int) -> Callable[[Sequence[Array]], Array]:
    """A number, the second part, put behind the elements of the first along an axis."""

    def combine(parts: Sequence[Array]) -> Array:
        elements, number = parts
        one = (*elements.shape[:axis], 1, *elements.shape[axis + 1 :])
        return np.concatenate([elements, np.broadcast_to(number, one)], axis=axis)

    return combine


def _repeat(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    times, dim = call.integer("times"), call.dim()
    return arith.view(xs[0], lambda x: np.tile(x, [times if d == dim else 1 for d in range(x.ndim)]))


def _slice(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    dim, start, size, step = call.dim(), call.integer("start"), call.integer("size"), call.integer("step")
    first = min(start, start + (size - 1) * step)
    there: list[Any] = [*(slice(None),) * dim, slice(first, first + (size - 1) * abs(step) + 1, abs(step)), ...]

    def taken(x: Array) -> Array:
        part: Array = x[tuple(there)]
        return part if step > 0 else np.flip(part, dim)

    return arith.view(xs[0], taken)


def _concat(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    return arith.join(xs, _joined_axis(call.dim()))


def _lookup(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    return arith.join(xs, taken(call.dim(), str(call.attributes["negative"])))


def _joined_axis(dim: int) -> Callable[[Sequence[Array]], Array]:
    return lambda parts: np.concatenate(parts, axis=dim)


def _stack(parts: Sequence[Array]) -> Array:
    return np.stack(parts, axis=0)


def _beside(parts: Sequence[Array]) -> Array:
    """Tensors that broadcast with each other, one behind the other along a first axis."""
    shape = broadcast_shape(*(part.shape for part in parts))
    return np.stack([np.broadcast_to(part, shape) for part in parts], axis=0)


def _larger(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    return arith.view(arith.max(arith.join(xs, _beside), 0), lambda x: x[0])


def _accumulate(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    if call.attributes["combine"] == "concat":
        return arith.join(xs, _joined_axis(call.dim()))
    stacked = arith.join(xs, _stack)
    reduced = arith.sum(stacked, 0) if call.attributes["combine"] == "sum" else arith.max(stacked, 0)
    return arith.view(reduced, lambda x: x[0])


def _accumulate_rescaled(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    terms = arith.join(xs[: len(xs) // 2], _stack)
    shifts = arith.join(xs[len(xs) // 2 :], _stack)
    common = arith.max(shifts, 0)
    rescaled = arith.mul(terms, arith.exp(arith.sub(shifts, common)))
    return arith.view(arith.sum(rescaled, 0), lambda x: x[0])


def _same(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    return xs[0]


def _matmul_expression(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    return algebra.sum(call.shapes[0][-1], algebra.mul(xs[0], xs[1]))


def _concat_matmul_expression(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    first = algebra.sum(call.shapes[0][-1], algebra.mul(xs[0], xs[2]))
    second = algebra.sum(call.shapes[1][-1], algebra.mul(xs[1], xs[3]))
    return algebra.add(first, second)


def _accumulate_expression(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    return algebra.sum(call.scope.loop, xs[0]) if call.attributes["combine"] == "sum" else xs[0]


# --- index maps --------------------------------------------------------------------------------------------------------


def _pointwise(call: Call) -> MapRule:
    return elementwise_maps


def _groups(call: Call) -> MapRule:
    return grouped_maps(call.dim())


def _turns(call: Call) -> MapRule:
    return repeated_maps(call.dim()) if call.attributes["combine"] == "concat" else elementwise_maps


def _multiplied(products: tuple[tuple[int, int], ...]) -> Callable[[Call], MapRule]:
    return lambda call: contraction_maps(products)


_MATMUL = ((0, 1),)
_CONCAT_MATMUL = ((0, 2), (1, 3))


# --- rows ------------------------------------------------------------------------------------------------------------


def _elementwise(
    name: str,
    paper: str | None,
    arity: int,
    kind: Kind,
    compute: ComputeRule,
    express: AbstractRule,
    scalar: str,
    cost: int = 1,
    commutative: bool = False,
) -> Operator:
    return Operator(
        name,
        paper,
        arity,
        kind,
        Structure.ELEMENTWISE,
        _KERNEL_BLOCK_THREAD,
        _broadcast,
        compute,
        express,
        _pointwise,
        cost,
        scalar=scalar,
        commutative=commutative,
    )


def opaque(
    name: str, scalar: str, reference: Callable[..., Array], paper: str | None = None, cost: int = 20, arity: int = 1
) -> Operator:
    """A row for an elementwise function outside LAX: only equality of its arguments, in their order, is known to the verifier."""
    return Operator(
        name,
        paper,
        arity,
        Kind.OPAQUE,
        Structure.ELEMENTWISE,
        _KERNEL_BLOCK_THREAD,
        _broadcast,
        lambda arith, call, xs: arith.opaque(name, *xs),
        lambda algebra, call, xs: algebra.opaque(name, *xs),
        _pointwise,
        cost,
        scalar=scalar,
        reference=reference,
    )


def _view(
    name: str,
    paper: str | None,
    levels: frozenset[Level],
    shape: ShapeRule,
    compute: ComputeRule,
    maps: Callable[[Call], MapRule],
    attributes: tuple[str, ...],
) -> Operator:
    return Operator(name, paper, 1, Kind.DATA, Structure.VIEW, levels, shape, compute, _same, maps, attributes=attributes)


def _scan(name: str, scan: Scan) -> Operator:
    """To abstract expressions it is a function of which nothing is known; which axis it runs along they do not tell apart."""
    return Operator(
        name,
        None,
        1,
        Kind.MULTILINEAR,
        Structure.SCAN,
        _KERNEL_BLOCK,
        _scanned_shape,
        lambda arith, call, xs: scanned(scan, arith, xs[0], call.dim(), call.shapes[0][call.dim()]),
        lambda algebra, call, xs: algebra.opaque(name, xs[0]),
        lambda call: part_maps(call.dim()),
        cost=1,
        attributes=("dim",),
    )


def _leaf_value(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    raise AssertionError(f"{call.op} is read by the evaluator, never computed")


def _constant_value(call: Call) -> Scalar:
    value = call.attributes.get("value")
    if not isinstance(value, Scalar):
        raise ShapeMismatch(f"constant: attribute 'value' must be an exact scalar, not {value!r}")
    return value


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _nibble(name: str, scalar: str, reference: Callable[[Array], Array]) -> Operator:
    """Half of the bits of whole numbers of 8 bits, in two's complement: exact in floating point."""
    return replace(opaque(name, scalar, reference, cost=4), whole=True)


_SIXTEENTHS = "(({0} * 0.0625f - 0.46875f + 12582912.0f) - 12582912.0f)"
"""How many times 16 goes into a whole number: the nearest to its 16th less 15/32, as from 2^23 on there are no others."""


def _rounding(dtype: DType) -> Operator:
    """Rounding to the numbers of a type, which stay in a wider one: to the nearest, ties to even, too large ones to infinity.

    Kernels compute in fp32, so what rounds to fp32 is no part of one.
    """
    name = ROUNDINGS[dtype]
    row = opaque(name, f"{name}({{0}})", functools.partial(round_to, dtype), cost=2)
    return row if dtype is not DType.FP32 else replace(row, levels=frozenset({Level.KERNEL}), scalar=None)


def _log(x: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(x))


def _infinity(x: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(x / np.zeros_like(x))


def _chosen(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition != 0, x, y)


def _cast(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """A type changes no value, but that a boolean is 1 for whatever is not 0."""
    return arith.opaque(TRUTH, xs[0]) if call.attributes["dtype"] is DType.BOOL else xs[0]


_ROWS = (
    # leaves and boundaries
    Operator(
        "input", None, 0, Kind.DATA, Structure.LEAF, frozenset({Level.KERNEL}), lambda call: call.integers("shape"),
        _leaf_value, _same, attributes=("name", "shape", "dtype"), optional=("constant",),
    ),
    Operator(
        "constant", None, 0, Kind.DATA, Structure.LEAF, _KERNEL_BLOCK_THREAD, lambda call: (),
        lambda arith, call, xs: arith.constant(_constant_value(call)),
        lambda algebra, call, xs: algebra.constant(str(_constant_value(call))), attributes=("value", "dtype"),
    ),
    Operator(
        "input_iterator", "InIter", 1, Kind.DATA, Structure.BOUNDARY, _BLOCK_THREAD, _iterator_shape,
        _leaf_value, _same, attributes=("operand", "imap", "fmap"),
    ),
    Operator(
        "output_saver", "OutSaver", 1, Kind.DATA, Structure.BOUNDARY, _BLOCK_THREAD, _saver_shape,
        _leaf_value, _same, attributes=("omap",),
    ),
    Operator(
        "accumulate", "Accum", 1, Kind.MULTILINEAR, Structure.BOUNDARY, _BLOCK_THREAD, _accumulate_shape,
        _accumulate, _accumulate_expression, _turns, 1, attributes=("combine",), optional=("dim",),
    ),
    Operator(
        "accumulate_rescaled", None, 2, Kind.EXPONENTIATION, Structure.BOUNDARY, frozenset({Level.BLOCK}), _rescaled_shape,
        _accumulate_rescaled, lambda algebra, call, xs: algebra.sum(call.scope.loop, xs[0]), _pointwise, 4,
    ),
    # contractions and reductions
    Operator(
        "matmul", "Matmul", 2, Kind.MULTILINEAR, Structure.CONTRACTION, _KERNEL_BLOCK_THREAD, _matmul_shape,
        lambda arith, call, xs: arith.matmul(xs[0], xs[1]), _matmul_expression, _multiplied(_MATMUL), 2, _MATMUL,
    ),
    Operator(
        "concat_matmul", "f(W, X, Y, Z)", 4, Kind.MULTILINEAR, Structure.CONTRACTION, _KERNEL_BLOCK, _concat_matmul_shape,
        lambda arith, call, xs: arith.add(arith.matmul(xs[0], xs[2]), arith.matmul(xs[1], xs[3])),
        _concat_matmul_expression, _multiplied(_CONCAT_MATMUL), 2, _CONCAT_MATMUL,
    ),
    Operator(
        "sum", "Sum", 1, Kind.MULTILINEAR, Structure.REDUCTION, _KERNEL_BLOCK_THREAD, _grouped_shape, _grouped("sum"),
        lambda algebra, call, xs: algebra.sum(call.integer("size"), xs[0]), _groups, 1, attributes=("dim", "size"),
    ),
    Operator(
        "max", None, 1, Kind.OPAQUE, Structure.REDUCTION, _KERNEL_BLOCK_THREAD, _grouped_shape, _grouped("max"),
        lambda algebra, call, xs: algebra.opaque("max", xs[0]), _groups, 1, attributes=("dim", "size"), optional=("least",),
    ),
    # scans
    *itertools.starmap(_scan, SCANS.items()),
    # elementwise, LAX
    _elementwise(
        "add", "EwAdd", 2, Kind.MULTILINEAR, lambda arith, call, xs: arith.add(xs[0], xs[1]),
        lambda algebra, call, xs: algebra.add(xs[0], xs[1]), "({0} + {1})", commutative=True,
    ),
    _elementwise(
        "sub", None, 2, Kind.MULTILINEAR, lambda arith, call, xs: arith.sub(xs[0], xs[1]),
        lambda algebra, call, xs: algebra.sub(xs[0], xs[1]), "({0} - {1})",
    ),
    _elementwise(
        "mul", "EwMul", 2, Kind.MULTILINEAR, lambda arith, call, xs: arith.mul(xs[0], xs[1]),
        lambda algebra, call, xs: algebra.mul(xs[0], xs[1]), "({0} * {1})", commutative=True,
    ),
    _elementwise(
        "div", "EwDiv", 2, Kind.DIVISION, lambda arith, call, xs: arith.div(xs[0], xs[1]),
        lambda algebra, call, xs: algebra.div(xs[0], xs[1]), "({0} / {1})", cost=4,
    ),
    _elementwise(
        "exp", "EwExp", 1, Kind.EXPONENTIATION, lambda arith, call, xs: arith.exp(xs[0]),
        lambda algebra, call, xs: algebra.exp(xs[0]), "exp({0})", cost=15,
    ),
    _elementwise(
        "square", "Sqr", 1, Kind.MULTILINEAR, lambda arith, call, xs: arith.mul(xs[0], xs[0]),
        lambda algebra, call, xs: algebra.mul(xs[0], xs[0]), "({0} * {0})",
    ),
    _elementwise(
        "sqrt", "Sqrt", 1, Kind.SQUARE_ROOT, lambda arith, call, xs: arith.sqrt(xs[0]),
        lambda algebra, call, xs: algebra.sqrt(xs[0]), "sqrt({0})", cost=6,
    ),
    # elementwise, opaque
    _elementwise(
        "maximum", None, 2, Kind.OPAQUE, _larger,
        lambda algebra, call, xs: algebra.opaque("maximum", *xs), "max({0}, {1})", commutative=True,
    ),
    opaque("silu", "({0} / (1.0f + exp(-{0})))", lambda x: x * _sigmoid(x), paper="SiLU"),
    opaque("sigmoid", "(1.0f / (1.0f + exp(-{0})))", _sigmoid),
    opaque("relu", "max({0}, 0.0f)", lambda x: np.maximum(x, 0.0), cost=1),
    opaque("gelu", "(0.5f * {0} * (1.0f + erf({0} * 0.70710678f)))", lambda x: 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))),
    opaque("tanh", "tanh({0})", np.tanh),
    opaque("log", "log({0})", _log),
    opaque("abs", "abs({0})", np.abs, cost=1),
    # elementwise, opaque: 0 or 1, and choices between two numbers; with NaN, no comparison holds
    opaque("less", "less({0}, {1})", np.less, cost=1, arity=2),
    opaque("equal", "equal({0}, {1})", np.equal, cost=1, arity=2),
    opaque(TRUTH, "truth({0})", lambda x: x != 0, cost=1),
    opaque("select", "select({0}, {1}, {2})", _chosen, cost=1, arity=3),
    opaque("infinity", "({0} / 0.0f)", _infinity, cost=1),
    *(opaque(f.name, f.scalar, f.reference, cost=f.cost, arity=f.arity) for f in ELEMENTARY),
    # elementwise, roundings that a program asks for
    _rounding(DType.FP16),
    _rounding(DType.BF16),
    _rounding(DType.FP32),
    # elementwise, of whole numbers of 8 bits: what `w >> 4` and `w & 15` are
    _nibble("high_nibble", _SIXTEENTHS, lambda x: np.floor(x / 16)),
    _nibble("low_nibble", f"({{0}} - 16.0f * {_SIXTEENTHS})", lambda x: x - 16 * np.floor(x / 16)),
    # data movement
    _view(
        "reshape", "Reshape", _KERNEL_BLOCK, _reshape_shape,
        lambda arith, call, xs: arith.view(xs[0], lambda x: x.reshape(call.integers("shape"))),
        lambda call: reshaped_maps, ("shape",),
    ),
    _view(
        "transpose", None, _KERNEL_BLOCK, _transpose_shape,
        lambda arith, call, xs: arith.view(xs[0], lambda x: x.transpose(call.integers("permutation"))),
        lambda call: transposed_maps(call.integers("permutation")), ("permutation",),
    ),
    _view(
        "repeat", "Repeat", _KERNEL_BLOCK, _repeat_shape, _repeat, lambda call: repeated_maps(call.dim()), ("dim", "times"),
    ),
    _view(
        "slice", None, _KERNEL, _slice_shape, _slice,
        lambda call: part_maps(call.dim()), ("dim", "start", "size", "step"),
    ),
    Operator(
        "concat", None, 1, Kind.DATA, Structure.VIEW, _KERNEL, _concat_shape, _concat,
        lambda algebra, call, xs: algebra.opaque("concat", *xs), lambda call: part_maps(call.dim()),
        attributes=("dim",), variadic=True,
    ),
    Operator(
        LOOKUP, None, 2, Kind.DATA, Structure.VIEW, _KERNEL, _lookup_shape, _lookup,
        lambda algebra, call, xs: algebra.opaque(LOOKUP, *xs), lambda call: lookup_maps(call.dim()),
        attributes=("dim", "negative"), indices=(1,),
    ),
    _view("cast", None, _KERNEL_BLOCK_THREAD, lambda call: call.shapes[0], _cast, _pointwise, ("dtype",)),
)  # fmt: skip

OPERATORS: dict[str, Operator] = {row.name: row for row in _ROWS}

GRAPH_DEFINED = "graph_defined"
"""The one operator without a row: its meaning is its body."""
