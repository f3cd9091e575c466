"""From a recorded function that is no program to one whose programs run as kernels, where that is faster than the function.

Each distinct program goes through all that `mugraph.superoptimize` does, and is kept where its kernels beat PyTorch's calls; then
the whole is called beside the function: it must return and change the same, and be clearly faster.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from mugraph.devices import device_for
from mugraph.devices.host import slowdown
from mugraph.devices.targets import target_row
from mugraph.errors import MugraphError
from mugraph.frontend.calls.calling import arguments_of
from mugraph.frontend.calls.objects import leaves_of, opened
from mugraph.frontend.operators.torch_casts import draws_random_numbers, name_of, widened
from mugraph.frontend.partitioning.partition import Partition, Piece
from mugraph.frontend.partitioning.splice import STEP, Step
from mugraph.frontend.recording.recorded_graph import RecordedGraph, recorded_graph
from mugraph.frontend.recording.torch_trace import RecordedCall
from mugraph.frontend.rewriting.graph_passes import ready_to_cut
from mugraph.frontend.source_lines import line_of_node
from mugraph.pieces.data import CutGraph
from mugraph.pieces.partitioned import Partitioned, with_report
from mugraph.pieces.piece_optimizer import Optimizer
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.plan import plans
from mugraph.pieces.predicted_cost import seconds_of_calls
from mugraph.pieces.whole_calls import (
    LONG_SECONDS,
    LOOKED_AT,
    CallBudget,
    KeptCalls,
    least_of_calls,
    may_begin,
    taken_if_long,
)
from mugraph.results.coverage import Amount, Coverage, LeftCalls, divided, ranked
from mugraph.results.data import Report, stage_seconds
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.runtime.benchmarking import quickest
from mugraph.selection.own_function import OwnCall
from mugraph.selection.problems import ExampleInputs
from mugraph.selection.reasons import out_of_time
from mugraph.selection.structure_key import form_of
from mugraph.selection.whole_programs import OptimizationSettings
from mugraph.support.deadline import Deadline
from mugraph.support.progress import ProgressCallback, telling
from mugraph.support.seeds import seed_or_fresh
from mugraph.support.store import Mode, Store
from mugraph.targets.machine import Machine, machine_for

_PLACE = re.compile(r"^operator aten\.\w+( \([^)]*\))?: ")
"""What a reason begins with that says where the call is."""
_ROUNDS = 5
"""Calls of which each part is timed."""
_CALLS = CallBudget(seconds=3.0, calls=18, most=0.3, most_of_least=0.5)
"""What programs leave for calls of the whole and of the function: three or four to see that both agree, two to four that warm
them up, ten of five rounds, one of each part."""


def superoptimized_in_pieces(
    call: RecordedCall,
    example_inputs: ExampleInputs,
    settings: OptimizationSettings,
    deadline: Deadline,
    tell: ProgressCallback,
    whole: MugraphError | Superoptimized,
    like: Sequence[Superoptimized] = (),
) -> Partitioned:
    """The recorded call with kernels for its programs. As a `whole` it is none, or nothing clearly faster was found of it.

    Programs of the form of one in `like` are scheduled as its muGraph is.
    """
    recorded = prepared(recorded_graph(call, settings.constants))
    machine = machine_for(settings.target)
    here = machine.available and _lies_on(machine, example_inputs)
    options = PieceOptions(
        target=settings.target,
        budget=deadline.remaining,
        cache=settings.cache,
        seed=settings.seed,
        max_error=settings.max_error,
        evidence=settings.evidence,
        space=settings.space,
        workers=settings.workers,
        profile=settings.profile,
        pack=settings.pack and here,
    )
    optimizer = Optimizer(options, tell)
    if isinstance(whole, Superoptimized):
        optimizer.refuse(whole)
        why = f"of which {'few kernels were' if whole.found else 'nothing clearly faster was'} found so far as a whole"
    else:
        why = f"which is not searched as a whole: {str(whole).split(';')[0]}"
    compares = settings.profile and here
    known = {form_of(each.program): each.graph for each in like}
    call_seconds = _seconds_of_a_call(recorded, settings.target)
    choices = [
        CutGraph(recorded, plan)
        for plan in plans(
            recorded.module,
            recorded.device,
            optimizer,
            _CALLS.before(deadline, call_seconds) if compares else deadline,
            known,
            why=f" in the function, {why}",
            written=recorded.written,
        )
    ]
    report = _report(choices[0], optimizer, deadline, seed_or_fresh(settings.seed))
    results = [Partitioned(each, _covered(report, each), settings.target) for each in choices]
    if not compares:
        return results[0]
    result = _fastest(results, example_inputs, settings.cache)
    return _beside(result, call.fn, example_inputs, machine, settings, deadline, tell, call_seconds)


def _seconds_of_a_call(recorded: RecordedGraph, target: str) -> float:
    """What PyTorch's calls of the recorded function are predicted to take together, by the description of the target's device."""
    nodes = [node for node in recorded.module.graph.nodes if node.op == "call_function"]
    return seconds_of_calls(nodes, device_for(target)) if nodes else 0.0


def _lies_on(machine: Machine, example_inputs: ExampleInputs) -> bool:
    """Whether the tensors of a call are where the machine's kernels read them: PyTorch's part of it runs where they are."""
    tensors = [leaf for leaf in leaves_of(arguments_of(example_inputs)) if isinstance(leaf, torch.Tensor)]
    return all(moved is tensor for moved, tensor in zip(machine.moved(tensors), tensors, strict=True))


def prepared(recorded: RecordedGraph) -> RecordedGraph:
    """A recorded graph as it is before it is cut."""
    return replace(recorded, module=ready_to_cut(recorded.module))


def _fastest(results: Sequence[Partitioned], example_inputs: ExampleInputs, cache: Store | Mode | str | None) -> Partitioned:
    """The result whose calls take the least time, a few of each, now or in an earlier process."""
    if len(results) == 1:
        return results[0]
    kept = _kept_calls(results, cache)
    known = kept.recall(lambda document: results[int(document["fastest"])])
    if known is not None:
        return known
    args, kwargs = _copies(arguments_of(example_inputs))
    machine = machine_for(results[0].target)
    with _unchanged(_written(results[0], args, kwargs)) as again, torch.no_grad():
        calls = [functools.partial(again(result), *args, **kwargs) for result in results]
        number = quickest([machine.timed(call).run for call in calls])
    kept.keep({"fastest": number})
    return results[number]


def _kept_calls(results: Sequence[Partitioned], cache: Store | Mode | str | None, *asked: str) -> KeptCalls:
    """The place of what calls of results of one function showed: beside their graph, calls of the function take their time by how
    its arguments lie, and by its Python, for which name and lines stand."""
    recorded = results[0].cut.recorded
    lines = [*map(line_of_node, recorded.module.graph.nodes)]
    called = (recorded.calling.name, str(lines), str(recorded.layouts), str(sorted(recorded.writes.items())))
    plans = [result.cut.plan for result in results]
    return KeptCalls.of(cache, results[0].target, recorded.module.graph, plans, *called, *asked)


@dataclass(frozen=True, slots=True)
class _Showed:
    """What calls of a result beside the function's showed, and the coverage with the time of each part where these were timed."""

    comparison: BaselineComparison
    coverage: Coverage | None = None

    @property
    def clear(self) -> bool:
        """Whether the result is clearly faster than the function."""
        return EAGER in self.comparison.duels and self.comparison.duels[EAGER].clear

    @property
    def stands(self) -> bool:
        """Whether more time would not have shown more."""
        return self.clear or (EAGER in self.comparison.duels and not self.comparison.duels[EAGER].cut_short)

    def covered(self, result: Partitioned) -> Coverage | None:
        """The coverage of the result, with the times of calls that were divided and left to PyTorch just so."""
        now, timed = result.report.coverage, self.coverage
        return timed if now is not None and timed is not None and timed.untimed() == now.untimed() else now

    def to_json(self) -> dict[str, Any]:
        """What calls showed as JSON values."""
        return {
            "comparison": self.comparison.to_json(),
            "coverage": None if self.coverage is None else self.coverage.to_json(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> _Showed:
        """What `to_json` wrote; raises KeyError or TypeError for anything else."""
        coverage = values["coverage"]
        return cls(BaselineComparison.from_json(values["comparison"]), None if coverage is None else Coverage.from_json(coverage))


def _beside(
    result: Partitioned,
    fn: Callable[..., Any],
    example_inputs: ExampleInputs,
    machine: Machine,
    settings: OptimizationSettings,
    deadline: Deadline,
    tell: ProgressCallback,
    call_seconds: float,
) -> Partitioned:
    """The result after calls of it and of the function were compared, and timed unless those of an earlier process were.

    It calls the function where that is best, or where there is no time for calls that are predicted to take so many seconds on a
    quiet machine."""
    if not result.cut.plan.has_kernels:
        return with_report(result, fn, found=False, total_seconds=deadline.elapsed)

    def refused(reason: str, **changes: Any) -> Partitioned:
        return with_report(result, fn, found=False, coverage=_all_left(result, reason), total_seconds=deadline.elapsed, **changes)

    def answered(showed: _Showed) -> Partitioned:
        eager = showed.comparison.baselines.get(EAGER)
        changes = {"comparison": showed.comparison, "original_latency": eager}
        if not showed.clear:
            return refused("calls with kernels are not clearly faster than the function", **changes)
        return with_report(result, None, found=True, coverage=showed.covered(result), total_seconds=deadline.elapsed, **changes)

    kept = _kept_calls([result], settings.cache, f"compiled: {settings.baselines}")
    showed = kept.recall(_Showed.from_json)
    if showed is not None and not showed.clear:
        return answered(showed)
    late = out_of_time("calls with kernels were compared with the function's own")
    call_seconds *= slowdown()
    if not may_begin(deadline, least_of_calls(call_seconds) if showed is None else LOOKED_AT * call_seconds):
        return refused(late)
    args, kwargs = _copies(arguments_of(example_inputs))
    with _unchanged(_written(result, args, kwargs)) as again:
        comparing = telling("compare", deadline, tell)
        comparing("what the result returns, and the function")
        begun = deadline.elapsed
        why = difference(result, fn, args, kwargs, alike=_is_alike_again(result))
        if why:
            return refused(f"kernels give something else than the function: {why}")
        if showed is not None:
            return answered(showed)
        taken = (deadline.elapsed - begun) / LOOKED_AT
        if not may_begin(deadline, least_of_calls(taken) - LOOKED_AT * taken):
            return refused(late)
        comparing("calls of the result and of the function")
        own, warm = OwnCall(again(fn), args, kwargs), taken_if_long(taken)
        showed = _Showed(own.beside(again(result), machine, deadline, compiled=settings.baselines, taken=warm, tell=comparing))
        if showed.clear and may_begin(deadline, taken):
            showed = replace(showed, coverage=timed_coverage(result, args, kwargs, deadline))
    if showed.stands:
        kept.keep(showed.to_json())
    return answered(showed)


def _is_alike_again(result: Partitioned) -> bool:
    """Whether another call of the function does what the first one did: it writes to nothing and draws no random numbers."""
    recorded = result.cut.recorded
    return not recorded.writes and not any(map(draws_random_numbers, recorded.module.graph.nodes))


def difference(
    result: Callable[..., Any], fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, alike: bool = False
) -> str:
    """Where a call of a result gives or leaves other tensors than one of the function, beyond rounding; "" where it does not.

    Both are called twice; of a function that takes long and does `alike` again, one call stands for both. Integers and booleans
    must be equal. Numbers may differ by the root of their type's epsilon times the largest among them: each program was compared
    with float64 before, so that this looks for parts that were put together wrongly.
    """
    calls = []
    for called in (fn, result):
        own_args, own_kwargs = _copies((args, kwargs))
        states: list[Any] = []
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            for _ in range(2):  # weights are packed in the second call
                started = time.perf_counter()
                states.append(_copies((called(*own_args, **own_kwargs), own_args, own_kwargs)))
                if alike and called is fn and time.perf_counter() - started > LONG_SECONDS:
                    break
        states = states if len(states) == 2 else 2 * states
        calls.append(states)
    return contradiction(*calls)


def contradiction(wanted: Any, got: Any) -> str:
    """Which of the tensors and numbers in two values of the same structure are not the same but for rounding, as `difference`
    has it; "" where all are."""
    leaves = (
        [torch.as_tensor(leaf) for leaf in leaves_of(each) if isinstance(leaf, torch.Tensor | int | float)]
        for each in (wanted, got)
    )
    for number, (one, other) in enumerate(zip(*leaves, strict=True)):
        if _is_same(other, one):  # as arguments are that nobody writes to, and which may be large
            continue
        try:
            torch.testing.assert_close(other, one, rtol=0.0, atol=_tolerance(one), equal_nan=True)
        except AssertionError as error:
            return f"tensor {number}: {str(error).splitlines()[0]}"
    return ""


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype is other.dtype and one.device == other.device and torch.equal(one, other)


def _tolerance(tensor: torch.Tensor) -> float:
    if not tensor.is_floating_point() and not tensor.is_complex():
        return 0.0
    numbers = widened(tensor).abs()
    finite = numbers[numbers.isfinite()]
    largest = float(finite.max()) if finite.numel() else 0.0
    return math.sqrt(torch.finfo(tensor.dtype).eps) * largest


def _copies(value: Any) -> Any:
    with torch.no_grad():
        return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), opened(value))


def _written(result: Partitioned, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call changes: arguments, and what the function brings along."""
    with torch.no_grad():
        inputs = result.calling.flatten(args, kwargs)
    return [inputs[number] for number in result.cut.recorded.writes]


@contextmanager
def _unchanged(tensors: Sequence[torch.Tensor]) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Tensors hold afterwards what they held before; gives what makes of a function one whose every call finds them so, too."""
    kept = [tensor.clone() for tensor in tensors]

    def restore() -> None:
        with torch.no_grad():
            for tensor, copy in zip(tensors, kept, strict=True):
                tensor.copy_(copy)

    def again(fn: Callable[..., Any]) -> Callable[..., Any]:
        def restored(*args: Any, **kwargs: Any) -> Any:
            restore()
            return fn(*args, **kwargs)

        return restored if tensors else fn

    try:
        yield again
    finally:
        restore()


# --- what is reported -----------------------------------------------------------------------------------------------------


def _report(cut: CutGraph, optimizer: Optimizer, deadline: Deadline, seed: int) -> Report:
    """The reports of the programs put together. Seconds are those of all that were searched, larger ones in vain, too."""
    searched = [result.report for result in optimizer.results]
    reports = [result.report for result in optimizer.results_of((*cut.partition.pieces, *cut.plan.lost))]
    search = {
        "seconds": sum(report.seconds for report in searched),
        "first_found_seconds": min((s for report in searched if (s := report.first_found_seconds) is not None), default=None),
        "states": sum(report.states for report in searched),
        "exhausted": bool(reports) and all(report.exhausted for report in reports),
        "exhausted_what": f"each of {len(reports)} distinct programs by itself; {_of_ends(cut.plan.larger)}",
    }
    return Report(
        found=bool(cut.results or cut.partition.library),
        search=search,
        proposed=sum(report.proposed for report in reports),
        rejected=tuple(rejection for report in reports for rejection in report.rejected),
        **stage_seconds(searched),
        total_seconds=deadline.elapsed,
        original_latency=None,
        seed=seed,
        interrupted=optimizer.interrupted,
        space=next((report.space for report in searched), None),
        coverage=coverage_of(cut.partition, cut.results),
    )


def _of_ends(larger: int | None) -> str:
    """What was searched of where programs begin and end, of a plan with so many `larger` ones."""
    if larger is None:
        return "where they begin and end was not searched"
    return f"where they begin and end is by rules; of larger programs in the place of several, {larger} were searched"


def _covered(report: Report, cut: CutGraph) -> Report:
    """The report with what runs which share of this graph."""
    return replace(report, coverage=coverage_of(cut.partition, cut.results))


def coverage_of(
    whole: Partition, results: Mapping[Piece, Superoptimized], seconds: Mapping[Step, float] | None = None
) -> Coverage:
    """What runs which share of a torch graph; without a result, a piece counts as one graph-defined kernel."""

    def timed(step: Step) -> float | None:
        return None if seconds is None else seconds.get(step, 0.0)

    mugraphs, library = Amount(), Amount()
    for kernel in whole.library:
        library += Amount(kernel.work.bytes, kernel.work.flops, timed(kernel))
    for piece in whole.pieces:
        amount, result = Amount(piece.work.bytes, piece.work.flops), results.get(piece)
        defined, called = (amount, Amount()) if result is None else divided(amount, result.graph)
        mugraphs += replace(defined, seconds=timed(piece))
        library += called
    left = []
    for each in whole.left:
        work, line = each.work, line_of_node(each.node)
        amount = Amount(work.bytes, work.flops, timed(each))
        reason = _PLACE.sub("", each.reason).removesuffix("; leave it outside the optimized function")
        left.append(LeftCalls(name_of(each.node), reason, 1, amount, (line,) if line else ()))
    return Coverage(mugraphs, library, ranked(left), len(whole.pieces))


def _all_left(result: Partitioned, reason: str) -> Coverage:
    whole = result.cut.partition
    return coverage_of(whole.without((*whole.pieces, *whole.library), reason), {})


def timed_coverage(result: Partitioned, args: Sequence[Any], kwargs: Mapping[str, Any], deadline: Deadline) -> Coverage:
    """The coverage with the time of each part of a call, the median of some behind a first, which alone is made in any case."""
    clock = _Clock(result.run, target_row(result.target).tensors == "cuda")
    recorded = result.cut.recorded
    with torch.no_grad():
        inputs = result.calling.flatten(args, kwargs)
        for number in range(_ROUNDS + 1):
            if number and deadline.passed:
                break
            clock.run(*(tensor.clone() if place in recorded.writes else tensor for place, tensor in enumerate(inputs)))
    steps = {node: node.meta[STEP] for node in result.run.graph.nodes if STEP in node.meta}
    seconds: dict[Step, float] = {}
    for node, step in steps.items():
        taken = clock.taken.get(node.name, ())
        seconds[step] = seconds.get(step, 0.0) + (median(taken[1:] or taken) if taken else 0.0)
    return coverage_of(result.cut.partition, result.cut.results, seconds)


class _Clock(fx.Interpreter):
    """Runs a graph call by call, and notes the seconds of each; on a GPU each is waited for, so that launches count."""

    def __init__(self, module: fx.GraphModule, on_gpu: bool) -> None:
        super().__init__(module)
        self.on_gpu = on_gpu
        self.taken: dict[str, list[float]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The call's value."""
        started = time.perf_counter()
        value = super().run_node(n)
        if self.on_gpu:
            torch.cuda.synchronize()
        self.taken.setdefault(n.name, []).append(time.perf_counter() - started)
        return value
