"""Where two programs differ, in terms that anyone can check: an output element, its two values, and the inputs that give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph
from mugraph.verifier.balls import NotEnclosed
from mugraph.verifier.certainty import Element, Look, Pair, certainly

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
        pair = Pair.of(left, right, dict(enumerate(self.inputs)))
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


def witness(found: Element, what: str, pair: Pair, inputs: Sequence[Array], recipe: Mapping[str, object]) -> Counterexample:
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
