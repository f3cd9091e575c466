"""One run of Algorithm 1: its work items on one process or several, candidates tested over finite fields, a report."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.devices import Device
from mugraph.errors import UndefinedInField
from mugraph.ir.evaluate import evaluate
from mugraph.ir.graph import Graph
from mugraph.search.engine import Candidate
from mugraph.search.enumeration.cost import predicted_seconds
from mugraph.search.enumeration.kernel import KernelGenerator, TimeLimitReached, WorkItem
from mugraph.search.enumeration.options import EnumerationOptions
from mugraph.search.report import Progress

_ITEMS_PER_MESSAGE = 8


@dataclass(slots=True)
class EnumerationReport:
    """What a run visited: prefixes of graphs (`states`), complete graphs (`candidates`), those equal to the program.

    `items` are first kernel operators, a graph-defined one under each schedule counting for itself.
    """

    max_kernel_operators: int
    max_block_operators: int
    expression_check: bool
    items: int = 0
    items_finished: int = 0
    states: int = 0
    candidates: int = 0
    verified: int = 0
    seconds: float = 0.0
    first_found_seconds: float | None = None
    interrupted: bool = False

    @property
    def exhausted(self) -> bool:
        """Whether every graph within the limits was generated."""
        return not self.interrupted and self.items_finished == self.items

    @property
    def exhausted_what(self) -> str:
        """The covered space in words."""
        space = f"graphs up to {self.max_kernel_operators} kernel and {self.max_block_operators} block operators"
        if self.exhausted:
            return f"all {space} on the given grids and loops"
        return f"over the time limit: {self.items_finished} of {self.items} first operators of {space}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "exhausted": self.exhausted, "exhausted_what": self.exhausted_what}


@dataclass
class EnumerationResult:
    """Graphs equal to the program on random finite-field inputs, best predicted first, and what was covered."""

    candidates: list[Candidate]
    report: EnumerationReport


@dataclass
class ItemResult:
    """What followed one work item; `finished` unless the time limit cut it short."""

    graphs: list[Graph] = field(default_factory=list)
    states: int = 0
    candidates: int = 0
    finished: bool = True


class FieldTest:
    """Equality with a program on random inputs over Z_p x Z_q, at full size."""

    def __init__(self, program: Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._arith = FieldArithmetic(seed=seed)
        self._inputs = [self._arith.random(node.output.shape, rng) for node in program.inputs()]
        self._wanted = evaluate(program, self._inputs, self._arith)

    def accepts(self, graph: Graph) -> bool:
        """Whether the outputs of `graph` are the program's; what has no meaning in the field is refused."""
        try:
            outputs = evaluate(graph, self._inputs, self._arith)
        except UndefinedInField:
            return False
        return all(map(FieldValue.agrees_with, outputs, self._wanted))


class Enumerator:
    """Runs the work items of one program; every worker process has one, with the same items in the same order."""

    def __init__(self, program: Graph, device: Device, options: EnumerationOptions, deadline: float = math.inf) -> None:
        self._test = FieldTest(program, options.seed)
        self._generator = KernelGenerator(program, device, options, self._found, deadline)
        self._result = ItemResult()
        self.items = self._generator.items()

    def run(self, item: WorkItem) -> ItemResult:
        """All verified graphs that begin with `item`."""
        self._result = ItemResult()
        before = self._generator.states
        try:
            self._generator.run(item)
        except TimeLimitReached:
            self._result.finished = False
        self._result.states = self._generator.states - before
        return self._result

    def _found(self, graph: Graph) -> None:
        self._result.candidates += 1
        if self._test.accepts(graph):
            self._result.graphs.append(graph)


def enumerate_graphs(
    program: Graph,
    device: Device,
    options: EnumerationOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> EnumerationResult:
    """All muGraphs equal to `program` (a kernel graph of pre-defined operators) within `options`, by Algorithm 1.

    Block graphs come without thread graphs; `mugraph.lower.thread_graphs.construct` adds them (paper, section 4.2).
    Results do not depend on the number of processes.
    """
    options = options or EnumerationOptions()
    started = time.monotonic()
    enumerator = Enumerator(program, device, options, started + options.time_limit)
    report = EnumerationReport(options.max_kernel_operators, options.max_block_operators, options.expression_check)
    report.items = len(enumerator.items)
    found: dict[Graph, float] = {}
    try:
        for result in _results(program, device, options, enumerator, started + options.time_limit):
            report.states += result.states
            report.candidates += result.candidates
            report.items_finished += result.finished
            found.update((graph, predicted_seconds(graph, device)) for graph in result.graphs)
            seconds = time.monotonic() - started
            if found and report.first_found_seconds is None:
                report.first_found_seconds = seconds
            if progress is not None:
                progress(Progress("Algorithm 1", report.states, len(found), min(found.values(), default=None), seconds))
    except KeyboardInterrupt:
        report.interrupted = True
    report.verified = len(found)
    report.seconds = time.monotonic() - started
    ranked = sorted(found.items(), key=lambda pair: pair[1])
    return EnumerationResult([Candidate(graph, cost) for graph, cost in ranked], report)


# --- processes ---------------------------------------------------------------------------------------------------------


def _results(
    program: Graph, device: Device, options: EnumerationOptions, here: Enumerator, deadline: float
) -> Iterator[ItemResult]:
    """The results of all items in their order, computed here or by worker processes."""
    if options.processes == 1:
        yield from map(here.run, here.items)
        return
    context = multiprocessing.get_context("spawn")
    arguments = (program, device, options, deadline)
    with ProcessPoolExecutor(options.processes, context, _start_worker, arguments) as pool:
        yield from pool.map(_run_in_worker, range(len(here.items)), chunksize=_ITEMS_PER_MESSAGE)


_workers: list[Enumerator] = []
"""The enumerator of a worker process."""


def _start_worker(program: Graph, device: Device, options: EnumerationOptions, deadline: float) -> None:
    _workers.append(Enumerator(program, device, options, deadline))


def _run_in_worker(number: int) -> ItemResult:
    return _workers[0].run(_workers[0].items[number])
