"""The search of a program, however long: as a whole, in segments, or both.

Each segment is a program of its own, and kernels of all of them in a row compute the whole. Segments are runs of an order of the
program's operators. What one makes and another reads is stored in device memory, so the division is the one that moves the fewest
bytes, with the time of a launch for every segment; no other is cheaper for the orders that are looked at. That what comes out
equals the program needs no test of its own: every segment computes what its operators do.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from mugraph.devices import Device
from mugraph.errors import BudgetExceeded, InvalidInput, UndefinedInField, UnsupportedOperator
from mugraph.ir.axes import axis_program, operands_first
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.cores import Cores, cores_of, has_lookups
from mugraph.ir.definitions import spelled_out
from mugraph.ir.graph import FREE, LOOKUP, Graph, Level, Node, Value
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.parts import Parted, parted
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.constraints import EVERYTHING, SearchSpace
from mugraph.search.driver import WRITING_SHARE, Proposal, Search, SearchResult
from mugraph.search.executors import Workers
from mugraph.search.report import Progress, SearchReport, combined
from mugraph.search.scheduling.masks import Hidden
from mugraph.search.structure_cache import Shelf
from mugraph.search.tasks import Options

LONGEST = 48
"""Operators of a segment: closures of more are seldom saturated, and a kernel of more seldom fits a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Some operators as a program: its inputs are the values `reads` of the whole program, its outputs the values `makes`.

    Equal segments of a program are equal graphs.
    """

    graph: Graph
    reads: tuple[Value, ...]
    makes: tuple[Value, ...]


@dataclass(frozen=True)
class ProgramDivision:
    """Ways to divide a kernel graph of pre-defined operators into segments for a device."""

    program: Graph
    device: Device

    def segments(self, longest: int = LONGEST) -> list[Segment]:
        """Segments of at most `longest` operators, in the order they run; shorter ones where these have no axis form.

        Where parts of a program share nothing but what is at hand, each is a segment of its own.
        """
        parts = self.components()
        if len(parts) >= _MANY_PARTS and max(map(len, parts)) <= longest:
            return [segment for part in parts for segment in self._with_axis_forms(part)]
        written = sorted(self.needed)
        deep_first = operands_first((value.node for value in self.program.outputs), self._operands)
        orders = [[index for index in order if index not in self.at_hand] for order in (written, deep_first)]
        _, runs = min((self._cheapest(order, longest) for order in orders), key=lambda found: found[0])
        return [segment for run in runs for segment in self._with_axis_forms(run)]

    def components(self) -> list[list[int]]:
        """The operators in groups that share nothing but what is at hand, in the order of the program."""
        group: dict[int, list[int]] = {}
        for index in sorted(self.needed - self.at_hand):
            joined = [index]
            for operand in self._operands(index):
                if operand in group and group[operand] is not joined:
                    joined = [*group[operand], *joined]
                    group.update(dict.fromkeys(joined, joined))
            group.update(dict.fromkeys(joined, joined))
        return [sorted(part) for part in {id(part): part for part in group.values()}.values()]

    @cached_property
    def needed(self) -> frozenset[int]:
        """The nodes that outputs are made from."""
        return self.program.needed()

    @cached_property
    def at_hand(self) -> frozenset[int]:
        """Inputs, constants, and views of them: nothing has to be stored for a segment to read these."""
        found: set[int] = set()
        for index, node in enumerate(self.program.nodes):
            if node.op in FREE and all(value.node in found for value in node.inputs):
                found.add(index)
        return frozenset(found)

    @cached_property
    def users(self) -> Mapping[int, frozenset[int]]:
        """The nodes that read each node, and -1 for the outputs of the program."""
        users: dict[int, set[int]] = {index: set() for index in range(len(self.program.nodes))}
        for index in self.needed:
            for value in self.program.nodes[index].inputs:
                users[value.node].add(index)
        for value in self.program.outputs:
            users[value.node].add(-1)
        return {index: frozenset(found) for index, found in users.items()}

    def _cheapest(self, order: Sequence[int], longest: int) -> tuple[float, list[list[int]]]:
        """The cheapest division of an order into runs of at most `longest` operators, and its seconds."""
        least = [0.0, *[float("inf")] * len(order)]
        start_of = [0] * (len(order) + 1)
        for start in range(len(order)):
            for end, moved in enumerate(self._moved(order, start, longest), start=start + 1):
                seconds = least[start] + self.device.launch_seconds + moved / self.device.memory_bandwidth
                if seconds < least[end]:
                    least[end], start_of[end] = seconds, start
        runs: list[list[int]] = []
        end = len(order)
        while end:
            runs.append(list(order[start_of[end] : end]))
            end = start_of[end]
        return least[-1], runs[::-1]

    def _moved(self, order: Sequence[int], start: int, longest: int) -> Iterator[int]:
        """Bytes that runs from `start` on read and write: of one node, of two, and so on up to `longest` operators."""
        nodes = self.program.nodes
        waiting: dict[int, int] = {}
        """For each node of the run, how many nodes behind it read it."""
        read: set[int] = set()
        moved = operators = 0
        for index in order[start:]:
            operators += nodes[index].op not in FREE
            if operators > longest and waiting:
                return
            for operand in {value.node for value in nodes[index].inputs}:
                if operand in waiting:
                    waiting[operand] -= 1
                    moved -= 0 if waiting[operand] else nodes[operand].output.bytes
                elif operand not in read and not nodes[operand].is_constant:
                    read.add(operand)
                    moved += nodes[operand].output.bytes
            waiting[index] = len(self.users[index])
            moved += nodes[index].output.bytes
            yield moved

    def _with_axis_forms(self, run: Sequence[int]) -> Iterator[Segment]:
        """A run as a segment, or as many as it takes for each to have an axis form, the first ones as long as may be.

        A single node may still have none: it runs as it is.
        """
        while run:
            shortest, longest = 1, len(run)
            while shortest < longest:
                middle = (shortest + longest + 1) // 2 if longest < len(run) else longest
                if _has_axis_form(self._segment(run[:middle]).graph):
                    shortest = middle
                else:
                    longest = middle - 1
            yield self._segment(run[:shortest])
            run = run[shortest:]

    def _segment(self, run: Sequence[int]) -> Segment:
        builder = GraphBuilder(Level.KERNEL)
        placed: dict[int, Value] = {}
        reads: list[Value] = []
        inside = set(run)
        copied = operands_first(run, lambda index: self._made_again(index, inside))
        for index in copied:
            node = self.program.nodes[index]
            if index not in inside and (node.is_input or index not in self.at_hand):
                placed[index] = builder.input(f"x{len(reads)}", node.output.shape, node.output.dtype)
                reads.append(Value(index))
            else:
                placed[index] = builder.append(_on(node, placed))
        makes = [index for index in run if not self.users[index] <= inside]
        return Segment(builder.build([placed[index] for index in makes]), tuple(reads), tuple(map(Value, makes)))

    def in_a_row(self, segments: Sequence[Segment], graphs: Sequence[Graph]) -> Graph:
        """The program with each segment computed by the graph in its place, whose inputs and outputs are the segment's."""
        builder = GraphBuilder(Level.KERNEL)
        program = self.program
        given = [index for index, node in enumerate(program.nodes) if node.is_input]
        wanted = [value.node for value in program.outputs if value.node in self.at_hand]
        placed: dict[int, Value] = {}
        for index in dict.fromkeys([*given, *operands_first(wanted, self._operands)]):
            placed[index] = builder.append(_on(program.nodes[index], placed))
        for segment, graph in zip(segments, graphs, strict=True):
            made = builder.extend(graph, [placed[value.node] for value in segment.reads])
            placed.update(zip((value.node for value in segment.makes), made, strict=True))
        return builder.build([placed[value.node] for value in program.outputs])

    def _operands(self, index: int) -> Sequence[int]:
        return [value.node for value in self.program.nodes[index].inputs]

    def _made_again(self, index: int, inside: set[int]) -> Sequence[int]:
        """What a segment needs for a node: its operands, unless it reads the node itself."""
        if index in inside or index in self.at_hand:
            return self._operands(index)
        return ()


def _has_axis_form(graph: Graph) -> bool:
    try:
        axis_program(graph)
    except UnsupportedOperator:
        return False
    return True


def _on(node: Node, placed: Mapping[int, Value]) -> Node:
    """A node of a program on what its operands became."""
    return replace(node, inputs=tuple(placed[value.node] for value in node.inputs))


LONG = 100
"""Operators of a program from which on it is searched in segments, too: few kernels hold more, and cuts have few launches."""

_MANY_PARTS, _SHORT = 4, 24
"""Parts of a program that share nothing but inputs, from which on they are searched one by one, if it has more operators."""

_LONGEST_WHOLE = 400
"""Operators of a program beyond which it is searched in segments only."""

_WHOLE_SHARE = 0.4
"""Part of a budget for a long program as a whole."""

_PATIENCE, _DIVIDED = 0.5, 10
"""Part of a budget after which a program of so many operators is divided in the middle, if nothing is found of it as a whole: it
may need more kernels than cuts have, as where sums over tensors of many shapes meet in one number."""

_STRETCH_SECONDS = 4.0
"""For each segment of a long program, where no budget was given."""

_LEAST_STRETCH_SECONDS = 0.25
"""Where a budget allows no more for each segment, some are searched and the others run as they are."""

_COMBINATIONS = 4
"""Candidates that are put together of the segments': each has as many kernels to be compiled as all of them."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked of a search, but for the program."""

    device: Device
    budget: float | None
    progress: Callable[[Progress], None] | None
    options: Options
    workers: Workers
    shelf: Shelf | None
    space: SearchSpace
    hidden: Hidden


def search(
    program: Graph,
    device: Device,
    *,
    budget: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    options: Options | None = None,
    workers: Workers = 1,
    shelf: Shelf | None = None,
    space: SearchSpace = EVERYTHING,
    hidden: Hidden | None = None,
) -> SearchResult:
    """Search muGraphs equal to `program` (a kernel graph of pre-defined operators) for `device`.

    `budget` is in seconds; without one, the coarsest tier of abstraction is exhausted and finer ones get a few seconds.
    What was found is kept on the `shelf`, and what earlier searches found is read from there (`mugraph.search.structure_cache`).
    `workers` search beside each other and find what one alone finds (`mugraph.search.executors`).
    Candidates lie in the `space` (`mugraph.search.constraints`). `hidden` says where inputs, by name, are -inf, as far as that is
    known: iterations that such masks leave without effect cost nothing on devices that leave them out.
    Long programs, and those that have no axis form as a whole, are searched in segments (`mugraph.search.long_programs`).
    Raises UnsupportedOperator when no part of the program has an axis form, BudgetExceeded when nothing was found in time, and
    InvalidInput for a space of which nothing can be a muGraph of the program.
    """
    asked = _Request(device, budget, progress, options or Options(), workers, shelf, space, hidden or {})
    program = spelled_out(program)
    space.check(program)
    if (cores := lookups_apart(program, device)) is not None:
        return _around(cores, _without_lookups(cores.cores[0], asked))
    return _without_lookups(program, asked)


def lookups_apart(program: Graph, device: Device) -> Cores | None:
    """The core of a program that looks something up; raises UnsupportedOperator where it computes the table, and for GPUs."""
    if has_lookups(program) and not device.operands_in_place:
        raise UnsupportedOperator(
            f"{LOOKUP}: kernels of {device.name} read no integers; look up before, and pass what is found as an input"
        )
    return cores_of(program)


def _without_lookups(program: Graph, asked: _Request) -> SearchResult:
    """The search of a program without lookups, as its core where it has parts of tensors."""
    with suppress(UnsupportedOperator):
        if (around := parted(program)) is not None:
            return _around(around, _search(around.core, asked))
    return _search(program, asked)


def _around(parts: Parted | Cores, found: SearchResult) -> SearchResult:
    """What was found for the core of a program, as muGraphs of the program."""
    return replace(found, candidates=[Proposal(parts.around(each.graph), each.cost) for each in found.candidates])


def _search(program: Graph, asked: _Request) -> SearchResult:
    """The search of a program without parts of tensors, or with those that its segments keep."""
    operators = len(program.kernels())
    apart = operators > _SHORT and not asked.space and len(ProgramDivision(program, asked.device).components()) >= _MANY_PARTS
    if operators <= LONG and not apart:
        with suppress(UnsupportedOperator) if operators > 1 else nullcontext():
            return _whole_or_divided(program, asked)
    if asked.space.kernels is not None or asked.space.maps:
        raise InvalidInput("kernels and maps cannot be limited here: the program is too long, and is searched in segments")
    return _LongSearch(program, asked, whole=not apart).run()


def _whole_or_divided(program: Graph, asked: _Request) -> SearchResult:
    """The search of a program as a whole or, where nothing keeps the range of numbers, in segments half as long.

    What was found out of range, which may not matter for the inputs there are, is all there is where segments have nothing.
    """
    operators, started = len(program.kernels()), time.perf_counter()
    if operators < _DIVIDED or asked.space:
        return _searched(program, asked)
    found = SearchResult([], SearchReport())
    with suppress(BudgetExceeded):
        found = _searched(program, asked, _PATIENCE)
        if (found.candidates and found.in_range) or found.report.interrupted:
            return found
    divided = SearchResult([], SearchReport())
    with suppress(BudgetExceeded) if found.candidates else nullcontext():
        divided = _LongSearch(program, asked, whole=False, longest=operators // 2, started=started).run()
    if divided.candidates:
        reports = [found.report, divided.report]
        found = SearchResult(divided.candidates, combined(reports, divided.report.segments))
    found.report.interrupted = divided.report.interrupted
    found.report.seconds = time.perf_counter() - started
    return found


def _searched(program: Graph, asked: _Request, patience: float = 1.0) -> SearchResult:
    """The search of a program as it is and, before that, with factors taken out of its functions if there are any."""

    def form(seconds: float | None, hoisting: bool) -> Search:
        return Search(
            program,
            asked.device,
            seconds,
            asked.progress,
            asked.options,
            asked.workers,
            asked.shelf,
            asked.space,
            hoisting,
            asked.hidden,
            patience,
        )

    budget = asked.budget
    as_written = form(budget, hoisting=False)
    if not as_written.hoistable:
        return as_written.run()
    started, results = time.perf_counter(), list[SearchResult]()
    with suppress(BudgetExceeded, UndefinedInField, RecursionError):
        results.append(form(budget and budget / 2, hoisting=True).run())
    if not any(result.report.interrupted or result.report.settled for result in results):
        left = None if budget is None else max(0.0, budget - (time.perf_counter() - started))
        try:
            results.append(form(left, hoisting=False).run())
        except (BudgetExceeded, UndefinedInField, RecursionError):
            if not results:
                raise
    found: dict[Graph, float] = {}
    for candidate in itertools.chain(*(result.candidates for result in results)):
        found[candidate.graph] = min(candidate.cost, found.get(candidate.graph, candidate.cost))
    candidates = [Proposal(graph, cost) for graph, cost in sorted(found.items(), key=lambda item: item[1])]
    report = combined([result.report for result in results], segments=0)
    return SearchResult(candidates, report, any(result.in_range for result in results))


@dataclass
class _LongSearch:
    """The search of a program in segments and, unless it is too long for any kernel, as a whole before that."""

    program: Graph
    asked: _Request
    whole: bool = True
    """Whether it is searched as a whole, too, unless it is too long."""
    longest: int = LONGEST
    """Operators of a segment at most."""
    started: float = field(default_factory=time.perf_counter)

    def run(self) -> SearchResult:
        """The best of both; raises what the whole program was refused for where no segment has a kernel either."""
        refused: Exception | None = None
        results: list[SearchResult] = []
        if self.whole and len(self.program.kernels()) <= _LONGEST_WHOLE:
            try:
                share = None if self.asked.budget is None else _WHOLE_SHARE * self.asked.budget
                results.append(self._search(self.program, share, self.asked.workers))
            except (UnsupportedOperator, UndefinedInField, BudgetExceeded, RecursionError) as error:
                refused = error
        if not any(result.report.interrupted for result in results):
            try:
                results.append(self._in_segments())
            except KeyboardInterrupt:  # while the program is divided or put together again; the whole may have candidates
                results.append(SearchResult([], SearchReport(interrupted=True)))
        candidates = sorted(itertools.chain(*(result.candidates for result in results)), key=lambda candidate: candidate.cost)
        report = combined([result.report for result in results], segments=results[-1].report.segments)
        if refused is not None and not isinstance(refused, BudgetExceeded) and not candidates and not report.interrupted:
            raise refused
        report.seconds = time.perf_counter() - self.started
        if not candidates and self.asked.budget is not None and report.seconds > self.asked.budget:
            raise BudgetExceeded(f"no muGraph was found within {self.asked.budget:g} s; raise the budget")
        return SearchResult(candidates, report)

    def _in_segments(self) -> SearchResult:
        """Candidates of which the first has the best kernels of every segment, the second the second best, and so on."""
        division = ProgramDivision(self.program, self.asked.device)
        segments = division.segments(self.longest)
        found: dict[Graph, SearchResult] = {}
        most_common = Counter(segment.graph for segment in segments).most_common()
        for position, (graph, _) in enumerate(most_common):
            found[graph] = self._of_segment(graph, self._seconds_of_next(len(most_common) - position))
            if found[graph].report.interrupted:
                break
        report = combined([result.report for result in found.values()], segments=len(segments))
        ranked = [self._ranked(segment.graph, found.get(segment.graph)) for segment in segments]
        candidates: dict[Graph, float] = {}
        if any(result.candidates for result in found.values()):
            for rank in range(min(_COMBINATIONS, max(map(len, ranked)))):
                chosen = [each[min(rank, len(each) - 1)] for each in ranked]
                graph = division.in_a_row(segments, [candidate.graph for candidate in chosen])
                if peak_bytes(graph) <= self.asked.device.device_memory_bytes:
                    candidates.setdefault(graph, sum(candidate.cost for candidate in chosen))
        return SearchResult([Proposal(graph, cost) for graph, cost in candidates.items()], report)

    def _seconds_of_next(self, left: int) -> float:
        """Seconds for the next of the segments that are left: enough to find something as long as there are as many."""
        if self.asked.budget is None:
            return _STRETCH_SECONDS
        remaining = max(0.0, (1 - WRITING_SHARE) * self.asked.budget - (time.perf_counter() - self.started))
        return min(remaining, max(remaining / left, _LEAST_STRETCH_SECONDS))

    def _of_segment(self, graph: Graph, seconds: float) -> SearchResult:
        """What is found of a segment: nothing, where it is out of the search's reach or the time is over."""
        if not seconds:  # which is asked first: to prepare a search takes as long as some searches
            return SearchResult([], SearchReport())
        try:
            return self._search(graph, seconds, workers=1)  # which it takes longer to start than most segments are searched
        except (UnsupportedOperator, UndefinedInField, BudgetExceeded, RecursionError):
            return SearchResult([], SearchReport())
        except KeyboardInterrupt:  # before the search began
            return SearchResult([], SearchReport(interrupted=True))

    def _search(self, graph: Graph, seconds: float | None, workers: Workers) -> SearchResult:
        return _searched(graph, replace(self.asked, budget=seconds, workers=workers, hidden={}))

    def _ranked(self, graph: Graph, found: SearchResult | None) -> list[Proposal]:
        """Candidates of a segment, the best first: as the program has it where nothing was found."""
        if found is None or not found.candidates:
            return [Proposal(graph, predicted_seconds(graph, self.asked.device))]
        return found.candidates
