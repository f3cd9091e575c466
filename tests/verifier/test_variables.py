"""Values of random functions are drawn once for each argument, whatever is asked for in which order."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.algebra.fields import FieldValue
from mugraph.verifier.variables import Directory, Draw, Maxima, Numbers, RandomFunction, Runs, Sets, pattern


def counting() -> Draw:
    """Draws 1000, 1001, ... modulo p, and nothing modulo q."""
    drawn = iter(range(1000, 10**9))
    return lambda count: FieldValue(np.array([next(drawn) for _ in range(count)], np.int64), None)


def test_residues_are_numbered_in_the_order_in_which_they_were_noted() -> None:
    directory = Directory()
    assert directory.find(np.array([3, 4])).tolist() == [-1, -1]
    directory.note(np.array([7, 3]))
    directory.note(np.array([5, 1]))
    assert len(directory) == 4
    assert directory.find(np.array([[1, 3, 5], [7, 9, 0]])).tolist() == [[3, 1, 2], [0, -1, -1]]


def test_every_argument_has_a_value_of_its_own_that_stays() -> None:
    function = RandomFunction(counting())
    assert function(np.array([[9, 2], [2, 9]])).p.tolist() == [[1001, 1000], [1000, 1001]]
    assert function(np.array([2, 4])).p.tolist() == [1000, 1002]
    assert function(np.array([9, 4, 3])).p.tolist() == [1001, 1002, 1003]


def test_many_arguments_have_as_many_values() -> None:
    rng, function = np.random.default_rng(0), RandomFunction(counting())
    parts = [rng.integers(0, 1 << 49, 5000) for _ in range(6)]
    values = np.concatenate([function(part).p for part in parts])
    assert len(np.unique(values)) == len(np.unique(np.concatenate(parts)))
    for part, known in zip(parts, np.split(values, 6), strict=True):
        np.testing.assert_array_equal(function(part).p, known)


def test_tuples_have_one_value_each_however_operands_are_repeated() -> None:
    """Against a dictionary: a mask of rows, a tensor and a constant, in calls that know the tuples of those before."""
    rng, function = np.random.default_rng(0), RandomFunction(counting())
    known: dict[tuple[int, ...], int] = {}
    for shapes in (((4, 1), (4, 6), ()), ((1, 6), (4, 1), ()), ((4, 6), (4, 6), (4, 6)), ((), (6,), (2, 1, 1))) * 3:
        operands = [np.asarray(rng.integers(0, 3, shape)) for shape in shapes]
        values = function(*operands).p
        whole = np.broadcast_arrays(*operands)
        assert values.shape == function.met[-1].shape == whole[0].shape
        for *arguments, value in zip(*(part.reshape(-1).tolist() for part in whole), values.reshape(-1).tolist(), strict=True):
            assert known.setdefault(tuple(arguments), value) == value
    assert len(set(known.values())) == len(known) > 20


def test_calls_with_other_numbers_of_operands_share_no_value() -> None:
    function, one, other = RandomFunction(counting()), np.array([0, 1]), np.array([2, 3])
    calls = [function(one).p, function(one, other).p, function(one, other, one).p]
    assert len(np.unique(np.concatenate(calls))) == 6
    np.testing.assert_array_equal(np.concatenate([function(one).p, function(one, other).p]), np.concatenate(calls[:2]))


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_sets_are_numbered_without_regard_to_order_repetitions_and_nesting(chunk: int) -> None:
    maxima = Maxima(counting(), lambda value: value.p)
    rows = np.array(
        [[1, 2, 3, 3], [3, 2, 1, 1], [4, 4, 4, 4], [1, 2, 3, 4], [2, 2, 1, 1], [1, 1, 1, 2], [3, 3, 1, 2], [4, 3, 2, 1]]
    )
    numbers = np.concatenate([maxima.numbers(rows[start : start + chunk]) for start in range(0, len(rows), chunk)])
    assert numbers.tolist() == [0, 0, -1, 1, 2, 2, 0, 1]
    assert maxima.values(numbers[[0, 3, 4]]).p.tolist() == [1000, 1001, 1002]
    assert maxima.numbers(np.array([[1002, 3], [1002, 1], [1000, 4], [1001, 1001], [1000, 1002], [4, 4]])).tolist() == [
        0,
        2,
        1,
        1,
        0,
        -1,
    ]


def test_sets_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two ways to hash know the number of elements, or nothing."""
    properly = Sets._hashes

    def poorly(self: Sets, sets: Runs) -> Numbers:
        return sets.lengths if self._salt == 0 else np.zeros_like(sets.lengths) if self._salt == 1 else properly(self, sets)

    monkeypatch.setattr(Sets, "_hashes", poorly)
    maxima = Maxima(counting(), lambda value: value.p)
    assert maxima.numbers(np.array([[1, 2], [3, 3], [2, 1]])).tolist() == [0, -1, 0]
    assert maxima.numbers(np.array([[1, 2, 3], [2, 2, 1]])).tolist() == [1, 0]
    assert maxima.numbers(np.array([[4, 2], [1, 2], [1, 5], [4, 2]])).tolist() == [2, 0, 3, 2]
    assert maxima.numbers(np.array([[1000, 3], [1002, 4]])).tolist() == [1, 2]


def test_many_sets_are_numbered_as_they_would_be_one_by_one() -> None:
    rng, maxima = np.random.default_rng(0), Maxima(counting(), lambda value: value.p)
    known: dict[frozenset[int], int] = {}
    for width in (2, 3, 5, 2):
        rows = rng.integers(0, 12, (3000, width))
        sets = [frozenset(row) for row in rows.tolist()]
        expected = [-1 if len(one) == 1 else known.setdefault(one, len(known)) for one in sets]
        assert maxima.numbers(rows).tolist() == expected


def test_residues_of_different_lengths_are_not_run_together() -> None:
    """A set is no beginning of another."""
    maxima = Maxima(counting(), lambda value: value.p)
    numbers = [
        maxima.numbers(np.array([row])).item() for row in ([0, 1], [0, 256], [1, 256], [0, 1, 256], [1, 65536], [0, 1 << 48])
    ]
    assert numbers == list(range(6))


def test_a_pattern_tells_which_are_the_same_and_nothing_else() -> None:
    def of(*parts: list[int]) -> str:
        return pattern([np.array(part) for part in parts])

    assert of([5, 7, 5], [7]) == of([0, 9, 0, 9]) == of([9, 0], [9, 0])
    assert len({of([5, 7, 5, 8]), of([5, 7, 5, 7]), of([5, 7, 7, 5]), of([5, 5, 5, 5]), of([5, 7, 5]), of()}) == 6


def test_patterns_of_maxima_show_elements_that_are_values_of_maxima() -> None:
    def met(*rows: list[int]) -> str:
        maxima = Maxima(counting(), lambda value: value.p)
        for row in rows:
            maxima.numbers(np.array([row]))
        return pattern(maxima.met)

    assert met([1, 2], [1000, 3]) == met([7, 8], [1000, 4]) != met([1, 2], [50, 3])
    assert met([1, 2], [3, 2]) != met([1, 2], [3, 4])
