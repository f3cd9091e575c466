"""Elementwise and reduction statements as vector loop nests.

Dimensions that line up are joined, one dimension is vectorised (masked by shorter loads and stores at its end), and
every subexpression is computed in the outermost loop where its operands are known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from mugraph.ir.dtypes import DType
from mugraph.ir.ops import operator
from mugraph.lower.inlining import inlined
from mugraph.lower.scalar_expressions import ROUNDED, Apply, Constant, Expression, Source, as_written, renumbered, subexpressions
from mugraph.lower.thread_mapping import LoopDim, loops_of
from mugraph.lower.tile_form import Combine, Elementwise, Reduce, Scan, Tile
from mugraph.targets.c_text import literal, number_text, scaled, sum_of
from mugraph.targets.cpu.row_reductions import bounded_reduction, rows_together, vector_reduction
from mugraph.targets.cpu.source import HELD, UNROLLED, Lanes, Writer

_NEUTRAL = {Combine.SUM: "0.0f", Combine.MAX: "-__builtin_inff()"}
_COMBINED = {Combine.SUM: "{} + {}", Combine.MAX: "vec_max({}, {})"}
_DIVISION = operator("div").scalar
_PRODUCT = "({0} * {1})"
_RECIPROCAL = "(1.0f / {0})"
_LEAST_TURNED = 4
"""Elements along both dimensions from which on a square of them is turned in registers, not gathered one by one."""


def print_loops(writer: Writer, statement: Elementwise | Reduce, bounded: int | None = None) -> None:
    """Write an elementwise statement or a reduction, along the dimension `bounded` of its points up to `held` elements."""
    with writer.block():
        Nest(writer, statement, bounded).write()


def print_stored_and_reduced(writer: Writer, stored: Elementwise, reduction: Reduce, bounded: int | None = None) -> bool:
    """Write both a statement and the reduction of what it stores, or of a function of that, as of its square, in one loop, if
    vectors of both lie along the same dimension. Along the dimension `bounded` of the result both stop behind `held` elements."""
    joined = _in_one(writer, stored, reduction)
    if joined is None or Nest(writer, stored).turned:
        return False
    both, value = joined
    nest = Nest(writer, both, bounded, stores=value)
    vector = nest.loops[nest.vector]
    if (
        vector.bounded
        or vector.size < UNROLLED * nest.lanes
        or not {0, 1}.issuperset(vector.strides)
        or not nest.reads_before_it_writes()
    ):
        return False
    with writer.block():
        nest.write()
    return True


def _in_one(writer: Writer, stored: Elementwise, reduction: Reduce) -> tuple[Reduce, Expression] | None:
    """A reduction that computes what it reads, and has the place where that is to be stored as its last source, and what that is;
    None where it reads something else, too, not each element once, or what is rounded."""
    if len(reduction.sources) != 1 or stored.combine is not None or writer.dtype(stored.target) is not DType.FP32:
        return None
    (read,) = reduction.sources
    made = inlined(stored, replace(reduction, expression=Source(0)))
    if (
        read.buffer != stored.target.buffer
        or not isinstance(made, Reduce)
        or read.buffer in {tile.buffer for tile in made.sources}
    ):
        return None
    once = math.prod(read.shape) == math.prod(stored.target.shape) and all(
        stride for size, stride in zip(read.shape, read.strides, strict=True) if size > 1
    )
    value = made.expression
    reduced = replace(made, sources=(*made.sources, read), expression=renumbered(reduction.expression, [value]))
    return (reduced, value) if once else None


def vector_cost(dim: LoopDim, lanes: int, operands: int) -> float:
    """Relative time of vectorising along a dimension: idle lanes, and lanes that are loaded one by one.

    Strides behind those of the `operands` are of integers that these are looked up at.
    """
    used = dim.size / (-(-dim.size // lanes) * lanes)
    own, integers = dim.strides[:operands], dim.strides[operands:]
    separate = sum(stride not in (0, 1) for stride in own) + sum(stride != 0 for stride in integers)
    folding = 8 / dim.size if dim.reduced else 0
    return (1 + 4 * separate) / used + folding


def _turning(dims: Sequence[LoopDim], plain: Container[int]) -> tuple[LoopDim, LoopDim, frozenset[int]] | None:
    """Where sources lie across what the target lies along: their dimension, the target's, and the numbers of such sources, which
    are among the `plain` ones."""
    vector = next((dim for dim in dims if dim.strides[0] == 1), None)
    if vector is None or any(dim.reduced or dim.bounded for dim in dims) or vector.size < _LEAST_TURNED:
        return None
    for rows in dims:
        sources = [(number, dims_of) for number, dims_of in enumerate(zip(rows.strides[1:], vector.strides[1:], strict=True))]
        across = frozenset(number for number, (along, over) in sources if along == 1 and over > 1 and number in plain)
        if across and rows is not vector and rows.size >= _LEAST_TURNED:
            return rows, vector, across
    return None


Loops = TypeVar("Loops", bound=Elementwise | Reduce | Scan)


class Nest(Generic[Loops]):
    """The loops of a statement, and the text inside each."""

    def __init__(self, writer: Writer, statement: Loops, bounded: int | None = None, stores: Expression | None = None) -> None:
        """What a reduction `stores` goes to the place of its last source."""
        self.writer, self.statement, self.bounded = writer, statement, bounded
        self.stored = None if stores is None else len(statement.sources) - 1
        self.lanes = writer.vectors.lanes
        self.operands = 1 + len(statement.sources)
        lookups = [number for number, tile in enumerate(statement.sources) if tile.lookup is not None]
        self.integers = {number: self.operands + place for place, number in enumerate(lookups)}
        """For each source that is looked up, the place of its integers among the strides of a loop."""
        self.turned: frozenset[int] = frozenset()
        """Sources whose rows lie along the loop around the vector loop."""
        self.loops, self.vector = self.arranged()
        compared = not isinstance(statement, Scan) and statement.combine is Combine.MAX  # and subtracted by another statement
        self.expression = self.with_reciprocals(as_written(statement.expression, read_elsewhere=compared))
        self.kept = None if stores is None else self.with_reciprocals(as_written(stores, read_elsewhere=compared))
        """What is stored, of which the expression is a function."""
        self.names: dict[Expression | int, str] = {}
        """Of values, and of the places at which a source with that number is looked up."""

    def write(self) -> None:
        self.writer.pointer("target", self.statement.target, written=True)
        for number, tile in enumerate(self.statement.sources):
            self.writer.pointer(f"x{number}", tile, written=number == self.stored)
            if tile.lookup is not None:
                self.writer.pointer(f"integers{number}", tile.lookup.index)
        self.level(0, self.lanes)

    def arranged(self) -> tuple[list[LoopDim], int]:
        """The loops, outermost first, and which of them goes over vectors."""
        assert not isinstance(self.statement, Scan)
        dims = loops_of(self.statement, self.bounded)
        vector = min(dims, key=lambda dim: vector_cost(dim, self.lanes, self.operands))
        outer = [dim for dim in dims if dim is not vector and not dim.reduced]
        inner = [dim for dim in dims if dim is not vector and dim.reduced]
        plain = {*range(len(self.statement.sources))} - self.integers.keys()
        if (turning := _turning(dims, plain)) is not None:
            rows, vector, self.turned = turning
            outer = [*(dim for dim in dims if dim is not vector and dim is not rows), rows]
        return [*outer, vector, *inner], len(outer)

    # the nest --------------------------------------------------------------------------------------------------------

    def level(self, depth: int, lanes: Lanes) -> None:
        """Everything inside the first `depth` loops; `lanes` are in use of the vector loop around it, if any."""
        self.define(depth, lanes)
        if self.turned and depth == self.vector - 1:
            self.turning_loop(depth)
        elif depth == len(self.loops):
            self.finish(lanes)
        elif depth == self.vector:
            self.vector_loop(depth)
        else:
            reduced = self.loops[depth].reduced
            if reduced:
                self.writer.line(f"vec total = splat({self.neutral});")
            done = rows_together(self, depth)
            if done < self.loops[depth].size:
                with self.writer.block(f"for (long i{depth} = {done}; i{depth} < {self.end(depth)}; ++i{depth})"), self.scope():
                    self.level(depth + 1, lanes)
            if reduced:
                self.store("total", lanes, self.accumulates)

    def turning_loop(self, depth: int) -> None:
        """Squares of rows by lanes: the turned sources are loaded along the rows, and computed with along the lanes."""
        for rows in self.parts(f"first{depth}", self.loops[depth].size):
            for lanes in self.parts(f"i{self.vector}", self.loops[self.vector].size):
                for number in sorted(self.turned):
                    self.turned_rows(number, f"first{depth}", rows, lanes)
                with self.writer.block(f"for (long row = 0; row < {rows}; ++row)"), self.scope():
                    self.writer.line(f"const long i{depth} = first{depth} + row;")
                    self.define(depth + 1, lanes)
                    self.level(depth + 2, lanes)

    def parts(self, index: str, size: int) -> Iterator[int]:
        """A loop over whole vectors of `size` elements, then what is left of them: inside each, how many elements there are."""
        whole = size // self.lanes * self.lanes
        if whole:
            with self.writer.block(f"for (long {index} = 0; {index} < {whole}; {index} += {self.lanes})"), self.scope():
                yield self.lanes
        if size > whole:
            with self.writer.block(), self.scope():
                self.writer.line(f"const long {index} = {whole};")
                yield size - whole

    def turned_rows(self, number: int, row: str, rows: int, lanes: int) -> None:
        """Declare a source's square, `rows` by `lanes`."""
        tile, strides = self.statement.sources[number], [loop.strides[number + 1] for loop in self.loops]
        terms = [scaled(stride, f"i{depth}") for depth, stride in enumerate(strides[: self.vector - 1])]
        dtype, step = self.writer.dtype(tile), strides[self.vector]
        load = f"load_{dtype}" if rows == self.lanes else f"load_first_{dtype}"
        count = "" if rows == self.lanes else f", {rows}"
        self.writer.line(f"vec turned{number}[LANES] = {{0}};")
        for lane in range(lanes):
            address = sum_of([f"x{number}", *terms, row, scaled(step, f"(i{self.vector} + {lane})")])
            self.writer.line(f"turned{number}[{lane}] = {load}({address}{count});")
        self.writer.line(f"turn(turned{number});")

    def vector_loop(self, depth: int) -> None:
        loop = self.loops[depth]
        if loop.reduced:
            (bounded_reduction if loop.bounded else vector_reduction)(self, depth)
            return
        if loop.bounded:
            self.bounded_loop(depth)
            return
        whole = loop.size // self.lanes * self.lanes
        done = self.side_by_side(depth, whole)
        if whole > done:
            with self.writer.block(f"for (long i{depth} = {done}; i{depth} < {whole}; i{depth} += {self.lanes})"), self.scope():
                self.level(depth + 1, self.lanes)
        if loop.size > whole:
            with self.writer.block(), self.scope():
                self.writer.line(f"const long i{depth} = {whole};")
                self.level(depth + 1, loop.size - whole)

    def bounded_loop(self, depth: int) -> None:
        """Whole vectors of what is held, then the rest of it."""
        index, lanes = f"i{depth}", self.lanes
        with self.writer.block(f"for (long {index} = 0; {index} + {lanes} <= {HELD}; {index} += {lanes})"), self.scope():
            self.level(depth + 1, lanes)
        with self.writer.block(f"if ({HELD} % {lanes})"), self.scope():
            self.writer.line(f"const long {index} = {HELD} / {lanes} * {lanes};")
            self.level(depth + 1, f"{HELD} % {lanes}")

    def side_by_side(self, depth: int, whole: int) -> int:
        """Reduce several vectors of results in one pass over the reduced dimension, whose rows are read in longer runs then.

        How many of the first `whole` results that is done for.
        """
        reduced, step = depth + 1, UNROLLED * self.lanes
        done = whole // step * step
        if not done or not self.reduces_loads(depth):
            return 0
        with self.writer.block(f"for (long i = 0; i < {done}; i += {step})"):
            for number in range(UNROLLED):
                self.writer.line(f"vec total{number} = splat({self.neutral});")
            with self.writer.block(f"for (long i{reduced} = 0; i{reduced} < {self.end(reduced)}; ++i{reduced})"):
                for number in range(UNROLLED):
                    with self.writer.block(), self.scope():
                        self.writer.line(f"const long i{depth} = i + {number * self.lanes};")
                        self.define(reduced, self.lanes)
                        self.define(reduced + 1, self.lanes)
                        value = self.reduced_value(self.lanes)
                        self.writer.line(f"total{number} = {self.combined(f'total{number}', value)};")
            for number in range(UNROLLED):
                with self.writer.block():
                    self.writer.line(f"const long i{depth} = i + {number * self.lanes};")
                    self.store(f"total{number}", self.lanes, self.accumulates)
        return done

    def reduces_loads(self, depth: int) -> bool:
        """Whether a reduction inside the vector loop at `depth` computes nothing once for a whole vector of results."""
        inside = depth + 2 == len(self.loops) and self.loops[-1].reduced
        nodes = subexpressions(self.expression)
        return inside and not any(isinstance(node, Apply) and self.depth(node) == depth + 1 for node in nodes)

    def finish(self, lanes: Lanes) -> None:
        if self.loops[-1].reduced:
            self.writer.line(f"total = {self.combined('total', self.reduced_value(lanes))};")
        else:
            self.store(self.names[self.expression], lanes, self.accumulates)

    def reduced_value(self, lanes: Lanes) -> str:
        """What a reduction reduces; what it is computed of is stored if it is to be."""
        if self.stored is not None and self.kept is not None:
            address = self.address(f"x{self.stored}", self.stored + 1, len(self.loops))
            self.write_vector(self.statement.sources[self.stored], address, self.names[self.kept], lanes)
        return self.names[self.expression]

    def end(self, depth: int) -> str:
        """Where a loop ends."""
        return HELD if self.loops[depth].bounded else str(self.loops[depth].size)

    def reads_before_it_writes(self) -> bool:
        """Whether no result of a reduction is written to where a source has what is read later; a single one never is."""
        target = self.statement.target
        return all(loop.reduced for loop in self.loops) or not any(
            self.writer.share_bytes(target, tile) and not self.lies_where_target_does(number)
            for number, tile in enumerate(self.statement.sources)
        )

    def lies_where_target_does(self, number: int) -> bool:
        """Whether a source has each of its elements in the place of the result that it is read for."""
        target, tile = self.statement.target, self.statement.sources[number]
        same_start = self.writer.scratch.get(target.buffer) == self.writer.scratch.get(tile.buffer) and target.start == tile.start
        same_type = self.writer.dtype(target) is self.writer.dtype(tile)
        return same_start and same_type and all(loop.strides[0] == loop.strides[number + 1] for loop in self.loops)

    # what the statement asks for -------------------------------------------------------------------------------------

    @property
    def combine(self) -> Combine | None:
        return None if isinstance(self.statement, Scan) else self.statement.combine

    @property
    def accumulates(self) -> bool:
        return self.statement.accumulate if isinstance(self.statement, Reduce) else self.combine is not None

    @property
    def neutral(self) -> str:
        assert self.combine is not None
        return _NEUTRAL[self.combine]

    def combined(self, left: str, right: str) -> str:
        assert self.combine is not None
        return _COMBINED[self.combine].format(left, right)

    # values ----------------------------------------------------------------------------------------------------------

    def scope(self) -> _Scope:
        return _Scope(self.names)

    def depth(self, expression: Expression) -> int:
        """How many loops an expression's value depends on: it is computed right inside the last of them."""
        match expression:
            case Source(index):
                strides = [index + 1, *([self.integers[index]] if index in self.integers else [])]
                return max((d + 1 for d, loop in enumerate(self.loops) if any(loop.strides[at] for at in strides)), default=0)
            case Apply(_, arguments):
                return max((self.depth(argument) for argument in arguments), default=0)
        return 0

    def with_reciprocals(self, expression: Expression) -> Expression:
        """Divisions by what an outer loop knows as multiplications by its reciprocal, computed there; but for those whose
        quotients must be as they are rounded."""
        if not isinstance(expression, Apply):
            return expression
        if expression.template == ROUNDED:
            (inner,) = expression.arguments
            assert isinstance(inner, Apply)
            return Apply(ROUNDED, (Apply(inner.template, tuple(map(self.with_reciprocals, inner.arguments))),))
        arguments = tuple(self.with_reciprocals(argument) for argument in expression.arguments)
        if expression.template == _DIVISION and self.depth(arguments[1]) < self.depth(arguments[0]):
            return Apply(_PRODUCT, (arguments[0], Apply(_RECIPROCAL, arguments[1:])))
        return Apply(expression.template, arguments)

    def define(self, depth: int, lanes: Lanes) -> None:
        """Declare every subexpression that becomes known at this depth, and the places at which sources are looked up."""
        for number, strides in self.integers.items():
            known = max((d + 1 for d, loop in enumerate(self.loops) if loop.strides[strides]), default=0)
            if number not in self.names and known == depth and not self.scattered(number):
                self.names[number] = f"row{number}"
                self.writer.line(
                    f"const long row{number} = {self.row(number, self.address(f'integers{number}', strides, depth))};"
                )
        for node in itertools.chain(subexpressions(self.expression), () if self.kept is None else subexpressions(self.kept)):
            if node not in self.names and self.depth(node) == depth:
                name = f"v{len(self.names)}"
                self.writer.line(f"const vec {name} = {self.value(node, lanes)};")
                self.names[node] = name

    def scattered(self, number: int) -> bool:
        """Whether every lane of a source is looked up at a place of its own."""
        return number in self.integers and self.loops[self.vector].strides[self.integers[number]] != 0

    def row(self, number: int, address: str) -> str:
        """The place that the integer at an address stands for, in elements of the table."""
        lookup = self.statement.sources[number].lookup
        assert lookup is not None
        place = f"from_end(*({address}), {lookup.rows})" if lookup.wraps else f"(long)*({address})"
        return f"{place} * {lookup.stride}"

    def gathered(self, number: int, lanes: Lanes, depth: int) -> str:
        """Lanes that are looked up one by one, as a value: the statements before it load them."""
        strides, name = self.integers[number], f"looked_up{number}"
        here, stride = f"(i{self.vector} + lane)", self.loops[self.vector].strides
        others = {pointer: self.address(pointer, at, depth, but=self.vector) for pointer, at in self.pointers(number)}
        integer = sum_of([others[f"integers{number}"], scaled(stride[strides], here)])
        place = sum_of([others[f"x{number}"], scaled(stride[number + 1], here), self.row(number, integer)])
        self.writer.line(f"vec {name} = {{0}};")
        dtype = self.writer.dtype(self.statement.sources[number])
        self.writer.line(f"for (long lane = 0; lane < {lanes}; ++lane) {name}[lane] = one_{dtype}({place});")
        return name

    def pointers(self, number: int) -> tuple[tuple[str, int], tuple[str, int]]:
        """The pointers of a source that is looked up and of its integers, and their places among the strides of a loop."""
        return (f"x{number}", number + 1), (f"integers{number}", self.integers[number])

    def value(self, node: Expression, lanes: Lanes) -> str:
        match node:
            case Source(index) if self.scattered(index):
                return self.gathered(index, lanes, self.depth(node))
            case Source(index):
                tile = self.statement.sources[index]
                return self.load(f"x{index}", tile, index + 1, lanes, self.depth(node))
            case Constant(value):
                return f"splat({literal(value)})"
            case Apply(template, arguments):
                return template.format(*(self.names[argument] for argument in arguments))

    def address(self, pointer: str, number: int, depth: int, but: int | None = None) -> str:
        terms = [scaled(loop.strides[number], f"i{d}") for d, loop in enumerate(self.loops[:depth]) if d != but]
        return sum_of([pointer, *terms])

    def load(self, pointer: str, tile: Tile, number: int, lanes: Lanes, depth: int) -> str:
        if number - 1 in self.turned:
            return f"turned{number - 1}[row]"
        address, dtype = self.address(pointer, number, depth), self.writer.dtype(tile)
        address = sum_of([address, self.names[number - 1]]) if tile.lookup is not None else address
        stride = self.loops[self.vector].strides[number]
        if stride == 0 or depth <= self.vector:
            return f"spread_{dtype}({address})"
        if stride != 1:
            return f"gather_{dtype}({address}, {number_text(stride)}, {lanes})"
        return f"load_{dtype}({address})" if lanes == self.lanes else f"load_first_{dtype}({address}, {lanes})"

    def places(self) -> int:
        """How many of the loops a place of the target depends on."""
        return self.vector + (not self.loops[self.vector].reduced)

    def store(self, value: str, lanes: Lanes, accumulate: bool, apart: int | None = None) -> None:
        """Write lanes of a value to the target, combined with what it holds if asked; `apart` is their stride, if given."""
        tile = self.statement.target
        address, dtype = self.address("target", 0, self.places()), self.writer.dtype(tile)
        stride = apart if apart is not None else 1 if self.loops[self.vector].reduced else self.loops[self.vector].strides[0]
        if accumulate:
            old = f"gather_{dtype}({address}, {stride}, {lanes})" if stride != 1 else f"load_first_{dtype}({address}, {lanes})"
            value = self.combined(old, value)
        if stride != 1:
            self.writer.line(f"scatter_{dtype}({address}, {stride}, {value}, {lanes});")
        else:
            self.write_vector(tile, address, value, lanes)

    def write_vector(self, tile: Tile, address: str, value: str, lanes: Lanes) -> None:
        """Write lanes of a value to neighbours in a tile."""
        dtype = self.writer.dtype(tile)
        if lanes == self.lanes:
            self.writer.line(f"store_{dtype}({address}, {value});")
        else:
            self.writer.line(f"store_first_{dtype}({address}, {value}, {lanes});")


class _Scope:
    """Names declared inside a C block are forgotten when it closes."""

    def __init__(self, names: dict[Expression | int, str]) -> None:
        self.names = names
        self.outside: dict[Expression | int, str] = {}

    def __enter__(self) -> None:
        self.outside = dict(self.names)

    def __exit__(self, *_: object) -> None:
        self.names.clear()
        self.names.update(self.outside)
