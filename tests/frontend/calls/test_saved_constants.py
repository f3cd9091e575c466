"""Constants as saved results have them: the same bits come back, and nothing else is read."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from mugraph.errors import InvalidInput, StorageError
from mugraph.frontend.calls import saved_constants
from mugraph.frontend.calls.saved_constants import (
    ConstantsBeside,
    SavedConstant,
    check_last_inputs,
    constants_from_json,
    constants_to_json,
    device_beside,
)

TENSORS = {
    "mask": torch.zeros(5, 7).masked_fill(torch.ones(5, 7).triu(1) > 0, -math.inf),
    "NaN": torch.tensor([math.nan, -0.0, 0.0, math.inf]).half(),
    "booleans": torch.ones(4, 4, dtype=torch.bool).tril(),
    "bf16": torch.randn(3, 2).bfloat16(),
    "fp8": torch.randn(9).to(torch.float8_e5m2),
    "integers": torch.arange(6, dtype=torch.int64).reshape(2, 3),
    "complex": torch.polar(torch.ones(4), torch.arange(4.0)).conj(),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "expanded": torch.tensor([1.5]).expand(64, 64),
}


@pytest.mark.parametrize("name", TENSORS)
def test_every_bit_comes_back(name: str) -> None:
    tensor = TENSORS[name]
    text = json.dumps(constants_to_json([SavedConstant.of("c", tensor)]))
    (read,) = constants_from_json(json.loads(text))
    again = read.tensor()
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert SavedConstant.of("c", again) == read == SavedConstant.of("c", tensor)
    torch.testing.assert_close(again, tensor.resolve_conj(), rtol=0, atol=0, equal_nan=True)


def test_masks_are_compact() -> None:
    mask = torch.zeros(1024, 1024).masked_fill(torch.ones(1024, 1024).triu(1) > 0, -math.inf)
    assert len(json.dumps(SavedConstant.of("m", mask).to_json())) < 2**16


def zlib_of(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


GOOD = SavedConstant.of("c", torch.tensor([True, False])).to_json()
FORGED: dict[str, Callable[[], Any]] = {
    "no object": list,
    "another type": lambda: GOOD | {"dtype": "float32"},
    "no type": lambda: GOOD | {"dtype": "load"},
    "a list for a type": lambda: GOOD | {"dtype": []},
    "another shape": lambda: GOOD | {"shape": [3]},
    "a negative shape": lambda: GOOD | {"shape": [-1, -2]},
    "a shape of booleans": lambda: GOOD | {"shape": [True, 2]},
    "very large": lambda: GOOD | {"shape": [2**40]},
    "more entries": lambda: GOOD | {"more": 1},
    "no elements": lambda: {"dtype": "bool", "shape": [2]},
    "no base64": lambda: GOOD | {"zlib": "???"},
    "not compressed": lambda: GOOD | {"zlib": base64.b64encode(b"\1\0").decode()},
    "a number": lambda: GOOD | {"zlib": 3},
    "too few bytes": lambda: GOOD | {"zlib": zlib_of(b"\1")},
    "too many bytes": lambda: GOOD | {"zlib": zlib_of(b"\1" * 10**7)},
    "bytes behind": lambda: GOOD | {"zlib": base64.b64encode(zlib.compress(b"\1\0") + b"more").decode()},
    "cut off": lambda: GOOD | {"zlib": base64.b64encode(zlib.compress(b"\1\0")[:-2]).decode()},
    "booleans of 2": lambda: GOOD | {"zlib": zlib_of(b"\1\2")},
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_no_constant_is_refused_by_name(name: str) -> None:
    assert constants_from_json({"c": GOOD})[0].tensor().tolist() == [True, False]
    with pytest.raises(InvalidInput, match=r"constant c|constants up to c"):
        constants_from_json({"c": FORGED[name]()})


def test_constants_that_are_too_large_are_named() -> None:
    constants = [SavedConstant.of(name, torch.rand(64)) for name in ("first", "second")]
    with mock.patch.object(saved_constants, "_LARGEST", 300):
        with pytest.raises(StorageError, match="up to second"):
            constants_to_json(constants)
        with pytest.raises(InvalidInput, match="up to second"):
            constants_from_json({each.name: each.to_json() for each in constants})
        with pytest.raises(StorageError, match="up to third"):
            SavedConstant.of("third", torch.rand(128))
    with mock.patch.object(saved_constants, "_LARGEST_TEXT", 100), pytest.raises(StorageError, match="up to first"):
        constants_to_json(constants)


def test_only_the_last_inputs_are_constants() -> None:
    one = SavedConstant.of("c", torch.zeros(2))
    x = ("x", "float32", (2,))
    check_last_inputs([one], [x, ("c", "float32", (2,))])
    for inputs in ([("c", "float32", (2,)), x], [("c", "float64", (2,))], [("c", "float32", (2, 1))], []):
        with pytest.raises(InvalidInput, match="constant c"):
            check_last_inputs([one], inputs)


def test_constants_lie_beside_the_tensors_of_a_call() -> None:
    beside = ConstantsBeside([SavedConstant.of("c", torch.arange(3.0))])
    (here,) = beside((torch.zeros(1),))
    assert beside((torch.ones(2),))[0] is here
    (there,) = beside((torch.tensor(1.0), torch.empty(3, device="meta")))
    assert there.device.type == "meta"
    assert beside((torch.empty(1, device="meta"),))[0] is there
    (array,) = beside((np.zeros(2),))
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, np.arange(3, dtype=np.float32))
    with torch.inference_mode():
        (made,) = ConstantsBeside(beside.saved)((torch.zeros(1),))
    assert not made.is_inference()
    assert ConstantsBeside()((torch.zeros(1),)) == ()
    assert device_beside([torch.device("cpu"), torch.device("cuda", 1)]) == torch.device("cuda", 1)


def test_numpy_has_no_bf16() -> None:
    beside = ConstantsBeside([SavedConstant.of("c", torch.zeros(2).bfloat16())])
    with pytest.raises(InvalidInput, match="the constant c is; pass torch tensors"):
        beside((np.zeros(2),))
    assert beside(())[0].dtype is torch.bfloat16  # as those have it who ask before there is a call
