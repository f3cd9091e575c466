"""Products of matrices on the host, in tiles that BLAS multiplies on one thread."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.tiled_products import tiled_product

SHAPES = [
    ((3, 4), (4, 5)),
    ((12, 197, 64), (12, 64, 197)),
    ((2, 1, 65, 300), (3, 300, 129)),
    ((1, 20000), (20000, 3)),
    ((512, 512), (512, 600)),
    ((0, 70), (70, 200)),
    ((200, 0), (0, 200)),
    ((5, 3000, 3), (3, 8)),
    ((8, 2), (2, 20000)),
    ((2, 0, 70, 70), (70, 70)),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_tiles_are_the_product(left: tuple[int, ...], right: tuple[int, ...], dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(dtype) for shape in (left, right))
    found = tiled_product(x, y)
    assert found.dtype == dtype
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=0, atol=(1e-3 if dtype is np.float32 else 1e-11))


def test_what_is_not_finite_is_so_in_any_tile() -> None:
    x, y = np.zeros((130, 200)), np.ones((200, 70))
    x[0, 5], x[1, 199], x[2, 0], x[2, 199], x[129, 70] = np.inf, -np.inf, np.inf, -np.inf, np.nan
    found = tiled_product(x, y)
    assert (found[0] == np.inf).all()
    assert (found[1] == -np.inf).all()
    assert np.isnan(found[[2, 129]]).all()
    assert (found[3:129] == 0).all()


@pytest.mark.parametrize(
    ("batch", "rows", "inner", "columns", "calls"),
    [((12,), 197, 64, 197, 16), ((), 100000, 3, 8, 10), ((), 8, 3, 100000, 10)],
)
def test_blas_multiplies_no_more_than_one_thread_takes(
    batch: tuple[int, ...], rows: int, inner: int, columns: int, calls: int
) -> None:
    """In few calls: those on tiles of 64 rows took 26 times as long as the product of a long and narrow matrix."""
    sizes = []

    def multiplied(x: Any, y: Any, matmul: Any = np.matmul, **options: Any) -> Any:
        sizes.append(x.shape[-2] * x.shape[-1] * y.shape[-1])
        return matmul(x, y, **options)

    x, y = np.ones((*batch, rows, inner)), np.ones((*batch, inner, columns))
    with mock.patch("numpy.matmul", multiplied):
        assert (FloatArithmetic().matmul(x, y) == inner).all()
    assert 1 < len(sizes) <= calls
    assert max(sizes) <= 64**3


@pytest.mark.parametrize(("left", "right"), [((1, 20000), (20000, 3)), ((12, 900, 50), (50, 1)), ((12, 1, 64), (12, 64, 300))])
def test_blas_multiplies_no_long_vectors(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Tiles of ten thousand multiplications took up to six times as long, and BLAS wakes threads for more."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(left), rng.standard_normal(right)
    exact = x @ y
    with mock.patch("numpy.matmul", side_effect=AssertionError("multiplied by BLAS")):
        np.testing.assert_allclose(tiled_product(x, y), exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("rows", "columns", "vector"), [(200, 1, 1), (1, 200, 0)])
def test_vectors_that_lie_apart_in_memory_are_put_together_first(rows: int, columns: int, vector: int) -> None:
    """Each row of a matrix would meet the strides of the vector: that took two to seven times as long."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 3 * rows))[:, :rows].T
    y = rng.standard_normal((300, 3 * columns))[:, :columns]
    seen: list[tuple[Any, ...]] = []

    def summed(text: str, *factors: Any, einsum: Any = np.einsum) -> Any:
        seen.append(factors)
        return einsum(text, *factors)

    with mock.patch("numpy.einsum", summed):
        found = tiled_product(x, y)
    np.testing.assert_allclose(found, x @ y, rtol=0, atol=1e-11)
    (factors,) = seen
    assert factors[vector].strides[-1 - vector] == x.itemsize
    assert factors[1 - vector] is (y, x)[vector]


@pytest.mark.parametrize(("left", "right"), [((70, 64), (128, 70)), ((70, 128), (192, 70)), ((2, 65, 3), (3, 3, 65))])
def test_what_are_no_factors_of_a_product_is_refused(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Strips of an inner dimension that is longer on the right had been multiplied without its rest."""
    with pytest.raises(ValueError, match=r"mismatch|broadcast"):
        tiled_product(np.ones(left), np.ones(right))
