"""The exact outputs of a program on one kind of inputs, and how far results are from them.

They are known of all slices, which may repeat (`Repeating`), or of a sample (`Sampled`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.verifier.cancellation import TRIES, cancelled_terms, may_cancel
from mugraph.verifier.deviations import Index, Measure, farthest_from_own
from mugraph.verifier.reference import Counts, Evaluation, Reference
from mugraph.verifier.samples import Places
from mugraph.verifier.vectorized_eval import Pulse

Worst = tuple[int, Index]
"""The number of an output and the index of one of its elements."""


@dataclass(frozen=True, slots=True)
class ExactValues:
    """Exact outputs, and what errors are relative to."""

    reference: Reference
    measures: tuple[Measure, ...]

    @property
    def compared(self) -> tuple[int, ...] | None:
        """How many elements of each output are compared; None where it is all of them."""
        return None

    @property
    def different(self) -> Counts:
        """How many slices differ along each axis; the others repeat them."""
        return self.reference.all

    def different_slices(self, inputs: Sequence[Array]) -> list[Array]:
        """Those of the inputs which the others repeat."""
        return self.reference.chosen_inputs(inputs, tuple(map(np.arange, self.different)))

    def outputs_by(self, evaluated: Evaluation, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of the program as `evaluated` gives them, which is asked for the slices that differ alone."""
        outputs = self.reference.in_turn(self.different_slices(inputs), self.different, evaluated)
        repeated = zip(self.reference.full_outputs(outputs, self.different), self.reference.program.output_tensors, strict=True)
        return [array.reshape(tensor.shape) for array, tensor in repeated]

    def errors(self, results: Sequence[Any]) -> tuple[float, ...]:
        """For each output its error as `mugraph.verifier.ScaleError` defines it."""
        errors = [0.0] * len(self.measures)
        for number, error, _ in self._farthest(results):
            errors[number] = max(errors[number], error)
        return tuple(errors)

    def beside_terms(self, inputs: Sequence[Array], pulse: Pulse) -> ExactValues:
        """The same with errors relative to the terms that cancel, where no exact value of an output is to be told from 0.

        Itself where there is no such output, or only a sample of the outputs is known.
        """
        return self

    def worst(self, results: Sequence[Any]) -> Worst:
        """The element that errs the most, relative to its output's largest."""
        number, _, index = max(self._farthest(results), key=lambda found: found[1])
        return number, index

    def _farthest(self, results: Sequence[Any]) -> Iterator[tuple[int, float, Index]]:
        """Elements that err the most, with the number of their output and the error, one of each output at least."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Repeating(ExactValues):
    """The exact outputs of so many different slices, which all others repeat."""

    outputs: tuple[Array, ...]
    counts: Counts

    @classmethod
    def of(cls, reference: Reference, inputs: Sequence[Array], counts: Counts, pulse: Pulse) -> Repeating:
        """Evaluate the different slices."""
        outputs = reference.outputs(inputs, counts, pulse)
        return cls(reference, _measures(reference, outputs), outputs, counts)

    @property
    def different(self) -> Counts:
        return self.counts

    def beside_terms(self, inputs: Sequence[Array], pulse: Pulse) -> Repeating:
        different = self.different_slices(inputs)
        moved = [np.zeros(exact.shape) for exact in self.outputs]
        for seed in range(TRIES):
            again = self.reference.shaken_outputs(different, self.counts, seed, pulse)
            for most, exact, shaken in zip(moved, self.outputs, again, strict=True):
                with np.errstate(all="ignore"):
                    np.maximum(most, np.abs(shaken - exact), out=most)
            if not any(may_cancel(measure.largest, most) for measure, most in zip(self.measures, moved, strict=True)):
                return self
        outputs = zip(self.measures, self.outputs, moved, strict=True)
        measures = tuple(replace(measure, terms=cancelled_terms(exact, most)) for measure, exact, most in outputs)
        return self if measures == self.measures else replace(self, measures=measures)

    def _farthest(self, results: Sequence[Any]) -> Iterator[tuple[int, float, Index]]:
        pairs = zip(self.measures, self.reference.full_outputs(self.outputs, self.counts), results, strict=True)
        for number, (measure, exact, got) in enumerate(pairs):
            found = measure.farthest(exact, np.asarray(got).reshape(exact.shape))
            place = int(np.ravel_multi_index(found.index, exact.shape)) if exact.size else 0
            shape = self.reference.program.output_tensors[number].shape
            yield number, measure.error(found.deviation), tuple(map(int, np.unravel_index(place, shape)))


@dataclass(frozen=True, slots=True)
class Sampled(ExactValues):
    """The exact outputs of the slices at some places, and of single slices that were looked at beside them."""

    outputs: tuple[tuple[Places, tuple[Array, ...]], ...]

    @classmethod
    def of(cls, reference: Reference, inputs: Sequence[Array], places: Places, pulse: Pulse) -> Sampled:
        """Evaluate the slices at these places."""
        outputs = reference.outputs_at(inputs, places, pulse)
        return cls(reference, _measures(reference, outputs), ((places, outputs),))

    @property
    def compared(self) -> tuple[int, ...]:
        return tuple(array.size for array in self.outputs[0][1])

    def beside(self, inputs: Sequence[Array], own: Sequence[Any], results: Sequence[Any], pulse: Pulse) -> Sampled:
        """The same and, for each output, the slice in which results are farthest from the program's own in its precision.

        What errs anywhere by more than the program itself differs from it there, and where it differs most it is looked at.
        """
        others = []
        for number, (measure, ours, theirs) in enumerate(zip(self.measures, own, results, strict=True)):
            pulse()
            far = farthest_from_own(np.asarray(ours), np.asarray(theirs), measure.dtype)
            places = self.reference.places_of(number, far.index)
            others.append((places, self.reference.outputs_at(inputs, places, pulse)))
        return replace(self, outputs=(self.outputs[0], *others))

    def _farthest(self, results: Sequence[Any]) -> Iterator[tuple[int, float, Index]]:
        arrays = [np.asarray(result) for result in results]
        for places, outputs in self.outputs:
            chosen = self.reference.chosen_outputs(arrays, places)
            for number, (measure, exact, got) in enumerate(zip(self.measures, outputs, chosen, strict=True)):
                found = measure.farthest(exact, got)
                yield number, measure.error(found.deviation), self.reference.index_of(number, found.index, places)


def _measures(reference: Reference, outputs: Sequence[Array]) -> tuple[Measure, ...]:
    tensors = reference.program.output_tensors
    return tuple(Measure.of(exact, tensor.dtype) for exact, tensor in zip(outputs, tensors, strict=True))
