"""Loading compiled kernels onto GPUs and launching them on PyTorch's current streams, by the driver's own bindings.

What every call repeats is little: it finds its launches prepared but for the addresses, writes these, and calls the driver once
for each kernel.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

from mugraph.errors import LaunchFailed, MugraphError, TargetUnavailable
from mugraph.host.array_interface import KernelCall
from mugraph.ir.dtypes import DType
from mugraph.lower.counted_slices import FirstSlices
from mugraph.lower.tensor_maps import TensorMap
from mugraph.lower.tile_form import Kernel
from mugraph.targets.cuda.nvrtc import Cubin
from mugraph.targets.gpu import gpu_index, lacking, reported_gpu

_STREAMS = 32
"""Streams for which launches are kept prepared: PyTorch has 32 of a priority on a device, and other libraries bring theirs."""
_POINTER = 8
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_FIRST_WITH_MAPS = 12000
"""The driver's version."""
_KEPT_MAPS = 1 << 12
"""Tensor maps that are kept, encoded, by their addresses."""
_REBUILD = "`mugraph rebuild DIR --target cuda -o OTHER` makes a saved result anew for this GPU"
_LOST = "it or a kernel before it failed on the GPU, of which this process can use nothing more; start another"
_REMEDIES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free memory of the device, for example by torch.cuda.empty_cache()",
    "CUDA_ERROR_INVALID_IMAGE": "the driver cannot read the machine code; update the driver, or optimize again",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "a block asks for more than a multiprocessor has; optimize for this device",
    **dict.fromkeys(("CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS"), _LOST),
    **dict.fromkeys(("CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_HARDWARE_STACK_ERROR"), _LOST),
}


@dataclass(frozen=True, slots=True)
class SlicedLaunch:
    """What of a launch the number of `slices` decides, which operand `operand` is, given in the place of an address.

    Of `blocks` along one dimension of the grid those run that begin before the last row, for each of `others`; `rows` has for
    each tensor map how many rows of its matrix a slice is, 0 where it has no slices.
    """

    operand: int
    slices: FirstSlices
    blocks: int
    others: int
    rows: tuple[int, ...] = ()

    @classmethod
    def of(cls, kernel: Kernel, rows: tuple[int, ...] = ()) -> SlicedLaunch | None:
        """That of a kernel; None of one that computes all slices."""
        slices = kernel.slices
        if slices is None:
            return None
        blocks = 1 if slices.dim is None else kernel.grid[slices.dim]
        return cls(kernel.inputs.index(slices.count), slices, blocks, math.prod(kernel.grid) // blocks, rows)

    def begun(self, slices: int) -> int:
        """Blocks of a launch for so many slices."""
        return self.others * (1 if self.slices.dim is None else self.slices.begun(slices, self.blocks))


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Blocks of the grid (one to three dimensions), threads of a block, bytes of dynamic shared memory of a block.

    `maps` are the tensor maps that the kernel takes after its operands, each with the number of the operand that it is of. A
    kernel that is `chained` waits itself for the kernels before it. With `sliced` the grid and the maps are those for all slices.
    """

    grid: tuple[int, ...]
    threads: int
    shared_bytes: int
    maps: tuple[tuple[int, TensorMap], ...] = ()
    chained: bool = False
    sliced: SlicedLaunch | None = None

    def blocks(self, slices: int) -> int:
        """Blocks of a launch for so many slices, along the one dimension of its grid."""
        assert self.sliced is not None, "the kernel computes a number of slices"
        return self.sliced.begun(slices)

    def map_of(self, number: int, slices: int) -> TensorMap:
        """A tensor map for so many slices: what a box has behind them arrives as 0."""
        _, matrix = self.maps[number]
        rows = 0 if self.sliced is None else self.sliced.rows[number]
        return replace(matrix, rows=slices * rows) if rows else matrix

    def of_slices(self, slices: int) -> LaunchShape:
        """The launch for so many slices."""
        maps = tuple((operand, self.map_of(number, slices)) for number, (operand, _) in enumerate(self.maps))
        return replace(self, grid=(self.blocks(slices),), maps=maps, sliced=None)


class Launcher:
    """A compiled kernel for any GPU of its architecture; on each it is loaded when it is first needed there.

    `scratch` is the number of pointers that the kernel takes after its operands, to memory that it does not use.
    """

    def __init__(self, cubin: Cubin, name: str, shape: LaunchShape, scratch: int = 0) -> None:
        self.cubin, self.name, self.shape, self.scratch = cubin, name, shape, scratch
        self._loaded: dict[int, LoadedKernel] = {}
        self._loading = threading.Lock()

    def on(self, device: int) -> LoadedKernel:
        """The kernel loaded onto the GPU of that index; raises what `LoadedKernel` raises."""
        with self._loading:
            if device not in self._loaded:
                self._loaded[device] = LoadedKernel(self.cubin, self.name, self.shape, device, self.scratch)
            return self._loaded[device]

    @staticmethod
    def together(calls: Sequence[KernelCall], device: int) -> Callable[..., None]:
        """Launchers as one call on the GPU of that index."""
        return Launches([(cast("Launcher", call.function).on(device), call.operands) for call in calls]).call

    def __call__(self, *addresses: int) -> None:
        """Launch on torch's current device."""
        self.on(gpu_index())(*addresses)


class LoadedKernel:
    """A kernel on one GPU, whose machine code stays loaded while the process runs: CUDA graphs may hold it.

    Calling it with the device addresses of its operands launches it as `Launches` do.
    """

    def __init__(self, cubin: Cubin, name: str, shape: LaunchShape, device: int | None = None, scratch: int = 0) -> None:
        """Load onto the GPU of that index, by default torch's current one.

        Raises TargetUnavailable when there is no GPU, its blocks have too little shared memory or the code is for another
        one, and LaunchFailed where the driver cannot load it.
        """
        driver = _driver()
        self.device, self.shape, self.scratch = gpu_index(device), shape, scratch
        self.what = what = f"kernel {name} on cuda:{self.device}"
        if lack := lacking(cubin.architecture, shape.shared_bytes, reported_gpu(self.device)):
            raise TargetUnavailable(f"{what}: {lack}; {_REBUILD}")
        handle = _done(driver.cuDeviceGet(self.device), what, "finding the device")
        self.context = _done(driver.cuDevicePrimaryCtxRetain(handle), what, "asking for its context")
        with _loading(self.context, what):
            library = _library(cubin, what)
            kernel = _done(driver.cuLibraryGetKernel(library, name.encode()), what, "finding it in its machine code")
            _allow_shared_memory(kernel, handle, shape.shared_bytes, what)
            self.function = _done(driver.cuKernelGetFunction(kernel), what, "loading it")
            _done(driver.cuFuncLoad(self.function), what, "loading it")
        self._alone: Callable[..., None] | None = None

    def __call__(self, *addresses: int) -> None:
        if self._alone is None:
            self._alone = Launches([(self, range(len(addresses)))]).call
        self._alone(*addresses)

    def make_current(self) -> None:
        """Make its context that of this thread: in one that has used the GPU for nothing yet, none is current."""
        _done(_driver().cuCtxSetCurrent(self.context), self.what, "making its context current")


class Launches:
    """Kernels on one GPU, one after another: each takes some of the device addresses that `call` is given.

    It enqueues a launch of each on torch's current stream of that GPU, which must be torch's current device, and returns at
    once: it allocates no memory of the device and waits for nothing, so it may be captured into a CUDA graph. Several threads may
    call it. Raises LaunchFailed where the driver refuses.
    """

    def __init__(self, calls: Sequence[tuple[LoadedKernel, Sequence[int]]]) -> None:
        self._kernels = [kernel for kernel, _ in calls]
        self._operands = [tuple(numbers) for _, numbers in calls]
        self._count = 1 + max((number for numbers in self._operands for number in numbers), default=-1)
        self._prepared: dict[int, list[_Prepared]] = {}
        self.call = self._call()

    def _call(self) -> Callable[..., None]:
        device, current_stream, launch = self._kernels[0].device, _raw_stream(), _driver().cuLaunchKernelEx

        def call(*addresses: int) -> None:
            stream = current_stream(device)
            free = self._prepared.get(stream)
            if free is None:
                free = self._new_stream(stream)
            prepared = free.pop() if free else self._prepare(stream)
            write, launches, _ = prepared
            write(*addresses)
            for arguments in launches:
                (error,) = launch(*arguments)
                if error:
                    self._again(error, launches.index(arguments), arguments)
            free.append(prepared)

        return call

    def _new_stream(self, stream: int) -> list[_Prepared]:
        """Where what is prepared for launches on a stream is kept; that of other streams is forgotten when there are many."""
        prepared = self._prepared if len(self._prepared) < _STREAMS else {}
        free: list[_Prepared] = []
        self._prepared = {**prepared, stream: free}
        return free

    def _prepare(self, stream: int) -> _Prepared:
        values = (ctypes.c_uint64 * (self._count + 1))()  # the last is the null pointer that scratch memory is
        start = ctypes.addressof(values)
        launches: list[tuple[Any, ...]] = []
        tables, changing = [], list[_Changing]()
        for kernel, operands in zip(self._kernels, self._operands, strict=True):
            sliced = kernel.shape.sliced
            count = None if sliced is None else operands[sliced.operand]
            own = [EncodedMap(number, operands[operand], kernel, count) for number, (operand, _) in enumerate(kernel.shape.maps)]
            pointers = [start + _POINTER * place for place in operands]
            pointers += [each.place for each in own] + [start + _POINTER * self._count] * kernel.scratch
            table = (ctypes.c_void_p * len(pointers))(*pointers)
            tables.append(table)
            early = kernel.shape.chained and bool(launches)
            configuration = _configuration(kernel.shape, stream, early)
            changing += own if count is None else [*own, _Grid(kernel.shape, count, configuration)]
            launches.append((configuration, kernel.function, ctypes.addressof(table), 0))
        write = partial(struct.Struct(f"={self._count}Q").pack_into, values, 0)
        return _Prepared(_writing(write, changing) if changing else write, tuple(launches), tables)

    def _again(self, error: Any, number: int, arguments: tuple[Any, ...]) -> None:
        """Launch where the driver did not."""
        driver, kernel = _driver(), self._kernels[number]
        if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
            kernel.make_current()
            (error,) = driver.cuLaunchKernelEx(*arguments)
        _done((error,), kernel.what, "launching it")


class _Prepared(NamedTuple):
    """Launches on a stream but for the addresses. It is used by one call at a time: between writing and launching others run."""

    write: Callable[..., None]
    """Writes the addresses of a call to where the launches find them."""
    launches: tuple[tuple[Any, ...], ...]
    """What the driver is given for each."""
    tables: Sequence[Any]
    """Pointers to the addresses that each kernel takes, which the launches have the addresses of."""


class _Changing(Protocol):
    """What of a launch beside its operands depends on these."""

    def write(self, addresses: Sequence[int]) -> None:
        """Make it that of the addresses of a call."""
        ...


class _Grid:
    """The blocks of a launch whose number of slices is one of the addresses of a call, in its `configuration`."""

    def __init__(self, shape: LaunchShape, count: int, configuration: Any) -> None:
        self._shape, self._count, self._configuration = shape, count, configuration
        self._slices = 0

    def write(self, addresses: Sequence[int]) -> None:
        """Make it that for the slices of a call."""
        slices = addresses[self._count]
        if slices != self._slices:
            self._configuration.gridDimX = self._shape.blocks(slices)
            self._slices = slices


class EncodedMap:
    """Tensor map `number` of a kernel as it takes it, encoded for the address of its operand, and for the slices that another
    one is the number of, if there is one (`count`); `place` is where its 128 bytes lie."""

    def __init__(self, number: int, operand: int, kernel: LoadedKernel, count: int | None = None) -> None:
        self._number, self._operand, self._kernel, self._count = number, operand, kernel, count
        self._memory, self.place = _aligned_map()
        self._written = 0, 0

    def write(self, addresses: Sequence[int]) -> None:
        """Make it that of the operand's address among those of a call; raises LaunchFailed where the driver cannot encode it."""
        address, slices = addresses[self._operand], 0 if self._count is None else addresses[self._count]
        if (address, slices) != self._written:
            matrix = self._kernel.shape.map_of(self._number, slices)
            ctypes.memmove(self.place, _encoded(matrix, address, self._kernel), _MAP_BYTES)
            self._written = address, slices


def _writing(write: Callable[..., None], changing: Sequence[_Changing]) -> Callable[..., None]:
    """What writes the addresses of a call, and what else they change."""

    def both(*addresses: int) -> None:
        write(*addresses)
        for each in changing:
            each.write(addresses)

    return both


@lru_cache(maxsize=_KEPT_MAPS)
def _encoded(matrix: TensorMap, address: int, kernel: LoadedKernel) -> bytes:
    """The tensor map of a matrix at an address, as the driver encodes it; it is no part of any device.

    Where the driver asks for a context, which it does not say, it is given the kernel's.
    """
    driver, (tall, wide) = _driver(), matrix.box
    kinds = {DType.FP16: "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", DType.BF16: "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"}
    _memory, place = _aligned_map()
    encode = partial(
        _encode_tiled(),
        place,
        getattr(driver.CUtensorMapDataType, kinds[matrix.dtype]),
        2,
        address,
        (ctypes.c_uint64 * 2)(matrix.columns, matrix.rows),
        (ctypes.c_uint64 * 1)(matrix.pitch * matrix.dtype.bytes),
        (ctypes.c_uint32 * 2)(wide, tall),
        (ctypes.c_uint32 * 2)(1, 1),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{matrix.row_bytes}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    error = encode()
    if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        kernel.make_current()
        error = encode()
    _done((driver.CUresult(error),), kernel.what, f"encoding a tensor map of {matrix.buffer}")
    return ctypes.string_at(place, _MAP_BYTES)


def _aligned_map() -> tuple[Any, int]:
    """Memory for a tensor map, and the address in it where one may lie."""
    memory = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    return memory, -(-ctypes.addressof(memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT


@cache
def _encode_tiled() -> Callable[..., int]:
    """The driver's function that encodes tensor maps; the bindings' own puts them where the driver allows none."""
    driver = _driver()
    found = driver.cuGetProcAddress(b"cuTensorMapEncodeTiled", _FIRST_WITH_MAPS, 0)
    address = _done(found, "the driver", "looking for tensor maps")
    words, halves = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
    mode, pointer = ctypes.c_int, ctypes.c_void_p
    sizes = (words, words, halves, halves)
    return ctypes.CFUNCTYPE(mode, pointer, mode, ctypes.c_uint32, pointer, *sizes, mode, mode, mode, mode)(int(address))


def _configuration(shape: LaunchShape, stream: int, early: bool) -> Any:
    """What the driver is told of a launch; an `early` one may begin before the launch before it on the stream is over."""
    driver = _driver()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*shape.grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.threads, 1, 1
    config.sharedMemBytes, config.hStream = shape.shared_bytes, driver.CUstream(stream)
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config


@cache
def _driver() -> ModuleType:
    """The driver's interface; raises TargetUnavailable without its bindings."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise TargetUnavailable(
            f"kernels are launched with cuda-bindings, which does not import ({error}); run `pip install cuda-bindings`"
        ) from None
    module: ModuleType = driver
    return module


def _raw_stream() -> Callable[[int], int]:
    """What gives the handle of torch's current stream on a device."""
    import torch

    raw: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    return raw


@contextmanager
def _loading(context: Any, what: str) -> Iterator[None]:
    """In a context; what a thread may not do while a CUDA graph is captured it may here, as nothing of it belongs into one."""
    driver = _driver()
    _done(driver.cuCtxPushCurrent(context), what, "making its context current")
    usual = _done(driver.cuThreadExchangeStreamCaptureMode(_relaxed()), what, "loading it")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(usual)
        driver.cuCtxPopCurrent()


def _relaxed() -> Any:
    return _driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


_libraries: dict[bytes, Any] = {}
_reading = threading.Lock()


def _library(cubin: Cubin, what: str) -> Any:
    """The driver's handle of machine code, which it reads once for all devices."""
    key = hashlib.sha256(cubin.code).digest()
    with _reading:
        if key not in _libraries:
            loaded = _driver().cuLibraryLoadData(cubin.code, [], [], 0, [], [], 0)
            _libraries[key] = _done(loaded, what, f"reading its machine code for {cubin.architecture}")
        return _libraries[key]


def _allow_shared_memory(kernel: Any, device: Any, size: int, what: str) -> None:
    """Above 48 KB a kernel must ask for its dynamic shared memory once on each device, before the first launch."""
    driver = _driver()
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, size, kernel, device)
    if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
        raise TargetUnavailable(f"{what}: the GPU cannot give a block {size} bytes of shared memory; {_REBUILD}")
    _done((error,), what, "asking for shared memory")


def _done(answer: tuple[Any, ...], what: str, doing: str) -> Any:
    """What the driver gives with its answer; raises LaunchFailed, or TargetUnavailable where the code is for another GPU."""
    error, *values = answer
    if error:
        raise _failure(error, what, doing)
    return values[0] if values else None


def _failure(error: Any, what: str, doing: str) -> MugraphError:
    if error == _driver().CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU:
        return TargetUnavailable(f"{what}: {doing} failed, as this GPU is of another architecture; {_REBUILD}")
    remedy = _REMEDIES.get(error.name)
    return LaunchFailed(f"{what}: {doing} failed with {error.name}" + (f"; {remedy}" if remedy else ""))
