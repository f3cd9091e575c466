"""Long programs in stretches: each is a program of its own, and kernels of all of them in a row compute the whole.

Stretches are runs of an order of the program's operators. What one makes and another reads is stored in device memory, so the
division is the one that moves the fewest bytes, with the time of a launch for every stretch; no other is cheaper for the orders
that are looked at. That what comes out equals the program needs no test of its own: every stretch computes what its operators do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mugraph.devices import Device
from mugraph.errors import UnsupportedOperator
from mugraph.ir.axes import axis_program, operands_first
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import FREE, Graph, Level, Node, Value

LONGEST = 48
"""Operators of a stretch: closures of more are seldom saturated, and a kernel of more seldom fits a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some operators as a program: its inputs are the values `reads` of the whole program, its outputs the values `makes`.

    Equal stretches of a program are equal graphs.
    """

    graph: Graph
    reads: tuple[Value, ...]
    makes: tuple[Value, ...]


@dataclass(frozen=True)
class Division:
    """Ways to divide a kernel graph of pre-defined operators into stretches for a device."""

    program: Graph
    device: Device

    def stretches(self, longest: int = LONGEST) -> list[Stretch]:
        """Stretches of at most `longest` operators, in the order they run; shorter ones where these have no axis form."""
        written = sorted(self.needed)
        deep_first = operands_first((value.node for value in self.program.outputs), self._operands)
        orders = [[index for index in order if index not in self.at_hand] for order in (written, deep_first)]
        _, runs = min((self._cheapest(order, longest) for order in orders), key=lambda found: found[0])
        return [stretch for run in runs for stretch in self._with_axis_forms(run)]

    @cached_property
    def needed(self) -> frozenset[int]:
        """The nodes that outputs are made from."""
        return self.program.needed()

    @cached_property
    def at_hand(self) -> frozenset[int]:
        """Inputs, constants, and views of them: nothing has to be stored for a stretch to read these."""
        found: set[int] = set()
        for index, node in enumerate(self.program.nodes):
            if node.op in FREE and all(value.node in found for value in node.inputs):
                found.add(index)
        return frozenset(found)

    @cached_property
    def users(self) -> Mapping[int, frozenset[int]]:
        """The nodes that read each node, and -1 for the outputs of the program."""
        users: dict[int, set[int]] = {index: set() for index in range(len(self.program.nodes))}
        for index in self.needed:
            for value in self.program.nodes[index].inputs:
                users[value.node].add(index)
        for value in self.program.outputs:
            users[value.node].add(-1)
        return {index: frozenset(found) for index, found in users.items()}

    def _cheapest(self, order: Sequence[int], longest: int) -> tuple[float, list[list[int]]]:
        """The cheapest division of an order into runs of at most `longest` operators, and its seconds."""
        least = [0.0, *[float("inf")] * len(order)]
        start_of = [0] * (len(order) + 1)
        for start in range(len(order)):
            for end, moved in enumerate(self._moved(order, start, longest), start=start + 1):
                seconds = least[start] + self.device.launch_seconds + moved / self.device.memory_bandwidth
                if seconds < least[end]:
                    least[end], start_of[end] = seconds, start
        runs: list[list[int]] = []
        end = len(order)
        while end:
            runs.append(list(order[start_of[end] : end]))
            end = start_of[end]
        return least[-1], runs[::-1]

    def _moved(self, order: Sequence[int], start: int, longest: int) -> Iterator[int]:
        """Bytes that runs from `start` on read and write: of one node, of two, and so on up to `longest` operators."""
        nodes = self.program.nodes
        waiting: dict[int, int] = {}
        """For each node of the run, how many nodes behind it read it."""
        read: set[int] = set()
        moved = operators = 0
        for index in order[start:]:
            operators += nodes[index].op not in FREE
            if operators > longest and waiting:
                return
            for operand in {value.node for value in nodes[index].inputs}:
                if operand in waiting:
                    waiting[operand] -= 1
                    moved -= 0 if waiting[operand] else nodes[operand].output.bytes
                elif operand not in read and not nodes[operand].is_constant:
                    read.add(operand)
                    moved += nodes[operand].output.bytes
            waiting[index] = len(self.users[index])
            moved += nodes[index].output.bytes
            yield moved

    def _with_axis_forms(self, run: Sequence[int]) -> Iterator[Stretch]:
        """A run as a stretch, or as many as it takes for each to have an axis form, the first ones as long as may be.

        A single node may still have none: it runs as it is.
        """
        while run:
            shortest, longest = 1, len(run)
            while shortest < longest:
                middle = (shortest + longest + 1) // 2 if longest < len(run) else longest
                if _has_axis_form(self._stretch(run[:middle]).graph):
                    shortest = middle
                else:
                    longest = middle - 1
            yield self._stretch(run[:shortest])
            run = run[shortest:]

    def _stretch(self, run: Sequence[int]) -> Stretch:
        builder = GraphBuilder(Level.KERNEL)
        placed: dict[int, Value] = {}
        reads: list[Value] = []
        inside = set(run)
        copied = operands_first(run, lambda index: self._made_again(index, inside))
        for index in copied:
            node = self.program.nodes[index]
            if index not in inside and (node.is_input or index not in self.at_hand):
                placed[index] = builder.input(f"x{len(reads)}", node.output.shape, node.output.dtype)
                reads.append(Value(index))
            else:
                placed[index] = builder.append(_on(node, placed))
        makes = [index for index in run if not self.users[index] <= inside]
        return Stretch(builder.build([placed[index] for index in makes]), tuple(reads), tuple(map(Value, makes)))

    def in_a_row(self, stretches: Sequence[Stretch], graphs: Sequence[Graph]) -> Graph:
        """The program with each stretch computed by the graph in its place, whose inputs and outputs are the stretch's."""
        builder = GraphBuilder(Level.KERNEL)
        program = self.program
        given = [index for index, node in enumerate(program.nodes) if node.is_input]
        wanted = [value.node for value in program.outputs if value.node in self.at_hand]
        placed: dict[int, Value] = {}
        for index in dict.fromkeys([*given, *operands_first(wanted, self._operands)]):
            placed[index] = builder.append(_on(program.nodes[index], placed))
        for stretch, graph in zip(stretches, graphs, strict=True):
            made = _appended(builder, graph, [placed[value.node] for value in stretch.reads])
            placed.update(zip((value.node for value in stretch.makes), made, strict=True))
        return builder.build([placed[value.node] for value in program.outputs])

    def _operands(self, index: int) -> Sequence[int]:
        return [value.node for value in self.program.nodes[index].inputs]

    def _made_again(self, index: int, inside: set[int]) -> Sequence[int]:
        """What a stretch needs for a node: its operands, unless it reads the node itself."""
        if index in inside or index in self.at_hand:
            return self._operands(index)
        return ()


def _appended(builder: GraphBuilder, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
    """The outputs of a kernel graph on values of the one that is built."""
    operands = iter(inputs)
    moved: list[Value] = []
    """For each node, its first output."""
    for node in graph.nodes:
        if node.is_input:
            moved.append(next(operands))
        else:
            read = tuple(Value(moved[value.node].node, moved[value.node].output + value.output) for value in node.inputs)
            moved.append(builder.append(replace(node, inputs=read)))
    return [Value(moved[value.node].node, moved[value.node].output + value.output) for value in graph.outputs]


def _has_axis_form(graph: Graph) -> bool:
    try:
        axis_program(graph)
    except UnsupportedOperator:
        return False
    return True


def _on(node: Node, placed: Mapping[int, Value]) -> Node:
    """A node of a program on what its operands became."""
    return replace(node, inputs=tuple(placed[value.node] for value in node.inputs))
