"""Text: golden forms, exact round trips, and errors that say where."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.errors import InvalidInput
from mugraph.ir import DType, Graph, GraphBuilder, Layout, Level, Tensor, Value
from mugraph.ir.text import format_graph, format_node, parse_graph

from .graphs import kernel_graphs, rmsnorm_mugraph

RMSNORM = """\
kernel_graph {
  X: fp16[16, 1024] = input
  G: fp16[1024] = input
  W: fp16[1024, 4096] = input
  %3: fp16[16, 4096] = block_graph(X, G, W) grid(x=128) loop(i=16) {
    | %0: fp16[16, 64] = input_iterator(X) {x<->phi, i<->1}
    | %1: fp16[64] = input_iterator(G) {x<->phi, i<->0}
    | %2: fp16[64, 32] = input_iterator(W) {x<->1, i<->0}
    | %3: fp16[16, 64] = square(%0)
    | %4: fp16[16, 1] = sum(%3) dim=1 size=64
    | %5: fp16[16, 64] = mul(%0, %1)
    | %6: fp16[16, 32] = matmul(%5, %2)
      %7: fp16[16, 32] = accumulate(%6) combine=sum
      %8: fp16[16, 1] = accumulate(%4) combine=sum
      %9: fp16[] = constant 1/1024
      %10: fp16[16, 1] = mul(%8, %9)
      %11: fp16[16, 32] = thread_graph(%7, %10) block(x=32) {
        %0: fp16[16, 1] = input_iterator(%7) {x<->1}
        %1: fp16[16, 1] = input_iterator(%10) {x<->phi}
        %2: fp16[16, 1] = sqrt(%1)
        %3: fp16[16, 1] = div(%0, %2)
        %4: fp16[16, 32] = output_saver(%3) {x<->1}
        return %4
      }
      %12: fp16[16, 4096] = output_saver(%11) {x<->1}
    return %12
  }
  return %3
}"""

SMALL = """\
kernel_graph {
  X: fp32[4] = input
  %1: fp32[4] = exp(X)
  return %1
}"""

ODDITIES = """\
kernel_graph {
  a.b: bf16[2, 3] layout(1, 0) = input
  %1: fp64[3] = input name="two words"
  %2: fp32[] = constant -sqrt(2)
  %3: bf16[2, 3] = mul(a.b, %2)
  %4: fp32[2, 3] = cast(%3)
  %5: fp32[3, 2] = transpose(%4) permutation=(1, 0)
  %6: fp32[6] = reshape(%5)
  %7: fp32[6], fp32[6] = block_graph(%6, %6) {
    | %0: fp32[6] = input_iterator(#0) {}
    | %1: fp32[6] = input_iterator(#1) {}
      %2: fp32[6] = accumulate(%0) combine=concat dim=0
      %3: fp32[6] = accumulate(%1) combine=max
      %4: fp32[6] = output_saver(%2) {}
      %5: fp32[6] = output_saver(%3) {}
    return %4, %5
  }
  %8: fp32[6] = exp(%7.1)
  return %8, %1
}"""


def test_the_papers_rmsnorm_prints_as_in_its_figure() -> None:
    assert format_graph(rmsnorm_mugraph()) == RMSNORM
    assert str(rmsnorm_mugraph()) == RMSNORM


def test_the_papers_rmsnorm_parses() -> None:
    assert parse_graph(RMSNORM) == rmsnorm_mugraph()


def test_a_body_alone_numbers_its_operands() -> None:
    body = rmsnorm_mugraph().nodes[3].body
    assert body is not None
    text = format_graph(body)
    assert text.startswith("block_graph grid(x=128) loop(i=16) {\n  | %0: fp16[16, 64] = input_iterator(#0) {x<->phi, i<->1}\n")
    assert parse_graph(text) == body


def test_every_oddity_survives() -> None:
    graph = parse_graph(ODDITIES)
    assert graph.nodes[0].output.layout == Layout((1, 0))
    assert graph.nodes[7].outputs == (Tensor((6,), DType.FP32), Tensor((6,), DType.FP32))
    assert graph.nodes[8].inputs == (Value(7, 1),)
    assert graph.input_names == ("a.b", "two words")
    assert format_graph(graph) == ODDITIES


def test_a_node_prints_in_one_line() -> None:
    assert format_node(rmsnorm_mugraph(), 3) == "%3: fp16[16, 4096] = block_graph(X, G, W) grid(x=128) loop(i=16)"


@given(kernel_graphs())
@settings(max_examples=150, deadline=None)
def test_random_graphs_round_trip_at_every_level(graph: Graph) -> None:
    for each in {id(around): around for around, _ in graph.walk()}.values():
        assert parse_graph(format_graph(each)) == each


def test_inputs_that_share_a_name_stay_apart() -> None:
    builder = GraphBuilder(Level.KERNEL)
    builder.input("X", (2,), DType.FP32)
    second = builder.input("X", (3,), DType.FP32)
    graph = builder.build([second])
    assert parse_graph(format_graph(graph)) == graph


@pytest.mark.parametrize("value", [0, "word", "two words", 'q"', "none", "fp32", "exact", DType.BF16, None, (1, None), ()])
def test_attribute_values_of_every_type_round_trip(value: int | str | tuple[int | None, ...] | None) -> None:
    graph = parse_graph(SMALL)
    node = replace(graph.nodes[1], attributes=(("extra", value),))
    graph = replace(graph, nodes=(graph.nodes[0], node))
    (again,) = parse_graph(format_graph(graph)).nodes[1].attributes
    assert again == ("extra", value)
    assert type(again[1]) is type(value)


def test_comments_end_the_lines_of_nodes_and_are_read_over() -> None:
    graph = parse_graph(RMSNORM)
    text = format_graph(graph, {(0,): "one // more", (3,): "a kernel", (3, 6): "within it"})
    assert parse_graph(text) == graph
    commented = [line.strip() for line in text.splitlines() if "//" in line]
    assert commented == [
        "X: fp16[16, 1024] = input  // one // more",
        "%3: fp16[16, 4096] = block_graph(X, G, W) grid(x=128) loop(i=16) {  // a kernel",
        "| %6: fp16[16, 32] = matmul(%5, %2)  // within it",
    ]


def test_white_space_and_value_names_are_free() -> None:
    text = "kernel_graph{X:fp32[4]=input %twice:fp32[4]=add(X,X)\n\n return %twice}"
    assert format_graph(parse_graph(text)).splitlines()[2] == "  %1: fp32[4] = add(X, X)"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("kernel_graph", "graph", r"line 1, column 1: expected kernel_graph, block_graph or thread_graph, found 'graph'"),
        ("fp32[4] = exp", "fp8[4] = exp", r"line 3, column 7: expected a type such as fp32\[16, 64\].*found 'fp8'"),
        ("exp(X)", "exp(Y)", r"line 3, column 21: expected a value defined above, found 'Y'"),
        ("exp(X)", "exp(X", r"line 4, column 3: expected ',', found 'return'"),
        ("exp(X)", "exp(X) ?", r"line 3, column 24: expected a word, a number or a punctuation mark, found '\?'"),
        ("%1: fp32[4] = exp", "X: fp32[4] = exp", r"line 3, column 3: X is defined twice"),
        ("  return %1\n", "", r"line 4, column 1: expected a node, such as .*found '}'"),
        ("return %1\n}", "return %1\n", r"line 5, column 1: expected '}', found the end of the text"),
        ("return %1\n}", "return %1\n} %2", r"line 5, column 3: expected the end of the text, found '%2'"),
        ("exp(X)", "exp(X) dim=1 dim=2", r"line 3, column 30: attribute dim is given twice"),
        ("exp(X)", "constant 1/0", r"line 3, column 26: '1/0' is not an exact scalar"),
        ("exp(X)", "constant one", r"line 3, column 26: expected an exact scalar such as 1/4096"),
        ("exp(X)", r'exp(X) name="\q"', r"line 3, column 29: expected a string as in JSON"),
        (
            "kernel_graph {",
            "kernel_graph loop(i=2, j=3) {",
            r"line 1, column 24: expected dimension i, found 'j'",
        ),
        ("kernel_graph {", "kernel_graph grid(y=2) {", r"line 1, column 19: expected dimension x, found 'y'"),
        (
            "kernel_graph {",
            "kernel_graph grid() {",
            r"line 1, column 18: a for-loop has one dimension, a grid or block at least one",
        ),
        ("kernel_graph {", "kernel_graph grid(x=2) grid(x=2) {", r"line 1, column 24: grid is given twice"),
        ("%1: fp32[4] = exp", "| %1: fp32[4] = exp", r"line 5, column 1: the bars do not mark exactly the nodes inside"),
    ],
)
def test_a_syntax_error_names_line_and_column(old: str, new: str, error: str) -> None:
    assert SMALL.count(old) == 1
    with pytest.raises(InvalidInput, match=error):
        parse_graph(SMALL.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("(G) {x", "(Q) {x", "expected an operand of this graph, by its name outside"),
        ("{x<->1, i<->0}", "{y<->1, i<->0}", "expected dimension x, found 'y'"),
        ("{x<->1, i<->0}", "{x<->1, i<->0, i<->1}", "expected dimension y, found 'i'"),
        ("thread_graph(", "block_graph(", "line 17, column 27: expected an operator or a thread_graph, found 'block_graph'"),
        ("    | %3:", "      %3:", "the bars do not mark exactly the nodes inside the for-loop"),
    ],
)
def test_errors_inside_bodies(old: str, new: str, error: str) -> None:
    assert RMSNORM.count(old) == 1
    with pytest.raises(InvalidInput, match=error):
        parse_graph(RMSNORM.replace(old, new))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_text_is_refused_with_a_place_or_still_a_graph(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(RMSNORM) - 1))
    end = data.draw(st.integers(start, min(len(RMSNORM), start + 12)))
    damaged = RMSNORM[:start] + data.draw(st.sampled_from(["", "%", "(", "}", "9", "x", "=", '"', "phi", "\n"])) + RMSNORM[end:]
    message = ""
    try:
        parse_graph(damaged)
    except InvalidInput as error:
        message = str(error)
    assert not message or re.match(r"line \d+, column \d+: ", message)
