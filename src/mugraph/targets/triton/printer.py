"""One kernel as text: the statements of its tile form, one after another, over tiles as Triton tensors.

A shared buffer is a variable that holds all its elements, under the label of the statement that writes it; a tile of it in other
dimensions is a view of that tensor, and a copy another name. Windows of inputs are loaded once, as the muGraph cuts them.
Arithmetic is in fp32: tiles of 16 bits widen where they are read, and only factors of products keep their type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mugraph.errors import UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.lower.exponents import LOWEST, maxima, with_shifted_exponentials
from mugraph.lower.phases import Phase
from mugraph.lower.scalar_expressions import MAXIMUM, Apply, Constant, Expression, Source
from mugraph.lower.tile_form import Combine, Elementwise, Kernel, Load, Matmul, Reduce, Scan, Statement, Tile
from mugraph.lower.tiles import permuted
from mugraph.targets.c_text import product_of
from mugraph.targets.triton.expressions import APPROXIMATE_EXPONENTIAL, TRITON_MAXIMUM, number, scalar, unwrapped
from mugraph.targets.triton.kernel import Parameter, TileKernel
from mugraph.targets.triton.kernel_text import KernelText, TensorName
from mugraph.targets.triton.products import Products, padding_for
from mugraph.targets.triton.slices import block_counts, held_rows, in_memory
from mugraph.targets.triton.tensors import (
    ELEMENT_TYPES,
    TileText,
    View,
    aligned,
    along,
    axis_of,
    elements_of,
    same_tensor,
    sizes,
    window_of,
    with_slots,
)
from mugraph.targets.triton.tuning import STAGES, decorator
from mugraph.targets.triton.units import Units

_MOST_STAGES = 4


def kernel_lines(kernel: TileKernel) -> list[str]:
    """The definition of a kernel; raises UnsupportedOperator for what Triton cannot say."""
    products = Products(kernel.units, kernel.warps, padding_for(kernel.form, kernel.units))
    text = KernelText(products.padding)
    printer = _KernelPrinter(kernel.form, _parameters(kernel), _readers(kernel.form), products, text, maxima=maxima(kernel.form))
    return printer.lines(kernel)


def _parameters(kernel: TileKernel) -> dict[str, Parameter]:
    """The device tensors by the names of their buffers."""
    return dict(zip((*kernel.form.inputs, *kernel.form.outputs), kernel.parameters, strict=True))


def _readers(form: Kernel) -> dict[object, list[Statement]]:
    """The statements that read each window of an input, in whatever dimensions."""
    readers: dict[object, list[Statement]] = {}
    for statement in form.statements:
        for window in {elements_of(source) for source in statement.sources if source.buffer in form.inputs}:
            readers.setdefault(window, []).append(statement)
    return readers


@dataclass(slots=True)
class _Content:
    """What a shared buffer or a window of an input holds: a tensor with the dimensions of `tile`, and since when."""

    tile: Tile
    text: TileText
    phase: Phase
    views: dict[tuple[object, Phase], TileText] = field(default_factory=dict)
    """Of this tensor, by the part of the kernel that they are computed in."""


@dataclass(slots=True)
class _KernelPrinter:
    form: Kernel
    parameters: dict[str, Parameter]
    readers: dict[object, list[Statement]]
    products: Products
    text: KernelText
    contents: dict[object, _Content] = field(default_factory=dict)
    """By the name of a buffer that is read as a whole, by `elements_of` a window."""
    variables: dict[str, str] = field(default_factory=dict)
    """Names of what iterations change, by buffer."""
    starts: dict[object, float] = field(default_factory=dict)
    """Numbers that tiles were filled with, which `contents` would know by the same keys."""
    filled: set[object] = field(default_factory=set)
    """Tiles that hold nothing else yet: their number is written where they are read."""
    stores: dict[str, list[str]] = field(default_factory=dict)
    """Lines by output."""
    maxima: Mapping[str, frozenset[Expression]] = field(default_factory=dict)
    """Buffers of maxima, with what they are maxima of."""
    loaded_bytes: int = 0
    """Of the tiles that one iteration loads."""

    def lines(self, kernel: TileKernel) -> list[str]:
        """The definition of the kernel."""
        self.declare_slots()
        for phase, statements in zip(Phase, (self.form.before, self.form.body, self.form.after), strict=True):
            for statement in statements:
                self.load(phase, statement)
                self.write(phase, statement)
            self.load(phase)
        before, body, after = (self.text.lines[phase] for phase in Phase)
        after += [line for output in self.form.outputs for line in self.stores[output]]
        stages = self.stages(kernel.units) if self.form.loop > 1 and body else None
        if stages is not None:
            count = STAGES if kernel.tuned else stages
            body = [f"for step in tl.range({self.form.loop}, num_stages={count}):", *(f"    {line}" for line in body)]
        arguments = ", ".join(parameter.argument for parameter in kernel.parameters)
        before_definition = ["@triton.jit"]
        if kernel.tuned:
            before_definition = [*decorator(kernel.warps, stages, kernel.units), *before_definition]
            arguments += f", {STAGES}: tl.constexpr" * (stages is not None)
        begun = [*_coordinates(self.form, self.count), *held_rows(self.form, self.count)]
        lines = [f'"""{_summary(kernel)}"""', *begun, *self.text.ranges(), *before, *body, *after]
        return [*before_definition, f"def {kernel.name}({arguments}):", *(f"    {line}" for line in lines)]

    @property
    def count(self) -> str:
        """The name of the number of slices, where that is an argument."""
        return next((parameter.name for parameter in self.parameters.values() if parameter.is_number), "")

    def stages(self, units: Units) -> int:
        """Stages of the loop's software pipeline: as many as its loads leave room for in shared memory."""
        return max(1, min(_MOST_STAGES, units.pipelined_bytes // max(1, self.loaded_bytes)))

    # device memory ---------------------------------------------------------------------------------------------------

    def load(self, phase: Phase, before: Statement | None = None) -> None:
        """Load, each once, the windows that the muGraph reads in this part of the kernel, up to a statement or to the end."""
        read = set() if before is None else {elements_of(source) for source in before.sources}
        for load in self.form.loads:
            window = elements_of(load.tile)
            is_due = before is None or window in read or (before.label is not None and load.node < before.label.node)
            if load.phase is phase and is_due and window in self.readers and window not in self.contents:
                self.contents[window] = _Content(load.tile, self.loaded(load, self.readers[window]), phase)

    def loaded(self, load: Load, readers: Sequence[Statement]) -> TileText:
        tensor, shape = self.parameters[load.tile.buffer], load.tile.shape
        elements, dtype = self.mask(load.tile), tensor.tensor.dtype
        guard = f", mask={elements}, other=0.0" if elements else ""
        is_factor = all(isinstance(reader, Matmul) for reader in readers)
        narrow = dtype if dtype is not DType.FP32 and is_factor else None
        widened = "" if dtype is DType.FP32 or narrow else ".to(tl.float32)"
        if load.phase is Phase.BODY:
            self.loaded_bytes += math.prod(self.text.padding.held(shape)) * dtype.bytes
        text = f"tl.load({self.text.address(load.tile, tensor.argument)}{guard}){widened}"
        tile = self.text.define(load.phase, f"{tensor.name}_{load.node}", text, shape)
        return replace(tile, narrow=narrow, exact=dtype, zero_padded=True)

    def store(self, tile: Tile, value: TileText) -> None:
        """Write an output, at the end of the kernel: stores would keep loads behind them from being moved ahead."""
        result = self.parameters[tile.buffer]
        elements, dtype = self.mask(tile), result.tensor.dtype
        guard = f", mask={elements}" if elements else ""
        text = value.text if value.narrow is dtype else value.wide
        narrowed = "" if dtype in (DType.FP32, value.narrow) else f".to(tl.{ELEMENT_TYPES[dtype]})"
        narrowed = " != 0.0" if dtype is DType.BOOL else narrowed
        line = f"tl.store({self.text.address(tile, result.argument)}, {text}{narrowed}{guard})  # {list(tile.shape)}"
        self.stores.setdefault(tile.buffer, []).append(line)

    def mask(self, tile: Tile) -> str:
        """What is true of the elements of a window of device memory that are no padding, and for which there is memory."""
        return " & ".join(filter(None, (self.text.mask(tile.shape), in_memory(self.form, tile, self.text, self.count))))

    # sources of statements -------------------------------------------------------------------------------------------

    def key(self, tile: Tile) -> object:
        """What `contents` knows a tile by."""
        return elements_of(tile) if tile.buffer in self.parameters or any(tile.start.parts) else tile.buffer

    def read(self, phase: Phase, tile: Tile) -> TileText:
        """A source of a statement; its dimensions of stride 0, along which it repeats, have size 1 in the text."""
        if self.key(tile) in self.filled:
            return TileText(scalar(self.starts[self.key(tile)]), (1,) * tile.rank)
        content = self.contents[self.key(tile)]
        where = Phase.BEFORE if content.phase is Phase.BEFORE and phase is Phase.BODY else phase
        own = replace(tile, shape=tuple(size if stride else 1 for size, stride in zip(tile.shape, tile.strides, strict=True)))
        view = (window_of(own), where)
        if view not in content.views:
            content.views[view] = self.viewed(where, content.text, content.tile, own)
        return replace(content.views[view], shape=own.shape)

    def viewed(self, phase: Phase, text: TileText, tile: Tile, wanted: Tile) -> TileText:
        """The tensor of a tile in the dimensions of another tile of the same elements."""
        return self.text.viewed(phase, text, View.between(tile, wanted), wanted.shape, self.tensor_of(wanted))

    def tensor_of(self, tile: Tile) -> TensorName | None:
        """What a tile is in the muGraph, if it is a tensor there."""
        window = window_of(tile)
        return next(((value.node, other.shape) for value, other in self.form.tensors if window_of(other) == window), None)

    # statements ------------------------------------------------------------------------------------------------------

    def write(self, phase: Phase, statement: Statement) -> None:
        match statement:
            case Elementwise(sources=(), expression=Constant(value), combine=None):
                self.fill(phase, statement, value)
            case Elementwise(target=target, combine=combine):
                sources = [self.read(phase, source) for source in statement.sources]
                expression = self.expression(statement)
                expression = _passing_nan(expression) if self.is_running(statement) else expression
                self.put(phase, statement, self.text.expression(phase, expression, sources, target.shape), combine)
            case Reduce(combine=combine, accumulate=accumulate):
                self.put(phase, statement, self.reduced(phase, statement), combine if accumulate else None)
            case Matmul():
                self.multiply(phase, statement)
            case Scan(target=target):
                raise UnsupportedOperator(
                    f"target triton prints no running sums and products ({self.form.name}, {list(target.shape)}); "
                    "use target='cpu'"
                )

    def expression(self, statement: Elementwise | Reduce) -> Expression:
        """What a statement computes. Exponentials shifted by the maximum of their exponents are near 1 where they matter, and
        approximate ones exact enough."""
        return with_shifted_exponentials(statement, self.maxima, APPROXIMATE_EXPONENTIAL)

    def is_running(self, statement: Elementwise) -> bool:
        """Whether a statement reads the running maximum of an online softmax."""
        return any(source.buffer in self.variables and self.shifts_exponents(source) for source in statement.sources)

    def shifts_exponents(self, tile: Tile) -> bool:
        """Whether a tile is a maximum over the least number too. It may pass over NaN: the exponentials are NaN all the same."""
        return self.starts.get(self.key(tile)) == LOWEST

    def reduced(self, phase: Phase, statement: Reduce) -> TileText:
        """The sums or maxima of a statement, without what its target holds; Triton's own maximum passes over NaN."""
        target, axis = statement.target, _place_of_last(statement.sources)
        order = (*range(axis), target.rank, *range(axis, target.rank))
        sources = [permuted(source, order) for source in statement.sources]
        shape = sources[0].shape
        tile = self.text.expression(phase, self.expression(statement), [self.read(phase, source) for source in sources], shape)
        if shape[axis] == 1:
            return replace(tile, shape=target.shape)
        clean = self.text.without_padding(tile, axis, "0.0" if statement.combine is Combine.SUM else 'float("-inf")')
        along_axis = f"axis={axis_of(shape, axis)}"
        if statement.combine is Combine.SUM or self.shifts_exponents(target):
            return TileText(f"tl.{statement.combine}({clean.wide}, {along_axis})", target.shape)
        elements = self.text.named(phase, clean.wide)
        unknown = f"tl.max(({elements} != {elements}).to(tl.int32), {along_axis}) > 0"
        return TileText(f'tl.where({unknown}, float("nan"), tl.max({elements}, {along_axis}))', target.shape)

    def multiply(self, phase: Phase, statement: Matmul) -> None:
        """A product, added by the matrix units where its target has the same dimensions."""
        left, right = (self.factor(phase, factor) for factor in statement.sources)
        left, right = self.text.without_padding(left, left.rank - 1), self.text.without_padding(right, right.rank - 2)
        target = statement.target
        total = self.contents.get(self.key(target)) if statement.accumulate else None
        if total is not None and same_tensor(total.tile, target):
            text = self.products.text(statement, left, right, total.text.text)
            self.put(phase, statement, TileText(text, target.shape))
        else:
            text = self.products.text(statement, left, right)
            self.put(phase, statement, TileText(text, target.shape), Combine.SUM if statement.accumulate else None)

    def factor(self, phase: Phase, tile: Tile) -> TileText:
        """A factor of a product, which `product` repeats along a batch, and nobody along its last two dimensions."""
        matrix = self.read(phase, tile)
        shape = (*matrix.shape[:-2], *tile.shape[-2:])
        return self.text.expression(phase, Source(0), [matrix], shape)

    # where results belong --------------------------------------------------------------------------------------------

    def declare_slots(self) -> None:
        """Declare the tensors of which every iteration writes a part."""
        for tile in (statement.target for statement in self.form.body):
            if tile.start.loop and tile.buffer not in self.variables and tile.buffer not in self.parameters:
                whole = next(
                    value.node for value, other in self.form.tensors if other.buffer == tile.buffer and not other.start.loop
                )
                self.declare(with_slots(tile, self.form.loop), f"acc_{whole}", 0.0)

    def declare(self, tile: Tile, name: str, start: float) -> None:
        """Declare a variable that iterations change."""
        held = self.text.padding.held(tile.shape)
        text = f"tl.full({held}, {number(start)}, tl.float32)" if start else f"tl.zeros({held}, tl.float32)"
        variable = self.text.define(Phase.BEFORE, name, text, tile.shape)
        self.variables[tile.buffer] = name
        self.starts[tile.buffer] = start
        self.contents[tile.buffer] = _Content(tile, variable, Phase.BODY)

    def fill(self, phase: Phase, statement: Elementwise, value: float) -> None:
        """Fill a tile with a number: a variable before the loop is declared, in the dimensions that iterations write."""
        tile, constant = statement.target, TileText(scalar(value), (1,) * statement.target.rank)
        written = next((other.target for other in self.form.body if other.target.buffer == tile.buffer), None)
        if tile.buffer in self.parameters:
            self.store(tile, constant)
        elif phase is Phase.BEFORE and written is not None:
            self.declare(written, _name(statement), value)
        else:
            self.starts[self.key(tile)] = value
            self.filled.add(self.key(tile))
            if tile.buffer in self.variables:
                self.put_in_slot(tile, constant)

    def put(self, phase: Phase, statement: Statement, value: TileText, combine: Combine | None = None) -> None:
        """Write what a statement computes, in the dimensions of its target, to where it belongs."""
        tile = statement.target
        if tile.buffer in self.variables and not tile.start.loop:
            self.change(phase, statement, value, combine)
            return
        if combine is not None:
            value = TileText(self.combined(phase, tile, value, combine), value.shape)
        if not value.text.isidentifier() or (phase is Phase.BODY and value.text in self.variables.values()):
            value = self.defined(phase, statement, value)
        if tile.buffer in self.parameters:
            self.store(tile, value)
            return
        self.filled.discard(self.key(tile))
        self.contents[self.key(tile)] = _Content(tile, value, phase)
        if tile.buffer in self.variables:
            self.put_in_slot(tile, value)

    def defined(self, phase: Phase, statement: Statement, value: TileText) -> TileText:
        """What a statement computes under its label, or under a name of its own if something else is called so."""
        name, content = _name(statement), self.contents.get(self.key(statement.target))
        if name in self.text.names and (content is None or content.text.text != name):
            return TileText(self.text.named(phase, value.wide), value.shape)
        return self.text.define(phase, name, value.wide, value.shape)

    def combined(self, phase: Phase, tile: Tile, value: TileText, combine: Combine) -> str:
        """A value and what its target holds, in one part of the kernel."""
        if self.key(tile) not in self.filled:
            return _both(combine, self.read(phase, tile).wide, value.wide)
        start = self.starts[self.key(tile)]
        if combine is Combine.SUM:
            return f"{value.wide} + {number(start)}" if start else value.wide
        return (TRITON_MAXIMUM if start == LOWEST else _MAXIMUM).format(value.wide, number(start))

    def change(self, phase: Phase, statement: Statement, value: TileText, combine: Combine | None) -> None:
        """Change a variable of the loop."""
        tile, content = statement.target, self.contents[statement.target.buffer]
        is_whole = combine is None and same_tensor(content.tile, tile)
        if not is_whole and not value.text.isidentifier():
            value = self.defined(phase, statement, value)
        term = self.viewed(phase, value, tile, content.tile).wide
        self.set_variable(phase, content, term if combine is None else _both(combine, content.text.text, term))

    def put_in_slot(self, tile: Tile, value: TileText) -> None:
        """Change this iteration's part of a variable that has a dimension for the loop."""
        content, count = self.contents[tile.buffer], self.form.loop
        slots = content.tile
        dim = list(zip(slots.shape, slots.strides, strict=True)).index((count, tile.start.loop))
        self.text.places.add(self.text.padding.size(count))
        chosen = along(f"({self.text.padding.place(count)} == step)", axis_of(slots.shape, dim), len(sizes(slots.shape)))
        part = (*value.shape[:dim], 1, *value.shape[dim:])
        text = f"tl.where({chosen}, {aligned(value.wide, part, slots.shape)}, {content.text.text})"
        self.set_variable(Phase.BODY, content, text)

    def set_variable(self, phase: Phase, content: _Content, text: str) -> None:
        self.text.line(phase, f"{content.text.text} = {unwrapped(text)}", content.tile.shape)
        content.views.clear()


_MAXIMUM = "maximum({0}, {1})"


def _both(combine: Combine, first: str, second: str) -> str:
    return f"{first} + {second}" if combine is Combine.SUM else _MAXIMUM.format(first, second)


def _passing_nan(expression: Expression) -> Expression:
    """An expression, in which a maximum passes over NaN."""
    match expression:
        case Apply(template, arguments) if template == MAXIMUM:
            return Apply(TRITON_MAXIMUM, arguments)
    return expression


def _name(statement: Statement) -> str:
    return str(statement.label or statement.target.buffer)


def _place_of_last(sources: Sequence[Tile]) -> int:
    """Among the other dimensions, where the last one lies in memory: behind those that vary more slowly."""
    steps = next((source.strides for source in sources if source.strides[-1]), (0,))
    slower = (dim for dim, stride in enumerate(steps[:-1]) if stride > steps[-1] and sources[0].shape[dim] > 1)
    return max(slower, default=-1) + 1


def _summary(kernel: TileKernel) -> str:
    """What the kernel makes of what."""
    results, operands = (
        ", ".join(f"{parameter.name} {list(parameter.tensor.shape)}" for parameter in group)
        for group in (kernel.outputs, kernel.inputs)
    )
    grid = " x ".join(map(str, kernel.form.grid)) + " blocks" if kernel.blocks > 1 else "one block"
    return f"{results} from {operands}: {grid}" + (f", {kernel.form.loop} iterations each." if kernel.form.loop > 1 else ".")


def _coordinates(form: Kernel, number: str) -> list[str]:
    """The block's coordinates in the grid, whose size depends on the number of slices where that is an argument."""
    counts, declared = block_counts(form, number)
    lines: list[str] = []
    behind: list[str] = []
    cut = [dim for dim, count in enumerate(form.grid) if count > 1]
    for dim in reversed(cut):
        block = f"block // {product_of(behind)}" if behind else "block"
        lines.append(f"g{dim} = {block}" + (f" % {counts[dim]}" if dim != cut[0] else ""))
        behind.append(counts[dim])
    if len(cut) == 1:
        return [f"g{cut[0]} = tl.program_id(0)"]
    return ["block = tl.program_id(0)", *declared, *reversed(lines)] if cut else []
