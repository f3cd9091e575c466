"""Dimensions as users declare them: ranges, multiples, PyTorch's own, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import mugraph
from mugraph import Dim
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.sizes.dims import Declared, known_sizes
from mugraph.sizes.row_functions import pairs_of_sizes
from mugraph.sizes.rows import Rows
from mugraph.sizes.sliced_functions import compared_sizes

TOKENS = Dim("tokens", 16, 4096, multiple_of=16)
EXPORTED = torch.export.Dim("batch", min=1, max=8)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


@pytest.mark.parametrize(
    ("dynamic", "match"),
    [
        ({0: [0]}, r"dynamic\[0\] is \[0\], and no mapping; declare .*Dim\('batch', 1, 64\)"),
        ({0: {0: "batch"}}, r"dynamic\[0\]\[0\] is 'batch', and no Dim; declare"),
        ({"x": {0: None}}, r"dynamic\['x'\]\[0\] is None, and no Dim"),
        ({0: {0: (1, 64)}}, r"\(1, 64\), and no Dim"),
        ({0: {"rows": Dim("batch", 1, 8)}}, r"dynamic\[0\] has 'rows' for a key"),
        ({None: {0: Dim("batch", 1, 8)}}, "dynamic has None for a key"),
        ({0: {0: torch.export.Dim.AUTO}}, "AUTO.* and no Dim"),
        ({0: {0: torch.export.Dim("batch", min=2)}}, "batch, which has no largest size; give max="),
        ({0: {0: 2 * EXPORTED}}, r"2\*batch, which PyTorch derives from another dimension; declare its own range"),
        ({0: {0: EXPORTED}, 1: {0: Dim("batch", 2, 8)}}, "batch is declared with two ranges"),
    ],
)
def test_what_declares_no_dimensions_is_named(dynamic: Any, match: str) -> None:
    x = torch.randn(4, 8)
    for declare in (
        lambda: Declared.of(dynamic),
        lambda: mugraph.superoptimize(scaled, (x,), dynamic=dynamic),
        lambda: mugraph.superoptimize_dynamic(scaled, (x,), dynamic),
        lambda: mugraph.optimize(scaled, dynamic=dynamic),
    ):
        with pytest.raises(InvalidInput, match=match):
            declare()


def test_a_dimension_that_is_declared_twice_has_one_name() -> None:
    n, m, given = Dim("n", 1, 8), Dim("m", 1, 8), (torch.randn(4, 8),)
    with pytest.raises(InvalidInput, match="dimension -2 of argument 0 is n and m; give it one name"):
        Declared.of({0: {0: n, -2: m}}).sizes_of(given, {})
    assert Declared.of({0: {0: n, -2: n}}).sizes_of(given, {}) == (4,)


@pytest.mark.parametrize("high", [10**12, 10**20])
def test_ranges_that_no_machine_has_room_for_are_refused(high: int) -> None:
    for fn in (scaled, lambda x: x.sum(0)):
        with pytest.raises(InvalidInput, match=f"arguments of size {high} of n take .* declare a smaller range"):
            mugraph.superoptimize(fn, (torch.randn(4, 8),), dynamic={0: {0: Dim("n", 1, high)}})


def test_memory_is_counted_once_for_each_dimension_of_each_argument() -> None:
    given, n = torch.randn(4, 8), Dim("n", 1, 1000)
    cases: list[tuple[Any, int]] = [({0: {0: n}, 1: {0: n}}, 2), ({0: {0: n, -2: n}}, 1)]
    for dynamic, count in cases:
        assert Declared.of(dynamic).bytes_at({"n": 1000}, (given, given), {}) == count * 1000 * 8 * 4


def test_arguments_that_are_no_tensors_are_named() -> None:
    with pytest.raises(InvalidInput, match="argument 0 has dynamic dimensions and is no tensor but a ndarray"):
        mugraph.superoptimize(scaled, (torch.randn(4, 8).numpy(),), dynamic={0: {0: Dim("n", 1, 8)}})


def test_what_is_no_mapping_at_all_is_named() -> None:
    for given in ([0], "batch", True):
        with pytest.raises(InvalidInput, match=rf"dynamic is {re.escape(repr(given))}, and no mapping"):
            mugraph.superoptimize(scaled, (torch.randn(4, 8),), dynamic=given)  # type: ignore[call-overload]


def test_dimensions_of_torch_export_are_taken() -> None:
    declared = Declared.of({0: {0: EXPORTED, -1: torch.export.Dim("width", max=64)}})
    assert declared.dynamic == {0: {0: Dim("batch", 1, 8), -1: Dim("width", 0, 64)}}


def test_results_for_dimensions_of_torch_export_are_those_for_ours() -> None:
    dynamic: dict[int | str, dict[int, torch.export.Dim]] = {0: {0: EXPORTED}}
    found = mugraph.superoptimize(scaled, (torch.randn(4, 8),), dynamic=dynamic, profile=False, budget=600.0)
    decorated = mugraph.optimize(scaled, dynamic=dynamic, budget=600.0)
    for size in (1, 5, 8):
        x = torch.randn(size, 8)
        with torch.inference_mode():
            for run in (found, decorated):
                torch.testing.assert_close(run(x), scaled(x), rtol=1e-4, atol=1e-5)
    for run in (found, decorated):
        with torch.inference_mode(), pytest.raises(ShapeMismatch, match="batch has size 9, declared from 1 to 8"):
            run(torch.randn(9, 8))
    assert len(decorated.answers) == 1


@pytest.mark.parametrize(
    ("low", "high", "step"), [(1, 64, 16), (16, 65, 16), (16, 64, 0), (16, 64, -16), (16, 64, 1.5), (16, 64, "16")]
)
def test_ends_are_multiples(low: int, high: int, step: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"ranges from {low} to {high} by multiples of {re.escape(repr(step))}; use a number"):
        Dim("tokens", low, high, multiple_of=step)


def test_sizes_are_multiples() -> None:
    assert [*Dim("tokens", 0, 64, multiple_of=16).sizes] == [0, 16, 32, 48, 64]
    assert [*known_sizes([Dim("tokens", 16, 64, multiple_of=16), Dim("batch", 1, 2)])][:3] == [(16, 1), (16, 2), (32, 1)]
    assert len([*known_sizes([TOKENS])]) == 256
    assert Declared.of({0: {0: Dim("tokens", 0, 64, multiple_of=16)}}).from_one().dims["tokens"].low == 16
    TOKENS.check(4096)
    with pytest.raises(ShapeMismatch, match="tokens has size 24, declared as a multiple of 16 from 16 to 4096"):
        TOKENS.check(24)
    with pytest.raises(ShapeMismatch, match="tokens has size 8, declared from 16 to 4096"):
        TOKENS.check(8)


@pytest.mark.parametrize(
    ("low", "high", "middle"), [(1, 256, 16), (1, 64, 8), (8, 64, 16), (64, 128, 96), (2, 40, 8), (3, 5, 4), (3, 4, None)]
)
def test_the_middle_is_a_power_of_two_where_one_is_near(low: int, high: int, middle: int | None) -> None:
    assert Dim("batch", 1, 256).middle(low, high) == middle
    in_twelves = None if middle is None else 12 * middle
    assert Dim("batch", 12, 12 * 256, multiple_of=12).middle(12 * low, 12 * high) == in_twelves


@pytest.mark.parametrize(
    ("dim", "sizes"),
    [
        (TOKENS, [112, 80, 16]),
        (Dim("tokens", 64, 4096, multiple_of=64), [448, 320, 64]),
        (Dim("tokens", 64, 128, multiple_of=64), [128, 64]),
        (Dim("tokens", 1000, 3000, multiple_of=1000), [3000, 2000, 1000]),
    ],
)
def test_programs_are_compared_at_multiples(dim: Dim, sizes: list[int]) -> None:
    assert compared_sizes(dim, 4) == sizes


def test_pairs_of_sizes_and_rows_are_multiples() -> None:
    first, second = Dim("batch", 2, 12, multiple_of=2), Dim("length", 1, 24)
    assert all(one in first.sizes and other in second.sizes for one, other in pairs_of_sizes(first, second, 4))
    rows = Rows(first, second, (), ()).dim
    assert (rows.low, rows.high, rows.multiple_of) == (2, 288, 2)
    assert all(one * other in rows.sizes for one in first.sizes for other in second.sizes)


def test_a_range_is_read_as_it_was_written() -> None:
    assert Dim.of_json(TOKENS.to_json()) == TOKENS
    assert Dim.of_json({"name": "batch", "low": 1, "high": 8}) == Dim("batch", 1, 8), "as it was written before"
