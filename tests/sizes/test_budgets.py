"""Questions about a function at all sizes end with the budget of the call, and say what was not asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.results.data import Report
from mugraph.sizes.batched_functions import batched_function
from mugraph.sizes.dims import Declared, Dim, Dynamic
from mugraph.sizes.masked_functions import masked_function
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.sizes.row_functions import row_function
from mugraph.sizes.sliced_functions import sliced_function
from mugraph.sizes.stage_times import StageTimes
from mugraph.support.deadline import Deadline

BATCH, KEYS = Dim("batch", 2, 9), Dim("keys", 2, 9)


class Ends:
    """A deadline that passes once it has been asked so often, whatever the clock says."""

    budget = 3.0

    def __init__(self, times: int) -> None:
        self.times = times

    @property
    def passed(self) -> bool:
        self.times -= 1
        return self.times < 0


def norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def summed(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum(1)


QUESTIONS: dict[str, tuple[Callable[[Deadline], object], int]] = {
    "slices": (lambda deadline: sliced_function(norm, Declared.of({0: {0: BATCH}}), (torch.randn(3, 4),), {}, deadline), 4),
    "masks": (lambda deadline: masked_function(summed, Declared.of({0: {1: KEYS}}), (torch.randn(3, 4),), {}, deadline), 8),
    "rows": (
        lambda deadline: row_function(
            norm, Declared.of({0: {0: BATCH, 1: KEYS}}), (torch.randn(3, 5, 4),), {}, cast(Any, deadline)
        ),
        7,
    ),
    "batches": (
        lambda deadline: batched_function(
            summed, Declared.of({0: {0: BATCH, 1: KEYS}}), (torch.randn(3, 5),), {}, deadline=deadline
        ),
        12,
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_a_deadline_leaves_unasked_is_said(name: str) -> None:
    ask, questions = QUESTIONS[name]
    for times in (0, questions // 2):
        with pytest.raises(SizeMatters, match=r"the budget of 3 s ended before it was asked (what|for)"):
            ask(cast(Deadline, Ends(times)))


@pytest.mark.parametrize(
    ("fn", "dynamic", "unasked"),
    [(norm, {0: {0: BATCH}}, 2), (summed, {0: {0: BATCH, 1: KEYS}}, 2)],
)
def test_without_a_budget_nothing_is_asked(fn: Callable[..., torch.Tensor], dynamic: Dynamic, unasked: int) -> None:
    made = mugraph.superoptimize(fn, (torch.randn(3, 5),), budget=0.0, profile=False, dynamic=dynamic)
    assert made.reason.count("the budget of 0 s ended before it was asked what it is at all sizes") == unasked
    assert len(made.table) == 1
    x = torch.randn(4, 7)
    torch.testing.assert_close(made(x), fn(x))


def test_sizes_that_are_listed_by_hand_are_all_measured() -> None:
    """With what is left of the budget, which is nothing where questions took all of it."""
    sizes = [{"batch": size} for size in (2, 4, 9)]
    made = mugraph.superoptimize_dynamic(norm, torch.randn(3, 5), {0: {0: BATCH}}, table=sizes, budget=0.0)
    assert [*made.table] == [(2,), (4,), (9,)]


@pytest.mark.parametrize("asked", [None, 2])
def test_stages_of_all_sizes_are_added_up_and_one_mugraph_of_each_is_proved(asked: int | None) -> None:
    reports, wanted = list[Report](), set[int | None]()

    def noted(*args: Any, **settings: Any) -> mugraph.Superoptimized:
        made: mugraph.Superoptimized = mugraph.superoptimize(*args, **settings)
        reports.append(made.report)
        wanted.add(settings["candidates"])
        return made

    settings = {"profile": False, "cache": "off", "candidates": asked}
    made = superoptimized_for_sizes(noted, norm, ((torch.randn(3, 4),), {}), {0: {0: BATCH}}, None, None, settings)
    assert wanted == {asked or 1}
    assert len(reports) == len(made.table) > 1
    assert made.times.search == pytest.approx(sum(report.seconds for report in reports))
    assert made.times.measure >= sum(report.measure_seconds for report in reports)
    for stage in ("compile", "verify"):  # first slices are compiled, and what the function is at all sizes is asked
        assert getattr(made.times, stage) > sum(getattr(report, f"{stage}_seconds") for report in reports) > 0


@pytest.mark.parametrize("wanted", [0, False])
def test_no_mugraph_to_prove_is_refused_for_ranges_too(wanted: Any) -> None:
    with pytest.raises(InvalidInput, match="prove at least one"):
        mugraph.superoptimize(norm, (torch.randn(3, 4),), dynamic={0: {0: BATCH}}, candidates=wanted)


def test_what_was_made_before_took_no_time() -> None:
    x = torch.randn(3, 4)
    times = StageTimes()
    report = replace(mugraph.superoptimize(norm, (x,), profile=False, cache="off").report, recalled=True)
    times.counting(lambda *args, **settings: cast(Any, SimpleNamespace(report=report)))(norm, (x,))
    assert times == StageTimes()
    with pytest.raises(ZeroDivisionError), times.of("compile"):
        _ = 1 / 0
    assert times.compile > 0
    assert times.verify == times.measure == times.search == 0
