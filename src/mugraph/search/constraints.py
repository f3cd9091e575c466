"""The part of the search space that a user asks for: limits on kernels, operators, grids, for-loops and maps.

`SearchSpace.holds` is what they mean, for whole muGraphs; every engine gives only graphs of which it is true. What the closure
search looks at is cut down earlier: sketches by `admits`, schedules by a `Frame`, which is the space seen from one launch.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from mugraph.errors import InvalidInput
from mugraph.ir.axes import AxisGroup, Slots, cut_dim
from mugraph.ir.graph import Graph, Node, Value
from mugraph.ir.text import LOOP_NAME, REPLICA, axis_name
from mugraph.search.closure.sketch import Sketch, Step
from mugraph.search.tasks import Options

MOST_BLOCKS = 1 << 16
"""Of a grid; no device runs more at a time than a few thousand."""

_GRID_DIMENSIONS = 3
OUTPUT = "return"
"""What the outputs are called among the maps: no input can have this name."""
_ENTRY = re.compile(rf"(x|y|z|{LOOP_NAME})\s*<->\s*({REPLICA}|\d+)")

DimMap = Mapping[str, int | None]
"""For grid dimensions x, y, z and the for-loop i the data dimension that they cut, None where every block reads it all."""
Labels = tuple[tuple[str, int | None], ...]
"""The same, as what can be hashed."""
Grid = tuple[int, ...]
Cuts = tuple[tuple[AxisGroup, int], ...]
"""What is cut together and into how many parts: a grid, x first."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Limits of what is searched; None or nothing leaves the engine's own.

    `kernels`: at most so many launches, library products among them. The others speak of the kernels that are generated.
    `block_operators`: at most so many operators in each block graph, counted as in the paper (`Graph.operator_count`).
    `grids`: the grids there may be, such as `[128, (8, 16)]`; 1 is a single block. `loops`: the for-loop ranges; 1 is no loop.
    `maps`: for inputs of the program by their name, and as "return" for its outputs, which dimensions grid and loop cut, written
    as in muGraphs: `{"x": "x<->phi, i<->1", "return": "x<->1"}`. What is not mentioned is free.
    """

    kernels: int | None = None
    block_operators: int | None = None
    grids: Sequence[int | Sequence[int]] | None = None
    loops: Sequence[int] | None = None
    maps: Mapping[str, str] | tuple[tuple[str, Labels], ...] = ()

    def __post_init__(self) -> None:
        """Put everything into one form. Raises InvalidInput for what is no limit."""
        for name in ("kernels", "block_operators"):
            _check_count(name, getattr(self, name))
        for name, form in (("grids", _grid), ("loops", _loop)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, _several(name, given, form))
        if isinstance(self.maps, Mapping):
            object.__setattr__(self, "maps", tuple((name, _map(name, self.maps[name])) for name in sorted(self.maps)))

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return self != EVERYTHING

    def __str__(self) -> str:
        """The limits in words."""
        words = [f"at most {count} {what}" for what, count in self._counts() if count is not None]
        if self.grids is not None:
            words.append(f"grids {', '.join(grid_text(grid) for grid in self.allowed_grids or ())}")
        if self.loops is not None:
            words.append(f"for-loops {', '.join(map(str, self.loops))}")
        words += [f"{name} {{{map_text(labels)}}}" for name, labels in self.dim_maps.items()]
        return "; ".join(words) or "everything"

    def _counts(self) -> Iterator[tuple[str, int | None]]:
        yield "kernel" + "s" * (self.kernels != 1), self.kernels
        yield "block operator" + "s" * (self.block_operators != 1), self.block_operators

    @property
    def allowed_grids(self) -> tuple[Grid, ...] | None:
        """The grids as tuples without dimensions of 1 at their ends; None for all."""
        return cast(tuple[Grid, ...] | None, self.grids)

    @property
    def dim_maps(self) -> dict[str, Labels]:
        """The maps by name."""
        return dict(cast(tuple[tuple[str, Labels], ...], self.maps))

    @classmethod
    def of(cls, graph: Graph) -> SearchSpace:
        """The space around a muGraph: as many kernels and operators, its grids and for-loops, and its maps where they agree."""
        bodies = [(node, node.body) for node in graph.kernels() if node.body is not None]
        maps: dict[str, set[str]] = {}
        for node, body in bodies:
            for name, dims in _maps_of(graph, node, body):
                maps.setdefault(name, set()).add(map_text(tuple(dims.items())))
        return cls(
            kernels=len(graph.kernels()),
            block_operators=max((body.operator_count() for _, body in bodies), default=None),
            grids=[body.grid for _, body in bodies] or None,
            loops=[body.loop for _, body in bodies] or None,
            maps={name: text for name, (text, *others) in maps.items() if text and not others},
        )

    # what the space holds --------------------------------------------------------------------------------------------

    def holds(self, graph: Graph) -> bool:
        """Whether a kernel graph lies in the space."""
        kernels = graph.kernels()
        if self.kernels is not None and len(kernels) > self.kernels:
            return False
        return all(self._holds_body(graph, node, node.body) for node in kernels if node.body is not None)

    def _holds_body(self, graph: Graph, node: Node, body: Graph) -> bool:
        if self.block_operators is not None and body.operator_count() > self.block_operators:
            return False
        if self.allowed_grids is not None and _without_ones(body.grid) not in self.allowed_grids:
            return False
        if self.loops is not None and body.loop not in self.loops:
            return False
        return all(self.cuts(name, dims) for name, dims in _maps_of(graph, node, body))

    def cuts(self, name: str, dims: DimMap) -> bool:
        """Whether the input of that name, or the output, may be cut so."""
        return _obeys(self.dim_maps.get(name, ()), dims)

    def admits(self, sketch: Sketch, inputs: Sequence[str]) -> bool:
        """Whether kernels of a sketch may lie in the space; the program's inputs are the sources 0, 1, ... of its loads."""
        if self.block_operators is not None and sketch.operators > self.block_operators:
            return False
        loads = ((step, inputs[step.leaf.source]) for step in sketch.steps if step.leaf and step.leaf.source < len(inputs))
        return sketch.loop_axis is None or all(self.cuts(name, {LOOP_NAME: _fmap(sketch, step)}) for step, name in loads)

    def frame(self, tensors: Sequence[tuple[str, Slots]]) -> Frame:
        """The space seen from a launch that reads or writes tensors of these names."""
        wanted = self.dim_maps
        cut = tuple((slots, wanted[name]) for name, slots in tensors if name in wanted)
        return Frame(self.allowed_grids, None if self.loops is None else tuple(self.loops), cut)

    # what asks for nothing -------------------------------------------------------------------------------------------

    def check(self, program: Graph) -> None:
        """Raise InvalidInput, naming the limit, where nothing of a program can lie in the space."""
        shapes = {str(node["name"]): node.output.shape for node in program.inputs()}
        outputs = [tensor.shape for tensor in program.output_tensors]
        sizes = [size for shape in (*shapes.values(), *outputs) for size in shape]
        for count, where in self._divisors():
            if not any(size % count == 0 for size in sizes):
                raise InvalidInput(f"{where}: no dimension of the program ({_shapes_text(program)}) has {count} equal parts")
        for name, labels in self.dim_maps.items():
            rank = min(map(len, outputs)) if name == OUTPUT else len(shapes.get(name, ()))
            if name not in shapes and name != OUTPUT:
                raise InvalidInput(f"maps: the program has no input {name!r}; it reads {', '.join(shapes)}")
            if any(dim is not None and dim >= rank for _, dim in labels):
                raise InvalidInput(f"maps: {name} {{{map_text(labels)}}} cuts a dimension that {name}, of {rank}, does not have")

    def _divisors(self) -> Iterator[tuple[int, str]]:
        for grid in self.allowed_grids or ():
            yield from ((count, f"grid {grid_text(grid)}") for count in grid)
        yield from ((loop, f"for-loop {loop}") for loop in self.loops or ())

    def relaxations(self) -> Iterator[tuple[str, SearchSpace]]:
        """Each limit, by its name, with the space without it."""
        for limit in fields(self):
            if getattr(self, limit.name) != limit.default:
                without: dict[str, Any] = {limit.name: limit.default}
                yield limit.name, replace(self, **without)

    def within(self, options: Options) -> Options:
        """The options of a closure search with the limits that these are."""
        kernels, operators = self.kernels or options.max_kernels, self.block_operators
        if operators is None:
            return replace(options, max_kernels=kernels)
        return replace(options, max_kernels=kernels, block_operators=operators, most_block_operators=operators)

    def to_json(self) -> dict[str, Any]:
        """The limits as JSON values."""
        maps = {name: map_text(labels) for name, labels in self.dim_maps.items()}
        counts = {"kernels": self.kernels, "block_operators": self.block_operators}
        return {**counts, "grids": self.grids, "loops": self.loops, "maps": maps}


@dataclass(frozen=True, slots=True)
class Frame:
    """Schedules that one launch may have: grids, for-loops, and how they cut the tensors, given by their dimensions as axes."""

    grids: tuple[Grid, ...] | None = None
    loops: tuple[int, ...] | None = None
    tensors: tuple[tuple[Slots, Labels], ...] = ()

    @property
    def frees_grids(self) -> bool:
        """Whether every grid is allowed."""
        return self.grids is None and not self.tensors

    def loop(self, count: int) -> bool:
        """Whether a for-loop may have so many iterations."""
        return self.loops is None or count in self.loops

    def arranged(self, cuts: Cuts) -> Cuts | None:
        """The cut axes in an order in which they are a grid that is allowed, None where there is no such order."""
        if self.frees_grids:
            return cuts
        return next(filter(self._allows, itertools.permutations(cuts)), None)

    def _allows(self, cuts: Cuts) -> bool:
        if self.grids is not None and tuple(count for _, count in cuts) not in self.grids:
            return False
        for slots, labels in self.tensors:
            if not _obeys(labels, {axis_name(place): cut_dim(slots, group) for place, (group, _) in enumerate(cuts)}):
                return False
        return True


def grid_text(grid: Grid) -> str:
    """A grid as it is written on the command line: 8x16."""
    return "x".join(map(str, grid)) or "1"


def map_text(labels: Labels) -> str:
    """A map as muGraphs have it, without braces."""
    return ", ".join(f"{label}<->{REPLICA if dim is None else dim}" for label, dim in labels)


def _maps_of(graph: Graph, node: Node, body: Graph) -> Iterator[tuple[str, DimMap]]:
    """How a kernel cuts the program's inputs, by their names, and outputs."""
    for inner in body.nodes:
        operand = inner.get("operand")
        if isinstance(operand, int):
            source = graph.nodes[node.inputs[operand].node]
            if source.is_input:
                yield str(source["name"]), _named(_dims(inner, "imap"), inner.get("fmap") if body.loop > 1 else ())
    position = graph.nodes.index(node)
    for number, value in enumerate(body.outputs):
        if Value(position, number) in graph.outputs:
            yield OUTPUT, _named(_dims(body.nodes[value.node], "omap"), ())


def _obeys(wanted: Labels, has: DimMap) -> bool:
    """Whether a tensor is cut as wanted; dimensions that a kernel's grid does not have cut nothing."""
    return all(has[label] == dim for label, dim in wanted if label in has)


def _dims(node: Node, name: str) -> tuple[int | None, ...]:
    value = node.get(name)
    assert isinstance(value, tuple)
    return value


def _named(dims: tuple[int | None, ...], fmap: Any) -> DimMap:
    """The map of an iterator or a saver; `fmap` is () where there is no loop."""
    named = {axis_name(place): dim for place, dim in enumerate(dims)}
    return named if fmap == () else {**named, LOOP_NAME: fmap}


def _fmap(sketch: Sketch, step: Step) -> int | None:
    """The dimension of a load that the for-loop cuts."""
    assert step.leaf is not None
    if not step.in_loop or step.whole:
        return None
    return next((dim for dim, slot in enumerate(step.leaf.slots) if sketch.loop_axis in slot), None)


def _check_count(name: str, count: Any) -> None:
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise InvalidInput(f"{name} is a number of at least 1, or None for the engine's own limit, not {count!r}")


def _several(name: str, given: Any, form: Any) -> tuple[Any, ...]:
    try:
        found = tuple(dict.fromkeys(form(one) for one in given))
    except TypeError:
        raise InvalidInput(f"{name} is a list, not {given!r}") from None
    if not found:
        raise InvalidInput(f"{name} is empty: a space without {name} holds no generated kernel; leave it out for all of them")
    return found


def _grid(given: Any) -> Grid:
    grid = _without_ones((given,) if isinstance(given, int) else tuple(given))
    if not all(isinstance(count, int) and count > 1 for count in grid):
        raise InvalidInput(f"grid {given}: blocks along each dimension are whole numbers above 1, or 1 for a single block")
    if len(grid) > _GRID_DIMENSIONS or math.prod(grid) > MOST_BLOCKS:
        raise InvalidInput(f"grid {grid_text(grid)}: a grid has at most {_GRID_DIMENSIONS} dimensions and {MOST_BLOCKS} blocks")
    return grid


def _without_ones(grid: Grid) -> Grid:
    """A grid without dimensions of one block at its end."""
    while grid and grid[-1] == 1:
        grid = grid[:-1]
    return grid


def _loop(given: Any) -> int:
    if not isinstance(given, int) or given < 1:
        raise InvalidInput(f"for-loop {given!r}: a for-loop has 1 iteration (no loop) or more")
    return given


def _map(name: str, given: Any) -> Labels:
    entries = [entry.strip() for entry in str(given).strip().removeprefix("{").removesuffix("}").split(",")]
    found = [_ENTRY.fullmatch(entry) for entry in entries]
    dims = {match[1]: None if match[2] == REPLICA else int(match[2]) for match in found if match}
    of_output = name == OUTPUT and (LOOP_NAME in dims or None in dims.values())
    if not all(found) or len(dims) != len(entries) or of_output:
        what = "x<->1, of blocks alone" if name == OUTPUT else f"x<->{REPLICA}, y<->0, {LOOP_NAME}<->1"
        raise InvalidInput(f"maps: {name} is given {given!r}; write the dimension that grid and for-loop cut as in {what}")
    return tuple(dims.items())


def _shapes_text(program: Graph) -> str:
    inputs = (f"{node['name']} {list(node.output.shape)}" for node in program.inputs())
    return ", ".join((*inputs, *(f"output {list(tensor.shape)}" for tensor in program.output_tensors)))


EVERYTHING, ANY_SCHEDULE = SearchSpace(), Frame()
