"""The operator table: one row per operator, and everything the rest of mugraph knows about it (paper, Table 1).

A row gives the levels an operator may stand at, its shape rule (`shape_rules`), its structure and index maps, its meaning under
any `Arithmetic` and its abstract expression (`meanings`), its kind for the verifier's theorem, its cost, and how C-like targets
print it. Adding an operator is adding a row (see docs/adding-an-operator.md).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mugraph.errors import UnsupportedOperator
from mugraph.ir.arithmetic import Array
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
from mugraph.ir.lookups import lookup_maps
from mugraph.ir.ops import meanings, shape_rules
from mugraph.ir.ops.meanings import TRUTH
from mugraph.ir.ops.row import AbstractRule, Call, ComputeRule, Kind, Operator, Scope, ShapeRule
from mugraph.ir.scans import SCANS, Scan, scanned

_KERNEL_BLOCK_THREAD = frozenset(Level)
_KERNEL = frozenset({Level.KERNEL})
_KERNEL_BLOCK = frozenset({Level.KERNEL, Level.BLOCK})
_BLOCK_THREAD = frozenset({Level.BLOCK, Level.THREAD})


ROUNDINGS = {dtype: f"round_{dtype}" for dtype in (DType.FP16, DType.BF16, DType.FP32)}
"""The operators that round to the numbers of a type."""


# --- index maps ------------------------------------------------------------------------------------------------------


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


# --- makers of rows --------------------------------------------------------------------------------------------------


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
        shape_rules.broadcast,
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
        shape_rules.broadcast,
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
    return Operator(name, paper, 1, Kind.DATA, Structure.VIEW, levels, shape, compute, meanings.same, maps, attributes=attributes)


def _scan(name: str, scan: Scan) -> Operator:
    """To abstract expressions it is a function of which nothing is known; which axis it runs along they do not tell apart."""
    return Operator(
        name,
        None,
        1,
        Kind.MULTILINEAR,
        Structure.SCAN,
        _KERNEL_BLOCK,
        shape_rules.scan,
        lambda arith, call, xs: scanned(scan, arith, xs[0], call.dim(), call.shapes[0][call.dim()]),
        lambda algebra, call, xs: algebra.opaque(name, xs[0]),
        lambda call: part_maps(call.dim()),
        cost=1,
        attributes=("dim",),
    )


def _nibble(name: str, scalar: str, reference: Callable[[Array], Array]) -> Operator:
    """Half of the bits of whole numbers of 8 bits, in two's complement: exact in floating point."""
    return replace(opaque(name, scalar, reference, cost=4), whole=True)


_SIXTEENTHS = "(({0} * 0.0625f - 0.46875f + 12582912.0f) - 12582912.0f)"
"""How many times 16 goes into a whole number: the nearest to its 16th less 15/32, as from 2^23 on there are no others."""


def _picking(row: Operator, *operands: int) -> Operator:
    """The row of an operator that gives an element of one of these operands, its negative, or 0."""
    return replace(row, picks=operands)


def _rounding(dtype: DType) -> Operator:
    """Rounding to the numbers of a type, which stay in a wider one: to the nearest, ties to even, too large ones to infinity.

    Kernels compute in fp32, so what rounds to fp32 is no part of one.
    """
    name = ROUNDINGS[dtype]
    row = opaque(name, f"{name}({{0}})", functools.partial(round_to, dtype), cost=2)
    return row if dtype is not DType.FP32 else replace(row, levels=frozenset({Level.KERNEL}), scalar=None)


# --- rows ------------------------------------------------------------------------------------------------------------

_ROWS = (
    # leaves and boundaries
    Operator(
        "input", None, 0, Kind.DATA, Structure.LEAF, frozenset({Level.KERNEL}), lambda call: call.integers("shape"),
        meanings.read_only, meanings.same, attributes=("name", "shape", "dtype"), optional=("constant",),
    ),
    Operator(
        "constant", None, 0, Kind.DATA, Structure.LEAF, _KERNEL_BLOCK_THREAD, lambda call: (),
        lambda arith, call, xs: arith.constant(meanings.constant_value(call)),
        lambda algebra, call, xs: algebra.constant(str(meanings.constant_value(call))), attributes=("value", "dtype"),
    ),
    Operator(
        "input_iterator", "InIter", 1, Kind.DATA, Structure.BOUNDARY, _BLOCK_THREAD, shape_rules.input_iterator,
        meanings.read_only, meanings.same, attributes=("operand", "imap", "fmap"),
    ),
    Operator(
        "output_saver", "OutSaver", 1, Kind.DATA, Structure.BOUNDARY, _BLOCK_THREAD, shape_rules.output_saver,
        meanings.read_only, meanings.same, attributes=("omap",),
    ),
    Operator(
        "accumulate", "Accum", 1, Kind.MULTILINEAR, Structure.BOUNDARY, _BLOCK_THREAD, shape_rules.accumulate,
        meanings.accumulate, meanings.accumulate_expression, _turns, 1, attributes=("combine",), optional=("dim",),
    ),
    Operator(
        "accumulate_rescaled", None, 2, Kind.EXPONENTIATION, Structure.BOUNDARY, frozenset({Level.BLOCK}),
        shape_rules.accumulate_rescaled, meanings.accumulate_rescaled,
        lambda algebra, call, xs: algebra.sum(call.scope.loop, xs[0]), _pointwise, 4,
    ),
    # contractions and reductions
    Operator(
        "matmul", "Matmul", 2, Kind.MULTILINEAR, Structure.CONTRACTION, _KERNEL_BLOCK_THREAD, shape_rules.matmul,
        lambda arith, call, xs: arith.matmul(xs[0], xs[1]), meanings.matmul_expression, _multiplied(_MATMUL), 2, _MATMUL,
    ),
    Operator(
        "concat_matmul", "f(W, X, Y, Z)", 4, Kind.MULTILINEAR, Structure.CONTRACTION, _KERNEL_BLOCK, shape_rules.concat_matmul,
        lambda arith, call, xs: arith.add(arith.matmul(xs[0], xs[2]), arith.matmul(xs[1], xs[3])),
        meanings.concat_matmul_expression, _multiplied(_CONCAT_MATMUL), 2, _CONCAT_MATMUL,
    ),
    Operator(
        "sum", "Sum", 1, Kind.MULTILINEAR, Structure.REDUCTION, _KERNEL_BLOCK_THREAD, shape_rules.grouped,
        meanings.grouped("sum"), lambda algebra, call, xs: algebra.sum(call.integer("size"), xs[0]), _groups, 1,
        attributes=("dim", "size"),
    ),
    Operator(
        "max", None, 1, Kind.OPAQUE, Structure.REDUCTION, _KERNEL_BLOCK_THREAD, shape_rules.grouped, meanings.grouped("max"),
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
    _picking(
        _elementwise(
            "maximum", None, 2, Kind.OPAQUE, meanings.larger,
            lambda algebra, call, xs: algebra.opaque("maximum", *xs), "max({0}, {1})", commutative=True,
        ), 0, 1,
    ),
    opaque("silu", "({0} / (1.0f + exp(-{0})))", lambda x: x * meanings.sigmoid(x), paper="SiLU"),
    opaque("sigmoid", "(1.0f / (1.0f + exp(-{0})))", meanings.sigmoid),
    _picking(opaque("relu", "max(0.0f, {0})", lambda x: np.maximum(x, 0.0), cost=1), 0),
    opaque("gelu", "(0.5f * {0} * (1.0f + erf({0} * 0.70710678f)))", lambda x: 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))),
    opaque("tanh", "tanh({0})", np.tanh),
    opaque("log", "log({0})", meanings.log),
    _picking(opaque("abs", "abs({0})", np.abs, cost=1), 0),
    # elementwise, opaque: 0 or 1, and choices between two numbers; with NaN, no comparison holds
    opaque("less", "less({0}, {1})", np.less, cost=1, arity=2),
    opaque("equal", "equal({0}, {1})", np.equal, cost=1, arity=2),
    opaque(TRUTH, "truth({0})", lambda x: x != 0, cost=1),
    _picking(opaque("select", "select({0}, {1}, {2})", meanings.chosen, cost=1, arity=3), 1, 2),
    opaque("infinity", "({0} / 0.0f)", meanings.infinity, cost=1),
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
        "reshape", "Reshape", _KERNEL_BLOCK, shape_rules.reshape,
        lambda arith, call, xs: arith.view(xs[0], lambda x: x.reshape(call.integers("shape"))),
        lambda call: reshaped_maps, ("shape",),
    ),
    _view(
        "transpose", None, _KERNEL_BLOCK, shape_rules.transpose,
        lambda arith, call, xs: arith.view(xs[0], lambda x: x.transpose(call.integers("permutation"))),
        lambda call: transposed_maps(call.integers("permutation")), ("permutation",),
    ),
    _view(
        "repeat", "Repeat", _KERNEL_BLOCK, shape_rules.repeat, meanings.repeat,
        lambda call: repeated_maps(call.dim()), ("dim", "times"),
    ),
    _view(
        "slice", None, _KERNEL, shape_rules.slice_, meanings.slice_,
        lambda call: part_maps(call.dim()), ("dim", "start", "size", "step"),
    ),
    Operator(
        "concat", None, 1, Kind.DATA, Structure.VIEW, _KERNEL, shape_rules.concat, meanings.concat,
        lambda algebra, call, xs: algebra.opaque("concat", *xs), lambda call: part_maps(call.dim()),
        attributes=("dim",), variadic=True,
    ),
    Operator(
        LOOKUP, None, 2, Kind.DATA, Structure.VIEW, _KERNEL, shape_rules.lookup, meanings.lookup,
        lambda algebra, call, xs: algebra.opaque(LOOKUP, *xs), lambda call: lookup_maps(call.dim()),
        attributes=("dim", "negative"), indices=(1,),
    ),
    _view("cast", None, _KERNEL_BLOCK_THREAD, lambda call: call.shapes[0], meanings.cast, _pointwise, ("dtype",)),
)  # fmt: skip

OPERATORS: dict[str, Operator] = {row.name: row for row in _ROWS}

GRAPH_DEFINED = "graph_defined"
"""The one operator without a row: its meaning is its body."""


# --- what is asked of the table --------------------------------------------------------------------------------------


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
            total += flops(call, node.output.shape)
    return total


def flops(call: Call, out: Shape) -> int:
    """Floating-point operations of a call with a result of shape `out`; of an accumulator, in one iteration."""
    row = operator(call.op)
    if row.definition is not None:
        return flops_of(row.definition(call))
    if not row.cost or row.maps is None:
        return 0
    if row.structure in (Structure.ELEMENTWISE, Structure.SCAN):
        return row.cost * math.prod(out)
    if row.products:
        return row.cost * sum(math.prod(out) * call.shapes[left][-1] for left, _ in row.products)
    return row.cost * row.maps(call)(call.shapes, out).points


def apply_call(op: str, inputs: Sequence[Tensor], attributes: Mapping[str, AttributeValue], scope: Scope = Scope()) -> Call:
    """The call of `op` on tensors: what the rules of a row are given."""
    return Call(op, tuple(tensor.shape for tensor in inputs), attributes, scope)
