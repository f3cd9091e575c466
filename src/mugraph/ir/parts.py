"""Programs with parts of tensors (slices) and tensors put together of parts (concatenations), as programs without these.

An axis program has no offsets, so a search knows nothing of positions. It need not: half of a product is a product with half of a
factor, and what is added up along two tensors, one behind the other, is the sum of two sums. So slices move towards the inputs,
where they are views of memory, and concatenations towards the outputs, where kernels write each part into its place. What lies
between is the *core*, which is searched; slices and concatenations are put around each muGraph that is found of it.

Here every value is asked for a *region* (`mugraph.ir.regions`). Where one lies in two parts of a concatenation, whoever can treat
its halves one by one does so: a sum adds them up, and an output has two tensors.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mugraph.errors import UnsupportedOperator
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.cores import core_of, has_lookups
from mugraph.ir.definitions import spelled_out
from mugraph.ir.editing import without_duplicates
from mugraph.ir.graph import Graph, Level, Node, Shape, Value
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import OPERATORS, index_maps_of, is_contraction
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.regions import (
    ONE,
    Crossing,
    Digit,
    Digits,
    Region,
    Unaligned,
    Wanted,
    before_broadcast,
    counts,
    everything,
    with_digits,
)
from mugraph.ir.scans import SCANS

_PARTS = frozenset({"slice", "concat"})
"""The operators that tell positions apart: they have no axis form, and vanish here."""
_GROWTH, _SPARE = 16, 256
"""Regions are asked for at most so many times as often as a program has operators, and so many times more."""
_MORE_PRODUCTS, _OPERATORS = 2, 160
"""So many times the program's own products of matrices its core may have, and so many operators, to be searched as gladly."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Output `number` of the core, or the input of that number as it is."""

    number: int
    is_input: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """Parts of an output one behind the other along dimension `dim`, and then in this shape."""

    parts: tuple[Leaf | Joined, ...]
    dim: int
    shape: Shape


Assembly = Leaf | Joined
"""How an output of the program is put together from those of the core."""


@dataclass(frozen=True)
class Parted:
    """A program as its `core`: that reads these regions of the program's inputs, and makes parts of its outputs."""

    program: Graph
    core: Graph
    reads: tuple[tuple[int, Region], ...]
    outputs: tuple[Assembly, ...]

    def without_unread(self) -> Parted:
        """The same without inputs of the core that nothing reads: regions that turned out to be of several parts."""
        graph, numbers = self.core, _input_numbers(self.core)
        passed_on = {leaf.number for output in self.outputs for leaf in _leaves(output) if leaf.is_input}
        used = graph.needed() | {index for index, number in numbers.items() if number in passed_on}
        builder, moved = GraphBuilder(Level.KERNEL), dict[int, Value]()
        for index, node in enumerate(graph.nodes):
            if index in used:
                moved[index] = builder.append(replace(node, inputs=tuple(moved[value.node] for value in node.inputs)))
        left = [number for index, number in numbers.items() if index in used]
        outputs = tuple(_renumbered(output, left) for output in self.outputs)
        core = builder.build([moved[value.node] for value in graph.outputs])
        return replace(self, core=core, reads=tuple(self.reads[number] for number in left), outputs=outputs)

    def around(self, graph: Graph) -> Graph:
        """A muGraph of the program, from one of the core: slices before it, and concatenations behind."""
        builder = GraphBuilder(Level.KERNEL)
        inputs = [builder.append(node) for node in self.program.inputs()]
        read = [_viewed(builder, inputs[number], region) for number, region in self.reads]
        made = builder.extend(graph, read)
        return without_duplicates(builder.build([_assembled(builder, output, read, made) for output in self.outputs]))


def parted(program: Graph) -> Parted | None:
    """A kernel graph of pre-defined operators as its core; None where nothing tells positions apart, or all only moves data.

    Raises UnsupportedOperator where parts do not fit what is done with them, and where there would be too many.
    """
    if not has_parts(program):
        return None
    try:
        return _Parting(program).run()
    except Unaligned:
        raise UnsupportedOperator("parts of tensors are reshaped so that they are no parts any more") from None
    except RecursionError:
        raise UnsupportedOperator("a program with parts of tensors in chains of operators that are too long") from None


def has_parts(program: Graph) -> bool:
    """Whether something in a program tells positions of a tensor apart."""
    return any(node.op in _PARTS for node in program.nodes)


def objection(program: Graph) -> str:
    """Why a kernel graph of pre-defined operators with parts of tensors, or lookups, had better be divided where they are; "" for
    others."""
    if not has_lookups(program) and not has_parts(program):
        return ""
    try:
        program = core_of(spelled_out(program))
        if not has_parts(program):
            return "" if program.kernels() else "it only looks up parts of tensors"
        found = parted(program)
    except UnsupportedOperator as error:
        return str(error)
    if found is None or not found.core.kernels():
        return "it only moves parts of tensors"
    products = [sum(is_contraction(node.op) for node in graph.nodes) for graph in (program, found.core)]
    if products[1] > _MORE_PRODUCTS * products[0]:
        return f"of its parts one by one, there are {products[1]} products of matrices instead of {products[0]}"
    if (operators := len(found.core.kernels())) > _OPERATORS:
        return f"of its parts one by one, there are {operators} operators"
    return ""


def _input_numbers(graph: Graph) -> Mapping[int, int]:
    """The number of each node that is an input."""
    return {index: number for number, index in enumerate(i for i, node in enumerate(graph.nodes) if node.is_input)}


def _leaves(output: Assembly) -> Iterator[Leaf]:
    if isinstance(output, Leaf):
        yield output
    else:
        yield from itertools.chain.from_iterable(map(_leaves, output.parts))


def _renumbered(output: Assembly, left: Sequence[int]) -> Assembly:
    """The same where of the inputs of the core these are left."""
    if isinstance(output, Leaf):
        return replace(output, number=left.index(output.number)) if output.is_input else output
    return replace(output, parts=tuple(_renumbered(part, left) for part in output.parts))


def _viewed(builder: GraphBuilder, value: Value, region: Region) -> Value:
    """A region of an input, as views."""
    digits = [digit for dim in region for digit in dim]
    value = _reshaped(builder, value, tuple(digit.size for digit in digits))
    for dim, digit in enumerate(digits):
        if not digit.is_whole:
            value = builder.add("slice", value, dim=dim, start=digit.start, size=digit.count, step=digit.step)
    return value


def _assembled(builder: GraphBuilder, output: Assembly, read: Sequence[Value], made: Sequence[Value]) -> Value:
    if isinstance(output, Leaf):
        return (read if output.is_input else made)[output.number]
    parts = [_assembled(builder, part, read, made) for part in output.parts]
    return _reshaped(builder, builder.add("concat", *parts, dim=output.dim), output.shape)


def _reshaped(builder: GraphBuilder, value: Value, shape: Shape) -> Value:
    return value if builder.tensor(value).shape == shape else builder.add("reshape", value, shape=shape)


# --- from the outputs to the inputs ----------------------------------------------------------------------------------


@dataclass
class _Parting:
    """A program on its way to its core."""

    program: Graph
    core: Program = field(default_factory=Program)
    known: dict[tuple[Value, Region], ProgramTensor | Crossing] = field(default_factory=dict)
    reads: dict[tuple[int, Region], ProgramTensor] = field(default_factory=dict)
    made: dict[Value, int] = field(default_factory=dict)
    """Outputs of the core so far."""

    def run(self) -> Parted | None:
        outputs = tuple(self.assembly(value, everything(self.shape(value))) for value in self.program.outputs)
        if not self.made:
            return None
        self.core.output(*(ProgramTensor(self.core, value) for value in self.made))
        return Parted(self.program, self.core.graph, tuple(self.reads), outputs).without_unread()

    def assembly(self, value: Value, region: Region) -> Assembly:
        """A region of an output."""
        try:
            tensor = self.tensor(value, region)
        except Crossing as crossing:
            parts = crossing.parts(region[crossing.dim])
            dim = sum(map(len, region[: crossing.dim])) + crossing.place + crossing.number
            assembled = (self.assembly(value, with_digits(region, crossing.dim, part)) for part in parts)
            return Joined(tuple(assembled), dim, counts(region))
        read = next((number for number, other in enumerate(self.reads.values()) if other.value == tensor.value), None)
        if read is not None:
            return Leaf(read, is_input=True)
        return Leaf(self.made.setdefault(tensor.value, len(self.made)), is_input=False)

    def tensor(self, value: Value, region: Region) -> ProgramTensor:
        """A region of a value, with a dimension for each digit; raises Crossing where it lies in two parts of something."""
        key = value, region
        if key not in self.known:
            if len(self.known) > _GROWTH * len(self.program.nodes) + _SPARE:
                raise UnsupportedOperator(
                    "tensors are put together of so many parts that it takes too long to search all of them"
                )
            try:
                self.known[key] = self.computed(value, self.program.nodes[value.node], region)
            except Crossing as crossing:
                self.known[key] = crossing
        found = self.known[key]
        if isinstance(found, Crossing):
            raise found.along(found.dim)  # anew, as what is raised again remembers where it has been
        return found

    def computed(self, value: Value, node: Node, region: Region) -> ProgramTensor:
        row = OPERATORS[node.op]
        if node.is_input:
            return self.read(value, node, region)
        if node.is_constant:
            return self.core.apply(node.op, **dict(node.attributes))
        if row.elementwise:
            return self.core.apply(
                node.op, *(self.aligned(x, node.output.shape, region) for x in node.inputs), **dict(node.attributes)
            )
        if row.products:
            first, *others = (self.product(node.inputs[left], node.inputs[right], region) for left, right in row.products)
            return sum(others, start=first)
        if node.op in _PARTS:
            dim = node.integer("dim")
            return self.part(node, with_digits(region, dim, region[dim] or (ONE,))).reshape(*counts(region))
        if row.structure is Structure.SCAN:
            return self.scanned(node, region)
        if row.structure not in (Structure.VIEW, Structure.REDUCTION):
            raise UnsupportedOperator(f"operator {node.op!r} of parts of tensors; spell it out")
        return self.moved(node, region)

    def shape(self, value: Value) -> Shape:
        return self.program.tensor(value).shape

    @functools.cached_property
    def inputs(self) -> Mapping[int, int]:
        return _input_numbers(self.program)

    def read(self, value: Value, node: Node, region: Region) -> ProgramTensor:
        """A region of an input, as an input of the core."""
        key = self.inputs[value.node], region
        if key not in self.reads:
            name = str(node["name"])
            if region != everything(node.output.shape):
                taken = {*self.program.input_names, *(str(self.core.node(read)["name"]) for read in self.reads.values())}
                name = next(other for number in itertools.count() if (other := f"{name}_{number}") not in taken)
            self.reads[key] = self.core.input(name, counts(region), node.output.dtype)
        return self.reads[key]

    def aligned(self, value: Value, out: Shape, region: Region) -> ProgramTensor:
        """What an operand has for a region of a result of shape `out` that it is broadcast to."""
        wanted = before_broadcast(self.shape(value), out, region)
        try:
            return self.tensor(value, wanted)
        except Crossing as crossing:
            raise crossing.along(len(out) - len(wanted) + crossing.dim) from None

    # parts -----------------------------------------------------------------------------------------------------------

    def part(self, node: Node, region: Region) -> ProgramTensor:
        """A slice or a concatenation."""
        # by name: each finds what it reads in its own way
        return self.sliced(node, region) if node.op == "slice" else self.concatenated(node, region)

    def sliced(self, node: Node, region: Region) -> ProgramTensor:
        (source,), dim = node.inputs, node.integer("dim")
        start, step, size = node.integer("start"), node.integer("step"), self.shape(source)[dim]
        slow, *fast = region[dim]
        inner = math.prod(digit.size for digit in fast)
        if fast and not (step == 1 and start % inner == size % inner == 0):
            return self.at_equal_steps(node, region)
        return self.elsewhere(source, region, dim, slow.within(start // inner, step, size // inner))

    def concatenated(self, node: Node, region: Region) -> ProgramTensor:
        dim = node.integer("dim")
        sizes = [self.shape(value)[dim] for value in node.inputs]
        slow, *fast = region[dim]
        inner = math.prod(digit.size for digit in fast)
        if any(size % inner for size in sizes):
            return self.at_equal_steps(node, region)
        ends = [end // inner for end in itertools.accumulate(sizes)]
        owners = [bisect.bisect_right(ends, slow.start + number * slow.step) for number in range(slow.count)]
        part, cuts = owners[0], [number for number in range(1, slow.count) if owners[number] != owners[number - 1]]
        if cuts:
            raise Crossing(dim, 0, (slow,), 0, cuts)
        size = sizes[part] // inner
        there = Digit(size, slow.start - ends[part] + size, slow.count, slow.step)
        return self.elsewhere(node.inputs[part], region, dim, there).cast(node.output.dtype)  # other parts may be wider

    def elsewhere(self, value: Value, region: Region, dim: int, there: Digit) -> ProgramTensor:
        """A region of a value that lies `there` along the slowest digit of a dimension."""
        slow, *fast = region[dim]
        try:
            return self.tensor(value, with_digits(region, dim, (there, *fast)))
        except Crossing as crossing:
            if crossing.dim != dim or crossing.place:
                raise
            if len(crossing.finer) > 1:
                raise Unaligned from None
            raise Crossing(dim, 0, (slow,), 0, crossing.cuts) from None

    def at_equal_steps(self, node: Node, region: Region) -> ProgramTensor:
        """A slice or concatenation at the one digit that the digits along its dimension are together."""
        dim = node.integer("dim")
        digits = region[dim]
        try:
            return self.part(node, with_digits(region, dim, (functools.reduce(Digit.times, digits),)))
        except Crossing as crossing:
            if crossing.dim != dim:
                raise
            if len(crossing.finer) > 1:
                raise Unaligned from None
            place = next(place for place, digit in enumerate(digits) if digit.count > 1)
            rest = math.prod(digit.count for digit in digits[place + 1 :])
            cuts = sorted({max(1, cut // rest) for cut in crossing.cuts})
            raise Crossing(dim, place, (digits[place],), 0, cuts) from None

    # other operators -------------------------------------------------------------------------------------------------

    def moved(self, node: Node, region: Region) -> ProgramTensor:
        """A view or a reduction, whose index maps say which region of its operand is wanted."""
        maps = index_maps_of(node, [self.shape(value) for value in node.inputs])
        assert maps is not None
        try:
            wanted = Wanted.of(maps, region)
            wanted.region(maps.operands[0])
        except Unaligned:
            whole = all(digit.is_whole for digits in region for digit in digits)
            # by name: other dimensions of the same elements in the same order
            if node.op != "reshape" or not whole:
                raise
            return self.tensor(node.inputs[0], everything(self.shape(node.inputs[0]))).reshape(*counts(region))
        return self.gathered(node, wanted, region)

    def gathered(self, node: Node, wanted: Wanted, region: Region) -> ProgramTensor:
        """A view or a reduction of what is wanted of its operand."""
        (source,), indices = node.inputs, wanted.maps.operands[0]
        try:
            operand = self.tensor(source, wanted.region(indices))
        except Crossing as crossing:
            parts = wanted.parts(crossing)
            if parts is None:
                raise wanted.crossing(crossing) from None
            # by name: what joins the parts of what is reduced
            join = ProgramTensor.maximum if node.op == "max" else ProgramTensor.__add__
            return functools.reduce(join, (self.gathered(node, part, region) for part in parts))
        labels = wanted.labels(indices)
        for dim, (iterator, _) in enumerate(labels):
            if iterator in wanted.maps.reduced:
                operand = operand.apply(node.op, **{**dict(node.attributes), "dim": dim, "size": operand.shape[dim]})
        arranged = _arranged(operand, labels, wanted).reshape(*counts(region))
        # by name: the only view that changes the type
        return arranged.cast(node.output.dtype) if node.op == "cast" else arranged

    def scanned(self, node: Node, region: Region) -> ProgramTensor:
        """A scan where positions are wanted from its beginning on, or up to there: in that order it is the opposite scan."""
        (source,), dim, scan = node.inputs, node.integer("dim"), SCANS[node.op]
        whole = functools.reduce(Digit.times, region[dim], ONE)
        ends = whole.start, whole.start + (whole.count - 1) * whole.step
        begin = self.shape(source)[dim] - 1 if scan.back else 0
        if begin not in ends or abs(whole.step) != 1:
            raise UnsupportedOperator(f"a part of what {node.op} makes that does not begin where it does")
        try:
            operand = self.tensor(source, with_digits(region, dim, (whole,)))
        except Crossing as crossing:
            if crossing.dim == dim:
                raise UnsupportedOperator(f"{node.op} of tensors that are put together along its dimension") from None
            raise crossing.along(crossing.dim) from None
        name = node.op if whole.step > 0 else scan.opposite
        return operand.apply(name, dim=sum(map(len, region[:dim]))).reshape(*counts(region))

    def product(self, left: Value, right: Value, region: Region, inner: Digits | None = None) -> ProgramTensor:
        """A region of a matrix product: the sum over some positions of the inner dimension, by default all."""
        *batch, rows, columns = region
        inner = (Digit.whole(self.shape(left)[-1]),) if inner is None else inner
        out = tuple(math.prod(digit.size for digit in digits) for digits in batch)
        wanted = [before_broadcast(self.shape(value)[:-2], out, batch) for value in (left, right)]
        pair: list[ProgramTensor] = []
        for value, matrix, place in ((left, (rows, inner), 1), (right, (inner, columns), 0)):
            lead = wanted[len(pair)]
            try:
                pair.append(self.tensor(value, (*lead, *matrix)))
            except Crossing as crossing:
                if crossing.dim != len(lead) + place:
                    raise crossing.along(len(batch) - len(lead) + crossing.dim) from None
                products = (self.product(left, right, region, part) for part in crossing.parts(inner))
                return functools.reduce(ProgramTensor.__add__, products)
        heights, depth, widths = (math.prod(digit.count for digit in digits) for digits in (rows, inner, columns))
        x, y = (tensor.shape[: sum(map(len, lead))] for tensor, lead in zip(pair, wanted, strict=True))
        return (pair[0].reshape(*x, heights, depth) @ pair[1].reshape(*y, depth, widths)).reshape(*counts(region))


def _arranged(operand: ProgramTensor, labels: Sequence[tuple[int, int]], wanted: Wanted) -> ProgramTensor:
    """An operand whose dimensions have `labels` with a dimension for each digit of the result, repeated along new ones."""
    target = wanted.labels(wanted.maps.result)
    present = [label for label in labels if label in target]
    sizes = {label: size for label, size in zip(labels, operand.shape, strict=True) if label in target}
    order = [present.index(label) for label in target if label in sizes]
    moved = operand.reshape(*sizes.values()).permute(*order)
    moved = moved.reshape(*(sizes.get(label, 1) for label in target))
    for dim, (iterator, place) in enumerate(target):
        if (iterator, place) not in sizes:
            moved = moved.repeat(dim, wanted.digits[iterator][place].count)
    return moved
