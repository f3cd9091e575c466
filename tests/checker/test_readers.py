"""The checker and the reader of graphs refuse the same documents: neither takes for a graph what the other does not."""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from ir.graphs import rmsnorm_mugraph
from mugraph.checker import Rejected
from mugraph.checker.form import check_shapes, graph_of
from mugraph.errors import MugraphError
from mugraph.ir import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.lower.thread_graphs import construct
from verifier.graphs import attention, columns_in_thread_graphs, fused_rmsnorm, online_attention, program

Place = tuple[Any, ...]

GRAPHS: dict[str, Callable[[], Graph]] = {
    "three levels": rmsnorm_mugraph,
    "thread graphs": lambda: construct(fused_rmsnorm(blocks=4, loop=2)),
    "columns in thread graphs": lambda: columns_in_thread_graphs(loop=4),
    "rescaled accumulators": lambda: construct(online_attention(loop=4)),
    "a program": attention,
    "views, maxima and roots": lambda: program(
        lambda x, y: (x.repeat(0, 2).reshape(2, 12).transpose(0, 1).amax(-1, keepdim=True).sqrt() + y.sqrt() / 4).sum(0),
        (3, 4),
        (12, 1),
    ),
}


@functools.cache
def saved(name: str) -> str:
    return json.dumps(graph_to_json(GRAPHS[name]()))


def accepted_by_checker(document: Any) -> bool:
    try:
        check_shapes(graph_of(document, "graph.json"), "graph.json")
    except Rejected:
        return False
    return True


def accepted_by_reader(document: Any) -> bool:
    try:
        graph_from_json(document)
    except MugraphError:
        return False
    return True


@pytest.mark.parametrize("name", GRAPHS)
def test_both_read_what_is_saved(name: str) -> None:
    document = json.loads(saved(name))
    assert accepted_by_reader(document)
    assert accepted_by_checker(document)


# --- mutants -----------------------------------------------------------------------------------------------------------


def places(document: Any, at: Place = ()) -> list[Place]:
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    return [found for key in keys for found in ((*at, key), *places(document[key], (*at, key)))]


def inside(document: Any, place: Place) -> Any:
    return functools.reduce(lambda part, key: part[key], place, document)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 3, 7, 2**31, 2**48, 2**63, 10**30, -(10**30), 1.0, 0.5, 1e308, math.nan, math.inf),
    *("", "0", "x", "fp16", "fp64", "fp8", "sum", "max", "concat", "kernel", "block", "thread", "\ud800", "a" * 10000),
    *("graph_defined", "input", "input_iterator", "output_saver", "accumulate", "accumulate_rescaled", "reshape", "cast", "exp"),
    *([], {}, [0], [0, 0], [None], [True, False], [1, 0], [1] * 33, [2**40, 2**40], [[0]], nested(40)),
    *({"exact": text} for text in ("1/2", "2/4", "sqrt(4)", "-0", "-sqrt(2)", "sqrt(2)", "0.5", "1e9", "٣", "1" * 1001, 1)),
    *({"dtype": "fp16"}, {"dtype": "fp32"}, {"dtype": None}, {"exact": "1", "dtype": "fp16"}),
)
NAMES = ("body", "layout", "dim", "name", "dtype", "value", "combine", "omap", "grid", "loop", "extra", "")


def replace_by_junk(document: Any, place: Place, rng: random.Random) -> None:
    inside(document, place[:-1])[place[-1]] = copy.deepcopy(rng.choice(JUNK))


def replace_by_another(document: Any, place: Place, rng: random.Random) -> None:
    inside(document, place[:-1])[place[-1]] = copy.deepcopy(inside(document, rng.choice(places(document))))


def nudge(document: Any, place: Place, rng: random.Random) -> None:
    """A number near the one that is there: sizes, dimensions and references that just fit, or just not."""
    value = inside(document, place)
    if type(value) is int:
        inside(document, place[:-1])[place[-1]] = rng.choice((value - 1, value + 1, 2 * value, value // 2, -value, float(value)))


def drop(document: Any, place: Place, rng: random.Random) -> None:
    del inside(document, place[:-1])[place[-1]]


def repeat(document: Any, place: Place, rng: random.Random) -> None:
    """An element of a list twice, or an entry of an object under another name."""
    parent = inside(document, place[:-1])
    if isinstance(parent, list):
        parent.insert(place[-1], copy.deepcopy(parent[place[-1]]))
    else:
        parent[rng.choice(NAMES)] = copy.deepcopy(parent[place[-1]])


def add(document: Any, place: Place, rng: random.Random) -> None:
    part = inside(document, place)
    if isinstance(part, dict):
        part[rng.choice(NAMES)] = copy.deepcopy(rng.choice(JUNK))
    elif isinstance(part, list):
        part.append(copy.deepcopy(rng.choice(JUNK)))


def exchange(document: Any, place: Place, rng: random.Random) -> None:
    parent = inside(document, place[:-1])
    other = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[place[-1]], parent[other] = parent[other], parent[place[-1]]


CHANGES = (replace_by_junk, replace_by_another, nudge, drop, repeat, add, exchange)


def mutant(rng: random.Random) -> Any:
    """A saved graph with one to three changes."""
    document = json.loads(saved(rng.choice(list(GRAPHS))))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = places(document)
        if found:
            rng.choice(CHANGES)(document, rng.choice(found), rng)
    return document


def compare(count: int, seed: int) -> tuple[int, int]:
    """How many of so many mutants both readers accept, and refuse."""
    rng, counts = random.Random(seed), [0, 0]
    for number in range(count):
        document = mutant(rng)
        checker, reader = accepted_by_checker(document), accepted_by_reader(document)
        assert checker == reader, (number, "the checker alone" if checker else "the reader alone", json.dumps(document)[:3000])
        counts[not checker] += 1
    return counts[0], counts[1]


def test_readers_agree_on_mutants() -> None:
    accepted, refused = compare(3000, seed=0)
    assert accepted > 100
    assert refused > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_readers_agree_on_many_mutants(seed: int) -> None:
    compare(10_000, seed)


@pytest.mark.parametrize("document", [None, [], 3, "graph", {}, {"mugraph": 1}, {"mugraph": True, "graph": {}}, {"graph": {}}])
def test_both_refuse_what_is_no_document(document: Any) -> None:
    assert not accepted_by_checker(document)
    assert not accepted_by_reader(document)
