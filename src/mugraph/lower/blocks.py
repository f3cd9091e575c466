"""One block graph as a kernel of the lowered form.

Views, iterators and savers turn into strides and starts; a value that only a saver or an accumulator reads is
computed straight into its place; thread graphs turn into expressions, those that end in a reduction into reductions of an
expression, and one that only an accumulator reads is computed inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import VIEWS, Graph, Node, Shape, Value
from mugraph.ir.ops import GRAPH_DEFINED, Scope, apply_call, is_contraction, is_reduction, is_scan, operator, partition_of
from mugraph.ir.scans import SCANS
from mugraph.lower import tiles
from mugraph.lower.exponents import LOWEST, least_made, least_of
from mugraph.lower.phases import ACCUMULATORS, Phase, phases
from mugraph.lower.scalar_expressions import (
    MAXIMUM,
    RESCALED,
    Apply,
    Constant,
    Expression,
    Source,
    apply_row,
    constant_of,
    reduced_expression,
    renumbered,
    row_of,
)
from mugraph.lower.tile_form import (
    Buffer,
    Combine,
    Elementwise,
    Kernel,
    Load,
    Matmul,
    Memory,
    Reduce,
    Scan,
    Statement,
    StatementLabel,
    Tile,
)
from mugraph.lower.views import unview, view

_PASSED_THROUGH = VIEWS | {"cast"}


def lower_block(
    name: str,
    graph: Graph,
    operands: Sequence[Tile],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    results: Sequence[Tile],
) -> Kernel:
    """The kernel of a block graph whose operands are windows of the device buffers `inputs`, and its `results` of `outputs`.

    Its shared buffers have no place in memory yet.
    """
    return _BlockLowering(name, graph, operands, inputs, outputs, results).run()


def _products(node: Node) -> list[tuple[Value, Value]]:
    """The pairs of operands whose products a contraction adds up."""
    return [(node.inputs[left], node.inputs[right]) for left, right in operator(node.op).products]


@dataclass(frozen=True, slots=True)
class _Computed:
    """An elementwise value that is not stored: its only reader computes it."""

    sources: tuple[Tile, ...]
    expression: Expression


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is to be written, and how it combines with what is there."""

    tile: Tile
    combine: Combine | None = None


@dataclass(frozen=True, slots=True)
class _RunningMaximum:
    """Factors of one iteration of an online softmax: what the old and the new terms are multiplied with."""

    old_factor: Tile
    new_factor: Tile

    def reshaped(self, shape: Shape) -> _RunningMaximum:
        """The same factors for accumulators of another shape; they lie in row-major order."""
        old_factor, new_factor = (tiles.reshaped(factor, shape) for factor in (self.old_factor, self.new_factor))
        assert old_factor is not None
        assert new_factor is not None
        return _RunningMaximum(old_factor, new_factor)


class _BlockLowering:
    def __init__(
        self,
        name: str,
        graph: Graph,
        operands: Sequence[Tile],
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        results: Sequence[Tile],
    ) -> None:
        self.name, self.graph, self.operands = name, graph, operands
        self.inputs, self.outputs, self.results = inputs, outputs, results
        self.shared: list[Buffer] = []
        self.loads: list[Load] = []
        self.phases = phases(graph)
        self.statements: dict[Phase, list[Statement]] = {phase: [] for phase in Phase}
        self.values: dict[Value, Tile | _Computed] = {}
        self.accumulators: dict[int, Tile] = {}
        self.maxima: dict[tuple[object, ...], _RunningMaximum] = {}
        self.label = StatementLabel("", 0)
        """Of the statements of the node that is being lowered."""

    def run(self) -> Kernel:
        for index, node in enumerate(self.graph.nodes):
            self.lower_node(index, node)
        before, body, after = (tuple(self.statements[phase]) for phase in Phase)
        touched = {tile.buffer for s in (*before, *body, *after) for tile in (s.target, *s.sources)}
        buffers = (*self.inputs, *self.outputs, *(buffer for buffer in self.shared if buffer.name in touched))
        names = [tuple(buffer.name for buffer in group) for group in (self.inputs, self.outputs)]
        used = {buffer.name for buffer in buffers}
        tiles = ((value, tile) for value, tile in self.values.items() if isinstance(tile, Tile))
        tensors = tuple((value, tile) for value, tile in tiles if tile.buffer in used)
        return Kernel(
            self.name,
            self.graph.grid,
            self.graph.loop,
            buffers,
            names[0],
            names[1],
            before,
            body,
            after,
            loads=tuple(self.loads),
            tensors=tensors,
        )

    def lower_node(self, index: int, node: Node) -> None:
        value, phase, self.label = Value(index), self.phases[index], self.label_of(index)
        if is_reduction(node.op):
            (operand,) = node.inputs
            self.reduce(index, node, self.graph.tensor(operand).shape, self.computed(operand))
            return
        if is_contraction(node.op):
            self.matmul(index, _products(node))
            return
        if is_scan(node.op):
            self.scan(index, node)
            return
        # by name: boundaries and views become tiles, each in its own way; what computes is no view
        match self.row_of(index):
            case "input_iterator":
                self.values[value] = tile = tiles.cut(self.operands[node.integer("operand")], self.partition(node))
                self.loads.append(Load(index, tile, phase))
            case "constant":
                self.values[value] = _Computed((), constant_of(node))
            case "output_saver":
                self.save(index, node)
            case "reshape" | "transpose" | "cast":
                self.values[value] = self.viewed(node, phase)
            case "repeat":
                self.repeat(index, node)
            case "accumulate":
                self.accumulate(index, node)
            case "accumulate_rescaled":
                self.accumulate_rescaled(index, node)
            case _:
                self.elementwise(index, node)

    def label_of(self, index: int) -> StatementLabel:
        """What statements of a node are called: by the operator whose result it is, and its number."""
        node = self.graph.nodes[index]
        if node.op in ACCUMULATORS:
            return StatementLabel("acc", index)
        return StatementLabel(node.op if node.body is None else node.body.nodes[node.body.outputs[0].node - 1].op, index)

    # places ----------------------------------------------------------------------------------------------------------

    def partition(self, node: Node) -> tuple[tuple[int, int | None], ...]:
        call = apply_call(node.op, [], dict(node.attributes), Scope(self.graph.grid, self.graph.loop))
        return partition_of(call)

    def temporary(self, shape: Shape, order: Sequence[int] | None = None) -> Tile:
        """A new fp32 tile in shared memory, its dimensions from slowest to fastest in `order`."""
        order = tuple(range(len(shape))) if order is None else order
        name = f"s{len(self.shared)}"
        contiguous = tiles.row_major(tuple(shape[dim] for dim in order))
        strides = tuple(contiguous[order.index(dim)] for dim in range(len(shape)))
        tile = Tile(name, tuple(shape), strides)
        self.shared.append(Buffer(name, Memory.SHARED, DType.FP32, max(1, int(np.prod(shape)))))
        return tile

    def sole_reader(self, value: Value) -> tuple[int, Node] | None:
        readers = self.graph.users(value)
        if len(readers) != 1 or self.graph.nodes[readers[0]].inputs.count(value) != 1:
            return None
        return readers[0], self.graph.nodes[readers[0]]

    def place_of(self, value: Value, order: Sequence[int] | None = None) -> _Place:
        """Where to compute a value: its final place when its only reader stores it, else a temporary."""
        return self.final_place(value) or _Place(self.temporary(self.graph.tensor(value).shape, order))

    def final_place(self, value: Value) -> _Place | None:
        """The place a value's only reader would copy it to, or accumulate it in."""
        found = self.sole_reader(value)
        if found is None:
            return None
        index, reader = found
        if reader.is_saver:
            return _Place(self.saved_tile(index, reader))
        # by name: sums that are rescaled read their operand where it lies
        if reader.op == "accumulate":
            if self.graph.loop == 1:
                return self.final_place(Value(index))
            if self.phases[value.node] is not Phase.BODY:
                return None
            combine = reader["combine"]
            if combine == "concat":
                return _Place(self.concatenation_slot(index, reader))
            return _Place(self.accumulator(index, Combine(str(combine))), Combine(str(combine)))
        if self.row_of(index) in _PASSED_THROUGH:
            place = self.final_place(Value(index))
            tile = place and unview(reader, place.tile, self.graph.tensor(value).shape)
            return replace(place, tile=tile) if place and tile else None
        return None

    def row_of(self, index: int) -> str:
        """The row of a node, which for casts to booleans is a view if they are only stored: storing makes them booleans."""
        node, reader = self.graph.nodes[index], self.sole_reader(Value(index))
        # by name: a cast to booleans alone is taken for another row, unless it is only stored
        return node.op if node.op == "cast" and reader is not None and reader[1].is_saver else row_of(node)

    def saved_tile(self, index: int, node: Node) -> Tile:
        """The window of the kernel's output that a saver's block writes."""
        number = self.graph.outputs.index(Value(index))
        omap = node.integers("omap")
        return tiles.cut(self.results[number], (*zip(self.graph.grid, omap, strict=True), (1, None)))

    def accumulator(self, index: int, combine: Combine) -> Tile:
        """The shared tile of an accumulator, filled before the loop with the neutral element, or the least that values can be."""
        if index not in self.accumulators:
            least = least_made(self.graph, self.graph.nodes[index].inputs[0])
            self.accumulators[index] = self.filled(
                self.graph.nodes[index].output.shape,
                max(combine.identity, least) if combine is Combine.MAX else combine.identity,
                self.label_of(index),
                self.column_order(index),
            )
        return self.accumulators[index]

    def column_order(self, index: int) -> tuple[int, ...] | None:
        """Layout of an accumulator: that of the one product it sums, if any."""
        producer = self.graph.nodes[self.graph.nodes[index].inputs[0].node]
        products = _products(producer) if is_contraction(producer.op) else []
        return self.product_order(products) if len(products) == 1 else None

    def filled(self, shape: Shape, value: float, label: StatementLabel, order: Sequence[int] | None = None) -> Tile:
        tile = self.temporary(shape, order)
        self.emit(Phase.BEFORE, Elementwise(tile, (), Constant(value), label=label))
        return tile

    def concatenation_slot(self, index: int, node: Node) -> Tile:
        """This iteration's window of the tensor that a concatenating accumulator builds."""
        if index not in self.accumulators:
            self.accumulators[index] = self.temporary(node.output.shape)
        parts: list[tuple[int, int | None]] = [(count, None) for count in self.graph.grid]
        return tiles.cut(self.accumulators[index], (*parts, (self.graph.loop, node.integer("dim"))))

    # reading ---------------------------------------------------------------------------------------------------------

    def emit(self, phase: Phase, statement: Statement) -> None:
        self.statements[phase].append(replace(statement, label=statement.label or self.label))

    def computed(self, value: Value) -> _Computed:
        """A value as an expression over tiles."""
        known = self.values[value]
        return known if isinstance(known, _Computed) else _Computed((known,), Source(0))

    def tile(self, value: Value) -> Tile:
        """A value as a stored tile."""
        known = self.values[value]
        if isinstance(known, _Computed):
            target = self.temporary(self.graph.tensor(value).shape)
            self.write(self.phases[value.node], _Place(target), known, self.label_of(value.node))
            self.values[value] = known = target
        return known

    def packed(self, value: Value) -> None:
        """Store a value that is looked up, of which the factors of products read no integers."""
        known = self.values[value]
        if isinstance(known, Tile) and known.lookup is not None:
            target = self.temporary(known.shape)
            self.write(self.phases[value.node], _Place(target), self.computed(value), self.label_of(value.node))
            self.values[value] = target

    def write(self, phase: Phase, place: _Place, what: _Computed, label: StatementLabel | None = None) -> None:
        """Store an expression, its sources broadcast to the place's shape."""
        sources = tuple(tiles.broadcast(source, place.tile.shape) for source in what.sources)
        self.emit(phase, Elementwise(place.tile, sources, what.expression, place.combine, label))

    # operators -------------------------------------------------------------------------------------------------------

    def save(self, index: int, node: Node) -> None:
        target = self.saved_tile(index, node)
        known = self.values[node.inputs[0]]
        if not (isinstance(known, Tile) and tiles.same_elements(known, target)):
            self.write(Phase.AFTER, _Place(target), self.computed(node.inputs[0]))

    def viewed(self, node: Node, phase: Phase) -> Tile:
        source = self.tile(node.inputs[0])
        tile = view(node, source)
        if tile is None:
            packed = self.temporary(source.shape)
            self.write(phase, _Place(packed), _Computed((source,), Source(0)))
            tile = view(node, packed)
        assert tile is not None
        return tile

    def repeat(self, index: int, node: Node) -> None:
        dim, times = node.integer("dim"), node.integer("times")
        source = tiles.inserted(self.tile(node.inputs[0]), dim, times)
        if source.shape[dim + 1] == 1:
            squeezed = tiles.reshaped(source, node.output.shape)
            if squeezed is not None and self.final_place(Value(index)) is None:
                self.values[Value(index)] = squeezed
                return
        place = self.place_of(Value(index))
        target = replace(place, tile=tiles.split(place.tile, dim, times))
        self.write(self.phases[index], target, _Computed((source,), Source(0)))
        self.values[Value(index)] = place.tile

    def matmul(self, index: int, products: Sequence[tuple[Value, Value]]) -> None:
        for factor in {value: None for pair in products for value in pair}:
            self.packed(factor)
        place = self.place_of(Value(index), self.product_order(products))
        combine = place.combine
        if combine is Combine.MAX or (len(products) > 1 and not self.adds_exactly(place.tile)):
            place, combine = _Place(self.temporary(place.tile.shape)), None
        for left, right in products:
            dtype = self.graph.tensor(left).dtype.promote(self.graph.tensor(right).dtype).of_arithmetic
            factors = self.tile(left), self.tile(right)
            self.emit(self.phases[index], Matmul(place.tile, *factors, dtype, accumulate=combine is Combine.SUM))
            combine = Combine.SUM
        self.values[Value(index)] = place.tile

    def adds_exactly(self, tile: Tile) -> bool:
        """Whether partial sums may be kept in a tile: an output of 16 bits would round each of them."""
        return all(buffer.dtype is DType.FP32 for buffer in self.outputs if buffer.name == tile.buffer)

    def product_order(self, products: Sequence[Sequence[Value]]) -> tuple[int, ...] | None:
        """Column-major for a product whose rows, not columns, are contiguous in its factors; so printers can exchange them."""
        left, right = (self.values.get(value) for value in products[0])
        if not isinstance(left, Tile) or not isinstance(right, Tile):
            return None
        exchanged = left.strides[-2] == 1 and right.strides[-1] != 1 and left.shape[-2] > 1
        rank = max(left.rank, right.rank)
        return (*range(rank - 2), rank - 1, rank - 2) if exchanged else None

    def reduce(self, index: int, node: Node, shape: Shape, what: _Computed) -> None:
        """The reduction `node` of a tensor of `shape`, computed as it goes, as the value of node `index`."""
        dim, size, combine = node.integer("dim"), node.integer("size"), Combine(node.op)
        sources = tuple(tiles.grouped(tiles.broadcast(source, shape), dim, size) for source in what.sources)
        place = self.place_of(Value(index))
        if place.combine not in (None, combine):
            place = _Place(self.temporary(self.graph.nodes[index].output.shape))
        least = least_of(node)
        if least is not None and place.combine is None:
            self.write(self.phases[index], place, _Computed((), Constant(least)))
            place = _Place(place.tile, combine)
        self.emit(self.phases[index], Reduce(place.tile, sources, what.expression, combine, place.combine is not None))
        self.values[Value(index)] = place.tile

    def scan(self, index: int, node: Node) -> None:
        """A scan; what only it reads is computed as it goes."""
        (operand,) = node.inputs
        what = self.taken_back(operand) or self.computed(operand)
        place = self.place_of(Value(index))
        if place.combine is not None:
            place = _Place(self.temporary(node.output.shape))
        sources = tuple(tiles.broadcast(source, node.output.shape) for source in what.sources)
        combine, back = SCANS[node.op]
        self.emit(self.phases[index], Scan(place.tile, sources, what.expression, combine, node.integer("dim"), back))
        self.values[Value(index)] = place.tile

    def taken_back(self, value: Value) -> _Computed | None:
        """An elementwise value that was stored last, in a tile of its own and for one reader, as an expression."""
        known, statements = self.values[value], self.statements[self.phases[value.node]]
        reader = self.sole_reader(value)
        if (
            not isinstance(known, Tile)
            or not statements
            or reader is None
            or self.phases[reader[0]] is not self.phases[value.node]
        ):
            return None
        last = statements[-1]
        if not isinstance(last, Elementwise) or last.combine is not None or last.target != known:
            return None
        if all(known.buffer != buffer.name for buffer in self.shared):
            return None
        statements.pop()
        return _Computed(last.sources, last.expression)

    def elementwise(self, index: int, node: Node) -> None:
        operands = [self.computed(value) for value in node.inputs]
        sources: list[Tile] = []
        arguments: list[Expression] = []
        for operand in operands:
            numbers: list[Expression] = []
            for source in operand.sources:
                if source not in sources:
                    sources.append(source)
                numbers.append(Source(sources.index(source)))
            arguments.append(renumbered(operand.expression, numbers))
        if node.op == GRAPH_DEFINED and node.body is not None:
            made, reduction = reduced_expression(node.body)
            what = _Computed(tuple(sources), renumbered(made, arguments))
            if reduction is not None:
                self.reduce(index, reduction, node.body.tensor(reduction.inputs[0]).shape, what)
                return
        else:
            what = _Computed(tuple(sources), apply_row(row_of(node), arguments))
        place = self.place_of(Value(index))
        self.write(self.phases[index], place, what)
        self.values[Value(index)] = place.tile

    def accumulate(self, index: int, node: Node) -> None:
        value, operand = Value(index), node.inputs[0]
        invariant = self.phases[operand.node] is not Phase.BODY
        # by name: the maximum of equal values is one of them
        if self.graph.loop == 1 or (invariant and node["combine"] == "max"):
            self.values[value] = self.values[operand]
        elif node["combine"] == "concat":
            slot = self.concatenation_slot(index, node)
            stored = self.values[operand]
            if not (isinstance(stored, Tile) and tiles.same_elements(stored, slot)):
                self.write(Phase.BODY, _Place(slot), self.computed(operand))
            self.values[value] = self.accumulators[index]
        elif invariant:
            place = self.place_of(value)
            what = self.computed(operand)
            times = Apply("({0} * {1})", (what.expression, Constant(float(self.graph.loop))))
            self.write(Phase.AFTER, place, replace(what, expression=times))
            self.values[value] = place.tile
        else:
            combine = Combine(str(node["combine"]))
            accumulator = self.accumulator(index, combine)
            known = self.values[operand]
            if not (isinstance(known, Tile) and known.buffer == accumulator.buffer):
                self.write(Phase.BODY, _Place(accumulator, combine), self.computed(operand))
            self.values[value] = accumulator

    def accumulate_rescaled(self, index: int, node: Node) -> None:
        term, shift = node.inputs
        accumulator = self.filled(node.output.shape, 0.0, self.label)
        factors = self.running_maximum(shift)
        sources = (accumulator, factors.old_factor, self.tile(term), factors.new_factor)
        expression = Apply(RESCALED, tuple(Source(number) for number in range(4)))
        self.write(Phase.BODY, _Place(accumulator), _Computed(sources, expression))
        self.values[Value(index)] = accumulator

    def running_maximum(self, shift: Value) -> _RunningMaximum:
        """Keep the maximum of `shift` over the iterations; shared by all accumulators that are shifted alike, in any shape."""
        shape, now = self.graph.tensor(shift).shape, self.tile(shift)
        elements = (now.buffer, now.start, now.lookup, *tiles.merged(now))
        if elements not in self.maxima:
            names = [StatementLabel(name, shift.node) for name in ("largest", "raised", "old_factor", "new_factor")]
            largest = self.filled(shape, LOWEST, names[0])
            raised, old_factor, new_factor = (self.temporary(shape) for _ in range(3))
            decay = apply_row("exp", [apply_row("sub", [Source(0), Source(1)])])
            for target, sources, expression, name in (
                (raised, (largest, now), Apply(MAXIMUM, (Source(0), Source(1))), names[1]),
                (old_factor, (largest, raised), decay, names[2]),
                (new_factor, (now, raised), decay, names[3]),
                (largest, (raised,), Source(0), names[0]),
            ):
                self.write(Phase.BODY, _Place(target), _Computed(sources, expression), name)
            self.maxima[elements] = _RunningMaximum(old_factor, new_factor)
        return self.maxima[elements].reshaped(shape)
