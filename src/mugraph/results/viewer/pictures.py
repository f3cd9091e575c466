"""A program and a muGraph side by side as one SVG file, for documents that show pictures rather than pages."""

from __future__ import annotations

from xml.etree import ElementTree

from mugraph.ir.graph import Graph
from mugraph.results.viewer.drawing import Drawing, draw, svg_root
from mugraph.results.viewer.environment import style

_MARGIN, _BETWEEN, _HEADING = 20.0, 48.0, 32.0


def picture(program: Graph, graph: Graph, headings: tuple[str, str] = ("Program", "muGraph")) -> str:
    """The text of an SVG file, with a background, for light and dark screens."""
    drawings = (draw(program), draw(graph, nested=True))
    width = sum(drawing.width for drawing in drawings) + _BETWEEN + 2 * _MARGIN
    height = max(drawing.height for drawing in drawings) + _HEADING + 2 * _MARGIN
    root = svg_root(width, height, " beside ".join(headings))
    ElementTree.SubElement(root, "style").text = style("drawing.css")
    ElementTree.SubElement(root, "rect", {"class": "paper", "width": "100%", "height": "100%"})
    left = _MARGIN
    for heading, drawing in zip(headings, drawings, strict=True):
        _place(root, heading, drawing, left)
        left += drawing.width + _BETWEEN
    return f"{ElementTree.tostring(root, encoding='unicode')}\n"


def _place(root: ElementTree.Element, heading: str, drawing: Drawing, left: float) -> None:
    at = {"x": f"{left:.0f}", "y": f"{_MARGIN + 14:.0f}", "class": "heading"}
    ElementTree.SubElement(root, "text", at).text = heading
    moved = ElementTree.SubElement(root, "g", {"transform": f"translate({left:.0f} {_MARGIN + _HEADING:.0f})"})
    moved.append(drawing.group)
