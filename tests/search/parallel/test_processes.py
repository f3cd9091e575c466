"""Worker processes: the same results as one process alone, also when one is killed in the middle of an item."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from mugraph.devices import device_for
from mugraph.search import search
from mugraph.search.executors import Processes
from mugraph.search.structures import KNOWN, FoundStructure
from mugraph.testing.forms import CASES

from ..programs import PAPER
from .items import PATIENT, attention_items

CPU = device_for("cpu")


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds worker processes in /proc")


@pytest.mark.parametrize("name", ["rmsnorm", "lora"])
def test_results_do_not_depend_on_the_number_of_workers(name: str) -> None:
    program = PAPER[name]()
    found = []
    for workers in (1, 2, 4):
        KNOWN.clear()
        result = search(program, CPU, workers=workers, options=PATIENT)
        assert result.report.exhausted
        assert result.report.cuts_complete
        found.append(([(c.graph, c.cost) for c in result.candidates], result.report.states))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["three products", "a norm before a narrow product"])
def test_several_kernels_do_not_depend_on_the_number_of_workers(name: str) -> None:
    program, device = CASES[name].graph(CASES[name].written), device_for("cuda:sm_90")
    found = []
    for workers in (1, 2):
        KNOWN.clear()
        result = search(program, device, workers=workers, options=PATIENT)
        assert result.report.exhausted
        found.append(([(c.graph, c.cost) for c in result.candidates], result.report.states, result.report.not_searched))
    assert found[0] == found[1]
    assert len(found[0][0][0][0].kernels()) == 2


@needs_proc
def test_a_worker_killed_in_the_middle_of_an_item_costs_a_retry() -> None:
    pool: Processes[FoundStructure] = Processes(2)
    try:
        tasks = [pool.submit(item) for item, _ in attention_items()]
        os.kill(busy_worker(pool), signal.SIGKILL)
        found = [task.result(float("inf"), lambda stage, states: None) for task in tasks]
    finally:
        pool.close()
    assert pool.losses > 0
    assert found == [wanted for _, wanted in attention_items()]


@dataclass(frozen=True)
class Heavy:
    """An item that holds many megabytes; the worker that searches it dies after `seconds`, while it may be sending them."""

    seconds: float
    parent: int = field(default_factory=os.getpid)
    where: ClassVar[str] = "a heavy item"
    nothing: ClassVar[bytes] = b""

    def search(self, deadline: float, tick: Callable[[int], None]) -> bytes:
        if os.getpid() != self.parent:
            threading.Thread(target=self.die, daemon=True).start()
        return bytes(100_000_000)

    def die(self) -> None:
        time.sleep(self.seconds)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_a_worker_that_dies_while_it_sends_what_it_found_is_noticed(seconds: float) -> None:
    """Another one lives on, and has the pipe open that the dead one was writing to."""
    pool: Processes[bytes] = Processes(2)
    try:
        tasks = [pool.submit(Heavy(seconds)), pool.submit(Heavy(60.0))]
        pool.dispatch()
        deadline = time.perf_counter() + 60
        assert [len(task.result(deadline, lambda stage, states: None)) for task in tasks] == [100_000_000] * 2
    finally:
        pool.close()


@needs_proc
def test_closing_stops_what_is_being_searched() -> None:
    pool: Processes[FoundStructure] = Processes(1)
    for item, _ in attention_items():
        pool.submit(item)
    worker = busy_worker(pool)
    pool.close()
    assert worker not in workers()


def test_a_script_without_a_guarded_main_may_use_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mugraph import Program\n"
        "from mugraph.devices import device_for\n"
        "from mugraph.search import search\n"
        "p = Program()\n"
        "x, w = p.input('x', (4, 8)), p.input('w', (8, 6))\n"
        "p.output((x @ w).silu())\n"
        "print(len(search(p.graph, device_for('cpu'), workers=2).candidates))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 0


def busy_worker(pool: Processes[FoundStructure]) -> int:
    """The process of a worker that is searching: starting one takes a part of the processor time it has used by then."""
    for _ in range(6000):
        pool.dispatch()
        for process, seconds in workers().items():
            if seconds > 0.8:
                return process
        time.sleep(0.01)
    raise AssertionError("no worker began to search")


def workers() -> dict[int, float]:
    """Worker processes of this one, and the processor seconds each has used."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent, *_, user = (process / "stat").read_text().rpartition(")")[2].split()[1:12]
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if int(parent) == os.getpid() and "popen_loky" in command:
            found[int(process.name)] = int(user) / os.sysconf("SC_CLK_TCK")
    return found
