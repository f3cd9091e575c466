"""Whether a PyTorch function acts on slices along a dimension at every size, with the same program for a slice.

Then the rows of its result at any size are rows of its results at other sizes (docs/theory.md, "Any size from slices"). Two
proofs must agree. The calls that PyTorch records with a symbol for the size treat slices alike, by rules of their own
(`mugraph.frontend.symbolic_sizes.symbolic_axis`): that speaks of every size from 2 on. And the programs at a few sizes, 1 among
them, act on slices by the index maps of their operators (`mugraph.verifier.parallel_axes`), and are one and the same program when
they are cut to size 1. What depends on the size in any other way is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from mugraph.errors import InvalidInput, MugraphError, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.calls.pytree import Arguments, FunctionCalling, same_value
from mugraph.frontend.recording.compiler_questions import asked_outside_torch
from mugraph.frontend.recording.export import recorded_at_all_sizes
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.symbolic_axis import check_slices
from mugraph.ir.graph import Graph
from mugraph.sizes.dims import Declared, Dim, primes_among
from mugraph.sizes.sliced_programs import Places, SlicedProgram
from mugraph.support.deadline import NO_LIMIT, Deadline

_GENERIC = 64
"""Programs are compared at sizes up to this one: larger tensors tell nothing more."""
GENERIC_BYTES = 1 << 28
"""And at smaller sizes where the arguments would take more bytes than that."""
_MULTIPLES = 8
"""Beyond that size so many multiples are looked at where it has fewer, of a dimension of multiples."""


class NoProgram(SizeMatters):
    """A function that treats slices alike as it is recorded with a symbol for the size, and that is no program as a whole."""


@dataclass(frozen=True, slots=True)
class CalledInSlices:
    """How a function is called whose results are the same function of each slice of its inputs, at every size of a dimension.

    `inputs` says where its inputs have the dimension.
    """

    dim: Dim
    inputs: Places
    calling: FunctionCalling
    """How it was called at one of the `sizes`."""
    sizes: tuple[int, ...]
    """At these what it is was compared."""

    def calling_at(self, size: int) -> CallingAtSize:
        """How the function is called at a size."""
        return CallingAtSize(self, size)

    def exact_calling_at(self, size: int) -> FunctionCalling:
        """The same, with the shapes that arguments have then."""
        calling, dims = self.calling, iter(self.inputs)
        leaves = tuple(
            replace(leaf, shape=_with_size(leaf.shape, next(dims), size)) if leaf.is_tensor else leaf
            for leaf in calling.arguments.leaves
        )
        parts = (calling.sources, calling.results, calling.strides, calling.inputs)
        return FunctionCalling(calling.name, replace(calling.arguments, leaves=leaves), *parts, asked=calling.asked)


@dataclass(frozen=True, slots=True)
class SlicedFunction(CalledInSlices):
    """A program of this kind: `slice` is what it is of one slice."""

    slice: SlicedProgram

    @property
    def outputs(self) -> Places:
        """Where the outputs have the dimension."""
        return self.slice.outputs

    @property
    def widths(self) -> tuple[int, ...]:
        """How many elements of it belong to a slice, by output."""
        return self.slice.widths

    @property
    def claim(self) -> str:
        """For which sizes results are put together of others, and why, in a sentence."""
        sizes = ", ".join(map(str, self.sizes))
        return (
            f"for every size {self.dim.said}: the function, as PyTorch records it with a symbol for the size, acts on slices, "
            f"and its programs at sizes {sizes} are one program of a slice"
        )

    def is_program_of(self, program: Graph) -> bool:
        """Whether a program, at some size of the dimension, computes the slice of each slice."""
        return self.slice.is_computed_by(program, self.inputs)

    def is_acted_on_by(self, graph: Graph) -> bool:
        """Whether a muGraph of the function acts on slices, too."""
        return self.slice.is_acted_on_by(graph, self.inputs)


class CallingAtSize:
    """How a function that acts on slices is called at a size: shapes of arguments are only looked at where a call takes more than
    its tensors in order, so they are written down by the first that does."""

    def __init__(self, function: CalledInSlices, size: int) -> None:
        self._function, self._size = function, size
        self.plain, self.unflatten = function.calling.plain, function.calling.unflatten

    @cached_property
    def _exact(self) -> FunctionCalling:
        return self._function.exact_calling_at(self._size)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """As `FunctionCalling.flatten`."""
        return self._exact.flatten(args, kwargs)


def _with_size(shape: tuple[int, ...], dim: int | None, size: int) -> tuple[int, ...]:
    return shape if dim is None else (*shape[:dim], size, *shape[dim + 1 :])


def sliced_function(
    fn: Callable[..., Any],
    declared: Declared,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    deadline: Deadline = NO_LIMIT,
) -> SlicedFunction:
    """The function as one that acts on slices along its one dynamic dimension; raises SizeMatters, which says why, for others,
    and where the deadline passes before that is known: NoProgram where only what PyTorch records can tell.

    Arguments are those of an example call, of any declared size.
    """
    if len(declared.dims) > 1:
        raise SizeMatters(f"{len(declared.dims)} dimensions are dynamic, and only along one results are put together")
    (dim,) = declared.dims.values()
    if dim.low == dim.high:
        raise SizeMatters(f"dimension {dim.name} has one size")
    generic, *sizes = compared_sizes(dim, bytes_of_slice(declared, args, kwargs))
    try:
        check_slices(recorded(fn, declared, *declared.resized((generic,), args, kwargs), deadline).graph)
        check_time(deadline, f"what it is at size {generic} of {dim.name}")
        first = _first_traced(fn, declared, generic, args, kwargs)
        check_memory(first)
        places = places_of(first, declared, *declared.resized((generic,), args, kwargs))
        try:
            cut = SlicedProgram.of(first.graph, places)
        except MugraphError as error:
            raise SizeMatters(f"its program at size {generic} does not act on slices: {error}") from None
        found = SlicedFunction(dim, places, first, (generic, *sizes), cut)
        for size in sizes:
            check_time(deadline, f"what it is at size {size} of {dim.name}")
            other = _traced(fn, declared, size, args, kwargs)
            if not found.is_program_of(other.graph):
                raise SizeMatters(f"its program of a slice is another one at size {size} than at {generic}")
            if not _called_alike(first, other):
                raise SizeMatters(f"it returns something else beside tensors at size {size} than at {generic}")
    except SizeMatters:
        raise
    except MugraphError as error:  # whatever keeps it from being one program
        raise SizeMatters(str(error)) from None
    return found


def compared_sizes(dim: Dim, slice_bytes: int) -> list[int]:
    """Sizes whose programs are compared: the smallest, and two primes, beside which nothing is a multiple or a divisor; of a
    dimension of multiples those that are so often what divides them."""
    step = dim.multiple_of
    most = max(_GENERIC, dim.low + max(_GENERIC, _MULTIPLES * step))
    sizes = range(max(dim.low, 2), min(dim.high, most) + 1, step)
    primes = primes_among(sizes, step)
    best = [size for size in dict.fromkeys([*reversed(primes), *reversed(sizes)]) if size * slice_bytes <= GENERIC_BYTES]
    chosen = best if len(best) > 1 else [*dict.fromkeys([*primes, *sizes])]
    return list(dict.fromkeys([*chosen[:2], dim.low]))


def bytes_of_slice(declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Bytes that arguments with a dynamic dimension take for each position of it."""
    places = declared.places(args, kwargs)
    return sum(tensor.numel() // max(tensor.shape[position], 1) * tensor.element_size() for _, tensor, position, _ in places)


def check_questions(asked: Sequence[str]) -> None:
    """Raise SizeMatters where a function was heard to ask how it is run."""
    if asked:
        raise SizeMatters(f"it asks {asked[0]}, which is answered in one way where it is recorded and in another where it runs")


def check_memory(calling: FunctionCalling) -> None:
    """Raise SizeMatters where what a function returns is not memory of its own, or depends on how tensors lie in memory."""
    if any(calling.strides) or any(
        (place.input, place.base, place.view) != (None, None, None) for place in calling.results.places
    ):
        raise SizeMatters("it returns views of tensors, or asks how they lie in memory")


def check_time(deadline: Deadline, question: str) -> None:
    """Raise SizeMatters where a deadline has passed before a question is asked."""
    if deadline.passed:
        raise SizeMatters(f"the budget of {deadline.budget:g} s ended before it was asked {question}")


def recorded(
    fn: Callable[..., Any],
    declared: Declared,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    deadline: Deadline = NO_LIMIT,
) -> torch.export.ExportedProgram:
    """The function at all sizes of its dynamic dimensions at once; raises SizeMatters where PyTorch does not record it so, and
    where the deadline has passed."""
    check_time(deadline, "what it is at all sizes")
    symbols = {
        dim.name: torch.export.Dim(dim.name if dim.name.isidentifier() else f"size_{number}", min=dim.low, max=dim.high)
        for number, dim in enumerate(declared.dims.values())
    }
    dims = {
        argument: {
            place % tensor.dim(): symbols[dim.name]
            for _, tensor, place, dim in Declared.of({argument: places}).places(args, kwargs)
        }
        for argument, places in declared.dynamic.items()
    }
    try:
        return recorded_at_all_sizes(fn, args, kwargs, dims)
    except (Exception, SystemExit) as error:  # whatever the function raises, or keeps PyTorch from reading it
        raise SizeMatters(_reason(error)) from None


def _traced(fn: Callable[..., Any], declared: Declared, size: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The program at a size."""
    positional, named = declared.resized((size,), args, kwargs)
    return trace(fn, named or positional)


def _first_traced(fn: Callable[..., Any], declared: Declared, size: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The program at a size; raises SizeMatters for a function that asks how it is run, and NoProgram for what is none."""
    refusal = ""
    with asked_outside_torch() as asked:
        try:
            traced = _traced(fn, declared, size, args, kwargs)
        except (InvalidInput, UnsupportedOperator) as error:
            refusal = str(error)
    check_questions(asked)
    if refusal:
        raise NoProgram(refusal)
    return traced


def _dims_of_leaves(arguments: Arguments, declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int | None]:
    """For each tensor among the arguments, its dynamic dimension. Those that have one stand in one place each."""
    values = [value for leaf, value in zip(arguments.leaves, arguments.placed(args, kwargs), strict=True) if leaf.is_tensor]
    places: list[int | None] = [None] * len(values)
    for _, tensor, position, _ in declared.places(args, kwargs):
        (number,) = (number for number, value in enumerate(values) if value is tensor)
        if places[number] is not None:
            raise SizeMatters("an argument has the dimension twice")
        places[number] = position % tensor.dim()
    return places


def places_of(traced: Any, declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Places:
    """For each input of a program its dynamic dimension; none of a tensor that the function brings along."""
    given = _dims_of_leaves(Arguments.of(traced.arguments.fn, args, kwargs), declared, args, kwargs)
    return (*given, *[None] * (len(traced.inputs) - len(given)))


def _called_alike(one: FunctionCalling, other: FunctionCalling) -> bool:
    """Whether results stand in the same places of one structure, beside the same constants."""
    ours, theirs = one.results, other.results
    if one.strides != other.strides or ours.structure != theirs.structure or len(ours.places) != len(theirs.places):
        return False
    return all(
        replace(mine, constant=None) == replace(its, constant=None) and same_value(mine.constant, its.constant)
        for mine, its in zip(ours.places, theirs.places, strict=True)
    )


def _reason(error: BaseException) -> str:
    """What PyTorch found out about sizes, or else the beginning of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    conditions = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    said = next(iter(conditions or lines), "no message")
    return f"it cannot be recorded with a symbol for the size: {said}"
