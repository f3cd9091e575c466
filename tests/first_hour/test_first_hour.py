"""A newcomer's first hour, as processes of their own: odd terminals, missing tools, impatience, accidents.

Every step is a command line with what it must print and how it must end; a step that fails shows the transcript until then.
`pytest -m slow tests/first_hour` takes a few minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mugraph.support.scratch import abandoned

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's namespaces and signals")]

ROOT = Path(__file__).parents[2]
FUNCTION = """
import torch

def example_inputs():
    return torch.randn(16, 256), torch.randn(256, 512)

def norm_linear(x, w):
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)) @ w
"""
QUICK = ("optimize", "mine.py:norm_linear", "--no-profile")
STAGES = ("trace", "search", "compile", "measure", "verify")


@dataclass
class Newcomer:
    """Somebody with a home directory, an empty cache, and a file with a function; `transcript` is what they saw."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    transcript: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.temporary.mkdir()
        (self.home / "mine.py").write_text(FUNCTION)
        keep = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        self.environment = {**keep, "HOME": str(self.home), "TMPDIR": str(self.temporary), **self.environment}

    @property
    def temporary(self) -> Path:
        return self.home / "tmp"

    def start(self, *words: str, before: Sequence[str] = (), **environment: str) -> subprocess.Popen[bytes]:
        command = [*before, sys.executable, "-m", "mugraph", *words]
        return subprocess.Popen(
            command,
            cwd=self.home,
            env={**self.environment, **environment},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ended(self, process: subprocess.Popen[bytes], code: int | None, said: str = "") -> str:
        """What a process prints until it ends, which must be with a code, in text that a terminal of ASCII shows."""
        out, err = process.communicate(timeout=300)
        text = said + out.decode() + err.decode()
        self.transcript.append(f"$ {' '.join(map(str, process.args))}\n{text}")  # type: ignore[arg-type]
        assert code is None or process.returncode == code, "\n".join(self.transcript)
        assert "Traceback" not in text, text
        return text

    def runs(self, *words: str, code: int = 0, before: Sequence[str] = (), **environment: str) -> str:
        return self.ended(self.start(*words, before=before, **environment), code)

    def until(self, process: subprocess.Popen[bytes], stage: str) -> str:
        """What a process says on stderr until it has begun a stage."""
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line.decode()
            if line.startswith(f"{stage}:".encode()):
                return said
        raise AssertionError(f"it ended before {stage}: {said}")

    @property
    def leftovers(self) -> list[str]:
        """What lies in the temporary directory, PyTorch's own cache apart, and what is half done elsewhere."""
        found = [path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        return found + [str(path.relative_to(self.home)) for path in self.home.rglob(".*-*") if path.is_dir()]


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


def in_namespace(*options: str) -> list[str]:
    command = ["unshare", *options]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make namespaces")
    return command


def test_a_terminal_of_ascii_without_colours(newcomer: Newcomer) -> None:
    plain: dict[str, Any] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1"}
    for words in (("--help",), ("--version",), ("doctor",), ("optimize", "mine.py:norm_linear"), ("cache", "ls")):
        text = newcomer.runs(*words, **plain)
        assert text.isascii(), text
        assert "\x1b" not in text
    assert "PyTorch" in newcomer.runs("optimize", "mine.py:norm_linear", **plain)


def test_without_a_compiler_the_remedy_is_named_before_anything_is_searched(newcomer: Newcomer) -> None:
    (newcomer.home / "bin").mkdir()
    hidden: dict[str, Any] = {"PATH": str(newcomer.home / "bin"), "MUGRAPH_TEST": "1"}
    (newcomer.home / "ziglang.py").write_text("raise ImportError")
    text = newcomer.runs(*QUICK, code=2, **hidden) if not has_zig() else ""
    if text:
        assert "target cpu needs a C compiler: install gcc or clang, or run `pip install ziglang`" in text
        assert "search:" not in text
    assert "compiler" in newcomer.runs("doctor", **hidden)


def has_zig() -> bool:
    import importlib.util

    return importlib.util.find_spec("ziglang") is not None


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90", "triton:sm_90"])
def test_with_every_warning_an_error(newcomer: Newcomer, target: str) -> None:
    text = newcomer.runs(*QUICK, "--target", target, PYTHONWARNINGS="error")
    assert "found 1 kernel" in text
    assert "Warning" not in text


def test_without_a_network(newcomer: Newcomer) -> None:
    text = newcomer.runs(*QUICK, before=in_namespace("--net", "--map-root-user"))
    assert "found 1 kernel for the program's" in text


def test_a_home_that_cannot_be_written(newcomer: Newcomer) -> None:
    (newcomer.home / "file").write_text("")
    text = newcomer.runs(*QUICK, HOME=str(newcomer.home / "file"))
    assert "found 1 kernel" in text
    assert text.count("cannot write the cache") == text.count("cannot use the cache") == 1, text
    assert newcomer.leftovers == [], text


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_is_answered_in_every_stage(newcomer: Newcomer, stage: str) -> None:
    words = ("optimize", "gqa", "--size", "small") if stage != "trace" else QUICK
    process = newcomer.start(*words)
    said = newcomer.until(process, stage)
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    text = newcomer.ended(process, None, said)
    assert time.monotonic() - pressed < 20, text
    assert process.returncode in (0, 1, 130), text
    assert process.returncode == 130 or "finishing with the best so far" in text, text
    assert not newcomer.leftovers, newcomer.leftovers


def test_two_processes_share_a_cache(newcomer: Newcomer) -> None:
    both = [newcomer.start(*QUICK), newcomer.start(*QUICK)]
    for process in both:
        assert "found 1 kernel" in newcomer.ended(process, 0)
    assert "by an earlier run" in newcomer.runs(*QUICK)
    assert "norm_linear(" in newcomer.runs("cache", "ls", "result")


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_any_stage_the_next_run_is_as_if_nothing_had_been(newcomer: Newcomer, stage: str) -> None:
    words = ("optimize", "mine.py:norm_linear", "-o", "saved", "--workers", "2")
    process = newcomer.start(*words)
    newcomer.until(process, stage)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    text = newcomer.runs(*words)
    assert "found 1 kernel" in text
    assert "damaged" not in text
    assert not newcomer.leftovers, newcomer.leftovers
    assert "accepted: saved" in newcomer.runs("verify", "--certificate", "saved", "mine.py:norm_linear")


def test_killed_at_any_moment(newcomer: Newcomer) -> None:
    """At moments that no stage names: while kernels are compiled, kept and loaded, while the result is saved."""
    words = ("optimize", "mine.py:norm_linear", "--no-profile", "--cache", "force", "-o", "saved")
    newcomer.runs(*words)
    for wait in (1.6, 1.9, 2.2, 2.5, 2.8, 3.1, 3.4):
        process = newcomer.start(*words)
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    newcomer.runs(*words)
    assert abandoned(".saved-saving-", newcomer.home) == []
    assert not newcomer.leftovers, newcomer.leftovers


def test_a_full_disk(newcomer: Newcomer) -> None:
    full = newcomer.home / "full"
    full.mkdir()
    mounted = [
        *in_namespace("--mount", "--map-root-user"), "sh", "-c",
        f'mount -t tmpfs -o size=64k none "{full}" && exec "$@"', "sh",
    ]  # fmt: skip
    text = newcomer.runs(*QUICK, before=mounted, MUGRAPH_CACHE_DIR=str(full / "cache"))
    assert "found 1 kernel" in text
    text = newcomer.runs(*QUICK, "-o", str(full / "saved"), code=2, before=mounted)
    assert re.search(r"mugraph: error: cannot write .*saved: .*No space left", text), text


def test_everything_wrong_is_one_line(newcomer: Newcomer) -> None:
    wrong: Mapping[tuple[str, ...], str] = {
        ("optimize", "mine.py:other"): "other",
        ("optimize", "theirs.py:f"): "theirs.py",
        ("optimize", "rmsnorm", "--dtype", "fp12"): "fp12",
        ("optimize", "rmsnorm", "--target", "tpu"): "tpu",
        ("show", "nowhere"): "nowhere",
        ("cache", "rm", "everything"): "everything",
    }
    for words, name in wrong.items():
        text = newcomer.runs(*words, code=2)
        assert name in text
        assert sum("error" in line.lower() for line in text.splitlines()) == 1, text


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("clone") / "mugraph"
    if subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], capture_output=True).returncode != 0:
        pytest.skip("not a checkout of git")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_first_command_of_a_fresh_clone(clone: Path) -> None:
    """With nothing installed: it takes as long as PyTorch takes to come."""
    home = clone.parent / "home"
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(["./quickstart"], cwd=clone, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode in (0, 1), done.stderr
    assert "RMSNorm and a linear layer" in done.stdout
    assert "equivalent to the program" in done.stdout
