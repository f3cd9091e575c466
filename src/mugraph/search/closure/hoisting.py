"""Factors taken out of functions, and ones put in: a program in the form in which its algebra reaches further.

The closure knows functions by nothing but their arguments: relu(3 x) has the tensor 3 x in it, and the 3 stays where it is. But
relu(c x) = c relu(x) where c is never negative, |c x| = |c| |x|, max(c x + d) = c max(x) + d for constants c > 0 and d, and
max(f(x)) = f(max(x)) where f increases. Written so, factors and summands stand outside, where products, sums and quotients may go
on with them: rows that were normalised before a relu are so after the product that follows it.

The axioms of expressions know no unit either: x s + x is x (s + 1) only where the bare x is written as x 1. That is done where
there is a multiple of it beside it.

Never negative are positive constants, roots, exponentials, and what is made of these by sums, products and quotients. The
verifier proves what is found against the program as it was written (docs/theory.md, "Functions with properties").
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from mugraph.ir.axes import AxisProgram, Term, pruned
from mugraph.ir.scalar import Scalar

_ONE, _MINUS_ONE = Scalar.of(1), Scalar.of(-1)
_INCREASING = frozenset({"relu", "sigmoid", "tanh", "exp", "log", "sqrt"})
_NEVER_NEGATIVE = frozenset({"relu", "abs", "sigmoid", "exp", "sqrt"})
_MOST_FACTORS = 8
_KEEP_SIGN = frozenset({"add", "mul", "div", "sum", "max", "contract"})


def hoisted(program: AxisProgram) -> AxisProgram:
    """The program with factors taken out of functions and ones put in; the same program where there is nothing to do."""
    hoisting = _Hoisting(program)
    outputs = tuple((hoisting.moved(term), slots) for term, slots in program.outputs)
    if not hoisting.changed:
        return program
    return pruned(replace(program, terms=tuple(hoisting.terms), outputs=outputs))


@dataclass(frozen=True, slots=True)
class _Product:
    """A term as `scale` times the product of the terms `over` divided by that of those `under`."""

    scale: Scalar = _ONE
    over: tuple[int, ...] = ()
    under: tuple[int, ...] = ()

    def times(self, other: _Product) -> _Product:
        return _Product(self.scale * other.scale, self.over + other.over, self.under + other.under)

    @property
    def inverse(self) -> _Product:
        return _Product(self.scale.reciprocal(), self.under, self.over)


@dataclass(slots=True)
# by name: every rule is a law of one function, as |c x| = |c| |x|, or the product that a factor is taken out of
class _Hoisting:
    program: AxisProgram
    terms: list[Term] = field(default_factory=list)
    known: dict[Term, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    products: dict[int, _Product] = field(default_factory=dict)
    signs: dict[int, bool] = field(default_factory=dict)
    changed: bool = False

    def moved(self, wanted: int) -> int:
        """The new term for one of the program."""
        for index, term in enumerate(self.program.terms):
            if index not in self.done:
                inputs = tuple(self.done[i] for i in term.inputs)
                self.done[index] = self.rewritten(replace(term, inputs=inputs))
        return self.done[wanted]

    def term(self, term: Term) -> int:
        """The number of a new term, each once."""
        if term not in self.known:
            self.known[term] = len(self.terms)
            self.terms.append(term)
        return self.known[term]

    def elementwise(self, op: str, *inputs: int) -> int:
        axes = frozenset[int]().union(*(self.terms[i].axes for i in inputs))
        return self.term(Term(op, inputs, axes))

    # rules -----------------------------------------------------------------------------------------------------------

    def rewritten(self, term: Term) -> int:
        """A term on new operands, with factors and summands outside if there are any."""
        if term.op in ("relu", "abs"):
            return self.homogeneous(term)
        if term.op in ("add", "sub"):
            return self.shared(term)
        return self.maximum(term) if term.op == "max" else self.term(term)

    def shared(self, term: Term) -> int:
        """x s + x = x s + x 1, in which x is a factor of both operands, as it is of x (s + 1)."""
        left, right = term.inputs
        if self.divides(left, right):
            return self.taken_out(self.elementwise(term.op, self.elementwise("mul", left, self.constant(_ONE)), right))
        if self.divides(right, left):
            return self.taken_out(self.elementwise(term.op, left, self.elementwise("mul", right, self.constant(_ONE))))
        return self.term(term)

    def divides(self, index: int, multiple: int) -> bool:
        """Whether a term without a constant factor, which others would be added to, is a factor of another one."""
        part, whole = self.factors(index), self.factors(multiple)
        if part.scale != _ONE or not part.over or any(self.terms[i].is_constant for i in self.terms[index].inputs):
            return False
        pairs = ((part.over, whole.over), (part.under, whole.under))
        return len(part.over) < len(whole.over) and not any(Counter(inner) - Counter(outer) for inner, outer in pairs)

    def homogeneous(self, term: Term) -> int:
        """relu(c x) = c relu(x) for c >= 0, and |c x| = |c| |x|."""
        product = self.factors(term.inputs[0])
        still, moving = self.parts(product.over), self.parts(product.under)
        sign = _ONE if product.scale.value > 0 or term.op == "abs" else _MINUS_ONE
        outside = _Product(_absolute(product.scale), still[True], moving[True])
        inside = _Product(sign, still[False], moving[False])
        if outside == _Product() or not (inside.over or inside.under):
            return self.term(term)
        self.changed = True
        return self.multiplied(outside, self.elementwise(term.op, self.written(inside)))

    def maximum(self, term: Term) -> int:
        """max(c x) = c max(x) for c >= 0, max(x + c) = max(x) + c, and max(f(x)) = f(max(x)) for increasing f."""
        product = self.factors(term.inputs[0])
        scale = _absolute(product.scale)
        if scale != _ONE and (product.over or product.under):
            inside = replace(product, scale=product.scale * scale.reciprocal())
            return self.taken_out(self.multiplied(_Product(scale), self.maximum(replace(term, inputs=(self.written(inside),)))))
        operand = self.terms[term.inputs[0]]
        if operand.op in _INCREASING:
            best = self.maximum(replace(term, inputs=operand.inputs))
            return self.taken_out(self.rewritten(replace(operand, inputs=(best,), axes=term.axes)))
        constant = next((i for i in operand.inputs[::-1] if self.terms[i].is_constant), None)
        if operand.op == "add" and constant is not None:
            (moving,) = (i for i in operand.inputs if i != constant)
            return self.taken_out(self.elementwise("add", self.maximum(replace(term, inputs=(moving,))), constant))
        if operand.op == "sub" and constant is not None and constant == operand.inputs[1]:
            return self.taken_out(self.elementwise("sub", self.maximum(replace(term, inputs=operand.inputs[:1])), constant))
        return self.term(term)

    def taken_out(self, index: int) -> int:
        """A term, as what the program is changed by."""
        self.changed = True
        return index

    # products --------------------------------------------------------------------------------------------------------

    def factors(self, index: int) -> _Product:
        """What a term is the product of; a contraction or sum is a multiple of one without the constants in it."""
        if index not in self.products:
            found = self.product(self.terms[index])
            few = found is not None and len(found.over) + len(found.under) <= _MOST_FACTORS
            self.products[index] = found if found is not None and few else _Product(over=(index,))
        return self.products[index]

    def product(self, term: Term) -> _Product | None:
        if term.is_constant and term.scalar is not None and term.scalar.value:
            return _Product(term.scalar)
        parts = [self.factors(i) for i in term.inputs] if term.op in ("mul", "div", "contract", "sum") else []
        if term.op in ("mul", "div"):
            return parts[0].times(parts[1] if term.op == "mul" else parts[1].inverse)
        scale = math.prod((part.scale for part in parts), start=_ONE)
        if scale == _ONE:
            return None
        inputs = tuple(self.written(replace(part, scale=_ONE)) for part in parts)
        return _Product(scale, (self.term(replace(term, inputs=inputs)),))

    def parts(self, factors: tuple[int, ...]) -> dict[bool, tuple[int, ...]]:
        """Factors that are never negative, and others."""
        return {known: tuple(i for i in factors if self.never_negative(i) is known) for known in (True, False)}

    def never_negative(self, index: int) -> bool:
        """Whether a term is at least 0 wherever it has a value."""
        if index not in self.signs:
            term = self.terms[index]
            positive = term.scalar is not None and term.scalar.value > 0
            known = term.op in _NEVER_NEGATIVE or (term.op in _KEEP_SIGN and all(map(self.never_negative, term.inputs)))
            self.signs[index] = positive or known
        return self.signs[index]

    def written(self, product: _Product) -> int:
        """The term of a product."""
        if not product.over:
            return self.multiplied(product, self.constant(_ONE))
        first, *others = product.over
        return self.multiplied(replace(product, over=tuple(others)), first)

    def multiplied(self, product: _Product, index: int) -> int:
        """A multiple of a term."""
        for op, factors in (("mul", product.over), ("div", product.under)):
            for factor in factors:
                index = self.elementwise(op, index, factor)
        return index if product.scale == _ONE else self.elementwise("mul", index, self.constant(product.scale))

    def constant(self, scalar: Scalar) -> int:
        return self.term(Term("constant", (), frozenset(), scalar=scalar))


def _absolute(scale: Scalar) -> Scalar:
    return scale if scale.value > 0 else scale * _MINUS_ONE
