"""Kept results: an equal question is not searched again, and nothing kept is believed that can be checked."""

from __future__ import annotations

import copy
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mugraph import Program, Superoptimized, superoptimize
from mugraph.devices import device_for
from mugraph.results.data import Candidate
from mugraph.runtime import build
from mugraph.search import search as closure_search
from mugraph.selection import result_cache
from mugraph.selection.qualification import KEPT, Qualifier
from mugraph.selection.whole_programs import OptimizationSettings, contradiction_of, superoptimize_program
from mugraph.support.store import Mode, Store
from mugraph.verifier.certificate import digest


def program(rows: int = 4, op: str = "square", dtype: str = "fp32") -> Program:
    """Normalise, then multiply; `op` chooses how the scale is computed."""
    p = Program()
    x, w = p.input("x", (rows, 32), dtype), p.input("w", (32, 64), dtype)
    scale = getattr(x, op)().mean(-1, keepdim=True) + 1.5
    p.output((x / scale) @ w)
    return p


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs searched from now on."""
    seen: list[Any] = []

    def counted(graph: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(graph)
        return closure_search(graph, *args, **kwargs)

    monkeypatch.setattr("mugraph.selection.proposals.closure_search", counted)
    return seen


def optimized(p: Program | None = None, **options: Any) -> Superoptimized:
    result: Superoptimized = superoptimize(p or program(), profile=False, **options)
    return result


def test_an_equal_question_gets_the_kept_answer(store: Store, searches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OptimizationSettings, "most", KEPT)
    first, second = optimized(cache=store), optimized(cache=store)
    assert len(searches) == 1
    assert len(first.candidates) > 1
    assert (first.report.recalled, second.report.recalled) == (False, True)
    assert (second.graph, second.certificate, second.sources) == (first.graph, first.certificate, first.sources)
    assert [candidate.graph for candidate in second.candidates] == [candidate.graph for candidate in first.candidates]
    x, w = np.random.default_rng(0).standard_normal((2, 4, 32)).astype(np.float32)[0], np.ones((32, 64), np.float32)
    np.testing.assert_array_equal(first(x, w), second(x, w))


def test_checking_a_kept_answer_is_not_silent(store: Store) -> None:
    optimized(cache=store)
    told: list[str] = []
    assert optimized(cache=store, progress=lambda event: told.append(str(event))).report.recalled
    assert [line.split(" (")[0] for line in told] == [
        "recall: testing the proof of the result of an earlier run again",
        "recall: comparing the result of an earlier run with float64 again",
    ]


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (program(rows=8), {}), (program(op="exp"), {}), (program(dtype="fp16"), {}), (None, {"seed": 1}),
        (None, {"max_error": 2**-60}), (None, {"target": "cuda:sm_90"}),
    ],
)  # fmt: skip
def test_another_question_is_searched(store: Store, searches: list[Any], other: Program | None, options: dict[str, Any]) -> None:
    optimized(cache=store)
    if "target" in options:
        key = result_cache.ResultCache(store, program().graph, device_for("cpu"), {}, None).key
        assert result_cache.ResultCache(store, program().graph, device_for(options["target"]), {}, None).key != key
        return
    assert not optimized(other, cache=store, **options).report.recalled
    assert len(searches) == 2


def test_another_version_searches_again(store: Store, searches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    optimized(cache=store)
    monkeypatch.setattr(result_cache, "package_digest", lambda: "other files")
    optimized(cache=store)
    assert len(searches) == 2


def test_modes_say_whether_to_search(store: Store, searches: list[Any]) -> None:
    optimized(cache=Store(store.directory, Mode.READ_ONLY))
    assert not store.entries()
    optimized(cache=store)
    assert optimized(cache=Store(store.directory, Mode.READ_ONLY)).report.recalled
    assert not optimized(cache=Store(store.directory, Mode.FORCE)).report.recalled
    assert not optimized(cache="off").report.recalled
    assert len(searches) == 4


def test_a_longer_budget_is_used_unless_the_search_had_ended(store: Store, searches: list[Any]) -> None:
    assert optimized(cache=store, budget=60.0).report.search["settled"]
    assert optimized(cache=store).report.recalled

    def unfinished(document: dict[str, Any]) -> None:
        document["report"]["search"]["settled"] = False

    change(store, unfinished)
    assert optimized(cache=store, budget=30.0).report.recalled
    assert not optimized(cache=store, budget=90.0).report.recalled


def test_a_settled_search_of_which_nothing_was_good_is_not_the_last_word(store: Store, searches: list[Any]) -> None:
    optimized(cache=store, budget=60.0)

    def nothing_good(document: dict[str, Any]) -> None:
        document["report"]["found"] = False

    change(store, nothing_good)
    assert not optimized(cache=store, budget=90.0).report.recalled


def test_a_longer_budget_is_used_where_proofs_were_hurried(store: Store, searches: list[Any]) -> None:
    optimized(cache=store, budget=60.0)

    def hurried(document: dict[str, Any]) -> None:
        document["report"]["total_seconds"] = 59.0

    change(store, hurried)
    assert optimized(cache=store, budget=60.0).report.recalled
    assert optimized(cache=store, budget=75.0).report.recalled, "little more"
    assert not optimized(cache=store, budget=90.0).report.recalled


def test_nothing_for_lack_of_time_is_not_kept(store: Store, searches: list[Any]) -> None:
    assert not optimized(cache=store, budget=0.0).found
    assert not any(entry.kind == result_cache.KIND for entry in store.entries())
    assert optimized(cache=store, budget=60.0).found
    assert optimized(cache=store, budget=30.0).report.recalled


def test_new_parameters_are_used_with_kept_kernels(store: Store, searches: list[Any]) -> None:
    x = torch.randn(4, 32)
    for _ in range(2):
        layer = torch.nn.Linear(32, 64, bias=False)
        result = superoptimize(layer, (x,), profile=False, cache=store)
        with torch.no_grad():
            torch.testing.assert_close(result(x), layer(x), rtol=1e-5, atol=1e-5)
    assert result.report.recalled
    assert len(searches) == 1


def test_another_process_recalls(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from mugraph import superoptimize, Program; from mugraph.support.store import Store\n"
        "p = Program(); x = p.input('x', (4, 32)); w = p.input('w', (32, 64)); p.output((x.exp() @ w) / 3)\n"
        "print(superoptimize(p, profile=False, cache=Store(Path(sys.argv[1]))).report.recalled)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)] == ["False\n", "True\n"]


def change(store: Store, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit the only result of the store, as somebody might who can also compute hashes."""
    (key,) = [entry.key for entry in store.entries() if entry.kind == result_cache.KIND]
    document = copy.deepcopy(store.get(result_cache.KIND, key))
    assert document is not None
    edit(document)
    store.put(result_cache.KIND, key, document)


def _another_meaning(document: dict[str, Any], old: str = '"square"', new: str = '"exp"') -> None:
    """A muGraph that computes something else, with a certificate and hash that fit it."""
    text = json.dumps(document["best"]["graph"])
    assert old in text
    graph = Candidate.from_json({**document["best"], "graph": json.loads(text.replace(old, new))}).graph
    document["best"]["graph"] = json.loads(text.replace(old, new))
    document["best"]["certificate"]["right"] = digest(graph)
    document["sources"] = build(graph).digest


def _almost_the_same(document: dict[str, Any]) -> None:
    """So little else that no comparison of floating-point numbers shows it."""
    _another_meaning(document, '"3/2"', '"1500000001/1000000000"')


def _another_certificate(document: dict[str, Any]) -> None:
    document["best"]["certificate"]["left"] = "0" * 64


def _refused(document: dict[str, Any]) -> None:
    document["best"]["certificate"].update(accepted=False, outcome="undecided")


def _other_sources(document: dict[str, Any]) -> None:
    document["sources"] = "0" * 64


def _incomplete(document: dict[str, Any]) -> None:
    del document["best"]["cost"]


def _nonsense(document: dict[str, Any]) -> None:
    document["best"]["graph"]["graph"]["nodes"][0]["op"] = "launch"


def test_kernels_that_disagree_with_float64_are_searched_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    optimized(cache=store)
    monkeypatch.setattr(Qualifier, "contradicted", lambda *arguments: "")
    change(store, _another_meaning)
    with caplog.at_level(logging.WARNING):
        assert not optimized(cache=store).report.recalled
    assert "disagrees with float64" in caplog.text


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (_another_meaning, "does not compute the program"), (_almost_the_same, "does not compute the program"),
        (_another_certificate, "other graphs"), (_refused, "accepts nothing"),
        (_other_sources, "other sources"), (_incomplete, "cost"), (_nonsense, "launch"),
    ],
)  # fmt: skip
def test_what_does_not_pass_its_checks_is_searched_again(
    edit: Callable[[dict[str, Any]], None], why: str, store: Store, searches: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = optimized(cache=store)
    change(store, edit)
    with caplog.at_level(logging.WARNING):
        again = optimized(cache=store)
    assert not again.report.recalled
    assert again.graph == wanted.graph
    assert why in caplog.text
    assert optimized(cache=store).report.recalled, "the entry was replaced by a good one"


# --- of models that are served -----------------------------------------------------------------------------------------

SHARED: dict[str, Any] = {"profile": False, "seed": 0, "asked": 60.0}


def of_a_model(store: Store, budget: float, **settings: Any) -> Superoptimized:
    """The result for one program of several, which have a budget together."""
    return superoptimize_program(program().graph, budget=budget, cache=store, **{**SHARED, **settings})


def test_a_share_of_the_same_budget_may_be_larger(store: Store, searches: list[Any]) -> None:
    of_a_model(store, 20.0)

    def hurried(document: dict[str, Any]) -> None:
        document["report"]["total_seconds"] = 19.0

    change(store, hurried)
    assert of_a_model(store, 55.0).report.recalled
    assert not of_a_model(store, 55.0, asked=100.0).report.recalled, "more was asked for"


def test_what_had_too_little_time_is_not_tried_again_with_as_much(store: Store, searches: list[Any]) -> None:
    assert not of_a_model(store, 0.0).found

    def longer(document: dict[str, Any]) -> None:
        document["budget"] = 20.0

    change(store, longer)
    assert not of_a_model(store, 60.0, unfinished=True).found
    assert len(searches) == 1
    assert of_a_model(store, 60.0, unfinished=True, asked=100.0).found
    assert len(searches) == 2, "more was asked for"


@pytest.mark.parametrize(("latency", "stays"), [(1e-9, True), (1e3, False)], ids=["faster", "slower"])
def test_what_is_searched_on_replaces_what_is_kept_where_it_is_faster(
    latency: float, stays: bool, store: Store, searches: list[Any]
) -> None:
    of_a_model(store, 60.0, profile=True)

    def timed(document: dict[str, Any]) -> None:
        document["best"]["latency"] = latency

    change(store, timed)
    again = of_a_model(store, 60.0, profile=True, anew=True)
    assert not again.report.recalled
    assert len(searches) == 2
    kept = of_a_model(store, 60.0, profile=True)
    assert kept.report.recalled
    assert kept.best.latency == (latency if stays else again.best.latency)


def test_that_nothing_was_found_replaces_no_kernels(store: Store, searches: list[Any]) -> None:
    of_a_model(store, 60.0, profile=True)
    assert not of_a_model(store, 0.0, profile=True, anew=True).found
    assert of_a_model(store, 60.0, profile=True).report.recalled


def test_what_had_hardly_any_share_is_tried_again_with_a_larger_one(store: Store, searches: list[Any]) -> None:
    assert not of_a_model(store, 0.0).found
    assert of_a_model(store, 60.0, unfinished=True).found
    assert len(searches) == 2


def test_who_goes_on_searching_tries_it_again(store: Store, searches: list[Any]) -> None:
    of_a_model(store, 0.0)
    assert of_a_model(store, 60.0).found
    assert of_a_model(store, 1.0, unfinished=True).found, "what is found takes its place"
    assert len(searches) == 2


def test_kernels_are_not_replaced_by_nothing_for_want_of_time(store: Store) -> None:
    assert of_a_model(store, 20.0).found

    def hurried(document: dict[str, Any]) -> None:
        document["report"]["total_seconds"] = 19.0

    change(store, hurried)
    assert not of_a_model(store, 0.0, asked=600.0, unfinished=True).found
    again = of_a_model(store, 20.0, unfinished=True)
    assert again.found
    assert again.report.recalled


def test_what_had_too_little_time_under_load_is_not_tried_again_without(
    store: Store, searches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for load in (1000.0, 1000.0, 0.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        of_a_model(store, 0.0, unfinished=True, postpone=list[Any]().append)
        assert len(searches) == 1


def test_results_that_are_glanced_at_are_handed_on(store: Store) -> None:
    handed: list[Any] = []
    wanted = of_a_model(store, 60.0, postpone=handed.append)
    assert not handed, "it was proved in this call"
    found = of_a_model(store, 60.0, postpone=handed.append)
    assert found.report.recalled
    assert found.graph == wanted.graph
    assert contradiction_of(program().graph, handed[0], OptimizationSettings(**SHARED, cache=store)) == ""
    assert of_a_model(store, 60.0).report.recalled


def test_a_glance_is_enough_for_kernels_that_are_far_off(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    of_a_model(store, 60.0)
    change(store, _another_meaning)
    handed: list[Any] = []
    with caplog.at_level(logging.WARNING):
        assert not of_a_model(store, 60.0, postpone=handed.append).report.recalled
    assert "disagrees with float64" in caplog.text
    assert not handed


def test_what_a_glance_does_not_show_is_shown_afterwards_and_forgotten(store: Store) -> None:
    of_a_model(store, 60.0)
    change(store, _almost_the_same)
    handed: list[Any] = []
    assert of_a_model(store, 60.0, postpone=handed.append).report.recalled
    wrong = contradiction_of(program().graph, handed[0], OptimizationSettings(**SHARED, cache=store))
    assert "does not compute the program" in wrong
    assert not any(entry.kind == result_cache.KIND for entry in store.entries())
