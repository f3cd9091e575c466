"""What ONNX's operators on parts of tensors mean: slices, concatenations, borders, and windows of pools."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.frontend.onnx.calls import NodeCall
from mugraph.frontend.operators import tensor_parts
from mugraph.frontend.operators.windows import Windows, largest, means
from mugraph.ir.graph import LOOKUP
from mugraph.ir.program import ProgramTensor as Tensor

_MOST_RUNS = 16
"""Positions that are gathered are at most so many runs in equal steps: more are more than can be searched."""


def sliced(call: NodeCall) -> Tensor:
    """Axes from starts to ends in steps: attributes before opset 10, operands since."""
    x = call[0]
    if call.opset < 10:
        starts, ends = ([int(end) for end in call.attributes[name]] for name in ("starts", "ends"))
        axes, steps = call.axes(), None
    else:
        starts, ends = call.integers(1), call.integers(2)
        axes, steps = (None if call.optional(index) is None else call.integers(index) for index in (3, 4))
    along = range(len(starts)) if axes is None else [call.position(axis) for axis in axes]
    for axis, start, end, step in zip(along, starts, ends, steps or [1] * len(starts), strict=True):
        x = tensor_parts.sliced(x, axis, start, end, step)
    return x


def split(call: NodeCall) -> tuple[Tensor, ...]:
    """Parts of the sizes that are given, or as many parts of equal sizes as there are results, the last one smaller."""
    axis = call.axis(0)
    whole = call[0].shape[axis]
    if "split" in call.attributes or call.optional(1) is not None:
        sizes = [int(size) for size in call.attributes["split"]] if "split" in call.attributes else call.integers(1)
    else:
        size = -(-whole // call.results)
        sizes = [min(size, whole - start) for start in range(0, whole, size)]
    if sum(sizes) != whole or len(sizes) != call.results:
        raise ShapeMismatch(f"{call.results} parts of sizes {sizes} of {whole} elements")
    return tensor_parts.split(call[0], sizes, axis)


def concatenated(call: NodeCall) -> Tensor:
    """One behind the other; a constant that takes part has one number everywhere."""
    like = next(operand for operand in call.operands if isinstance(operand, Tensor))
    axis = call.position(int(call.attributes["axis"]), len(like.shape))
    parts = [
        call.filled(index, like)
        for index, operand in enumerate(call.operands)
        if not isinstance(operand, np.ndarray) or operand.size
    ]
    return tensor_parts.concatenated(parts, axis)


def gathered(call: NodeCall) -> Tensor:
    """The positions along an axis that a constant lists: one is a slice, and so are several in equal steps; or that an input of
    integers names."""
    axis, shape = call.axis(0), call[0].shape
    where = call.optional(1)
    if isinstance(where, Tensor):
        return call[0].apply(LOOKUP, where, dim=axis, negative="wrapped")
    wanted = call.integers(1)
    if any(not -shape[axis] <= index < shape[axis] for index in wanted) or not wanted:
        raise ShapeMismatch(f"positions {wanted} of {shape[axis]}")
    runs = list(_runs([index % shape[axis] for index in wanted]))
    if len(runs) > _MOST_RUNS:
        raise UnsupportedOperator(f"positions in {len(runs)} runs; gather at most {_MOST_RUNS} runs of positions in equal steps")
    parts = [call[0].slice(axis, run[0], len(run), run.step) for run in runs]
    assert where is not None
    return tensor_parts.concatenated(parts, axis).reshape(*shape[:axis], *where.shape, *shape[axis + 1 :])


def _runs(positions: Sequence[int]) -> Iterator[range]:
    """Positions as ranges, one behind the other, each as long as may be."""
    start = 0
    while start < len(positions):
        step = positions[start + 1] - positions[start] if start + 1 < len(positions) else 1
        end = start + 1
        while step and end < len(positions) and positions[end] == positions[end - 1] + step:
            end += 1
        step = step if end > start + 1 else 1
        yield range(positions[start], positions[start] + (end - start) * step, step)
        start = end


def padded(call: NodeCall) -> Tensor:
    """A border of one number, of what lies next to it, of the last element, or of the other end."""
    x, mode = call[0], str(call.attributes.get("mode", "constant"))
    pads = [int(pad) for pad in call.attributes["pads"]] if "pads" in call.attributes else call.integers(1)
    given = call.integers(3) if call.optional(3) is not None else range(len(x.shape))
    value = call.number(2) if call.optional(2) is not None else float(call.attributes.get("value", 0.0))
    along = [call.position(axis) for axis in given]
    if len(pads) != 2 * len(along):
        raise ShapeMismatch(f"pads {pads} are not two for each of {len(along)} axes")
    for axis, before, behind in zip(along, pads[: len(along)], pads[len(along) :], strict=True):
        x = _bordered(x, axis, before, behind, mode, value)
    return x


def _bordered(x: Tensor, axis: int, before: int, behind: int, mode: str, value: float) -> Tensor:
    # by name: a mode of ONNX's Pad, which is no operator of ours
    if mode == "constant" or max(before, behind) <= 0:
        return tensor_parts.with_border(x, axis, before, behind, value)
    last = len(x.shape) - 1
    if min(before, behind) < 0:
        cut = tensor_parts.with_border(x, axis, min(0, before), min(0, behind), 0)
        return _bordered(cut, axis, max(0, before), max(0, behind), mode, value)
    match mode:
        case "reflect" if max(before, behind) < x.shape[axis]:
            pairs = [0, 0] * (last - axis) + [before, behind]
            return tensor_parts.reflected(x, pairs)
        case "edge":
            return tensor_parts.replicated(x, [0, 0] * (last - axis) + [before, behind])
        case "wrap" if max(before, behind) <= x.shape[axis]:
            head = [x.slice(axis, x.shape[axis] - before, before)] if before else []
            tail = [x.slice(axis, 0, behind)] if behind else []
            return tensor_parts.concatenated([*head, x, *tail], axis)
    raise UnsupportedOperator(f"a border of {before} and {behind} elements of {x.shape[axis]} by mode {mode!r}")


def max_pooled(call: NodeCall) -> Tensor:
    """The largest element of each window."""
    return largest(call[0], _windows(call))


def average_pooled(call: NodeCall) -> Tensor:
    """The mean of each window, over its elements or over its places."""
    return means(call[0], _windows(call), bool(call.attributes.get("count_include_pad", 0)))


def _windows(call: NodeCall) -> list[Windows]:
    """The windows along each dimension behind the batch and the channels."""
    width = [int(size) for size in call.attributes["kernel_shape"]]
    rank, sizes = len(width), call[0].shape[2:]
    if len(sizes) != rank:
        raise ShapeMismatch(f"windows of {rank} dimensions of shape {list(call[0].shape)}")
    step, dilation = ([int(n) for n in call.attributes.get(name, [1] * rank)] for name in ("strides", "dilations"))
    pads = [int(pad) for pad in call.attributes.get("pads", [0] * 2 * rank)]
    auto = str(call.attributes.get("auto_pad", "NOTSET"))
    found = []
    for dim in range(rank):
        before, behind = pads[dim], pads[rank + dim]
        if auto != "NOTSET":
            before, behind = _automatic(auto, sizes[dim], dilation[dim] * (width[dim] - 1) + 1, step[dim])
        ceil = bool(call.attributes.get("ceil_mode", 0))
        found.append(Windows.of(sizes[dim], width[dim], step[dim], (before, behind), dilation[dim], ceil))
    return found


def _automatic(auto: str, size: int, reach: int, step: int) -> tuple[int, int]:
    """The border with which there is a window every `step` elements; an odd one is longer behind, or before for SAME_LOWER."""
    if auto == "VALID":
        return 0, 0
    border = max(0, (math.ceil(size / step) - 1) * step + reach - size)
    shorter = border // 2
    return (border - shorter, shorter) if auto == "SAME_LOWER" else (shorter, border - shorter)
