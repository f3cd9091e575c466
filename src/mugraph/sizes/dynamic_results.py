"""One result for a range of sizes of a function's dimensions.

Where the function acts on slices along its dynamic dimension (`mugraph.sizes.sliced_functions`), a table of sizes is searched,
proved and measured, and every other size is put together of these at once, also where kernels run parts of it only
(`mugraph.sizes.pieced_functions`). Where the dimension is reduced by operators that can
be masked (`mugraph.sizes.masked_functions`), kernels of a few capacities run every size that they hold. Two dimensions that stand
side by side are one where the function does the same to every row (`mugraph.sizes.row_functions`); of a batch and a length
kernels of a few batches at a few capacities run both (`mugraph.sizes.batched_functions`). Elsewhere kernels are made for each
size at its first call, by the muGraph that won at the nearest size of the table: its structure is known, so it is scheduled,
compiled, proved and compared with float64 at the new size, and neither searched nor measured again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.frontend import require_torch
from mugraph.results.data import Shared
from mugraph.results.serialization import BATCHES, CAPACITIES, PIECED, kind_of, read_manifest
from mugraph.results.summary import some_wrong_text
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, Costs, between
from mugraph.sizes.dims import Declaration, Declared, Sizes, known_sizes
from mugraph.sizes.stage_times import StageTimes

if TYPE_CHECKING:
    from mugraph.ir.graph import Graph
    from mugraph.sizes.batched_results import BatchTable
    from mugraph.sizes.capacity_results import CapacityTable
    from mugraph.sizes.covering import Covering
    from mugraph.sizes.loaded_capacities import LoadedCapacities
    from mugraph.sizes.loaded_pieced import LoadedPieced
    from mugraph.sizes.pieced_functions import PiecedFunction
    from mugraph.sizes.row_functions import RowFunction
    from mugraph.sizes.row_results import RowResults
    from mugraph.sizes.saved_batches import LoadedBatches
    from mugraph.sizes.saved_sizes import LoadedRows, LoadedSizes
    from mugraph.sizes.sliced_functions import SlicedFunction
    from mugraph.sizes.sliced_kernels import InPart

Optimize = Callable[..., Superoptimized]
"""`mugraph.superoptimize`."""


class DynamicSuperoptimized(Shared):
    """The result of `mugraph.superoptimize(..., dynamic=...)`: call it like the function it replaces, with any declared sizes.

    `sliced` says why sizes are put together of those in `table`, `pieced` that they are where results have kernels for parts of
    the function only, which may be no program (`sliced` is None then), `capacities` that they are run by kernels for larger ones,
    `rows` that two dimensions are run as one, `batches` that one is cut into chunks and the other run by kernels for larger ones.
    Where all are None, `reason` says why, and the first call with new sizes compiles
    for them, which takes about a second; threads that need them wait for it.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        dynamic: Declaration,
        settings: Mapping[str, Any],
        optimize: Optimize,
        times: StageTimes | None = None,
    ) -> None:
        """`times` are where `optimize` is counted already."""
        self.fn, self.settings = fn, dict(settings)
        self.times = StageTimes() if times is None else times
        """What was made so far took so long."""
        self.asked = Declared.of(dynamic)
        """What calls may have, also of size 0, at which the function itself answers."""
        self.declared = self.asked.from_one()
        """What kernels are made for."""
        self.dims = self.declared.dims
        self.sliced: SlicedFunction | None = None
        self.pieced: PiecedFunction | None = None
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
        self._optimize = self.times.counting(optimize) if times is None else optimize
        numbers = {name: number for number, name in enumerate(self.dims)}
        first: dict[int, tuple[Any, int]] = {}
        self._others: list[tuple[Any, int, int]] = []
        """Places of dimensions that stand in several, but for the first of each, with the number of the dimension."""
        for argument, dims in self.asked.dynamic.items():
            for position, dim in dims.items():
                if first.setdefault(number := numbers[dim.name], (argument, position)) != (argument, position):
                    self._others.append((argument, position, number))
        self._first = [first[number] for number in numbers.values()]
        """The first place of each dimension."""
        self._at_once = False
        """Whether what runs known sizes looks at everything else in arguments, or is the function itself."""
        self._runs: dict[Sizes, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns for these arguments; raises ShapeMismatch for sizes outside the declared ranges."""
        run = None if kwargs else self._run_at_once(args)
        if run is None:
            sizes = self.asked.sizes_of(args, kwargs)
            run = self._runs.get(sizes)
            if run is None:
                run = self._runs[sizes] = self._run(sizes, args, kwargs)
        try:
            return run(*args, **kwargs)
        except ShapeMismatch:
            self.asked.sizes_of(args, kwargs)  # which says where sizes disagree
            raise

    def prepare(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Plan the calls of every size, where none is compiled for and there are not too many (`known_sizes`): the first call of
        one then does what a later one does. Where a library runs parts of them, that takes calls: of an example's arguments."""
        if self._is_for_all_sizes:
            self._at_once = True
            self._runs = {sizes: self._run(sizes, (), {}) for sizes in known_sizes(self.dims.values())}
        if self.pieced is not None and (args or kwargs):
            from mugraph.sizes.first_calls import call_each_once, is_of_the_library  # loads PyTorch

            if is_of_the_library(next(iter(self.table.values())).target):
                runs = {size: run for (size,), run in self._runs.items()}
                with suppress(KeyboardInterrupt):  # which ends these calls, and leaves what was found
                    call_each_once(runs, lambda size: self.declared.resized((size,), args, kwargs))
        if self.rows is not None:
            self.rows.result.prepare()

    def _run_at_once(self, args: Sequence[Any]) -> Callable[..., Any] | None:
        """What runs the sizes that arguments have, if all that have one dimension agree and it is known: the function itself
        would take others, too."""
        if not self._at_once:
            return None
        try:
            if len(self._first) == 1:
                ((argument, position),) = self._first
                sizes: Sizes = (args[argument].shape[position],)
            else:
                sizes = tuple([args[argument].shape[position] for argument, position in self._first])
            run = self._runs.get(sizes)
            if self.capacities is None or run is self.fn:  # kernels of a capacity look at all sizes
                for argument, position, number in self._others:
                    if args[argument].shape[position] != sizes[number]:
                        return None
            return run
        except (AttributeError, IndexError, TypeError):  # by keyword, or none that is declared
            return None

    @property
    def _is_for_all_sizes(self) -> bool:
        """Whether what was made runs every size."""
        one = self.sliced is not None or self.pieced is not None or self.capacities is not None
        return one or self.rows is not None or self.batches is not None

    @property
    def slices(self) -> SlicedFunction | PiecedFunction | None:
        """How the function acts on slices, where sizes are put together of others."""
        return self.sliced if self.pieced is None else self.pieced

    def is_of_slices(self, size: int, made: Superoptimized) -> bool:
        """Whether others are put together of a result for a size: what runs in it acts on slices, too."""
        from mugraph.pieces.data import PartitionedResult  # loads PyTorch

        if isinstance(made, PartitionedResult):
            return self.pieced is not None and self.pieced.is_put_together_of(made, size)
        return self.pieced is None and self.sliced is not None and self.sliced.is_acted_on_by(made.graph)

    def at(self, *args: Any, **kwargs: Any) -> Superoptimized:
        """The result for these very sizes of arguments, made now if they are new; raises ShapeMismatch for those that none can
        have."""
        sizes = self.asked.sizes_of(args, kwargs)
        if 0 in sizes:
            raise ShapeMismatch("nothing is made for calls with a dimension of size 0: the function itself answers them")
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
        if self.slices is None:
            raise InvalidInput(f"each size has kernels of its own: {self.reason}")
        self.slices.dim.check(size)
        return self._planned(size)

    def _planned(self, size: int) -> ChunkPlan:
        """How a size is put together of others: not where its own kernels run it alone, nor below the least that may be."""
        if size in self.costs.alone:
            return ChunkPlan((Chunk(0, size),), self.costs.alone[size])
        alone = self.pieced is not None and size < self.pieced.least
        return (replace(self.costs, kernels={}, parts={}) if alone else self.costs).plan(size)

    @property
    def claim(self) -> str:
        """For which sizes results hold, and why, in words."""
        empty = " and ".join(name for name, dim in self.asked.dims.items() if dim.low == 0)
        return f"{self._claim}. The function itself answers where {empty} is 0" if empty else self._claim

    @property
    def _claim(self) -> str:
        """The same of sizes from 1 on."""
        if self.rows is not None:
            return self.rows.claim
        if self.batches is not None:
            return self.batches.claim
        if self.capacities is not None:
            return self.capacities.claim
        if self.slices is None:
            return f"for each size by a certificate of its own, made at its first call ({self.reason})"
        alone = ", ".join(map(str, sorted(self.costs.alone)))
        if not self.costs.kernels and alone:
            return f"{self.slices.claim}. Kernels for {alone} run these sizes alone, and the function itself answers at others"
        return self._claim_of_slices() + (
            f". Kernels for {alone} run these sizes alone, by certificates of their own" if alone else ""
        )

    def _claim_of_slices(self) -> str:
        """The claim where sizes are put together of others."""
        assert self.slices is not None
        if not self.costs.kernels:
            return f"{self.slices.claim}. No faster kernels were found for any size of the table, and the function itself answers"
        sizes, wrong = ", ".join(map(str, sorted(self.costs.kernels))), some_wrong_text(self.error_bound)
        if self.pieced is not None:
            proved = any(self.table[size,].results for size in self.costs.kernels)
            return f"{self.pieced.claim_of(sizes)}; {wrong}" if proved else self.pieced.claim_of(sizes, proved=False)
        return (
            f"{self.slices.claim}. The muGraphs for {sizes} are proved to compute it there and act on slices, too, so that any "
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
        bounds = [each.certificate.error_bound for size in self.costs.kernels for each in self.table[size,].results]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    @property
    def brings_gradients(self) -> bool:
        """Whether a tensor that the function brings along requires a gradient."""
        from mugraph.frontend.calls.pytree import FunctionCalling  # loads PyTorch

        if self.rows is not None:
            return self.rows.result.brings_gradients
        if self.batches is not None:
            return next(iter(self.batches.function.masked.values())).brings_gradients
        if self.capacities is not None:
            return self.capacities.masked.brings_gradients
        calling = next(iter(self.table.values())).calling
        return isinstance(calling, FunctionCalling) and calling.requires_grad

    def sizes_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes:
        """The sizes of the declared dimensions; raises ShapeMismatch where they are out of range or disagree."""
        return self.asked.sizes_of(args, kwargs)

    def nearest(self, sizes: Sizes) -> Sizes:
        """The sizes of the table that differ by the smallest factors."""
        return min(self.table, key=lambda known: (sum(abs(math.log(n / m)) for n, m in zip(known, sizes, strict=True)), known))

    def save(self, path: str | Path) -> Path:
        """Write the table, or the capacities, as a folder that `DynamicSuperoptimized.load` reads (`mugraph.sizes.saved_sizes`,
        `mugraph.sizes.saved_pieced`, `mugraph.sizes.saved_capacities`, `mugraph.sizes.saved_batches`).

        The function is not saved, so that calls with a dimension of size 0 have no answer once it is loaded.

        Raises StorageError where each size has kernels of its own, where the function itself answers at sizes that nothing else
        runs, or no capacity holds some, and what saving a result raises.
        """
        from mugraph.sizes import saved_batches, saved_capacities  # loads PyTorch

        if self.batches is not None:
            return saved_batches.save(Path(path), self.batches, self.declared, self._claim)
        if self.capacities is not None:
            return saved_capacities.save(Path(path), self.capacities, self.declared.dynamic, self._claim)
        if self.rows is not None:
            return self.rows.result._save_sizes(Path(path), self._claim, self.rows.function)
        return self._save_sizes(Path(path), self._claim)

    def _save_sizes(self, path: Path, claim: str, of_rows: RowFunction | None = None) -> Path:
        """Write the table of what acts on slices; where these are the rows of two dimensions, say so."""
        from mugraph.sizes import saved_sizes  # loads PyTorch

        if self.pieced is not None:
            return self._save_pieced(path, claim, self.pieced, of_rows)
        if self.sliced is None:
            raise StorageError(f"each size has kernels of its own ({self.reason}); save the results of its `table`")
        table = {size: result for (size,), result in self.table.items() if self.is_of_slices(size, result)}
        if not table:
            raise StorageError("no muGraph of the table acts on slices, and nothing else is saved")
        costs = replace(self.costs, kernels=all_seconds(table), own={})
        return saved_sizes.save(path, self.sliced, self.declared.dynamic, table, costs, claim, of_rows)

    def _save_pieced(self, path: Path, claim: str, pieced: PiecedFunction, of_rows: RowFunction | None) -> Path:
        """Write what others are put together of where kernels run parts of the function, and what runs its size alone."""
        from mugraph.sizes import saved_pieced  # loads PyTorch
        from mugraph.sizes.pieced_functions import LEAST

        below = {size for (size,) in self.table if size < LEAST}
        alone = {size: self.table[size,] for size in sorted({*self.costs.alone, *below})}
        table = {size: self.table[size,] for size in self.costs.kernels if size not in alone}
        costs = replace(self.costs, alone=all_seconds(alone))
        return saved_pieced.save(path, pieced, self.declared.dynamic, table, alone, costs, claim, of_rows)

    @staticmethod
    def load(
        path: str | Path, trust_sources: bool = False
    ) -> LoadedSizes | LoadedPieced | LoadedCapacities | LoadedRows | LoadedBatches:
        """What `save` wrote, compiled for this machine; it is called with one tensor per input of the program, in order.

        Raises InvalidInput and UntrustedSources as `mugraph.load` does, which says what `trust_sources` is.
        """
        require_torch(f"to run {path}")
        from mugraph.sizes import loaded_capacities, loaded_pieced, saved_batches, saved_sizes  # loads PyTorch

        folder = Path(path)
        kind = kind_of(read_manifest(folder))
        if kind == BATCHES:
            return saved_batches.load(folder, trust_sources)
        if kind == CAPACITIES:
            return loaded_capacities.load(folder, trust_sources)
        if kind == PIECED:
            return loaded_pieced.load(folder, trust_sources)
        return saved_sizes.load(folder, trust_sources)

    def _run(self, sizes: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What answers calls with these sizes."""
        if 0 in sizes:
            return self.fn
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
        plan = self._planned(size)
        return self.covering(size, plan.chunks) if plan.chunks else self.fn

    def covering(self, size: int, chunks: Sequence[Chunk]) -> Covering:
        """What runs a size by kernels of the table, of a function that acts on slices."""
        from mugraph.sizes.covering import Covering  # loads PyTorch

        function = self.slices
        assert function is not None, "sizes are put together of others"
        table = {chunk.size: self.table[chunk.size,] for chunk in chunks}
        parts = {size: each.kernels for size, each in self.in_part.items() if each.kernels is not None}
        return Covering(function.calling_at(size), function.inputs, function, size, chunks, table, parts)

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
        ranges = ", ".join(dim.short for dim in self.dims.values())
        if self.capacities is not None:
            return f"<DynamicSuperoptimized for {ranges}: {len(self.capacities.kernels)} capacities, which hold all sizes>"
        if self.rows is not None:
            return f"<DynamicSuperoptimized for {ranges}: as rows, {self.rows.result!r}>"
        if self.batches is not None:
            least, low = min(self.batches.tables), self.batches.samples.dim.low
            held = "which hold all sizes" if least <= low else f"the function itself answers below {least}"
            return f"<DynamicSuperoptimized for {ranges}: {len(self.batches.tables)} batches, {held}>"
        none = "with kernels for themselves alone" if self.costs.alone else "none faster than the function itself, which answers"
        covers = "which cover all others" if self.costs.kernels else none
        how = f"{len(self.specializations)} compiled" if self.slices is None else covers
        return f"<DynamicSuperoptimized for {ranges}: {len(self.table)} sizes measured, {how}>"


def all_seconds(results: Mapping[int, Superoptimized]) -> dict[int, float]:
    """Seconds of a call by size: where nothing is known of a result, as of a program that nobody timed, by those of other sizes,
    or in proportion to its size."""
    found = {size: seconds_of_call(result) for size, result in results.items()}
    known = {size: seconds for size, seconds in found.items() if seconds is not None} or {1: 1.0}
    return {size: between(known, size) for size in results}


def seconds_of_call(result: Superoptimized) -> float | None:
    """Seconds of a call: measured beside the function, alone, or predicted; None where nothing is known."""
    duel = result.report.baselines.get(EAGER)
    if duel is not None and duel.ours is not None:
        return duel.ours.median
    if not result.is_one_program:
        return None
    return next((each for each in (result.best.latency, result.best.cost) if each is not None), None)
