"""KernelBench's tasks through `mugraph.superoptimize`: are they right, how much of them runs as kernels, and how fast.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/kernelbench.py --tasks KernelBench/KernelBench                  # levels 1 to 3: 250 tasks, some hours
    python benchmarks/kernelbench.py --tasks KernelBench/KernelBench --levels 2 --every 5 --budget 10
    python benchmarks/kernelbench.py --tasks KernelBench/KernelBench --coverage       # kernels wherever there are any
    python benchmarks/kernelbench.py --tasks KernelBench/KernelBench --shard 1/4 --record quarter.json

A task is a file with a class `Model`, `get_init_inputs` and `get_inputs`; none is part of this repository. They are meant for
large GPUs: whole numbers from 64 on that a file assigns at its top level are divided by one factor (`--factor`, 16), but stay at
least 8; where the model cannot be made or called with those, by the next of FACTORS, which the record says. With `--bytes` it is
the smallest factor that leaves inputs and parameters of so many bytes together, and a model that can be called. Models run in
inference (`eval`), without gradients.

Each task runs in a process of its own. Its result is called on inputs that it was not optimized for, and compared with the model
in float64: right is what errs at most ERRORS times as much as the model in its own precision, and integers that are equal. Then
whole calls of the result, the model, and the model under torch.compile (default options) are timed in turns. Records go to
`--record` one by one, and what is there by the same sources is not made again; without it, a run of all tasks with their rivals
writes `benchmarks/results/kernelbench.json`, and a run of some of them prints only.

A share of bytes is what kernels run of a call of the result: none where the result calls the function itself, because nothing was
clearly faster. With `--coverage` nothing is timed, and kernels run wherever there are any (`profile=False`). `one_program` says
of a task that kernels could run all of it. A convolution or product of matrices alone is a library's kernel whoever calls it; the
summary counts tasks with and without those that PyTorch calls.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import mugraph
from kept import Record, answer_of, records
from mugraph.results.coverage import Coverage, of_program
from mugraph.runtime.benchmarking import Duel, in_turns

RESULT = Path(__file__).parent / "results" / "kernelbench.json"
LEVELS = ("1", "2", "3")
FACTORS = (16, 8, 32, 4, 64, 2, 1)
NOISE = 0.97
"""Calls of one function, timed in turns with itself, differ by less."""
LARGE, LEAST = 64, 8
"""Whole numbers from LARGE on are divided, down to LEAST."""
MOST_BYTES = 600 << 20
"""Of a task's inputs and parameters together; a factor that leaves more is too small."""
ERRORS = 4.0
SECONDS = 2.0
"""Of rounds that a result and its rivals are timed in."""
LIMIT = 120.0
"""Seconds that a task may take beside six times its budget."""
SHARE = 0.8
"""Of the bytes, from which on a task counts as covered."""
LIBRARY = frozenset({"convolution", "linear", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention"})
"""Calls that are one kernel of a library, also where PyTorch makes them."""


class _Smaller(ast.NodeTransformer):
    """Divides large whole numbers."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """A number, divided if it is large."""
        if type(node.value) is not int or node.value < LARGE:
            return node
        return ast.copy_location(ast.Constant(max(LEAST, node.value // self.factor)), node)


def definition(file: Path, factor: int) -> dict[str, Any]:
    """What a task's file defines, with the sizes at its top level divided."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            _Smaller(factor).visit(statement)
    names: dict[str, Any] = {"__name__": file.stem}
    exec(compile(ast.fix_missing_locations(tree), str(file), "exec"), names)
    return names


Task = tuple[torch.nn.Module, Callable[[], Sequence[Any]], int]


def task(file: Path, first: int, most: int | None = None) -> Task:
    """The model of a task, its inputs, and the factor; raises RuntimeError where no factor makes one that can be called.

    The factors are `first` and then the others, or, with the `most` bytes, all of them, the smallest first.
    """
    reason = ""
    order = sorted(FACTORS) if most is not None else [first, *(other for other in FACTORS if other != first)]
    for factor in order:
        try:
            names = definition(file, factor)
            if (needed := size(names)) > (MOST_BYTES if most is None else most):
                raise MemoryError(f"its inputs and parameters are too large: {needed} bytes")
            torch.manual_seed(0)
            model = names["Model"](*names["get_init_inputs"]()).eval().requires_grad_(False)
            with torch.inference_mode():
                model(*names["get_inputs"]())
            return model, names["get_inputs"], factor
        except Exception as error:
            if not reason or reason.startswith(MemoryError.__name__):
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
    raise RuntimeError(reason)


def size(names: dict[str, Any]) -> int:
    """Bytes of inputs and parameters, none of which is allocated; those that cannot be made without values do not count."""
    tensors: list[Any] = []
    with torch.device("meta"):
        with contextlib.suppress(Exception):
            tensors += names["Model"](*names["get_init_inputs"]()).parameters()
        with contextlib.suppress(Exception):
            tensors += tree_leaves(names["get_inputs"]())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, torch.Tensor))


def errors(
    opt: Callable[..., Any], model: torch.nn.Module, inputs: Sequence[Any], in_float64: torch.nn.Module | None = None
) -> tuple[float, float, bool]:
    """The largest error of the result and of the model against float64, relative to the largest element; are integers equal?

    `in_float64` is the model in float64, unless it is made of the model.
    """
    exact_model: Callable[..., Any] = copy.deepcopy(model).double() if in_float64 is None else in_float64
    exact_inputs = tree_map_only(torch.Tensor, lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, inputs)
    calls: Sequence[tuple[Callable[..., Any], Any]] = ((opt, inputs), (model, inputs), (exact_model, exact_inputs))
    returned = [
        [leaf for leaf in tree_leaves(called(*copy.deepcopy(given))) if isinstance(leaf, torch.Tensor)] for called, given in calls
    ]
    worst, own, equal = 0.0, 0.0, True
    for ours, theirs, exact in zip(*returned, strict=True):
        if not ours.is_floating_point():
            equal &= bool(torch.equal(ours, theirs))
            continue
        if not torch.equal(ours.isfinite(), theirs.isfinite()):
            return float("inf"), own, equal
        finite = ours.isfinite() & theirs.isfinite() & exact.isfinite()
        largest = float(exact[finite].abs().max()) if bool(finite.any()) else 0.0
        for number, tensor in enumerate((ours, theirs)):
            # Where all is to be zero, the error itself counts.
            error = float((tensor[finite].double() - exact[finite]).abs().max()) / (largest or 1.0) if bool(finite.any()) else 0.0
            worst, own = (max(worst, error), own) if number == 0 else (worst, max(own, error))
    return worst, own, equal


def record(file: Path, factor: int, most: int | None, budget: float, threads: int, rivals: bool) -> Record:
    """What became of a task."""
    torch.set_num_threads(threads)
    try:
        model, get_inputs, used = task(file, factor, most)
    except RuntimeError as error:
        return {"outcome": "not run by PyTorch", "why": str(error)}
    found: Record = {"factor": used}
    with torch.inference_mode():
        started = time.perf_counter()
        try:
            opt = mugraph.superoptimize(model, tuple(get_inputs()), budget=budget, cache="off", profile=rivals)
        except mugraph.MugraphError as error:
            return found | {"outcome": "refused", "why": str(error)}
        found |= {"seconds": time.perf_counter() - started, "found": opt.found, **covered(opt)}
        inputs = tuple(get_inputs())
        ours, own, equal = errors(opt, model, inputs)
        right = equal and ours <= max(ERRORS * own, 64 * torch.finfo(torch.float32).eps)
        found |= {"outcome": "right" if right else "wrong", "error": ours, "model_error": own}
        return found | (_timed(opt, model, inputs) if rivals and right else {})


def covered(opt: Any) -> Record:
    """What runs which share of a result, and why PyTorch has the rest."""
    coverage: Coverage = opt.report.coverage or of_program(opt.program, None)
    kinds = [
        {"operator": calls.operator, "reason": calls.reason, "calls": calls.calls, "bytes": calls.amount.bytes}
        for calls in coverage.left
    ]
    shares = {"byte_share": coverage.byte_share, "flop_share": coverage.flop_share, "time_share": coverage.time_share}
    return {"one_program": opt.is_one_program, **shares, "programs": len(opt.results), "left": kinds}


def _timed(opt: Callable[..., Any], model: torch.nn.Module, inputs: Sequence[Any]) -> Record:
    sides: list[Callable[[], object]] = [functools.partial(side, *inputs) for side in (opt, model)]
    failed = {}
    try:
        compiled = torch.compile(model)
        compiled(*inputs)
        sides.append(functools.partial(compiled, *inputs))
    except Exception as error:
        failed = {"inductor_failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    times = in_turns(sides, SECONDS, rounds=200)
    duels = dict(zip(("eager", "inductor"), (Duel.of(times[0], theirs) for theirs in times[1:]), strict=False))
    return {
        "call_seconds": statistics.median(times[0]),
        "ratios": {name: duel.speedup for name, duel in duels.items()},
        **failed,
    }


def made(task: str, tasks: str, factor: int, most: int | None, budget: float, threads: int, rivals: bool) -> Record:
    """The record of a task, by a process of its own, which ends with all that it started."""
    words = [__file__, "--tasks", tasks, "--one", task, "--factor", str(factor), "--budget", str(budget)]
    words += ["--threads", str(threads), *([] if rivals else ["--coverage"]), *([] if most is None else ["--bytes", str(most)])]
    return answer_of(words, LIMIT + 6 * budget)


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    ran = [entry for entry in found if entry["outcome"] in ("right", "wrong")]
    timed = [entry for entry in ran if "inductor" in entry.get("ratios", {})]
    left: Counter[str] = Counter()
    keeping: Counter[str] = Counter()
    for entry in ran:
        if entry["byte_share"] < SHARE:
            keeping.update({f"{calls['operator']}: {calls['reason']}" for calls in entry["left"]})
        whole = sum(calls["bytes"] for calls in entry["left"]) or 1
        for calls in entry["left"]:
            left[f"{calls['operator']}: {calls['reason']}"] += (1 - entry["byte_share"]) * calls["bytes"] / whole
    return {
        "outcomes": dict(Counter(entry["outcome"] for entry in found)),
        f"share_with_{SHARE}_of_the_bytes": _mean(entry["byte_share"] >= SHARE for entry in ran),
        f"one_program_or_{SHARE}_of_the_bytes": _mean(e["one_program"] or e["byte_share"] >= SHARE for e in ran),
        f"{SHARE}_of_the_bytes_with_lone_library_kernels": _mean(_with_library(entry) >= SHARE for entry in ran),
        f"one_program_or_{SHARE}_of_the_bytes_with_lone_library_kernels": _mean(
            entry["one_program"] or _with_library(entry) >= SHARE for entry in ran
        ),
        "found": _mean(entry["found"] for entry in ran),
        **{f"geometric_mean_against_{name}": _geometric(e["ratios"][name] for e in timed) for name in ("eager", "inductor")},
        "fast_1": _mean(min(entry["ratios"].values()) >= 1 for entry in timed),
        "fast_1_with_the_function_as_fast_as_itself": _mean(all(_own_ratios(entry)) for entry in timed),
        f"at_least_{NOISE}_times_both": _mean(min(entry["ratios"].values()) >= NOISE for entry in timed),
        "timed": len(timed),
        "losing": [_line(entry) for entry in timed if min(entry["ratios"].values()) < 1],
        "left_to_pytorch": {what: round(share, 2) for what, share in left.most_common(20)},
        "tasks_below_by_what_is_left": dict(keeping.most_common(20)),
    }


def _with_library(entry: Record) -> float:
    """The share of bytes in kernels, ours or a library's, also those that PyTorch calls since nothing joins them in a kernel."""
    sizes = [(calls["operator"] in LIBRARY, calls["bytes"]) for calls in entry["left"]]
    whole = sum(size for _, size in sizes) or 1
    lone = sum(size for library, size in sizes if library)
    return float(entry["byte_share"] + (1 - entry["byte_share"]) * lone / whole)


def _own_ratios(entry: Record) -> list[bool]:
    """Whether a result is as fast as each rival; one that calls the function, as nothing was faster, is as fast as that."""
    return [ratio >= 1 or (name == "eager" and not entry["found"]) for name, ratio in entry["ratios"].items()]


def _mean(values: Iterator[Any] | Any) -> float | None:
    known = [float(value) for value in values]
    return statistics.fmean(known) if known else None


def _geometric(values: Iterator[float] | Any) -> float | None:
    known = list(values)
    return statistics.geometric_mean(known) if known else None


def _line(entry: Record) -> str:
    if entry["outcome"] not in ("right", "wrong"):
        return f"{entry['task']}: {entry['outcome']} ({entry['why']})"
    ratios = ", ".join(f"{ratio:.2f} times {name}" for name, ratio in entry.get("ratios", {}).items())
    return f"{entry['task']}: {entry['outcome']}, {entry['byte_share']:.0%} of the bytes{', ' * bool(ratios)}{ratios}"


def files(folder: Path, levels: Sequence[str]) -> list[str]:
    """The tasks of these levels, as paths in the folder."""
    found = [file for level in levels for file in (folder / f"level{level}").glob("*.py")]
    return [str(file.relative_to(folder)) for file in sorted(found, key=lambda file: (file.parent.name, _number(file)))]


def _number(file: Path) -> tuple[int, str]:
    digits = file.stem.partition("_")[0]
    return (int(digits) if digits.isdigit() else 0, file.stem)


def main() -> None:
    """Run the tasks, write the records, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", required=True, help="the folder that has level1, level2, ...")
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--only", nargs="+", default=[""], help="words that are in the names of the tasks wanted")
    parser.add_argument("--every", type=int, default=1, help="each so many-th task of a level only")
    parser.add_argument("--limit", type=int, help="so many tasks of a level at most")
    parser.add_argument("--shard", type=_shard, default=(1, 1), help="I/N: the I-th of N parts of the tasks")
    parser.add_argument("--factor", type=int, default=FACTORS[0])
    parser.add_argument("--bytes", type=int, help="of inputs and parameters, at most, by the smallest factor")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds to optimize each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--coverage", action="store_true", help="time nothing: kernels wherever there are any")
    parser.add_argument("--record", type=Path, help="a file of JSON that records are kept in")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(options.tasks)
    asked = (options.factor, options.bytes, options.budget, options.threads, not options.coverage)
    if options.one is not None:
        print(json.dumps(record(folder / options.one, *asked)))
        return
    names = [name for level in options.levels.split(",") for name in files(folder, [level])[:: options.every][: options.limit]]
    part, parts = options.shard
    names = [name for name in names if any(word in name for word in options.only)][part - 1 :: parts]
    if not names:
        sys.exit(f"{folder} has no tasks of levels {options.levels}; give KernelBench's folder that has level1")
    common = dict(zip(("factor", "most", "budget", "threads", "rivals"), asked, strict=True))
    complete = names == files(folder, LEVELS) and not options.coverage
    output = options.record or (RESULT if complete else None)
    make = functools.partial(_made, tasks=options.tasks)
    found = records([{"task": name, "asked": common} for name in names], make, output, summary)
    for entry in found:
        print(_line(entry))
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(entry["outcome"] in ("wrong", "failed") for entry in found) else 0)


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise ValueError(text)
    return int(part), int(parts)


def _made(task: str, asked: dict[str, Any], tasks: str) -> Record:
    return made(task, tasks, **asked)


if __name__ == "__main__":
    main()
