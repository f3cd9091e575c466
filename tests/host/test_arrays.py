"""Products of arrays of NumPy in fp16."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.host import numpy_arrays
from mugraph.host.numpy_arrays import NUMPY
from mugraph.ir.arithmetic import Array


@pytest.mark.parametrize(
    ("left", "right"),
    [((6, 1, 4096), (6, 4096, 32)), ((6, 32, 4096), (6, 4096, 1)), ((2, 3, 1, 64), (3, 64, 500)), ((5, 1, 7), (7, 9))],
    ids=["a row of each", "a column of each", "broadcast", "one matrix for all"],
)
@pytest.mark.parametrize("turned", [False, True])
def test_many_products_of_vectors_are_rounded_once(left: tuple[int, ...], right: tuple[int, ...], turned: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(left).astype(np.float16), rng.standard_normal(right).astype(np.float16)
    y = np.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else y
    product = NUMPY.matmul(x, y)
    assert product.dtype == np.float16
    np.testing.assert_array_equal(product, np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.float16))


def test_products_of_matrices_are_rounded_from_fp32() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((3, 24, 64)).astype(np.float16), rng.standard_normal((3, 64, 40)).astype(np.float16)
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    error = np.abs(NUMPY.matmul(x, y) - exact)
    assert np.all(error <= np.spacing(np.abs(exact).astype(np.float16)))


@pytest.mark.parametrize(("rows", "columns"), [(1, 40), (24, 1), (24, 40)])
@pytest.mark.parametrize("batch", [(7,), (2, 3, 5), (0,), (2, 0)], ids=str)
def test_a_batch_is_multiplied_in_parts(batch: tuple[int, ...], rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((*batch, rows, 64)).astype(np.float16)
    y = rng.standard_normal((*batch, columns, 64)).astype(np.float16).swapaxes(-1, -2)
    whole = NUMPY.matmul(x, y)
    widened: list[int] = []
    product = numpy_arrays._product

    def noted(left: Array, right: Array) -> Array:
        widened.append(left.size + right.size)
        return product(left, right)

    monkeypatch.setattr(numpy_arrays, "_product", noted)
    for most in (1, 3 * 64 * (rows + columns), 1 << 30):
        monkeypatch.setattr(numpy_arrays, "_WIDENED", most)
        widened.clear()
        parts = NUMPY.matmul(x, y)
        assert (parts.dtype, parts.shape) == (np.float16, (*batch, rows, columns))
        np.testing.assert_array_equal(parts, whole)
        assert sum(widened) == x.size + y.size
        assert max(widened, default=0) <= max(most, 64 * (rows + columns))
