"""Dynamic storage allocation: offsets for requests with known lifetimes, in as little memory as possible (paper, section 6).

Two requests alive at the same time must not share memory. The problem is NP-hard, and kernels have few buffers: a
greedy placement usually meets the lower bound, the most that is alive at once, and is then optimal. Where it does
not, branch and bound settles the matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MOST_STEPS = 2_000_000
"""Times that branch and bound looks at before it gives up its proof: about a second."""


@dataclass(frozen=True, slots=True)
class Request:
    """`size` units of memory from time `first` to time `last`, both included."""

    size: int
    first: int
    last: int

    def overlaps(self, other: Request) -> bool:
        """Whether both are alive at some time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Allocation:
    """The offset of each request, how much memory they take together, and a proved bound below which nobody can get."""

    offsets: tuple[int, ...]
    height: int
    bound: int

    @property
    def optimal(self) -> bool:
        """Whether it is proved that less memory does not do."""
        return self.height == self.bound


def allocate(requests: Sequence[Request], most_steps: int = _MOST_STEPS) -> Allocation:
    """The best offsets found; optimal unless branch and bound would have to look at more than `most_steps` times."""
    times = _peaks(requests)
    bound = max((sum(requests[index].size for index in alive) for alive in times), default=0)
    offsets = min((_greedy(requests, order) for order in _ORDERS), key=lambda offsets: _height(requests, offsets))
    if _height(requests, offsets) > bound:
        search = _BranchAndBound(requests, times, bound, offsets, most_steps)
        search.run()
        offsets = search.best
        if search.complete:
            bound = _height(requests, offsets)
    return Allocation(offsets, _height(requests, offsets), bound)


def _peaks(requests: Sequence[Request]) -> list[tuple[int, ...]]:
    """The sets of requests alive at the same time, at the times when one of them begins: every other set is within one."""
    starts = sorted({request.first for request in requests})
    return [tuple(i for i, request in enumerate(requests) if request.first <= time <= request.last) for time in starts]


def _height(requests: Sequence[Request], offsets: Sequence[int]) -> int:
    return max((offset + request.size for request, offset in zip(requests, offsets, strict=True)), default=0)


_ORDERS: tuple[Callable[[Request], tuple[int, ...]], ...] = (
    lambda request: (-request.size,),
    lambda request: (request.first - request.last, -request.size),
    lambda request: (request.size * (request.first - request.last - 1),),
    lambda request: (request.first, -request.size),
    lambda request: (-request.last, -request.size),
)
"""What the greedy placement sorts by: size, duration, their product, begin, end."""


def _greedy(requests: Sequence[Request], order: Callable[[Request], tuple[int, ...]]) -> tuple[int, ...]:
    """Each request, in this order, in the lowest gap it fits into."""
    offsets: dict[int, int] = {}
    for index in sorted(range(len(requests)), key=lambda index: order(requests[index])):
        request = requests[index]
        rivals = sorted((offsets[other], requests[other].size) for other in offsets if requests[other].overlaps(request))
        offset = 0
        for start, size in rivals:
            if offset + request.size <= start:
                break
            offset = max(offset, start + size)
        offsets[index] = offset
    return tuple(offsets[index] for index in range(len(requests)))


class _BranchAndBound:
    """Placements in the order of their offsets, each request on top of those below it.

    Some optimal allocation has this form: sort one by offset and let every request sink, which makes nothing higher, until
    nothing moves. So nothing is placed below the offset placed last, which bounds every time from below: by what stands there
    or the last offset, and on top of it all that is still to come at that time.
    """

    def __init__(
        self, requests: Sequence[Request], times: Sequence[tuple[int, ...]], bound: int, best: tuple[int, ...], most_steps: int
    ) -> None:
        self.requests = requests
        self.bound = bound
        self.best = best
        self.height = _height(requests, best)
        self.steps_left = most_steps
        self.alive_at = times
        self.times_of = [[time for time, alive in enumerate(times) if index in alive] for index in range(len(requests))]
        self.offsets = [0] * len(requests)
        self.seen: set[tuple[int, tuple[int, ...], int]] = set()

    @property
    def complete(self) -> bool:
        """Whether everything that could be better was tried."""
        return self.steps_left > 0

    def run(self) -> None:
        """Search; leaves the best allocation in `best`."""
        everything = [sum(self.requests[index].size for index in alive) for alive in self.alive_at]
        self._place((1 << len(self.requests)) - 1, [0] * len(self.alive_at), everything, 0)

    def _place(self, waiting: int, tops: list[int], to_come: list[int], last: int) -> None:
        """Place the `waiting` requests (a bit each), `to_come` units at each time, on what reaches up to `tops`."""
        state = (waiting, tuple(tops), last)
        if state in self.seen or self.steps_left <= 0:
            return
        self.seen.add(state)
        self.steps_left -= waiting.bit_count() * len(tops)
        if waiting == 0:
            self.best, self.height = tuple(self.offsets), max(tops)
            return
        for index in self._by_offset(waiting, tops):
            size, times = self.requests[index].size, self.times_of[index]
            offset = max(tops[time] for time in times)
            if offset < last:
                continue
            raised, less = list(tops), list(to_come)
            for time in times:
                raised[time] = offset + size
                less[time] -= size
            if self._could_improve(raised, less, offset):
                self.offsets[index] = offset
                self._place(waiting & ~(1 << index), raised, less, offset)
            if self.height == self.bound:
                return

    def _by_offset(self, waiting: int, tops: Sequence[int]) -> list[int]:
        candidates = [index for index in range(len(self.requests)) if waiting >> index & 1]
        return sorted(candidates, key=lambda i: (max(tops[time] for time in self.times_of[i]), -self.requests[i].size))

    def _could_improve(self, tops: Sequence[int], to_come: Sequence[int], last: int) -> bool:
        most = self.height - 1
        return all((max(top, last) + rest if rest else top) <= most for top, rest in zip(tops, to_come, strict=True))
