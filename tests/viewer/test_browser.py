"""Pages in a real browser: nothing wider than the screen, no words of a drawing over others, contrast enough, light and dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mugraph.results.superoptimized import Superoptimized
from mugraph.results.viewer import page
from mugraph.runtime.baselines import BaselineComparison
from mugraph.runtime.benchmarking import Duel, Spread

from .results import result

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

MEASURE = """<script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, overlaps = [];
  let boxes = 0;
  for (const drawing of page.querySelectorAll("svg")) {
    const texts = [...drawing.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    const shown = texts.filter(([, box]) => box.width > 0);
    boxes += shown.length;
    shown.forEach(([one, a], index) => shown.slice(index + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > a.height / 2) overlaps.push([one, other]);
    }));
  }
  const found = {boxes, overlaps, wide: page.documentElement.scrollWidth, inner: frame.clientWidth};
  document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)}));
};
</script>"""


POINT = """<script>
const frame = document.querySelector("iframe");
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, found = {focused: [], tapped: []};
  const shown = () => [...page.querySelectorAll(".more")].filter(one => one.getClientRects().length > 0).map(one => one.id);
  const boxes = [...page.querySelectorAll("#program .node")];
  frame.contentWindow.focus();
  for (const box of boxes) { box.focus(); found.focused.push([box.id, ...shown()]); box.blur(); }
  found.left = shown();
  for (const box of boxes) {
    const target = box.getAttribute("href");
    frame.contentWindow.location.hash = target;
    box.blur();
    found.tapped.push([box.id, ...shown()]);
  }
  document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)}));
}, 100);
</script>"""


pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the package chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000", "--virtual-time-budget=5000", "--dump-dom")


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", ["rmsnorm", "gqa"])
def test_words_do_not_overlap_and_pages_fit_the_screen(name: str, width: int, tmp_path: Path) -> None:
    found = measured(page(result(name)), width, tmp_path)
    assert found["boxes"] > 10
    assert found["overlaps"] == []
    assert found["wide"] <= found["inner"]


def test_faults_are_seen(tmp_path: Path) -> None:
    words = '<text x="5" y="20">one</text><text x="8" y="22">two</text>'
    found = measured(f'<!DOCTYPE html><svg width="900" height="40">{words}</svg>', 400, tmp_path)
    assert found["overlaps"] == [["one", "two"]]
    assert found["wide"] > found["inner"]


def test_the_focused_or_tapped_box_and_no_other_shows_its_note(tmp_path: Path) -> None:
    found = measured(page(result("rmsnorm")), 400, tmp_path, POINT)
    assert len(found["focused"]) > 5
    for shown in (*found["focused"], *found["tapped"]):
        assert shown[1:] == [f"{shown[0]}-more"]
    assert found["left"] == []


COPY = """<script>
const frame = document.querySelector("iframe");
frame.onload = () => setTimeout(async () => {
  const page = frame.contentDocument, copied = [], said = [];
  frame.contentWindow.navigator.clipboard.writeText = async text => { copied.push(text); };
  const buttons = [...page.querySelectorAll("button.copy")];
  for (const button of buttons) {
    button.click();
    await new Promise(next => setTimeout(next, 10));
    said.push(button.textContent);
  }
  const found = {copied, said, texts: buttons.map(button => button.nextElementSibling.textContent)};
  document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)}));
}, 100);
</script>"""


def test_buttons_copy_sources_as_they_are(tmp_path: Path) -> None:
    opt = result("rmsnorm")
    found = measured(page(opt), 800, tmp_path, COPY)
    assert found["copied"] == found["texts"]
    assert found["said"] == ["Copied"] * (1 + len(opt.sources))
    assert [text.strip() for text in found["copied"][1:]] == [source.strip() for source in opt.sources.values()]


CONTRAST = """<script>
const frame = document.querySelector("iframe");
const channels = colour => {
  const numbers = colour.match(/[0-9.]+/g).map(Number);
  return [numbers[0], numbers[1], numbers[2], numbers.length > 3 ? numbers[3] : 1];
};
const luminance = ([red, green, blue]) => [red, green, blue].map(part => part / 255)
  .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, index) => sum + [0.2126, 0.7152, 0.0722][index] * part, 0);
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, view = frame.contentWindow, low = [], seen = new Set();
  for (const one of page.querySelectorAll("details")) one.open = true;
  for (const one of page.querySelectorAll(".more")) one.style.display = "block";
  const ground = element => {
    for (let one = element; one; one = one.parentElement) {
      const style = view.getComputedStyle(one);
      if (Number(style.opacity) !== 1) throw new Error("text is not opaque");
      const box = one.ownerSVGElement && [...one.children].find(child => child.tagName === "rect");
      const colour = box ? view.getComputedStyle(box).fill : style.backgroundColor;
      if (channels(colour)[3] === 1) return colour;
    }
    throw new Error("text has no ground");
  };
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.getClientRects().length === 0) continue;
    const drawn = Boolean(element.ownerSVGElement);
    if (drawn && !element.closest("text")) continue;
    const style = view.getComputedStyle(element), colours = [drawn ? style.fill : style.color, ground(element)];
    const [bright, dark] = colours.map(colour => luminance(channels(colour))).sort((one, other) => other - one);
    const contrast = (bright + 0.05) / (dark + 0.05);
    count += 1;
    seen.add(colours.join(" on "));
    if (contrast < 4.5) low.push([texts.currentNode.data.trim(), ...colours, contrast]);
  }
  const found = {count, low, seen: [...seen], paper: view.getComputedStyle(page.body).backgroundColor};
  document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)}));
}, 100);
</script>"""
SCHEMES = {
    "light": ("--blink-settings=preferredColorScheme=1", (255, 255, 255)),
    "dark": ("--blink-settings=preferredColorScheme=0", (20, 24, 30)),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_text_has_contrast_enough(scheme: str, tmp_path: Path) -> None:
    flag, paper = SCHEMES[scheme]
    found = measured(page(compared()), 1400, tmp_path, CONTRAST, flag)
    assert found["paper"] == f"rgb{paper}"
    assert found["count"] > 500
    assert len(found["seen"]) > 12, "boxes, sources, tables and buttons have colours of their own"
    assert found["low"] == []


def test_text_that_is_too_faint_is_seen(tmp_path: Path) -> None:
    faint = (
        '<p style="color: #999">faint</p><svg><g><rect fill="#fff"/><text y="20" fill="#aaa">pale</text></g></svg><b>black</b>'
    )
    body = f'<!DOCTYPE html><body style="background: #fff; color: #000">{faint}'
    found = measured(body, 1400, tmp_path, CONTRAST)
    assert [words for words, *_ in found["low"]] == ["faint", "pale"]


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_are_painted_light_and_dark_narrow_and_wide(scheme: str, width: int, tmp_path: Path) -> None:
    flag, paper = SCHEMES[scheme]
    file, shot = tmp_path / "page.html", tmp_path / "page.png"
    file.write_text(page(compared()), encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS[:3], "--hide-scrollbars", f"--window-size={width},1200", flag, f"--screenshot={shot}"]
    subprocess.run([*command, file.as_uri()], capture_output=True, timeout=300, check=True)
    size, rows = pixels(shot)
    assert size == (width, 1200)
    assert rows[0][:3] == bytes(paper), "the page's own colour"
    painted = sum(len(set(zip(row[::3], row[1::3], row[2::3], strict=True))) > 1 for row in rows)
    assert painted > 600, "there are words and boxes on more than half of the rows"


def compared() -> Superoptimized:
    """A result with everything that a page can show: two candidates, times beside PyTorch, a baseline that could not run."""
    opt = result("gqa")
    duel = Duel(9, 9, 2.0, Spread(4e-6, 3e-6, 5e-6), Spread(8e-6, 8e-6, 9e-6))
    report = replace(opt.report, comparison=BaselineComparison({"torch eager": duel}, {"torch.compile": "no compiler"}))
    both = (opt.best, replace(opt.best, latency=3e-6))
    return Superoptimized(opt.program, opt.best, both, report, opt.executable, opt.calling, "cpu", opt.origin)


def pixels(file: Path) -> tuple[tuple[int, int], list[bytes]]:
    """Width and height of a PNG file of 8-bit RGB, and its rows."""
    data = file.read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind) == (8, 2)
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        packed += data[at + 8 : at + 8 + length] if data[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + length
    raw, stride = zlib.decompress(packed), 3 * width
    rows, above = [], bytearray(stride)
    for number in range(height):
        line = raw[number * (stride + 1) : (number + 1) * (stride + 1)]
        above = unfiltered(line[0], line[1:], above)
        rows.append(bytes(above))
    return (width, height), rows


def unfiltered(kind: int, line: bytes, above: bytearray) -> bytearray:
    """A row of a PNG file as it was before a filter of this kind."""
    row = bytearray(line)
    for place, byte in enumerate(line):
        left, up = (row[place - 3] if place >= 3 else 0), above[place]
        corner = above[place - 3] if place >= 3 else 0
        guess = left + up - corner
        nearest = min((left, up, corner), key=lambda one: abs(guess - one))
        row[place] = (byte + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
    return row


def measured(text: str, width: int, folder: Path, script: str = MEASURE, *flags: str) -> dict[str, Any]:
    """What a browser finds of a page in a frame that is `width` pixels wide: words, those that overlap, and the page's width."""
    file = folder / "page.html"
    frame = f'<iframe style="width:{width}px;height:60em" srcdoc="{html.escape(text)}"></iframe>'
    file.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{frame}{script}')
    command = [str(CHROMIUM), *FLAGS, *flags, file.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    match = re.search(r'<pre id="found">(.*?)</pre>', shown)
    assert match, "the page was not measured"
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found
