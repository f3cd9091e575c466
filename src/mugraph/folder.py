"""Results on disk: a folder of JSON and generated sources, every file listed with its hash. Never pickle, never eval.

mugraph.json      the manifest: format, versions, target, and the sha256 of every other file
graph.json        the muGraph that runs          program.json   the original program
certificate.json  what was proved, how           report.json    search statistics, candidates, calling convention
sources/          the generated kernels
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from mugraph import __version__
from mugraph.calling import Positional, structure_of
from mugraph.errors import InvalidInput, StorageError
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.result import Candidate, Report, Superoptimized
from mugraph.runtime import Executable
from mugraph.verifier import Certificate
from mugraph.verifier.certificate import digest as graph_digest

MANIFEST = "mugraph.json"
_FORMAT = 1


def save(result: Superoptimized, path: Path) -> Path:
    """Write `result` to the folder `path`, all of it or nothing; returns the folder.

    An older result there is replaced; any other folder or file raises InvalidInput. A disk that is full or read-only
    raises StorageError and leaves what was there.
    """
    path = path.absolute()
    check_replaceable(path)
    files = _contents(result)
    hashes = {name: _digest(text.encode()) for name, text in files.items()}
    manifest = {
        "format": _FORMAT,
        "version": __version__,
        "target": result.target,
        "origin": result.origin,
        "sources": result.executable.digest,
        "files": hashes,
    }
    with _storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            new = staging / "new"
            for name, text in {**files, MANIFEST: _json(manifest)}.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(text.encode())
            _exchange(path, new, staging / "old")
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return path


def load(path: str | Path) -> Superoptimized:
    """Read back the folder `Superoptimized.save` wrote, and compile its sources for this machine.

    The result is called with one tensor per input of its program, in order: the function's tensors first, then the
    parameters of a module. Raises InvalidInput naming the file when a file was changed, is missing, or is
    from another format; StorageError when it cannot be read.
    """
    path = Path(path)
    manifest = read_manifest(path)
    files = {name: _read_checked(path, name, digest) for name, digest in manifest["files"].items()}
    program = graph_from_json(_parse(path, files, "program.json"))
    graph = graph_from_json(_parse(path, files, "graph.json"))
    record = _parse(path, files, "report.json")
    certificate = Certificate.from_json(_parse(path, files, "certificate.json"))
    try:
        candidates = tuple(Candidate.from_json(item) for item in record["candidates"])
        best = Candidate.measured(graph, certificate, record["best"])
        report = Report.from_json(record["report"])
        calling = Positional(program, record["structure"])
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"{path / 'report.json'} is incomplete or malformed ({error}); optimize and save again") from None
    if (certificate.left, certificate.right) != (graph_digest(program), graph_digest(graph)):
        raise InvalidInput(f"{path / 'certificate.json'} does not speak of the graphs beside it; optimize and save again")
    sources = {name.removeprefix("sources/"): text for name, text in files.items() if name.startswith("sources/")}
    target = manifest["target"]
    executable = Executable.from_sources(graph, sources, manifest["sources"], target)
    return Superoptimized(program, best, candidates, report, executable, calling, target, manifest["origin"])


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a saved result; raises InvalidInput when `path` is not one."""
    if not (path / MANIFEST).is_file():
        raise InvalidInput(f"{path} is not a saved mugraph result (no {MANIFEST} in it); save one with opt.save or -o")
    with _storage_errors("read", path / MANIFEST):
        content = (path / MANIFEST).read_bytes()
    manifest: Any = _parse(path, {MANIFEST: _text(path / MANIFEST, content)}, MANIFEST)
    complete = isinstance(manifest, dict) and {"target", "origin", "sources", "files"} <= manifest.keys()
    forms = {"files": dict, "origin": dict, "target": str, "sources": str}
    typed = complete and all(isinstance(manifest[name], kind) for name, kind in forms.items())
    if not typed or manifest.get("format") != _FORMAT:
        raise InvalidInput(f"{path / MANIFEST} is not a manifest of format {_FORMAT}; optimize and save again with this version")
    return dict(manifest)


def check_replaceable(path: Path) -> None:
    """Raise InvalidInput when `path` holds anything but an older result or an empty folder."""
    if path.is_dir() and ((path / MANIFEST).is_file() or not any(path.iterdir())):
        return
    if path.exists():
        raise InvalidInput(f"{path} exists and is not a mugraph result; choose another folder or remove it yourself")


def _contents(result: Superoptimized) -> dict[str, str]:
    """Text of every file but the manifest, by its path in the folder."""
    record = {
        "report": result.report.to_json(),
        "structure": structure_of(result.calling, len(result.program.outputs)),
        "best": result.best.measurements(),
        "candidates": [candidate.to_json() for candidate in result.candidates],
    }
    files = {
        "program.json": _json(graph_to_json(result.program)),
        "graph.json": _json(graph_to_json(result.graph)),
        "certificate.json": _json(result.certificate.to_json()),
        "report.json": _json(record),
    }
    return files | {f"sources/{name}": text for name, text in result.sources.items()}


def _exchange(path: Path, new: Path, old: Path) -> None:
    """Put `new` at `path`, moving what is there to `old`; on failure `path` is as it was."""
    existed = path.exists()
    if existed:
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if existed:
            os.rename(old, path)
        raise


def _read_checked(path: Path, name: str, digest: str) -> str:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise InvalidInput(f"{path / MANIFEST} names {name!r}, which lies outside the folder; do not use this result")
    file = path / name
    if not file.is_file():
        raise InvalidInput(f"{file} is missing; optimize and save again")
    with _storage_errors("read", file):
        content = file.read_bytes()
    if _digest(content) != digest:
        raise InvalidInput(f"{file} was changed after it was saved (its sha256 differs); optimize and save again")
    return _text(file, content)


def _text(file: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text; optimize and save again") from None


def _parse(path: Path, files: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(files[name])
    except KeyError:
        raise InvalidInput(f"{path / MANIFEST} does not list {name}; optimize and save again") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path / name} is not JSON ({error}); optimize and save again") from None


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _storage_errors(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot {verb} {path}: {error.strerror or error}; check its permissions and the disk's space"
        ) from error
