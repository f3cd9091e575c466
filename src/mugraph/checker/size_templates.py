"""Programs for every size: saved graphs in which a size may be the name of a dimension, and what they are at some sizes.

A template has the nodes and outputs of a kernel graph of pre-defined operators. A size in a shape, and how many elements are
added up or repeated, may be a name, and a constant may be a sum of `[coefficient, {name: exponent}]`, of powers of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from mugraph.checker.form import check_shapes, graph_of
from mugraph.checker.saved_files import Json, Rejected

Size = int | str
"""Of a dimension: a number, or the name of one whose size varies."""
_SIZES = ("size", "times")
_MOST_POWER = 16


def document_at(template: Json, sizes: Mapping[str, int]) -> Json:
    """The document of a graph that a template is at these sizes of its dimensions; it may be none, as nothing is checked."""
    nodes = [
        {
            **node,
            "outputs": [{**tensor, "shape": _shape_at(tensor["shape"], sizes)} for tensor in node["outputs"]],
            "attributes": {name: _attribute_at(name, value, sizes) for name, value in node["attributes"].items()},
        }
        for node in template["nodes"]
    ]
    kernels: Json = {"level": "kernel", "grid": [], "block": [], "loop": 1}
    return {"mugraph": 1, "graph": {**kernels, "nodes": nodes, "outputs": template["outputs"]}}


def program_at(template: Json, sizes: Mapping[str, int], name: str) -> Json:
    """The kernel graph that a template is at these sizes. Raises Rejected, with a name for it, for what is none."""
    graph = graph_of(document_at(template, sizes), name)
    check_shapes(graph, name)
    return graph


def terms_of(value: Json) -> list[tuple[Fraction, dict[str, int]]] | None:
    """The terms of a constant that depends on sizes; None of one that does not. Raises Rejected for other things."""
    if "terms" not in value:
        return None
    terms = value["terms"]
    if value.keys() != {"terms"} or not isinstance(terms, list) or not all(map(_is_term, terms)):
        raise Rejected("a constant is no sum of powers of sizes")
    return [(Fraction(coefficient), dict(powers)) for coefficient, powers in terms]


def _is_term(term: Any) -> bool:
    """Whether it is a coefficient in lowest terms, and whole powers of sizes."""
    if not isinstance(term, list) or len(term) != 2 or not isinstance(term[0], str) or not isinstance(term[1], dict):
        return False
    powers = term[1].values()
    return str(Fraction(term[0])) == term[0] and all(type(each) is int and 0 < abs(each) <= _MOST_POWER for each in powers)


def _shape_at(shape: list[Size], sizes: Mapping[str, int]) -> list[int]:
    return [_size_at(size, sizes) for size in shape]


def _size_at(size: Size, sizes: Mapping[str, int]) -> int:
    return sizes[size] if isinstance(size, str) else size


def _attribute_at(name: str, value: Any, sizes: Mapping[str, int]) -> Any:
    if name == "shape":
        return _shape_at(value, sizes)
    if name in _SIZES:
        return _size_at(value, sizes)
    terms = terms_of(value) if name == "value" else None
    if terms is None:
        return value
    powers = (
        number * math.prod((Fraction(sizes[each]) ** power for each, power in of.items()), start=Fraction(1))
        for number, of in terms
    )
    return {"exact": str(sum(powers, Fraction(0)))}
