"""PyTorch's tensors as kernels run on them, and which library the arrays of a call belong to: it or NumPy."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, cast

import numpy as np

from mugraph.errors import InvalidInput
from mugraph.host.array_interface import (
    Arrays,
    GpuFunction,
    KernelCall,
    Recognizer,
    RunInputs,
    mismatch,
    on_host,
    wrong_type,
)
from mugraph.host.large_pages import in_large_pages
from mugraph.host.lent_memory import LEAST, LEAST_VARYING, MOST, lent
from mugraph.host.numpy_arrays import NUMPY
from mugraph.host.torch_arithmetic import TorchArithmetic
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape, Tensor
from mugraph.ir.lookups import lookup_shape, places
from mugraph.ir.ops import Call, operator
from mugraph.lower.tiles import row_major
from mugraph.support.user_warnings import warn_of_gradient


def arrays_of(inputs: Sequence[Any]) -> Arrays:
    """The library that the inputs belong to; raises InvalidInput for anything but torch tensors and NumPy arrays."""
    libraries = {_library_of(kind) for kind in map(type, inputs)}
    if len(libraries) == 1:
        (library,) = libraries
        if library is not None:
            return library
    kinds = ", ".join(sorted({type(array).__name__ for array in inputs}))
    raise InvalidInput(f"inputs must be all torch tensors or all NumPy arrays, not {kinds}")


@functools.cache
def _library_of(kind: type) -> Arrays | None:
    if kind in (np.ndarray, np.memmap):
        return NUMPY
    return torch_arrays() if kind.__module__.partition(".")[0] == "torch" else None


class TorchArrays:
    """Tensors of PyTorch on one device: `cpu`, or `cuda:1`; `cuda` is where calls without any tensor on a GPU are refused."""

    def __init__(self, torch: ModuleType, device: str = "cpu") -> None:
        self.torch, self.device = torch, device
        self.kind, _, index = device.partition(":")
        self.index = int(index) if index else None
        self.alignment = 1 if self.kind == "cpu" else 16  # bytes, of the widest load of a GPU
        self.dtypes = {dtype: getattr(torch, dtype.torch_name) for dtype in DType}
        self.matmul: Callable[[Any, Any], Any] = torch.matmul
        self.pointer: Callable[[Any], int] = torch.Tensor.data_ptr
        self.kinds = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
        self.forward_ad = importlib.import_module("torch.autograd.forward_ad")
        self.guards = importlib.import_module("torch._C._dynamo.guards")

    def expect_values(self, arrays: Sequence[Any]) -> None:
        functorch = self.torch._C._functorch
        if functorch.maybe_current_level() is not None:
            raise InvalidInput(f"kernels cannot be mapped or differentiated (torch.vmap, torch.func); {_INSTEAD}")
        tracing = self.torch._C._get_dispatch_mode(self.torch._C._TorchDispatchModeKey.PROXY) is not None
        tracing = tracing or self.torch._C._get_tracing_state() is not None  # by torch.jit.trace
        if other := next((kind for kind in map(type, arrays) if kind not in self.kinds), None):
            raise InvalidInput(f"a {other.__name__} has no values that kernels could read; {_INSTEAD}")
        if tracing:
            raise InvalidInput(f"kernels cannot be traced; {_INSTEAD}")
        if self.forward_ad._current_level >= 0 and any(map(self.is_dual, arrays)):
            raise InvalidInput("kernels have no derivative, and an input has a tangent; call the original function")
        if self.torch.is_grad_enabled() and any(array.requires_grad for array in arrays):
            warn_of_gradient("an input")

    def is_dual(self, array: Any) -> bool:
        """Whether a tensor has a tangent of forward-mode differentiation."""
        return self.forward_ad.unpack_dual(array).tangent is not None

    def launches(self, calls: Sequence[KernelCall]) -> Callable[..., None]:
        if self.index is None:
            return on_host(calls)
        return cast("GpuFunction", calls[0].function).together(calls, self.index)

    def on_device(self, run: RunInputs) -> RunInputs:
        if self.index is None:
            return run
        index, current, switched = self.index, self.torch._C._cuda_getDevice, self.torch.cuda.device

        def on_this_device(inputs: Sequence[Any], addresses: Sequence[int], into: Sequence[Any] = ()) -> list[Any]:
            if current() == index:
                return run(inputs, addresses, into)
            with switched(index):
                return run(inputs, addresses, into)

        return on_this_device

    def recognizer(self, arrays: Sequence[Any], varying: Mapping[int, int] = MappingProxyType({})) -> Recognizer | None:
        """By the guards of `torch.compile`: type, dispatch keys (which tell of layout, negation and modes), dtype, device, shape,
        strides and whether gradients are required, of all tensors at once."""
        guards = getattr(self.guards, "TensorGuards", None)
        if guards is None or not arrays or any(array.requires_grad for array in arrays):  # who calls detaches these first
            return None
        sizes = [_fixed(array.shape, {varying.get(number)}) for number, array in enumerate(arrays)]
        strides = [
            _fixed(array.stride(), range(array.dim() - 1) if number in varying else ()) for number, array in enumerate(arrays)
        ]
        check: Callable[..., bool] = guards(*arrays, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        count, misaligned, pointer = len(arrays), self.alignment - 1, self.pointer
        modes, differentiation = self.torch._C._len_torch_dispatch_stack, self.forward_ad
        traced = self.torch._C._get_tracing_state

        def recognized(arrays: Sequence[Any]) -> list[int] | None:
            watched = differentiation._current_level >= 0 or modes() or traced() is not None
            if len(arrays) != count or watched or not check(*arrays):
                return None
            addresses = [*map(pointer, arrays)]
            if misaligned:
                for address in addresses:
                    if address & misaligned:
                        return None
            return addresses

        return recognized

    def allocator(self, tensor: Tensor, varying: bool = False) -> Callable[[], Any]:
        return self._empty(tensor.shape, self.dtypes[tensor.dtype], varying)

    def fitting(self, tensor: Tensor) -> Callable[[Any], bool]:
        shape, dtype, alignment = tensor.shape, self.dtypes[tensor.dtype], self.alignment
        here = -1 if self.index is None else self.index

        def fits(array: Any) -> bool:
            alike = array.shape == shape and array.dtype is dtype and array.get_device() == here and array.is_contiguous()
            return bool(alike and (alignment == 1 or array.data_ptr() % alignment == 0))

        return fits

    def workspace(self, size: int) -> Callable[[], Any]:
        return self._empty((size,), self.torch.uint8)

    def _empty(self, shape: Shape, dtype: Any, varying: bool = False) -> Callable[[], Any]:
        """The allocation that code of `torch.compile` calls, where there is one: `torch.empty` takes three times as long."""
        size = math.prod(shape) * dtype.itemsize
        empty = getattr(self.guards, f"_empty_strided_{self.kind}", None)
        if empty is None:
            allocate = functools.partial(self.torch.empty, shape, dtype=dtype, device=self.device)
        else:
            allocate = functools.partial(empty, shape, row_major(shape), dtype)
        if self.kind != "cpu":
            return allocate
        if (LEAST_VARYING if varying else LEAST) <= size <= MOST:
            return lent(self.torch, shape, dtype, allocate, varying)
        return in_large_pages(allocate, size)

    def window(self, workspace: Any, offset: int, tensor: Tensor) -> Any:
        return workspace[offset : offset + tensor.bytes].view(self.dtypes[tensor.dtype]).view(tensor.shape)

    def reader(self, name: str, tensor: Tensor) -> Callable[[Any], Any]:
        shape, dtype, strided, alignment = tensor.shape, self.dtypes[tensor.dtype], self.torch.strided, self.alignment
        here = self.torch.device(self.device)

        def read(array: Any) -> Any:
            usual = array.shape == shape and array.dtype is dtype and array.layout is strided and array.device == here
            in_place = usual and array.is_contiguous() and not array.is_neg() and not array._is_zerotensor()
            if in_place and (alignment == 1 or array.data_ptr() % alignment == 0):
                return array
            return self._fitted(array, name, tensor)

        return read

    def _fitted(self, array: Any, name: str, tensor: Tensor) -> Any:
        if array.shape != tensor.shape:
            raise mismatch(name, array.shape, tensor)
        if array.dtype is not self.dtypes[tensor.dtype]:
            raise wrong_type(name, array.dtype, tensor)
        if not array.shape and self.index is not None and array.device.type == "cpu":
            array = array.to(self.device)  # PyTorch takes numbers from there, too, beside tensors on a GPU
        self.expect_place(array, name)
        if array.layout is not self.torch.strided:
            raise InvalidInput(f"input {name!r} is {array.layout}; pass a dense tensor")
        dense = array.contiguous().resolve_neg()  # memory of the imaginary part of a conjugate has the other sign
        if dense._is_zerotensor():  # torch's way to write down a gradient of 0: it has no memory at all
            dense = dense.clone()
        return dense if self.alignment == 1 or dense.data_ptr() % self.alignment == 0 else dense.clone()

    def expect_place(self, array: Any, name: str) -> None:
        if array.device.type == self.kind and self.index in (None, array.device.index):
            return
        remedy = f"move it with .to({self.device!r})"
        if self.index is not None:
            where = f"other inputs on {self.device}; all tensors of a call lie on one GPU"
            raise InvalidInput(f"input {name!r} is on {array.device}, and {where}: {remedy}")
        where = f"this target takes tensors on {self.kind}"
        raise InvalidInput(f"input {name!r} is on {array.device}; {where}: {remedy}, or optimize for another target")

    def reshape(self, array: Any, shape: Shape) -> Any:
        return array.reshape(shape)

    def transpose(self, array: Any, permutation: Sequence[int]) -> Any:
        return array.permute(tuple(permutation))

    def contiguous(self, array: Any) -> Any:
        return array.contiguous()

    def copy(self, array: Any) -> Any:
        return array.detach().clone()

    def packs(self, weight: Tensor) -> bool:
        if self.kind != "cpu" or len(weight.shape) != 2 or not self.torch._C._has_mkldnn:
            return False
        bf16 = weight.dtype is DType.BF16 and self.torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return bf16 or weight.dtype is DType.FP32

    def pack(self, matrix: Any) -> Any:
        return self.torch.ops.mkldnn._reorder_linear_weight(matrix.detach().t().contiguous())

    def packed_product(self, left: Any, packed: Any) -> Any:
        return self.torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")

    def look_up(self, table: Any, index: Any, dim: int, negative: str) -> Any:
        rows = table.shape[dim]
        if index.device.type == "cpu":
            index = self.torch.from_numpy(places(index.numpy(), rows, negative))
        elif negative == "wrapped":  # a GPU's integers are looked at where its own kernel reads them
            index = self.torch.where(index < 0, index + rows, index)
        shape = lookup_shape(tuple(table.shape), tuple(index.shape), dim)
        return table.detach().index_select(dim, index.reshape(-1)).reshape(shape)

    def compute(self, call: Call, operands: Sequence[Any], tensor: Tensor) -> Any:
        with self.torch.no_grad():
            given = [self._computed_with(array.detach(), tensor.dtype) for array in operands]
            result = operator(call.op).compute(TorchArithmetic(self.torch), call, given)
        return result.to(self.dtypes[tensor.dtype]).expand(tensor.shape).contiguous()

    def _computed_with(self, array: Any, result: DType) -> Any:
        """An operand of what gives a type: in a floating-point one, what is only stored and booleans as such numbers.

        PyTorch computes whole numbers of 8 bits modulo 256, fp8 not with other types, and 1 + 1 is 1 of booleans.
        """
        return array.to(self.dtypes[result]) if result.is_floating and array.element_size() == 1 else array

    def to_numpy(self, array: Any) -> Array:
        wide = array if array.dtype is self.torch.float64 else array.float()
        return np.asarray(wide.detach().cpu().numpy())

    def from_numpy(self, array: Array, tensor: Tensor) -> Any:
        whole = array if array.shape == tensor.shape else np.broadcast_to(array, tensor.shape)  # which cannot be written to
        full = np.require(whole, requirements=["C", "W"])
        return self.torch.from_numpy(full).to(self.device, self.dtypes[tensor.dtype])

    def repeated(self, numbers: Array, tensor: Tensor) -> Any:
        once = self.torch.from_numpy(numbers).to(self.device, self.dtypes[tensor.dtype])
        made = self.torch.empty(tensor.shape, dtype=once.dtype, device=once.device)  # timed in pages that others lie in
        times = tensor.elements // max(len(once), 1)
        whole, rest = made.view(-1).tensor_split([times * len(once)])
        whole.view(times, len(once)).copy_(once)
        rest.copy_(once[: len(rest)])
        return made

    def refilled(self, held: Any | None, array: Array, tensor: Tensor) -> Any:
        there = self.torch.from_numpy(np.require(array, requirements=["C", "W"]))
        if there.dtype is not self.dtypes[tensor.dtype]:  # as of whole numbers, which come as float32
            made = self.allocator(tensor)() if held is None else held
            return made.copy_(there)
        if held is None or held.data_ptr() != there.data_ptr():
            return there
        if not held.is_inference():  # of which nothing is kept
            self.torch.autograd.graph.increment_version(held)
        return held

    def updated(self, held: Any | None, shape: Shape, index: Any, numbers: Array, tensor: Tensor) -> Any:
        made = self.allocator(tensor)() if held is None else held
        made.view(shape)[index] = self.torch.from_numpy(np.require(numbers, requirements="W")).to(made.dtype)
        return made


def _fixed(numbers: Sequence[int], free: Container[int | None]) -> list[int | None]:
    """Sizes or strides by dimension, with None for those that may be any."""
    return [None if dim in free else number for dim, number in enumerate(numbers)]


_INSTEAD = "register the result as an operator of PyTorch (mugraph.torch_operator), or call the original function"


@functools.cache
def torch_arrays(device: str = "cpu") -> Arrays:
    """The interface of PyTorch's tensors on a device, as `cpu` or `cuda:1`; imports torch."""
    return TorchArrays(importlib.import_module("torch"), device)


def cuda_arrays(inputs: Sequence[Any]) -> Arrays:
    """The interface of tensors on the GPU of the first input that lies on one; readers refuse the others."""
    indices = (array.get_device() for array in inputs if getattr(array, "is_cuda", False))
    index = next(indices, None)
    return torch_arrays("cuda" if index is None else f"cuda:{index}")
