"""What a block graph does, in numbers that no device is needed for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mugraph.ir import Graph
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import Node
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.ops import OPERATORS, flops_of

_PRODUCTS = frozenset({"matmul", "concat_matmul"})


class Effort(NamedTuple):
    """What all blocks of a kernel do; what no iteration changes is done once, as kernels are lowered.

    `arithmetic` are elementwise operations and additions, and `with_products` these and the multiplications of matrix
    products: a product is no slower than its multiplications one by one. `elements` are those of all tensors of a block, which
    the paper's memory check adds up (an operand brought past the loop is one tensor), and `peak` the bytes of those that are live
    together.
    """

    read: int
    arithmetic: int
    with_products: int
    iterations: int
    elements: int
    peak: int

    @classmethod
    def of(cls, body: Graph) -> Effort:
        """The effort of a kernel with this block graph."""
        inside, varies = loop_nodes(body), list[bool]()
        read = arithmetic = products = elements = 0
        for index, node in enumerate(body.nodes):
            repeated = node.get("fmap") is not None or any(varies[value.node] for value in node.inputs)
            varies.append(repeated and index in inside)
            times = body.loop if varies[-1] or (repeated and node.op == "accumulate") else 1
            carried = node.op == "accumulate" and not repeated and node["combine"] == "max"
            elements += 0 if carried or node.op in ("constant", "output_saver") else node.output.elements
            if node.op == "input_iterator":
                read += times * node.output.elements
            elif node.op in _PRODUCTS:
                products += times * _operations(body, node) // 2
            elif node.op in OPERATORS and node.inputs:
                arithmetic += times * _operations(body, node)
        blocks = math.prod(body.grid)
        with_products = arithmetic + products
        return cls(blocks * read, blocks * arithmetic, blocks * with_products, body.loop, elements, peak_bytes(body))

    def within(self, other: Effort) -> bool:
        """Whether it is more than another in nothing."""
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))


def least(efforts: Sequence[Effort]) -> list[Effort]:
    """Efforts of which none is within another."""
    found: list[Effort] = []
    for effort in sorted(set(efforts)):
        if not any(known.within(effort) for known in found):
            found.append(effort)
    return found


def _operations(body: Graph, node: Node) -> int:
    """Additions and multiplications of one operator in one iteration."""
    return flops_of(body, [node])
