"""Graphs that take some inputs a second time, as a whole, so that rows of self-attention are an axis of the first.

Row i of the result depends on row i of the input by a query, and on all of it by keys. Here that is asked from the results
backwards: of a result that is wanted slice by slice, an operand is wanted slice by slice if slices of it are those of the result,
and as a whole if not; what is wanted both ways is computed twice. A tensor that is wanted as a whole reads whole inputs. Whatever
is wanted how, the graph computes what it did where the second inputs are the first ones again. That slices are treated alike is
proved afterwards, as for any axis (docs/theory.md, "Inputs read twice").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mugraph.checker.axis_digits import Digit, parted
from mugraph.checker.saved_files import Json, Rejected
from mugraph.checker.slice_axes import INSIDE, moved_digit, put_back


class _Wanted(NamedTuple):
    """An output of a node, by slices along a digit, or as a whole (None)."""

    node: int
    output: int
    digit: Digit | None


def with_inputs_twice(graph: Json, digits: Sequence[Digit | None], outputs: Sequence[Digit | None], apart: Sequence[int]) -> Json:
    """A kernel graph that takes the inputs with the numbers `apart` once more behind all others, and gives what `graph` gives
    where these are the same.

    Input i has the axis in digits[i], and its second one nowhere; output j is wanted by slices along outputs[j]. Raises Rejected
    where that cannot be had.
    """
    nodes = graph["nodes"]
    inputs = [index for index, node in enumerate(nodes) if node["op"] == "input"]
    if any(
        digit is not None and not digit.is_of(_shape(graph, i, j))
        for (i, j), digit in zip(graph["outputs"], outputs, strict=True)
    ):
        raise Rejected("certificate.json: an axis is not parallel: outputs do not have it where it is said to be")
    wanted = [_Wanted(i, j, digit) for (i, j), digit in zip(graph["outputs"], outputs, strict=True)]
    copies = _Copies(graph)
    copies.nodes = [nodes[index] for index in inputs] + [_named_again(nodes[inputs[number]]) for number in apart]
    for number, index in enumerate(inputs):
        copies.made[_Wanted(index, 0, digits[number])] = (number, 0)
    for place, number in enumerate(apart, len(inputs)):
        copies.made[_Wanted(inputs[number], 0, None)] = (place, 0)
    copies.add(wanted)
    return {**graph, "nodes": copies.nodes, "outputs": [list(copies.made[each]) for each in wanted]}


def _named_again(node: Json) -> Json:
    attributes = node["attributes"]
    return {**node, "attributes": {**attributes, "name": f"{attributes['name']} as a whole"}}


def _shape(graph: Json, index: int, output: int) -> list[int]:
    shape: list[int] = graph["nodes"][index]["outputs"][output]["shape"]
    return shape


@dataclass
class _Copies:
    """The nodes of a graph as they are wanted, one for each way; in a body, `over` are the block numbers that number slices."""

    graph: Json
    over: dict[int, Digit] = field(default_factory=dict)
    nodes: list[Json] = field(default_factory=list)
    made: dict[_Wanted, tuple[int, int]] = field(default_factory=dict)
    """Where what is wanted stands among the nodes."""
    sources: list[tuple[int, Digit | None]] = field(default_factory=list)
    """What iterators of a body read: numbers of operands, and how they are wanted."""

    def add(self, wanted: Sequence[_Wanted]) -> None:
        """Copies of what is wanted, and of what that needs. Raises Rejected for inputs that are not there as they are wanted."""
        ways: dict[int, dict[_Wanted, None]] = {}
        for each in wanted:
            ways.setdefault(each.node, {})[each] = None
        copies: dict[_Wanted, tuple[Json, list[_Wanted]]] = {}
        for index in reversed(range(len(self.graph["nodes"]))):
            for each in ways.get(index, ()):
                if each not in self.made:
                    copies[each] = self.copy(each)
                    for operand in copies[each][1]:
                        ways.setdefault(operand.node, {})[operand] = None
        for index in range(len(self.graph["nodes"])):
            for each in ways.get(index, ()):
                if each in copies:
                    node, operands = copies[each]
                    self.made[each] = (len(self.nodes), each.output if len(node["outputs"]) > 1 else 0)
                    self.nodes.append({**node, "inputs": [list(self.made[operand]) for operand in operands]})

    def copy(self, each: _Wanted) -> tuple[Json, list[_Wanted]]:
        """A node as it is wanted, and what it wants of its operands."""
        node = self.graph["nodes"][each.node]
        if node["op"] == "input":
            raise Rejected("certificate.json: an axis is not parallel: an input is read in a way that it is not said to be")
        if node["op"] == "input_iterator":
            return self.iterator(node, each.digit), []
        if each.digit is None or each.digit == INSIDE:
            return node, [_Wanted(i, j, each.digit) for i, j in node["inputs"]]
        if "body" in node:
            return self.kernel(node, each.output, each.digit)
        shapes = [_shape(self.graph, i, j) for i, j in node["inputs"]]
        digits = (_of_operand(node, shapes, number, each.digit) for number in range(len(shapes)))
        return node, [_Wanted(i, j, digit) for (i, j), digit in zip(node["inputs"], digits, strict=True)]

    def iterator(self, node: Json, digit: Digit | None) -> Json:
        """An iterator that reads an operand of its own."""
        attributes, counts = node["attributes"], self.graph["grid"] or self.graph["block"]
        whole = None if digit is None else self.of_tiles(node, digit, counts)
        self.sources.append((attributes["operand"], whole))
        return {**node, "attributes": {**attributes, "operand": len(self.sources) - 1}}

    def of_tiles(self, node: Json, digit: Digit, counts: list[int]) -> Digit | None:
        """The digit of an operand whose tiles have this one, or are of one slice; None where no number of tiles is a slice's."""
        imap, fmap, shape = node["attributes"]["imap"], node["attributes"]["fmap"], node["outputs"][0]["shape"]
        dims = {imap[position] for position in self.over} - {None}
        if digit == INSIDE:
            if len(dims) != 1:
                return None
            (dim,) = dims
            digit = Digit(dim, 1, 1)
        size = shape[digit.dim] * (self.graph["loop"] if fmap == digit.dim else 1)
        return put_back(digit, size, imap, counts, self.over)

    def kernel(self, node: Json, output: int, digit: Digit) -> tuple[Json, list[_Wanted]]:
        """A kernel that gives one of its outputs, and what it wants of its operands, each iterator by itself."""
        body = node["body"]
        index, number = body["outputs"][output]
        saver = body["nodes"][index]
        counts, omap = body["grid"] or body["block"], saver["attributes"]["omap"]
        size, over = node["outputs"][output]["shape"][digit.dim], dict[int, Digit]()
        for position, count in enumerate(counts):
            if omap[position] == digit.dim:
                found = parted(digit, size, count)
                if found is None:
                    raise Rejected("certificate.json: an axis is not parallel: blocks write parts of several slices")
                size, (digit, of_number) = size // count, found
                if of_number is not None:
                    over[position] = of_number
        inside = _Copies(body, over)
        ((i, j),) = saver["inputs"]
        read = _Wanted(i, j, INSIDE if digit.count == 1 else digit)
        inside.add([read])
        inside.nodes.append({**saver, "inputs": [list(inside.made[read])]})
        made = {**body, "nodes": inside.nodes, "outputs": [[len(inside.nodes) - 1, number]]}
        operands = [_Wanted(i, j, how) for operand, how in inside.sources for i, j in [node["inputs"][operand]]]
        return {**node, "body": made, "outputs": [node["outputs"][output]]}, operands


def _of_operand(node: Json, shapes: list[list[int]], number: int, digit: Digit) -> Digit | None:
    """The digit of an operand whose slices are those of a result; None where it has none."""
    candidates = (each for each in _candidates(node, shapes[number], digit) if each.is_of(shapes[number]))
    return next((each for each in candidates if moved_digit(node, shapes, number, each) == digit), None)


def _candidates(node: Json, shape: Sequence[int], digit: Digit) -> Iterator[Digit]:
    """Digits of as many slices: as many neighbours in each, as many groups of them, or as far apart in memory."""
    stride = digit.inner * math.prod(node["outputs"][0]["shape"][digit.dim + 1 :])
    group = node["attributes"].get("size", 1)
    for dim, inner in itertools.product(range(len(shape)), (digit.inner, digit.inner * group)):
        yield replace(digit, dim=dim, inner=inner)
    for dim in range(len(shape)):
        inner, rest = divmod(stride, math.prod(shape[dim + 1 :]))
        if inner and not rest:
            yield replace(digit, dim=dim, inner=inner)
