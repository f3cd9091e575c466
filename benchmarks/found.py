"""Is `found` right, and is a result never slower than the function? Many functions, called warm, in turns with their results.

    python benchmarks/found.py                    # all 63: ten minutes of one core
    python benchmarks/found.py --only relu mlp    # some of them, whose names contain one of these words
    python benchmarks/found.py --threads 1 --json

Each function is optimized as a user would, and its result is then timed anew, by other rounds than those that decided: whole
calls of the result and of the function, in turns, under `torch.inference_mode()`. Results go to `benchmarks/results/found.json`;
a ratio below 1 is a result that is slower than the function. Beside both, a `functools.partial` of the function is called: what
it loses to the function is what any object of Python loses that is called in a function's place, and no result can win back.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch.nn import functional

import mugraph
from mugraph.runtime.benchmarking import Duel, in_turns

RESULT = Path(__file__).parent / "results" / "found.json"
LEAST_RATIO = 0.98
SECONDS = 2.0
"""Of rounds that a result and its function are timed in."""

Shapes = Sequence[tuple[int, ...]]
Record = dict[str, Any]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Rows of q over those of k and v, all [..., rows, width]."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def rms_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Normalised rows [rows, width] times [width, columns]."""
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)) @ w


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A gated MLP on rows [rows, width]."""
    return (functional.silu(x @ gate) * (x @ up)) @ down


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Sequence[Shapes]]] = {
    "relu": (torch.relu, [[(8,)], [(64, 64)], [(1024, 4096)]]),
    "gelu": (functional.gelu, [[(8, 8)], [(512, 1024)]]),
    "add": (torch.add, [[(8,), (8,)], [(2048, 2048), (2048, 2048)]]),
    "exp and scale": (lambda x: (x.exp() * 2.0 + 1.0).square(), [[(16,)], [(256, 256)], [(2048, 1024)]]),
    "sum of all": (lambda x: x.sum(), [[(64,)], [(1024, 1024)], [(4096, 2048)]]),
    "sum of rows": (lambda x: x.sum(-1), [[(4, 16)], [(1024, 1024)], [(16, 65536)]]),
    "sum of columns": (lambda x: x.sum(0), [[(16, 4)], [(1024, 1024)], [(65536, 16)]]),
    "mean of squares": (lambda x: x.square().mean(-1), [[(8, 64)], [(512, 4096)]]),
    "softmax": (lambda x: torch.softmax(x, -1), [[(4, 8)], [(64, 1024)], [(16, 32768)], [(2048, 512)]]),
    "layer norm": (lambda x: functional.layer_norm(x, x.shape[-1:]), [[(4, 16)], [(128, 768)], [(2048, 1024)], [(1, 262144)]]),
    "rms norm": (lambda x: functional.rms_norm(x, x.shape[-1:]), [[(4, 16)], [(512, 4096)]]),
    "product": (torch.matmul, [[(4, 8), (8, 4)], [(64, 256), (256, 64)], [(512, 512), (512, 512)], [(1, 4096), (4096, 4096)]]),
    "product and relu": (lambda x, w: torch.relu(x @ w), [[(4, 8), (8, 4)], [(128, 512), (512, 512)]]),
    "linear": (functional.linear, [[(8, 64), (32, 64), (32,)], [(16, 1024), (4096, 1024), (4096,)]]),
    "two products": (lambda x, y, z: x @ z + y @ z, [[(16, 16)] * 3, [(256, 512), (256, 512), (512, 256)]]),
    "chain": (lambda x, y, z: x @ y @ z, [[(64, 512), (512, 64), (64, 512)], [(512, 16), (16, 512), (512, 16)]]),
    "norm and linear": (rms_linear, [[(4, 32), (32, 16)], [(16, 1024), (1024, 4096)], [(256, 512), (512, 512)]]),
    "gated MLP": (mlp, [[(4, 32), (32, 64), (32, 64), (64, 32)], [(8, 512), (512, 1024), (512, 1024), (1024, 512)]]),
    "LoRA": (
        lambda x, w, a, b: x @ w + x @ a @ b,
        [[(8, 64), (64, 64), (64, 4), (4, 64)], [(16, 1024), (1024, 1024), (1024, 16), (16, 1024)]],
    ),
    "attention": (attention, [[(4, 8), (16, 8), (16, 8)], [(2, 64, 64)] * 3, [(16, 1, 64), (16, 1024, 64), (16, 1024, 64)]]),
    "residual": (lambda x, y: functional.layer_norm(x + y, x.shape[-1:]), [[(4, 16)] * 2, [(512, 1024)] * 2]),
    "log of sums": (lambda x: torch.log(x.exp().sum(-1)), [[(4, 16)], [(256, 4096)]]),
    "swish times": (lambda x, y: functional.silu(x) * y, [[(8, 8)] * 2, [(1024, 2048)] * 2]),
    "variance": (lambda x: (x - x.mean(-1, keepdim=True)).square().mean(-1), [[(8, 32)], [(512, 2048)]]),
    "transposed": (lambda x, y: x.t() @ y, [[(16, 8), (16, 8)], [(512, 256), (512, 256)]]),
}


def cases() -> list[tuple[str, Callable[..., torch.Tensor], Shapes]]:
    """Every function with each of its sizes."""
    return [(name, function, shapes) for name, (function, sizes) in FUNCTIONS.items() for shapes in sizes]


def forwarding(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The least that calls a function and is another object."""
    partial = functools.partial(function)
    partial.__dict__["kept"] = True  # a partial of a plain one would be one partial
    return partial


def record(name: str, function: Callable[..., torch.Tensor], shapes: Shapes, budget: float) -> Record:
    """What the result said of itself, and the rounds of a second look."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    opt = mugraph.superoptimize(function, inputs, budget=budget, cache="off")
    exact = function(*(tensor.double() for tensor in inputs))
    with torch.inference_mode():
        error = float((opt(*inputs).double() - exact).abs().max() / exact.abs().max())
        sides = [functools.partial(side, *inputs) for side in (opt, function, forwarding(function))]
        ours, theirs, forwarded = in_turns(sides, SECONDS, rounds=400)
    again, least = Duel.of(ours, theirs), Duel.of(forwarded, theirs)
    assert again.ours is not None
    assert again.theirs is not None
    decided = opt.report.baselines.get("torch eager")
    return {
        "function": name,
        "shapes": [list(shape) for shape in shapes],
        "found": opt.found,
        "decided_by": None if decided is None else decided.to_json(),
        "ratio": again.speedup,
        "ratio_of_partial": least.speedup,
        "seconds": again.ours.median,
        "function_seconds": again.theirs.median,
        "error": error,
    }


def main() -> None:
    """Time all functions, write the records, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="words that are in the names of the functions wanted")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds to optimize each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    records = []
    for name, function, shapes in cases():
        if any(word in name for word in options.only):
            records.append(record(name, function, shapes, options.budget))
            print(_line(records[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    slower = [entry for entry in records if entry["ratio"] < LEAST_RATIO]
    lost = [entry for entry in slower if entry["ratio"] < LEAST_RATIO * entry["ratio_of_partial"]]
    result = {
        "threads": options.threads,
        "functions": len(records),
        "found": sum(entry["found"] for entry in records),
        "median_ratio_where_found": statistics.median([e["ratio"] for e in records if e["found"]] or [1.0]),
        f"below_{LEAST_RATIO}": [_line(entry) for entry in slower],
        "below_partial": [_line(entry) for entry in lost],
        "records": records,
    }
    if options.only == [""]:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    said = (
        f"{len(slower)} of {len(records)} are slower than {LEAST_RATIO} of the function, {len(lost)} than that of a partial of it"
    )
    print(json.dumps(result) if options.json else said)
    sys.exit(1 if lost else 0)


def _line(entry: Record) -> str:
    shapes = " ".join("x".join(map(str, shape)) for shape in entry["shapes"])
    times = f"{1e6 * entry['function_seconds']:.1f} to {1e6 * entry['seconds']:.1f} us"
    found = "found" if entry["found"] else "the function"
    least = f" (a partial {entry['ratio_of_partial']:.2f})" if entry["ratio"] < LEAST_RATIO else ""
    return (
        f"{entry['function']} [{shapes}]: {found}, {entry['ratio']:.2f} times as fast{least}, {times}, error {entry['error']:.0e}"
    )


if __name__ == "__main__":
    main()
