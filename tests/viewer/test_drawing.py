"""Drawings of graphs: every node and tensor is there, the loop's frame holds the loop, words fit and are escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

import mugraph
from ir.graphs import kernel_graphs, rmsnorm_mugraph
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import Graph, Value
from mugraph.ir.text import parse_graph
from mugraph.results.viewer.drawing import draw, svg
from mugraph.results.viewer.labels import Labels, Role, bytes_words

from .results import NAMES, discovered, program

SVG = "{http://www.w3.org/2000/svg}"


def parsed(graph: Graph, nested: bool = False) -> ElementTree.Element:
    """The SVG of a graph, read back."""
    return ElementTree.fromstring(svg(draw(graph, nested=nested), "a title"))


def elements(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """Elements with this word among their classes."""
    return [element for element in root.iter() if kind in element.get("class", "").split()]


def hover(element: ElementTree.Element) -> str:
    """What an element says when one points at it."""
    return str(element.findtext(f"{SVG}title"))


def block_graph(graph: Graph) -> Graph:
    """The body of the only kernel."""
    (kernel,) = graph.kernels()
    assert kernel.body is not None
    return kernel.body


def test_every_node_has_a_box_and_every_operand_an_arrow() -> None:
    body = block_graph(rmsnorm_mugraph())
    root = parsed(body)
    constants = [node for node in body.nodes if node.op == "constant"]
    assert len(constants) == 1
    assert len(elements(root, "node")) == len(body.nodes) - len(constants)
    assert len(elements(root, "arrow")) == sum(len(node.inputs) for node in body.nodes) - len(constants)


@settings(max_examples=15, deadline=None)
@given(kernel_graphs())
def test_any_graph_can_be_drawn_at_all_its_levels(graph: Graph) -> None:
    root = parsed(graph, nested=True)
    for name in graph.input_names:
        assert f"input {name}" in [hover(element).partition("\n")[0] for element in elements(root, "node")]
    for _, node in graph.walk():
        if node.body is not None:
            parsed(node.body)


def arrow_ends(root: ElementTree.Element) -> list[tuple[str, str]]:
    """The names of the boxes that each arrow leaves and enters, by where it begins and ends."""
    boxes = [(hover(node).partition(":")[0].removeprefix("input "), rectangle(node)) for node in elements(root, "node")]
    ends = []
    for arrow in elements(root, "arrow"):
        line = arrow.find(f"{SVG}path")
        assert line is not None
        (x, y), *_, (last_y,) = (
            list(map(float, re.findall(r"[\d.]+", part))) for part in re.findall("[MVC][^MVC]*", line.attrib["d"])
        )
        head = arrow.findall(f"{SVG}path")[1].attrib["d"]
        last_x = float(head.split("L")[-1].split(" ")[0])
        (source,) = (name for name, box in boxes if box[0] <= x <= box[2] and abs(y - box[3]) < 0.2)
        (target,) = (name for name, box in boxes if box[0] <= last_x <= box[2] and abs(last_y - box[1]) < 0.2)
        ends.append((source, target))
    return ends


def test_arrows_lead_from_what_makes_a_tensor_to_what_reads_it() -> None:
    for name in NAMES:
        body = block_graph(discovered(name))
        labels = Labels(body)
        wanted = [
            (labels.names[labels.seen_through(value).node], labels.names[index])
            for index, node in enumerate(body.nodes)
            for value in node.inputs
            if not labels.is_inlined(value.node) and not labels.is_folded(index)
        ]
        assert sorted(arrow_ends(parsed(body))) == sorted(wanted)


def test_views_are_told_of_arrows_and_take_no_boxes() -> None:
    source = mugraph.Program()
    source.output(source.input("x", (4, 8)).transpose(0, 1).reshape(2, 16).exp())
    root = parsed(source.graph)
    assert [hover(node).split("\n")[0].partition(":")[0] for node in elements(root, "node")][:2] == ["input x", "%3"]
    first, _ = elements(root, "arrow")
    assert hover(first).splitlines()[1:] == ["%2: fp32[2, 16] = reshape(%1)", "%1: fp32[8, 4] = transpose(x) permutation=(1, 0)"]


def test_constants_stand_in_the_boxes_that_read_them() -> None:
    source = mugraph.Program()
    source.output(1 / source.input("x", (4, 8)) + 3)
    words = [element.text for element in elements(parsed(source.graph), "operator")]
    assert words == ["x", "div(1, ·)", "add(·, 3)", "output"]


def test_a_constant_that_is_an_output_has_its_own_box() -> None:
    source = mugraph.Program()
    source.output(source.input("x", (4, 8)), source.constant(7))
    words = [element.text for element in elements(parsed(source.graph), "operator")]
    assert sorted(map(str, words)) == ["7", "output 0", "output 1", "x"]


def rectangle(element: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of an element's rectangle."""
    shape = element.find(f"{SVG}rect")
    assert shape is not None
    x, y, width, height = (float(shape.attrib[name]) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def test_the_frame_of_the_loop_holds_the_operators_of_the_loop_and_no_others() -> None:
    body = block_graph(rmsnorm_mugraph())
    root = parsed(body)
    (frame,) = elements(root, "loop")
    assert frame.findtext(f"{SVG}text") == "for-loop i: 16 iterations"
    left, top, right, bottom = rectangle(frame)
    (moved,) = (group for group in root.iter() if any("node" in child.get("class", "") for child in group))
    shift = [float(number) for number in re.findall(r"[-\d.]+", moved.attrib["transform"])]
    labels, inside = Labels(body), loop_nodes(body)
    drawn = [index for index in range(len(body.nodes)) if not labels.is_inlined(index)]
    for index, element in zip(drawn, elements(root, "node"), strict=True):
        box = rectangle(element)
        held = top < box[1] + shift[1] and box[3] + shift[1] < bottom and left < box[0] + shift[0] and box[2] + shift[0] < right
        assert held == (index in inside)


def test_without_a_loop_there_is_no_frame() -> None:
    assert elements(parsed(block_graph(discovered("lora"))), "loop") == []


def test_colours_tell_what_a_node_does() -> None:
    body = block_graph(rmsnorm_mugraph())
    labels = Labels(body)
    roles = {node.op: labels.label(index).role for index, node in enumerate(body.nodes)}
    assert roles["input_iterator"] == roles["output_saver"] == Role.DATA
    assert roles["square"] == Role.ELEMENTWISE
    assert roles["matmul"] == roles["sum"] == Role.REDUCTION
    assert roles["accumulate"] == Role.ACCUMULATOR
    assert roles["graph_defined"] == Role.GRAPH


def test_boxes_say_shapes_and_maps_and_pointing_says_the_rest() -> None:
    graph = rmsnorm_mugraph()
    body = block_graph(graph)
    labels = Labels(body, Labels(graph).operands(3))
    weight = labels.label(2)
    assert weight.lines == ("W", "fp16[64, 32]", "x→1  i→0")
    assert weight.hover.splitlines()[1] == "fp16[64, 32], 4 KiB", "where it lies is decided by lowering"
    assert "in every iteration of the for-loop" in weight.hover
    assert labels.label(0).lines[2] == "x→φ  i→1"
    assert "= sum(64, X · G · W)" in labels.label(6).hover
    assert labels.label(12).lines == ("output", "fp16[16, 4096]", "x→1")


WHOLE_IN_THE_LOOP = """
kernel_graph {
  x: fp32[4, 8] = input
  s: fp32[4, 1] = input
  %2: fp32[4, 8] = block_graph(x, s) grid(x=2) loop(i=4) {
    | %0: fp32[2, 2] = input_iterator(x) {x<->0, i<->1}
    | %1: fp32[2, 1] = input_iterator(s) {x<->0, i<->phi}
    | %2: fp32[2, 1] = exp(%1)
    | %3: fp32[2, 2] = mul(%0, %2)
      %4: fp32[2, 8] = accumulate(%3) combine=concat dim=1
      %5: fp32[2, 8] = square(%4)
      %6: fp32[4, 8] = output_saver(%5) {x<->0}
    return %6
  }
  return %2
}
"""


@pytest.mark.parametrize(
    ("index", "when"),
    [
        (2, "done once before the for-loop"),
        (3, "in every iteration"),
        (4, "collects over the for-loop"),
        (5, "after the for-loop"),
    ],
)
def test_pointing_says_when_an_operator_runs(index: int, when: str) -> None:
    assert when in Labels(block_graph(parse_graph(WHOLE_IN_THE_LOOP))).label(index).hover


@pytest.mark.parametrize("name", NAMES)
def test_the_six_workloads_and_what_was_found_for_them(name: str) -> None:
    for graph, nested in ((program(name), False), (discovered(name), True)):
        root = parsed(graph, nested)
        boxes = len(elements(root, "node"))
        levels = [graph, *(node.body for node in graph.kernels() if nested and node.body is not None)]
        hidden = 0
        for level in levels:
            labels = Labels(level)
            hidden += sum(labels.is_inlined(index) or labels.is_folded(index) for index in range(len(level.nodes)))
        assert boxes == sum(len(level.nodes) for level in levels) - hidden + len(graph.outputs)


def test_names_cannot_become_markup() -> None:
    source = mugraph.Program()
    source.output(source.input("</text><script>alert(1)</script>", (4, 8)).exp())
    text = svg(draw(source.graph), "<b>", "</desc><script>")
    assert "<script" not in text
    assert "<b>" not in text
    root = ElementTree.fromstring(text)
    assert next(element.text for element in elements(root, "operator")) == "</text><script>alert(1)</script>"[:29] + "…"


def test_words_are_inside_their_boxes() -> None:
    source = mugraph.Program()
    source.output(source.input("テンソル" * 5, (4, 8)).exp())
    root = parsed(source.graph)
    for node in elements(root, "node"):
        left, _, right, _ = rectangle(node)
        for text in node.findall(f"{SVG}text"):
            wide = sum(2 if ord(character) > 0x3000 else 1 for character in "".join(text.itertext()))
            assert wide * 7.3 <= right - left


def test_outputs_of_a_kernel_leave_from_different_places() -> None:
    text = (
        "kernel_graph {\n  x: fp32[4, 8] = input\n"
        "  %1: fp32[4, 8], fp32[4, 8] = block_graph(x) grid(x=2) {\n    %0: fp32[2, 8] = input_iterator(x) {x<->0}\n"
        "    %1: fp32[2, 8] = exp(%0)\n    %2: fp32[2, 8] = square(%0)\n    %3: fp32[4, 8] = output_saver(%1) {x<->0}\n"
        "    %4: fp32[4, 8] = output_saver(%2) {x<->0}\n    return %3, %4\n  }\n  return %1, %1.1\n}"
    )
    graph = parse_graph(text)
    arrows = elements(parsed(graph), "arrow")
    starts = {str(arrow.findall(f"{SVG}path")[0].get("d")).split("V")[0] for arrow in arrows}
    assert len(starts) == 3
    assert Labels(graph).value_hover(Value(1, 1)).startswith("%1.1: fp32[4, 8]")


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 B"), (1023, "1,023 B"), (4096, "4 KiB"), (3 << 19, "1.5 MiB"), (1 << 41, "2,048 GiB")]
)
def test_sizes_have_binary_units(count: int, words: str) -> None:
    assert bytes_words(count) == words
