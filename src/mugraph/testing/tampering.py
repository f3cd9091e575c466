"""What somebody with an editor can do to a saved result: its files changed, with or without all hashes made anew.

A strong forger is assumed: one who knows mugraph, makes every hash anew, has the certificate speak of the graphs beside it, and
prints the sources of a forged graph. What they cannot do is have a wrong graph agree with its program in tests.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.results.proof_bindings import printed_again
from mugraph.testing.mutants import mutants
from mugraph.testing.oracle import agree
from mugraph.verifier import verify_graphs
from mugraph.verifier.certificate import digest

_MANIFEST = "mugraph.json"
_GRAPHS = {"program.json": "left", "graph.json": "right"}
_MOST_MUTANTS = 60
"""Wrong graphs and wrong programs of each kind that are put into a folder."""

_NO_HASHES: tuple[Any, ...] = (None, 7, "", "0" * 64, [])
_NO_ENTRIES: tuple[Any, ...] = (None, "", "0" * 64, -1, 0, 0.5, 1e300, math.nan, [], {}, True)

Change = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Tampering:
    """A change of a saved folder, made to a copy of it by `apply`.

    `harmless` says that the folder may still be loaded, because what it then runs is what the muGraph in it gives, and computes
    the program in it: other files beside it, forged times, a forged origin, another program and its own muGraph. Others must be
    refused.
    """

    name: str
    apply: Change
    harmless: bool


def tamperings(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Tamperings of the saved result in `folder`, which stays as it is: several hundred for one with a muGraph that was found."""
    for make in (_careless, _sources, _manifest, _names, _certificate, _report, _files, _documents):
        yield from make(folder, rng)
    yield from _wrong_graphs(folder, rng)


# --- how folders are changed -------------------------------------------------------------------------------------------


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def _write(folder: Path, name: str, document: Any) -> None:
    (folder / name).write_text(json.dumps(document))


def _seal(folder: Path) -> None:
    """All hashes of the manifest made anew, for the files that it lists and those that are there among the sources."""
    manifest = _read(folder, _MANIFEST)
    names = {*manifest["files"], *(path.relative_to(folder).as_posix() for path in (folder / "sources").glob("*"))}
    there = sorted(name for name in names if (folder / name).is_file())
    manifest["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in there}
    _write(folder, _MANIFEST, manifest)


def _editing(name: str, edit: Callable[[Any], object], seal: bool = True) -> Change:
    """A JSON file with something in it changed."""

    def apply(folder: Path) -> None:
        document = _read(folder, name)
        edit(document)
        _write(folder, name, document)
        if seal and name != _MANIFEST:
            _seal(folder)

    return apply


def _rewriting(name: str, change: Callable[[bytes], bytes], seal: bool) -> Change:
    """A file with other bytes."""

    def apply(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
        if seal:
            _seal(folder)

    return apply


def _putting(entries: dict[str, Any], place: tuple[Any, ...] = ()) -> Callable[[Any], object]:
    """Entries of the object at a place of a document."""
    return lambda document: functools.reduce(lambda part, key: part[key], place, document).update(entries)


def _forging(name: str, document: Any, printed: dict[str, str] | None = None) -> Change:
    """Another graph, of which the certificate then speaks, with the files that are `printed` of it."""

    def apply(folder: Path) -> None:
        _write(folder, name, document)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        certificate = _read(folder, "certificate.json")
        certificate[_GRAPHS[name]] = hashlib.sha256(text.encode()).hexdigest()
        _write(folder, "certificate.json", certificate)
        for file, text in (printed or {}).items():
            (folder / file).write_text(text)
        _seal(folder)

    return apply


# --- without knowledge -------------------------------------------------------------------------------------------------


def _careless(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Every file damaged as disks, editors and transfers damage them."""
    for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()):
        size = (folder / name).stat().st_size
        places = sorted(rng.sample(range(size), min(4, size)))
        damages: dict[str, Callable[[bytes], bytes]] = {
            "emptied": lambda content: b"",
            "cut in half": lambda content: content[: len(content) // 2],
            "with zeros at the end": lambda content: content + bytes(16),
            "in UTF-16": lambda content: content.decode().encode("utf-16"),
            "with a BOM": lambda content: b"\xef\xbb\xbf" + content,
        }
        for place in places:
            damages[f"with byte {place} not ASCII"] = lambda content, at=place: content[:at] + b"\xff" + content[at + 1 :]  # type: ignore[misc]
        for what, change in damages.items():
            yield Tampering(f"{name} {what}", _rewriting(name, change, seal=False), harmless=False)
        yield Tampering(f"{name} with CRLF", _rewriting(name, _crlf, seal=False), harmless=name == _MANIFEST)
        yield Tampering(f"{name} removed", lambda copy, name=name: (copy / name).unlink(), harmless=False)  # type: ignore[misc]


def _crlf(content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


# --- sources -----------------------------------------------------------------------------------------------------------


def _sources(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Other sources, with hashes."""
    for path in sorted((folder / "sources").glob("*")):
        name, lines = path.relative_to(folder).as_posix(), path.read_bytes().splitlines(keepends=True)
        changes: dict[str, Callable[[bytes], bytes]] = {
            "emptied": lambda content: b"",
            "with a line more": lambda content: content + b"\n",
            "with CRLF": _crlf,
            "with a BOM": lambda content: b"\xef\xbb\xbf" + content,
            "with code that runs when it is loaded": lambda content: (
                content + b"\n__attribute__((constructor)) static void run_(void) { __builtin_trap(); }\n"
            ),
            "with kernels of another name": lambda content: content.replace(b"kernel", b"kernal"),
            "with sums for products": lambda content: content.replace(b"*", b"+"),
            "twice": lambda content: content + content,
        }
        for number in sorted(rng.sample(range(len(lines)), min(30, len(lines)))):
            changes[f"without line {number}"] = lambda content, at=number: b"".join(
                _without(content.splitlines(keepends=True), at)
            )  # type: ignore[misc]
        for what, change in changes.items():
            if change(path.read_bytes()) != path.read_bytes():
                yield Tampering(f"{name} {what}, and its hash", _rewriting(name, change, seal=True), harmless=False)
    yield Tampering("a source more, listed", _adding("sources/more.c", b"int more;", seal=True), harmless=False)
    yield Tampering("a source more, not listed", _adding("sources/more.c", b"int more;", seal=False), harmless=True)
    if list((folder / "sources").glob("*")):
        yield Tampering("no sources", _without_sources, harmless=False)


def _without(lines: list[bytes], number: int) -> list[bytes]:
    return lines[:number] + lines[number + 1 :]


def _adding(name: str, content: bytes, seal: bool) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        if seal:
            _seal(folder)

    return apply


def _without_sources(folder: Path) -> None:
    for path in (folder / "sources").glob("*"):
        path.unlink()
    _seal(folder)


# --- the manifest ------------------------------------------------------------------------------------------------------


def _manifest(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    entries: dict[str, tuple[Any, ...]] = {
        "format": (0, 1, 2, 10**30, "3", 3.5, True, None, [3]),
        "version": ("0.0.1", "999", "", 7, None),
        "target": ("cuda:sm_90", "triton:sm_90", "cuda:sm_90:h200", "tpu", "", "cpu ", "../cpu", 7, None, ["cpu"]),
        "printer": ({}, {"lanes": 3, "registers": 16, "bf16_pairs": False, "tiles": False}, {"lanes": 1e9}, [], None, "wide"),
        "origin": ([], 7, None),
        "files": ({}, [], None, 7),
    }
    for name, values in entries.items():
        for value in values:
            yield Tampering(f"manifest: {name} is {value!r}", _editing(_MANIFEST, _putting({name: value})), harmless=False)
        yield Tampering(f"manifest: no {name}", _editing(_MANIFEST, lambda read, name=name: read.pop(name)), harmless=False)  # type: ignore[misc]
    for origin in ({}, {"word": "/tmp/evil.py:f"}, {"word": "rmsnorm", "batch": 10**9}, {"eval": "1"}, {"word": None}):
        yield Tampering(f"manifest: origin is {origin}", _editing(_MANIFEST, _putting({"origin": origin})), harmless=True)
    yield Tampering("manifest: an entry more", _editing(_MANIFEST, _putting({"approved": True})), harmless=True)
    for what, change in _TEXTS.items():
        yield Tampering(f"manifest: {what}", _rewriting(_MANIFEST, change, seal=False), harmless=False)


_TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "format twice": lambda text: text.replace(b"{", b'{"format": 4,', 1),
    "files twice": lambda text: text.replace(b"{", b'{"files": {},', 1),
    "nested without end": lambda text: b"[" * 10**5,
    "a number of many digits": lambda text: text.replace(b"{", b'{"large": ' + b"9" * 10**4 + b",", 1),
    "a list": lambda text: b"[" + text + b"]",
    "two documents": lambda text: text + text,
}


def _names(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Files of other names in the manifest's list."""
    outside = (
        "../graph.json",
        "/etc/passwd",
        "sources/../graph.json",
        "./graph.json",
        "sources//kernels.c",
        "sources/./kernels.c",
    )
    for name in (
        *outside,
        "",
        ".",
        "..",
        "sources",
        "graph.json\0",
        "a" * 5000,
        "C:\\graph.json",
        "~/graph.json",
        "evil.py",
        "\ud800",
    ):
        for digest_ in (hashlib.sha256((folder / "graph.json").read_bytes()).hexdigest(), None):
            edit = _putting({name: digest_}, ("files",))
            yield Tampering(f"manifest: lists {name[:30]!r} ({digest_ is not None})", _editing(_MANIFEST, edit), harmless=False)
    for name in _read(folder, _MANIFEST)["files"]:
        for value in _NO_HASHES:
            edit = _putting({name: value}, ("files",))
            yield Tampering(f"manifest: hash of {name} is {value!r}", _editing(_MANIFEST, edit), harmless=False)
        left_out = _editing(_MANIFEST, lambda read, name=name: read["files"].pop(name))  # type: ignore[misc]
        yield Tampering(f"manifest: {name} is not listed", left_out, harmless=False)


# --- documents ---------------------------------------------------------------------------------------------------------


def _certificate(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """The certificate edited: what runs stays what was proved where the graphs stay, of which it must speak."""
    for name in _read(folder, "certificate.json"):
        bound = name in ("left", "right")
        for value in _NO_ENTRIES:
            edit = _editing("certificate.json", _putting({name: value}))
            yield Tampering(f"certificate: {name} is {value!r}", edit, harmless=not bound)
        gone = _editing("certificate.json", lambda read, name=name: read.pop(name))  # type: ignore[misc]
        yield Tampering(f"certificate: no {name}", gone, harmless=not bound)
    exchange = _editing("certificate.json", lambda read: read.update(left=read["right"], right=read["left"]))
    yield Tampering(
        "certificate: of the pair in the other order", exchange, harmless=digest(_graph(folder)) == digest(_program(folder))
    )
    errors = _editing("certificate.json", lambda read: (read["floats"] or {}).update(max_relative_error=1e-30))
    yield Tampering("certificate: smaller errors", errors, harmless=True)
    for compared in (None, [], [0], [10**12], ["all"], 7):
        yield Tampering(f"certificate: {compared!r} elements compared", _comparing(compared), harmless=True)


def _comparing(compared: Any) -> Change:
    """Another sample of standard normal inputs."""
    return _editing("certificate.json", lambda read: read["floats"] and read["floats"]["inputs"][2].update(compared=compared))


def _report(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Times and candidates, which nothing runs, and the arrangement of outputs, which makes it another function's result."""
    edits: dict[str, Callable[[Any], object]] = {
        "a time of nothing": lambda read: read["best"].update(latency=1e-12),
        "a cost of nothing": lambda read: read["best"].update(cost=0.0),
        "found": lambda read: read["report"].update(found=not read["report"]["found"]),
        "candidates' graphs": lambda read: [item.update(graph=graph_to_json(_program(folder))) for item in read["candidates"]],
        "candidates' certificates": lambda read: [item["certificate"].update(accepted=True) for item in read["candidates"]],
        "an empty list of candidates": lambda read: read.update(candidates=[]),
        "a structure of constants": lambda read: read.update(structure={"constant": 4}),
        "a structure of nothing": lambda read: read.update(structure={"output": 99}),
        "an entry more": lambda read: read.update(more=1),
    }
    for what, edit in edits.items():
        yield Tampering(f"report: {what}", _editing("report.json", edit), harmless=True)
    for name in _read(folder, "report.json"):
        gone = _editing("report.json", lambda read, name=name: read.pop(name))  # type: ignore[misc]
        yield Tampering(f"report: no {name}", gone, harmless=False)


def _files(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Other things than files, and other files."""
    for name in ("graph.json", "program.json", "certificate.json", "report.json", _MANIFEST):
        yield Tampering(f"{name}: a folder", _in_place(name, lambda path: path.mkdir()), harmless=False)
        yield Tampering(f"{name}: a pipe", _in_place(name, os.mkfifo), harmless=False)
        yield Tampering(f"{name}: a link to nothing", _in_place(name, lambda path: path.symlink_to("nothing")), harmless=False)
        yield Tampering(f"{name}: a link to itself", _in_place(name, lambda path: path.symlink_to(path)), harmless=False)
        yield Tampering(f"{name}: a device", _in_place(name, lambda path: path.symlink_to("/dev/zero")), harmless=False)
        original = (folder / name).absolute()
        linked = _in_place(name, lambda path, at=original: path.symlink_to(at))  # type: ignore[misc]
        yield Tampering(f"{name}: a link to the original", linked, harmless=True)
    yield Tampering("graph.json: of half a gigabyte", lambda copy: os.truncate(copy / "graph.json", 2**29), harmless=False)
    for name in ("evil.py", "__init__.py", "kernels.so", "graph.json.bak", ".hidden", "conftest.py"):
        yield Tampering(f"beside it: {name}", _adding(name, b"raise SystemExit('run')\n", seal=False), harmless=True)


def _in_place(name: str, make: Callable[[Path], object]) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return apply


def _documents(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Graphs that say the same in a form that is not the one they are saved in, or something else in a form that is none."""
    for name in _GRAPHS:
        document = json.dumps(_read(folder, name))
        texts = {
            "an operator more": _with(document, lambda read: read["graph"]["nodes"].append({"op": "exp"})),
            "an entry more": _with(document, lambda read: read["graph"].update(note="")),
            "an attribute more": _with(document, lambda read: read["graph"]["nodes"][0]["attributes"].update(note=1)),
            "a version that is a truth": _with(document, lambda read: read.update(mugraph=True)),
            "another version": _with(document, lambda read: read.update(mugraph=2)),
            "a size that is no integer": _with(document, lambda read: _shape(read).__setitem__(0, float(_shape(read)[0]))),
            "a size below zero": _with(document, lambda read: _shape(read).__setitem__(0, -1)),
            "a size beyond all machines": _with(document, lambda read: _shape(read).__setitem__(0, 10**30)),
            "no outputs": _with(document, lambda read: read["graph"].update(outputs=[])),
            "an output that is not there": _with(document, lambda read: read["graph"].update(outputs=[[99, 0]])),
            "a loop": _with(document, lambda read: read["graph"].update(loop=2)),
            "one name for two inputs": _with(document, _name_alike),
        }
        for what, forged in texts.items():
            yield Tampering(f"{name}: {what}", _forging(name, forged), harmless=False)


def _with(text: str, edit: Callable[[Any], object]) -> Any:
    document = json.loads(text)
    edit(document)
    return document


def _shape(document: Any) -> list[Any]:
    shape: list[Any] = document["graph"]["nodes"][0]["outputs"][0]["shape"]
    return shape


def _name_alike(document: Any) -> None:
    inputs = [node for node in document["graph"]["nodes"] if node["op"] == "input"]
    document["graph"]["nodes"].insert(0, inputs[0])


# --- wrong graphs ------------------------------------------------------------------------------------------------------


def _graph(folder: Path) -> Graph:
    return graph_from_json(_read(folder, "graph.json"))


def _program(folder: Path) -> Graph:
    return graph_from_json(_read(folder, "program.json"))


def _wrong_graphs(folder: Path, rng: random.Random) -> Iterator[Tampering]:
    """Near misses of the muGraph with their own sources, near misses of the program, and other programs in their own place."""
    program, graph, manifest = _program(folder), _graph(folder), _read(folder, _MANIFEST)
    found = list(mutants(graph))
    wrong = (each for each in rng.sample(found, len(found)) if not agree(program, each.graph))
    for mutant in itertools.islice(wrong, _MOST_MUTANTS):
        try:
            printed = printed_again(mutant.graph, manifest["target"], manifest["printer"])
        except MugraphError:
            continue
        forged = _forging("graph.json", graph_to_json(mutant.graph), printed)
        yield Tampering(f"graph.json: {mutant.kind}, {mutant.change}", forged, harmless=False)
    found = list(mutants(program))
    wrong = (each for each in rng.sample(found, len(found)) if not agree(program, each.graph))
    for number, mutant in enumerate(itertools.islice(wrong, _MOST_MUTANTS)):
        forged = _forging("program.json", graph_to_json(mutant.graph))
        yield Tampering(f"program.json: {mutant.kind}, {mutant.change}", forged, harmless=False)
        if number < 3:
            yield Tampering(
                f"another function: {mutant.kind}, {mutant.change}", _replacing(mutant.graph, manifest), harmless=True
            )


def _replacing(graph: Graph, manifest: Any) -> Change:
    """Another program, and itself as its muGraph: all that the folder says is true of that."""

    def apply(folder: Path) -> None:
        _without_sources(folder)
        floats = _read(folder, "certificate.json")["floats"]
        for name in _GRAPHS:
            _write(folder, name, graph_to_json(graph))
        _write(folder, "certificate.json", {**verify_graphs(graph, graph).certificate.to_json(), "floats": floats})
        for file, text in printed_again(graph, manifest["target"], manifest["printer"]).items():
            (folder / file).write_text(text)
        _seal(folder)

    return apply
