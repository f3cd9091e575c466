"""Partitioned results on disk: what a saved program is (`mugraph.results.serialization`), for each program, and the torch graph.

mugraph.json      the manifest, of the kind `pieces`      report.json    search, coverage, calling convention
torch.json        the calls of PyTorch, and which of them each program stands for (`mugraph.pieces.saved_graph`)
programs/K/...    the saved result of program K
constants.json    values of the last inputs, where the function computes some of no tensor

Nothing in the folder is executed but calls of ATen's functional operators, which are looked up by name, and kernels. Each program
must be the one that its calls are converted to when the folder is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from mugraph.devices.targets import target_row
from mugraph.errors import InvalidInput
from mugraph.frontend.calls.calling import SignatureRecord, structure_of
from mugraph.frontend.partitioning.partition import Partition
from mugraph.frontend.recording.recorded_graph import RecordedGraph
from mugraph.pieces.data import CutGraph, PartitionedResult
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.plan import Plan
from mugraph.pieces.saved_graph import cut_from_json, cut_to_json, inputs_of
from mugraph.results.data import Report, stage_seconds
from mugraph.results.places import check_replaceable
from mugraph.results.serialization import (
    CONSTANTS,
    constants_file,
    documents,
    json_text,
    parsed,
    read_files,
    read_manifest,
    saved_constants,
    signature_to_json,
    with_manifest,
    write_folder,
)
from mugraph.results.superoptimized import Superoptimized, load_program
from mugraph.support.deadline import Deadline
from mugraph.verifier.certificate import digest

KIND = "pieces"
"""The kind of folders that hold a function with parts that PyTorch runs."""
R = TypeVar("R", bound=PartitionedResult)
_REPORT, _TORCH, _PROGRAMS = "report.json", "torch.json", "programs"


def save(result: PartitionedResult, path: Path) -> Path:
    """Write a result to the folder `path`, as `mugraph.results.serialization.save` does.

    Raises InvalidInput also for a graph that calls other operators than ATen's, naming the first.
    """
    check_replaceable(path)
    return write_folder(path, documents_of(result))


def documents_of(result: PartitionedResult) -> dict[str, str]:
    """Text of every file of a saved result, by its path in the folder; raises InvalidInput as `save` does."""
    record = {
        "report": result.report.to_json(),
        "structure": structure_of(result.calling, result.cut.recorded.returned),
        "name": result.name,
        "signature": signature_to_json(result.calling),
    }
    numbers = {id(each): number for number, each in enumerate(result.results)}
    programs = [numbers[id(piece.result)] for piece in result.pieces]
    files = {_REPORT: json_text(record), _TORCH: json_text(cut_to_json(result.cut, programs))}
    files |= constants_file(result.calling)
    for number, each in enumerate(result.results):
        files |= {f"{_PROGRAMS}/{number}/{name}": text for name, text in documents(each).items()}
    return with_manifest(files, result.target, result.origin, kind=KIND)


def read(kind: type[R], folder: Path, trust_sources: bool) -> R:
    """The result in a folder, as one of a kind; raises what `mugraph.load` raises."""
    saved = SavedPieces.of(folder)
    results = [load_program(place, trust_sources) for place in saved.programs]
    return kind(saved.cut(results), saved.report, saved.manifest["target"], saved.manifest["origin"])


def rebuilt_pieces(
    kind: type[R], folder: Path, target: str, rebuilt_program: Callable[[Path], Superoptimized], deadline: Deadline
) -> R:
    """The result in a folder for another target, with `rebuilt_program` of each of its programs and the same calls of PyTorch."""
    saved = SavedPieces.of(folder)
    before = saved.manifest["target"]
    if target_row(before).tensors != target_row(target).tensors or saved.partition.library:
        why = "has layers that the library of the CPU runs" if saved.partition.library else f"is cut for {before}"
        raise InvalidInput(f"{folder} calls PyTorch between kernels, and {why}; optimize the function for {target}")
    if not saved.report.found:
        raise InvalidInput(f"{folder} runs the original, as no muGraph was faster; optimize the function for {target}")
    results = [rebuilt_program(place) for place in saved.programs]
    report = replace(
        saved.report,
        **stage_seconds([result.report for result in results]),
        total_seconds=deadline.elapsed,
        original_latency=None,
        comparison=None,
    )
    return kind(saved.cut(results), report, target, saved.manifest["origin"])


@dataclass(frozen=True, slots=True)
class SavedPieces:
    """What a folder says, but for the results of its programs."""

    manifest: dict[str, Any]
    report: Report
    document: dict[str, Any]
    """The file torch.json, as JSON values."""
    recorded: RecordedGraph
    partition: Partition
    numbers: tuple[int, ...]
    """By piece, which program it is."""
    programs: tuple[Path, ...]
    """The folders of the programs' results."""
    layout: Layout

    @classmethod
    def of(cls, folder: Path) -> SavedPieces:
        """What the folder says; raises InvalidInput for a file that was changed or is malformed."""
        manifest = read_manifest(folder)
        files = read_files(folder, manifest, _is_of_pieces)
        record, document = parsed(folder, files, _REPORT), parsed(folder, files, _TORCH)
        try:
            constants = saved_constants(folder, files, inputs_of(document))
            signature = SignatureRecord.from_json(record.get("signature"))
            recorded, partition = cut_from_json(document, record["name"], record["structure"], constants, signature)
            numbers = tuple(int(piece["program"]) for piece in document["pieces"])
            programs = tuple(folder / _PROGRAMS / str(number) for number in range(max(numbers, default=-1) + 1))
            report, layout = Report.from_json(record["report"]), Layout(document["layout"])
            return cls(manifest, report, document, recorded, partition, numbers, programs, layout)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            why = f"{folder / _TORCH} or {_REPORT} is malformed ({type(error).__name__}: {error}); optimize and save again"
            raise InvalidInput(why) from None

    def cut(self, results: Sequence[Superoptimized]) -> CutGraph:
        """The torch graph with the results of its programs; raises InvalidInput unless its calls are these programs."""
        self.check([digest(result.program) for result in results])
        results_of = {piece: results[number] for piece, number in zip(self.partition.pieces, self.numbers, strict=True)}
        return CutGraph(self.recorded, Plan(self.partition, results_of, self.layout))

    def check(self, digests: Sequence[str]) -> None:
        """Raise InvalidInput unless the calls of each piece are the program of that digest."""
        for piece, number in zip(self.partition.pieces, self.numbers, strict=True):
            if digest(piece.program) != digests[number]:
                raise InvalidInput(f"program {number} is not what its calls of PyTorch compute here; optimize and save again")


def _is_of_pieces(name: str, place: PurePosixPath) -> bool:
    return name in (_REPORT, _TORCH, CONSTANTS) or place.parts[:1] == (_PROGRAMS,)
