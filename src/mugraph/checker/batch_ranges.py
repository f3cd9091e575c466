"""Saved kernels for a batch and a length: whether the masked programs of all batches are one program of a sample.

Each batch is a folder of capacities, which `mugraph.checker.capacity_ranges` looks at. Its programs, and the muGraphs for them,
are cut to one sample, and those for one capacity must be the same (docs/theory.md, "A batch beside a length"). That a function is
these programs, and does the same to every sample at other batches, nothing in a folder can say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mugraph.checker.capacity_ranges import check_capacities
from mugraph.checker.saved_files import Json, Rejected, read_range, sizes_said
from mugraph.checker.size_ranges import Slice, compare_slices, slice_of


def check_batches(folder: Path) -> tuple[int, ...]:
    """The batches of a saved range, whose programs are cut to one sample again. Raises Rejected, naming what is wrong, and
    Undecided where samples are not one graph as they are written."""
    try:
        document, places = read_range(folder, "batches")
        sizes = sizes_said(document["dimension"])
        if not (min(places) <= sizes[0] and max(places) <= sizes[-1] and all(place % sizes.step == 0 for place in places)):
            raise Rejected("batches.json: no kernels run its smallest batch, or some are for another one than declared")
        lengths, by_capacity = list[Any](), dict[int, dict[int, Slice]]()
        for size, place in places.items():
            check_capacities(place)
            said, programs = read_range(place, "capacities")
            lengths.append([said["dimension"], said["inputs"], said["slots"], said["counts"], said["outputs"], said["arguments"]])
            for capacity, program in programs.items():
                dims = _dims(document, said)
                cut = slice_of(program, dims, size, with_graph=size > 1)
                if _whole_dims(cut, program.name) != document["outputs"]:
                    raise Rejected(f"{program.name}: its outputs have the batch elsewhere than batches.json says")
                by_capacity.setdefault(capacity, {})[size] = cut
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"the saved range is malformed ({type(error).__name__}: {error})") from None
    if any(other != lengths[0] for other in lengths):
        raise Rejected("batches.json: its batches have other lengths, or are called differently")
    if not any(slices.keys() == places.keys() and capacity >= lengths[0][0]["high"] for capacity, slices in by_capacity.items()):
        raise Rejected("batches.json: no capacity of all batches holds all of the lengths")
    for slices in by_capacity.values():
        compare_slices(slices)
    return tuple(places)


def _whole_dims(cut: Slice, name: str) -> list[int | None]:
    """The dimensions of outputs that are the batch. Raises Rejected for one that is merged with others."""
    program, places = cut
    shapes = [program["nodes"][i]["outputs"][j]["shape"] for i, j in program["outputs"]]
    if any(place is not None and shape[place[0]] != 1 for shape, place in zip(shapes, places, strict=True)):
        raise Rejected(f"{name}: an output has the batch merged with another dimension")
    return [None if place is None else place[0] for place in places]


def _dims(document: Json, said: Json) -> list[int | None]:
    """For each input of a program but its constants, its dimension of the batch."""
    dims = [*document["inputs"]]
    return [dims[number] if number < len(dims) else None for number in said["arguments"]]
