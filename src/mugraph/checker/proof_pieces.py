"""A proof in pieces: pairs of tensors of two graphs, each equal because those below it are.

A certificate lists the pairs. Here both sides of each are cut out of the graphs: what a pair is computed of, where earlier pairs
are inputs. Graphs are equal if both sides of every pair are, for all values of their inputs, and the outputs are among the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mugraph.checker.saved_files import Json, Rejected

Value = tuple[int, int]
"""The number of a node, and of its output."""


class Piece(NamedTuple):
    """Both sides of a pair, as graphs with one output, and what the certificate has of it."""

    left: Json
    right: Json
    certificate: Json


def pieces_of(left: Json, right: Json, certificate: Json) -> Iterator[Piece]:
    """The pieces of a certificate's proof that two graphs are equal. Raises Rejected for what is no such proof."""
    listed = certificate["pieces"]
    pairs = [(_value(left, entry["left"]), _value(right, entry["right"])) for entry in listed]
    outputs = {((i, j), (k, n)) for (i, j), (k, n) in zip(left["outputs"], right["outputs"], strict=True)}
    if missing := outputs - {*pairs}:
        raise Rejected(f"certificate.json: no piece is about the output that node {min(missing)[0][0]} of program.json gives")
    wanted = _needed(left), _needed(right)
    free: list[bool] = []
    for number, (pair, entry) in enumerate(zip(pairs, listed, strict=True)):
        cuts = [[_earlier(pairs, number, member) for member in members] for members in entry["cuts"]]
        if not all(map(_is_joined, cuts)):
            raise Rejected(f"certificate.json: piece {number} takes tensors for equal of which no piece says so")
        if any(len(members) > 1 and not all(free[earlier] for earlier in members) for members in entry["cuts"]):
            raise Rejected(f"certificate.json: piece {number} takes tensors for equal that are so only where others have values")
        if pair[0][0] not in wanted[0] or pair[1][0] not in wanted[1]:
            raise Rejected(f"certificate.json: piece {number} is about a tensor that no output needs")
        free.append(_is_free(entry, free))
        ours, theirs = (
            _Side(graph, pair[side], [{cut[side] for cut in members} for members in cuts])
            for side, graph in enumerate((left, right))
        )
        read = sorted(ours.read | theirs.read)
        piece = Piece(ours.graph(read), theirs.graph(read), entry["certificate"])
        if _shapes(piece.left) != _shapes(piece.right) or _shape(left, pair[0]) != _shape(right, pair[1]):
            raise Rejected(f"certificate.json: piece {number} is about tensors of different shapes")
        yield piece


def _needed(graph: Json) -> set[int]:
    """The nodes that outputs are computed of."""
    found = {node for node, _ in graph["outputs"]}
    for index in reversed(range(len(graph["nodes"]))):
        if index in found:
            found |= {node for node, _ in graph["nodes"][index]["inputs"]}
    return found


def _value(graph: Json, listed: Sequence[int]) -> Value:
    node, output = listed
    if not (0 <= node < len(graph["nodes"]) and 0 <= output < len(graph["nodes"][node]["outputs"])):
        raise Rejected("certificate.json: a piece is about a tensor that is not there")
    return node, output


def _earlier(pairs: Sequence[tuple[Value, Value]], number: int, member: int) -> tuple[Value, Value]:
    if not 0 <= member < number:
        raise Rejected(f"certificate.json: piece {number} rests on what is not proved before it")
    return pairs[member]


def _is_joined(pairs: Sequence[tuple[Value, Value]]) -> bool:
    """Whether it follows from these pairs that all their tensors are equal."""
    joined: set[tuple[int, Value]] = set()
    waiting = list(pairs)
    while waiting:
        pair = next((pair for pair in waiting if not joined or {(0, pair[0]), (1, pair[1])} & joined), None)
        if pair is None:
            return False
        joined |= {(0, pair[0]), (1, pair[1])}
        waiting.remove(pair)
    return bool(pairs)


def _is_free(entry: Json, free: Sequence[bool]) -> bool:
    """Whether a piece, and those before it that it rests on, are tested with functions of which nothing is known."""
    difference = entry["certificate"].get("difference")
    alone = difference is None or (difference["radicand"] is None and difference["properties"] is False)
    return alone and all(free[earlier] for members in entry["cuts"] for earlier in members)


def _shape(graph: Json, value: Value) -> list[int]:
    shape: list[int] = graph["nodes"][value[0]]["outputs"][value[1]]["shape"]
    return shape


def _shapes(graph: Json) -> list[list[int]]:
    return [node["attributes"]["shape"] for node in graph["nodes"] if node["op"] == "input"]


class _Side:
    """What one tensor of a graph is computed of, above the cuts."""

    def __init__(self, graph: Json, goal: Value, cuts: Sequence[set[Value]]) -> None:
        self.whole, self.goal, self.cuts = graph, goal, cuts
        self.at = {value: number for number, members in enumerate(cuts) for value in members if value != goal}
        inputs = [index for index, node in enumerate(graph["nodes"]) if node["op"] == "input"]
        self.numbers = {index: number for number, index in enumerate(inputs)}
        self.inputs = inputs
        self.needed: set[int] = set()
        waiting = [goal]
        while waiting:
            value = waiting.pop()
            if value not in self.at and value[0] not in self.needed:
                self.needed.add(value[0])
                waiting += [(node, output) for node, output in graph["nodes"][value[0]]["inputs"]]
        self.read = {self.numbers[index] for index in self.needed if index in self.numbers}

    def graph(self, read: Sequence[int]) -> Json:
        """The graph of the tensor, which takes these inputs and then the cuts."""
        nodes = [self.whole["nodes"][self.inputs[number]] for number in read]
        moved: dict[Value, Value] = {(self.inputs[number], 0): (place, 0) for place, number in enumerate(read)}
        for number, members in enumerate(self.cuts):
            nodes.append(_input(f"cut {number}", self.whole, min(members)))
            moved |= {value: (len(nodes) - 1, 0) for value in members if value != self.goal}
        for index in sorted(self.needed - self.numbers.keys()):
            node = self.whole["nodes"][index]
            nodes.append({**node, "inputs": [list(moved[i, j]) for i, j in node["inputs"]]})
            for output in range(len(node["outputs"])):
                moved.setdefault((index, output), (len(nodes) - 1, output))
        return {**self.whole, "nodes": nodes, "outputs": [list(moved[self.goal])]}


def _input(name: str, graph: Json, value: Value) -> Json:
    tensor: Mapping[str, Json] = graph["nodes"][value[0]]["outputs"][value[1]]
    plain = {"shape": tensor["shape"], "dtype": tensor["dtype"]}
    attributes = {"name": name, "shape": tensor["shape"], "dtype": {"dtype": tensor["dtype"]}}
    return {"op": "input", "inputs": [], "outputs": [plain], "attributes": attributes}
