"""The files of a saved result: their hashes, and the graphs and the certificate in them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

Json = dict[str, Any]
"""Parsed JSON: graphs stay in the form they are saved in."""

_GRAPHS = {"left": "program.json", "right": "graph.json"}


class Rejected(Exception):
    """A saved result that does not hold what its certificate says; the message names what is wrong."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved result whose files are what its manifest and its certificate say they are."""

    program: Json
    graph: Json
    certificate: Json


def read(folder: Path) -> Saved:
    """Read a folder. Raises Rejected naming the first file that is missing, was changed or contradicts another."""
    manifest = _object(folder / "mugraph.json", _content(folder / "mugraph.json"))
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise Rejected("mugraph.json: the list of files is missing")
    contents = {name: _listed(folder, name, digest) for name, digest in listed.items()}
    present = {path.relative_to(folder).as_posix() for path in (folder / "sources").rglob("*") if path.is_file()}
    if unlisted := present - contents.keys():
        raise Rejected(f"{min(unlisted)}: the manifest does not list it")
    documents = {}
    for name in ("program.json", "graph.json", "certificate.json"):
        if name not in contents:
            raise Rejected(f"{name}: the manifest does not list it")
        documents[name] = _object(folder / name, contents[name])
    certificate = documents["certificate.json"]
    for side, name in _GRAPHS.items():
        if certificate.get(side) != graph_digest(documents[name]):
            raise Rejected(f"{name}: not the graph that the certificate speaks of ({side})")
    program, graph = (_graph(documents[name], name) for name in _GRAPHS.values())
    return Saved(program, graph, certificate)


def graph_digest(document: Json) -> str:
    """The SHA-256 of a saved graph in canonical form: keys sorted, no spaces."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _graph(document: Json, name: str) -> Json:
    graph = document.get("graph")
    if document.get("mugraph") != 1 or not isinstance(graph, dict):
        raise Rejected(f"{name}: not a graph of format 1")
    return graph


def _listed(folder: Path, name: str, digest: Any) -> bytes:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise Rejected(f"mugraph.json: {name!r} lies outside the folder")
    content = _content(folder / name)
    if hashlib.sha256(content).hexdigest() != digest:
        raise Rejected(f"{name}: changed after it was saved (its sha256 is not the one in the manifest)")
    return content


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Rejected(f"{path.name}: cannot be read ({error.strerror})") from None


def _object(path: Path, content: bytes) -> Json:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{path.name}: not JSON ({error})") from None
    if not isinstance(document, dict):
        raise Rejected(f"{path.name}: not a JSON object")
    return document
