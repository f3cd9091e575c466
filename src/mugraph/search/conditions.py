"""What the search leaves out of a program by design: the conditions of docs/theory.md, as far as they touch it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from mugraph.ir.axes import AxisProgram
from mugraph.search.partition.cuts import SHARED_OUT


def left_out(program: AxisProgram, loop_axes: Sequence[int], kernels: int) -> Iterator[str]:
    """What is not searched of a program whose for-loops may cut `loop_axes`, with up to so many kernels, in words."""
    common = frozenset.intersection(*(program.terms[term].axes for term, _ in program.outputs))
    if any(size > 1 and axis not in common for axis, size in enumerate(program.sizes)):
        yield "grids that cut axes which some output lacks, but for partial results"
    if len(loop_axes) > 1:
        yield "for-loops that cut two axes at once"
    if loop_axes:
        yield "for-loops that put an operand past themselves as it was read, where no finished sum meets it"
    if _apart(program):
        yield "elementwise operators that join other axes than the program joins"
    if any(len(reduced) > 1 for reduced in program.reductions):
        yield "sums over some of the axes that the program sums over at once"
    sources = [term.source for _, term in program.loads()]
    if len(set(sources)) < len(sources):
        yield "kernels that read and compute once what the program needs along two axes at once"
    yield "kernels that compute a tensor twice, or that only tiles of one element allow"
    if kernels > 1 and program.reductions:
        yield "partial results of partial results, and of one axis more than two ways to share it out"
    if len(program.outputs) + kernels - 1 > SHARED_OUT:
        yield f"some of the ways to share out more than {SHARED_OUT} stored tensors and outputs among kernels"


def _apart(program: AxisProgram) -> bool:
    """Whether two tensors of a program have axes of which neither includes the other's."""
    axes = {term.axes for term in program.terms}
    return any(not (left <= right or right <= left) for left, right in itertools.combinations(axes, 2))
