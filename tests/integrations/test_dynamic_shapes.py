"""Functions optimized for ranges of sizes: right at every size, searched at those of the table alone.

What is put together of other sizes is in `tests/integrations/test_any_size.py`.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import mugraph
from mugraph import Dim
from mugraph.devices import device_for
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.ir.program import Program
from mugraph.lower.thread_graphs import construct
from mugraph.search import search
from mugraph.selection.structure_key import form_of, of_forms
from mugraph.sizes.dynamic_results import DynamicSuperoptimized
from threads import at_once

BATCH = Dim("batch", 2, 12)


def norm_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)) @ w


def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 32), torch.randn(32, 48)


@pytest.fixture(scope="module")
def opt() -> DynamicSuperoptimized:
    return mugraph.superoptimize_dynamic(norm_linear, example(4), {0: {0: BATCH}}, table=[{"batch": 2}, {"batch": 12}])


@pytest.mark.parametrize("batch", [2, 3, 7, 12])
def test_every_declared_size_is_right(opt: DynamicSuperoptimized, batch: int) -> None:
    inputs = example(batch)
    torch.testing.assert_close(opt(*inputs), norm_linear(*inputs), rtol=1e-4, atol=1e-4)
    assert opt.at(*inputs).certificate.accepted
    assert set(opt.table) == {(2,), (12,)}


def test_a_size_is_compiled_for_once(opt: DynamicSuperoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opt.at(*example(5))
    monkeypatch.setattr(opt, "_optimize", None)
    assert opt.at(*example(5)) is first


def test_a_new_size_visits_no_tensor(opt: DynamicSuperoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.search.tasks.Saturation", None)
    inputs = example(9)
    torch.testing.assert_close(opt(*inputs), norm_linear(*inputs), rtol=1e-4, atol=1e-4)


def test_functions_that_are_no_programs_have_dynamic_sizes_too() -> None:
    def shifted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return norm_linear(x.logcumsumexp(0), w)

    dynamic = mugraph.superoptimize_dynamic(shifted, example(4), {0: {0: BATCH}}, table=[{"batch": 4}], budget=10.0)
    for batch in (4, 7):
        inputs = example(batch)
        torch.testing.assert_close(dynamic(*inputs), shifted(*inputs), rtol=1e-4, atol=1e-4)
    assert not dynamic.at(*example(7)).is_one_program


def test_all_sizes_keep_to_the_space() -> None:
    space = mugraph.SearchSpace(kernels=1, grids=[4])
    declared: dict[int | str, dict[int, Dim]] = {0: {0: Dim("batch", 2, 16)}, 1: {1: Dim("width", 30, 48)}}
    limited = mugraph.superoptimize_dynamic(norm_linear, example(4), declared, table=[{"batch": 4, "width": 48}], space=space)
    for batch in (4, 8):
        found = limited.at(*example(batch))
        assert found.report.space == str(space)
        assert all(space.holds(each.graph) for each in found.candidates)
    with pytest.raises(InvalidInput, match="grid 5"):
        mugraph.superoptimize_dynamic(norm_linear, example(4), {0: {0: BATCH}}, space=mugraph.SearchSpace(grids=[5]))


def test_threads_share_a_new_size(opt: DynamicSuperoptimized) -> None:
    found = at_once(lambda batch: opt.at(*example(batch)), (11, 11, 11))
    assert len(set(map(id, found))) == 1


def test_copies_are_the_thing_itself_and_pickles_are_refused(opt: DynamicSuperoptimized) -> None:
    assert copy.deepcopy(opt) is opt
    with pytest.raises(StorageError, match="save the results of its `table`"):
        pickle.dumps(opt)


@pytest.mark.parametrize("batch", [1, 13])
def test_sizes_out_of_range_are_refused(opt: DynamicSuperoptimized, batch: int) -> None:
    with pytest.raises(ShapeMismatch, match=f"batch has size {batch}, declared from 2 to 12"):
        opt(*example(batch))


def test_other_dimensions_are_as_they_were(opt: DynamicSuperoptimized) -> None:
    with pytest.raises(ShapeMismatch):
        opt(torch.randn(2, 16), torch.randn(16, 48))


def test_a_name_means_one_size() -> None:
    result = DynamicSuperoptimized(torch.add, {0: {0: BATCH}, 1: {0: BATCH}}, {}, mugraph.superoptimize)
    with pytest.raises(ShapeMismatch, match="batch is 4 in argument 1 and 3 before it"):
        result.sizes_of((torch.ones(3), torch.ones(4)), {})


def test_a_function_that_branches_on_the_size_is_traced_at_each() -> None:
    def sign(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() if x.shape[0] > 3 else -x.exp()) / (x.exp() + 1)

    dynamic = mugraph.superoptimize_dynamic(sign, (torch.randn(2, 8),), {0: {0: Dim("n", 2, 5)}}, table=[{"n": 2}])
    for size in (3, 4):
        x = torch.randn(size, 8)
        torch.testing.assert_close(dynamic(x), sign(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dynamic", "table", "match"),
    [
        ({}, None, "no dimension is dynamic"),
        ({0: {2: BATCH}}, None, "has no dimension 2"),
        ({3: {0: BATCH}}, None, "argument 3"),
        ({"x": {0: BATCH}}, None, "argument 'x' .* not among a call's, 0, 1; .*by position or by name"),
        ({0: {0: BATCH}, 1: {1: Dim("batch", 1, 4)}}, None, "two ranges"),
        ({0: {0: BATCH}}, [{"rows": 3}], "rows"),
        ({0: {0: BATCH}}, [], "empty table"),
    ],
)
def test_declarations_that_fit_nothing_are_refused(dynamic: Any, table: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        mugraph.superoptimize_dynamic(norm_linear, example(4), dynamic, table=table)


def test_a_range_is_a_range() -> None:
    with pytest.raises(InvalidInput, match="low <= high"):
        Dim("batch", 4, 2)
    for low, high in ((0, 0), (-1, 4)):
        with pytest.raises(InvalidInput, match="0 <= low <= high, and high from 1 on"):
            Dim("batch", low, high)


def _program(rows: int) -> Program:
    p = Program()
    x, w = p.input("x", (rows, 32)), p.input("w", (32, 48))
    p.output((x / (x.square().sum(-1, keepdim=True) + 1.0).sqrt()) @ w)
    return p


def test_forms_are_those_of_other_sizes() -> None:
    device = device_for("cpu")
    small, large = (search(_program(rows).graph, device).candidates for rows in (4, 24))
    forms = {form_of(construct(candidate.graph)) for candidate in large}
    assert len(forms) > 1
    chosen = next(graph for graph in (construct(candidate.graph) for candidate in small) if form_of(graph) in forms)
    same = of_forms(large, [chosen], _program(24).graph)
    assert {form_of(construct(candidate.graph)) for candidate in same} == {form_of(chosen)}
    assert of_forms(large, [_program(4).graph], _program(24).graph) == []
