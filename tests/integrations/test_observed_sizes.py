"""Dimensions that vary, as calls show them."""

from __future__ import annotations

import pytest
import torch

from mugraph.integrations.observed_sizes import ObservedSizes
from mugraph.sizes.dims import Dim


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def test_dimensions_that_differ_from_an_earlier_call_vary() -> None:
    observed = ObservedSizes()
    assert observed.dynamic((zeros(4, 32), zeros(32, 8)), {}) == {}
    assert observed.dynamic((zeros(4, 32), zeros(32, 8)), {}) == {}
    assert observed.dynamic((zeros(3, 32), zeros(32, 8)), {}) == {0: {0: Dim("argument0_0", 1, 8)}}
    assert observed.dynamic((zeros(4, 32), zeros(32, 8)), {}) == {0: {0: Dim("argument0_0", 1, 8)}}, "also the first one's"


def test_dimensions_that_were_alike_are_one_until_they_differ() -> None:
    observed = ObservedSizes()
    observed.dynamic((), {"q": zeros(2, 5), "k": zeros(2, 5)})
    together = observed.dynamic((), {"q": zeros(2, 7), "k": zeros(2, 7)})
    assert together == {"k": {1: Dim("k_1", 1, 16)}, "q": {1: Dim("k_1", 1, 16)}}
    apart = observed.dynamic((), {"q": zeros(2, 1), "k": zeros(2, 9)})
    assert apart == {"k": {1: Dim("k_1", 1, 16)}, "q": {1: Dim("q_1", 1, 16)}}


@pytest.mark.parametrize(("size", "high"), [(8, 8), (9, 32), (100, 256)])
def test_a_range_grows_only_for_sizes_beyond_it(size: int, high: int) -> None:
    observed = ObservedSizes()
    for first in (4, 3):
        observed.dynamic((zeros(first),), {})
    assert observed.dynamic((zeros(size),), {}) == {0: {0: Dim("argument0_0", 1, high)}}
    assert observed.dynamic((zeros(2),), {}) == {0: {0: Dim("argument0_0", 1, high)}}


def test_other_kinds_of_calls_count_for_nothing() -> None:
    observed = ObservedSizes()
    observed.dynamic((zeros(4), 1), {})
    assert observed.dynamic((zeros(5), 2), {}) == {}, "another number"
    assert observed.dynamic((zeros(5).double(), 1), {}) == {}, "another type"
    assert observed.dynamic((zeros(5, 1), 1), {}) == {}, "another rank"
    assert observed.dynamic(([zeros(5)], 1), {}) == {}, "a list"
    with pytest.raises(TypeError):
        observed.dynamic((zeros(4), {1, 2}), {})
