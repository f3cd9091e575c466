"""Pages in a real browser, light and dark, narrow and wide: nothing wider than the screen, no words of a drawing over others, no
words that are hard to read, and boxes that say more to who goes to them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mugraph.results.viewer import page

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
  const view = frame.contentWindow, pale = [], seen = new Set();
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const channel = value => (value /= 255) <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + .05) / (low + .05);
  };
  const solid = color => (numbers(color)[3] ?? 1) === 1;
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const box = at.namespaceURI.endsWith("svg") && [...at.children].find(child => child.tagName === "rect");
      if (box) return view.getComputedStyle(box).fill;
      const ground = view.getComputedStyle(at).backgroundColor;
      if (at instanceof view.HTMLElement && solid(ground)) return ground;
    }
    return "rgb(255, 255, 255)";
  };
  for (const details of page.querySelectorAll("details")) details.open = true;
  const walker = page.createTreeWalker(page.body, view.NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    const style = view.getComputedStyle(element);
    if (!words || style.display === "none" || element.closest("title, desc, style, script, .point")) continue;
    const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color, ground = behind(element);
    if (seen.has(ink + ground)) continue;
    seen.add(ink + ground);
    const ratio = contrast(numbers(ink), numbers(ground));
    if (ratio < 4.5) pale.push([words.slice(0, 40), ink, ground, ratio]);
  }
  const box = page.querySelector("svg a.node"), panel = box && page.getElementById(box.getAttribute("href").slice(1));
  let said = "", before = "";
  if (panel) {
    before = view.getComputedStyle(panel).display;
    view.location.hash = panel.id;
    said = view.getComputedStyle(panel).display;
  }
  const paper = view.getComputedStyle(page.body).backgroundColor;
  const sizes = {wide: page.documentElement.scrollWidth, inner: frame.clientWidth};
  const found = {boxes, overlaps, ...sizes, pale, colours: seen.size, before, said, paper};
  document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)}));
};
</script>"""


pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the package chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000", "--virtual-time-budget=5000", "--dump-dom")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", ["rmsnorm", "gqa"])
def test_pages_can_be_read_on_every_screen(name: str, width: int, dark: bool, tmp_path: Path) -> None:
    found = measured(page(result(name)), width, tmp_path, dark)
    assert found["paper"] == ("rgb(20, 24, 30)" if dark else "rgb(255, 255, 255)")
    assert found["boxes"] > 10
    assert found["overlaps"] == []
    assert found["wide"] <= found["inner"]
    assert found["colours"] > 10
    assert found["pale"] == []
    assert (found["before"], found["said"]) == ("none", "flex")


def test_faults_are_seen(tmp_path: Path) -> None:
    words = '<text x="5" y="20">one</text><text x="8" y="22">two</text>'
    found = measured(f'<!DOCTYPE html><svg width="900" height="40">{words}</svg>', 400, tmp_path)
    assert found["overlaps"] == [["one", "two"]]
    assert measured('<!DOCTYPE html><p style="color: #999">pale</p>', 400, tmp_path)["pale"][0][0] == "pale"
    assert found["wide"] > found["inner"]


def measured(text: str, width: int, folder: Path, dark: bool = False) -> dict[str, Any]:
    """What a browser finds of a page in a frame of a width: words, those that overlap or are pale, and how wide it is."""
    file = folder / "page.html"
    frame = f'<iframe style="width:{width}px;height:60em" srcdoc="{html.escape(text)}"></iframe>'
    file.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{frame}{MEASURE}')
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    shown = subprocess.run(
        [str(CHROMIUM), *FLAGS, scheme, file.as_uri()], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    match = re.search(r'<pre id="found">(.*?)</pre>', shown)
    assert match, "the page was not measured"
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found
