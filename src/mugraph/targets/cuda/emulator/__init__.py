"""CUDA kernels on a CPU: the text that a GPU would run, run by fibers, with every access to memory checked.

A block's threads are fibers that take turns; warp functions and barriers wait for the threads they join. Asynchronous
copies land when they are waited for, never earlier. Shared memory and outputs start as NaN. Each access is checked against the
history of its cell: faults that a GPU would hide behind lucky timing are reported even where the result is right.
"""

from __future__ import annotations

import _ctypes
import ctypes
import math
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from mugraph.errors import InvalidInput
from mugraph.lower.tensor_maps import TensorMap
from mugraph.support.scratch import scratch_directory
from mugraph.targets.cuda.emulator.findings import Fault, Finding
from mugraph.targets.cuda.emulator.toolchain import build_library, source_lines
from mugraph.targets.launch import LaunchShape

__all__ = ["Emulation", "Fault", "Finding", "emulate", "prepare"]

Array = npt.NDArray[np.generic]
Region = tuple[int, int]
"""Offset and size of a buffer in shared memory, in bytes."""

_NO_REGIONS: Mapping[str, Region] = MappingProxyType({})
_NOWHERE = -2

_WARP = 32
_MOST_THREADS = 1024
_MOST_SHARED = 1 << 20
_MOST_ARGUMENTS = 24
_MOST_FINDINGS = 64
_INPUT, _OUTPUT, _PARTIAL, _NUMBER = range(4)
"""Kinds of operands: those that are read, those that are written as a whole or in part, and a number that stands in the place
of an address."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """What a run of `blocks` blocks showed: findings, how many 8 x 8 matrices `ldmatrix` read with how many turns lost to bank
    conflicts, and how many turns (wavefronts) all accesses to shared memory took, where they were counted."""

    findings: tuple[Finding, ...]
    matrices: int
    bank_conflicts: int
    wavefronts: int
    blocks: int


def emulate(
    source: str,
    kernel: str,
    shape: LaunchShape,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    seed: int = 0,
    regions: Mapping[str, Region] = _NO_REGIONS,
    count_wavefronts: bool = False,
    blocks: Sequence[int] = (),
    seconds: float = math.inf,
    partial: Collection[int] = (),
) -> Emulation:
    """Run `kernel` of the kernels' text on contiguous arrays (16-bit types as any 16-bit array), writing the outputs in place.

    The kernel's parameters are pointers, inputs first, and then the tensor maps of `shape`. Where it computes a number of
    slices, that is one of the inputs, an array of one number of 64 bits, and `shape` is that for all of them. `seed` other than
    0 chooses another order in which warps and lanes take turns. With `regions`, the buffers in shared memory by name, findings
    name them, and accesses that lie in none of them are out of bounds. `count_wavefronts` makes the run several times slower.
    Of the grid only `blocks` are run where there are any, numbered along its first dimension first, and none is begun after
    `seconds` but the first. What blocks that are not run would have written is no finding, nor what is left unwritten of
    outputs of the numbers `partial`.

    Raises InvalidInput for shapes and operands no launch can have, TargetUnavailable without g++, CompilationFailed when it
    rejects the source.
    """
    number = None if shape.sliced is None else shape.sliced.operand
    if number is not None:
        shape = shape.of_slices(int(inputs[number][0]))
    _check(shape, inputs, outputs, blocks)
    kinds = [_NUMBER if place == number else _INPUT for place in range(len(inputs))]
    kinds += [_PARTIAL if place in partial else _OUTPUT for place in range(len(outputs))]
    return _library(source).run(kernel, shape, inputs, outputs, kinds, seed, regions, count_wavefronts, blocks, seconds)


def prepare(source: str) -> None:
    """Build what runs the kernels' text, which `emulate` otherwise does; raises what it raises."""
    _library(source)


def _check(shape: LaunchShape, inputs: Sequence[Array], outputs: Sequence[Array], blocks: Sequence[int]) -> None:
    if shape.threads % _WARP or not 0 < shape.threads <= _MOST_THREADS:
        raise InvalidInput(f"a block has whole warps of {_WARP} threads, up to {_MOST_THREADS}, not {shape.threads} threads")
    if not 0 <= shape.shared_bytes <= _MOST_SHARED:
        raise InvalidInput(f"the emulator has {_MOST_SHARED} bytes of shared memory, not {shape.shared_bytes}")
    arguments = len(inputs) + len(outputs) + len(shape.maps)
    if arguments > _MOST_ARGUMENTS:
        raise InvalidInput(f"the emulator launches kernels of up to {_MOST_ARGUMENTS} operands and tensor maps, not {arguments}")
    if any(not 0 <= block < math.prod(shape.grid) for block in blocks):
        raise InvalidInput(f"a grid of {math.prod(shape.grid)} blocks has none of the numbers {list(blocks)}")
    for array in (*inputs, *outputs):
        if not array.flags.c_contiguous:
            raise InvalidInput(f"operands of kernels are contiguous; copy the array of shape {array.shape} first")


class _Operand(ctypes.Structure):
    _fields_ = (("memory", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("kind", ctypes.c_int32))


class _Region(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_int64), ("bytes", ctypes.c_int64))


class _Map(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("operand", "rows", "columns", "pitch_bytes", "box_rows", "box_columns", "element_bytes")
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_int32 * 3),
        ("threads", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32),
        ("seed", ctypes.c_uint32),
        ("count_wavefronts", ctypes.c_int32),
        ("region_count", ctypes.c_int32),
        ("regions", ctypes.POINTER(_Region)),
        ("block_count", ctypes.c_int32),
        ("blocks", ctypes.POINTER(ctypes.c_int32)),
        ("element_bytes", ctypes.c_int32),
        ("seconds", ctypes.c_double),
        ("map_count", ctypes.c_int32),
        ("maps", ctypes.POINTER(_Map)),
        ("early", ctypes.c_int32),
    )


class _Finding(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "place", "thread", "other", "block", "bytes")),
        ("epoch", ctypes.c_uint32),
        ("offset", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("site", ctypes.c_size_t),
    )


class _Statistics(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("matrices", "conflicts", "wavefronts", "blocks"))


class _Library:
    """One kernels' text, built and loaded; its emulator is one machine, so one thread runs it at a time."""

    def __init__(self, source: str) -> None:
        folder = scratch_directory("mugraph-emulator-")
        weakref.finalize(self, folder.cleanup)
        self._path = build_library(source, Path(folder.name))
        self._loaded = ctypes.CDLL(str(self._path))
        self._lock = threading.Lock()
        weakref.finalize(self, _ctypes.dlclose, self._loaded._handle)

    def run(
        self,
        kernel: str,
        shape: LaunchShape,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        kinds: Sequence[int],
        seed: int,
        regions: Mapping[str, Region],
        count_wavefronts: bool,
        blocks: Sequence[int],
        seconds: float,
    ) -> Emulation:
        """Launch once; see `emulate`."""
        try:
            entry = ctypes.cast(getattr(self._loaded, kernel), ctypes.c_void_p)
        except AttributeError:
            raise InvalidInput(f'there is no extern "C" kernel {kernel!r} in the source') from None
        views = (_Operand * len(kinds))(
            *(_Operand(array.ctypes.data, array.nbytes, kind) for array, kind in zip((*inputs, *outputs), kinds, strict=True))
        )
        grid = (*shape.grid, 1, 1, 1)[:3]
        buffers = (_Region * len(regions))(*(_Region(*region) for region in regions.values()))
        launch = _Shape(
            (ctypes.c_int32 * 3)(*grid),
            shape.threads,
            shape.shared_bytes,
            seed,
            count_wavefronts,
            len(regions),
            buffers,
            len(blocks),
            (ctypes.c_int32 * len(blocks))(*blocks),
            min(array.itemsize for array in (*inputs, *outputs)),
            0.0 if seconds == math.inf else seconds,
            len(shape.maps),
            (_Map * len(shape.maps))(*(_map(operand, matrix) for operand, matrix in shape.maps)),
            shape.chained,
        )
        found, statistics = (_Finding * _MOST_FINDINGS)(), _Statistics()
        with self._lock:
            count = self._loaded.emulate(entry, ctypes.byref(launch), views, len(views), found, ctypes.byref(statistics))
        findings = self._findings(kernel, found[:count], len(inputs), regions)
        return Emulation(findings, statistics.matrices, statistics.conflicts, statistics.wavefronts, statistics.blocks)

    def _findings(
        self, kernel: str, found: Sequence[_Finding], inputs: int, regions: Mapping[str, Region]
    ) -> tuple[Finding, ...]:
        lines = source_lines(self._path, [each.site for each in found])
        faults = tuple(Fault)
        return tuple(
            Finding(
                fault=faults[each.kind],
                kernel=kernel,
                place=_place(each, inputs, regions),
                offset=each.offset,
                bytes=each.bytes,
                block=each.block,
                thread=each.thread,
                other=None if each.other < 0 else each.other,
                barriers=each.epoch,
                line=line,
                count=each.count,
            )
            for each, line in zip(found, lines, strict=True)
        )


def _map(operand: int, matrix: TensorMap) -> _Map:
    size = matrix.dtype.bytes
    return _Map(operand, matrix.rows, matrix.columns, matrix.pitch * size, *matrix.box, size)


@lru_cache(maxsize=16)
def _library(source: str) -> _Library:
    return _Library(source)


def _place(found: _Finding, inputs: int, regions: Mapping[str, Region]) -> str:
    if found.place >= 0:
        return f"input {found.place}" if found.place < inputs else f"output {found.place - inputs}"
    if found.place == _NOWHERE:
        return "an unknown address"
    there = [name for name, (offset, size) in regions.items() if offset <= found.offset < offset + size]
    return f"shared memory ({' or '.join(there)})" if there else "shared memory"
