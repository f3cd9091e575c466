"""The subexpression test of Algorithm 1: can this intermediate result still lead to the wanted outputs?

The paper asks an SMT solver whether A_eq and A_sub entail subexpr(E, E_O). This decides it: E is
a subexpression of E_O exactly when it has an *embedding*: a monomial m, proper or not, and a level L of E_O
such that m * E is a sub-multiset of L (theory.md, theorem 2). The embeddings of a compound follow from those
of its operands, so a compound is built only when nearly certain to be admitted, and never when it is large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from mugraph.algebra.expressions import Algebra
from mugraph.algebra.normal_form import ABSENT, UNIT, Atom, Expr, ExpressionTooLarge, Term
from mugraph.errors import UnsupportedOperator

Embedding = tuple[Term, Expr]
Embeddings = Set[Embedding]

_OPAQUE = "opaque:"


class Oracle:
    """Decides and memoises which expressions are abstract subexpressions of any of `targets`."""

    def __init__(self, algebra: Algebra, targets: Sequence[Expr]) -> None:
        forms = algebra.forms
        self._algebra, self._forms, self._quotient = algebra, forms, algebra.division.quotient
        self.levels = forms.levels(targets)
        self._counts = {level: dict(forms.terms[level]) for level in self.levels}
        self._levels_with: dict[Term, list[Expr]] = {}
        for level, counts in self._counts.items():
            for term in counts:
                self._levels_with.setdefault(term, []).append(level)
        monomials = [forms.monomials[term] for term in self._levels_with]
        self._exponents = {monomial.exponent for monomial in monomials}
        self._radicands = {monomial.radicand for monomial in monomials}
        self._denominators = {monomial.denominator for monomial in monomials} - {ABSENT}
        self._divisors: dict[Expr, bool] = {}
        self._atom_codes = {monomial.atoms for monomial in monomials}
        self._largest = max((forms.totals[level] for level in self.levels), default=0)
        self._embeddings: dict[Expr, Embeddings] = {}
        self._composed: dict[tuple[str, tuple[Expr, ...], int], Expr | None] = {}

    def admits(self, e: Expr) -> bool:
        """Whether `e` is an abstract subexpression of any target."""
        return bool(self.embeddings(e))

    def embeddings(self, e: Expr) -> Embeddings:
        """All (m, level) with m * e contained in the level; empty when `e` is no subexpression."""
        found = self._embeddings.get(e)
        if found is None:
            found = self._embeddings[e] = self._search(e)
        return found

    def compose(self, op: str, args: tuple[Expr, ...], n: int = 1) -> Expr | None:
        """The result of `op` on `args` if it is admitted, else None.

        `op` is add, sub, mul, div, exp, sqrt, sum (over `n` elements) or `opaque:NAME`; anything else raises
        UnsupportedOperator. What outgrows every level is rejected unbuilt: no ExpressionTooLarge.
        """
        key = (op, args, n)
        try:
            return self._composed[key]
        except KeyError:
            result = self._composed[key] = self._compose(op, args, n)
            return result

    def _compose(self, op: str, args: tuple[Expr, ...], n: int) -> Expr | None:
        # by name: constructors of abstract expressions (the paper's Table 1), which rows build theirs with
        match op, args:
            case "add", (x, y):
                return self._add(x, y)
            case "sub", (x, y):
                negated = self.compose("mul", (self._algebra.minus_one, y))
                return None if negated is None else self._add(x, negated)
            case "mul", (x, y):
                return self._mul(x, y)
            case "div", (x, y):
                if not self._divides(y):
                    return None
                kept = self._divided(self.embeddings(x), self._algebra.reciprocal(y))
                return self._accept(self._algebra.div(x, y), kept) if kept else None
            case "sum", (x,):
                kept = self._divided(self.embeddings(x), self._algebra.reduction(n))
                return self._accept(self._algebra.sum(n, x), kept) if kept else None
            case "exp", (x,):
                whole = any(m == UNIT and level in self._exponents for m, level in self.embeddings(x))
                return self._algebra.exp(x) if whole else None
            case "sqrt", (x,):
                ratio = self._algebra.division.ratio
                nested = {level for _, level in self.embeddings(x) if level in self._radicands}
                return self._algebra.sqrt(x) if any(ratio(level, x) is not None for level in nested) else None
            case _ if op.startswith(_OPAQUE):
                return self._opaque(op.removeprefix(_OPAQUE), args)
        raise UnsupportedOperator(f"no abstract expression for operator {op!r} on {len(args)} operands")

    def _add(self, x: Expr, y: Expr) -> Expr | None:
        """m * (x + y) lies in a level only if m * x and m * y do."""
        common = self.embeddings(x) & self.embeddings(y)
        if not common:
            return None
        total = self._algebra.add(x, y)
        return self._accept(total, self._filter(common, total))

    def _mul(self, x: Expr, y: Expr) -> Expr | None:
        """m * (x * y) lies in a level only if (m * t) * x does for every monomial t of y."""
        forms = self._forms
        if forms.totals[x] * forms.totals[y] > self._largest:
            return None
        if len(self.embeddings(x)) * len(forms.terms[y]) > len(self.embeddings(y)) * len(forms.terms[x]):
            x, y = y, x
        embeddings = self.embeddings(x)
        common: Embeddings = embeddings
        for index, (term, _) in enumerate(forms.terms[y]):
            divided = self._divided(embeddings, term)
            common = common & divided if index else divided
            if not common:
                return None
        product = self._algebra.mul(x, y)
        return self._accept(product, self._filter(common, product))

    def _divides(self, y: Expr) -> bool:
        """Whether any denominator is a multiple of `y`: nothing else may divide."""
        known = self._divisors.get(y)
        if known is None:
            ratio = self._algebra.division.ratio
            known = self._divisors[y] = any(ratio(denominator, y) is not None for denominator in self._denominators)
        return known

    def _opaque(self, name: str, args: tuple[Expr, ...]) -> Expr | None:
        prime = self._forms.known_atom(Atom("opaque", name, args))
        if prime is None or all(code % prime for code in self._atom_codes):
            return None
        return self._algebra.opaque(name, *args)

    def _divided(self, embeddings: Iterable[Embedding], divisor: Term) -> set[Embedding]:
        """The embeddings of `divisor * e`, given those of `e`."""
        quotient = self._quotient
        return {(m, level) for whole, level in embeddings if (m := quotient(whole, divisor)) is not None}

    def _filter(self, candidates: Iterable[Embedding], e: Expr) -> set[Embedding]:
        return {embedding for embedding in candidates if self._contains(embedding, e)}

    def _accept(self, e: Expr, embeddings: Embeddings) -> Expr | None:
        self._embeddings[e] = embeddings
        return e if embeddings else None

    def _search(self, e: Expr) -> Embeddings:
        """Match the leading monomial of `e` with each monomial of each level: that fixes the multiplier."""
        if self._forms.totals[e] > self._largest:
            return frozenset()
        leading, _ = self._forms.terms[e][0]
        matches = [
            (m, level)
            for term, levels in self._levels_with.items()
            if (m := self._quotient(term, leading)) is not None
            for level in levels
        ]
        return self._filter(matches, e)

    def _contains(self, embedding: Embedding, e: Expr) -> bool:
        multiplier, level = embedding
        counts, product, terms = self._counts[level], self._forms.product, self._forms.terms[e]
        try:
            return all(counts.get(product(multiplier, term), 0) >= count for term, count in terms)
        except ExpressionTooLarge:
            return False  # the levels were built within the limit, so they hold no such monomial
