"""Sketches as text; `parse_sketch` reads back what `format_sketch` prints, so that what a rewriting does travels as a few lines.

    sketch a b c loop b {
      | %0: a b = load #0 [a, b]
      | %1: b c = load #1 [b, c]
      | %2: a c = contract(%0, %1) over b
      | %3: a b = square(%0)
      | %4: a = sum(%3) over b
        %5: a c = accumulate(%2) over b
        %6: a = accumulate(%4) over b
        %7: a = sqrt(%6)
        %8: a c = div(%5, %7)
      return %8
    }

The head names the axes, and the one that the for-loop cuts. A line is a step: its number, the axes of what it makes (1 for none),
its operator, the steps that it reads, the axes that it reduces, and for a load which device tensor it reads along which axes. The
bar marks the steps inside the for-loop; there, `whole` ones see all of the loop's axis in every iteration. `least lowest` stands
behind a maximum that is over the lowest number, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.errors import InvalidInput
from mugraph.ir.axes import AxisSet
from mugraph.ir.axes_text import AxisCursor, axes_word, axis_letter, slots_text
from mugraph.ir.ops import LEAST, LOWEST
from mugraph.ir.scalar import Scalar
from mugraph.ir.tokens import Token, tokenize
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Sketch, Step, arity_of, check_step


def format_sketch(sketch: Sketch) -> str:
    """The text of a sketch, without a final newline."""
    mentioned = [axis for step in sketch.steps for axis in step.axes | step.reduced]
    count = 1 + max((*mentioned, -1 if sketch.loop_axis is None else sketch.loop_axis), default=-1)
    head = "".join(f" {axis_letter(axis)}" for axis in range(count))
    loop = "" if sketch.loop_axis is None else f" loop {axis_letter(sketch.loop_axis)}"
    lines = (f"  {'|' if step.in_loop else ' '} %{index}: {_step_text(step)}" for index, step in enumerate(sketch.steps))
    goals = ", ".join(f"%{goal}" for goal in sketch.goals)
    return "\n".join((f"sketch{head}{loop} {{", *lines, f"  return {goals}", "}"))


def _step_text(step: Step) -> str:
    if step.leaf is not None:
        what = f"load #{step.leaf.source} {slots_text(step.leaf.slots)}"
    elif step.is_constant:
        what = f"constant {step.scalar}"
    else:
        what = f"{step.op}({', '.join(f'%{i}' for i in step.inputs)})"
    over = f" over {axes_word(step.reduced)}" if step.reduced else ""
    least = f" least {LEAST}" if step.scalar is not None and not step.is_constant else ""
    return f"{axes_word(step.axes)} = {what}{over}{least}{' whole' if step.whole else ''}"


def parse_sketch(text: str) -> Sketch:
    """The sketch that a text stands for; raises InvalidInput with line and column where it is none."""
    parser = _Parser(tokenize(text))
    sketch = parser.sketch()
    parser.expect("end", "the end of the text")
    return sketch


class _Parser(AxisCursor):
    """Every method reads one construct of the grammar and moves past it."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self.loop_axis: int | None = None

    def sketch(self) -> Sketch:
        self.expect("name", "sketch", {"sketch"})
        while not self.at("loop") and not self.at("{"):
            self.declare()
        if self.accept("loop"):
            self.loop_axis = self.axes[self.expect("name", "the axis of the for-loop", self.axes).text]
        self.punctuation("{")
        steps: list[Step] = []
        while not self.accept("return"):
            steps.append(self._step(steps))
            self.defined += 1
        goals = tuple(self.separated(lambda: self._goal(steps)))
        self.punctuation("}")
        return Sketch(tuple(steps), goals, self.loop_axis)

    def _step(self, steps: Sequence[Step]) -> Step:
        in_loop = self.accept("|")
        name = self.expect("value", f"%{self.defined} or return", {f"%{self.defined}"})
        self.punctuation(":")
        axes = frozenset(self.slot())
        self.punctuation("=")
        op = self.expect("name", "load, constant, or the operator of a step")
        leaf, scalar, inputs = self._read(op)
        reduced: AxisSet = frozenset(self.slot()) if self.accept("over") else frozenset()
        if self.accept("least"):
            self.expect("name", LEAST, {LEAST})
            scalar = LOWEST
        step = Step(op.text, inputs, axes, in_loop, reduced, leaf, scalar, self.accept("whole"))
        try:
            check_step(step, [steps[operand] for operand in inputs], self.loop_axis)
        except InvalidInput as error:
            raise name.fail(str(error)) from None
        return step

    def _goal(self, steps: Sequence[Step]) -> int:
        name = self.peek()
        goal = self.reference()
        if steps[goal].in_loop:
            raise name.fail(f"%{goal} stands inside the for-loop, and outputs are saved after it")
        return goal

    def _read(self, op: Token) -> tuple[Leaf | None, Scalar | None, tuple[int, ...]]:
        """What stands behind an operator: a device tensor, a number, or the steps that it reads."""
        if op.text == "load":
            source = int(self.expect("operand", "an input of the program, such as #0").text[1:])
            return Leaf(source, self.slots()), None, ()
        if op.text == "constant":  # by name: a keyword of the text
            return None, self.scalar(), ()
        arity = arity_of(op.text)
        if arity is None:
            raise op.error("load, constant, or the operator of a step")
        inputs = tuple(self.listed("(", self.reference, ")"))
        if len(inputs) != arity:
            raise op.fail(f"{op.text} reads {arity} steps, not {len(inputs)}")
        return None, None, inputs
