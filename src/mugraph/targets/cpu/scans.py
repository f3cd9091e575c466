"""Running sums and products as loops over vectors, in double precision.

Along a dimension that lies together in memory, a vector is scanned by shifts across its lanes, and what runs joins all of them.
Else the lanes lie along another dimension, and several vectors run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mugraph.lower.thread_mapping import LoopDim, loops_of, with_integers
from mugraph.lower.tile_form import Elementwise, Scan, Tile
from mugraph.targets.cpu.loops import Nest, vector_cost
from mugraph.targets.cpu.source import UNROLLED, Writer

_COMBINED = {"add": "{} + {}", "mul": "{} * {}"}
_NEUTRAL = {"add": 0.0, "mul": 1.0}
_ACROSS_LANES = 1.0
"""What shifts across the lanes of a vector cost, in accesses of vectors."""


def print_scans(lanes: int) -> str:
    """Definitions of `reals`, a vector of half as many doubles; of `WIDEN_LOW`, `WIDEN_HIGH` and `NARROW` between these and
    vectors of floats; and of `scan_add`, `scan_mul` and their `_back`, which scan one vector and take along what ran before."""
    half = lanes // 2
    low, high = (", ".join(map(str, range(start, start + half))) for start in (0, half))
    parts = [
        f"typedef double reals __attribute__((vector_size({8 * half})));",
        f"#define WIDEN_LOW(x) __builtin_convertvector(__builtin_shufflevector(x, x, {low}), reals)",
        f"#define WIDEN_HIGH(x) __builtin_convertvector(__builtin_shufflevector(x, x, {high}), reals)",
        f"typedef float narrow __attribute__((vector_size({4 * half})));",
        "#define NARROW(a, b) __builtin_shufflevector(__builtin_convertvector(a, narrow), "
        f"__builtin_convertvector(b, narrow), {low}, {high})",
    ]
    for op in _COMBINED:
        parts += [_scan_of_vector(op, half, back=back) for back in (False, True)]
    return "\n".join(parts) + "\n"


def _scan_of_vector(op: str, half: int, back: bool) -> str:
    def combined(left: str, right: str) -> str:
        return _COMBINED[op].format(left, right)

    name, last = f"scan_{op}{'_back' * back}", 0 if back else half - 1
    everywhere = ", ".join([str(last)] * half)
    lines = [f"reals none = {_none(op)}, low = WIDEN_LOW(x), high = WIDEN_HIGH(x);"]
    for shift in (1 << bit for bit in range(half.bit_length() - 1)):
        places = (lane + shift if back else lane - shift for lane in range(half))
        indices = ", ".join(str(half + place if 0 <= place < half else 0) for place in places)
        for part in ("low", "high"):
            lines.append(f"{part} = {combined(part, f'__builtin_shufflevector(none, {part}, {indices})')};")
    first, second = ("high", "low") if back else ("low", "high")
    for part in (first, second):
        lines.append(f"reals all_{part} = __builtin_shufflevector({part}, {part}, {everywhere});")
    lines.append(f"{second} = {combined(second, '(' + combined('*running', f'all_{first}') + ')')};")
    lines.append(f"{first} = {combined(first, '*running')};")
    lines.append(f"*running = {combined('*running', '(' + combined(f'all_{first}', f'all_{second}') + ')')};")
    lines.append("return NARROW(low, high);")
    body = "\n    ".join(lines)
    return f"INLINE vec {name}(vec x, reals *running)\n{{\n    {body}\n}}"


def _none(op: str) -> str:
    return f"(reals){{0}} + {_NEUTRAL[op]}"


def print_scan(writer: Writer, statement: Scan) -> None:
    """Write a scan."""
    with writer.block():
        _ScanNest(writer, statement).write()


class _ScanNest(Nest[Scan]):
    """The loops of a scan; that along its own dimension is the last, and goes back where the scan does."""

    def arranged(self) -> tuple[list[LoopDim], int]:
        statement = self.statement
        rest = Elementwise(
            _without(statement.target, statement.dim),
            tuple(_without(tile, statement.dim) for tile in statement.sources),
            statement.expression,
        )
        tiles = (statement.target, *with_integers(statement.sources))
        along = LoopDim(statement.target.shape[statement.dim], tuple(tile.strides[statement.dim] for tile in tiles))
        others = loops_of(rest)
        vector = min(others, key=lambda dim: vector_cost(dim, self.lanes, self.operands))
        self.across = vector_cost(along, self.lanes, self.operands) + _ACROSS_LANES < vector_cost(
            vector, self.lanes, self.operands
        )
        """Whether the lanes lie along the scan."""
        if self.across:
            return [*others, along], len(others)
        outer = [dim for dim in others if dim is not vector]
        return [*outer, vector, along], len(outer)

    def vector_loop(self, depth: int) -> None:
        if self.across:
            self.along_lanes(depth)
            return
        size, lanes = self.loops[depth].size, self.lanes
        done = 0
        for step in (UNROLLED * lanes, lanes):
            whole = size // step * step
            if whole > done:
                with self.writer.block(f"for (long i = {done}; i < {whole}; i += {step})"):
                    self.side_by_side_lanes(depth, [f"i + {start}" for start in range(0, step, lanes)], lanes)
            done = max(done, whole)
        if size > done:
            with self.writer.block():
                self.side_by_side_lanes(depth, [str(done)], size - done)

    def side_by_side_lanes(self, depth: int, starts: Sequence[str], lanes: int) -> None:
        """Vectors of results that run along the scan, each in two vectors of doubles."""
        op, size = self.statement.op, self.loops[depth + 1].size
        for number in range(len(starts)):
            self.writer.line(f"reals low{number} = {_none(op)}, high{number} = low{number};")
        with self.writer.block(self.over(f"i{depth + 1}", 0, size, 1)):
            for number, start in enumerate(starts):
                with self.writer.block(), self.scope():
                    self.writer.line(f"const long i{depth} = {start};")
                    self.define(depth + 1, lanes)
                    self.define(depth + 2, lanes)
                    value = self.names[self.expression]
                    for part in ("low", "high"):
                        running = _COMBINED[op].format(f"{part}{number}", f"WIDEN_{part.upper()}({value})")
                        self.writer.line(f"{part}{number} = {running};")
                    self.store(f"NARROW(low{number}, high{number})", lanes, accumulate=False)

    def along_lanes(self, depth: int) -> None:
        """One vector after the other, each scanned across its lanes."""
        op, back = self.statement.op, self.statement.back
        self.writer.line(f"reals running = {_none(op)};")
        for lanes in self.chunks(depth):
            self.define(depth + 1, lanes)
            value = self.names[self.expression]
            if back and lanes < self.lanes:
                value = f"keep_first({value}, {_NEUTRAL[op]}f, {lanes})"
            self.store(f"scan_{op}{'_back' * back}({value}, &running)", lanes, accumulate=False)

    def chunks(self, depth: int) -> Iterator[int]:
        """Whole vectors and what is left behind them, in the order of the scan: inside each, how many lanes are in use."""
        size, lanes = self.loops[depth].size, self.lanes
        whole = size // lanes * lanes
        for rest in (self.statement.back, not self.statement.back):
            if rest and size > whole:
                with self.writer.block(), self.scope():
                    self.writer.line(f"const long i{depth} = {whole};")
                    yield size - whole
            elif not rest and whole:
                with self.writer.block(self.over(f"i{depth}", 0, whole, lanes)), self.scope():
                    yield lanes

    def over(self, index: str, start: int, end: int, step: int) -> str:
        """The head of a loop in the direction of the scan."""
        if self.statement.back:
            return f"for (long {index} = {end - step}; {index} >= {start}; {index} -= {step})"
        return f"for (long {index} = {start}; {index} < {end}; {index} += {step})"

    def places(self) -> int:
        return len(self.loops)


def _without(tile: Tile, dim: int) -> Tile:
    """A tile at one position of a dimension."""
    lookup = tile.lookup and replace(tile.lookup, index=_without(tile.lookup.index, dim))
    shape, strides = ((*each[:dim], *each[dim + 1 :]) for each in (tile.shape, tile.strides))
    return replace(tile, shape=shape, strides=strides, lookup=lookup)
