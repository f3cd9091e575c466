"""Pages in a real browser: nothing wider than the screen, and no words of a drawing over others, narrow and wide."""

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
  const found = {boxes, overlaps, wide: page.documentElement.scrollWidth, inner: frame.clientWidth};
  document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)}));
};
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


def measured(text: str, width: int, folder: Path) -> dict[str, Any]:
    """What a browser finds of a page in a frame that is `width` pixels wide: words, those that overlap, and the page's width."""
    file = folder / "page.html"
    frame = f'<iframe style="width:{width}px;height:60em" srcdoc="{html.escape(text)}"></iframe>'
    file.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{frame}{MEASURE}')
    shown = subprocess.run([str(CHROMIUM), *FLAGS, file.as_uri()], capture_output=True, text=True, timeout=60, check=True).stdout
    match = re.search(r'<pre id="found">(.*?)</pre>', shown)
    assert match, "the page was not measured"
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found
