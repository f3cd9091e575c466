"""Times on a GPU: the best muGraph of every workload, its rivals and the roofline, with inputs in the L2 cache and without.

    python benchmarks/gpu_times.py --output benchmarks/results/gpu-times.json
    python benchmarks/gpu_times.py --target cpu --size small        # the same steps where there is no GPU

Every contestant is captured into CUDA graphs: what `superoptimize` finds, and those of `gpu_rivals.py` that are installed and
right. They take turns, and times are medians over rounds. Without the cache, a buffer larger than it is read before every
call, which leaves nothing that would have to be written back, and the time of reading it alone is taken off. The predicted time
stands beside the measured ones, with Spearman's correlation over all combinations of a device. A run that is repeated makes what
is missing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

import mugraph
from gpu_check import asked
from gpu_rivals import offers, rivals
from kept import Record, records
from mugraph.devices import device_for, roofline_seconds
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.runtime import measure
from mugraph.runtime.baselines import OURS
from mugraph.targets.machine import Machine
from ranks import rank_correlation

FLUSHED_BYTES = {"cuda": 256 << 20, "cpu": 64 << 20}
"""More than any cache behind which device memory lies."""
ROUNDS = 50
MEASURING_SECONDS = 5.0


def record(workload: str, dtype: str, batch: int, size: str, target: str) -> Record:
    """Seconds of a call of every contestant, by whether its inputs are in the cache; the roofline's share of ours."""
    function = WORKLOADS[workload].function()
    tensors = WORKLOADS[workload].inputs(batch, dtype, size)
    device = device_for(target)
    roofline = roofline_seconds(trace(function, tensors).graph, device)
    inputs = tensors if target == "cpu" else tuple(tensor.cuda() for tensor in tensors)
    exact = function(*(tensor.double() for tensor in inputs))
    best = mugraph.superoptimize(function, inputs, target)
    machine = best.executable.machine
    offered = offers(rivals(workload, function), inputs, exact)
    calls = {name: partial(offer, *inputs) for name, offer in ({OURS: best} | dict(offered.functions)).items()}
    with torch.no_grad():
        warm, refused_warm = timed(calls, machine, None)
        cold, refused_cold = timed(calls, machine, flush(inputs[0].device.type))
    baselines = {name: seconds for name, seconds in warm.items() if name != OURS}
    return {
        "device": device.name,
        "torch": torch.__version__,
        "found": best.found,
        "predicted_seconds": best.best.cost if best.found else None,
        "roofline_seconds": roofline,
        "warm_seconds": warm,
        "cold_seconds": cold,
        "roofline_share": roofline / cold[OURS] if cold[OURS] > 0 else None,
        "speedup": min(baselines.values()) / warm[OURS] if baselines else None,
        "errors": offered.errors,
        "refused": dict(offered.refused) | refused_warm | refused_cold,
    }


def flush(device: str) -> Callable[[], object]:
    """Reads more than a cache holds, and writes one number."""
    buffer = torch.ones(FLUSHED_BYTES[device] // 4, device=device)
    return partial(torch.amax, buffer, 0, out=torch.empty((), device=device))


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
    """Microseconds of ours, of the best rivals and of the roofline by combination; by device, how well predictions rank them."""
    times = {f"{r['workload']} {r['dtype']} batch {r['batch']} on {r['device']}": _microseconds(r) for r in found}
    ranked = {name: _ranked([r for r in found if r["device"] == name]) for name in sorted({r["device"] for r in found})}
    return times | {f"rank correlation of predicted and cold times on {name}": of for name, of in ranked.items()}


def _ranked(found: Sequence[Record]) -> float | None:
    pairs = [(r["predicted_seconds"], r["cold_seconds"][OURS]) for r in found if r["predicted_seconds"] is not None]
    correlation = rank_correlation([predicted for predicted, _ in pairs], [measured for _, measured in pairs])
    return None if correlation is None else round(correlation, 3)


def _microseconds(entry: Record) -> Record:
    best = {how: _best_rival(entry[f"{how}_seconds"]) for how in ("warm", "cold")}
    return {
        "warm": _us(entry["warm_seconds"][OURS]),
        "cold": _us(entry["cold_seconds"][OURS]),
        "predicted": _us(entry["predicted_seconds"]),
        "roofline": _us(entry["roofline_seconds"]),
        **{f"best rival, {how} ({name})": _us(seconds) for how, (name, seconds) in best.items()},
    }


def _best_rival(seconds: Mapping[str, float]) -> tuple[str, float | None]:
    rest = {name: of for name, of in seconds.items() if name != OURS}
    return min(rest.items(), key=lambda each: each[1], default=("none", None))


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e6 * seconds, 2)


def main() -> None:
    """Time what is asked for and not yet there; print the summary."""
    of = asked(__doc__, dtypes=["bf16"], batches=[1, 8, 16])
    print(json.dumps(summary(records(of.cases, record, of.output, summary)), indent=1))


if __name__ == "__main__":
    main()
