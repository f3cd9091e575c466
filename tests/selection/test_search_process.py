"""Programs that are optimized in another process: the same results, typed errors, and no process that outlives who asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugraph import Program, SearchSpace
from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.ir.graph import Graph
from mugraph.selection import search_process
from mugraph.selection.search_process import SearchProcess
from mugraph.selection.whole_programs import OptimizationSettings, document_of, superoptimize_program_elsewhere
from mugraph.support.stopping import Stopped
from mugraph.support.store import Store


def program() -> Graph:
    built = Program()
    x, w = built.input("x", (4, 16)), built.input("w", (16, 8))
    built.output((x * x).exp() @ w)
    return built.graph


UNMEASURED: dict[str, Any] = {"profile": False, "cache": "off", "seed": 0}


def through_json(graph: Graph, budget: float | None, wanted: OptimizationSettings) -> dict[str, Any]:
    """What another process would answer."""
    document: dict[str, Any] = json.loads(json.dumps(document_of(graph, budget, wanted)))
    return document


@pytest.fixture
def process() -> Iterator[SearchProcess]:
    opened = SearchProcess()
    yield opened
    opened.close()


def test_another_process_finds_what_is_checked_here(process: SearchProcess, tmp_path: Path) -> None:
    store = Store(tmp_path)
    settings = {**UNMEASURED, "cache": store, "space": SearchSpace(kernels=1)}
    found = superoptimize_program_elsewhere(program(), process, budget=20.0, **settings)
    assert found.found
    assert not found.report.recalled
    assert found.certificate.accepted
    x, w = np.random.default_rng(0).random((4, 16), np.float32), np.ones((16, 8), np.float32)
    np.testing.assert_allclose(found(x, w), np.exp(x * x) @ w, rtol=1e-5)
    process.close()
    recalled = superoptimize_program_elsewhere(program(), process, budget=20.0, **settings)
    assert recalled.report.recalled, "the other process keeps what it finds, and nobody is asked again"


def test_a_process_is_started_before_it_is_needed(process: SearchProcess) -> None:
    process.start()
    started = process._process
    assert started is not None
    assert process(program(), 20.0, OptimizationSettings(**UNMEASURED))["report"]["found"]
    assert process._process is started


def test_errors_of_the_search_are_raised_here(process: SearchProcess) -> None:
    wanted = OptimizationSettings(**UNMEASURED, constants=("nobody",))
    with pytest.raises(InvalidInput, match="no input called 'nobody'"):
        process(program(), 5.0, wanted)


def test_a_defect_of_the_search_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*asked: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(search_process, "document_of", broken)
    request = {**search_process._request(program(), OptimizationSettings(**UNMEASURED)), "budget": 1.0, "number": 7}
    answer = search_process._answered(json.dumps(request))
    error = search_process._error(answer)
    assert isinstance(error, RuntimeError)
    assert "ZeroDivisionError: planted" in str(error)


def test_answers_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="answered what is no result"):
        superoptimize_program_elsewhere(program(), lambda *asked: {"best": 3}, budget=1.0, **UNMEASURED)


def test_answers_for_another_program_are_refused() -> None:
    other = Program()
    x, w = other.input("x", (4, 16)), other.input("w", (16, 8))
    other.output((x + x).exp() @ w)

    def mistaken(graph: Graph, budget: float | None, wanted: OptimizationSettings) -> dict[str, Any]:
        return through_json(other.graph, budget, wanted)

    with pytest.raises(InvalidInput, match="speaks of other graphs"):
        superoptimize_program_elsewhere(program(), mistaken, budget=10.0, **UNMEASURED)


def test_nothing_found_for_want_of_time_is_said_as_here() -> None:
    found = superoptimize_program_elsewhere(program(), through_json, budget=0.0, **UNMEASURED)
    assert not found.found
    assert not found.report.exhausted


def test_what_is_printed_beside_answers_is_none(process: SearchProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text('import os\nprint("[]", end="", flush=True)\nos.write(1, b"7")\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    wanted = OptimizationSettings(**UNMEASURED)
    for _ in range(2):
        document = process(program(), 20.0, wanted)
        assert process.contradiction(program(), document, wanted) == ""


def test_an_answer_to_an_earlier_request_is_none(process: SearchProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [json.dumps({"number": number, "answer": number}) for number in (7, 0, 0, 1)]
    code = f"import sys; sys.stdin.readline(); print({chr(10).join(answers)!r}, flush=True); sys.stdin.readline()"
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(
        search_process, "_new_process", lambda: subprocess.Popen(command, stdin=-1, stdout=-1, text=True, start_new_session=True)
    )
    assert [process.contradiction(program(), {}, OptimizationSettings(**UNMEASURED)) for _ in range(2)] == ["0", "1"]


def test_the_process_imports_nothing_of_the_working_directory(
    process: SearchProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert process(program(), 20.0, OptimizationSettings(**UNMEASURED))["report"]["found"]


@pytest.mark.parametrize(("name", "value"), [("executable", None), ("executable", ""), ("frozen", True)])
def test_a_program_with_python_in_it_is_not_started_again(
    name: str, value: object, process: SearchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    with pytest.raises(TargetUnavailable, match="no Python interpreter"):
        process(program(), 1.0, OptimizationSettings(**UNMEASURED))


def test_a_process_that_cannot_be_started_is_an_error(process: SearchProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(TargetUnavailable, match="no process can be started"):
        process(program(), 1.0, OptimizationSettings(**UNMEASURED))


def silent_process(ready: threading.Event) -> subprocess.Popen[str]:
    """A process that never answers."""
    code = "import sys; sys.stdin.readline(); sys.stdin.readline()"
    started = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True, start_new_session=True)
    ready.set()
    return started


def asked_in_a_thread(process: SearchProcess, raised: list[BaseException]) -> threading.Thread:
    def ask() -> None:
        try:
            process(program(), 1.0, OptimizationSettings(**UNMEASURED))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize(("end", "error"), [("close", Stopped), ("rest", TargetUnavailable)])
def test_who_waits_for_a_process_that_is_ended_is_told(end: str, error: type, monkeypatch: pytest.MonkeyPatch) -> None:
    process, raised, ready = SearchProcess(), list[BaseException](), threading.Event()
    monkeypatch.setattr(search_process, "_new_process", lambda: silent_process(ready))
    thread = asked_in_a_thread(process, raised)
    assert ready.wait(300)
    while process._process is None:  # the lock is held until it is known
        with process._changes:
            pass
    getattr(process, end)()
    thread.join(300)
    assert [type(each) for each in raised] == [error]


def test_a_process_that_ended_is_replaced(process: SearchProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    process._process = silent_process(threading.Event())
    process._process.kill()
    process._process.wait()
    with pytest.raises(TargetUnavailable, match="ended with status -9"):
        process(program(), 1.0, OptimizationSettings(**UNMEASURED))
    assert process._process is None


@pytest.mark.parametrize("end", ["close", "rest"])
def test_a_process_that_is_ended_leaves_no_pipes_open(end: str) -> None:
    process, started = SearchProcess(), silent_process(threading.Event())
    process._process = started
    assert started.stdin is not None
    assert started.stdout is not None
    started.stdin.write("a request that nobody takes")
    getattr(process, end)()
    assert started.stdin.closed
    assert started.stdout.closed


def test_the_process_ends_with_its_input() -> None:
    command = [sys.executable, "-m", "mugraph.selection.search_process"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, input="", text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0
