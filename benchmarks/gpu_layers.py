"""Whole layers on a GPU: found, proved and compiled on a machine without one, then loaded where it is and timed beside PyTorch.

    python benchmarks/gpu_layers.py --saved layers --target cuda:sm_90:h200     # anywhere: a folder for each layer that lacks one
    python benchmarks/gpu_layers.py --saved layers --output benchmarks/results/gpu-layers.json       # with a GPU

Layers are those of `layers.py`, in bf16. Every contestant takes weights as arguments and is captured into CUDA graphs; calls go
through copies of all tensors that are larger than the L2 cache together, as the layers of a model would, and take turns. Results
are compared with float64. Exits with 1 when one is wrong. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
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
from gpu_order import copies, timed
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
    folder = Path(saved) / name
    before = time.perf_counter()
    found = mugraph.load(folder)
    load_seconds = time.perf_counter() - before
    case = case_of(name, DTYPE, 1)
    layer, inputs = case.layer.cuda(), tuple(tensor.cuda() for tensor in case.inputs)
    names, arguments = ordered(folder, Case(layer, inputs))

    def function(*given: torch.Tensor) -> Any:
        return functional_call(layer, dict(zip(names, given[len(inputs) :], strict=True)), given[: len(inputs)])

    with torch.no_grad():
        exact = tensors(function(*(tensor.double() for tensor in arguments)))
        calls: dict[str, Callable[..., Any]] = {OURS: found, "eager": function}
        calls |= {mode: torch.compile(function, mode=COMPILE_MODES[mode]) for mode in modes}
        errors: dict[str, float] = {}
        refused: dict[str, str] = {}
        for title, call in list(calls.items()):
            try:
                errors[title] = error(tensors(call(*arguments)), exact)
            except Exception as fault:  # a fault on the GPU comes as whatever PyTorch or the driver's bindings raise
                refused[title] = f"{type(fault).__name__}: {fault}"[:300]
                del calls[title]
        seconds = timed(calls, copies(arguments), refused)
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "load_seconds": load_seconds,
        "seconds": seconds,
        "errors": errors,
        "refused": refused,
        "right": errors.get(OURS, float("inf")) < LARGEST_ERROR[DType.BF16],
    }


def ordered(folder: Path, case: Case) -> tuple[list[str], tuple[torch.Tensor, ...]]:
    """The names of a layer's tensors in the order in which its saved result takes them, and all arguments."""
    manifest = json.loads((folder / "torch.json").read_text(encoding="utf-8"))
    held = dict(case.layer.named_parameters()) | dict(case.layer.named_buffers())
    held["constant_0"] = torch.full(
        (case.inputs[0].shape[1],) * 2, -torch.inf, dtype=torch.bfloat16, device=case.inputs[0].device
    ).triu(1)
    names = [each["name"] for each in manifest["inputs"][len(case.inputs) :]]
    return names, (*case.inputs, *(held[name] for name in names))


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
