"""A graph of any level as SVG: boxes for operators, arrows for tensors, a frame around the for-loop (paper, section 2).

A drawing is made of elements with classes; `drawing.css` beside this module gives them colours for light and dark pages.
Texts become text nodes of an XML tree, so names that users chose cannot become markup. `picture` puts a program and a muGraph
into one file, for documents that show pictures rather than pages.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from unicodedata import east_asian_width
from xml.etree import ElementTree

from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import Graph, Level, Value
from mugraph.ir.text import LOOP_NAME
from mugraph.results.viewer.environment import style
from mugraph.results.viewer.labels import Label, Labels, Operands
from mugraph.results.viewer.layered import Arrow, Box, Point, arrange

_CHARACTER, _LINE = 7.3, 16.0
"""Pixels of a monospaced character of 12 pixels, and of a line."""
_PAD = 10.0
_FRAME = 14.0
"""Between a frame and what is in it."""
_HEAD = 22.0
"""Height of the words above the contents of a frame."""
_ARROW = 3.5
_LEAST = 0.8
"""The part of its size to which a narrow page may shrink a drawing, before it scrolls."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a page shows of a box that is focused or tapped: the box's id, its words, and `lines` of more."""

    box: str
    title: str
    lines: tuple[str, ...]
    node: int | None
    """The number of the node in its graph; None for an output of a kernel graph."""

    @property
    def id(self) -> str:
        """The id of the element that shows this note; its box links to it."""
        return f"{self.box}-more"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A group of SVG elements that takes the rectangle from (0, 0) to (width, height), in pixels."""

    group: ElementTree.Element
    width: float
    height: float
    notes: tuple[Note, ...] = ()
    """Of the boxes, where they link to them."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A box to be drawn: a node, or an output of a kernel graph. `inputs` are the arrows that end in it."""

    label: Label
    inputs: tuple[Value, ...]
    in_loop: bool
    outputs: int = 1
    contents: Drawing | None = None
    note: Note | None = None

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the box."""
        width = max(map(_text_width, self._measured)) + 2 * _PAD
        height = len(self.label.lines) * _LINE + _PAD
        if self.contents is None:
            return width, height
        return max(width, self.contents.width + 2 * _FRAME), height + self.contents.height + _FRAME

    @property
    def _measured(self) -> tuple[str, ...]:
        first, *others = self.label.lines
        return (f"{first} {self.label.name}" if self.label.name != first else first, *others)


def draw(graph: Graph, around: Operands = Operands(), nested: bool = False, place: str = "") -> Drawing:
    """Draw one level of a muGraph; `nested` also draws block graphs inside the kernels they are the bodies of.

    `around` says what the iterators of a body read (`Labels.operands` of the graph it stands in). Where `place` is given, it
    begins the ids of the boxes, which are links to their notes; else the boxes are no links.
    """
    labels = Labels(graph, around)
    items, places = _items(graph, labels, nested, place)
    edges = list(_edges(items, places, labels))
    inside = any(item.in_loop for item in items)
    bands = [0 if item.in_loop else 1 for item in items] if inside else None
    arrangement = arrange([item.size for item in items], [edge for edge, _ in edges], bands)
    shift = (_FRAME, _HEAD + _FRAME) if inside else (0.0, 0.0)
    group = ElementTree.Element("g")
    width, height = arrangement.width + 2 * shift[0], arrangement.height + shift[1]
    if inside:
        width = max(width, _loop(group, arrangement.bands[0], shift, graph.loop))
    moved = _moved(group, shift)
    for route, (_, value) in zip(arrangement.routes, edges, strict=True):
        _draw_arrow(moved, route, labels.value_hover(value))
    for item, box in zip(items, arrangement.boxes, strict=True):
        _draw_item(moved, item, box)
    return Drawing(group, width, height, tuple(_notes(items)))


def _notes(items: Iterable[_Item]) -> Iterator[Note]:
    for item in items:
        if item.note is not None:
            yield item.note
        if item.contents is not None:
            yield from item.contents.notes


def svg(drawing: Drawing, title: str, description: str = "") -> str:
    """A drawing as an `<svg>` element to be put into a page whose styles include `drawing.css`."""
    margin = 4.0
    width, height = drawing.width + 2 * margin, drawing.height + 2 * margin
    root = svg_root(width, height, title, description)
    if drawing.notes:
        root.set("role", "group")  # what is in an image cannot be reached by itself
    _moved(root, (margin, margin)).append(drawing.group)
    return ElementTree.tostring(root, encoding="unicode")


def standalone(drawing: Drawing, title: str, description: str = "") -> str:
    """A drawing as the text of an SVG file: with its styles and a background, and without links to notes, which it has not."""
    margin = 12.0
    width, height = drawing.width + 2 * margin, drawing.height + 2 * margin
    root = svg_root(width, height, title, description)
    ElementTree.SubElement(root, "style").text = style("drawing.css")
    ElementTree.SubElement(root, "rect", {"class": "paper", "width": "100%", "height": "100%"})
    group = copy.deepcopy(drawing.group)
    for element in group.iter("a"):
        element.tag = "g"
        for name in ("id", "href", "tabindex", "role", "aria-label"):
            del element.attrib[name]
    _moved(root, (margin, margin)).append(group)
    return f"{ElementTree.tostring(root, encoding='unicode')}\n"


def svg_root(width: float, height: float, title: str, description: str = "") -> ElementTree.Element:
    """An empty `<svg>` element of this size, with what screen readers say of it."""
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}", "viewBox": f"0 0 {width:.0f} {height:.0f}"}
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "class": "drawing", "role": "img", **size})
    root.set("aria-label", title)
    root.set("style", f"min-width: {_LEAST * width:.0f}px")
    if description:
        ElementTree.SubElement(root, "desc").text = description
    return root


def _items(graph: Graph, labels: Labels, nested: bool, place: str) -> tuple[list[_Item], dict[int, int]]:
    """The boxes of a graph in topological order, and which of them stands for which node."""
    at_kernel_level = graph.level is Level.KERNEL
    inside = frozenset() if at_kernel_level else loop_nodes(graph)
    items: list[_Item] = []
    places: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        if labels.is_inlined(index) or labels.is_folded(index):
            continue
        box, label = f"{place}-{index}" if place else "", labels.label(index)
        contents = draw(node.body, labels.operands(index), place=box) if nested and at_kernel_level and node.body else None
        inputs = tuple(value for value in node.inputs if not labels.is_inlined(labels.seen_through(value).node))
        places[index] = len(items)
        items.append(_Item(label, inputs, index in inside, len(node.outputs), contents, _note(box, label, index)))
    if at_kernel_level:
        for number, value in enumerate(graph.outputs):
            label = labels.output(number)
            note = _note(f"{place}-output-{number}" if place else "", label, None)
            items.append(_Item(label, (value,), False, note=note))
    return items, places


def _note(box: str, label: Label, node: int | None) -> Note | None:
    if not box:
        return None
    first = label.lines[0]
    title = first if label.name == first else f"{first} {label.name}"
    return Note(box, title, tuple(label.hover.split("\n")), node)


def _edges(items: list[_Item], places: dict[int, int], labels: Labels) -> list[tuple[Arrow, Value]]:
    """The arrows, each with the tensor it carries, perhaps a view of what its source made; operands arrive from left to right."""
    found = []
    for target, item in enumerate(items):
        for operand, value in enumerate(item.inputs):
            made = labels.seen_through(value)
            source = places[made.node]
            exit_at = (made.output + 1) / (items[source].outputs + 1)
            found.append((Arrow(source, target, exit_at, (operand + 1) / (len(item.inputs) + 1)), value))
    return found


def _draw_item(group: ElementTree.Element, item: _Item, box: Box) -> None:
    node = ElementTree.SubElement(group, "g" if item.note is None else "a", {"class": f"node {item.label.role}"})
    if item.note is not None:
        node.attrib.update({"id": item.note.box, "href": f"#{item.note.id}", "tabindex": "0", "role": "link"})
        node.set("aria-label", f"{item.note.title}: {', '.join(item.label.lines[1:])}; more about it")
    ElementTree.SubElement(node, "title").text = item.label.hover
    _rectangle(node, box, 6)
    first, *others = item.label.lines
    middle, line = box.left + box.width / 2, box.top + _PAD / 2 + 12
    text = _text(node, middle, line)
    ElementTree.SubElement(text, "tspan", {"class": "operator"}).text = first
    if item.label.name != first:
        ElementTree.SubElement(text, "tspan", {"class": "name"}).text = f" {item.label.name}"
    for number, words in enumerate(others, start=1):
        _text(node, middle, line + number * _LINE).text = words
    if item.contents is not None:
        top = box.top + len(item.label.lines) * _LINE + _PAD
        left = box.left + (box.width - item.contents.width) / 2
        around = node if item.note is None else group  # a link holds no links
        _moved(around, (left, top)).append(item.contents.group)


def _draw_arrow(group: ElementTree.Element, route: tuple[Point, ...], hover: str) -> None:
    x, y = route[-1]
    arrow = ElementTree.SubElement(group, "g", {"class": "arrow"})
    ElementTree.SubElement(arrow, "title").text = hover
    ElementTree.SubElement(arrow, "path", {"class": "line", "d": _path(route)})
    head = f"M{x - _ARROW:.1f} {y - 2 * _ARROW:.1f}L{x + _ARROW:.1f} {y - 2 * _ARROW:.1f}L{x:.1f} {y:.1f}Z"
    ElementTree.SubElement(arrow, "path", {"class": "head", "d": head})


def _path(route: tuple[Point, ...]) -> str:
    """Straight down as long as x stays the same, with a curve to the next x between two layers."""
    (x, y), *rest = route
    words = [f"M{x:.1f} {y:.1f}"]
    for next_x, next_y in rest:
        if f"{x:.1f}" != f"{next_x:.1f}":
            middle = (y + next_y) / 2
            words.append(f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}")
        elif words[-1].startswith("V"):
            words[-1] = f"V{next_y:.1f}"
        else:
            words.append(f"V{next_y:.1f}")
        x, y = next_x, next_y
    return " ".join(words)


def _loop(group: ElementTree.Element, band: Box, shift: tuple[float, float], iterations: int) -> float:
    """Frame the layers of the for-loop; the right side of what was drawn."""
    words = f"for-loop {LOOP_NAME}: {iterations} iteration{'s' * (iterations != 1)}"
    width = max(band.width, _text_width(words)) + 2 * _FRAME
    frame = ElementTree.SubElement(group, "g", {"class": "loop"})
    _rectangle(frame, Box(band.left + shift[0] - _FRAME, 0.0, width, band.height + _HEAD + 2 * _FRAME), 8)
    text = _text(frame, band.left + shift[0] - _FRAME + _PAD, _HEAD - 4)
    text.text = words
    text.set("text-anchor", "start")
    return band.left + width


def _rectangle(group: ElementTree.Element, box: Box, radius: int) -> None:
    places = {"x": box.left, "y": box.top, "width": box.width, "height": box.height}
    ElementTree.SubElement(group, "rect", {name: f"{number:.1f}" for name, number in places.items()} | {"rx": str(radius)})


def _text(group: ElementTree.Element, x: float, y: float) -> ElementTree.Element:
    return ElementTree.SubElement(group, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": "middle"})


def _moved(group: ElementTree.Element, shift: tuple[float, float]) -> ElementTree.Element:
    return ElementTree.SubElement(group, "g", {"transform": f"translate({shift[0]:.1f} {shift[1]:.1f})"})


def _text_width(text: str) -> float:
    """Pixels of a text: wide characters of East Asian scripts take two places."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text) * _CHARACTER


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
