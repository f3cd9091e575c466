"""Expressions as kernel graphs again: one tensor for each polynomial, with a dimension for each axis that it depends on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mugraph.errors import UnsupportedOperator
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Level, Shape, Value
from mugraph.ir.scalar import Scalar
from mugraph.verifier.identities.algebra import logistic
from mugraph.verifier.identities.terms import (
    HALF,
    MOST_TERMS,
    UNIT,
    Axes,
    Axis,
    AxisAtom,
    AxisMonomial,
    Polynomial,
    Slots,
    distribute,
    monomial,
    polynomial,
    scale,
    single,
    subtract,
    term,
)

_MOST_GROWTH = 16
_SMALL = 1 << 22
"""A tensor may have so many elements, or _MOST_GROWTH times as many as the largest of the program."""
_MOST_POWER = 64
_MOST_OPENED = 4
"""Powers of sums with absolute values are written out up to this."""

Tensor = tuple[Value, tuple[Axis, ...]]
"""A value with one dimension for each of these axes, which are in order."""


@dataclass(slots=True)
class Writer:
    """Writes expressions over the inputs of a graph. Raises MugraphError where they cannot be computed in reasonable memory."""

    source: Graph
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder(Level.KERNEL))
    inputs: list[Value] = field(default_factory=list)
    known: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inputs = [self.builder.append(replace(node, inputs=())) for node in self.source.inputs()]

    def graph(self, elements: Sequence[tuple[Slots, Polynomial]]) -> Graph:
        """The graph whose outputs have these elements."""
        shapes = [tensor.shape for tensor in self.source.output_tensors]
        return self.builder.build([self._output(*element, shape) for element, shape in zip(elements, shapes, strict=True)])

    def _output(self, slots: Slots, x: Polynomial, shape: Shape) -> Value:
        order = [axis for slot in slots for axis in slot]
        value, axes = self.written(x)
        value = self._shaped(value, tuple(axis.size if axis in axes else 1 for axis in order))
        for dim, axis in enumerate(order):
            if axis not in axes:
                value = self._add("repeat", value, dim=dim, times=axis.size)
        return self._shaped(value, shape)

    # --- expressions ---

    def written(self, x: Polynomial) -> Tensor:
        """The tensor of a polynomial."""
        if x.key not in self.known:
            self.known[x.key] = self._sum_of_terms(x)
        return self.known[x.key]

    def _sum_of_terms(self, x: Polynomial) -> Tensor:
        if x.number is not None:
            return self._constant(Scalar(x.number))
        result: Tensor | None = None
        for only, coefficient in sorted(x.terms, key=lambda each: each[1] < 0):
            if result is None:
                result = self._multiple(coefficient, only)
            elif coefficient < 0:
                result = self._binary("sub", result, self._multiple(-coefficient, only))
            else:
                result = self._binary("add", result, self._multiple(coefficient, only))
        assert result is not None
        return result

    def _multiple(self, coefficient: Fraction, only: AxisMonomial) -> Tensor:
        only, roots = _without_numbers(only)
        number = Scalar(coefficient) * Scalar(Fraction(roots), root=True)
        if only == UNIT:
            return self._constant(number)
        product = self._product(only)
        return product if number == Scalar(Fraction(1)) else self._binary("mul", product, self._constant(number))

    def _product(self, only: AxisMonomial) -> Tensor:
        """A monomial: the product of what has positive exponents over that of what has negative ones."""
        if (found := self.known.get(only.key)) is not None:
            return found
        if (repeated := _repeated_bars(only)) is not None:
            return self.written(repeated)
        rest, over = self._logistic_factors(only)
        under: list[Tensor] = []
        for factor, power in rest.factors:
            self._append_power(over if power > 0 else under, factor, abs(power))
        self._append_exponentials(over, under, rest.exponent)
        result = self._all(over)
        divisor = self._all(under)
        if divisor is not None:
            result = self._binary("div", result or self._constant(Scalar(Fraction(1))), divisor)
        assert result is not None
        self.known[only.key] = result
        return result

    def _logistic_factors(self, only: AxisMonomial) -> tuple[AxisMonomial, list[Tensor]]:
        """The factors exp(j g) / (1 + exp(g))**k of a monomial as sigmoid(g)**j (1 - sigmoid(g))**(k - j), and what is left."""
        powers, exponent, found = dict(only.factors), only.exponent, list[Tensor]()
        for factor, power in only.factors:
            inner = logistic(factor) if power < 0 and power.denominator == 1 else None
            if inner is None or -power > _MOST_POWER:
                continue
            count = _multiple_of(exponent, inner)
            if 0 <= count <= -power:
                del powers[factor]
                exponent = subtract(exponent, scale(inner, count))
                logistic_function = self._unary("sigmoid", self.written(inner))
                found += [logistic_function] * count
                if count < -power:
                    complement = self._binary("sub", self._constant(Scalar(Fraction(1))), logistic_function)
                    found += [complement] * (int(-power) - count)
        return monomial(powers, exponent), found

    def _append_power(self, tensors: list[Tensor], factor: AxisAtom, power: Fraction) -> None:
        if power > _MOST_POWER:
            raise UnsupportedOperator("a high power")
        base = self._atom(factor)
        tensors.extend([base] * int(power))
        if power.denominator == 2:
            tensors.append(self._unary("sqrt", base))

    def _append_exponentials(self, over: list[Tensor], under: list[Tensor], exponent: Polynomial) -> None:
        """exp(x): what contains exponentials as powers of one that is the same for all its multiples, the rest at once.

        To the tests, exponentials of exponentials are a function of which they know no law.
        """
        nested = polynomial((m, c) for m, c in exponent.terms if _has_exponentials(term((Fraction(1), m))))
        plain = subtract(exponent, nested)
        if plain.terms:
            over.append(self._unary("exp", self.written(plain)))
        if not nested.terms:
            return
        unit = scale(nested, HALF / abs(nested.leading))
        count = 2 * nested.leading
        if count.denominator > 1 or abs(count) > _MOST_POWER:
            unit, count = nested, Fraction(1)
        elif count < 0:
            unit = scale(unit, -1)
        tensors = over if count > 0 else under
        tensors.extend([self._unary("exp", self.written(unit))] * int(abs(count)))

    def _all(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The product of tensors, smaller ones first."""
        result: Tensor | None = None
        for tensor in sorted(tensors, key=lambda each: _elements(each[1])):
            result = tensor if result is None else self._binary("mul", result, tensor)
        return result

    def _atom(self, x: AxisAtom) -> Tensor:
        if x.key in self.known:
            return self.known[x.key]
        # by name: kinds of atoms, each with its own way of being written
        if x.op == "load":
            result = self._load(x)
        elif x.op == "bracket":
            result = self.written(x.operand)
        elif x.op == "number":
            result = self._constant(Scalar(Fraction(x.number)))
        elif x.op == "sum":
            result = self._summed(x.operand, x.axes)
        elif x.op == "max":
            result = self._reduced("max", self.written(x.operand), x.axes)
        else:
            result = self._unary(x.op, self.written(x.operand))
        self.known[x.key] = result
        return result

    # --- reductions ---

    def _summed(self, x: Polynomial, reduced: Axes) -> Tensor:
        """A sum, as a matrix product where its terms are products of tensors with axes of their own."""
        only = single(x)
        if only is not None and only[0] == 1 and not only[1].exponent.terms and len(only[1].factors) > 1:
            sides = _sides(only[1], reduced)
            if sides is not None:
                left, right = (self._product(side) for side in sides)
                return self._contracted(left, right, reduced)
        return self._reduced("sum", self.written(x), reduced)

    def _contracted(self, left: Tensor, right: Tensor, reduced: Axes) -> Tensor:
        left, right = (
            self._reduced("sum", side, (reduced & {*side[1]}) - {*other[1]}) for side, other in ((left, right), (right, left))
        )
        shared = {*left[1]} & {*right[1]}
        inner, batch = sorted(shared & reduced), sorted(shared - reduced)
        rows, columns = ([axis for axis in side[1] if axis not in shared] for side in (left, right))
        if not (rows and columns and inner):
            return self._reduced("sum", self._binary("mul", left, right), frozenset(inner))
        sizes = tuple(axis.size for axis in batch)
        ours = self._shaped(self._ordered(left, [*batch, *rows, *inner]), (*sizes, _elements(rows), _elements(inner)))
        theirs = self._shaped(self._ordered(right, [*batch, *inner, *columns]), (*sizes, _elements(inner), _elements(columns)))
        order = [*batch, *rows, *columns]
        product = self._shaped(self._add("matmul", ours, theirs), tuple(axis.size for axis in order))
        return self._sorted(product, order)

    def _reduced(self, op: str, x: Tensor, reduced: Iterable[Axis]) -> Tensor:
        value, axes = x
        for axis in reduced:
            dim = axes.index(axis)
            value = self._add(op, value, dim=dim, size=axis.size)
            axes = (*axes[:dim], *axes[dim + 1 :])
            value = self._shaped(value, tuple(other.size for other in axes))
        return value, axes

    # --- nodes ---

    def _load(self, x: AxisAtom) -> Tensor:
        order = [axis for slot in x.slots for axis in slot]
        return self._sorted(self._shaped(self.inputs[x.number], tuple(axis.size for axis in order)), order)

    def _sorted(self, value: Value, axes: Sequence[Axis]) -> Tensor:
        order = sorted(axes)
        return self._ordered((value, tuple(axes)), order), tuple(order)

    def _ordered(self, x: Tensor, order: Sequence[Axis]) -> Value:
        permutation = tuple(x[1].index(axis) for axis in order)
        if permutation == tuple(range(len(permutation))):
            return x[0]
        return self._add("transpose", x[0], permutation=permutation)

    def _constant(self, number: Scalar) -> Tensor:
        key = f"constant {number}"
        if key not in self.known:
            dtype = next((node.output.dtype for node in self.source.inputs()), DType.FP32)
            self.known[key] = self.builder.constant(number, dtype), ()
        return self.known[key]

    def _unary(self, op: str, x: Tensor) -> Tensor:
        key = f"{op} {x}"
        if key not in self.known:
            self.known[key] = self._add(op, x[0]), x[1]
        return self.known[key]

    def _binary(self, op: str, x: Tensor, y: Tensor) -> Tensor:
        # by name: a square is written as one operator
        if op == "mul" and x == y:
            return self._unary("square", x)
        key = f"{op} {x} {y}"
        if key not in self.known:
            axes = tuple(sorted({*x[1], *y[1]}))
            self.known[key] = self._add(op, self._among(x, axes), self._among(y, axes)), axes
        return self.known[key]

    def _among(self, x: Tensor, axes: tuple[Axis, ...]) -> Value:
        """A tensor with dimensions of size 1 where it has none of these axes, but for the first dimensions."""
        first = axes.index(x[1][0]) if x[1] else len(axes)
        return self._shaped(x[0], tuple(axis.size if axis in x[1] else 1 for axis in axes[first:]))

    def _shaped(self, value: Value, shape: Shape) -> Value:
        return value if self.builder.tensor(value).shape == shape else self._add("reshape", value, shape=shape)

    def _add(self, op: str, *operands: Value, **attributes: int | Shape) -> Value:
        value = self.builder.add(op, *operands, **attributes)
        most = max((tensor.elements for node in self.source.nodes for tensor in node.outputs), default=1)
        if self.builder.tensor(value).elements > max(_MOST_GROWTH * most, _SMALL):
            raise UnsupportedOperator("a product of tensors that is too large to be computed at once")
        return value


def _without_numbers(only: AxisMonomial) -> tuple[AxisMonomial, int]:
    """A monomial without roots of numbers, and the product of what they are the roots of."""
    roots = math.prod(factor.number for factor, _ in only.factors if factor.op == "number")
    return monomial({f: p for f, p in only.factors if f.op != "number"}, only.exponent), roots


def _repeated_bars(only: AxisMonomial) -> Polynomial | None:
    """A product whose factors have the same |x| several times, distributed so that |x|**2 is seen to be x**2."""
    seen: set[AxisAtom] = set()
    for factor, power in only.factors:
        whole = factor.op == "bracket" and power.denominator == 1 and 1 <= power <= _MOST_OPENED
        # by name: bars of absolute values meet
        bars = {other for m, _ in factor.operand.terms for other, _ in m.factors if other.op == "abs"} if whole else {factor}
        if bars and whole and (power > 1 or not seen.isdisjoint(bars) or any(bar in dict(only.factors) for bar in bars)):
            rest = monomial({**dict(only.factors), factor: power - 1}, only.exponent)
            wider = distribute(term((Fraction(1), rest)), factor.operand)
            return wider if len(wider.terms) <= MOST_TERMS else None
        seen |= bars if whole else set()
    return None


def _multiple_of(exponent: Polynomial, inner: Polynomial) -> int:
    """How many times an exponent contains another, by the first term of the other; -1 for what is no whole number."""
    first, coefficient = inner.terms[0]
    count = dict(exponent.terms).get(first, Fraction(0)) / coefficient
    return int(count) if count.denominator == 1 else -1


def _has_exponentials(x: Polynomial) -> bool:
    """Whether the tests take exp(x) for a function without laws: exponentials reach it through rational operators alone."""
    return any(only.exponent.terms or any(_lets_through(*factor) for factor in only.factors) for only, _ in x.terms)


def _lets_through(factor: AxisAtom, power: Fraction) -> bool:
    # by name: kinds of atoms that are sums
    return factor.op in ("bracket", "sum") and power.denominator == 1 and _has_exponentials(factor.operand)


def _sides(only: AxisMonomial, reduced: Axes) -> tuple[AxisMonomial, AxisMonomial] | None:
    """The factors of a product in two groups, each of which has an axis of its own and both of which have those summed over."""
    factors = sorted(only.factors, key=lambda each: -_elements(each[0].free))
    ours, axes = [factors[0]], factors[0][0].free
    theirs: list[tuple[AxisAtom, Fraction]] = []
    for factor, power in factors[1:]:
        (ours if factor.free <= axes else theirs).append((factor, power))
    others = frozenset[Axis]().union(*(factor.free for factor, _ in theirs))
    if not (axes - others - reduced and others - axes - reduced and axes & others & reduced):
        return None
    return monomial(dict(ours)), monomial(dict(theirs))


def _elements(axes: Iterable[Axis]) -> int:
    return math.prod(axis.size for axis in axes)
