"""`mugraph show DIR --html FILE`: writes the page, and says in one line what is wrong otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mugraph.cli import main
from mugraph.results.viewer import page

from .results import result


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return result("lora").save(tmp_path / "result")


def test_show_writes_the_page_and_nothing_on_stdout(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved), "--html", str(tmp_path / "page.html")]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "page.html" in captured.err
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(result("lora"))


def test_a_page_and_json_may_be_had_together(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved), "--html", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("damage", ["graph.json", "report.json", "certificate.json", "sources/kernels.c"])
def test_no_page_is_made_of_a_damaged_folder(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    (saved / damage).write_text((saved / damage).read_text() + " ")
    assert main(["show", str(saved), "--html", str(tmp_path / "page.html")]) == 2
    assert damage in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_files_that_cannot_be_written_are_named(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved), "--html", str(tmp_path / "nowhere" / "page.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere" in line
    assert "choose another file" in line


def test_a_browser_is_opened_where_there_is_one_or_one_asks(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def browse(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DISPLAY", ":0")
    assert main(["show", str(saved)]) == 0
    assert opened == [], "stdout is no terminal"
    assert main(["show", str(saved), "--open"]) == 0
    (address,) = opened
    assert Path(address.removeprefix("file://")).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "opened " in capsys.readouterr().err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["show", str(saved), "--no-open"]) == 0
    assert len(opened) == 1
