"""Kernels of a piece timed beside what else computes it: PyTorch's calls, smaller programs, kernels that were found before."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx

from mugraph.frontend.operators.torch_casts import tensor_of
from mugraph.frontend.partitioning.partition import Partition, Piece
from mugraph.frontend.partitioning.splice import as_torch, runnable, spliced
from mugraph.pieces.example_tensors import examples
from mugraph.pieces.image_layouts import Layout
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.benchmarking import Duel, duel
from mugraph.support.deadline import NO_LIMIT, Deadline


def against(piece: Piece, result: Superoptimized, module: fx.GraphModule, until: Deadline = NO_LIMIT) -> Duel:
    """The kernels as challengers of a module, on random tensors with the strides of the piece's inputs; no round but the first
    starts that may end after the deadline."""
    machine, left = result.executable.machine, until.remaining
    with torch.no_grad(), examples_of(piece) as tensors:
        ours = machine.timed(functools.partial(runnable(piece, result.executable), *tensors))
        theirs = machine.timed(functools.partial(module.forward, *tensors))
        outcome = duel(ours.run, theirs.run, clock=ours.clock, limit=math.inf if left is None else left, brief=True)
    result.executable.forget_weights()  # random ones
    return outcome


def by_kernels(piece: Piece, result: Superoptimized) -> fx.GraphModule:
    """A module that runs a piece by the kernels of a result, with packed weights of its own."""
    own = piece.of_copies(piece.copies)
    return spliced(as_torch(piece), Partition((own,), (), ()), {own: result.executable.with_own_weights()})


def description_of(result: Superoptimized) -> str:
    """What the time of a result's kernels depends on, beside the program."""
    return f"{result.executable.digest} with {result.executable.packed_bytes}"


def torch_here() -> tuple[str, ...]:
    """What PyTorch's calls take as long as they do by, beside the machine, and round by: its version, how many threads it has,
    and in what its CPU products of fp32 may be done."""
    products = getattr(torch.backends.mkldnn, "matmul", None)  # older ones have one setting for all devices
    precision = torch.get_float32_matmul_precision() if products is None else products.fp32_precision
    return torch.__version__, str(torch.get_num_threads()), str(precision)


@contextmanager
def examples_of(piece: Piece) -> Iterator[list[torch.Tensor]]:
    """Random tensors that lie as the inputs of a piece do."""
    with examples(map(recorded_tensor, piece.inputs)) as tensors:
        yield [Layout.CHANNELS_LAST.of(tensor) if number in piece.images else tensor for number, tensor in enumerate(tensors)]


def recorded_tensor(node: fx.Node) -> torch.Tensor:
    """The tensor without data that stands for an input of a piece."""
    tensor = tensor_of(node)
    assert tensor is not None, "the inputs of a piece are tensors"
    return tensor
