"""The ablation of the paper's Table 4: seconds of a search for RMSNorm against the limit of block operators.

Algorithm 1 with all its parts, on one process, and without abstract expressions, as in the paper; without the bounds that the
paper does not have; and the closure engine, in the same space. A cell over its time limit says so, with the part of its work
items that were finished. Larger limits of such a column are left out, as their searches contain it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mugraph.devices import Device, device_for
from mugraph.errors import BudgetExceeded, InvalidInput
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.search import Options, SearchSpace, search
from mugraph.search.algorithm1 import EnumerationOptions, enumerate_graphs
from mugraph.search.structures import KNOWN

PAPER_SECONDS = {
    5: ("11", "58", "768"),
    6: ("16", "93", "19934"),
    7: ("22", "150", "> 36000"),
    8: ("24", "152", "> 36000"),
    9: ("26", "166", "> 36000"),
    10: ("26", "166", "> 36000"),
    11: ("28", "183", "> 36000"),
}
"""The paper's cells for each limit: full, one process, without abstract expressions (another machine, more threads)."""

FIGURE = (16, 1024, 4096)
"""Rows, hidden size and columns of the RMSNorm in the paper's figure 5."""

GRIDS, LOOPS = ((16,), (32,), (64,), (128,), (256,)), (1, 4, 8, 16, 32, 64)
"""Grids and for-loops around those of the figure, which has 128 blocks of 16 iterations. The paper does not list its own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One search: tensors or prefixes of graphs visited, and verified graphs, whatever their schedules; `exhausted` unless the
    time limit ended it. `cpu_seconds` are those of all its processes.

    `items` are the independent parts of its work: the first kernel operators of Algorithm 1, the contexts of the closures.
    """

    seconds: float
    states: int
    verified: int
    exhausted: bool
    items: int
    items_finished: int
    cpu_seconds: float = math.nan

    def __str__(self) -> str:
        figures = f"{self.seconds:.2f} s ({self.cpu_seconds:.1f} CPU s), {self.states} states, {self.verified} graphs"
        return figures if self.exhausted else f"> {figures} ({self.items_finished} of {self.items} items)"


@dataclass(frozen=True, slots=True)
class Ablation:
    """What is searched: RMSNorm of (rows, hidden size, columns) in fp16 for a target, on these grids and for-loops.

    `seconds` are for each cell, `workers` where there may be several.
    """

    shape: tuple[int, int, int] = FIGURE
    seconds: float = 600.0
    workers: int = 2
    target: str = "cuda:sm_80"
    grids: tuple[tuple[int, ...], ...] = GRIDS
    loops: tuple[int, ...] = LOOPS

    def __post_init__(self) -> None:
        if min(self.shape) < 2 or self.seconds <= 0 or self.workers < 1:
            raise InvalidInput("an ablation takes dimensions of at least 2, a time limit above 0 s, and at least 1 worker")

    @property
    def variants(self) -> dict[str, Callable[[int], Cell]]:
        """For each column of the table, the search for a limit of block operators."""
        program, device = rmsnorm(*self.shape), device_for(self.target)
        space = SearchSpace(kernels=1, grids=self.grids, loops=self.loops)
        space.check(program)
        base = EnumerationOptions(time_limit=self.seconds).within(space)
        # without the expression check so many types are within reach that the completion bound costs more than it saves
        algorithm = {
            "Algorithm 1": replace(base, processes=self.workers),
            "one process": base,
            "no expressions": replace(base, expression_check=False, completion_bound=False),
            "no completion bound": replace(base, completion_bound=False),
            "the paper's pruning alone": replace(base, completion_bound=False, dead_tensor_bound=False),
        }

        def enumerated(options: EnumerationOptions) -> Callable[[int], Cell]:
            return lambda limit: _enumerated(program, device, replace(options, max_block_operators=limit))

        closures = {"closure": self.workers, "closure, one process": 1}

        def closed(workers: int) -> Callable[[int], Cell]:
            return lambda limit: _closed(program, device, replace(space, block_operators=limit), self.seconds, workers)

        return {
            **{name: enumerated(options) for name, options in algorithm.items()},
            **{name: closed(workers) for name, workers in closures.items()},
        }

    def run(self, limits: Sequence[int]) -> Iterator[tuple[int, str, Cell]]:
        """(limit, variant, cell) in the order they are finished, the least limit first. Raises InvalidInput for limits below 1.

        A variant that was over the time limit is not tried with larger limits: its search would contain that one.
        """
        if not limits or min(limits) < 1:
            raise InvalidInput(f"limits of block operators {list(limits)}: use at least one, each 1 or more")
        variants = self.variants
        for limit in sorted(set(limits)):
            for name, search_within in list(variants.items()):
                before = _cpu_seconds()
                cell = search_within(limit)
                cell = replace(cell, cpu_seconds=_cpu_seconds() - before)
                if not cell.exhausted:
                    del variants[name]
                yield limit, name, cell


def _cpu_seconds() -> float:
    """What this process and those that it has waited for have taken of processors."""
    return sum(os.times()[:4])


def rmsnorm(rows: int, hidden: int, columns: int) -> Graph:
    """RMSNorm with gain and a linear layer, the factor 1/d and the eps of real models left out."""
    program = Program()
    shapes = {"x": (rows, hidden), "g": (hidden,), "w": (hidden, columns)}
    x, gain, weight = (program.input(name, shape, DType.FP16) for name, shape in shapes.items())
    program.output(x * gain / x.square().sum(-1, keepdim=True).sqrt() @ weight)
    return program.graph


def _enumerated(program: Graph, device: Device, options: EnumerationOptions) -> Cell:
    report = enumerate_graphs(program, device, options).report
    return Cell(report.seconds, report.states, report.verified, report.exhausted, report.items, report.items_finished)


def _closed(program: Graph, device: Device, space: SearchSpace, seconds: float, workers: int) -> Cell:
    """The closure engine on a single kernel, nothing known beforehand; it lists derivations up to the limit of the space."""
    KNOWN.clear()
    started = time.monotonic()
    try:
        found = search(program, device, budget=seconds, options=Options(max_kernels=1), workers=workers, space=space)
    except BudgetExceeded:
        return Cell(time.monotonic() - started, states=0, verified=0, exhausted=False, items=1, items_finished=0)
    tiers = found.report.tiers
    return Cell(
        seconds=time.monotonic() - started,
        states=found.report.states,
        verified=sum(tier.derivations for tier in tiers),
        exhausted=all(tier.exhausted for tier in tiers),
        items=sum(tier.closures for tier in tiers),
        items_finished=sum(tier.saturated for tier in tiers),
    )


def to_json(ablation: Ablation, cells: Sequence[tuple[int, str, Cell]]) -> dict[str, Any]:
    """The cells as JSON values, with the paper's beside them."""
    rows: dict[int, dict[str, Any]] = {}
    for limit, name, cell in cells:
        row = rows.setdefault(limit, {"limit": limit, "paper_seconds": PAPER_SECONDS.get(limit), "cells": {}})
        row["cells"][name] = asdict(cell)
    return {**asdict(ablation), "rows": list(rows.values())}


def table(cells: Sequence[tuple[int, str, Cell]]) -> str:
    """The cells as a Markdown table, the paper's seconds in the last column."""
    names = list(dict.fromkeys(name for _, name, _ in cells))
    lines = [f"| operators | {' | '.join(names)} | paper's seconds: full, one process, no expressions |"]
    lines.append("|" + "---|" * (len(names) + 2))
    found = {(limit, name): cell for limit, name, cell in cells}
    for limit in dict.fromkeys(limit for limit, _, _ in cells):
        row = " | ".join(str(found.get((limit, name), "over the time limit, as above")) for name in names)
        lines.append(f"| {limit} | {row} | {', '.join(PAPER_SECONDS.get(limit, ('not given',)))} |")
    return "\n".join(lines)
