"""What a block of a muGraph loads, and how its products read it: what `mugraph.search.scheduling.loads` tells of sketches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mugraph.devices.products import Factor, Product, Streams, in_whole_copies, streams
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import VIEWS, Graph, Node
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import OPERATORS, Kind, is_contraction
from mugraph.search.scheduling.loads import LoadedTile, loaded_tile, threads_of
from mugraph.search.scheduling.space import Values


def loaded_tiles(body: Graph) -> list[LoadedTile]:
    """The tiles that a block loads, in the order of its iterators."""
    readings = _Readings(body)
    return [readings.tile(index) for index, node in enumerate(body.nodes) if node.is_iterator]


class _Reading(NamedTuple):
    """An operand of a node: a loaded tile, and which of its dimensions is the innermost one in device memory, if any is."""

    reader: int
    operand: int
    innermost: int | None


class _Readings:
    """Which nodes of a block read what it loads, as it is, through views, or carried out of the loop."""

    def __init__(self, body: Graph) -> None:
        self.body = body
        self.varies = self._varying()
        self.of = {index: list(self._of(index, self._innermost(index))) for index, n in enumerate(body.nodes) if n.is_iterator}
        self.threads = self._threads()
        self.factors = {(reading.reader, reading.operand): (index, reading) for index in self.of for reading in self.of[index]}

    def tile(self, index: int) -> LoadedTile:
        node, readings = self.body.nodes[index], self.of[index]
        products = [reading for reading in readings if is_contraction(self.body.nodes[reading.reader].op)]
        same = [reading for reading in readings if self._is_as_it_is(index, reading)]
        widest = max((self.body.nodes[reading.reader].output.dtype.bytes for reading in products), default=0)
        repeated = self.body.loop > 1 and any(self.varies[reading.reader] for reading in readings)
        return loaded_tile(
            node.output.bytes,
            self.body.loop if repeated else 1,
            in_whole_copies(self._row(index), node.output.dtype),
            [self._streams(reading) for reading in same],
            len(same) < len(readings),
            node.output.elements * widest if widest > node.output.dtype.bytes else 0,
            in_loop=repeated,
            moves=self.varies[index],
        )

    def _varying(self) -> list[bool]:
        """Which nodes make something else in every iteration."""
        inside, varying = loop_nodes(self.body), list[bool]()
        for index, node in enumerate(self.body.nodes):
            moves = node.is_iterator and node.get("fmap") is not None
            inputs = any(varying[value.node] for value in node.inputs)
            varying.append(self.body.loop > 1 and index in inside and (moves or inputs))
        return varying

    def _of(self, index: int, innermost: int | None) -> Iterator[_Reading]:
        """Readings of a node's result that is a loaded tile, whose dimension `innermost` is that of device memory."""
        for reader, node in enumerate(self.body.nodes):
            for operand, value in enumerate(node.inputs):
                if value.node != index:
                    continue
                # by name: the maximum of equal values is one of them
                if node.op in VIEWS or (node.op == "accumulate" and node["combine"] == "max" and not self.varies[index]):
                    yield from self._of(reader, self._through(node, self.body.tensor(value).shape, innermost))
                else:
                    yield _Reading(reader, operand, innermost)

    def _through(self, view: Node, shape: Sequence[int], dim: int | None) -> int | None:
        """Where dimension `dim` of a tensor is in a view of it; None where it is no dimension any more."""
        if dim is None:
            return None
        permutation = view.get("permutation")
        if isinstance(permutation, tuple):
            return permutation.index(dim)
        inner, seen = math.prod(shape[dim + 1 :]), view.output.shape
        return next((d for d in range(len(seen)) if seen[d] > 1 and math.prod(seen[d + 1 :]) == inner), None)

    def _innermost(self, index: int) -> int | None:
        """The innermost dimension of an iterator's device tensor that has several elements."""
        whole = device_shape(self.body, self.body.nodes[index], self.body.nodes[index].output.shape, self.body.loop)
        return next((dim for dim in reversed(range(len(whole))) if whole[dim] > 1), None)

    def _row(self, index: int) -> int:
        dim = self._innermost(index)
        return 1 if dim is None else self.body.nodes[index].output.shape[dim]

    def _streams(self, reading: _Reading) -> tuple[Streams, bool]:
        """How the product streams whose factor a tile is, and whether it is the left one."""
        node = self.body.nodes[reading.reader]
        pairs = len(node.inputs) // 2
        left, right = (reading.operand % pairs + side * pairs for side in (0, 1))
        factors = self._factor(reading.reader, left, -1), self._factor(reading.reader, right, -2)
        return streams(self._sizes(node, left), *factors, self.threads), reading.operand == left

    def _sizes(self, product: Node, left: int = 0) -> Product:
        *batch, rows, columns = product.output.shape
        depth = self.body.tensor(product.inputs[left]).shape[-1]
        return Product(math.prod(batch), rows, columns, depth, product.output.dtype)

    def _threads(self) -> Values:
        nodes = self.body.nodes
        products = [self._sizes(node, left) for node in nodes if is_contraction(node.op) for left in range(len(node.inputs) // 2)]
        saved = [self.body.tensor(node.inputs[0]).elements for node in nodes if crosses_levels(node) and not node.is_iterator]
        read = (nodes[i].output.elements for i, found in self.of.items() for r in found if not self._is_as_it_is(i, r))
        return threads_of(products, [*saved, *read])

    def _is_as_it_is(self, index: int, reading: _Reading) -> bool:
        """Whether a product multiplies a tile in its own type."""
        reader = self.body.nodes[reading.reader]
        return is_contraction(reader.op) and reader.output.dtype is self.body.nodes[index].output.dtype

    def _factor(self, product: int, operand: int, inner: int) -> Factor | None:
        """A factor whose k is dimension `inner`, from where it may be copied; None where it is not."""
        if (product, operand) not in self.factors:
            return None
        index, reading = self.factors[product, operand]
        node, rank = self.body.nodes[product], len(self.body.tensor(self.body.nodes[product].inputs[operand]).shape)
        if self.body.nodes[index].output.dtype is not node.output.dtype or (reading.innermost or 0) < rank - 2:
            return None
        return Factor(self._row(index), reading.innermost == rank + inner)


def crosses_levels(node: Node) -> bool:
    """Whether a node of a block graph moves a tile between it and device memory: an iterator or a saver."""
    row = OPERATORS.get(node.op)
    return row is not None and row.structure is Structure.BOUNDARY and row.kind is Kind.DATA


def device_shape(body: Graph, node: Node, tile: Sequence[int], times: int) -> tuple[int, ...]:
    """The shape of the tensor that blocks and iterations have a tile each of, of an iterator or a saver in `times` iterations."""
    shape = list(tile)
    cuts = zip(cut_dims(node, "imap" if node.is_iterator else "omap"), body.grid, strict=True)
    for dim, count in (*cuts, (node.get("fmap"), times)):
        if isinstance(dim, int):
            shape[dim] *= count
    return tuple(shape)


def cut_dims(node: Node, name: str) -> Sequence[int | None]:
    """The dimension that each grid dimension cuts, None where blocks share it: an imap or omap, by its name."""
    dims = node[name]
    assert isinstance(dims, tuple)
    return dims
