"""Axes along which a graph does the same to every slice: proved again, operator by operator, and cut to size 1.

The theorem that makes one slice stand for all is in docs/theory.md ("Parallel axes"). In a tensor an axis is a digit of a
dimension (`mugraph.checker.axis_digits`): the whole dimension, or what is merged with other dimensions in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mugraph.checker.axis_digits import Digit, parted, stacked
from mugraph.checker.form import check_shapes
from mugraph.checker.operators import OPERATORS
from mugraph.checker.saved_files import Json, Rejected

INSIDE = Digit(-1, 1, 1)
"""Instead of a digit: one block, or one iteration of it, has one slice, so that nothing it does can mix slices."""
_LOOP = -1
"""Instead of the position of a grid dimension."""


class AxisPlace(NamedTuple):
    """Where a tensor has the axis: a digit (or INSIDE), and for each level of bodies the grid dimensions that cut it.

    `parts` says for each level whether it is the part that one iteration of a for-loop over the axis reads.
    """

    digit: Digit
    cuts: tuple[tuple[int, ...], ...] = ()
    parts: tuple[bool, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether iterations of the innermost level have different parts."""
        return self.parts[-1:] == (True,)


def cut_axis(graph: Json, digits: Sequence[Digit | None]) -> tuple[Json, list[Digit | None]]:
    """A kernel graph at size 1 of the axis that is digit digits[i] of input i, and the axis' digit in each output.

    Raises Rejected, naming the operator, where slices along the axis are not treated alike, and for digits that inputs do not
    have.
    """
    shapes = [node["attributes"]["shape"] for node in graph["nodes"] if node["op"] == "input"]
    if not all(digit is None or digit.is_of(shape) for digit, shape in zip(digits, shapes, strict=True)):
        raise Rejected("certificate.json: an axis is not parallel: inputs do not have it where it is said to be")
    if len({digit.count for digit in digits if digit is not None}) > 1:
        raise Rejected("certificate.json: an axis is not parallel: inputs have different numbers of slices")
    cut, places = _cut(graph, [None if digit is None else AxisPlace(digit) for digit in digits])
    check_shapes(cut, "certificate.json: an axis is not parallel")
    return cut, [None if place is None else place.digit for place in places]


def _cut(graph: Json, operands: list[AxisPlace | None]) -> tuple[Json, list[AxisPlace | None]]:
    over = _numbers_over_axis(graph, operands)
    looped = over.pop(_LOOP, None) is not None
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
            results = [_iterated(graph, node, operands[node["attributes"]["operand"]], over, looped)]
        elif node["op"] == "output_saver":
            results = [_saved(graph, node, reads[0], shapes[0], over)]
        elif looped and node["op"] in ("accumulate", "accumulate_rescaled"):
            results = [_put_together(graph, node, reads[0], shapes[0])]
        else:
            results = [_applied(node, reads, shapes)]
        taken["outputs"] = [_tensor(*pair) for pair in zip(node["outputs"], results, strict=True)]
        taken["attributes"] = _attributes(node, taken["outputs"], results[0])
        places.update({(index, number): place for number, place in enumerate(results)})
        nodes.append(taken)
    which = "grid" if graph["grid"] else "block"
    counts = [count // over[position].count if position in over else count for position, count in enumerate(graph[which])]
    loop = 1 if looped else graph["loop"]
    return {**graph, "nodes": nodes, which: counts, "loop": loop}, [places[i, j] for i, j in graph["outputs"]]


def _tensor(tensor: Json, place: AxisPlace | None) -> Json:
    if place is None or place.digit == INSIDE:
        return tensor
    shape, digit = tensor["shape"], place.digit
    return {**tensor, "shape": [size // digit.count if dim == digit.dim else size for dim, size in enumerate(shape)]}


def _attributes(node: Json, outputs: list[Json], place: AxisPlace | None) -> Json:
    """What an operator says of shapes, of one slice."""
    attributes: Json = node["attributes"]
    if node["op"] in ("input", "reshape"):
        return {**attributes, "shape": outputs[0]["shape"]}
    if node["op"] == "slice" and place is not None and place.digit.dim == attributes["dim"]:
        count = place.digit.count
        return {**attributes, "start": attributes["start"] // count, "size": attributes["size"] // count}
    return attributes


def _numbers_over_axis(graph: Json, operands: list[AxisPlace | None]) -> dict[int, Digit]:
    """The grid dimensions that cut the axis in some operand, and _LOOP where the for-loop does: each with the digit of its
    numbers that is the number of a slice."""
    over = dict[int, Digit]()
    for node in graph["nodes"]:
        place = operands[node["attributes"]["operand"]] if node["op"] == "input_iterator" else None
        if place is not None:
            for position, digit in _tile(graph, node, place.digit)[1].items():
                if over.setdefault(position, digit) != digit:
                    raise _unequal(node, "blocks or iterations have other slices here than there")
    return over


def _tile(graph: Json, node: Json, digit: Digit) -> tuple[Digit, dict[int, Digit]]:
    """The digit in the tiles that an iterator reads, and by grid dimension and _LOOP those of the numbers of tiles."""
    attributes, counts = node["attributes"], graph["grid"] or graph["block"]
    cuts = [(position, counts[position]) for position, dim in enumerate(attributes["imap"]) if dim == digit.dim]
    if attributes["fmap"] == digit.dim:
        cuts.append((_LOOP, graph["loop"]))
    size = math.prod((count for _, count in cuts), start=node["outputs"][0]["shape"][digit.dim] if cuts else 1)
    numbers = dict[int, Digit]()
    for position, count in cuts:
        found = parted(digit, size, count)
        if found is None:
            raise _unequal(node, "a block or an iteration has parts of several slices")
        size, (digit, number) = size // count, found
        if number is not None:
            numbers[position] = number
    if _LOOP in numbers and numbers[_LOOP] != Digit(0, 1, graph["loop"]):
        raise _unequal(node, "the for-loop runs over the axis and something else")
    return digit, numbers


def _iterated(graph: Json, node: Json, place: AxisPlace | None, over: dict[int, Digit], looped: bool) -> AxisPlace | None:
    imap, fmap = node["attributes"]["imap"], node["attributes"]["fmap"]
    digit, numbers = (INSIDE, {}) if place is None else _tile(graph, node, place.digit)
    cut = tuple(position for position in range(len(imap)) if position in numbers)
    if any(imap[position] is not None for position in over.keys() - {*cut}):
        raise _unequal(node, "a grid dimension cuts the axis here and another dimension there")
    partial = _LOOP in numbers
    if looped and fmap is not None and not partial:
        raise _unequal(node, "the for-loop runs over the axis elsewhere, and over another dimension here")
    if place is None:
        return None
    return AxisPlace(INSIDE if digit.count == 1 else digit, (*place.cuts, cut), (*place.parts, partial))


def _put_together(graph: Json, node: Json, place: AxisPlace | None, tile: list[int]) -> AxisPlace | None:
    """After a for-loop over the axis: its parts side by side, or what is the same in every iteration."""
    combine = node["attributes"].get("combine")
    if place is not None and place.partial and combine == "concat":
        dim = node["attributes"]["dim"]
        if place.digit in (INSIDE, replace(place.digit, dim=dim)):
            digit = stacked(replace(place.digit, dim=dim), tile[dim], Digit(0, 1, graph["loop"]))
            if digit is not None:
                return AxisPlace(digit, place.cuts, (*place.parts[:-1], False))
    if combine == "max" and not (place is not None and place.partial):
        return place
    raise _unequal(node, "the for-loop runs over the axis, and its parts are not put side by side")


def _saved(graph: Json, node: Json, place: AxisPlace | None, tile: list[int], over: dict[int, Digit]) -> AxisPlace | None:
    """Blocks put their parts of the axis back into one dimension, in the order in which they were taken."""
    omap, counts = node["attributes"]["omap"], graph["grid"] or graph["block"]
    if place is None:
        if over:
            raise _unequal(node, "a value without the axis is repeated along it")
        return None
    if place.partial:
        raise _unequal(node, "the for-loop runs over the axis, and its parts are not put together")
    if {*place.cuts[-1]} != over.keys():
        raise _unequal(node, "another part of the grid cuts the axis")
    digit: Digit | None = place.digit
    if over:
        dims = {omap[position] for position in over} | ({place.digit.dim} - {INSIDE.dim})
        dim = dims.pop()
        digit = None if dims or dim is None else put_back(replace(place.digit, dim=dim), tile[dim], omap, counts, over)
    if digit is None:
        raise _unequal(node, "the blocks' parts of the axis are not put back where they were taken from")
    return AxisPlace(digit, place.cuts[:-1], place.parts[:-1])


def put_back(digit: Digit, size: int, omap: list[int | None], counts: list[int], over: dict[int, Digit]) -> Digit | None:
    """The digit of a dimension that is put together of tiles of `size` positions, the last grid dimension being the fastest."""
    whole: Digit | None = digit
    for position in reversed(range(len(omap))):
        if omap[position] == digit.dim:
            if position in over and whole is not None:
                whole = stacked(whole, size, over[position])
            size *= counts[position]
    return whole


def _applied(node: Json, reads: list[AxisPlace | None], shapes: list[list[int]]) -> AxisPlace | None:
    """Where the result of a pre-defined operator has the axis."""
    found: set[AxisPlace] = set()
    for number, place in enumerate(reads):
        if place is not None:
            digit = place.digit if place.digit == INSIDE else moved_digit(node, shapes, number, place.digit)
            if digit is None:
                raise _unequal(node, "the axis is mixed or rearranged")
            found.add(place._replace(digit=digit))
    if not found:
        return None
    if len(found) > 1:
        raise _unequal(node, "operands have the axis in different places")
    (result,) = found
    if result.digit != INSIDE:
        for number, (place, shape) in enumerate(zip(reads, shapes, strict=True)):
            if place is None and _tells_slices_apart(node, shapes, number, shape, result.digit):
                raise _unequal(node, "an operand without the axis tells its slices apart")
    return result


def _tells_slices_apart(node: Json, shapes: list[list[int]], number: int, shape: list[int], digit: Digit) -> bool:
    """Whether an operand without the axis has several positions along it, or stands beside it."""
    if OPERATORS[node["op"]].variadic and node["attributes"]["dim"] == digit.dim:
        return True
    beside = (dim for dim, size in enumerate(shape) if size > 1)
    return any(_carried(node, shapes, number, dim) == digit.dim for dim in beside)


def moved_digit(node: Json, shapes: list[list[int]], number: int, digit: Digit) -> Digit | None:
    """The digit of the result that has the slices of an operand's; None where they are mixed or split."""
    rule = OPERATORS[node["op"]].digits
    if rule is not None:
        return rule(node["attributes"], shapes, number, digit, node["outputs"][0]["shape"])
    dim = _carried(node, shapes, number, digit.dim)
    return None if dim is None else replace(digit, dim=dim)


def _carried(node: Json, shapes: list[list[int]], number: int, dim: int) -> int | None:
    """The dimension of the result along which dimension `dim` of operand `number` runs; None where it is mixed or split."""
    carried = OPERATORS[node["op"]].carried
    return None if carried is None else carried(node["attributes"], shapes, number, dim, node["outputs"][0]["shape"])


def _unequal(node: Json, why: Any) -> Rejected:
    return Rejected(f"certificate.json: an axis is not parallel: {node['op']}: {why}")
