"""Large pages: what a kernel's large outputs cost in every call."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from mugraph.host.arrays import TorchArrays
from mugraph.host.large_pages import in_large_pages
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Tensor
from mugraph.pieces.example_tensors import examples

SMAPS, PAGES = Path("/proc/self/smaps"), Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE, SMALL = Tensor((9 << 10, 1 << 10), DType.FP32), Tensor((1 << 10, 1 << 10), DType.FP32)


def mapping_of(address: int) -> str:
    """What the system says of the mapping around an address."""
    for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text(encoding="ascii"))[1:]:
        first, last = (int(end, 16) for end in mapping.split(" ", 1)[0].split("-"))
        if first <= address < last:
            return mapping
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(not SMAPS.exists() or not PAGES.exists() or "[never]" in PAGES.read_text(), reason="no large pages here")
def test_large_outputs_lie_in_large_pages() -> None:
    tensor = TorchArrays(torch).allocator(LARGE)().fill_(1.0)
    mapping = mapping_of(tensor.data_ptr() + LARGE.bytes // 2)
    asked = re.search(r"VmFlags:.* hg\b", mapping)  # how many there are is the system's choice
    found = re.search(r"AnonHugePages: +(\d+) kB", mapping)
    assert asked or (found and 1024 * int(found[1]) > LARGE.bytes // 2)
    assert tensor.shape == LARGE.shape
    assert tensor.dtype is torch.float32
    assert torch.equal(tensor, torch.ones(LARGE.shape))


def test_advice_is_for_whole_pages_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("mugraph.host.large_pages._advice", lambda: lambda address, size: asked.append((address, size)))
    memory = torch.empty(LARGE.bytes + 64, dtype=torch.uint8)
    inner = memory[64:]
    assert in_large_pages(lambda: inner, LARGE.bytes)() is inner
    ((address, size),) = asked
    assert address % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
    assert inner.data_ptr() <= address < inner.data_ptr() + mmap.PAGESIZE
    assert inner.data_ptr() + LARGE.bytes - mmap.PAGESIZE < address + size <= inner.data_ptr() + LARGE.bytes


def test_what_is_used_again_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.host.large_pages._advice", lambda: pytest.fail("asked for large pages"))
    assert TorchArrays(torch).allocator(SMALL)().shape == SMALL.shape


def test_what_stands_for_inputs_while_calls_are_timed_lies_as_these_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for large pages for the weights of a model: PyTorch's calls would be timed faster than they are."""
    monkeypatch.setattr("mugraph.host.large_pages._advice", lambda: pytest.fail("asked for large pages"))
    assert TorchArrays(torch).repeated(np.ones(7, np.float32), LARGE).shape == LARGE.shape
    with examples([torch.empty(LARGE.shape)]) as [example]:
        assert example.shape == LARGE.shape
