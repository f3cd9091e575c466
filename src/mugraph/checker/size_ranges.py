"""Saved ranges of sizes: whether their programs, and the muGraphs for them, are one and the same slice by slice.

Then the results at all sizes are slices of those of the graphs that are saved, for every function that is this program of each
slice (docs/theory.md, "Any size from slices"). That a function is one, nothing in a folder can say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mugraph.checker.axis_digits import Digit
from mugraph.checker.constants import check_constants
from mugraph.checker.form import check_shapes, graph_of
from mugraph.checker.lookups import places_with_lookups, with_inputs_for_lookups
from mugraph.checker.saved_files import Json, Rejected, Undecided, read, read_range, sizes_said
from mugraph.checker.slice_axes import cut_axis


def check_sizes(folder: Path) -> tuple[int, ...]:
    """The sizes of a saved range, of which each program is cut to one slice again, and each muGraph along the same dimensions.

    Raises Rejected, naming what is wrong, and Undecided where the slices are not one graph as they are written.
    """
    try:
        document, places = read_range(folder, "sizes")
        dims = document["inputs"]
        sizes = sizes_said(document["dimension"])
        if not all(size in sizes for size in places):
            raise Rejected("sizes.json: a size of the table is outside of its range")
        of_rows = "rows" in document
        if of_rows:
            _check_rows(document["rows"], dims, sizes)
        slices = {size: slice_of(place, dims, size, of_rows) for size, place in places.items()}
        if of_rows:
            _check_results(document["rows"], document["structure"], slices[max(slices)])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"the saved range is malformed ({type(error).__name__}: {error})") from None
    compare_slices(slices)
    return tuple(slices)


def _check_rows(rows: Json, dims: list[int | None], sizes: range) -> None:
    """Raise Rejected unless slices can be the rows of two dimensions, of which the first stands before the axis."""
    first, second = sizes_said(rows["first"]), sizes_said(rows["second"])
    ends = first[0] * second[0], first[-1] * second[-1], first.step * second.step
    if ends != (sizes[0], sizes[-1], sizes.step):
        raise Rejected("sizes.json: the ranges of the two dimensions do not make up that of their rows")
    if 0 in dims or not all(place is None or (isinstance(place, int) and place >= 0) for place in rows["results"]):
        raise Rejected("sizes.json: rows have two dimensions, and there is one")


Slice = tuple[Json, list[tuple[int, int] | None]]
"""A program at size 1 of an axis, and the dimensions of its outputs that have it, with how many neighbours are of one slice."""


def slice_of(folder: Path, dims: list[int | None], size: int, of_rows: bool = False, with_graph: bool = True) -> Slice:
    """The program of a result at size 1 of the axis, which its muGraph has in the same places of outputs; that is not
    looked at without `with_graph`. Of rows there is one of the dimension before it. `dims` may leave out constants, which are
    last. Raises Rejected and Undecided."""
    saved, place = read(folder), f"{folder.parent.name}/{folder.name}"
    graphs = []
    for name in ("program.json", "graph.json"):
        graph = graph_of(saved.document(name), name)
        check_shapes(graph, name)
        graphs.append(graph)
    program, graph = graphs
    inputs = [node["outputs"][0]["shape"] for node in program["nodes"] if node["op"] == "input"]
    if len(dims) + check_constants(saved, program) == len(inputs):
        dims = [*dims, *[None] * (len(inputs) - len(dims))]
    if len(inputs) != len(dims) or not all(
        dim is None or _is_size(shape, dim, size) for shape, dim in zip(inputs, dims, strict=True)
    ):
        raise Rejected(f"{place}: its program does not take inputs of that size where its range says")
    if of_rows and any(dim is not None and shape[dim - 1] != 1 for shape, dim in zip(inputs, dims, strict=True)):
        raise Rejected(f"{place}: its program has several of the dimension before its rows")
    if not with_graph:
        return _without_size(*cut_axis(program, _whole(dims, size)))
    places = _whole(places_with_lookups(program, graph, dims), size)
    (ours, outputs), (_, theirs) = (cut_axis(each, places) for each in with_inputs_for_lookups(program, graph))
    if outputs != theirs:
        raise Rejected(f"{place}: the muGraph has the axis in other dimensions of its outputs than the program")
    return _without_size(ours, outputs)


def _is_size(shape: list[int], dim: object, size: int) -> bool:
    """Whether a dimension, which is counted from the first, has that size."""
    return type(dim) is int and 0 <= dim < len(shape) and shape[dim] == size


def _whole(dims: list[int | None], size: int) -> list[Digit | None]:
    """Dimensions that are an axis of so many slices."""
    return [None if dim is None else Digit(dim, 1, size) for dim in dims]


def _without_size(program: Json, digits: list[Digit | None]) -> Slice:
    return program, [None if digit is None else (digit.dim, digit.inner) for digit in digits]


def _check_results(rows: Json, structure: Json, one: Slice) -> None:
    """Raise Rejected unless results are said to have two dimensions just where a program's outputs have 1 before the axis."""
    program, places = one
    shapes = [program["nodes"][i]["outputs"][j]["shape"] for i, j in program["outputs"]]
    dims = [None if place is None else place[0] for place in places]
    wanted = [dim - 1 if dim and shape[dim - 1] == 1 else None for dim, shape in zip(dims, shapes, strict=True)]
    if rows["results"] != [wanted[number] for number in _outputs_in(structure)]:
        raise Rejected("sizes.json: results have rows in other places than it says")


def _outputs_in(structure: Json) -> list[int]:
    """The outputs in what a function returns, in order."""
    if "tuple" in structure or "list" in structure:
        items = structure["tuple"] if "tuple" in structure else structure["list"]
        return [number for item in items for number in _outputs_in(item)]
    if "dict" in structure:
        return [number for item in structure["dict"].values() for number in _outputs_in(item)]
    return [structure[kind] for kind in ("output", "copy") if kind in structure]


def compare_slices(slices: Mapping[int, Slice]) -> None:
    """Raise Undecided unless all sizes have one program of a slice."""
    largest = max(slices)
    for size, (program, outputs) in slices.items():
        ours, others = slices[largest]
        if (program, outputs) != (ours, others) and not (size == 1 and program == ours):
            raise Undecided(f"the programs of a slice at sizes {size} and {largest} are not written alike, and are not compared")
