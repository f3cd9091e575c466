"""The straight path through everything: trace, search, compile, measure, verify, and a callable at the end.

`optimize_graph` is the same path for a muGraph that somebody wrote, without the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload

from mugraph.devices import device_for, resolved
from mugraph.errors import BudgetExceeded, ExceedsMemory, InvalidInput, NotEquivalent, UnsupportedOperator
from mugraph.frontend import record, require_torch
from mugraph.frontend.calls.calling import arguments_of
from mugraph.frontend.comparison import compared
from mugraph.frontend.handwritten import in_place_of
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.ir.readings import readings
from mugraph.pieces.whole_or_pieces import FunctionSearch, problem_of_call
from mugraph.results.serialization import BATCHES, CAPACITIES, ONE_PROGRAM, RANGES, SavedProgram, kind_of, read_manifest
from mugraph.results.superoptimized import Superoptimized, load_program
from mugraph.search import Proposal, SearchReport, SearchResult, SearchSpace
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.executors import Workers
from mugraph.selection.contestants import Contestant
from mugraph.selection.evidence import Evidence
from mugraph.selection.problems import ExampleInputs, Problem, program_problem
from mugraph.selection.proposals import Engine, engine_of
from mugraph.selection.qualification import Qualifier
from mugraph.selection.target_of_inputs import target_of_inputs
from mugraph.selection.whole_programs import (
    OptimizationSettings,
    Subject,
    check_evidence,
    names_of,
    reading,
    result_of,
    superoptimized,
)
from mugraph.sizes.dims import Declaration
from mugraph.sizes.dynamic_results import DynamicSuperoptimized
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.support.deadline import Deadline
from mugraph.support.progress import ProgressCallback, Reporter, silent, since
from mugraph.support.store import Mode, Store
from mugraph.verifier import Verdict, prover, verify_graphs
from mugraph.verifier.counterexamples import Counterexample
from mugraph.verifier.random_tests import mismatched

if TYPE_CHECKING:
    from mugraph.frontend.recording.torch_trace import RecordedCall


class _Asked(TypedDict, total=False):
    seed: int | None
    profile: bool
    progress: ProgressCallback | bool | None
    max_error: float
    evidence: Evidence
    search: Engine
    space: SearchSpace | None
    workers: Workers
    cache: Store | Mode | str | None
    like: Graph | Superoptimized | Sequence[Graph | Superoptimized] | None
    baselines: bool
    pack: bool
    constants: Sequence[str]
    compiled: int | None
    candidates: int | None


@overload
def superoptimize(
    fn: Subject,
    example_inputs: ExampleInputs | None = None,
    target: str | None = None,
    budget: float | None = None,
    *,
    dynamic: None = None,
    **asked: Unpack[_Asked],
) -> Superoptimized: ...


@overload
def superoptimize(
    fn: Subject,
    example_inputs: ExampleInputs | None = None,
    target: str | None = None,
    budget: float | None = None,
    *,
    dynamic: Declaration,
    **asked: Unpack[_Asked],
) -> DynamicSuperoptimized: ...


def superoptimize(
    fn: Subject,
    example_inputs: ExampleInputs | None = None,
    target: str | None = None,
    budget: float | None = None,
    *,
    dynamic: Declaration | None = None,
    seed: int | None = None,
    profile: bool = True,
    progress: ProgressCallback | bool | None = None,
    max_error: float = 2**-40,
    evidence: Evidence = "bounded",
    search: Engine = "closure",
    space: SearchSpace | None = None,
    workers: Workers = 1,
    cache: Store | Mode | str | None = None,
    like: Graph | Superoptimized | Sequence[Graph | Superoptimized] | None = None,
    baselines: bool = False,
    pack: bool = True,
    constants: Sequence[str] = (),
    compiled: int | None = None,
    candidates: int | None = None,
) -> Superoptimized | DynamicSuperoptimized:
    """Discover the fastest muGraph equivalent to `fn`, and return it as a callable.

    `fn` is a callable on PyTorch tensors, an nn.Module, or a `mugraph.Program`, which needs no example inputs.
    `example_inputs` are its positional arguments or, as a mapping, its keyword arguments: their shapes and dtypes are the
    ones to optimize for. `target` is `cpu`, a GPU as in `cuda:sm_90`, `cuda:sm_80:a100-80gb` or `triton:sm_90`, or `cuda` for
    PyTorch's current GPU, which the result names; by default `cuda` for the GPU that example inputs lie on, and `cpu` elsewhere.
    `budget`, in seconds, is for the whole call, however far it gets, but for what PyTorch loads the first time that it traces a
    function in a process; Ctrl-C ends the stage it falls into (search, compilation, measurement, proof) with the best so far.
    `workers` processes search beside each other, or the cores of a Ray cluster ("ray", "ray://HOST:PORT"); what is found does not
    depend on them. With `profile` candidates are measured on this machine and ordered by measured time, or, for a target that can
    only be compiled for here, by predicted time; without, the first by predicted time is proved, and no other. Where nothing is
    measured, the first 16 for some GPUs are lowered, and put in order once more by what that shows (docs/cuda-target.md, "The
    order by lowered kernels"). `progress` gets `mugraph.support.progress.Event`s; True prints them on stderr. `max_error` bounds
    the probability that a graph which is not equivalent is accepted (paper, section 5).
    Where the verifier's theorem gives no bound, candidates are dropped; with `evidence="tested"` those are kept which agree in
    all tests, in float64 and in high precision, and the certificate says that no error is claimed. `seed` is that of all random
    tests: by default the operating system's, so that nobody can foresee it; the certificate records it.

    `compiled` is how many muGraphs of a program as a whole are compiled at most, the first by predicted time: by default 16, and
    never more. Where none of these is proved and more were left out, as many others are. `candidates` is how many are proved at
    most, the fastest ones: by default three, or without `profile` one, and one of each size of a range that others are put
    together of. Pieces of a function have their own numbers.

    `space` is the part of the search space that is wanted (`mugraph.SearchSpace`): what is found lies in it. Where nothing there
    is better than the original, the result runs that, as always.

    The result is kept for later processes in the user's cache directory, and an earlier one for the same program, device
    and options is compiled and compared with float64 instead of searching again (`mugraph.selection.result_cache`). `cache` is a
    store of yours, or a mode of the user's: "on", "off", "read-only", "force" to search again; None means what
    $MUGRAPH_CACHE says.

    `dynamic` declares dimensions of arguments whose sizes vary, as in `{0: {0: mugraph.Dim("batch", 1, 64)}}` or
    `{"x": {0: ...}}`: the result takes all of these sizes (`mugraph.sizes.dynamic_results.DynamicSuperoptimized`), and `budget`
    is for the sizes that are searched together.

    `like` is a muGraph, or a result, that was fastest at other sizes, or several of them: only proposals of their forms are
    compiled and proved, and with `profile` measured, one of each form; with `compiled` those of the first forms, and others
    behind them, so many in all. With a result in pieces, which is given alone, the function is cut again, programs in it that
    have the form of one there are scheduled as that was, and others are searched.

    Every candidate was proved equivalent at full size and agrees with float64 arithmetic. With `profile`, whole calls of the
    fastest are then timed beside some dozens of `fn` itself, warm and in turns: unless it is clearly the faster, `found` is
    False, and calling the result is calling `fn`. `report.baselines` has these times; with `baselines` also those of `fn` under
    torch.compile, which takes some seconds to compile, beyond the budget.

    A function need not be a program as a whole: kernels then run the programs in it, and PyTorch the rest
    (`mugraph.pieces.partitioned.Partitioned`); `report.coverage` says which is which.

    Tensors that a module or function brings along are taken to be the same in most calls, and so are the arguments that
    `constants` names. With `pack`, on a CPU, weights among them are kept as kernels, or the library, read them fastest too, where
    that was measured to be faster; this takes their memory once more. Where one changed, it is packed again in the next call.

    Raises UnsupportedOperator and InvalidInput for functions that PyTorch cannot record, with the line at fault, and
    InvalidInput for example inputs on several devices where no target is named, and for a space that holds no muGraph of the
    program, naming the limit at fault; with `like` or another engine also for what is no program; TargetUnavailable for targets
    that are unknown or cannot be compiled for here.
    """
    if dynamic is not None:
        asked: _Asked = {
            "seed": seed,
            "profile": profile,
            "progress": progress,
            "max_error": max_error,
            "evidence": evidence,
            "search": search,
            "space": space,
            "workers": workers,
            "cache": cache,
            "like": like,
            "baselines": baselines,
            "pack": pack,
            "constants": constants,
            "compiled": compiled,
            "candidates": candidates,
        }
        return _at_all_sizes(fn, example_inputs, dynamic, budget, {"target": target, **asked})
    deadline = Deadline(budget)
    forms, pieces = _forms_and_pieces(like)
    with ExitStack() as stack:
        settings = OptimizationSettings(
            stack.enter_context(target_of_inputs(target, example_inputs)),
            seed,
            profile,
            max_error,
            evidence,
            engine_of(search),
            space,
            workers,
            cache,
            forms,
            baselines,
            pack,
            names_of(constants),
            compiled,
            candidates,
        )
        tell = stack.enter_context(Reporter()) if progress is True else progress or silent
        deadline = reading(deadline, tell, fn)
        tell = since(deadline, tell)
        if isinstance(fn, Program | Graph):
            return superoptimized(program_problem(fn, example_inputs), settings, deadline, tell)
        return FunctionSearch(*_recorded(fn, example_inputs), settings, deadline, tell).optimized(pieces)


def _at_all_sizes(
    fn: Subject, example_inputs: ExampleInputs | None, dynamic: Declaration, budget: float | None, settings: Mapping[str, Any]
) -> DynamicSuperoptimized:
    """The function for ranges of sizes; raises InvalidInput for what has no sizes that vary."""
    if not callable(fn) or isinstance(fn, Program | Graph) or example_inputs is None:
        raise InvalidInput("dynamic dimensions are those of a PyTorch function's example_inputs; a program has fixed sizes")
    if settings["like"] is not None:
        raise InvalidInput("like= is for one size; leave it out with dynamic=")
    with target_of_inputs(settings["target"], example_inputs) as target:
        chosen = {name: value for name, value in settings.items() if name != "like"} | {"target": target}
        return superoptimized_for_sizes(superoptimize, fn, arguments_of(example_inputs), dynamic, None, budget, chosen)


def _forms_and_pieces(
    like: Graph | Superoptimized | Sequence[Graph | Superoptimized] | None,
) -> tuple[tuple[Graph, ...], Superoptimized | None]:
    """The muGraphs that programs are to be like as a whole, or the result whose pieces those in a function are to be like."""
    if isinstance(like, Superoptimized) and not like.is_one_program:
        return (), like
    likes = like if isinstance(like, list | tuple) else () if like is None else (like,)
    whole = (each.graph if isinstance(each, Superoptimized) and each.is_one_program else each for each in likes)
    return cast(tuple[Graph, ...], tuple(whole)), None  # what else is among them is refused with the other settings


def optimize_graph(
    graph: str | Graph,
    fn: Subject,
    example_inputs: ExampleInputs | None = None,
    target: str | None = None,
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
    with ExitStack() as stack:
        target = resolved(stack.enter_context(target_of_inputs(target, example_inputs)))
        device = device_for(target)
        tell = stack.enter_context(Reporter()) if progress is True else progress or silent
        deadline = reading(deadline, tell, fn)
        problem = _problem_of(fn, example_inputs)
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
        result = result_of(qualifier, nothing, proved, True, original, problem)
        if own is None:
            return result
        comparison = qualifier.compared(result, own, baselines)
        return result_of(qualifier, nothing, proved, True, original, problem, comparison=comparison)


def rebuild(
    path: str | Path,
    target: str = "cuda",
    budget: float | None = None,
    *,
    seed: int | None = None,
    profile: bool = True,
    progress: ProgressCallback | bool | None = None,
    max_error: float = 2**-40,
    evidence: Evidence = "bounded",
) -> Superoptimized:
    """The saved result in a folder for another target, by default the GPU that is here: the same muGraph, nothing is searched.

    What the folder claims is not believed: each muGraph is proved to compute its program, compiled and compared with float64 as
    by `optimize_graph`, whose other parameters these are. It was the fastest for the target it was found for; another may be for
    this one, which `superoptimize` finds. The result is called as one that `load` reads.

    Raises what `optimize_graph` raises, so ExceedsMemory where a block takes more memory than the target has; InvalidInput for a
    folder that is none or runs the original function, and for one with calls of PyTorch that are cut for another kind of device.
    """
    folder, target, deadline = Path(path), resolved(target), Deadline(budget)

    def rebuilt_program(place: Path) -> Superoptimized:
        saved = SavedProgram.of(place)
        if not saved.report.found:
            raise InvalidInput(f"{place} runs the original, as no muGraph was faster; optimize the function for {target}")
        try:
            result = optimize_graph(
                saved.best.graph.with_constants(()),
                saved.program,
                None,
                target,
                deadline.remaining,
                seed=seed,
                profile=profile,
                progress=progress,
                max_error=max_error,
                evidence=evidence,
            )
        except ExceedsMemory as error:
            found_for = saved.manifest["target"]
            raise ExceedsMemory(f"{error}: the muGraph was found for {found_for}; optimize the function for {target}") from None
        result.calling = saved.calling
        result.origin.update(saved.manifest["origin"])
        return result

    kind = kind_of(read_manifest(folder))
    if kind == ONE_PROGRAM:
        return rebuilt_program(folder)
    if kind in RANGES:
        programs = f"{BATCHES}/*/{CAPACITIES}" if kind == BATCHES else kind
        raise InvalidInput(
            f"{folder} holds a range of sizes, which is rebuilt one result at a time: mugraph.rebuild each folder in {programs}, "
            f"or optimize the function for {target} again, for a range there"
        )
    require_torch(f"to run parts of {folder}")
    from mugraph.pieces.partitioned import rebuilt

    return rebuilt(folder, target, rebuilt_program, deadline)


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
    dynamic: Declaration | None = None,
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
    prover to use beside those it knows (it needs the extra `prover`). Of functions that are no programs as a whole, calls that
    PyTorch makes of one operator with equal operands are taken to be equal (`mugraph.pieces.comparing`). `budget` is in seconds,
    but for what PyTorch loads the first time that it traces a function in a process; when it ends before an answer, the question
    is undecided. Errors are those of `superoptimize`, and InvalidInput for properties that do not hold.

    `dynamic` declares dimensions of arguments whose sizes vary, as `superoptimize` takes it: the question is then asked of all
    sizes of their ranges, from 1 on. Of sums, products, quotients and exponentials a few sizes decide about all, which `sizes`
    and `claim` of the verdict name (docs/theory.md, "Cutoffs"); of what else depends on a size it is undecided, with the reason,
    unless the ranges have a few sizes only, or the functions differ at one that was looked at.
    """
    check_evidence(seed, max_error)
    if dynamic is not None:
        require_torch("to compare functions at all sizes")
        from mugraph.sizes.cutoff_proofs import Question

        options = {"max_error": max_error, "seed": seed, "properties": properties, "for_all_weights": for_all_weights}
        return Question.of(verify, (fn_a, fn_b), example_inputs, dynamic, budget, options).answer().verdict
    deadline = reading(Deadline(budget), silent, fn_a, fn_b)
    try:
        pair = compared(fn_a, fn_b, example_inputs, for_all_weights=for_all_weights)
    except (InvalidInput, UnsupportedOperator) as refused:
        named = isinstance(fn_a, Program | Graph) or isinstance(fn_b, Program | Graph) or example_inputs is None
        if named or for_all_weights or not (callable(fn_a) and callable(fn_b)):
            raise
        from mugraph.pieces.comparing import verified_in_pieces

        return verified_in_pieces(
            (fn_a, fn_b),
            example_inputs,
            properties=properties,
            max_error=max_error,
            seed=seed,
            deadline=deadline,
            refusal=str(refused),
        )
    if pair.mismatch is not None:
        verdict = mismatched(pair.left, pair.right, Counterexample(pair.mismatch), max_error, seed)
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


def load(path: str | Path, trust_sources: bool = False) -> Superoptimized:
    """Read back the folder that `save` of a result wrote, and compile its muGraphs for this machine.

    The result is called with one tensor per input, in order: the function's tensors first, then the parameters of a module; or as
    the function itself, with the parameters of a module that is here: `load(path).bound_to(module)`. What the function computes
    of no tensor, such as a causal mask, is in the folder. The saved sources must be what the muGraphs give when they are printed
    again, and each muGraph is tested against its program for up to a second, before anything is compiled. `trust_sources` instead
    compiles the sources as they are, which is right for folders that nobody else could write to, and needed for those of another
    version. Where PyTorch runs parts of the function, it is needed here too, and each program must be what the calls of PyTorch
    that it stands for are converted to here.

    Raises InvalidInput naming the file when a file was changed, is missing, contradicts another or is from another format;
    UntrustedSources for sources that are not those of the muGraph; StorageError when a file cannot be read.
    """
    folder = Path(path)
    kind = kind_of(read_manifest(folder))
    if kind == ONE_PROGRAM:
        return load_program(folder, trust_sources)
    if kind in RANGES:
        raise InvalidInput(f"{folder} holds a range of sizes; read it with mugraph.DynamicSuperoptimized.load")
    require_torch(f"to run parts of {folder}")
    from mugraph.pieces.partitioned import load as load_pieces

    return load_pieces(folder, trust_sources)


def _problem_of(fn: Subject, example_inputs: ExampleInputs | None) -> Problem:
    if isinstance(fn, Program | Graph):
        return program_problem(fn, example_inputs)
    return problem_of_call(*_recorded(fn, example_inputs))


def _recorded(fn: Subject, example_inputs: ExampleInputs | None) -> tuple[RecordedCall, ExampleInputs]:
    """A call of a function as PyTorch records it, and its example inputs; raises InvalidInput for what is no function."""
    if not callable(fn):
        raise InvalidInput(f"cannot optimize a {type(fn).__name__}; give a function of PyTorch tensors or a mugraph.Program")
    if example_inputs is None:
        raise InvalidInput("give example_inputs, a tuple of tensors of the shapes and dtypes to optimize for")
    return record(fn, example_inputs), example_inputs
