"""The documentation as a site: every page has one place in it, and it is built without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from site_pages import PAGES, command_reference, python_reference, relinked

import mugraph
from mugraph.frontend.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
MADE = {*PAGES.values(), "python.md", "command-line.md"}


def test_every_page_has_one_place() -> None:
    places = re.findall(r"^ {6}- ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(places) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | MADE)


def test_links_of_pages_that_stand_elsewhere_lead_to_pages_of_the_site() -> None:
    text = relinked(
        "[a](docs/search.md#cuts), [b](../README.md), ![c](docs/pictures/rmsnorm.svg), [d](https://d.org), [e](src/x.py)",
        "README.md",
    )
    assert (
        text
        == "[a](search.md#cuts), [b](../README.md), ![c](pictures/rmsnorm.svg), [d](https://d.org), e (`src/x.py`)".replace(
            "[b](../README.md)", "b (`../README.md`)"
        )
    )
    assert relinked("[up](../README.md#status)", "examples/README.md") == "[up](index.md#status)"


def test_the_references_name_everything() -> None:
    python, commands = python_reference(), command_reference()
    assert all(f"::: mugraph.{name}\n" in python for name in mugraph.__all__ if not name.startswith("_"))
    for words in ("mugraph optimize", "mugraph cache ls", "`--budget`", "`--certificate`", "`--open, --no-open`", "`WORKLOAD`"):
        assert words in commands, words


def test_the_gallery_has_every_workload() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^mugraph optimize (\S+) ", text, re.MULTILINE)) == sorted(WORKLOADS)
    assert sorted(re.findall(r"\(pictures/([\w-]+)\.svg\)", text)) == sorted(WORKLOADS)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Discover the fastest muGraph" in (tmp_path / "python.html").read_text(encoding="utf-8")
