"""Calls of two recorded graphs that one input stands for, as their operands are shown to be equal (docs/theory.md, "Cutoffs").

Which calls these may be is guessed by what the operands are for random arguments. A wrong guess makes nothing equal that is not:
both graphs give the operands as results, and these are compared like others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from mugraph.frontend.rewriting.watched_calls import values_of
from mugraph.frontend.symbolic_sizes.cut_points import Cut, CutCalls

_RELATIVE, _ABSOLUTE = 2**-6, 2**-10
"""How far numbers of one operand may be apart in two graphs that round in different ways."""


@dataclass(frozen=True, slots=True)
class JoinedCuts:
    """Of a graph, the nodes that inputs stand for, and operands that have to be those of another graph, in the same order."""

    own: Mapping[fx.Node, Cut]
    operands: tuple[fx.Node, ...]


def joined_cuts(sides: Sequence[CutCalls], arguments: Sequence[Any]) -> list[JoinedCuts]:
    """Cuts of two graphs with the same arguments, with one number for a call of each of one kind, whose operands look alike."""
    numbers, pairs = dict[int, int](), list[tuple[Cut, Cut]]()
    of_both = {cut.number for cut in sides[0].cuts.values()} & {cut.number for cut in sides[1].cuts.values()}
    for group in _groups(sides, arguments):
        ours, theirs = ({cut.number: cut for cut in side if cut.number not in of_both}.values() for side in group)
        for left, right in zip(ours, theirs, strict=False):
            numbers[right.number] = left.number
            pairs.append((left, right))
    return [
        JoinedCuts(
            {node: replace(cut, number=numbers.get(cut.number, cut.number)) for node, cut in side.cuts.items()},
            tuple(operand for pair in pairs for operand in pair[place].operands),
        )
        for place, side in enumerate(sides)
    ]


def _groups(sides: Sequence[CutCalls], arguments: Sequence[Any]) -> list[tuple[list[Cut], list[Cut]]]:
    """Calls of each graph, put together with those of one kind whose operands look alike."""
    groups: list[tuple[list[Cut], list[Cut]]] = []
    known: list[tuple[str, list[torch.Tensor]]] = []
    drawn = _drawn(arguments) if all(side.cuts for side in sides) else []
    for number, side in enumerate(sides if drawn else ()):
        operands = {operand for cut in side.cuts.values() for operand in cut.operands}
        try:
            values = values_of(side.calls, drawn, operands)
        except RuntimeError:  # a call that refuses such numbers, like a decomposition of matrices: nothing is guessed
            return []
        for cut in side.cuts.values():
            if not cut.operands:
                continue
            tensors = [values[operand] for operand in cut.operands]
            alike = (place for place, (kind, other) in enumerate(known) if kind == cut.kind and _are_alike(tensors, other))
            place = next(alike, None)
            if place is None:
                place = len(known)
                known.append((cut.kind, tensors))
                groups.append(([], []))
            groups[place][number].append(cut)
    return groups


def _drawn(arguments: Sequence[Any]) -> list[Any]:
    """Random numbers in the place of arguments."""
    generator = torch.Generator().manual_seed(0)
    reals = [isinstance(each, torch.Tensor) and each.is_floating_point() for each in arguments]
    return [
        torch.randn(each.shape, generator=generator).to(each) if real else each
        for each, real in zip(arguments, reals, strict=True)
    ]


def _are_alike(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return all(
        one.shape == other.shape and torch.allclose(one.double(), other.double(), _RELATIVE, _ABSOLUTE, equal_nan=True)
        for one, other in zip(ours, theirs, strict=True)
    )
