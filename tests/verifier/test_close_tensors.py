"""An index of tensors misses none that is close, and leaves few others to be compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from mugraph.ir.arithmetic import Array
from mugraph.verifier.close_tensors import CloseTensors, Column
from mugraph.verifier.cut_points import _CLOSE, _agree

SHAPES = ((), (1,), (7,), (1, 64), (3, 0), (33, 5))
SCALES = (0.0, 5e-324, 1e-310, 1e-9, 1.0, 1e150, 1.7e308)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    """Numbers up to a scale, some of them zero and some of them the scale itself."""
    numbers = rng.uniform(-1, 1, shape) * scale
    kind = rng.integers(3, size=shape)
    return np.asarray(np.where(kind == 0, 0.0, np.where(kind == 1, scale, numbers)))


def shaken(rng: np.random.Generator, array: Array) -> Array:
    """The array with what the tolerance just allows, or just does not, added to its elements or taken from them."""
    largest = float(np.abs(array).max(initial=0.0))
    signs = rng.choice([-1.0, 1.0], array.shape if rng.random() < 0.5 else ())
    by = rng.choice([0.0, 0.5, 0.999, 1.0, 1.001, 1.9, 2.0, 2.1]) * signs
    with np.errstate(over="ignore"):
        moved = np.asarray(array + by * _CLOSE * largest)
    return np.asarray(np.where(np.isfinite(moved), moved, array))


def somewhere(rng: np.random.Generator, columns: list[Array]) -> Column:
    """The same, with no values at some of the points."""
    return [None if rng.random() < 0.3 else array for array in columns]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", SCALES)
@np.errstate(over="ignore")
def test_no_tensor_is_missed_that_is_close(shape: tuple[int, ...], scale: float) -> None:
    rng = np.random.default_rng(0)
    originals = [[drawn(rng, shape, scale) for _ in range(3)] for _ in range(12)]
    tensors = {number: somewhere(rng, original) for number, original in enumerate(originals)}
    among = CloseTensors(tensors, _CLOSE)
    close = 0
    for original in originals:
        for _ in range(20):
            other = somewhere(rng, [shaken(rng, array) for array in original])
            wanted = [number for number, column in tensors.items() if _agree(column, other)]
            found = among.near(other)
            assert found == sorted(found)
            assert {*wanted} <= {*found}
            close += len(wanted)
    assert close > 20


def test_tensors_that_begin_alike_are_told_apart() -> None:
    """As rows of causal attention do, of which the first has one weight, which is 1."""
    rng = np.random.default_rng(1)

    def weights() -> Array:
        lower = np.tril(rng.uniform(0.1, 1.0, (6, 6)))
        return np.asarray(lower / lower.sum(-1, keepdims=True))

    tensors: dict[int, Column] = {number: [weights(), weights(), weights()] for number in range(50)}
    assert {float(column[0][0, 0]) for column in tensors.values() if column[0] is not None} == {1.0}
    among = CloseTensors(tensors, _CLOSE)
    assert [among.near(column) for column in tensors.values()] == [[number] for number in tensors]


def test_tensors_without_a_common_point_are_not_near() -> None:
    array: npt.NDArray[np.float64] = np.ones(3)
    among = CloseTensors({"first": [array, None, None], "never": [None, None, None]}, _CLOSE)
    assert among.near([array, array, array]) == ["first"]
    assert among.near([None, array, array]) == []
    assert among.near([np.ones((3, 1)), None, None]) == []
