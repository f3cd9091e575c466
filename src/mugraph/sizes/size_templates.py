"""Programs with names for sizes, found out from what a function's program is at a few sizes.

That a program is this at sizes beside those, nothing here says: `mugraph.sizes.cutoff_links` asks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.ir.editing import edited, without_dead_nodes
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_to_json
from mugraph.sizes.dims import Dim, Sizes

Template = dict[str, Any]
"""Nodes and outputs of a saved kernel graph, with names of dimensions for sizes, and sums of powers of them for constants."""

_ALONG = 9
"""Sizes of a dimension at which programs are looked at, beside one size of each other."""
_POWERS = [range(low, low + count) for count in range(1, _ALONG - 1) for low in range(0, -3, -1)]
"""Powers of a size that a constant is looked for among, the fewest first; more sizes than powers are always looked at."""
_EXPONENTS = range(-3, 4)


def without_shifts(graph: Graph) -> Graph:
    """A kernel graph in which exponents are not made less by a maximum. It is the same where a softmax is made of these, and
    may be another one elsewhere."""
    users: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        for value in node.inputs:
            users.setdefault(value.node, []).append(number)

    def shifts(number: int) -> bool:
        node = graph.nodes[number]
        if node.op != "sub" or graph.nodes[node.inputs[1].node].op != "max":
            return False
        whole = graph.tensor(node.inputs[0]).shape == node.output.shape
        return whole and all(graph.nodes[user].op == "exp" for user in users.get(number, ()))

    found = [number for number in range(len(graph.nodes)) if shifts(number)]
    return without_dead_nodes(edited(graph, dict.fromkeys(found, lambda site: site.operands[0]))) if found else graph


def sampled_sizes(dims: Sequence[Dim], avoided: Iterable[int]) -> list[Sizes]:
    """Sizes that tell which numbers of a program are those of which dimension: other ones than `avoided`, where there are."""
    fixed, choices = {*avoided}, list[list[int]]()
    for dim in dims:
        sizes = itertools.islice(itertools.chain(dim.sizes), 4 * _ALONG)
        ordered = sorted(sizes, key=lambda size: (size in fixed, size))
        choices.append(ordered[:_ALONG])
        fixed |= {*ordered[: _ALONG // 2]}
    base = [each[0] for each in choices]
    along = [(*base[:place], size, *base[place + 1 :]) for place, each in enumerate(choices) for size in each]
    across = [tuple(each[step % len(each)] for each in choices) for step in (1, 2)]
    return [*dict.fromkeys([*along, *across])]


def template_of(programs: Mapping[Sizes, Graph], dims: Sequence[Dim]) -> Template:
    """The program with names for sizes that programs at some sizes are; raises SizeMatters where they are not of one form.

    Where a size is the same number as another one, programs may have fewer nodes: these are not looked at.
    """
    names = {dim.name: place for place, dim in enumerate(dims) if len(dim.sizes) > 1}
    most = max(len(program.nodes) for program in programs.values())
    kept = {sizes: program for sizes, program in programs.items() if len(program.nodes) == most}
    points = [{name: sizes[place] for name, place in names.items()} for sizes in kept]
    graphs = [graph_to_json(program)["graph"] for program in kept.values()]
    return {key: _joint([graph[key] for graph in graphs], points, key) for key in ("nodes", "outputs")}  # type: ignore[index]


def document_of(template: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The saved graph that a template is at sizes."""
    kernels: dict[str, Any] = {"level": "kernel", "grid": [], "block": [], "loop": 1}
    return {"mugraph": 1, "graph": {**kernels, **_concrete(template, sizes, "")}}


def _concrete(value: Any, sizes: Mapping[str, int], key: str) -> Any:
    if isinstance(value, dict):
        if "terms" in value:
            return {"exact": str(_number_at(value["terms"], sizes))}
        return {name: _concrete(each, sizes, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_concrete(each, sizes, key) for each in value]
    return sizes[value] if isinstance(value, str) and key in _WITH_SIZES else value


_WITH_SIZES = ("shape", "size", "times")


def _number_at(terms: Sequence[Any], sizes: Mapping[str, int]) -> Fraction:
    products = (
        Fraction(number) * math.prod((Fraction(sizes[name]) ** power for name, power in powers.items()), start=Fraction(1))
        for number, powers in terms
    )
    return sum(products, Fraction(0))


# --- one form of several -----------------------------------------------------------------------------------------------


def _joint(values: Sequence[Any], points: Sequence[Mapping[str, int]], key: str) -> Any:
    """What several parts of saved graphs are at their sizes; raises SizeMatters where that is not known."""
    first = values[0]
    if all(each == first for each in values):
        return first
    if isinstance(first, dict) and all(isinstance(each, dict) and each.keys() == first.keys() for each in values):
        if first.keys() == {"exact"}:
            return {"terms": _terms([str(each["exact"]) for each in values], points)}
        return {name: _joint([each[name] for each in values], points, name) for name in first}
    if isinstance(first, list) and all(isinstance(each, list) and len(each) == len(first) for each in values):
        return [_joint(each, points, key) for each in zip(*values, strict=True)]
    if key in _WITH_SIZES and all(type(each) is int for each in values):
        for name in points[0]:
            if all(value == point[name] for value, point in zip(values, points, strict=True)):
                return name
    raise SizeMatters(f"its programs at different sizes are not written alike ({key})")


def _terms(texts: Sequence[str], points: Sequence[Mapping[str, int]]) -> list[Any]:
    """A constant as a sum of powers of sizes."""
    try:
        numbers = [Fraction(text) for text in texts]
    except ValueError:
        raise SizeMatters("a root of a size is a constant of its program") from None
    for powers in _candidates(numbers, points):
        rows = [[_power(point, each) for each in powers] for point in points]
        found = _solution(rows, numbers)
        if found is not None:
            return [[str(number), {**each}] for number, each in zip(found, powers, strict=True) if number]
    raise SizeMatters("a constant of its program is no sum of a few powers of a size")


def _candidates(numbers: Sequence[Fraction], points: Sequence[Mapping[str, int]]) -> Iterator[list[dict[str, int]]]:
    """Powers of sizes that a constant may be a sum of: one product of powers, or several powers of one size."""
    names = [*points[0]]
    for exponents in itertools.product(_EXPONENTS, repeat=len(names)):
        yield [{name: power for name, power in zip(names, exponents, strict=True) if power}]
    for name in names:
        along = len({point[name] for point in points})
        for powers in _POWERS:
            if len(powers) < along:
                yield [{name: power} if power else {} for power in powers]


def _power(point: Mapping[str, int], powers: Mapping[str, int]) -> Fraction:
    return math.prod((Fraction(point[name]) ** power for name, power in powers.items()), start=Fraction(1))


def _solution(rows: Sequence[Sequence[Fraction]], numbers: Sequence[Fraction]) -> list[Fraction] | None:
    """The only coefficients with which columns add up to numbers; None where there are none, or several."""
    left = [[*row, number] for row, number in zip(rows, numbers, strict=True)]
    width = len(rows[0])
    for column in range(width):
        place = next((index for index in range(column, len(left)) if left[index][column]), None)
        if place is None:
            return None
        left[column], left[place] = left[place], left[column]
        pivot = left[column][column]
        left[column] = [each / pivot for each in left[column]]
        for index, row in enumerate(left):
            if index != column and row[column]:
                left[index] = [mine - row[column] * its for mine, its in zip(row, left[column], strict=True)]
    return [row[-1] for row in left[:width]] if not any(row[-1] for row in left[width:]) else None
