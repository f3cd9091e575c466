"""Random functions and maxima whose values are drawn when they are first asked for (docs/theory.md, "The draw").

Arguments are told apart exactly: nothing is hashed, so that the value at an argument is independent of those at all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mugraph.algebra.fields import FieldValue
from mugraph.algebra.modular import Residues
from mugraph.ir.arithmetic import Array
from mugraph.verifier.points import mix

Draw = Callable[[int], FieldValue]
"""A vector of so many fresh random values."""
Numbers = npt.NDArray[np.int64]

_UNSORTED = 1 << 10
"""So many residues are looked up as they come."""
_NUMBER_BITS = 31
"""No test meets so many residues that their numbers need more."""


def pattern(met: Sequence[Residues]) -> str:
    """What tells residues that were met, in their order, which of them are the same: alike where the same places are."""
    if not met:
        return ""
    _, first, places = np.unique(np.concatenate([part.reshape(-1) for part in met]), return_index=True, return_inverse=True)
    return hashlib.sha256(first[places].astype(np.int64).tobytes()).hexdigest()


class Directory:
    """Residues under the numbers 0, 1, ... in the order in which they were noted."""

    def __init__(self) -> None:
        self._residues = np.zeros(0, np.int64)  # ascending
        self._numbers = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._residues)

    def find(self, residues: Residues) -> Numbers:
        """The number of each residue, of the residues' shape; -1 for those that were not noted."""
        if not len(self):
            return np.full(residues.shape, -1)
        if residues.size <= _UNSORTED:
            return self._found(residues)
        order = np.argsort(residues, axis=None)  # what is looked up in order is found in the cache
        numbers = np.empty(residues.size, np.int64)
        numbers[order] = self._found(residues.reshape(-1)[order])
        return numbers.reshape(residues.shape)

    def _found(self, residues: Residues) -> Numbers:
        places = np.searchsorted(self._residues, residues).clip(max=len(self) - 1)
        return np.where(self._residues[places] == residues, self._numbers[places], -1)

    def numbers(self, residues: Residues) -> Numbers:
        """The number of each residue, of the residues' shape; new ones are noted in ascending order."""
        different, places = np.unique(residues, return_inverse=True)
        numbers = self._found(different) if len(self) else np.full(len(different), -1)
        new = numbers < 0
        if new.any():
            numbers[new] = len(self) + np.arange(np.count_nonzero(new))
            self.note(different[new])
        return np.asarray(numbers[places].reshape(residues.shape))

    def note(self, residues: Residues) -> None:
        """Number the elements of a vector on from those before."""
        order = np.argsort(residues)
        places = np.searchsorted(self._residues, residues[order])
        self._numbers = np.insert(self._numbers, places, len(self) + order)
        self._residues = np.insert(self._residues, places, residues[order])


class Variables:
    """Independent random values under the numbers 0, 1, ..., each drawn once."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._drawn = draw(0)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, count: int) -> FieldValue:
        """So many more, which are returned."""
        new = self._draw(count)
        p, q = (_joined(before, after) for before, after in zip(self._drawn, new, strict=True))
        self._drawn = FieldValue(p, q)
        self._count += count
        return new

    def __getitem__(self, numbers: Numbers) -> FieldValue:
        p, q = (None if part is None else np.asarray(part[numbers]) for part in self._drawn)
        return FieldValue(p, q)


def _joined(before: Residues | None, after: Residues | None) -> Residues | None:
    return None if before is None or after is None else np.concatenate([before, after])


class RandomFunction:
    """A function whose values at different residues are independent random variables; `met` are its arguments.

    Of several operands, the tuples of residues have numbers, which are the arguments: `_tuples` has those of what came first, the
    number of the tuple before it and the residue, for each operand but the first. Values stand under the numbers of arguments,
    those of calls with as many operands together.
    """

    def __init__(self, draw: Draw) -> None:
        self.met: list[Residues] = []
        self._known = Directory()
        self._draw = draw
        self._values: dict[int, Variables] = {}
        self._tuples: list[Pairs] = []

    def __call__(self, *operands: Residues) -> FieldValue:
        """The values, of the operands' common shape."""
        known: Directory | Pairs
        if len(operands) == 1:
            known, arguments = self._known, operands[0]
            numbers = known.numbers(arguments)
        else:
            arguments = numbers = self._numbers(operands)
            known = self._tuples[len(operands) - 2]
        self.met.append(arguments)
        values = self._values.setdefault(len(operands), Variables(self._draw))
        if len(known) > len(values):
            values.extend(len(known) - len(values))
        return values[numbers]

    def _numbers(self, operands: Sequence[Residues]) -> Numbers:
        """The numbers of tuples: each pair of what came before and the next residue has one, if it is the same the same.

        What an operand repeats along a dimension (a mask's row, a constant) is numbered once, before it is repeated.
        """
        self._tuples += [Pairs() for _ in range(len(operands) - 1 - len(self._tuples))]
        numbers = operands[0]
        for pairs, residues in zip(self._tuples, operands[1:], strict=False):
            numbers = pairs.numbers(numbers, residues)
        return numbers


class Pairs:
    """Pairs of residues under the numbers 0, 1, ...; both parts are told apart by their numbers."""

    def __init__(self) -> None:
        self._left, self._right, self._both = Directory(), Directory(), Directory()

    def __len__(self) -> int:
        return len(self._both)

    def numbers(self, left: Residues, right: Residues) -> Numbers:
        """The number of each pair, of the residues' common shape."""
        return self._both.numbers((self._left.numbers(left) << _NUMBER_BITS) + self._right.numbers(right))


class Maxima:
    """The maximum as a random function of a *set*: in whichever order elements come, and however often, it is the same.

    A residue that is the value of a maximum stands for the elements of that one, so that maxima of parts, which may overlap, make
    up the maximum of the whole. `residues` are those by which values are known as elements; `met` are elements and values.
    """

    def __init__(self, draw: Draw, residues: Callable[[FieldValue], Residues]) -> None:
        self.met: list[Residues] = []
        self._sets = Sets()
        self._known = Directory()
        self._values = Variables(draw)
        self._residues = residues

    def numbers(self, rows: Residues) -> Numbers:
        """For each row of a matrix the number of the set of its elements; -1 for a set of one, which is its own maximum."""
        self.met.append(rows)
        before, sets = len(self._sets), _as_sets(self._elements(rows))
        several = sets.lengths > 1
        numbers = np.full(len(rows), -1)
        numbers[several] = self._sets.numbers(sets.only(several))
        if len(self._sets) > before:
            self.met.append(self._residues(self._values.extend(len(self._sets) - before)))
            self._known.note(self.met[-1])
        return numbers

    def values(self, numbers: Numbers) -> FieldValue:
        """The maxima of the sets under these numbers; anything for -1."""
        return self._values[numbers]

    def _elements(self, rows: Residues) -> Runs:
        """What rows are maxima of: the elements of those that are maxima in their place."""
        numbers = self._known.find(rows).reshape(-1)
        if (numbers < 0).all():
            return Runs(rows.reshape(-1), np.full(len(rows), rows.shape[1]))
        parts = self._sets.of(numbers, rows.reshape(-1))
        return Runs(parts.elements, parts.lengths.reshape(rows.shape).sum(axis=1))


class Runs(NamedTuple):
    """Runs of elements, one after the other, and how long each is."""

    elements: Residues
    lengths: Numbers

    @property
    def starts(self) -> Numbers:
        """Where each begins."""
        return np.cumsum(self.lengths) - self.lengths

    def places(self, which: Numbers) -> Numbers:
        """The places of the elements of these runs, one after the other."""
        lengths = self.lengths[which]
        inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.asarray(np.repeat(self.starts[which], lengths) + inside)

    def only(self, wanted: Array) -> Runs:
        """Some of the runs, given by a mask or by their numbers."""
        return Runs(self.elements[np.repeat(wanted, self.lengths)], self.lengths[wanted])


class Sets:
    """Sets of residues under the numbers 0, 1, ... in the order in which they were met first.

    They are looked up by a hash, and every set found is compared with the one that has its number: where two have one hash, all
    are hashed in another way.
    """

    def __init__(self) -> None:
        self._runs = Runs(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._by_hash = Directory()
        self._salt = 0

    def __len__(self) -> int:
        return len(self._runs.lengths)

    def numbers(self, sets: Runs) -> Numbers:
        """The number of each set, whose elements come in ascending order; new ones are numbered."""
        while True:
            hashes = self._hashes(sets)
            numbers = self._by_hash.find(hashes)
            unknown = np.flatnonzero(numbers < 0)
            _, first, places = np.unique(hashes[unknown], return_index=True, return_inverse=True)
            ranks = np.argsort(np.argsort(first))  # of new sets, by where they were met first
            new = unknown[np.sort(first)]
            numbers[unknown] = len(self) + ranks[places]
            known = _joined_runs(self._runs, _taken(sets, new))
            if _are_same(sets, _taken(known, numbers)):
                self._runs = known
                self._by_hash.note(hashes[new])
                return numbers
            self._hash_anew()

    def of(self, numbers: Numbers, others: Residues) -> Runs:
        """The sets under these numbers, and single elements, of `others`, for -1."""
        lengths = np.where(numbers < 0, 1, self._runs.lengths[numbers]) if len(self) else np.ones_like(numbers)
        elements = np.empty(lengths.sum(), np.int64)
        single = np.repeat(numbers < 0, lengths)
        elements[single] = others[numbers < 0]
        elements[~single] = self._runs.elements[self._runs.places(numbers[numbers >= 0])]
        return Runs(elements, lengths)

    def _hashes(self, sets: Runs) -> Residues:
        if not len(sets.lengths):
            return np.zeros(0, np.int64)
        with np.errstate(over="ignore"):
            mixed = mix(sets.elements.astype(np.uint64) ^ mix(np.asarray(self._salt, np.uint64)))
            total = np.add.reduceat(mixed, sets.starts)
        return np.asarray(mix(total) >> np.uint64(1)).astype(np.int64)

    def _hash_anew(self) -> None:
        while True:
            self._salt += 1
            hashes = self._hashes(self._runs)
            if len(np.unique(hashes)) == len(hashes):
                self._by_hash = Directory()
                self._by_hash.note(hashes)
                return


def _taken(runs: Runs, which: Numbers) -> Runs:
    return Runs(runs.elements[runs.places(which)], runs.lengths[which])


def _joined_runs(before: Runs, after: Runs) -> Runs:
    return Runs(*(np.concatenate(pair) for pair in zip(before, after, strict=True)))


def _are_same(left: Runs, right: Runs) -> bool:
    return np.array_equal(left.lengths, right.lengths) and np.array_equal(left.elements, right.elements)


def _as_sets(runs: Runs) -> Runs:
    """Each run in ascending order and without repetitions."""
    elements, lengths = runs
    starts = runs.starts
    ordered, kept = np.empty_like(elements), np.empty(len(elements), bool)
    for length in np.unique(lengths):
        places = starts[lengths == length, None] + np.arange(length)
        ordered[places] = rows = np.sort(elements[places], axis=1)
        kept[places] = np.diff(rows, axis=1, prepend=-1) != 0
    return Runs(ordered[kept], np.add.reduceat(kept, starts, dtype=np.int64))
