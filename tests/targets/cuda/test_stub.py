"""Loading and launching without a GPU, by NVIDIA's own bindings: a stub of the driver is built, and a process has it for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mugraph.errors import TargetUnavailable
from mugraph.targets.cpu.compiler import Compiler, find_compiler
from targets.cuda.stub.programs import GRAPHS, SLICED, built, first_slices, save_divided

pytest.importorskip("cuda.bindings.driver", reason="launching needs cuda-bindings")
pytest.importorskip("cuda.core", reason="kernels are compiled with cuda-core; pip install 'mugraph[cuda]'")

STUB = Path(__file__).parent / "stub"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stub is a shared object of Linux"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has GPUs of its own, whose part cannot be played"),
]


@pytest.fixture
def compiler() -> Compiler:
    try:
        return find_compiler()
    except TargetUnavailable as error:
        pytest.skip(str(error))


def test_kernels_are_loaded_and_launched_as_the_driver_wants_it(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks are in checks.py, and any warning is an error there."""
    library = tmp_path / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-ldl", "-lpthread"]
    subprocess.run([*compiler.command, str(STUB / "driver.c"), "-o", str(library), *flags], check=True, timeout=300)
    kernels = tmp_path / "kernels"
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MUGRAPH_CACHE", "on")
    for name in GRAPHS:
        built(name, kernels)
    for name in SLICED:
        first_slices(name)
    save_divided(kernels)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("LD_LIBRARY_PATH")))),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "STUB_KERNELS": str(kernels),
    }
    options = ["-W", "error", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-W", "error", "-m", "pytest", *options, str(STUB / "checks.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
