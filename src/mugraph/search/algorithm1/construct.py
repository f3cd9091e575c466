"""ConstructOp of Algorithm 1: the expression check and the shape check of one operator, and the rank order.

Whether an operator may be added depends only on what its operands are to the search: shape, abstract expression
and phase. Such types are interned, so that every check is made once and then is a look-up (the paper caches its
solver's answers for the same reason).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import NamedTuple

from mugraph.algebra import Expr
from mugraph.algebra.expressions import COMMUTATIVE
from mugraph.errors import ShapeMismatch
from mugraph.ir.graph import Attributes, AttributeValue, Level, Shape, attributes_of
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import Call, Operator, Scope
from mugraph.search.closure.tiers import Make, Tier, TierAlgebra


class TensorPhase(IntEnum):
    """Where a tensor of a block graph stands: a constant, an operand no iteration cuts, in the for-loop, or after it."""

    CONSTANT = 0
    INVARIANT = 1
    LOOP = 2
    AFTER = 3


class TensorType(NamedTuple):
    """What a tensor is to the search."""

    shape: Shape
    expr: Expr
    phase: TensorPhase


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

    type: OperatorType
    op: str
    attributes: Attributes
    inputs: tuple[int, ...]
    result: TypeId

    @property
    def rank(self) -> Rank:
        """Its place in canonical order."""
        return tuple(sorted(self.inputs, reverse=True)), self.type, self.inputs


class Made(NamedTuple):
    """An operator on tensors of some types, and the type of tensor it makes."""

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
        number = self._ids.setdefault(tensor, len(self.known))
        if number == len(self.known):
            self.known.append(tensor)
        return number


class ExpressionCheck:
    """The expression check of operators without attributes, whatever sizes, level and for-loop.

    `make` constructs abstract expressions, None for what is pruned.
    """

    def __init__(self, make: Make, rows: Sequence[Operator]) -> None:
        self.make = make
        self.rows = tuple(enumerate(rows))
        self._plain: defaultdict[int, list[tuple[int, _Unsummed]]] = defaultdict(list)
        for number, row in self.rows:
            if not row.attributes:
                self._plain[row.arity].append((number, _Unsummed(row, make)))
        self._made: dict[tuple[Expr, ...], Mapping[int, Expr]] = {}
        self._asked: defaultdict[Expr, set[Expr]] = defaultdict(set)
        self._meeting: defaultdict[Expr, set[Expr]] = defaultdict(set)

    def made(self, exprs: tuple[Expr, ...]) -> Mapping[int, Expr]:
        """By the number of the row what rows make of these expressions, but for the sum that some end with.

        What is summed up is a part of its sum: an operator that is refused without its sum is refused with it.
        """
        found = self._made.get(exprs)
        if found is None:
            answers = ((number, unsummed(exprs)) for number, unsummed in self._plain[len(exprs)])
            found = self._made[exprs] = {number: expr for number, expr in answers if expr is not None} or _NOTHING
        return found

    def meeting(self, expr: Expr, others: AbstractSet[Expr]) -> set[Expr]:
        """Which of `others` an operator may read beside `expr`, in either order, as far as expressions tell."""
        asked, meeting = self._asked[expr], self._meeting[expr]
        for other in others - asked:
            if self.made((expr, other)) or self.made((other, expr)):
                meeting.add(other)
                self._meeting[other].add(expr)
            self._asked[other].add(expr)
            asked.add(other)
        return meeting & others


class Rules:
    """Both checks of operators at `level` in a for-loop of `loop` iterations, whatever graph they are added to."""

    def __init__(self, expressions: ExpressionCheck, level: Level, loop: int = 1) -> None:
        self.expressions, self._scope = expressions, Scope(loop=loop)
        self._algebra = TierAlgebra(Tier.FULL, frozenset(), expressions.make)
        self._rows = tuple(
            (number, row)
            for number, row in expressions.rows
            if level in row.levels and (loop > 1 or row.structure is not Structure.BOUNDARY)
        )
        self.arities = sorted({row.arity for _, row in self._rows})
        self._with_attributes = {
            arity: [(number, row) for number, row in self._rows if row.attributes and row.arity == arity]
            for arity in self.arities
        }
        self._plain_results: dict[tuple[Shape, ...], tuple[tuple[int, Operator, Shape], ...]] = {}

    def results(self, operands: Sequence[TensorType]) -> Iterator[tuple[OperatorType, Operator, Attributes, TensorType]]:
        """What rows make of operands of these types, and with which attributes, where both checks are passed."""
        shapes = tuple([tensor.shape for tensor in operands])
        plain = self.plain(shapes)
        if plain:
            yield from self._of_plain_rows(plain, operands)
        for number, row in self._with_attributes[len(operands)]:
            for attributes, phase in _choices(row, operands):
                call = Call(row.name, shapes, attributes, self._scope)
                shape = _shape(row, call)
                expr = None if shape is None else row.express(self._algebra, call, [tensor.expr for tensor in operands])
                if shape is not None and expr is not None:
                    fixed = attributes_of(attributes)
                    yield (number, str(fixed)), row, fixed, TensorType(shape, expr, phase)

    def plain(self, shapes: tuple[Shape, ...]) -> tuple[tuple[int, Operator, Shape], ...]:
        """The rows without attributes that take operands of these shapes, and the shapes they make."""
        found = self._plain_results.get(shapes)
        if found is None:
            rows = [(number, row) for number, row in self._rows if row.arity == len(shapes) and not row.attributes]
            made = ((number, row, _shape(row, Call(row.name, shapes, {}, self._scope))) for number, row in rows)
            found = self._plain_results[shapes] = tuple((number, row, shape) for number, row, shape in made if shape is not None)
        return found

    def _of_plain_rows(
        self, plain: Sequence[tuple[int, Operator, Shape]], operands: Sequence[TensorType]
    ) -> Iterator[tuple[OperatorType, Operator, Attributes, TensorType]]:
        exprs = tuple([tensor.expr for tensor in operands])
        possible = self.expressions.made(exprs)
        phase = _joint_phase(tuple([tensor.phase for tensor in operands])) if possible else None
        if phase is None:
            return
        for number, row, shape in plain:
            expr: Expr | None = possible.get(number)
            if expr is not None and not row.elementwise:
                call = Call(row.name, tuple(tensor.shape for tensor in operands), {}, self._scope)
                expr = row.express(self._algebra, call, exprs)
            if expr is not None:
                yield (number, "()"), row, (), TensorType(shape, expr, phase)


class Constructor:
    """Which operators may be added to prefixes of graphs, by the rules for their level and for-loop."""

    def __init__(self, types: Types, rules: Rules) -> None:
        self.types, self.rules = types, rules
        self._made: dict[tuple[TypeId, ...], tuple[Made, ...]] = {}

    @property
    def largest_arity(self) -> int:
        """How many tensors one operator can read at most."""
        return self.rules.arities[-1]

    def made(self, operands: tuple[TypeId, ...]) -> tuple[Made, ...]:
        """Every operator that passes both checks on operands of these types; the checks are made once."""
        found = self._made.get(operands)
        if found is None:
            known, intern = self.types.known, self.types.intern
            results = self.rules.results([known[operand] for operand in operands])
            found = self._made[operands] = tuple([Made(kind, row, fixed, intern(made)) for kind, row, fixed, made in results])
        return found

    def reading(self, types: Sequence[TypeId]) -> Iterator[Application]:
        """Every operator on the tensors of a prefix that reads the newest and passes both checks, in order of rank."""
        for lists in _operands(len(types) - 1, tuple(self.rules.arities)):
            found = [
                (made.type, inputs, made)
                for inputs, ascending in lists
                for made in self.made(tuple([types[i] for i in inputs]))
                if ascending or not made.row.commutative
            ]
            found.sort(key=_type_and_inputs)
            for operator_type, inputs, made in found:
                yield Application(operator_type, made.row.name, made.attributes, inputs, made.result)

    def extensions(self, types: Sequence[TypeId], last: Rank) -> Iterator[Application]:
        """Every operator on the tensors of a prefix that ranks above `last` and passes both checks, in order of rank."""
        newest = last[0][0] if last[0] else 0
        for count in range(newest + 1, len(types) + 1):
            yield from (application for application in self.reading(types[:count]) if application.rank > last)


_Operands = tuple[tuple[int, ...], bool]


@functools.cache
def _operands(newest: int, arities: tuple[int, ...]) -> tuple[tuple[_Operands, ...], ...]:
    """Lists of operands that include `newest` and nothing newer, and whether they ascend, in the order of rank.

    Those that have the same operands newest first, which types of operators tell apart, are together.
    """
    groups: dict[tuple[int, ...], list[_Operands]] = {}
    for arity in arities:
        for inputs in itertools.product(range(newest + 1), repeat=arity):
            if newest in inputs:
                groups.setdefault(tuple(sorted(inputs, reverse=True)), []).append((inputs, list(inputs) == sorted(inputs)))
    return tuple(tuple(groups[newest_first]) for newest_first in sorted(groups))


def _type_and_inputs(found: tuple[OperatorType, tuple[int, ...], Made]) -> tuple[OperatorType, tuple[int, ...]]:
    return found[:2]


# --- single checks -----------------------------------------------------------------------------------------------------


def _shape(row: Operator, call: Call) -> Shape | None:
    """What the shape rule of a row gives; None where it refuses."""
    try:
        return row.shape(call)
    except ShapeMismatch:
        return None


_NOTHING: Mapping[int, Expr] = {}


class _Unsummed:
    """The expression that a row without attributes makes, but for the sum that it ends with; None if it is refused for any sizes.

    What is summed up is a part of its sum, so an operator that is refused without its sum is refused with it. Of a row that does
    anything with a sum, nothing is known without sizes.
    """

    def __init__(self, row: Operator, checked: Make) -> None:
        self._row, self._checked = row, checked
        self._call = Call(row.name, ((1, 1),) * row.arity, {})
        self._algebra = TierAlgebra(Tier.FULL, frozenset(), self._make)
        self._summed = self._uses_sum = False

    def __call__(self, exprs: tuple[Expr, ...]) -> Expr | None:
        self._summed = self._uses_sum = False
        made: Expr | None = self._row.express(self._algebra, self._call, exprs)
        return exprs[0] if self._uses_sum else made

    def _make(self, op: str, args: tuple[Expr, ...], n: int) -> Expr | None:
        if self._summed:
            self._uses_sum = True
        elif op != "sum":  # by name: a constructor of abstract expressions, which are no operators
            ordered = tuple(sorted(args)) if op in COMMUTATIVE else args  # so that each answer is remembered once
            return self._checked(op, ordered, n)
        self._summed = True
        return args[0]


# --- attributes and phases of operators --------------------------------------------------------------------------------

_Attributes = dict[str, AttributeValue]


def _choices(row: Operator, operands: Sequence[TensorType]) -> Iterator[tuple[_Attributes, TensorPhase]]:
    """The attributes an operator may carry on these operands, and the phase of its result; none where phases clash."""
    if row.structure is Structure.BOUNDARY:  # of the rows that are enumerated, accumulators alone
        yield from ((attributes, TensorPhase.AFTER) for attributes in _accumulators(operands[0]))
        return
    phase = _joint_phase(tuple(tensor.phase for tensor in operands))
    if phase is not None and row.name in _ATTRIBUTES:
        yield from ((attributes, phase) for attributes in _ATTRIBUTES[row.name](operands[0].shape))


@functools.cache
def _joint_phase(of_operands: tuple[TensorPhase, ...]) -> TensorPhase | None:
    """In the loop or after it, never both (Definition 2.1, clause 3); operators on constants alone are left out."""
    phases = set(of_operands) - {TensorPhase.CONSTANT}
    if TensorPhase.AFTER in phases:
        return TensorPhase.AFTER if len(phases) == 1 else None
    return TensorPhase.LOOP if phases else None


def _accumulators(operand: TensorType) -> Iterator[_Attributes]:
    """Sums, concatenations along each dimension, and the maximum that carries an operand past the loop unchanged."""
    if operand.phase not in (TensorPhase.INVARIANT, TensorPhase.LOOP):
        return
    yield {"combine": "sum"}
    for dim in range(len(operand.shape)):
        yield {"combine": "concat", "dim": dim}
    if operand.phase is TensorPhase.INVARIANT:
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
    joined = [(*shape[:dim], math.prod(shape[dim : dim + 2]), *shape[dim + 2 :]) for dim in range(len(shape) - 1)]
    column = [(*shape, 1)] if shape and shape[-1] > 1 else []
    return ({"shape": regrouped} for regrouped in dict.fromkeys((*joined, *column)))


_ATTRIBUTES: dict[str, Callable[[Shape], Iterator[_Attributes]]] = {
    "sum": _whole_dimensions,
    "max": _whole_dimensions,
    "transpose": _permutations,
    "repeat": _repetitions,
    "reshape": _regroupings,
}
"""The attributes that are tried for operators that carry some; others with attributes are not enumerated."""
