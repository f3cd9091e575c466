"""Copies of boxes that tensor maps describe, emulated: where elements arrive, zeros outside of matrices, and what is reported."""

from __future__ import annotations

import shutil

import numpy as np
import numpy.typing as npt
import pytest

from mugraph.ir import DType
from mugraph.lower.tensor_maps import TensorMap
from mugraph.targets.cuda.emulator import Emulation, Fault, emulate
from targets.cuda.kernels import BOX_WORDS, box_shape, changed, copied_box

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

Words = npt.NDArray[np.uint16]
ROWS, COLUMNS, PITCH = 20, 88, 96
X = np.random.default_rng(0).integers(1, 2**16, (ROWS, PITCH)).astype(np.uint16)
BOXES = {128: (12, 64), 64: (16, 32), 32: (9, 16)}


def matrix(row_bytes: int) -> TensorMap:
    return TensorMap("x", DType.FP16, ROWS, COLUMNS, PITCH, BOXES[row_bytes])


def run(source: str, row_bytes: int) -> tuple[Emulation, Words]:
    y = np.zeros(BOX_WORDS, np.uint16)
    return emulate(source, "copied_box", box_shape(matrix(row_bytes)), [X], [y]), y


def expected(row_bytes: int, column: int, row: int) -> Words:
    """The box as rows behind each other, chunks of 16 bytes exchanged by the number of the line of 128 bytes that they lie in."""
    tall, wide = BOXES[row_bytes]
    found = np.zeros(BOX_WORDS, np.uint16)
    for r in range(tall):
        for c in range(wide):
            inside = 0 <= row + r < ROWS and 0 <= column + c < COLUMNS
            line, chunk, word = (r * wide + c) // 64, (r * wide + c) % 64 // 8, c % 8
            within = chunk ^ line % 8 & (wide // 8 - 1)
            found[64 * line + 8 * within + word] = X[row + r, column + c] if inside else 0
    return found


@pytest.mark.parametrize("row_bytes", BOXES)
@pytest.mark.parametrize(("column", "row"), [(0, 0), (8, 3), (24, 5), (56, 4), (80, 15), (-8, -2), (200, 0), (0, 40)])
def test_a_box_arrives_exchanged_with_zeros_outside(row_bytes: int, column: int, row: int) -> None:
    shown, y = run(copied_box(row_bytes, BOXES[row_bytes], column, row), row_bytes)
    assert shown.findings == ()
    np.testing.assert_array_equal(y, expected(row_bytes, column, row))


FAULTS: dict[str, tuple[str, str, Fault]] = {
    "no wait": ("mbarrier_wait(full, 0);", "", Fault.IN_FLIGHT),
    "bytes outside are not expected": ("expect(full, 1536)", "expect(full, 1408)", Fault.DIVERGENCE),
    "more bytes than a box": ("expect(full, 1536)", "expect(full, 1664)", Fault.DIVERGENCE),
    "no fence": ("proxy_fence();", "", Fault.UNFENCED),
    "between chunks of a row": ("map, 80,", "map, 84,", Fault.MISALIGNED),
    "between lines": ("box_copy(s,", "box_copy(s + 8,", Fault.MISALIGNED),
    "beyond shared memory": ("box_copy(s,", "box_copy(s + 1024,", Fault.OUT_OF_BOUNDS),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_reported_by_kind(name: str) -> None:
    old, new, fault = FAULTS[name]
    shown, _ = run(changed(copied_box(128, BOXES[128], 80, 15), old, new), 128)
    assert fault in {finding.fault for finding in shown.findings}


def test_a_matrix_that_is_longer_than_its_operand_is_out_of_bounds() -> None:
    longer = TensorMap("x", DType.FP16, ROWS + 1, COLUMNS, PITCH, BOXES[128])
    y = np.zeros(BOX_WORDS, np.uint16)
    shown = emulate(copied_box(128, BOXES[128], 0, ROWS - 3), "copied_box", box_shape(longer), [X], [y])
    assert {finding.fault for finding in shown.findings} == {Fault.OUT_OF_BOUNDS}
