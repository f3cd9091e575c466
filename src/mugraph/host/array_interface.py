"""What the runtime needs of a library of arrays, and what its libraries share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Shape, Tensor
from mugraph.ir.ops import Call
from mugraph.support.picking import picked

Recognizer = Callable[[Sequence[Any]], "list[int] | None"]
"""Gives the addresses of the arrays of a call, or None where they must be read one by one."""


class RunInputs(Protocol):
    """Gives the outputs for inputs and their addresses, in the arrays of a caller where these are given."""

    def __call__(self, inputs: Sequence[Any], addresses: Sequence[int], into: Sequence[Any] = ()) -> list[Any]: ...


class KernelCall(NamedTuple):
    """A function of a machine among those that a call runs one after another: `operands` are the numbers of the addresses that it
    takes, and the first `after` functions must be over before it begins, for it reads or overwrites what these do."""

    function: Callable[..., None]
    operands: Sequence[int]
    after: int


class GpuFunction(Protocol):
    """A function that launches a kernel on a GPU, which knows how several of its kind are launched at once."""

    def together(self, calls: Sequence[KernelCall], device: int) -> Callable[..., None]:
        """All of them on the GPU of that index, each with the addresses of these numbers."""
        ...


@runtime_checkable
class HostFunction(Protocol):
    """A function that runs a kernel on the host, which knows how several of its kind are run at once."""

    def in_one_call(self, calls: Sequence[KernelCall]) -> Callable[..., None]:
        """All of them, each with the addresses of these numbers."""
        ...


class Arrays(Protocol):
    """What the runtime needs of an array library; `Any` stands for its array type."""

    def expect_values(self, arrays: Sequence[Any]) -> None:
        """Raise InvalidInput where arrays stand for others: while a function is traced, mapped or differentiated.

        Warns (GradientsDropped) where an array requires a gradient.
        """
        ...

    def expect_place(self, array: Any, name: str) -> None:
        """Raise InvalidInput, naming the input, for an array that lies on another device than those of this library."""
        ...

    def allocator(self, tensor: Tensor, varying: bool = False) -> Callable[[], Any]:
        """What makes arrays for `tensor`, without values; `varying` says that others are made for tensors of other sizes."""
        ...

    def fitting(self, tensor: Tensor) -> Callable[[Any], bool]:
        """Whether kernels may write `tensor` to an array: of its shape and type, contiguous, where they can reach it."""
        ...

    def workspace(self, size: int) -> Callable[[], Any]:
        """What makes arrays of `size` bytes, without values."""
        ...

    def window(self, workspace: Any, offset: int, tensor: Tensor) -> Any:
        """The array for `tensor` that begins at a byte of a workspace."""
        ...

    @property
    def pointer(self) -> Callable[[Any], int]:
        """The address of an array's memory."""
        ...

    def launches(self, calls: Sequence[KernelCall]) -> Callable[..., None]:
        """Functions of a machine one after another on the device of these arrays, as one function of the addresses that they
        take; raises what loading them there raises."""
        ...

    def on_device(self, run: RunInputs) -> RunInputs:
        """The same with the device of these arrays as the current one."""
        ...

    def recognizer(self, arrays: Sequence[Any], varying: Mapping[int, int] = MappingProxyType({})) -> Recognizer | None:
        """What recognizes inputs that cannot be told from `arrays`, which were read in place; None where nothing is faster than
        reading them. Arrays of the numbers `varying` may differ in size along one dimension, and lie in any way whose last
        dimension is contiguous."""
        ...

    def reader(self, name: str, tensor: Tensor) -> Callable[[Any], Any]:
        """What makes an input contiguous; it raises ShapeMismatch or InvalidInput naming the input when it does not fit."""
        ...

    def reshape(self, array: Any, shape: Shape) -> Any: ...
    def transpose(self, array: Any, permutation: Sequence[int]) -> Any: ...
    def contiguous(self, array: Any) -> Any: ...
    def copy(self, array: Any) -> Any: ...
    def matmul(self, left: Any, right: Any) -> Any: ...
    def packs(self, weight: Tensor) -> bool:
        """Whether products with a matrix of that type as their right factor can have it packed by the library."""
        ...

    def pack(self, matrix: Any) -> Any:
        """A right factor packed."""
        ...

    def packed_product(self, left: Any, packed: Any) -> Any:
        """The product with a right factor that was packed."""
        ...

    def look_up(self, table: Any, index: Any, dim: int, negative: str) -> Any:
        """The slices of a table along a dimension at the places that integers name; raises IndexOutOfRange."""
        ...

    def compute(self, call: Call, operands: Sequence[Any], tensor: Tensor) -> Any:
        """A pre-defined kernel, by its row of the operator table; `tensor` is what comes out."""
        ...

    def to_numpy(self, array: Any) -> Array:
        """The values in float32 (float64 if they are)."""
        ...

    def from_numpy(self, array: Array, tensor: Tensor) -> Any: ...

    def repeated(self, numbers: Array, tensor: Tensor) -> Any:
        """A contiguous array of the values of a flat one, from the first on again behind the last: no larger one is converted."""
        ...

    def refilled(self, held: Any | None, array: Array, tensor: Tensor) -> Any:
        """As `from_numpy`, so that it is seen that values are others than before where something is kept of what does not change:
        in the array's own memory, or where it is converted in that of what came of an earlier call, or in new memory."""
        ...

    def updated(self, held: Any | None, shape: Shape, index: Any, numbers: Array, tensor: Tensor) -> Any:
        """The array that is held, or a new one without values, with numbers at an index of it as one of a shape, converted; it is
        seen that values are others."""
        ...


def mismatch(name: str, shape: Sequence[int], tensor: Tensor) -> ShapeMismatch:
    """The error of an input of another shape."""
    return ShapeMismatch(f"input {name!r} has shape {list(shape)}; this muGraph was built for {list(tensor.shape)}")


def wrong_type(name: str, dtype: Any, tensor: Tensor) -> InvalidInput:
    """The error of an input of another type."""
    return InvalidInput(f"input {name!r} is {dtype}; this muGraph was built for {tensor.dtype}")


def on_host(calls: Sequence[KernelCall]) -> Callable[..., None]:
    """Functions that run on the host as one function: in one call where they are compiled kernels, else one by one."""
    function = calls[0].function
    if isinstance(function, HostFunction):
        return function.in_one_call(calls)
    bound = [(call.function, picked(call.operands)) for call in calls]

    def run(*addresses: int) -> None:
        for function, operands in bound:
            function(*operands(addresses))

    return run
