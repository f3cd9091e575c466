"""Products on the matrix unit: rows, columns and values of k beside whole registers, copies of factors, panels and blocks.

A statement is printed into a function of its own, and reads and writes memory that has numbers nobody asked for wherever the
product has none: those of the target stay, and those of the factors show in no result.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mugraph.ir import DType
from mugraph.lower.packing import Packing
from mugraph.lower.tile_form import Matmul, Tile
from mugraph.targets.cpu import Vectors, print_program
from mugraph.targets.cpu.compiler import find_compiler, load_shared
from mugraph.targets.cpu.matmul import print_matmul
from mugraph.targets.cpu.matrix_tiles import strips_for
from mugraph.targets.cpu.packer import pack
from mugraph.targets.cpu.source import HELD, Writer
from pairwise import pairwise

TILED = Vectors(16, 32, bf16_pairs=True, tiles=True)
MODULE = "mugraph.targets.cpu.matrix_tiles"
TYPES = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.INT8: torch.int8}
SMALL = {"_PANEL": 32, "_PANEL_BYTES": 64, "_LEFT_BYTES": 64, "PackedTiles.sums_bytes": 1 << 13, "_ROWS": 64}
"""Panels of one step, several blocks of columns and of rows."""
UNITS = pytest.mark.parametrize("real", [False, True], ids=["emulated", "real"])
CALLED = f"""
int product(const void *a, const void *b, void *c, const long {HELD})
{{
    int lacking = 0;
    const task called = {{.lacking = &lacking}};
    worker alone = {{&called}};
    on_thread(&alone, a, b, c, {HELD});
    return lacking;
}}
"""
"""A product as it is called: `on_thread` is written in the order of the statement's buffers."""
GAP = 32
"""Elements behind the last one of a row, if rows do not follow each other, and behind a matrix."""


@dataclass(frozen=True)
class Case:
    """A product of a batch: `weight` is the type of a right factor that lies packed; others lie as they are, in bf16."""

    rows: int
    depth: int
    columns: int
    batch: int = 1
    weight: DType | None = None
    left: DType = DType.BF16
    target: DType = DType.BF16
    left_turned: bool = False
    right_turned: bool = False
    accumulate: bool = False
    gap: int = 0
    bounded: bool = False
    every_other: bool = False
    """Whether the left factor is every other number of its memory."""

    @property
    def right(self) -> DType:
        return self.weight or DType.BF16

    def statement(self) -> Matmul:
        target = self.tile("c", (self.rows, self.columns))
        factors = (
            self.tile("a", (self.rows, self.depth), self.left_turned, 2 if self.every_other else 1),
            self.tile("b", (self.depth, self.columns), self.right_turned),
        )
        product = Matmul(target, *factors, DType.BF16, self.accumulate)
        if self.weight is None:
            return product
        strips = strips_for(product, self.weight, TILED)
        assert strips is not None
        step = self.depth * self.columns
        return replace(product, right=replace(factors[1], strides=(step, self.columns, 1)), strips=strips)

    def tile(self, name: str, shape: tuple[int, int], turned: bool = False, step: int = 1) -> Tile:
        """A batch of matrices, column by column if `turned`."""
        lines, length = reversed(shape) if turned else shape
        line = step * length + self.gap
        strides = (step, line) if turned else (line, step)
        return Tile(f"whole_{name}", (self.batch, *shape), (line * lines + GAP, *strides))

    def writer(self) -> Writer:
        dtypes = {"whole_a": self.left, "whole_b": self.right, "whole_c": self.target}
        return Writer(TILED, dtypes, frozenset(dtypes))

    def function(self, real: bool, cache: Path | None = None) -> ctypes._NamedFuncPointer:
        """The product, which returns whether it lacked memory."""
        function = self.library(real, cache).product
        function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long]
        return function

    def library(self, real: bool, cache: Path | None = None, before: str = "", behind: str = "") -> ctypes.CDLL:
        """What has `product`, with other text before and behind everything that is printed."""
        writer = self.writer()
        pointers = ", ".join(f"{'const ' * (name != 'whole_c')}{dtype}_t *{name}" for name, dtype in writer.dtypes.items())
        with writer.block(f"static void on_thread(worker *worker, {pointers}, const long {HELD})"):
            print_matmul(writer, self.statement(), 1 if self.bounded else None)
        assert "MULTIPLY_TILES" in "\n".join(writer.lines)
        units = [] if real else ["#define EMULATED_TILES"]
        return load_shared("\n".join([before, *units, print_program([], TILED), *writer.lines, CALLED, behind]), cache)


def memory(elements: int, dtype: DType, other: float) -> torch.Tensor:
    """Memory that has a number everywhere."""
    return torch.full((elements + GAP,), 77 if dtype.is_whole else other).to(TYPES[dtype])


def seen(whole: torch.Tensor, tile: Tile) -> torch.Tensor:
    return whole.as_strided(tile.shape, tile.strides)


def drawn(shape: Sequence[int], dtype: DType) -> torch.Tensor:
    if dtype.is_whole:
        return torch.randint(-128, 128, tuple(shape)).to(TYPES[dtype])
    return (torch.randn(tuple(shape)) / 4).to(TYPES[dtype])


def size_of(tile: Tile) -> int:
    return 1 + sum((count - 1) * stride for count, stride in zip(tile.shape, tile.strides, strict=True))


def packed(case: Case, right: torch.Tensor) -> torch.Tensor:
    """A batch of right factors, in strips."""
    strips = case.statement().strips
    assert strips is not None
    shape, step = (case.depth, case.columns), case.depth * case.columns
    packing = Packing(0, ((case.batch, step),) if case.batch > 1 else (), shape, (case.columns, 1), strips)
    bits: NDArray[np.generic] = right.contiguous().view(torch.int16 if case.right is DType.BF16 else torch.int8).numpy().ravel()
    lies = np.zeros(packing.elements + GAP, bits.dtype)
    pack(packing, bits, lies[: packing.elements])
    return torch.from_numpy(lies)


def is_right(case: Case, real: bool, seed: int = 0, cache: Path | None = None) -> None:
    """Assert that a product is what it is in float64, and that nothing else is written."""
    if real and not find_compiler().vectors.tiles:
        pytest.skip("this host has no matrix unit, or does not let us use it")
    torch.manual_seed(seed)
    tiles = {
        name: case.tile(name, shape, turned, step)
        for name, shape, turned, step in (
            ("a", (case.rows, case.depth), case.left_turned, 2 if case.every_other else 1),
            ("b", (case.depth, case.columns), case.right_turned, 1),
            ("c", (case.rows, case.columns), False, 1),
        )
    }
    wholes = {
        name: memory(size_of(tile), dtype, other)
        for (name, tile), dtype, other in zip(
            tiles.items(), (case.left, case.right, case.target), (torch.nan, torch.nan, 123.0), strict=True
        )
    }
    for name, dtype in (("a", case.left), ("b", case.right), ("c", case.target)):
        seen(wholes[name], tiles[name]).copy_(drawn(tiles[name].shape, dtype))
    before = wholes["c"].clone()
    held = case.rows if not case.bounded else random.Random(seed).randint(1, case.rows)
    left, right = seen(wholes["a"], tiles["a"])[:, :held], seen(wholes["b"], tiles["b"])
    if case.bounded:
        seen(wholes["a"], tiles["a"])[:, held:] = torch.nan
    wanted = left.bfloat16().double() @ right.double()
    if case.accumulate:
        wanted = wanted + seen(before, tiles["c"])[:, :held].double()
    given = packed(case, right) if case.weight is not None else wholes["b"]
    function = case.function(real, cache)
    function(wholes["a"].data_ptr(), given.data_ptr(), wholes["c"].data_ptr(), held)
    found = seen(wholes["c"], tiles["c"])[:, :held]
    error = float((found.double() - wanted).abs().max() / wanted.abs().max())
    assert error < (4e-3 if case.target is DType.BF16 else 1e-6), (case, held)
    found.copy_(seen(before, tiles["c"])[:, :held])
    assert torch.equal(wholes["c"], before), (case, held)


def small(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
    for name in names:
        monkeypatch.setattr(f"{MODULE}.{name}", SMALL[name])


def random_case(draw: random.Random) -> tuple[Case, list[str]]:
    """A case, and which sizes of memories are small."""
    weight = draw.choice([None, None, DType.BF16, DType.BF16, DType.INT8])
    rows = draw.choice([draw.randint(4, 16), draw.randint(17, 32), draw.randint(33, 200), 64, 128, 192])
    depth, columns = 32 * draw.randint(1, 9), 16 * draw.randint(1, 12)
    if weight is None:
        rows, depth, columns = max(rows, 33), draw.randint(16, 250), draw.randint(16, 190)
    case = Case(
        rows,
        depth,
        columns,
        batch=draw.choice([1, 1, 2]),
        weight=weight,
        left=draw.choice([DType.BF16, DType.BF16, DType.FP32]),
        target=draw.choice([DType.BF16, DType.FP32]),
        left_turned=draw.random() < 0.2,
        right_turned=weight is None and draw.random() < 0.5,
        accumulate=draw.random() < 0.4,
        gap=draw.choice([0, 0, 8, GAP]),
        bounded=draw.random() < 0.3,
    )
    case = replace(case, left_turned=case.left_turned and not case.right_turned)  # else the target would be written across
    if not case.left_turned and draw.random() < 0.2:
        case = replace(case, every_other=True)
    return case, [name for name in SMALL if draw.random() < 0.4]


@UNITS
@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_products(real: bool, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(start, start + 10):
        case, names = random_case(random.Random(seed))
        with monkeypatch.context() as patch:
            small(patch, names)
            is_right(case, real, seed)


COPIED = [(33, 40, 48), (64, 64, 64), (40, 71, 35), (64, 130, 100), (70, 96, 17), (129, 33, 190), (48, 300, 80), (65, 16, 16)]
"""Sizes of which the right factor is copied: whole registers, and parts of them in every dimension."""


@UNITS
@pairwise(shape=COPIED, turned=[False, True], target=[DType.BF16, DType.FP32], cut=[(), ("_PANEL",), (*SMALL,)])
def test_right_factors_are_copied(
    real: bool, shape: tuple[int, int, int], turned: bool, target: DType, cut: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, cut)
    is_right(Case(*shape, right_turned=turned, target=target), real)


LARGE = [
    ((40, 64, 192), 4096, {DType.BF16, DType.FP32}),
    ((33, 48, 96), 9216, {DType.BF16, DType.FP32}),
    ((64, 128, 48), 6144, {DType.FP32}),
    ((48, 192, 64), 16384, {DType.FP32}),
    ((64, 80, 64), 8192, set()),
    ((64, 64, 80), 2048, set()),
]
"""Sizes of which the right factor is copied in parts, of its columns and of k, how many bytes a copy may have, and the targets
that let it; of the last ones are no equal parts of whole registers, or none that fit."""


@UNITS
@pairwise(sizes=LARGE, turned=[False, True], target=[DType.BF16, DType.FP32], accumulate=[False, True], batch=[1, 2])
def test_right_factors_that_are_too_large_are_copied_in_parts(
    real: bool,
    sizes: tuple[tuple[int, int, int], int, set[DType]],
    turned: bool,
    target: DType,
    accumulate: bool,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of parts of k are not rounded in between."""
    shape, most, targets = sizes
    monkeypatch.setattr("mugraph.targets.cpu.copied_factors._COPIED_BYTES", most)
    case = Case(*shape, batch=batch, right_turned=turned, target=target, accumulate=accumulate)
    assert ("right_b" in text_of(case)) == (target in targets)
    if target in targets:
        is_right(case, real)


def text_of(case: Case) -> str:
    writer = case.writer()
    print_matmul(writer, case.statement(), 1 if case.bounded else None)
    return "\n".join(writer.lines)


@pytest.mark.parametrize(("depth", "rows_outside"), [(64, True), (300, False)])
def test_rows_of_the_target_are_written_whole_where_copied_factors_are_one_panel(depth: int, rows_outside: bool) -> None:
    text = text_of(Case(512, depth, 400))
    rows, strips = (text.index(loop) for loop in ("for (long i = 0; i < 512; i += 32)", "for (long j = j0"))
    assert (rows < strips) == rows_outside


@UNITS
@pytest.mark.parametrize("columns", [1024, 1008])
@pytest.mark.parametrize("rows", [8, 48, 64, 70])
def test_rows_of_the_target_that_compete_for_a_set_of_the_cache(real: bool, rows: int, columns: int) -> None:
    is_right(Case(rows, 64, columns, weight=DType.BF16, target=DType.FP32, accumulate=True), real)


@pytest.mark.parametrize("rows", [5, 16, 20, 40, 100, 512])
@pytest.mark.parametrize("weight", [DType.BF16, DType.INT8, None])
def test_shapes_of_registers_are_said_once(rows: int, weight: DType | None) -> None:
    """That takes as long as ten products of registers."""
    text = text_of(Case(max(rows, 33) if weight is None else rows, 512, 96, weight=weight))
    assert text.count("SHAPE_TILES(") == 1
    assert "\n        SHAPE_TILES(" in text, "it stands in the loop over the batch alone"


@pytest.mark.parametrize(
    ("case", "copied"),
    [
        (Case(8, 512, 96, weight=DType.BF16), False),
        (Case(23, 512, 96, weight=DType.BF16), False),
        (Case(48, 512, 96, weight=DType.INT8), False),
        (Case(64, 512, 96, batch=2), False),
        (Case(40, 512, 96, weight=DType.BF16), True),  # registers of the last rows would be filled from behind them
        (Case(48, 512, 96, weight=DType.BF16, bounded=True), True),
        (Case(48, 40, 96), True),
        (Case(32, 64, 528, weight=DType.BF16), False),
        (Case(48, 64, 528, weight=DType.BF16), True),  # so many columns are worth a copy
        (Case(48, 512, 96, weight=DType.BF16, gap=8), True),
        (Case(48, 512, 96, weight=DType.BF16, left=DType.FP32), True),
        (Case(48, 512, 96, weight=DType.BF16, left_turned=True), True),
        (Case(48, 512, 96, weight=DType.BF16, every_other=True), True),
        (Case(512, 4096, 96, weight=DType.BF16), True),  # rows that compete for sets of the second-level cache
        (Case(512, 4064, 96, weight=DType.BF16), False),
    ],
)
def test_left_factors_are_read_where_they_lie_if_registers_are_filled_so(case: Case, copied: bool) -> None:
    assert ("left_a" in text_of(case)) == copied
    if case.depth < 4000:
        is_right(case, find_compiler().vectors.tiles)


LIMITED = "#define aligned_alloc limited\n#define free given_back\n"
LIMITS = """
#undef aligned_alloc
#undef free
extern void *aligned_alloc(unsigned long, unsigned long);
extern void free(void *);
int left_to_give, given;
void *limited(unsigned long alignment, unsigned long size)
{
    if (left_to_give-- <= 0)
        return 0;
    ++given;
    return aligned_alloc(alignment, size);
}
void given_back(void *pointer)
{
    given -= pointer != 0;
    free(pointer);
}
"""
"""Memory that is given so many times, and counted until it is given back."""


@pytest.mark.parametrize(
    ("case", "memories"),
    [
        (Case(512, 1024, 1088, weight=DType.BF16), 2),
        (Case(512, 300, 400), 2),
        (Case(512, 4096, 1088, weight=DType.INT8), 2),
    ],
)
def test_a_product_without_memory_writes_nothing_and_says_so(case: Case, memories: int) -> None:
    library = case.library(find_compiler().vectors.tiles, before=LIMITED, behind=LIMITS)
    left, given = (ctypes.c_int.in_dll(library, name) for name in ("left_to_give", "given"))
    a, b = memory(case.rows * case.depth, case.left, 1.0), memory(case.depth * case.columns, case.right, 1.0)
    for some in range(memories + 1):
        made, left.value = memory(case.rows * case.columns, case.target, 123.0), some
        lacks = library.product(*(ctypes.c_void_p(each.data_ptr()) for each in (a, b, made)), case.rows)
        assert bool(lacks) == bool((made == 123).all()) == (some < memories)
        assert given.value == 0


def test_numbers_of_8_bits_are_widened_once_for_several_groups_of_rows() -> None:
    few, many = (text_of(Case(rows, 512, 96, weight=DType.INT8)) for rows in (32, 96))
    assert "widen_rows_int8" in few[few.index("for (long k = k0") :]
    inside = many[many.index("for (long i = 0; i < 96; i += 32)") :]
    assert "widen_rows_int8" not in inside
    assert "widen_rows_int8" in many


def test_a_process_that_loads_an_object_for_the_matrix_unit_asks_for_it() -> None:
    """It is what the system has to be asked for by each process, also where kernels were made by another one."""
    if not find_compiler().vectors.tiles:
        pytest.skip("this host has no matrix unit, or does not let us use it")
    script = """
import torch
from targets.test_matrix_tiles import Case
given = torch.ones(1 << 14, dtype=torch.bfloat16)
made = torch.zeros(1 << 14, dtype=torch.bfloat16)
Case(48, 64, 48).function(real=True)(given.data_ptr(), given.data_ptr(), made.data_ptr(), 48)
assert (made[: 48 * 48] == 64).all()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
