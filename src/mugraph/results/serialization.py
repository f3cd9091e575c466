"""Results on disk: a folder of JSON and generated sources, every file listed with its hash. Never pickle, never eval.

mugraph.json      the manifest: format, version, target, what the printer depended on, and the sha256 of every other file
graph.json        the muGraph that runs          program.json   the original program
certificate.json  what was proved, how           report.json    search statistics, candidates, calling convention
placement.json    layouts, offsets of buffers    sources/       the generated kernels
constants.json    values of its last inputs, where the function computes some of no tensor

The hashes tell accidents from what was written, and are no signature. So nothing that runs rests on them: sources and placement
are printed again from the muGraph (`mugraph.results.proof_bindings`), and the muGraph is tested against the program. Nothing in
the folder ties down that the program is the user's function, which `mugraph verify --certificate DIR FILE.py:f` decides, nor the
times, costs and statistics in report.json, nor `version` and `origin`, from which nothing follows without the user's word.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from mugraph.errors import InvalidInput, StorageError, UntrustedSources
from mugraph.frontend.calls.calling import Calling, Positional, SignatureRecord, structure_of
from mugraph.frontend.calls.saved_constants import (
    SavedConstant,
    check_last_inputs,
    constants_from_json,
    constants_to_json,
    inputs_of,
)
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.results.data import Candidate, Report, Result
from mugraph.results.places import MANIFEST, check_replaceable
from mugraph.results.proof_bindings import PLACEMENT, check_sources, contradiction, printed
from mugraph.runtime import Executable, build
from mugraph.support.scratch import abandoned, scratch_directory
from mugraph.targets.machine import machine_for
from mugraph.verifier import Certificate
from mugraph.verifier.certificate import digest as graph_digest
from mugraph.version import __version__

R = TypeVar("R", bound=Result)

_FORMAT = 4
_OLDEST = 3
"""Folders of this format have no constants, which are inputs like others there, and do not say how functions are called."""
CONSTANTS = "constants.json"
"""The file with what the function computes of no tensor, in folders that have any."""
_DOCUMENTS = ("program.json", "graph.json", "certificate.json", "report.json", PLACEMENT, CONSTANTS)
_OLD = "old"
"""What a result is called that is being replaced, until the newer one is in its place."""
ONE_PROGRAM = "program"
"""The kind of folders that hold a program and its muGraph."""
RANGE = "sizes"
"""The kind of those that hold programs at several sizes (`mugraph.sizes.saved_sizes`)."""
CAPACITIES = "capacities"
"""The kind of those that hold masked programs at several capacities (`mugraph.sizes.saved_capacities`)."""
BATCHES = "batches"
"""The kind of those that hold such folders for several batches (`mugraph.sizes.saved_batches`)."""
PIECED = "pieced"
"""The kind of those that hold results in pieces at several sizes (`mugraph.sizes.saved_pieced`)."""
RANGES = (RANGE, CAPACITIES, BATCHES, PIECED)
"""All kinds of those that hold one function at several sizes."""
_LARGEST = 2**28
"""Bytes of a file: far more than any result has."""


def save(result: Result, path: Path) -> Path:
    """Write `result` to the folder `path`, all of it or nothing; returns the folder.

    An older result there is replaced; any other folder or file raises InvalidInput. A disk that is full or read-only
    raises StorageError and leaves what was there.
    """
    check_replaceable(path)
    return write_folder(path, documents(result))


def documents(result: Result) -> dict[str, str]:
    """Text of every file of a saved result, by its path in the folder."""
    printer = dict(result.executable.machine.parameters)
    return with_manifest(_contents(result), result.target, result.origin, printer=printer)


def with_manifest(files: Mapping[str, str], target: str, origin: Mapping[str, Any], **more: Any) -> dict[str, str]:
    """The files with a manifest that lists them."""
    hashes = {name: _digest(text.encode()) for name, text in files.items()}
    known = {"format": _FORMAT, "version": __version__, "target": target, "printer": {}, "origin": dict(origin)}
    return {**files, MANIFEST: json_text(known | more | {"files": hashes})}


def write_folder(path: Path, files: Mapping[str, str]) -> Path:
    """Write files as the folder `path`, in the place of what is there, all of them or nothing; see `save`."""
    place = Path(os.path.realpath(path))  # a link to a folder stays, and what it leads to is replaced
    with _storage_errors("write", path):
        place.parent.mkdir(parents=True, exist_ok=True)
        _put_back(place)
        with scratch_directory(_staging(place), place.parent) as folder:
            new = Path(folder, "new")
            for name, text in files.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(text.encode())
            _exchange(place, new, Path(folder, _OLD))
    return path.absolute()


def _staging(place: Path) -> str:
    return f".{place.name}-saving-"


def _put_back(place: Path) -> None:
    """Where a save was killed between taking the older result away and putting the newer one there: the older one."""
    for staging in abandoned(_staging(place), place.parent):
        if not place.exists() and (staging / _OLD).is_dir():
            os.rename(staging / _OLD, place)


def read(kind: type[R], path: Path, trust_sources: bool) -> R:
    """The result in the folder `path`, as one of a kind; raises what `mugraph.load` raises."""
    saved = SavedProgram.of(path)
    manifest, program, best = saved.manifest, saved.program, saved.best
    _check_proof(path, program, best.graph, best.certificate)
    executable = _executable(path, manifest, saved.files, best.graph, trust_sources)
    found = program, best, saved.candidates, saved.report, executable, saved.calling
    return kind(*found, manifest["target"], manifest["origin"])


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """What the folder of one program says, of which nothing was tested, proved or compiled again."""

    manifest: dict[str, Any]
    files: dict[str, str]
    program: Graph
    best: Candidate
    candidates: tuple[Candidate, ...]
    report: Report
    calling: Positional

    @classmethod
    def of(cls, path: Path) -> SavedProgram:
        """What the folder says; raises InvalidInput for a file that was changed or is malformed."""
        manifest = read_manifest(path)
        if kind_of(manifest) != ONE_PROGRAM:
            raise InvalidInput(f"{path} holds a function with parts that PyTorch runs; read it with mugraph.load")
        files = read_files(path, manifest, _is_of_program)
        program = graph_from_json(parsed(path, files, "program.json"))
        graph = graph_from_json(parsed(path, files, "graph.json"))
        record = parsed(path, files, "report.json")
        certificate = Certificate.from_json(parsed(path, files, "certificate.json"))
        try:
            candidates = tuple(Candidate.from_json(item) for item in record["candidates"])
            best = Candidate.measured(graph, certificate, record["best"])
            report = Report.from_json(record["report"])
            constants = saved_constants(path, files, inputs_of(program))
            signature = SignatureRecord.from_json(record.get("signature"))
            calling = Positional(program, record["structure"], constants, signature)
            return cls(manifest, files, program, best, candidates, report, calling)
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"{path / 'report.json'} is incomplete or malformed ({error}); optimize and save again") from None


def saved_constants(
    path: Path, files: Mapping[str, str], inputs: Sequence[tuple[str, str, tuple[int, ...]]]
) -> tuple[SavedConstant, ...]:
    """The constants in a folder, which are the last of `inputs`: by name, PyTorch's name of the type, and shape.

    Raises InvalidInput, naming the file and the constant, for others.
    """
    if CONSTANTS not in files:
        return ()
    try:
        constants = constants_from_json(parsed(path, files, CONSTANTS))
        check_last_inputs(constants, inputs)
    except InvalidInput as error:
        raise InvalidInput(f"{path / CONSTANTS}: {error}") from None
    return constants


def constants_file(calling: Calling) -> dict[str, str]:
    """The file of what a function computes of no tensor, by its name; none where there is nothing. Raises StorageError."""
    constants = calling.constants
    return {CONSTANTS: json_text(constants_to_json(constants))} if constants else {}


def signature_to_json(calling: Calling) -> dict[str, Any] | None:
    """How the function is called, as JSON values, where that is known."""
    record = calling.signature_record
    return None if record is None else record.to_json()


def _check_proof(path: Path, program: Graph, graph: Graph, certificate: Certificate) -> None:
    """Raise InvalidInput unless a certificate accepts these graphs, and tests agree now.

    A certificate may also say that they agree without a bound, which is what whoever saved the result had asked for.
    """
    if (certificate.left, certificate.right) != (graph_digest(program), graph_digest(graph)):
        raise InvalidInput(f"{path / 'certificate.json'} does not speak of the graphs beside it; optimize and save again")
    if program == graph:
        return
    if not (certificate.accepted or certificate.agreed):
        raise InvalidInput(f"{path / 'certificate.json'} does not accept graph.json; optimize and save again")
    if why := contradiction(program, graph, certificate.max_error):
        raise InvalidInput(f"{path / 'graph.json'} does not compute program.json ({why}); do not use this result")


def _executable(
    path: Path, manifest: Mapping[str, Any], files: Mapping[str, str], graph: Graph, trust_sources: bool
) -> Executable:
    """The muGraph compiled: from what this machine prints of it, or from the saved sources where the user trusts them."""
    sources = {name.removeprefix("sources/"): text for name, text in files.items() if name.startswith("sources/")}
    if trust_sources:
        machine = machine_for(manifest["target"])
        executable = Executable(graph, machine, sources)
        if any(launch.packings for launch in executable.launches.values()) and sources != machine.print(executable.kernels):
            raise UntrustedSources(f"{path} reads packed weights, which this version or machine packs otherwise; optimize again")
        return executable
    check_sources({name: text.encode() for name, text in files.items()}, graph, manifest, path)
    return build(graph, manifest["target"])


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a saved result; raises InvalidInput when `path` is not one."""
    if not path.exists():
        with suppress(OSError):
            _put_back(path)
    if not (path / MANIFEST).is_file():
        raise InvalidInput(f"{path} is not a saved mugraph result (no {MANIFEST} in it); save one with opt.save or -o")
    with _storage_errors("read", path / MANIFEST):
        content = (path / MANIFEST).read_bytes()
    manifest: Any = parsed(path, {MANIFEST: _text(path / MANIFEST, content)}, MANIFEST)
    check_manifest(path, manifest)
    return dict(manifest)


def check_manifest(path: Path, manifest: Any) -> None:
    """Raise InvalidInput for what is no manifest, or one of another format than this version writes."""
    number = manifest.get("format") if isinstance(manifest, dict) else None
    forms = {"files": dict, "origin": dict, "target": str, "version": str, "printer": dict}
    formed = isinstance(manifest, dict) and all(type(manifest.get(name)) is kind for name, kind in forms.items())
    known = type(number) is int and _OLDEST <= number <= _FORMAT
    if type(number) is not int or (known and not formed):
        raise InvalidInput(f"{path / MANIFEST} is not a manifest of format {_FORMAT}; optimize and save again with this version")
    if known:
        return
    version = manifest.get("version", "of unknown version")
    age, remedy = ("a newer", "use that") if number > _FORMAT else ("an older", "optimize and save again with this one")
    raise InvalidInput(f"{path / MANIFEST} was written by {age} mugraph ({version}, format {number}, here {_FORMAT}); {remedy}")


def _contents(result: Result) -> dict[str, str]:
    """Text of every file but the manifest, by its path in the folder."""
    record = {
        "report": result.report.to_json(),
        "structure": structure_of(result.calling, len(result.program.outputs)),
        "signature": signature_to_json(result.calling),
        "best": result.best.measurements(),
        "candidates": [candidate.to_json() for candidate in result.candidates],
    }
    files = {
        "program.json": json_text(graph_to_json(result.program)),
        "graph.json": json_text(graph_to_json(result.graph)),
        "certificate.json": json_text(result.certificate.to_json()),
        "report.json": json_text(record),
    }
    return files | constants_file(result.calling) | printed(result.sources, result.executable.placement)


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


def kind_of(manifest: Mapping[str, Any]) -> str:
    """What a manifest lists the files of: ONE_PROGRAM, or what another module writes."""
    return str(manifest.get("kind", ONE_PROGRAM))


def _is_of_program(name: str, place: PurePosixPath) -> bool:
    return name in _DOCUMENTS or place.parts[:1] == ("sources",)


def read_files(path: Path, manifest: Mapping[str, Any], known: Callable[[str, PurePosixPath], bool]) -> dict[str, str]:
    """The text of each file that a manifest lists, by name; raises InvalidInput unless all are as listed, and `known`."""
    return {name: _read_checked(path, name, digest, known) for name, digest in manifest["files"].items()}


def _read_checked(path: Path, name: str, digest: str, known: Callable[[str, PurePosixPath], bool]) -> str:
    """The text of a file of a result, read once: what is hashed is what is used."""
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise InvalidInput(f"{path / MANIFEST} names {name!r}, which lies outside the folder; do not use this result")
    if not known(name, place) or place.as_posix() != name:
        raise InvalidInput(f"{path / MANIFEST} names {name!r}, which is no file of a result; do not use it")
    file = path / name
    if not file.is_file():
        raise InvalidInput(f"{file} is missing; optimize and save again")
    with _storage_errors("read", file):
        if file.stat().st_size > _LARGEST:
            raise InvalidInput(f"{file} has more than {_LARGEST} bytes, which no file of a result has; do not use it")
        content = file.read_bytes()
    if _digest(content) != digest:
        raise InvalidInput(f"{file} was changed after it was saved (its sha256 differs); optimize and save again")
    return _text(file, content)


def _text(file: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text; optimize and save again") from None


def parsed(path: Path, files: Mapping[str, str], name: str) -> Any:
    """The JSON value in a file of the folder `path`; raises InvalidInput where there is none."""
    try:
        return json.loads(files[name], object_pairs_hook=_without_repetition)
    except KeyError:
        raise InvalidInput(f"{path / MANIFEST} does not list {name}; optimize and save again") from None
    except (ValueError, RecursionError) as error:  # of JSON, of too many digits, of a repeated name
        raise InvalidInput(f"{path / name} is not JSON ({error}); optimize and save again") from None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; readers of JSON disagree on which of two entries of one name counts."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return entries


def json_text(value: Any) -> str:
    """A value as the text of a file."""
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
