"""Functions that act on slices and run in pieces: results of which only parts are programs, put together to those at any size.

What a function does to slices is decided of all of its calls with a symbol for the size (`mugraph.sizes.sliced_functions`), so
whatever runs it at one size, kernels or PyTorch's calls, computes slices of every other (docs/theory.md, "Sizes of functions in
pieces"). Here it is looked at what was recorded at sizes that have results: they must be the same calls, in which sizes are
multiples of the one that varies, so that it is known where each tensor has the axis, and the muGraphs between them must act on
slices, too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._pytree import tree_flatten

from mugraph.errors import MugraphError
from mugraph.frontend import record
from mugraph.frontend.calls.pytree import FunctionCalling, same_value
from mugraph.frontend.operators.torch_casts import name_of
from mugraph.frontend.partitioning.partition import Piece
from mugraph.frontend.recording.recorded_graph import RecordedGraph, recorded_graph
from mugraph.frontend.rewriting.graph_passes import owner_of
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.slice_rules import keeps_order
from mugraph.ir.graph import Graph
from mugraph.pieces.cutting import prepared
from mugraph.pieces.data import PartitionedResult
from mugraph.sizes.dims import Declared
from mugraph.sizes.sliced_functions import (
    CalledInSlices,
    CallingAtSize,
    SlicedFunction,
    bytes_of_slice,
    check_memory,
    check_time,
    compared_sizes,
    places_of,
)
from mugraph.sizes.sliced_programs import Places, outputs_of_slices
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.verifier.axis_marks import ONE, Widths

LEAST = 2
"""The smallest size that PyTorch's symbols speak of."""

Axes = Mapping[fx.Node, int | None]
"""By tensor of a graph, its dimension of the size that varies."""


@dataclass(frozen=True, slots=True)
class PiecedFunction(CalledInSlices):
    """A function that acts on slices, as PyTorch records it at some `sizes`: its calls, and where its outputs have the axis."""

    outputs: Places
    widths: tuple[int, ...]
    """How many elements of that dimension belong to a slice."""
    graphs: tuple[fx.GraphModule, ...]
    """The calls at each of the sizes."""
    least: int
    """The smallest size that is put together of others: a smaller one has a result of its own, or is the function itself."""
    premise: str

    @property
    def claim(self) -> str:
        """For which sizes results are put together of others, and why, in a sentence."""
        return f"{self.premise}, and the same calls at sizes {', '.join(map(str, self.sizes))}"

    def claim_of(self, sizes: str, proved: bool = True) -> str:
        """The claim of results for these sizes, in which muGraphs are `proved`, or none are and only a library's products run."""
        alone = "" if self.dim.low >= self.least else f" ({self.dim.low} by a result of its own, or by the function itself)"
        parts = "kernels run parts of it, whose muGraphs are proved to compute these and act on slices, too"
        if not proved:
            parts = "a library runs products of it, no muGraphs do"
        return (
            f"{self.claim}. At sizes {sizes} {parts}, and PyTorch makes the calls between them, so that any size from "
            f"{self.least} on is slices of their results{alone}"
        )

    def calling_at(self, size: int) -> CallingAtSize:
        """How the function is called at a size; arguments are always looked at, as PyTorch's calls take other shapes, too."""
        return _Checked(self, size)

    def recorded_at_another(self, size: int) -> tuple[fx.GraphModule, int]:
        """The calls at a size that is not this one, and that size."""
        return next((graph, known) for graph, known in zip(self.graphs, self.sizes, strict=True) if known != size)

    def is_put_together_of(self, result: PartitionedResult, size: int) -> bool:
        """Whether a result for a size is the same calls, and its muGraphs act on slices: with one slice they do."""
        if size < self.least:
            return False
        cut, graphs = result.cut, dict(zip(self.sizes, self.graphs, strict=True))
        return is_in_slices(cut.recorded, {piece: cut.results[piece].graph for piece in cut.partition.pieces}, size, graphs)


def is_in_slices(
    recorded: RecordedGraph, programs: Mapping[Piece, Graph], size: int, graphs: Mapping[int, fx.GraphModule]
) -> bool:
    """Whether calls at a size are those that `graphs` are at others, and muGraphs for `programs` in them act on slices: with one
    they do."""
    if recorded.writes:
        return False
    other_size, other = next((known, graph) for known, graph in graphs.items() if known != size)
    try:
        axes = axes_between(recorded.module, size, other, other_size)
        if size == 1:  # one slice is mixed with no others
            return True
        lies = _lies(recorded.module, axes, size)
    except SizeMatters:
        return False
    known: dict[tuple[object, ...], _Lies | None] = {}
    return all(_acts_on_slices(piece, graph, lies, known) for piece, graph in programs.items())


class _Checked(CallingAtSize):
    """A call whose arguments are looked at each time, so that their shapes are written down at once."""

    def __init__(self, function: CalledInSlices, size: int) -> None:
        super().__init__(function, size)
        self.plain, self._calling = _never, function.exact_calling_at(size)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """As `FunctionCalling.flatten`."""
        return self._calling.flatten(args, kwargs)


def _never(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    return None


def pieced_function(
    fn: Callable[..., Any],
    declared: Declared,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    of_program: SlicedFunction | None,
    deadline: Deadline = NO_LIMIT,
) -> PiecedFunction:
    """A function that `sliced_function` has found to act on slices: as a program, or as it is recorded with a symbol alone.

    Raises SizeMatters, which says why, where calls at several sizes are not the same, or results are not memory of their own, and
    where the deadline passes before that is known. Arguments are those of an example call, of any declared size.
    """
    (dim,) = declared.dims.values()
    chosen = compared_sizes(dim, bytes_of_slice(declared, args, kwargs))[:2]
    if len(chosen) < 2 or min(chosen) < LEAST:
        raise SizeMatters(f"there are too few sizes of {dim.name} from {LEAST} on to compare what is recorded at them")
    try:
        graphs = [_recorded(fn, declared, size, args, kwargs, deadline) for size in chosen]
        (first, other), calling = graphs, graphs[0].calling
        assert isinstance(calling, FunctionCalling), "of a function, not of a file"
        check_memory(calling)
        check_results(first)
        axes = axes_between(first.module, chosen[0], other.module, chosen[1])
        inputs = places_of(calling, declared, *declared.resized((chosen[0],), args, kwargs))
    except SizeMatters:
        raise
    except MugraphError as error:  # whatever cannot be recorded
        raise SizeMatters(str(error)) from None
    if inputs != tuple(axes[node] for node in first.placeholders):
        raise SizeMatters("a tensor that it brings along depends on the size")
    outputs, widths = places_of_outputs(first, axes, chosen[0])
    if of_program is None:
        low = max(dim.low, LEAST)
        recorded = "the function, as PyTorch records it with a symbol for the size, acts on slices"
        premise = f"for every size {replace(dim, low=low).said}: {recorded}"
    else:
        low, premise = dim.low, of_program.claim
    both = tuple(each.module for each in graphs)
    return PiecedFunction(dim, inputs, calling, tuple(chosen), outputs, widths, both, low, premise)


def _recorded(
    fn: Callable[..., Any],
    declared: Declared,
    size: int,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    deadline: Deadline,
) -> RecordedGraph:
    """The function's calls at a size, as they are cut."""
    check_time(deadline, f"which calls it makes at size {size}")
    positional, named = declared.resized((size,), args, kwargs)
    return prepared(recorded_graph(record(fn, named or positional)))


def places_of_outputs(recorded: RecordedGraph, axes: Axes, size: int) -> tuple[Places, tuple[int, ...]]:
    """Where the outputs have the axis at a size, and how many elements of that dimension belong to a slice."""
    outputs = tuple(axes[node] for node in recorded.outputs)
    shapes = [node.meta["val"].shape for node in recorded.outputs]
    return outputs, tuple(0 if dim is None else shape[dim] // size for shape, dim in zip(shapes, outputs, strict=True))


def check_results(recorded: RecordedGraph) -> None:
    """Raise SizeMatters unless what a call returns is memory of its own, and nothing else is changed."""
    owners = [owner_of(node) for node in recorded.outputs]
    if recorded.writes or len({*owners}) < len(owners) or any(owner.op != "call_function" for owner in owners):
        raise SizeMatters("it changes what it is given, or returns what shares memory with another tensor")


# --- the same calls at two sizes ------------------------------------------------------------------------------------------


def axes_between(graph: fx.GraphModule, size: int, other: fx.GraphModule, other_size: int) -> dict[fx.Node, int | None]:
    """Where the tensors of a graph at one size have the axis, by the same graph at another size; None for all else.

    Raises SizeMatters, naming the call, where the two are not the same calls, or where a size or a number is no multiple of the
    one that varies.
    """
    axes: dict[fx.Node, int | None] = {}
    places: dict[fx.Node, int] = {}
    for number, (one, its) in enumerate(zip_longest(graph.graph.nodes, other.graph.nodes)):
        if one is None or its is None or (one.op, name_of(one), one.target) != (its.op, name_of(its), its.target):
            raise SizeMatters(f"it makes other calls at size {other_size} than at size {size}")
        places[one] = places[its] = number
        pairs = paired((one.args, one.kwargs), (its.args, its.kwargs))
        if one.op == "get_attr" and not _is_same_constant(graph, other, one):
            raise SizeMatters(f"{one.target} is another constant at size {other_size} than at size {size}")
        if pairs is None or not all(_fits(*pair, size, other_size, places) for pair in pairs):
            raise SizeMatters(f"{name_of(one)}: its arguments at size {other_size} are others than at size {size}")
        axes[one] = _axis(one, its, size, other_size)
    return axes


def paired(ours: Any, theirs: Any) -> list[tuple[Any, Any]] | None:
    """The leaves of two structures; None where these differ."""
    (leaves, structure), (others, its) = tree_flatten(ours), tree_flatten(theirs)
    return list(zip(leaves, others, strict=True)) if structure == its else None


def _fits(one: Any, other: Any, size: int, other_size: int, places: Mapping[fx.Node, int]) -> bool:
    """Whether two arguments are the same, or the same multiple of the two sizes."""
    if isinstance(one, fx.Node) or isinstance(other, fx.Node):
        return isinstance(one, fx.Node) and isinstance(other, fx.Node) and places[one] == places[other]
    return same_value(one, other) or (type(one) is type(other) is int and _is_multiple(one, size, other, other_size))


def _is_multiple(one: int, size: int, other: int, other_size: int) -> bool:
    return one % size == 0 and one * other_size == other * size


def _is_same_constant(graph: fx.GraphModule, other: fx.GraphModule, node: fx.Node) -> bool:
    ours, theirs = map(operator.attrgetter(str(node.target)), (graph, other))
    if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        return False
    return ours is theirs or (ours.dtype is theirs.dtype and torch.equal(ours, theirs))


def _axis(one: fx.Node, its: fx.Node, size: int, other_size: int) -> int | None:
    """The dimension whose size differs, of a tensor at two sizes."""
    ours, theirs = one.meta.get("val"), its.meta.get("val")
    if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        return None  # of several results each is taken out by a call of its own
    if ours.dtype is not theirs.dtype or ours.dim() != theirs.dim():
        raise SizeMatters(f"{name_of(one)}: it makes another kind of tensor at size {other_size} than at size {size}")
    dims = [dim for dim, pair in enumerate(zip(ours.shape, theirs.shape, strict=True)) if operator.ne(*pair)]
    if not dims:
        return None
    if len(dims) > 1 or not _is_multiple(ours.shape[dims[0]], size, theirs.shape[dims[0]], other_size):
        raise SizeMatters(f"{name_of(one)}: a size of its result is no multiple of the one that varies")
    return dims[0]


class _Lie(NamedTuple):
    """How the axis lies in a tensor: its dimension, and how many elements there belong to a slice in each of its stretches, as in
    `mugraph.frontend.symbolic_sizes.symbolic_axis`. None of a tensor that has no axis."""

    dim: int | None
    widths: Widths


_Lies = tuple[_Lie, ...]


def _lies(module: fx.GraphModule, axes: Axes, size: int) -> dict[fx.Node, _Lie]:
    """How the axis lies in the tensors of a graph that acts on slices; raises SizeMatters where that is not known."""
    stretches: dict[fx.Node, int] = {}  # of what several results are taken out of, too
    lies = dict.fromkeys(module.graph.nodes, _Lie(None, ONE))
    for node, dim in axes.items():
        given = {stretches[source] for source in node.all_input_nodes if source in stretches}
        if len(given) > 1 and node.op != "output":
            raise SizeMatters(f"{name_of(node)}: its operands have slices in different orders")
        if given:
            stretches[node] = max(given)
        if dim is not None:
            of_operand, rest = stretches.setdefault(node, 1), 0
            if keeps_order(node) and isinstance(operand := node.args[0], fx.Node):
                stretches[node], rest = divmod(of_operand * _before(operand, axes[operand]), _before(node, dim))
            elements = node.meta["val"].shape[dim] // size
            if rest or not stretches[node] or elements % stretches[node]:
                raise SizeMatters(f"{name_of(node)}: its result has slices in no order")
            lies[node] = _Lie(dim, (elements // stretches[node],) * stretches[node])
    return lies


def _before(node: fx.Node, dim: int | None) -> int:
    """How often the dimensions of a tensor that stand before one repeat it."""
    return max(math.prod(map(int, node.meta["val"].shape[: dim or 0])), 1)


def _acts_on_slices(
    piece: Piece, graph: Graph, lies: Mapping[fx.Node, _Lie], known: dict[tuple[object, ...], _Lies | None]
) -> bool:
    """Whether a muGraph of a piece acts on slices as they lie in its inputs and outputs, or reads nothing that has the axis."""
    inputs = tuple(lies[node] for node in piece.inputs)
    outputs = tuple(lies[node] for node in piece.outputs)
    if all(lie.dim is None for lie in inputs):
        return all(lie.dim is None for lie in outputs)
    images = [inputs[number] for number in piece.images] + [
        lie for number, lie in zip(piece.numbers, outputs, strict=True) if number in piece.image_results
    ]
    if any(lie.dim not in (None, 0) for lie in images):  # programs have dimensions of images in another order
        return False
    return any(
        made is not None and tuple(made[number] for number in piece.numbers) == wanted
        for given, wanted in ((inputs, outputs), *_by_elements(inputs, outputs))
        for made in [_known_outputs(graph, given, known)]
    )


def _by_elements(inputs: _Lies, outputs: _Lies) -> list[tuple[_Lies, _Lies]]:
    """The same, where slices lie alike in all tensors, for each of their elements along the dimension: blocks cut these."""
    alike = len({lie.widths for lie in (*inputs, *outputs) if lie.dim is not None}) == 1
    return [(_alone(inputs), _alone(outputs))] if alike else []


def _alone(lies: _Lies) -> _Lies:
    return tuple(lie._replace(widths=ONE) for lie in lies)


def _known_outputs(graph: Graph, inputs: _Lies, known: dict[tuple[object, ...], _Lies | None]) -> _Lies | None:
    key = id(graph), inputs
    if key not in known:
        known[key] = _outputs_of(graph, (*inputs, *[_Lie(None, ONE)] * (len(graph.inputs()) - len(inputs))))
    return known[key]


def _outputs_of(graph: Graph, inputs: _Lies) -> _Lies | None:
    """How the axis lies in the outputs of a graph; None unless it acts on slices."""
    try:
        made = outputs_of_slices(graph, tuple(lie.dim for lie in inputs), tuple(lie.widths for lie in inputs))
    except MugraphError:
        return None
    return tuple(map(_Lie, *made))
