"""Where two programs differ, in terms that anyone can check: an output element, its two values, and the inputs that give them.

Inputs are looked for at which two programs certainly differ. Enclosures in float64 show nearly every difference that there is.
What is smaller than their rounding, or stands where they overflow, is looked for with many digits. Nothing is returned that
rounding could have made, nor what the programs give where one of them has no value: those are equal that are equal wherever both
are defined, unless that is nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.cores import cores_of
from mugraph.ir.graph import Graph
from mugraph.verifier.certainty import Element, Look, Place, SlicedPair, certainly
from mugraph.verifier.enclosures import NotEnclosed
from mugraph.verifier.points import Point, points
from mugraph.verifier.signs import conditions, signs_of

_WRITTEN_OUT = 1 << 16
"""Elements of all inputs that are written out: larger ones have their recipe."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A difference between two programs.

    `text` says it in a sentence. For a differing element, `output` and `index` name it, `left` and `right` are its values (NaN
    for one that does not exist), with all digits that are certain in `left_text` and `right_text`, and `inputs` the float64
    inputs that produce them (None when the values are residues of a finite field). `arithmetic` says by what means they were
    told apart. `recipe` says how the inputs were drawn, but for those that are `fixed`. Programs of different signatures differ
    without inputs.
    """

    text: str
    output: int | None = None
    index: tuple[int, ...] | None = None
    left: float | None = None
    right: float | None = None
    inputs: tuple[Array, ...] | None = None
    arithmetic: str = ""
    left_text: str = ""
    right_text: str = ""
    recipe: Mapping[str, object] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()

    def repeated(self, shapes: Sequence[tuple[int, ...]]) -> Counterexample:
        """The same at inputs of these shapes, which have larger dimensions where the inputs have size 1."""
        if self.inputs is None:
            return self
        inputs = tuple(np.broadcast_to(array, shape) for array, shape in zip(self.inputs, shapes, strict=True))
        return replace(self, inputs=inputs)

    def replay(self, left: Graph, right: Graph) -> bool:
        """Whether two kernel graphs certainly differ, here: evaluated again in intervals, with more digits until it shows.

        False for residues of finite fields, which say nothing about numbers.
        """
        if signature_mismatch(left, right) is not None:
            return self.output is None
        if self.inputs is None or self.output is None or self.index is None:
            return False
        if (cores := cores_of(left, right)) is not None:
            left, right = cores.cores
        pair = SlicedPair.of(left, right, dict(enumerate(self.inputs)))
        inputs = [pair.fixed[number][np.newaxis] for number in range(len(self.inputs))]
        place = pair.sliced(self.output, self.index)
        questions = (Look.difference, Look.one_sided)
        try:
            return any(certainly(looks, what, place) for looks in pair.looks(inputs) for what in questions)
        except NotEnclosed:
            return False

    def to_json(self) -> dict[str, object]:
        """All of it as JSON; inputs as exact hexadecimal floats, dimensions along which they repeat having size 1.

        Large inputs are left to the recipe (`mugraph.verifier.points`), and fixed ones to who fixed them.
        """
        record: dict[str, object] = {"text": self.text}
        if self.output is None or self.index is None:
            return record
        record |= {"output": self.output, "index": list(self.index), "left": self.left_text, "right": self.right_text}
        record |= {"arithmetic": self.arithmetic, "recipe": dict(self.recipe)}
        if self.inputs is not None:
            record["inputs"] = self._written_inputs(self.inputs)
        return record

    def _written_inputs(self, inputs: Sequence[Array]) -> list[dict[str, object]]:
        distinct = [_distinct(array) for array in inputs]
        short = sum(array.size for number, array in enumerate(distinct) if number not in self.fixed) <= _WRITTEN_OUT
        written = []
        for number, (array, part) in enumerate(zip(inputs, distinct, strict=True)):
            entry: dict[str, object] = {"shape": list(array.shape), "distinct": list(part.shape)}
            if number in self.fixed:
                entry["fixed"] = True
            elif short:
                entry["values"] = [float(value).hex() for value in part.flat]
            written.append(entry)
        return written

    def __str__(self) -> str:
        return self.text


def witness(found: Element, what: str, pair: SlicedPair, inputs: Sequence[Array], recipe: Mapping[str, object]) -> Counterexample:
    """The counterexample that an element of a slice is, by arithmetic and inputs as `what` says them; its inputs are slices'."""
    number, (_, *place) = found.place
    index = tuple(place)
    left, right = found.written()
    sides = f"{left} against {right}"
    if found.left.middle is None or found.right.middle is None:
        defined, missing = ("right", "left") if found.left.middle is None else ("left", "right")
        value = right if found.left.middle is None else left
        sides = f"the {missing} is undefined, the {defined} is {value}"
    return Counterexample(
        f"output {number} differs at {list(index)}: {sides} ({what})",
        number,
        index,
        float(found.left),
        float(found.right),
        tuple(inputs),
        what,
        left,
        right,
        recipe,
        tuple(pair.fixed),
    )


def signature_mismatch(a: Graph, b: Graph) -> Counterexample | None:
    """How two kernel graphs differ in the number or the shapes of their inputs or outputs."""
    for what, left, right in (
        ("input", [node.output.shape for node in a.inputs()], [node.output.shape for node in b.inputs()]),
        ("output", [t.shape for t in a.output_tensors], [t.shape for t in b.output_tensors]),
    ):
        if len(left) != len(right):
            return Counterexample(f"one takes or gives {len(left)} {what}s, the other {len(right)}")
        for number, (shape, other) in enumerate(zip(left, right, strict=True)):
            if shape != other:
                return Counterexample(f"{what} {number} has shape {list(shape)} in one and {list(other)} in the other")
    return None


def _distinct(array: Array) -> Array:
    """The array without the repetitions along dimensions in which it repeats in memory."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def mismatch(output: int, left: Array, right: Array, differs: Array, arithmetic: str) -> Counterexample:
    """The first element of output number `output` where the mask `differs` is set, of residues."""
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differs)), differs.shape))
    mine, other = left[index].item(), right[index].item()
    text = f"output {output} differs at {list(index)}: {mine:.10g} against {other:.10g} ({arithmetic})"
    return Counterexample(text, output, index, mine, other)


_PATIENCE = 5.0
"""Seconds that a search takes at most, unless it is given another deadline."""
_ROUNDS = (2, 12)
"""Points of each kind at which float64 looks, at least and at most: ..."""
_ELEMENTS = 512
"""... as many as have so many elements between them, since a slice may be a single number."""
_PRECISE = {256: 20, 1280: 4, 5120: 1}
"""Points at which so many digits look, at most."""

_AT_ONCE = 1 << 18
"""Elements of inputs that are looked at together in float64; with more digits, so many fewer."""
_TOGETHER = 40
"""Points at most: the first often suffice."""

Question = Callable[[Look, Place | None], Element | None]


def find_witness(
    left: Graph, right: Graph, *, seed: int, fixed: Mapping[int, Array] | None = None, deadline: float | None = None
) -> Counterexample | None:
    """Inputs at which two kernel graphs, flat or with kernels, certainly have different values; None where none was found.

    Where one of them has no value at any input, by the signs of what it takes roots and logarithms of or divides by, inputs at
    which the other has one. `fixed` inputs, by number, keep their values. The search ends at the `deadline` (of
    time.monotonic()), after 5 seconds by default. Constants that were read as other numbers than they were written as are taken
    both ways, and a witness holds in both. Different signatures are a witness without inputs.
    """
    mismatch = signature_mismatch(left, right)
    if mismatch is not None:
        return mismatch
    given = dict(fixed or {})
    end = time.monotonic() + _PATIENCE if deadline is None else deadline
    never = any(condition.impossible for graph in (left, right) for condition in conditions(graph, signs_of(given)))
    try:
        pair = SlicedPair.of(left, right, given, end)
        return whole(first(pair, Look.one_sided if never else Look.difference, seed), left, given)
    except (BudgetExceeded, NotEnclosed):
        return None


def first(pair: SlicedPair, question: Question, seed: int) -> Counterexample | None:
    """The first element of a slice at which the answer is certain, at points of many kinds, in float64 and then with more digits.

    Raises BudgetExceeded after the pair's deadline, and NotEnclosed where nothing can be certain.
    """
    for batch, looks in _looks(pair, points((pair.left, pair.right), seed, _rounds(pair))):
        found = certainly(looks, question, None)
        if found is not None:
            return at_point(found, looks[0], pair, batch)
    return None


def _rounds(pair: SlicedPair) -> int:
    least, most = _ROUNDS
    return min(most, max(least, _ELEMENTS // max(1, sum(tensor.elements for tensor in pair.inputs))))


def at_point(found: Element, look: Look, pair: SlicedPair, batch: Sequence[Point]) -> Counterexample:
    """The counterexample that an element is, seen in a look at a batch of points."""
    point = batch[found.place[1][0]]
    what = f"{look.arithmetic.name}, {point}"
    return witness(found, what, pair, point.inputs(pair.inputs, pair.fixed), point.to_json())


def batches(pair: SlicedPair, drawn: Sequence[Point], elements: int) -> Iterator[tuple[Sequence[Point], list[Array]]]:
    """Points, as many at once as have so many elements, and their inputs, stacked."""
    size = min(_TOGETHER, max(1, elements // max(1, sum(tensor.elements for tensor in pair.inputs))))
    for start in range(0, len(drawn), size):
        batch = drawn[start : start + size]
        inputs = [point.inputs(pair.inputs, pair.fixed) for point in batch]
        yield batch, [np.stack(arrays) for arrays in zip(*inputs, strict=True)]


def whole(found: Counterexample | None, graph: Graph, fixed: Mapping[int, Array]) -> Counterexample | None:
    """What was found on a slice, at inputs of the full shapes."""
    if found is None or found.inputs is None:
        return found
    shapes = [node.output.shape for node in graph.inputs()]
    inputs = tuple(
        np.asarray(fixed[number], np.float64) if number in fixed else np.broadcast_to(array, shape)
        for number, (array, shape) in enumerate(zip(found.inputs, shapes, strict=True))
    )
    return replace(found, inputs=inputs)


def _looks(pair: SlicedPair, drawn: Sequence[Point]) -> Iterator[tuple[Sequence[Point], list[Look]]]:
    for batch, inputs in batches(pair, drawn, _AT_ONCE):
        yield batch, pair.in_floats(inputs)
    settled: set[Point] = set()
    for digits in pair.affordable:
        open_points = [point for point in drawn[: _PRECISE[digits]] if point not in settled]
        for batch, inputs in batches(pair, open_points, _AT_ONCE // digits):
            looks = pair.precisely(inputs, digits)
            yield batch, looks
            exact = np.all([look.exact for look in looks], axis=0)
            settled.update(point for point, done in zip(batch, exact, strict=True) if done)
