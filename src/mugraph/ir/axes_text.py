"""Axis programs as text; `parse_axes` reads back what `format_axes` prints, so that what a pass does travels as a few lines.

    axis_program a=8 b=64 c=128 {
      %0 = load #0 [a, b]
      %1 = load #1 [b, c]
      %2 = contract(%0, %1) over b
      %3 = square(%0)
      %4 = sum(%3) over b
      %5 = sqrt(%4)
      %6 = div(%2, %5)
      return %6 [a, c]
    }

After the name come the sizes of all axes. A tensor's dimensions are listed with the axes that each is the product of, slowest
first (`[a b, 1]`; 1 where there are none). `finer [b c, d]` in front of the brace lists further sets of axes that may be reduced
together, `projective` says that outputs are wanted up to a factor per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mugraph.errors import InvalidInput
from mugraph.ir.axes import AxisProgram, AxisSet, Slots, Term
from mugraph.ir.ops import OPERATORS, is_scan
from mugraph.ir.scalar import Scalar
from mugraph.ir.tokens import Cursor, Token, tokenize

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_REDUCTIONS = ("contract", "sum", "max")


def axis_letter(axis: int) -> str:
    """What an axis is called: a, b, ..., z, a26, a27, ..."""
    return _LETTERS[axis] if axis < len(_LETTERS) else f"a{axis}"


def format_axes(program: AxisProgram) -> str:
    """The text of an axis program, without a final newline."""
    sizes = "".join(f" {axis_letter(axis)}={size}" for axis, size in enumerate(program.sizes))
    finer = f" finer [{', '.join(map(axes_word, sorted(program.finer, key=sorted)))}]" if program.finer else ""
    outputs = ", ".join(f"%{term} {slots_text(slots)}" for term, slots in program.outputs)
    lines = (f"  %{index} = {_term_text(term)}" for index, term in enumerate(program.terms))
    projective = " projective" if program.projective else ""
    return "\n".join((f"axis_program{sizes}{finer}{projective} {{", *lines, f"  return {outputs}", "}"))


def axes_word(axes: Iterable[int]) -> str:
    """A set of axes by their letters; 1 for none."""
    return " ".join(map(axis_letter, sorted(axes))) or "1"


def slots_text(slots: Slots) -> str:
    """The dimensions of a tensor, each by the axes that it is the product of."""
    return f"[{', '.join(' '.join(map(axis_letter, slot)) or '1' for slot in slots)}]"


def _term_text(term: Term) -> str:
    if term.op == "load":
        return f"load #{term.source} {slots_text(term.slots)}"
    if term.scalar is not None:
        return f"constant {term.scalar}"
    over = f" over {axes_word(term.reduced)}" if term.reduced else ""
    return f"{term.op}({', '.join(f'%{i}' for i in term.inputs)}){over}"


def parse_axes(text: str) -> AxisProgram:
    """The axis program that a text stands for; raises InvalidInput with line and column where it is none."""
    parser = _Parser(tokenize(text))
    program = parser.program()
    parser.expect("end", "the end of the text")
    return program


class AxisCursor(Cursor):
    """Reads axes by the letters that were declared, and references to what has a number below `defined`."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self.axes: dict[str, int] = {}
        self.defined = 0

    def declare(self) -> None:
        """Read the letter of the next axis."""
        letter = axis_letter(len(self.axes))
        self.expect("name", f"axis {letter}", {letter})
        self.axes[letter] = len(self.axes)

    def reference(self) -> int:
        """Read `%` and the number of something that was defined."""
        token = self.expect("value", "a value defined above")
        if not token.text[1:].isdecimal() or int(token.text[1:]) >= self.defined:
            raise token.error("a value defined above")
        return int(token.text[1:])

    def slots(self) -> Slots:
        """Read the dimensions of a tensor."""
        return tuple(self.listed("[", self.slot, "]"))

    def slot(self) -> tuple[int, ...]:
        """Read some axes, or 1 for none."""
        if self.accept("1"):
            return ()
        names = [self.expect("name", f"an axis ({', '.join(self.axes)})", self.axes)]
        while self.peek().text in self.axes:
            names.append(self.take())
        return tuple(self.axes[name.text] for name in names)


class _Parser(AxisCursor):
    """Every method reads one construct of the grammar and moves past it."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self.terms: list[Term] = []

    def program(self) -> AxisProgram:
        self.expect("name", "axis_program", {"axis_program"})
        sizes = tuple(self._sizes())
        finer = frozenset(map(frozenset, self.slots())) if self.accept("finer") else frozenset[AxisSet]()
        projective = self.accept("projective")
        self.punctuation("{")
        while not self.accept("return"):
            self.terms.append(self._term())
            self.defined += 1
        outputs = self.separated(self._output)
        self.punctuation("}")
        return AxisProgram(tuple(self.terms), tuple(outputs), sizes, finer, projective)

    def _sizes(self) -> Iterator[int]:
        while self.at("=", 1):
            self.declare()
            self.punctuation("=")
            yield self.integer()

    def _output(self) -> tuple[int, Slots]:
        return self.reference(), self.slots()

    def _term(self) -> Term:
        name = self.expect("value", f"%{len(self.terms)} or return", {f"%{len(self.terms)}"})
        self.punctuation("=")
        op = self.expect("name", "load, constant, or an operator")
        if op.text == "load":
            source = int(self.expect("operand", "an input of the program, such as #0").text[1:])
            slots = self.slots()
            return Term("load", (), _axes_of(slots), source=source, slots=slots)
        # by name: a word of the grammar
        if op.text == "constant":
            scalar: Scalar = self.scalar()
            return Term("constant", (), frozenset(), scalar=scalar)
        row = OPERATORS.get(op.text)
        runs_over = op.text in _REDUCTIONS or is_scan(op.text)
        if not runs_over and (row is None or not row.elementwise):
            raise op.error("an elementwise operator, a scan, contract, sum or max")
        inputs = tuple(self.listed("(", self.reference, ")"))
        wanted = 2 if op.text == "contract" else 1 if row is None else row.arity
        if len(inputs) != wanted:
            raise name.fail(f"{op.text} takes {wanted} operands, not {len(inputs)}")
        reduced = frozenset(self.slot()) if self.accept("over") else frozenset[int]()
        depends = frozenset[int]().union(*(self.terms[i].axes for i in inputs))
        if not reduced <= depends or bool(reduced) != runs_over:
            raise name.fail(f"{op.text} runs over axes of its operands, if it is a reduction or a scan")
        return Term(op.text, inputs, depends if is_scan(op.text) else depends - reduced, reduced)


def _axes_of(slots: Slots) -> AxisSet:
    axes = [axis for slot in slots for axis in slot]
    if len(axes) != len({*axes}):
        raise InvalidInput(f"a tensor has an axis twice: {slots_text(slots)}")
    return frozenset(axes)
