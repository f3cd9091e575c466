"""Pages of results: complete, the same for a live and a saved result, fetching nothing, escaping everything, readable."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import mugraph
from mugraph.devices import device_for, roofline_seconds
from mugraph.ir.text import parse_graph
from mugraph.lower.tile_form import Kernel
from mugraph.results.data import SpotCheck
from mugraph.results.superoptimized import Superoptimized
from mugraph.results.viewer import notebook_html, page
from mugraph.results.viewer.environment import powers, style
from mugraph.results.viewer.labels import Labels, bytes_words
from mugraph.results.viewer.whereabouts import function
from mugraph.results.words import seconds_text
from mugraph.runtime import build
from mugraph.runtime.baselines import BaselineComparison
from mugraph.runtime.benchmarking import Duel, Spread
from mugraph.verifier import verify_graphs
from verifier.stacks import as_written, rewritten, stacked

from .results import NAMES, discovered, result, result_of

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
    assert outline.count("svg", role="group") == 2 + len(bodies) + len(opt.candidates)
    for name_of_input in opt.program.input_names:
        assert name_of_input in outline.text
    assert all(source in outline.headings for source in opt.sources)


def test_boxes_can_be_focused_and_lead_to_what_pointing_at_them_shows() -> None:
    opt = result("gqa")
    text = page(opt)
    outline = Outline(text)
    found = [attributes for _, attributes in outline.elements]
    boxes = [one for one in found if str(one.get("class")).startswith("node ")]
    ids = [one["id"] for one in found if "id" in one]
    assert len(boxes) > 30
    assert len(set(ids)) == len(ids)
    for box in boxes:
        assert (box["tabindex"], box["role"]) == ("0", "link")
        assert box["aria-label"]
        assert box["href"] == f"#{box['id']}-more"
        assert f"{box['id']}-more" in ids
        assert f"body:has(#{box['id']}:focus) #{box['id']}-more {{ display: block; }}" in text
    hovers = re.findall(r'<a class="node [^>]*><title>([^<]*)</title>', text)
    notes = re.findall(r'<div class="more".*?<p>(.*?)</p>', text, re.DOTALL)
    assert sorted(map(html.unescape, hovers)) == sorted(html.unescape(note.replace("<br>", "\n")) for note in notes)


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
    assert "Kernels alone 2 us median of calls of the compiled muGraph with its inputs ready" in text
    assert "the original program's operators: 8 us" in text
    assert "Times are those of the kernels alone" in text
    assert "Whole call " not in text
    assert "2 float not <finite> 2.5 us" in text
    assert "full axioms 2 1,234 56 0 to 11 operators, cuts too" in text
    assert "no subexpression of the program 7,890" in text
    assert "in all 1.5 s" in text


def test_pytorch_is_timed_beside_the_result_with_its_spread() -> None:
    opt = result("rmsnorm")
    floor = roofline_seconds(opt.program, device_for("cpu"))
    ours, theirs = Spread(4 * floor, 3 * floor, 5 * floor), Spread(8 * floor, 8 * floor, 9 * floor)
    comparison = BaselineComparison({"torch eager": Duel(9, 9, 2.0, ours, theirs)}, {"torch.compile": "no <compiler>"})
    report = replace(opt.report, comparison=comparison)
    timed = Superoptimized(opt.program, opt.best, (opt.best,), report, opt.executable, opt.calling, "cpu", opt.origin)
    text = Outline(page(timed)).text
    assert f"Whole call {seconds_text(4 * floor)} median, from arguments to results; the original function's: 8 us" in text
    assert "Kernels alone 2 us median of calls of the compiled muGraph with its inputs ready; no schedule" in text
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


def test_proofs_in_pieces_are_shown_with_all_their_tests() -> None:
    left, right = (stacked(layer, layer) for layer in (as_written, rewritten))
    certificate = verify_graphs(left, right).certificate
    opt = result("rmsnorm")
    best = replace(opt.best, certificate=certificate)
    text = Outline(page(mugraph.Superoptimized(left, best, (best,), opt.report, opt.executable, opt.calling, "cpu"))).text
    assert f"Pieces {len(certificate.pieces)} pairs of tensors" in text
    assert f"Tests {certificate.tests_run} tests on random inputs" in text


SPLIT = """kernel_graph {
  x: fp32[8, 64] = input
  %1: fp32[8, 4] = block_graph(x) grid(x=4) {
    %0: fp32[8, 16] = input_iterator(x) {x<->1}
    %1: fp32[8, 1] = sum(%0) dim=1 size=16
    %2: fp32[8, 4] = output_saver(%1) {x<->1}
    return %2
  }
  %2: fp32[8, 1] = block_graph(%1) grid(x=2) {
    %0: fp32[4, 4] = input_iterator(%1) {x<->0}
    %1: fp32[4, 1] = sum(%0) dim=1 size=4
    %2: fp32[8, 1] = output_saver(%1) {x<->0}
    return %2
  }
  return %2
}
"""


def test_candidates_are_compared_with_the_best_and_bold_where_they_differ() -> None:
    whole = parse_graph(
        """kernel_graph {
  x: fp32[8, 64] = input
  %1: fp32[8, 1] = block_graph(x) grid(x=4) loop(i=2) {
    %0: fp32[2, 32] = input_iterator(x) {x<->0, i<->1}
    %1: fp32[2, 1] = sum(%0) dim=1 size=32
    %2: fp32[2, 1] = accumulate(%1) combine=sum
    %3: fp32[8, 1] = output_saver(%2) {x<->0}
    return %3
  }
  return %1
}
"""
    )
    source = mugraph.Program()
    source.output(source.input("x", (8, 64)).sum(-1, keepdim=True))
    opt = result_of(source.graph, whole, "sum")
    other = replace(opt.best, graph=parse_graph(SPLIT), latency=3e-6)
    both = Superoptimized(opt.program, opt.best, (opt.best, other), opt.report, opt.executable, opt.calling, "cpu")
    table = page(both).split('<table id="differences">')[1].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]]
    assert rows == [
        ["1", "4", "2", "nothing", "row-major", "1 us", "2 us"],
        [
            "2",
            "<strong>4<br>2</strong>",
            "<strong>1<br>1</strong>",
            "<strong>fp32[8, 4]</strong>",
            "row-major",
            "1 us",
            "<strong>3 us</strong>",
        ],
    ]
    assert 'id="differences"' not in page(opt), "there is nothing to compare"


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
def test_pages_fetch_nothing_and_run_nothing_but_what_copies_sources(name: str) -> None:
    outline = Outline(page(result(name)))
    assert outline.count("script") == 1
    (script,) = re.findall("<script>(.*?)</script>", page(result(name)), re.DOTALL)
    assert not re.search(r"fetch|XMLHttpRequest|import|eval|innerHTML|https?:", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    for tag, attributes in outline.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed")
        assert not {"src", "srcset", "onclick", "onload", "xlink:href"} & attributes.keys()
        href = str(attributes.get("href", "#"))
        assert href.startswith("data:image/svg+xml;base64," if "download" in attributes else "#")
    policies = [str(found["content"]) for tag, found in outline.elements if found.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"]
    assert "url(" not in page(result(name))
    assert "@import" not in page(result(name))


def test_every_picture_can_be_saved_as_a_file_of_its_own() -> None:
    opt = result("gqa")
    outline = Outline(page(opt))
    saved = {str(found["download"]): str(found["href"]) for _, found in outline.elements if "download" in found}
    assert len(saved) == outline.count("svg")
    assert {"program.svg", "kernels.svg", "block-3.svg", "candidate-1.svg"} <= saved.keys()
    for url in saved.values():
        text = base64.b64decode(url.partition(",")[2]).decode()
        root = ElementTree.fromstring(text)
        assert root.findtext("{http://www.w3.org/2000/svg}style") == style("drawing.css")
        assert "href" not in text
        assert "<rect" in text
        assert "tabindex" not in text


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
    assert attributes["sandbox"] == "allow-downloads"
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


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_something(name: str) -> None:
    outline = Outline(page(result(name)))
    ids = {attributes["id"] for _, attributes in outline.elements if "id" in attributes}
    links = [
        str(attributes["href"]) for _, attributes in outline.elements if "href" in attributes and "download" not in attributes
    ]
    assert [link for link in links if link.removeprefix("#") not in ids] == []


def test_boxes_lead_to_lines_that_name_them_and_these_lead_back() -> None:
    opt = result("gqa")
    text = page(opt)
    (source,) = opt.sources.values()
    lines = source.splitlines()
    ((index, launch),) = opt.executable.placement.launches.items()
    kernel = launch.kernel
    assert isinstance(kernel, Kernel)
    note = noted(text, f"kernels-{index}")
    assert f"In kernels.c it is {kernel.name}" in note
    (first,) = (int(number) for number in re.findall(r"source-1-(\d+)", note))
    assert f"{kernel.name}_blocks(void **arguments, worker *worker) {{" in lines[first - 1]
    assert f'<a id="source-1-{first}" href="#kernels-{index}"' in text
    for value, tile in kernel.tensors:
        if Labels(launch.body).is_folded(value.node):
            continue
        numbers = [int(number) for number in re.findall(r"source-1-(\d+)", noted(text, f"block-{index}-{value.node}"))]
        assert numbers
        assert all(re.search(rf"\b{tile.buffer}\b", lines[number - 1]) for number in numbers)
        assert re.search(rf'<a id="source-1-{numbers[0]}" href="#block-{index}-\d+"', text)
    assert "source-1-" not in noted(text, "program-0")


def test_boxes_of_triton_kernels_lead_to_the_variables_of_their_nodes() -> None:
    opt = result("gqa")
    executable = build(opt.graph, "triton:sm_80")
    text = page(Superoptimized(opt.program, opt.best, (opt.best,), opt.report, executable, opt.calling, "triton:sm_80"))
    (source,) = executable.sources.values()
    for node, word in [(0, "v_0 = tl.load("), (3, "mul_3 = "), (7, "exp_7 = tl.exp("), (10, "div_10 = ")]:
        (number,) = map(int, re.findall(r"source-1-(\d+)", noted(text, f"block-3-{node}")))
        assert source.splitlines()[number - 1].strip().startswith(word)


def test_boxes_of_kernels_that_were_rewritten_lead_to_no_lines() -> None:
    opt = result("rmsnorm")
    ((index, launch),) = opt.executable.placement.launches.items()
    assert launch.body != opt.graph.nodes[index].body
    text = page(opt)
    assert "source-1-" in noted(text, f"kernels-{index}")
    assert "source-1-" not in text.split(f'id="block-{index}"')[1].split('id="evidence"')[0]


def noted(text: str, box: str) -> str:
    """What a page shows of a box, as HTML."""
    return text.split(f'<div class="more" id="{box}-more"')[1].split("</div>")[0]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "triton:sm_80"])
def test_functions_of_kernels_are_found_from_their_first_line_to_their_last(target: str) -> None:
    executable = build(discovered("gqa"), target)
    for launch in executable.placement.launches.values():
        found = function(executable.sources, launch.kernel.name)
        assert found is not None
        lines = executable.sources[found.file].splitlines()
        assert found.name in lines[found.first - 1]
        assert found.last > found.first + 5
        if target.startswith("triton"):
            assert lines[found.first - 1].startswith("def ")
            assert lines[found.last - 1].startswith("    ")
        else:
            assert lines[found.last - 1] == "}"


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
