"""Programs that act on slices along a dimension: what they are of one slice, also where tables are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugraph.errors import MugraphError
from mugraph.ir.cores import Lookup, cores_of
from mugraph.ir.graph import Graph
from mugraph.verifier import verify_graphs
from mugraph.verifier.axis_marks import Widths
from mugraph.verifier.certificate import digest
from mugraph.verifier.parallel_axes import Cut
from mugraph.verifier.slice_walk import NotParallel

Places = tuple[int | None, ...]
"""For each of several tensors the dimension that it has of the axis, or None."""


@dataclass(frozen=True, slots=True)
class SlicedProgram:
    """A program, or its core where it looks something up, at size 1 of the axis, and where the outputs have that."""

    graph: Graph
    outputs: Places
    widths: tuple[int, ...]
    lookups: tuple[Lookup, ...]

    @classmethod
    def of(cls, program: Graph, places: Places) -> SlicedProgram:
        """Raises MugraphError, which says why, unless the program acts on slices."""
        core, inputs, lookups, _ = _core(program, places)
        return cls._cut(core, inputs, lookups)

    @classmethod
    def of_rows(cls, program: Graph, first: Places, second: Places) -> tuple[SlicedProgram, Places]:
        """A program that acts on slices along two dimensions, at size 1 of both: cut along the second, and where its outputs have
        the first. Raises MugraphError, which says why, for others."""
        core, inputs, lookups, _ = _core(program, first)
        _, others, _, _ = _core(program, second)
        once = cls._cut(core, inputs, lookups)
        return cls._cut(once.graph, others, lookups), once.outputs

    @classmethod
    def _cut(cls, core: Graph, inputs: Places, lookups: tuple[Lookup, ...]) -> SlicedProgram:
        cut = Cut.of(core, inputs)
        _check_apart(cut)
        if any(len(widths) > 1 for widths in cut.widths):
            raise NotParallel("slices are no neighbours in what it puts together")
        return cls(cut.graph, cut.dims, tuple(map(sum, cut.widths)), lookups)

    def is_computed_by(self, program: Graph, places: Places) -> bool:
        """Whether a program computes this of each slice: of one slice in whatever way, of several by the same operators."""
        try:
            core, _, lookups, _ = _core(program, places)
            if _signature(core) == _signature(self.graph):
                same = digest(core) == digest(self.graph) or bool(verify_graphs(core, self.graph).equivalent)
                return same and lookups == self.lookups
            other = SlicedProgram.of(program, places)
        except MugraphError:
            return False
        return digest(self.graph) == digest(other.graph) and self.stands_like(other)

    def is_acted_on_by(self, graph: Graph, places: Places) -> bool:
        """Whether a muGraph acts on slices with the same outputs."""
        try:
            return self.stands_like(SlicedProgram.of(graph, places))
        except MugraphError:
            return False

    def is_same(self, other: SlicedProgram) -> bool:
        """Whether both compute the same of a slice: as they are written, or as is proved."""
        if _signature(self.graph) != _signature(other.graph) or self.lookups != other.lookups:
            return False
        return digest(self.graph) == digest(other.graph) or bool(verify_graphs(self.graph, other.graph).equivalent)

    def stands_like(self, other: SlicedProgram) -> bool:
        """Whether the axis stands in the same dimensions of the outputs, and of what is looked up."""
        return (self.outputs, self.widths, self.lookups) == (other.outputs, other.widths, other.lookups)


def outputs_of_slices(program: Graph, places: Places, widths: Sequence[Widths]) -> tuple[Places, tuple[Widths, ...]]:
    """Where the outputs of a program have the axis, and how slices lie there (`mugraph.verifier.axis_marks`), when they lie so in
    its inputs. Raises MugraphError, which says why, unless it acts on slices."""
    core, inputs, _, sources = _core(program, places)
    cut = Cut.of(core, inputs, [widths[number] for number in sources])
    _check_apart(cut)
    return cut.dims, cut.widths


def _check_apart(cut: Cut) -> None:
    if cut.sums:
        raise NotParallel("it adds slices up")


def _core(program: Graph, places: Places) -> tuple[Graph, Places, tuple[Lookup, ...], tuple[int, ...]]:
    """A program without lookups, and where its inputs have the axis: what is looked up has it where the integers do. Last, the
    inputs of the program that its own have the axis of."""
    program = program.with_constants(())
    cores = cores_of(program)
    if cores is None:
        return program, places, (), tuple(range(len(places)))
    if any(places[lookup.table] is not None for lookup in cores.lookups):
        raise NotParallel("something is looked up in a table that has the axis")
    found = [place if (place := places[each.integers]) is None else each.dim + place for each in cores.lookups]
    sources = (*cores.kept, *(each.integers for each in cores.lookups))
    return cores.cores[0], (*(places[number] for number in cores.kept), *found), cores.lookups, sources


def _signature(graph: Graph) -> list[object]:
    """Shapes and types of inputs and outputs."""
    return [[node.output for node in graph.inputs()], list(graph.output_tensors)]
