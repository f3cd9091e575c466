"""One kernel as text: a block graph's tiles as Triton tensors, in the order of its nodes.

Names end in the number of the node in the printed muGraph. Views are tensors reshaped or permuted, casts nothing at all:
arithmetic is in fp32, tiles of 16 bits widen where they are read, and only factors of products keep their type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import VIEWS, Node, Shape, Value
from mugraph.ir.ops import GRAPH_DEFINED, Scope, apply_call, is_contraction, partition_of
from mugraph.lower import tiles
from mugraph.lower.exponents import LOWEST, is_maximum_of, least_of, shifted
from mugraph.lower.expressions import Expression, Source, apply_row, constant_of, expression_of
from mugraph.lower.phases import Phase, phases
from mugraph.lower.tile_form import Tile
from mugraph.targets.c_text import index_terms, sum_of
from mugraph.targets.triton.expressions import number, scalar, unwrapped, write_expression
from mugraph.targets.triton.kernel import TileKernel
from mugraph.targets.triton.products import product
from mugraph.targets.triton.tile import (
    ELEMENT_TYPES,
    TileText,
    aligned,
    along,
    axis_of,
    held,
    inside,
    mask,
    padded,
    place,
    ragged_axes,
    sizes,
)
from mugraph.targets.triton.views import element_numbers, keeps_order, places_of

_PIPELINED_BYTES = 128 * 1024
"""What copies of the coming iterations' tiles may take of shared memory together: less than any multiprocessor has."""
_MOST_STAGES = 4


def kernel_lines(kernel: TileKernel) -> list[str]:
    """The definition of a kernel; raises UnsupportedOperator for what Triton cannot say."""
    return _KernelText(kernel).run()


@dataclass(slots=True)
class _RunningMaximum:
    """Names of the factors of one iteration of an online softmax: what the old and the new terms are multiplied with."""

    old_factor: str
    new_factor: str


@dataclass(slots=True)
class _KernelText:
    kernel: TileKernel
    lines: dict[Phase, list[str]] = field(default_factory=lambda: {phase: [] for phase in Phase})
    values: dict[Value, TileText] = field(default_factory=dict)
    places: set[int] = field(default_factory=set)
    """Sizes of the ranges 0, 1, ... that addresses are made of."""
    ragged: set[int] = field(default_factory=set)
    """Sizes that masks tell from their padding."""
    summed: set[int] = field(default_factory=set)
    """Accumulators that their product already adds to."""
    maxima: dict[str, _RunningMaximum] = field(default_factory=dict)
    parts: int = 0
    loaded_bytes: int = 0
    """Of the tiles that one iteration loads."""
    phases: tuple[Phase, ...] = ()

    def run(self) -> list[str]:
        self.phases = phases(self.kernel.body)
        for index, node in enumerate(self.kernel.body.nodes):
            self.write(index, node)
        before, body, after = (self.lines[phase] for phase in Phase)
        loop = self.kernel.body.loop
        if loop > 1 and body:
            stages = max(1, min(_MOST_STAGES, _PIPELINED_BYTES // max(1, self.loaded_bytes)))
            body = [f"for step in tl.range({loop}, num_stages={stages}):", *(f"    {line}" for line in body)]
        arguments = ", ".join(parameter.pointer for parameter in self.kernel.parameters)
        lines = [f'"""{self.summary()}"""', *self.coordinates(), *self.ranges(), *before, *body, *after]
        return ["@triton.jit", f"def {self.kernel.name}({arguments}):", *(f"    {line}" for line in lines)]

    # around the nodes ------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        results = ", ".join(f"{parameter.name} {list(parameter.tensor.shape)}" for parameter in self.kernel.outputs)
        operands = ", ".join(f"{parameter.name} {list(parameter.tensor.shape)}" for parameter in self.kernel.inputs)
        body = self.kernel.body
        grid = " x ".join(map(str, body.grid)) + " blocks" if self.kernel.blocks > 1 else "one block"
        return f"{results} from {operands}: {grid}" + (f", {body.loop} iterations each." if body.loop > 1 else ".")

    def coordinates(self) -> list[str]:
        """The block's coordinates in the grid."""
        lines, inner = [], 1
        cut = [dim for dim, count in enumerate(self.kernel.body.grid) if count > 1]
        for dim in reversed(cut):
            block = "block" if inner == 1 else f"block // {inner}"
            count = self.kernel.body.grid[dim]
            lines.append(f"g{dim} = {block}" + (f" % {count}" if dim != cut[0] else ""))
            inner *= count
        if len(cut) == 1:
            return [f"g{cut[0]} = tl.program_id(0)"]
        return ["block = tl.program_id(0)", *reversed(lines)] if cut else []

    def ranges(self) -> list[str]:
        ranges = sorted(self.places | set(map(padded, self.ragged)))
        masks = sorted(self.ragged)
        return [
            *(f"{place(size)} = tl.arange(0, {size})" for size in ranges),
            *(f"{inside(size)} = {place(size)} < {size}" for size in masks),
        ]

    def line(self, phase: Phase, text: str, shape: Shape | None = None) -> None:
        self.lines[phase].append(text if shape is None else f"{text}  # {list(shape)}")

    def define(self, index: int, text: str, name: str = "") -> TileText:
        """Give the value of node `index` a name, in the part of the kernel where it runs."""
        node = self.kernel.body.nodes[index]
        tile = TileText(f"{name or node.op}_{index}", node.output.shape)
        self.line(self.phases[index], f"{tile.text} = {unwrapped(text)}", tile.shape)
        return tile

    def named(self, phase: Phase, text: str) -> str:
        """Give a part of an expression a name."""
        name = f"part_{self.parts}"
        self.parts += 1
        self.line(phase, f"{name} = {text}")
        return name

    def mask(self, shape: Shape, only: Sequence[int] | None = None) -> str:
        """`tile.mask`, with what it is made of."""
        self.ragged.update(ragged_axes(shape, only).values())
        return mask(shape, only)

    def without_padding(self, tile: TileText, dim: int, neutral: str = "0.0") -> TileText:
        """The tile with `neutral` in the padding behind dimension `dim`."""
        size = tile.shape[dim]
        if padded(size) == size or (tile.zero_padded and neutral == "0.0"):
            return tile
        elements = self.mask(tile.shape, [axis_of(tile.shape, dim)])
        return replace(tile, text=f"tl.where({elements}, {tile.wide}, {neutral})", narrow=None)

    # nodes -----------------------------------------------------------------------------------------------------------

    def write(self, index: int, node: Node) -> None:
        operands = [self.values[value] for value in node.inputs]
        match node.op:
            case "input_iterator":
                value = self.load(index, node)
            case "output_saver":
                self.save(index, node)
                value = operands[0]
            case "constant":
                value = self.define(index, scalar(constant_of(node).value))
            case "cast":
                value = operands[0]
            case "reshape":
                value = self.reshaped(index, operands[0], node.output.shape)
            case "transpose":
                value = self.transposed(index, operands[0], node.integers("permutation"))
            case "repeat":
                value = self.repeat(index, node, operands[0])
            case "matmul":
                value = self.matmul(index, node, [(0, 1)])
            case "concat_matmul":
                value = self.matmul(index, node, [(0, 2), (1, 3)])
            case "sum" | "max":
                value = self.reduce(index, node, operands[0])
            case "accumulate":
                value = self.accumulate(index, node, operands[0])
            case "accumulate_rescaled":
                value = self.accumulate_rescaled(index, node, operands[0])
            case _:
                value = self.elementwise(index, node, operands)
        self.values[Value(index)] = value

    def load(self, index: int, node: Node) -> TileText:
        window = self.kernel.operands[node.integer("operand")]
        body = self.kernel.body
        call = apply_call(node.op, [], dict(node.attributes), Scope(body.grid, body.loop))
        tile = tiles.cut(window, partition_of(call))
        elements = self.mask(tile.shape)
        guard = f", mask={elements}, other=0.0" if elements else ""
        narrow = node.output.dtype if node.output.dtype is not DType.FP32 and self.is_multiplied(Value(index)) else None
        widened = "" if node.output.dtype is DType.FP32 or narrow else ".to(tl.float32)"
        loaded = self.define(index, f"tl.load({self.address(tile)}{guard}){widened}", window.buffer)
        if self.phases[index] is Phase.BODY:
            self.loaded_bytes += math.prod(held(tile.shape)) * node.output.dtype.bytes
        return replace(loaded, narrow=narrow, exact=node.output.dtype, zero_padded=True)

    def is_multiplied(self, value: Value) -> bool:
        """Whether products alone read a value, or views of it."""
        readers = [(index, self.kernel.body.nodes[index]) for index in self.kernel.body.users(value)]
        return all(
            is_contraction(reader.op) or (reader.op in VIEWS and self.is_multiplied(Value(index))) for index, reader in readers
        )

    def address(self, tile: Tile) -> str:
        """The addresses of a tile's elements."""
        dims = [(size, stride) for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1]
        terms = [f"{tile.buffer}_ptr", *index_terms(tile.start, iteration="step")]
        for axis, (size, stride) in enumerate(dims):
            self.places.add(padded(size))
            numbers = along(place(size), axis, len(dims))
            terms.append(numbers if stride == 1 else f"{numbers} * {stride}")
        return sum_of(terms)

    def save(self, index: int, node: Node) -> None:
        result = self.kernel.outputs[self.kernel.body.outputs.index(Value(index))]
        whole = result.tensor
        row_major = Tile(result.name, whole.shape, tiles.row_major(whole.shape))
        cuts = zip(self.kernel.body.grid, node.integers("omap"), strict=True)
        tile = tiles.cut(row_major, (*cuts, (1, None)))
        value = self.values[node.inputs[0]]
        elements = self.mask(tile.shape)
        guard = f", mask={elements}" if elements else ""
        text = value.text if value.narrow is whole.dtype else value.wide
        narrowed = "" if whole.dtype in (DType.FP32, value.narrow) else f".to(tl.{ELEMENT_TYPES[whole.dtype]})"
        self.line(Phase.AFTER, f"tl.store({self.address(tile)}, {text}{narrowed}{guard})", tile.shape)

    def elementwise(self, index: int, node: Node, operands: Sequence[TileText]) -> TileText:
        if node.op == GRAPH_DEFINED and node.body is not None:
            expression, name = expression_of(node.body), node.body.nodes[-2].op
        else:
            expression, name = apply_row(node.op, [Source(position) for position in range(len(operands))]), node.op
        made = self.define(index, self.expression(index, expression, operands), name)
        match shifted(expression):
            case (Source(exponent), shift):
                return replace(made, bounded=is_maximum_of(self.kernel.body, node.inputs[shift], node.inputs[exponent]))
        return made

    def expression(self, index: int, expression: Expression, operands: Sequence[TileText]) -> str:
        """The text of an expression over operands that broadcast to the shape of node `index`."""
        shape, phase = self.kernel.body.nodes[index].output.shape, self.phases[index]
        sources = [aligned(operand.wide, operand.shape, shape) for operand in operands]
        return write_expression(expression, sources, lambda part: self.named(phase, part))

    # views -----------------------------------------------------------------------------------------------------------

    def reshaped(self, index: int, operand: TileText, shape: Shape) -> TileText:
        if sizes(operand.shape) == sizes(shape):
            return replace(operand, shape=shape)
        if keeps_order(operand.shape, shape):
            tile = self.define(index, f"tl.reshape({operand.text}, {held(shape)})", "reshape")
            return replace(operand, text=tile.text, shape=shape)
        self.places.update(held(shape))
        numbers = self.named(self.phases[index], element_numbers(shape))
        places = self.named(self.phases[index], places_of(numbers, operand.shape))
        flat, wanted = math.prod(held(operand.shape)), math.prod(held(shape))
        gathered = f"tl.gather(tl.reshape({operand.wide}, ({flat},)), tl.reshape({places}, ({wanted},)), 0)"
        return replace(self.define(index, f"tl.reshape({gathered}, {held(shape)})", "reshape"), shape=shape)

    def transposed(self, index: int, operand: TileText, permutation: Sequence[int]) -> TileText:
        shape = tuple(operand.shape[dim] for dim in permutation)
        order = [axis_of(operand.shape, dim) for dim in permutation if operand.shape[dim] > 1]
        if order == sorted(order):
            return replace(operand, shape=shape)
        text = f"tl.trans({operand.text})" if len(order) == 2 else f"tl.permute({operand.text}, {tuple(order)})"
        return replace(operand, text=self.define(index, text).text, shape=shape)

    def repeat(self, index: int, node: Node, operand: TileText) -> TileText:
        dim, times = node.integer("dim"), node.integer("times")
        inserted = (*operand.shape[:dim], 1, *operand.shape[dim:])
        repeated = (*operand.shape[:dim], times, *operand.shape[dim:])
        text = aligned(operand.wide, inserted, repeated)
        if sizes(repeated) == sizes(inserted):
            return replace(operand, shape=node.output.shape)
        whole = self.named(self.phases[index], f"tl.broadcast_to({text}, {held(repeated)})")
        return self.reshaped(index, TileText(whole, repeated), node.output.shape)

    # contractions and reductions -------------------------------------------------------------------------------------

    def matmul(self, index: int, node: Node, pairs: Sequence[tuple[int, int]]) -> TileText:
        shape = node.output.shape
        accumulator = self.adds_to(index)
        total = accumulator
        for pair, (left, right) in enumerate(pairs):
            factors = [self.values[node.inputs[position]] for position in (left, right)]
            dtype = self.kernel.body.tensor(node.inputs[left]).dtype.promote(self.kernel.body.tensor(node.inputs[right]).dtype)
            clean = [self.without_padding(factors[0], len(factors[0].shape) - 1)]
            clean.append(self.without_padding(factors[1], len(factors[1].shape) - 2))
            text = product(clean[0], clean[1], shape, dtype, total)
            if pair < len(pairs) - 1:
                total = self.named(self.phases[index], text)
        if accumulator:
            self.line(Phase.BODY, f"{accumulator} = {text}", shape)
            return TileText(accumulator, shape)
        return self.define(index, text)

    def adds_to(self, index: int) -> str:
        """The accumulator that a product may add to at once: that of its only reader, which is declared; empty if none."""
        body = self.kernel.body
        readers = body.users(Value(index))
        if len(readers) != 1 or body.loop == 1 or self.phases[index] is not Phase.BODY:
            return ""
        reader = body.nodes[readers[0]]
        if reader.op != "accumulate" or reader["combine"] != "sum":
            return ""
        self.summed.add(readers[0])
        return self.declared(readers[0], reader.output.shape)

    def declared(self, index: int, shape: Shape, start: float = 0.0, name: str = "acc") -> str:
        """A new variable that iterations change, by the number of its node."""
        text = f"tl.full({held(shape)}, {number(start)}, tl.float32)" if start else f"tl.zeros({held(shape)}, tl.float32)"
        self.line(Phase.BEFORE, f"{name}_{index} = {text}", shape)
        return f"{name}_{index}"

    def reduce(self, index: int, node: Node, operand: TileText) -> TileText:
        size, least = node.integer("size"), least_of(node)
        if size == 1 and least is None:
            return operand
        text = operand.wide if size == 1 else self.reduced(index, node, operand)
        return self.define(index, text if least is None else f"tl.maximum({text}, {number(least)})")

    def reduced(self, index: int, node: Node, operand: TileText) -> str:
        """The text of the sums or maxima of groups of more than one element.

        Triton's maximum passes over NaN, which maxima that shift exponents may: the exponentials are NaN all the same.
        """
        dim, size = node.integer("dim"), node.integer("size")
        if size != operand.shape[dim]:
            groups = (*operand.shape[:dim], operand.shape[dim] // size, size, *operand.shape[dim + 1 :])
            grouped = self.reshaped(index, operand, groups)
            operand, dim = replace(grouped, text=self.named(self.phases[index], grouped.text)), dim + 1
        clean = self.without_padding(operand, dim, "0.0" if node.op == "sum" else 'float("-inf")')
        axis = axis_of(operand.shape, dim)
        if node.op == "sum" or least_of(node) is not None:
            return f"tl.{node.op}({clean.wide}, axis={axis})"
        elements = self.named(self.phases[index], clean.wide)
        unknown = f"tl.max(({elements} != {elements}).to(tl.int32), axis={axis}) > 0"
        return f'tl.where({unknown}, float("nan"), tl.max({elements}, axis={axis}))'

    # accumulators ----------------------------------------------------------------------------------------------------

    def accumulate(self, index: int, node: Node, operand: TileText) -> TileText:
        shape, combine, loop = node.output.shape, node["combine"], self.kernel.body.loop
        invariant = self.phases[node.inputs[0].node] is not Phase.BODY
        if loop == 1 or (invariant and combine == "max"):
            return replace(operand, shape=shape)
        if combine == "concat":
            return self.concatenated(index, node, operand)
        if invariant:
            return self.define(index, f"{operand.wide} * {number(loop)}", "acc")
        if index not in self.summed:
            name = self.declared(index, shape, 0.0 if combine == "sum" else -math.inf)
            combined = f"{name} + {operand.wide}" if combine == "sum" else f"maximum({name}, {operand.wide})"
            self.line(Phase.BODY, f"{name} = {combined}", shape)
        return TileText(f"acc_{index}", shape)

    def concatenated(self, index: int, node: Node, operand: TileText) -> TileText:
        """The tiles of all iterations side by side: each is put into its slot of a tensor with a dimension for the loop."""
        dim, loop = node.integer("dim"), self.kernel.body.loop
        one = (*operand.shape[:dim], 1, *operand.shape[dim:])
        slots = (*operand.shape[:dim], loop, *operand.shape[dim:])
        name = self.declared(index, slots)
        self.places.add(padded(loop))
        chosen = along(f"({place(loop)} == step)", axis_of(slots, dim), len(sizes(slots)))
        self.line(Phase.BODY, f"{name} = tl.where({chosen}, {aligned(operand.wide, one, slots)}, {name})", slots)
        return self.reshaped(index, TileText(name, slots), node.output.shape)

    def accumulate_rescaled(self, index: int, node: Node, term: TileText) -> TileText:
        shift = node.inputs[1]
        factors = self.running_maximum(shift)
        name, shape, shift_shape = self.declared(index, term.shape), term.shape, self.values[shift].shape
        old, new = (aligned(factor, shift_shape, shape) for factor in (factors.old_factor, factors.new_factor))
        self.line(Phase.BODY, f"{name} = {name} * {old} + {term.wide} * {new}", shape)
        return TileText(name, shape)

    def running_maximum(self, shift: Value) -> _RunningMaximum:
        """Keep the maximum of `shift` over the iterations; shared by all accumulators that are shifted alike, in any shape."""
        now, index = self.values[shift], shift.node
        if now.text not in self.maxima:
            largest = self.declared(index, now.shape, LOWEST, "largest")
            raised = f"raised_{index}"
            factors = _RunningMaximum(f"old_factor_{index}", f"new_factor_{index}")
            self.line(Phase.BODY, f"{raised} = tl.maximum({largest}, {now.wide})", now.shape)
            self.line(Phase.BODY, f"{factors.old_factor} = tl.exp({largest} - {raised})", now.shape)
            self.line(Phase.BODY, f"{factors.new_factor} = tl.exp({now.wide} - {raised})", now.shape)
            self.line(Phase.BODY, f"{largest} = {raised}")
            self.maxima[now.text] = factors
        return self.maxima[now.text]
