"""Abstract expressions (paper, section 4.3): constructors that return interned normal forms.

An expression abstracts the tensor on an edge of a muGraph by forgetting which element of an input it reads.
Every constructor returns the number of the normal form of its result, so `==` on the numbers decides
equivalence under the axioms A_eq, and a number is only meaningful to the `Algebra` that made it.
"""

from __future__ import annotations

from mugraph.algebra.division import Quotients
from mugraph.algebra.normal_form import ABSENT, Atom, Expr, Monomial, NormalForms, Term

COMMUTATIVE = frozenset({"add", "mul"})
"""Constructors whose operands may change places."""


class Algebra:
    """The interning context of abstract expressions.

    `max_terms` bounds the distinct monomials of any expression built here, nested ones included; beyond it
    constructors raise ExpressionTooLarge.
    """

    def __init__(self, max_terms: int = 4096) -> None:
        self.forms = NormalForms(max_terms)
        self.division = Quotients(self.forms, self.in_values)
        self.minus_one = self.constant("-1")

    def in_values(self, monomial: Monomial) -> bool:
        """Whether the value of some term has such a monomial: the axioms have no unit, so a bare `S_n` or `1/D` is in none."""
        return monomial.proper

    def variable(self, name: str) -> Expr:
        """An input tensor of the program."""
        return self._atom(Atom("variable", name))

    def constant(self, text: str) -> Expr:
        """A scalar such as `1/4096` or `sqrt(1/128)`: a symbol without arithmetic of its own."""
        return self._atom(Atom("constant", text))

    def opaque(self, name: str, *args: Expr) -> Expr:
        """An uninterpreted function such as silu; the order of the arguments matters."""
        return self._atom(Atom("opaque", name, args))

    def add(self, x: Expr, y: Expr) -> Expr:
        """x + y."""
        return self.forms.add(x, y)

    def sub(self, x: Expr, y: Expr) -> Expr:
        """x + (-1) * y; no cancellation follows, `sub(x, x)` is a sum of two monomials."""
        return self.forms.add(x, self.forms.multiply(self.minus_one, y))

    def mul(self, x: Expr, y: Expr) -> Expr:
        """x * y, distributed over the sums."""
        return self.forms.multiply(x, y)

    def div(self, x: Expr, y: Expr) -> Expr:
        """x / y; never cancels."""
        return self.forms.scale(self.reciprocal(y), x)

    def exp(self, x: Expr) -> Expr:
        """exp(x); exp(x) * exp(y) is exp(x + y)."""
        return self.forms.single(Monomial(exponent=x))

    def sqrt(self, x: Expr) -> Expr:
        """sqrt(x); sqrt(x) * sqrt(y) is sqrt(x * y), and never simplifies to x."""
        return self.forms.single(Monomial(radicand=x))

    def sum(self, n: int, x: Expr) -> Expr:
        """Reduction over `n` elements; raises ValueError unless n >= 1.

        `sum(1, x)` is x, but `sum(2, x)` is not x + x: reduced elements differ, added ones are the same.
        """
        return self.forms.scale(self.reduction(n), x)

    def reduction(self, n: int) -> Term:
        """The improper monomial that `sum(n, .)` multiplies with."""
        if n < 1:
            raise ValueError(f"a reduction needs a positive number of elements, got {n}")
        return self.forms.intern_monomial(Monomial(factor=n))

    def reciprocal(self, x: Expr) -> Term:
        """The improper monomial that `div(., x)` multiplies with."""
        return self.forms.intern_monomial(Monomial(denominator=x))

    def size(self, e: Expr) -> int:
        """A positive measure; every constructor but `sum(1, .)` exceeds the size of each of its arguments."""
        return self.forms.sizes[e]

    def _atom(self, atom: Atom) -> Expr:
        return self.forms.single(Monomial(atoms=self.forms.intern_atom(atom)))

    # -------------------------------------------------------------------------------------------------- text

    def format(self, e: Expr) -> str:
        """Readable text such as `sum(64, x*w)/(sqrt(sum(64, x*x)))`; oldest atoms first."""
        parts = []
        for term, count in reversed(self.forms.terms[e]):
            multiplicity = f"{count} " if count > 1 else ""
            parts.append(multiplicity + self._format_term(term))
        return " + ".join(parts)

    def _format_term(self, term: Term) -> str:
        monomial = self.forms.monomials[term]
        factors = [self._format_atom(atom) for atom in self.forms.factor_atoms(monomial.atoms)]
        if monomial.exponent != ABSENT:
            factors.append(f"exp({self.format(monomial.exponent)})")
        if monomial.radicand != ABSENT:
            factors.append(f"sqrt({self.format(monomial.radicand)})")
        text = "*".join(factors)
        if monomial.factor > 1:
            text = f"sum({monomial.factor}, {text})"
        if monomial.denominator != ABSENT:
            text = f"{text}/({self.format(monomial.denominator)})"
        return text

    def _format_atom(self, atom: Atom) -> str:
        if atom.kind == "opaque":
            return f"{atom.name}({', '.join(self.format(arg) for arg in atom.args)})"
        # by name: a kind of atoms, which is no operator
        return f"({atom.name})" if atom.kind == "constant" and not atom.name.isalnum() else atom.name
