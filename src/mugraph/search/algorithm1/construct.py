"""ConstructOp of Algorithm 1: the expression check and the shape check of one operator, and the rank order.

Whether an operator may be added depends only on what its operands are to the search: shape, abstract expression
and phase. Such types are interned, so that every check is made once and then is a look-up (the paper caches its
solver's answers for the same reason).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from mugraph.algebra import Expr
from mugraph.errors import ShapeMismatch
from mugraph.ir.graph import Attributes, AttributeValue, Level, Shape, attributes_of
from mugraph.ir.ops import Call, Operator, Scope
from mugraph.search.closure.tiers import TierAlgebra


class Phase(IntEnum):
    """Where a tensor of a block graph stands: a constant, an operand no iteration cuts, in the for-loop, or after it."""

    CONSTANT = 0
    INVARIANT = 1
    LOOP = 2
    AFTER = 3


class TensorType(NamedTuple):
    """What a tensor is to the search."""

    shape: Shape
    expr: Expr
    phase: Phase


TypeId = int

OperatorType = tuple[int, str]
"""A row of the table, by number, and its attributes: the paper's operator type t."""

Rank = tuple[tuple[int, ...], OperatorType, tuple[int, ...]]
"""The place of an operator in canonical order: its operands newest first, its type, its operands in order.

The paper compares input indices before types. Comparing the newest operand first makes the order one in which every
graph has a canonical form: an operator that reads the last one added always ranks above all before it.
"""

LOWEST: Rank = ((), (-1, ""), ())


class Application(NamedTuple):
    """An operator on earlier tensors of a prefix, and the type of tensor it makes."""

    rank: Rank
    op: str
    attributes: Attributes
    inputs: tuple[int, ...]
    result: TypeId


class _Result(NamedTuple):
    type: OperatorType
    row: Operator
    attributes: Attributes
    result: TypeId


class Types:
    """Interned tensor types; their numbers are what the search computes with."""

    def __init__(self) -> None:
        self.known: list[TensorType] = []
        self._ids: dict[TensorType, TypeId] = {}

    def intern(self, tensor: TensorType) -> TypeId:
        """The number of a type."""
        if tensor not in self._ids:
            self._ids[tensor] = len(self.known)
            self.known.append(tensor)
        return self._ids[tensor]


class Constructor:
    """Which operators may be added to prefixes of graphs at `level` with a for-loop of `loop` iterations."""

    def __init__(self, types: Types, algebra: TierAlgebra, rows: Sequence[Operator], level: Level, loop: int = 1) -> None:
        self.types, self._algebra, self._scope = types, algebra, Scope(loop=loop)
        self._rows = [row for row in rows if level in row.levels and (loop > 1 or row.name != "accumulate")]
        self._arities = sorted({row.arity for row in self._rows})
        self._results: dict[tuple[TypeId, ...], tuple[_Result, ...]] = {}

    @property
    def largest_arity(self) -> int:
        """How many tensors one operator can read at most."""
        return self._arities[-1]

    def extensions(self, types: Sequence[TypeId], last: Rank) -> Iterator[Application]:
        """Every operator on the tensors of a prefix that ranks above `last` and passes both checks."""
        floor, results = last[0], self._results
        for newest in range(floor[0] if floor else 0, len(types)):
            for arity in self._arities:
                for inputs, newest_first, ascending in _operands(newest, arity):
                    if newest_first < floor:
                        continue
                    operands = tuple([types[i] for i in inputs])
                    admitted = results.get(operands)
                    for found in self._admit(operands) if admitted is None else admitted:
                        rank = (newest_first, found.type, inputs)
                        if rank > last and (ascending or not found.row.commutative):
                            yield Application(rank, found.row.name, found.attributes, inputs, found.result)

    def _admit(self, operands: tuple[TypeId, ...]) -> tuple[_Result, ...]:
        """Make the checks for operands of these types once."""
        found = self._results[operands] = tuple(self._construct([self.types.known[i] for i in operands]))
        return found

    def _construct(self, operands: Sequence[TensorType]) -> Iterator[_Result]:
        shapes = tuple(tensor.shape for tensor in operands)
        for number, row in enumerate(self._rows):
            if row.arity != len(operands):
                continue
            for attributes, phase in _choices(row, operands, self._scope.loop):
                call = Call(row.name, shapes, attributes, self._scope)
                try:
                    shape = row.shape(call)
                except ShapeMismatch:
                    continue
                expr = row.express(self._algebra, call, [tensor.expr for tensor in operands])
                if expr is not None:
                    fixed = attributes_of(attributes)
                    yield _Result((number, str(fixed)), row, fixed, self.types.intern(TensorType(shape, expr, phase)))


@functools.cache
def _operands(newest: int, arity: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...], bool], ...]:
    """Lists of operands that include `newest` and nothing newer; each also newest first, and whether it ascends."""
    lists = (inputs for inputs in itertools.product(range(newest + 1), repeat=arity) if newest in inputs)
    return tuple((inputs, tuple(sorted(inputs, reverse=True)), list(inputs) == sorted(inputs)) for inputs in lists)


# --- attributes and phases of operators --------------------------------------------------------------------------------

_Attributes = dict[str, AttributeValue]


def _choices(row: Operator, operands: Sequence[TensorType], loop: int) -> Iterator[tuple[_Attributes, Phase]]:
    """The attributes an operator may carry on these operands, and the phase of its result; none where phases clash."""
    if row.name == "accumulate":
        yield from ((attributes, Phase.AFTER) for attributes in _accumulators(operands[0]))
        return
    phase = _joint_phase(operands)
    if phase is None:
        return
    if not row.attributes:
        yield {}, phase
    elif row.name in _ATTRIBUTES:
        yield from ((attributes, phase) for attributes in _ATTRIBUTES[row.name](operands[0].shape))


def _joint_phase(operands: Sequence[TensorType]) -> Phase | None:
    """In the loop or after it, never both (Definition 2.1, clause 3); operators on constants alone are left out."""
    phases = {tensor.phase for tensor in operands} - {Phase.CONSTANT}
    if Phase.AFTER in phases:
        return Phase.AFTER if len(phases) == 1 else None
    return Phase.LOOP if phases else None


def _accumulators(operand: TensorType) -> Iterator[_Attributes]:
    """Sums, concatenations along each dimension, and the maximum that carries an operand past the loop unchanged."""
    if operand.phase not in (Phase.INVARIANT, Phase.LOOP):
        return
    yield {"combine": "sum"}
    for dim in range(len(operand.shape)):
        yield {"combine": "concat", "dim": dim}
    if operand.phase is Phase.INVARIANT:
        yield {"combine": "max"}


def _whole_dimensions(shape: Shape) -> Iterator[_Attributes]:
    return ({"dim": dim, "size": size} for dim, size in enumerate(shape) if size > 1)


def _permutations(shape: Shape) -> Iterator[_Attributes]:
    return ({"permutation": order} for order in itertools.islice(itertools.permutations(range(len(shape))), 1, None))


def _repetitions(shape: Shape) -> Iterator[_Attributes]:
    """A dimension of size 1 repeated to the size of another one."""
    units = [dim for dim, size in enumerate(shape) if size == 1]
    return ({"dim": dim, "times": times} for dim in units for times in sorted(set(shape) - {1}))


def _regroupings(shape: Shape) -> Iterator[_Attributes]:
    """Two neighbouring dimensions as one, and a last dimension of size 1 added (so that a vector is a column)."""
    for dim in range(len(shape) - 1):
        yield {"shape": (*shape[:dim], math.prod(shape[dim : dim + 2]), *shape[dim + 2 :])}
    if shape and shape[-1] > 1:
        yield {"shape": (*shape, 1)}


_ATTRIBUTES: dict[str, Callable[[Shape], Iterator[_Attributes]]] = {
    "sum": _whole_dimensions,
    "max": _whole_dimensions,
    "transpose": _permutations,
    "repeat": _repetitions,
    "reshape": _regroupings,
}
"""The attributes that are tried for operators that carry some; others with attributes are not enumerated."""
