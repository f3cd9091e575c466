"""Graphs of `torch.compile` with one symbolic size along which slices are independent: a few sizes are optimized and cover all.

The calls of such a graph have rules (`mugraph.frontend.symbolic_axis`): each slice of a result is the same function of slices of
the arguments, at every size. So it runs in chunks (docs/theory.md, "Any size from slices"), whatever runs the parts of a chunk,
kernels or PyTorch's own calls. Sizes of the table are a factor of four apart; they are added when a call is larger than twice all
of them, so there are as many as the logarithm of the largest size, up to a limit.
"""

from __future__ import annotations

import functools
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.frontend.graph_passes import owner_of
from mugraph.frontend.node_traits import mutates
from mugraph.frontend.symbolic_axis import SizeMatters, axis_of, check_slices, with_sizes
from mugraph.integrations.background import Later, Turn
from mugraph.runtime.benchmarking import measure
from mugraph.sizes.chunk_plans import Chunk, Costs
from mugraph.support.deadline import Deadline

Run = Callable[..., Any]

_APART = 4
"""Sizes of the table are powers of this, but for the smallest."""
_SMALLEST = 2
"""PyTorch makes graphs of their own for sizes 0 and 1."""
_REMEMBERED = 4096
"""Sizes of which it is known what runs them, before that is found anew."""
_ROUNDS, _SECONDS = 9, 0.3
"""Calls of a size of the table that are timed, and the most seconds that this takes."""

_log = logging.getLogger("mugraph.torch_compile")


@dataclass(frozen=True, slots=True)
class GraphAxis:
    """Where a graph's arguments and results have the axis: `number` is the argument that is its size."""

    number: int
    inputs: tuple[tuple[int, int], ...]
    """Numbers and dimensions of the arguments that have it."""
    outputs: tuple[tuple[int, int] | None, ...]
    """By result, its dimension and how many elements of it a slice has."""

    @classmethod
    def of(cls, module: fx.GraphModule, numbers: Sequence[int]) -> GraphAxis:
        """The axis of a graph of ATen calls, whose arguments `numbers` decide all sizes.

        Raises SizeMatters, which says why, where slices along it are not independent.
        """
        if len(numbers) != 1:
            raise SizeMatters(f"{len(numbers)} sizes vary")
        graph = with_sizes(module.graph)
        if any(mutates(node) for node in graph.nodes if node.op == "call_function"):
            raise SizeMatters("a call changes a tensor")
        check_slices(graph)
        placeholders = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
        if not placeholders[numbers[0]].node.expr.is_symbol:
            raise SizeMatters("no argument is the size itself")
        inputs = tuple(
            (number, dim)
            for number, value in enumerate(placeholders)
            if isinstance(value, torch.Tensor) and (dim := axis_of(value)) is not None
        )
        if any(placeholders[number].shape[dim].node.expr != placeholders[numbers[0]].node.expr for number, dim in inputs):
            raise SizeMatters("an argument has several elements for each slice")
        if not all(placeholders[number].is_contiguous() for number, _ in inputs):
            raise SizeMatters("an argument is not contiguous")
        (output,) = (node for node in graph.nodes if node.op == "output")
        if not isinstance(output.args[0], (tuple, list)):
            raise SizeMatters("it does not return a tuple")
        owners = [owner_of(node) for node in output.args[0] if isinstance(node, fx.Node)]
        if len({*owners}) < len(owners):
            raise SizeMatters("results share memory")
        results = [node.meta.get("val") if isinstance(node, fx.Node) else node for node in output.args[0]]
        return cls(numbers[0], inputs, tuple(_place(result) for result in results))

    def resized(self, arguments: Sequence[Any], size: int) -> list[Any]:
        """Arguments of another size, their slices repeated or left out."""
        made = list(arguments)
        made[self.number] = size
        for number, dim in self.inputs:
            rows = torch.arange(size, device=arguments[number].device) % arguments[number].shape[dim]
            made[number] = arguments[number].index_select(dim, rows)
        return made

    def cut(self, arguments: Sequence[Any], start: int, size: int) -> list[Any]:
        """The slices from `start` on, contiguous where dimensions before theirs would be strided."""
        made = list(arguments)
        made[self.number] = size
        for number, dim in self.inputs:
            part = arguments[number].narrow(dim, start, size)
            made[number] = part if dim == 0 else part.contiguous()
        return made


def _place(result: Any) -> tuple[int, int] | None:
    """Where a result has the axis; raises SizeMatters for one that could not be put together as it would lie in memory."""
    if not isinstance(result, torch.Tensor):
        if result is None:
            return None
        raise SizeMatters(f"it returns a {type(result).__name__}")
    dim = axis_of(result)
    if dim is None:
        return None
    if not result.is_contiguous():
        raise SizeMatters("a result is not contiguous")
    size: Any = result.shape[dim]
    return dim, int(size.node.expr.as_coeff_Mul()[0])


class CoveredGraph:
    """A graph as it runs at any size (`general`), and in chunks by what `specialized` makes of its arguments for a few sizes.

    At most `limit` sizes are optimized, those that one call asks for within `budget` seconds together (None: no limit), of which
    `specialized` is told its share. Safe to call from several threads: while one waits for kernels, the others run the
    general graph, and all do where they are made in the background, by `later`. What `specialized` raises is reported, and the
    general graph runs; with `strict` it is raised.
    """

    def __init__(
        self,
        general: Run,
        specialized: Callable[[Sequence[Any], float | None], Run],
        axis: GraphAxis,
        limit: int,
        budget: float | None = None,
        strict: bool = False,
        later: Later | None = None,
    ) -> None:
        self.general, self.specialized, self.axis, self.limit, self.strict = general, specialized, axis, limit, strict
        self.budget = budget
        self.table: dict[int, Run] = {}
        self.runs: dict[int, Run] = {}
        """By size, what runs it."""
        self.costs = Costs({})
        self._failed = False
        self._turn = Turn(later)

    def __call__(self, *arguments: Any) -> Any:
        run = self.runs.get(arguments[self.axis.number])
        return self._found(arguments)(*arguments) if run is None else run(*arguments)

    def _found(self, arguments: Sequence[Any]) -> Run:
        size: int = arguments[self.axis.number]
        if size < _SMALLEST or self._failed:
            return self.general
        self._turn.take(functools.partial(self._find, size, arguments), quick=not self._missing(size))
        return self.runs.get(size, self.general)

    def _find(self, size: int, arguments: Sequence[Any]) -> None:
        try:
            self._fill(size, arguments)
            if size not in self.runs:
                if len(self.runs) >= _REMEMBERED:
                    self.runs.clear()
                self.runs[size] = self._run(size)
        except Exception:  # a model must run whatever goes wrong in here
            self._failed = True
            if self.strict:
                raise
            _log.warning("optimizing a graph for any size failed, it runs without; please report this", exc_info=True)

    def _fill(self, size: int, arguments: Sequence[Any]) -> None:
        """Optimize for sizes that cover this one well; those after the first take over what was found for it."""
        missing, deadline = self._missing(size), Deadline(self.budget)
        for left, wanted in zip(range(len(missing), 0, -1), missing, strict=True):
            _log.info("a graph is optimized for size %d, to cover others (%d of %d)", wanted, len(self.table) + 1, self.limit)
            self._measure(wanted, self.axis.resized(arguments, wanted), deadline.share(1 / min(left, 2)))

    def _missing(self, size: int) -> list[int]:
        """The sizes that are to be optimized for this one."""
        missing: list[int] = []
        wanted = _SMALLEST
        while len(self.table) + len(missing) < self.limit and (wanted <= size or size > 2 * wanted // _APART):
            if wanted not in self.table:
                missing.append(wanted)
            wanted *= _APART
        return missing

    def _measure(self, size: int, arguments: Sequence[Any], seconds_left: float | None) -> None:
        run = self.specialized(arguments, seconds_left)
        with _disable_current_modes(), torch.no_grad():
            calls = {"ours": lambda: run(*arguments), "general": lambda: self.general(*arguments)}
            seconds = {name: statistics.median(each) for name, each in measure(calls, _ROUNDS, budget=_SECONDS).items()}
        self.table[size] = run
        kernels = {**self.costs.kernels, size: seconds["ours"]}
        self.costs = Costs(kernels, {**self.costs.own, size: seconds["general"]})
        self.runs.clear()  # there may be better plans

    def _run(self, size: int) -> Run:
        """What runs a size: chunks, unless the general graph is known to be faster."""
        chunks: Sequence[Chunk] = self.costs.plan(size).chunks
        if not chunks:
            return self.general
        if len(chunks) == 1 and chunks[0].size == size:
            return self.table[size]
        runs = [(start, length, self.table[length]) for start, length in chunks]

        def run(*arguments: Any) -> list[Any]:
            if runs[0][1] > size:
                made = runs[0][2](*self.axis.resized(arguments, runs[0][1]))
                return [self._first(*pair, size) for pair in zip(made, self.axis.outputs, strict=True)]
            return self._joined([part(*self.axis.cut(arguments, start, length)) for start, length, part in runs], chunks)

        return run

    def _first(self, output: Any, place: tuple[int, int] | None, size: int) -> Any:
        return output if place is None else output.narrow(place[0], 0, size * place[1]).contiguous()

    def _joined(self, parts: Sequence[Sequence[Any]], chunks: Sequence[Chunk]) -> list[Any]:
        """Results of chunks as one, without what the last repeats of those before it."""
        repeated = sum(chunk.size for chunk in chunks) - (chunks[-1].start + chunks[-1].size)
        made: list[Any] = []
        for place, outputs in zip(self.axis.outputs, zip(*parts, strict=True), strict=True):
            if place is None:
                made.append(outputs[0])
                continue
            dim, width = place
            last = outputs[-1].narrow(dim, repeated * width, (chunks[-1].size - repeated) * width)
            made.append(torch.cat([*outputs[:-1], last], dim))
        return made
