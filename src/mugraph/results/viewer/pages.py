"""A result as one HTML page: what was found at all three levels, why to believe it, what it costs, and its sources.

The page is a single file that fetches nothing, and its only script copies a source where one asks for that. It says nothing that
a saved folder does not hold, so a loaded result gives the page of the result that was saved.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup

from mugraph.devices import device_for, roofline_seconds
from mugraph.ir.graph import Graph
from mugraph.results.data import Candidate, Result
from mugraph.results.summary import bound_text, compared_text
from mugraph.results.viewer import evidence, tables
from mugraph.results.viewer.drawing import Drawing, draw, sheet
from mugraph.results.viewer.environment import environment, highlighted
from mugraph.results.viewer.labels import MEMORY, ROLE_WORDS, Labels, Operands
from mugraph.results.viewer.lowering import lowered_kernels
from mugraph.results.words import extent, seconds_text
from mugraph.runtime.baselines import EAGER

_SCRIPT = """\
for (const source of document.querySelectorAll("pre.source")) {
  const button = Object.assign(document.createElement("button"), {type: "button", className: "copy", textContent: "Copy"});
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  });
  source.before(button);
}
"""
"""Without it, as in a notebook's frame, there are no buttons."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that HTML does not have, and those that would turn the text after them around."""


@dataclass(frozen=True, slots=True)
class SheetView:
    """A drawing on the page, what its boxes say when one goes to them, and a link to it as a file."""

    drawing: Markup
    points: tuple[tuple[str, str], ...]
    link: str
    file: str
    """The name of the file."""


@dataclass(frozen=True, slots=True)
class BodyView:
    """The body of a graph-defined operator: its drawing, and the thread graphs in it."""

    name: str
    summary: str
    drawing: SheetView
    threads: tuple[BodyView, ...] = ()
    buffers: tuple[tables.BufferRow, ...] = ()
    """Of the kernel as it was lowered; none where another compiler decides about them."""
    anchor: str = ""
    """The name of the function that it is in the sources."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number to begin with: what it is, the number, and what it compares with."""

    term: str
    number: str
    note: str


def page(opt: Result) -> str:
    """The page of a result, as the text of an HTML file in UTF-8."""
    best, certificate, report = opt.best, opt.certificate, opt.report
    bodies = list(_bodies(opt))
    functions = [body.anchor for body in bodies if body.anchor]
    text = (
        environment()
        .get_template("page.html")
        .render(
            title=_title(opt),
            opt=opt,
            headline=_headline(opt),
            figures=list(_figures(opt)),
            timed=tables.timed_rows(opt),
            work=tables.work(opt),
            unavailable={} if report.comparison is None else report.comparison.unavailable,
            roles=ROLE_WORDS,
            memory=MEMORY,
            program_drawing=_drawing(opt.program, "The original program", "program"),
            program_operators=len(opt.program.kernels()),
            graph_drawing=_drawing(opt.graph, "The muGraph at kernel level", "mugraph"),
            bodies=bodies,
            facts=evidence.facts(best, opt.program),
            floats=best.certificate.floats,
            float_rows=[] if certificate.floats is None else evidence.float_rows(certificate.floats),
            compared=compared_text(best),
            tolerances="" if certificate.floats is None else evidence.tolerances_text(certificate.floats),
            candidates=list(_candidates(opt)),
            choice_columns=tables.CHOICES,
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
            sources={name: highlighted(name, source, functions) for name, source in opt.sources.items()},
            script=Markup(_SCRIPT),
            script_hash=base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
        )
    )
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def notebook_html(opt: Result) -> str:
    """The page in a frame of its own, so that its styles and the notebook's do not meet; the frame may run no scripts."""
    framed, name = html.escape(page(opt)), html.escape(_title(opt))
    height = min(_TALLEST_EM, _FRAME_EM + _NODE_EM * max(len(opt.program.nodes), len(opt.graph.nodes)))
    return f'<iframe title="mugraph: {name}" sandbox="" srcdoc="{framed}" style="width:100%;height:{height}em;border:0"></iframe>'


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
    if opt.found and (decided := report.baselines.get(EAGER)) is not None and decided.ours is not None:
        theirs = "" if decided.theirs is None else f", the function's own {seconds_text(decided.theirs.median)}"
        yield Figure("A whole call", seconds_text(decided.ours.median), f"in turns with the function{theirs}")
    if best.latency is not None:
        beside = report.original_latency if opt.found and report.comparison is None else None
        versus = "" if beside is None else f"the original program: {seconds_text(beside)}; "
        yield Figure("The kernels alone", seconds_text(best.latency), f"{versus}measured; no schedule can take less than {floor}")
    elif best.cost is not None:
        yield Figure("Predicted per call", seconds_text(best.cost), f"not measured; no schedule can take less than {floor}")
    bound = opt.certificate.error_bound
    yield Figure(
        "Error bound",
        "no bound" if bound is None else evidence.power_of_two(bound),
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
        drawing = _drawing(node.body, f"The block graph of {name}", f"block-{index}", around)
        threads = tuple(_thread_graphs(node.body, around, name, f"thread-{index}"))
        launch = opt.executable.placement.launches.get(index)
        yield BodyView(name, summary, drawing, threads, buffers.get(index, ()), "" if launch is None else launch.kernel.name)


def _thread_graphs(graph: Graph, around: Operands, kernel: str, anchor: str) -> Iterator[BodyView]:
    labels = Labels(graph, around)
    for index, node in enumerate(graph.nodes):
        if node.body is not None:
            name, summary = f"thread graph {labels.names[index]}", labels.label(index).lines[1]
            title = f"The {name} of {kernel}"
            yield BodyView(name, summary, _drawing(node.body, title, f"{anchor}-{index}", labels.operands(index)))


def _candidates(opt: Result) -> Iterator[tuple[tables.CandidateRow, SheetView]]:
    """The rows of the verified muGraphs, each with its drawing."""
    choices = [tables.choices(candidate.graph) for candidate in opt.candidates]
    for number, candidate in enumerate(opt.candidates, start=1):
        runs = opt.found and candidate.graph == opt.graph
        yield tables.candidate_row(number, candidate, runs, choices), _nested(candidate, number)


def _nested(candidate: Candidate, number: int) -> SheetView:
    return _view(draw(candidate.graph, nested=True), f"Candidate {number}", "", f"candidate-{number}")


def _drawing(graph: Graph, title: str, name: str, around: Operands = Operands()) -> SheetView:
    return _view(draw(graph, around), title, str(graph), name)


def _view(drawing: Drawing, title: str, description: str, name: str) -> SheetView:
    made = sheet(drawing, title, description, name)
    file = quote(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", made.file))
    return SheetView(Markup(made.drawing), made.points, f"data:image/svg+xml,{file}", f"{name}.svg")
