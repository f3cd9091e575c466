"""What `mugraph.superoptimize` makes for ranges of sizes: which of the ways there are a function takes
(`mugraph.sizes.dynamic_results`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mugraph.devices.host import host_cpu
from mugraph.errors import InvalidInput
from mugraph.frontend import require_torch
from mugraph.sizes.dims import Declaration, Declared, Sizes
from mugraph.sizes.dynamic_results import DynamicSuperoptimized, Optimize
from mugraph.sizes.size_table import SizeTable
from mugraph.support.deadline import NO_LIMIT, Deadline

if TYPE_CHECKING:
    from mugraph.sizes.batched_results import BatchTable
    from mugraph.sizes.capacity_results import CapacityTable
    from mugraph.sizes.pieced_functions import PiecedFunction
    from mugraph.sizes.row_results import RowResults


def superoptimized_for_sizes(
    optimize: Optimize,
    fn: Callable[..., Any],
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    dynamic: Declaration,
    table: Sequence[Mapping[str, int]] | None,
    budget: float | None,
    settings: Mapping[str, Any],
) -> DynamicSuperoptimized:
    """What `mugraph.superoptimize` makes for ranges of sizes, which `optimize` is."""
    result = DynamicSuperoptimized(fn, dynamic, settings, optimize)
    sizes = result.asked.sizes_of(*arguments)
    if 0 in sizes:
        empty = " and ".join(name for name, size in zip(result.dims, sizes, strict=True) if not size)
        raise InvalidInput(f"the example has size 0 of {empty}, with which nothing can be timed; give one of size 1 or more")
    listed = None if table is None else result.declared.listed(table)
    if listed is None:
        _check_memory(result.declared, arguments)
    require_torch("to optimize PyTorch functions")
    _fill(result, arguments, listed, Deadline(budget))
    result.prepare(*arguments)
    return result


def _check_memory(declared: Declared, arguments: tuple[Sequence[Any], Mapping[str, Any]]) -> None:
    """Raise InvalidInput for a range whose largest size no call on this machine has room for."""
    room = host_cpu().device_memory_bytes
    for dim in declared.dims.values():
        if (taken := declared.bytes_at({dim.name: dim.high}, *arguments)) > room:
            raise InvalidInput(
                f"arguments of size {dim.high} of {dim.name} take {taken >> 20} MiB, more than this machine has; "
                "declare a smaller range"
            )


def _fill(
    result: DynamicSuperoptimized,
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    listed: Sequence[Sizes] | None,
    deadline: Deadline,
) -> None:
    """Let the result have kernels in the first way that the function takes."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.sliced_functions import NoProgram, sliced_function

    args, kwargs = arguments
    if listed is None and len(result.dims) == 2:
        result.rows = _rows(result, arguments, deadline)
        if result.rows is None:
            result.batches = _batches(result, arguments, deadline)
        if result.rows is not None or result.batches is not None:
            return
    try:
        with result.times.of("verify"):
            result.sliced = sliced_function(result.fn, result.declared, args, kwargs, deadline)
    except SizeMatters as error:
        result.reason = result.reason or str(error)
        if isinstance(error, NoProgram):
            result.pieced = _pieces(result, arguments, deadline)
        elif listed is None and (capacities := _capacities(result, arguments, deadline)) is not None:
            result.capacities = capacities
            return
    if result.slices is None or listed is not None:
        entries = _ends(result.declared) if listed is None else listed
        result.settings["budget"] = None if deadline.budget is None else deadline.budget / len(entries)
        for number, sizes in enumerate(entries):
            if not number or listed is not None or not deadline.passed:
                result.fill(sizes, args, kwargs, budget=deadline.share(1 / (len(entries) - number)))
        if result.slices is not None:
            SizeTable(result, args, kwargs, NO_LIMIT).settle()  # sizes that are listed may have all of the budget
        return
    SizeTable(result, args, kwargs, deadline).fill()


def _rows(
    result: DynamicSuperoptimized, arguments: tuple[Sequence[Any], Mapping[str, Any]], deadline: Deadline
) -> RowResults[DynamicSuperoptimized] | None:
    """Kernels for rows of both dimensions; None for a function that they cannot run, or of which none are found, and why in
    `reason`."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.row_functions import row_function
    from mugraph.sizes.row_results import RowResults

    try:
        with result.times.of("verify"):
            found = row_function(result.fn, result.declared, *arguments, deadline)
    except SizeMatters as error:
        result.reason = f"its two dimensions are not those of rows: {error}"
        return None
    made = DynamicSuperoptimized(result.fn, found.declared.dynamic, result.settings, result._optimize, result.times)
    made.sliced = found.sliced
    sizes = {found.rows.first.name: 1, found.rows.second.name: found.rows.second.low}
    longest = max(found.rows.first.high, found.rows.second.high)
    resized = result.declared.resized(tuple(sizes[name] for name in result.dims), *arguments)
    SizeTable(made, *resized, deadline, longest).fill()
    result.reason = made.reason
    return None if made.sliced is None else RowResults(found, made)


def _batches(
    result: DynamicSuperoptimized, arguments: tuple[Sequence[Any], Mapping[str, Any]], deadline: Deadline
) -> BatchTable | None:
    """Kernels for a batch and a length; None for a function that they cannot run, or of which none are found, and why in
    `reason`."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.batched_functions import batched_function
    from mugraph.sizes.batched_results import BatchTable

    try:
        with result.times.of("verify"):
            found = batched_function(result.fn, result.declared, *arguments, deadline=deadline)
    except SizeMatters as error:
        result.reason += f"; nor are they a batch and a length: {error}"
        return None
    table = BatchTable.of(found, result.fn)
    table.fill(result._optimize, result.settings, deadline)
    if not table.tables:
        result.reason += "; no kernels were found for any batch"
    return table if table.tables else None


def _pieces(
    result: DynamicSuperoptimized, arguments: tuple[Sequence[Any], Mapping[str, Any]], deadline: Deadline
) -> PiecedFunction | None:
    """The function as calls that act on slices, of which programs are parts; None where it is not, and why in `reason`."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.pieced_functions import pieced_function

    try:
        with result.times.of("verify"):
            found = pieced_function(result.fn, result.declared, *arguments, None, deadline)
    except SizeMatters as error:
        result.reason += f"; nor are results in pieces put together: {error}"
        return None
    result.reason = ""
    return found


def _capacities(
    result: DynamicSuperoptimized, arguments: tuple[Sequence[Any], Mapping[str, Any]], deadline: Deadline
) -> CapacityTable | None:
    """Kernels of a few capacities; None for a function that they cannot run, or of which none are found, and why in `reason`."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.capacity_results import CapacityTable
    from mugraph.sizes.masked_functions import masked_function

    try:
        with result.times.of("verify"):
            masked = masked_function(result.fn, result.declared, *arguments, deadline)
    except SizeMatters as error:
        result.reason += f"; nor can other slots be masked: {error}"
        return None
    table = CapacityTable(masked, fn=result.fn)
    table.fill(result._optimize, result.settings, deadline)
    if not table.kernels:
        result.reason += "; no kernels were found for any capacity"
    return table if table.kernels else None


def _ends(declared: Declared) -> list[Sizes]:
    """The ends of each range, and of a single one its geometric middle."""
    ends = [[dim.low, dim.high] for dim in declared.dims.values()]
    if len(declared.dims) == 1:
        (dim,) = declared.dims.values()
        ends[0].append(dim.below(min(dim.high, 2 ** round(math.log2(dim.low * dim.high) / 2))))
    return sorted(set(itertools.product(*ends)))
