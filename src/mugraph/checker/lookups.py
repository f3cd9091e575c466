"""Graphs that look tables up at integers, as graphs in which what is found there is an input.

Integers are known when kernels run, and not when they are proved. Two graphs that agree whatever is found agree with whatever a
table holds. So both get one input more for each table, integers and dimension that either looks up, and those inputs go that
nothing else reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mugraph.checker.saved_files import Json, Rejected

INTEGERS = ("int32", "int64")
NEGATIVE = ("refused", "wrapped")
_LOOKUP = "index_select"

Found = tuple[int, int, int, str]
"""Numbers of the inputs that are the table and the integers, the dimension, and what negative integers are."""


def with_inputs_for_lookups(left: Json, right: Json) -> tuple[Json, Json]:
    """Both graphs as they take what is looked up; they themselves where neither looks anything up.

    After the inputs that are left come those for lookups, in the order of their numbers. Raises Rejected where a table or
    integers are no input, and where integers are more than places.
    """
    graphs = (left, right)
    found = sorted({lookup for graph in graphs for _, lookup in _lookups(graph)})
    if not found:
        return graphs
    read = {number for graph in graphs for number in _read(graph)}
    replaced = {number for table, integers, _, _ in found for number in (table, integers)}
    count = sum(node["op"] == "input" for node in left["nodes"])
    kept = [number for number in range(count) if number in read or number not in replaced]
    changed = [_changed(graph, kept, found) for graph in graphs]
    return changed[0], changed[1]


def places_with_lookups(left: Json, right: Json, places: Sequence[int | None]) -> list[int | None]:
    """Where the inputs of `with_inputs_for_lookups` have the axis that is dimension `places[i]` of input i: what is looked up has
    it where the integers do. Raises Rejected where a table has it."""
    graphs = (left, right)
    found = sorted({lookup for graph in graphs for _, lookup in _lookups(graph)})
    read = {number for graph in graphs for number in _read(graph)}
    replaced = {number for table, integers, _, _ in found for number in (table, integers)}
    if any(places[table] is not None for table, _, _, _ in found):
        raise Rejected("something is looked up in a table that has the axis")
    kept = [place for number, place in enumerate(places) if number in read or number not in replaced]
    return kept + [None if (place := places[integers]) is None else dim + place for _, integers, dim, _ in found]


def _inputs(graph: Json) -> dict[int, int]:
    """The number of each node that is an input."""
    nodes = [index for index, node in enumerate(graph["nodes"]) if node["op"] == "input"]
    return {index: number for number, index in enumerate(nodes)}


def _lookups(graph: Json) -> Iterator[tuple[int, Found]]:
    numbers = _inputs(graph)
    for index, node in enumerate(graph["nodes"]):
        if node["op"] == _LOOKUP:
            (table, _), (integers, _) = node["inputs"]
            if table not in numbers or integers not in numbers:
                raise Rejected(f"operator {_LOOKUP} reads what is no input of the graph")
            attributes = node["attributes"]
            yield index, (numbers[table], numbers[integers], attributes["dim"], attributes["negative"])


def _read(graph: Json) -> set[int]:
    """Inputs that an operator reads which looks nothing up, or that are outputs."""
    numbers = _inputs(graph)
    values = [value for node in graph["nodes"] if node["op"] != _LOOKUP for value in node["inputs"]]
    return {numbers[index] for index, _ in (*values, *graph["outputs"]) if index in numbers}


def _changed(graph: Json, kept: Sequence[int], found: Sequence[Found]) -> Json:
    numbers, at = _inputs(graph), dict(_lookups(graph))
    tensors = [graph["nodes"][index]["outputs"][0] for index in numbers]
    nodes = [node for index, node in enumerate(graph["nodes"]) if numbers.get(index) in kept]
    for table, integers, dim, negative in found:
        shape, places = tensors[table]["shape"], tensors[integers]["shape"]
        tensor = {"shape": [*shape[:dim], *places, *shape[dim + 1 :]], "dtype": tensors[table]["dtype"]}
        attributes = {
            "name": f"{table}[{integers}] {dim} {negative}",
            "shape": tensor["shape"],
            "dtype": {"dtype": tensor["dtype"]},
        }
        nodes.append({"op": "input", "inputs": [], "outputs": [tensor], "attributes": attributes})
    moved: dict[int, int] = {}
    for index, node in enumerate(graph["nodes"]):
        if index in numbers:
            if numbers[index] in kept:
                moved[index] = kept.index(numbers[index])
        elif index in at:
            moved[index] = len(kept) + found.index(at[index])
        else:
            moved[index] = len(nodes)
            nodes.append({**node, "inputs": [[moved[i], j] for i, j in node["inputs"]]})
    return {**graph, "nodes": nodes, "outputs": [[moved[i], j] for i, j in graph["outputs"]]}
