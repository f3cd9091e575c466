"""One result for any size beside kernels made for each: how long the first call takes, and how fast later ones are.

    python benchmarks/any_size.py
    python benchmarks/any_size.py --high 256 --sizes 6 --only swiglu --budget 60
    python benchmarks/any_size.py --only table --budget 60
    python benchmarks/any_size.py --only table --budget 15 --made-alone

For each function a result for batches from 1 to `--high` is made, and called at random sizes that are none of its table; for
attention over a growing cache one for 1 to 1,024 keys, called at 100, 300 and 700. `table` stands for the paper's six
workloads at full size and three layers of a quarter of their width, whose largest batches are smaller where many keys are
cached. At `--right` random sizes results are compared with float64. Of each size that is timed: seconds of the first call and of
repeated ones, each with arguments just written and after two calls at another size, what the first takes more than their median
(`first_over_repeated`), and what a tenth of them do. What of this is no matter of a new size is seen when all sizes have been
timed: the same is done once more, and a size that is known takes so much more in its first call than in the median of the others
(`again_over_repeated`), as it finds as little in caches. Up to 64 other sizes are then called once, and again when eight of them
have been called twice, after the same calls: `first_calls` has the medians of both (`new`, `known`) and of what the first takes
more (`new_over_known`), of the clock, of processors, and of pages that the system made meanwhile. Whole calls are timed in turns
with those of kernels for that size: scheduled, compiled and proved for it (`DynamicSuperoptimized.at`), or where nothing is put
together of slices searched and measured for it alone. A ratio above 1 says that the result for any size is the faster one. It
must compile nothing in its first calls. `at` has no budget, and need not search structures of the table again: how long kernels
for a size take to make is said for each, and in the median beside the seconds of the result for any size. What that takes to make
is set beside what `superoptimize` takes for the largest size with the same budget, each in a process of its own that finds
nothing in caches: seconds of search, proof and compilation (`parts`), of everything, and of processors, compilers included
(`made`).
Results go to `benchmarks/results/any-size.json`.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn.functional as F

import layers
import mugraph
from contestants import error, tensors
from mugraph import Dim, DynamicSuperoptimized
from mugraph.devices.host import available_cores
from mugraph.frontend import load_tracer
from mugraph.frontend.workloads import workload
from mugraph.runtime.benchmarking import duel

RESULT = Path(__file__).parent / "results" / "any-size.json"
WIDTH, HIDDEN, HEADS, KEYS, HEAD = 1024, 2048, 8, 256, 64
CACHE, LENGTHS = 1024, (100, 300, 700)
_REPEATED = 20
_NEW, _IN_TURN = 64, 8
_SPECIAL_SECONDS = 20.0
_FIRST = ("first", "again")
_CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
Function = Callable[..., Any]
_Watched = tuple[float, float, int]


def rmsnorm_linear(x: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A norm of rows and a product."""
    return F.rms_norm(x, x.shape[-1:], gain, 1e-5) @ weight


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A gated perceptron."""
    return (F.silu(x @ gate) * (x @ up)) @ down


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query of every sample and head, over the keys of its sample."""
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


def cached(heads: int, queries: int, dtype: torch.dtype) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Queries of one token, and a cache with so many keys of each head that they share."""

    def inputs(keys: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(heads, rows, 128).to(dtype) for rows in (queries, keys, keys))

    return inputs


def _weights(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) / shape[0] ** 0.5 for shape in shapes)


_LINEAR = (torch.ones(WIDTH), *_weights((WIDTH, HIDDEN)))
_MLP = _weights((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))


@dataclass(frozen=True)
class Case:
    """A function, its inputs at a size, and the dimension of each argument that has it."""

    fn: Function
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    places: Mapping[int, int]
    high: int | None = None
    """The largest size; that of batches where it is None."""
    sizes: Sequence[int] = ()
    """Those that are timed, instead of random ones."""

    def anew(self, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The arguments of a call with those of varying size just written to other memory, in which no core has read them."""
        return tuple(each.clone() if number in self.places else each for number, each in enumerate(given))

    def exact(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the function returns for the same numbers in float64."""
        fn: Function = copy.deepcopy(self.fn).double() if isinstance(self.fn, torch.nn.Module) else self.fn
        exact: list[torch.Tensor] = tensors(fn(*(each.double() for each in given)))
        return exact


def of_workload(name: str, high: int) -> Case:
    """One of the paper's workloads at full size: inputs of one batch share their weights with those of others."""
    chosen = workload(name)
    weights = dict(zip(chosen.shapes(), chosen.inputs(1), strict=True))
    one, two = (chosen.shapes(batch) for batch in (1, 2))
    places = {number: 0 for number, given in enumerate(one) if one[given] != two[given]}
    names = list(one)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        shapes = {given: (batch, *shape[1:]) for given, shape in one.items()}
        return tuple(torch.randn(shapes[given]) if number in places else weights[given] for number, given in enumerate(names))

    return Case(chosen.function(), inputs, places, high)


def of_layer(name: str, high: int) -> Case:
    """A whole layer at a quarter of its width, all of whose arguments have the batch first."""
    case = layers.case_of(name, "fp32", 4)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(batch, *each.shape[1:]) for each in case.inputs)

    return Case(case.layer, inputs, dict.fromkeys(range(len(case.inputs)), 0), high)


_GROWING: Mapping[int, int] = {1: 1, 2: 1}
CASES: dict[str, Case] = {
    "rmsnorm_linear": Case(rmsnorm_linear, lambda n: (torch.randn(n, WIDTH), *_LINEAR), {0: 0}),
    "swiglu": Case(swiglu, lambda n: (torch.randn(n, WIDTH), *_MLP), {0: 0}),
    "attention": Case(
        attention,
        lambda n: (torch.randn(n, HEADS, 1, HEAD), torch.randn(n, HEADS, KEYS, HEAD), torch.randn(n, HEADS, KEYS, HEAD)),
        {0: 0, 1: 0, 2: 0},
    ),
} | {
    f"{name}_{short}": Case(attention, cached(*heads, dtype), _GROWING, CACHE, LENGTHS)
    for name, heads in (("cache", (16, 1)), ("shared_cache", (8, 4)))
    for short, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
}

TABLE: dict[str, Callable[[], Case]] = {
    name: partial(of, name, high)
    for of, name, high in (
        (of_workload, "rmsnorm", 64),
        (of_workload, "gated-mlp", 64),
        (of_workload, "lora", 64),
        (of_workload, "gqa", 16),
        (of_workload, "qknorm", 4),
        (of_workload, "ntrans", 256),
        (of_layer, "bert", 16),
        (of_layer, "vit", 16),
        (of_layer, "llama-decode", 16),
    )
}
"""The workloads and the layers, made when they are asked for: together their weights take gigabytes."""


def main() -> None:
    """Make the results, time them, write a JSON file, print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--high", type=int, default=256, help="the largest batch (256)")
    parser.add_argument("--sizes", type=int, default=8, help="how many random sizes are timed (8)")
    parser.add_argument("--right", type=int, default=200, help="at how many random sizes results are compared with float64 (200)")
    parser.add_argument("--budget", type=float, default=None, help="seconds for each table (no limit)")
    parser.add_argument("--made-alone", action="store_true", help="compare what results take to make, and call none")
    parser.add_argument("--only", choices=[*CASES, *TABLE, "table"], nargs="+", default=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes")
    options = parser.parse_args()
    record: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "busy": _is_busy(),
        "high": options.high,
        "functions": {},
    }
    for name in [*TABLE] if options.only == ["table"] else options.only:
        made = {kind: _in_a_process(_costs, name, kind, options.high, options.budget) for kind in ("static", "dynamic")}
        ratios = {what: _ratio(made["dynamic"][what], made["static"][what]) for what in ("parts", "wall", "processor")}
        record["functions"][name] = {"made": {**made, "ratios": ratios}}
        print(f"{name}: " + "; ".join(_cost_text(kind, cost) for kind, cost in made.items()))
        print("  the result for any size over that for the largest: " + ", ".join(f"{ratios[w]:.2f} ({w})" for w in ratios))
        if not options.made_alone:
            record["functions"][name] |= _of_function(name, _case(name), options)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {options.out}" + (", while other programs ran: times are noisy" if record["busy"] or _is_busy() else ""))


def _is_busy() -> bool:
    """Whether this machine has had more to do for a minute than this process and its compilers."""
    return os.getloadavg()[0] > 2 * available_cores()


def _case(name: str) -> Case:
    return CASES[name] if name in CASES else TABLE[name]()


def _in_a_process(call: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What a call gives in a new process, which finds nothing in caches."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        return processes.submit(call, *arguments).result()


def _costs(name: str, kind: str, high: int, budget: float | None) -> dict[str, Any]:
    """What the result for any size takes to make, or that for the largest alone (`static`): seconds by stage, of the wall clock,
    and of processors, of the C compiler's processes, too."""
    case = _case(name)
    high = case.high or high
    load_tracer()
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {"MUGRAPH_CACHE_DIR": cache, "MUGRAPH_CACHE": "on"}):
        started, processor = time.perf_counter(), _processor_seconds()
        if kind == "static":
            report = mugraph.superoptimize(case.fn, case.inputs(high), budget=budget).report
            stages = {"search": report.seconds, "compile": report.compile_seconds, "verify": report.verify_seconds}
            measured = report.measure_seconds
        else:
            times = _any_size(case, high, budget).times
            stages, measured = {"search": times.search, "compile": times.compile, "verify": times.verify}, times.measure
        wall, processor = time.perf_counter() - started, _processor_seconds() - processor
    return {**stages, "parts": sum(stages.values()), "measure": measured, "wall": wall, "processor": processor}


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _ratio(one: float, other: float) -> float:
    return one / other if other else float("inf")


def _cost_text(kind: str, cost: Mapping[str, float]) -> str:
    stages = ", ".join(f"{stage} {cost[stage]:.1f}" for stage in ("search", "compile", "verify", "measure"))
    return f"{kind} in {cost['wall']:.1f} s ({stages}; {cost['processor']:.1f} s of processors)"


def _any_size(case: Case, high: int, budget: float | None) -> DynamicSuperoptimized:
    """The result for sizes from 1 on."""
    dim = Dim("size", 1, high)
    dynamic: dict[int | str, dict[int, Dim]] = {number: {place: dim} for number, place in case.places.items()}
    return mugraph.superoptimize(case.fn, case.inputs(min(4, high)), budget=budget, dynamic=dynamic)


def _of_function(name: str, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    high: int = case.high or options.high
    started = time.perf_counter()
    result = _any_size(case, high, options.budget)
    seconds, draw = time.perf_counter() - started, random.Random(0)
    record: dict[str, Any] = {"high": high, "seconds": seconds, "claim": result.claim, **_made(result, high)}
    print(f"{name}: {result!r} in {seconds:.0f} s")
    others = [size for size in range(1, high + 1) if (size,) not in result.table] or list(range(1, high + 1))
    record["sizes"], between = {}, dict[int, tuple[torch.Tensor, ...]]()
    timed = case.sizes or sorted(random.Random(0).sample(others, min(options.sizes, max(len(others) - 1, 1))))
    for size in timed:
        between[size] = case.inputs(_beside(size, high, timed))
        record["sizes"][size] = row = _at(result, case, size, between[size])
        plan = () if result.sliced is None and result.capacities is None else result.plan(size).chunks
        row["plan"] = [chunk.size for chunk in plan]
        print(
            f"  size {size:4}: first call {row['first_over_repeated'] * 1e6:5.0f} us over a repeated one of "
            f"{row['repeated'] * 1e3:7.3f} ms (a tenth of these {row['tenth_over_repeated'] * 1e6:.0f} us), "
            f"{row['beside_special']:.2f} of special kernels ({row['special_seconds']:.1f} s to make), "
            f"{row['beside_function']:.2f} of the function; {'+'.join(map(str, row['plan'])) or 'the function'}"
        )
    for size, row in record["sizes"].items():
        calls = _first_and_others(result, case, case.inputs(size), between[size])
        row["again_over_repeated"] = calls["first_over_repeated"]
    called = {*timed, *(_beside(size, high, timed) for size in timed)}
    record["first_calls"] = _first_calls(result, case, [size for size in others if size not in called], between[timed[0]])
    first, known = (statistics.median(row[f"{which}_over_repeated"] for row in record["sizes"].values()) for which in _FIRST)
    right = [draw.randint(1, high) for _ in range(options.right)]  # now that each size was timed in its first call
    record["right"] = {"sizes": len(right), "worst": max((_error(result, case, size) for size in right), default=0.0)}
    ratios = [row["beside_special"] for row in record["sizes"].values()]
    record["beside_special"] = statistics.geometric_mean(ratios)
    record["special_seconds"] = statistics.median(row["special_seconds"] for row in record["sizes"].values())
    print(
        f"  first calls of sizes take {first * 1e6:.0f} us over repeated ones in the median, of known ones {known * 1e6:.0f} us\n"
        f"{_first_calls_text(record['first_calls'])}"
        f"  made in {seconds:.1f} s, special kernels for a size in {record['special_seconds']:.1f} s in the median; "
        f"{record['beside_special']:.2f} of special kernels in geometric mean, {min(ratios):.2f} at least; "
        f"{len(right)} random sizes right, relative error {record['right']['worst']:.1e} at most"
    )
    return record


def _beside(size: int, high: int, timed: Sequence[int]) -> int:
    """The nearest size that is not timed; the size itself where all are."""
    return min((n for n in range(1, high + 1) if n not in timed), key=lambda n: abs(n - size), default=size)


def _first_calls(
    result: DynamicSuperoptimized, case: Case, sizes: Sequence[int], between: tuple[torch.Tensor, ...]
) -> dict[str, Any]:
    """What calls of sizes take that nothing has called yet, and what they take when they come back after two calls of some: each
    after two with arguments of another size, and with its own just written. Groups of sizes take turns, so that other work
    on the machine meets both."""
    chosen = random.Random(1).sample(sizes, min(_NEW, len(sizes)))
    new, known = list[_Watched](), list[_Watched]()
    with torch.inference_mode():
        for start in range(0, len(chosen), _IN_TURN):
            group = chosen[start : start + _IN_TURN]
            first, _, last = ([_watched(result, case.inputs(size), between) for size in group] for _ in range(3))
            new, known = new + first, known + last
    more = [[ours - its for ours, its in zip(*pair, strict=True)] for pair in zip(new, known, strict=True)]
    rows: dict[str, Sequence[Sequence[float]]] = {"new": new, "known": known, "new_over_known": more} if chosen else {}
    names = ("seconds", "processor", "pages")
    middle = {which: map(statistics.median, zip(*calls, strict=True)) for which, calls in rows.items()}
    return {"sizes": len(chosen)} | {which: dict(zip(names, each, strict=True)) for which, each in middle.items()}


def _watched(call: Function, given: tuple[torch.Tensor, ...], between: tuple[torch.Tensor, ...]) -> _Watched:
    """Seconds of a call after two with other arguments, those of all processors, and how many pages the system made for it."""
    call(*between)
    call(*between)
    pages, processor, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time(), time.perf_counter()
    call(*given)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    return seconds, processor, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages


def _first_calls_text(calls: Mapping[str, Any]) -> str:
    if not calls["sizes"]:
        return ""
    new, known, more = (calls[which] for which in ("new", "known", "new_over_known"))
    return (
        f"  of {calls['sizes']} other sizes a first call takes {more['seconds'] * 1e6:.0f} us more than one that comes back "
        f"({new['seconds'] * 1e6:.0f} and {known['seconds'] * 1e6:.0f} us, {new['processor'] * 1e6:.0f} and "
        f"{known['processor'] * 1e6:.0f} us of processors, {new['pages']:.0f} and {known['pages']:.0f} pages)\n"
    )


def _made(result: DynamicSuperoptimized, high: int) -> dict[str, Any]:
    """What sizes are put together of, or held by."""
    if result.capacities is not None:
        kernels = result.capacities.kernels
        return {"capacities": sorted(kernels), "in_place": sorted(result.capacities.in_place)}
    return {
        "table": {size: made.found for (size,), made in sorted(result.table.items())},
        "chunk_seconds": result.costs.chunk,
        "padding_seconds": result.costs.padding,
        "predicted_worst": min(map(result.costs.ratio, range(1, high + 1))) if result.costs.kernels else None,
    }


def _error(result: DynamicSuperoptimized, case: Case, size: int) -> float:
    """The largest error at a size, relative to the largest result in float64; no number of those may be wrong."""
    given = case.inputs(size)
    with torch.inference_mode():
        worst: float = error(tensors(result(*given)), case.exact(given))
    assert worst < _CLOSE[given[0].dtype], (size, worst)
    return worst


def _at(result: DynamicSuperoptimized, case: Case, size: int, between: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Times at one size, of calls that follow those with other arguments."""
    given, fn = case.inputs(size), case.fn
    with mock.patch("mugraph.runtime.executable.Executable.__init__", side_effect=AssertionError("compiled")):
        calls = _first_and_others(result, case, given, between)
    with torch.inference_mode():
        started = time.perf_counter()
        alone = result.sliced is None
        special = mugraph.superoptimize(fn, given, budget=_SPECIAL_SECONDS) if alone else result.at(*given)
        made = time.perf_counter() - started
        beside = duel(lambda: result(*given), lambda: special(*given))
        itself = duel(lambda: result(*given), lambda: fn(*given))
    return {
        **calls,
        "special_seconds": made,
        "special_found": special.found,
        "beside_special": beside.speedup,
        "beside_function": itself.speedup,
        "error": _error(result, case, size),
    }


def _first_and_others(
    call: Callable[..., Any], case: Case, given: tuple[torch.Tensor, ...], between: tuple[torch.Tensor, ...]
) -> dict[str, float]:
    """Seconds of calls at a size after those with other arguments: of the first, and of the median of the others."""
    with torch.inference_mode():
        first, *others = (_seconds_after(call, between, case.anew(given)) for _ in range(1 + _REPEATED))
    repeated = statistics.median(others)
    return {
        "first": first,
        "repeated": repeated,
        "first_over_repeated": first - repeated,
        "tenth_over_repeated": statistics.quantiles(others, n=10)[-1] - repeated,
    }


def _seconds_after(call: Callable[..., Any], between: tuple[torch.Tensor, ...], given: tuple[torch.Tensor, ...]) -> float:
    """Seconds of a call after two with the arguments of another size."""
    call(*between)
    call(*between)
    started = time.perf_counter()
    call(*given)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
