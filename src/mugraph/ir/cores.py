"""Programs with lookups, as programs without.

What is looked up may be any numbers, since the integers are known only when a kernel is launched. So the *core* of a program has
an input of its own in place of each lookup of an input at the places in another one; lookups of the same table at the same places
are one. Whatever equals a core for all values of its inputs equals the program, for all tables and integers. What is searched,
tested and proved is the core, and kernels read such an input where the integers say (`mugraph.lower.lower`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mugraph.errors import UnsupportedOperator
from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.graph import LOOKUP, Graph, Value
from mugraph.ir.lookups import lookup_shape, taken


class Lookup(NamedTuple):
    """A lookup of an input of a program at the integers in another: their numbers, and the operator's attributes."""

    table: int
    integers: int
    dim: int
    negative: str


def has_lookups(program: Graph) -> bool:
    """Whether a kernel graph looks something up."""
    return any(node.op == LOOKUP for node in program.nodes)


@dataclass(frozen=True)
class Cores:
    """Kernel graphs on the same inputs, and their `cores`: these take the inputs number `kept`, and then what `lookups` give."""

    programs: tuple[Graph, ...]
    kept: tuple[int, ...]
    lookups: tuple[Lookup, ...]
    cores: tuple[Graph, ...]

    def inputs(self, arrays: Sequence[Array]) -> list[Array]:
        """What the cores take for arrays that the programs take; raises IndexOutOfRange."""
        looked_up = (taken(each.dim, each.negative)([arrays[each.table], arrays[each.integers]]) for each in self.lookups)
        return [*(arrays[number] for number in self.kept), *looked_up]

    def around(self, graph: Graph) -> Graph:
        """A muGraph of the first program, from one of its core."""
        builder = GraphBuilder(self.programs[0].level)
        inputs = [builder.append(node) for node in self.programs[0].inputs()]
        read = [inputs[number] for number in self.kept]
        read += [
            builder.add(LOOKUP, inputs[each.table], inputs[each.integers], dim=each.dim, negative=each.negative)
            for each in self.lookups
        ]
        return without_dead_nodes(builder.build(builder.extend(graph, read)))

    @property
    def realisable(self) -> bool:
        """Whether tables and integers can give whatever the cores take: each place may be a row of its own in every table."""
        shapes = [node.output.shape for node in self.programs[0].inputs()]
        tables = {(each.table, each.dim) for each in self.lookups}
        wanted = sum(math.prod(shapes[number]) for number in {each.integers for each in self.lookups})
        alone = len({each[:2] for each in self.lookups}) == len(self.lookups) and len(dict(tables)) == len(tables)
        return alone and all(table not in self.kept and wanted <= shapes[table][dim] for table, dim in tables)


def cores_of(*programs: Graph) -> Cores | None:
    """The cores of kernel graphs that take the same inputs; None where none looks anything up.

    Tables that nothing else reads in any of them are no inputs of the cores. Raises UnsupportedOperator for lookups of what a
    program computes, and for integers that are an output.
    """
    if not any(map(has_lookups, programs)):
        return None
    lookups = tuple(sorted({lookup for program in programs for lookup in lookups_of(program)}))
    needed = {number for program in programs for number in _read_otherwise(program)}
    looked_up = {number for each in lookups for number in (each.table, each.integers)}
    count = len(programs[0].inputs())
    kept = tuple(number for number in range(count) if number in needed or number not in looked_up)
    return Cores(programs, kept, lookups, tuple(_core(program, kept, lookups) for program in programs))


def core_of(program: Graph) -> Graph:
    """The core of a kernel graph: itself where it looks nothing up. Raises what `cores_of` raises."""
    found = cores_of(program)
    return program if found is None else found.cores[0]


def lookups_of(program: Graph) -> Iterator[Lookup]:
    """The lookups of a kernel graph, each as often as it stands there; raises UnsupportedOperator for those of no inputs."""
    numbers = {index: number for number, index in enumerate(i for i, node in enumerate(program.nodes) if node.is_input)}
    for node in program.nodes:
        if node.op == LOOKUP:
            table, index = (numbers.get(value.node) for value in node.inputs)
            if table is None or index is None:
                raise UnsupportedOperator(
                    f"{LOOKUP} of a tensor that the program computes; pass the table as an input, or compute it before"
                )
            yield Lookup(table, index, node.integer("dim"), str(node["negative"]))


def ranges(program: Graph) -> dict[int, tuple[int, int]]:
    """For each input of integers that is looked up at, by number, the least integer allowed, and one more than the largest."""
    shapes = [node.output.shape for node in program.inputs()]
    found: dict[int, tuple[int, int]] = {}
    for each in lookups_of(program):
        rows = shapes[each.table][each.dim]
        least, most = found.get(each.integers, (-rows, rows))
        found[each.integers] = max(least, -rows if each.negative == "wrapped" else 0), min(most, rows)
    return found


def bytes_read(program: Graph) -> int:
    """Bytes of a kernel graph's inputs, of which tables are read where they are looked up, each slice anew."""
    found = cores_of(program)
    if found is None:
        return sum(node.output.bytes for node in program.inputs())
    integers = {each.integers for each in found.lookups}
    inputs = [node.output.bytes for node in program.inputs()]
    return sum(node.output.bytes for node in found.cores[0].inputs()) + sum(inputs[number] for number in integers)


def _read_otherwise(program: Graph) -> set[int]:
    """The inputs that something else than a lookup reads, or that are outputs."""
    numbers = {index: number for number, index in enumerate(i for i, node in enumerate(program.nodes) if node.is_input)}
    read = [value.node for node in program.nodes if node.op != LOOKUP for value in node.inputs]
    return {numbers[index] for index in (*read, *(value.node for value in program.outputs)) if index in numbers}


def _core(program: Graph, kept: Sequence[int], lookups: Sequence[Lookup]) -> Graph:
    builder = GraphBuilder(program.level)
    inputs = program.inputs()
    names = [str(node["name"]) for node in inputs]
    tensors = [node.output for node in inputs]
    numbers = iter(range(len(inputs)))
    own = {number: builder.append(inputs[number]) for number in kept}
    fresh: dict[Lookup, Value] = {}
    for each in lookups:
        table, index = tensors[each.table], tensors[each.integers]
        name = f"{names[each.table]}[{':, ' * each.dim}{names[each.integers]}]" + "'" * (each.negative == "wrapped")
        fresh[each] = builder.input(name, lookup_shape(table.shape, index.shape, each.dim), table.dtype)
    remaining = lookups_of(program)
    moved: dict[int, int] = {}

    def there(value: Value) -> Value:
        if value.node not in moved:
            raise UnsupportedOperator(f"integers are read by {LOOKUP} alone, and are no output")
        return Value(moved[value.node], value.output)

    for place, node in enumerate(program.nodes):
        if node.is_input:
            number = next(numbers)
            if number in own:
                moved[place] = own[number].node
        elif node.op == LOOKUP:
            moved[place] = fresh[next(remaining)].node
        else:
            moved[place] = builder.append(replace(node, inputs=tuple(map(there, node.inputs)))).node
    return builder.build([there(value) for value in program.outputs])
