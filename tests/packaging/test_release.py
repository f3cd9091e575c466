"""What is published: metadata, links, and what the archives hold."""

from __future__ import annotations

import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from build_release import IN_SOURCES, NotReleasable, absolute_links, main, require_entry, web_address, with_addresses

ROOT = Path(__file__).parents[2]
ADDRESS = "https://example.org/makers/mugraph"


def test_links_of_the_readme_lead_somewhere_from_anywhere() -> None:
    text = absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), ADDRESS, "v1.0.0")
    assert "](docs/" not in text
    assert f"]({ADDRESS}/raw/v1.0.0/docs/pictures/rmsnorm.svg)" in text
    assert f"[architecture]({ADDRESS}/blob/v1.0.0/docs/architecture.md)" in text
    assert "](#ten-minute-tour)" in text


def test_a_link_elsewhere_stays() -> None:
    assert (
        absolute_links("[a](https://a.org) and\n![b](b.svg)", ADDRESS, "v1")
        == f"[a](https://a.org) and\n![b]({ADDRESS}/raw/v1/b.svg)"
    )


def test_the_metadata_has_addresses() -> None:
    project = tomllib.loads(with_addresses((ROOT / "pyproject.toml").read_text(encoding="utf-8"), ADDRESS))["project"]
    assert project["urls"]["Source"] == ADDRESS
    assert project["scripts"]["mugraph"] == "mugraph.cli:main"


@pytest.mark.parametrize(
    "remote",
    [
        "git@example.org:makers/mugraph.git",
        "https://example.org/makers/mugraph",
        "https://somebody@example.org/makers/mugraph.git",
        "ssh://git@example.org/makers/mugraph.git",
    ],
)
def test_a_remote_has_a_page(remote: str) -> None:
    assert web_address(remote) == ADDRESS


def test_a_folder_has_no_page() -> None:
    with pytest.raises(NotReleasable, match="--repository URL"):
        web_address("/srv/mugraph")


@pytest.mark.parametrize(
    "changelog", ["# Changelog\n\n## Unreleased\n\n- New\n", "## 1.0.0\n\n## 0.9\n\n- Old\n", "## 1.0.01\n\n- Odd\n"]
)
def test_a_release_has_an_entry_of_its_own(changelog: str) -> None:
    with pytest.raises(NotReleasable, match=r"says nothing of 1\.0\.0"):
        require_entry(changelog, "1.0.0")


def test_an_entry_is_found_whatever_stands_around_it() -> None:
    require_entry("## Unreleased\n\n- New\n\n## 1.0.0 - 2026-11-23\n\n- This\n\n## 0.9\n\n- Old\n", "1.0.0")


@pytest.mark.slow
def test_archives_of_this_commit_are_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("build", "check_wheel_contents", "twine"):
        pytest.importorskip(package, reason="the extra release is not installed")
    assert main(["--repository", ADDRESS, "--draft", "--output", str(tmp_path)]) == 0, capsys.readouterr().err
    (sources,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sources) as entries:
        names = {name.partition("/")[2] for name in entries.getnames()}
    assert {"tests/packaging/test_release.py", "docs/architecture.md", "examples/README.md"} <= names
    assert all(any(name.startswith(part) for name in names) for part in IN_SOURCES)
