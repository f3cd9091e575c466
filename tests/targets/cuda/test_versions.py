"""NVIDIA's packages: what the extra allows, which versions were tested, and the newest, by tests of compiling and launching."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from mugraph.cli import main
from mugraph.errors import TargetUnavailable
from mugraph.targets.cuda import nvrtc, versions
from mugraph.targets.cuda.nvrtc import compiler_version
from mugraph.targets.cuda.versions import TESTED, minor_version, untested

pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC; pip install 'mugraph[cuda]'")

ROOT = Path(__file__).parents[3]
NEXT = ["cuda-core", "cuda-bindings"]
"""The compiler stays in its series, whose code drivers load."""
COMPILE = """
from mugraph.support.store import Store
from mugraph.targets.cuda.nvrtc import compile_cubin

kernel = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
assert compile_cubin(kernel, "sm_90", Store.of("off")).resources["twice"].registers > 0
"""


def bounds(extra: str) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """The versions of each package that an extra allows: from the first on, before the second."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = (re.fullmatch(r"([\w-]+)>=([\d.]+),<(\d+)", text) for text in project["optional-dependencies"][extra])
    return {each[1]: (minor_version(each[2]), (int(each[3]), 0)) for each in found if each is not None}


def reported(**installed: str) -> Callable[[str], str]:
    """The versions of an environment with some packages in other ones."""
    versions = {name.replace("_", "-"): version for name, version in installed.items()}
    return lambda name: versions.get(name) or importlib.metadata.version(name)


@pytest.mark.parametrize("name", list(TESTED))
def test_the_extra_ends_before_the_next_major_version(name: str) -> None:
    first, end = bounds("cuda")[name]
    assert first <= TESTED[name] < end == (TESTED[name][0] + 1, 0)


def test_triton_is_launched_by_the_same_bindings() -> None:
    assert bounds("triton")["cuda-bindings"] == bounds("cuda")["cuda-bindings"]


def test_the_pinned_versions_are_the_latest_that_were_tested() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.partition("==")[0] in TESTED]
    assert {name: minor_version(version) for name, _, version in (pin.partition("==") for pin in pins)} == TESTED


def test_what_is_installed_was_tested() -> None:
    """Where this fails alone, a later version works: write it into `TESTED` and constraints.txt."""
    assert untested() == {}
    for name, (first, end) in bounds("cuda").items():
        assert first <= minor_version(importlib.metadata.version(name)) < end


def test_doctor_names_versions_that_are_later_than_those_that_were_tested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "version", reported(cuda_core="1.99.1", cuda_bindings="13.0.2"))
    assert untested() == {"cuda-core": "1.99.1"}
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "cuda"]
    assert line.startswith("warn")
    assert "cuda-core 1.99.1 (tested to 1.2)" in line
    assert "pip install 'cuda-core<1.3'" in line
    assert "cuda-bindings" not in line


def test_doctor_names_later_versions_where_nothing_compiles_for_they_may_be_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> str:
        raise TargetUnavailable("cuda-core does not import")

    monkeypatch.setattr(versions, "version", reported(cuda_core="1.3.0"))
    monkeypatch.setattr(nvrtc, "compiler_version", broken)
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "cuda"]
    assert line.startswith("none")
    assert "cuda-core does not import" in line
    assert "pip install 'cuda-core<1.3'" in line


@pytest.mark.parametrize("installed", ["1.3.0", "1.3rc1", "2", "2.0.0a1"])
def test_any_later_version_is_untested(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", reported(cuda_core=installed))
    assert untested() == {"cuda-core": installed}


def test_doctor_says_nothing_of_versions_that_were_tested(capsys: pytest.CaptureFixture[str]) -> None:
    compiler_version.cache_clear()
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "cuda"]
    assert line.startswith("ok")
    assert "tested" not in line


def python_with_warnings_as_errors(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of Python in which every warning ends it, so what a later version takes away shows before it does."""
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def test_nothing_that_compiling_calls_is_about_to_be_taken_away() -> None:
    done = python_with_warnings_as_errors("-c", COMPILE, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_newest_versions_compile_and_launch(tmp_path: Path) -> None:
    """What the registry has today, whatever its major version, goes through the tests of compiling and of the driver's stub."""
    newest = tmp_path / "newest"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(newest), "--no-deps", *NEXT, "cuda-pathfinder"]
    if subprocess.run(install, capture_output=True, timeout=600, check=False).returncode:
        pytest.skip("no package registry is reached")
    path = os.pathsep.join([str(newest), *filter(None, sys.path)])
    where = "import cuda.core; import cuda.bindings.driver as d; print(cuda.core.__file__, d.__file__)"
    assert python_with_warnings_as_errors("-c", where, PYTHONPATH=path).stdout.count(str(newest)) == 2
    assert python_with_warnings_as_errors("-c", COMPILE, PYTHONPATH=path).returncode == 0
    files = [f"tests/targets/cuda/{name}.py" for name in ("test_nvrtc", "test_stub")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout
