"""Random functions and maxima whose values are drawn when they are first asked for (docs/theory.md, "The draw").

Arguments are told apart exactly: nothing is hashed, so that the value at an argument is independent of those at all others.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mugraph.algebra.fields import FieldValue
from mugraph.algebra.modular import Residues

Draw = Callable[[int], FieldValue]
"""A vector of so many fresh random values."""
Numbers = npt.NDArray[np.int64]

_RESIDUE = np.dtype(np.int64).itemsize
"""Bytes of a residue."""
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
        places = np.searchsorted(self._residues, residues).clip(max=len(self) - 1)
        return np.where(self._residues[places] == residues, self._numbers[places], -1)

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

    def extend(self, count: int) -> FieldValue:
        """So many more, which are returned."""
        new = self._draw(count)
        p, q = (_joined(before, after) for before, after in zip(self._drawn, new, strict=True))
        self._drawn = FieldValue(p, q)
        return new

    def __getitem__(self, numbers: Numbers) -> FieldValue:
        p, q = (None if part is None else np.asarray(part[numbers]) for part in self._drawn)
        return FieldValue(p, q)


def _joined(before: Residues | None, after: Residues | None) -> Residues | None:
    return None if before is None or after is None else np.concatenate([before, after])


class RandomFunction:
    """A function whose values at different residues are independent random variables; `met` are its arguments.

    Of several operands, the tuples of residues have numbers, which are the arguments: `_tuples` has those of what came first, the
    number of the tuple before it and the residue, for each operand but the first.
    """

    def __init__(self, draw: Draw) -> None:
        self.met: list[Residues] = []
        self._known = Directory()
        self._values = Variables(draw)
        self._tuples: list[Pairs] = []

    def __call__(self, *operands: Residues) -> FieldValue:
        """The values, of the operands' common shape."""
        arguments = operands[0] if len(operands) == 1 else self._numbers(np.broadcast_arrays(*operands))
        self.met.append(arguments)
        different, places = np.unique(arguments, return_inverse=True)
        new = different[self._known.find(different) < 0]
        if len(new):
            self._known.note(new)
            self._values.extend(len(new))
        return self._values[self._known.find(different)[places].reshape(arguments.shape)]

    def _numbers(self, operands: Sequence[Residues]) -> Numbers:
        """The numbers of tuples: each pair of what came before and the next residue has one, if it is the same the same."""
        self._tuples += [Pairs() for _ in range(len(operands) - 1 - len(self._tuples))]
        numbers = operands[0]
        for pairs, residues in zip(self._tuples, operands[1:], strict=True):
            numbers = pairs.numbers(numbers, residues)
        return numbers


class Pairs:
    """Pairs of residues under the numbers 0, 1, ...; both parts are told apart by their numbers."""

    def __init__(self) -> None:
        self._left, self._right, self._both = Directory(), Directory(), Directory()

    def numbers(self, left: Residues, right: Residues) -> Numbers:
        """The number of each pair, of the residues' shape."""
        return _numbered(self._both, (_numbered(self._left, left) << _NUMBER_BITS) + _numbered(self._right, right))


def _numbered(directory: Directory, residues: Residues) -> Numbers:
    """The number of each residue, new or known."""
    different, places = np.unique(residues, return_inverse=True)
    new = different[directory.find(different) < 0]
    if len(new):
        directory.note(new)
    return np.asarray(directory.find(different)[places].reshape(residues.shape))


class Maxima:
    """The maximum as a random function of a *set*: in whichever order elements come, and however often, it is the same.

    A residue that is the value of a maximum stands for the elements of that one, so that maxima of parts, which may overlap, make
    up the maximum of the whole. `residues` are those by which values are known as elements; `met` are elements and values.
    """

    def __init__(self, draw: Draw, residues: Callable[[FieldValue], Residues]) -> None:
        self.met: list[Residues] = []
        self._numbers: dict[bytes, int] = {}
        """Sets of more than one element, which are written in ascending order."""
        self._sets: list[bytes] = []
        self._known = Directory()
        self._values = Variables(draw)
        self._residues = residues

    def numbers(self, rows: Residues) -> Numbers:
        """For each row of a matrix the number of the set of its elements; -1 for a set of one, which is its own maximum."""
        self.met.append(rows)
        known, sets = self._numbers, _sets(*self._elements(rows))
        numbers = [-1 if len(elements) == _RESIDUE else known.setdefault(elements, len(known)) for elements in sets]
        new = list(itertools.islice(known, len(self._sets), None))
        if new:
            self._sets.extend(new)
            self.met.append(self._residues(self._values.extend(len(new))))
            self._known.note(self.met[-1])
        return np.array(numbers)

    def values(self, numbers: Numbers) -> FieldValue:
        """The maxima of the sets under these numbers; anything for -1."""
        return self._values[numbers]

    def _elements(self, rows: Residues) -> tuple[Residues, Numbers]:
        """What rows are maxima of, one after the other, and how much that is for each: the elements of those that are maxima."""
        numbers = self._known.find(rows)
        if (numbers < 0).all():
            return rows.reshape(-1), np.full(len(rows), rows.shape[1])
        plain = rows.tobytes()
        parts = [
            plain[_RESIDUE * place : _RESIDUE * (place + 1)] if number < 0 else self._sets[number]
            for place, number in enumerate(numbers.reshape(-1).tolist())
        ]
        lengths = np.array([len(part) // _RESIDUE for part in parts]).reshape(rows.shape).sum(axis=1)
        return np.frombuffer(b"".join(parts), np.int64), lengths


def _sets(elements: Residues, lengths: Numbers) -> list[bytes]:
    """Runs of these lengths, each in ascending order and without repetitions."""
    starts = np.cumsum(lengths) - lengths
    ordered, kept = np.empty_like(elements), np.empty(len(elements), bool)
    for length in np.unique(lengths):
        places = starts[lengths == length, None] + np.arange(length)
        ordered[places] = rows = np.sort(elements[places], axis=1)
        kept[places] = np.diff(rows, axis=1, prepend=-1) != 0
    content = ordered[kept].tobytes()
    ends = _RESIDUE * np.cumsum(np.add.reduceat(kept, starts, dtype=np.int64))
    return [content[start:end] for start, end in itertools.pairwise([0, *ends.tolist()])]
