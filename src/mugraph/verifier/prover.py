"""Proofs from properties of operators, where random functions cannot decide (paper, end of section 5).

Random tests take every operator outside LAX for a random function, so `relu(relu(x))` and `relu(x)` are different to them. Here a
theorem prover looks for values of the two graphs that are equal by properties of operators, inputs first. Values that it
proves equal become one new input of both graphs, and the random tests decide the rest, at full size: what is equal for every
value of the new inputs is equal for those the values have. So a program may mix both fragments, and nothing is called
equivalent that was not proved or tested.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mugraph.errors import InvalidGraph, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.ir.arithmetic import Array
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.definitions import spelled_out
from mugraph.ir.editing import untiled, without_dead_nodes
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Level, Node, Tensor, Value, attributes_of
from mugraph.ir.ops import Kind, operator
from mugraph.support.deadline import late
from mugraph.support.seeds import seed_or_fresh
from mugraph.verifier.certificate import Certificate, Outcome
from mugraph.verifier.counterexamples import find_witness
from mugraph.verifier.domain import common_domain
from mugraph.verifier.identities import simplified
from mugraph.verifier.infinities import infinities_apart
from mugraph.verifier.known_values import NOTHING, Known
from mugraph.verifier.properties import Property, known_properties
from mugraph.verifier.random_tests import (
    are_large,
    by_random_tests,
    in_pieces,
    looked_at,
    mismatched,
    of_cores,
    prove_piece,
)
from mugraph.verifier.theories import ARITHMETIC, by_properties, pointwise, z3_installed, z3_module
from mugraph.verifier.through_cores import core_pair
from mugraph.verifier.verdicts import Verdict
from mugraph.verifier.zero_divisors import nowhere_defined

_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer of `prove`.

    `equivalent` is True when all of the difference between the graphs was proved or tested away: `used` are the properties
    that the prover needed, and `rest` the verdict of the random tests on what it left. Otherwise the question is undecided,
    and `reason` says what is missing; a proof never says that graphs differ.
    """

    equivalent: bool
    used: tuple[str, ...]
    reason: str
    rest: Verdict | None = None


def prove(
    left: Graph,
    right: Graph,
    *,
    properties: Sequence[Property | str] = (),
    max_error: float = 2**-40,
    seed: int | None = None,
    deadline: float | None = None,
    known: Known = NOTHING,
) -> Proof:
    """Whether two kernel graphs compute the same outputs by the known properties of operators and those given.

    Properties are equations such as "max(relu(x)) == relu(max(x))"; see `mugraph.verifier.Property`. After the `deadline`, a time
    of the monotonic clock, no further question is put to the prover. Raises InvalidInput for malformed or false properties, and
    TargetUnavailable without Z3.
    """
    z3_module()
    if (cores := core_pair(left, right, known)) is not None:
        left, right, known = cores.left, cores.right, cores.known
    given = [fact if isinstance(fact, Property) else Property.parse(fact) for fact in properties]
    try:
        sides = [_single_tile(spelled_out(graph), max_error, seed, deadline) for graph in (left, right)]
        joint = _joined(*sides)
    except MugraphError as error:
        return Proof(False, (), f"undecided: {error}")
    equalities = _Equalities(joint, given, deadline)
    equalities.find()
    outputs = len(left.outputs)
    cut, fresh = equalities.cut()
    halves = [without_dead_nodes(replace(cut, outputs=part)) for part in (cut.outputs[:outputs], cut.outputs[outputs:])]
    moved = {number + fresh: values for number, values in known.items()}
    rest = by_random_tests(*halves, max_error=max_error, seed=seed, budget=seconds_left(deadline), known=moved)
    used = tuple(sorted(equalities.used))
    if rest.equivalent:
        nowhere = nowhere_defined(left, right, known)
        return Proof(not nowhere, used, f"undecided: {nowhere}" if nowhere else "", rest)
    what = f"what follows from {', '.join(used)}" if used else "no property applies"
    return Proof(False, used, f"undecided: {what}; {rest.reason}", rest)


def verify(
    left: Graph,
    right: Graph,
    *,
    properties: Sequence[Property | str] = (),
    max_error: float = 2**-40,
    seed: int | None = None,
    budget: float | None = None,
    known: Known = NOTHING,
) -> Verdict:
    """Whether two kernel graphs compute the same, by all means there are, one after the other until there is an answer.

    Random tests, with the inputs in `known` taken for variables and then for their values; the same on graphs that identities
    have made simple; inputs at which the two differ; properties of operators, by Z3. What is equivalent is so where both graphs
    are defined: `domain` says where that is if it is not certain to be the same for both, and graphs that nowhere have a value
    together are not called equivalent. After the `budget`, in seconds, no further means is tried.

    Without Z3 the answer is that of the other means, unless properties are given, which then raises TargetUnavailable.
    Raises InvalidInput for malformed or false properties, needed or not.
    """
    if (cores := core_pair(left, right, known)) is not None:
        sides = cores.left, cores.right
        verdict = verify(*sides, properties=properties, max_error=max_error, seed=seed, budget=budget, known=cores.known)
        return of_cores(verdict, left, right, cores)
    given = [fact if isinstance(fact, Property) else Property.parse(fact) for fact in properties]
    deadline = None if budget is None else time.monotonic() + budget
    evidence = _Evidence(left, right, max_error, seed, deadline, known)
    first = evidence.of_large_graphs() if are_large(left, right, known) else None
    verdict = first or evidence.tested(left, right)
    if verdict.outcome is Outcome.UNDECIDED:
        verdict = evidence.by_identities() or looked_at(verdict, left, right, deadline, known)
    if verdict.outcome is Outcome.UNDECIDED and (given or z3_installed()) and not late(deadline):
        verdict = evidence.by_properties(given) or verdict
    return evidence.where_defined(verdict) if verdict.equivalent else verdict


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Ways to decide whether two graphs are equivalent."""

    left: Graph
    right: Graph
    max_error: float
    seed: int | None
    deadline: float | None
    known: Known

    def tested(self, left: Graph, right: Graph) -> Verdict:
        """What random tests say: of all values of the known inputs, or else of their own."""
        verdict = self.by_tests(left, right, NOTHING)
        if verdict.outcome is Outcome.UNDECIDED and self.known:
            return self.by_tests(left, right, self.known)
        return verdict

    def by_tests(self, left: Graph, right: Graph, known: Known) -> Verdict:
        left_over = seconds_left(self.deadline)
        return by_random_tests(left, right, max_error=self.max_error, seed=self.seed, budget=left_over, known=known)

    def of_large_graphs(self) -> Verdict | None:
        """Equivalence in pieces, or inputs at which the graphs differ, for which no test of whole graphs is needed."""
        verdict = self.by_identities_in_pieces(self.left, self.right)
        if verdict is not None:
            return verdict
        seed = seed_or_fresh(self.seed)
        witness = find_witness(self.left, self.right, seed=seed, fixed=self.known, deadline=self.deadline)
        return None if witness is None else mismatched(self.left, self.right, witness, self.max_error, seed)

    def by_identities(self) -> Verdict | None:
        """Equivalence of what identities make of the graphs, or of pieces of them; None where there is none, or no identity
        applies."""
        try:
            spelled = (spelled_out(graph) for graph in (self.left, self.right))
            flat = [_single_tile(graph, self.max_error, self.seed, self.deadline) for graph in spelled]
        except MugraphError:
            return None
        sides = [simplified(graph) for graph in flat]
        used = tuple(dict.fromkeys(name for _, names in sides for name in names))
        if used and not late(self.deadline):
            verdict = self.tested(sides[0][0], sides[1][0])
            if verdict.equivalent:
                return replace(verdict, properties=used)
        return self.by_identities_in_pieces(*flat)

    def by_identities_in_pieces(self, left: Graph, right: Graph) -> Verdict | None:
        """The same piece by piece, where programs are too long to be simple, or move parts of tensors."""
        used: set[str] = set()

        def prove(ours: Graph, theirs: Graph, max_error: float, known: Known) -> Certificate | None:
            if late(self.deadline):
                return None
            (ours, names), (theirs, more) = simplified(ours), simplified(theirs)
            if not (names or more):
                return None
            certificate = prove_piece(self.seed, self.deadline, ours, theirs, max_error, known)
            if certificate is not None and certificate.accepted:
                used.update(names, more)
            return certificate

        verdict = in_pieces(left, right, self.known, self.max_error, self.seed, self.deadline, prove)
        return None if verdict is None else replace(verdict, properties=tuple(sorted(used)))

    def by_properties(self, given: Sequence[Property]) -> Verdict | None:
        """Equivalence by properties that Z3 combines; None where it finds no proof."""
        for known in (NOTHING, self.known) if self.known else (NOTHING,):
            proof = prove(
                self.left,
                self.right,
                properties=given,
                max_error=self.max_error,
                seed=self.seed,
                deadline=self.deadline,
                known=known,
            )
            if proof.equivalent and proof.rest is not None:
                return replace(proof.rest, properties=proof.used)
        return None

    def where_defined(self, verdict: Verdict) -> Verdict:
        """The verdict with the part of the inputs on which it holds; none where there is no such part."""
        if self.left == self.right:
            return verdict
        seed = verdict.certificate.seed
        apart = infinities_apart(self.left, self.right, seed=seed, fixed=self.known, deadline=self.deadline)
        if apart:
            return verdict.undecided(apart)
        domain = common_domain(self.left, self.right, seed=seed, fixed=self.known, deadline=self.deadline)
        if not domain.empty:
            why = nowhere_defined(self.left, self.right, self.known)
            return verdict.undecided(why) if why else replace(verdict, domain="" if domain.same else domain.text)
        nowhere = f"no input was found at which both programs are defined ({domain.text})"
        return verdict.undecided(nowhere) if domain.witness is None else verdict.refuted(domain.witness)


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until a time of the monotonic clock."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _single_tile(graph: Graph, max_error: float, seed: int | None, deadline: float | None) -> Graph:
    """The graph without kernels. Raises InvalidGraph where random tests do not show it to be the same function."""
    if not any(node.body is not None for node in graph.nodes):
        return graph
    flat = untiled(graph)
    if not by_random_tests(graph, flat, max_error=max_error, seed=seed, budget=seconds_left(deadline)).equivalent:
        raise InvalidGraph("a kernel was not shown to compute by tiles what it computes at once")
    return flat


def _joined(left: Graph, right: Graph) -> Graph:
    """Both programs on the same inputs: the outputs of the left, and then those of the right."""
    if _shapes(left.inputs()) != _shapes(right.inputs()):
        raise ShapeMismatch("the programs take inputs of different shapes")
    builder = GraphBuilder(Level.KERNEL)
    inputs = [builder.append(node) for node in left.inputs()]
    outputs = []
    for graph in (left, right):
        moved: dict[Value, Value] = {}
        remaining = iter(inputs)
        for index, node in enumerate(graph.nodes):
            operands = tuple(moved[value] for value in node.inputs)
            moved[Value(index)] = next(remaining) if node.is_input else builder.append(replace(node, inputs=operands))
        outputs += [moved[value] for value in graph.outputs]
    return builder.build(outputs)


def _shapes(nodes: Sequence[Node]) -> list[tuple[int, ...]]:
    return [node.output.shape for node in nodes]


@dataclass(slots=True)
class _Equalities:
    """Nodes of one graph that are proved to have the same value: pairs in the order they were found."""

    graph: Graph
    given: Sequence[Property]
    deadline: float | None = None
    pairs: list[tuple[int, int]] = field(default_factory=list)
    by_property: set[tuple[int, int]] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def find(self) -> None:
        """Try every node on the earlier nodes that have its value at a random point; those in LAX are left to tests."""
        values, outside = _values(self.graph), _outside_lax(self.graph)
        for later, value in values.items():
            for earlier in _close(values, later, value):
                if late(self.deadline):
                    return
                if outside.isdisjoint((earlier, later)) or self.same(earlier, later):
                    continue
                proof = self.proved(earlier, later)
                if proof is not None:
                    self.pairs.append((earlier, later))
                    self.used.update({*proof} - {ARITHMETIC})
                    self.by_property |= {(earlier, later)} if proof else set()

    def proved(self, earlier: int, later: int) -> tuple[str, ...] | None:
        """The properties that make two nodes equal, given the pairs so far; none of them where they are the same term."""
        try:
            program = _axis_form(self.graph, [*self.pairs, (earlier, later)])
        except UnsupportedOperator:
            return None
        *known, goal = ((program.terms[term].inputs[0], program.terms[term].inputs[1]) for term, _ in program.outputs)
        if goal[0] == goal[1]:
            return ()
        laws, properties = known_properties()
        facts = [*self.given, *properties]
        found = pointwise(program, goal, known, facts)
        return found if found is not None else by_properties(program, goal, known, laws, facts)

    def classes(self) -> list[set[int]]:
        """The nodes that are equal to each other."""
        found: list[set[int]] = []
        for pair in self.pairs:
            touched = [members for members in found if members & set(pair)]
            found = [members for members in found if members not in touched]
            found.append(set(pair).union(*touched))
        return found

    def same(self, first: int, second: int) -> bool:
        """Whether two nodes are in one class already."""
        return any({first, second} <= members for members in self.classes())

    def cut(self) -> tuple[Graph, int]:
        """The graph with one further input, in front, in place of the nodes of each class that took a property to see; and how
        many there are.

        Equal terms alone are no reason, since random functions see them too. An input stands for its class itself.
        """
        chosen = [members for members in self.classes() if any(set(pair) <= members for pair in self.by_property)]
        builder = GraphBuilder(Level.KERNEL)
        moved: dict[Value, Value] = {}
        stands_for: dict[int, int] = {}
        for number, members in enumerate(chosen):
            first = min(members, key=lambda index: (not self.graph.nodes[index].is_input, index))
            stands_for.update(dict.fromkeys(members - {first}, first))
            if not self.graph.nodes[first].is_input:
                moved[Value(first)] = builder.append(_input(f"cut {number}", self.graph.nodes[first].output))
        for index, node in enumerate(self.graph.nodes):
            if index in stands_for:
                moved[Value(index)] = moved[Value(stands_for[index])]
            elif Value(index) not in moved:
                moved[Value(index)] = builder.append(replace(node, inputs=tuple(moved[value] for value in node.inputs)))
        fresh = sum(not self.graph.nodes[value].is_input for value in {*stands_for.values()})
        return builder.build([moved[value] for value in self.graph.outputs]), fresh


def _input(name: str, tensor: Tensor) -> Node:
    plain = replace(tensor, layout=None)
    return Node("input", (), (plain,), attributes_of({"name": name, "shape": plain.shape, "dtype": plain.dtype}))


def _values(graph: Graph) -> dict[int, Array]:
    """What each node is at one random point, in float64, where it is finite; constants apart."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
    wanted = [index for index, node in enumerate(graph.nodes) if not node.is_constant]
    with np.errstate(all="ignore"):
        values = evaluate(graph.with_nodes(graph.nodes, tuple(map(Value, wanted))), inputs, FloatArithmetic())
    return {index: value for index, value in zip(wanted, values, strict=True) if np.isfinite(value).all()}


def _close(values: Mapping[int, Array], later: int, value: Array) -> Iterator[int]:
    """Nodes before `later` with its value, as far as float64 can tell."""
    for earlier, other in values.items():
        if earlier >= later:
            return
        if other.shape == value.shape and np.allclose(other, value, rtol=_CLOSE, atol=_CLOSE):
            yield earlier


def _outside_lax(graph: Graph) -> set[int]:
    """Nodes that depend on an operator outside LAX."""
    found: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if operator(node.op).kind is Kind.OPAQUE or any(value.node in found for value in node.inputs):
            found.add(index)
    return found


def _axis_form(graph: Graph, pairs: Sequence[tuple[int, int]]) -> AxisProgram:
    """The axis form of a graph whose outputs are the differences of these nodes."""
    builder = GraphBuilder(Level.KERNEL)
    for node in graph.nodes:
        if node.get("least") is not None:
            raise UnsupportedOperator("a maximum over a number besides its elements, which has no axis form")
        builder.append(node)
    return axis_program(without_dead_nodes(builder.build([builder.add("sub", *map(Value, pair)) for pair in pairs])))
