"""Whole models on a GPU through `torch.compile`: eager PyTorch, inductor and mugraph at one step, decode or prefill.

    python benchmarks/gpu_models.py --output benchmarks/results/gpu-models.json
    python benchmarks/gpu_models.py qwen3-0.6b --phases decode --layers 28 --budget 120

Models are those of `model_steps.py`, with random weights in bf16. mugraph searches on the GPU's machine, within its budget. Calls
are timed as they are and captured into CUDA graphs, in turns; outputs are compared with float64. The seconds of the first call
are those of compiling. Exits with 1 when mugraph's output is wrong. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from contestants import error, tensors
from gpu_order import timed
from kept import Record, records
from model_steps import MODELS, PHASES, Step
from mugraph.integrations.torch_compile import backend, compilations
from mugraph.ir import DType
from mugraph.testing.mugraph_runs import LARGEST_ERROR

OURS = "mugraph"
SIZE = 1024
"""Tokens of a prompt, or in the cache."""
CALLS = 30
DEEPER = 4.0
"""Errors of a layer add up: so many times what is allowed of a program is allowed of a model."""


def record(model: str, phase: str, layers: int, budget: float) -> Record:
    """Seconds of first calls and of later ones, errors, and what part of the bytes kernels move."""
    step = Step(model, phase, SIZE, "bf16", layers, 1)
    case = step.case()
    module, inputs = case.module.cuda(), tuple(tensor.cuda() for tensor in case.inputs)
    calls: dict[str, Callable[..., Any]] = {"eager": module}
    first: dict[str, float] = {}
    errors: dict[str, float] = {}
    refused: dict[str, str] = {}
    with torch.no_grad():
        torch._dynamo.reset()
        compilations.clear()
        ours = partial(backend, options={"budget": budget})
        makers: dict[str, Callable[..., Any]] = {OURS: partial(torch.compile, backend=ours), "inductor": torch.compile}
        for title, make in makers.items():
            calls[title] = compiled = make(module)
            before = time.perf_counter()
            compiled(*inputs)
            torch.cuda.synchronize()
            first[title] = time.perf_counter() - before
        outputs = {title: tensors(call(*inputs)) for title, call in calls.items()}
        as_called = called(calls, inputs)
        captured = timed(calls, [inputs], refused)
        exact = tensors(module.double()(*(each.double() if each.is_floating_point() else each for each in inputs)))
        errors = {title: error(given, exact) for title, given in outputs.items()}
    whole = max((each.partition for each in compilations), key=lambda each: each.byte_share, default=None)
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "first_call_seconds": first,
        "seconds": as_called,
        "captured_seconds": captured,
        "errors": errors,
        "refused": refused,
        "compiled": [str(each) for each in compilations],
        "left": [] if whole is None else sorted({f"{left.node.name}: {left.reason}" for left in whole.left})[:40],
        "right": errors[OURS] < DEEPER * LARGEST_ERROR[DType.BF16],
    }


def called(calls: Mapping[str, Callable[..., Any]], inputs: Sequence[torch.Tensor]) -> dict[str, float]:
    """Median seconds of calls as users make them, each waited for, in turns."""
    seconds: dict[str, list[float]] = {title: [] for title in calls}
    for _ in range(CALLS):
        for title, call in calls.items():
            before = time.perf_counter()
            call(*inputs)
            torch.cuda.synchronize()
            seconds[title].append(time.perf_counter() - before)
    return {title: statistics.median(each[2:]) for title, each in seconds.items()}


def summary(found: Sequence[Record]) -> Record:
    """Milliseconds of a call of each contestant, as it is and captured."""
    return {
        f"{each['model']} {each['phase']} {each['layers']} layers": {
            "ms": {title: round(1e3 * seconds, 3) for title, seconds in each["seconds"].items()},
            "captured ms": {title: round(1e3 * seconds, 3) for title, seconds in each["captured_seconds"].items()},
            "first call s": {title: round(seconds, 1) for title, seconds in each["first_call_seconds"].items()},
            "right": each["right"],
        }
        for each in found
    }


def main() -> None:
    """Time the models that are asked for; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["qwen3-0.6b", "llama-1b"], metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of mugraph for a graph")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU; benchmarks/models.py compares whole models on the CPU")
    cases = [
        {"model": model, "phase": phase, "layers": options.layers, "budget": options.budget}
        for model, phase in itertools.product(options.models, options.phases)
    ]
    found = records(cases, record, options.output, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(0 if all(each["right"] for each in found) else 1)


if __name__ == "__main__":
    main()
