"""Operands are what PyTorch takes them for: numbers in a tensor's type, and masks that hide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from mugraph.checker import check_folder

BYTES = torch.arange(-128, 128, dtype=torch.int16).reshape(16, 16)
INT8, UINT8 = BYTES.to(torch.int8), BYTES.to(torch.uint8)
HALVES = torch.tensor([[0.1, 0.3, -0.1, 0.25], [0.2, 0.7, 1.1, -0.3]])
Q = torch.linspace(-2, 2, 2 * 2 * 8 * 16).sin().reshape(2, 2, 8, 16)
SHOWN = torch.ones(8, 8).tril().bool()
HIDING = SHOWN & (torch.arange(8) != 3)[:, None]
IMAGE = torch.arange(2 * 2 * 4 * 4, dtype=torch.float32).reshape(2, 2, 4, 4)

CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "int8 above its range": (lambda x: (x > 200).float() * 2, (INT8,)),
    "int8 at the end of its range": (lambda x: (x <= 128).float() * 2, (INT8,)),
    "int8 in its range": (lambda x: (x > 100).float() * 2, (INT8,)),
    "int8 and a fraction": (lambda x: (x > 3.5).float() * 2, (INT8,)),
    "uint8 below its range": (lambda x: (x == -1).float() * 2, (UINT8,)),
    "uint8 and all": (lambda x: (x < 256).float() * 2, (UINT8,)),
    "uint8 and a number of int8": (lambda x, y: (x > y).float() * 2, (UINT8, torch.tensor(-1, dtype=torch.int8))),
    "int8 and a number of uint8": (lambda x, y: (x > y).float() * 2, (INT8, torch.tensor(200, dtype=torch.uint8))),
    "int8 and uint8": (lambda x, y: (x > y).float() * 2, (INT8, UINT8)),
    "fp16 and a number": (lambda x: (x >= 0.1).float() + (x <= 0.3).float() * 2, (HALVES.half(),)),
    "bf16 and a number": (lambda x: (x == 0.1).float() + (x != 0.7).float() * 2, (HALVES.bfloat16(),)),
    "one number of bf16 and a number": (
        lambda x, y: (x == 0.1).float() + (x > 0.3).float() + y,
        (HALVES[0, 0].bfloat16(), HALVES),
    ),
    "one number of int8 above its range": (lambda x, y: (x > 200).float() + y, (INT8[8, 0], HALVES)),
    "fp16 and a tensor of one number": (lambda x, y: (x == y).float() * 2, (HALVES.half(), torch.tensor(0.1))),
    "fp16 raised to a number": (lambda x: (x.clamp(0.1, 0.7) > 0.1).float() * 2, (HALVES.half(),)),
    "bf16 lowered to a number": (lambda x: (x.clamp_max(0.7) == 0.7).float() * 2, (HALVES.bfloat16(),)),
    "fp16 between two numbers": (lambda x: (F.hardtanh(x, -0.3, 0.3) == 0.3).float() * 2, (HALVES.half(),)),
    "fp16 with a number in places": (lambda x: (x.masked_fill(x > 1, 0.3) >= 0.3).float() * 2, (HALVES.half(),)),
    "fp16 or a number": (lambda x: (torch.where(x > 1, x, 0.3) >= 0.3).float() * 2, (HALVES.half(),)),
    "bf16 all of one number": (lambda x: (torch.full_like(x, 0.3) >= x).float() * 2, (HALVES.bfloat16(),)),
    "fp16 with a border": (lambda x: (F.pad(x, (1, 1), value=0.3) == 0.3).float() * 2, (HALVES.half(),)),
    "fp16 for NaN": (lambda x: (torch.nan_to_num(x / x.relu(), nan=0.3) == 0.3).float() * 2, (HALVES.half(),)),
    "fp16 that is small": (lambda x: F.hardshrink(x, 0.3).float() * 2, (HALVES.half(),)),
    "bf16 and its multiples": (lambda x: (x % 0.1).float() * 2, (HALVES.bfloat16(),)),
    "fp16 and its multiples": (lambda x: torch.fmod(x, 0.3).float() * 2, (HALVES.half(),)),
    "bf16 and a whole number it lacks": (lambda x: (x >= 257).float() * 2, (HALVES.bfloat16() + torch.tensor(256.0),)),
    "fp16 or a tensor of one number": (
        lambda x, y: (torch.where(x > 1, x, y) == 0.3).float() * 2,
        (HALVES.half(), torch.tensor(0.3)),
    ),
    "a boolean that is no number": (lambda x, y: torch.full_like(x, 2).float() + y, (torch.tensor(True), HALVES)),
    "the sign of -0.0": (lambda x: torch.copysign(x, -0.0) * 2, (HALVES,)),
    "the sign of a tensor of -0.0": (lambda x: torch.copysign(x, torch.tensor(-0.0)) * 2, (HALVES,)),
    "zeros of both signs": (lambda x: torch.copysign(x, torch.zeros(4)) * torch.copysign(x.exp(), -torch.zeros(4)), (HALVES,)),
    "the angle beside -0.0": (lambda x: torch.atan2(x, torch.full_like(x, -0.0)) * 2, (HALVES,)),
    "-0.0 in places": (lambda x: 1 / x.masked_fill(x > 0, -0.0), (HALVES,)),
    "a variance of less than one number": (lambda x: x.var(-1, correction=7) + 1, (HALVES,)),
    "statistics of a norm": (lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5)[1] * 2, (HALVES,)),
    "a tensor of one complex number": (lambda x: (x * torch.tensor(1j)).abs() * 2, (HALVES,)),
    "softplus that is small": (lambda x: F.softplus(-20 * x.abs()).log(), (HALVES,)),
    "log-sigmoid that is small": (lambda x: F.logsigmoid(20 * x.abs()).neg().log(), (HALVES,)),
    "a boolean mask": (lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), (Q, SHOWN)),
    "a boolean mask that hides a row": (lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), (Q, HIDING)),
    "a boolean mask in bf16": (lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), (Q.bfloat16(), SHOWN)),
    "a mask of comparisons": (
        lambda q, n: F.scaled_dot_product_attention(q, q, q, attn_mask=n[:, None] > n - 1),
        (Q, torch.arange(8.0)),
    ),
    "a mask that is closed over": (lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=SHOWN), (Q,)),
    "a mask of ones and zeros": (lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), (Q, SHOWN.float())),
    "an image in steps": (lambda x: F.interpolate(x, scale_factor=3.2) * 2 + 1, (IMAGE,)),
    "an image in whole steps": (lambda x: F.interpolate(x, scale_factor=3.0) * 2 + 1, (IMAGE,)),
    "bits as another type": (lambda x: x.view(torch.bfloat16).float().softmax(-1), (HALVES.half(),)),
    "wide numbers written into narrow ones": (
        lambda x, y: torch.slice_scatter(x, y, -1, 1, 3).float() * 2,
        (HALVES.half(), torch.tensor([[21487.7, -1e5], [0.1, 0.2]])),
    ),
}


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_pytorch(name: str) -> None:
    function, inputs = CALLS[name]
    found = mugraph.superoptimize(function, inputs, budget=20.0, profile=False, cache="off", seed=1)
    with torch.no_grad():
        wanted, got = function(*inputs), found(*inputs)
    assert got.dtype is wanted.dtype
    rounding = 2e-2 if got.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, wanted, rtol=rounding, atol=rounding)


MIXED = {
    "fp16 and whole numbers": (torch.float16, torch.int8, torch.uint8),
    "whole numbers and fp16": (torch.int8, torch.uint8, torch.float16),
    "half types and booleans": (torch.float16, torch.bfloat16, torch.bool),
    "booleans, whole numbers and fp16": (torch.bool, torch.int8, torch.float16),
}


@pytest.mark.parametrize("name", MIXED)
def test_whole_numbers_and_booleans_do_not_count_beside_others(name: str, tmp_path: Path) -> None:
    tensors = [(torch.arange(32).reshape(4, 8) % 7).to(kind) for kind in MIXED[name]]

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (torch.cat([x, y, z]) * 2.0).float().softmax(-1)

    found = mugraph.superoptimize(function, tensors, budget=20.0, profile=False, cache="off", seed=1)
    torch.testing.assert_close(found(*tensors), function(*tensors))
    found.save(tmp_path / "result")
    assert check_folder(tmp_path / "result").reached
