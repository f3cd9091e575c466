"""JSON: exact round trips, and a reader that trusts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.errors import InvalidGraph, InvalidInput, MugraphError
from mugraph.ir import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json

from .graphs import kernel_graphs, rmsnorm_mugraph

KERNEL_NODE = 3


def document() -> dict[str, Any]:
    """RMSNorm as it comes back from a file."""
    read: dict[str, Any] = json.loads(json.dumps(graph_to_json(rmsnorm_mugraph())))
    return read


@given(kernel_graphs())
@settings(max_examples=100, deadline=None)
def test_random_graphs_round_trip_through_text_of_json(graph: Graph) -> None:
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph), allow_nan=False))) == graph


def test_the_document_is_plain_and_versioned() -> None:
    written = document()
    assert written["mugraph"] == 1
    block = written["graph"]["nodes"][KERNEL_NODE]["body"]
    assert (block["level"], block["grid"], block["loop"]) == ("block", [128], 16)
    assert block["nodes"][2] == {
        "op": "input_iterator",
        "inputs": [],
        "outputs": [{"shape": [64, 32], "dtype": "fp16"}],
        "attributes": {"fmap": 0, "imap": [1], "operand": 2},
    }
    assert block["nodes"][9]["attributes"] == {"dtype": {"dtype": "fp16"}, "value": {"exact": "1/1024"}}


def graph(read: dict[str, Any]) -> Any:
    return read["graph"]


def block(read: dict[str, Any]) -> Any:
    return read["graph"]["nodes"][KERNEL_NODE]["body"]


MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "version of another time": (lambda read: read.update(mugraph=2), r"\$\.mugraph: format version 2 is not 1"),
    "version that is no number": (lambda read: read.update(mugraph=True), r"\$\.mugraph: expected an integer, found bool"),
    "missing key": (lambda read: graph(read).pop("loop"), r"\$\.graph: key 'loop' is missing"),
    "unknown key": (
        lambda read: block(read).update(color=1),
        r"nodes\[3\]\.body: unknown key 'color'; known keys are level, grid",
    ),
    "unknown level": (
        lambda read: graph(read).update(level="warp"),
        r"\$\.graph\.level: unknown level 'warp'; use one of kernel",
    ),
    "level that is no string": (lambda read: graph(read).update(level=3), r"\$\.graph\.level: expected a string, found int"),
    "body of the wrong level": (lambda read: block(read).update(level="thread"), r"body\.level: expected a block graph here"),
    "grid that is no array": (lambda read: block(read).update(grid=128), r"body\.grid: expected an array, found int"),
    "grid of fractions": (lambda read: block(read).update(grid=[1.5]), r"body\.grid\[0\]: expected an integer, found float"),
    "nodes that are no objects": (
        lambda read: graph(read).update(nodes=[3]),
        r"graph\.nodes\[0\]: expected an object, found int",
    ),
    "unknown dtype": (
        lambda read: graph(read)["nodes"][0]["outputs"][0].update(dtype="fp8"),
        r"graph\.nodes\[0\]\.outputs\[0\]\.dtype: unknown dtype 'fp8'",
    ),
    "value from later": (
        lambda read: graph(read)["nodes"][KERNEL_NODE].update(inputs=[[3, 0]]),
        r"graph\.nodes\[3\]\.inputs\[0\]: no earlier node makes the value \[3, 0\]",
    ),
    "value that is no pair": (lambda read: graph(read).update(outputs=[[3]]), r"graph\.outputs\[0\]: expected \[node, output\]"),
    "attribute that is an object": (
        lambda read: block(read)["nodes"][4]["attributes"].update(dim={"size": 1}),
        r"nodes\[4\]\.attributes\.dim: expected an integer, found dict",
    ),
    "attribute that is a float": (
        lambda read: block(read)["nodes"][4]["attributes"].update(dim=1.0),
        r"nodes\[4\]\.attributes\.dim: expected an integer, found float",
    ),
    "constant that is not exact": (
        lambda read: block(read)["nodes"][9]["attributes"].update(value={"exact": "0.1"}),
        r"nodes\[9\]\.attributes\.value\.exact: '0.1' is not an exact scalar",
    ),
}


@pytest.mark.parametrize(("damage", "error"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_document_is_refused_with_the_path(damage: Callable[[dict[str, Any]], object], error: str) -> None:
    read = document()
    damage(read)
    with pytest.raises(InvalidInput, match=error):
        graph_from_json(read)


@pytest.mark.parametrize("read", [None, [], "graph", {}, {"mugraph": 1}])
def test_something_else_is_refused(read: object) -> None:
    with pytest.raises(InvalidInput, match=r"^\$: "):
        graph_from_json(read)


def test_a_body_in_a_body_in_a_body_in_a_body_is_refused() -> None:
    read = document()
    thread = block(read)["nodes"][11]["body"]
    thread["nodes"][2]["body"] = graph(read)
    with pytest.raises(InvalidInput, match=r"nodes\[11\]\.body\.nodes\[2\]\.body: a node of a thread graph has no body"):
        graph_from_json(read)


TAMPERED: dict[str, Callable[[dict[str, Any]], object]] = {
    "shape": lambda read: block(read)["nodes"][3]["outputs"][0].update(shape=[16, 128]),
    "dtype": lambda read: block(read)["nodes"][3]["outputs"][0].update(dtype="fp32"),
    "grid": lambda read: block(read).update(grid=[64]),
    "loop": lambda read: block(read).update(loop=8),
    "imap": lambda read: block(read)["nodes"][2]["attributes"].update(imap=[None]),
    "omap": lambda read: block(read)["nodes"][12]["attributes"].update(omap=[0]),
    "operand": lambda read: block(read)["nodes"][0]["attributes"].update(operand=7),
    "operator": lambda read: block(read)["nodes"][3].update(op="no_such_operator"),
    "result": lambda read: graph(read)["nodes"][KERNEL_NODE]["outputs"][0].update(shape=[16, 8192]),
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED.keys())
def test_a_tampered_graph_is_refused(tamper: Callable[[dict[str, Any]], object]) -> None:
    read = document()
    tamper(read)
    with pytest.raises(InvalidGraph, match="clause 1"):
        graph_from_json(read)


def _places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in entries for place in _places(item, (*path, key)))]


PLACES = _places(document())[1:]
JUNK: list[object] = [None, True, -1, 0, 10**30, 1.5, "", "fp64", "sum", [], [0, 0], [10**30], {}, {"exact": "2"}, {"exact": 2}]


@given(st.sampled_from(PLACES), st.sampled_from(JUNK))
@settings(max_examples=300, deadline=None)
def test_no_junk_anywhere_escapes_a_typed_error(place: tuple[str | int, ...], junk: object) -> None:
    read: Any = document()
    parent = read
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = junk
    try:
        accepted = graph_from_json(read)
    except MugraphError:
        return
    assert json.loads(json.dumps(graph_to_json(accepted))) == read
