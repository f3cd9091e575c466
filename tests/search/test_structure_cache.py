"""Structures on a shelf: read back as they were, used by a process that knows nothing, and never believed when malformed."""

from __future__ import annotations

import copy
import functools
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mugraph.devices import device_for
from mugraph.errors import InvalidInput
from mugraph.ir import Graph
from mugraph.search import Options, search
from mugraph.search.driver import Search
from mugraph.search.structure_cache import structures_from_json, structures_to_json
from mugraph.search.structures import KNOWN, FoundStructure, Key

from .programs import PAPER, attention, rmsnorm

CPU = device_for("cpu")


class Memory:
    """A shelf that keeps texts, as a database would."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], str] = {}
        self.written = 0

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        text = self.documents.get((kind, key))
        document: dict[str, Any] | None = None if text is None else json.loads(text)
        return document

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        self.documents[kind, key] = json.dumps(value)
        self.written += 1


@pytest.fixture(autouse=True)
def a_process_that_knows_nothing() -> Iterator[None]:
    KNOWN.clear()
    yield
    KNOWN.clear()


def found_in(program: Graph) -> Mapping[Key, FoundStructure]:
    run = Search(program, CPU)
    run.run()
    return run.kernels.found


@pytest.mark.parametrize("name", ["rmsnorm", "gqa", "lora"])
def test_structures_are_read_back_as_they_were(name: str) -> None:
    found = found_in(PAPER[name]())
    document = json.loads(json.dumps(structures_to_json(found)))
    assert dict(structures_from_json(document, Options())) == found


def test_a_new_process_searches_a_known_program_without_visiting_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Memory()
    first = search(rmsnorm(4, 16, 8), CPU, shelf=shelf)
    KNOWN.clear()
    monkeypatch.setattr("mugraph.search.tasks.Saturation", None)
    again = search(rmsnorm(4, 16, 8), CPU, shelf=shelf)
    assert [(c.graph, c.cost) for c in again.candidates] == [(c.graph, c.cost) for c in first.candidates]
    assert again.report.exhausted_what == first.report.exhausted_what
    assert shelf.written == 1


def test_other_sizes_share_a_document_and_other_options_do_not() -> None:
    shelf = Memory()
    search(rmsnorm(4, 16, 8), CPU, shelf=shelf)
    search(rmsnorm(8, 16, 24), CPU, shelf=shelf)
    assert len(shelf.documents) == 1
    search(rmsnorm(4, 16, 8), CPU, shelf=shelf, options=Options(block_operators=10))
    assert len(shelf.documents) == 2


@functools.cache
def _document_of_attention() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(structures_to_json(found_in(attention(2, 8, 4)))))
    return document


def _changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    place: Any = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("steps",), []),
        (("steps", 0), ["eval", [], [], False, [], None, None]),
        (("steps", 0, 2), [7]),
        (("programs", 0, "terms", 0, 6), "__import__('os')"),
        (("programs", 0, "outputs"), [[99, []]]),
        (("structures", 0, "tier"), "FINEST"),
        (("structures", 0, "sketches"), [[[0], [0]]]),
        (("structures", 0, "program"), 1000),
        (("structures",), None),
    ],
)
def test_documents_of_another_form_are_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(InvalidInput):
        dict(structures_from_json(_changed(_document_of_attention(), path, value), Options()))


def test_a_damaged_document_costs_a_search_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Memory()
    first = search(rmsnorm(), CPU, shelf=shelf)
    ((place, _),) = shelf.documents.items()
    shelf.documents[place] = json.dumps({"programs": 3})
    KNOWN.clear()
    with caplog.at_level(logging.WARNING):
        again = search(rmsnorm(), CPU, shelf=shelf)
    assert [c.graph for c in again.candidates] == [c.graph for c in first.candidates]
    assert "ignored" in caplog.text
    assert shelf.written == 2


def test_what_a_deadline_cut_short_is_not_searched_again_for_no_more_time() -> None:
    options = Options(closure_seconds=0.02)
    search(PAPER["qknorm"](), CPU, options=options)
    run = Search(PAPER["qknorm"](), CPU, options=options)
    run.run()
    unfinished = [structure for structure in run.kernels.found.values() if structure.timed_out]
    assert unfinished
    assert run.kernels.spared > 0
    assert not run.report.exhausted
