"""What a REPL shows of results: lines that can be read, not thousands of characters."""

from __future__ import annotations

from dataclasses import replace

from mugraph.ir.text import parse_graph
from mugraph.results.data import Candidates

from .results import result


def test_a_short_graph_is_its_text_and_parses_back() -> None:
    graph = result("lora").program
    assert repr(graph) == str(graph)
    assert parse_graph(repr(graph)) == graph


def test_a_long_graph_says_how_much_is_left_out() -> None:
    graph = result("qknorm").program
    graph = graph.with_nodes(graph.nodes * 10, graph.outputs)
    shown, lines = repr(graph).splitlines(), len(str(graph).splitlines())
    assert len(shown) == 41
    assert shown[-1] == f"... {lines - 40} more lines: print it to see them"


def test_a_candidate_is_one_line() -> None:
    candidate = result("rmsnorm").best
    assert "\n" not in repr(candidate)
    assert repr(candidate).startswith("<Candidate: grid ")
    assert repr(candidate).endswith("; predicted 1 us, measured 2 us>")
    assert "measured -" in repr(replace(candidate, latency=None))


def test_candidates_are_a_table_and_still_a_tuple() -> None:
    best = result("rmsnorm").best
    shown = repr(Candidates((best, replace(best, latency=None)))).splitlines()
    assert len(shown) == 3
    assert shown[0].split() == ["kernels", "predicted", "measured"]
    assert shown[1].startswith("0  grid ")
    assert shown[2].endswith("-")
    column = shown[0].index("predicted")
    assert shown[1][column:].startswith("1 us")
    assert shown[2][column:].startswith("1 us")
    assert result("rmsnorm").candidates == (best,)
    assert repr(Candidates()) == "no candidates"


def test_a_report_is_one_line() -> None:
    assert repr(result("rmsnorm").report) == "<Report: found; 5 muGraphs proposed, 2 dropped; 1.5 s in all>"
