"""Random PyTorch functions of which only parts are programs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]


def random_function(seed: int) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    """A function of three matrices [8, 8] whose calls programs can and cannot express are mixed."""
    draw = random.Random(seed)
    unary: list[Function] = [
        lambda x: x.t(), torch.i0, torch.exp, lambda x: torch.softmax(x, -1), lambda x: x / (1 + x.square().mean(-1, True)),
        lambda x: x.reshape(4, 2, 8).transpose(0, 1).reshape(8, 8), torch.sigmoid, lambda x: torch.flip(x, [0]), torch.tanh,
        lambda x: torch.var_mean(x, -1, keepdim=True)[1] + x,
    ]  # fmt: skip
    binary: list[Function] = [torch.add, torch.mul, torch.matmul, torch.matmul, torch.sub, torch.maximum]
    plan = [(draw.random() < 0.5, draw.randrange(100), draw.random(), draw.random()) for _ in range(18)]
    wanted = {draw.randrange(3, 18), draw.randrange(3, 18), 17}

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        values = [x, y, z]
        for single, choice, first, second in plan:
            a, b = (values[-1 - int(min(6, len(values)) * part)] for part in (first, second))
            value = unary[choice % len(unary)](a) if single else binary[choice % len(binary)](a, b)
            values.append(value / (1 + value.abs().max()))
        return [values[3 + index] for index in sorted(wanted)]

    return function
