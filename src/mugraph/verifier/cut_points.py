"""Proofs that compose: tensors that both programs compute cut them into pieces, which are proved from the inputs outwards.

Tests of a whole program have a bound only while degrees and exponentials are few: one attention upon another has none. So float64
looks for tensors of the two graphs that seem to be equal, and each pair is proved from those below it, which are fresh inputs by
then. What is equal for every value of the fresh inputs is equal for those that the tensors have, so that the graphs are equal
where both are defined, and a wrong answer takes one of the pieces to be wrong: their bounds add up (docs/theory.md, "Proofs that
compose"). A cut that hides what a later piece needs to know is passed over, and costs an answer at most.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from mugraph.errors import BudgetExceeded, InvalidInput
from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import VIEWS, Graph, Level, Tensor, Value
from mugraph.support.deadline import late
from mugraph.verifier.certificate import Certificate, ProvedPiece, digest
from mugraph.verifier.close_tensors import CloseTensors
from mugraph.verifier.known_values import Known
from mugraph.verifier.parallel_axes import ParallelAxis, Slice, at_equal_slices, shared_slice, simple_slice
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

_CLOSE = 1e-9
_POINTS: tuple[Callable[[Array], Array], ...] = (lambda x: x / 2, lambda x: x / 64, lambda x: np.abs(x) / 4)
"""Inputs at which tensors are compared, of normal ones: small, too, for exponentials that are not shifted, and positive."""
_FEW = 1 << 20
"""Elements of all tensors up to which they are compared without looking for further slices, which takes as long."""
_MANY = 1 << 20
"""Elements of all tensors, for each operator, beyond which they are compared where slices that are added up are equal."""
_TRIES = 2
"""How often a pair is tried: on the cuts below it, and then without the nearest of them."""

Prove = Callable[[Graph, Graph, float, Known], Certificate | None]
"""Tests of two graphs up to an error, with the values of some of their inputs; None where no time is left."""


class Pair(NamedTuple):
    """A tensor of the left graph, and one of the right that is equal to it or seems to be."""

    left: Value
    right: Value


def composed(
    left: Graph, right: Graph, known: Known, max_error: float, provers: Sequence[Prove], deadline: float | None = None
) -> tuple[tuple[ProvedPiece, ...], int] | None:
    """The pieces of a proof that two kernel graphs on the same inputs are equal, and how many tries were passed over.

    Each piece is put to the provers in turn. The bounds on the error of all tries together are at most `max_error`. None where
    there is nothing to cut, or an output is not proved, at the `deadline` at the latest (of time.monotonic()). Pieces have other
    divisors than the graphs, as cuts are any numbers: who asks looks whether the graphs have a value anywhere
    (`mugraph.verifier.zero_divisors`).
    """
    outputs = list(map(Pair, left.outputs, right.outputs))
    try:
        proposed = _proposals(left, right, outputs, known, functools.partial(_in_time, deadline))
    except BudgetExceeded:
        return None
    if not set(proposed) - set(outputs):
        return None
    goals = tuple(dict.fromkeys([*proposed, *outputs]))
    share = max_error / 2 ** math.ceil(math.log2(_TRIES * len(provers) * len(goals)))
    chain = _Chain((_Numbered.of(left), _Numbered.of(right)), known, share, provers)
    for goal in goals:
        if late(deadline) or (not chain.proves(goal) and goal in outputs):
            break
    proved = {Pair(piece.left, piece.right) for piece in chain.pieces}
    return (tuple(chain.pieces), chain.passed_over) if proved.issuperset(outputs) else None


def _in_time(deadline: float | None) -> None:
    """Raise BudgetExceeded where no time is left."""
    if late(deadline):
        raise BudgetExceeded("no time is left to look for tensors that both graphs compute")


def graphs_of(left: Graph, right: Graph, pieces: Sequence[ProvedPiece]) -> Iterator[tuple[Graph, Graph, tuple[int, ...]]]:
    """Both sides of each piece of a proof, and the numbers of the graphs' inputs that they take before the cuts."""
    sides = _Numbered.of(left), _Numbered.of(right)
    for piece in pieces:
        cuts = [[Pair(pieces[number].left, pieces[number].right) for number in members] for members in piece.cuts]
        yield _sides(sides, Pair(piece.left, piece.right), cuts)


def of_inputs(known: Known, inputs: Sequence[int]) -> Known:
    """The known values of these inputs, by their places among them."""
    return {place: known[number] for place, number in enumerate(inputs) if number in known}


def semantics_of(pieces: Sequence[ProvedPiece]) -> tuple[tuple[str, str], ...]:
    """What operators mean in the tests of pieces, in words by name."""
    meant: dict[str, list[str]] = {}
    for piece in pieces:
        for name, text in piece.certificate.semantics:
            meant.setdefault(name, []).append(text)
    return tuple((name, "; elsewhere: ".join(dict.fromkeys(texts))) for name, texts in sorted(meant.items()))


def check_pieces(left: Graph, right: Graph, pieces: Sequence[ProvedPiece]) -> None:
    """Raise InvalidInput unless pieces are of tensors of the graphs, cut at what is equal, and the outputs are among them."""
    pairs = [Pair(piece.left, piece.right) for piece in pieces]
    sides = [(graph, graph.needed()) for graph in (left, right)]
    free: list[bool] = []
    for number, (pair, piece) in enumerate(zip(pairs, pieces, strict=True)):
        for (graph, needed), value in zip(sides, pair, strict=True):
            if not (0 <= value.node < len(graph.nodes) and 0 <= value.output < len(graph.nodes[value.node].outputs)):
                raise InvalidInput(f"certificate: piece {number} is of no tensors of the graphs")
            if value.node not in needed:
                raise InvalidInput(f"certificate: piece {number} is of a tensor that no output needs")
        if piece.certificate.pieces:
            raise InvalidInput(f"certificate: piece {number} is in pieces itself")
        if left.tensor(pair.left).shape != right.tensor(pair.right).shape:
            raise InvalidInput(f"certificate: piece {number} is of tensors of different shapes")
        if not all(_are_linked([pairs[earlier] for earlier in members]) for members in piece.cuts):
            raise InvalidInput(f"certificate: piece {number} has a cut whose tensors are not shown to be equal")
        if any(len(members) > 1 and not all(free[earlier] for earlier in members) for members in piece.cuts):
            raise InvalidInput(f"certificate: piece {number} has a cut of several pairs, equal only where all of it is defined")
        free.append(_is_free(piece, free))
    if not {*map(Pair, left.outputs, right.outputs)} <= {*pairs}:
        raise InvalidInput("certificate: there is no piece for some of the outputs")


def _are_linked(pairs: Sequence[Pair]) -> bool:
    """Whether each pair has a tensor of one before it."""
    return all(
        any(pair.left == other.left or pair.right == other.right for other in pairs[:n]) for n, pair in enumerate(pairs) if n
    )


def _is_free(piece: ProvedPiece, free: Sequence[bool]) -> bool:
    """Whether a piece, and those it is cut at, hold for any functions: then what is equal to the same tensor is equal, even where
    that one has no value. `free` says so of the pieces before it."""
    difference = piece.certificate.difference
    alone = difference is None or (difference.radicand is None and not difference.properties)
    return alone and all(free[earlier] for members in piece.cuts for earlier in members)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A kernel graph whose inputs were numbered, once for all that is cut out of it."""

    graph: Graph
    inputs: Sequence[int]
    """The nodes that are inputs, in order."""
    numbers: Mapping[int, int]
    """The number of each."""

    @classmethod
    def of(cls, graph: Graph) -> _Numbered:
        inputs = [index for index, node in enumerate(graph.nodes) if node.is_input]
        return cls(graph, inputs, {index: number for number, index in enumerate(inputs)})


_Graphs = tuple[_Numbered, _Numbered]
"""The left and the right graph."""


def _sides(graphs: _Graphs, goal: Pair, cuts: Sequence[Sequence[Pair]]) -> tuple[Graph, Graph, tuple[int, ...]]:
    """Both sides of a pair on cuts, each a list of pairs that are all equal."""
    stops = [{pair[side]: number for number, cut in enumerate(cuts) for pair in cut} for side in (0, 1)]
    cones = [_Cone.of(graph, value, stop.__contains__) for graph, value, stop in zip(graphs, goal, stops, strict=True)]
    inputs = tuple(sorted(cones[0].inputs | cones[1].inputs))
    fresh = [graphs[0].graph.tensor(cut[0].left) for cut in cuts]
    sides = zip(graphs, goal, cones, stops, strict=True)
    ours, theirs = (_side(graph, value, cone, inputs, stop, fresh) for graph, value, cone, stop in sides)
    return ours, theirs, inputs


@dataclass(frozen=True, slots=True)
class _Cone:
    """What a value is computed of: nodes, inputs by number, and the values at which the walk stopped."""

    nodes: frozenset[int]
    inputs: frozenset[int]
    met: frozenset[Value]

    @classmethod
    def of(cls, side: _Numbered, goal: Value, is_stop: Callable[[Value], bool]) -> _Cone:
        """The cone of a value, above the stops but for the value itself."""
        nodes: set[int] = set()
        inputs: set[int] = set()
        met: set[Value] = set()
        waiting = [goal]
        while waiting:
            value = waiting.pop()
            if value != goal and is_stop(value):
                met.add(value)
            elif value.node in side.numbers:
                inputs.add(side.numbers[value.node])
            elif value.node not in nodes:
                nodes.add(value.node)
                waiting += side.graph.nodes[value.node].inputs
        return cls(frozenset(nodes), frozenset(inputs), frozenset(met))


def _side(
    side: _Numbered, goal: Value, cone: _Cone, inputs: Sequence[int], stops: Mapping[Value, int], fresh: Sequence[Tensor]
) -> Graph:
    """One side of a piece. Inputs are named by their places, so that equal pieces are equal graphs."""
    builder, graph, places = GraphBuilder(Level.KERNEL), side.graph, side.inputs
    given = [graph.nodes[places[number]].output for number in inputs]
    variables = [builder.input(f"x{number}", tensor.shape, tensor.dtype) for number, tensor in enumerate([*given, *fresh])]
    moved = {Value(places[number]): variable for number, variable in zip(inputs, variables, strict=False)}
    moved |= {value: variables[len(inputs) + number] for value, number in stops.items() if value in cone.met}
    for index in sorted(cone.nodes):
        node = graph.nodes[index]
        copy = builder.append(replace(node, inputs=tuple(moved[value] for value in node.inputs)))
        for output in range(len(node.outputs)):
            moved.setdefault(Value(index, output), Value(copy.node, output))
    return builder.build([moved[goal]])


@dataclass(frozen=True, slots=True)
class _Open:
    """Whether a walk stops at a value: at those with a place among cuts, but for those that it is to pass."""

    places: Mapping[Value, int]
    passed: Collection[int]

    def __call__(self, value: Value) -> bool:
        return value in self.places and self.places[value] not in self.passed


class _Answer(NamedTuple):
    """A certificate that the sides of a piece are equal, if there is one, whether it is of these `unchanged`, not by identities,
    and how many provers were asked in vain."""

    certificate: Certificate | None
    unchanged: bool
    passed_over: int

    @classmethod
    def of(cls, provers: Sequence[Prove], left: Graph, right: Graph, max_error: float, known: Known) -> _Answer:
        """What the first prover says that shows two graphs to be equal."""
        for number, prove in enumerate(provers):
            certificate = prove(left, right, max_error, known)
            if certificate is not None and certificate.accepted:
                return cls(certificate, (certificate.left, certificate.right) == (digest(left), digest(right)), number)
        return cls(None, False, len(provers))


@dataclass(slots=True)
class _Chain:
    """A proof on its way: pieces, each proved from those before it."""

    graphs: _Graphs
    known: Known
    share: float
    """The error that each try may have."""
    provers: Sequence[Prove]
    pieces: list[ProvedPiece] = field(default_factory=list)
    passed_over: int = 0
    _free: list[bool] = field(default_factory=list)
    """Which pieces hold for any functions."""
    _equal: list[list[int]] = field(default_factory=list)
    """Numbers of pieces whose tensors are all equal."""
    _places: tuple[dict[Value, int], dict[Value, int]] = field(default_factory=lambda: ({}, {}))
    """Where tensors of either graph stand among those."""
    _asked: dict[tuple[Graph, Graph, tuple[tuple[int, int], ...]], _Answer] = field(default_factory=dict)
    """What is known of pieces, by their sides and by which known values their inputs have."""

    def proves(self, goal: Pair) -> bool:
        """Try to prove a pair from what is proved."""
        hidden = set[int]()
        for _ in range(_TRIES):
            used = self._shared(goal, hidden)
            if self._proved(goal, used):
                return True
            if not used:
                return False
            hidden.update(used)
        return False

    def _shared(self, goal: Pair, hidden: Collection[int]) -> list[int]:
        """Of the cuts but the `hidden` those that both sides of a pair are computed of, when what only one is computed of is no
        cut."""
        passed = set(hidden)
        while True:
            met = [
                {places[stop] for stop in _Cone.of(graph, value, _Open(places, passed)).met}
                for graph, value, places in zip(self.graphs, goal, self._places, strict=True)
            ]
            if met[0] == met[1]:
                return sorted(met[0])
            passed |= met[0] ^ met[1]

    def _proved(self, goal: Pair, used: Sequence[int]) -> bool:
        cuts = tuple(tuple(self._equal[number]) for number in used)
        pairs = [[Pair(self.pieces[number].left, self.pieces[number].right) for number in members] for members in cuts]
        answer = self._answer(*_sides(self.graphs, goal, pairs))
        self.passed_over += answer.passed_over
        if answer.certificate is None:
            return False
        piece = ProvedPiece(goal.left, goal.right, cuts, answer.certificate)
        self._keep(piece, answer.unchanged and _is_free(piece, self._free))
        return True

    def _answer(self, left: Graph, right: Graph, inputs: Sequence[int]) -> _Answer:
        """What the provers say of the sides of a piece. They are asked once about equal ones, and what one answer counts for is
        counted for each."""
        known = of_inputs(self.known, inputs)
        question = left, right, tuple((place, inputs[place]) for place in sorted(known))
        if question not in self._asked:
            self._asked[question] = _Answer.of(self.provers, left, right, self.share, known)
        return self._asked[question]

    def _keep(self, piece: ProvedPiece, free: bool) -> None:
        """Make a pair a cut, or join it to one that has a tensor of it if both are free; two cuts stay two."""
        self.pieces.append(piece)
        self._free.append(free)
        ours, theirs = (places.get(value) for places, value in zip(self._places, (piece.left, piece.right), strict=True))
        if ours is not None and theirs is not None:
            return
        number = ours if ours is not None else theirs
        if number is None:
            number = len(self._equal)
            self._equal.append([])
        elif not (free and all(self._free[earlier] for earlier in self._equal[number])):
            return
        self._equal[number].append(len(self.pieces) - 1)
        for places, value in zip(self._places, (piece.left, piece.right), strict=True):
            places[value] = number


def _proposals(left: Graph, right: Graph, outputs: Sequence[Pair], known: Known, pulse: Pulse = lambda: None) -> list[Pair]:
    """Tensors that float64 takes to be equal, in the order of the right graph; none where it tells outputs apart. `pulse` is
    called before each tensor is computed, and before it is compared."""
    if len(right.kernels()) < 2:
        return []
    ours, theirs = _of_equal_slices(left, right, known, pulse) or [
        _values(graph, known, pulse) for graph in _small(left, right, known)
    ]
    if not all(_agree(ours[pair.left], theirs[pair.right]) for pair in outputs):
        return []
    return list(_close_pairs(left, right, ours, theirs, pulse))


def _close_pairs(left: Graph, right: Graph, ours: _Columns, theirs: _Columns, pulse: Pulse) -> Iterator[Pair]:
    """Tensors of one shape that are close, but for pairs of views, in the order of the right graph and then of the left one."""
    among = CloseTensors({value: ours[value] for value in _computed(left)}, _CLOSE)
    for value in _computed(right):
        pulse()
        for other in among.near(theirs[value]):
            views = _is_view(left, other) and _is_view(right, value)
            if not views and left.tensor(other).shape == right.tensor(value).shape and _agree(ours[other], theirs[value]):
                yield Pair(other, value)


def _computed(graph: Graph) -> list[Value]:
    """The tensors of numbers that outputs need, but for inputs and constants."""
    return [
        Value(index, output)
        for index in sorted(graph.needed())
        for output, tensor in enumerate(graph.nodes[index].outputs)
        if tensor.dtype.is_floating and not (graph.nodes[index].is_input or graph.nodes[index].is_constant)
    ]


def _is_view(graph: Graph, value: Value) -> bool:
    """Whether a tensor is another's memory: two such are what they are views of, which is the cut."""
    return graph.nodes[value.node].op in VIEWS


def _small(left: Graph, right: Graph, known: Known) -> tuple[Graph, Graph]:
    """Slices of the graphs that have the same nodes and inputs as `known` says, or the graphs themselves.

    Where slices at single positions are still large, heads are cut too, and rows that are merged with them.
    """

    def is_kept(before: Graph, after: Graph, axis: ParallelAxis) -> bool:
        return not axis.sums and _is_uniform(axis, known)

    found = Slice(left, right, ()) if known else simple_slice(left, right)
    if _elements(found.left) + _elements(found.right) > _FEW:
        found = shared_slice(found.left, found.right, is_kept, simple=False)
    kept = all(
        [node.op for node in graph.nodes] == [node.op for node in cut.nodes]
        for graph, cut in ((left, found.left), (right, found.right))
    )
    return (found.left, found.right) if kept else (left, right)


def _is_uniform(axis: ParallelAxis, known: Known) -> bool:
    """Whether no known value stands along an axis: one slice of it would not stand for all."""
    return all(axis.inputs[number] is None for number in known)


def _elements(graph: Graph) -> int:
    """How many all tensors of a kernel graph have."""
    return sum(tensor.elements for node in graph.nodes for tensor in node.outputs)


_Columns = Mapping[Value, Sequence[Array | None]]
"""What tensors are at some points, None where some of it is not finite."""


class _Divisions(FloatArithmetic):
    """Arithmetic that remembers whether anything was divided by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.by_zero = False

    def div(self, x: Array, y: Array) -> Array:
        """The quotient."""
        self.by_zero |= bool(np.any(y == 0))
        return super().div(x, y)


def _of_equal_slices(left: Graph, right: Graph, known: Known, pulse: Pulse) -> list[_Columns] | None:
    """The same of large graphs where all slices are equal that are added up, so that one of them is drawn: weights of a hidden
    layer, say. None where graphs are small, or something is divided by zero, as differences of slices may be there alone."""
    if _elements(left) + _elements(right) < _MANY * (len(left.nodes) + len(right.nodes)):
        return None
    found = shared_slice(left, right, lambda before, after, axis: _is_uniform(axis, known), simple=False)
    if not any(axis.sums for axis in found.axes):
        return None
    divisions = _Divisions()
    sides = [_evaluated(at_equal_slices(_asked(graph), found.axes), known, pulse, divisions) for graph in (left, right)]
    return None if divisions.by_zero else [_columns(graph, arrays) for graph, arrays in zip((left, right), sides, strict=True)]


def _values(graph: Graph, known: Known, pulse: Pulse) -> _Columns:
    """What the tensors are that are compared."""
    return _columns(graph, _evaluated(_asked(graph), known, pulse, FloatArithmetic()))


def _asked(graph: Graph) -> Graph:
    """The same graph, whose outputs are what is compared: all that it computes, and its outputs."""
    return graph.with_nodes(graph.nodes, tuple(dict.fromkeys([*_computed(graph), *graph.outputs])))


def _columns(graph: Graph, found: Sequence[Sequence[Array]]) -> _Columns:
    """What is compared, from the outputs of `_asked` at each point."""
    columns = zip(_asked(graph).outputs, zip(*found, strict=True), strict=True)
    return {value: [array if np.isfinite(array).all() else None for array in arrays] for value, arrays in columns}


def _evaluated(asked: Graph, known: Known, pulse: Pulse, arithmetic: FloatArithmetic) -> list[list[Array]]:
    """The outputs of a graph at each of the points."""
    found: list[list[Array]] = []
    for number, point in enumerate(_POINTS):
        rng = np.random.default_rng(number)
        inputs = []
        for place, node in enumerate(asked.inputs()):
            pulse()
            drawn = point(rng.standard_normal(node.output.shape))
            inputs.append(known.get(place, drawn))
        with np.errstate(all="ignore"):
            found.append(evaluate_batched(asked, inputs, arithmetic, pulse))
    return found


def _agree(ours: Sequence[Array | None], theirs: Sequence[Array | None]) -> bool:
    """Whether two tensors are close at every point where all their elements are finite, and there is such a point."""
    finite = [(x, y) for x, y in zip(ours, theirs, strict=True) if x is not None and y is not None]
    return bool(finite) and all(_close(x, y) for x, y in finite)


def _close(x: Array, y: Array) -> bool:
    if x.shape != y.shape:
        return False
    first, other = x.ravel()[:1], y.ravel()[:1]  # most pairs differ there, and are many
    if np.abs(first - other).max(initial=0.0) > _CLOSE * float(np.abs(x).max(initial=0.0)) * 2:
        return False
    return bool(np.allclose(x, y, rtol=_CLOSE, atol=_CLOSE * float(np.abs(x).max(initial=0.0))))
