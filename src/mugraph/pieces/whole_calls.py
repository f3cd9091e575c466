"""Whole calls of a graph that is cut, by its kernels and without: for how many there is time, and what earlier ones showed.

What calls take depends on the graph, on what runs its parts and on the machine, all of which name a kept outcome. So a later
process that has the same kernels makes no call for a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx

from mugraph.devices import device_for
from mugraph.devices.host import seconds_when_busy, slowdown
from mugraph.frontend.operators.torch_casts import tensors_of, text_of_tensor
from mugraph.pieces.piece_duels import description_of, torch_here
from mugraph.pieces.plan import Plan
from mugraph.runtime.benchmarking import still_counts, while_serving
from mugraph.support.deadline import Deadline
from mugraph.support.store import Mode, Store, digest_of
from mugraph.verifier.certificate import digest
from mugraph.version import __version__

KIND = "calls"
"""What the store calls outcomes of whole calls."""
LOOKED_AT = 3
"""Calls in which both sides are looked at for what they give, at the least: one by PyTorch, two by kernels."""
LONG_SECONDS = 0.2
"""A call that takes longer is not repeated without need."""
_TIMED, _TIMED_LONG = 6, 2
"""Calls in which both are timed then, at the least: one of PyTorch's, one of each that warms it up, a round, one part by part.
Long calls are warm when they were looked at, and are timed part by part where there is time."""
_BEYOND_SECONDS = 1.0
"""For so long calls may be made when the time is over; what needs longer is not begun."""

T = TypeVar("T")


def least_of_calls(seconds: float) -> float:
    """What the fewest calls take by which kernels and PyTorch are compared, of so many seconds each."""
    return (LOOKED_AT + (_TIMED_LONG if seconds > LONG_SECONDS else _TIMED)) * seconds


def taken_if_long(seconds: float) -> float:
    """What calls just took, where they were so long that they are warm by now; infinite for others."""
    return seconds if seconds > LONG_SECONDS else math.inf


def may_begin(deadline: Deadline, seconds: float) -> bool:
    """Whether calls that take so many seconds end in time, or not long after."""
    return seconds <= _BEYOND_SECONDS or deadline.allows(seconds)


@dataclass(frozen=True, slots=True)
class CallBudget:
    """How much of a budget is kept for calls that come behind everything else: so many `seconds` of a quiet machine, or so many
    `calls`, but no larger part than `most`, or than `most_of_least` for as few calls as both sides can be compared by."""

    seconds: float
    calls: int
    most: float
    most_of_least: float

    def before(self, deadline: Deadline, call: float) -> Deadline:
        """The deadline of what comes before calls of so many predicted seconds each."""
        kept, left = seconds_when_busy(self.seconds, self.calls * call), deadline.remaining
        least = least_of_calls(call * slowdown())
        fits = left is not None and least <= self.most_of_least * left
        return deadline.leaving(kept, max(self.most, least / left) if fits and left else self.most)


@dataclass(frozen=True, slots=True)
class KeptCalls:
    """The place in a store of what whole calls of one graph showed, by some plans of it, on this machine with as many threads."""

    store: Store
    key: str
    serving: bool = False
    """Whether a model is served meanwhile: what calls show then stands where there is one again."""

    @classmethod
    def of(
        cls,
        cache: Store | Mode | str | None,
        target: str,
        graph: fx.Graph | str,
        plans: Sequence[Plan],
        *asked: str,
        serving: bool = False,
    ) -> KeptCalls:
        """The place for a graph, or the `text_of_calls` of it; `asked` is what else calls take their time by, or are made for.

        What runs between kernels is this version's.
        """
        here = (repr(device_for(target)), *torch_here(), __version__)
        calls = graph if isinstance(graph, str) else text_of_calls(graph)
        return cls(Store.of(cache), digest_of(calls, *map(_text_of_plan, plans), *asked, *here), serving)

    def recall(self, read: Callable[[Mapping[str, Any]], T]) -> T | None:
        """What was kept, as `read` reads it; None where nothing was, or what is no such document."""
        document = self.store.get(KIND, self.key)
        if document is None or not still_counts(document, self.serving):
            return None
        with suppress(LookupError, TypeError, ValueError):  # calls are made again
            return read(document)
        return None

    def keep(self, document: Mapping[str, Any]) -> None:
        """Keep what calls showed, as JSON values."""
        self.store.put(KIND, self.key, while_serving(document, self.serving))


def text_of_calls(graph: fx.Graph) -> str:
    """The calls of a graph with the tensors that they give, which differ where calls may take another time."""
    return "\n".join(f"{node.format_node()} {[*map(_text_of, tensors_of(node))]}" for node in graph.nodes)


def _text_of(tensor: torch.Tensor) -> str:
    """What a tensor without data is; some have no strides, as sparse ones."""
    return text_of_tensor(tensor) if tensor.layout is torch.strided else f"{tensor.layout} {tensor.dtype} {[*tensor.shape]}"


def _text_of_plan(plan: Plan) -> str:
    """What runs which calls of a graph."""
    results = {id(result): result for result in plan.results.values()}
    kernels = {key: (digest(result.graph), description_of(result)) for key, result in results.items()}
    pieces = [(_names(piece.nodes), kernels[id(plan.results[piece])]) for piece in plan.partition.pieces]
    library = [_names(kernel.nodes) for kernel in plan.partition.library]
    return repr((pieces, library, str(plan.layout), _names(plan.others)))


def _names(nodes: Iterable[fx.Node]) -> list[str]:
    return [node.name for node in nodes]
