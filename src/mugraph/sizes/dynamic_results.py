"""One result for a range of sizes of a function's dimensions.

Where the function acts on slices along its dynamic dimension (`mugraph.sizes.sliced_functions`), a table of sizes is searched,
proved and measured, and every other size is put together of these at once. Where the dimension is reduced by operators that can
be masked (`mugraph.sizes.masked_functions`), kernels of a few capacities run every size that they hold. Two dimensions that stand
side by side are one where the function does the same to every row (`mugraph.sizes.row_functions`); of a batch and a length
kernels of a few batches at a few capacities run both (`mugraph.sizes.batched_functions`). Elsewhere kernels are made for each
size at its first call, by the muGraph that won at the nearest size of the table: its structure is known, so it is scheduled,
compiled, proved and compared with float64 at the new size, and neither searched nor measured again.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.frontend import require_torch
from mugraph.results.data import Shared
from mugraph.results.serialization import BATCHES, CAPACITIES, kind_of, read_manifest
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER
from mugraph.runtime.benchmarking import measure
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, Costs, between
from mugraph.sizes.dims import Declared, Dynamic, Sizes
from mugraph.support.deadline import Deadline

if TYPE_CHECKING:
    from mugraph.ir.graph import Graph
    from mugraph.sizes.batched_results import BatchTable
    from mugraph.sizes.capacity_results import CapacityTable
    from mugraph.sizes.covering import Covering
    from mugraph.sizes.loaded_capacities import LoadedCapacities
    from mugraph.sizes.row_functions import RowFunction
    from mugraph.sizes.row_results import RowResults
    from mugraph.sizes.saved_batches import LoadedBatches
    from mugraph.sizes.saved_sizes import LoadedRows, LoadedSizes
    from mugraph.sizes.sliced_functions import SlicedFunction
    from mugraph.sizes.sliced_kernels import InPart

Optimize = Callable[..., Superoptimized]
"""`mugraph.superoptimize`."""

_WANTED = 0.85
"""The speed that every size is to have beside kernels made for it."""
_APART = 4
"""Neighbours in a table differ by this factor at most: what is not measured is known from them."""
_MOST = 16
"""Sizes of a table at most."""
_ANCHORS = 0.6
"""The part of the budget for the sizes that are searched freely; the others take over what was found there."""
_LOOKED_AT = 512
"""Sizes of a range that are looked at for the slowest."""
_ROUNDS, _SECONDS = 30, 1.0
"""In which all sizes of a table are timed beside each other, and how long at most."""


class DynamicSuperoptimized(Shared):
    """The result of `mugraph.superoptimize(..., dynamic=...)`: call it like the function it replaces, with any declared sizes.

    `sliced` says why sizes are put together of those in `table`, `capacities` that they are run by kernels for larger ones,
    `rows` that two dimensions are run as one, `batches` that one is cut into chunks and the other run by kernels for larger ones.
    Where all are None, `reason` says why, and the first call with new sizes compiles
    for them, which takes about a second; threads that need them wait for it.
    """

    def __init__(self, fn: Callable[..., Any], dynamic: Dynamic, settings: Mapping[str, Any], optimize: Optimize) -> None:
        self.fn, self.settings = fn, dict(settings)
        self.declared = Declared.of(dynamic)
        self.dims = self.declared.dims
        self.sliced: SlicedFunction | None = None
        self.capacities: CapacityTable | None = None
        self.rows: RowResults[DynamicSuperoptimized] | None = None
        self.batches: BatchTable | None = None
        self.reason = ""
        self.table: dict[Sizes, Superoptimized] = {}
        """The sizes that were searched and measured."""
        self.specializations: dict[Sizes, Superoptimized] = {}
        """All sizes that were compiled for so far."""
        self.costs = Costs({})
        """Of a function that acts on slices."""
        self.in_part: dict[int, InPart] = {}
        """And which kernels of the table compute their first slices alone, by size."""
        self._optimize = optimize
        places = [(dim.name, argument, position) for argument, dims in dynamic.items() for position, dim in dims.items()]
        self._first = [next((where, at) for name, where, at in places if name == wanted) for wanted in self.dims]
        self._runs: dict[Sizes, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns for these arguments; raises ShapeMismatch for sizes outside the declared ranges."""
        sizes = self._sizes_at_once(args)
        run = self._runs.get(sizes)
        if run is None or kwargs:
            sizes = self.declared.sizes_of(args, kwargs)
            run = self._runs.get(sizes)
        if run is None:
            run = self._runs[sizes] = self._run(sizes, args, kwargs)
        try:
            return run(*args, **kwargs)
        except ShapeMismatch:
            self.declared.sizes_of(args, kwargs)  # which says where sizes disagree
            raise

    def _sizes_at_once(self, args: Sequence[Any]) -> Sizes:
        """The sizes that the first arguments with them say, where what runs then looks at the others."""
        if not self._is_for_all_sizes:
            return ()
        sizes = []
        for argument, position in self._first:
            if isinstance(argument, str) or argument >= len(args):
                return ()
            shape = getattr(args[argument], "shape", ())
            if not -len(shape) <= position < len(shape):
                return ()
            sizes.append(shape[position])
        return tuple(sizes)

    @property
    def _is_for_all_sizes(self) -> bool:
        """Whether what was made runs every size."""
        return any(each is not None for each in (self.sliced, self.capacities, self.rows, self.batches))

    def at(self, *args: Any, **kwargs: Any) -> Superoptimized:
        """The result for these very sizes of arguments, made now if they are new."""
        sizes = self.declared.sizes_of(args, kwargs)
        if sizes not in self.specializations:
            with self._lock:
                if sizes not in self.specializations:
                    self.specializations[sizes] = self._optimized(args, kwargs, profile=False, like=self._like(sizes))
        return self.specializations[sizes]

    def _like(self, sizes: Sizes) -> Graph | None:
        """The muGraph that was best at the nearest sizes; programs in a function are searched for each size."""
        nearest = self.table[self.nearest(sizes)] if self.table else None
        return nearest.graph if nearest is not None and nearest.is_one_program else None

    def plan(self, size: int) -> ChunkPlan:
        """How a size of the one dimension is covered, by slices or by a capacity; raises InvalidInput for other functions."""
        if self.capacities is not None:
            return self.capacities.plan(size)
        if self.rows is not None:
            raise InvalidInput(f"{' and '.join(self.dims)} are run as rows; `rows.plan` says how two sizes are covered")
        if self.batches is not None:
            raise InvalidInput(f"{' and '.join(self.dims)} are two dimensions; `batches.plan` says how two sizes are covered")
        if self.sliced is None:
            raise InvalidInput(f"each size has kernels of its own: {self.reason}")
        self.sliced.dim.check(size)
        return self.costs.plan(size)

    @property
    def claim(self) -> str:
        """For which sizes results hold, and why, in words."""
        if self.rows is not None:
            return self.rows.claim
        if self.batches is not None:
            return self.batches.claim
        if self.capacities is not None:
            return self.capacities.claim
        if self.sliced is None:
            return f"for each size by a certificate of its own, made at its first call ({self.reason})"
        if not self.costs.kernels:
            return f"{self.sliced.claim}. No faster kernels were found for any size of the table, and the function itself answers"
        sizes, bound = ", ".join(map(str, sorted(self.costs.kernels))), self.error_bound
        wrong = "no error bound is claimed" if bound is None else f"one of them is wrong with probability at most {bound:.3g}"
        return (
            f"{self.sliced.claim}. The muGraphs for {sizes} are proved to compute it there and act on slices, too, so that any "
            f"size is slices of their results; {wrong}"
        )

    @property
    def error_bound(self) -> float | None:
        """The probability that some muGraph which others are put together of is wrong; None where one has no bound."""
        if self.rows is not None:
            return self.rows.result.error_bound
        if self.batches is not None:
            return self.batches.error_bound
        if self.capacities is not None:
            return self.capacities.error_bound
        bounds = [self.table[size,].certificate.error_bound for size in self.costs.kernels]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    def sizes_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes:
        """The sizes of the declared dimensions; raises ShapeMismatch where they are out of range or disagree."""
        return self.declared.sizes_of(args, kwargs)

    def nearest(self, sizes: Sizes) -> Sizes:
        """The sizes of the table that differ by the smallest factors."""
        return min(self.table, key=lambda known: (sum(abs(math.log(n / m)) for n, m in zip(known, sizes, strict=True)), known))

    def save(self, path: str | Path) -> Path:
        """Write the table, or the capacities, as a folder that `DynamicSuperoptimized.load` reads (`mugraph.sizes.saved_sizes`,
        `mugraph.sizes.saved_capacities`, `mugraph.sizes.saved_batches`).

        Raises StorageError where each size has kernels of its own, or no capacity holds some, and what saving a result raises.
        """
        from mugraph.sizes import saved_batches, saved_capacities  # loads PyTorch

        if self.batches is not None:
            return saved_batches.save(Path(path), self.batches, self.declared, self.claim)
        if self.capacities is not None:
            return saved_capacities.save(Path(path), self.capacities, self.declared.dynamic, self.claim)
        if self.rows is not None:
            return self.rows.result._save_sizes(Path(path), self.claim, self.rows.function)
        return self._save_sizes(Path(path), self.claim)

    def _save_sizes(self, path: Path, claim: str, of_rows: RowFunction | None = None) -> Path:
        """Write the table of what acts on slices; where these are the rows of two dimensions, say so."""
        from mugraph.sizes import saved_sizes  # loads PyTorch

        if self.sliced is None:
            raise StorageError(f"each size has kernels of its own ({self.reason}); save the results of its `table`")
        table = {size: result for (size,), result in self.table.items() if self.sliced.is_acted_on_by(result.graph)}
        if not table:
            raise StorageError("no muGraph of the table acts on slices, and nothing else is saved")
        costs = replace(self.costs, kernels=_all_seconds(table), own={})
        return saved_sizes.save(path, self.sliced, self.declared.dynamic, table, costs, claim, of_rows)

    @staticmethod
    def load(path: str | Path, trust_sources: bool = False) -> LoadedSizes | LoadedCapacities | LoadedRows | LoadedBatches:
        """What `save` wrote, compiled for this machine; it is called with one tensor per input of the program, in order.

        Raises InvalidInput and UntrustedSources as `mugraph.load` does, which says what `trust_sources` is.
        """
        require_torch(f"to run {path}")
        from mugraph.sizes import loaded_capacities, saved_batches, saved_sizes  # loads PyTorch

        folder = Path(path)
        kind = kind_of(read_manifest(folder))
        if kind == BATCHES:
            return saved_batches.load(folder, trust_sources)
        if kind == CAPACITIES:
            return loaded_capacities.load(folder, trust_sources)
        return saved_sizes.load(folder, trust_sources)

    def _run(self, sizes: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What answers calls with these sizes."""
        if sizes in self.specializations:
            return self.specializations[sizes]
        if not self._is_for_all_sizes:
            return self.at(*args, **kwargs)
        named = dict(zip(self.dims, sizes, strict=True))
        if self.rows is not None:
            return self.rows.run(named)
        if self.batches is not None:
            return self.batches.run(named)
        (size,) = sizes
        if self.capacities is not None:
            return self.capacities.run(size)
        plan = self.costs.plan(size)
        return self.covering(size, plan.chunks) if plan.chunks else self.fn

    def covering(self, size: int, chunks: Sequence[Chunk]) -> Covering:
        """What runs a size by kernels of the table, of a function that acts on slices."""
        from mugraph.sizes.covering import Covering  # loads PyTorch

        assert self.sliced is not None
        table = {size: result for (size,), result in self.table.items()}
        parts = {size: each.kernels for size, each in self.in_part.items() if each.kernels is not None}
        return Covering(self.sliced.calling_at(size), self.sliced.inputs, self.sliced.slice, size, chunks, table, parts)

    def _optimized(self, args: Sequence[Any], kwargs: Mapping[str, Any], **settings: Any) -> Superoptimized:
        if args and kwargs:
            raise InvalidInput("call with positional or with keyword arguments, not with both")
        return self._optimize(self.fn, kwargs or tuple(args), **{**self.settings, **settings})

    def fill(self, sizes: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any], **settings: Any) -> Superoptimized:
        """Search and measure at some sizes, on the example arguments repeated or cut to them."""
        made = self._optimized(*self.declared.resized(sizes, args, kwargs), **settings)
        self.table[sizes] = self.specializations[sizes] = made
        return made

    def __reduce__(self) -> NoReturn:
        raise StorageError("functions optimized for ranges of sizes cannot be pickled; save the results of its `table`")

    def __repr__(self) -> str:
        ranges = ", ".join(f"{dim.name} {dim.low}..{dim.high}" for dim in self.dims.values())
        if self.capacities is not None:
            return f"<DynamicSuperoptimized for {ranges}: {len(self.capacities.kernels)} capacities, which hold all sizes>"
        if self.rows is not None:
            return f"<DynamicSuperoptimized for {ranges}: as rows, {self.rows.result!r}>"
        if self.batches is not None:
            least, low = min(self.batches.tables), self.batches.samples.dim.low
            held = "which hold all sizes" if least <= low else f"the function itself answers below {least}"
            return f"<DynamicSuperoptimized for {ranges}: {len(self.batches.tables)} batches, {held}>"
        covers = "which cover all others" if self.costs.kernels else "none faster than the function itself, which answers"
        how = f"{len(self.specializations)} compiled" if self.sliced is None else covers
        return f"<DynamicSuperoptimized for {ranges}: {len(self.table)} sizes measured, {how}>"


def superoptimized_for_sizes(
    optimize: Optimize,
    fn: Callable[..., Any],
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    dynamic: Dynamic,
    table: Sequence[Mapping[str, int]] | None,
    budget: float | None,
    settings: Mapping[str, Any],
) -> DynamicSuperoptimized:
    """What `mugraph.superoptimize` makes for ranges of sizes, which `optimize` is."""
    args, kwargs = arguments
    result = DynamicSuperoptimized(fn, dynamic, settings, optimize)
    result.declared.sizes_of(args, kwargs)
    listed = None if table is None else result.declared.listed(table)
    require_torch("to optimize PyTorch functions")
    from mugraph.frontend.symbolic_axis import SizeMatters
    from mugraph.sizes.sliced_functions import sliced_function

    deadline = Deadline(budget)
    if listed is None and len(result.dims) == 2:
        result.rows = _rows(result, arguments, deadline)
        if result.rows is None:
            result.batches = _batches(result, arguments, deadline)
        if result.rows is not None or result.batches is not None:
            return result
    try:
        result.sliced = sliced_function(fn, result.declared, args, kwargs, deadline)
    except SizeMatters as error:
        result.reason = result.reason or str(error)
        if listed is None and (capacities := _capacities(result, arguments, deadline)) is not None:
            result.capacities = capacities
            return result
    if result.sliced is None or listed is not None:
        entries = _ends(result.declared) if listed is None else listed
        result.settings["budget"] = None if budget is None else budget / len(entries)
        for number, sizes in enumerate(entries):
            if not number or listed is not None or not deadline.passed:
                result.fill(sizes, args, kwargs, budget=deadline.share(1 / (len(entries) - number)))
        if result.sliced is not None:
            _Table(result, args, kwargs, Deadline(None)).settle()
        return result
    _Table(result, args, kwargs, deadline).fill()
    return result


def _rows(
    result: DynamicSuperoptimized, arguments: tuple[Sequence[Any], Mapping[str, Any]], deadline: Deadline
) -> RowResults[DynamicSuperoptimized] | None:
    """Kernels for rows of both dimensions; None for a function that they cannot run, or of which none are found, and why in
    `reason`."""
    from mugraph.frontend.symbolic_axis import SizeMatters
    from mugraph.sizes.row_functions import row_function
    from mugraph.sizes.row_results import RowResults

    try:
        found = row_function(result.fn, result.declared, *arguments, deadline)
    except SizeMatters as error:
        result.reason = f"its two dimensions are not those of rows: {error}"
        return None
    made = DynamicSuperoptimized(result.fn, found.declared.dynamic, result.settings, result._optimize)
    made.sliced = found.sliced
    sizes = {found.rows.first.name: 1, found.rows.second.name: found.rows.second.low}
    longest = max(found.rows.first.high, found.rows.second.high)
    resized = result.declared.resized(tuple(sizes[name] for name in result.dims), *arguments)
    _Table(made, *resized, deadline, longest).fill()
    result.reason = made.reason
    return None if made.sliced is None else RowResults(found, made)


def _batches(
    result: DynamicSuperoptimized, arguments: tuple[Sequence[Any], Mapping[str, Any]], deadline: Deadline
) -> BatchTable | None:
    """Kernels for a batch and a length; None for a function that they cannot run, or of which none are found, and why in
    `reason`."""
    from mugraph.frontend.symbolic_axis import SizeMatters
    from mugraph.sizes.batched_functions import batched_function
    from mugraph.sizes.batched_results import BatchTable

    try:
        found = batched_function(result.fn, result.declared, *arguments, deadline=deadline)
    except SizeMatters as error:
        result.reason += f"; nor are they a batch and a length: {error}"
        return None
    table = BatchTable.of(found, result.fn)
    table.fill(result._optimize, result.settings, deadline)
    if not table.tables:
        result.reason += "; no kernels were found for any batch"
    return table if table.tables else None


def _capacities(
    result: DynamicSuperoptimized, arguments: tuple[Sequence[Any], Mapping[str, Any]], deadline: Deadline
) -> CapacityTable | None:
    """Kernels of a few capacities; None for a function that they cannot run, or of which none are found, and why in `reason`."""
    from mugraph.frontend.symbolic_axis import SizeMatters
    from mugraph.sizes.capacity_results import CapacityTable
    from mugraph.sizes.masked_functions import masked_function

    try:
        table = CapacityTable(masked_function(result.fn, result.declared, *arguments, deadline), fn=result.fn)
    except SizeMatters as error:
        result.reason += f"; nor can other slots be masked: {error}"
        return None
    table.fill(result._optimize, result.settings, deadline)
    if not table.kernels:
        result.reason += "; no kernels were found for any capacity"
    return table if table.kernels else None


@dataclass(frozen=True, slots=True)
class _Table:
    """The table of a function that acts on slices, while it is filled."""

    result: DynamicSuperoptimized
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    deadline: Deadline
    most: int | None = None
    """The largest size that is searched; that of the range where it is None. Larger ones are several chunks."""

    def fill(self) -> None:
        """Search at the ends and in the middle of the range, then add sizes where others would be slow as far as costs say."""
        assert self.result.sliced is not None
        dim = self.result.sliced.dim
        high = dim.high if self.most is None else max(min(dim.high, self.most), dim.low)
        middle = min(high, max(dim.low, 2 ** round(math.log2(dim.low * high) / 2)))
        anchors = list(dict.fromkeys([high, dim.low, middle]))
        for number, size in enumerate(anchors):
            if not number or not self.deadline.passed:
                share = self.deadline.share(_ANCHORS / len(anchors))
                self.result.fill((size,), self.args, self.kwargs, budget=share)
        self.result.settings["budget"] = None
        self.settle()
        self._improve_all()
        while self._may_grow:
            size = self._missing()
            if size is None:
                break
            self._take_over(size)
            self.settle()
        self._improve_all()

    @property
    def _may_grow(self) -> bool:
        """Whether other sizes can be put together of what is known, and there is room and time to know more."""
        result = self.result
        known = result.sliced is not None and bool(result.costs.kernels or result.costs.own)
        return known and len(result.table) < _MOST and not self.deadline.passed

    def settle(self) -> None:
        """Compute the costs of what may be a part of others; without anything of that kind the function itself runs all sizes."""
        result, sliced = self.result, self.result.sliced
        assert sliced is not None
        kernels: dict[int, Superoptimized] = {}
        for (size,), made in result.table.items():
            if not made.is_one_program:
                result.sliced, result.reason = None, f"at size {size} kernels run parts of it only, which are not put together"
                return
            if not sliced.is_program_of(made.program):
                result.sliced, result.reason = None, f"its program at size {size} is another one than was proved to act on slices"
                return
            if made.found and sliced.is_acted_on_by(made.graph):
                kernels[size] = made
        measured = any(made.report.original_latency is not None for made in result.table.values())
        chunk, padding = (result.costs.chunk, result.costs.padding) if result.costs.kernels else self._of_chunks(kernels)
        seconds, own = self._together(kernels) if measured else (_all_seconds(kernels), {})
        result.costs = Costs(seconds, own, chunk, padding, self._in_part(kernels, measured))

    def _in_part(self, kernels: Mapping[int, Superoptimized], measured: bool) -> dict[int, Mapping[int, float]]:
        """Which part of their time kernels take that compute their first slices alone; those of what is new are made."""
        import torch

        from mugraph.sizes.sliced_kernels import InPart  # loads PyTorch

        result, sliced = self.result, self.result.sliced
        assert sliced is not None
        known, result.in_part = result.in_part, {}
        for size, made in kernels.items():
            if size in known and known[size].executable is made.executable:
                result.in_part[size] = known[size]
            elif size > sliced.dim.low:
                args, kwargs = result.declared.resized((size,), self.args, self.kwargs)
                with torch.no_grad():  # of kernels that are tried nobody wants gradients
                    example = made.calling.flatten(args, kwargs)
                new = InPart.of(made.executable, sliced.inputs, sliced.slice.outputs, example, sliced.dim.low)
                result.in_part[size] = new.measured(example) if measured else new
        return {size: each.parts for size, each in result.in_part.items() if each.kernels is not None}

    def _together(self, kernels: Mapping[int, Superoptimized]) -> tuple[dict[int, float], dict[int, float]]:
        """Seconds of kernels and of the function at the sizes of the table, all in turns: what other programs do meanwhile slows
        down all of them."""
        machine = next(iter(self.result.table.values())).executable.machine
        sizes = [size for (size,) in self.result.table]
        calls = {f"{size}": machine.timed(self._call(size, made)).run for size, made in kernels.items()}
        calls |= {f"own {size}": machine.timed(self._call(size, self.result.fn)).run for size in sizes}
        seconds = {name: statistics.median(each) for name, each in measure(calls, _ROUNDS, budget=_SECONDS).items()}
        return {size: seconds[f"{size}"] for size in kernels}, {size: seconds[f"own {size}"] for size in sizes}

    def _missing(self) -> int | None:
        """The size to add to the table: in the middle between two that are far apart, or between which most sizes would be slow,
        on a logarithmic scale; None if none would be."""
        assert self.result.sliced is not None
        dim, costs = self.result.sliced.dim, self.result.costs
        known = sorted(size for (size,) in self.result.table)
        for low, high in itertools.pairwise(known):
            if high > _APART * low:
                return _middle(low, high)
        step = max((dim.high - dim.low) / _LOOKED_AT, 1)
        looked_at = {round(dim.low + step * number) for number in range(int((dim.high - dim.low) / step) + 1)}
        looked_at |= {size + 1 for size in known if size < dim.high} | {2**power for power in range(dim.high.bit_length())}
        ratios = {size: costs.ratio(size) for size in looked_at if known[0] < size < known[-1] and size not in known}
        slow: dict[tuple[int, int], float] = {}
        for size, ratio in ratios.items():
            if ratio < _WANTED:
                around = max(each for each in known if each < size), min(each for each in known if each > size)
                slow[around] = slow.get(around, 0.0) + 1 / size
        return _middle(*max(slow, key=slow.__getitem__)) if slow else None

    def _take_over(self, size: int) -> None:
        """Fill in a size with the forms of muGraphs that won at its neighbours: the faster of both."""
        known = sorted(each for (each,) in self.result.table)
        around = [max(each for each in known if each < size), min(each for each in known if each > size)]
        found = [self.result.table[each,] for each in around if self.result.table[each,].found]
        made = [
            self.result.fill((size,), self.args, self.kwargs, like=graph, budget=self.deadline.remaining)
            for graph in _different([each.graph for each in found])
        ]
        made.sort(key=lambda each: (_seconds(each) if each.found else None) or math.inf)
        if not made:
            made = [self.result.fill((size,), self.args, self.kwargs, budget=self.deadline.remaining)]
        self.result.table[size,] = self.result.specializations[size,] = made[0]

    def _improve_all(self) -> None:
        """Give sizes of the table the forms of others where these are faster."""
        improved = [size for (size,) in sorted(self.result.table) if self._may_grow and self._improve(size)]
        if improved:
            self.settle()

    def _improve(self, size: int) -> bool:
        """Whether a size of the table was given the form of another, which is faster: one that covers it in less time than its
        own kernels take as far as costs say, or if it has none the nearest. Sizes that are searched have a part of the budget
        each."""
        result, costs, before = self.result, self.result.costs, self.result.table[size,]
        others = {known: seconds for known, seconds in costs.kernels.items() if known != size}
        plan = replace(costs, kernels=others).plan(size)
        covering = next((chunk.size for chunk in plan.chunks), None)
        if not before.found and others:
            covering = min(others, key=lambda known: abs(math.log(known / size)))
        elif covering is None or plan.seconds >= costs.kernels.get(size, math.inf):
            return False
        if covering is None:
            return False
        graph = result.table[covering,].graph
        if before.found and len(_different([before.graph, graph])) == 1:
            return False
        after = result.fill((size,), self.args, self.kwargs, like=graph, budget=self.deadline.remaining)
        if after.found and (not before.found or self._is_faster(size, after, before)):
            return True
        result.table[size,] = result.specializations[size,] = before
        return False

    def _is_faster(self, size: int, one: Superoptimized, other: Superoptimized) -> bool:
        """Whether one of two results for a size is the faster one, as measured in turns or as far as is known."""
        if None in (one.report.original_latency, other.report.original_latency):
            return (_seconds(one) or math.inf) < (_seconds(other) or math.inf)
        timed = one.executable.machine.timed
        calls = {name: timed(self._call(size, run)).run for name, run in (("one", one), ("other", other))}
        seconds = {name: statistics.median(each) for name, each in measure(calls, _ROUNDS, budget=_SECONDS).items()}
        return seconds["one"] < seconds["other"]

    def _of_chunks(self, kernels: Mapping[int, Superoptimized]) -> tuple[float, float]:
        """Seconds that a chunk costs beside its kernels, and that padding does, as measured at the smallest size."""
        if not kernels or not kernels[min(kernels)].executable.machine.available:
            return 0.0, 0.0
        size = min(kernels)
        result = kernels[size]
        runs: dict[str, tuple[int, Callable[..., Any]]] = {"alone": (size, result)}
        runs["two"] = 2 * size, self.result.covering(2 * size, [Chunk(0, size), Chunk(size, size)])
        if size > 1:
            runs["padded"] = size - 1, self.result.covering(size - 1, [Chunk(0, size)])
        calls = {name: self._call(*run) for name, run in runs.items()}
        timed = {name: result.executable.machine.timed(call).run for name, call in calls.items()}
        seconds = {name: statistics.median(each) for name, each in measure(timed, _ROUNDS).items()}
        chunk = max(seconds["two"] / 2 - seconds["alone"], 0.0)
        return chunk, max(seconds.get("padded", seconds["alone"] + 2 * chunk) - seconds["alone"], 0.0)

    def _call(self, size: int, run: Callable[..., Any]) -> Callable[[], object]:
        """A call with the example arguments at a size, of which nobody wants gradients."""
        import torch

        args, kwargs = self.result.declared.resized((size,), self.args, self.kwargs)

        def call() -> object:
            with torch.inference_mode():
                return run(*args, **kwargs)

        return call


def _all_seconds(results: Mapping[int, Superoptimized]) -> dict[int, float]:
    """Seconds of a call by size: where nothing is known of a result, as of a program that nobody timed, by those of other sizes,
    or in proportion to its size."""
    found = {size: _seconds(result) for size, result in results.items()}
    known = {size: seconds for size, seconds in found.items() if seconds is not None} or {1: 1.0}
    return {size: between(known, size) for size in results}


def _seconds(result: Superoptimized) -> float | None:
    """Seconds of a call: measured beside the function, alone, or predicted; None where nothing is known."""
    duel = result.report.baselines.get(EAGER)
    if duel is not None and duel.ours is not None:
        return duel.ours.median
    return next((each for each in (result.best.latency, result.best.cost) if each is not None), None)


def _middle(low: int, high: int) -> int | None:
    """A size between two, a power of two where there is one, or one with as few digits in base two as there can be."""
    if high - low < 2:
        return None
    aim = math.sqrt(low * high)
    for power in range(high.bit_length(), -1, -1):
        step = 1 << power
        inside = [size for size in (int(aim) // step * step, (int(aim) // step + 1) * step) if low < size < high]
        if inside:
            return min(inside, key=lambda size: abs(math.log(size / aim)))
    return None


def _different(graphs: Sequence[Graph]) -> list[Graph]:
    """Graphs, one of each form."""
    from mugraph.selection.structure_key import form_of

    return list({form_of(graph): graph for graph in graphs}.values())


def _ends(declared: Declared) -> list[Sizes]:
    """The ends of each range, and of a single one its geometric middle."""
    ends = [[dim.low, dim.high] for dim in declared.dims.values()]
    if len(declared.dims) == 1:
        (dim,) = declared.dims.values()
        ends[0].append(min(dim.high, 2 ** round(math.log2(dim.low * dim.high) / 2)))
    return sorted(set(itertools.product(*ends)))
