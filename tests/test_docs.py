"""The documentation is executed: Python blocks run, and the files and links it names exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch._dynamo

from mugraph.checker.operators import OPERATORS as CHECKED
from mugraph.devices.targets import TARGETS
from mugraph.ir.ops import OPERATORS

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
SOURCE = re.compile(r"`(src/mugraph/[\w./]+)`")


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=names)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()  # a page is a program: sizes that another one gave `nn.Sequential` would count as those that vary
    module = ModuleType(f"documentation_{page.stem.replace('-', '_')}")  # Dynamo remembers modules by name
    monkeypatch.setitem(sys.modules, module.__name__, module)  # torch.compile looks functions' globals up by name
    text = page.read_text()
    with mock.patch.dict(OPERATORS), mock.patch.dict(CHECKED), mock.patch.dict(TARGETS):  # a page may add rows to tables
        for block in BLOCK.finditer(text):
            lines_before = "\n" * text.count("\n", 0, block.start(1))
            exec(compile(lines_before + block.group(1), page, "exec"), module.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_and_source_files_exist(page: Path) -> None:
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [source for source in SOURCE.findall(text) if not (ROOT / source).exists()]
    assert missing == []


SHELL = re.compile(r"^```sh\n(.*?)^```$(?:\n+(?:[^`\n#][^\n]*\n+)*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
"""Commands, and where one block of text follows before the next commands, lines that they print."""
NEEDED = ("src", "tests", "scripts", "docs", "runtests", "pyproject.toml", "constraints.txt", "README.md")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository with this process's packages as its `.venv`, set up as `scripts/setup torch,dev` leaves it."""
    environment = Path(sys.prefix)
    if not (environment / "pyvenv.cfg").exists():
        pytest.skip("the tests run outside of a virtual environment")
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    for part in environment.iterdir():
        if not part.name.startswith(".mugraph-setup"):
            (tmp_path / ".venv" / part.name).symlink_to(part)
    inputs = b"".join((tmp_path / name).read_bytes() for name in ("pyproject.toml", "constraints.txt", "scripts/setup"))
    stamp = subprocess.run(["cksum"], input=inputs, capture_output=True, check=True).stdout.decode().strip()
    for extras in ("torch-dev", "torch-dev-compiler"):
        (tmp_path / ".venv" / f".mugraph-setup-{extras}").write_text(stamp + "\n")
    return tmp_path


def test_the_first_change_is_made_by_the_commands_of_its_page(checkout: Path) -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Your first change")[1].split("\n## ")[0]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "GIT_CEILING_DIRECTORIES": str(checkout.parent)}
    environment["MUGRAPH_CACHE_DIR"] = str(checkout / "cache")
    blocks = SHELL.findall(section)
    assert len(blocks) == section.count("```sh\n")
    assert sum(bool(printed) for _, printed in blocks) == section.count("```text\n")
    for commands, printed in blocks:
        ran = subprocess.run(["bash"], input=commands, cwd=checkout, env=environment, capture_output=True, text=True)
        output = ran.stdout + ran.stderr
        # the last command decides: an `optimize` before it may find nothing faster on a busy machine, which is no failure
        assert (ran.returncode != 0) == ("error" in printed.lower()), f"{commands}\n{output}"
        assert [line for line in printed.splitlines() if line not in output] == [], f"{commands}\n{output}"
