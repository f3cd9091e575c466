"""The documentation is executed: Python blocks run, and the files and links it names exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

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
    module = ModuleType("documentation")
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
