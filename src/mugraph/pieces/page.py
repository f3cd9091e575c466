"""A partitioned result as one HTML page: what runs what, how fast, and the page of each program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mugraph.frontend.operators.torch_casts import name_of
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import Piece
from mugraph.frontend.partitioning.splice import in_order, nodes_of
from mugraph.frontend.source_lines import line_of_node
from mugraph.pieces.data import PartitionedResult
from mugraph.results.coverage import coverage_rows
from mugraph.results.summary import bound_text
from mugraph.results.viewer import pages, tables
from mugraph.results.viewer.environment import environment
from mugraph.version import __version__


@dataclass(frozen=True, slots=True)
class ProgramView:
    """A distinct program: what it stands for, what is known of it, and its page."""

    title: str
    operators: str
    lines: str
    evidence: str
    page: str


@dataclass(frozen=True, slots=True)
class Call:
    """A step of a call: what it is, what runs it, and the lines of Python that it comes from."""

    what: str
    runs: str
    lines: str


def page(opt: PartitionedResult) -> str:
    """The page of a partitioned result, as the text of an HTML file in UTF-8."""
    coverage, programs = opt.report.coverage, list(_programs(opt))
    script = pages.page_script()
    text = (
        environment()
        .get_template("pieces.html")
        .render(
            title=str(opt.origin.get("word", opt.name)),
            headline=_headline(opt),
            script_hash=pages.script_hash(script),
            timed=tables.timed_rows(opt.report.comparison, None),
            coverage=[] if coverage is None else coverage_rows(coverage),
            programs=programs,
            programs_called=len(opt.pieces),
            calls=list(_calls(opt)),
            version=__version__,
            opt=opt,
        )
    )
    return pages.printable(text)


def _headline(opt: PartitionedResult) -> str:
    whole = opt.cut.partition
    kernels = [_counted(len(opt.pieces), "program") + " as kernels" if opt.pieces else "No muGraph"]
    kernels += [_counted(len(whole.library), "kernel") + " of the library with packed weights"] if whole.library else []
    left = _counted(len(whole.left), "call") + " of PyTorch"
    if not opt.pieces and not whole.library and not opt.found:
        return f"No program runs as kernels: calls of the result run the function, {left}."
    parts = ", ".join(kernels) + f" and {left}"
    if opt.found:
        return f"{parts} for {opt.target}."
    return f"{parts} are not clearly faster than the function itself, which is what calls of the result run."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _programs(opt: PartitionedResult) -> Iterator[ProgramView]:
    for number, result in enumerate(opt.results):
        alike = [piece for piece in opt.pieces if piece.result is result]
        title = f"Program {number}" + (f", {len(alike)} times" if len(alike) > 1 else "")
        lines = ", ".join(dict.fromkeys(line for piece in alike for line in piece.lines))
        yield ProgramView(title, ", ".join(alike[0].operators), lines, bound_text(result.certificate), pages.page(result))


def _calls(opt: PartitionedResult) -> Iterator[Call]:
    numbers = {id(result): number for number, result in enumerate(opt.results)}
    cut = opt.cut
    for step in in_order(cut.recorded.module.graph, cut.partition):
        nodes = nodes_of(step)
        lines = ", ".join(dict.fromkeys(filter(None, map(line_of_node, nodes))))
        if isinstance(step, Piece):
            runs = f"program {numbers[id(cut.results[step])]}"
        else:
            runs = "oneDNN, packed weights" if isinstance(step, LibraryKernel) else "PyTorch"
        yield Call(", ".join(map(name_of, nodes)), runs, lines)
