"""The public contract of `superoptimize`, `verify` and the object they return."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mugraph
from mugraph.devices import device_for
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError, TargetUnavailable, UnsupportedOperator
from mugraph.ir.graph import Graph
from mugraph.lower.thread_graphs import construct
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.runtime.benchmarking import Duel
from mugraph.search import Options, SearchReport, SearchResult, search
from mugraph.search import Proposal as Proposal
from mugraph.search.algorithm1 import EnumerationOptions
from mugraph.search.constraints import EVERYTHING
from mugraph.search.tasks import ANY_GAIN, CANDIDATES
from mugraph.selection import contestants, qualification
from mugraph.selection.proposals import Inquiry
from mugraph.selection.whole_programs import superoptimize_program
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, silent
from mugraph.support.store import Store
from mugraph.verifier import counterexamples
from mugraph.verifier.certificate import Outcome


def normalised_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)) @ w


def inputs(rows: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 32, generator=generator), torch.randn(32, 64, generator=generator)


@pytest.fixture(autouse=True, scope="module")
def _several_are_compiled(_few_are_compiled: None) -> Iterator[None]:
    """Of some tests the matter is what becomes of the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qualification, "_COMPILED", max(4, qualification._COMPILED))
        yield


@pytest.fixture(scope="module")
def opt() -> mugraph.Superoptimized:
    """Whose kernels are faster than the function, whatever the machine does."""
    won = BaselineComparison({EAGER: Duel.of([1e-6] * 5, [2e-6] * 5)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mugraph.selection.own_function.compare", lambda *call, **settings: won)
        return mugraph.superoptimize(normalised_product, inputs())


def test_result_computes_the_function(opt: mugraph.Superoptimized) -> None:
    x, w = inputs(seed=1)
    result = opt(x, w)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, normalised_product(x, w), rtol=1e-5, atol=1e-5)


def test_normalisation_is_fused_into_one_kernel(opt: mugraph.Superoptimized) -> None:
    (kernel,) = opt.graph.kernels()
    assert opt.found
    assert kernel.op == "graph_defined"


def test_candidates_are_verified_and_best_first(opt: mugraph.Superoptimized) -> None:
    latencies = [candidate.latency for candidate in opt.candidates]
    assert opt.candidates[0].graph == opt.graph
    assert all(candidate.certificate.accepted for candidate in opt.candidates)
    assert all(latency is not None for latency in latencies)
    assert latencies == sorted(latencies, key=lambda latency: latency or 0.0)
    assert all(candidate.cost is not None and candidate.cost > 0 for candidate in opt.candidates)
    errors = [candidate.max_relative_error for candidate in opt.candidates]
    assert all(error is not None and error < 1e-5 for error in errors)


def test_certificate_and_report(opt: mugraph.Superoptimized) -> None:
    assert opt.certificate.accepted
    assert opt.certificate.to_json()
    assert opt.report.found
    assert opt.report.states > 0
    assert 0 < opt.report.seconds <= opt.report.total_seconds
    assert opt.report.first_found_seconds is not None
    assert opt.report.exhausted == opt.report.to_json()["search"]["exhausted"]


def test_sources_are_the_generated_code(opt: mugraph.Superoptimized) -> None:
    assert any("float" in text for text in opt.sources.values())


def test_wrong_arguments_are_named(opt: mugraph.Superoptimized) -> None:
    x, w = inputs(rows=5)
    with pytest.raises(ShapeMismatch, match="x"):
        opt(x, w)


def test_structure_of_outputs_is_kept() -> None:
    def function(x: torch.Tensor) -> dict[str, Any]:
        return {"scaled": x * 2.0, "pair": (x.exp(), [x + 1.0])}

    (x, _) = inputs()
    result = mugraph.superoptimize(function, (x,), profile=False)(x)
    assert list(result) == ["scaled", "pair"]
    torch.testing.assert_close(result["scaled"], x * 2.0)
    torch.testing.assert_close(result["pair"][0], x.exp())
    torch.testing.assert_close(result["pair"][1][0], x + 1.0)


def test_modules_carry_their_parameters() -> None:
    module = torch.nn.Linear(32, 16, bias=False)
    (x, _) = inputs()
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(mugraph.superoptimize(module, (x,), profile=False)(x), expected, rtol=1e-5, atol=1e-5)


def test_programs_need_no_torch() -> None:
    program = mugraph.Program()
    x, w = program.input("X", (4, 32)), program.input("W", (32, 64))
    program.output((x / x.square().sum(-1, keepdim=True).sqrt()) @ w)
    opt = mugraph.superoptimize(program)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 32), dtype=np.float32), rng.standard_normal((32, 64), dtype=np.float32)
    result = opt(a, b)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, (a / np.linalg.norm(a, axis=-1, keepdims=True)) @ b, rtol=1e-4, atol=1e-5)


def several_of(function: Callable[..., Any]) -> mugraph.Superoptimized:
    """The result with several muGraphs that were proved, of which none was timed."""
    program = mugraph.frontend.trace(function, inputs()).graph
    return superoptimize_program(program, profile=False, candidates=qualification.KEPT, cache="off")


def test_without_profiling_order_is_by_predicted_cost() -> None:
    opt = several_of(normalised_product)
    costs = [candidate.cost or 0.0 for candidate in opt.candidates]
    assert all(candidate.latency is None for candidate in opt.candidates)
    assert len(costs) > 1
    assert costs == sorted(costs)


def test_without_profiling_nothing_is_proved_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[Graph] = []
    proved = qualification.Qualifier._proved

    def counted(self: qualification.Qualifier, entry: contestants.Contestant, name: str) -> contestants.Proved | None:
        proofs.append(entry.graph)
        return proved(self, entry, name)

    first = several_of(normalised_product).candidates[0]
    monkeypatch.setattr(qualification.Qualifier, "_proved", counted)
    opt = mugraph.superoptimize(normalised_product, inputs(), profile=False, cache="off")
    assert opt.found
    assert proofs == [opt.graph] == [first.graph]
    assert [candidate.graph for candidate in opt.candidates] == proofs


def test_what_fails_verification_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that proposes a kernel of another program changes nothing but the report."""

    def wrong(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-5)) @ w

    proposals = several_of(wrong).candidates
    lie = SearchResult([Proposal(candidate.graph, 1e-9) for candidate in proposals], SearchReport())
    monkeypatch.setattr("mugraph.selection.proposals.closure_search", lambda *args, **kwargs: lie)
    opt = mugraph.superoptimize(normalised_product, inputs())
    assert not opt.found
    assert opt.candidates == ()
    assert len(opt.report.rejected) == len(proposals)
    torch.testing.assert_close(opt(*inputs()), normalised_product(*inputs()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("profile", [True, False])
def test_a_search_that_settled_goes_on_where_nothing_found_is_right(monkeypatch: pytest.MonkeyPatch, profile: bool) -> None:
    def wrong(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-5)) @ w

    def proposals(function: Callable[..., torch.Tensor]) -> list[Proposal]:
        found = several_of(function).candidates
        return [Proposal(candidate.graph, 1e-6) for candidate in found]

    lies, truths = proposals(wrong), proposals(normalised_product)
    gains: list[float] = []

    def found(*program: object, options: Options, **settings: object) -> SearchResult:
        gains.append(options.least_gain)
        settled = options.least_gain > 0
        return SearchResult(lies if settled else [*lies, *truths], SearchReport(seconds=1.0, settled=settled))

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", found)
    opt = mugraph.superoptimize(normalised_product, inputs(), profile=profile, cache="off")
    assert gains == [0.1, 0.0]
    assert len(opt.report.rejected) == len(lies)
    assert not opt.report.search["settled"]
    assert opt.report.search["seconds"] == 2.0
    assert {candidate.graph for candidate in opt.candidates} <= {proposal.graph for proposal in truths}
    assert opt.candidates


class Ahead:
    """A clock that a test may set ahead."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.seconds


@pytest.mark.parametrize("segments", [0, 2])
@pytest.mark.parametrize("profile", [True, False])
def test_what_is_found_first_is_proved_before_the_search_goes_on(
    monkeypatch: pytest.MonkeyPatch, profile: bool, segments: int
) -> None:
    """The rest of the search takes all the time that is left here, as on a busy machine: nothing had been proved then."""
    found = several_of(normalised_product).candidates
    worse = [Proposal(found[-1].graph, 2e-6)]
    clock, gains = Ahead(), list[float]()
    monkeypatch.setattr("mugraph.support.deadline.time", clock)

    def searched(*program: object, options: Options, **settings: object) -> SearchResult:
        gains.append(options.least_gain)
        report = SearchReport(settled=options.least_gain == ANY_GAIN and not segments, segments=segments)
        if len(gains) == 1:
            return SearchResult(worse, report)
        clock.seconds += 600.0
        return SearchResult([*(Proposal(each.graph, 1e-6) for each in found[:-1]), *worse], report)

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", searched)
    opt = mugraph.superoptimize(normalised_product, inputs(), profile=profile, cache="off", budget=600)
    assert gains == [ANY_GAIN, 0.1]
    assert [candidate.graph.with_constants(()) for candidate in opt.candidates] == [construct(worse[0].graph)]
    assert opt.candidates[0].certificate.outcome is Outcome.EQUIVALENT
    assert not opt.report.search["settled"]


@pytest.mark.parametrize("profile", [True, False])
def test_where_one_is_enough_by_then_what_is_proved_first_is_the_result(profile: bool) -> None:
    """Not even a search goes on, nor is anything else proved, though there is time."""
    program = mugraph.frontend.trace(normalised_product, inputs()).graph
    asked: dict[str, Any] = {"budget": 600.0, "profile": profile, "cache": "off", "candidates": qualification.KEPT}
    assert len(superoptimize_program(program, **asked).candidates) > 1
    opt = superoptimize_program(program, **asked, enough=0.0)
    assert opt.found
    assert [candidate.certificate.outcome for candidate in opt.candidates] == [Outcome.EQUIVALENT]


@pytest.mark.parametrize("profile", [True, False])
def test_what_is_found_later_and_faster_takes_the_place_of_what_was_proved_first(
    monkeypatch: pytest.MonkeyPatch, profile: bool
) -> None:
    found = [candidate.graph for candidate in several_of(normalised_product).candidates]
    seconds = {construct(graph): 1.0 + number for number, graph in enumerate(found)}

    def searched(*program: object, options: Options, **settings: object) -> SearchResult:
        first = options.least_gain == ANY_GAIN
        proposals = [Proposal(graph, seconds[construct(graph)]) for graph in (found[-1:] if first else found)]
        return SearchResult(proposals, SearchReport(settled=first))

    def measured(entries: Sequence[contestants.Contestant], *_: object, **__: object) -> list[contestants.Contestant]:
        return [replace(entry, latency=seconds[entry.graph], least=seconds[entry.graph]) for entry in entries]

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", searched)
    monkeypatch.setattr(qualification, "measured", measured)
    opt = mugraph.superoptimize(normalised_product, inputs(), profile=profile, cache="off", budget=600)
    assert [candidate.graph for candidate in opt.candidates] == [*seconds][: None if profile else 1]


def test_what_was_proved_first_is_not_behind_what_there_is_no_time_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the later ones is measured, and slower; of the others nobody knows that they are faster."""
    first, *later = (each.graph for each in search_of_product()[:8])
    clock = Ahead()
    monkeypatch.setattr("mugraph.support.deadline.time", clock)
    monkeypatch.setattr(qualification, "_PROVING_SECONDS", 1e6)

    def searched(*program: object, options: Options, **settings: object) -> SearchResult:
        if options.least_gain == ANY_GAIN:
            return SearchResult([Proposal(first, 2.0)], SearchReport(settled=True))
        return SearchResult([Proposal(graph, 1.0) for graph in later], SearchReport())

    def measured(entries: Sequence[contestants.Contestant], *_: object, **__: object) -> list[contestants.Contestant]:
        known = [1.0 if entry.graph == construct(first) else 3.0 for entry in entries]
        clock.seconds += 200.0 * (max(known) > 1.0)
        return [replace(entry, latency=seconds, least=seconds) for entry, seconds in zip(entries, known, strict=True)]

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", searched)
    monkeypatch.setattr(qualification, "measured", measured)
    opt = mugraph.superoptimize(normalised_product, inputs(), cache="off", budget=600)
    assert len(opt.candidates) == qualification.KEPT
    assert opt.candidates[0].graph == construct(first)


def search_of_product() -> list[Proposal]:
    program = mugraph.superoptimize(normalised_product, inputs(), profile=False).program
    return search(program, device_for("cpu")).candidates


def test_what_a_search_chose_is_compiled_before_what_is_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It chooses the best of each kind and precision: those that are predicted to be faster may all be of one."""
    graphs = [each.graph for each in search_of_product()]
    settled = SearchReport(settled=True)
    found = [SearchResult([Proposal(graphs[0], 1.0), Proposal(graphs[1], 2.0)], settled)]
    found += [SearchResult([Proposal(graphs[0], 1.0), Proposal(graphs[2], 3.0)], SearchReport())]
    found += [SearchResult([Proposal(graphs[0], 1.0), Proposal(graphs[1], 2.0)], settled)]
    found += [SearchResult([Proposal(graphs[2], 3.0)], SearchReport())]
    turns, asked = iter(found), list[int]()

    def searched(*program: object, options: Options, **settings: object) -> SearchResult:
        asked.append(options.candidates)
        return next(turns)

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", searched)
    inquiry = Inquiry(graphs[0], device_for("cpu"), "closure", EVERYTHING, 1, Store.of("off"))
    for order in ([0, 2, 1], [0, 1, 2]):  # the second of what time ended before it had found as much
        first, better = inquiry.first(Deadline(60), silent)
        assert better
        assert isinstance(first, SearchResult)
        further = inquiry.further(first, Deadline(60), silent)
        assert [each.graph for each in further.candidates] == [graphs[number] for number in order]
    assert set(asked) == {CANDIDATES}


@pytest.mark.parametrize("settings", [{"space": mugraph.SearchSpace(kernels=1)}, {"search": "enumerate"}])
def test_workers_share_a_search_that_does_not_end_early(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    asked = list[object]()

    def searched(*program: object, workers: object, **others: object) -> SearchResult:
        asked.append(workers)
        return SearchResult([], SearchReport())

    def enumerated(program: object, device: object, options: EnumerationOptions) -> SearchResult:
        return searched(workers=options.processes)

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", searched)
    monkeypatch.setattr("mugraph.selection.proposals.enumerate_graphs", enumerated)
    mugraph.superoptimize(normalised_product, inputs(), profile=False, cache="off", budget=600, workers=2, **settings)
    assert asked == [2]


@pytest.mark.parametrize("goes_on", [True, False])
def test_where_what_is_found_first_fails_the_search_goes_on_before_the_next_of_it_is_tried(
    monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """What one search finds first may fail alike: attention whose scores a library stores in fp16 took all the time there was."""
    best, *others = (candidate.graph for candidate in several_of(normalised_product).candidates)
    assert len(others) > 1
    tried: list[Graph] = []
    proved = qualification.Qualifier._proved

    def judged(self: qualification.Qualifier, entry: contestants.Contestant, name: str) -> contestants.Proved | None:
        tried.append(entry.graph)
        return proved(self, entry, name) if entry.graph == construct(best) else None

    def searched(*program: object, options: Options, **settings: object) -> SearchResult:
        first = options.least_gain == ANY_GAIN
        proposals = [Proposal(graph, 2e-6 + number) for number, graph in enumerate(others)]
        return SearchResult(proposals if first else [Proposal(best, 1e-6), *proposals], SearchReport(settled=first and goes_on))

    monkeypatch.setattr(qualification.Qualifier, "_proved", judged)
    monkeypatch.setattr("mugraph.selection.proposals.closure_search", searched)
    opt = mugraph.superoptimize(normalised_product, inputs(), profile=False, cache="off", budget=600)
    assert tried[0] == construct(others[0])
    assert tried[1] == construct(best if goes_on else others[1])
    assert [candidate.graph for candidate in opt.candidates] == [construct(best)] * goes_on


@pytest.mark.parametrize("budget", [None, 600])
def test_a_search_for_a_form_that_is_not_there_does_not_settle(monkeypatch: pytest.MonkeyPatch, budget: float | None) -> None:
    gains: list[float] = []

    def found(*program: object, options: Options, **settings: object) -> SearchResult:
        gains.append(options.least_gain)
        return SearchResult([], SearchReport(settled=True))

    like = mugraph.superoptimize(normalised_product, inputs(), profile=False).candidates[0].graph
    monkeypatch.setattr("mugraph.selection.proposals.closure_search", found)
    mugraph.superoptimize(normalised_product, inputs(), profile=False, cache="off", like=like, budget=budget)
    assert gains == [1.0, 0.1, 0.0]


def test_what_is_not_clearly_faster_than_the_function_is_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    equals = BaselineComparison({EAGER: Duel.of([1.0, 1.1] * 3, [1.1, 1.0] * 3)})
    monkeypatch.setattr("mugraph.selection.own_function.compare", lambda *call, **settings: equals)
    calls: list[bool] = []

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        calls.append(x.requires_grad)
        return normalised_product(x, w)

    x, w = inputs()
    opt = mugraph.superoptimize(function, (x, w))
    assert not opt.found
    assert opt.graph == opt.program
    assert opt.candidates
    assert opt.report.baselines[EAGER].speedup == pytest.approx(1.0, abs=0.2)
    assert opt.report.original_latency == equals.baselines[EAGER]
    calls.clear()
    trained = x.clone().requires_grad_()
    torch.autograd.backward(opt(trained, w).sum())
    assert trained.grad is not None
    assert calls == [True]


def test_original_is_the_result_when_it_is_measured_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turns(runs: Sequence[Callable[[], Any]], **options: Any) -> list[list[list[float]]]:
        return [*[[[2.0]]] * (len(runs) - 1), [[1.0]]]

    monkeypatch.setattr(contestants, "bursts_in_turns", in_turns)
    program = mugraph.Program()
    x, w = (program.input(name, shape) for name, shape in {"x": (4, 32), "w": (32, 16)}.items())
    program.output((x / x.square().sum(-1, keepdim=True).sqrt()) @ w)
    opt = mugraph.superoptimize(program)
    assert not opt.found
    assert opt.graph == opt.program
    assert opt.candidates
    assert opt.report.baselines == {}


def test_tiny_functions_are_not_slower_than_they_were() -> None:
    """One operator, whose kernel takes as long as PyTorch's: whoever is clearly faster is called."""
    x = torch.randn(8)
    opt = mugraph.superoptimize(torch.relu, (x,))
    outcome = opt.report.baselines[EAGER]
    assert opt.found is outcome.clear
    assert torch.equal(opt(x), torch.relu(x))
    assert (opt.own is torch.relu) is not opt.found


def test_without_a_compiler_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise TargetUnavailable("target cpu needs a C compiler: install gcc or clang")

    monkeypatch.setattr("mugraph.targets.cpu.machine.find_compiler", missing)
    monkeypatch.setattr("mugraph.selection.whole_programs.Inquiry", None)
    with pytest.raises(TargetUnavailable, match="install gcc or clang"):
        mugraph.superoptimize(normalised_product, inputs(), cache="off")


def test_without_a_budget_the_function_is_called() -> None:
    opt = mugraph.superoptimize(normalised_product, inputs(), budget=0.0, cache="off")
    assert opt.own is normalised_product


def test_what_pytorch_loads_once_is_no_part_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.selection.whole_programs.load_tracer", lambda: time.sleep(0.5))
    started = time.monotonic()
    opt = mugraph.superoptimize(normalised_product, inputs(), budget=20.0)
    assert opt.report.total_seconds < time.monotonic() - started - 0.4


def test_budget_too_small_for_any_result_gives_the_original() -> None:
    opt = mugraph.superoptimize(normalised_product, inputs(), budget=0.0)
    torch.testing.assert_close(opt(*inputs()), normalised_product(*inputs()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "shape", "reason"),
    [(lambda x: x.t().reshape(3, 8).exp(), (6, 4), "regroup")],
)
def test_programs_out_of_the_searchs_reach_run_as_they_are(function: Any, shape: tuple[int, ...], reason: str) -> None:
    x = torch.randn(shape)
    opt = mugraph.superoptimize(function, (x,))
    assert not opt.found
    assert reason in opt.report.exhausted_what
    torch.testing.assert_close(opt(x), function(x), rtol=1e-5, atol=1e-6)


def test_programs_of_a_thousand_operators_have_kernels() -> None:
    program = mugraph.Program()
    deep = x = program.input("x", (2, 4))
    for _ in range(1000):
        deep = deep.relu() + 1
    program.output(deep)
    opt = mugraph.superoptimize(program, budget=600, profile=False, cache="off")
    assert "segments" in opt.report.exhausted_what
    assert opt.found
    np.testing.assert_array_equal(opt(np.zeros(x.shape, np.float32)), np.full(x.shape, 1000, np.float32))


def stream(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """For each weight a product and ten operators around it, all of them added to what came in."""
    for weight in weights:
        norm = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        x = x + torch.tanh((x * norm) @ weight) * 0.5
    return x


@pytest.mark.parametrize(("layers", "share"), [(1, 1.0), (4, 0.6), (12, 0.3)])
def test_the_longer_a_function_the_more_time_its_pieces_have(monkeypatch: pytest.MonkeyPatch, layers: int, share: float) -> None:
    class Asked(Exception):
        """A program was searched as a whole."""

    def whole(problem: object, settings: object, deadline: Deadline, tell: object) -> None:
        given.append(deadline.budget)
        raise Asked

    given: list[float | None] = []
    monkeypatch.setattr("mugraph.pieces.whole_or_pieces.superoptimized", whole)
    arguments = [torch.randn(4, 16), *(torch.randn(16, 16) for _ in range(layers))]
    with pytest.raises(Asked):
        mugraph.superoptimize(stream, arguments, budget=600, profile=False, cache="off")
    assert given == [pytest.approx(600 * share, rel=0.1)]


@pytest.mark.parametrize(("segments", "single", "divided"), [(4, 3, True), (4, 2, False), (0, 4, False)])
def test_a_long_function_of_which_most_runs_as_it_is_has_its_pieces_searched(
    monkeypatch: pytest.MonkeyPatch, segments: int, single: int, divided: bool
) -> None:
    kernels = [SimpleNamespace(op=op) for op in ["sum"] * single + ["graph_defined"] * (4 - single)]
    graph, report = SimpleNamespace(kernels=lambda: kernels), SimpleNamespace(search={"segments": segments}, interrupted=False)
    whole, pieces = SimpleNamespace(found=True, graph=graph, report=report), SimpleNamespace(found=True)
    monkeypatch.setattr("mugraph.pieces.whole_or_pieces.superoptimized", lambda *asked: whole)
    monkeypatch.setattr("mugraph.pieces.cutting.superoptimized_in_pieces", lambda *asked: pieces)
    arguments = [torch.randn(4, 16), *(torch.randn(16, 16) for _ in range(12))]
    opt: object = mugraph.superoptimize(stream, arguments, budget=600, profile=False, cache="off")
    assert opt is (pieces if divided else whole)


def test_programs_too_deep_for_the_search_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(*args: object, **options: object) -> None:
        raise RecursionError

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", deep)
    program = mugraph.Program()
    program.output(program.input("x", (2, 4)).relu() + 1)
    opt = mugraph.superoptimize(program, profile=False, cache="off")
    assert not opt.found
    assert "too long to search" in opt.report.search["refused"]


def test_constants_are_certain() -> None:
    program = mugraph.Program()
    program.output(program.input("x", (2, 4)) ** 0 * 3)
    opt = mugraph.superoptimize(program, profile=False, cache="off")
    assert opt.certificate.error_bound == 0
    np.testing.assert_array_equal(opt(np.zeros((2, 4), np.float32)), np.full((2, 4), 3, np.float32))


@pytest.mark.parametrize("wanted", [1, 2])
def test_as_many_candidates_are_proved_as_are_asked_for(wanted: int) -> None:
    program = mugraph.Program()
    x = program.input("x", (16, 32))
    program.output(x / x.square().sum(-1, keepdim=True).sqrt())
    assert len(mugraph.superoptimize(program, cache="off", candidates=wanted).candidates) == wanted


@pytest.mark.parametrize("wanted", [0, True, "all"])
def test_what_is_no_number_of_candidates_is_refused(wanted: Any) -> None:
    program = mugraph.Program()
    program.output(program.input("x", (2, 4)).relu())
    with pytest.raises(InvalidInput, match="prove at least one"):
        mugraph.superoptimize(program, candidates=wanted)


def test_programs_that_read_nothing_are_refused() -> None:
    program = mugraph.Program()
    program.output(program.constant(3))
    with pytest.raises(InvalidInput, match="reads nothing"):
        mugraph.superoptimize(program)


def test_algorithm_1_is_the_other_engine() -> None:
    p = mugraph.Program()
    p.output(p.input("x", (2, 2)).square().sum(-1, keepdim=True))
    opt = mugraph.superoptimize(p, search="enumerate")
    assert opt.candidates
    assert "block operators on the given grids" in opt.report.exhausted_what
    x = np.random.default_rng(0).standard_normal((2, 2)).astype(np.float32)
    np.testing.assert_allclose(opt(x), (x**2).sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"search": "guess"}, "engine 'guess'"),
        ({"budget": "3"}, "seconds"),
        ({"target": 3}, "unknown target"),
        ({"workers": 0}, "number of processes"),
        ({"workers": "many"}, "ray://HOST:PORT"),
        ({"workers": "ray", "search": "enumerate"}, "number of processes"),
        ({"max_error": 2.0}, "between 0 and 1"),
        ({"max_error": math.nan}, "between 0 and 1"),
        ({"max_error": "small"}, "between 0 and 1"),
        ({"like": "graph"}, "graph of an earlier result"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_before_anything_is_done(arguments: dict[str, Any], text: str) -> None:
    p = mugraph.Program()
    p.output(p.input("x", (4, 4)).exp())
    events: list[Event] = []
    with pytest.raises(mugraph.MugraphError, match=text):
        mugraph.superoptimize(p, progress=events.append, **arguments)
    assert not events


def test_progress_goes_to_the_callback() -> None:
    events: list[Event] = []
    mugraph.superoptimize(normalised_product, inputs(), progress=events.append)
    assert events[0].stage == "trace", "loading what traces takes seconds"
    assert {"compile", "measure", "verify", "proved"} <= {event.stage for event in events}
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)


def test_library_is_silent_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    mugraph.superoptimize(normalised_product, inputs(), profile=False)
    assert capfd.readouterr() == ("", "")
    mugraph.superoptimize(normalised_product, inputs(), profile=False, progress=True)
    assert "verify" in capfd.readouterr().err


def test_result_overflows_no_sooner_than_the_function() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.T, dim=-1) @ v

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 32, generator=generator) for rows in (8, 64, 64))
    opt = mugraph.superoptimize(attention, (q, k, v))
    assert (40 * q @ k.T).max() > 200
    torch.testing.assert_close(opt(40 * q, k, v), attention(40 * q, k, v), rtol=1e-4, atol=1e-4)


def test_verify_accepts_a_rewrite() -> None:
    def rewritten(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) / torch.sqrt((x * x).sum(-1, keepdim=True) / 32 + 1e-5)

    verdict = mugraph.verify(normalised_product, rewritten, inputs())
    assert verdict.equivalent
    assert verdict.counterexample is None


def test_verify_finds_a_difference() -> None:
    def other(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) @ w

    verdict = mugraph.verify(normalised_product, other, inputs())
    assert verdict.outcome == "different"
    assert verdict.equivalent is False
    assert verdict.counterexample is not None


@pytest.mark.parametrize(
    ("function", "tensors", "error", "text"),
    [
        (lambda x: x * (1 if x.sum() > 0 else 2), (torch.ones(4),), UnsupportedOperator, "values of a tensor"),
        (lambda x, y: x @ y, (torch.ones(4, 3), torch.ones(4, 3)), mugraph.MugraphError, "4"),
        (3, (torch.ones(4),), InvalidInput, "int"),
    ],
)
def test_bad_input_is_one_line_naming_the_fault(function: Any, tensors: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        mugraph.superoptimize(function, tensors)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["tpu", "cuda:sm_12", "triton:sm_12"])
def test_targets_that_cannot_be_compiled_for_are_refused(target: str) -> None:
    with pytest.raises(TargetUnavailable, match=target):
        mugraph.superoptimize(normalised_product, inputs(), target=target)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": "x"}, "seed is an integer, at least 0, or None for a fresh one, not 'x'"),
        ({"seed": 1.5}, "seed is an integer"),
        ({"seed": -1}, "seed is an integer"),
        ({"seed": True}, "seed is an integer"),
        ({"max_error": "x"}, "max_error must lie between 0 and 1, not 'x'"),
        ({"max_error": 0}, "max_error must lie between 0 and 1, not 0"),
    ],
)
def test_settings_of_the_verifier_are_checked_first(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        mugraph.superoptimize(normalised_product, inputs(), **settings)
    with pytest.raises(InvalidInput, match=words):
        mugraph.verify(normalised_product, normalised_product, inputs(), **settings)


def product_of_weights(*scores: torch.Tensor) -> torch.Tensor:
    """So many different sums of exponentials are multiplied that no field tells their terms apart, and kernels shift them."""
    return functools.reduce(torch.mul, [score.exp() / score.exp().sum(-1, keepdim=True) for score in scores])


def test_kernels_without_a_bound_are_kept_only_if_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counterexamples, "_PRECISE", dict.fromkeys(counterexamples._PRECISE, 1))  # there is no witness
    scores = [torch.linspace(-1, 1, 4 * 1024).reshape(4, 1024) * number for number in range(1, 6)]
    bounded = mugraph.superoptimize(product_of_weights, scores, profile=False, cache="off")
    assert not bounded.found
    assert all("no bound can be stated" in rejection.reason for rejection in bounded.report.rejected)
    tested = mugraph.superoptimize(product_of_weights, scores, profile=False, cache="off", evidence="tested")
    assert tested.found
    assert (tested.certificate.outcome, tested.certificate.error_bound) == ("undecided", None)
    assert tested.certificate.agreed
    torch.testing.assert_close(tested(*scores), product_of_weights(*scores), rtol=1e-4, atol=1e-12)
    assert mugraph.load(tested.save(tmp_path / "result")).certificate == tested.certificate


def test_a_kind_of_evidence_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown kind of evidence 'hearsay'; use one of bounded, tested"):
        mugraph.superoptimize(normalised_product, inputs(), evidence="hearsay")  # type: ignore[call-overload]


def test_a_function_that_can_be_traced_and_not_run_is_refused() -> None:
    x, w = inputs()
    with pytest.raises(
        InvalidInput, match=r"normalised_product cannot be run on tensors like .*: RuntimeError: .*double != float"
    ):
        mugraph.superoptimize(normalised_product, (x.double(), w))


def test_block_graphs_alone_are_not_programs(opt: mugraph.Superoptimized) -> None:
    body = opt.graph.kernels()[0].body
    assert isinstance(body, Graph)
    with pytest.raises(InvalidInput, match="block graph"):
        mugraph.superoptimize(body)


def test_import_is_light() -> None:
    code = "import mugraph, sys; assert not {'torch', 'numpy', 'rich'} & set(sys.modules); mugraph.superoptimize; mugraph.Program"
    subprocess.run([sys.executable, "-c", code], check=True)


WITHOUT_PYTORCH = """
import importlib.machinery as machinery, sys, tempfile

find = machinery.PathFinder.find_spec
machinery.PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] == "torch" else find(name, *rest)

import numpy as np
import mugraph

program = mugraph.Program()
x, w = program.input("x", (4, 16)), program.input("w", (16, 8))
program.output((x / x.square().sum(-1, keepdim=True).sqrt()) @ w)
found = mugraph.superoptimize(program, budget=5, cache="off")
given = mugraph.optimize_graph(found.graph, program, budget=5)
assert mugraph.verify(program, program).equivalent
with tempfile.TemporaryDirectory() as folder:
    found.save(folder + "/result")
    for result in (found, given, mugraph.load(folder + "/result")):
        assert result.target == "cpu"
        np.testing.assert_allclose(result(np.ones((4, 16), np.float32), np.ones((16, 8), np.float32)), 4.0, rtol=1e-5)
assert "torch" not in sys.modules
"""


def test_programs_need_no_pytorch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PYTORCH], check=True)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="optimise"):
        mugraph.optimise  # noqa: B018


def test_models_that_hold_results_can_be_copied_and_not_pickled(opt: mugraph.Superoptimized) -> None:
    model = torch.nn.Linear(32, 32)
    model.result = opt  # type: ignore[assignment]
    twin: Any = copy.deepcopy(model)
    assert copy.copy(twin.result) is opt
    torch.testing.assert_close(twin.result(*inputs()), opt(*inputs()))
    with pytest.raises(StorageError, match=r"cannot be pickled; use save\(folder\) and mugraph\.load"):
        pickle.dumps(model)
