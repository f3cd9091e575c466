"""Graphs that serve while their kernels are searched: no call waits, sees half of a change, or breaks for what happens there."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import mugraph
from mugraph.errors import InvalidInput
from mugraph.integrations import background
from mugraph.integrations.background import BackgroundGraph, Comparison, Queue, State, Turn, Work
from mugraph.integrations.own_arguments import OwnArguments
from mugraph.integrations.torch_compile import compilations
from mugraph.ir.graph import Graph, Level
from mugraph.pieces import piece_optimizer
from mugraph.pieces.piece_optimizer import Untested
from mugraph.selection.search_process import SearchProcess
from mugraph.selection.whole_programs import OptimizationSettings, contradiction_of, document_of
from mugraph.targets.cpu.compiler import load_shared
from support.test_stopping import ends

from .networks import Mlp

LONG = 500.0


class Held(SearchProcess):
    """Searches and tests in the thread that asks, one program for every permission; `fault` is raised instead."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.allowed = threading.Semaphore(0), threading.Semaphore(0)
        self.fault: BaseException | None = None
        self.programs: list[Graph] = []
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def __call__(self, program: Graph, budget: float | None, wanted: OptimizationSettings) -> Mapping[str, Any]:
        self.programs.append(program)
        self.asked.release()
        assert self.allowed.acquire(timeout=LONG)
        if self.fault is not None:
            raise self.fault
        document: Mapping[str, Any] = json.loads(json.dumps(document_of(program, budget, wanted)))
        return document

    def contradiction(self, program: Graph, document: Mapping[str, Any], wanted: OptimizationSettings) -> str:
        return contradiction_of(program, document, wanted)

    def allow_all(self) -> None:
        self.allowed.release(1000)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    torch._dynamo.reset()
    compilations.clear()
    piece_optimizer.optimizer.cache_clear()
    held = Held()
    monkeypatch.setattr(background.queue, "process", held)
    yield held
    held.allow_all()
    assert background.wait(LONG)
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    chosen = {"background": True, "keep": "all", "budget": 120.0, "profile": False, **options}
    function: Callable[..., Any] = torch.compile(fn, backend="mugraph", options=chosen)
    return function


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def latest() -> BackgroundGraph:
    return background.graphs()[-1]


@torch.no_grad()
def test_a_call_is_answered_at_once_and_by_kernels_later(search: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = SearchProcess()
    monkeypatch.setattr(search, "contradiction", tests.contradiction)
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model)
    assert torch.equal(fast(x), model(x)), "PyTorch runs the graph"
    assert search.asked.acquire(timeout=LONG)
    assert torch.equal(fast(x), model(x))
    assert latest().state is State.SEARCHING
    assert not background.wait(0.0)
    assert not compilations
    search.allow_all()
    assert background.wait(LONG)
    assert latest().state is State.KERNELS
    close(fast(x), model(x))
    assert compilations[-1].partition.byte_share > 0.8
    assert latest().calls == 3
    assert "called 3 times is in kernels" in str(latest())
    tests.close()


@torch.no_grad()
def test_kernels_of_one_piece_serve_while_others_are_searched(search: Held) -> None:
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model)
    fast(x)
    original = latest()._run
    assert search.asked.acquire(timeout=LONG)
    assert search.starts == 1, "before its budget is spent"
    search.allowed.release()
    assert search.asked.acquire(timeout=LONG), "there is a second piece"
    assert latest().state is State.SEARCHING
    assert latest()._run is not original
    close(fast(x), model(x))
    search.allow_all()
    assert background.wait(LONG)
    close(fast(x), model(x))


@torch.no_grad()
def test_threads_call_while_kernels_come(search: Held) -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(Mlp(), Mlp(32, 96), Mlp()).eval(), [torch.randn(4, 32) for _ in range(8)]
    wanted, fast, done = [model(x) for x in inputs], compiled(model), threading.Event()
    fast(inputs[0])

    def serve(number: int) -> int:
        calls = 0
        while not done.is_set() or calls < 3:
            with torch.no_grad():
                close(fast(inputs[number]), wanted[number])
            calls += 1
        return calls

    with ThreadPoolExecutor(8) as threads:
        served = [threads.submit(serve, number) for number in range(8)]
        search.allow_all()
        ended = background.wait(LONG)
        done.set()
        assert all(each.result(LONG) >= 3 for each in served)
    assert ended
    assert latest().state is State.KERNELS


@pytest.mark.parametrize("fault", [ZeroDivisionError("planted"), MemoryError("planted"), SystemExit(3), KeyboardInterrupt()])
@torch.no_grad()
def test_what_the_search_raises_breaks_no_call(search: Held, fault: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    search.fault = fault
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model, pack=False)
    with caplog.at_level(logging.INFO, logger="mugraph.torch_compile"):
        fast(x)
        search.allow_all()
        assert background.wait(LONG)
        assert torch.equal(fast(x), model(x))
    assert latest().state is State.PYTORCH
    assert latest().reason
    assert "please report this" in caplog.text
    assert type(fault).__name__ in caplog.text


@torch.no_grad()
def test_what_goes_wrong_while_a_graph_is_cut_breaks_no_call(search: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*anything: object, **more: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("mugraph.integrations.optimized_graph.plans", broken)
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model)
    fast(x)
    assert background.wait(LONG)
    assert torch.equal(fast(x), model(x))
    assert latest().reason == "ZeroDivisionError: planted"


@torch.no_grad()
def test_graphs_that_are_called_more_often_come_first(search: Held) -> None:
    first, seldom, often = compiled(Mlp(16).eval()), compiled(Mlp(24).eval()), compiled(Mlp(40).eval())
    first(torch.randn(2, 16))
    assert search.asked.acquire(timeout=LONG)
    seldom(torch.randn(2, 24))
    for _ in range(5):
        often(torch.randn(2, 40))
    assert [graph.state for graph in background.graphs()[-2:]] == [State.QUEUED, State.QUEUED]
    search.allow_all()
    assert background.wait(LONG)
    order = [{16, 24, 40}.intersection(size for node in each.inputs() for size in node.output.shape) for each in search.programs]
    seen = list(dict.fromkeys(size for sizes in order for size in sizes))
    assert seen == [16, 40, 24]


def test_kernels_that_serve_are_tested_before_anything_is_searched(search: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    done, begun = list[str](), threading.Semaphore(0)

    def tested(program: Graph, document: Mapping[str, Any], wanted: OptimizationSettings) -> str:
        done.append("tested")
        return ""

    def searched(graph: BackgroundGraph) -> None:
        done.append("searched")
        begun.release()
        assert search.allowed.acquire(timeout=LONG)

    monkeypatch.setattr(search, "contradiction", tested)
    often, seldom = (BackgroundGraph(lambda: 1, background.queue) for _ in range(2))
    kept = Untested(Graph(Level.KERNEL, (), ()), {}, OptimizationSettings(cache="off"))
    often.later(searched)
    often.later(searched)
    assert often() + often() == 2
    assert begun.acquire(timeout=LONG)
    seldom.confirm([kept])
    assert seldom() == 1
    search.allow_all()
    assert background.wait(LONG)
    assert done == ["searched", "tested", "searched"]
    assert kept.wrong == ""


def test_no_process_is_started_to_compare(search: Held) -> None:
    graph, done = BackgroundGraph(lambda: 1, background.queue), list[str]()
    for work in (Comparison(lambda graph: done.append("compared")), lambda graph: done.append("searched")):
        graph.later(work)
    graph()
    assert background.wait(LONG)
    assert sorted(done) == ["compared", "searched"]
    assert search.starts == 1


@torch.no_grad()
def test_graphs_that_nobody_can_call_are_left_out(search: Held) -> None:
    first = compiled(Mlp(16).eval())
    first(torch.randn(2, 16))
    assert search.asked.acquire(timeout=LONG)
    ran = []
    gone = BackgroundGraph(lambda: 1, background.queue)
    gone.later(lambda graph: ran.append(graph))
    assert gone() == 1
    del gone
    gc.collect()
    search.allow_all()
    assert background.wait(LONG)
    assert not ran


@torch.no_grad()
def test_weights_that_change_meanwhile_are_read(search: Held) -> None:
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model)
    fast(x)
    assert search.asked.acquire(timeout=LONG)
    model.down.weight.mul_(3)
    close(fast(x), model(x))
    search.allow_all()
    assert background.wait(LONG)
    model.up.weight.mul_(2)
    close(fast(x), model(x))
    model.up.weight.data = torch.randn_like(model.up.weight)
    close(fast(x), model(x))


@torch.no_grad()
def test_random_numbers_of_calls_are_left_alone(search: Held) -> None:
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model, profile=True, keep="faster")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    fast(x)
    search.allow_all()
    assert background.wait(LONG)
    assert torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def test_what_is_changed_in_place_is_changed_once(search: Held) -> None:
    model = Mlp().eval()

    def step(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = model(x)
        total.add_(y)
        return y * 2

    fast, x, ours, theirs = compiled(step), torch.randn(4, 32), torch.zeros(4, 32), torch.zeros(4, 32)
    for call in range(4):
        close(fast(x, ours), step(x, theirs))
        close(ours, theirs)
        if call == 1:
            search.allow_all()
            assert background.wait(LONG)


@torch.no_grad()
def test_any_size_has_kernels_from_sizes_that_are_made_in_the_background(search: Held) -> None:
    model = Mlp().eval()
    fast = compiled(model)
    search.allow_all()
    for rows in (30, 4, 7, 30, 130, 4):
        x = torch.randn(rows, 32)
        torch._dynamo.mark_dynamic(x, 0)
        close(fast(x), model(x))
        assert background.wait(LONG)
    assert len(background.graphs()) >= 1
    assert latest().state is State.KERNELS
    assert compilations, "sizes have kernels"


@torch.no_grad()
def test_sizes_that_calls_are_not_guarded_for_are_not_relied_on(search: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    assumed = iter([(3, 0, 0), (4, 0, 0)])
    monkeypatch.setattr("mugraph.integrations.torch_compile._guards_of", lambda module: next(assumed))
    model = Mlp().eval()
    fast, x = compiled(model), torch.randn(30, 32)
    torch._dynamo.mark_dynamic(x, 0)
    search.allow_all()
    for rows in (x, torch.randn(7, 32)):
        assert torch.equal(fast(rows), model(rows))
        assert background.wait(LONG)
    assert latest().state is State.PYTORCH
    assert "not keep to" in latest().reason


@torch.no_grad()
def test_dynamic_sizes_are_right(search: Held) -> None:
    model = Mlp().eval()
    options: dict[str, Any] = {"background": True, "budget": 60.0, "profile": False}
    fast = torch.compile(model, backend="mugraph", dynamic=True, options=options)
    search.allow_all()
    for rows in (5, 6, 7, 5, 5, 5, 5):
        x = torch.randn(rows, 32)
        close(fast(x), model(x))
        assert background.wait(LONG)


@pytest.mark.parametrize("mode", ["on", "read-only"])
@torch.no_grad()
def test_kernels_do_not_need_the_cache_s_folder(mode: str, search: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(folder))
    monkeypatch.setenv("MUGRAPH_CACHE", mode)
    model, x = Mlp().eval(), torch.randn(4, 32)
    fast = compiled(model)
    fast(x)
    assert search.asked.acquire(timeout=LONG)
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    search.allow_all()
    assert background.wait(LONG)
    assert latest().state is State.KERNELS
    close(fast(x), model(x))


@torch.no_grad()
def test_kept_kernels_that_are_wrong_are_taken_out_of_service(
    search: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(program: Graph, document: Mapping[str, Any], wanted: OptimizationSettings) -> str:
        tested.append(program)
        assert released.acquire(timeout=LONG)
        return "planted"

    tested, released = list[Graph](), threading.Semaphore(0)
    monkeypatch.setattr(search, "contradiction", wrong)
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    model, x = Mlp().eval(), torch.randn(4, 32)
    waited_for: dict[str, Any] = {"background": False, "cache": "on", "pack": False, "budget": 60.0}
    compiled(model, **waited_for)(x)
    assert not tested, "what was found here was proved here"
    torch._dynamo.reset()
    piece_optimizer.optimizer.cache_clear()
    fast = compiled(model, **waited_for)
    close(fast(x), model(x))
    assert compilations[-1].results
    assert all(result.report.recalled for result in compilations[-1].results.values())
    with caplog.at_level(logging.ERROR, logger="mugraph.torch_compile"):
        released.release(100)
        assert background.wait(LONG)
    assert torch.equal(fast(x), model(x)), "PyTorch runs the graph"
    assert latest().state is State.PYTORCH
    assert latest().reason == "planted"
    assert "kernels that were kept are wrong" in caplog.text
    assert len(tested) == len({id(result) for result in compilations[-1].results.values()})
    torch._dynamo.reset()
    other = compiled(model, **waited_for)
    assert torch.equal(other(x), model(x)), "what is known to be wrong runs in no other graph"
    assert background.wait(LONG)
    assert not compilations[-1].partition.pieces


def test_a_decorated_function_is_answered_at_once(search: Held) -> None:
    model, x = Mlp().eval(), torch.randn(4, 32)

    @mugraph.optimize(background=True, budget=20.0)
    def run(y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(y)
        return result

    with torch.no_grad():
        assert torch.equal(run(x), model(x))
        assert search.asked.acquire(timeout=LONG)
        search.allow_all()
        assert background.wait(LONG)
        close(run(x), model(x))
    model.zero_grad()
    run(x).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert model.down.weight.grad is not None


@pytest.mark.parametrize(
    "settings",
    [{"strict": True}, {"dynamic": {0: {0: mugraph.Dim("rows", 1, 4)}}}, {"constants": ("x",)}, {"progress": lambda event: None}],
)
def test_the_decorator_refuses_what_it_could_not_keep(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="background=True"):
        mugraph.optimize(lambda x: x, background=True, **settings)


# --- trials ------------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds that pass when a run says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(background, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def run(self, seconds: Callable[[], float], result: str) -> Callable[[], str]:
        def run() -> str:
            self.now += seconds()
            return result

        return run


@pytest.mark.parametrize(("ours", "winner"), [(1.0, "kernels"), (3.0, "torch")])
def test_calls_decide_who_answers(ours: float, winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    graph = BackgroundGraph(clock.run(lambda: 2.0, "torch"), Queue())
    graph.try_out(clock.run(lambda: ours, "kernels"))
    answers = [graph() for _ in range(100)]
    assert {*answers[:10]} == {"torch", "kernels"}, "in turns"
    assert {*answers[70:]} == {winner}
    assert graph.duel is not None
    assert graph.duel.speedup == pytest.approx(2.0 / ours)
    assert graph.state is (State.KERNELS if winner == "kernels" else State.PYTORCH)
    assert bool(graph.reason) == (winner == "torch")


def test_kernels_that_are_as_fast_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    noise = iter(torch.rand(1000, generator=torch.Generator().manual_seed(1)).tolist())
    graph = BackgroundGraph(clock.run(lambda: 1 + next(noise), "torch"), Queue())
    graph.try_out(clock.run(lambda: 1 + next(noise), "kernels"))
    assert [graph() for _ in range(100)][-1] == "torch"


def test_the_first_call_of_each_side_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    packing = iter([1000.0])
    graph = BackgroundGraph(clock.run(lambda: 2.0, "torch"), Queue())
    graph.try_out(clock.run(lambda: next(packing, 1.0), "kernels"))
    for _ in range(100):
        graph()
    assert graph.duel is not None
    assert graph.duel.won == graph.duel.rounds


def test_calls_do_not_count_while_something_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, queue = Clock(monkeypatch), Queue()
    graph = BackgroundGraph(clock.run(lambda: 2.0, "torch"), queue)
    graph.try_out(clock.run(lambda: 1.0, "kernels"))
    queue._thread = threading.current_thread()
    assert {graph() for _ in range(100)} == {"kernels"}
    assert graph.state is State.TRIED


def test_a_test_has_the_last_word_while_a_call_decides() -> None:
    class RefusedMeanwhile(BackgroundGraph):
        """Another thread refuses between the question whether it did and the change."""

        @property
        def _refused(self) -> bool:
            answers.append(bool(answers))
            return answers[-1]

        @_refused.setter
        def _refused(self, value: bool) -> None: ...

    answers: list[bool] = []
    graph = RefusedMeanwhile(lambda: "torch", Queue())
    graph.settle(lambda: "kernels")
    assert answers == [False, True]
    assert graph() == "torch"
    assert graph.state is State.PYTORCH


# --- turns -------------------------------------------------------------------------------------------------------------


def test_a_turn_is_taken_by_one() -> None:
    waiting: list[Work] = []
    graph = BackgroundGraph(lambda: None, Queue())
    turn, done = Turn(waiting.append), list[int]()
    turn.take(lambda given: done.append(1))
    turn.take(lambda given: done.append(2))
    assert not done
    waiting.pop()(graph)
    turn.take(lambda given: done.append(3), quick=True)
    assert done == [1, 3]
    assert not waiting


def test_a_turn_that_raises_is_left_to_others() -> None:
    def broken(given: OwnArguments) -> None:
        raise ZeroDivisionError

    turn, done = Turn(), list[int]()
    with pytest.raises(ZeroDivisionError):
        turn.take(broken)
    turn.take(lambda given: done.append(1))
    assert done == [1]


def test_only_work_behind_a_call_has_arguments_of_its_own() -> None:
    waiting: list[Work] = []
    graph, x, seen = BackgroundGraph(lambda: None, Queue()), torch.zeros(3), list[torch.Tensor]()

    def look(given: OwnArguments) -> None:
        seen.append(given.given[0])

    Turn().take(look, [x])
    Turn(waiting.append).take(look, [x], quick=True)
    assert all(each is x for each in seen)
    Turn(waiting.append).take(look, [x])
    Turn(None, waiting.append).take(look, [x], again=True)
    assert len(seen) == 2
    x.add_(1)
    for work in waiting:
        work(graph)
    assert [each.tolist() for each in seen[2:]] == [[0.0] * 3] * 2


def test_arguments_that_cannot_be_copied_break_no_call(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(arguments: object) -> None:
        raise MemoryError

    waiting, done = list[Work](), list[int]()
    turn = Turn(waiting.append)
    monkeypatch.setattr(OwnArguments, "copied", broken)
    turn.take(lambda given: done.append(1), [torch.zeros(3)])
    assert waiting == []
    assert "cannot be copied" in caplog.text
    turn.take(lambda given: done.append(2), quick=True)
    assert done == [2], "the turn is free"


# --- processes ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, threading
import torch
from torch import nn
from mugraph.integrations import background

torch.set_num_threads(1)  # PyTorch's own calls hang in forked processes otherwise
model = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 128), nn.SiLU()).eval()
fast = torch.compile(model, backend="mugraph", options={"background": True, "budget": 60.0, "profile": False})
asked, started = background.queue.process._started, threading.Event()


def told():
    process = asked()
    started.set()
    return process


background.queue.process._started = told
x = torch.randn(4, 64)
with torch.no_grad():
    fast(x)
    assert started.wait(500)
"""


def ended(more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + more], env=environment, capture_output=True, text=True, timeout=550, check=False
    )


def test_a_process_ends_while_it_searches() -> None:
    done = ended("print(background.queue.process._process.pid)")
    assert (done.returncode, done.stderr) == (0, "")
    assert ends(int(done.stdout))


COMPILING = """
import sys, time
from pathlib import Path
from mugraph.integrations import background
from mugraph.integrations.background import BackgroundGraph, Comparison
from mugraph.targets.cpu.compiler import load_shared

graph = BackgroundGraph(lambda: None, background.queue)
graph.later(Comparison(lambda graph: load_shared("int f(void) { return 7; }")))
graph()
"""
UNTIL_TOLD = """
import time
while not os.path.exists(os.environ["TOLD"]):
    time.sleep(0.01)
"""
COMPILER = """#!/bin/sh
case " $* " in
*" -shared "*)
    test -d "$TMPDIR" && : > "$TMPDIR/left"
    sleep 1000 &
    echo $$ $! > "$TOLD.half"
    mv "$TOLD.half" "$TOLD"
    wait ;;
*) exec REAL "$@" ;;
esac
"""


@pytest.mark.parametrize("program", [PROGRAM, "import os" + COMPILING], ids=["another process", "the thread"])
@pytest.mark.skipif(sys.platform == "win32", reason="a shell's script stands for the compiler")
def test_a_process_that_ends_while_somebody_compiles_leaves_nothing_behind(program: str, tmp_path: Path) -> None:
    """No compiler, no files, and a cache that is of use. Without the search's end this waits for a minute at least."""
    folders = [tmp_path / name for name in ("bin", "cache", "temporary")]
    for folder in folders:
        folder.mkdir(mode=0o700)
    commands, cache, temporary = folders
    real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert real is not None
    (commands / "cc").write_text(COMPILER.replace("REAL", real))
    (commands / "cc").chmod(0o700)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PATH": os.pathsep.join([str(commands), os.environ["PATH"]]),
        "TOLD": str(tmp_path / "told"),
        "TMPDIR": str(temporary),
        "MUGRAPH_CACHE_DIR": str(cache),
        "MUGRAPH_CACHE": "on",
    }
    command = [sys.executable, "-c", program + UNTIL_TOLD]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    compilers = [int(process) for process in (tmp_path / "told").read_text().split()]
    assert len(compilers) == 2
    assert all(map(ends, compilers))
    assert [name for name in os.listdir(temporary) if not name.startswith("torchinductor")] == []
    assert [path for path in cache.rglob("*") if path.name.startswith(".")] == []
    assert load_shared("int f(void) { return 7; }", cache).f() == 7
    for database in cache.glob("*.sqlite*"):
        with contextlib.closing(sqlite3.connect(database)) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_ctrl_c_ends_a_process_that_searches() -> None:
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # whoever runs the tests may ignore it
    done = ended(f"{heard}\nos.kill(os.getpid(), signal.SIGINT)\nthreading.Event().wait(100)")
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr.strip().endswith("KeyboardInterrupt")
    assert done.stderr.count("Traceback") == 1


def test_an_error_of_the_program_ends_it_as_ever() -> None:
    done = ended("raise SystemExit(7)")
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_goes_on_by_itself() -> None:
    done = ended("""
from mugraph.selection import qualification

qualification._COMPILED = 1  # any kernels will do
child = os.fork()
with torch.no_grad():
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
(graph,) = background.graphs()
assert graph.state in ("queued", "searching"), graph.state
if child == 0:
    assert background.wait(500)
    assert graph.state not in ("queued", "searching", "not called yet")
    sys.exit(0)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
""")
    assert (done.returncode, done.stderr) == (0, "")
