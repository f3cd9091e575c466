"""One run of Algorithm 1: its work items on executors like any, candidates tested over finite fields, a report."""

from __future__ import annotations

import itertools
import math
import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.devices import Device
from mugraph.errors import UndefinedInField
from mugraph.ir.evaluate import block_slices, evaluate, evaluate_block
from mugraph.ir.graph import Graph, Value
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.algorithm1.kernel import KernelGenerator, TimeLimitReached, WorkItem
from mugraph.search.algorithm1.options import EnumerationOptions
from mugraph.search.driver import Proposal
from mugraph.search.executors import executor_for
from mugraph.search.report import Progress

_OPERATORS_PER_ITEM = 8

_DRAWS = 4
"""Of inputs, until the program has a value."""


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

    candidates: list[Proposal]
    report: EnumerationReport


@dataclass
class ItemResult:
    """What followed some first operators, of which so many were `finished` in time."""

    graphs: list[Graph] = field(default_factory=list)
    states: int = 0
    candidates: int = 0
    finished: int = 0

    def add(self, other: ItemResult) -> None:
        """Count what followed other operators in."""
        self.graphs += other.graphs
        self.states += other.states
        self.candidates += other.candidates
        self.finished += other.finished


class FieldTest:
    """Equality with a program on random inputs over Z_p x Z_q, at full size.

    Inputs where the program has no value are drawn again: of millions of denominators, one in a thousand times one is zero.
    Raises UndefinedInField where it has none for any of several draws.
    """

    def __init__(self, program: Graph, seed: int) -> None:
        self._arith = FieldArithmetic(seed=seed)
        rng = np.random.default_rng(seed)
        for left in reversed(range(_DRAWS)):
            self._inputs = [self._arith.random(node.output.shape, rng) for node in program.inputs()]
            try:
                self._wanted = evaluate(program, self._inputs, self._arith)
                return
            except UndefinedInField:
                if not left:
                    raise

    def accepts(self, graph: Graph) -> bool:
        """Whether the outputs of `graph` are the program's; what has no meaning in the field is refused."""
        try:
            return self._last_block_agrees(graph) and self._agree(evaluate(graph, self._inputs, self._arith), self._wanted)
        except UndefinedInField:
            return False

    def _last_block_agrees(self, graph: Graph) -> bool:
        """Whether the last block of a single kernel makes its part of the outputs, which shows most graphs that are not equal.

        True of graphs of several operators, views among them, which are compared by all that they compute.
        """
        made = [_uncast(graph, value) for value in graph.outputs]
        node = graph.nodes[made[0].node]
        alone = {value.node for value in made} == {made[0].node} and all(graph.nodes[v.node].is_input for v in node.inputs)
        if node.body is None or not alone:
            return True
        body, block = node.body, tuple(count - 1 for count in node.body.grid)
        numbers = {index: number for number, index in enumerate(i for i, each in enumerate(graph.nodes) if each.is_input)}
        parts = evaluate_block(body, block, [self._inputs[numbers[value.node]] for value in node.inputs], self._arith)
        places = [block_slices(body, value.output, block, graph.tensor(value).shape) for value in made]
        pairs = zip(self._wanted, places, strict=True)
        wanted = [self._arith.view(whole, operator.itemgetter(place)) for whole, place in pairs]
        return self._agree([parts[value.output] for value in made], wanted)

    @staticmethod
    def _agree(outputs: Sequence[FieldValue], wanted: Sequence[FieldValue]) -> bool:
        return all(map(FieldValue.agrees_with, outputs, wanted))


def _uncast(graph: Graph, value: Value) -> Value:
    """The value behind an output's cast, if it has one."""
    node = graph.nodes[value.node]
    # by name: of the views only a cast leaves shape and order as they are, and no column says so
    return node.inputs[0] if node.op == "cast" else value


class Enumerator:
    """Runs the work items of one program: the first operators of kernel graphs, in the same order in every process."""

    def __init__(self, program: Graph, device: Device, options: EnumerationOptions) -> None:
        self._test = FieldTest(program, options.seed)
        self._space = options.space
        self._generator = KernelGenerator(program, device, options, self._found)
        self._result = ItemResult()
        self.items = self._generator.items()

    def run(self, item: WorkItem, deadline: float = math.inf) -> ItemResult:
        """All verified graphs that begin with `item`, or those found by `deadline` (of `time.perf_counter`)."""
        self._result = ItemResult()
        self._generator.deadline = deadline
        before = self._generator.states
        try:
            self._generator.run(item)
            self._result.finished = 1
        except TimeLimitReached:
            pass
        self._result.states = self._generator.states - before
        return self._result

    def _found(self, graph: Graph) -> None:
        if not self._space.holds(graph):
            return
        self._result.candidates += 1
        if self._test.accepts(graph):
            self._result.graphs.append(graph)


class _Last(threading.local):
    """The enumerator that a thread used last: what it interned serves all items of one program."""

    key: tuple[Graph, Device, EnumerationOptions] | None = None
    enumerator: Enumerator | None = None

    def of(self, program: Graph, device: Device, options: EnumerationOptions) -> Enumerator:
        """The enumerator of a program."""
        key = program, device, options
        if self.enumerator is None or self.key != key:
            self.key, self.enumerator = key, Enumerator(program, device, options)
        return self.enumerator

    def forget(self) -> None:
        """Release the memory of the enumerator."""
        self.key = self.enumerator = None


_LAST = _Last()


@dataclass(frozen=True, slots=True)
class FirstOperators:
    """A work item of Algorithm 1: the first operators of a program's kernel graphs with these `numbers`."""

    program: Graph
    device: Device
    options: EnumerationOptions
    numbers: range

    @property
    def where(self) -> str:
        """The item in words."""
        return f"Algorithm 1, first operators {self.numbers.start} to {self.numbers.stop - 1}"

    @property
    def nothing(self) -> ItemResult:
        """What is known where the time ended before."""
        return ItemResult()

    def search(self, deadline: float, tick: Callable[[int], None]) -> ItemResult:
        """All verified graphs that begin with them."""
        enumerator = _LAST.of(self.program, self.device, self.options)
        total = ItemResult()
        for number in self.numbers:
            total.add(enumerator.run(enumerator.items[number], deadline))
            tick(total.states)
        return total


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
    options.space.check(program)
    started = time.perf_counter()
    report = EnumerationReport(options.max_kernel_operators, options.max_block_operators, options.expression_check)
    found: dict[Graph, float] = {}
    by_item: dict[int, Sequence[Graph]] = {}
    try:
        report.items = len(_LAST.of(program, device, options).items)
        for number, result in _results(program, device, options, report.items, started + options.time_limit):
            by_item[number] = result.graphs
            report.states += result.states
            report.candidates += result.candidates
            report.items_finished += result.finished
            found.update((graph, predicted_seconds(graph, device)) for graph in result.graphs)
            seconds = time.perf_counter() - started
            if found and report.first_found_seconds is None:
                report.first_found_seconds = seconds
            if progress is not None:
                progress(Progress("Algorithm 1", report.states, len(found), min(found.values(), default=None), seconds))
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        _LAST.forget()
    report.verified = len(found)
    report.seconds = time.perf_counter() - started
    in_order = dict.fromkeys(itertools.chain.from_iterable(graphs for _, graphs in sorted(by_item.items())))
    ranked = sorted(in_order, key=found.__getitem__)
    return EnumerationResult([Proposal(graph, found[graph]) for graph in ranked], report)


def _results(
    program: Graph, device: Device, options: EnumerationOptions, operators: int, deadline: float
) -> Iterator[tuple[int, ItemResult]]:
    """What followed the first operators, and the number of the first of them, by this process or several, as they are known."""
    executor = executor_for(options.processes, time.time() + deadline - time.perf_counter())
    starts = range(0, operators, _OPERATORS_PER_ITEM)
    numbers = (range(start, min(start + _OPERATORS_PER_ITEM, operators)) for start in starts)
    try:
        tasks = {some.start: executor.submit(FirstOperators(program, device, options, some)) for some in numbers}
        while tasks:
            number = next((number for number, task in tasks.items() if task.ready), next(iter(tasks)))
            yield number, tasks.pop(number).result(deadline, lambda where, states: None)
    finally:
        executor.close()
