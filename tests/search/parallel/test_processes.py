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
from typing import Any, ClassVar

import pytest

from mugraph.devices import device_for
from mugraph.search import Options, search
from mugraph.search.executors import Processes
from mugraph.search.structures import KNOWN, FoundStructure
from mugraph.search.tasks import _LOOPLESS, Item
from mugraph.testing.forms import CASES
from support.test_stopping import ends

from ..programs import PAPER
from .items import PATIENT, attention_items

CPU = device_for("cpu")


@pytest.mark.parametrize("name", ["rmsnorm", "lora"])
def test_results_do_not_depend_on_the_number_of_workers(name: str) -> None:
    program = PAPER[name]()
    found = []
    for workers in (1, 3):
        KNOWN.clear()
        result = search(program, CPU, workers=workers, options=PATIENT)
        assert result.report.exhausted
        assert result.report.cuts_complete
        found.append(([(c.graph, c.cost) for c in result.candidates], result.report.states))
    assert found[0] == found[1]


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


def test_what_a_settled_search_lists_does_not_depend_on_when_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan leaves little to win, and others are looked for in this process alone, here however long it takes."""
    monkeypatch.setattr("mugraph.search.driver._SETTLED_SECONDS", 120.0)
    monkeypatch.setattr("mugraph.search.driver._SETTLED_SHARE", 1.0)
    found = []
    for workers in (1, 3):
        KNOWN.clear()
        _LOOPLESS.clear()
        result = search(PAPER["rmsnorm"](), CPU, budget=120, workers=workers, options=Options(least_gain=0.95))
        assert result.report.settled
        found.append([c.graph for c in result.candidates])
    assert found[0] == found[1]


@dataclass(frozen=True)
class Held:
    """An item whose first worker says which process it is, and does not end; the next one searches it."""

    item: Item
    begun: Path
    where: ClassVar[str] = "a held item"
    nothing: ClassVar[FoundStructure | None] = None

    def search(self, deadline: float, tick: Callable[[int], None]) -> Any:
        if self.begun.exists():
            return self.item.search(deadline, tick)
        part = self.begun.with_suffix(".part")
        part.write_text(str(os.getpid()))
        part.rename(self.begun)
        time.sleep(600)
        raise AssertionError("nobody killed the worker")

    def worker(self, pool: Processes[Any]) -> int:
        """The process that has the item, once one has."""
        until = time.monotonic() + 300
        while not self.begun.exists():
            assert time.monotonic() < until, "no worker began to search"
            pool.dispatch()
            time.sleep(0.01)
        return int(self.begun.read_text())


def test_a_worker_killed_in_the_middle_of_an_item_costs_a_retry(tmp_path: Path) -> None:
    pool: Processes[Any] = Processes(2)
    first, *others = [item for item, _ in attention_items()]
    held = Held(first, tmp_path / "begun")
    try:
        tasks = [pool.submit(held), *map(pool.submit, others)]
        os.kill(held.worker(pool), signal.SIGKILL)
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


@pytest.mark.parametrize(
    "seconds", [0.02, 0.1, 0.2, *(pytest.param(other, marks=pytest.mark.slow) for other in (0.05, 0.15, 0.3))]
)
def test_a_worker_that_dies_while_it_sends_what_it_found_is_noticed(seconds: float) -> None:
    """Another one lives on, and has the pipe open that the dead one was writing to."""
    pool: Processes[bytes] = Processes(2)
    try:
        tasks = [pool.submit(Heavy(seconds)), pool.submit(Heavy(60.0))]
        pool.dispatch()
        deadline = time.perf_counter() + 300
        assert [len(task.result(deadline, lambda stage, states: None)) for task in tasks] == [100_000_000] * 2
    finally:
        pool.close()


def test_closing_stops_what_is_being_searched(tmp_path: Path) -> None:
    pool: Processes[Any] = Processes(1)
    held = Held(attention_items()[0][0], tmp_path / "begun")
    pool.submit(held)
    worker = held.worker(pool)
    pool.close()
    assert ends(worker)


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
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) > 0
