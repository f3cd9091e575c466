"""The tile form as text; `parse_kernel` reads back what `format_kernel` prints, so that what a pass does travels as text.

    kernel kernel_0 grid(4) loop(16) threads(128) resident(2) {
      buffer in0: fp16 device[16384]
      buffer tile1: fp32 shared[512] at 2048
      inputs in0, in1
      outputs out0
      before {
      }
      body {
        barrier
        matmul_5: tile1[16, 32 | 32, 1] += matmul fp16 (in0[16, 64 | 1024, 1 | 64 i], in1[64, 32 | 128, 1 | 32 b0, 8192 i])
      }
      after {
        mul_7: out0[16, 32 | 128, 1 | 32 b0] = "({0} * {1})"(#0, "0.125") (tile1[16, 32 | 32, 1])
      }
    }

A statement begins with its label, if it has one: the operator and the node of the block graph that it computes. A tile is
`buffer[shape | strides | start]`; its start is a sum of a constant, a number of elements for each grid dimension (`b0`, `b1`,
...) and for the iteration (`i`). A swizzled one ends in `^(bits, base, shift)`, and one whose places integers name in
`lookup(in1[...] stride(64) rows(100))`: the integers, the elements from row to row, and how many rows there are. `=` stores, `+=`
and `max=` combine with what is there; a reduction over the last dimension of its sources says how it combines (`sum over`, `max
over`). Expressions are templates of the operator table, or numbers, in quotation marks, and `#0` is the first source. A barrier
stands before the statement that threads meet at. `bands(0, 8)` says that eight neighbours along dimension 0 of the grid run one
after the other, and `chained` that the kernel may be launched before the one before it is over. `load 0 = body in0[...]` says
that node 0 of the block graph reads this window as one tile, in every iteration; `skip "-inf" in0[...]` that an iteration for
which all of this window is -inf may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from mugraph.errors import InvalidInput
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Value
from mugraph.ir.scans import SCANS
from mugraph.ir.tokens import Cursor, Token, tokenize
from mugraph.lower.phases import Phase
from mugraph.lower.places import Index, Swizzle
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source
from mugraph.lower.tile_form import (
    Bands,
    Buffer,
    Combine,
    Dequantization,
    Elementwise,
    Kernel,
    Load,
    Matmul,
    Memory,
    Panels,
    Reduce,
    Ring,
    Scan,
    Skip,
    Staged,
    Statement,
    StatementLabel,
    Strips,
    TableRows,
    Tile,
)

_T = TypeVar("_T")
_PHASES = {phase.name.lower(): phase for phase in Phase}
_STORES = {None: "=", Combine.SUM: "+=", Combine.MAX: "max="}


def format_kernel(kernel: Kernel) -> str:
    """The text of a lowered kernel, without a final newline."""
    return "\n".join((_header(kernel), *(f"  {line}" for line in _lines(kernel)), "}"))


def _header(kernel: Kernel) -> str:
    grid = f" grid({_numbers(kernel.grid)})" if kernel.grid else ""
    grid += "" if kernel.bands is None else f" bands({kernel.bands.dim}, {kernel.bands.size})"
    grid += " chained" if kernel.chained else ""
    extents = {"loop": kernel.loop, "threads": kernel.threads, "resident": kernel.resident}
    return f"kernel {kernel.name}{grid}{''.join(f' {name}({size})' for name, size in extents.items() if size != 1)} {{"


def _lines(kernel: Kernel) -> Iterator[str]:
    for buffer in kernel.buffers:
        offset = f" at {buffer.offset}" if buffer.offset else ""
        yield f"buffer {buffer.name}: {buffer.dtype} {buffer.memory}[{buffer.elements}]{offset}"
    yield f"inputs {', '.join(kernel.inputs)}"
    yield f"outputs {', '.join(kernel.outputs)}"
    if kernel.ring is not None:
        bulk = " bulk" if kernel.ring.bulk else ""
        lag = f" lag({kernel.ring.lag})" if kernel.ring.lag else ""
        producer = " producer" if kernel.ring.producer else ""
        yield f"ring {kernel.ring.buffer} stages({kernel.ring.stages}) slot({kernel.ring.slot}){bulk}{lag}{producer}"
    for staged in kernel.staged:
        yield f"staged {staged.buffer} = {_tile(staged.source)}"
    for load in kernel.loads:
        yield f"load {load.node} = {load.phase.name.lower()} {_tile(load.tile)}"
    for value, tile in kernel.tensors:
        yield f"tensor {value.node}, {value.output} = {_tile(tile)}"
    for skip in kernel.skips:
        yield f'skip "{skip.value!r}" {_tile(skip.tile)}'
    number = 0
    for phase, statements in (("before", kernel.before), ("body", kernel.body), ("after", kernel.after)):
        yield f"{phase} {{"
        for statement in statements:
            if number in kernel.barriers:
                yield "  barrier"
            yield f"  {_statement(statement)}"
            number += 1
        yield "}"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _tile(tile: Tile) -> str:
    start = f" | {_start(tile.start)}" if any(tile.start.parts) or tile.start.grid else ""
    swizzle = "" if tile.swizzle is None else f"^({tile.swizzle.bits}, {tile.swizzle.base}, {tile.swizzle.shift})"
    lookup = "" if tile.lookup is None else f" lookup({_lookup(tile.lookup)})"
    return f"{tile.buffer}[{_numbers(tile.shape)} | {_numbers(tile.strides)}{start}]{swizzle}{lookup}"


def _lookup(lookup: TableRows) -> str:
    return f"{_tile(lookup.index)} stride({lookup.stride}) rows({lookup.rows}){' wrapped' if lookup.wraps else ''}"


def _start(index: Index) -> str:
    grid = [f"{step} b{position}" for position, step in enumerate(index.grid)]
    loop = [f"{index.loop} i"] if index.loop else []
    constant = [str(index.constant)] if index.constant else []
    return ", ".join((*constant, *grid, *loop))


def _statement(statement: Statement) -> str:
    return f"{statement.label}: {_unlabelled(statement)}" if statement.label is not None else _unlabelled(statement)


def _unlabelled(statement: Statement) -> str:
    sources = f"({', '.join(map(_tile, statement.sources))})"
    target = _tile(statement.target)
    match statement:
        case Elementwise():
            return f"{target} {_STORES[statement.combine]} {_expression(statement.expression)} {sources}"
        case Reduce():
            store = _STORES[statement.combine if statement.accumulate else None]
            return f"{target} {store} {statement.combine} over {_expression(statement.expression)} {sources}"
        case Scan():
            back = " back" if statement.back else ""
            return f"{target} = scan {statement.op} {statement.dim}{back} {_expression(statement.expression)} {sources}"
        case Matmul():
            store = _STORES[Combine.SUM if statement.accumulate else None]
            tf32 = " tf32" if statement.tf32 else ""
            panels = "" if statement.panels is None else f" {_panels(statement.panels)}"
            strips = "" if statement.strips is None else f" {_strips(statement.strips)}"
            made = "" if statement.dequantized is None else f" {_dequantization(statement.dequantized)}"
            factors = f"({_tile(statement.left)}, {_tile(statement.right)})"
            return f"{target} {store} matmul {statement.dtype}{tf32} {factors}{panels}{strips}{made}"


def _panels(panels: Panels) -> str:
    left, right = ("none" if tile is None else _tile(tile) for tile in (panels.left, panels.right))
    grouped, boxed = " grouped" if panels.grouped else "", " boxed" if panels.boxed else ""
    parts = f" parts({panels.parts})" if panels.parts > 1 else ""
    return f"panels({panels.depth}) {left} {right}{grouped}{boxed}{parts}"


def _strips(strips: Strips) -> str:
    return f"strips({strips.depth}, {strips.width}){' pairs' if strips.pairs else ''}{' fours' if strips.fours else ''}"


def _dequantization(made: Dequantization) -> str:
    sources = f"({', '.join(map(_tile, made.sources))})"
    number, slope, offset = map(_expression, (made.number, made.slope, made.offset))
    return f"dequantized({made.group}) {number} slope {slope} offset {offset} {sources}"


def _expression(expression: Expression) -> str:
    match expression:
        case Source(index):
            return f"#{index}"
        case Constant(value):
            return f'"{value!r}"'
        case Apply(template, arguments):
            return f'"{template}"({", ".join(map(_expression, arguments))})'


# --- reading -----------------------------------------------------------------------------------------------------------


def parse_kernel(text: str) -> Kernel:
    """The kernel that a text stands for; raises InvalidInput with line and column where it is none.

    It settles syntax and the names of buffers; whether the kernel is valid is for `mugraph.lower.check.check` to say.
    """
    parser = _Parser(tokenize(text))
    kernel = parser.kernel()
    parser.expect("end", "the end of the text")
    return kernel


class _Parser(Cursor):
    """Every method reads one construct of the grammar and moves past it."""

    def kernel(self) -> Kernel:
        self._word("kernel")
        name = self.expect("name", "the name of a kernel").text
        grid = tuple(self._listed_numbers()) if self.accept("grid") else ()
        bands = self._bands() if self.accept("bands") else None
        chained = self.accept("chained")
        loop, threads, resident = (self._extent(word) for word in ("loop", "threads", "resident"))
        self.punctuation("{")
        buffers = self._each("buffer", self._buffer)
        inputs, outputs = self._names("inputs"), self._names("outputs")
        ring = self._ring() if self.accept("ring") else None
        staged = self._each("staged", self._staged)
        loads = self._each("load", self._load)
        tensors = self._each("tensor", self._tensor)
        skips = self._each("skip", self._skip)
        barriers: set[int] = set()
        phases: list[tuple[Statement, ...]] = []
        for word in _PHASES:
            self._word(word)
            phases.append(tuple(self._statements(sum(map(len, phases)), barriers)))
        self.punctuation("}")
        before, body, after = phases
        return Kernel(
            name,
            grid,
            loop,
            buffers,
            inputs,
            outputs,
            before,
            body,
            after,
            threads,
            frozenset(barriers),
            ring,
            staged,
            resident,
            loads,
            tensors,
            skips,
            bands=bands,
            chained=chained,
        )

    def _bands(self) -> Bands:
        opening = self.peek()
        numbers = self._listed_numbers()
        if len(numbers) != 2:
            raise opening.fail("bands have two numbers: a dimension of the grid, and how many neighbours along it")
        return Bands(*numbers)

    def _each(self, word: str, read: Callable[[], _T]) -> tuple[_T, ...]:
        """What follows each `word`, as long as there is one."""
        found: list[_T] = []
        while self.accept(word):
            found.append(read())
        return tuple(found)

    def _staged(self) -> Staged:
        buffer = self._equals(self.expect("name", "a buffer").text)
        return Staged(buffer, self._tile())

    def _load(self) -> Load:
        node = self._equals(self.integer())
        phase = _PHASES[self.expect("name", "before, body or after", _PHASES).text]
        return Load(node, self._tile(), phase)

    def _tensor(self) -> tuple[Value, Tile]:
        node = self.integer()
        self.punctuation(",")
        value = self._equals(Value(node, self.integer()))
        return value, self._tile()

    def _skip(self) -> Skip:
        number = self._number(self.expect("string", "a number in quotation marks"))
        return Skip(self._tile(), number)

    def _word(self, word: str) -> None:
        self.expect("name", word, {word})

    def _equals(self, left: _T) -> _T:
        self.punctuation("=")
        return left

    def _extent(self, word: str, default: int = 1) -> int:
        if not self.accept(word):
            return default
        (size,) = self._listed_numbers()
        return size

    def _listed_numbers(self) -> list[int]:
        return self.listed("(", self.integer, ")")

    def _names(self, word: str) -> tuple[str, ...]:
        self._word(word)
        return tuple(self.separated(lambda: self.expect("name", "a buffer").text))

    def _buffer(self) -> Buffer:
        name = self.expect("name", "the name of a buffer").text
        self.punctuation(":")
        dtype = self._dtype()
        memory = Memory(self.expect("name", "device, shared, registers or rows", set(Memory)).text)
        (elements,) = self.listed("[", self.integer, "]")
        return Buffer(name, memory, dtype, elements, self.integer() if self.accept("at") else 0)

    def _dtype(self) -> DType:
        return DType(self.expect("name", f"a type ({', '.join(DType)})", set(DType)).text)

    def _ring(self) -> Ring:
        buffer = self.expect("name", "a buffer").text
        stages, slot = self._extent("stages"), self._extent("slot")
        return Ring(buffer, stages, slot, self.accept("bulk"), self._extent("lag", 0), self.accept("producer"))

    def _tile(self) -> Tile:
        return self._window(self.expect("name", "a buffer").text)

    def _window(self, name: str) -> Tile:
        self.punctuation("[")
        shape = tuple(self._numbers_until("|"))
        strides = tuple(self._numbers_until("|", "]"))
        start = self._start() if self.accept("|") else Index()
        self.punctuation("]")
        swizzle = None
        if self.accept("^"):
            opening = self.peek()
            numbers = self._listed_numbers()
            if len(numbers) != 3:
                raise opening.fail("a swizzle has three numbers: bits, base, shift")
            swizzle = Swizzle(*numbers)
        return Tile(name, shape, strides, start, swizzle, self._lookup() if self.accept("lookup") else None)

    def _lookup(self) -> TableRows:
        self.punctuation("(")
        rows = TableRows(self._tile(), self._extent("stride"), self._extent("rows"), self.accept("wrapped"))
        self.punctuation(")")
        return rows

    def _numbers_until(self, *ends: str) -> list[int]:
        numbers: list[int] = []
        while not any(map(self.at, ends)):
            if numbers:
                self.punctuation(",")
            numbers.append(self.integer())
        if self.at("|") and ends == ("|",):
            self.take()
        return numbers

    def _start(self) -> Index:
        constant, loop, grid = 0, 0, list[int]()
        while True:
            number = self.integer()
            if self.accept("i"):
                loop = number
            elif self.accept(f"b{len(grid)}"):
                grid.append(number)
            else:
                constant = number
            if not self.accept(","):
                return Index(constant, tuple(grid), loop)

    def _statements(self, number: int, barriers: set[int]) -> Iterator[Statement]:
        self.punctuation("{")
        while not self.accept("}"):
            if self.accept("barrier"):
                barriers.add(number)
            yield self._statement()
            number += 1

    def _statement(self) -> Statement:
        token = self.expect("name", "a buffer or a label")
        if self.accept(":"):
            label = StatementLabel(*_name_and_number(token))
            return replace(self._unlabelled(self.expect("name", "a buffer").text), label=label)
        return self._unlabelled(token.text)

    def _unlabelled(self, buffer: str) -> Statement:
        """A statement behind its label and the name of its target's buffer."""
        target = self._window(buffer)
        combine = Combine.SUM if self.accept("+") else Combine.MAX if self.accept("max") else None
        self.punctuation("=")
        if self.accept("matmul"):
            return self._matmul(target, combine)
        if self.accept("scan"):
            op = self.expect("name", "what a scan combines with", {scan.combine for scan in SCANS.values()}).text
            dim, back = self.integer(), self.accept("back")
            expression = self._expression()
            return Scan(target, self._sources(), expression, op, dim, back)
        if self.at("sum") or self.at("max"):
            over = Combine(self.take().text)
            self._word("over")
            expression = self._expression()
            return Reduce(target, self._sources(), expression, over, combine is not None)
        expression = self._expression()
        return Elementwise(target, self._sources(), expression, combine)

    def _matmul(self, target: Tile, combine: Combine | None) -> Matmul:
        dtype, tf32 = self._dtype(), self.accept("tf32")
        opening = self.peek()
        sources = self._sources()
        if len(sources) != 2:
            raise opening.fail("a product has two factors")
        panels = None
        if self.accept("panels"):
            (depth,) = self._listed_numbers()
            left, right = (None if self.accept("none") else self._tile() for _ in range(2))
            panels = Panels(depth, left, right, self.accept("grouped"), self.accept("boxed"), self._extent("parts"))
        strips = self._strips() if self.accept("strips") else None
        made = self._dequantization() if self.accept("dequantized") else None
        return Matmul(target, *sources, dtype, combine is not None, panels, tf32, strips, made)

    def _dequantization(self) -> Dequantization:
        opening = self.peek()
        groups = self._listed_numbers()
        if len(groups) != 1:
            raise opening.fail("a dequantization has one number: the values of k of a group")
        number = self._expression()
        self._word("slope")
        slope = self._expression()
        self._word("offset")
        offset = self._expression()
        return Dequantization(number, slope, offset, self._sources(), groups[0])

    def _strips(self) -> Strips:
        opening = self.peek()
        numbers = self._listed_numbers()
        if len(numbers) != 2:
            raise opening.fail("strips have two numbers: rows of a panel, columns of a strip")
        depth, width = numbers
        return Strips(depth, width, self.accept("pairs"), self.accept("fours"))

    def _sources(self) -> tuple[Tile, ...]:
        return tuple(self.listed("(", self._tile, ")"))

    def _expression(self) -> Expression:
        token = self.take()
        if token.kind == "operand":
            return Source(int(token.text[1:]))
        if token.kind != "string":
            raise token.error("a source such as #0, or a number or a template in quotation marks")
        if self.at("(") and "{" in token.unquoted():
            return Apply(token.unquoted(), tuple(self.listed("(", self._expression, ")")))
        return Constant(self._number(token))

    def _number(self, token: Token) -> float:
        try:
            return float(token.unquoted())
        except ValueError:
            raise InvalidInput(f"line {token.line}, column {token.column}: {token.text} is no number") from None


def _name_and_number(token: Token) -> tuple[str, int]:
    name, _, number = token.text.rpartition("_")
    if not number.isdecimal():
        raise token.error("a label such as mul_3, the name of an operator and the number of a node")
    return name, int(number)
