"""Whether a PyTorch function that reduces a dimension is one masked program at every size of it.

Then kernels of one capacity run every smaller size (docs/theory.md, "Any size from slots"). PyTorch records the function with a
symbol for the size, and rules for each operator (`mugraph.frontend.symbolic_sizes.masked_axis`) put masks into that. Two further
looks are taken at a few sizes, 1 among them: the function's program must be proved equal to that of the recorded calls, and the
masked one must have its values in float64, whatever lies behind the elements. What depends on the size in any other way is
refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.calls.pytree import Traced
from mugraph.frontend.comparison import compared
from mugraph.frontend.operators.torch_casts import widened
from mugraph.frontend.recording.compiler_questions import asked_outside_torch
from mugraph.frontend.rewriting.graph_passes import concrete
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.masked_axis import masked
from mugraph.frontend.symbolic_sizes.slots import MaskedGraph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.sizes.brought_tensors import BroughtTensors
from mugraph.sizes.capacities import AtCapacity
from mugraph.sizes.dims import Declared
from mugraph.sizes.masked_calls import MaskedCalls
from mugraph.sizes.recorded_calls import calls_of_arguments, program_of_calls
from mugraph.sizes.sliced_functions import (
    bytes_of_slice,
    check_memory,
    check_questions,
    check_time,
    compared_sizes,
    recorded,
)
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.verifier import verify_graphs

_SLOTS_MORE = 3
"""Slots behind the largest size that is looked at in float64."""


_NOTHING = BroughtTensors()


@dataclass(frozen=True, slots=True)
class MaskedFunction(MaskedCalls):
    """A function that is one masked graph at every size of its dimension."""

    graph: MaskedGraph
    original: fx.GraphModule
    """The recorded calls, without masks."""
    sizes: tuple[int, ...]
    """At these its programs are compared."""
    brought: BroughtTensors = _NOTHING
    """What it brings along; nothing where no program was compared."""

    @property
    def claim(self) -> str:
        """For which sizes results are those of larger ones, and why, in a sentence."""
        sizes = ", ".join(map(str, self.sizes))
        return (
            f"for every size {self.dim.said}: the function, as PyTorch records it with a symbol for the size, reduces it by "
            f"operators that have a neutral element, which masks put behind it; its "
            f"programs at sizes {sizes} are the recorded ones, and the masked ones have their values in float64"
        )

    @property
    def brings_gradients(self) -> bool:
        """Whether a tensor that the function brings along requires a gradient."""
        return any(tensor.requires_grad for tensor in (*self.original.parameters(), *self.original.buffers()))

    def arguments(self, capacity: int) -> list[torch.Tensor]:
        """Those of the masked graph, for the example call at a capacity."""
        return self.runner(capacity).arguments(capacity, self.resized(capacity))

    def at_capacity(self, capacity: int) -> fx.GraphModule:
        """The masked graph with that many slots."""
        return concrete(self.graph.module, self.arguments(capacity))

    def runner(self, capacity: int) -> AtCapacity:
        """What runs the masked graph by PyTorch."""
        return AtCapacity(self.graph, capacity, self.graph.module, self.inputs[0].device)


def masked_function(
    fn: Callable[..., Any],
    declared: Declared,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    deadline: Deadline = NO_LIMIT,
) -> MaskedFunction:
    """The function as a masked graph; raises SizeMatters, which says why, for others, and where a deadline passes before.
    Arguments are as in `sliced_function`."""
    kwargs = dict(sorted(kwargs.items()))
    try:
        with asked_outside_torch() as asked:
            found = masked_as_recorded(fn, declared, args, kwargs, deadline)
            sizes, name = found.sizes, found.dim.name
            programs, own = dict[int, Traced](), list[Traced]()
            for size in sizes:
                check_time(deadline, f"what it is at size {size} of {name}")
                traced, programs[size] = _checked_program(fn, found, size, *declared.resized((size,), args, kwargs))
                own.append(traced)
            found = replace(found, brought=BroughtTensors.of(own, (*found.original.parameters(), *found.original.buffers())))
        check_questions(asked)
        _check_values(found, programs, deadline)
    except SizeMatters:
        raise
    except MugraphError as error:  # whatever keeps it from being one program
        raise SizeMatters(str(error)) from None
    return found


def masked_as_recorded(
    fn: Callable[..., Any],
    declared: Declared,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    deadline: Deadline = NO_LIMIT,
) -> MaskedFunction:
    """The function as it is recorded, with masks, of which no program was compared; raises what `masked_function` raises."""
    if len(declared.dims) > 1:
        raise SizeMatters(f"{len(declared.dims)} dimensions are dynamic")
    (dim,) = declared.dims.values()
    if dim.low == dim.high:
        raise SizeMatters(f"dimension {dim.name} has one size")
    sizes = tuple(compared_sizes(dim, bytes_of_slice(declared, args, kwargs)))
    args, kwargs = declared.resized((sizes[0],), args, dict(sorted(kwargs.items())))
    given, structure = tree_flatten((tuple(args), dict(kwargs)))
    if not all(isinstance(each, torch.Tensor) for each in given):
        raise SizeMatters("an argument is no tensor")
    program = recorded(fn, declared, args, kwargs, deadline)
    original = calls_of_arguments(program)
    graph = masked(original.graph, original)
    return MaskedFunction(dim, graph, tuple(given), structure, program.call_spec.out_spec, original, sizes)


def _checked_program(
    fn: Callable[..., Any], found: MaskedFunction, size: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Traced, Traced]:
    """The function at a size as a program, and the recorded calls; raises SizeMatters unless one is proved to be the other, and
    results are memory of their own."""
    examples = dict(kwargs) or tuple(args)
    asked = trace(fn, examples)
    check_memory(asked)
    program = program_of_calls(found.original, found.unflatten, args, kwargs)
    pair = compared(asked, program, examples)
    if pair.mismatch is not None or not verify_graphs(pair.left, pair.right).equivalent:
        raise SizeMatters(f"its program at size {size} is another one than is recorded for all sizes")
    return asked, program


def _check_values(found: MaskedFunction, programs: Mapping[int, Traced], deadline: Deadline) -> None:
    """Raise SizeMatters unless masked programs have the values of those without masks, with other slots that are no numbers, and
    where the deadline passes before that is known.

    `programs` are those without, by size. Of numbers of both signs, and of positive ones: logarithms and roots of others are no
    numbers in either program.
    """
    capacity = max(found.sizes) + _SLOTS_MORE
    runner = found.runner(capacity)
    whole = trace(found.at_capacity(capacity), found.arguments(capacity))
    for size, plain in programs.items():
        check_time(deadline, f"for its values at size {size} of {found.dim.name}")
        with torch.random.fork_rng():  # so that the random numbers of others stay what they are
            sized = found.resized(size)
            inputs = [torch.randn_like(widened(each)).to(each.dtype) if each.is_floating_point() else each for each in sized]
        for given in (inputs, [each.abs() if each.is_floating_point() else each for each in inputs]):
            wanted = _values(plain, *tree_unflatten(given, found.structure))
            made = _values(whole, runner.arguments(size, given, behind=np.nan), {})
            for ours, theirs, place in zip(made, wanted, found.graph.outputs, strict=True):
                held = ours if place is None else ours.take(range(size + place.more), place.dim)
                if not np.allclose(held, theirs, rtol=1e-9, atol=1e-9, equal_nan=True):
                    raise SizeMatters(f"its masked program does not have its values at size {size}; please report this")


def _values(traced: Traced, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a program returns, in float64: one output of it may stand for several, as all of one element's are it itself."""
    arrays = [np.asarray(tensor.double().numpy()) for tensor in traced.flatten(args, kwargs)]
    with np.errstate(all="ignore"):
        outputs = [torch.from_numpy(np.array(output)) for output in evaluate(traced.graph, arrays, FloatArithmetic())]
    return [tensor.double().numpy() for tensor in tree_flatten(traced.unflatten(outputs))[0]]
