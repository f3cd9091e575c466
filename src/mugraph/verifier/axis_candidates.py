"""Which dimensions of the inputs may be one axis along which graphs treat all slices alike: proposals, proved elsewhere.

Operators say which dimensions have the same slices: those that they carry over. A dimension of a grid that cuts columns of
several weights says that these are one axis, and so does a concatenation of results. What is connected so is proposed.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mugraph.ir.graph import Graph, Node, Value
from mugraph.ir.index_maps import IndexMaps
from mugraph.ir.ops import index_maps_of, operator
from mugraph.verifier.axis_marks import ONE, Widths, digits_of, moved, stretches_between

_NESTED = 3
"""Windows of windows of windows are looked for, ..."""
_WIDTHS = 16
"""... and so many widths at most."""


class Candidate(NamedTuple):
    """What may be an axis: for each input the dimension or None, and how slices lie in it."""

    inputs: tuple[int | None, ...]
    widths: tuple[Widths, ...]


class _Place(NamedTuple):
    """A dimension of a value of one of the graphs as an axis."""

    side: int
    value: Value
    dim: int
    widths: Widths


class _Dim(NamedTuple):
    """A dimension of a value."""

    value: Value
    dim: int


def candidates(left: Graph, right: Graph, *, simple: bool) -> Iterator[Candidate]:
    """Axes that may be parallel, those of the narrowest slices first: of each graph of pre-defined operators, and then those that
    both connect. Only such as have slices at single positions of the inputs where `simple`."""
    graphs = (left,) if left is right else (left, right)
    sources = [(graph,) for graph in graphs if all(node.body is None for node in graph.nodes)]
    for group in (*sources, *([graphs] if sources and len(graphs) > 1 else [])):
        yield from _Connections.of(group, simple=simple).candidates()


def candidates_apart(left: Graph, right: Graph) -> Iterator[Candidate]:
    """Axes along single positions of an input that may be parallel where others are read as a whole, too, as the tables are that
    queries and keys are turned by: dimensions that are connected in either graph, but by no other input."""
    connections = _Connections.of((left, right), simple=True)
    yield from dict.fromkeys(filter(None, map(connections.apart, connections.seeds())))


@dataclass
class _Connections:
    """Which dimensions of the values of graphs on the same inputs have the same slices."""

    graphs: Sequence[Graph]
    simple: bool
    links: list[_Links]
    widths: list[int]

    @classmethod
    def of(cls, graphs: Sequence[Graph], *, simple: bool) -> _Connections:
        links = [_Links.of(graph) for graph in graphs]
        return cls(graphs, simple, links, [1] if simple else _widths(links))

    def candidates(self) -> list[Candidate]:
        """An axis for each set of dimensions that are connected and have an input's among them."""
        seen: set[_Place] = set()
        found = []
        for seed in self.seeds():
            if seed not in seen:
                places = self.connected(seed, seen)
                if (candidate := self.candidate(places)) is not None:
                    found.append(candidate)
        return sorted(found, key=lambda candidate: max(map(sum, candidate.widths)))

    def seeds(self) -> Iterator[_Place]:
        """Dimensions of inputs, and those of views that may be digits in the middle of an input's."""
        for value in self.links[0].inputs:
            for width, dim in itertools.product(self.widths, range(len(self.graphs[0].tensor(value).shape))):
                yield from self.seed(0, value, dim, width)
        for side, graph in enumerate(() if self.simple else self.graphs):
            for index, node in enumerate(graph.nodes):
                # by name: what splits dimensions
                for dim in range(len(node.output.shape) if node.op == "reshape" else 0):
                    yield from self.seed(side, Value(index), dim, 1)

    def seed(self, side: int, value: Value, dim: int, width: int) -> Iterator[_Place]:
        size = self.graphs[side].tensor(value).shape[dim]
        if size > width and size % width == 0:
            yield _Place(side, value, dim, (width,))

    def apart(self, seed: _Place) -> Candidate | None:
        """An axis of what is connected with an input's dimension in each graph, but by no other input; None where slices there
        are no single positions."""
        inputs = list(self.links[0].inputs)
        number, found = inputs.index(seed.value), dict[int, _Place]()
        for side, links in enumerate(self.links):
            start = seed._replace(side=side, value=list(links.inputs)[number])
            for place in self.connected(start, set(), across=False):
                if place.value in links.inputs:
                    found.setdefault(links.inputs[place.value], place)
        return self.candidate([seed, *(place._replace(side=0, value=inputs[other]) for other, place in found.items())])

    def connected(self, seed: _Place, seen: set[_Place], *, across: bool = True) -> list[_Place]:
        """All places that have the same slices as the seed; those behind other inputs only if that is wanted."""
        seen.add(seed)
        places = [seed]
        for place in places:  # which grow
            if not across and place != seed and place.value in self.links[place.side].inputs:
                continue
            for other in self.neighbours(place, across=across):
                if other not in seen:
                    seen.add(other)
                    places.append(other)
        return places

    def neighbours(self, place: _Place, *, across: bool = True) -> Iterator[_Place]:
        """Places that have the same slices, next to one; those of the other graph are so by inputs."""
        links = self.links[place.side]
        for value, dim, widths in links.neighbours(_Dim(place.value, place.dim), place.widths):
            yield _Place(place.side, value, dim, widths)
        if across and (number := links.inputs.get(place.value)) is not None:
            for side, other in enumerate(self.links):
                yield place._replace(side=side, value=list(other.inputs)[number])

    def candidate(self, places: Iterable[_Place]) -> Candidate | None:
        inputs = self.links[0].inputs
        found = {inputs[place.value]: place for place in places if place.side == 0 and place.value in inputs}
        if not found or (self.simple and any(place.widths != ONE for place in found.values())):
            return None
        return Candidate(
            tuple(found[number].dim if number in found else None for number in range(len(inputs))),
            tuple(found[number].widths if number in found else ONE for number in range(len(inputs))),
        )


Neighbour = tuple[Value, int, Widths]


@dataclass
class _Links:
    """What the operators of a graph say of its values' dimensions."""

    graph: Graph
    inputs: dict[Value, int]
    maps: dict[int, IndexMaps]
    readers: dict[Value, list[int]] = field(default_factory=lambda: defaultdict(list))
    together: dict[_Dim, list[list[_Dim]]] = field(default_factory=lambda: defaultdict(list))
    """Dimensions that must be cut together: those of the operands of products, and those that a grid or a loop cuts."""
    parts: dict[_Dim, list[tuple[_Dim, int]]] = field(default_factory=lambda: defaultdict(list))
    """Dimensions that lie in another one side by side, with the positions at which they begin."""
    wholes: dict[_Dim, _Dim] = field(default_factory=dict)
    """Those that they lie in."""

    @classmethod
    def of(cls, graph: Graph) -> _Links:
        inputs = {Value(index): number for number, index in enumerate(i for i, node in enumerate(graph.nodes) if node.is_input)}
        maps: dict[int, IndexMaps] = {}
        for index, node in enumerate(graph.nodes):
            if node.inputs and node.body is None:
                found = index_maps_of(node, [graph.tensor(value).shape for value in node.inputs])
                maps |= {} if found is None else {index: found}
        links = cls(graph, inputs, maps)
        for index, node in enumerate(graph.nodes):
            links.add(index, node)
        return links

    def add(self, index: int, node: Node) -> None:
        for value in node.inputs:
            self.readers[value].append(index)
        if node.body is not None:
            for dims in _cut_together(index, node, node.body):
                self.tie(dims)
        else:
            for left, right in operator(node.op).products:
                one, other = node.inputs[left], node.inputs[right]
                self.tie([_Dim(one, self.rank(one) - 1), _Dim(other, self.rank(other) - 2)])
        # by name: what has parts of dimensions
        if node.op == "concat":
            sizes = [self.size(_Dim(value, node.integer("dim"))) for value in node.inputs]
            for value, end, size in zip(node.inputs, itertools.accumulate(sizes), sizes, strict=True):
                self.lies_in(_Dim(Value(index), node.integer("dim")), _Dim(value, node.integer("dim")), end - size)
        elif node.op == "slice" and node["step"] == 1:
            dim = node.integer("dim")
            self.lies_in(_Dim(node.inputs[0], dim), _Dim(Value(index), dim), node.integer("start"))

    def tie(self, dims: list[_Dim]) -> None:
        for dim in dims:
            self.together[dim].append(dims)

    def lies_in(self, whole: _Dim, part: _Dim, start: int) -> None:
        self.parts[whole].append((part, start))
        self.wholes[part] = whole

    def rank(self, value: Value) -> int:
        return len(self.graph.tensor(value).shape)

    def size(self, dim: _Dim) -> int:
        return self.graph.tensor(dim.value).shape[dim.dim]

    def neighbours(self, dim: _Dim, widths: Widths) -> Iterator[Neighbour]:
        """Dimensions that have the same slices as one, with how they lie there."""
        yield from self.carried(dim, widths)
        slices = self.size(dim) // sum(widths)
        for other in itertools.chain(*self.together[dim]):
            if self.size(other) % slices == 0:
                yield *other, (self.size(other) // slices,)
        if dim in self.wholes:
            yield from self.whole(self.wholes[dim], slices)
        for part, start in self.parts[dim]:
            between = stretches_between(widths, slices, start, start + self.size(part))
            if between is not None:
                yield *part, widths[slice(*between)]

    def carried(self, dim: _Dim, widths: Widths) -> Iterator[Neighbour]:
        """By the operators that read a value, and by the one that makes it."""
        for index in self.readers[dim.value]:
            for number, value in enumerate(self.graph.nodes[index].inputs if index in self.maps else ()):
                if value == dim.value:
                    maps = self.maps[index]
                    found = moved(maps, maps.operands[number][dim.dim], widths, maps.result)
                    if found is not None:
                        yield Value(index), *found
        if (maps_of_it := self.maps.get(dim.value.node)) is not None:
            for value, indices in zip(self.graph.nodes[dim.value.node].inputs, maps_of_it.operands, strict=True):
                found = moved(maps_of_it, maps_of_it.result[dim.dim], widths, indices)
                if found is not None:
                    yield value, *found

    def whole(self, whole: _Dim, slices: int) -> Iterator[Neighbour]:
        """A dimension with all that is between the ends of its parts as stretches."""
        ends = sorted(
            {0, self.size(whole), *(end for part, start in self.parts[whole] for end in (start, start + self.size(part)))}
        )
        sizes = [end - start for start, end in itertools.pairwise(ends)]
        if not any(size % slices for size in sizes):
            yield *whole, tuple(size // slices for size in sizes)

    @property
    def splits(self) -> set[int]:
        """How many neighbours views and reductions keep together."""
        found: set[int] = set()
        for maps in self.maps.values():
            for index in itertools.chain(*maps.operands, maps.result):
                sizes = [maps.sizes[digit] for digit in digits_of(maps, index) or ()]
                found.update(math.prod(sizes[place:]) for place in range(1, len(sizes)))
        return found

    @property
    def shares(self) -> set[int]:
        """How wide the narrowest slices are along dimensions that are cut together or lie in one."""
        groups = [*itertools.chain(*self.together.values()), *([part for part, _ in parts] for parts in self.parts.values())]
        sizes = [[self.size(dim) for dim in dims] for dims in groups]
        return {size // math.gcd(*group) for group in sizes for size in group if math.gcd(*group) > 1}


def _cut_together(index: int, node: Node, body: Graph) -> Iterator[list[_Dim]]:
    """For each dimension of a graph-defined operator's grid, and for its loop, the dimensions of operands and results it cuts."""
    reads = [(node.inputs[inner.integer("operand")], inner) for inner in body.nodes if inner.is_iterator]
    writes = [(Value(index, number), body.nodes[value.node]) for number, value in enumerate(body.outputs)]
    for position in range(len(body.grid)):
        places = [(value, _mapped(inner, "imap", position)) for value, inner in reads]
        places += [(value, _mapped(inner, "omap", position)) for value, inner in writes]
        yield [_Dim(value, dim) for value, dim in places if dim is not None]
    yield [_Dim(value, inner.integer("fmap")) for value, inner in reads if inner["fmap"] is not None]


def _mapped(node: Node, name: str, position: int) -> int | None:
    mapped = node[name]
    assert isinstance(mapped, tuple)
    dim = mapped[position]
    assert dim is None or isinstance(dim, int)
    return dim


def _widths(links: Sequence[_Links]) -> list[int]:
    """How many neighbours slices may have: a few times over, what views split off; and what a grid gives its narrowest slices."""
    splits = set().union(*(each.splits for each in links))
    found = {1}
    for _ in range(_NESTED):
        found |= {width * split for width in found for split in splits}
    narrow = sorted(found)[:_WIDTHS]
    return sorted({*narrow, *sorted(set().union(*(each.shares for each in links)))[:_WIDTHS]})
