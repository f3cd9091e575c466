"""Budgets and Ctrl-C: whatever ends a run early, the result is the best so far, proved, and says what happened."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import mugraph
from mugraph.support.progress import INTERRUPTED, Event
from mugraph.support.store import Store


def normalised_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)) @ w


def inputs(rows: int = 4, hidden: int = 32, columns: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, hidden, generator=generator), torch.randn(hidden, columns, generator=generator)


class Interruption:
    """A user who presses Ctrl-C once, when told an event of the stage whose text contains `text`."""

    def __init__(self, stage: str, text: str = "") -> None:
        self.stage, self.text, self.pressed = stage, text, False
        self.answers: list[str] = []

    def __call__(self, event: Event) -> None:
        if event.stage == INTERRUPTED:
            self.answers.append(event.text)
        if not self.pressed and event.stage == self.stage and self.text in event.text:
            self.pressed = True
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("stage", "text", "found"),
    [
        ("search", "", None),
        ("compile", "candidate 3", True),
        ("measure", "candidates", True),
        ("verify", "candidate 1", False),
        ("verify", "candidate 2", True),
        ("compare", "", False),
    ],
)
@pytest.mark.usefixtures("kernels_win")
def test_an_interrupted_stage_gives_what_it_has(stage: str, text: str, found: bool | None) -> None:
    user = Interruption(stage, text)
    opt = mugraph.superoptimize(normalised_product, inputs(), progress=user, cache="off")
    assert user.pressed
    assert user.answers == ["finishing with the best so far; again to stop"]
    assert opt.report.interrupted
    assert opt.certificate.accepted
    assert found is None or opt.found is found
    torch.testing.assert_close(opt(*inputs()), normalised_product(*inputs()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second"),
    [(("search",), "measure"), (("compile", "candidate 3"), "verify"), (("verify", "candidate 2"), "compare")],
)
@pytest.mark.usefixtures("kernels_win")
def test_the_second_time_it_stops(first: tuple[str, ...], second: str) -> None:
    once, again = Interruption(*first), Interruption(second)

    def user(event: Event) -> None:
        once(event)
        again(event)

    with pytest.raises(KeyboardInterrupt):
        mugraph.superoptimize(normalised_product, inputs(), progress=user, cache="off")
    assert once.pressed
    assert again.pressed


def test_after_an_interrupted_check_the_original_is_not_measured_against_float64() -> None:
    """That would take as long as what was interrupted, and longer for large programs."""
    opt = mugraph.superoptimize(normalised_product, inputs(), progress=Interruption("verify", "candidate 1"), cache="off")
    assert not opt.found
    assert opt.certificate.accepted
    assert opt.best.max_relative_error is None


def test_what_was_interrupted_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    assert mugraph.superoptimize(normalised_product, inputs(), progress=Interruption("verify"), cache=store).report.interrupted
    again = mugraph.superoptimize(normalised_product, inputs(), cache=store)
    assert not again.report.recalled
    assert not again.report.interrupted


def test_a_budget_that_ends_before_any_proof_gives_the_original_without_a_measured_error() -> None:
    opt = mugraph.superoptimize(normalised_product, inputs(), budget=0.0, cache="off")
    assert not opt.found
    assert opt.certificate.accepted
    assert opt.best.max_relative_error is None
    torch.testing.assert_close(opt(*inputs()), normalised_product(*inputs()), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.5, 2.0, 4.0])
def test_the_budget_is_kept(budget: float) -> None:
    """To a tenth and a second, in which the result is compared with the function however little time there was."""
    large = inputs(64, 1024, 4096)
    mugraph.superoptimize(normalised_product, inputs(), cache="off")  # imports and caches of the process are in place
    started = time.monotonic()
    opt = mugraph.superoptimize(normalised_product, large, budget=budget, cache="off")
    assert time.monotonic() - started < 1.1 * budget + 1.0
    assert opt.certificate.accepted
