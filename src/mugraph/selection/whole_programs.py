"""One program through everything: search, compile, measure, prove, compare, remember.

`mugraph.api` is the entrance for people, which reads what they give; a function of which only parts are programs goes through
here part by part (`mugraph.pieces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard, cast, get_args

import numpy as np

from mugraph.devices import Device, device_for, resolved
from mugraph.devices.host import free_memory
from mugraph.errors import InvalidInput, MugraphError
from mugraph.frontend import load_tracer
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.results.coverage import of_program
from mugraph.results.data import Report
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.search import SearchResult, SearchSpace
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.constraints import EVERYTHING
from mugraph.search.executors import Workers, check_workers
from mugraph.search.scheduling.masks import Hidden
from mugraph.search.scheduling.product_rates import with_product_rate
from mugraph.selection.contestants import Contestant, Proved
from mugraph.selection.evidence import Evidence
from mugraph.selection.inputs import hidden_elements, traceable
from mugraph.selection.own_function import before_calls
from mugraph.selection.problems import Problem, program_problem
from mugraph.selection.proposals import Engine, Found, Inquiry, engine_of
from mugraph.selection.qualification import KEPT, Qualifier
from mugraph.selection.reasons import why_as_it_is
from mugraph.selection.result_cache import Postpone, ResultCache
from mugraph.selection.structure_key import of_forms
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, ProgressCallback, silent
from mugraph.support.store import Mode, Store, digest_of
from mugraph.verifier import is_beyond_tests
from mugraph.verifier.certificate import digest as graph_digest
from mugraph.verifier.random_tests import check_max_error

if TYPE_CHECKING:
    pass

Subject = Callable[..., Any] | Program | Graph


@dataclass(frozen=True, slots=True)
class OptimizationSettings:
    """What `mugraph.superoptimize` was asked, but for the function and the budget.

    Raises InvalidInput and TargetUnavailable for what cannot be.
    """

    target: str = "cpu"
    seed: int | None = None
    profile: bool = True
    max_error: float = 2**-40
    evidence: Evidence = "bounded"
    search: Engine = "closure"
    space: SearchSpace | None = None
    workers: Workers = 1
    cache: Store | Mode | str | None = None
    like: tuple[Graph, ...] = ()
    baselines: bool = False
    pack: bool = True
    constants: tuple[str, ...] = ()
    compiled: int | None = None
    """How many muGraphs are compiled, the first by predicted time, and as many more where none of these is proved; None means as
    many as is usual, or of each form asked for one. Of few, none is proved before the search has ended, unless proofs are
    doubtful."""
    candidates: int | None = None
    """How many muGraphs are proved; None means the fastest few, or where none is to be timed the first, which is the result."""
    asked: float | None = None
    """Seconds for all programs of a function, of which the budget is a share."""
    enough: float | None = None
    """Seconds of the budget after which no more is looked for once something is proved."""
    unfinished: bool = False
    """Whether earlier calls with as much time answer that there was too little of it."""
    anew: bool = False
    """Whether it is searched though a result is kept, in the place of which the faster of both is kept."""
    rival: str = "the program"
    """What kernels of a program are to beat."""
    divisible: bool = False
    """Whether pieces of the program are tried where nothing is found of it as a whole: where tests of the whole can have no
    bound, the search ends unless something of what it finds first is proved."""

    def __post_init__(self) -> None:
        check_evidence(self.seed, self.max_error, self.evidence)
        object.__setattr__(self, "target", resolved(self.target))
        device_for(self.target)
        check_workers(self.workers)
        engine_of(self.search)
        for name, asked in (("candidates", self.candidates), ("compiled", self.compiled)):
            if asked is not None and (type(asked) is not int or asked < 1):
                what = "prove" if name == "candidates" else "compile"
                raise InvalidInput(f"{name}={asked!r}: {what} at least one muGraph, or leave it out")
        if not isinstance(self.pack, bool):
            raise InvalidInput(f"pack={self.pack!r}: use True or False")
        if not isinstance(self.space, SearchSpace | None):
            raise InvalidInput(f"space is a mugraph.SearchSpace, not a {type(self.space).__name__}")
        for like in self.like:
            if not isinstance(like, Graph):
                why = "give a result in pieces alone" if isinstance(like, Superoptimized) else f"not a {type(like).__name__}"
                raise InvalidInput(f"like is a muGraph, the graph of an earlier result, or several: {why}")

    @property
    def most(self) -> int:
        """How many muGraphs are proved, at most."""
        if self.candidates is not None:
            return self.candidates
        return KEPT if self.profile else 1

    def key(self, problem: Problem, space: SearchSpace, hidden: Hidden) -> dict[str, Any]:
        """What decides a result that is kept, as JSON values; the rival is what it was faster than, `hidden` what masks hid."""
        return {
            "profile": self.profile,
            "max_error": self.max_error,
            "search": self.search,
            "evidence": self.evidence,
            "seed": self.seed,
            "like": [*map(graph_digest, self.like)],
            "space": space.to_json(),
            "constants": sorted(problem.constants),
            "hidden": {name: digest_of(np.packbits(where).tobytes().hex()) for name, where in hidden.items()},
            "candidates": self.most,
            "compiled": self.compiled,
            "rival": self.rival if problem.own is None else "the function",
            "divisible": self.divisible,
        }


def names_of(constants: Sequence[str]) -> tuple[str, ...]:
    """Names of inputs that do not change between calls; raises InvalidInput for what is none."""
    names = isinstance(constants, Collection) and not isinstance(constants, str)
    if not names or not all(isinstance(name, str) for name in constants):
        raise InvalidInput(f"constants={constants!r}: give names of inputs, such as ('weight',)")
    return tuple(constants)


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


def superoptimize_program(
    program: Graph,
    *,
    budget: float | None = None,
    tell: ProgressCallback = silent,
    postpone: Postpone | None = None,
    timed_rival: Callable[[], float] | None = None,
    **settings: Any,
) -> Superoptimized:
    """The fastest muGraph for a program, as `mugraph.superoptimize` finds it; `settings` are those of `OptimizationSettings`.

    With `postpone` a result that was kept is only glanced at, and its document is handed on for `contradiction_of`. `timed_rival`
    gives the seconds of a call of the `rival`: what was measured to be far slower is not proved.
    """
    problem = replace(program_problem(program, None), timed_rival=timed_rival)
    return superoptimized(problem, OptimizationSettings(**settings), Deadline(budget), tell, postpone)


Elsewhere = Callable[[Graph, float | None, OptimizationSettings], Mapping[str, Any]]
"""Optimizes a program within a budget in another process, and gives the document of `document_of` there."""


def document_of(program: Graph, budget: float | None, wanted: OptimizationSettings) -> dict[str, Any]:
    """What `superoptimize_program` finds as JSON values, for a process that asks this one."""
    prepared = _prepared(program_problem(program, None), wanted, Deadline(budget))
    return prepared.memory.document(_optimized(prepared, wanted, silent))


def superoptimize_program_elsewhere(
    program: Graph,
    elsewhere: Elsewhere,
    *,
    budget: float | None = None,
    tell: ProgressCallback = silent,
    postpone: Postpone | None = None,
    **settings: Any,
) -> Superoptimized:
    """The same, where another process searches, measures and proves what is not kept.

    What it gives is trusted as little as what is kept: it is compiled, compared with float64 and tested again here. Raises what
    `elsewhere` raises, and InvalidInput for an answer that is none.
    """
    wanted = OptimizationSettings(**settings)
    prepared = _prepared(program_problem(program, None), wanted, Deadline(None), tell, postpone)
    prepared = replace(prepared, memory=replace(prepared.memory, budget=budget))
    recalled = prepared.recalled()
    if recalled is not None:
        return recalled
    document = elsewhere(program, budget, wanted)
    try:
        result = prepared.memory.checked(document, prepared.qualifier, prepared.problem.calling)
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"another process answered what is no result ({error}); please report this") from error
    result.report = replace(result.report, recalled=False)
    return result


_MEMORY = 0.25
"""The part of the memory that is free that weights of a program may have, to be packed: candidates pack them differently."""


def _may_be_packed(problem: Problem, wanted: OptimizationSettings) -> frozenset[str]:
    """The inputs that kernels may keep packed; raises InvalidInput for names of none."""
    names = problem.program.input_names
    for name in wanted.constants:
        if name not in names:
            raise InvalidInput(f"constants: the program has no input called {name!r}; it has {', '.join(names)}")
    constants = problem.constants.union(wanted.constants)
    size = sum(node.output.bytes for node in problem.program.inputs() if node["name"] in constants)
    packs = wanted.pack and device_for(wanted.target).packs_weights
    return constants if packs and size <= _MEMORY * free_memory() else frozenset()


def searched_for(problem: Problem, device: Device) -> Device:
    """The machine as the search has it: its products are as fast as what the program multiplies by lets them be."""
    return with_product_rate(problem.program.with_constants(problem.constants), device)


def contradiction_of(program: Graph, document: Mapping[str, Any], wanted: OptimizationSettings) -> str:
    """What speaks against a result that was kept, which is forgotten then; "" if it passes all tests."""
    prepared = _prepared(program_problem(program, None), wanted, Deadline(None))
    try:
        prepared.memory.checked(document, prepared.qualifier, prepared.problem.calling)
    except (KeyError, TypeError, MugraphError) as error:
        prepared.memory.forget()
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A problem with its weights named, its stages, and the place where its result is kept."""

    problem: Problem
    space: SearchSpace
    qualifier: Qualifier
    memory: ResultCache
    hidden: Hidden
    """What masks among the inputs hide."""

    def recalled(self) -> Superoptimized | None:
        """The result of an earlier call, if it is of use here."""
        own = self.problem.own
        return self.memory.recalled(self.qualifier, self.problem.calling, None if own is None else own.fn)


def _prepared(
    problem: Problem,
    wanted: OptimizationSettings,
    deadline: Deadline,
    tell: ProgressCallback = silent,
    postpone: Postpone | None = None,
) -> _Prepared:
    """A problem before its search."""
    space = EVERYTHING if wanted.space is None else wanted.space
    space.check(problem.program)
    constants = _may_be_packed(problem, wanted)
    inputs = traceable(problem.program, problem.inputs) if constants else problem.inputs
    problem = replace(problem, constants=constants, inputs=inputs)
    checks = (wanted.seed, wanted.max_error, wanted.evidence, problem.baseline)
    kept = (problem.constants, wanted.most, problem.timed_rival)
    qualifier = Qualifier(problem.program, wanted.target, deadline, tell, *checks, *kept)
    device = device_for(wanted.target)
    hidden = hidden_elements(problem.program, problem.inputs) if device.skips_iterations else {}
    asked = (problem.program, device, wanted.key(problem, space, hidden), deadline.budget, problem.name)
    memory = ResultCache(Store.of(wanted.cache), *asked, postpone, wanted.asked, wanted.unfinished, wanted.anew)
    return _Prepared(problem, space, qualifier, memory, hidden)


def superoptimized(
    problem: Problem,
    wanted: OptimizationSettings,
    deadline: Deadline,
    tell: ProgressCallback = silent,
    postpone: Postpone | None = None,
) -> Superoptimized:
    """The fastest muGraph that is found for a problem until the deadline; see `mugraph.superoptimize`."""
    return _optimized(_prepared(problem, wanted, deadline, tell, postpone), wanted, tell)


def _optimized(prepared: _Prepared, wanted: OptimizationSettings, tell: ProgressCallback) -> Superoptimized:
    """The fastest muGraph that is found, or that an earlier call has found."""
    problem, space, qualifier, memory = prepared.problem, prepared.space, prepared.qualifier, prepared.memory
    recalled = prepared.recalled()
    if recalled is not None:
        if wanted.baselines and (own := problem.own_on(recalled.executable.machine)) is not None:
            recalled.report = replace(recalled.report, comparison=qualifier.compared(recalled, own, compiled=True))
        return recalled
    original = qualifier.original()  # first, so that a target that cannot be compiled for costs no search
    asked = (problem.program, searched_for(problem, memory.device), wanted.search, space, wanted.workers, memory.store)
    few = None if wanted.like else wanted.compiled  # those of a form are looked for among all
    proposed = qualifier.looked_at if few is None else min(qualifier.looked_at, few)
    inquiry = Inquiry(*asked, candidates=proposed, hidden=prepared.hidden)
    measured = wanted.profile and original.executable.machine.available
    own, whole = problem.own_on(original.executable.machine) if measured else None, qualifier.deadline
    if own is not None:
        qualifier.deadline = before_calls(whole, predicted_seconds(problem.program, memory.device))
    found, early = _found(inquiry, prepared, wanted, measured, tell)
    proved = _proved(found, prepared, wanted, measured, early=early)
    if not proved and _may_go_on(found, qualifier):
        found, tried = inquiry.beyond(found, qualifier.deadline, tell), found.candidates
        proved = _proved(found, prepared, wanted, measured, {candidate.graph for candidate in tried})
    if own is not None:
        proved = qualifier.settle_among(proved, problem.inputs)
    elif measured:
        proved, original = qualifier.settle(proved, original, problem.inputs)
    better = bool(proved) and not original.clearly_faster_than(proved[0].entry)
    result = result_of(qualifier, found, proved, better, original, problem, space)
    if better and own is not None:
        qualifier.deadline = whole
        comparison = qualifier.compared(result, own, wanted.baselines)
        better = comparison is not None and EAGER in comparison.duels and comparison.duels[EAGER].clear
        result = result_of(qualifier, found, proved, better, original, problem, space, comparison)
    if not result.report.interrupted:
        memory.keep(result)
    return result


_FEW = 4
"""Plans with which a search without a budget ends at first: more than are compiled and proved before it goes on."""


def _found(
    inquiry: Inquiry, prepared: _Prepared, wanted: OptimizationSettings, measured: bool, tell: ProgressCallback
) -> tuple[Found, list[Contestant]]:
    """What a search finds and, within a budget or where little is likely to be proved, what of that which it finds first was
    compiled and proved before it goes on."""
    qualifier, early = prepared.qualifier, list[Contestant]()
    if wanted.like:
        return inquiry.of_forms(wanted.like, qualifier.deadline, tell, alone=wanted.compiled is None), early
    if not inquiry.may_end_early:
        return inquiry.found(qualifier.deadline, tell), early
    doubtful = wanted.divisible and wanted.evidence == "bounded" and is_beyond_tests(prepared.problem.program, wanted.max_error)
    if not doubtful and (qualifier.deadline.budget is None or wanted.compiled is not None):
        return inquiry.found(qualifier.deadline, tell), early
    found, better = inquiry.first(qualifier.deadline, tell, enough=_FEW if qualifier.deadline.budget is None else None)
    if found.report.interrupted:
        return found, early
    proposals = _proposals(found, prepared, wanted)
    if measured:
        early = qualifier.first_proved(proposals, prepared.problem.inputs)
    else:  # where the first one fails, others of the same search may fail as it did, while the search knows of better ones
        qualifier.compile_and_prove(proposals[:1] if better or doubtful else proposals, most=1)
    if doubtful and isinstance(found, SearchResult) and qualifier.tried and not qualifier.proved:
        report = replace(found.report, settled=False, left_to_pieces=True)
        return replace(found, candidates=found.candidates[: len(qualifier.tried)], report=report), early
    if wanted.enough is not None:
        qualifier.end_after(wanted.enough)
    if better and isinstance(found, SearchResult) and qualifier.may_prove_another:
        found = inquiry.further(found, qualifier.deadline, tell)
    return found, early


def _proved(
    found: Found,
    prepared: _Prepared,
    wanted: OptimizationSettings,
    measured: bool,
    tried: Collection[Graph] = (),
    early: Sequence[Contestant] = (),
) -> list[Proved]:
    """What is proved of the candidates that were not tried before, fastest first where they are measured, as are those compiled
    `early`."""
    qualifier = prepared.qualifier
    if found.report.interrupted:
        qualifier.answer_interruption()
    proposals = _proposals(found, prepared, wanted, tried)
    if measured:
        known = {entry.graph for entry in early}  # which are in front: what was timed is not behind what there is no time to time
        later = [entry for entry in qualifier.compile(proposals) if entry.graph not in known]
        return qualifier.rank_and_prove([*early, *later], prepared.problem.inputs)
    return qualifier.compile_and_prove(proposals)


def _proposals(
    found: Found, prepared: _Prepared, wanted: OptimizationSettings, tried: Collection[Graph] = ()
) -> list[tuple[Graph, float]]:
    """The candidates that were not tried before, of those that are like what was asked for, with predicted seconds."""
    candidates = [candidate for candidate in found.candidates if candidate.graph not in tried]
    if wanted.like:
        candidates = of_forms(candidates, wanted.like, prepared.problem.program, wanted.compiled)
    return [(candidate.graph, candidate.cost) for candidate in candidates[: wanted.compiled]]


def _may_go_on(found: Found, qualifier: Qualifier) -> TypeGuard[SearchResult]:
    """Whether a search ended because there was nothing to win, and there is time for what it left out."""
    ended = qualifier.interrupted or qualifier.deadline.passed
    return isinstance(found, SearchResult) and found.report.settled and not ended


def reading(deadline: Deadline, tell: ProgressCallback, *subjects: Subject) -> Deadline:
    """The deadline of a call that is about to read subjects: what PyTorch loads the first time is not its time."""
    if all(isinstance(subject, Program | Graph) for subject in subjects):
        return deadline
    tell(Event("trace", "reading the function with PyTorch", deadline.elapsed))
    if deadline.budget is None:
        return deadline
    load_tracer()
    return Deadline(deadline.budget)


def result_of(
    qualifier: Qualifier,
    found: Found,
    proved: Sequence[Proved],
    better: bool,
    original: Contestant,
    problem: Problem,
    space: SearchSpace = EVERYTHING,
    comparison: BaselineComparison | None = None,
) -> Superoptimized:
    """The first of what was proved, where that is `better` than the original, or else the original."""
    chosen = proved[0] if better else qualifier.as_it_is(original)
    timed = original.compared if comparison is None else comparison.baselines.get(EAGER, math.inf)
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
    why = why_as_it_is(report, len(proved), limited=qualifier.deadline.budget is not None)
    report = replace(report, coverage=of_program(problem.program, chosen.entry.graph if better else None, why))
    best, candidates = chosen.candidate(), tuple(entry.candidate() for entry in proved)
    own = None if better or problem.own is None else problem.own.fn
    executable, target = chosen.entry.executable, qualifier.target
    return Superoptimized(qualifier.program, best, candidates, report, executable, problem.calling, target, own=own)
