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
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.integrations.background import Turn
from mugraph.integrations.graph_axis import GraphAxis
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

    At most `limit` sizes are optimized, those that one call asks for within `budget` seconds together (None: no limit), of which
    `specialized` is told its share. Safe to call from several threads: while one waits for kernels, the others run the
    general graph, and all do where they are made in the background; graphs that share a `turn` wait for one of them at a time.
    What `specialized` raises is reported, and no further sizes are optimized: those that are run on. With `strict` it is raised.
    """

    def __init__(
        self,
        general: Run,
        specialized: Callable[[Sequence[Any], float | None], Run],
        axis: GraphAxis,
        limit: int,
        budget: float | None = None,
        strict: bool = False,
        turn: Turn | None = None,
    ) -> None:
        self.general, self.specialized, self.axis, self.limit, self.strict = general, specialized, axis, limit, strict
        self.budget = budget
        self.table: dict[int, Run] = {}
        self.runs: dict[int, Run] = {}
        """By size, what runs it."""
        self.costs = Costs({})
        self._failed = False
        self._turn = turn or Turn()

    def __call__(self, *arguments: Any) -> Any:
        run = self.runs.get(self.axis.size(arguments))
        return self._found(arguments)(*arguments) if run is None else run(*arguments)

    def _found(self, arguments: Sequence[Any]) -> Run:
        size = self.axis.size(arguments)
        if size < self.axis.smallest:
            return self.general
        self._turn.take(functools.partial(self._find, size, arguments), quick=not self._missing(size))
        return self.runs.get(size, self.general)

    def _find(self, size: int, arguments: Sequence[Any]) -> None:
        try:
            self._fill(size, arguments)
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
        for left, wanted in zip(range(len(missing), 0, -1), missing, strict=True):
            _log.info("a graph is optimized for size %d, to cover others (%d of %d)", wanted, len(self.table) + 1, self.limit)
            self._measure(wanted, self.axis.resized(arguments, wanted), deadline.share(1 / min(left, 2)))

    def _missing(self, size: int) -> list[int]:
        """The sizes that are to be optimized for this one; none after one of them failed."""
        missing: list[int] = []
        if self._failed:
            return missing
        wanted = self.axis.smallest
        while len(self.table) + len(missing) < self.limit and (wanted <= size or size > 2 * wanted // _APART):
            if wanted not in self.table:
                missing.append(wanted)
            wanted *= _APART
        return missing

    def _measure(self, size: int, arguments: Sequence[Any], seconds_left: float | None) -> None:
        run = self.specialized(arguments, seconds_left)
        firsts: dict[int, Run] = {}
        if isinstance(run, SlicedGraph):
            parts = some_first(size, self.axis.smallest)
            firsts = {part: functools.partial(run.first, *self.axis.resized(arguments, part)) for part in parts}
        with _disable_current_modes(), torch.no_grad():
            calls: dict[str, Run] = {"ours": lambda: run(*arguments)}
            calls |= {f"{part}": first for part, first in firsts.items()}
            calls |= {"general": lambda: self.general(*arguments)}
            seconds = medians(calls, _ROUNDS, _SECONDS)
        self.table[size] = run
        kernels = {**self.costs.kernels, size: seconds["ours"]}
        shares = {part: seconds[f"{part}"] / seconds["ours"] for part in firsts}
        in_part = {**self.costs.parts, **({size: {**shares, size: 1.0}} if shares else {})}
        self.costs = Costs(kernels, {**self.costs.own, size: seconds["general"]}, parts=in_part)
        self.runs.clear()  # there may be better plans

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
