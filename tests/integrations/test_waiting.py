"""What those are told who wait while torch.compile(backend="mugraph") makes kernels."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput
from mugraph.integrations import waiting
from mugraph.integrations.waiting import Notice, tell
from mugraph.pieces import piece_optimizer
from mugraph.pieces.piece_options import PieceOptions
from mugraph.support.deadline import Deadline
from mugraph.support.progress import INTERRUPTED, Event

LOG = "mugraph.torch_compile"
ALL: dict[str, Any] = {"keep": "all", "profile": False, "cache": "off", "budget": 120.0}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    piece_optimizer.optimizer.cache_clear()
    yield
    torch._dynamo.reset()


def gate(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """A program."""
    return torch.tanh(x * gain) * x


def test_both_graphs_of_a_step_tell_who_asked() -> None:
    heard: list[Event] = []
    x, gain = torch.randn(4, 32), torch.randn(32, requires_grad=True)
    y = torch.compile(gate, backend="mugraph", options=ALL | {"progress": heard.append})(x, gain)
    forward, heard[:] = [event.stage for event in heard], []
    (gradient,) = torch.autograd.grad(y.sum(), gain)
    for stages in (forward, [event.stage for event in heard]):
        assert stages[0] == "partition"
        assert "search" in stages
    (wanted,) = torch.autograd.grad(gate(x.double(), gain.double()).sum(), gain)
    torch.testing.assert_close(gradient, wanted.float(), rtol=1e-4, atol=1e-4)


def test_lines_are_printed_for_who_wants_them(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.inference_mode():
        torch.compile(gate, backend="mugraph", options=ALL | {"progress": True})(torch.randn(4, 32), torch.randn(32))
    assert "partition: 1 program (" in capsys.readouterr().err


def test_whoever_is_told_shares_what_was_found() -> None:
    heard: list[Event] = []
    with torch.inference_mode():
        for asked in ({}, {"progress": heard.append}):
            torch.compile(gate, backend="mugraph", options=ALL | asked)(torch.randn(4, 32), torch.randn(32))
            torch._dynamo.reset()
    assert {event.stage for event in heard} == {"partition"}, "nothing is searched again"


def test_the_log_says_how_long_a_graph_may_take(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOG), torch.inference_mode():
        torch.compile(gate, backend="mugraph", options=ALL)(torch.randn(4, 32), torch.randn(32))
    assert caplog.messages[0] == "kernels are searched for a graph of 3 calls, for up to 120 seconds"


def test_a_long_wait_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waiting, "notice", Notice())
    event = Event("search", "closures", 0.0)
    for seconds in (0.0, 1000.0, 2000.0):
        with waiting.waiting(None, Deadline(None, Deadline(None).started - seconds)):
            tell(event)
            assert len(caplog.messages) == (seconds > 0)
    assert "a call has waited 1000 seconds" in caplog.text
    assert "progress=True" in caplog.text


def test_nobody_is_told_who_does_not_wait(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waiting, "notice", Notice())
    heard: list[Event] = []
    with waiting.waiting(heard.append, Deadline(None, 0.0)):
        tell(Event(INTERRUPTED, "the best so far is returned", 1000.0))
    tell(Event("search", "closures", 1000.0))
    assert not heard
    assert not caplog.messages


def test_wrong_options_are_named() -> None:
    with pytest.raises(InvalidInput, match="option progress='bar': use True, or a function"):
        PieceOptions(progress="bar")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="with background=True no call waits"):
        PieceOptions(progress=True, background=True)
    with pytest.raises(InvalidInput, match="with background=True no call waits"):
        mugraph.optimize(gate, progress=True, background=True)
