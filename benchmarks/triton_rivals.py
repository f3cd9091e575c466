"""Kernels that somebody would write by hand in Triton for three of the workloads: one kernel each, its tiles chosen by the sizes.

With `TRITON_INTERPRET=1` they run on CPU tensors, which is how they are tested where there is no GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from mugraph.frontend.workload_functions import EPSILON

_ROWS = 16
"""Of a tile of products: the fewest that `tl.dot` takes."""


@triton.jit
def _rmsnorm_linear(x, g, w, y, rows, depth, columns, epsilon, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """A tile of (x g) @ w, divided in the end by the root of the rows' mean squares, which are summed on the way."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        part = tl.load(x + row[:, None] * depth + k, mask=(row[:, None] < rows) & (k < depth), other=0.0)
        gain = tl.load(g + k, mask=k < depth, other=0.0)
        weight = tl.load(w + k[:, None] * columns + column, mask=(k[:, None] < depth) & (column < columns), other=0.0)
        wide = part.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        total = tl.dot((wide * gain.to(tl.float32)).to(weight.dtype), weight, total)
    total *= tl.rsqrt(squares / depth + epsilon)[:, None]
    tl.store(y + row[:, None] * columns + column, total.to(y.dtype.element_ty), mask=(row[:, None] < rows) & (column < columns))


@triton.jit
def _gated_mlp(x, gates, ups, y, rows, depth, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """A tile of silu(x @ gates) * (x @ ups)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        part = tl.load(x + row[:, None] * depth + k, mask=(row[:, None] < rows) & (k < depth), other=0.0)
        inside, places = (k[:, None] < depth) & (column < columns), k[:, None] * columns + column
        gate = tl.dot(part, tl.load(gates + places, mask=inside, other=0.0), gate)
        up = tl.dot(part, tl.load(ups + places, mask=inside, other=0.0), up)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y + row[:, None] * columns + column, gated.to(y.dtype.element_ty), mask=(row[:, None] < rows) & (column < columns))


@triton.jit
def _ntrans(x, h, alpha, y, width, WIDTH: tl.constexpr):
    """A row of norm(x + alpha * norm(h - x)), which stays in registers."""
    column = tl.arange(0, WIDTH)
    place, inside = tl.program_id(0) * width + column, column < width
    old = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    step = tl.load(h + place, mask=inside, other=0.0).to(tl.float32) - old
    size = tl.load(alpha + column, mask=inside, other=0.0).to(tl.float32)
    new = old + size * step / tl.sqrt(tl.sum(step * step, 0))
    tl.store(y + place, (new / tl.sqrt(tl.sum(new * new, 0))).to(y.dtype.element_ty), mask=inside)


def rmsnorm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm of x [m, k] with gain g [k], then @ w [k, n]."""
    (rows, depth), columns = x.shape, w.shape[1]
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    _rmsnorm_linear[_grid(rows, columns)](x, g, w, y, rows, depth, columns, EPSILON, *_tile(columns))
    return y


def gated_mlp(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    """silu(x @ w_gate) * (x @ w_up), x [m, k], weights [k, n]."""
    (rows, depth), columns = x.shape, w_gate.shape[1]
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    _gated_mlp[_grid(rows, columns)](x, w_gate, w_up, y, rows, depth, columns, *_tile(columns))
    return y


def ntrans(x: torch.Tensor, h: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """norm(x + alpha * norm(h - x)) by rows, x and h [m, n], alpha [n]."""
    y = torch.empty_like(x)
    _ntrans[(x.shape[0],)](x, h, alpha, y, x.shape[1], triton.next_power_of_2(x.shape[1]))
    return y


def _tile(columns: int) -> tuple[int, int, int]:
    """Rows, columns and values of k of a tile: narrow ones, so that all multiprocessors have one, and deep ones."""
    return _ROWS, 32 if columns >= 32 else 16, 128


def _grid(rows: int, columns: int) -> tuple[int, int]:
    _, wide, _ = _tile(columns)
    return triton.cdiv(rows, _ROWS), triton.cdiv(columns, wide)
