"""The float check fills large inputs as seldom as it can, and kernels meet the same numbers as if all were filled each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import mugraph
from mugraph.host.arrays import torch_arrays
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Tensor
from mugraph.runtime import Executable, build, packed_operands
from mugraph.selection.inputs import runner
from mugraph.targets.cpu.packer import pack
from mugraph.verifier import float_check, float_checks
from mugraph.verifier.float_checks import InputKind, fill, kinds
from mugraph.verifier.updates import Update

KINDS = [*kinds()]
TYPES = [DType.FP32, DType.FP16, DType.BF16, DType.E4M3]


def looked_up(dtype: DType, dim: int = 0) -> Graph:
    """Rows of a large table, scaled, and columns of another one beside them."""
    program = mugraph.Program()
    shape = (96, 8) if dim == 0 else (8, 96)
    table, places = program.input("table", shape, dtype), program.input("places", (5,), "int64")
    found = table.apply("index_select", places, dim=dim, negative="wrapped")
    program.output(found * program.input("gain", found.shape[-1:]))
    return program.graph


def linear(dtype: DType) -> tuple[Graph, Executable]:
    """A product of 4 rows with a weight of 64 x 80, and a kernel for it that has the weight packed."""
    program = mugraph.Program()
    shapes = {"x": (4, 64), "w": (64, 80)}
    program.output(program.input("x", shapes["x"], dtype) @ program.input("w", shapes["w"], dtype))
    kernel = GraphBuilder(Level.KERNEL)
    x, w = (kernel.input(name, shape, dtype) for name, shape in shapes.items())
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    factors = [block.iterator(0, kernel.tensor(x), (None,), None), block.iterator(1, kernel.tensor(w), (1,), None)]
    body = block.build([block.add("output_saver", block.add("matmul", *factors), omap=(1,))])
    executable = build(kernel.build(kernel.graph_defined(body, [x, w])).with_constants(["w"]))
    assert executable.packs
    return program.graph, executable


class Watched:
    """A runner that keeps what kernels were given, as numbers."""

    def __init__(self, executable: Executable) -> None:
        self.kernels, self.seen, self.updates = runner(executable), list[list[Array]](), 0

    def __call__(self, *arrays: Array) -> Sequence[Any]:
        return self._noted(self.kernels(*arrays))

    def updated(self, arrays: Sequence[Array], updates: Mapping[int, Update]) -> Sequence[Any]:
        self.updates += 1
        return self._noted(self.kernels.updated(arrays, updates))

    def _noted(self, results: Sequence[Any]) -> Sequence[Any]:
        held = self.kernels._held  # type: ignore[attr-defined]
        self.seen.append(
            [each.astype(np.float64) if isinstance(each, np.ndarray) else each.double().clone().numpy() for each in held]
        )
        return results


def filled(program: Graph, kind: InputKind) -> list[Array]:
    arrays = float_checks.arrays_for(program, [node.output.shape for node in program.inputs()])
    fill(program, arrays, kind, 3)
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_are_looked_up_have_the_numbers_of_every_kind_and_others_of_two(dtype: DType, dim: int) -> None:
    program = looked_up(dtype, dim)
    watched = Watched(build(program))
    report = float_check(watched, program, seed=3)
    assert report.stable
    assert len(watched.seen) == len(KINDS)
    assert watched.updates == len(KINDS) - 2
    small, large = (filled(program, InputKind(scale))[0] for scale in (1e-3, 1e3))
    for kind, (table, places, gain) in zip(KINDS, watched.seen, strict=True):
        whole, wanted, scale = filled(program, kind)
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(gain, scale)
        rows = np.unique(places.astype(int) % 96)
        others = np.setdiff1d(np.arange(96), rows)
        np.testing.assert_array_equal(table.take(rows, dim), whole.take(rows, dim))
        there = large if kind.pattern or kind.scale == 1e3 else small
        np.testing.assert_array_equal(table.take(others, dim), there.take(others, dim))


@pytest.mark.parametrize("dtype", TYPES[:3])
def test_weights_that_are_packed_are_those_of_every_kind(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.verifier.reference._FEW", 1 << 8)
    float_checks._known.cache_clear()
    program, executable = linear(dtype)
    packings = counted(monkeypatch)
    watched = Watched(executable)
    report = float_check(watched, program, seed=3)
    assert report.stable
    assert len(packings) == len(KINDS) == len(watched.seen)
    plain = float_check(lambda *arrays: runner(executable)(*arrays), program, seed=3)
    assert report == plain
    assert watched.updates == (len(KINDS) - 1 if dtype is DType.BF16 else 0)
    repeated = [seen[1] for kind, seen in zip(KINDS, watched.seen, strict=True) if not kind.standard]
    assert all(len({column.tobytes() for column in weight.T}) < weight.shape[1] for weight in repeated)
    float_checks._known.cache_clear()


def counted(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], None] = lambda packed: None) -> list[int]:
    """How many elements were packed at a time, each with a fault."""
    packings: list[int] = []

    def packing(how: Any, memory: Any, packed: Any) -> None:
        pack(how, memory, packed)
        packings.append(packed.size)
        fault(packed)

    monkeypatch.setattr(packed_operands, "pack", packing)
    return packings


def _first_last(packed: Any) -> None:
    packed[[0, -1]] = packed[[-1, 0]]


def _tail(packed: Any) -> None:
    packed[-1] = packed[-2]


def _neighbours(packed: Any) -> None:
    middle = packed.size // 2
    packed[[middle, middle + 1]] = packed[[middle + 1, middle]]


@pytest.mark.parametrize("fault", [_first_last, _tail, _neighbours])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_one_wrong_element_of_a_panel_is_found(
    dtype: DType, fault: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, executable = linear(dtype)
    counted(monkeypatch, fault)
    assert not float_check(runner(executable), program, seed=3).stable


@pytest.mark.parametrize("dtype", TYPES[:3])
def test_weights_that_are_packed_once_and_never_again_are_found(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    program, executable = linear(dtype)
    kept = dict[int, Any]()
    monkeypatch.setattr(
        packed_operands.Kept, "of", lambda self, array: kept.setdefault(id(self), self.make(array))
    )  # as if changes left no trace
    assert not float_check(runner(executable), program, seed=3).stable


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
@pytest.mark.parametrize("place", [(0, -1), (-1, 0), (-1, slice(None)), (slice(None), -1), (3, 40)])
def test_wrong_ends_are_found(dtype: DType, place: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    program, executable = linear(dtype)
    kernels = runner(executable)

    class Faulty:
        def __call__(self, *arrays: Array) -> Sequence[Any]:
            return self._spoilt(kernels(*arrays))

        def updated(self, arrays: Sequence[Array], updates: Mapping[int, Update]) -> Sequence[Any]:
            return self._spoilt(kernels.updated(arrays, updates))

        def _spoilt(self, results: Sequence[Any]) -> Sequence[Any]:
            (output,) = (np.array(each) for each in results)
            output[place] = 0
            return [output]

    assert not float_check(Faulty(), program, seed=3).stable


@pytest.mark.parametrize("dtype", TYPES)
def test_a_kernel_that_reads_the_next_row_is_found(dtype: DType) -> None:
    program = looked_up(dtype)
    kernels = runner(build(program))

    class Faulty:
        """Finds the row behind the one it is asked for, from the second kind of inputs on."""

        def __call__(self, *arrays: Array) -> Sequence[Any]:
            return kernels(*arrays)

        def updated(self, arrays: Sequence[Array], updates: Mapping[int, Update]) -> Sequence[Any]:
            table, places, gain = arrays
            places[...] = (places + 1) % 96
            results = kernels.updated((table, places, gain), updates)
            places[...] = (places - 1) % 96
            return results

    report = float_check(Faulty(), program, seed=3)
    assert not report.stable
    assert report.reason.startswith(f"output 0 at {KINDS[1]}")


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_a_sum_that_takes_an_element_of_the_next_row_is_found_behind_what_hides_small_numbers(dtype: DType) -> None:
    program = mugraph.Program()
    table, places = program.input("table", (96, 8), dtype), program.input("places", (5,), "int64")
    found = table.apply("index_select", places, dim=0, negative="wrapped")
    program.output(1 / (1 + (-found.sum(-1)).exp()))

    def kernel(beyond: int, table: Array, places: Array) -> Sequence[Array]:
        flat, starts = np.append(table.astype(np.float64), 0), places.astype(int) % 96 * 8
        rows = flat[starts[:, None] + np.arange(8 + beyond)]
        return [1 / (1 + np.exp(-rows.sum(-1, keepdims=True)))]

    assert float_check(partial(kernel, 0), program.graph, seed=3).stable
    assert not float_check(partial(kernel, 1), program.graph, seed=3).stable


@pytest.mark.parametrize("left", [np.nan, np.inf, 1e6])
def test_what_a_wrong_kernel_leaves_in_its_inputs_does_not_excuse_it(left: float) -> None:
    program = mugraph.Program()
    program.output(program.input("x", (4, 64), DType.FP32) * 2)

    def wrong(x: Array) -> Sequence[Array]:
        result = x * np.float32(2.5)
        x[...] = left
        return [result]

    assert not float_check(wrong, program.graph, seed=3).stable


def test_tensors_share_memory_with_arrays_of_their_type_and_are_seen_to_change() -> None:
    library, tensor = torch_arrays(), Tensor((2, 3), DType.FP32)
    array = np.ones((2, 3), np.float32)
    held = library.refilled(None, array, tensor)
    version = held._version
    array[0, 0] = 7
    assert library.refilled(held, array, tensor) is held
    assert held._version > version
    assert held[0, 0] == 7
    other = library.refilled(held, np.zeros((2, 3), np.float32), tensor)
    assert other is not held
    assert array[0, 0] == 7  # nobody writes to what he was given
    with torch.inference_mode():
        assert library.refilled(library.refilled(None, array, tensor), array, tensor)[0, 0] == 7


def test_tensors_of_other_types_are_converted_in_their_own_memory() -> None:
    library, tensor = torch_arrays(), Tensor((2, 4), DType.BF16)
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    held = library.refilled(None, array, tensor)
    version = held._version
    assert library.updated(held, (2, 2, 2), (slice(None), np.array([1])), np.full((2, 1, 2), 9, np.float32), tensor) is held
    assert held._version > version
    assert held.tolist() == [[0, 1, 9, 9], [4, 5, 9, 9]]
    assert library.updated(None, (2, 2, 2), ..., np.ones((1, 2, 2), np.float32), tensor).tolist() == [[1] * 4] * 2
    assert array.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("dtype", [DType.INT8, DType.BOOL])
def test_whole_numbers_are_converted_in_the_memory_of_those_before(dtype: DType) -> None:
    library, tensor = torch_arrays(), Tensor((2, 3), dtype)
    array = np.ones((2, 3), np.float32)
    held = library.refilled(None, array, tensor)
    version = held._version
    array[0, 0] = 0
    assert library.refilled(held, array, tensor) is held  # or weights would be packed in new memory for each kind, and kept
    assert held._version > version
    assert held.tolist() == [[0, 1, 1], [1, 1, 1]]
