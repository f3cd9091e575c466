"""Tracers are silent in their own thread, and in no other."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mugraph.frontend.recording.quiet import quietly

LOGGER = logging.getLogger("torch._guards")


def said(name: str) -> None:
    print(f"{name} prints")
    print(f"{name} complains", file=sys.stderr, flush=True)
    LOGGER.error("%s logs", name)


def test_what_other_threads_say_meanwhile_is_heard(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOGGER, "propagate", True)
    LOGGER.addHandler(caplog.handler)
    try:
        with ThreadPoolExecutor(1) as pool, quietly():
            said("tracer")
            with quietly():
                pool.submit(said, "another").result()
            said("tracer")
        said("later")
    finally:
        LOGGER.removeHandler(caplog.handler)
    printed = capsys.readouterr()
    assert printed.out == "another prints\nlater prints\n"
    assert set(caplog.messages) == {"another logs", "later logs"}
    assert [line for line in printed.err.splitlines() if "complains" in line] == ["another complains", "later complains"]
    assert "tracer" not in printed.err


def test_a_program_without_terminal_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with quietly():
        print("nowhere")
        sys.stdout.flush()
