"""A partitioned result as one HTML page: what runs what, how fast, and the page of each program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mugraph.frontend.partition import Piece
from mugraph.frontend.source_lines import line_of_node
from mugraph.frontend.splice import in_order
from mugraph.frontend.torch_casts import name_of
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
    pieces, left = len(opt.pieces), len(opt.cut.partition.left)
    parts = f"{pieces} program{'s' * (pieces != 1)} as kernels and {left} call{'s' * (left != 1)} of PyTorch"
    if not pieces:
        return f"No program runs as kernels: calls of the result run the function, {left} call{'s' * (left != 1)} of PyTorch."
    if opt.found:
        return f"{parts} for {opt.target}."
    return f"{parts} are not clearly faster than the function itself, which is what calls of the result run."


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
        nodes = step.nodes if isinstance(step, Piece) else (step.node,)
        lines = ", ".join(dict.fromkeys(filter(None, map(line_of_node, nodes))))
        runs = f"program {numbers[id(cut.results[step])]}" if isinstance(step, Piece) else "PyTorch"
        yield Call(", ".join(map(name_of, nodes)), runs, lines)
