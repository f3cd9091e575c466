"""Proofs from properties of operators, where random functions cannot decide (paper, end of section 5).

Random tests take every operator outside LAX for a random function, so `relu(relu(x))` and `relu(x)` are different to them. Here a
theorem prover looks for values of the two graphs that are equal by properties of operators, inputs first. Values that it
proves equal become one new input of both graphs, and the random tests decide the rest, at full size: what is equal for every
value of the new inputs is equal for those the values have. So a program may mix both fragments, and nothing is called
equivalent that was not proved or tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mugraph.errors import InvalidGraph, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dead_nodes import without_dead_nodes
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Level, Node, Tensor, Value, attributes_of
from mugraph.ir.ops import Kind, operator
from mugraph.ir.retiling import untiled
from mugraph.search.axes import AxisProgram, axis_program
from mugraph.verifier.properties import Property, known_properties
from mugraph.verifier.random_tests import Verdict, verify_graphs
from mugraph.verifier.theories import ARITHMETIC, by_properties, pointwise, z3_installed, z3_module

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
    left: Graph, right: Graph, *, properties: Sequence[Property | str] = (), max_error: float = 2**-40, seed: int = 0
) -> Proof:
    """Whether two kernel graphs compute the same outputs by the known properties of operators and those given.

    Properties are equations such as "max(relu(x)) == relu(max(x))"; see `mugraph.verifier.Property`. Raises InvalidInput for
    malformed or false ones, and TargetUnavailable without Z3.
    """
    z3_module()
    given = [known if isinstance(known, Property) else Property.parse(known) for known in properties]
    try:
        sides = [_single_tile(graph, max_error, seed) for graph in (left, right)]
        joint = _joined(*sides)
    except MugraphError as error:
        return Proof(False, (), f"undecided: {error}")
    equalities = _Equalities(joint, given)
    equalities.find()
    outputs = len(left.outputs)
    cut = equalities.cut()
    halves = [without_dead_nodes(replace(cut, outputs=part)) for part in (cut.outputs[:outputs], cut.outputs[outputs:])]
    rest = verify_graphs(*halves, max_error=max_error, seed=seed)
    used = tuple(sorted(equalities.used))
    if rest.equivalent:
        return Proof(True, used, "", rest)
    what = f"what follows from {', '.join(used)}" if used else "no property applies"
    return Proof(False, used, f"undecided: {what}; {rest.reason}", rest)


def verify(
    left: Graph, right: Graph, *, properties: Sequence[Property | str] = (), max_error: float = 2**-40, seed: int = 0
) -> Verdict:
    """`verify_graphs`, and `prove` where random functions see a difference that float64 does not.

    Without Z3 the answer is that of the random tests, unless properties are needed, which raises TargetUnavailable.
    Raises InvalidInput for malformed or false properties, needed or not.
    """
    given = [known if isinstance(known, Property) else Property.parse(known) for known in properties]
    verdict = verify_graphs(left, right, max_error=max_error, seed=seed)
    found = verdict.counterexample
    certain = found is not None and (found.inputs is not None or found.index is None)
    if verdict.equivalent or certain or not (given or z3_installed()):
        return verdict
    proof = prove(left, right, properties=given, max_error=max_error, seed=seed)
    if not proof.equivalent or proof.rest is None:
        return verdict
    return replace(proof.rest, properties=proof.used)


def _single_tile(graph: Graph, max_error: float, seed: int) -> Graph:
    """The graph without kernels. Raises InvalidGraph where random tests do not show it to be the same function."""
    if not any(node.body is not None for node in graph.nodes):
        return graph
    flat = untiled(graph)
    if not verify_graphs(graph, flat, max_error=max_error, seed=seed).equivalent:
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
            moved[Value(index)] = next(remaining) if node.op == "input" else builder.append(replace(node, inputs=operands))
        outputs += [moved[value] for value in graph.outputs]
    return builder.build(outputs)


def _shapes(nodes: Sequence[Node]) -> list[tuple[int, ...]]:
    return [node.output.shape for node in nodes]


@dataclass(slots=True)
class _Equalities:
    """Nodes of one graph that are proved to have the same value: pairs in the order they were found."""

    graph: Graph
    given: Sequence[Property]
    pairs: list[tuple[int, int]] = field(default_factory=list)
    by_property: set[tuple[int, int]] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def find(self) -> None:
        """Try every node on the earlier nodes that have its value at a random point; those in LAX are left to tests."""
        values, outside = _values(self.graph), _outside_lax(self.graph)
        for later, value in values.items():
            for earlier in _close(values, later, value):
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

    def cut(self) -> Graph:
        """The graph with one further input, in front, in place of the nodes of each class that took a property to see.

        Equal terms alone are no reason, since random functions see them too. An input stands for its class itself.
        """
        chosen = [members for members in self.classes() if any(set(pair) <= members for pair in self.by_property)]
        builder = GraphBuilder(Level.KERNEL)
        moved: dict[Value, Value] = {}
        stands_for: dict[int, int] = {}
        for number, members in enumerate(chosen):
            first = min(members, key=lambda index: (self.graph.nodes[index].op != "input", index))
            stands_for.update(dict.fromkeys(members - {first}, first))
            if self.graph.nodes[first].op != "input":
                moved[Value(first)] = builder.append(_input(f"cut {number}", self.graph.nodes[first].output))
        for index, node in enumerate(self.graph.nodes):
            if index in stands_for:
                moved[Value(index)] = moved[Value(stands_for[index])]
            elif Value(index) not in moved:
                moved[Value(index)] = builder.append(replace(node, inputs=tuple(moved[value] for value in node.inputs)))
        return builder.build([moved[value] for value in self.graph.outputs])


def _input(name: str, tensor: Tensor) -> Node:
    plain = replace(tensor, layout=None)
    return Node("input", (), (plain,), attributes_of({"name": name, "shape": plain.shape, "dtype": plain.dtype}))


def _values(graph: Graph) -> dict[int, Array]:
    """What each node is at one random point, in float64, where it is finite; constants apart."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
    wanted = [index for index, node in enumerate(graph.nodes) if node.op != "constant"]
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
        builder.append(node)
    return axis_program(without_dead_nodes(builder.build([builder.add("sub", *map(Value, pair)) for pair in pairs])))
