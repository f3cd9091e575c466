"""Every command line that the documentation shows is run, in order and in a copy; every option that it names exists.

In the default suite commands that measure are run with `--no-profile`, and searches end with what they find first; all are run as
they are written by `pytest -m slow`.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer

from mugraph.cli import app, main
from mugraph.devices import host

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])

FENCED = re.compile(r"^```(?!sh$)\w+\n.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    ((?:mugraph |python |pip |apt-get |scripts/|\./)\S.*)$", re.MULTILINE)
IN_SH = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(mugraph [^`]+)`")
REMARK = re.compile(r"\s{2,}\S.*$|\s+#.*$")
"""What stands behind a command: its description, two spaces apart, or a comment."""

ELSEWHERE = {
    "./quickstart": "sets up an environment; continuous integration's clone runs it",
    "./runtests": "is what runs this",
    "apt-get": "sets up a machine",
    "pip": "sets up an environment",
    "scripts/site": "installs into an environment; tests/packaging/test_site.py builds the site in the slow suite",
    "scripts/release": "installs into environments of its own; tests/packaging/test_release.py builds one in the slow suite",
    "TRITON_INTERPRET=1": "runs a file by itself, as tests/targets/triton/test_standalone.py does",
    "python examples/models/generate.py": "takes minutes; tests/integrations/test_models.py runs it with a small model",
    "mugraph export": "takes a result for Triton; tests/test_cli.py runs it, tests/targets/triton/test_standalone.py its file",
    "mugraph ablate": "takes minutes; tests/test_cli.py runs it with limits",
    "mugraph bench": "takes minutes; tests/test_cli.py runs it on a small result",
}
"""Beginnings of commands that are not run here, and why."""
ELSEWHERE_PAGES = {
    "gpu-queue.md": "commands for another machine",
    "CONTRIBUTING.md": "run by tests/test_docs.py, or set up environments",
}

MEASURING = ("optimize", "coverage")
"""Commands that take `--no-profile`."""

LONG_PAGES = {"gallery.md": "searches at full size, two minutes"}
"""Pages whose commands run in the slow suite only."""

FIGURE = "--size figure --dtype fp16 --target cuda:sm_80"
PLACES = {
    r"\[options\]": "",
    r"WORKLOAD --graph FILE\.mugraph": f"rmsnorm {FIGURE} --graph examples/paper/rmsnorm.mugraph",
    r"FILE\.py:f --graph F\.mugraph": "examples/xz_yz.py:two_products --graph own.mugraph",
    r"FILE\.json": "sizes.json",
    r"FILE\.py:f FILE\.py:g": "examples/xz_yz.py:two_products examples/xz_yz.py:one_product",
    r"FILE\.py:f": "examples/softmax.py:scores",
    r"--rounds N": "--rounds 20",
    r"\bWORKLOAD\b": "rmsnorm",
    r"\bDIR\b": "saved/softmax",
    r"\bPASS\b": "lowered",
    r"\bKIND\b": "result",
    r"export\|import FILE": "export|import kept.json",
    r"\bFILE\b": "page.html",
    r"[][]": "",
}
"""What stands for what a reader fills in. What is optional is given."""


def commands(text: str) -> Iterator[str]:
    """The command lines of a page as they are to be run, in order."""
    text = FENCED.sub("", text)
    found = [(match.start(), line) for match in IN_SH.finditer(text) for line in match[1].splitlines()]
    found += [(match.start(), match[1]) for match in INDENTED.finditer(text)]
    for _, line in sorted(found, key=lambda item: item[0]):
        command = REMARK.sub("", line.strip())
        if command and not command.startswith("#"):
            yield from alternatives(command)


def alternatives(command: str) -> Iterator[str]:
    """A command with its places filled in, once for each of the words between bars."""
    for place, value in PLACES.items():
        command = re.sub(place, value, command)
    choice = re.search(r"(?<![\w'{])([\w-]+(?:\|[\w-]+)+)", command)
    if choice is None:
        yield command
        return
    for word in choice[1].split("|"):
        yield from alternatives(command.replace(choice[1], word, 1))


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


SHOWN = {page: list(commands(page.read_text())) for page in PAGES if page.name not in ELSEWHERE_PAGES}


def run_here(command: str) -> bool:
    return not any(command.startswith(beginning) for beginning in ELSEWHERE)


RUN = [page for page, lines in SHOWN.items() if any(map(run_here, lines))]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples in it, a cache of its own, and the folders and files that readers have made before. What pages
    measure of the host is not known to other tests."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUGRAPH_CACHE", "on")
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    host._host_of.cache_clear()
    yield tmp_path
    host._host_of.cache_clear()


def saved(place: str) -> None:
    if not Path(place).exists():
        assert main(["optimize", "examples/softmax.py:scores", "--no-profile", "-o", place]) == 0


@pytest.mark.usefixtures("first_found")
@pytest.mark.parametrize("page", [page for page in RUN if page.name not in LONG_PAGES], ids=names)
def test_commands_run_in_order(page: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("saved/softmax")
    for command in filter(run_here, SHOWN[page]):
        for part in command.split("&&"):
            words = shlex.split(part)
            assert words[0] == "mugraph", f"{names(page)}: {command}: say in ELSEWHERE why it is not run"
            target = words.index(">") if ">" in words else len(words)
            if words[1] in MEASURING:
                words[2:2] = ["--no-profile"] if "--no-profile" not in words else []
                target += "--no-profile" in words[2:3]
            if "own.mugraph" in words:
                Path("own.mugraph").write_text(own_graph())
            code = main(words[1:target])
            if words[1] == "rebuild" and code == 2:  # blocks of a CPU with a large second-level cache fit no GPU
                assert "bytes of shared memory" in capsys.readouterr().err
                continue
            assert code in ((0, 1) if words[1] in ("optimize", "verify") else (0,)), f"{command}: {capsys.readouterr().err}"


def own_graph() -> str:
    """A muGraph that somebody could write of the example's sum of two products: one product of a block matrix.

    What adds x and y first errs by about the tolerance where signs alternate.
    """
    from mugraph.cli.arguments import resolve
    from mugraph.frontend import trace

    subject = resolve("examples/xz_yz.py:two_products")
    assert subject.inputs is not None
    return str(trace(lambda x, y, z: torch.cat([x, y], 1) @ torch.cat([z, z]), subject.inputs).graph)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=names)
def test_commands_run_as_they_are_written(page: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("saved/softmax")
    Path("own.mugraph").write_text(own_graph())
    for command in filter(run_here, SHOWN[page]):
        for part in command.split("&&"):
            words = shlex.split(part)
            with contextlib.suppress(ValueError):
                del words[words.index(">") :]
            assert main(words[1:]) in (0, 1), f"{command}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    root = typer.main.get_command(app)
    for shown in [*SHOWN.get(page, ()), *INLINE.findall(page.read_text())]:
        for command in (part for alternative in alternatives(shown) for part in alternative.split("&&")):
            words = re.findall(r"\S+", command)
            if words[0] != "mugraph" or not re.fullmatch(r"[a-z]+", words[1]):
                continue
            chosen, depth = root, 1
            while hasattr(chosen, "commands") and depth < len(words) and re.fullmatch(r"[a-z]+", words[depth]):
                assert words[depth] in chosen.commands, f"{names(page)}: {shown}"
                chosen, depth = chosen.commands[words[depth]], depth + 1
            options = {option for parameter in chosen.params for option in parameter.opts} | {"--help"}
            for word in words[depth:]:
                assert not word.startswith("-") or word.split("=")[0] in options, f"{names(page)}: {shown}: {word}"


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    everything = [command for lines in SHOWN.values() for command in lines]
    assert [beginning for beginning in ELSEWHERE if not any(command.startswith(beginning) for command in everything)] == []
    assert all((ROOT / "docs" / page).exists() or (ROOT / page).exists() for page in ELSEWHERE_PAGES)
