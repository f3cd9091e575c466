"""Where two programs are both defined: the part of the inputs that their equality speaks of.

A root or a logarithm of an input as it is makes it positive: these inputs are drawn so wherever numbers are drawn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import ACCUMULATORS, LOOKUP, VIEWS, Graph, Node, Value
from mugraph.ir.scalar import Scalar
from mugraph.verifier.certainty import Look, SlicedPair, certainly
from mugraph.verifier.counterexamples import Counterexample, at_point, batches, whole
from mugraph.verifier.enclosures import NotEnclosed
from mugraph.verifier.points import points
from mugraph.verifier.signs import Condition, Signs, conditions, signs_of

_UNDEFINED_BELOW_ZERO = frozenset({"sqrt", "log", "log2", "pow"})
_OF_ONE_SIGN = (VIEWS - {"slice"}) | ACCUMULATORS | {LOOKUP, "cast", "repeat", "sum", "max", "sqrt", "output_saver"}
"""Operators whose results are positive where their first operands are, and only there."""
_WITH_CONSTANTS = frozenset({"add", "mul", "div"})
"""Operators of which that holds where one operand is a positive constant."""


def positive_inputs(graph: Graph) -> frozenset[int]:
    """The numbers of the inputs of a kernel graph that stand under a root or a logarithm: they themselves, or their sums, maxima,
    and what positive constants make of them. What is made of several tensors may be negative as it likes."""
    positive = _positive(graph, ())
    inputs = (index for index, node in enumerate(graph.nodes) if node.is_input)
    return frozenset(number for number, index in enumerate(inputs) if Value(index) in positive)


def _positive(graph: Graph, outputs: Iterable[Value]) -> Set[Value]:
    """The values of a graph that have to be positive if so many of its outputs have to."""
    positive = set(outputs)
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.body is not None:
            wanted = [output for number, output in enumerate(node.body.outputs) if Value(index, number) in positive]
            inside = _positive(node.body, wanted)
            operands = ((Value(place), inner.get("operand")) for place, inner in enumerate(node.body.nodes))
            positive.update(node.inputs[at] for value, at in operands if isinstance(at, int) and value in inside)
        elif node.op in _UNDEFINED_BELOW_ZERO or (Value(index) in positive and node.op in _OF_ONE_SIGN):
            positive.update(node.inputs[:1])
        elif Value(index) in positive and node.op in _WITH_CONSTANTS:
            others = [value for value in node.inputs if not _is_positive_constant(graph.nodes[value.node])]
            positive.update(others if len(others) == 1 else ())
    return positive


def _is_positive_constant(node: Node) -> bool:
    value = node.get("value")
    return isinstance(value, Scalar) and float(value) > 0


_PATIENCE = 5.0
"""Seconds that sampling takes at most, unless it is given another deadline."""
_ROUNDS = 3
_AT_ONCE = 1 << 12
"""Elements of inputs that are looked at together."""
_ENOUGH = 40
"""Points at which one of two programs is certainly undefined, and none at which both are defined, before that is said."""


@dataclass(frozen=True, slots=True)
class CommonDomain:
    """Where both of two programs are defined. Inputs are finite real numbers, and results that overflow are defined.

    `text` says it for users, in conditions on tensors named by formulas; it is empty where both are defined everywhere. `same`
    says whether they are defined at the same inputs, by their signs or at all points that were looked at; `witness` is a point
    at which exactly one certainly is. `empty` is True where no input is known at which both are: by signs, or because they
    certainly are not at 40 points of many kinds, which `text` says. None stands for what is not known.
    """

    text: str
    same: bool | None
    empty: bool | None
    witness: Counterexample | None = None


def common_domain(
    left: Graph, right: Graph, *, seed: int, fixed: Mapping[int, Array] | None = None, deadline: float | None = None
) -> CommonDomain:
    """The common domain of two kernel graphs of one signature; `fixed` inputs, by number, have these values.

    Sampling ends at the `deadline` (of time.monotonic()), after 5 seconds by default.
    """
    given = dict(fixed or {})
    ours, theirs = (conditions(graph, signs_of(given), left.input_names) for graph in (left, right))
    if not ours and not theirs:
        return CommonDomain("", True, False)
    seen, end = _Seen(), time.monotonic() + _PATIENCE if deadline is None else deadline
    with contextlib.suppress(BudgetExceeded, NotEnclosed):
        seen.look(SlicedPair.of(left, right, given, end), seed)
    impossible = any(condition.impossible for condition in (*ours, *theirs))
    empty = True if impossible else seen.empty
    same = False if seen.witness is not None else (True if _written(ours) == _written(theirs) or seen.alike else None)
    return CommonDomain(_text(ours, theirs, sampled=seen.empty is True), same, empty, whole(seen.witness, left, given))


@dataclass(slots=True)
class _Seen:
    """What sampling has shown so far."""

    both: int = 0
    neither: int = 0
    points: int = 0
    some: int = 0
    """Points at which some elements certainly exist in neither, and the others in both."""
    witness: Counterexample | None = None

    @property
    def empty(self) -> bool | None:
        if self.both:
            return False
        return True if self.neither >= _ENOUGH else None

    @property
    def alike(self) -> bool:
        """Whether they were seen to be undefined together, and never one of them alone."""
        return self.some > 0 and self.witness is None and self.points >= _ENOUGH

    def look(self, pair: SlicedPair, seed: int) -> None:
        """Sample points until enough is known. Raises BudgetExceeded and NotEnclosed, as `SlicedPair` does."""
        for batch, inputs in batches(pair, points((pair.left, pair.right), seed, _ROUNDS), _AT_ONCE):
            looks = _clearest(pair, inputs)
            self.points += len(batch)
            self.both += int(np.sum(np.all([look.defined for look in looks], axis=0)))
            self.neither += int(np.sum(np.all([look.undefined for look in looks], axis=0)))
            self.some += int(np.sum(np.all([look.undefined & look.alike for look in looks], axis=0)))
            found = certainly(looks, Look.one_sided, None) if self.witness is None else None
            if found is not None:
                self.witness = at_point(found, looks[0], pair, batch)
            if self.both and self.witness is not None:
                return


def _clearest(pair: SlicedPair, inputs: Sequence[Array]) -> Sequence[Look]:
    """The points in float64, and with more digits where float64 does not know what is defined."""
    looks = pair.in_floats(inputs)
    if all(look.settled.all() for look in looks) or not pair.affordable:
        return looks
    return pair.precisely(inputs, pair.affordable[0])


def _text(ours: Sequence[Condition], theirs: Sequence[Condition], *, sampled: bool) -> str:
    """Conditions as a sentence; those of one side say so."""
    never = [_never(c, side) for side, found in (("left", ours), ("right", theirs)) for c in found if c.impossible]
    if never:
        return "; ".join(dict.fromkeys(never))
    both = _written(ours) & _written(theirs)
    parts = [f"{what} ({operation})" for what, operation in _ordered(ours, both, inside=True)]
    for side, found in (("left", ours), ("right", theirs)):
        parts += [f"{what} ({operation}, {side} only)" for what, operation in _ordered(found, both, inside=False)]
    text = f"defined where {' and '.join(parts)}"
    return f"{text}; no input was found where both are" if sampled else text


def _ordered(found: Sequence[Condition], both: frozenset[str], *, inside: bool) -> Iterator[tuple[str, str]]:
    """Conditions and what needs them, each once, in the order of the program."""
    operations = {str(condition): condition.operation for condition in reversed(found) if (str(condition) in both) == inside}
    yield from reversed(operations.items())


def _written(found: Sequence[Condition]) -> frozenset[str]:
    return frozenset(str(condition) for condition in found)


def _never(condition: Condition, side: str) -> str:
    words = {Signs.NOT_NEGATIVE: "always < 0", Signs.POSITIVE: "never > 0", Signs.NOT_ZERO: "always 0"}
    return f"the {side} is undefined everywhere: {condition.operation} of {condition.formula}, which is {words[condition.needed]}"
