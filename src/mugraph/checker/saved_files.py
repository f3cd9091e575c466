"""The files of a saved result: read once, each compared with its hash, and the documents in them."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

Json = dict[str, Any]
"""Parsed JSON: graphs stay in the form they are saved in."""

MANIFEST = "mugraph.json"
_FORMAT = 4
_OLDEST = 3
"""The format before, whose folders have no constants."""
_DOCUMENTS = ("program.json", "graph.json", "certificate.json", "report.json", "placement.json", "constants.json")
_LARGEST = 2**28
"""Bytes of a file: far more than any result has."""


class Rejected(Exception):
    """A saved result that does not hold what its certificate says; the message names what is wrong."""


class Undecided(Rejected):
    """A saved result of which nothing can be checked this way."""


def require_format(name: str, number: object, known: int, oldest: int | None = None) -> None:
    """Raise Rejected for a file of another format than those this checker knows, by default one; newer ones are called
    newer."""
    if type(number) is int and number > known:
        raise Rejected(f"{name}: format {number} is newer than {known}; check it with the mugraph that wrote it")
    if type(number) is not int or number < (known if oldest is None else oldest):
        raise Rejected(f"{name}: format {number!r} is not {known}")


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """A saved result whose files are what its manifest says they are: the manifest, and the content of every file by its
    name."""

    manifest: Json
    contents: Mapping[str, bytes]

    def document(self, name: str) -> Json:
        """The JSON object in a file; raises Rejected where it is none."""
        if name not in self.contents:
            raise Rejected(f"{name}: the manifest does not list it")
        return _object(name, self.contents[name])


def read(folder: Path) -> SavedFiles:
    """Read a folder. Raises Rejected naming the first file that is missing, was changed or is no part of a result."""
    manifest = _object(MANIFEST, _content(folder, MANIFEST))
    require_format(MANIFEST, manifest.get("format"), _FORMAT, _OLDEST)
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise Rejected(f"{MANIFEST}: the list of files is missing")
    contents = {name: _listed(folder, name, digest) for name, digest in listed.items()}
    present = {path.relative_to(folder).as_posix() for path in (folder / "sources").rglob("*") if not path.is_dir()}
    if unlisted := present - contents.keys():
        raise Rejected(f"{min(unlisted)}: the manifest does not list it")
    return SavedFiles(manifest, contents)


def read_object(path: Path) -> Json:
    """The JSON object in a file; raises Rejected where it is none."""
    return _object(path.name, _content(path.parent, path.name))


def read_range(folder: Path, kind: str) -> tuple[Json, dict[int, Path]]:
    """What a folder with a range of sizes says of it, and the folders of its results by size: of the `kind` "sizes", or
    "capacities", after which the document and the folder of the results are called, too.

    Raises Rejected where a file of its own was changed; those of the results are for `read`.
    """
    manifest, document = _object(MANIFEST, _content(folder, MANIFEST)), f"{kind}.json"
    require_format(MANIFEST, manifest.get("format"), _FORMAT, _OLDEST)
    listed = manifest.get("files")
    if manifest.get("kind") != kind or not isinstance(listed, dict) or document not in listed:
        raise Rejected(f"{MANIFEST}: it is not that of a range of sizes")
    names = {name: PurePosixPath(name).parts for name in listed}
    sizes = {parts[1] for parts in names.values() if len(parts) > 2 and parts[0] == kind}
    if not sizes or not all(size.isdecimal() and size == str(int(size)) and int(size) > 0 for size in sizes):
        raise Rejected(f"{MANIFEST}: it lists no results by size")
    own = {document, *(f"{kind}/{size}/{MANIFEST}" for size in sizes)}
    for name in own:
        if name not in listed or hashlib.sha256(_content(folder, name)).hexdigest() != listed[name]:
            raise Rejected(f"{name}: changed after it was saved, or not listed in the manifest")
    said = _object(document, _content(folder, document))
    if not isinstance(said.get("seconds"), dict) or said["seconds"].keys() != sizes:
        raise Rejected(f"{document}: it speaks of other results than {MANIFEST} lists")
    return said, {int(size): folder / kind / size for size in sorted(sizes, key=int)}


def sizes_said(dimension: Json) -> range:
    """The sizes of a dimension that a document describes: multiples between two that are among them, where it says of what.
    Raises Rejected for what is no range from 1 on, and LookupError where something is missing."""
    low, high, step = dimension["low"], dimension["high"], dimension.get("multiple_of", 1)
    if not all(type(number) is int for number in (low, high, step)) or not 1 <= step <= low <= high or low % step or high % step:
        raise Rejected(f"sizes from {low} to {high} by multiples of {step} are no range")
    return range(low, high + 1, step)


def graph_digest(document: Json) -> str:
    """The SHA-256 of a saved graph in canonical form: keys sorted, no spaces."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _listed(folder: Path, name: str, digest: Any) -> bytes:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise Rejected(f"{MANIFEST}: {name!r} lies outside the folder")
    if name not in _DOCUMENTS and (place.parts[:1] != ("sources",) or place.as_posix() != name):
        raise Rejected(f"{MANIFEST}: {name!r} is no file of a result")
    content = _content(folder, name)
    if hashlib.sha256(content).hexdigest() != digest:
        raise Rejected(f"{name}: changed after it was saved (its sha256 is not the one in the manifest)")
    return content


def _content(folder: Path, name: str) -> bytes:
    """What is in a regular file: pipes and devices would be waited for."""
    try:
        path = folder / name
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise Rejected(f"{name}: cannot be read (no regular file, or of more than {_LARGEST} bytes)")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise Rejected(f"{name}: cannot be read ({error})") from None


def _object(name: str, content: bytes) -> Json:
    try:
        document = json.loads(content.decode(), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{name}: not JSON ({error})") from None
    if not isinstance(document, dict):
        raise Rejected(f"{name}: not a JSON object")
    return document


def _without_repetition(pairs: list[tuple[str, Any]]) -> Json:
    """An object; readers of JSON disagree on which of two entries of one name counts."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return entries
