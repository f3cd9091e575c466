"""The constants of a saved result: values of the last inputs of its program, as many bytes as these have elements."""

from __future__ import annotations

import base64
import math
import zlib

import numpy as np

from mugraph.checker.saved_files import Json, Rejected, SavedFiles, Undecided
from mugraph.checker.tensors import Array

_FILE = "constants.json"
_TYPES = {
    "fp16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "fp32": ("float32", 4),
    "fp64": ("float64", 8),
    "bool": ("bool", 1),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "e4m3fn": ("float8_e4m3fn", 1),
    "e5m2": ("float8_e5m2", 1),
    "int32": ("int32", 4),
    "int64": ("int64", 8),
}
"""What the file calls the types of programs, and the bytes of their elements."""
_LARGEST = 2**29
"""Bytes of an input that is looked at."""


def check_constants(saved: SavedFiles, program: Json) -> int:
    """How many of the last inputs of a program have their values in the folder; raises Rejected for values of anything else."""
    return len(_contents(saved, program))


def constants_of(saved: SavedFiles, program: Json) -> list[Array]:
    """Their values in float64; raises also Undecided where they are of a type that is not read here."""
    return [_in_float64(*each) for each in _contents(saved, program)]


def _contents(saved: SavedFiles, program: Json) -> list[tuple[Json, bytes]]:
    """Shape and type of each constant, and the bytes of its elements."""
    if _FILE not in saved.contents:
        return []
    constants = saved.document(_FILE)
    inputs = [node for node in program["nodes"] if node["op"] == "input"]
    if len(constants) > len(inputs):
        raise Rejected(f"{_FILE}: it has more constants than program.json has inputs")
    contents: list[tuple[Json, bytes]] = []
    for (name, constant), node in zip(constants.items(), inputs[len(inputs) - len(constants) :], strict=True):
        tensor = node["outputs"][0]
        dtype, size = _TYPES[tensor["dtype"]]
        if (name, constant["dtype"], constant["shape"]) != (node["attributes"]["name"], dtype, tensor["shape"]):
            raise Rejected(f"{_FILE}: {name} is not one of the last inputs of program.json, or of another type or shape")
        if len(constant) != 3 or not all(type(length) is int for length in constant["shape"]):
            raise Rejected(f"{_FILE}: {name} has more than a type, a shape of integers and elements")
        contents.append((tensor, _elements(name, constant["zlib"], math.prod(tensor["shape"]) * size, dtype)))
    return contents


def _in_float64(tensor: Json, content: bytes) -> Array:
    if tensor["dtype"] == "bf16":  # the upper half of a float of 32 bits
        numbers = (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif tensor["dtype"] in ("e4m3fn", "e5m2"):
        raise Undecided(f"{_FILE}: a constant is of {tensor['dtype']}, and not read here")
    else:
        numbers = np.frombuffer(content, np.dtype(_TYPES[tensor["dtype"]][0]))
    return np.asarray(numbers.reshape(tensor["shape"]), np.float64)


def _elements(name: str, text: str, size: int, dtype: str) -> bytes:
    try:
        reader = zlib.decompressobj()
        content = reader.decompress(base64.b64decode(text, validate=True), min(size, _LARGEST) + 1)
    except zlib.error as error:
        raise Rejected(f"{_FILE}: {name} cannot be read ({error})") from None
    if len(content) != size or not reader.eof or reader.unused_data:
        raise Rejected(f"{_FILE}: {name} does not have the {size} bytes of its elements")
    if dtype == "bool" and content.strip(b"\0\1"):
        raise Rejected(f"{_FILE}: {name} has booleans that are neither 0 nor 1")
    return content
