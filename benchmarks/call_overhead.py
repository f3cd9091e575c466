"""What a call of a result costs beside what PyTorch's own calls cost: three tensors so small that all of it is overhead.

    python benchmarks/call_overhead.py
    python benchmarks/call_overhead.py --json

Contestants are called in bursts of 100, 100 bursts each, in random order and in one run, under `torch.inference_mode()`; the
median of the bursts is printed with the quartiles. Kernels are kept here however fast they are (`profile=False`). Results go to
`benchmarks/results/call-overhead.json`. Beside the function stand muGraphs of 1, 3 and 10 kernels that follow each other, on as
small a tensor.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

import mugraph
from mugraph.ir import DType, GraphBuilder, Level
from mugraph.runtime import Executable, build
from mugraph.runtime.baselines import EAGER, BaselineComparison
from mugraph.runtime.benchmarking import Duel, Spread

RESULT = Path(__file__).parent / "results" / "call-overhead.json"
BURSTS, CALLS = 100, 100
CHAINS = (1, 3, 10)
"""Numbers of kernels that follow each other."""


def fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Three operators on tensors of one shape."""
    return torch.relu(x * y + z)


def decorated() -> Callable[..., Any]:
    """The function under the decorator, with kernels that answer whoever is faster."""
    won = BaselineComparison({EAGER: Duel.of([1.0] * 5, [2.0] * 5)})
    optimized = mugraph.optimize(fused, budget=20.0, cache="off")
    with mock.patch("mugraph.selection.own_function.compare", return_value=won):
        optimized(*_inputs())
    assert optimized.results
    return optimized


def chain(count: int) -> Executable:
    """Kernels of which each takes the hyperbolic tangent of what the one before it made, which is [8, 8]."""
    kernel = GraphBuilder(Level.KERNEL)
    value = kernel.input("x", (8, 8), DType.FP32)
    for _ in range(count):
        block = GraphBuilder(Level.BLOCK, grid=(1,))
        made = block.add("tanh", block.iterator(0, kernel.tensor(value), (None,), None))
        (value,) = kernel.graph_defined(block.build([block.add("output_saver", made, omap=(0,))]), [value])
    return build(kernel.build([value]))


def _inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(8, 8, generator=generator) for _ in range(3))


def main() -> None:
    """Time the contestants, check what they return, write the results, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    x, y, z = _inputs()
    result = mugraph.superoptimize(fused, (x, y, z), profile=False, cache="off")
    assert result.found
    with torch.inference_mode():
        contestants: dict[str, Callable[[], Any]] = {
            "result": lambda: result(x, y, z),
            "decorated": (lambda call: lambda: call(x, y, z))(decorated()),
            "torch.compile": (lambda call: lambda: call(x, y, z))(torch.compile(fused)),
            "eager": lambda: fused(x, y, z),
            "torch.add": lambda: torch.add(x, y),
        }
        exact = fused(x.double(), y.double(), z.double())
        errors = {name: float((call().double() - exact).abs().max()) for name, call in contestants.items() if name != "torch.add"}
        assert max(errors.values()) < 1e-5, errors
        contestants |= {f"kernels: {count}": partial(chain(count), x) for count in CHAINS}
        turns = [name for name in contestants for _ in range(BURSTS)]
        random.Random(0).shuffle(turns)
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for name in turns:
            call = contestants[name]
            begun = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - begun) / CALLS)
    spreads = {name: Spread.of(taken) for name, taken in times.items()}
    record = {"calls": BURSTS * CALLS, "seconds": {name: asdict(spread) for name, spread in spreads.items()}}
    RESULT.write_text(json.dumps(record, indent=1) + "\n")
    if options.json:
        print(json.dumps(record))
        return
    for name, spread in spreads.items():
        print(f"{name:14} {1e6 * spread.median:6.2f} us ({1e6 * spread.low:.2f} to {1e6 * spread.high:.2f})")


if __name__ == "__main__":
    main()
