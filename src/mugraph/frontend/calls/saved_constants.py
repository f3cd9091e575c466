"""Values of what a function computes of no tensor (`mugraph.frontend.rewriting.constants`), as saved results bring them along.

As JSON a constant is its type, its shape and its elements, row by row and little-endian, compressed by zlib, in base64. Nobody
gives it in a call: it is put beside the tensors of the call, once for each device.
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mugraph.errors import InvalidInput, StorageError
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph

if TYPE_CHECKING:
    import torch

_BYTES = {dtype.torch_name: dtype.bytes for dtype in DType} | {"int16": 2, "complex64": 8, "complex128": 16}
"""Bytes of an element of what is saved, by PyTorch's name of its type."""
_NOT_NUMPYS = {dtype.torch_name for dtype in DType if not dtype.is_numpys}
_LARGEST = 1 << 29
"""Bytes of a function's constants, all together."""
_LARGEST_TEXT = 1 << 27
"""Characters of these when they are compressed."""


@dataclass(frozen=True, slots=True)
class SavedConstant:
    """A tensor that a function computes of no tensor: the name of its input, PyTorch's name of its type, its shape, and the bytes
    of its elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Self:
        """The constant that a tensor is; raises StorageError for one of a type or size that is not saved."""
        import torch

        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _BYTES or sys.byteorder != "little":
            raise StorageError(
                f"{name}, which the function computes of no tensor, is {dtype} and cannot be saved; make it an argument"
            )
        _expect_size(name, tensor.numel() * _BYTES[dtype], StorageError)
        with torch.inference_mode(False), torch.no_grad():
            plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            content = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return cls(name, dtype, tuple(tensor.shape), content)

    def to_json(self) -> dict[str, Any]:
        """The constant as JSON values, but for its name."""
        elements = base64.b64encode(zlib.compress(self.content, 1)).decode()
        return {"dtype": self.dtype, "shape": list(self.shape), "zlib": elements}

    @classmethod
    def from_json(cls, name: str, values: Any) -> Self:
        """What `to_json` wrote; raises InvalidInput, naming the constant, for anything else."""
        try:
            dtype, shape, text = (values[key] for key in ("dtype", "shape", "zlib"))
            if len(values) != 3:
                raise TypeError(f"it has {', '.join(values)}")
            if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
                raise TypeError(f"its shape is {shape!r}")
            size = math.prod(shape) * _BYTES[dtype]
            _expect_size(name, size, InvalidInput)
            content = _decompressed(base64.b64decode(text, validate=True), size)
        except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as error:
            raise InvalidInput(
                f"constant {name} is malformed ({type(error).__name__}: {error}); do not use this result"
            ) from None
        if dtype == "bool" and content.strip(b"\0\1"):
            raise InvalidInput(f"constant {name} has booleans that are neither 0 nor 1; do not use this result")
        return cls(name, dtype, tuple(shape), content)

    def tensor(self) -> torch.Tensor:
        """The constant as a tensor on the CPU."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        with torch.inference_mode(False):
            if not self.content:
                return torch.empty(self.shape, dtype=dtype)
            return torch.frombuffer(bytearray(self.content), dtype=dtype).reshape(self.shape)

    def array(self) -> np.ndarray[Any, Any]:
        """The constant as a NumPy array; raises InvalidInput where NumPy has no such type."""
        if self.dtype in _NOT_NUMPYS:
            raise InvalidInput(f"NumPy has no {self.dtype} arrays, as the constant {self.name} is; pass torch tensors")
        return np.frombuffer(bytearray(self.content), np.dtype(self.dtype)).reshape(self.shape)


class ConstantsBeside:
    """The constants of a function that was read from a folder, beside the tensors of each call."""

    def __init__(self, constants: Sequence[SavedConstant] = ()) -> None:
        self.saved = tuple(constants)
        self._held: dict[object, tuple[Any, ...]] = {}
        """By device; NumPy's arrays by None."""

    def __call__(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The constants where the tensors of a call lie; NumPy arrays beside NumPy arrays, and beside nothing without PyTorch."""
        if not self.saved:
            return ()
        torch = sys.modules.get("torch")  # without it no tensor is one of its
        devices = [] if torch is None else [tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor)]
        if torch is not None and not tensors:
            devices = [torch.device("cpu")]
        place = device_beside(devices) if devices else None
        if place not in self._held:
            self._held[place] = self._on(place)
        return self._held[place]

    def _on(self, place: Any) -> tuple[Any, ...]:
        if place is None:
            return tuple(constant.array() for constant in self.saved)
        import torch

        with torch.inference_mode(False), torch.no_grad():
            return tuple(constant.tensor().to(place) for constant in self.saved)


def device_beside(devices: Sequence[torch.device]) -> torch.device:
    """Of the devices of a call's tensors, that of its constants: its GPU, if it has one."""
    return next((device for device in devices if device.type != "cpu"), devices[0])


def constants_to_json(constants: Iterable[SavedConstant]) -> dict[str, Any]:
    """Constants by name as JSON values; raises StorageError, naming the first one that is too much."""
    written: dict[str, Any] = {}
    room, characters = _LARGEST, _LARGEST_TEXT
    for constant in constants:
        written[constant.name] = constant.to_json()
        room, characters = room - len(constant.content), characters - len(written[constant.name]["zlib"])
        if room < 0 or characters < 0:
            raise _too_large(constant.name, StorageError)
    return written


def constants_from_json(values: Any) -> tuple[SavedConstant, ...]:
    """What `constants_to_json` wrote; raises InvalidInput, naming the constant at fault, for anything else."""
    if not isinstance(values, dict):
        raise InvalidInput("constants are no JSON object; do not use this result")
    constants: list[SavedConstant] = []
    size = 0
    for name, each in values.items():
        constants.append(SavedConstant.from_json(name, each))
        size += len(constants[-1].content)
        _expect_size(name, size, InvalidInput)
    return tuple(constants)


def check_last_inputs(constants: Sequence[SavedConstant], inputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> None:
    """Raise InvalidInput, naming the constant, unless these are the last `inputs`, of their names, types and shapes."""
    if len(constants) > len(inputs):
        raise InvalidInput(f"constant {constants[len(inputs)].name} is no input; do not use this result")
    for constant, (name, dtype, shape) in zip(constants, inputs[len(inputs) - len(constants) :], strict=True):
        if (constant.name, constant.dtype, constant.shape) != (name, dtype, tuple(shape)):
            raise InvalidInput(
                f"constant {constant.name} is {constant.dtype} {list(constant.shape)}, where the last inputs have {name} of "
                f"{dtype} {list(shape)}; do not use this result"
            )


def inputs_of(graph: Graph) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, PyTorch's name of the type, and shape of the inputs of a program."""
    return [
        (name, node.output.dtype.torch_name, tuple(node.output.shape))
        for name, node in zip(graph.input_names, graph.inputs(), strict=True)
    ]


def _decompressed(content: bytes, size: int) -> bytes:
    """What was compressed, if it has that many bytes; no more are made in any case."""
    reader = zlib.decompressobj()
    made = reader.decompress(content, size + 1)
    if len(made) != size or not reader.eof or reader.unused_data:
        raise ValueError(f"it does not have {size} bytes")
    return made


def _expect_size(name: str, size: int, error: type[InvalidInput | StorageError]) -> None:
    if size > _LARGEST:
        raise _too_large(name, error)


def _too_large(name: str, error: type[InvalidInput | StorageError]) -> InvalidInput | StorageError:
    return error(
        f"constants up to {name}, which the function computes of no tensor, take more than {_LARGEST} bytes, or {_LARGEST_TEXT} "
        "compressed, and are not saved; make the largest an argument"
    )
