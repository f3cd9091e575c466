"""The straight path through everything: trace, search, compile, measure, verify, and a callable at the end.

`optimize_graph` is the same path for a muGraph that somebody wrote, without the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from mugraph.devices import device_for
from mugraph.errors import BudgetExceeded, InvalidInput, NotEquivalent
from mugraph.frontend import load_tracer, trace
from mugraph.frontend.calling import Calling, Positional, arguments_of
from mugraph.frontend.comparison import compared
from mugraph.frontend.handwritten import in_place_of
from mugraph.ir.graph import Graph, Level
from mugraph.ir.program import Program
from mugraph.ir.readings import readings
from mugraph.results.data import Report
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.search import Proposal, SearchReport, SearchResult, SearchSpace
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.constraints import EVERYTHING
from mugraph.search.executors import Workers, check_workers
from mugraph.selection.inputs import random_tensors, torch_runner
from mugraph.selection.own_function import OwnCall
from mugraph.selection.proposals import Engine, Found, Inquiry, engine_of
from mugraph.selection.qualification import Contestant, Evidence, Proved, Qualifier
from mugraph.selection.result_cache import ResultCache
from mugraph.selection.structure_key import of_form
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, ProgressCallback, Reporter, silent
from mugraph.support.store import Mode, Store
from mugraph.targets.machine import Machine
from mugraph.verifier import Verdict, prover, verify_graphs
from mugraph.verifier.certificate import digest as graph_digest
from mugraph.verifier.float_checks import Runner
from mugraph.verifier.random_tests import check_max_error, mismatched

Subject = Callable[..., Any] | Program | Graph
ExampleInputs = Sequence[Any] | Mapping[str, Any]


def superoptimize(
    fn: Subject,
    example_inputs: ExampleInputs | None = None,
    target: str = "cpu",
    budget: float | None = None,
    *,
    seed: int | None = None,
    profile: bool = True,
    progress: ProgressCallback | bool | None = None,
    max_error: float = 2**-40,
    evidence: Evidence = "bounded",
    search: Engine = "closure",
    space: SearchSpace | None = None,
    workers: Workers = 1,
    cache: Store | Mode | str | None = None,
    like: Graph | None = None,
    baselines: bool = False,
) -> Superoptimized:
    """Discover the fastest muGraph equivalent to `fn`, and return it as a callable.

    `fn` is a callable on PyTorch tensors, an nn.Module, or a `mugraph.Program`, which needs no example inputs.
    `example_inputs` are its positional arguments or, as a mapping, its keyword arguments: their shapes and dtypes are the
    ones to optimize for. `budget`, in seconds, is for the whole call, however far it gets, but for what PyTorch loads the
    first time that it traces a function in a process; Ctrl-C ends the stage it falls into (search, compilation,
    measurement, proof) with the best so far. `workers` processes search beside each other,
    or the cores of a Ray cluster ("ray", "ray://HOST:PORT"); what is found does not depend on them. With `profile`
    candidates are measured on this machine and ordered by measured time, otherwise, and for a target that can only be
    compiled for here, by predicted time. `progress` gets `mugraph.support.progress.Event`s; True prints them on stderr.
    `max_error` bounds the probability that a graph which is not equivalent is accepted (paper, section 5). Where the verifier's
    theorem gives no bound, candidates are dropped; with `evidence="tested"` those are kept which agree in all tests, in float64
    and in high precision, and the certificate says that no error is claimed. `seed` is that of all random tests: by default the
    operating system's, so that nobody can foresee it; the certificate records it.

    `space` is the part of the search space that is wanted (`mugraph.SearchSpace`): what is found lies in it. Where nothing there
    is better than the original, the result runs that, as always.

    The result is kept for later processes in the user's cache directory, and an earlier one for the same program, device
    and options is compiled and compared with float64 instead of searching again (`mugraph.selection.result_cache`). `cache` is a
    store of yours, or a mode of the user's: "on", "off", "read-only", "force" to search again; None means what
    $MUGRAPH_CACHE says.

    `like` is a muGraph that was fastest at other sizes: only proposals of its form are compiled and proved, and with
    `profile` measured (`mugraph.integrations.dynamic_shapes`).

    Every candidate was proved equivalent at full size and agrees with float64 arithmetic. With `profile`, whole calls of the
    fastest are then timed beside some dozens of `fn` itself, warm and in turns: unless it is clearly the faster, `found` is
    False, and calling the result is calling `fn`. `report.baselines` has these times; with `baselines` also those of `fn` under
    torch.compile, which takes some seconds to compile, beyond the budget.

    Raises UnsupportedOperator for operators outside the table, InvalidInput for tensors that cannot be optimized
    (integers, no elements) and for a space that holds no muGraph of the program, naming the limit at fault, TargetUnavailable for
    targets that are unknown or cannot be compiled for here.
    """
    deadline = Deadline(budget)
    check_evidence(seed, max_error, evidence)
    device = device_for(target)
    check_workers(workers)
    space = EVERYTHING if space is None else space
    if not isinstance(space, SearchSpace):
        raise InvalidInput(f"space is a mugraph.SearchSpace, not a {type(space).__name__}")
    if not isinstance(like, Graph | None):
        raise InvalidInput(f"like is a muGraph, the graph of an earlier result, and not a {type(like).__name__}")
    with ExitStack() as stack:
        tell = stack.enter_context(Reporter()) if progress is True else progress or silent
        deadline = _reading(deadline, tell, fn)
        problem = _problem(fn, example_inputs)
        space.check(problem.program)
        qualifier = Qualifier(problem.program, target, deadline, tell, seed, max_error, evidence, problem.baseline)
        settings: dict[str, Any] = {"profile": profile, "max_error": max_error, "search": engine_of(search), "evidence": evidence}
        settings |= {"seed": seed, "like": None if like is None else graph_digest(like), "space": space.to_json()}
        settings["rival"] = "the program" if problem.own is None else "the function"  # what a result that is kept was faster than
        memory = ResultCache(Store.of(cache), problem.program, device, settings, budget, _called(fn))
        recalled = memory.recalled(qualifier, problem.calling, None if problem.own is None else problem.own.fn)
        if recalled is not None:
            if baselines and (own := problem.own_on(recalled.executable.machine)) is not None:
                recalled.report = replace(recalled.report, comparison=qualifier.compared(recalled, own, compiled=True))
            return recalled
        original = qualifier.original()  # first, so that a target that cannot be compiled for costs no search
        found = Inquiry(problem.program, device, search, space, workers, memory.store).found(deadline, tell)
        if found.report.interrupted:
            qualifier.answer_interruption()
        candidates = found.candidates if like is None else of_form(found.candidates, like, problem.program)
        proposals = [(candidate.graph, candidate.cost) for candidate in candidates]
        measured = profile and original.executable.machine.available
        own = problem.own_on(original.executable.machine) if measured else None
        if measured:
            proved = qualifier.prove(qualifier.rank(qualifier.compile(proposals), problem.inputs))
        else:
            proved = qualifier.compile_and_prove(proposals)
        if own is not None:
            proved = qualifier.settle_among(proved, problem.inputs)
        elif measured:
            proved, original = qualifier.settle(proved, original, problem.inputs)
        better = bool(proved) and not original.clearly_faster_than(proved[0].entry)
        result = _result(qualifier, found, proved, better, original, problem, space)
        if better and own is not None:
            comparison = qualifier.compared(result, own, baselines)
            better = comparison is not None and EAGER in comparison.duels and comparison.duels[EAGER].clear
            result = _result(qualifier, found, proved, better, original, problem, space, comparison)
        if not result.report.interrupted:
            memory.keep(result)
        return result


def optimize_graph(
    graph: str | Graph,
    fn: Subject,
    example_inputs: ExampleInputs | None = None,
    target: str = "cpu",
    budget: float | None = None,
    *,
    seed: int | None = None,
    profile: bool = True,
    progress: ProgressCallback | bool | None = None,
    max_error: float = 2**-40,
    evidence: Evidence = "bounded",
    baselines: bool = False,
) -> Superoptimized:
    """Prove that a muGraph somebody wrote computes `fn`, compile it, and return it as a callable.

    `graph` is its text, as muGraphs are printed (`mugraph.ir.text`), or a graph. Its inputs are found in the program by their
    names, or if it has other names by their places. Elementwise chains become thread graphs, as those of muGraphs that were
    found do; everything else is compiled as it stands. The other parameters are those of `superoptimize`, and so is the result,
    but that it runs this muGraph even where the original was measured to be faster (`report.original_latency`).

    Raises InvalidInput or InvalidGraph, naming line, operator or limit, for what is no valid muGraph on the device;
    ShapeMismatch where it does not take and return what the program does; NotEquivalent, with inputs at which both differ where
    some are found, unless it is proved to compute the program and agrees with float64; BudgetExceeded where the time for that was
    too short; and what `superoptimize` raises for functions, tensors and targets.
    """
    deadline = Deadline(budget)
    check_evidence(seed, max_error, evidence)
    device = device_for(target)
    with ExitStack() as stack:
        tell = stack.enter_context(Reporter()) if progress is True else progress or silent
        deadline = _reading(deadline, tell, fn)
        problem = _problem(fn, example_inputs)
        written = in_place_of(problem.program, graph, device)
        qualifier = Qualifier(problem.program, target, deadline, tell, seed, max_error, evidence, problem.baseline)
        original, entry = qualifier.original(), qualifier.built(written, predicted_seconds(written, device))
        measured = profile and original.executable.machine.available
        proved = qualifier.prove(qualifier.rank([entry], problem.inputs) if measured else [entry])
        if not proved:
            raise KeyboardInterrupt if qualifier.interrupted else _refused(qualifier, entry)
        own = problem.own_on(entry.executable.machine) if measured else None
        if measured and own is None:
            proved, original = qualifier.settle(proved, original, problem.inputs)
        nothing = SearchResult([Proposal(written, 0.0)], SearchReport(refused="the muGraph was given"))
        result = _result(qualifier, nothing, proved, True, original, problem)
        if own is None:
            return result
        return _result(qualifier, nothing, proved, True, original, problem, comparison=qualifier.compared(result, own, baselines))


def _refused(qualifier: Qualifier, entry: Contestant) -> BudgetExceeded | NotEquivalent:
    """Why a muGraph that was given is not run: where it differs from the program, or else what is missing."""
    if not qualifier.rejected:
        return BudgetExceeded("the muGraph was not proved to compute the program in time; raise the budget")
    rejection = qualifier.rejected[0]
    verdict = verify_graphs(qualifier.program, entry.graph, seed=qualifier.seed, budget=qualifier.deadline.remaining)
    if verdict.counterexample is not None:
        return NotEquivalent(f"the muGraph does not compute the program: {verdict.counterexample}")
    return NotEquivalent(f"the muGraph is not shown to compute the program ({rejection.stage}: {rejection.reason})")


def verify(
    fn_a: Subject,
    fn_b: Subject,
    example_inputs: ExampleInputs | None = None,
    max_error: float = 2**-40,
    *,
    seed: int | None = None,
    properties: Sequence[str] = (),
    for_all_weights: bool = False,
    budget: float | None = None,
) -> Verdict:
    """Decide whether two functions (or Programs) compute the same outputs on inputs of these shapes.

    The verdict's `outcome` is "equivalent", "different" or "undecided". `error_bound` is the probability, over the recorded
    random draw, that a pair which is not equivalent is called so; `counterexample` is the witness of programs that are different.
    Inputs given by name correspond by name, others by position; outputs are compared with the structure they are returned in.
    Tensors that the functions bring along are the same constant where they are the same or have the same values, and otherwise
    different ones; `for_all_weights` asks instead whether the functions agree whatever these hold, matched by their names.
    `properties` are equations that hold of operators outside the paper's fragment, such as "max(relu(x)) == relu(max(x))", for a
    prover to use beside those it knows (it needs the extra `prover`). `budget` is in seconds, but for what PyTorch loads the
    first time that it traces a function in a process; when it ends before an answer, the question is undecided. Errors are those
    of `superoptimize`, and InvalidInput for properties that do not hold.
    """
    check_evidence(seed, max_error)
    deadline = _reading(Deadline(budget), silent, fn_a, fn_b)
    pair = compared(fn_a, fn_b, example_inputs, for_all_weights=for_all_weights)
    if pair.mismatch is not None:
        verdict = mismatched(pair.left, pair.right, pair.mismatch, max_error, seed)
    else:
        verdict = prover.verify(
            pair.left,
            pair.right,
            properties=properties,
            max_error=max_error,
            seed=seed,
            budget=deadline.remaining,
            known=pair.fixed,
        )
    read = tuple(dict.fromkeys((*readings(pair.left), *readings(pair.right))))
    return replace(verdict, question=pair.question, certificate=replace(verdict.certificate, readings=read))


def check_evidence(seed: object, max_error: object, evidence: object = "bounded") -> None:
    """Raise InvalidInput for what is no seed of random tests, no bound on their error, or no kind of evidence."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise InvalidInput(f"seed is an integer, at least 0, or None for a fresh one, not {seed!r}")
    check_max_error(max_error)
    evidence_of(evidence)


def evidence_of(name: object) -> Evidence:
    """The kind of evidence called `name`; raises InvalidInput naming the known ones otherwise."""
    for evidence in get_args(Evidence):
        if name == evidence:
            return cast(Evidence, evidence)
    raise InvalidInput(f"unknown kind of evidence {name!r}; use one of {', '.join(get_args(Evidence))}")


def _reading(deadline: Deadline, tell: ProgressCallback, *subjects: Subject) -> Deadline:
    """The deadline of a call that is about to read subjects: what PyTorch loads the first time is not its time."""
    if all(isinstance(subject, Program | Graph) for subject in subjects):
        return deadline
    tell(Event("trace", "reading the function with PyTorch", deadline.elapsed))
    if deadline.budget is None:
        return deadline
    load_tracer()
    return Deadline(deadline.budget)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What the user gave: a program, how it is called, tensors to run it on, and itself, to be called and to measure rounding."""

    program: Graph
    calling: Calling
    inputs: list[Any]
    baseline: Runner | None = None
    own: OwnCall | None = None

    def own_on(self, machine: Machine) -> OwnCall | None:
        """The call of the user's function on tensors where the machine's kernels read them; None where there is none."""
        return None if self.own is None else self.own.on(machine, self.inputs)


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
    args, kwargs = arguments_of(example_inputs)
    return _Problem(traced.graph, traced, traced.values(args, kwargs), torch_runner(fn, traced), OwnCall(fn, args, kwargs))


def _called(fn: Subject) -> str:
    """What people call a function, a module or a program."""
    kind = type(fn).__name__
    return str(getattr(fn, "__name__", kind)) if callable(fn) else kind.lower()


def _result(
    qualifier: Qualifier,
    found: Found,
    proved: Sequence[Proved],
    better: bool,
    original: Contestant,
    problem: _Problem,
    space: SearchSpace = EVERYTHING,
    comparison: BaselineComparison | None = None,
) -> Superoptimized:
    """The first of what was proved, where that is `better` than the original, or else the original."""
    chosen = proved[0] if better else qualifier.as_it_is(original)
    timed = original.latency if comparison is None else comparison.baselines.get(EAGER, math.inf)
    report = Report(
        found=better,
        search=found.report.to_json(),
        proposed=len(found.candidates),
        rejected=tuple(qualifier.rejected),
        compile_seconds=qualifier.seconds["compile"],
        measure_seconds=qualifier.seconds["measure"],
        verify_seconds=qualifier.seconds["verify"],
        total_seconds=qualifier.deadline.elapsed,
        original_latency=timed if math.isfinite(timed) else None,
        seed=qualifier.sampling_seed,
        interrupted=found.report.interrupted or qualifier.interrupted,
        space=str(space) if space else None,
        comparison=comparison,
    )
    best, candidates = chosen.candidate(), tuple(entry.candidate() for entry in proved)
    own = None if better or problem.own is None else problem.own.fn
    executable, target = chosen.entry.executable, qualifier.target
    return Superoptimized(qualifier.program, best, candidates, report, executable, problem.calling, target, own=own)
