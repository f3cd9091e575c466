"""Plans of chunks: they cover what they are for, and cost as little as any."""

from __future__ import annotations

import functools
import random
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, Costs, between
from mugraph.sizes.dynamic_results import all_seconds

POWERS = {2**power: 20e-6 + 2**power * 1e-6 for power in range(8)}


def cheapest(size: int, costs: Costs) -> float:
    """Of all multisets of sizes that cover one, each needed; of the next larger ones alone; and of the function."""

    @functools.cache
    def covered(rest: int) -> float:
        if rest <= 0:
            return 0.0
        return min(costs.kernels[known] + costs.chunk + covered(rest - known) for known in costs.kernels if known < size)

    found = [between(costs.own, size)]
    found += [seconds + costs.padding for known, seconds in costs.kernels.items() if known > size]
    found += [seconds for known, seconds in costs.kernels.items() if known == size]
    if any(known < size for known in costs.kernels):
        found.append(covered(size))
    return min(found)


def is_cover(plan: ChunkPlan, size: int) -> bool:
    """Whether all slices are computed, and only lone chunks reach beyond them."""
    ends = [chunk.start + chunk.size for chunk in plan.chunks]
    reached = 0
    for chunk, end in zip(plan.chunks, ends, strict=True):
        if not 0 <= chunk.start <= reached:
            return False
        reached = end
    return reached == size or (len(ends) == 1 and reached > size)


def test_larger_kernels_that_compute_first_slices_alone_need_no_padding() -> None:
    costs = Costs({4: 3.0, 16: 10.0}, padding=100.0, parts={16: {1: 0.2, 8: 0.5, 16: 1.0}})
    assert costs.plan(8) == ChunkPlan((Chunk(0, 16),), 5.0)
    assert costs.plan(12) == ChunkPlan((Chunk(0, 16),), 7.5)
    assert costs.plan(3).chunks == (Chunk(0, 16),)
    assert costs.plan(4).chunks == (Chunk(0, 4),)


@pytest.mark.parametrize("seed", range(20))
def test_plans_cover_and_are_the_cheapest(seed: int) -> None:
    rng = random.Random(seed)
    sizes = sorted(rng.sample(range(1, 60), rng.randint(1, 6)))
    kernels = {size: rng.uniform(5, 10) + size * rng.uniform(0.2, 1.5) for size in sizes}
    own = {1: rng.uniform(10, 40), 64: rng.uniform(40, 200)} if rng.random() < 0.5 else {}
    costs = Costs(kernels, own, chunk=rng.uniform(0, 3), padding=rng.uniform(0, 5))
    for size in range(1, 64):
        if size < sizes[-1] or own or any(known < size for known in sizes):
            plan = costs.plan(size)
            assert plan.seconds <= cheapest(size, costs) * 1.1
            assert plan.seconds >= cheapest(size, costs) * (1 - 1e-9)
            assert not plan.chunks or is_cover(plan, size)


@pytest.mark.parametrize("seed", range(20))
def test_chunks_that_are_not_looked_at_would_not_be_cheaper(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    sizes = rng.sample(range(1, 60), rng.randint(2, 6))
    parts = {max(sizes): {1: rng.uniform(0.2, 1), max(sizes): 1.0}}
    costs = Costs({size: rng.uniform(5, 10) + size * rng.uniform(0.1, 1) for size in sizes}, chunk=rng.uniform(0, 3), parts=parts)
    plans = [costs.plan(size) for size in range(1, 64)]
    monkeypatch.setattr(Costs, "_least", lambda *_: 0.0)
    assert plans == [costs.plan(size) for size in range(1, 64)]


def test_what_there_are_kernels_for_is_one_chunk() -> None:
    assert Costs(POWERS, chunk=1e-6).plan(64) == ChunkPlan((Chunk(0, 64),), POWERS[64])


def test_the_last_of_several_chunks_overlaps_and_a_lone_one_is_padded() -> None:
    costs = Costs({1: 10.0, 8: 12.0, 16: 14.0})
    assert costs.plan(5).chunks == (Chunk(0, 8),)
    assert costs.plan(31).chunks == (Chunk(0, 16), Chunk(15, 16))
    assert Costs({1: 10.0, 8: 12.0, 16: 14.0}, padding=100.0).plan(2).chunks == (Chunk(0, 1), Chunk(1, 1))


def test_the_function_answers_where_it_is_faster() -> None:
    assert Costs({4: 5.0}, own={1: 1.0, 8: 8.0}).plan(2).chunks == ()
    assert Costs({4: 5.0}, own={1: 1.0, 8: 8.0}).plan(7).chunks == ()
    assert Costs({4: 1.0}, own={1: 1.0, 8: 8.0}).plan(7).chunks == (Chunk(0, 4), Chunk(3, 4))


def test_beyond_what_is_timed_calls_grow_as_before_and_no_faster_than_in_proportion() -> None:
    """Calls whose time is mostly that of making them: twice as many slices take little more."""
    own = {2: 0.83, 8: 1.08}
    assert between(own, 16) == pytest.approx(1.08 + 8 * 0.25 / 6)
    assert Costs({8: 0.8}, own).plan(16).chunks == ()
    assert between({2: 1.0, 8: 8.0}, 16) == 16.0
    assert between({2: 1.0, 8: 0.9}, 16) == 0.9


def test_padding_copies_every_slice() -> None:
    kernels, own = {4: 1.0, 16: 2.0}, {1: 1.0, 16: 16.0}
    assert Costs(kernels, own, padding=0.5).plan(7) == ChunkPlan((Chunk(0, 4), Chunk(3, 4)), 2.0)
    assert Costs({16: 2.0}, own, padding=0.5).plan(7) == ChunkPlan((Chunk(0, 16),), 2.5)
    assert Costs({16: 2.0}, own, padding=0.5, copying=0.25).plan(7) == ChunkPlan((Chunk(0, 16),), 6.5)
    assert Costs({16: 2.0}, own, padding=0.5, copying=0.5).plan(7) == ChunkPlan((), 7.0)
    assert Costs(kernels, chunk=9.0, padding=0.5, copying=0.5).plan(3) == ChunkPlan((Chunk(0, 4),), 3.5)


def test_kernels_that_cover_no_other_size_say_what_special_ones_would_take() -> None:
    costs = Costs({4: 4.0}, own={1: 3.0, 2: 3.5, 4: 9.0}, parts={4: {1: 0.5, 4: 1.0}}, alone={1: 1.0})
    assert costs.plan(1) == ChunkPlan((Chunk(0, 4),), 2.0)
    assert costs.special(2) == pytest.approx(2.0)
    assert costs.ratio(2) == pytest.approx(2 / (4 * (0.5 + 0.5 / 3)))
    assert Costs({4: 4.0}, own={2: 1.5}).special(2) == 1.5


def test_many_sizes_and_large_ones_take_no_time() -> None:
    kernels = {known: 1e-5 + known * 1e-7 for power in range(11) for known in (4**power, 3 * 4**power)}
    costs = Costs(kernels, chunk=1e-6)
    for size in (2**20 - 1, 987_654, 3):
        assert is_cover(costs.plan(size), size)
    assert costs.ratio(2**20 - 1) > 0.9


def test_what_plans_share_takes_little_memory() -> None:
    """Also of small chunks, of which a size may have as many as slices."""
    costs = Costs({4**power: 2e-6 + 4**power * 1e-6 for power in range(8)}, {1: 1e-4, 2**16: 10.0}, chunk=1e-6)
    tracemalloc.start()
    try:
        plans = [costs.plan(size) for size in range(2**16 - 20, 2**16)]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(plan.chunks) > 1 for plan in plans)
    assert kept < 2**20


def test_results_of_which_nothing_is_known_cost_what_others_say() -> None:
    def result(latency: float | None) -> Any:
        best = SimpleNamespace(latency=latency, cost=None)
        return SimpleNamespace(report=SimpleNamespace(baselines={}), is_one_program=True, best=best)

    assert all_seconds({1: result(2e-6), 4: result(None), 7: result(4e-6), 14: result(None)}) == pytest.approx(
        {1: 2e-6, 4: 3e-6, 7: 4e-6, 14: 4e-6 + 7 * 2e-6 / 6}
    )
    assert all_seconds({2: result(None), 16: result(None)}) == {2: 2.0, 16: 16.0}
    pieces: Any = SimpleNamespace(report=SimpleNamespace(baselines={}), is_one_program=False)
    assert all_seconds({1: result(2e-6), 4: pieces, 7: result(4e-6)})[4] == pytest.approx(3e-6)
