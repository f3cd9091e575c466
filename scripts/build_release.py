"""Build a source distribution and a wheel of the commit that is checked out, check both, and say what to upload.

    scripts/release                                           # the repository's address is that of the remote `origin`
    scripts/release --repository https://example.org/mugraph  # or this one
    scripts/release --draft                                   # of a version that the changelog does not name yet

A release is built from what git holds (`git archive`), never from files that lie about. Its README and metadata name the
repository by address, since they are read where the repository is not. It is refused where the changelog has no section of the
version, and where twine, check-wheel-contents, or the look into the archives finds something missing; at last the wheel is
installed into an empty environment and asked for its version.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

IN_SOURCES = (
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "constraints.txt",
    "docs/",
    "examples/",
    "mkdocs.yml",
    "runtests",
    "scripts/",
    "tests/",
)
"""What a source distribution has beside the package, so that whoever packages it again can run its tests."""

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)", re.DOTALL)


class NotReleasable(Exception):
    """A release that lacks something; the text says what, and what to do."""


def absolute_links(text: str, repository: str, revision: str) -> str:
    """Markdown whose links into the repository are links to its address: pictures to the file, the rest to the page of it."""

    def absolute(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        return f"{picture}{words}({repository}/{'raw' if picture else 'blob'}/{revision}/{path})"

    return _LINK.sub(absolute, text)


def with_addresses(pyproject: str, repository: str) -> str:
    """pyproject.toml with the project's addresses, which depend on where it is published."""
    addresses = {
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": f"{repository}/blob/main/docs/architecture.md",
        "Homepage": repository,
        "Issues": f"{repository}/issues",
        "Source": repository,
    }
    lines = "\n".join(f'{name} = "{address}"' for name, address in addresses.items())
    return pyproject.replace("[project.scripts]", f"[project.urls]\n{lines}\n\n[project.scripts]")


def web_address(remote: str) -> str:
    """The web page of a remote of git: `git@host:owner/name.git` is `https://host/owner/name`.

    Raises NotReleasable for what has none, such as a folder.
    """
    match = re.fullmatch(r"(?:https?://|ssh://)?(?:[^@/]+@)?([\w.-]+\.[a-z]+)[:/](.+?)(?:\.git)?/?", remote)
    if match is None:
        raise NotReleasable(f"the remote {remote!r} has no web address; name it: scripts/release --repository URL")
    return f"https://{match[1]}/{match[2]}"


def require_entry(changelog: str, version: str) -> None:
    """Raises NotReleasable where the changelog has no section of a version, or an empty one."""
    match = re.search(rf"^## {re.escape(version)}\b.*?$(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if match is None or not match[1].strip():
        raise NotReleasable(f"CHANGELOG.md says nothing of {version}; head its entries `## {version} - DATE`, or pass --draft")


def build(repository: str, output: Path) -> tuple[Path, Path]:
    """The source distribution and the wheel of the current commit, in `output`, which is made."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mugraph-release-") as folder:
        archive = Path(folder) / "sources.tar"
        _run("git", "archive", "--output", str(archive), "HEAD")
        sources = Path(folder) / "sources"
        with tarfile.open(archive) as entries:
            entries.extractall(sources, filter="data")
        version = version_of(sources)
        readme, pyproject = sources / "README.md", sources / "pyproject.toml"
        readme.write_text(absolute_links(readme.read_text(encoding="utf-8"), repository, f"v{version}"), encoding="utf-8")
        pyproject.write_text(with_addresses(pyproject.read_text(encoding="utf-8"), repository), encoding="utf-8")
        _run(sys.executable, "-m", "build", "--outdir", str(output.absolute()), str(sources))
    return output / f"mugraph-{version}.tar.gz", output / f"mugraph-{version}-py3-none-any.whl"


def check(sources: Path, wheel: Path) -> None:
    """Raises NotReleasable where an archive lacks something, or an empty environment cannot use the wheel."""
    _run(sys.executable, "-m", "twine", "check", "--strict", str(sources), str(wheel))
    _run(sys.executable, "-m", "check_wheel_contents", str(wheel))
    with tarfile.open(sources) as entries:
        names = [name.partition("/")[2] for name in entries.getnames()]
    missing = [part for part in IN_SOURCES if not any(name.startswith(part) for name in names)]
    if missing:
        raise NotReleasable(f"{sources.name} lacks {', '.join(missing)}; MANIFEST.in says what it takes")
    with tempfile.TemporaryDirectory(prefix="mugraph-release-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        _run(python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel))
        _run(python, "-W", "error", "-m", "mugraph", "--version")
        _run(python, "-m", "mugraph", "doctor")


def version_of(sources: Path) -> str:
    """The version that a checkout says it is."""
    text = (sources / "src" / "mugraph" / "version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if match is None:
        raise NotReleasable("src/mugraph/version.py has no __version__")
    return match[1]


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotReleasable(f"`{' '.join(command[-5:])}` failed:\n{done.stdout}{done.stderr}")


def _origin() -> str:
    done = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotReleasable("the repository has no remote `origin`; name its address: scripts/release --repository URL")
    return web_address(done.stdout.strip())


def main(arguments: list[str] | None = None) -> int:
    """Build and check; prints what to upload, or what is missing."""
    parser = argparse.ArgumentParser(description="Build a source distribution and a wheel, and check both.")
    parser.add_argument("--repository", metavar="URL", help="the repository's web address (default: of the remote `origin`)")
    parser.add_argument("--draft", action="store_true", help="build though the changelog has no section of the version")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIR", help="where the archives go (default: dist)")
    chosen = parser.parse_args(arguments)
    try:
        repository = (chosen.repository or _origin()).rstrip("/")
        if not chosen.draft:
            require_entry((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version_of(ROOT))
        archives = build(repository, chosen.output)
        check(*archives)
    except NotReleasable as missing:
        print(f"scripts/release: {missing}", file=sys.stderr)
        return 1
    print("checked, ready for `twine upload`:", *archives, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
