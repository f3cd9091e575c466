"""Pages of results: complete, the same for a live and a saved result, fetching nothing, escaping everything, readable."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

import mugraph
from mugraph.devices import device_for, roofline_seconds
from mugraph.ir.text import parse_graph
from mugraph.results.data import SpotCheck
from mugraph.results.superoptimized import Superoptimized
from mugraph.results.viewer import notebook_html, page, tables
from mugraph.results.viewer.environment import powers, style
from mugraph.results.viewer.labels import bytes_words
from mugraph.results.words import seconds_text
from mugraph.runtime.baselines import BaselineComparison
from mugraph.runtime.benchmarking import Duel, Spread

from .results import NAMES, result, result_of

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Outline(HTMLParser):
    """The elements of a page; refuses end tags that close something else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("h1", "h2", "h3", "h4"):
            self.headings[-1] += data

    def count(self, tag: str, **attributes: str) -> int:
        """Elements of this kind with these attributes; `class_` stands for `class`."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return sum(name == tag and wanted.items() <= found.items() for name, found in self.elements)

    @property
    def text(self) -> str:
        """All texts with single spaces."""
        return " ".join(" ".join(self.texts).split())


@pytest.mark.parametrize("name", NAMES)
def test_pages_of_the_six_workloads_are_well_formed_and_complete(name: str) -> None:
    opt = result(name)
    outline = Outline(page(opt))
    assert outline.open == []
    assert outline.headings[0] == name
    sections = [attributes.get("id") for tag, attributes in outline.elements if tag == "section"]
    assert sections == ["mugraph", "evidence", "candidates", "search", "lowering", "sources"]
    bodies = [node.body for _, node in opt.graph.walk() if node.body is not None]
    levels = [heading for heading in outline.headings if re.match("Kernel level|Block level|Thread level", heading)]
    assert len(levels) == 1 + len(bodies)
    assert outline.count("svg", role="img") == 2 + len(bodies) + len(opt.candidates)
    for name_of_input in opt.program.input_names:
        assert name_of_input in outline.text
    assert all(source in outline.headings for source in opt.sources)


def test_the_page_tells_what_was_proved_and_how() -> None:
    opt = result("rmsnorm")
    text = Outline(page(opt)).text
    assert opt.certificate.claim in text
    for draw in opt.certificate.rounds:
        assert all(str(number) in text for number in (draw.p, draw.q, draw.omega))
    for name, meaning in opt.certificate.semantics:
        assert f"Meaning of {name}" in text
        assert meaning in text
    assert opt.certificate.left in text
    assert "dimension 0 of x" in text


def test_the_page_tells_what_it_costs_and_what_was_left_out() -> None:
    text = Outline(page(result("rmsnorm"))).text
    assert "The kernels alone 2 us" in text
    assert "the original program: 8 us" in text
    assert "2 float not <finite> 2.5 us" in text
    assert "full axioms 2 1,234 56 0 to 11 operators, cuts too" in text
    assert "no subexpression of the program 7,890" in text
    assert "whole call 1.5 s" in text


def test_pytorch_is_timed_beside_the_result_with_its_spread() -> None:
    opt = result("rmsnorm")
    floor = roofline_seconds(opt.program, device_for("cpu"))
    ours, theirs = Spread(4 * floor, 3 * floor, 5 * floor), Spread(8 * floor, 8 * floor, 9 * floor)
    comparison = BaselineComparison({"torch eager": Duel(9, 9, 2.0, ours, theirs)}, {"torch.compile": "no <compiler>"})
    report = replace(opt.report, comparison=comparison)
    timed = Superoptimized(opt.program, opt.best, (opt.best,), report, opt.executable, opt.calling, "cpu", opt.origin)
    text = Outline(page(timed)).text
    assert f"mugraph {seconds_text(4 * floor)} {seconds_text(3 * floor)} to {seconds_text(5 * floor)} 25%" in text
    assert (
        f"torch eager {seconds_text(8 * floor)} {seconds_text(8 * floor)} to {seconds_text(9 * floor)} 2.00× faster 12%" in text
    )
    assert "torch.compile could not run: no <compiler>" in text
    assert "Beside PyTorch" not in page(opt)


def test_buffers_are_told_as_the_kernel_has_them() -> None:
    opt = result("gqa")
    text = Outline(page(opt)).text
    told = [buffer for kernel in opt.executable.placement.to_json()["kernels"] for buffer in kernel["buffers"]]
    scratch = [buffer for buffer in told if buffer["memory"] == "shared"]
    assert scratch
    for buffer in scratch:
        assert (
            f"{buffer['name']} the worker's scratch memory {buffer['dtype']} {bytes_words(buffer['bytes'])} {buffer['offset']}"
            in text
        )


@pytest.mark.parametrize("name", ["rmsnorm", "gqa"])
def test_boxes_lead_to_their_details_and_kernels_to_their_sources_and_back(name: str) -> None:
    opt = result(name)
    outline = Outline(page(opt))
    ids = [str(found["id"]) for _, found in outline.elements if "id" in found]
    links = [str(found["href"])[1:] for tag, found in outline.elements if tag == "a" and str(found.get("href")).startswith("#")]
    assert len(ids) == len(set(ids))
    assert set(links) - {"-"} <= set(ids)
    boxes = [found for tag, found in outline.elements if tag == "a" and str(found.get("class", "")).startswith("node ")]
    assert len(boxes) > 10
    assert all(found["aria-label"] and str(found["href"])[1:] in ids for found in boxes)
    for launch in opt.executable.placement.launches.values():
        assert links.count(f"source-{launch.kernel.name}") == 1
        assert links.count(f"body-{launch.kernel.name}") == 1


def test_drawings_are_files_of_their_own() -> None:
    outline = Outline(page(result("rmsnorm")))
    files = {str(found["download"]): str(found["href"]) for tag, found in outline.elements if "download" in found}
    assert {"program.svg", "mugraph.svg", "block-3.svg", "candidate-1.svg"} <= set(files)
    for link in files.values():
        root = ElementTree.fromstring(unquote(link.removeprefix("data:image/svg+xml,")))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "--ink" in str(root.findtext("{http://www.w3.org/2000/svg}style"))


def test_what_candidates_differ_in_stands_out() -> None:
    opt = result("gqa")
    other = replace(opt.best, graph=opt.program)
    two = mugraph.Superoptimized(opt.program, opt.best, (opt.best, other), opt.report, opt.executable, opt.calling, "cpu")
    rows = [tables.choices(candidate.graph) for candidate in two.candidates]
    assert tables.candidate_row(1, opt.best, True, rows).choices[1][1]
    assert not any(differs for _, differs in tables.candidate_row(1, opt.best, True, rows[:1]).choices)
    outline = Outline(page(two))
    assert outline.count("td", class_="words choice differs") > 2
    kernels = [str(node.body.loop) for node in opt.graph.kernels() if node.body is not None]
    assert all(loop in rows[0][2].split("\n") for loop in kernels)


def test_powers_of_two_are_written_as_such() -> None:
    assert powers("at most 2^-44 (asked for: 2^40), x2^3") == "at most 2⁻⁴⁴ (asked for: 2⁴⁰), x2^3"
    assert not re.search(r"\b2\^", Outline(page(result("rmsnorm"))).text.split("Why to believe it")[1].split("Candidates and")[0])


@pytest.mark.parametrize(
    ("check", "shown"),
    [
        (
            SpotCheck("CUDA emulator", 8, 1280, 2.5e-4, ""),
            "8 of 1280 blocks of the printed kernels were run on the CUDA emulator: no fault, largest error 2.5e-04",
        ),
        (
            SpotCheck("CUDA emulator", 8, 1280, 2.5e-4, "kernel_7: the budget ended"),
            "8 of 1280 blocks of the printed kernels were run on the CUDA emulator: no fault, largest error 2.5e-04; "
            "not run on the CUDA emulator: kernel_7: the budget ended",
        ),
        (
            SpotCheck("CUDA emulator", 0, 1280, None, "it needs a C++ compiler: install g++ <or> clang"),
            "the printed kernels were not run on the CUDA emulator: it needs a C++ compiler: install g++ <or> clang",
        ),
    ],
    ids=["run", "run in part", "not run"],
)
def test_what_running_blocks_of_printed_kernels_showed_is_evidence(check: SpotCheck, shown: str) -> None:
    opt = result("rmsnorm")
    best, other = replace(opt.best, spot_check=check), replace(opt.best, spot_check=None)
    checked = mugraph.Superoptimized(opt.program, best, (best, other), opt.report, opt.executable, opt.calling, "cpu")
    text = Outline(page(checked)).text
    assert f"Printed kernels {shown}" in text
    assert "blocks run" in text
    assert f" {check.ran} of 1280 2 " in text


def test_the_page_says_that_errors_are_those_of_a_stand_in() -> None:
    source = mugraph.Program()
    source.output(source.input("x", (8, 16)).square().sum(-1))
    opt = mugraph.superoptimize(source, profile=False)
    checked = replace(opt.best, spot_check=SpotCheck("CUDA emulator", 8, 1280, 2.5e-4, ""))
    elsewhere = mugraph.Superoptimized(opt.program, checked, (checked,), opt.report, opt.executable, opt.calling, "cpu")
    assert "These are the errors of the same muGraph compiled for a CPU" in Outline(page(elsewhere)).text
    assert "compiled for a CPU" not in Outline(page(opt)).text


def test_nothing_is_said_of_printed_kernels_that_run_here() -> None:
    text = Outline(page(result("rmsnorm"))).text
    assert "Printed kernels" not in text
    assert "blocks run" not in text


def test_float_errors_are_listed_by_kind_of_inputs() -> None:
    source = mugraph.Program()
    source.output(source.input("x", (8, 16)).square().sum(-1))
    opt = mugraph.superoptimize(source, profile=False)
    floats = opt.certificate.floats
    assert floats is not None
    text = Outline(page(opt)).text
    assert all(entry.inputs in text for entry in floats.scales)
    assert "Errors up to 1e-05 in fp32" in text


def test_saved_and_live_results_give_the_same_page(tmp_path: Path) -> None:
    source = mugraph.Program()
    x, w = source.input("x", (8, 16)), source.input("w", (16, 32))
    source.output((x / x.square().sum(-1, keepdim=True).sqrt()) @ w)
    opt = mugraph.superoptimize(source, profile=False)
    assert mugraph.load(opt.save(tmp_path / "saved")).to_html() == opt.to_html()


def test_a_result_that_found_nothing_says_so() -> None:
    opt = result("lora")
    unfound = mugraph.Superoptimized(
        opt.program,
        replace(opt.best, graph=opt.program, latency=None, cost=None),
        (),
        replace(opt.report, found=False, original_latency=None),
        opt.executable,
        opt.calling,
        "cpu",
    )
    outline = Outline(page(unfound))
    assert "Nothing better than the original program was found" in outline.text
    assert "No muGraph was verified" in outline.text
    assert not [heading for heading in outline.headings if "level" in heading]


def test_algorithm_1_has_no_tiers() -> None:
    source = mugraph.Program()
    source.output(source.input("x", (4, 4)).exp())
    opt = mugraph.superoptimize(source, profile=False, search="enumerate")
    assert "Tiers of abstraction" not in Outline(page(opt)).text


@pytest.mark.parametrize("name", ["gqa", "qknorm"])
def test_pages_fetch_nothing_and_run_nothing(name: str) -> None:
    outline = Outline(page(result(name)))
    assert outline.count("script") == 1
    for tag, attributes in outline.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed")
        assert not {"src", "srcset", "onclick", "onload", "xlink:href"} & attributes.keys()
        assert str(attributes.get("href", "#")).startswith("data:image/svg+xml," if "download" in attributes else "#")
    policies = [str(found["content"]) for tag, found in outline.elements if found.get("http-equiv") == "Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", page(result(name)), re.DOTALL)
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policies == [f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{known}'"]
    assert "url(" not in page(result(name))
    assert "@import" not in page(result(name))


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "</title></style></svg>", "]]>&lt;"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_users_are_text_and_nothing_else(name: str) -> None:
    source = mugraph.Program()
    x, w = source.input(name, (8, 16)), source.input("w", (16, 32))
    source.output((x / x.square().sum(-1, keepdim=True).sqrt()) @ w)
    plain, hostile = (Outline(page(result_of(source.graph, source.graph, word))) for word in ("plain", name))
    assert hostile.open == []
    assert hostile.headings[0] == name
    assert name in hostile.text
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert (hostile.count("script"), hostile.count("img")) == (1, 0)


def test_characters_that_cannot_be_shown_are_replaced() -> None:
    source = mugraph.Program()
    source.output(source.input("a\x00b\ud800c\u202ed", (4, 8)).exp())
    text = page(result_of(source.graph, source.graph, "word"))
    assert "a\ufffdb\ufffdc\ufffdd" in text
    assert text.encode().decode() == text
    assert not re.search("[\x00-\x08\u202e]", text)


def test_notebooks_get_the_page_in_a_frame_without_scripts() -> None:
    opt = result("lora")
    outline = Outline(opt._repr_html_())
    ((tag, attributes),) = outline.elements
    assert tag == "iframe"
    assert attributes["sandbox"] == ""
    assert attributes["srcdoc"] == page(opt)
    assert attributes["title"] == "mugraph: lora"
    assert notebook_html(opt) == opt._repr_html_()


def test_frames_in_notebooks_are_as_tall_as_what_they_show_needs() -> None:
    heights = [int(re.search(r"height:(\d+)em", notebook_html(result(name)))[1]) for name in ("lora", "ntrans", "qknorm")]  # type: ignore[index]
    assert len(set(heights)) > 1
    assert all(24 < height <= 60 for height in heights)


def test_texts_are_read_back_from_the_page() -> None:
    opt = result("gqa")
    texts = re.findall(r"<pre[^>]*>(kernel_graph .*?)</pre>", page(opt), re.DOTALL)
    assert [parse_graph(html.unescape(text)) for text in texts] == [opt.graph]
    assert "// shared memory, fp32 from byte 0" in texts[0], "it says where tensors lie"


def test_sources_are_complete_and_coloured() -> None:
    opt = result("rmsnorm")
    (source,) = opt.sources.values()
    (shown,) = re.findall(r'<pre class="source"[^>]*>(.*?)</pre>', page(opt), re.DOTALL)
    assert html.unescape(re.sub(r"</?(span|a)\b[^>]*>", "", shown)).strip() == source.strip()
    assert '<span class="kt">' in shown


def luminance(colour: str) -> float:
    """The relative luminance of #rrggbb, as the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


PAGE_TEXTS = ("text", "muted", "accent", "keyword", "type", "comment", "number", "string", "function")
BOXES = ("data", "elementwise", "reduction", "accumulator", "graph", "loop", "page")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("sheet", "texts", "grounds"), [("page.css", PAGE_TEXTS, ("paper", "panel")), ("drawing.css", ("ink", "soft"), BOXES)]
)
def test_text_has_contrast_enough(sheet: str, texts: tuple[str, ...], grounds: tuple[str, ...], dark: bool) -> None:
    light_rules, dark_rules = style(sheet).split("prefers-color-scheme: dark", 1)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", dark_rules if dark else light_rules))
    for text in texts:
        for ground in grounds:
            assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}"


def test_pages_stay_small() -> None:
    assert len(page(result("qknorm")).encode()) < 1 << 20
