"""Element types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mugraph.errors import InvalidInput
from mugraph.ir import DType, Tensor
from mugraph.ir.dtypes import fp8_codes, fp8_numbers, round_to


def test_sizes_in_bytes() -> None:
    sizes = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "bool": 1, "int8": 1, "uint8": 1}
    sizes |= {"e4m3fn": 1, "e5m2": 1, "int32": 4, "int64": 8}
    assert {str(dtype): dtype.bytes for dtype in DType} == sizes
    assert Tensor((3, 5), DType.BF16).bytes == 30
    assert Tensor((), DType.FP64).elements == 1


@pytest.mark.parametrize("dtype", DType)
def test_a_type_is_pytorchs_of_its_name(dtype: DType) -> None:
    theirs = getattr(torch, dtype.torch_name)
    assert theirs.itemsize == dtype.bytes
    if dtype is not DType.BOOL:
        limits = torch.finfo(theirs) if theirs.is_floating_point else torch.iinfo(theirs)
        assert (float(limits.min), float(limits.max)) == (dtype.least, dtype.largest)
    if dtype.is_numpys:
        assert torch.from_numpy(np.empty(0, dtype.torch_name)).dtype is theirs


@pytest.mark.parametrize(
    ("x", "y", "result"),
    [
        ("fp16", "fp16", "fp16"),
        ("fp16", "bf16", "fp32"),
        ("bf16", "fp32", "fp32"),
        ("fp64", "fp16", "fp64"),
        ("bool", "bf16", "bf16"),
        ("int8", "bf16", "bf16"),
        ("uint8", "fp32", "fp32"),
        ("bool", "int8", "int8"),
        ("int8", "uint8", "fp32"),
        ("e4m3fn", "bf16", "bf16"),
        ("bool", "e5m2", "e5m2"),
        ("e4m3fn", "e5m2", "fp32"),
        ("int8", "e4m3fn", "fp32"),
    ],
)
def test_promotion_is_symmetric_and_as_in_pytorch(x: str, y: str, result: str) -> None:
    assert DType.parse(x).promote(DType.parse(y)) is DType.parse(y).promote(DType.parse(x)) is DType.parse(result)


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="unknown dtype 'int4'; use one of fp16, bf16, fp32, fp64, bool, int8"):
        DType.parse("int4")


@pytest.mark.parametrize(
    ("number", "rounded"),
    [
        (1 + 2**-8, 1.0),
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
        (-(1 + 3 * 2**-9), -(1 + 2**-7)),
        (3.4e38, np.inf),
        (np.inf, np.inf),
        (np.nan, np.nan),
        (0.0, 0.0),
    ],
)
def test_rounding_to_bf16_goes_to_the_nearest_and_ties_to_even(number: float, rounded: float) -> None:
    np.testing.assert_array_equal(round_to(DType.BF16, [number, number]), np.array([rounded, rounded], np.float32))


def test_whatever_is_not_zero_is_true() -> None:
    assert round_to(DType.BOOL, [0.0, -0.0, 0.5, -np.inf, np.nan]).tolist() == [0, 0, 1, 1, 1]
    assert DType.BOOL.of_arithmetic is DType.FP32


def test_whole_numbers_of_8_bits_are_numbers_of_every_floating_point_type() -> None:
    for dtype in (DType.INT8, DType.UINT8):
        every = np.arange(dtype.least, dtype.largest + 1, dtype=np.float32)
        assert len(every) == 256
        assert dtype.of_arithmetic is DType.FP32
        for wider in (DType.FP16, DType.BF16, DType.FP32):
            assert wider.contains(dtype)
            np.testing.assert_array_equal(round_to(wider, every), every)
    assert round_to(DType.INT8, [-200.0, -128.4, -0.5, 1.5, 126.6, 300.0]).tolist() == [-128, -128, 0, 2, 127, 127]
    assert round_to(DType.UINT8, [-3.0, 254.6, 256.0]).tolist() == [0, 255, 255]
    assert DType.INT8.holds(np.array([-129.0, -128.0, 127.0, 128.0])).tolist() == [False, True, True, False]


@pytest.mark.parametrize(("dtype", "kind"), [(DType.E4M3, torch.float8_e4m3fn), (DType.E5M2, torch.float8_e5m2)])
def test_numbers_of_fp8_are_pytorchs(dtype: DType, kind: torch.dtype) -> None:
    codes = np.arange(256).astype(np.uint8)
    every = torch.from_numpy(codes).view(kind).float().numpy()
    np.testing.assert_array_equal(fp8_numbers(dtype, codes), every)
    known = ~np.isnan(every)
    np.testing.assert_array_equal(fp8_codes(dtype, every)[known], codes[known])
    assert np.isnan(fp8_numbers(dtype, fp8_codes(dtype, [np.nan]))).all()
    for wider in (DType.FP16, DType.BF16, DType.FP32):
        assert wider.contains(dtype)
        np.testing.assert_array_equal(round_to(wider, every), every)
    assert (dtype.of_arithmetic, dtype.is_floating, dtype.is_stored) == (DType.FP32, False, True)


@pytest.mark.parametrize(("dtype", "kind"), [(DType.E4M3, torch.float8_e4m3fn), (DType.E5M2, torch.float8_e5m2)])
def test_rounding_to_fp8_goes_to_the_nearest_and_ties_to_even(dtype: DType, kind: torch.dtype) -> None:
    codes = np.arange(128).astype(np.uint8)
    numbers = fp8_numbers(dtype, codes)
    numbers = numbers[np.isfinite(numbers)].astype(np.float64)
    between = np.concatenate((numbers, (numbers[1:] + numbers[:-1]) / 2, numbers[:-1] * 0.75 + numbers[1:] * 0.25))
    drawn = np.random.default_rng(0).standard_normal(10_000) * np.exp(np.random.default_rng(1).standard_normal(10_000) * 4)
    for given in (between, -between, drawn[np.abs(drawn) <= dtype.largest]):
        single = given.astype(np.float32)
        np.testing.assert_array_equal(round_to(dtype, single), torch.from_numpy(single).to(kind).float().numpy())
    np.testing.assert_array_equal(round_to(dtype, [1e9, -1e9]), [dtype.largest, -dtype.largest])


def test_floating_point_types_are_computed_with_as_they_are() -> None:
    assert DType.BF16.of_arithmetic is DType.BF16


def test_rounding_to_the_other_dtypes_is_numpys() -> None:
    numbers = np.array([1 / 3, 1e5, -7.0])
    for dtype, numpy_dtype in ((DType.FP16, np.float16), (DType.FP32, np.float32), (DType.FP64, np.float64)):
        assert round_to(dtype, numbers).dtype == numpy_dtype
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(round_to(dtype, numbers), numbers.astype(numpy_dtype))
