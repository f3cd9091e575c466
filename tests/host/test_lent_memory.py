"""Memory of large outputs: the next ones have it as soon as nothing refers to it, and never before."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mugraph.host.arrays import TorchArrays
from mugraph.host.lent_memory import LEAST, LEAST_VARYING, MOST, _Loan
from mugraph.ir import DType, GraphBuilder, Level
from mugraph.ir.graph import Tensor
from mugraph.runtime import build

LARGE = Tensor((1 << 10, 1 << 10), DType.FP32)
"""Of the smallest size that is lent."""


@pytest.fixture(autouse=True)
def _no_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("mugraph.host.lent_memory._SET_ASIDE", set())
    _Loan.idle.clear()
    yield
    _Loan.idle.clear()


def allocated(tensor: Tensor = LARGE) -> torch.Tensor:
    made: torch.Tensor = TorchArrays(torch).allocator(tensor)()
    return made


def test_what_nothing_refers_to_is_the_next_outputs() -> None:
    first, second = allocated(), allocated()
    places = first.data_ptr(), second.data_ptr()
    assert len(set(places)) == 2
    del first
    third = allocated()
    assert third.data_ptr() == places[0]
    del second, third
    assert allocated().data_ptr() == places[0]  # given back last


REFERENCES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a view": lambda tensor: tensor[5:, 3],
    "its storage": lambda tensor: tensor.untyped_storage(),
    "an array": lambda tensor: tensor.numpy(),
    "another library": lambda tensor: torch.utils.dlpack.from_dlpack(tensor),
    "a graph of gradients": lambda tensor: tensor * torch.ones(1, requires_grad=True),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_what_something_refers_to_is_nobodys(kind: str) -> None:
    tensor = allocated()
    place, reference = tensor.data_ptr(), REFERENCES[kind](tensor)
    del tensor
    assert allocated().data_ptr() != place
    del reference
    assert any(block.address == place for block in _Loan.idle)


@pytest.mark.parametrize("inference", [False, True])
def test_tensors_are_as_usual(inference: bool) -> None:
    with torch.inference_mode(inference), torch.device("meta"):
        tensor = allocated(Tensor((2, 1 << 10, 1 << 11), DType.BF16))
        place = tensor.data_ptr()
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((2, 1 << 10, 1 << 11), torch.bfloat16, "cpu")
    assert tensor.is_contiguous()
    assert tensor._base is None
    assert tensor.is_inference() == inference
    assert place % 4096 == 0
    with torch.inference_mode(inference):
        shared: torch.Tensor = tensor.fill_(1.0).share_memory_()  # type: ignore[no-untyped-call]  # not annotated by torch
    assert shared.data_ptr() != place
    assert (tensor == 1.0).all()


def test_few_blocks_are_kept() -> None:
    tensors = [allocated() for _ in range(7)]
    del tensors
    assert len(_Loan.idle) == 4


@pytest.mark.parametrize("size", [LEAST - 4, MOST + 4])
def test_other_sizes_are_pytorchs(size: int) -> None:
    tensor = allocated(Tensor((size // 4,), DType.FP32))
    assert tensor.resize_(2 * size).numel() == 2 * size
    del tensor
    assert not _Loan.idle


def test_blocks_of_other_sizes_stay_where_they_are() -> None:
    larger = TorchArrays(torch).allocator(Tensor((2, *LARGE.shape), DType.FP32))
    held, small = larger(), allocated()
    places = held.data_ptr(), small.data_ptr()
    del small, held
    small = allocated()
    assert (small.data_ptr(), larger().data_ptr()) == places[::-1]


def test_threads_share_no_memory() -> None:
    def differences(number: int) -> int:
        found = 0
        for _ in range(8):
            first, second = allocated().fill_(number), allocated().fill_(-number)
            found += int((first != number).sum()) + int((second != -number).sum())
        return found

    with ThreadPoolExecutor(4) as threads:
        assert not any(threads.map(differences, range(1, 9)))


def test_results_of_calls_stay_what_they_are() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", LARGE.shape, DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    doubled = block.add("add", *[block.iterator(0, kernel.tensor(x), (0,), None)] * 2)
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", doubled, omap=(0,))]), [x]))
    executable = build(graph)
    inputs = [torch.full(LARGE.shape, float(number)) for number in range(6)]
    results = [executable(each)[0] for each in inputs]
    assert [float(result.amax()) for result in results] == [float(result.amin()) for result in results] == [0, 2, 4, 6, 8, 10]
    place = results.pop(3).data_ptr()
    assert executable(inputs[5])[0].data_ptr() == place
    assert (results[3] == 8).all()


def test_within_a_dispatch_mode_no_memory_is_lent() -> None:
    with FakeTensorMode():
        assert allocated().untyped_storage().resizable()
    assert not _Loan.idle
    assert not allocated().untyped_storage().resizable()


def varying(rows: int) -> Callable[[], torch.Tensor]:
    """What allocates so many rows of 4 KiB, among tensors of other numbers of rows."""
    return TorchArrays(torch).allocator(Tensor((rows, 1 << 10), DType.FP32), varying=True)


def test_varying_sizes_share_memory() -> None:
    rows = LEAST_VARYING // 4096
    place = varying(2 * rows)().data_ptr()
    assert [varying(each)().data_ptr() for each in (rows + 1, 2 * rows - 1, 2 * rows)] == [place] * 3
    few, many = varying(rows + 1)(), varying(2 * rows)()
    assert few.data_ptr() == place != many.data_ptr()
    assert (few.shape, few.untyped_storage().nbytes()) == ((rows + 1, 1 << 10), (rows + 1) * 4096)
    assert varying(2 * rows + 1)().data_ptr() not in (place, many.data_ptr())
    assert varying(rows - 1)().untyped_storage().resizable()  # PyTorch's
    assert allocated(Tensor((rows + 1, 1 << 10), DType.FP32)).untyped_storage().resizable()


def test_a_block_that_varying_sizes_share_has_its_pages_before_the_first_call() -> None:
    pages = LEAST // 4096
    allocators = [varying(pages - number) for number in (3, 0)]
    assert [block.size for block in _Loan.idle] == [LEAST]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for allocate in allocators:
        allocate().fill_(1.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages / 2


def test_within_a_dispatch_mode_no_memory_is_set_aside() -> None:
    with FakeTensorMode():
        assert varying(LEAST // 4096)().untyped_storage().resizable()
    assert not _Loan.idle
