"""Axes along which a graph does the same to every slice: proved again, operator by operator, and cut to size 1.

The theorem that makes one slice stand for all is in docs/theory.md ("Parallel axes").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mugraph.checker.form import check_shapes
from mugraph.checker.operators import OPERATORS
from mugraph.checker.saved_files import Json, Rejected

_INSIDE = -1
"""Instead of a dimension: one block, or one iteration of it, has one slice, so that nothing it does can mix slices."""


class AxisPlace(NamedTuple):
    """Where a tensor has the axis: a dimension (or _INSIDE), and for each level of bodies the grid dimensions that cut it.

    `parts` says for each level whether it is the part that one iteration of a for-loop over the axis reads.
    """

    dim: int
    cuts: tuple[tuple[int, ...], ...] = ()
    parts: tuple[bool, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether iterations of the innermost level have different parts."""
        return self.parts[-1:] == (True,)


def cut_axis(graph: Json, dims: Sequence[int | None]) -> tuple[Json, list[int | None]]:
    """A kernel graph at size 1 of the axis that is dimension dims[i] of input i, and the axis' dimension in each output.

    Raises Rejected, naming the operator, where slices along the axis are not treated alike.
    """
    inputs = [None if dim is None else AxisPlace(dim) for dim in dims]
    cut, places = _cut(graph, inputs)
    check_shapes(cut, "certificate.json: an axis is not parallel")
    return cut, [None if place is None else place.dim for place in places]


def _cut(graph: Json, operands: list[AxisPlace | None]) -> tuple[Json, list[AxisPlace | None]]:
    over, looped = _grid_over_axis(graph, operands), _loops_over_axis(graph, operands)
    places: dict[tuple[int, int], AxisPlace | None] = {}
    nodes = []
    remaining = iter(operands)
    for index, node in enumerate(graph["nodes"]):
        taken = dict(node)
        shapes = [graph["nodes"][i]["outputs"][j]["shape"] for i, j in node["inputs"]]
        reads = [places[i, j] for i, j in node["inputs"]]
        if "body" in node:
            taken["body"], results = _cut(node["body"], reads)
        elif node["op"] == "input":
            results = [next(remaining)]
        elif node["op"] == "input_iterator":
            results = [_iterated(node, operands[node["attributes"]["operand"]], over, looped)]
        elif node["op"] == "output_saver":
            results = [_saved(node, reads[0], shapes[0], over)]
        elif looped and node["op"] in ("accumulate", "accumulate_rescaled"):
            results = [_put_together(node, reads[0], shapes[0])]
        else:
            results = [_applied(node, reads, shapes)]
        taken["outputs"] = [_tensor(*pair) for pair in zip(node["outputs"], results, strict=True)]
        if node["op"] in ("input", "reshape"):
            taken["attributes"] = {**node["attributes"], "shape": taken["outputs"][0]["shape"]}
        places.update({(index, number): place for number, place in enumerate(results)})
        nodes.append(taken)
    which = "grid" if graph["grid"] else "block"
    counts = [1 if position in over else count for position, count in enumerate(graph[which])]
    loop = 1 if looped else graph["loop"]
    return {**graph, "nodes": nodes, which: counts, "loop": loop}, [places[i, j] for i, j in graph["outputs"]]


def _grid_over_axis(graph: Json, operands: list[AxisPlace | None]) -> set[int]:
    """The grid dimensions that cut the axis in some operand."""
    over = set()
    for node in graph["nodes"]:
        if node["op"] == "input_iterator":
            place = operands[node["attributes"]["operand"]]
            over |= set() if place is None else {*_mapped(node["attributes"]["imap"], place.dim)}
    return over


def _loops_over_axis(graph: Json, operands: list[AxisPlace | None]) -> bool:
    """Whether iterations of the for-loop read parts of the axis."""
    iterators = (node["attributes"] for node in graph["nodes"] if node["op"] == "input_iterator")
    return any(_same_dim(operands[read["operand"]], read["fmap"]) for read in iterators)


def _same_dim(place: AxisPlace | None, dim: int | None) -> bool:
    return place is not None and dim is not None and place.dim == dim


def _mapped(mapping: list[int | None], dim: int) -> tuple[int, ...]:
    return tuple(position for position, target in enumerate(mapping) if target == dim)


def _tensor(tensor: Json, place: AxisPlace | None) -> Json:
    if place is None or place.dim == _INSIDE:
        return tensor
    return {**tensor, "shape": [1 if dim == place.dim else size for dim, size in enumerate(tensor["shape"])]}


def _iterated(node: Json, place: AxisPlace | None, over: set[int], looped: bool) -> AxisPlace | None:
    imap, fmap = node["attributes"]["imap"], node["attributes"]["fmap"]
    cut = () if place is None else _mapped(imap, place.dim)
    if any(imap[position] is not None for position in over - {*cut}):
        raise _unequal(node, "a grid dimension cuts the axis here and another dimension there")
    partial = _same_dim(place, fmap)
    if looped and fmap is not None and not partial:
        raise _unequal(node, "the for-loop runs over the axis elsewhere, and over another dimension here")
    if place is None:
        return None
    parts = (*place.parts, partial)
    alone = place.dim == _INSIDE or node["outputs"][0]["shape"][place.dim] == 1
    return AxisPlace(_INSIDE if alone else place.dim, (*place.cuts, cut), parts)


def _put_together(node: Json, place: AxisPlace | None, tile: list[int]) -> AxisPlace | None:
    """After a for-loop over the axis: its parts side by side, or what is the same in every iteration."""
    combine = node["attributes"].get("combine")
    if place is not None and place.partial and combine == "concat":
        dim, parts = node["attributes"]["dim"], (*place.parts[:-1], False)
        if place.dim == dim or (place.dim == _INSIDE and tile[dim] == 1):
            return AxisPlace(dim, place.cuts, parts)
    if combine == "max" and not (place is not None and place.partial):
        return place
    raise _unequal(node, "the for-loop runs over the axis, and its parts are not put side by side")


def _saved(node: Json, place: AxisPlace | None, tile: list[int], over: set[int]) -> AxisPlace | None:
    """Blocks put their parts of the axis back into one dimension, in the order in which they were taken."""
    omap = node["attributes"]["omap"]
    if place is None:
        if over:
            raise _unequal(node, "a value without the axis is repeated along it")
        return None
    if place.partial:
        raise _unequal(node, "the for-loop runs over the axis, and its parts are not put together")
    cut = place.cuts[-1]
    if {*cut} != over:
        raise _unequal(node, "another part of the grid cuts the axis")
    targets = {omap[position] for position in cut} or {place.dim}
    dim = targets.pop()
    fits = dim == _INSIDE or (_mapped(omap, dim) == cut and (place.dim == dim or (place.dim == _INSIDE and tile[dim] == 1)))
    if targets or not fits:
        raise _unequal(node, "the blocks' parts of the axis are not put back where they were taken from")
    return AxisPlace(dim, place.cuts[:-1], place.parts[:-1])


def _applied(node: Json, reads: list[AxisPlace | None], shapes: list[list[int]]) -> AxisPlace | None:
    """Where the result of a pre-defined operator has the axis."""
    found: set[AxisPlace] = set()
    for number, place in enumerate(reads):
        if place is not None:
            dim = place.dim if place.dim == _INSIDE else _carried(node, shapes, number, place.dim)
            if dim is None:
                raise _unequal(node, "the axis is mixed or rearranged")
            found.add(place._replace(dim=dim))
    if not found:
        return None
    if len(found) > 1:
        raise _unequal(node, "operands have the axis in different places")
    (result,) = found
    for number, (place, shape) in enumerate(zip(reads, shapes, strict=True)):
        if place is None and result.dim != _INSIDE:
            beside = (dim for dim, size in enumerate(shape) if size > 1)
            if any(_carried(node, shapes, number, dim) == result.dim for dim in beside):
                raise _unequal(node, "an operand without the axis tells its slices apart")
    return result


def _carried(node: Json, shapes: list[list[int]], number: int, dim: int) -> int | None:
    """The dimension of the result along which dimension `dim` of operand `number` runs; None where it is mixed or split."""
    carried = OPERATORS[node["op"]].carried
    return None if carried is None else carried(node["attributes"], shapes, number, dim, node["outputs"][0]["shape"])


def _unequal(node: Json, why: Any) -> Rejected:
    return Rejected(f"certificate.json: an axis is not parallel: {node['op']}: {why}")
