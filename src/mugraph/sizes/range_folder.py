"""What folders of results at several sizes of one dimension have in common, whether these are chunks
(`mugraph.sizes.saved_sizes`, `mugraph.sizes.saved_pieced`) or capacities (`mugraph.sizes.saved_capacities`): a manifest of their
kind, a document of that name, and the folder of each result."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from mugraph.errors import InvalidInput
from mugraph.results.places import MANIFEST
from mugraph.results.serialization import (
    documents,
    json_text,
    kind_of,
    parsed,
    read_files,
    read_manifest,
    with_manifest,
    write_folder,
)
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes.chunk_plans import Costs
from mugraph.sizes.dims import Dim, Dynamic


def document_of(kind: str) -> str:
    """The name of the document beside the manifest."""
    return f"{kind}.json"


def save(path: Path, kind: str, record: Mapping[str, Any], results: Mapping[int, Superoptimized]) -> Path:
    """Write results by size to the folder `path`, and the document that says the rest of them."""
    return write_folder(path, files_of(kind, record, results))


def files_of(kind: str, record: Mapping[str, Any], results: Mapping[int, Superoptimized]) -> dict[str, str]:
    """Text of every file of such a folder, by its path in it."""
    target = next(iter(results.values())).target
    return files_by_size(kind, record, {size: documents(result) for size, result in results.items()}, target)


def files_by_size(kind: str, record: Mapping[str, Any], folders: Mapping[int, Mapping[str, str]], target: str) -> dict[str, str]:
    """Text of every file of a folder with others in it, each for a size."""
    files = {document_of(kind): json_text(record)}
    for size, folder in sorted(folders.items()):
        files |= {f"{kind}/{size}/{name}": text for name, text in folder.items()}
    return with_manifest(files, target, {}, kind=kind)


def said_of(dim: Dim, dynamic: Dynamic, claim: str, compared: Sequence[int]) -> dict[str, Any]:
    """What the document says of the dimension, of where arguments of the function have it, and of what holds at every size."""
    return {
        "dimension": dim.to_json(),
        "dynamic": [[argument, position] for argument, dims in dynamic.items() for position in dims],
        "claim": claim,
        "compared": list(compared),
    }


def dim_said(said: Mapping[str, Any]) -> Dim:
    """The dimension that a document describes; raises what `RangeFolder.well_formed` knows for what is none, or has size 0, for
    which nothing is saved."""
    dim = Dim.of_json(said)
    if dim.low < 1:
        raise ValueError(f"{dim.name} ranges from {dim.low}, and results are for sizes from 1 on")
    return dim


def seconds_of(said: Any) -> float:
    """Seconds that a document says; raises ValueError for what are none, by which nothing could be planned."""
    seconds = float(said)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{said!r} are no seconds")
    return seconds


def said_of_costs(costs: Costs, sizes: Iterable[int]) -> dict[str, Any]:
    """What the document says of the kernels for these sizes, and of those that are put together of them."""
    known = sorted(sizes)
    return {
        "seconds": {str(size): costs.kernels[size] for size in known},
        "chunk": costs.chunk,
        "padding": costs.padding,
        "copying": costs.copying,
        "parts": {str(size): {str(n): part for n, part in costs.parts[size].items()} for size in known if size in costs.parts},
    }


def costs_said(record: Mapping[str, Any]) -> Costs:
    """The costs that a document says; raises what `RangeFolder.well_formed` knows for what are none."""
    seconds = {int(size): seconds_of(each) for size, each in record["seconds"].items()}
    parts = {int(size): _parts_of(said) for size, said in record.get("parts", {}).items()}
    chunk, padding, copying = (seconds_of(record.get(name, 0.0)) for name in ("chunk", "padding", "copying"))
    if not parts.keys() <= seconds.keys():
        raise ValueError(f"{sorted(parts)} are to be computed in part, and there are {sorted(seconds)}")
    return Costs(seconds, {}, chunk, padding, parts, copying=copying)


def _parts_of(said: Mapping[str, Any]) -> dict[int, float]:
    """Which part of the time of all slices so many take; raises ValueError where nothing is said."""
    if not said:
        raise ValueError("a size says nothing of its parts")
    return {int(size): seconds_of(part) for size, part in said.items()}


@dataclass(frozen=True, slots=True)
class RangeFolder:
    """Such a folder, whose files are as they were written."""

    folder: Path
    kind: str
    files: Mapping[str, str]
    record: Mapping[str, Any]
    """What the document says."""

    @classmethod
    def of(cls, folder: Path, kind: str, what: str) -> Self:
        """The folder; raises InvalidInput where it holds none of `what`, or a file was changed."""
        manifest = read_manifest(folder)
        if kind_of(manifest) != kind:
            raise InvalidInput(f"{folder} holds no {what}; read it with mugraph.load")
        files = read_files(folder, manifest, lambda name, place: name == document_of(kind) or place.parts[:1] == (kind,))
        return cls(folder, kind, files, parsed(folder, files, document_of(kind)))

    @property
    def dim(self) -> Dim:
        """The dimension and its range, which begins at 1 or later; raises what `well_formed` knows."""
        return dim_said(self.record["dimension"])

    @property
    def dynamic(self) -> tuple[tuple[int | str, int], ...]:
        """Arguments of the function, by number or name, and their dimensions of varying size."""
        record = self.record["dynamic"]
        places = tuple((argument, position) for argument, position in record)
        if not all(type(argument) in (int, str) and type(position) is int for argument, position in places):
            raise TypeError(f"{record!r} names no dimensions of arguments")
        return places

    @property
    def claim(self) -> str:
        """What holds at every size, in words."""
        return str(self.record["claim"])

    def programs(self, sizes: Iterable[int]) -> dict[int, Path]:
        """Where the results are, by size; raises InvalidInput unless the manifest lists those of just these sizes: others are
        looked at by nobody who goes by the manifest."""
        folders = {size: self.folder / self.kind / str(size) for size in sorted(sizes)}
        listed = {parts[1:2] for parts in (PurePosixPath(name).parts for name in self.files) if parts[:1] == (self.kind,)}
        complete = all(f"{self.kind}/{size}/{MANIFEST}" in self.files for size in folders)
        if listed != {(str(size),) for size in folders} or not complete:
            raise InvalidInput(f"{self.folder / MANIFEST} lists results of other sizes than {document_of(self.kind)} speaks of")
        return folders

    @contextlib.contextmanager
    def well_formed(self) -> Iterator[None]:
        """Raises InvalidInput where reading the document fails inside."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, InvalidInput) as error:
            raise InvalidInput(
                f"{self.folder / document_of(self.kind)} is malformed ({error}); optimize and save again"
            ) from None
