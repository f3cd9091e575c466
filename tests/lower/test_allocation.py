"""Dynamic storage allocation against trying every offset."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mugraph.lower.allocation import Request, allocate


def overlap_free(requests: Sequence[Request], offsets: Sequence[int]) -> bool:
    placed = list(zip(requests, offsets, strict=True))
    return all(
        not a.overlaps(b) or start + a.size <= other or other + b.size <= start
        for (a, start), (b, other) in itertools.combinations(placed, 2)
    )


def least_height(requests: Sequence[Request]) -> int:
    """The first height that some choice of offsets fits into."""
    return next(height for height in itertools.count() if fits(requests, (), height))


def fits(requests: Sequence[Request], offsets: tuple[int, ...], height: int) -> bool:
    """Whether offsets for the first few requests can be completed: try every offset of the next."""
    if not overlap_free(requests[: len(offsets)], offsets):
        return False
    if len(offsets) == len(requests):
        return True
    next_ones = range(height - requests[len(offsets)].size + 1)
    return any(fits(requests, (*offsets, offset), height) for offset in next_ones)


request = st.builds(
    lambda size, first, length: Request(size, first, first + length), st.integers(1, 4), st.integers(0, 6), st.integers(0, 3)
)

MORE_THAN_ITS_PEAK = [
    Request(*row) for row in ((5, 0, 0), (2, 0, 1), (2, 1, 1), (1, 0, 2), (1, 1, 2), (4, 2, 3), (2, 3, 3), (2, 1, 4), (6, 4, 4))
]
"""Eight units are alive at every time, and they fit into nine."""


@settings(max_examples=60, deadline=None)
@given(st.lists(request, max_size=5))
@example(MORE_THAN_ITS_PEAK)
def test_the_height_is_the_least_possible(requests: list[Request]) -> None:
    found = allocate(requests)
    assert overlap_free(requests, found.offsets)
    assert found.optimal
    assert found.height == max((o + r.size for o, r in zip(found.offsets, requests, strict=True)), default=0)
    assert found.height == least_height(requests)


def test_some_requests_need_more_than_is_ever_alive() -> None:
    assert allocate(MORE_THAN_ITS_PEAK, most_steps=0).bound == 8
    assert allocate(MORE_THAN_ITS_PEAK).bound == 9


def random_requests(seed: int, count: int) -> list[Request]:
    generator = random.Random(seed)
    firsts = [generator.randrange(count) for _ in range(count)]
    return [Request(generator.randint(1, 12), first, first + generator.randint(0, count // 3)) for first in firsts]


@pytest.mark.parametrize("seed", range(30))
def test_twenty_buffers_are_settled(seed: int) -> None:
    requests = random_requests(seed, 20)
    found = allocate(requests)
    assert overlap_free(requests, found.offsets)
    assert found.optimal


def test_without_branch_and_bound_there_is_an_allocation_without_proof() -> None:
    unsettled = [
        requests for requests in (random_requests(seed, 12) for seed in range(60)) if not allocate(requests, most_steps=0).optimal
    ]
    assert unsettled, "some instances need more than the greedy placement"
    for requests in unsettled:
        quick, proved = allocate(requests, most_steps=0), allocate(requests)
        assert overlap_free(requests, quick.offsets)
        assert quick.bound <= proved.height <= quick.height
