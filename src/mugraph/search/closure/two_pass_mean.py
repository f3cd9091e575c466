"""Means taken twice: what is left of a row when its mean is subtracted has a mean, too, and that is subtracted as well.

`d = x - mean(x)` is no more precise than the mean, which is rounded: of rows of equal elements it leaves errors where zeros
should be, and a division by the deviation of such a row makes them as large as any result. Over the reals the mean of d is 0.
In floating point it is the error that all of d has in common, and it is almost nothing, so that little of it is rounded away.
Whether a row value is a mean, so that the outputs stay the same, is seen by computing both
(`mugraph.search.partition.rounding_model`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mugraph.search.closure.sketch import Sketch, Step


# by name: the pattern is x - mean(x), a difference with a sum
def centred(sketch: Sketch) -> Iterator[Sketch]:
    """For each difference of a tensor and a row value summed up from it, the sketch with it taken a second time."""
    for index, step in enumerate(sketch.steps):
        if step.op == "sub" and sketch.steps[step.inputs[1]].axes < step.axes:
            tensor, mean = step.inputs
            cone = _between(sketch.steps, tensor, mean)
            made = [sketch.steps[i] for i in cone]
            if any(step.op == "sum" for step in made) and all(step.in_loop == sketch.steps[tensor].in_loop for step in made):
                yield _twice(sketch, index, cone)


def _between(steps: Sequence[Step], first: int, last: int) -> list[int]:
    """The steps that lead from one to another, without the first; empty if none do."""
    after = {first}
    for index in range(first + 1, last + 1):
        if after.intersection(steps[index].inputs):
            after.add(index)
    before = {last} & after
    for index in range(last, first, -1):
        if index in before:
            before.update(after.intersection(steps[index].inputs))
    return sorted(before - {first})


def _twice(sketch: Sketch, difference: int, cone: Sequence[int]) -> Sketch:
    """The sketch with the steps of `cone` made of a difference again, and what they make subtracted from it."""
    steps = list(sketch.steps[: difference + 1])
    tensor, mean = sketch.steps[difference].inputs
    again = {tensor: difference}
    for index in cone:
        step = sketch.steps[index]
        again[index] = len(steps)
        steps.append(replace(step, inputs=tuple(again.get(i, i) for i in step.inputs)))
    steps.append(replace(sketch.steps[difference], inputs=(difference, again[mean])))
    moved = {i: i for i in range(difference)} | {difference: len(steps) - 1}
    for index, step in enumerate(sketch.steps[difference + 1 :], start=difference + 1):
        moved[index] = len(steps)
        steps.append(replace(step, inputs=tuple(moved[i] for i in step.inputs)))
    return replace(sketch, steps=tuple(steps), goals=tuple(moved[goal] for goal in sketch.goals))
