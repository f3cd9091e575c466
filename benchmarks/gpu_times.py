"""Times on a GPU: the best muGraph of every workload against PyTorch, with inputs in the L2 cache and without, and the roofline.

    python benchmarks/gpu_times.py --output benchmarks/results/gpu-times.json
    python benchmarks/gpu_times.py --target cpu --size small        # the same steps where there is no GPU

Every contestant is captured into CUDA graphs: eager PyTorch, `torch.compile` as it is and with max-autotune, and, where a
workload writes attention out, `scaled_dot_product_attention`. They take turns, and times are medians over rounds. Without the
cache, a buffer larger than it is written before every call, and the time of writing it alone is taken off. A run that is
repeated makes what is missing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F

import mugraph
from gpu_check import asked
from kept import Record, records
from mugraph.devices import device_for, roofline_seconds
from mugraph.frontend import trace
from mugraph.frontend.workload_functions import EPSILON
from mugraph.frontend.workloads import WORKLOADS
from mugraph.runtime import measure
from mugraph.runtime.baselines import COMPILE_MODES
from mugraph.targets.machine import Machine

FLUSHED_BYTES = {"cuda": 256 << 20, "cpu": 64 << 20}
"""More than any cache behind which device memory lies."""
ROUNDS = 50
MEASURING_SECONDS = 5.0

Function = Callable[..., torch.Tensor]


def attention_of_normed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """QKNorm with the library's attention."""
    width = q.shape[-1:]
    return F.scaled_dot_product_attention(F.rms_norm(q, width, eps=EPSILON), F.rms_norm(k, width, eps=EPSILON), v)


BY_LIBRARY: Mapping[str, tuple[str, Function]] = {"qknorm": ("scaled_dot_product_attention", attention_of_normed)}
"""What a user would call instead, where the workload's function does not call it."""


def record(workload: str, dtype: str, batch: int, size: str, target: str) -> Record:
    """Seconds of a call of every contestant, by whether its inputs are in the cache; the roofline's share of ours."""
    function = WORKLOADS[workload].function()
    tensors = WORKLOADS[workload].inputs(batch, dtype, size)
    device = device_for(target)
    roofline = roofline_seconds(trace(function, tensors).graph, device)
    inputs = tensors if target == "cpu" else tuple(tensor.cuda() for tensor in tensors)
    best = mugraph.superoptimize(function, inputs, target)
    machine = best.executable.machine
    offers, refused = contestants(workload, function, inputs)
    calls = {name: partial(offer, *inputs) for name, offer in ({"mugraph": best} | offers).items()}
    with torch.no_grad():
        warm, refused_warm = timed(calls, machine, None)
        cold, refused_cold = timed(calls, machine, flush(inputs[0].device.type))
    baselines = {name: seconds for name, seconds in warm.items() if name != "mugraph"}
    return {
        "device": device.name,
        "torch": torch.__version__,
        "found": best.found,
        "roofline_seconds": roofline,
        "warm_seconds": warm,
        "cold_seconds": cold,
        "roofline_share": roofline / cold["mugraph"] if cold["mugraph"] > 0 else None,
        "speedup": min(baselines.values()) / warm["mugraph"] if baselines else None,
        "refused": refused | refused_warm | refused_cold,
    }


def contestants(
    workload: str, function: Function, inputs: Sequence[torch.Tensor], modes: Sequence[str] = tuple(COMPILE_MODES)
) -> tuple[dict[str, Function], dict[str, str]]:
    """What PyTorch offers for a workload in some modes, called once, and the reasons of what cannot run."""
    offered = {"torch eager": function} | {name: torch.compile(function, mode=COMPILE_MODES[name]) for name in modes}
    offered |= dict([BY_LIBRARY[workload]] if workload in BY_LIBRARY else [])
    offers: dict[str, Function] = {}
    refused: dict[str, str] = {}
    for name, offer in offered.items():
        try:
            offer(*inputs)
        except Exception as error:  # whatever the compiler stack raises is the reason
            refused[name] = f"{type(error).__name__}: {error}"[:200]
        else:
            offers[name] = offer
    return offers, refused


def flush(device: str) -> Callable[[], object]:
    """Writes more than a cache holds."""
    return torch.empty(FLUSHED_BYTES[device], dtype=torch.uint8, device=device).zero_


def timed(
    calls: Mapping[str, Callable[[], object]], machine: Machine, before: Callable[[], object] | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds of each call behind `before`, which is not counted, and the reasons of those that cannot be captured."""
    captured, refused = {}, {}
    for name, call in calls.items():
        try:
            captured[name] = machine.timed(call if before is None else partial(_in_turn, before, call))
        except RuntimeError as error:
            refused[name] = f"{type(error).__name__}: {error}"[:200]
    if before is not None:
        captured["before"] = machine.timed(before)
    rounds = measure({name: one.run for name, one in captured.items()}, ROUNDS, budget=MEASURING_SECONDS)
    seconds = {name: [each / captured[name].times for each in rounds[name]] for name in captured}
    rest = seconds.pop("before", [0.0] * ROUNDS)
    return {
        name: statistics.median(a - b for a, b in zip(of_call, rest, strict=False)) for name, of_call in seconds.items()
    }, refused


def _in_turn(before: Callable[[], object], call: Callable[[], object]) -> None:
    before()
    call()


def summary(found: Sequence[Record]) -> Record:
    """Microseconds of ours, the best of PyTorch's and the roofline, by combination."""
    return {f"{r['workload']} {r['dtype']} batch {r['batch']} on {r['device']}": _microseconds(r) for r in found}


def _microseconds(entry: Record) -> Record:
    best = min(((s, name) for name, s in entry["warm_seconds"].items() if name != "mugraph"), default=(None, "none"))
    return {
        "warm": round(1e6 * entry["warm_seconds"]["mugraph"], 2),
        "cold": round(1e6 * entry["cold_seconds"]["mugraph"], 2),
        "roofline": round(1e6 * entry["roofline_seconds"], 2),
        f"best of PyTorch, warm ({best[1]})": None if best[0] is None else round(1e6 * best[0], 2),
    }


def main() -> None:
    """Time what is asked for and not yet there; print the summary."""
    of = asked(__doc__, dtypes=["bf16"], batches=[1, 8, 16])
    print(json.dumps(summary(records(of.cases, record, of.output, summary)), indent=1))


if __name__ == "__main__":
    main()
