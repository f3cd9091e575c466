"""Which proposals read weights of few bits packed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from contextlib import suppress

from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph
from mugraph.lower.thread_graphs import construct
from mugraph.targets.machine import machine_for

LOOKED_AT = 48
"""Proposals among which those are looked for, as predictions know nothing of them."""


def may_dequantize(program: Graph, constants: Collection[str]) -> bool:
    """Whether a program reads whole numbers that do not change between calls: inputs named among `constants`."""
    return any(node.output.dtype.is_whole and node["name"] in constants for node in program.inputs())


def dequantizing(proposals: Sequence[tuple[Graph, float]], target: str, constants: Collection[str]) -> list[int]:
    """The numbers of proposals that read whole numbers packed: the first of each kind of tile, then the second, and so on."""
    machine, kinds = machine_for(target), dict[object, list[int]]()
    for number, (graph, _) in enumerate(proposals):
        with suppress(MugraphError):
            marked = construct(graph).with_constants(constants)
            packings = [(marked.tensor(v).dtype, p) for each in machine.lower(marked).values() for v, p in each.packings.items()]
            if tiles := frozenset(packing.shape for dtype, packing in packings if dtype.is_whole):
                kinds.setdefault(tiles, []).append(number)
    return [number for turn in itertools.zip_longest(*kinds.values()) for number in turn if number is not None]
