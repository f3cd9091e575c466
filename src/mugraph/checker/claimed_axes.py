"""The axes of a certificate: both graphs at size 1 of each that is proved parallel again, in both.

Axes whose slices are added up keep their size, as do those of stretches that differ in size or of other rules than the checker's,
and those that are parallel only when such are cut: tests at full size need no proof.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from mugraph.checker.axis_digits import Digit
from mugraph.checker.inputs_read_twice import with_inputs_twice
from mugraph.checker.saved_files import Json, Rejected
from mugraph.checker.slice_axes import cut_axis
from mugraph.checker.zero_divisors import divides_by_zero


class Slices(NamedTuple):
    """Two graphs at size 1 of so many axes as are `cut`.

    `joint` are those before the first axis for which inputs are taken twice, as rows and as a whole, where there is one: graphs
    that are equal may differ in rows and a whole that are not of each other.
    """

    left: Json
    right: Json
    cut: int
    joint: Slices | None = None


def slices_of(left: Json, right: Json, axes: list[Json], rng: random.Random) -> Slices:
    """Both graphs at size 1 of the certificate's axes, each proved parallel in both.

    Inputs are not taken twice where one of the graphs divides by zero whatever they are: one row less itself is zero, and less
    another tensor's row is not. Raises Rejected for axes that the graphs do not have.
    """
    found, kept = Slices(left, right, 0), 0
    for axis in axes:
        if not isinstance(axis["inputs"], list) or len(axis["inputs"]) != len(_shapes(found.left)) + len(axis.get("apart", ())):
            raise Rejected("certificate.json: an axis does not say where it stands in each input")
        try:
            found = _cut(found, axis)
        except Rejected:
            if axis.get("apart"):  # what follows speaks of inputs that are taken twice
                break
            if not kept and found.joint is None and _is_narrow(axis):
                raise
            kept += 1
    joint = found.joint
    return joint if joint is not None and any(divides_by_zero(side, rng) for side in joint[:2]) else found


def _cut(found: Slices, axis: Json) -> Slices:
    """Slices cut along one more axis. Raises Rejected unless it is parallel in both graphs, in the same places of outputs."""
    left, right, cut, joint = found
    apart = list(axis.get("apart", ()))
    shapes = _shapes(left)
    digits = None if axis.get("sums") else _digits(axis, "input", [*shapes, *(shapes[number] for number in apart)])
    if digits is None:
        raise Rejected("certificate.json: an axis adds slices up, or has stretches that are no digit")
    if apart:
        left, right = _taken_twice(left, right, digits, axis)
        joint = joint or found
    (ours, places), (theirs, their_places) = cut_axis(left, digits), cut_axis(right, digits)
    if places != their_places:
        raise Rejected("certificate.json: an axis comes out in different dimensions of the two graphs' outputs")
    return Slices(ours, theirs, cut + 1, joint)


def _taken_twice(left: Json, right: Json, digits: list[Digit | None], axis: Json) -> tuple[Json, Json]:
    """Both graphs as they take the inputs of an axis' `apart` once more, behind all others and without the axis."""
    count, apart = len(_shapes(left)), list(axis["apart"])
    outputs = _digits(axis, "output", [left["nodes"][i]["outputs"][j]["shape"] for i, j in left["outputs"]])
    if len({*apart}) < len(apart) or any(digits[number] is None for number in apart) or digits[count:] != [None] * len(apart):
        raise Rejected("certificate.json: an axis takes inputs twice that do not have it, or more often")
    if outputs is None:
        raise Rejected("certificate.json: an axis has stretches in outputs that are no digit")
    ours, theirs = (with_inputs_twice(graph, digits[:count], outputs, apart) for graph in (left, right))
    return ours, theirs


def _is_narrow(axis: Json) -> bool:
    """Whether the checker's rules must carry an axis over, as its slices are at single positions."""
    widths = (*axis.get("input_widths", ()), *axis.get("output_widths", ()))
    return bool(axis.get("narrow", True)) and all(width == 1 for width in widths)


def _digits(axis: Json, side: str, shapes: list[list[int]]) -> list[Digit | None] | None:
    """The digit of a dimension of each input or output that numbers the slices of an axis; None where stretches are no digit."""
    widths = axis.get(f"{side}_widths") or [1] * len(shapes)
    found = list[Digit | None]()
    for dim, shape, width in zip(axis[f"{side}s"], shapes, widths, strict=True):
        stretches = width if isinstance(width, list) else [width]
        if dim is None:
            found.append(None)
            continue
        count, rest = divmod(shape[dim], sum(stretches))
        if len({*stretches}) != 1 or rest or stretches[0] < 1:
            return None
        found.append(Digit(dim, stretches[0], count))
    return found


def _shapes(graph: Json) -> list[list[int]]:
    return [node["attributes"]["shape"] for node in graph["nodes"] if node["op"] == "input"]
