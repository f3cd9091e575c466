"""What holds for every test: seeds are fixed, and nothing is recalled from earlier runs unless a test has its own store.

Examples of properties are the same in every run, but for `.ci/nightly`, which draws others. With `--on-gpu`, kernels that tests
give to the emulator of CUDA or to Triton's interpreter run on the GPU that PyTorch sees.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from compilations import Compilations
from mugraph.support import seeds
from mugraph.support.store import cache_directory
from mugraph.targets.cuda import nvrtc
from mugraph.targets.cuda.emulator import toolchain
from mugraph.verifier import counterexamples, domain

os.environ["MUGRAPH_CACHE"] = "off"

TESTS = Path(__file__).parent
WHOLE_PATHS = (
    *("first_hour", "frontend", "integrations", "pieces", "sizes"),
    *("test_api.py", "test_docs.py", "test_documented_commands.py"),
)
"""Folders and files with tests of what is done with results, from the search to the call."""
FEW_COMPILED = 2
LITTLE_OPTIMIZED = "-O1"
FREEZE_COUNT = gc.get_freeze_count

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fresh", deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where emulated kernels run."""
    parser.addoption("--on-gpu", action="store_true", help="run kernels on a GPU that are emulated otherwise")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long suites have an hour a test where others have the time limit of pyproject.toml; emulators rest where a GPU runs."""
    for item in items:
        if item.get_closest_marker("emulator") is not None and config.getoption("--on-gpu"):
            item.add_marker(pytest.mark.skip(reason="it is about an emulator itself"))
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(3600))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests live as long as the process: to look for garbage among them took a third of the time to collect them, and
    a part of every test's."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test and its fixtures draw is the same in every run, whichever tests its process ran before."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def pytest_collection_finish() -> None:
    """PyTorch gives what it traces, whole graphs, to a logger that is silent unless it has handlers, and pytest gives handlers to
    loggers that do not propagate. One that propagates is as silent as for users, and failures do not print its records."""
    logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(autouse=True, scope="session")
def _frozen_is_known() -> Iterator[None]:
    """That modules and tests are frozen is said without counting a million of them, which takes longer than many a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules and tests are garbage like other objects for once, as in processes that do not freeze them."""
    monkeypatch.setattr(gc, "get_freeze_count", FREEZE_COUNT)
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure can be repeated."""
    monkeypatch.setattr(seeds, "fresh_seed", lambda: 0)


@pytest.fixture(autouse=True, scope="session")
def _compiled_once() -> Iterator[None]:
    """The same kernels are compiled once, as by users, whose store keeps what tests' own stores do not."""
    kept = Compilations(cache_directory() / "tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "_compile", kept.cubins())
        patch.setattr(toolchain, "_compiled", kept.objects())
        yield


@pytest.fixture(autouse=True, scope="session")
def _patient() -> Iterator[None]:
    """Witnesses that others are looked for in five seconds by default are found on busy machines, too."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (counterexamples, domain):
            patch.setattr(module, "_PATIENCE", 120.0)
        yield


@pytest.fixture(autouse=True, scope="module")
def _few_are_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """By day, tests of what is done with results have the first two candidates compiled, at `-O1`, and timed, and not sixteen.

    Which of them is chosen is the matter of `tests/selection`; what kernels look like, of `tests/runtime` and `tests/targets`.
    """
    if request.path.relative_to(TESTS).parts[0] not in WHOLE_PATHS or settings.get_current_profile_name() == "fresh":
        yield
        return
    from mugraph.selection import qualification
    from mugraph.targets.cpu import compiler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_OPTIMIZATION", LITTLE_OPTIMIZED)
        patch.setattr(qualification, "_COMPILED", FEW_COMPILED)
        yield


@pytest.fixture(scope="module")
def first_found() -> Iterator[None]:
    """By day, searches of a module's tests end with what they find first that keeps the range of numbers, as those that have a
    budget begin: for tests of what is done with results, whichever these are. At night they look for more, as users' do."""
    if settings.get_current_profile_name() == "fresh":
        yield
        return
    from mugraph.search.tasks import ANY_GAIN
    from mugraph.selection import whole_programs
    from mugraph.selection.proposals import Inquiry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_programs, "Inquiry", partial(Inquiry, least_gain=ANY_GAIN))
        yield


@pytest.fixture(autouse=True)
def _emulated_on_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Emulators hand their kernels to a GPU where that is asked for; a process whose GPU has failed ends, and pytest-xdist
    starts another one for the tests that are left."""
    if not request.config.getoption("--on-gpu"):
        yield
        return
    import torch

    from mugraph.targets.cuda.emulated import EmulatedCuda
    from mugraph.targets.triton.interpreted import InterpretedTriton
    from mugraph.testing.on_gpu import CudaOnGpu, TritonOnGpu

    monkeypatch.setattr(EmulatedCuda, "load", CudaOnGpu.load)
    monkeypatch.setattr(InterpretedTriton, "load", TritonOnGpu.load)
    yield
    try:
        torch.cuda.synchronize()
    except RuntimeError as failure:
        print(f"{request.node.nodeid}: {failure}", file=sys.stderr, flush=True)
        os._exit(1)


@pytest.fixture
def kernels_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are faster than the function, whatever the machine does: for tests of what follows from that."""
    from mugraph.runtime.baselines import EAGER, BaselineComparison
    from mugraph.runtime.benchmarking import Duel

    won = BaselineComparison({EAGER: Duel.of([1e-6] * 5, [2e-6] * 5)})
    monkeypatch.setattr("mugraph.selection.own_function.compare", lambda *call, **settings: won)
