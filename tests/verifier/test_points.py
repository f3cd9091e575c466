"""Points can be drawn again by whoever reads their recipe."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.graph import Tensor
from mugraph.verifier.points import KINDS, Point, mix, points

from .graphs import program

WORD = 2**64


def splitmix(state: int) -> int:
    """The recipe's mixing function, in integers."""
    z = (state + 0x9E3779B97F4A7C15) % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def test_the_mixing_function_is_the_published_one() -> None:
    assert int(mix(np.asarray(0, np.uint64))) == 0xE220A8397B1DCDAF == splitmix(0)


def test_elements_follow_the_recipe() -> None:
    seed, number = 2**70 + 5, 7
    drawn = Point("between -2 and 2", seed, number).inputs([Tensor((2, 3), DType.FP64)] * 2, {})
    for place, array in enumerate(drawn):
        start = splitmix((splitmix((splitmix(seed % WORD) + number) % WORD) + place) % WORD)
        units = [((splitmix((start + e) % WORD) & 0xFFFF) * 2 + 1) / 2**16 - 1 for e in range(6)]
        assert array.reshape(-1).tolist() == [2 * u for u in units]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.FP32])
def test_inputs_are_finite_numbers_of_their_types(kind: str, dtype: DType) -> None:
    (array,) = Point(kind, 3, 1).inputs([Tensor((4, 5), dtype)], {})
    assert array.shape == (4, 5)
    assert array.dtype == np.float64
    assert np.isfinite(array).all()
    np.testing.assert_array_equal(round_to(dtype, array), array)


def test_programs_with_constants_have_points_near_them() -> None:
    pair = program(lambda x: (x - 100).apply("relu"), (64,)), program(lambda x: x * 1, (64,))
    (point,) = [point for point in points(pair, 0, 1) if point.kind not in KINDS]
    (array,) = point.inputs([Tensor((64,), DType.FP32)], {})
    assert (np.abs(np.abs(array) - 100) < 1).any()
    assert point.to_json()["constants"]
    assert len(points(pair, 0, 2)) == 2 * (len(KINDS) + 1)


def test_fixed_inputs_keep_their_values() -> None:
    given = np.full((2,), 7.0)
    drawn = Point("all ones", 0, 0).inputs([Tensor((2,), DType.FP32)] * 2, {1: given})
    assert drawn[0].tolist() == [1, 1]
    assert drawn[1] is given
