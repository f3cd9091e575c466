"""Whether a PyTorch function of two dynamic dimensions does the same to every row of them, at all sizes.

PyTorch records it with a symbol for each, of which `mugraph.frontend.symbolic_sizes.merged_rows` makes one; at a few pairs of
sizes its programs are cut to one row, which must be what its program of one dimension is of a slice (docs/theory.md, "Rows of two
sizes").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.export.graph_signature import OutputKind, TensorArgument

from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.merged_rows import merged_rows, pairs_of_results
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices, with_sizes
from mugraph.sizes.dims import Declared, Dim, Sizes, primes_among
from mugraph.sizes.rows import Rows
from mugraph.sizes.sliced_functions import (
    GENERIC_BYTES,
    SlicedFunction,
    check_time,
    places_of,
    recorded,
    sliced_function,
)
from mugraph.sizes.sliced_programs import SlicedProgram
from mugraph.support.deadline import NO_LIMIT, Deadline

_MOST = 13
"""Programs are compared at sizes of each dimension up to this one."""

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function that is one and the same function of each row of two dimensions."""

    rows: Rows
    declared: Declared
    """The two of them as one: that of the function where the first dimension has size 1."""
    sliced: SlicedFunction
    pairs: tuple[Sizes, ...]
    """Sizes of the first and the second dimension at which programs were compared."""

    def to_json(self) -> dict[str, Any]:
        """What a folder says of the two dimensions, and where programs were compared."""
        return {**self.rows.to_json(), "compared": [list(pair) for pair in self.pairs]}

    def as_saved(self, rows: Rows) -> RowFunction:
        """Itself; raises SizeMatters where its results have rows in other places than those of a folder."""
        if self.rows.results != rows.results:
            raise SizeMatters("its results have rows in other places than are saved")
        return self

    @property
    def claim(self) -> str:
        """For which sizes results are rows of others, and why, in a sentence."""
        first, second = self.rows.first, self.rows.second
        pairs = ", ".join(f"{one} x {other}" for one, other in self.pairs)
        return (
            f"for every size {first.said} and {second.said}: the function, as PyTorch records it with a symbol for each, does "
            f"the same to every row, and its programs at sizes {pairs} are one program of a row"
        )


def row_function(
    fn: Fn, declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any], deadline: Deadline = NO_LIMIT
) -> RowFunction:
    """The function as one of rows; raises SizeMatters, which says why, for others, and where the deadline passes before that is
    known. Arguments are as in `sliced_function`."""
    first, second, places = _side_by_side(declared, args, kwargs)
    pairs = pairs_of_sizes(first, second, bytes_of_row(declared, args, kwargs))
    in_order = Declared.of({argument: {place: first, place + 1: second} for argument, place in places})
    rows = Rows(first, second, places, _recorded_results(fn, in_order, pairs[0], args, kwargs, deadline))
    merged = Declared.of({argument: {place + 1: rows.dim} for argument, place in places})
    sliced = sliced_function(fn, merged, *in_order.resized((1, second.low), args, kwargs), deadline)
    found = RowFunction(rows, merged, sliced, pairs)
    try:
        for pair in pairs:
            check_time(deadline, f"what it is at sizes {pair[0]} x {pair[1]}")
            _check_program(fn, found, in_order, pair, args, kwargs)
    except SizeMatters:
        raise
    except MugraphError as error:
        raise SizeMatters(f"its program at some sizes does not act on rows: {error}") from None
    if second.low == 1:  # of which symbols say nothing, as of 1 in the first dimension, which is that of `sliced`
        alone = Declared.of({argument: {place: first} for argument, place in places})
        of_one = sliced_function(fn, alone, *in_order.resized((first.low, 1), args, kwargs), deadline)
        if not of_one.slice.is_same(sliced.slice):
            raise SizeMatters(f"its program of a row is another one where {second.name} is 1")
    return found


def _side_by_side(
    declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Dim, Dim, tuple[tuple[int | str, int], ...]]:
    """The two dimensions in the order in which they stand in all arguments, and the arguments with the first of them."""
    if len(declared.dims) != 2 or any(dim.low == dim.high for dim in declared.dims.values()):
        raise SizeMatters("it is none of two dimensions of several sizes each")
    found: dict[int | str, dict[int, Dim]] = {}
    for argument, tensor, place, dim in declared.places(args, kwargs):
        found.setdefault(argument, {})[place % tensor.dim()] = dim
    orders = {tuple(dims[place].name for place in sorted(dims)) for dims in found.values()}
    neighbours = all(max(dims) - min(dims) == 1 == len(dims) - 1 for dims in found.values())
    if len(orders) != 1 or not neighbours:
        raise SizeMatters("its two dimensions do not stand side by side, in one order, in all arguments that have one")
    first, second = (declared.dims[name] for name in orders.pop())
    return first, second, tuple((argument, min(dims)) for argument, dims in found.items())


def bytes_of_row(declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Bytes that arguments take for each row."""
    total = 0
    for argument, dims in declared.dynamic.items():
        tensor = kwargs[argument] if isinstance(argument, str) else args[argument]
        total += tensor.nbytes // max(math.prod(tensor.shape[place] for place in dims), 1)
    return total


def pairs_of_sizes(first: Dim, second: Dim, row_bytes: int) -> tuple[Sizes, ...]:
    """Pairs of sizes, none of them 1: primes where there are some, of so few rows that arguments take no more memory than
    programs of one dimension that are compared."""
    most = min(_MOST, math.isqrt(GENERIC_BYTES // max(row_bytes, 1)))
    ones, others = (_few(dim, most) for dim in (first, second))
    return tuple(dict.fromkeys([(ones[0], others[-1]), (ones[-1], others[0])]))


def _few(dim: Dim, most: int) -> list[int]:
    step = dim.multiple_of
    sizes = range(max(dim.low, 2), min(dim.high, max(dim.low + 2 * step, most)) + 1, step)
    return (primes_among(sizes, step) or list(sizes))[-2:]


def _recorded_results(
    fn: Fn, declared: Declared, pair: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any], deadline: Deadline
) -> tuple[int | None, ...]:
    """Where results have the two dimensions; raises SizeMatters unless all recorded calls do the same to every row."""
    program = recorded(fn, declared, *declared.resized(pair, args, kwargs), deadline)
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT or not isinstance(spec.arg, TensorArgument):
            raise SizeMatters("it changes a tensor, or returns something else than tensors")
    graph = with_sizes(program.graph)
    merged = merged_rows(graph)
    check_slices(merged)
    return pairs_of_results(graph, merged)


def _check_program(
    fn: Fn, found: RowFunction, declared: Declared, pair: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise SizeMatters unless a program at a pair of sizes is of each row what the function is of a slice."""
    positional, named = declared.resized(pair, args, kwargs)
    traced = trace(fn, named or positional)
    first, second = (
        places_of(
            traced, Declared.of({argument: {place + more: dim} for argument, place in found.rows.places}), positional, named
        )
        for more, dim in enumerate(found.rows.dims)
    )
    row, before = SlicedProgram.of_rows(traced.graph, first, second)
    in_order = all(one in (other, None if other is None else other - 1) for one, other in zip(before, row.outputs, strict=True))
    if not (in_order and row.is_same(found.sliced.slice) and row.stands_like(found.sliced.slice)):
        raise SizeMatters(f"its program of a row is another one at sizes {pair[0]} x {pair[1]}")
