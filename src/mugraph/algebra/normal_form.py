"""Normal forms of abstract expressions: positive sums of monomials, interned as integers.

The equivalence axioms (paper, section 4.3, Table 2) know no unit, no zero and no cancellation, so a class of
expressions is a finite non-empty multiset of monomials. A monomial is `S_n * atoms * exp(G) * sqrt(Q) / D`,
where each part may be absent and G, Q, D are normal forms again. `docs/theory.md` proves that two expressions
are equal under the axioms exactly when their normal forms are, here: when their integers are equal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, NewType

from mugraph.errors import MugraphError

Expr = NewType("Expr", int)
Term = NewType("Term", int)
Terms = tuple[tuple[Term, int], ...]
OrderKey = tuple[object, ...]

ABSENT: Final = Expr(0)
"""No expression: zero beside an exponent, one beside a radicand or denominator. No constructor returns it."""
UNIT: Final = Term(0)
"""The monomial with every part absent, neutral for products; not an expression by itself."""


class ExpressionTooLarge(MugraphError):
    """An expression has too many monomials, altogether or for the time there is: raise `Algebra(max_terms=...)` or the deadline,
    or make a sum of it `opaque`."""


class Monomial(NamedTuple):
    """`sum(factor, .)` of atoms times `exp(exponent)` times `sqrt(radicand)`, over `denominator`."""

    factor: int = 1
    atoms: int = 1
    """Product of the primes that number the atoms: multisets of atoms multiply and divide as integers."""
    exponent: Expr = ABSENT
    radicand: Expr = ABSENT
    denominator: Expr = ABSENT

    @property
    def proper(self) -> bool:
        """Whether it stands for an expression: the axioms have no unit, so a bare `S_n` or `1/D` does not."""
        return self.atoms > 1 or self.exponent != ABSENT or self.radicand != ABSENT


class Atom(NamedTuple):
    """A `variable`, a `constant`, or an `opaque` function applied to normal forms."""

    kind: str
    name: str
    args: tuple[Expr, ...] = ()


class NormalForms:
    """The interning context: monomials and sums by number, with the semiring operations on them, memoised.

    The lists are indexed by `Expr` or `Term`; other modules of the package read them, only this one appends.
    """

    def __init__(self, max_terms: int) -> None:
        self.max_terms = max_terms
        self.deadline = math.inf
        """No product is begun or continued after it (of `time.perf_counter`)."""
        self.monomials: list[Monomial] = []
        self.terms: list[Terms] = [()]
        """Monomials and multiplicities of an expression, greatest monomial first."""
        self.totals: list[int] = [0]
        """Number of monomials of an expression counted with multiplicity; multiplicative under `multiply`."""
        self.sizes: list[int] = [0]
        self._term_sizes: list[int] = []
        self._order: list[OrderKey] = []
        self._expr_order: list[OrderKey] = [()]
        self._term_ids: dict[Monomial, Term] = {}
        self._expr_ids: dict[Terms, Expr] = {}
        self._products: dict[tuple[Term, Term], Term] = {}
        self._multiplied: dict[tuple[Expr, Expr], Expr] = {}
        self._scaled: dict[tuple[Term, Expr], Expr] = {}
        self._atoms: dict[Atom, int] = {}
        self._factored: dict[int, tuple[Atom, ...]] = {1: ()}
        self.intern_monomial(Monomial())

    # ---------------------------------------------------------------------------------------------- interning

    def intern_atom(self, atom: Atom) -> int:
        """The prime that numbers `atom`."""
        prime = self._atoms.get(atom)
        if prime is None:
            prime = max(self._atoms.values(), default=1) + 1
            while any(prime % smaller == 0 for smaller in self._atoms.values()):
                prime += 1
            self._atoms[atom] = prime
        return prime

    def known_atom(self, atom: Atom) -> int | None:
        """The prime of an atom that already occurs in some expression of this context."""
        return self._atoms.get(atom)

    def factor_atoms(self, code: int) -> tuple[Atom, ...]:
        """The atoms whose primes multiply to `code`, with multiplicity, oldest first."""
        atoms = self._factored.get(code)
        if atoms is None:
            found, rest = [], code
            for atom, prime in self._atoms.items():
                while rest % prime == 0:
                    found.append(atom)
                    rest //= prime
            atoms = self._factored[code] = tuple(found)
        return atoms

    def intern_monomial(self, monomial: Monomial) -> Term:
        """The number of a monomial, proper or not."""
        term = self._term_ids.get(monomial)
        if term is None:
            term = self._term_ids[monomial] = Term(len(self.monomials))
            self.monomials.append(monomial)
            self._order.append(self._monomial_order(monomial))
            self._term_sizes.append(self._monomial_size(monomial))
        return term

    def intern_sum(self, terms: Terms) -> Expr:
        """The number of a non-empty sum of proper monomials, greatest first; raises ExpressionTooLarge."""
        expr = self._expr_ids.get(terms)
        if expr is None:
            self._check_size(len(terms))
            expr = self._expr_ids[terms] = Expr(len(self.terms))
            self.terms.append(terms)
            self.totals.append(sum(count for _, count in terms))
            self.sizes.append(sum(count * self._term_sizes[term] for term, count in terms))
            self._expr_order.append(tuple((self._order[term], count) for term, count in terms))
        return expr

    def single(self, monomial: Monomial) -> Expr:
        """The expression consisting of one proper monomial."""
        return self.intern_sum(((self.intern_monomial(monomial), 1),))

    def _intern_counts(self, counts: Mapping[Term, int]) -> Expr:
        order = self._order
        return self.intern_sum(tuple(sorted(counts.items(), key=lambda item: order[item[0]], reverse=True)))

    def _check_size(self, monomials: int) -> None:
        if monomials > self.max_terms:
            raise ExpressionTooLarge(
                f"abstract expression with more than {self.max_terms} monomials; "
                "raise max_terms or abstract one of its sums with an opaque atom"
            )

    def _monomial_order(self, monomial: Monomial) -> OrderKey:
        """A key whose tuple order is total and compatible with products (theory.md, lemma 3)."""
        factor, atoms, exponent, radicand, denominator = monomial
        order = self._expr_order
        return (factor, atoms, order[exponent], order[radicand], order[denominator])

    def _monomial_size(self, monomial: Monomial) -> int:
        """Grows strictly whenever the monomial is multiplied by anything but the unit."""
        size = monomial.factor.bit_length() - 1 + self.sizes[monomial.denominator]
        for atom in self.factor_atoms(monomial.atoms):
            size += 1 + sum(self.sizes[arg] for arg in atom.args)
        for nested in (monomial.exponent, monomial.radicand):
            if nested != ABSENT:
                size += 1 + self.sizes[nested]
        return size

    # -------------------------------------------------------------------------------------------- arithmetic

    def product(self, left: Term, right: Term) -> Term:
        """Product of two monomials: exponents add, radicands and denominators multiply."""
        key = (left, right) if left <= right else (right, left)
        term = self._products.get(key)
        if term is None:
            a, b = self.monomials[left], self.monomials[right]
            term = self._products[key] = self.intern_monomial(
                Monomial(
                    a.factor * b.factor,
                    a.atoms * b.atoms,
                    self.add(a.exponent, b.exponent),
                    self.multiply(a.radicand, b.radicand),
                    self.multiply(a.denominator, b.denominator),
                )
            )
        return term

    def add(self, x: Expr, y: Expr) -> Expr:
        """Sum of two expressions; ABSENT counts as zero."""
        if x == ABSENT or y == ABSENT:
            return Expr(x + y)
        counts = dict(self.terms[x])
        for term, count in self.terms[y]:
            counts[term] = counts.get(term, 0) + count
        return self._intern_counts(counts)

    def multiply(self, x: Expr, y: Expr) -> Expr:
        """Product of two expressions; ABSENT counts as one. Stops as soon as the result is too large, or the time is over."""
        if x == ABSENT or y == ABSENT:
            return Expr(x + y)
        key = (x, y) if x <= y else (y, x)
        expr = self._multiplied.get(key)
        if expr is None:
            counts: dict[Term, int] = {}
            for left, left_count in self.terms[x]:
                for right, right_count in self.terms[y]:
                    term = self.product(left, right)
                    counts[term] = counts.get(term, 0) + left_count * right_count
                self._check_size(len(counts))
                if time.perf_counter() > self.deadline:
                    raise ExpressionTooLarge("an abstract expression was not multiplied out in time; give it more")
            expr = self._multiplied[key] = self._intern_counts(counts)
        return expr

    def scale(self, term: Term, x: Expr) -> Expr:
        """`x` with every monomial multiplied by `term`, which need not be proper."""
        key = (term, x)
        expr = self._scaled.get(key)
        if expr is None:
            scaled = tuple((self.product(term, other), count) for other, count in self.terms[x])
            expr = self._scaled[key] = self.intern_sum(scaled)
        return expr

    # ------------------------------------------------------------------------------------------------ levels

    def children(self, term: Term) -> tuple[Expr, ...]:
        """What one monomial holds: exponent, radicand, denominator, arguments of opaque atoms."""
        monomial = self.monomials[term]
        nested = [monomial.exponent, monomial.radicand, monomial.denominator]
        nested += [arg for atom in self.factor_atoms(monomial.atoms) for arg in atom.args]
        return tuple(expr for expr in nested if expr != ABSENT)

    def levels(self, exprs: Iterable[Expr]) -> tuple[Expr, ...]:
        """`exprs` and everything nested in them, each once: the places where a subexpression can occur."""
        found: dict[Expr, None] = {}
        waiting = list(exprs)
        while waiting:
            expr = waiting.pop()
            if expr not in found:
                found[expr] = None
                waiting += [child for term, _ in self.terms[expr] for child in self.children(term)]
        return tuple(found)
