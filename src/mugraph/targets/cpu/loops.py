"""Elementwise and reduction statements as vector loop nests.

Dimensions that line up are joined, one dimension is vectorised (masked by shorter loads and stores at its end), and
every subexpression is computed in the outermost loop where its operands are known.
"""

from __future__ import annotations

from mugraph.ir.ops import operator
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source, subexpressions
from mugraph.lower.thread_mapping import LoopDim, loops_of
from mugraph.lower.tile_form import Combine, Elementwise, Reduce, Tile
from mugraph.targets.c_text import literal, scaled, sum_of
from mugraph.targets.cpu.source import Writer

_NEUTRAL = {Combine.SUM: "0.0f", Combine.MAX: "-__builtin_inff()"}
_COMBINED = {Combine.SUM: "{} + {}", Combine.MAX: "vec_max({}, {})"}
_DIVISION = operator("div").scalar
_PRODUCT = "({0} * {1})"
_RECIPROCAL = "(1.0f / {0})"
_UNROLLED = 4
"""Partial results of a vectorised reduction: enough to hide the latency of an addition."""


def print_loops(writer: Writer, statement: Elementwise | Reduce) -> None:
    """Write an elementwise statement or a reduction."""
    with writer.block():
        _Nest(writer, statement).write()


def _vector_cost(dim: LoopDim, lanes: int) -> float:
    """Relative time of vectorising along a dimension: idle lanes, and lanes that are loaded one by one."""
    used = dim.size / (-(-dim.size // lanes) * lanes)
    separate = sum(stride not in (0, 1) for stride in dim.strides)
    folding = 8 / dim.size if dim.reduced else 0
    return (1 + 4 * separate) / used + folding


class _Nest:
    def __init__(self, writer: Writer, statement: Elementwise | Reduce) -> None:
        self.writer, self.statement = writer, statement
        self.lanes = writer.vectors.lanes
        dims = loops_of(statement)
        vector = min(dims, key=lambda dim: _vector_cost(dim, self.lanes))
        outer = [dim for dim in dims if dim is not vector and not dim.reduced]
        inner = [dim for dim in dims if dim is not vector and dim.reduced]
        self.loops = [*outer, vector, *inner]
        self.vector = len(outer)
        self.expression = self.with_reciprocals(statement.expression)
        self.names: dict[Expression, str] = {}

    def write(self) -> None:
        self.writer.pointer("target", self.statement.target, written=True)
        for number, tile in enumerate(self.statement.sources):
            self.writer.pointer(f"x{number}", tile)
        self.level(0, self.lanes)

    # the nest --------------------------------------------------------------------------------------------------------

    def level(self, depth: int, lanes: int) -> None:
        """Everything inside the first `depth` loops; `lanes` are in use of the vector loop around it, if any."""
        self.define(depth, lanes)
        if depth == len(self.loops):
            self.finish(lanes)
        elif depth == self.vector:
            self.vector_loop(depth)
        else:
            reduced = self.loops[depth].reduced
            if reduced:
                self.writer.line(f"vec total = splat({self.neutral});")
            with self.writer.block(f"for (long i{depth} = 0; i{depth} < {self.loops[depth].size}; ++i{depth})"), self.scope():
                self.level(depth + 1, lanes)
            if reduced:
                self.store("total", lanes, self.accumulates)

    def vector_loop(self, depth: int) -> None:
        loop = self.loops[depth]
        if loop.reduced:
            self.vector_reduction(depth)
            return
        whole = loop.size // self.lanes * self.lanes
        if whole:
            with self.writer.block(f"for (long i{depth} = 0; i{depth} < {whole}; i{depth} += {self.lanes})"), self.scope():
                self.level(depth + 1, self.lanes)
        if loop.size > whole:
            with self.writer.block(), self.scope():
                self.writer.line(f"const long i{depth} = {whole};")
                self.level(depth + 1, loop.size - whole)

    def vector_reduction(self, depth: int) -> None:
        """The reduced dimension is the vector dimension: several partial vectors, then one sum across lanes."""
        size, lanes = self.loops[depth].size, self.lanes
        whole = size // lanes
        partials = min(_UNROLLED, max(whole, 1))
        for number in range(partials):
            self.writer.line(f"vec total{number} = splat({self.neutral});")
        unrolled = whole // partials * partials
        if unrolled:
            with self.writer.block(f"for (long i = 0; i < {unrolled * lanes}; i += {partials * lanes})"):
                for number in range(partials):
                    self.partial(depth, number, f"i + {number * lanes}", lanes)
        for chunk in range(unrolled, whole):
            self.partial(depth, chunk - unrolled, str(chunk * lanes), lanes)
        if size > whole * lanes:
            self.partial(depth, 0, str(whole * lanes), size - whole * lanes)
        total = "total0"
        for number in range(1, partials):
            total = self.combined(total, f"total{number}")
        self.writer.line(f"const vec total = splat(total_{self.combine}({total}));")
        self.store("total", 1, self.accumulates)

    def partial(self, depth: int, number: int, position: str, lanes: int) -> None:
        with self.writer.block(), self.scope():
            self.writer.line(f"const long i{depth} = {position};")
            self.define(depth + 1, lanes)
            value = self.names[self.expression]
            if lanes < self.lanes:
                value = f"keep_first({value}, {self.neutral}, {lanes})"
            self.writer.line(f"total{number} = {self.combined(f'total{number}', value)};")

    def finish(self, lanes: int) -> None:
        value = self.names[self.expression]
        if self.loops[-1].reduced:
            self.writer.line(f"total = {self.combined('total', value)};")
        else:
            self.store(value, lanes, self.accumulates)

    # what the statement asks for -------------------------------------------------------------------------------------

    @property
    def combine(self) -> Combine | None:
        return self.statement.combine

    @property
    def accumulates(self) -> bool:
        return self.statement.accumulate if isinstance(self.statement, Reduce) else self.statement.combine is not None

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
                return max((d + 1 for d, loop in enumerate(self.loops) if loop.strides[index + 1]), default=0)
            case Apply(_, arguments):
                return max((self.depth(argument) for argument in arguments), default=0)
        return 0

    def with_reciprocals(self, expression: Expression) -> Expression:
        """Divisions by what an outer loop knows as multiplications by its reciprocal, computed there."""
        if not isinstance(expression, Apply):
            return expression
        arguments = tuple(self.with_reciprocals(argument) for argument in expression.arguments)
        if expression.template == _DIVISION and self.depth(arguments[1]) < self.depth(arguments[0]):
            return Apply(_PRODUCT, (arguments[0], Apply(_RECIPROCAL, arguments[1:])))
        return Apply(expression.template, arguments)

    def define(self, depth: int, lanes: int) -> None:
        """Declare every subexpression that becomes known at this depth."""
        for node in subexpressions(self.expression):
            if node not in self.names and self.depth(node) == depth:
                name = f"v{len(self.names)}"
                self.writer.line(f"const vec {name} = {self.value(node, lanes)};")
                self.names[node] = name

    def value(self, node: Expression, lanes: int) -> str:
        match node:
            case Source(index):
                tile = self.statement.sources[index]
                return self.load(f"x{index}", tile, index + 1, lanes, self.depth(node))
            case Constant(value):
                return f"splat({literal(value)})"
            case Apply(template, arguments):
                return template.format(*(self.names[argument] for argument in arguments))

    def address(self, pointer: str, number: int, depth: int) -> str:
        terms = [scaled(loop.strides[number], f"i{d}") for d, loop in enumerate(self.loops[:depth])]
        return sum_of([pointer, *terms])

    def load(self, pointer: str, tile: Tile, number: int, lanes: int, depth: int) -> str:
        address, dtype = self.address(pointer, number, depth), self.writer.dtype(tile)
        stride = self.loops[self.vector].strides[number]
        if stride == 0 or depth <= self.vector:
            return f"spread_{dtype}({address})"
        if stride != 1:
            return f"gather_{dtype}({address}, {stride}, {lanes})"
        return f"load_{dtype}({address})" if lanes == self.lanes else f"load_first_{dtype}({address}, {lanes})"

    def store(self, value: str, lanes: int, accumulate: bool) -> None:
        """Write lanes of a value to the target, combined with what it holds if asked."""
        tile = self.statement.target
        loops = self.loops[: self.vector] if self.loops[self.vector].reduced else self.loops[: self.vector + 1]
        address, dtype = self.address("target", 0, len(loops)), self.writer.dtype(tile)
        stride = 1 if self.loops[self.vector].reduced else self.loops[self.vector].strides[0]
        if accumulate:
            old = f"gather_{dtype}({address}, {stride}, {lanes})" if stride != 1 else f"load_first_{dtype}({address}, {lanes})"
            value = self.combined(old, value)
        if stride != 1:
            self.writer.line(f"scatter_{dtype}({address}, {stride}, {value}, {lanes});")
        elif lanes == self.lanes:
            self.writer.line(f"store_{dtype}({address}, {value});")
        else:
            self.writer.line(f"store_first_{dtype}({address}, {value}, {lanes});")


class _Scope:
    """Names declared inside a C block are forgotten when it closes."""

    def __init__(self, names: dict[Expression, str]) -> None:
        self.names = names
        self.outside: dict[Expression, str] = {}

    def __enter__(self) -> None:
        self.outside = dict(self.names)

    def __exit__(self, *_: object) -> None:
        self.names.clear()
        self.names.update(self.outside)
