"""Graphs of `torch.compile` that are answered at once, and run by kernels as soon as there are some.

A call never waits: PyTorch runs the graph until kernels are found. One thread of this process works on one graph after the other,
those that are called most often first. It cuts them, takes what earlier processes have found, and compiles and tests it; what has
to be searched, proved and measured is asked of a process of its own (`mugraph.selection.search_process`), as Python's
interpreter runs one thread at a time, and calls would wait for the search at each of their operators. A graph has one
attribute that says what runs it, which each call reads once: it is changed as a whole, when kernels of another piece are there.

Pieces are compared with PyTorch beside the calls of the model, and the time of a call is what counts. So a graph of fixed sizes
is on trial in the end: calls that are made anyway are answered by kernels and by PyTorch in turns, in an order that is drawn for
each pair and while nothing else is worked on here, and kernels stay if they are clearly faster.

What goes wrong is reported, and PyTorch runs the graph. Process and thread end with this process: the one is killed with its
compilers, the other stops at its next step (`mugraph.support.stopping`).
"""

from __future__ import annotations

import functools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from mugraph.errors import TargetUnavailable
from mugraph.integrations.own_arguments import OwnArguments
from mugraph.ir.graph import Graph
from mugraph.pieces.piece_optimizer import Untested, optimizer
from mugraph.runtime.benchmarking import Duel
from mugraph.selection.search_process import SearchProcess
from mugraph.selection.whole_programs import OptimizationSettings, contradiction_of
from mugraph.support.progress import Event
from mugraph.support.stopping import Stoppable, Stopped

Run = Callable[..., Any]
Work = Callable[["BackgroundGraph"], None]
Later = Callable[[Work], None]
"""Has work on a graph done in the background."""

_ROUNDS = 30
"""Pairs of calls that a trial takes."""
_ENDING_SECONDS = 60.0
"""How long the end of a process waits for the thread at the most, which ends behind the call that it is making."""

_log = logging.getLogger("mugraph.torch_compile")


class State(StrEnum):
    """Where a graph stands."""

    COMPILED = "not called yet"
    QUEUED = "queued"
    SEARCHING = "searching"
    TRIED = "on trial"
    KERNELS = "in kernels"
    PYTORCH = "left to PyTorch"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Work that tests a kept result whose kernels answer calls meanwhile: no search comes before it."""

    result: Untested
    queue: Queue

    def __call__(self, graph: BackgroundGraph) -> None:
        self.queue.confirm(self.result, graph)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Work that compares what there is: nothing is searched for it."""

    work: Work

    def __call__(self, graph: BackgroundGraph) -> None:
        self.work(graph)


class BackgroundGraph:
    """A graph that PyTorch runs until its kernels are there: call it from any thread.

    `calls` is about how often it was called, `reason` says why PyTorch runs it, and `duel` what its trial showed.
    """

    def __init__(self, original: Run, queue: Queue) -> None:
        self.calls = 0
        self.reason = ""
        self.duel: Duel | None = None
        self.work: State | None = None
        """Where work on it stands; None where there is none."""
        self._answer, self._refused = State.COMPILED, False
        self._original, self._run, self._queue = original, original, queue
        self._waiting: list[Work] = []
        """What is begun by the next call."""

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1  # which threads may do at once: it is for an order
        if self._waiting:
            self._begin()
        return self._run(*arguments)

    @property
    def state(self) -> State:
        """Where it stands."""
        return self.work or self._answer

    def later(self, work: Work) -> None:
        """Have work done in the background, once the graph is called: what compiles it is not to be held up."""
        self._queue.know(self)
        if self.calls:
            self._queue.put(self, work)
        else:
            self._waiting.append(work)

    def again(self, work: Work) -> None:
        """Have work done by the next call that was lost."""
        self._waiting.append(work)

    def _begin(self) -> None:
        with suppress(IndexError):  # of threads that come here at once, one finds each
            while True:
                self._queue.put(self, self._waiting.pop(0))

    def offer(self, run: Run) -> None:
        """Have calls answered by `run` until there is something better."""
        self._take(run, self._answer)

    def settle(self, run: Run) -> None:
        """Have calls answered by `run`."""
        self._take(run, State.KERNELS)

    def try_out(self, run: Run) -> None:
        """Have calls answered by `run` if it proves to be faster than PyTorch in calls."""
        self._take(Trial(run, self._original, self._queue, functools.partial(self._decide, run)), State.TRIED)

    def _take(self, run: Run, answer: State) -> None:
        if not self._refused:
            self._run, self._answer = run, answer
        if self._refused:  # perhaps since: a call decides a trial while a test is done
            self._run, self._answer = self._original, State.PYTORCH

    def leave(self, reason: str) -> None:
        """Have calls answered by PyTorch."""
        self._run, self._answer, self.reason = self._original, State.PYTORCH, reason

    def refuse(self, reason: str) -> None:
        """Have calls answered by PyTorch from now on, whatever is found."""
        self._refused = True
        self.leave(reason)

    def confirm(self, results: Sequence[Untested]) -> None:
        """Have kept results tested in the background; a graph with kernels that something speaks against is PyTorch's."""
        for result in results:
            self.later(Confirmation(result, self._queue))

    def _decide(self, run: Run, outcome: Duel) -> None:
        self.duel = outcome
        if self._answer is not State.TRIED:
            return
        if outcome.clear:
            self.settle(run)
        else:
            self.leave(f"calls by its kernels are not clearly faster ({outcome.speedup:.2f} times as fast as PyTorch)")
        _log.info("%s", self)

    def __str__(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        return f"a graph that was called {self.calls} times is {self.state}{because}"


class Trial:
    """Which of two ways to run a graph takes less time, found in calls that are made anyway: call it as either.

    Each pair of calls has one of each, in an order that is drawn. Calls count while the queue is empty; otherwise the challenger
    answers.
    """

    def __init__(self, challenger: Run, defender: Run, queue: Queue, decided: Callable[[Duel], None]) -> None:
        self._sides, self._queue, self._decided = (challenger, defender), queue, decided
        self._times: tuple[list[float], list[float]] = ([], [])
        self._turns: list[int] = []
        self._random = random.Random(0)
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        if not self._queue.idle:
            return self._sides[0](*arguments)
        with self._lock:
            self._turns = self._turns or self._random.sample(range(2), 2)
            side = self._turns.pop()
        begun = time.perf_counter()
        result = self._sides[side](*arguments)
        self._note(side, time.perf_counter() - begun)
        return result

    def _note(self, side: int, seconds: float) -> None:
        with self._lock:
            self._times[side].append(seconds)
            whole = min(map(len, self._times)) == _ROUNDS + 1 and len(self._times[side]) == _ROUNDS + 1
        if whole:
            ours, theirs = (times[1 : _ROUNDS + 1] for times in self._times)  # the first calls pack weights and allocate
            self._decided(Duel.of(ours, theirs))


@dataclass(frozen=True, slots=True)
class _Job:
    """Work on a graph, which nobody needs once the graph is gone."""

    graph: weakref.ref[BackgroundGraph]
    work: Work

    @property
    def calls(self) -> int:
        """How often the graph was called; -1 where it is gone."""
        graph = self.graph()
        return -1 if graph is None else graph.calls


class Queue:
    """The work on all graphs of this process, and the thread that does it."""

    def __init__(self) -> None:
        self.process = SearchProcess()
        self._graphs: list[weakref.ref[BackgroundGraph]] = []
        self._reset()

    def _reset(self) -> None:
        self._jobs: list[_Job] = []
        self._running: _Job | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._work_here = Stoppable()

    @property
    def idle(self) -> bool:
        """Whether nothing is worked on."""
        return self._thread is None

    @property
    def graphs(self) -> list[BackgroundGraph]:
        """The graphs with work in the background, now or before, that somebody can still call, in their order."""
        return [graph for each in self._graphs if (graph := each()) is not None]

    def know(self, graph: BackgroundGraph) -> None:
        """Remember a graph."""
        known = [each for each in self._graphs if each() is not None]
        self._graphs = known if any(each() is graph for each in known) else [*known, weakref.ref(graph)]

    def search(self, program: Graph, budget: float | None, wanted: OptimizationSettings) -> Mapping[str, Any]:
        """Have a program optimized by another process, as `SearchProcess` does it."""
        return self.process(program, budget, wanted)

    def confirm(self, result: Untested, graph: BackgroundGraph) -> None:
        """Test a kept result, each once, in another process where there can be one."""
        if result.wrong is None:
            try:
                result.wrong = self.process.contradiction(result.program, result.document, result.wanted)
            except TargetUnavailable:
                result.wrong = contradiction_of(result.program, result.document, result.wanted)
        if result.wrong:
            graph.refuse(result.wrong)
            _log.error(
                "kernels that were kept are wrong, torch runs their graph from now on; please report this: %s", result.wrong
            )

    def check(self, event: Event) -> None:
        """Listen to what a search tells, to end with this process."""
        self.process.check()

    def put(self, graph: BackgroundGraph, work: Work) -> None:
        """Add work on a graph; it is begun when all tests and all graphs that are called more often are done."""
        with self._changed:
            if self.process.closed:
                return
            graph.work = graph.work or State.QUEUED
            self._jobs.append(_Job(weakref.ref(graph), work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mugraph-background", daemon=True)
                self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is worked on, at most so many seconds; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def stop(self) -> None:
        """End the thread and the process: what they are doing is lost."""
        self.process.close()
        self._work_here.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ENDING_SECONDS)

    def forked(self) -> None:
        """Begin anew in a process that was forked of this one: it has no thread, and nobody holds its locks."""
        self.process.abandon()
        optimizer.cache_clear()
        lost = [job for job in (self._running, *self._jobs) if job is not None]
        self._reset()
        for job in lost:
            graph = job.graph()
            if graph is not None:
                graph.work = None
                graph.again(job.work)

    def _work(self) -> None:
        try:
            with torch.no_grad(), self._work_here:
                while (job := self._next()) is not None:
                    self._do(job)
        except Stopped:
            self._ended()

    def _next(self) -> _Job | None:
        with self._changed:
            self._jobs = [job for job in self._jobs if job.calls >= 0]
            if self._jobs:
                job = self._running = max(self._jobs, key=lambda each: (isinstance(each.work, Confirmation), each.calls))
                self._jobs.remove(job)
                return job
            self._running = None
        self.process.rest()
        return None if self._ended() else self._next()

    def _ended(self) -> bool:
        """Say that the thread ends, unless there is new work; whether it does."""
        with self._changed:
            if self._jobs and not self.process.closed:
                return False
            self._thread = None
            self._changed.notify_all()
            return True

    def _do(self, job: _Job) -> None:
        self._work_here.check()
        graph = job.graph()
        if graph is None:
            return
        graph.work = State.SEARCHING
        try:
            if not isinstance(job.work, Confirmation | Comparison):
                with suppress(TargetUnavailable):  # what is kept needs none
                    self.process.start()  # before a budget is spent
            job.work(graph)
        except Stopped:
            raise
        except BaseException as error:  # a model must run whatever goes wrong in here
            graph.leave(f"{type(error).__name__}: {error}")
            _log.warning("optimizing a graph in the background failed, torch runs it; please report this", exc_info=True)
        with self._changed:
            graph.work = State.QUEUED if any(other.graph() is graph for other in self._jobs) else None
        _log.info("%s", graph)


class Turn:
    """Work on arguments that calls of a graph ask for, one at a time: done by the call or, where there is a `later`, in the
    background; comparisons that are made once more are left to `behind`, if there is one.

    A call that finds other work going on does without.
    """

    def __init__(self, later: Later | None = None, behind: Later | None = None) -> None:
        self._later, self._behind = later, later or behind
        self._taken = threading.Lock()

    def take(
        self, work: Callable[[OwnArguments], None], arguments: Sequence[Any] = (), *, quick: bool = False, again: bool = False
    ) -> None:
        """Do work, or have it done with arguments of its own unless it is `quick`; `again` says that it compares once more. What
        is raised here leaves the turn to others."""
        if not self._taken.acquire(blocking=False):
            return
        later = self._behind if again else None if quick else self._later
        if later is None:
            self._do(work, OwnArguments(arguments))
            return
        try:
            given = OwnArguments.copied(arguments)
        except Exception:  # a model must run whatever goes wrong in here
            self._taken.release()
            _log.warning("arguments of a graph cannot be copied; please report this", exc_info=True)
            return
        later(Comparison(lambda graph: self._do(work, given)) if again else lambda graph: self._do(work, given))

    def _do(self, work: Callable[[OwnArguments], None], given: OwnArguments) -> None:
        try:
            work(given)
        finally:
            self._taken.release()


queue = Queue()
"""Of this process."""
threading._register_atexit(queue.stop)  # type: ignore[attr-defined]  # before pools of threads end, which work may need
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=queue.forked)


def graphs() -> list[BackgroundGraph]:
    """The graphs of this process with kernels that are searched, or tested, in the background, now or before."""
    return queue.graphs


def wait(timeout: float | None = None) -> bool:
    """Wait until nothing is worked on in the background, at most `timeout` seconds; whether that is so.

    Trials need calls, and are not waited for.
    """
    return queue.wait(timeout)
