"""Queue, retries and deadlines of a pool, with workers that do what a test wants."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.search.closure.tiers import Tier
from mugraph.search.executors import Pool, Searchable, Serial, executor_for
from mugraph.search.structures import FoundStructure
from mugraph.search.tasks import NOTHING, Item

from ..programs import rmsnorm
from .items import items_of

ITEMS = items_of(rmsnorm(), Tier.OPAQUE_SUMS)
WANTED = [item.search() for item in ITEMS]


class WorkerDied(Exception):
    """What lost items raise here."""


Work = Callable[[Item, int, Future[FoundStructure]], None]
"""What a worker does with an item handed over for the n-th time."""


class FakePool(Pool[FoundStructure]):
    """Workers that run `work` at once."""

    lost_worker = (WorkerDied,)

    def __init__(self, work: Work) -> None:
        super().__init__(until=float("inf"))
        self.work, self.restarts, self.closed = work, 0, False
        self.started: list[Item] = []

    @property
    def slots(self) -> int:
        return 2

    def start(self, item: Searchable[FoundStructure]) -> Future[FoundStructure]:
        assert isinstance(item, Item)
        self.started.append(item)
        future: Future[FoundStructure] = Future()
        self.work(item, self.started.count(item), future)
        return future

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        self.closed = True


def found(pool: Pool[FoundStructure]) -> list[FoundStructure]:
    """The results of all items, submitted together."""
    tasks = [pool.submit(item) for item in ITEMS]
    return [task.result(float("inf"), lambda stage, states: None) for task in tasks]


def test_what_no_worker_has_begun_is_searched_here_and_the_rest_is_left_to_workers() -> None:
    pool = FakePool(lambda item, attempt, future: future.set_result(item.search()))
    assert found(pool) == WANTED
    assert ITEMS[0] not in pool.started
    assert pool.started == ITEMS[1:]


def test_a_task_is_ready_unless_a_worker_is_at_it() -> None:
    begun: list[Future[FoundStructure]] = []
    pool = FakePool(lambda item, attempt, future: begun.append(future))
    here, *others = [pool.submit(item) for item in ITEMS]
    assert here.ready
    here.result(float("inf"), lambda stage, states: None)
    assert [task.ready for task in others] == [False] * len(begun) + [True] * (len(others) - len(begun))
    begun[0].set_result(WANTED[1])
    assert others[0].ready
    assert Serial[FoundStructure]().submit(ITEMS[0]).ready


def test_an_item_lost_with_its_worker_is_searched_again() -> None:
    def dies_once(item: Item, attempt: int, future: Future[FoundStructure]) -> None:
        if attempt == 1:
            future.set_exception(WorkerDied())
        else:
            future.set_result(item.search())

    pool = FakePool(dies_once)
    assert found(pool) == WANTED
    assert [pool.started.count(item) for item in ITEMS[1:]] == [2] * len(ITEMS[1:])
    assert pool.losses == len(ITEMS[1:])
    assert pool.restarts > 0


def test_an_item_whose_workers_always_die_is_searched_here() -> None:
    pool = FakePool(lambda item, attempt, future: future.set_exception(WorkerDied()))
    assert found(pool) == WANTED
    assert max(pool.started.count(item) for item in ITEMS) == 3


def test_workers_that_cannot_be_started_cost_no_result() -> None:
    class NoWorkers(FakePool):
        def start(self, item: Searchable[FoundStructure]) -> Future[FoundStructure]:
            raise WorkerDied

    assert found(NoWorkers(lambda item, attempt, future: None)) == WANTED


def test_a_deadline_ends_the_wait_for_a_worker() -> None:
    pool = FakePool(lambda item, attempt, future: None)
    tasks = [pool.submit(item) for item in ITEMS[:2]]
    tasks[0].result(float("inf"), lambda stage, states: None)
    started = time.perf_counter()
    ticks: list[str] = []
    result = tasks[1].result(started + 0.5, lambda stage, states: ticks.append(stage))
    assert result == NOTHING
    assert 0.5 <= time.perf_counter() - started < 60  # the worker never answers
    assert ticks
    assert set(ticks) == {ITEMS[1].where}


def test_an_error_of_an_item_is_the_callers() -> None:
    pool = FakePool(lambda item, attempt, future: future.set_exception(UndefinedInField("a second exponentiation")))
    tasks = [pool.submit(item) for item in ITEMS[:2]]
    tasks[0].result(float("inf"), lambda stage, states: None)
    with pytest.raises(UndefinedInField, match="second exponentiation"):
        tasks[1].result(float("inf"), lambda stage, states: None)
    assert pool.losses == 0


def test_one_worker_is_this_process() -> None:
    assert isinstance(executor_for(1), Serial)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "two", "http://host"])
def test_other_workers_are_refused(workers: object) -> None:
    with pytest.raises(InvalidInput, match="workers is a number of processes"):
        executor_for(workers)  # type: ignore[arg-type]
