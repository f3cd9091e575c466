"""Programs on images whose channels come last in memory, as libraries of convolutions have them.

A tensor [batch, channels, places...] that lies so is one of shape [batch, places..., channels] that lies as usual. A program gets
inputs and outputs of that shape, with a transposition between them and what it computes; the search is free to do without it, as
it names axes and does not number them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import fx

from mugraph.frontend.operators.torch_casts import name_of, tensor_of
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import Left, Partition, Piece
from mugraph.frontend.partitioning.splice import ANY_STRIDES, in_order
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Graph, Level

IMAGE_RANKS = (4, 5)
"""Dimensions of images along two dimensions or three; those along one lie in one way only."""


def with_channels_last(graph: fx.Graph, whole: Partition) -> Partition:
    """The partition with programs that read images as convolutions give them, and give them as convolutions read them."""
    convolutions = [kernel for kernel in whole.library if kernel.geometry is not None]
    read = {node for kernel in convolutions for node in (kernel.source, kernel.added) if node is not None}
    loose = {step.node for step in whole.left if name_of(step.node) in ANY_STRIDES}
    images, pieces = {kernel.source for kernel in convolutions}, list[Piece]()
    for step in in_order(graph, whole):
        if isinstance(step, LibraryKernel):
            if step.geometry is not None:
                images.add(step.result)
        elif isinstance(step, Left):
            if step.node in loose and not images.isdisjoint(step.node.all_input_nodes):
                images.add(step.node)
        else:
            given = {number for number, node in enumerate(step.inputs) if node in images and _is_image(node)}
            made = {
                number
                for node, number in zip(step.outputs, step.numbers, strict=True)
                if _is_image(node) and (node in read or (given and not loose.isdisjoint(node.users)))
            }
            pieces.append(with_images(step, given, made))
            images.update(node for node, number in zip(step.outputs, step.numbers, strict=True) if number in made)
    return replace(whole, pieces=tuple(pieces))


def with_images(piece: Piece, read: Collection[int], made: Collection[int]) -> Piece:
    """The piece with a program of which these inputs and outputs have channels last; raises ValueError for what is no image."""
    if not read and not made:
        return piece
    tensors = [node.output for node in piece.program.inputs()], piece.program.output_tensors
    for numbers, known in zip((read, made), tensors, strict=True):
        if not all(0 <= number < len(known) and len(known[number].shape) in IMAGE_RANKS for number in numbers):
            raise ValueError(f"of {len(known)} tensors not all of {sorted(numbers)} are images")
    program = _relaid(piece.program, read, made)
    return replace(piece, program=program, images=frozenset(read), image_results=frozenset(made))


def _relaid(program: Graph, read: Collection[int], made: Collection[int]) -> Graph:
    builder = GraphBuilder(Level.KERNEL)
    values = []
    for number, node in enumerate(program.inputs()):
        name, tensor = program.input_names[number], node.output
        if number in read:
            batch, channels, *places = tensor.shape
            last = len(places) + 1
            image = builder.input(name, (batch, *places, channels), tensor.dtype)
            values.append(builder.add("transpose", image, permutation=(0, last, *range(1, last))))
        else:
            values.append(builder.input(name, tensor.shape, tensor.dtype))
    outputs = builder.extend(program, values)
    for number in made:
        rank = len(builder.tensor(outputs[number]).shape)
        outputs[number] = builder.add("transpose", outputs[number], permutation=(0, *range(2, rank), 1))
    return builder.build(outputs)


def _is_image(node: fx.Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dim() in IMAGE_RANKS
