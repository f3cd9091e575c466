"""Kernel graphs as expressions: what an element of a tensor is, in terms of the axes that its index is made of."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mugraph.errors import UnsupportedOperator
from mugraph.ir.graph import Graph, Node, Shape, Value
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import is_reduction, operator
from mugraph.ir.scalar import Scalar
from mugraph.verifier.identities.algebra import IdentityAlgebra
from mugraph.verifier.identities.rules import root_of_number
from mugraph.verifier.identities.terms import (
    Axis,
    Polynomial,
    Slots,
    add,
    atom,
    constant,
    power_of,
    scale,
    subtract,
)

_MOST_SPLITS = 64

Origin = tuple[int, int, int]
"""What an axis was made for: a dimension of an output (0, dimension, size) or an operator that reduces (2, node, number)."""


class _Split(Exception):
    """A reshape cuts an axis: the part `place` of what has this origin is to be two axes, of `outer` and the other elements."""

    def __init__(self, origin: Origin, place: int, outer: int) -> None:
        super().__init__(origin)
        self.origin, self.place, self.outer = origin, place, outer


@dataclass(slots=True)
class Reader:
    """Reads the values of a flat kernel graph. Raises UnsupportedOperator, and ZeroDivisionError where one is divided by 0."""

    graph: Graph
    algebra: IdentityAlgebra
    splits: dict[Origin, tuple[int, ...]] = field(default_factory=dict)
    origins: dict[Axis, tuple[Origin, int]] = field(default_factory=dict)
    known: dict[tuple[Value, Slots], Polynomial] = field(default_factory=dict)

    def outputs(self) -> list[tuple[Slots, Polynomial]]:
        """For each output, the axes of its dimensions, and an element as an expression of these."""
        return self.values(self.graph.outputs)

    def values(self, wanted: Sequence[Value]) -> list[tuple[Slots, Polynomial]]:
        """The same of any values."""
        for _ in range(_MOST_SPLITS):
            try:
                return [self._element(value) for value in wanted]
            except _Split as split:
                self._refine(split)
        raise UnsupportedOperator("reshapes that cut dimensions into too many parts")

    def _refine(self, split: _Split) -> None:
        sizes = self.splits.get(split.origin) or (self._whole(split.origin),)
        whole = sizes[split.place]
        parts = (split.outer, whole // split.outer)
        self.splits[split.origin] = (*sizes[: split.place], *parts, *sizes[split.place + 1 :])
        self.known.clear()
        self.origins.clear()

    def _whole(self, origin: Origin) -> int:
        return next(axis.size for axis, (found, _) in self.origins.items() if found == origin)

    def _element(self, value: Value) -> tuple[Slots, Polynomial]:
        shape = self.graph.tensor(value).shape
        slots = tuple(self._axes((0, dim, size), size) for dim, size in enumerate(shape))
        return slots, self.at(value, slots)

    def _axes(self, origin: Origin, size: int) -> tuple[Axis, ...]:
        """The axes for what has this origin."""
        if size == 1:
            return ()
        sizes = self.splits.get(origin, (size,))
        kind, major, number = origin
        axes = tuple(Axis(kind, major, (number << 16) + place, part) for place, part in enumerate(sizes))
        self.origins.update((axis, (origin, place)) for place, axis in enumerate(axes))
        return axes

    def at(self, value: Value, slots: Slots) -> Polynomial:
        """The element of a value at an index, given as axes for each dimension."""
        if (value, slots) not in self.known:
            node = self.graph.nodes[value.node]
            self.known[value, slots] = self._computed(value, node, slots)
        return self.known[value, slots]

    def _computed(self, value: Value, node: Node, slots: Slots) -> Polynomial:
        if node.body is not None:
            raise UnsupportedOperator("a graph-defined operator; bring it into one tile first")
        row = operator(node.op)
        if node.is_input:
            number = [index for index, other in enumerate(self.graph.nodes) if other.is_input].index(value.node)
            return power_of(atom("load", number=number, slots=slots))
        if node.is_constant:
            return _constant(node["value"])
        if row.elementwise:
            return self._elementwise(node, [self.at(operand, self._aligned(operand, slots)) for operand in node.inputs])
        if row.products:
            return functools.reduce(add, (self._contracted(value, node, slots, *pair) for pair in row.products))
        if is_reduction(node.op) and node.get("least") is None:
            dim = node.integer("dim")
            reduced = self._axes((2, value.node, 0), node.integer("size"))
            inside = self.at(node.inputs[0], (*slots[:dim], slots[dim] + reduced, *slots[dim + 1 :]))
            return self.algebra.apply(node.op, inside, frozenset(reduced)) if reduced else inside
        if row.structure is Structure.VIEW:
            return self.at(node.inputs[0], self._moved(node, self.graph.tensor(node.inputs[0]).shape, slots))
        raise UnsupportedOperator(f"operator {node.op!r}")

    def _aligned(self, operand: Value, slots: Slots) -> Slots:
        """The index of an operand that is broadcast."""
        shape = self.graph.tensor(operand).shape
        last = slots[len(slots) - len(shape) :]
        return tuple(() if size == 1 else axes for size, axes in zip(shape, last, strict=True))

    def _elementwise(self, node: Node, operands: list[Polynomial]) -> Polynomial:
        # by name: rational operators are the arithmetic of polynomials itself
        match node.op:
            case "add":
                return add(*operands)
            case "sub":
                return subtract(*operands)
            case "mul":
                return self.algebra.multiply(*operands)
            case "div":
                return self.algebra.divide(*operands)
            case "square":
                return self.algebra.multiply(operands[0], operands[0])
            case "maximum":
                x, y = operands
                return add(y, self.algebra.apply("relu", subtract(x, y)))
        if len(operands) != 1:
            raise UnsupportedOperator(f"operator {node.op!r}")
        return self.algebra.apply(node.op, operands[0])

    def _contracted(self, value: Value, node: Node, slots: Slots, left: int, right: int) -> Polynomial:
        inner = self._axes((2, value.node, left), self.graph.tensor(node.inputs[left]).shape[-1])
        x, y = node.inputs[left], node.inputs[right]
        row, column = (*slots[:-1], inner), (*slots[:-2], inner, slots[-1])
        product = self.algebra.multiply(self.at(x, self._aligned(x, row)), self.at(y, self._aligned(y, column)))
        return self.algebra.apply("sum", product, frozenset(inner)) if inner else product

    def _moved(self, node: Node, shape: Shape, slots: Slots) -> Slots:
        """The index of the operand of a data movement."""
        # by name: each moves an index in its own way
        match node.op:
            case "cast":
                return slots
            case "transpose":
                places = node.integers("permutation")
                return tuple(slots[places.index(dim)] for dim in range(len(places)))
            case "reshape":
                return self._regrouped([axis for slot in slots for axis in slot], shape)
            case "repeat":
                dim = node.integer("dim")
                _, kept = self._regrouped(list(slots[dim]), (node.integer("times"), shape[dim]))
                return (*slots[:dim], kept, *slots[dim + 1 :])
        raise UnsupportedOperator(f"operator {node.op!r}")

    def _regrouped(self, axes: list[Axis], shape: Shape) -> Slots:
        """Axes, slowest first, as the dimensions of a shape. Raises _Split where a dimension ends inside of an axis."""
        rest = list(axes)
        slots = []
        for size in shape:
            slot: list[Axis] = []
            while math.prod(axis.size for axis in slot) < size:
                wanted, axis = size // math.prod(axis.size for axis in slot), rest.pop(0)
                if wanted % axis.size == 0:
                    slot.append(axis)
                elif axis.size % wanted == 0 and axis in self.origins:
                    raise _Split(*self.origins[axis], wanted)
                else:
                    raise UnsupportedOperator("a reshape that regroups elements across dimensions")
            slots.append(tuple(slot))
        return tuple(slots)


def _constant(value: object) -> Polynomial:
    assert isinstance(value, Scalar)
    if not value.root:
        return constant(value.value)
    return scale(root_of_number(abs(value.value)), Fraction(1 if value.value > 0 else -1))
