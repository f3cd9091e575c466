"""The straight path through everything: trace, search, compile, measure, verify, and a callable at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from mugraph.calling import Calling, Positional, arguments_of
from mugraph.deadline import Deadline
from mugraph.devices import Device, device_for
from mugraph.errors import BudgetExceeded, InvalidInput, UndefinedInField, UnsupportedOperator
from mugraph.forms import of_form
from mugraph.frontend import load_tracer, trace
from mugraph.ir.graph import Graph, Level
from mugraph.ir.program import Program
from mugraph.progress import Event, ProgressCallback, Reporter, silent
from mugraph.qualify import Contestant, Proved, Qualifier
from mugraph.recall import Memory
from mugraph.result import Report, Superoptimized
from mugraph.samples import random_tensors, torch_runner
from mugraph.search import Progress, SearchReport, SearchResult
from mugraph.search import search as closure_search
from mugraph.search.enumeration import EnumerationOptions, EnumerationResult, enumerate_graphs
from mugraph.search.long import LONG
from mugraph.search.notes import Shelf
from mugraph.search.parallel import Workers, check_workers, local_processes
from mugraph.store import Mode, Store
from mugraph.verifier import Verdict, prover
from mugraph.verifier.certificate import digest as graph_digest
from mugraph.verifier.floats import Runner
from mugraph.verifier.random_tests import check_max_error

_SEARCH_SHARE = 0.5
"""The part of a budget the search may use; compiling, measuring and verifying take the rest."""

_LONG_SEARCH_SHARE = 0.3
"""That part for programs that are searched in stretches, each candidate of which has many kernels to be compiled and proved."""

Engine = Literal["closure", "enumerate"]
Subject = Callable[..., Any] | Program | Graph
ExampleInputs = Sequence[Any] | Mapping[str, Any]


def superoptimize(
    fn: Subject,
    example_inputs: ExampleInputs | None = None,
    target: str = "cpu",
    budget: float | None = None,
    *,
    seed: int = 0,
    profile: bool = True,
    progress: ProgressCallback | bool | None = None,
    max_error: float = 2**-40,
    search: Engine = "closure",
    workers: Workers = 1,
    cache: Store | Mode | str | None = None,
    like: Graph | None = None,
) -> Superoptimized:
    """Discover the fastest muGraph equivalent to `fn`, and return it as a callable.

    `fn` is a callable on PyTorch tensors, an nn.Module, or a `mugraph.Program`, which needs no example inputs.
    `example_inputs` are its positional arguments or, as a mapping, its keyword arguments: their shapes and dtypes are the
    ones to optimize for. `budget`, in seconds, is for the whole call, however far it gets, but for what PyTorch loads the
    first time that it traces a function in a process; Ctrl-C ends the stage it falls into (search, compilation,
    measurement, proof) with the best so far. `workers` processes search beside each other,
    or the cores of a Ray cluster ("ray", "ray://HOST:PORT"); what is found does not depend on them. With `profile`
    candidates are measured on this machine and ordered by measured time, otherwise, and for a target that can only be
    compiled for here, by predicted time. `progress` gets `mugraph.progress.Event`s; True prints them on stderr.
    `max_error` bounds the probability that a graph which is not equivalent is accepted, wherever the verifier's theorem
    gives a bound (paper, section 5).

    The result is kept for later processes in the user's cache directory, and an earlier one for the same program, device
    and options is compiled and compared with float64 instead of searching again (`mugraph.recall`). `cache` is a store of
    yours, or a mode of the user's: "on", "off", "read-only", "force" to search again; None means what $MUGRAPH_CACHE says.

    `like` is a muGraph that was fastest at other sizes: only proposals of its form are compiled and proved, and with
    `profile` measured (`mugraph.dynamic`).

    Every candidate was proved equivalent at full size and agrees with float64 arithmetic. When nothing better than the
    original is found, the result runs the original and its `found` is False.

    Raises UnsupportedOperator for operators outside the table, InvalidInput for tensors that cannot be optimized
    (integers, no elements), TargetUnavailable for targets that are unknown or cannot be compiled for here.
    """
    deadline = Deadline(budget)
    check_evidence(seed, max_error)
    device = device_for(target)
    check_workers(workers)
    if not isinstance(like, Graph | None):
        raise InvalidInput(f"like is a muGraph, the graph of an earlier result, and not a {type(like).__name__}")
    with ExitStack() as stack:
        tell = stack.enter_context(Reporter()) if progress is True else progress or silent
        if not isinstance(fn, Program | Graph):
            tell(Event("trace", "reading the function with PyTorch", deadline.elapsed))
            if budget is not None:
                load_tracer()
                deadline = Deadline(budget)
        problem = _problem(fn, example_inputs)
        qualifier = Qualifier(problem.program, target, deadline, tell, seed, max_error, problem.baseline)
        form = None if like is None else graph_digest(like)
        settings = {"seed": seed, "profile": profile, "max_error": max_error, "search": engine_of(search), "like": form}
        memory = Memory(Store.of(cache), problem.program, device, settings, budget)
        recalled = memory.recalled(qualifier, problem.calling)
        if recalled is not None:
            return recalled
        original = qualifier.original()  # first, so that a target that cannot be compiled for costs no search
        found = _search(problem.program, device, deadline, tell, search, workers, memory.store)
        candidates = found.candidates if like is None else of_form(found.candidates, like, problem.program)
        proposals = [(candidate.graph, candidate.cost) for candidate in candidates]
        if profile and original.executable.machine.available:
            proved = qualifier.prove(qualifier.rank(qualifier.compile(proposals), problem.inputs))
            proved, original = qualifier.settle(proved, original, problem.inputs)
        else:
            proved = qualifier.compile_and_prove(proposals)
        result = _result(qualifier, found, proved, original, problem.calling)
        if not result.report.interrupted:
            memory.keep(result)
        return result


def verify(
    fn_a: Subject,
    fn_b: Subject,
    example_inputs: ExampleInputs | None = None,
    max_error: float = 2**-40,
    *,
    seed: int = 0,
    properties: Sequence[str] = (),
) -> Verdict:
    """Decide whether two functions (or Programs) compute the same outputs on inputs of these shapes.

    The verdict's `error_bound` is the probability that a pair which is not equivalent is accepted, None where no
    theorem gives one; `counterexample` says where they differ. `properties` are equations that hold of operators outside
    the paper's fragment, such as "max(relu(x)) == relu(max(x))", for a prover to use beside those it knows (it needs
    the extra `prover`). Errors are those of `superoptimize`, and InvalidInput for properties that do not hold.
    """
    check_evidence(seed, max_error)
    program_a, program_b = _problem(fn_a, example_inputs).program, _problem(fn_b, example_inputs).program
    return prover.verify(program_a, program_b, properties=properties, max_error=max_error, seed=seed)


def check_evidence(seed: object, max_error: object) -> None:
    """Raise InvalidInput for what is no seed of random tests, or no bound on their error."""
    if not isinstance(seed, int) or seed < 0:
        raise InvalidInput(f"seed is an integer, at least 0, not {seed!r}")
    check_max_error(max_error)


def engine_of(name: str) -> Engine:
    """The search engine called `name`; raises InvalidInput naming the known ones otherwise."""
    for engine in get_args(Engine):
        if name == engine:
            return cast(Engine, engine)
    raise InvalidInput(f"unknown search engine {name!r}; use one of {', '.join(get_args(Engine))}")


@dataclass(frozen=True, slots=True)
class _Problem:
    """What the user gave: a program, how it is called, tensors to run it on, and itself as the measure of rounding."""

    program: Graph
    calling: Calling
    inputs: list[Any]
    baseline: Runner | None = None


def _problem(fn: Subject, example_inputs: ExampleInputs | None) -> _Problem:
    if isinstance(fn, Program):
        fn = fn.graph
    if isinstance(fn, Graph):
        if fn.level is not Level.KERNEL:
            raise InvalidInput(f"only a kernel graph can be optimized, not a {fn.level} graph")
        if not fn.input_names:
            raise InvalidInput("the program reads nothing, so its outputs are constants; give it an input")
        calling = Positional.of(fn)
        given = example_inputs is not None
        return _Problem(fn, calling, calling.flatten(*arguments_of(example_inputs)) if given else random_tensors(fn, seed=0))
    if not callable(fn):
        raise InvalidInput(f"cannot optimize a {type(fn).__name__}; give a function of PyTorch tensors or a mugraph.Program")
    if example_inputs is None:
        raise InvalidInput("give example_inputs, a tuple of tensors of the shapes and dtypes to optimize for")
    traced = trace(fn, example_inputs)
    return _Problem(traced.graph, traced, traced.flatten(*arguments_of(example_inputs)), torch_runner(fn, traced))


def _search(
    program: Graph,
    device: Device,
    deadline: Deadline,
    tell: ProgressCallback,
    engine: Engine,
    workers: Workers,
    shelf: Shelf,
) -> SearchResult | EnumerationResult:
    long = len(program.kernels()) > LONG
    budget, begun = deadline.share(_LONG_SEARCH_SHARE if long else _SEARCH_SHARE), deadline.elapsed
    if engine_of(engine) == "enumerate":
        limit = math.inf if budget is None else budget
        processes = local_processes(workers)
        return enumerate_graphs(program, device, EnumerationOptions(time_limit=limit, processes=processes))

    def report(moment: Progress) -> None:
        best = "" if moment.best is None else f", best predicted {moment.best * 1e3:.3g} ms"
        tell(Event("search", f"{moment.stage}, {moment.states} tensors, {moment.found} muGraphs{best}", deadline.elapsed))

    try:
        return closure_search(program, device, budget=budget, progress=report, workers=workers, shelf=shelf)
    except BudgetExceeded:
        return SearchResult([], SearchReport(seconds=deadline.elapsed - begun))
    except (UndefinedInField, UnsupportedOperator) as error:  # out of the search's reach: the program runs as it is
        return SearchResult([], SearchReport(seconds=deadline.elapsed - begun, refused=str(error)))
    except RecursionError:
        too_long = "its chains of operators are too long to search"
        return SearchResult([], SearchReport(seconds=deadline.elapsed - begun, refused=too_long))


def _result(
    qualifier: Qualifier,
    found: SearchResult | EnumerationResult,
    proved: Sequence[Proved],
    original: Contestant,
    calling: Calling,
) -> Superoptimized:
    """The best proved candidate, or the original where nothing was proved or it was measured to be clearly faster."""
    better = bool(proved) and not original.clearly_faster_than(proved[0].entry)
    chosen = proved[0] if better else qualifier.as_it_is(original)
    report = Report(
        found=better,
        search=found.report.to_json(),
        proposed=len(found.candidates),
        rejected=tuple(qualifier.rejected),
        compile_seconds=qualifier.seconds["compile"],
        measure_seconds=qualifier.seconds["measure"],
        verify_seconds=qualifier.seconds["verify"],
        total_seconds=qualifier.deadline.elapsed,
        original_latency=original.latency if math.isfinite(original.latency) else None,
        interrupted=found.report.interrupted or qualifier.interrupted,
    )
    best, candidates = chosen.candidate(), tuple(entry.candidate() for entry in proved)
    return Superoptimized(qualifier.program, best, candidates, report, chosen.entry.executable, calling, qualifier.target)
