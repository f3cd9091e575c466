"""One walk over a graph that proves, operator by operator, that it treats all slices along an axis alike, and cuts the axis.

docs/theory.md ("Parallel axes") has the rules and why they hold.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mugraph.algebra.linearity import is_linear
from mugraph.errors import MugraphError
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import ACCUMULATORS, Accumulation, Graph, Level, Node, Shape, Value
from mugraph.ir.index_maps import IndexMaps, Structure
from mugraph.ir.ops import Kind, index_maps_of, is_contraction, is_reduction, operator
from mugraph.ir.scalar import Scalar
from mugraph.verifier.axis_blocks import LOOP, Numbers, Tile, cut_into_tiles, put_together
from mugraph.verifier.axis_marks import ONE, Mark, Widths, carried, digits_of, iterators_of, slice_digits, stretches_between


class NotParallel(MugraphError):
    """An operator mixes or tells apart the slices along an axis."""


@dataclass(frozen=True, slots=True)
class Unmarked:
    """A kernel graph as a walk builds it that marks nothing, so that others take from it what has no axis: of long graphs that is
    nearly all before an operator mixes the slices. Index for index its nodes are those of the graph itself."""

    nodes: Sequence[Node]
    inputs: Sequence[int]
    """The nodes that are inputs, in order."""
    readers: Sequence[int]
    """For each input the first node that reads it, the number of nodes if there is none."""

    @classmethod
    def of(cls, graph: Graph) -> Unmarked:
        """Raises ShapeMismatch where an operator's rule is broken."""
        inputs = [index for index, node in enumerate(graph.nodes) if node.is_input]
        readers: dict[int, int] = {}
        for index, node in enumerate(graph.nodes):
            for value in node.inputs:
                readers.setdefault(value.node, index)
        built, _ = SliceWalk(graph, [None] * len(inputs)).run()
        return cls(built.nodes, inputs, [readers.get(index, len(graph.nodes)) for index in inputs])


class SliceWalk:
    """One walk over a graph that marks the axis, of so many `slices`, in every value and builds the graph at another size, which
    is what the operands' marks have `taken`.

    At size 1 a sum over slices becomes one of them times their number. `tile` is the least number of slices that are whole
    tiles of all blocks that cut the axis, `uncut` whether a block of some kernel, or a product without blocks in its rows or
    columns, has all slices. What has no axis is taken of the graph as it is `unmarked`, if that is given.
    """

    def __init__(self, graph: Graph, operands: Sequence[Mark | None], slices: int = 1, unmarked: Unmarked | None = None) -> None:
        self.graph, self.operands, self.slices, self.unmarked = graph, operands, slices, unmarked
        self.size = max((mark.taken for mark in operands if mark is not None), default=1)
        self.tile, self.uncut = 1, False
        self.tiles = {index: self.tile_of(node) for index, node in enumerate(graph.nodes) if node.is_iterator}
        self.over_axis = self.numbers_over_axis()
        self.loops_over_axis = self.over_axis.pop(LOOP, None) is not None
        counts = self.grid_taken(graph.grid or graph.block)
        grid, block = (counts, graph.block) if graph.grid else (graph.grid, counts)
        self.builder = GraphBuilder(graph.level, grid, block, 1 if self.loops_over_axis else graph.loop)
        self.marks: dict[Value, Mark | None] = {}
        self.values: dict[Value, Value] = {}
        self.narrow = True

    def run(self) -> tuple[Graph, list[Mark | None]]:
        inputs, first = self.begin()
        for index, node in enumerate(self.graph.nodes[first:], first):
            if self.unmarked is not None and not (node.is_input or self.has_axis(node)):
                self.take(index, self.unmarked.nodes[index])
            elif node.is_input:
                self.input(index, node, self.operands[inputs])
                inputs += 1
            elif node.is_iterator:
                self.iterator(index, node)
            elif node.is_saver:
                self.saver(index, node)
            elif node.body is not None:
                self.graph_defined(index, node, node.body)
            else:
                self.apply(index, node)
        outputs = [self.value(value) for value in self.graph.outputs]
        return self.builder.build(outputs), [self.marks.get(value) for value in self.graph.outputs]

    def begin(self) -> tuple[int, int]:
        """Take all before the first node that has or reads the axis; how many inputs there are among it, and how many nodes."""
        if self.unmarked is None:
            return 0, 0
        marked = [number for number, mark in enumerate(self.operands) if mark is not None]
        first = min((self.unmarked.readers[number] for number in marked), default=len(self.graph.nodes))
        self.builder.nodes += self.unmarked.nodes[:first]
        for number in marked:
            if (index := self.unmarked.inputs[number]) < first:
                node, mark = self.graph.nodes[index], self.operands[number]
                scratch = GraphBuilder(self.graph.level)
                scratch.input(str(node["name"]), self.taken(node.output.shape, mark), node.output.dtype)
                self.builder.nodes[index] = scratch.nodes[0]
                self.store(index, mark, Value(index))
        return bisect.bisect_left(self.unmarked.inputs, first), first

    def has_axis(self, node: Node) -> bool:
        """Whether an operand has the axis."""
        return any(self.marks.get(value) is not None for value in node.inputs)

    def take(self, index: int, node: Node) -> None:
        """A node without the axis as it is."""
        copy = self.builder.append(replace(node, inputs=tuple(map(self.value, node.inputs))))
        self.values.update({Value(index, number): Value(copy.node, number) for number in range(len(node.outputs))})

    def value(self, value: Value) -> Value:
        """What a value became: itself, where it was taken with all before it."""
        return self.values.get(value, value)

    def tile_of(self, node: Node) -> Tile:
        """How slices lie in the tiles that an iterator reads."""
        mark, counts = self.operand(node), self.graph.grid or self.graph.block
        if mark is None or mark.dim is None:
            return Tile(ONE, 1, {})
        cuts = [(position, counts[position]) for position in self.positions(node, "imap", mark.dim)]
        cuts += [(LOOP, self.graph.loop)] if node["fmap"] == mark.dim else []
        size = node.output.shape[mark.dim] * math.prod(count for _, count in cuts)
        found = cut_into_tiles(mark.widths, size // sum(mark.widths), cuts)
        if found is None or (LOOP in found.numbers and found.numbers[LOOP].rest > 1):
            raise NotParallel("input_iterator: a tile has parts of slices")
        if self.size > 1 and any(numbers.rest > 1 for numbers in found.numbers.values()):
            raise NotParallel("input_iterator: blocks have parts of slices, of which several are wanted")
        return found

    def numbers_over_axis(self) -> dict[int, Numbers]:
        """What numbers slices of the grid dimensions, and of the loop, that cut the axis in some operand."""
        over: dict[int, Numbers] = {}
        for tile in self.tiles.values():
            for position, numbers in tile.numbers.items():
                if over.setdefault(position, numbers) != numbers:
                    raise NotParallel("input_iterator: blocks have other slices here than there")
        return over

    def grid_taken(self, counts: Sequence[int]) -> tuple[int, ...]:
        """The grid of the graph that is built: of the dimensions that cut the axis, the first has all parts."""
        marks = [(index, mark) for index in self.tiles if (mark := self.operand(self.graph.nodes[index])) is not None]
        parts = {mark.taken // self.tile_slices(index, mark) for index, mark in marks if self.cut(index)}
        if len(parts) > 1:
            raise NotParallel("input_iterator: blocks have different parts of the axis")
        taken = [self.over_axis[position].rest if position in self.over_axis else count for position, count in enumerate(counts)]
        for count in parts:
            taken[min(self.over_axis)] *= count
        return tuple(taken)

    def tile_slices(self, index: int, mark: Mark) -> int:
        """How many slices a tile has in the graph that is built; all, where no grid dimension cuts the axis."""
        return math.gcd(mark.taken, self.tiles[index].slices) if self.cut(index) else mark.taken

    def cut(self, index: int) -> tuple[int, ...]:
        """The grid dimensions that cut the axis of what an iterator reads: none where each of its stretches is in one block."""
        return tuple(position for position in self.tiles[index].numbers if position != LOOP)

    def operand(self, node: Node) -> Mark | None:
        return self.operands[node.integer("operand")]

    def positions(self, node: Node, name: str, dim: int | None) -> tuple[int, ...]:
        """The grid dimensions that a map sends to dimension `dim`."""
        mapped = node[name]
        assert isinstance(mapped, tuple)
        if dim is None:
            return ()
        return tuple(position for position, target in enumerate(mapped) if target == dim)

    def store(self, index: int, mark: Mark | None, value: Value) -> None:
        if self.builder.tensor(value).shape != self.taken(self.graph.tensor(Value(index)).shape, mark):
            raise NotParallel(f"{self.graph.nodes[index].op}: the axis is not one dimension of its result")
        self.marks[Value(index)], self.values[Value(index)] = mark, value
        self.narrow &= mark is None or (mark.widths == ONE and not mark.summed)

    def input(self, index: int, node: Node, mark: Mark | None) -> None:
        shape = self.taken(node.output.shape, mark)
        self.store(index, mark, self.builder.input(str(node["name"]), shape, node.output.dtype))

    def iterator(self, index: int, node: Node) -> None:
        mark, imap, tile, cut = self.operand(node), node["imap"], self.tiles[index], self.cut(index)
        assert isinstance(imap, tuple)
        if any(imap[position] is not None for position in self.over_axis.keys() - {*cut}):
            raise NotParallel("input_iterator: a grid dimension cuts the axis here and another dimension there")
        looped = LOOP in tile.numbers
        if self.loops_over_axis and node["fmap"] is not None and not looped:
            raise NotParallel("input_iterator: the for-loop runs over the axis there and over another dimension here")
        if looped and self.size > 1:
            raise NotParallel("input_iterator: the for-loop runs over the axis, of which several slices are wanted")
        inside = None
        if mark is not None:
            dim, widths = (None, ONE) if tile.alone else (mark.dim, tile.widths)
            cuts, loops, taken = (*mark.cuts, cut), (*mark.loops, looped), self.tile_slices(index, mark)
            inside = mark._replace(dim=dim, widths=widths, cuts=cuts, loops=loops, taken=taken)
            in_blocks = bool(cut) or (
                len(widths) == 1 and bool(self.positions(node, "imap", mark.dim))
            )  # or in one, which has all
            if in_blocks:
                self.tile = math.lcm(self.tile, taken)
            self.uncut |= not in_blocks and mark.dim is not None
        part = replace(node.output, shape=self.taken(node.output.shape, inside))
        self.store(index, inside, self.builder.append(replace(node, outputs=(part,))))

    def saver(self, index: int, node: Node) -> None:
        (value,) = node.inputs
        mark = self.marks[value]
        if mark is not None and mark.looped:
            raise NotParallel("output_saver: the for-loop runs over the axis, and its parts are not put together")
        outside = None
        if mark is not None:
            dim, widths = self.saved_dim(node, mark)
            outside = mark._replace(dim=dim, widths=widths, cuts=mark.cuts[:-1], loops=mark.loops[:-1], taken=self.size)
        if mark is None and self.over_axis:
            raise NotParallel("output_saver: a value that does not have the axis is repeated along it")
        self.store(index, outside, self.builder.add(node.op, self.values[value], **dict(node.attributes)))

    def saved_dim(self, node: Node, mark: Mark) -> tuple[int | None, Widths]:
        """The dimension of the axis outside, and how slices lie there: blocks' parts must be put back where they came from."""
        cut, omap, tile = mark.cuts[-1], node["omap"], self.graph.tensor(node.inputs[0]).shape
        assert isinstance(omap, tuple)
        targets = {omap[position] for position in cut} | ({mark.dim} - {None} if cut else {mark.dim})
        (dim,) = targets if len(targets) == 1 else (None,)
        if {*cut} != self.over_axis.keys() or (cut and dim is None) or self.has_parts_of_sums(mark):
            raise NotParallel("output_saver: the blocks' parts of the axis are not put back where they were taken from")
        if dim is None:
            return None, mark.widths
        counts = self.graph.grid or self.graph.block
        cuts = [(position, counts[position]) for position in reversed(self.positions(node, "omap", dim))]
        alone = mark.dim is None
        widths = put_together((tile[dim],) if alone else mark.widths, alone, cuts, self.over_axis)
        if widths is None:
            raise NotParallel("output_saver: the blocks' parts of the axis are not put back in order")
        return dim, widths

    def has_parts_of_sums(self, mark: Mark) -> bool:
        """Whether blocks add up parts of slices, which are not followed."""
        return mark.summed and any(self.over_axis[position].rest > 1 for position in mark.cuts[-1])

    def graph_defined(self, index: int, node: Node, body: Graph) -> None:
        walk = SliceWalk(body, [self.marks.get(value) for value in node.inputs], slices=self.slices)
        taken, marks = walk.run()
        self.narrow &= walk.narrow
        self.tile = math.lcm(self.tile, walk.tile)
        self.uncut |= walk.uncut and self.graph.level is Level.KERNEL
        outputs = self.builder.graph_defined(taken, [self.value(value) for value in node.inputs])
        for number, (mark, value) in enumerate(zip(marks, outputs, strict=True)):
            self.marks[Value(index, number)], self.values[Value(index, number)] = mark, value

    def apply(self, index: int, node: Node) -> None:
        marks = [self.marks.get(value) for value in node.inputs]
        mark = self.result(node, marks)
        if self.graph.level is Level.KERNEL and is_contraction(node.op):
            self.uncut |= mark is not None and None in marks
        attributes = dict(node.attributes)
        # by name: its attribute is a shape, which a slice changes
        if mark is not None and node.op == "reshape":
            attributes["shape"] = self.taken(node.output.shape, mark)
        if (part := self.part_of_axis(node, marks)) is not None:
            widths = marks[0].widths if marks[0] is not None else ONE
            first, last = part
            taken = 1 if marks[0] is None else marks[0].taken
            attributes |= {"start": taken * sum(widths[:first]), "size": taken * sum(widths[first:last])}
        if is_reduction(node.op) and (reduced := marks[0]) is not None and self.is_added_up(node, reduced):
            (attributes["size"],) = reduced.widths
        value = self.builder.add(node.op, *(self.value(value) for value in node.inputs), **attributes)
        if mark is not None and mark.summed and not any(before is not None and before.summed for before in marks):
            count = self.builder.add("constant", value=Scalar.of(self.slices), dtype=node.output.dtype)
            value = self.builder.add("mul", value, count)
        self.store(index, mark, value)

    def result(self, node: Node, marks: Sequence[Mark | None]) -> Mark | None:
        """The axis in a node's result: all operands that have it must send it to one place, the others must not vary there."""
        shapes = [self.graph.tensor(value).shape for value in node.inputs]
        maps = index_maps_of(node, shapes)
        if self.loops_over_axis and node.op in ACCUMULATORS:
            return self.accumulated(node, marks[0])
        self.narrow &= all(_is_one_by_one(maps, number, mark) for number, mark in enumerate(marks))
        self.check_linear(node, marks)
        if (part := self.part_of_axis(node, marks)) is not None and (mark := marks[0]) is not None:
            return mark._replace(widths=mark.widths[slice(*part)])
        # by name: what puts stretches behind each other
        if node.op == "concat" and (joined := self.joined(node, marks)) is not None:
            return joined
        results: set[Mark] = set()
        axes: set[int] = set()
        for number, mark in enumerate(marks):
            if mark is not None:
                kept = carried(maps, number, mark)
                results.add(self.added_up(node, marks, maps) if kept is None else kept)
                if maps is not None and mark.dim is not None:
                    axes |= iterators_of(maps, maps.operands[number][mark.dim])
        if not results:
            return None
        if len(results) > 1:
            raise NotParallel(f"{node.op}: the axis stands in different places of the operands")
        for number, mark in enumerate(marks):
            if mark is None and maps is not None and any(axes & iterators_of(maps, index) for index in maps.operands[number]):
                raise NotParallel(f"{node.op}: an operand without the axis tells its slices apart")
        return results.pop()

    def part_of_axis(self, node: Node, marks: Sequence[Mark | None]) -> tuple[int, int] | None:
        """Which stretches of the axis, from one up to another, a slice along its dimension takes; None for all else."""
        # by name: what takes positions of a dimension
        if node.op != "slice" or (mark := marks[0]) is None or mark.dim != node["dim"] or mark.summed or node["step"] != 1:
            return None
        count = self.graph.tensor(node.inputs[0]).shape[node.integer("dim")] // sum(mark.widths)
        start = node.integer("start")
        part = stretches_between(mark.widths, count, start, start + node.integer("size"))
        if part is None:
            raise NotParallel("slice: it takes some of the slices along the axis")
        return part

    def joined(self, node: Node, marks: Sequence[Mark | None]) -> Mark | None:
        """The axis of tensors that are put together along its dimension in all of them; None where none has it there."""
        dim = node.integer("dim")
        present = [mark for mark in marks if mark is not None]
        if all(mark.dim != dim for mark in present):
            return None
        sizes = [self.graph.tensor(value).shape[dim] for value in node.inputs]
        counts = {size // sum(mark.widths) for mark, size in zip(present, sizes, strict=False)}
        alike = {mark._replace(widths=ONE) for mark in present}
        if len(present) < len(marks) or len(alike) > 1 or len(counts) > 1 or present[0].summed:
            raise NotParallel("concat: the axis is not in all of what is put together along it")
        return present[0]._replace(widths=tuple(itertools.chain(*(mark.widths for mark in present))))

    def is_added_up(self, node: Node, mark: Mark) -> bool:
        """Whether a reduction has the axis of its operand in its groups."""
        maps = index_maps_of(node, [self.graph.tensor(value).shape for value in node.inputs])
        return carried(maps, 0, mark) is None

    def check_linear(self, node: Node, marks: Sequence[Mark | None]) -> None:
        """Raises NotParallel unless a node does to a sum what it does to what is added up."""
        summed = [mark for mark in marks if mark is not None and mark.summed]
        if not summed:
            return
        marked = tuple(number for number, mark in enumerate(marks) if mark is not None)
        moves = operator(node.op).kind is Kind.DATA  # which is linear in all operands together
        linear = len(marked) == len(marks) if moves else is_linear(node.op, marked)
        shifted = all(mark.complete for mark in summed) and (moves or is_linear(node.op, tuple(range(len(marks)))))
        if not linear and not shifted:
            raise NotParallel(f"{node.op}: it is not linear in a sum over the axis")

    def added_up(self, node: Node, marks: Sequence[Mark | None], maps: IndexMaps | None) -> Mark:
        """The axis after an operator that adds up what stands along it, in all operands."""
        row, kept = operator(node.op), set[Mark]()
        adds_up = row.kind is Kind.MULTILINEAR and row.structure in (Structure.REDUCTION, Structure.CONTRACTION)
        for number, mark in enumerate(marks):
            if not adds_up or maps is None or mark is None or mark.dim is None or len(mark.widths) > 1:
                raise NotParallel(f"{node.op}: the axis is not carried over slice by slice")
            if carried(maps, number, mark) is not None:
                raise NotParallel(f"{node.op}: the axis is added up in one operand, and kept in another")
            index = maps.operands[number][mark.dim]
            axis, *_ = slice_digits(maps, index, mark.widths) or ((),)
            digits = [digits_of(maps, other) for other in maps.result if iterators_of(maps, index) & iterators_of(maps, other)]
            one = self.graph.tensor(node.inputs[number]).shape[mark.dim] == mark.widths[0]
            if (digits if one else not axis) or any(found is None or found != axis[: len(found)] for found in digits):
                raise NotParallel(f"{node.op}: the axis is not added up in order")
            place = next((place for place, other in enumerate(maps.result) if {*axis} & iterators_of(maps, other)), None)
            kept.add(mark._replace(dim=place, widths=ONE, summed=True))
        if len(kept) > 1 or self.size > 1 or len({mark.widths for mark in marks if mark is not None}) > 1:
            raise NotParallel(f"{node.op}: the axis stands in different places of the operands")
        return kept.pop()

    def accumulated(self, node: Node, mark: Mark | None) -> Mark | None:
        """The axis after a loop over it, which adds its parts up, puts them side by side or brings past it what is the same."""
        looped = mark is not None and mark.looped
        if mark is not None and looped and len(mark.widths) == 1:
            after = mark._replace(loops=(*mark.loops[:-1], False))
            tile = self.graph.tensor(node.inputs[0]).shape
            if node.accumulation is Accumulation.CONCAT and mark.dim is None:
                return after._replace(dim=(dim := node.integer("dim")), widths=(tile[dim],))
            if node.accumulation is Accumulation.CONCAT and node["dim"] == mark.dim:
                return after
            if node.accumulation is Accumulation.SUM and self.size == 1:
                alone = mark.dim is None or (tile[mark.dim],) == mark.widths
                return after._replace(summed=True, dim=None if alone else mark.dim, widths=ONE if alone else mark.widths)
        if not looped and node.accumulation is Accumulation.MAX:
            return mark
        raise NotParallel(f"{node.op}: the for-loop runs over the axis, and its parts are not put side by side")

    def taken(self, shape: Shape, mark: Mark | None) -> Shape:
        if mark is None or mark.dim is None:
            return shape
        return (*shape[: mark.dim], mark.taken * sum(mark.widths), *shape[mark.dim + 1 :])


def _is_one_by_one(maps: IndexMaps | None, number: int, mark: Mark | None) -> bool:
    """Whether an operator carries the axis of an operand over position by position, and by no other rule."""
    return mark is None or mark.dim is None or (maps is not None and maps.carried(number, mark.dim) is not None)
