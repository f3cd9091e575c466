"""One result for any batch beside kernels made for each size: how long the first call takes, and how fast later ones are.

    python benchmarks/any_size.py
    python benchmarks/any_size.py --high 256 --sizes 6 --only swiglu --budget 60

For each function a result for batches from 1 to `--high` is made, and called at random sizes that are none of its table. Of each
size: seconds of the first call and of a repeated one, and whole calls beside those of kernels that are scheduled, compiled and
proved for that size (`DynamicSuperoptimized.at`), in turns; results are compared with float64. A ratio above 1 says that the
result for any batch is the faster one. It must compile nothing in its first calls. Results go to
`benchmarks/results/any-size.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn.functional as F

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.devices.host import is_busy
from mugraph.runtime.benchmarking import duel

RESULT = Path(__file__).parent / "results" / "any-size.json"
WIDTH, HIDDEN, HEADS, KEYS, HEAD = 1024, 2048, 8, 256, 64
_REPEATED = 20
Function = Callable[..., torch.Tensor]


def rmsnorm_linear(x: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A norm of rows and a product."""
    return F.rms_norm(x, x.shape[-1:], gain, 1e-5) @ weight


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A gated perceptron."""
    return (F.silu(x @ gate) * (x @ up)) @ down


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query of every sample and head, over the keys of its sample."""
    return torch.softmax(q @ k.transpose(-1, -2) / HEAD**0.5, -1) @ v


def _weights(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) / shape[0] ** 0.5 for shape in shapes)


_LINEAR = (torch.ones(WIDTH), *_weights((WIDTH, HIDDEN)))
_MLP = _weights((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
CASES: dict[str, tuple[Function, Callable[[int], tuple[torch.Tensor, ...]], tuple[int, ...]]] = {
    "rmsnorm_linear": (rmsnorm_linear, lambda n: (torch.randn(n, WIDTH), *_LINEAR), (0,)),
    "swiglu": (swiglu, lambda n: (torch.randn(n, WIDTH), *_MLP), (0,)),
    "attention": (
        attention,
        lambda n: (torch.randn(n, HEADS, 1, HEAD), torch.randn(n, HEADS, KEYS, HEAD), torch.randn(n, HEADS, KEYS, HEAD)),
        (0, 1, 2),
    ),
}
"""Function, inputs for a batch, and the arguments that have it as their first dimension."""


def main() -> None:
    """Make the results, time them, write a JSON file, print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--high", type=int, default=256, help="the largest batch (256)")
    parser.add_argument("--sizes", type=int, default=8, help="how many random sizes are timed (8)")
    parser.add_argument("--budget", type=float, default=None, help="seconds for each table (no limit)")
    parser.add_argument("--only", choices=CASES, help="one of the functions")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes")
    options = parser.parse_args()
    record: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "busy": is_busy(),
        "high": options.high,
        "functions": {},
    }
    for name in CASES if options.only is None else [options.only]:
        record["functions"][name] = _of_function(name, options.high, options.sizes, options.budget)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {options.out}" + (", while other programs ran: times are noisy" if record["busy"] or is_busy() else ""))


def _of_function(name: str, high: int, count: int, budget: float | None) -> dict[str, Any]:
    fn, inputs, arguments = CASES[name]
    batch = Dim("batch", 1, high)
    started = time.perf_counter()
    result = mugraph.superoptimize(fn, inputs(4), budget=budget, dynamic={number: {0: batch} for number in arguments})
    record: dict[str, Any] = {
        "seconds": time.perf_counter() - started,
        "claim": result.claim,
        "table": {size: made.found for (size,), made in sorted(result.table.items())},
        "chunk_seconds": result.costs.chunk,
        "padding_seconds": result.costs.padding,
        "predicted_worst": min(result.costs.ratio(size) for size in range(1, high + 1)) if result.sliced else None,
        "sizes": {},
    }
    print(f"{name}: {len(result.table)} sizes in {record['seconds']:.0f} s: {', '.join(map(str, record['table']))}")
    others = [size for size in range(1, high + 1) if (size,) not in result.table]
    for size in sorted(random.Random(0).sample(others, min(count, len(others)))):
        record["sizes"][size] = row = _at(result, fn, inputs(size))
        plan = result.plan(size).chunks if result.sliced else ()
        row["plan"] = [chunk.size for chunk in plan]
        print(
            f"  batch {size:4}: first call {row['first'] * 1e3:7.2f} ms, repeated {row['repeated'] * 1e3:7.3f} ms, "
            f"{row['beside_special']:.2f} of special kernels ({row['special_seconds']:.1f} s to make), "
            f"{row['beside_function']:.2f} of the function; {'+'.join(map(str, row['plan'])) or 'the function'}"
        )
    return record


def _at(result: DynamicSuperoptimized, fn: Function, given: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Times at one size."""
    exact = fn(*(each.double() for each in given))
    with torch.inference_mode():
        with mock.patch("mugraph.runtime.executable.Executable.__init__", side_effect=AssertionError("compiled")):
            first, repeated = _seconds(result, given), [_seconds(result, given) for _ in range(_REPEATED)]
        error = float((result(*given).double() - exact).abs().max() / exact.abs().max())
        assert error < 1e-4, error
        started = time.perf_counter()
        special = result.at(*given)
        made = time.perf_counter() - started
        beside = duel(lambda: result(*given), lambda: special(*given))
        itself = duel(lambda: result(*given), lambda: fn(*given))
    return {
        "first": first,
        "repeated": statistics.median(repeated),
        "special_seconds": made,
        "special_found": special.found,
        "beside_special": beside.speedup,
        "beside_function": itself.speedup,
        "error": error,
    }


def _seconds(call: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> float:
    started = time.perf_counter()
    call(*given)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
