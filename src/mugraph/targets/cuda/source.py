"""The text of one kernel, which knows its threads and the types of its buffers; literals and expressions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.ir.dtypes import DType
from mugraph.ir.ops import OPERATORS, Kind, operator
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source, as_written, subexpressions
from mugraph.lower.staging import slots
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Reduce, Tile
from mugraph.targets.c_text import Text, index_terms, literal, sum_of

_DIVISION, _QUOTIENT = operator("div").scalar, "quotient({0}, {1})"
_RATIONAL = frozenset(row.scalar for row in OPERATORS.values() if row.kind in (Kind.MULTILINEAR, Kind.DIVISION, Kind.SQUARE_ROOT))


@dataclass(slots=True)
class KernelText(Text):
    """The lines of one kernel."""

    kernel: Kernel

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.kernel.threads

    def buffer(self, tile: Tile) -> Buffer:
        """The buffer a tile is a window of."""
        return self.kernel.buffer(tile.buffer)

    def dtype(self, tile: Tile) -> DType:
        """Element type of the tile's buffer."""
        return self.buffer(tile).dtype

    def place(self, tile: Tile, terms: Sequence[str]) -> str:
        """Where an element lies, counted from the tile's start; `terms` add up to its index times the strides."""
        plain = sum_of(list(terms)) or "0"
        return plain if tile.swizzle is None else f"{swizzle_type(tile)}::at({plain})"

    def element(self, pointer: str, tile: Tile, terms: Sequence[str]) -> str:
        """The address of an element of a tile that starts at `pointer`."""
        place = self.place(tile, terms)
        return pointer if place == "0" else f"{pointer} + {place}"

    def pointer(self, name: str, tile: Tile, written: bool = False) -> None:
        """Declare `name`, a pointer to the tile's first element in this block and iteration, or where copies have brought it."""
        const = "" if written else "const "
        self.line(f"{const}{self.dtype(tile)}_t *{name} = {sum_of([self.base(tile), *index_terms(tile.start)])};")

    def base(self, tile: Tile) -> str:
        """Where the elements of a tile's buffer begin: of the ring the slot in use, of a staged input that of iteration `l`."""
        ring = self.kernel.ring
        if ring is not None and tile.buffer == ring.buffer:
            return "slot"
        count = slots(self.kernel) if any(staged.buffer == tile.buffer for staged in self.kernel.staged) else 1
        return tile.buffer if count == 1 else f"{tile.buffer} + l % {count} * {self.buffer(tile).elements // count}"

    def end(self, tile: Tile) -> str:
        """Where the memory of a tile's operand ends, if a launch may end it within the tile; else ""."""
        return end_name(tile.buffer) if tile.buffer in self.ends else ""

    @property
    def ends(self) -> frozenset[str]:
        """The operands whose memory may end within a block's tiles."""
        slices = self.kernel.slices
        return slices.ends if slices is not None and slices.is_ragged else frozenset()

    def lie_in_one_slice(self, tile: Tile, run: int, steps: Iterable[int]) -> bool:
        """Whether `run` elements that lie together are of one slice wherever they begin: `steps` apart from the tile's start."""
        slices = self.kernel.slices
        return slices is None or math.gcd(slices.elements(tile.buffer), *tile.start.parts, *steps) % run == 0

    def loaded(self, tile: Tile, address: str) -> str:
        """An element of a tile as a float; 0 where the memory ends before."""
        end = self.end(tile)
        return f"load_before({address}, {end})" if end else f"to_float(*({address}))"

    def store(self, tile: Tile, address: str, value: str) -> None:
        """Write an element of a tile, if its memory does not end before."""
        if end := self.end(tile):
            self.line(f"store_before({address}, {value}, {end});")
        else:
            self.line(f"*({address}) = from_float<{self.dtype(tile)}_t>({value});")

    def load_run(self, into: str, tile: Tile, address: str, run: int, steps: Iterable[int]) -> None:
        """Load elements of a tile that lie together, the first of them `steps` apart from its start; 0 for what has no memory."""
        self.line(f"{self._of_run('load_run', tile, run, steps)}({into}, {address}{self._up_to(tile)});")

    def store_run(self, tile: Tile, address: str, values: str, run: int, steps: Iterable[int]) -> None:
        """Write elements of a tile that lie together, those that have memory."""
        self.line(f"{self._of_run('store_run', tile, run, steps)}({address}, {values}{self._up_to(tile)});")

    def _of_run(self, function: str, tile: Tile, run: int, steps: Iterable[int]) -> str:
        if not self.end(tile):
            return f"{function}<{self.dtype(tile)}_t, {run}>"
        return f"{function}_before<{self.dtype(tile)}_t, {run}, {str(self.lie_in_one_slice(tile, run, steps)).lower()}>"

    def _up_to(self, tile: Tile) -> str:
        return f", {end}" if (end := self.end(tile)) else ""


def end_name(buffer: str) -> str:
    """What the pointer is called that stands where an operand's memory ends."""
    return f"{buffer}_end"


def takes_quotients(kernel: Kernel) -> bool:
    """Whether two units in the last place of a division are lost in what leaves a kernel: numbers of 16 bits, made by sums,
    products, quotients and roots alone, which do not jump where quotients need not be exact (`mugraph.lower.exact_quotients`)."""
    expressions = (s.expression for s in kernel.statements if isinstance(s, Elementwise | Reduce))
    applied = (each for whole in expressions for each in subexpressions(whole) if isinstance(each, Apply))
    narrow = (DType.FP16, DType.BF16)
    return all(kernel.buffer(name).dtype in narrow for name in kernel.outputs) and all(e.template in _RATIONAL for e in applied)


def swizzle_type(tile: Tile) -> str:
    """The type whose function `at` moves places to where a tile's elements lie."""
    swizzle = tile.swizzle
    return "Plain" if swizzle is None else f"Swizzle<{swizzle.bits}, {swizzle.base}, {swizzle.shift}>"


def number(value: float) -> str:
    """A CUDA literal for `value` rounded to fp32."""
    rounded = np.float32(value)
    if np.isfinite(rounded):
        return literal(value)
    return f"as_float(0x{int(rounded.view(np.uint32)):08x}u)"


def write_expression(text: KernelText, expression: Expression, sources: Sequence[str]) -> str:
    """Declare every subexpression once, given the text of each source's element; the text of the whole, which other statements
    may read in a register."""
    quotients = takes_quotients(text.kernel)
    names: dict[Expression, str] = {}
    expression = as_written(expression, read_elsewhere=True)
    for node in subexpressions(expression):
        match node:
            case Source(index):
                names[node] = sources[index]
            case Constant(value):
                written = number(value)
                names[node] = f"({written})" if written.startswith("-") else written
            case Apply(template, arguments):
                name, form = f"v{len(names)}", _QUOTIENT if quotients and template == _DIVISION else template
                text.line(f"const float {name} = {form.format(*(names[argument] for argument in arguments))};")
                names[node] = name
    return names[expression]
