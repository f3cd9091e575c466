"""How likely random tests are to miss a difference between two programs: every number derived from the two graphs.

The tests draw fields from a family (`mugraph.algebra.families`) and evaluate under the semantics of `FreeArithmetic`.
docs/theory.md ("What the tests prove") states the theorem whose terms are computed here, and proves it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mugraph.algebra.families import Q_TRIES, FieldFamily
from mugraph.algebra.fields import P_BITS
from mugraph.ir.graph import Graph
from mugraph.verifier.characters import Characters
from mugraph.verifier.constant_roots import Primes, families_for
from mugraph.verifier.degree_bounds import Applications, Fraction, Magnitudes, PolynomialBound
from mugraph.verifier.known_values import NOTHING, Known, magnitude
from mugraph.verifier.root_semantics import MOST_RADICANDS, Factored, Remembering, Scaled, evaluate_products
from mugraph.verifier.semantics import Semantics

REDRAWS = 4
"""How many draws may be thrown away because a denominator vanished, ..."""
REDRAWS_FOR_SQUARES = 160
"""... or a radicand was no square, where roots are to square back: with 4 radicands, one draw of 16 has none."""
_MOST_ROUNDS = 256
_USUAL_ERROR = 2.0**-40
_EVALUATION, _OF_ELEMENT = 2000, 0.25
"""Candidates for p that are tested for primality in the time of evaluating two small graphs, and of an element of any tensor of
theirs, roughly."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Bounds of an expression that must not vanish unless it is zero, and what the theorem says about it.

    `terms` exponentials with different exponents have as coefficients polynomials of `degree`, whose coefficients sum to at
    most 2**`bits`. The difference of two exponents is a fraction whose numerator has degree `exponent_degree` and
    coefficients that sum to at most 2**`exponent_bits` (0 where there is no exponential).
    """

    degree: int
    bits: int
    terms: int = 1
    exponent_degree: int = 0
    exponent_bits: int = 0

    def of_norm(self, radicand: Terms) -> Terms:
        """The norm of an expression in roots of so many as may be chosen for: docs/theory.md, "Roots that square back"."""
        degree, bits = self.degree, self.bits + 1
        for _ in range(MOST_RADICANDS):
            degree, bits = degree * (2 + radicand.degree), 2 * bits + degree * radicand.bits
        return Terms(degree, bits)

    def miss(self, family: FieldFamily, conjugates: int, counted: bool) -> float:
        """The probability that the expression vanishes in a draw although it is not zero.

        `conjugates` is the degree of the number field that the square roots among the constants generate; `counted` says
        whether the draw insists on `family.p_count` choices of p.
        """
        polynomial = _ratio(self.degree, 1 << P_BITS)
        if not self.exponent_degree:
            divisors = conjugates * self.bits // P_BITS
            return min(1.0, polynomial + Q_TRIES * _ratio(divisors, family.q_count * (family.p_count if counted else 1)))
        if self.terms >= 1 << family.q_bits:
            return 1.0
        divisors = conjugates * self.exponent_bits // family.q_bits
        meeting = _ratio(self.exponent_degree, 1 << family.q_bits) + Q_TRIES * _ratio(divisors, family.q_count)
        vanishing = _ratio(conjugates * (self.bits + P_BITS * self.degree), P_BITS * family.p_count)
        return min(1.0, polynomial + min(self.terms, 1 << 64) * meeting + vanishing)


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is taken as random: `pairs` of arguments could coincide, the difference of any two being `argument`."""

    name: str
    pairs: int
    argument: Terms


@dataclass(frozen=True)
class Difference:
    """Bounds for the difference of two programs, for each element of each output, under the semantics of `FreeArithmetic`.

    `output` bounds its numerator. `functions` are those that are taken as random. `family` is that of the fields to be drawn,
    chosen for the least work; `conjugates` is the degree of the number field that the square roots of constants generate.
    With `radicand`, the semantics is that of `RootedArithmetic`: it bounds numerators and denominators of what is under roots.
    With `properties`, it is that of `Characters`. With `alike`, all tests tell the same arguments apart, so that two which
    coincide do so in every one of them. The square roots of the primes `root_variables` are variables.
    """

    output: Terms
    functions: tuple[Function, ...]
    family: FieldFamily
    conjugates: int
    radicand: Terms | None = None
    alike: bool = False
    properties: bool = False
    root_variables: tuple[int, ...] = ()

    @property
    def redraws(self) -> int:
        """How many draws may be thrown away."""
        return REDRAWS if self.radicand is None else REDRAWS_FOR_SQUARES

    @property
    def exponentials(self) -> bool:
        """Whether exponentials occur, so that it matters how many p go with each q."""
        return _exponentials(self.output, self.functions)

    @property
    def error_per_draw(self) -> float:
        """The probability that one draw hides a difference (1 where the theorem says nothing)."""
        # by name: without an application of it there is no root, nor a choice of its sign
        if self.radicand is None or all(function.name != "sqrt" for function in self.functions):
            return min(1.0, sum(pairs * miss for pairs, miss in self.misses))
        radicand = self.radicand
        functions = tuple(replace(f, argument=f.argument.of_norm(radicand)) for f in self.functions)
        normed = replace(self, output=self.output.of_norm(radicand), functions=functions, radicand=None)
        return min(1.0, (1 << MOST_RADICANDS) * normed.error_per_draw)

    def error_bound(self, rounds: int) -> float:
        """The probability that a difference survives `rounds` tests among up to `redraws` more draws."""
        ways = math.comb(rounds + self.redraws, rounds)
        if not self.alike:
            return min(1.0, ways * self.error_per_draw**rounds)
        return min(1.0, ways * sum(pairs * miss**rounds for pairs, miss in self.misses))

    @functools.cached_property
    def misses(self) -> tuple[tuple[float, float], ...]:
        """Of the outputs and then of each function: how many pairs there are, and the probability that a draw misses one."""
        counted = self.exponentials
        of_functions = ((_ratio(f.pairs, 1), f.argument.miss(self.family, self.conjugates, counted)) for f in self.functions)
        return ((1.0, self.output.miss(self.family, self.conjugates, counted)), *of_functions)

    def rounds_for(self, max_error: float) -> int | None:
        """The fewest tests whose bound is at most `max_error`; None when no reasonable number suffices."""
        return next((r for r in range(1, _MOST_ROUNDS + 1) if self.error_bound(r) <= max_error), None)

    def theorem_2(self) -> float:
        """The paper's bound for one test with fields of this size (its Theorem 2), for comparison; above 1 it says nothing."""
        q, k = float(1 << self.family.q_bits), min(self.output.terms, 1 << 64)
        degree = max(self.output.degree, self.output.exponent_degree)
        return float(8 * _ratio(degree, 1) * float(k) ** 4 / q + q ** (-1 / float(k) ** 2))


def difference_of(
    left: Graph,
    right: Graph,
    *,
    semantics: Semantics = Semantics.FREE,
    known: Known = NOTHING,
    recorded: Difference | None = None,
) -> Difference:
    """Bounds for the difference of two kernel graphs with outputs of equal shapes.

    The semantics is one for which there are bounds. Inputs in `known` are constants. Of the families of fields and kinds of tests
    that have bounds, those of `recorded` are chosen where they are among them, else those of the least work.
    """
    roots, properties = semantics is Semantics.ROOTS, semantics is Semantics.PROPERTIES
    magnitudes, numerators = _measured(left, right, semantics, known, frozenset())
    families, variables = families_for(magnitudes.root_primes)
    if variables:
        magnitudes, numerators = _measured(left, right, semantics, known, variables)
    output = _terms(_largest(numerators), magnitudes.exponent)
    conjugates = 1 << len(magnitudes.root_primes)
    sizes = families if magnitudes.exponent is not None else families[:1]
    radicand = _radicand(magnitudes.functions.get("sqrt")) if roots else None
    choices = []
    for alike in (False,) if roots or not magnitudes.functions else (False, True):
        uses = sorted(magnitudes.functions.items())
        functions = tuple(_function(name, use, magnitudes.exponent, alike) for name, use in uses)
        settled = conjugates, radicand, alike, properties, tuple(sorted(variables))
        choices += [Difference(output, functions, family, *settled) for family in sizes]
    if recorded is not None and recorded in choices:
        return recorded
    evaluation = _EVALUATION + _OF_ELEMENT * (_elements(left) + _elements(right))
    return min(choices, key=functools.partial(_cost, evaluation))


def _measured(
    left: Graph, right: Graph, semantics: Semantics, known: Known, root_variables: Primes
) -> tuple[Magnitudes, list[PolynomialBound]]:
    """Two graphs evaluated over bounds: what was met there, and the numerators of the difference of each output."""
    magnitudes = Magnitudes(exponentials=semantics is not Semantics.ROOTS, root_variables=root_variables)
    roots, properties = semantics is Semantics.ROOTS, semantics is Semantics.PROPERTIES
    arith: Remembering = Scaled(magnitudes) if roots else Characters(magnitudes) if properties else Factored(magnitudes)
    ours, theirs = (evaluate_products(graph, _inputs(graph, magnitudes, known), arith) for graph in (left, right))
    return magnitudes, [magnitudes.sub(x, y).numerator for x, y in zip(ours, theirs, strict=True)]


def _elements(graph: Graph) -> int:
    """Those of all tensors in device memory."""
    return sum(tensor.elements for node in graph.nodes for tensor in node.outputs)


def _cost(evaluation: float, difference: Difference) -> tuple[float, float]:
    """The work of tests that reach the usual error: of each draw, testing p for primality and evaluating both graphs."""
    rounds = difference.rounds_for(_USUAL_ERROR)
    work = evaluation + (difference.family.candidates if difference.exponentials else 0)
    return math.inf if rounds is None else rounds * work, difference.error_per_draw


def _inputs(graph: Graph, magnitudes: Magnitudes, known: Known) -> list[Fraction]:
    shapes = enumerate(node.output.shape for node in graph.inputs())
    return [magnitude(known[number]) if number in known else magnitudes.input(shape) for number, shape in shapes]


def _largest(polynomials: Iterable[PolynomialBound]) -> PolynomialBound:
    result = PolynomialBound()
    for polynomial in polynomials:
        result |= polynomial
    return result


def _terms(numerator: PolynomialBound, exponent: Fraction | None) -> Terms:
    """A sum of exponentials: two of its exponents differ by a sum of twice as many arguments of exp as each is a sum of."""
    count = 2 * numerator.exponentials
    if not count or exponent is None:
        return Terms(numerator.degree, numerator.bits)
    difference = (exponent.numerator * exponent.denominator ** (count - 1)).times(count)  # all arguments have one constant c
    return Terms(numerator.degree, numerator.bits, numerator.terms, max(1, difference.degree), difference.bits)


def _function(name: str, use: Applications, exponent: Fraction | None, alike: bool) -> Function:
    argument = use.argument
    difference = (argument.numerator * argument.denominator).summed(2)
    # by name: values of maxima are compared as sets of elements, those of other functions by argument
    pairs = math.comb(use.count, 2) if name != "max" else _pairs_of_maxima(use, alike)
    return Function(name, pairs, _terms(difference, exponent))


def _pairs_of_maxima(use: Applications, alike: bool) -> int:
    """Of tests that are alike, all elements and maxima. Otherwise, of each two sets, an element of one with all of the other; of
    each set two elements; and each element with each maximum."""
    if alike:
        return math.comb(use.total + use.count, 2)
    return (math.comb(use.count, 2) + use.count**2) * use.arguments + use.count


def _radicand(use: Applications | None) -> Terms:
    """Bounds of numerators and of denominators of radicands, without roots Terms of a constant."""
    if use is None:
        return Terms(0, 0)
    larger = use.argument.numerator | use.argument.denominator.times(use.argument.constant)
    return Terms(larger.degree, larger.bits)


def _exponentials(output: Terms, functions: Iterable[Function]) -> bool:
    return any(terms.exponent_degree for terms in (output, *(function.argument for function in functions)))


def _ratio(part: int, whole: int) -> float:
    """A quotient of integers of any size; numbers too large for a float count as infinite, and so do shares of nothing."""
    return part / whole if whole and part.bit_length() < whole.bit_length() + 1000 else math.inf
