"""Tensors that stand for those of a program while its calls are timed: weights of a model are large, and to make others like them
takes longer than the calls do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from mugraph.devices.host import memory_lasts

_DISTINCT = (1 << 20) + 7
"""Numbers repeat after so many, a prime, so that no two rows are alike: to draw a large matrix takes longer than to multiply by
it."""
_APART = 64
"""Bytes of a cache line: no two tensors share one."""

_Kind = tuple[torch.dtype, torch.device]


@dataclass(frozen=True, slots=True)
class _Filled:
    """Memory in which numbers repeat, and what it was when it had been filled."""

    memory: torch.Tensor
    version: int

    @classmethod
    def of(cls, elements: int, kind: _Kind) -> _Filled:
        memory = _filled(elements, *kind)
        return cls(memory, memory._version)

    @property
    def is_still(self) -> bool:
        """Whether no call wrote to it."""
        return self.memory._version == self.version


_SPARE: ContextVar[dict[_Kind, _Filled] | None] = ContextVar("filled memory", default=None)
"""By kind the largest memory that nobody uses, where it is kept for others."""


@contextmanager
def memory_reused() -> Iterator[None]:
    """What is timed inside, one program after the other, has its `examples` in the same memory, as long as that lasts."""
    if _SPARE.get() is not None:
        yield
        return
    token = _SPARE.set({})
    try:
        yield
    finally:
        _SPARE.reset(token)


@contextmanager
def examples(recorded: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """A tensor that lies as each of those recorded, as `example_of` has them; they are not used when the context is left."""
    wanted = list(recorded)
    reaches = [_rounded(_reach(tensor), tensor.dtype) for tensor in wanted]
    kinds = [(tensor.dtype, tensor.device) if tensor.is_floating_point() else None for tensor in wanted]
    needed = Counter[_Kind]()
    for reach, kind in zip(reaches, kinds, strict=True):
        needed.update({} if kind is None else {kind: reach})
    filled = {kind: _lent(elements, kind) for kind, elements in needed.items()}
    taken, found = dict.fromkeys(filled, 0), list[torch.Tensor]()
    for tensor, reach, kind in zip(wanted, reaches, kinds, strict=True):
        if kind is None:
            found.append(example_of(tensor))
            continue
        found.append(filled[kind].memory.as_strided(recorded_sizes(tensor.shape), recorded_sizes(tensor.stride()), taken[kind]))
        taken[kind] += reach
    try:
        yield found
    finally:
        for kind, each in filled.items():
            _give_back(kind, each)


def example_of(recorded: torch.Tensor) -> torch.Tensor:
    """A tensor that lies as another: positive numbers, as variances are, or integers that index anything, or what is true."""
    memory = _filled(_reach(recorded), recorded.dtype, recorded.device)
    return memory.as_strided(recorded_sizes(recorded.shape), recorded_sizes(recorded.stride()))


def _lent(elements: int, kind: _Kind) -> _Filled:
    spare = (_SPARE.get() or {}).pop(kind, None)
    return spare if spare is not None and spare.is_still and len(spare.memory) >= elements else _Filled.of(elements, kind)


def _give_back(kind: _Kind, filled: _Filled) -> None:
    """Keep memory, if somebody wants it and there is enough of it."""
    spare = _SPARE.get()
    if spare is not None and filled.is_still and memory_lasts():
        known = spare.get(kind)
        spare[kind] = filled if known is None or len(known.memory) < len(filled.memory) else known


def _filled(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory in pages as those of weights: where they are large, PyTorch's products of one row take 0.8 of the time."""
    with torch.inference_mode(False):  # whose tensors have no versions
        make = torch.empty if dtype.is_floating_point else torch.zeros
        memory = make(elements, dtype=dtype, device=device)
        if dtype.is_floating_point:
            drawn = torch.empty(min(elements, _DISTINCT), device=device)  # in fp32: of fp8 PyTorch draws none
            drawn.uniform_(0.1, 1.1, generator=torch.Generator(device).manual_seed(0))  # not the calls' own
            for start in range(0, elements, _DISTINCT):
                part = memory[start : start + _DISTINCT]
                part.copy_(drawn[: len(part)])
        elif dtype is torch.bool:
            memory.fill_(True)
        return memory


def _reach(tensor: torch.Tensor) -> int:
    """Elements of memory that a tensor lies in."""
    sizes, strides = recorded_sizes(tensor.shape), recorded_sizes(tensor.stride())
    return max(0, 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))) if all(sizes) else 0


def _rounded(elements: int, dtype: torch.dtype) -> int:
    line = max(1, _APART // dtype.itemsize)
    return math.ceil(elements / line) * line


def recorded_sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes as they were in the call that a graph was recorded with, where they are symbolic."""
    return tuple(size if isinstance(size, int) else size.node.hint for size in sizes)
