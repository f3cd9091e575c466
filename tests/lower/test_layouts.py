"""Layouts of shared memory: what accesses cost, the cheapest choice, and kernels that stay the same otherwise."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.ir import DType, Graph
from mugraph.lower import cooperative, lower
from mugraph.lower.bank_costs import accesses_of, wavefronts
from mugraph.lower.check import check
from mugraph.lower.expressions import Source
from mugraph.lower.layouts import with_layouts
from mugraph.lower.lowered import Buffer, Elementwise, Kernel, Matmul, Memory, Tile
from mugraph.runtime.cuda.emulator import Emulation, emulate
from mugraph.runtime.cuda.machine import launch_shape
from mugraph.targets.cuda import print_program

pytest.importorskip("highspy", reason="layouts are chosen by the HiGHS solver")


@pytest.mark.parametrize(
    ("step", "width", "expected"),
    [
        pytest.param(4, 4, 1, id="neighbouring words"),
        pytest.param(0, 4, 1, id="one word for all"),
        pytest.param(2, 2, 1, id="halves of words"),
        pytest.param(8, 4, 2, id="every other word"),
        pytest.param(128, 4, 32, id="one bank"),
        pytest.param(132, 4, 1, id="one bank, padded"),
        pytest.param(16, 16, 4, id="wide accesses in four groups"),
        pytest.param(128, 16, 32, id="wide accesses to the same banks"),
    ],
)
def test_wavefronts_of_a_warp(step: int, width: int, expected: int) -> None:
    assert wavefronts([lane * step for lane in range(32)], width) == expected


def product_after_copy(rows: int, inner: int, columns: int, transposed_copy: bool) -> Kernel:
    """A factor copied to shared memory (perhaps transposed) and multiplied on matrix units, by 64 threads."""
    strides = (1, rows) if transposed_copy else (inner, 1)
    factor = Tile("factor", (rows, inner), (inner, 1))
    return Kernel(
        name="k",
        grid=(1,),
        loop=1,
        buffers=(
            Buffer("x", Memory.DEVICE, DType.BF16, rows * inner),
            Buffer("w", Memory.DEVICE, DType.BF16, inner * columns),
            Buffer("y", Memory.DEVICE, DType.FP32, rows * columns),
            Buffer("factor", Memory.SHARED, DType.BF16, rows * inner),
        ),
        inputs=("x", "w"),
        outputs=("y",),
        before=(),
        body=(
            Elementwise(factor, (Tile("x", (rows, inner), strides),), Source(0)),
            Matmul(Tile("y", (rows, columns), (columns, 1)), factor, Tile("w", (inner, columns), (columns, 1)), DType.BF16),
        ),
        after=(),
        threads=64,
        barriers=frozenset({1}),
    )


def cost_of(kernel: Kernel) -> float:
    return sum(accesses.cost(accesses.tiles) for statement in kernel.statements for accesses in accesses_of(kernel, statement))


def relaid(kernel: Kernel, strides: tuple[int, int], elements: int) -> Kernel:
    """The kernel with the factor in a layout chosen by hand."""
    copy, product = kernel.body
    assert isinstance(product, Matmul)
    factor = replace(copy.target, strides=strides)
    buffers = tuple(replace(b, elements=elements) if b.name == "factor" else b for b in kernel.buffers)
    return replace(kernel, buffers=buffers, body=(replace(copy, target=factor), replace(product, left=factor)))


@pytest.mark.parametrize("transposed_copy", [False, True])
@pytest.mark.parametrize(("rows", "inner"), [(16, 64), (16, 128), (32, 16), (64, 32)])
def test_the_choice_is_the_cheapest_of_all(rows: int, inner: int, transposed_copy: bool) -> None:
    kernel = product_after_copy(rows, inner, 16, transposed_copy)
    by_hand = [relaid(kernel, (inner + pad, 1), rows * (inner + pad)) for pad in (0, 8)]
    by_hand += [relaid(kernel, (1, rows + pad), inner * (rows + pad)) for pad in (0, 8)]
    chosen = with_layouts(kernel)
    check(chosen)
    assert cost_of(chosen) == pytest.approx(min(map(cost_of, by_hand)), abs=1)


def test_rows_of_a_factor_are_padded_where_they_would_share_banks() -> None:
    assert with_layouts(product_after_copy(16, 64, 16, False)).buffer("factor").elements == 16 * 72
    wide_enough = with_layouts(product_after_copy(16, 40, 16, False))
    assert wide_enough.buffer("factor").elements == 16 * 40


def test_buffers_read_as_something_else_keep_their_layout() -> None:
    kernel = product_after_copy(16, 64, 16, False)
    flat = Elementwise(Tile("y", (256,), (1,)), (Tile("factor", (256,), (1,)),), Source(0))
    kernel = replace(kernel, after=(flat,))
    assert with_layouts(kernel) == kernel


GRAPHS: dict[str, Callable[[], Graph]] = {
    "attention": lambda: attention(queries=16, keys=256, width=64, loop=2, dtype=DType.BF16),
    "rmsnorm": lambda: rms_norm_linear(rows=40, inner=256, columns=64, grid=2, loop=2, dtype=DType.FP16),
}


def emulated(kernel: Kernel) -> Emulation:
    arrays = [np.zeros(kernel.buffer(name).elements, np.uint16) for name in (*kernel.inputs, *kernel.outputs)]
    inputs, outputs = arrays[: len(kernel.inputs)], arrays[len(kernel.inputs) :]
    return emulate(print_program([kernel]), kernel.name, launch_shape(kernel), inputs, outputs, count_wavefronts=True)


def predicted(kernel: Kernel) -> float:
    """Wavefronts of all blocks and iterations, apart from those that no layout changes."""
    total = 0.0
    for statements, times in ((kernel.before, 1), (kernel.body, kernel.loop), (kernel.after, 1)):
        for accesses in (accesses for statement in statements for accesses in accesses_of(kernel, statement)):
            if any(kernel.buffer(tile.buffer).memory is Memory.SHARED for tile in accesses.tiles):
                total += times * accesses.cost(accesses.tiles)
    return total * math.prod(kernel.grid)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize("name", GRAPHS)
def test_the_emulator_measures_the_gain_that_was_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (launch,) = lower(GRAPHS[name]()).values()
    laid = cooperative(launch.kernel, 100_000)
    monkeypatch.setattr(sys.modules[cooperative.__module__], "with_layouts", lambda kernel: kernel)
    plain = cooperative(launch.kernel, 100_000)
    after, before = emulated(laid), emulated(plain)
    assert after.bank_conflicts == 0 < before.bank_conflicts
    assert after.wavefronts < 0.5 * before.wavefronts
    assert predicted(plain) - predicted(laid) == pytest.approx(before.wavefronts - after.wavefronts, rel=0.1)
