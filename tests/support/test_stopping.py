"""Work that another thread stops: it ends at its next step, and what it waits for is killed."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mugraph.runtime.benchmarking import duel, measure
from mugraph.support.stopping import Stoppable, Stopped, check, passed_on, run

PRINTS = [sys.executable, "-c", "import os, sys; print(os.environ['WORD']); print('no', file=sys.stderr); sys.exit(3)"]
WAITS = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
told = Path(sys.argv[1])
told.with_name("half").write_text(str(child.pid))
told.with_name("half").rename(told)
child.wait()
"""


def test_nothing_is_stopped_elsewhere() -> None:
    work = Stoppable()
    work.stop()
    check()
    assert run([sys.executable, "-c", "print(1)"]).stdout == "1\n"
    with pytest.raises(Stopped), work:
        check()
    check()


def test_threads_that_help_are_stopped_as_well_and_others_are_not() -> None:
    work = Stoppable()
    work.stop()
    with ThreadPoolExecutor(1) as threads, work:
        helps, does_not = threads.submit(passed_on(check)), threads.submit(check)
        with pytest.raises(Stopped):
            helps.result()
        does_not.result()


def test_processes_end_inside_as_elsewhere() -> None:
    environment = {**os.environ, "WORD": "yes"}
    outside = run(PRINTS, environment)
    with Stoppable():
        inside = run(PRINTS, environment)
    assert (inside.returncode, inside.stdout, inside.stderr) == (3, "yes\n", "no\n")
    assert (outside.returncode, outside.stdout, outside.stderr) == (3, "yes\n", "no\n")
    with Stoppable(), pytest.raises(OSError, match="nowhere"):
        run(["/nowhere/cc"])


def is_running(process: int) -> bool:
    """Whether a process is there and has not ended: nobody may have asked yet how it did."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return not status.parent.parent.exists()


def ends(process: int) -> bool:
    """Whether a process to which somebody sent a signal ends by that, which takes until it is next run."""
    until = time.monotonic() + 60
    while is_running(process) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_running(process)


def test_who_waits_for_processes_stops_and_they_are_killed(tmp_path: Path) -> None:
    work, told = Stoppable(), tmp_path / "told"

    def wait() -> None:
        with work:
            run([sys.executable, "-c", WAITS, str(told)])

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        while not told.exists() and not waiting.done():
            threading.Event().wait(0.01)
        assert is_running(int(told.read_text()))
        work.stop()
        with pytest.raises(Stopped):
            waiting.result(100)
    assert ends(int(told.read_text())), "what the process began, too"


@pytest.mark.parametrize("calls", [1, 2, 5, 30])
def test_measurements_end_between_two_rounds(calls: int) -> None:
    work, made = Stoppable(), list[int]()

    def side() -> None:
        made.append(1)
        if len(made) == calls:
            work.stop()

    with work, pytest.raises(Stopped):
        duel(side, lambda: None, seconds=1000.0)
    assert len(made) <= calls + 100, "a burst"


def test_rounds_of_calls_end() -> None:
    work, made = Stoppable(), list[int]()

    def side() -> None:
        made.append(1)
        if len(made) == 4:
            work.stop()

    with work, pytest.raises(Stopped):
        measure({"side": side, "other": side}, repeats=100, warmup=1)
    assert len(made) == 4
