"""Abstract expressions that remember along which axes an input is summed.

The paper's expressions forget what a sum runs over: for them `sum(i, x) * y` and `sum(i, x * y)` are one. That holds
only where `y` does not depend on what is summed, and where it does, one of the two cannot become the other. Here every
*occurrence* of an input carries its axes: those still free, those bound by a sum of the monomial it is a factor of, and those
bound further out. Sums bind what is free below them, so expressions are equal under the paper's axioms where these are
true of tensors (docs/theory.md, "Expressions with axes"). Sets of axes are bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mugraph.algebra.expressions import Algebra
from mugraph.algebra.normal_form import ABSENT, Atom, Expr, Monomial, Term
from mugraph.algebra.subexpression import Embeddings, Oracle


class Occurrence(NamedTuple):
    """An input as a factor: its `free` axes, those bound by sums of its own monomial, and those bound by sums around that."""

    name: str
    free: int
    inside: int = 0
    outside: int = 0

    def bound(self, inside: int, outside: int) -> Occurrence:
        """The occurrence with some of its free axes bound."""
        now, later = self.free & inside, self.free & outside
        return Occurrence(self.name, self.free & ~(now | later), self.inside | now, self.outside | later)


class AxisBindings(NamedTuple):
    """How sums to come bind the free axes of an expression on the way to a target.

    `inside` are the axes summed over while the expression is a factor of a monomial, `outside` those after it was nested in an
    exponent, root, denominator or function.
    """

    inside: int
    outside: int


class IndexedAlgebra(Algebra):
    """Abstract expressions over inputs with axes; a sum over `n` elements binds the axes whose primes divide `n`."""

    def __init__(self, primes: Sequence[int]) -> None:
        """`primes[i]` names sums over axis i."""
        super().__init__()
        self._primes = primes
        self._axes = {1: 0}
        self._occurrences: dict[Atom, Occurrence] = {}
        self._free: dict[Expr, int] = {}
        self._bound: dict[tuple[Expr, int, int], Expr] = {}

    def variable(self, name: str, free: int = 0) -> Expr:
        """An input tensor; `free` are those of its axes that sums of the program may run over."""
        return self._atom(self._atom_of(Occurrence(name, free)))

    def sum(self, n: int, x: Expr) -> Expr:
        """Reduction over the axes named by `n`, which `x` need not have."""
        return super().sum(n, self.bind(x, self.axes_of(n), 0))

    # by name: constructors of abstract expressions (the paper's Table 1), which rows build theirs with
    def apply(self, op: str, args: tuple[Expr, ...], n: int = 1) -> Expr:
        """An operator of `Oracle.compose` on `args`; `n` names the axes that a sum or an opaque function runs over."""
        if op == "sum":
            return self.sum(n, args[0])
        if op.startswith("opaque:"):
            axes = self.axes_of(n)
            return self.opaque(op.removeprefix("opaque:"), *(self.bind(arg, 0, axes) for arg in args))
        result: Expr = getattr(self, op)(*args)
        return result

    def axes_of(self, n: int) -> int:
        """The axes whose primes divide `n`."""
        known = self._axes.get(n)
        if known is None:
            known = self._axes[n] = sum(1 << axis for axis, prime in enumerate(self._primes) if n % prime == 0)
        return known

    def factor_of(self, axes: int) -> int:
        """The number that names a sum over `axes`."""
        return math.prod(prime for axis, prime in enumerate(self._primes) if axes >> axis & 1)

    def occurrence(self, atom: Atom) -> Occurrence:
        """The input that a variable stands for, and its axes."""
        return self._occurrences[atom]

    def free(self, e: Expr) -> int:
        """The axes along which an expression varies, among those of its inputs."""
        known = self._free.get(e)
        if known is None:
            known = 0
            for term, _ in self.forms.terms[e]:
                atoms = self.forms.factor_atoms(self.forms.monomials[term].atoms)
                for axes in (self._occurrences[atom].free for atom in atoms if atom.kind == "variable"):
                    known |= axes
                for part in self.forms.children(term):
                    known |= self.free(part)
            self._free[e] = known
        return known

    def in_values(self, monomial: Monomial) -> bool:
        """Whether the value of some term has such a monomial: what sums of its own bind its factors, it has itself."""
        return monomial.proper and not self.bound_inside(monomial) & ~self.axes_of(monomial.factor)

    def bound_inside(self, monomial: Monomial) -> int:
        """The axes along which factors of a monomial are bound by its own sums."""
        axes = 0
        for atom in self.forms.factor_atoms(monomial.atoms):
            axes |= self._occurrences[atom].inside if atom.kind == "variable" else 0
        return axes

    def bind(self, e: Expr, inside: int, outside: int) -> Expr:
        """The expression with free axes bound: `inside` by a sum over it, `outside` by one over what it is nested in."""
        inside, outside = inside & self.free(e), outside & self.free(e)
        if not inside | outside:
            return e
        key = (e, inside, outside)
        known = self._bound.get(key)
        if known is None:
            known = ABSENT
            for term, count in self.forms.terms[e]:
                bound = self.forms.intern_monomial(self._bind(self.forms.monomials[term], inside, outside))
                known = self.forms.add(known, self.forms.intern_sum(((bound, count),)))
            self._bound[key] = known
        return known

    def _bind(self, monomial: Monomial, inside: int, outside: int) -> Monomial:
        """A monomial with free axes bound; all that is nested in it is bound from outside."""
        around = inside | outside

        def nested(part: Expr) -> Expr:
            return part if part == ABSENT else self.bind(part, 0, around)

        def factor(atom: Atom) -> Atom:
            if atom.kind == "variable":
                return self._atom_of(self._occurrences[atom].bound(inside, outside))
            return atom._replace(args=tuple(map(nested, atom.args)))

        atoms = math.prod(self.forms.intern_atom(factor(atom)) for atom in self.forms.factor_atoms(monomial.atoms))
        parts = map(nested, (monomial.exponent, monomial.radicand, monomial.denominator))
        return Monomial(monomial.factor, atoms, *parts)

    def _atom_of(self, occurrence: Occurrence) -> Atom:
        name, *axes = occurrence
        atom = Atom("variable", name + (f"[{','.join(map(str, axes))}]" if any(axes) else ""))
        self._occurrences[atom] = occurrence
        return atom


class IndexedOracle:
    """Decides which expressions with axes can still become part of a target, as `Oracle` does for those without.

    An expression is a subexpression if, with its free axes bound in some way by sums to come, it has an embedding.
    """

    def __init__(self, algebra: IndexedAlgebra, targets: Sequence[Expr]) -> None:
        self._algebra = algebra
        self._bound = Oracle(algebra, targets)
        self.levels = self._bound.levels
        self._placements: dict[Expr, frozenset[AxisBindings]] = {}
        self._open: dict[Term, int] = {}
        self._images: dict[tuple[Expr, AxisBindings], tuple[Expr, Expr]] = {}
        self._composed: dict[tuple[str, tuple[Expr, ...], int], Expr | None] = {}

    def admits(self, e: Expr) -> bool:
        """Whether `e` can become part of any target."""
        return bool(self.placements(e))

    def placements(self, e: Expr) -> frozenset[AxisBindings]:
        """All ways to bind the free axes of `e` with which it has an embedding in a target."""
        known = self._placements.get(e)
        if known is None:
            found = (p for axes in _subsets(self._algebra.free(e)) for p in _split(axes) if self._embeds(self._image(e, p), p))
            known = self._placements[e] = frozenset(found)
        return known

    def embedded(self, e: Expr, placement: AxisBindings) -> tuple[Expr, Embeddings]:
        """The expression as one of its placements binds it, and the multipliers and levels with which that is in a target."""
        image = self._image(e, placement)
        return image, self._bound.embeddings(image)

    def compose(self, op: str, args: tuple[Expr, ...], n: int = 1) -> Expr | None:
        """The result of an operator of `Oracle.compose` on `args` if it is admitted, else None.

        `n` names the axes that a `sum` or `opaque:max` runs over.
        """
        key = (op, args, n)
        try:
            return self._composed[key]
        except KeyError:
            result = self._composed[key] = self._compose(op, args, n)
            return result

    def _compose(self, op: str, args: tuple[Expr, ...], n: int) -> Expr | None:
        """Placements of a compound are placements of its operands that agree on the axes they share."""
        axes = self._algebra.axes_of(n)
        found = {p for p in self._candidates(op, args, axes) if self._embeds(self._placed(op, args, axes, p), p)}
        if not found:
            return None
        result = self._algebra.apply(op, args, n)
        self._placements[result] = frozenset(found)
        return result

    # by name: constructors of abstract expressions (the paper's Table 1), which rows build theirs with
    def _candidates(self, op: str, args: tuple[Expr, ...], axes: int) -> Iterator[AxisBindings]:
        """Placements whose restriction to every operand is one of it, for a compound that binds `axes` itself."""
        if op == "sum":
            free = axes & self._algebra.free(args[0])
            return (AxisBindings(p.inside & ~axes, p.outside) for p in self.placements(args[0]) if p.inside & free == free)
        if op in ("add", "sub", "mul"):
            return self._joint(args[0], args[1], self.placements(args[1]))
        if op == "div":
            return self._joint(args[0], args[1], self._nested_placements(args[1]))
        choices = itertools.product(*(self._nested_outside(arg, axes) for arg in args))
        free_of = [self._algebra.free(arg) & ~axes for arg in args]
        unions = {union for chosen in choices if (union := _union(chosen, free_of)) is not None}
        return (p for union in unions for p in _split(union))

    def _joint(self, x: Expr, y: Expr, of_y: Sequence[AxisBindings] | frozenset[AxisBindings]) -> Iterator[AxisBindings]:
        """Placements of x and y that agree where both vary."""
        shared = self._algebra.free(x) & self._algebra.free(y)
        for p, q in itertools.product(self.placements(x), of_y):
            if not ((p.inside ^ q.inside) | (p.outside ^ q.outside)) & shared:
                yield AxisBindings(p.inside | q.inside, p.outside | q.outside)

    def _nested_placements(self, e: Expr) -> list[AxisBindings]:
        """Placements of what has `e` nested in it: of the axes bound around `e`, any may be bound beside it."""
        return [p for outside in self._nested_outside(e, 0) for p in _split(outside)]

    def _nested_outside(self, e: Expr, axes: int) -> set[int]:
        """What may be bound around a nested `e` whose `axes` are bound by what nests it."""
        must = axes & self._algebra.free(e)
        return {p.outside & ~axes for p in self.placements(e) if not p.inside and p.outside & must == must}

    # by name: constructors of abstract expressions (the paper's Table 1), which rows build theirs with
    def _placed(self, op: str, args: tuple[Expr, ...], axes: int, placement: AxisBindings) -> Expr | None:
        """The image of a compound, which binds `axes` itself, if it has an embedding without axes to mind."""
        inside, outside = placement
        compose = self._bound.compose
        if op == "sum":
            return self._image(args[0], AxisBindings(inside | axes, outside))
        if op in ("add", "sub"):
            return compose(op, (self._image(args[0], placement), self._image(args[1], placement)))
        if op == "mul":
            return compose(op, (self._image(args[0], placement), self._factor(args[1], placement)))
        nested = AxisBindings(0, axes | inside | outside)
        if op == "div":
            return compose(op, (self._image(args[0], placement), self._image(args[1], nested)))
        compound = compose(op, tuple(self._image(arg, nested) for arg in args))
        return None if compound is None else compose("sum", (compound,), self._algebra.factor_of(inside))

    def _embeds(self, image: Expr | None, placement: AxisBindings) -> bool:
        """Whether an image has an embedding whose multiplier sums what it binds, if the placement's own sums do not."""
        if image is None:
            return False
        return any(self._unsummed(multiplier) & ~placement.inside == 0 for multiplier, _ in self._bound.embeddings(image))

    def _unsummed(self, multiplier: Term) -> int:
        """The axes that factors of a monomial are bound along without a sum over them in it."""
        known = self._open.get(multiplier)
        if known is None:
            monomial = self._algebra.forms.monomials[multiplier]
            bound = self._algebra.bound_inside(monomial)
            known = self._open[multiplier] = bound & ~self._algebra.axes_of(monomial.factor)
        return known

    def _image(self, e: Expr, placement: AxisBindings) -> Expr:
        """The expression with its free axes bound, times the factor of the sums that do so inside."""
        return self._bound_forms(e, placement)[0]

    def _factor(self, e: Expr, placement: AxisBindings) -> Expr:
        """The expression with its free axes bound, as a factor beside one that the sums' own factor went to."""
        return self._bound_forms(e, placement)[1]

    def _bound_forms(self, e: Expr, placement: AxisBindings) -> tuple[Expr, Expr]:
        key = (e, placement)
        known = self._images.get(key)
        if known is None:
            bound = self._algebra.bind(e, *placement)
            known = self._images[key] = self._algebra.sum(self._algebra.factor_of(placement.inside), bound), bound
        return known


def _subsets(axes: int) -> Iterator[int]:
    """All sets of some axes."""
    subset = axes
    while subset:
        yield subset
        subset = (subset - 1) & axes
    yield 0


def _split(axes: int) -> Iterator[AxisBindings]:
    """All ways to bind each axis inside or outside."""
    return (AxisBindings(inside, axes & ~inside) for inside in _subsets(axes))


def _union(chosen: Sequence[int], free: Sequence[int]) -> int | None:
    """All axes bound around the operands of a function, if they agree on those they share; None if not."""
    union = 0
    for outside in chosen:
        union |= outside
    return union if all(union & axes == outside for outside, axes in zip(chosen, free, strict=True)) else None
