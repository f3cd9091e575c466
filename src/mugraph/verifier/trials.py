"""Random tests of two graphs: draws of fields and inputs, one after the other, until a difference or enough agreement."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import FieldArithmetic, FieldPair, FieldValue
from mugraph.errors import UndefinedInField
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph, Shape
from mugraph.verifier.bounds import REDRAWS, REDRAWS_FOR_SQUARES
from mugraph.verifier.certificate import Round, digest
from mugraph.verifier.characters import Characters
from mugraph.verifier.constant_roots import Primes
from mugraph.verifier.counterexamples import Counterexample, mismatch
from mugraph.verifier.known_values import Known, residues
from mugraph.verifier.residues import ResidueParts, residues_needed
from mugraph.verifier.root_semantics import (
    Factored,
    LawfulArithmetic,
    Remembering,
    RootedArithmetic,
    Scaled,
    SignChoice,
    evaluate_products,
)
from mugraph.verifier.semantics import FreeArithmetic, Semantics
from mugraph.verifier.vectorized_eval import evaluate_batched

_SQUARE_DRAWS = 24
_FEW_RADICANDS = 6
"""Up to so many radicands are all squares in one of _SQUARE_DRAWS draws, or nearly always."""
_AT_ONCE = 1 << 18
"""Elements of a tensor up to which iterations of a loop are evaluated as one: there are many tests, of small steps each."""


@dataclass(slots=True)
class Trials:
    """Tests of one pair of graphs under one semantics, in fields of one family, as they accumulate.

    `count` says whether enough p must go with each q, as the bound for exponentials supposes, and `alike` whether all tests must
    tell the same arguments of functions apart; draws that do not are no tests. After the `deadline`, a time of
    the monotonic clock, draws are not repeated as often as roots of squares take. The inputs in `known` are not drawn. The square
    roots of the primes in `root_variables` are.
    """

    left: Graph
    right: Graph
    semantics: Semantics
    family: FieldFamily
    seed: int
    count: bool = False
    alike: bool = False
    deadline: float | None = None
    known: Known = field(default_factory=dict)
    root_variables: Primes = frozenset()
    rounds: list[Round] = field(default_factory=list)
    draws: int = 0
    invalid: int = 0
    pattern: tuple[str, ...] | None = None
    """Which arguments are the same in the tests so far, where they must be alike."""
    key: tuple[int, ...] = field(init=False)
    """What is asked, as words for the generator: a program made for a seed changes what that seed draws."""

    def __post_init__(self) -> None:
        asked = hashlib.sha256(f"{digest(self.left)} {digest(self.right)}".encode())
        for number, array in sorted(self.known.items()):
            asked.update(f" {number} ".encode() + np.asarray(array, np.float64).tobytes())
        self.key = struct.unpack("<8I", asked.digest())

    def test(self) -> Counterexample | None:
        """One valid test: the first difference, or None. Raises UndefinedInField when too many draws are not valid.

        Under LAWS a difference counts where all radicands are squares, for only there does sqrt(a)**2 = a hold: a draw in
        which they are decides, if there is one among a few.
        """
        found, roots = self._valid_draw()
        if found is None or roots is None or roots.all_squares or roots.radicands > _FEW_RADICANDS:
            return found
        for _ in range(_SQUARE_DRAWS):
            again, roots = self._valid_draw()
            if roots is not None and roots.all_squares:
                return again
        return found

    def _valid_draw(self) -> tuple[Counterexample | None, LawfulArithmetic | None]:
        invalid: UndefinedInField | None = None
        while self.invalid <= (REDRAWS_FOR_SQUARES if self.semantics is Semantics.ROOTS else REDRAWS):
            try:
                return self._draw()
            except UndefinedInField as error:
                self.invalid, invalid = self.invalid + 1, error
            if self.invalid > REDRAWS and self.deadline is not None and time.monotonic() > self.deadline:
                raise UndefinedInField(f"the budget ended after {self.invalid} draws that were of no use: {invalid}")
        raise UndefinedInField(f"no test could be evaluated: {invalid}")

    def _draw(self) -> tuple[Counterexample | None, LawfulArithmetic | None]:
        """Draw fields and inputs, and compare. Raises UndefinedInField where a denominator vanishes."""
        draw = self.draws
        self.draws += 1
        rng = np.random.default_rng([self.seed, draw, *self.key])
        pair = self.family.draw(rng, count=self.count)
        omega, key = pair.root(rng), int(rng.integers(2**62))
        roots = None
        match self.semantics:
            case Semantics.FREE | Semantics.PROPERTIES:
                free = FreeArithmetic(pair, omega=omega, seed=key, root_variables=self.root_variables)
                arith: Remembering = Factored(free) if self.semantics is Semantics.FREE else Characters(free)
                found = self._compared(arith, self._inputs(free, rng), pair)
                self._expect_pattern(free)
            case Semantics.ROOTS:
                found = self._for_all_signs(pair, omega, key, rng)
            case Semantics.LAWS:
                # Both square roots take part: sqrt(x) and sqrt(-x) agree under one of them.
                roots = LawfulArithmetic(pair, omega=omega, seed=key, mirrored=draw % 2 == 1)
                inputs = self._inputs(roots, rng)
                left, right = (evaluate_batched(graph, inputs, roots) for graph in (self.left, self.right))
                found = _first_difference(left, right, pair)
        self.rounds.append(Round(draw, pair.p, pair.q, omega))
        return found, roots

    def _expect_pattern(self, arith: FreeArithmetic) -> None:
        """Raises UndefinedInField for a draw that does not tell the same arguments apart as the tests before it."""
        if not self.alike:
            return
        pattern = arith.pattern
        if self.pattern not in (None, pattern):
            raise UndefinedInField("arguments that are different coincide in one of the draws")
        self.pattern = pattern

    def _compared(self, arith: Remembering, inputs: Sequence[FieldValue], pair: FieldPair) -> Counterexample | None:
        left, right = (evaluate_products(graph, inputs, arith, _AT_ONCE) for graph in (self.left, self.right))
        return _first_difference(left, right, pair)

    def _for_all_signs(self, pair: FieldPair, omega: int, key: int, rng: np.random.Generator) -> Counterexample | None:
        """The first difference for any choice of roots. Every choice must be valid before one counts as a difference."""
        signs, found = SignChoice(), None
        variables = self.root_variables
        drawn = RootedArithmetic(pair, omega=omega, seed=key, signs=signs)
        inputs = [
            residues(self.known[number], pair)._replace(q=None) if number in self.known else drawn.random(shape, rng, q=False)
            for number, shape in enumerate(input_shapes(self.left))
        ]
        while True:
            arith = RootedArithmetic(pair, omega=omega, seed=key, signs=signs, root_variables=variables)
            found = self._compared(Scaled(arith), inputs, pair) or found
            if not signs.advance():
                return found

    def _inputs(self, arith: FieldArithmetic, rng: np.random.Generator) -> list[FieldValue]:
        needs = zip(residues_needed(self.left, self.semantics), residues_needed(self.right, self.semantics), strict=True)
        inputs = enumerate(zip(input_shapes(self.left), needs, strict=True))
        return [
            residues(self.known[number], arith.pair)
            if number in self.known
            else arith.random(shape, rng, p=ResidueParts.P in (ours | theirs), q=ResidueParts.Q in (ours | theirs))
            for number, (shape, (ours, theirs)) in inputs
        ]


def input_shapes(graph: Graph) -> list[Shape]:
    """Shapes of a kernel graph's inputs, in order."""
    return [node.output.shape for node in graph.nodes if node.is_input]


def _first_difference(left: Sequence[FieldValue], right: Sequence[FieldValue], pair: FieldPair) -> Counterexample | None:
    for number, (x, y) in enumerate(zip(left, right, strict=True)):
        components: list[tuple[str, Array, Array]] = [(f"modulo {pair.p}", x.p, y.p)]
        if x.q is not None and y.q is not None:
            components.append((f"modulo {pair.q}", x.q, y.q))
        for arithmetic, ours, theirs in components:
            if not np.array_equal(ours, theirs):
                return mismatch(number, ours, theirs, np.asarray(ours != theirs), arithmetic)
    return None
