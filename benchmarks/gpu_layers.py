"""Whole layers on a GPU: found, proved and compiled on a machine without one, then loaded where it is and timed beside PyTorch.

    python benchmarks/gpu_layers.py --saved layers --target cuda:sm_90:h200     # anywhere: a folder for each layer that lacks one
    python benchmarks/gpu_layers.py --saved layers --output benchmarks/results/gpu-layers.json       # with a GPU

Layers are those of `layers.py`, in bf16. Every contestant is captured into CUDA graphs and called with so many layers in a row
that their weights are larger than the L2 cache, as a model's are; contestants take turns. Results are compared with float64.
Exits with 1 when one is wrong. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call

import mugraph
from contestants import error, tensors
from gpu_order import CACHES, timed
from kept import Record, records
from layers import CASES, Case, case_of
from mugraph.ir import DType
from mugraph.runtime.baselines import COMPILE_MODES
from mugraph.testing.mugraph_runs import LARGEST_ERROR

DTYPE = "bf16"
OURS = "mugraph"


def saved(name: str, folder: Path, target: str, budget: float) -> str:
    """Save a layer's result for the GPU; how long it took and what was found, in words."""
    case = case_of(name, DTYPE, 1)
    before = time.perf_counter()
    found = mugraph.superoptimize(case.layer, case.inputs, target, budget=budget)
    seconds = time.perf_counter() - before
    found.save(folder)
    return f"{name}: {'found' if found.found else 'not found'} in {seconds:.0f} s, {len(found.results)} programs"


def record(name: str, saved: str, modes: Sequence[str]) -> Record:
    """Seconds of a call and errors of all contestants, and seconds that loading took."""
    before = time.perf_counter()
    found = mugraph.load(Path(saved) / name)
    load_seconds = time.perf_counter() - before
    case = case_of(name, DTYPE, 1)
    layers = [copy.deepcopy(case.layer).cuda() for _ in range(_sets(case))]
    inputs = tuple(tensor.cuda() for tensor in case.inputs)
    torch._dynamo.reset()

    def by_torch(weights: dict[str, torch.Tensor]) -> Any:
        return functional_call(layers[0], weights, inputs)

    compiled = {mode: torch.compile(by_torch, mode=COMPILE_MODES[mode]) for mode in modes}
    makers: dict[str, Callable[[torch.nn.Module], Callable[[], Any]]] = {
        OURS: lambda layer: partial(found.bound_to(layer), *inputs),
        **{title: partial(_with_weights, function) for title, function in {"eager": by_torch, **compiled}.items()},
    }
    calls: dict[str, Callable[..., Any]] = {}
    refused: dict[str, str] = {}
    with torch.no_grad():
        outputs: dict[str, list[torch.Tensor]] = {}
        for title, make in makers.items():
            try:
                of_each = [make(layer) for layer in layers]
                outputs[title] = tensors(of_each[0]())
                calls[title] = partial(_each, of_each)
            except Exception as fault:  # a fault on the GPU comes as whatever PyTorch or the driver's bindings raise
                refused[title] = f"{type(fault).__name__}: {fault}"[:300]
        together = timed(calls, [()], refused)
        exact = tensors(layers[0].double()(*(tensor.double() for tensor in inputs)))
        errors = {title: error(given, exact) for title, given in outputs.items()}
    seconds = {title: of_all / len(layers) for title, of_all in together.items()}
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "load_seconds": load_seconds,
        "seconds": seconds,
        "errors": errors,
        "refused": refused,
        "right": errors.get(OURS, float("inf")) < LARGEST_ERROR[DType.BF16],
    }


def _sets(case: Case) -> int:
    """Layers whose tensors are larger than the L2 cache together."""
    of_cache: int = CACHES * int(torch.cuda.get_device_properties(0).L2_cache_size)
    each: int = sum(tensor.numel() * tensor.element_size() for tensor in case.layer.parameters())
    return 1 + -(-of_cache // each)


def _with_weights(function: Callable[[dict[str, torch.Tensor]], Any], layer: torch.nn.Module) -> Callable[[], Any]:
    return partial(function, layer.state_dict())


def _each(calls: Sequence[Callable[[], Any]]) -> None:
    for call in calls:
        call()


def summary(found: Sequence[Record]) -> Record:
    """Microseconds of a call of each contestant by layer."""
    return {
        each["name"]: {title: round(1e6 * seconds, 1) for title, seconds in each["seconds"].items()} | {"right": each["right"]}
        for each in found
    }


def main() -> None:
    """Save the layers that are not there yet, or time those that are; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=list(CASES))
    parser.add_argument("--saved", type=Path, default=Path("gpu-layers"), help="folder of the results")
    parser.add_argument("--target", default="cuda:sm_90", help="the GPU that results are saved for")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds to find one")
    parser.add_argument("--modes", nargs="*", default=["torch.compile"], choices=list(COMPILE_MODES))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        for name in options.layers:
            if not (options.saved / name).exists():
                print(saved(name, options.saved / name, options.target, options.budget), flush=True)
        return
    cases = [{"name": name, "saved": str(options.saved)} for name in options.layers if (options.saved / name).exists()]
    found = records(cases, partial(record, modes=options.modes), options.output, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(0 if all(each["right"] for each in found) else 1)


if __name__ == "__main__":
    main()
