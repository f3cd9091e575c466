"""How products are shared out among warps: by sizes alone, here against every split there is."""

from __future__ import annotations

import itertools

import pytest

from mugraph.devices.products import COLUMNS, ROWS, SPLITS, WARP, Product, keeps_sums, warp_tasks
from mugraph.ir import DType


def tasks(rows: int, columns: int, split: tuple[int, int]) -> int:
    down, across = split
    return -(-rows // (ROWS * down)) * -(-columns // (COLUMNS * across))


@pytest.mark.parametrize("warps", [4, 8])
def test_each_warp_has_one_task_wherever_some_split_allows(warps: int) -> None:
    for rows, columns in itertools.product(range(16, 257, 16), range(8, 257, 8)):
        product = Product(1, rows, columns, 64, DType.BF16)
        best, count = warp_tasks(product, warps)
        assert count == tasks(rows, columns, SPLITS[int(best)])
        possible = any(tasks(rows, columns, split) <= warps for split in SPLITS)
        assert (count <= warps) == possible == bool(keeps_sums(product, warps * WARP))
