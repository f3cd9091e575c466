"""Graphs of `torch.compile` with an axis along which slices are independent: a few sizes are optimized and cover all.

Each slice of a result is the same function of slices of the arguments, at every size of the axis, which is symbolic
(`mugraph.integrations.graph_axis`). So the graph runs in chunks (docs/theory.md, "Any size from slices"), whatever runs the parts
of a chunk, kernels or PyTorch's own calls. Where kernels run all of it, they may compute the first slices of a larger size alone
(`mugraph.integrations.sliced_graph`). Sizes of the table are a factor of four apart; they are added when a call is larger
than twice all of them, so there are as many as the logarithm of the largest size, up to a limit.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.integrations.background import Turn
from mugraph.integrations.graph_axis import GraphAxis
from mugraph.integrations.own_arguments import OwnArguments
from mugraph.integrations.sliced_graph import SlicedGraph
from mugraph.runtime.benchmarking import medians
from mugraph.sizes.chunk_plans import Chunk, Costs
from mugraph.sizes.covering import joined
from mugraph.sizes.sliced_kernels import some_first
from mugraph.support.deadline import Deadline

Run = Callable[..., Any]

_APART = 4
"""Sizes of the table are powers of this, but for the smallest."""
_REMEMBERED = 4096
"""Sizes of which it is known what runs them, before that is found anew."""
_ROUNDS, _SECONDS = 9, 0.3
"""Calls of a size of the table that are timed, and the most seconds that this takes."""

_log = logging.getLogger("mugraph.torch_compile")


class CoveredGraph:
    """A graph as it runs at any size (`general`), and in chunks by what `specialized` makes of its arguments for a few sizes.

    At most `limit` sizes have kernels, those that one call asks for within `budget` seconds together (None: no limit), of which
    `specialized` is told its share. Safe to call from several threads: while one waits for kernels, the others run the
    general graph, and all do where they are made in the background; graphs that share a `turn` wait for one of them at a time.
    Where that returns None, as there are no kernels, calls of the size are no chunks: each would read all weights once more.
    With `ahead` above 1 a call asks for sizes that serve calls up to so many times its size, the largest first, and where kernels
    for one compute first slices alone, there are none for the next smaller one.
    What `specialized` raises is reported, and no further sizes are optimized: those that are run on. With `strict` it is raised.
    """

    def __init__(
        self,
        general: Run,
        specialized: Callable[[Sequence[Any], float | None], Run | None],
        axis: GraphAxis,
        limit: int,
        budget: float | None = None,
        strict: bool = False,
        turn: Turn | None = None,
        ahead: int = 1,
    ) -> None:
        self.general, self.specialized, self.axis, self.limit, self.strict = general, specialized, axis, limit, strict
        self.budget, self.ahead = budget, ahead
        self.table: dict[int, Run] = {}
        self.runs: dict[int, Run] = {}
        """By size, what runs it."""
        self.costs = Costs({})
        self._left_out = set[int]()
        """Sizes that are in no table: there are no kernels for them, or the first slices of the next larger one serve."""
        self._failed = False
        self._turn = turn or Turn()

    def __call__(self, *arguments: Any) -> Any:
        run = self.runs.get(self.axis.size(arguments))
        return self._found(arguments)(*arguments) if run is None else run(*arguments)

    def _found(self, arguments: Sequence[Any]) -> Run:
        size = self.axis.size(arguments)
        if size < self.axis.smallest:
            return self.general
        self._turn.take(functools.partial(self._find, size), arguments, quick=not self._missing(size))
        return self.runs.get(size, self.general)

    def _find(self, size: int, given: OwnArguments) -> None:
        try:
            self._fill(size, given.given)
        except Exception:  # a model must run whatever goes wrong in here
            self._failed = True
            if self.strict:
                raise
            without = f"those of {len(self.table)} are kept" if self.table else "it runs without"
            _log.warning("optimizing a graph for another size failed, %s; please report this", without, exc_info=True)
        if size not in self.runs:
            if len(self.runs) >= _REMEMBERED:
                self.runs.clear()
            self.runs[size] = self._run(size)

    def _fill(self, size: int, arguments: Sequence[Any]) -> None:
        """Optimize for sizes that cover this one well; those after the first take over what was found for it."""
        missing, deadline = self._missing(size), Deadline(self.budget)
        for left, wanted in zip(range(len(missing), 0, -1), missing if self.ahead == 1 else reversed(missing), strict=True):
            if self.ahead > 1 and isinstance(self.table.get(_APART * wanted), SlicedGraph):
                self._left_out.add(wanted)
                continue
            _log.info("a graph is optimized for size %d, to cover others (%d of %d)", wanted, len(self.table) + 1, self.limit)
            self._measure(wanted, self.axis.resized(arguments, wanted), deadline.share(1 / min(left, 2)))

    def _missing(self, size: int) -> list[int]:
        """The sizes that are to be optimized for this one; none after one of them failed."""
        missing: list[int] = []
        if self._failed or (self.ahead > 1 and size <= max((*self.table, *self._left_out), default=0)):
            return missing
        wanted = self.axis.smallest
        while len(self.table) + len(missing) < self.limit and (wanted <= size or self.ahead * size > 2 * wanted // _APART):
            if wanted not in self.table and wanted not in self._left_out:
                missing.append(wanted)
            wanted *= _APART
        return missing

    def _measure(self, size: int, arguments: Sequence[Any], seconds_left: float | None) -> None:
        run = self.specialized(arguments, seconds_left)
        if run is None:
            self._leave_out(size, arguments)
            return
        firsts: dict[int, Run] = {}
        if isinstance(run, SlicedGraph):
            parts = some_first(size, self.axis.smallest)
            firsts = {part: functools.partial(run.first, *self.axis.resized(arguments, part)) for part in parts}
        with _disable_current_modes(), torch.no_grad():
            made = self.general(*arguments)
            calls: dict[str, Run] = {"ours": lambda: run(*arguments)}
            calls |= {f"{part}": first for part, first in firsts.items()}
            calls |= {"general": lambda: self.general(*arguments), "padding": lambda: self._padded(arguments, made, size)}
            calls |= {"chunk": lambda: self._taken_out_and_joined(arguments, made, size)}
            seconds = medians(calls, _ROUNDS, _SECONDS)
        self.table[size] = run
        kernels = {**self.costs.kernels, size: seconds["ours"]}
        shares = {part: seconds[f"{part}"] / seconds["ours"] for part in firsts}
        in_part = {**self.costs.parts, **({size: {**shares, size: 1.0}} if shares else {})}
        beside = {each: max(seconds[each], getattr(self.costs, each)) for each in ("chunk", "padding")}
        self.costs = Costs(kernels, {**self.costs.own, size: seconds["general"]}, parts=in_part, **beside)
        self.runs.clear()  # there may be better plans

    def _leave_out(self, size: int, arguments: Sequence[Any]) -> None:
        """Have a size without kernels run by what covers it, which is chosen by what the general graph takes for it."""
        with _disable_current_modes(), torch.no_grad():
            (seconds,) = medians({"general": lambda: self.general(*arguments)}, _ROUNDS, _SECONDS).values()
        self._left_out.add(size)
        self.costs = replace(self.costs, own={**self.costs.own, size: seconds})
        self.runs.clear()
        _log.info("a graph has no kernels for size %d, which others cover", size)

    def _taken_out_and_joined(self, arguments: Sequence[Any], made: Sequence[Any], size: int) -> None:
        """What a chunk of this size takes beside what runs it, as one of two."""
        self.axis.cut(arguments, 0, size)
        joined([self.axis.flat(made)] * 2, (Chunk(0, size), Chunk(size, size)), self.axis.outputs)

    def _padded(self, arguments: Sequence[Any], made: Sequence[Any], size: int) -> None:
        """What padding to this size takes beside what runs it."""
        self.axis.resized(arguments, size)
        for output, place in zip(self.axis.flat(made), self.axis.outputs, strict=True):
            self._first(output, place, size - 1)

    def _run(self, size: int) -> Run:
        """What runs a size: chunks, unless the general graph is known to be faster."""
        chunks: Sequence[Chunk] = self.costs.plan(size).chunks
        if not chunks:
            return self.general
        if len(chunks) == 1 and chunks[0].size == size and not self.axis.of_rows:
            return self.table[size]
        only = self.table[chunks[0].size]
        if chunks[0].size > size and isinstance(only, SlicedGraph):
            return only.first
        runs = [(start, length, self.table[length]) for start, length in chunks]

        def run(*arguments: Any) -> list[Any]:
            if runs[0][1] > size:
                made = self.axis.flat(runs[0][2](*self.axis.resized(arguments, runs[0][1])))
                return self.axis.shaped(
                    arguments, [self._first(*each, size) for each in zip(made, self.axis.outputs, strict=True)]
                )
            parts = [self.axis.flat(part(*self.axis.cut(arguments, start, length))) for start, length, part in runs]
            return self.axis.shaped(arguments, joined(parts, chunks, self.axis.outputs))

        return run

    def _first(self, output: Any, place: tuple[int, int] | None, size: int) -> Any:
        if place is None:
            return output
        part = output.narrow(place[0], 0, size * place[1])
        return part.flatten().view(part.shape)  # with the strides of its own shape where dimensions before have one element, too
