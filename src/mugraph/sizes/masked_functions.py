"""Whether a PyTorch function that reduces a dimension is one masked program at every size of it.

Then kernels of one capacity run every smaller size (docs/theory.md, "Any size from slots"). PyTorch records the function with a
symbol for the size, and rules for each operator (`mugraph.frontend.masked_axis`) put masks into that. Two further looks are taken
at a few sizes, 1 among them: the function's program must be proved equal to that of the recorded calls, and the masked one must
have its values in float64, whatever lies behind the elements. What depends on the size in any other way is refused, with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils._pytree import TreeSpec, tree_flatten, tree_structure, tree_unflatten

from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch
from mugraph.frontend import trace
from mugraph.frontend.comparison import compared
from mugraph.frontend.compiler_questions import asked_outside_torch
from mugraph.frontend.graph_passes import concrete
from mugraph.frontend.masked_axis import MaskedGraph, Place, masked
from mugraph.frontend.pytree import Traced
from mugraph.frontend.symbolic_axis import SizeMatters
from mugraph.frontend.torch_casts import widened
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.sizes.capacities import AtCapacity
from mugraph.sizes.dims import Declared, Dim
from mugraph.sizes.sliced_functions import check_memory, compared_sizes, recorded
from mugraph.verifier import verify_graphs

_SLOTS_MORE = 3
"""Slots behind the largest size that is looked at in float64."""
_KINDS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


@dataclass(frozen=True, slots=True)
class MaskedFunction:
    """A function that is one masked graph at every size of its dimension."""

    dim: Dim
    graph: MaskedGraph
    original: fx.GraphModule
    """The recorded calls, without masks."""
    inputs: tuple[torch.Tensor, ...]
    """Those of the example call, in the order of the graph."""
    structure: TreeSpec
    results: TreeSpec
    sizes: tuple[int, ...]
    """At these its programs were compared."""
    takes_tensors: bool = field(init=False)
    """Whether it is called with tensors one by one, whose structure need not be looked at in every call."""

    def __post_init__(self) -> None:
        one_by_one = tree_structure((self.inputs, {}))
        object.__setattr__(self, "takes_tensors", self.structure == one_by_one)

    @property
    def claim(self) -> str:
        """For which sizes results are those of larger ones, and why, in a sentence."""
        sizes = ", ".join(map(str, self.sizes))
        return (
            f"for every size from {self.dim.low} to {self.dim.high} of {self.dim.name}: the function, as PyTorch records it with "
            f"a symbol for the size, reduces it by operators that have a neutral element, which masks put behind it; its "
            f"programs at sizes {sizes} are the recorded ones, and the masked ones have their values in float64"
        )

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, list[torch.Tensor]]:
        """The size and the inputs of a call; raises InvalidInput and ShapeMismatch for what is none of this function."""
        given, structure = list(args), self.structure
        if kwargs or not self.takes_tensors or len(given) != len(self.inputs):
            given, structure = tree_flatten((tuple(args), dict(kwargs)))
        if structure != self.structure or not all(isinstance(each, torch.Tensor) for each in given):
            raise InvalidInput("call with tensors in the structure of the example call")
        sizes = {tensor.shape[place.dim] for tensor, place in self._varying(given)}
        if len(sizes) != 1:
            raise ShapeMismatch(f"dimension {self.dim.name} has sizes {', '.join(map(str, sorted(sizes)))} in one call")
        (size,) = sizes
        self.dim.check(size)
        for number, (tensor, place, example) in enumerate(zip(given, self.graph.inputs, self.inputs, strict=True)):
            wanted = shape_at(example.shape, place, size)
            if tuple(tensor.shape) != wanted or tensor.dtype is not example.dtype:
                raise ShapeMismatch(
                    f"input {number} is {tensor.dtype} of shape {list(tensor.shape)}, wanted is {example.dtype} of {list(wanted)}"
                )
        return size, given

    def unflatten(self, outputs: Sequence[torch.Tensor]) -> Any:
        """What the function returns."""
        if self.results.is_leaf():
            return outputs[0]
        return tree_unflatten(list(outputs), self.results)

    def at_capacity(self, capacity: int) -> fx.GraphModule:
        """The masked graph with that many slots."""
        return concrete(self.graph.module, self.runner(capacity).arguments(capacity, self.resized(capacity)))

    def resized(self, size: int) -> list[torch.Tensor]:
        """The inputs of the example call, repeated or cut to a size."""
        return [
            tensor if place is None else tensor.index_select(place.dim, torch.arange(size) % tensor.shape[place.dim])
            for tensor, place in zip(self.inputs, self.graph.inputs, strict=True)
        ]

    def runner(self, capacity: int) -> AtCapacity:
        """What runs the masked graph by PyTorch."""
        return AtCapacity(self.graph, capacity, self.graph.module, self.inputs[0].device)

    def _varying(self, inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, Place]]:
        if len(inputs) != len(self.graph.inputs):
            raise InvalidInput(f"call with {len(self.graph.inputs)} tensors")
        varying = [(tensor, place) for tensor, place in zip(inputs, self.graph.inputs, strict=True) if place is not None]
        if any(tensor.dim() <= place.dim for tensor, place in varying):
            raise ShapeMismatch(f"an input has no dimension for {self.dim.name}")
        return varying


def shape_at(shape: Sequence[int], place: Place | None, size: int) -> tuple[int, ...]:
    """The shape of a tensor at a size of the axis."""
    return tuple(shape) if place is None else (*shape[: place.dim], size + place.more, *shape[place.dim + 1 :])


def masked_function(fn: Callable[..., Any], declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaskedFunction:
    """The function as a masked graph; raises SizeMatters, which says why, for others. Arguments are as in `sliced_function`."""
    if len(declared.dims) > 1:
        raise SizeMatters(f"{len(declared.dims)} dimensions are dynamic")
    (dim,) = declared.dims.values()
    if dim.low == dim.high:
        raise SizeMatters(f"dimension {dim.name} has one size")
    sizes = tuple(compared_sizes(dim))
    try:
        with asked_outside_torch() as asked:
            found = _recorded(fn, declared, dim, sizes, *declared.resized((sizes[0],), args, kwargs))
            check_memory(trace(fn, dict(kwargs) or tuple(args)))
            for size in sizes:
                _check_program(fn, found, size, *declared.resized((size,), args, kwargs))
        if asked:
            raise SizeMatters(
                f"it asks {asked[0]}, which is answered in one way where it is recorded and in another where it runs"
            )
        _check_values(found)
    except SizeMatters:
        raise
    except MugraphError as error:  # whatever keeps it from being one program
        raise SizeMatters(str(error)) from None
    return found


def _recorded(
    fn: Callable[..., Any],
    declared: Declared,
    dim: Dim,
    sizes: tuple[int, ...],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> MaskedFunction:
    """The function as it is recorded, with masks; its program is not looked at yet."""
    given, structure = tree_flatten((tuple(args), dict(kwargs)))
    if not all(isinstance(each, torch.Tensor) for each in given):
        raise SizeMatters("an argument is no tensor")
    program = recorded(fn, declared, dim, args, kwargs)
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise SizeMatters("it changes a tensor")
    if not all(isinstance(spec.arg, TensorArgument) for spec in program.graph_signature.output_specs):
        raise SizeMatters("it returns something else than tensors")
    original = _with_own_tensors(program)
    graph = masked(original.graph, original)
    return MaskedFunction(dim, graph, original, tuple(given), structure, program.call_spec.out_spec, sizes)


def _with_own_tensors(program: ExportedProgram) -> fx.GraphModule:
    """A recorded function as a graph of its arguments alone: the tensors that it brings along are the module's."""
    tensors: dict[str, torch.Tensor] = {}
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    brought = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.kind in _KINDS}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in brought:
            name, target = f"tensor_{len(tensors)}", brought[node.name]
            tensors[name] = program.state_dict[target] if target in program.state_dict else program.constants[target]
            copies[node] = graph.get_attr(name)
            copies[node].meta["val"] = node.meta["val"]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(tensors, graph)


def _check_program(
    fn: Callable[..., Any], found: MaskedFunction, size: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise SizeMatters unless the function's program at a size is proved to be that of the recorded calls."""

    def as_recorded(*args: Any, **kwargs: Any) -> Any:
        return found.unflatten(at_size(*tree_flatten((args, kwargs))[0]))

    at_size = concrete(found.original, tree_flatten((tuple(args), dict(kwargs)))[0])
    pair = compared(fn, as_recorded, dict(kwargs) or tuple(args))
    if pair.mismatch is not None or not verify_graphs(pair.left, pair.right).equivalent:
        raise SizeMatters(f"its program at size {size} is another one than is recorded for all sizes")


def _check_values(found: MaskedFunction) -> None:
    """Raise SizeMatters unless masked programs have the values of those without masks, with other slots that are no numbers.

    Of numbers of both signs, and of positive ones: logarithms and roots of others are no numbers in either program.
    """
    capacity = max(found.sizes) + _SLOTS_MORE
    runner = found.runner(capacity)
    whole = trace(found.at_capacity(capacity), runner.arguments(capacity, found.resized(capacity)))
    for size in found.sizes:
        with torch.random.fork_rng():  # so that the random numbers of others stay what they are
            sized = found.resized(size)
            inputs = [torch.randn_like(widened(each)).to(each.dtype) if each.is_floating_point() else each for each in sized]
        plain = trace(concrete(found.original, inputs), inputs)
        for given in (inputs, [each.abs() if each.is_floating_point() else each for each in inputs]):
            wanted = _values(plain, given)
            made = _values(whole, runner.arguments(size, given, behind=np.nan))
            for ours, theirs, place in zip(made, wanted, found.graph.outputs, strict=True):
                held = ours if place is None else ours.take(range(size + place.more), place.dim)
                if not np.allclose(held, theirs, rtol=1e-9, atol=1e-9, equal_nan=True):
                    raise SizeMatters(f"its masked program does not have its values at size {size}; please report this")


def _values(traced: Traced, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """What a program returns, in float64: one output of it may stand for several, as all of one element's are it itself."""
    arrays = [np.asarray(tensor.double().numpy()) for tensor in traced.flatten(tensors, {})]
    with np.errstate(all="ignore"):
        outputs = [torch.from_numpy(np.array(output)) for output in evaluate(traced.graph, arrays, FloatArithmetic())]
    return [tensor.double().numpy() for tensor in tree_flatten(traced.unflatten(outputs))[0]]
