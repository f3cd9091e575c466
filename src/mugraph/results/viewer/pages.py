"""A result as one HTML page: what was found at all three levels, why to believe it, what it costs, and its sources.

The page is a single file that fetches nothing. Its one script copies sources, and is named by its digest so that no other
runs; all else works without. It says nothing that a saved folder does not hold, so a
loaded result gives the page of the result that was saved.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from mugraph.devices import device_for, roofline_seconds
from mugraph.ir.graph import Graph
from mugraph.results.coverage import coverage_rows
from mugraph.results.data import Candidate, Result
from mugraph.results.summary import bound_text, compared_text, sample_text
from mugraph.results.viewer import evidence, tables
from mugraph.results.viewer.differences import COLUMNS, differences
from mugraph.results.viewer.drawing import Drawing, Note, draw, standalone, svg
from mugraph.results.viewer.environment import environment
from mugraph.results.viewer.labels import MEMORY, ROLE_WORDS, Labels, Operands
from mugraph.results.viewer.lowering import lowered_kernels
from mugraph.results.viewer.whereabouts import Whereabouts
from mugraph.results.words import extent, seconds_text
from mugraph.verifier.certificate import power_of_two

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that HTML does not have, and those that would turn the text after them around."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A drawing on the page, with what is shown of its boxes when one has the focus; `place` is its id."""

    place: str
    svg: Markup
    notes: tuple[Note, ...]
    file: str
    """The drawing as an SVG file, as a URL that holds it."""


@dataclass(frozen=True, slots=True)
class BodyView:
    """The body of a graph-defined operator: its drawing, and the thread graphs in it."""

    name: str
    summary: str
    drawing: Sheet
    threads: tuple[BodyView, ...] = ()
    buffers: tuple[tables.BufferRow, ...] = ()
    """Of the kernel as it was lowered; none where another compiler decides about them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number to begin with: what it is, the number, and what it compares with."""

    term: str
    number: str
    note: str


def page(opt: Result) -> str:
    """The page of a result, as the text of an HTML file in UTF-8."""
    best, certificate, report = opt.best, opt.certificate, opt.report
    program, kernels = (
        _drawing(opt.program, "The original program", "program"),
        _drawing(opt.graph, "The muGraph at kernel level", "kernels"),
    )
    bodies, candidates = list(_bodies(opt)), list(_candidates(opt))
    script = page_script()
    whereabouts = Whereabouts(opt)
    sheets = [program, kernels, *_sheets(bodies), *(sheet for _, sheet in candidates)]
    text = (
        environment()
        .get_template("page.html")
        .render(
            title=_title(opt),
            script=script,
            script_hash=script_hash(script),
            opt=opt,
            headline=_headline(opt),
            figures=list(_figures(opt)),
            timed=tables.timed_rows(report.comparison, roofline_seconds(opt.program, device_for(opt.target))),
            coverage=[] if report.coverage is None else coverage_rows(report.coverage),
            work=tables.work(opt),
            unavailable={} if report.comparison is None else report.comparison.unavailable,
            roles=ROLE_WORDS,
            memory=MEMORY,
            program_drawing=program,
            program_operators=len(opt.program.kernels()),
            graph_drawing=kernels,
            bodies=bodies,
            boxes=[note.box for sheet in sheets for note in sheet.notes],
            facts=evidence.facts(best, opt.program),
            floats=best.certificate.floats,
            float_rows=[] if certificate.floats is None else evidence.float_rows(certificate.floats),
            compared=compared_text(best),
            sample="" if certificate.floats is None else sample_text(certificate.floats),
            tolerances="" if certificate.floats is None else evidence.tolerances_text(certificate.floats),
            candidates=candidates,
            differences=differences(opt),
            difference_columns=COLUMNS,
            spot_checked=any(candidate.spot_check is not None for candidate in opt.candidates),
            dropped=tables.dropped_rows(report),
            gpu_kernels=opt.executable.resources,
            tiers=tables.tier_rows(report.search),
            tier_columns=list(tables.TIER_COUNTS.values()),
            pruned=tables.pruned_rows(report.search),
            not_searched=report.search.get("not_searched", ()),
            paddings=report.search.get("paddings", ()),
            times=tables.times(report),
            kernels=list(lowered_kernels(opt)),
            places=whereabouts.places,
            sources={name: whereabouts.source(name) for name in opt.sources},
        )
    )
    return printable(text)


def page_script() -> Markup:
    """The one script of pages."""
    return Markup(environment().get_template("page.js").render())


def script_hash(script: str) -> str:
    """The digest that a page names a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def printable(text: str) -> str:
    """The text of a page without characters that HTML does not have."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def notebook_html(opt: Result) -> str:
    """The page in a frame of its own, so that its styles and the notebook's do not meet; the frame may save pictures and run no
    scripts."""
    return framed(page(opt), _title(opt), max(len(opt.program.nodes), len(opt.graph.nodes)))


def framed(text: str, title: str, nodes: int | None = None) -> str:
    """A page in a frame as tall as drawings of so many nodes need (None: as a screen)."""
    height = _TALLEST_EM if nodes is None else min(_TALLEST_EM, _FRAME_EM + _NODE_EM * nodes)
    look, name = f"width:100%;height:{height}em;border:0", html.escape(title)
    return f'<iframe title="mugraph: {name}" sandbox="allow-downloads" srcdoc="{html.escape(text)}" style="{look}"></iframe>'


_FRAME_EM, _NODE_EM, _TALLEST_EM = 24, 3, 60
"""A frame without scripts cannot ask how tall its page is: the head of the page, the room of a node, and what a screen holds."""


def _title(opt: Result) -> str:
    """What was optimized, as users know it: the function's name where it is known."""
    return str(opt.origin.get("word", "a program"))


def _headline(opt: Result) -> str:
    if not opt.found:
        return "Nothing better than the original program was found: the result runs the original, operator by operator."
    kernels = len(opt.graph.kernels())
    return f"{len(opt.program.kernels())} operators became {kernels} kernel{'s' * (kernels != 1)} for {opt.target}."


def _figures(opt: Result) -> Iterator[Figure]:
    best, report = opt.best, opt.report
    floor = seconds_text(roofline_seconds(opt.program, device_for(opt.target)))
    original = None if report.original_latency is None or not opt.found else seconds_text(report.original_latency)
    whole = None if report.comparison is None else report.comparison.latency
    if whole is not None:
        versus = "" if original is None else f"; the original function's: {original}"
        yield Figure("Whole call", seconds_text(whole), f"median, from arguments to results{versus}")
    if best.latency is not None:
        # Where nothing was compared with the user's function, the original was timed as candidates are.
        versus = "" if original is None or whole is not None else f"the original program's operators: {original}; "
        note = f"median of calls of the compiled muGraph with its inputs ready; {versus}no schedule can take less than {floor}"
        note += "; on several threads of a CPU the median of the three calls in a row that waited least for other processes"
        note += ", or the least of calls over 10 ms"
        yield Figure("Kernels alone", seconds_text(best.latency), note)
    elif best.cost is not None:
        yield Figure("Kernels alone, predicted", seconds_text(best.cost), f"not measured; no schedule can take less than {floor}")
    bound = opt.certificate.error_bound
    yield Figure(
        "Error bound",
        "no bound" if bound is None else power_of_two(bound),
        bound_text(opt.certificate) if opt.certificate.accepted else "not verified",
    )
    if best.max_relative_error is not None:
        ratio = "" if best.error_ratio is None else f"; {best.error_ratio:.1f} times the original program's own"
        yield Figure("Rounding", f"{best.max_relative_error:.1e}", f"of the output, against float64{ratio}")
    yield Figure("Search", seconds_text(report.seconds), f"{report.states:,} states; {report.proposed} muGraphs proposed")


def _bodies(opt: Result) -> Iterator[BodyView]:
    """The block graphs of the muGraph that runs."""
    graph, labels = opt.graph, Labels(opt.graph)
    buffers = tables.buffer_rows(opt)
    for index, node in enumerate(graph.nodes):
        if node.body is None:
            continue
        name, around = f"kernel {labels.names[index]}", labels.operands(index)
        count = node.body.operator_count()
        summary = f"{extent(node.body)} · {count} operator{'s' * (count != 1)}"
        place = f"block-{index}"
        drawing = _drawing(node.body, f"The block graph of {name}", place, around)
        yield BodyView(name, summary, drawing, tuple(_thread_graphs(node.body, around, name, place)), buffers.get(index, ()))


def _sheets(bodies: Iterable[BodyView]) -> Iterator[Sheet]:
    for body in bodies:
        yield body.drawing
        yield from _sheets(body.threads)


def _thread_graphs(graph: Graph, around: Operands, kernel: str, place: str) -> Iterator[BodyView]:
    labels = Labels(graph, around)
    for index, node in enumerate(graph.nodes):
        if node.body is not None:
            name, summary = f"thread graph {labels.names[index]}", labels.label(index).lines[1]
            drawing = _drawing(node.body, f"The {name} of {kernel}", f"{place}-thread-{index}", labels.operands(index))
            yield BodyView(name, summary, drawing)


def _candidates(opt: Result) -> Iterator[tuple[tables.CandidateRow, Sheet]]:
    """The rows of the verified muGraphs, each with its drawing."""
    for number, candidate in enumerate(opt.candidates, start=1):
        row = tables.candidate_row(number, candidate, runs=opt.found and candidate.graph == opt.graph)
        yield row, _nested(candidate, number)


def _nested(candidate: Candidate, number: int) -> Sheet:
    return _sheet(draw(candidate.graph, nested=True, place=f"candidate-{number}"), f"candidate-{number}", f"Candidate {number}")


def _drawing(graph: Graph, title: str, place: str, around: Operands = Operands()) -> Sheet:
    return _sheet(draw(graph, around, place=place), place, title, str(graph))


def _sheet(drawing: Drawing, place: str, title: str, description: str = "") -> Sheet:
    file = printable(standalone(drawing, title, description))
    encoded = base64.b64encode(file.encode()).decode()
    return Sheet(place, Markup(svg(drawing, title, description)), drawing.notes, f"data:image/svg+xml;base64,{encoded}")
