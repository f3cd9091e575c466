"""Whether a PyTorch function of a batch and a length does the same to every sample, and is one masked program at every length.

Then kernels of a few batches and capacities run any batch, in chunks of samples, at any length (docs/theory.md, "A batch beside a
length"). That samples are independent is asked of the calls with symbols for both sizes, and of those at length 1. At one batch,
and at 1, the function must be a masked function of the length (`mugraph.sizes.masked_functions`); and the masked programs at all
batches of the table must be one program of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.calls.calling import Calling
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.batch_axis import batch_dim, check_samples
from mugraph.ir.graph import Graph
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes.batches import Samples
from mugraph.sizes.capacities import capacities
from mugraph.sizes.dims import Declared, Dim
from mugraph.sizes.masked_functions import MaskedFunction, masked_as_recorded, masked_function
from mugraph.sizes.row_functions import bytes_of_row, pairs_of_sizes
from mugraph.sizes.sliced_functions import bytes_of_slice, check_time, recorded, sliced_function
from mugraph.sizes.sliced_programs import Places, SlicedProgram
from mugraph.support.deadline import NO_LIMIT, Deadline

_LARGEST_BYTES = 1 << 26
"""Samples of a batch of the table take so many bytes at most, with the longest length: more of them are several chunks."""
_APART = 4
"""Neighbours in a table of batches differ by about this factor."""

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BatchedFunction:
    """A function that does the same to every sample of a batch, and at some batches is one masked graph at every length."""

    samples: Samples
    length: Dim
    masked: Mapping[int, MaskedFunction]
    """By batch: the smallest one but 1 comes first, of which others are put together at little cost, then 1 and larger ones."""
    _of_sample: dict[int, SlicedProgram] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def claim(self) -> str:
        """For which sizes results are samples of others, and why, in a sentence."""
        batch, sizes = self.samples.dim, ", ".join(map(str, sorted(self.masked)))
        return (
            f"for every size {batch.said} and {self.length.said}: the function, as PyTorch records it with a symbol for each, "
            f"does the same to every sample, and its masked programs for {sizes} of {batch.name} are one program of a sample"
        )

    def sample(self, capacity: int) -> SlicedProgram:
        """The masked program of a capacity for one sample."""
        if capacity not in self._of_sample:
            masked = next(iter(self.masked.values()))
            arguments = masked.arguments(capacity)
            traced = trace(masked.at_capacity(capacity), tuple(arguments))
            self._of_sample[capacity] = SlicedProgram.of(traced.graph, self.samples.of_program(traced, arguments))
        return self._of_sample[capacity]

    def is_program_of(self, size: int, capacity: int, program: Graph, calling: Calling) -> bool:
        """Whether a program for some batch at a capacity computes this of each sample."""
        return self.sample(capacity).is_computed_by(program, self._places(size, capacity, calling))

    def is_run_by(self, size: int, capacity: int, result: Superoptimized) -> bool:
        """Whether a result for some batch is that program, and its muGraph acts on samples, too, as that of one sample does."""
        places = self._places(size, capacity, result.calling)
        acts = size == 1 or self.sample(capacity).is_acted_on_by(result.graph, places)
        return acts and self.is_program_of(size, capacity, result.program, result.calling)

    def _places(self, size: int, capacity: int, calling: Calling) -> Places:
        return self.samples.of_program(calling, self.masked[size].arguments(capacity))


def batched_function(
    fn: Fn,
    declared: Declared,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    wanted: Sequence[int] = (),
    deadline: Deadline = NO_LIMIT,
) -> BatchedFunction:
    """The function as one of a batch and a length, with `wanted` batches among those of its table; raises SizeMatters, which says
    why, for others, and where the deadline passes before that is known. Arguments are as in `sliced_function`."""
    if len(declared.dims) != 2 or any(dim.low == dim.high for dim in declared.dims.values()):
        raise SizeMatters("it is none of two dimensions of several sizes each")
    kwargs = dict(sorted(kwargs.items()))
    if not all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((tuple(args), kwargs))):
        raise SizeMatters("an argument is no tensor")
    first, second = declared.dims.values()
    pair = pairs_of_sizes(first, second, bytes_of_row(declared, args, kwargs))[0]
    program = recorded(fn, declared, *declared.resized(pair, args, kwargs), deadline)
    names, reasons = [*declared.dims], list[str]()
    for batch, length in (names, names[::-1]):
        try:
            samples = _samples(program, declared, declared.dims[batch], args, kwargs)
            return _batched(fn, declared, samples, declared.dims[length], args, kwargs, wanted, deadline)
        except MugraphError as error:  # whatever keeps it from being one program
            reasons.append(f"{batch} as the batch: {error}")
    raise SizeMatters("; ".join(reasons))


def _samples(program: ExportedProgram, declared: Declared, batch: Dim, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Samples:
    """Where arguments and results have the samples; raises SizeMatters unless all recorded calls do the same to each."""
    inputs = _places_of_leaves(declared.only(batch.name), args, kwargs)
    given = {name: number for number, name in enumerate(program.graph_signature.user_inputs)}
    placeholders = {given[node.name]: node for node in program.graph.nodes if node.op == "placeholder" and node.name in given}
    number, place = next((number, place) for number, place in enumerate(inputs) if place is not None)
    symbol = placeholders[number].meta["val"].shape[place].node.expr
    check_samples(program.graph, symbol)
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results = [node.meta.get("val") if isinstance(node, fx.Node) else node for node in output.args[0]]
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    if len(tensors) < len(results):
        raise SizeMatters("it returns something else than tensors")
    return Samples(batch, tuple(inputs), tuple(batch_dim(result, symbol) for result in tensors))


def _batched(
    fn: Fn,
    declared: Declared,
    samples: Samples,
    length: Dim,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    wanted: Sequence[int],
    deadline: Deadline,
) -> BatchedFunction:
    batch = samples.dim
    of_batch, of_length = declared.only(batch.name), declared.only(length.name)
    if length.low == 1:  # of which symbols say nothing
        sliced_function(fn, of_batch, *of_length.resized((1,), args, kwargs), deadline)
    one = bytes_of_slice(of_batch, *of_length.resized((length.high,), *of_batch.resized((batch.low,), args, kwargs)))
    table = _table(batch, one)
    compared = {1, table[0]}
    masked = {
        size: (masked_function if size in compared else masked_as_recorded)(
            fn, of_length, *of_batch.resized((size,), args, kwargs), deadline
        )
        for size in dict.fromkeys([*table, *wanted])
    }
    some = masked[batch.low]
    if any((other.graph.places, other.results) != (some.graph.places, some.results) for other in masked.values()):
        raise SizeMatters(f"its masked graph is another one at other sizes of {batch.name}")
    found = BatchedFunction(samples, length, masked)
    _check_programs(found, deadline)
    return found


def _check_programs(found: BatchedFunction, deadline: Deadline) -> None:
    """Raise SizeMatters unless the masked programs that hold all lengths are one program of a sample, and where the deadline
    passes before that is known."""
    first = next(iter(found.masked))
    for size, masked in found.masked.items():
        check_time(deadline, f"what it is of a sample at {size} of {found.samples.dim.name}")
        capacity = next(capacities(found.length.low, found.length.high, masked.graph.more, 1))
        if size == first:  # whose program is the one that is cut to a sample
            found.sample(capacity)
            continue
        traced = trace(masked.at_capacity(capacity), tuple(masked.arguments(capacity)))
        if not found.is_program_of(size, capacity, traced.graph, traced):
            raise SizeMatters(f"its masked program of a sample is another one at {size} of {found.samples.dim.name}")


def _table(batch: Dim, sample_bytes: int) -> list[int]:
    """The batches of which there are kernels: the smallest one but 1, then 1 and larger ones. Others are run in chunks."""
    least = max(batch.low, 2)
    most = min(batch.high, _LARGEST_BYTES // max(sample_bytes, 1))
    found = [batch.high if most == batch.high else batch.below(max(_power_of_two(most), least))]
    while found[-1] > batch.low:
        found.append(batch.below(_power_of_two(found[-1] // _APART)))
    first = min(size for size in found if size > 1)
    return [first, *sorted({*found} - {first})]


def _power_of_two(number: int) -> int:
    """The largest one that is no larger, or 0."""
    return (1 << number.bit_length()) >> 1


def _places_of_leaves(declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int | None]:
    """For each tensor among the arguments, in the order of their tree, its declared dimension."""
    leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
    positional, named = tree_unflatten([*range(len(leaves))], structure)
    places: list[int | None] = [None] * len(leaves)
    for argument, tensor, place, _ in declared.places(args, kwargs):
        number = named[argument] if isinstance(argument, str) else positional[argument]
        if places[number] is not None:
            raise SizeMatters("an argument has the dimension twice")
        places[number] = place % tensor.dim()
    return places
