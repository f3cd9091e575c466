"""Results for a batch and a length, as of decoding with a cache that grows: kernels of a few batches at a few capacities, of
which any batch is put together in chunks of samples, at any length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch.utils._pytree import tree_unflatten

from mugraph.results.summary import some_wrong_text
from mugraph.runtime.benchmarking import medians
from mugraph.sizes.batched_functions import BatchedFunction
from mugraph.sizes.batches import BatchCalls
from mugraph.sizes.capacity_results import CapacityTable, Optimize
from mugraph.sizes.chunk_plans import Chunk, between
from mugraph.support.deadline import Deadline

_ANCHOR = 0.5
"""The part of the budget for the first batch; the others take over what was found there."""
_ROUNDS, _SECONDS = 30, 0.5
"""In which chunks are timed, and how long at most."""


@dataclass
class BatchTable(BatchCalls[CapacityTable]):
    """Kernels for a function that does the same to every sample, which `fn` is."""

    function: BatchedFunction = field(kw_only=True)
    fn: Callable[..., Any] = field(kw_only=True)

    @classmethod
    def of(cls, function: BatchedFunction, fn: Callable[..., Any]) -> Self:
        """Without kernels as yet."""
        return cls(function.samples, function.length, function=function, fn=fn)

    def fill(self, optimize: Optimize, settings: Mapping[str, Any], deadline: Deadline) -> None:
        """Search at the first batch, and take its muGraph over to the others while there is time."""
        like, wanted = None, [*self.function.masked.items()]
        for number, (size, masked) in enumerate(wanted):
            if deadline.passed and self.tables:
                break
            share = 1 / (len(wanted) - number) if like is not None else _ANCHOR
            table = CapacityTable(masked, fn=self.fn, accepts=partial(self.function.is_run_by, size))
            table.fill(optimize, settings, Deadline(deadline.share(share)), like, few=True)
            if table.kernels:
                self.tables[size], like = table, table.kernels[max(table.kernels)].graph
        if any(table.own for table in self.tables.values()) and 2 * min(self.tables) <= self.samples.dim.high:
            self.chunk = self._seconds_of_chunks()

    def own(self, length: int) -> dict[int, float]:
        """Seconds of the function itself at a length, by batch; empty where nothing was measured."""
        return {size: between(table.own, length) for size, table in self.tables.items() if table.own}

    def run(self, sizes: Mapping[str, int]) -> Callable[..., Any]:
        """What answers calls with these sizes, by name."""
        batch, length = sizes[self.samples.dim.name], sizes[self.length.name]
        chunks = self.plan(batch, length).chunks
        brought = next(iter(self.function.masked.values())).brought
        return brought.watching(self.chunked(batch, length, chunks)) if chunks else self.fn

    @property
    def error_bound(self) -> float | None:
        """The probability that some muGraph is wrong; None where one has no bound."""
        bounds = [table.error_bound for table in self.tables.values()]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    @property
    def claim(self) -> str:
        """For which sizes results hold, and why, in words."""
        made = {size: sorted(table.kernels) for size, table in sorted(self.tables.items())}
        batch, length, wrong = self.samples.dim.name, self.length.name, some_wrong_text(self.error_bound)
        sizes = "; ".join(f"{size} of {batch} and up to {', '.join(map(str, held))} of {length}" for size, held in made.items())
        return (
            f"{self.function.claim}. The muGraphs for {sizes} are proved to compute the masked program there and act on samples, "
            f"too, and gave the same bits whatever number lay behind the elements, where calls put no 0; {wrong}"
        )

    def _seconds_of_chunks(self) -> float:
        """Seconds that a chunk costs beside its kernels, at the smallest sizes."""
        size, length = min(self.tables), self.length.low
        table, chunks = self.tables[size], (Chunk(0, size), Chunk(size, size))
        machine = next(iter(table.kernels.values())).executable.machine
        alone = table.masked.resized(length)
        two = [
            tensor if dim is None else torch.cat([tensor, tensor], dim)
            for tensor, dim in zip(alone, self.samples.inputs, strict=True)
        ]
        calls = {}
        for name, run, given in (
            ("alone", table.fastest(length), alone),
            ("two", self.chunked(2 * size, length, chunks), two),
        ):
            args, kwargs = tree_unflatten(given, table.masked.structure)
            calls[name] = machine.timed(partial(run, *args, **kwargs)).run
        with torch.inference_mode():
            seconds = medians(calls, _ROUNDS, _SECONDS)
        return max(seconds["two"] / 2 - seconds["alone"], 0.0)
