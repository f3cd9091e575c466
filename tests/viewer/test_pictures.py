"""The pictures of the documentation: drawn by the code as it is, of muGraphs that compute what the program does."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mugraph.ir.validity import check
from mugraph.results.viewer import picture
from mugraph.verifier import verify_graphs

from .results import discovered, program

ROOT = Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "draw_pictures.py"))
NAMES = [path.stem for path in sorted((ROOT / "docs" / "pictures").glob("*.svg"))]


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_current(name: str) -> None:
    stored = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
    assert SCRIPT["drawn"](name) == stored, "run python scripts/draw_pictures.py"


@pytest.mark.parametrize("name", NAMES)
def test_pictures_show_what_is_proved(name: str) -> None:
    original, graph = SCRIPT["graphs"](name)
    check(graph)
    assert verify_graphs(original, graph).certificate.accepted


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_pictures_show_what_the_search_finds(name: str) -> None:
    texts = [str(graph) for graph in SCRIPT["searched"](name)]
    assert texts == [str(graph) for graph in SCRIPT["graphs"](name)], f"run python scripts/draw_pictures.py --search {name}"


def test_both_graphs_are_on_the_paper_side_by_side() -> None:
    root = ElementTree.fromstring(picture(program("lora"), discovered("lora"), ("left", "right")))
    paper = [float(number) for number in root.attrib["viewBox"].split()]
    headings = [element for element in root.iter() if element.get("class") == "heading"]
    assert [element.text for element in headings] == ["left", "right"]
    assert paper[0] < float(headings[0].attrib["x"]) < float(headings[1].attrib["x"]) < paper[2]
