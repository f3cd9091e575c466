"""Rounding to the element types, bf16 by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.ir.dtypes import DType, round_to, rounded_in_place


@pytest.mark.parametrize(("dtype", "numpy"), [(DType.FP16, np.float16), (DType.FP32, np.float32), (DType.FP64, np.float64)])
def test_numpy_types_round_as_numpy_does(dtype: DType, numpy: type) -> None:
    values = np.array([1 / 3, -1e-9, 7e4, np.nan])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round_to(dtype, values), values.astype(numpy))


def test_bf16_keeps_eight_significant_bits_and_ties_go_to_even() -> None:
    step = 2.0**-7
    values = np.array([1.0, 1 + 0.49 * step, 1 + 0.5 * step, 1 + 1.5 * step, 1 + 0.51 * step, -3.0, 0.0], np.float32)
    expected = [1.0, 1.0, 1.0, 1 + 2 * step, 1 + step, -3.0, 0.0]
    np.testing.assert_array_equal(round_to(DType.BF16, values), np.array(expected, np.float32))


def test_bf16_keeps_infinities_and_nan_and_overflows_to_infinity() -> None:
    largest = np.finfo(np.float32).max
    rounded = round_to(DType.BF16, np.array([np.inf, -np.inf, np.nan, largest], np.float32))
    np.testing.assert_array_equal(rounded, [np.inf, -np.inf, np.nan, np.inf])


def test_a_nan_with_every_payload_bit_stays_a_nan() -> None:
    payload = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(round_to(DType.BF16, payload)).all()


def test_shapes_are_kept() -> None:
    assert round_to(DType.BF16, 1.0).shape == ()
    assert round_to(DType.BF16, np.zeros((2, 3))[:, ::2]).shape == (2, 2)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.FP32, DType.FP64, DType.BOOL, DType.INT8])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_rounding_in_place_gives_the_same_numbers(dtype: DType, order: tuple[int, ...]) -> None:
    """More numbers than are rounded at once, in any order in memory, infinities and NaN among them."""
    values = np.random.default_rng(0).standard_normal((3, 130, 300)).astype(np.float32) * np.float32(1e3)
    values[0, :5, 0] = np.inf, -np.inf, np.nan, -0.0, 3e38
    values = values.transpose(order)
    before = values.copy()
    expected = round_to(dtype, values)
    np.testing.assert_array_equal(values, before)
    found = rounded_in_place(dtype, values.copy(order="K"))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype
    assert found.shape == values.shape
