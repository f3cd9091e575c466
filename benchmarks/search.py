"""What the search costs: the six workloads to exhaustion, another size, growth with the program, and random programs.

    python benchmarks/search.py                                  # everything, on a machine that does nothing else
    python benchmarks/search.py workloads --seconds 20           # a part of it, less patiently
    python benchmarks/search.py random --programs 5 --json

- workloads: each in a fresh process: seconds until every tier and cut was searched and until the first muGraph, peak memory,
  and process seconds for other batches, whose structures are known by then: ranked schedules, written out as muGraphs.
- growth: seconds against the number of operators, over random LAX programs, until the coarsest tier and its cuts are exhausted,
  and on how many programs the finer tiers are, too, in two seconds each; the exponent of the power law through the medians.
- random: every candidate of random LAX programs against the program, by the verifier and in float64; and whether Algorithm 1,
  where it finishes in the seconds it has for a program, finds a kernel of less predicted time than the closures do. Two
  programs of three are small ones, so that it often does.
- exhaustive: ten times as many smaller LAX programs, of 2 and 3 operators, against all graphs of up to 6 block operators that
  Algorithm 1 finds of them, as one kernel and as two, for a machine whose launches cost nothing: is any cheaper?
- containment: all graphs of up to 11 block operators that Algorithm 1 finds of the paper's RMSNorm at its size, with `--workers`
  processes: is the paper's figure among them, and does the closure engine list them all, or which conditions do the others break?

Results go to `benchmarks/results/search.json` and `search-growth.svg`; tables go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from mugraph.devices import Device, device_for
from mugraph.errors import MugraphError
from mugraph.experiments.search_ablation import FIGURE, GRIDS, LOOPS, rmsnorm
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.search import Options, Progress, Proposal, SearchResult, SearchSpace, search
from mugraph.search.algorithm1 import EnumerationOptions, EnumerationResult, enumerate_graphs
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.structures import KNOWN
from mugraph.testing import ProgramSpace, random_program
from mugraph.testing.containment import Derivations
from mugraph.verifier import verify_graphs
from mugraph.verifier.float_checks import errors_against, random_inputs
from mugraph.verifier.vectorized_eval import evaluate_batched
from plots import power_law, scatter

RESULTS = Path(__file__).parent / "results"
GROWTH = range(4, 17)
"""Numbers of operators of the programs whose search is timed."""
GROWTH_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
GROWTH_OPTIONS = Options(cut_seconds=math.inf, closure_seconds=math.inf, finer_tier_seconds=2.0)
FLOAT64_ERROR = 1e-9
"""Errors of a candidate that is evaluated in float64, relative to its largest output."""
BATCHES = (8, 16, 32, 64)
"""Of the workloads: the first is searched to exhaustion, the others are further sizes."""
FEW_OPERATORS, MORE_OPERATORS = (3, 3), (3, 10)
"""Of two random programs, and of the third."""
ALGORITHM_1 = EnumerationOptions(max_block_operators=7, grids=((), (2,)), loops=(1, 2))

EXHAUSTED_SPACE = ProgramSpace(operators=(2, 3), sizes=(8, 16, 32))
EXHAUSTED_KERNELS = (
    EnumerationOptions(max_block_operators=6, grids=((), (2,)), loops=(1, 2)),
    EnumerationOptions(max_block_operators=6, max_kernel_operators=2, grids=((),), loops=(1,)),
)
"""What Algorithm 1 enumerates of each small program: one kernel of several blocks with a for-loop, and two kernels."""

FIGURE_OPERATORS = 11
"""Of the paper's figure of RMSNorm."""

Record = dict[str, Any]


def main() -> None:
    """Run the parts asked for, write the results, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of one search")
    parser.add_argument("--programs", type=int, default=30, help="random programs; for growth a tenth of it for each size")
    parser.add_argument("--growth-seconds", type=float, default=30.0, help="limit of process seconds of one search for growth")
    parser.add_argument("--algorithm-1-seconds", type=float, default=20.0, help="time limit of Algorithm 1 on one random program")
    parser.add_argument("--workers", default="1", help="processes that search")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured([graph_from_json(graph) for graph in json.load(sys.stdin)], arguments)))
        return
    file = RESULTS / "search.json"
    record: Record = json.loads(file.read_text()) if file.exists() else {}
    record["machine"] = {"device": device_for("cpu").name, "system": platform.platform(), "python": platform.python_version()}
    tables = []
    for part in arguments.parts or PARTS:
        record.setdefault("load_before", {})[part] = os.getloadavg()[0]
        record[part], table = PARTS[part](arguments)
        tables.append(table)
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record) if arguments.json else "\n\n".join(tables))


def tell(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


# --- workloads ---------------------------------------------------------------------------------------------------------


def workloads(arguments: argparse.Namespace) -> tuple[list[Record], str]:
    """Every workload at all batches, in a process that does nothing but search: its memory is the search's."""
    rows = []
    for name, norm in ((name, norm) for name, subject in WORKLOADS.items() for norm in subject.norm_names):
        subject = WORKLOADS[name]
        graphs = [graph_to_json(trace(subject.function(norm), subject.inputs(batch)).graph) for batch in BATCHES]
        words = [sys.executable, __file__, "--one", "--seconds", str(arguments.seconds), "--workers", arguments.workers]
        done = subprocess.run(words, input=json.dumps(graphs), capture_output=True, text=True, check=False)
        result = json.loads(done.stdout) if done.stdout else {"error": done.stderr.strip().splitlines()[-1:]}
        rows.append({"workload": name if norm is None else f"{name} ({norm})", **result})
        tell(f"{name}: {rows[-1]}")
    head = "| workload | search s | cpu s | first s | states | exhausted | other sizes ms | peak MiB |\n" + "|---" * 8 + "|"
    return rows, "\n".join([head, *map(_workload_line, rows)])


def measured(programs: Sequence[Graph], arguments: argparse.Namespace) -> Record:
    """One program, then other sizes of it."""
    device = device_for("cpu")
    limits = Options(cut_seconds=arguments.seconds, closure_seconds=arguments.seconds, finer_tier_seconds=arguments.seconds)
    workers = int(arguments.workers) if arguments.workers.isdecimal() else arguments.workers

    def searched(program: Graph) -> tuple[SearchResult, float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        result = search(program, device, options=limits, workers=workers)
        return result, time.perf_counter() - wall, time.process_time() - cpu

    (result, wall, cpu), *others = map(searched, programs)
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "other_sizes_cpu_seconds": [seconds for _, _, seconds in others],
        "peak_bytes": peak_bytes(),
        "candidates": len(result.candidates),
        "report": result.report.to_json(),
    }


def peak_bytes() -> int:
    """The most memory this process had resident. Linux alone tells; `getrusage` starts from the parent's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _workload_line(row: Record) -> str:
    if "error" in row:
        return f"| {row['workload']} | {' '.join(row['error'])} ||||||||"
    report = row["report"]
    tiers = ", ".join(f"{tier['tier']} to {tier['bound'] or 0}" for tier in report["tiers"])
    done = f"{tiers} operators" if report["exhausted"] else report["exhausted_what"]
    return (
        f"| {row['workload']} | {row['seconds']:.2f} | {row['cpu_seconds']:.2f} | {report['first_found_seconds']:.3f} "
        f"| {report['states']} | {done}{'' if report['cuts_complete'] else ', cuts in part'} "
        f"| {', '.join(f'{seconds * 1e3:.0f}' for seconds in row['other_sizes_cpu_seconds'])} | {row['peak_bytes'] / 2**20:.0f} |"
    )


# --- growth ------------------------------------------------------------------------------------------------------------


def growth(arguments: argparse.Namespace) -> tuple[Record, str]:
    """Process seconds of searches for random programs of 4 to 16 operators, and the power law through their medians."""
    each = max(1, arguments.programs // 10)
    rows: list[Record] = []
    for operators in GROWTH:
        space = ProgramSpace(operators=(operators, operators), sizes=GROWTH_SIZES)
        taken = [_search_seconds(random_program(seed, space), arguments.growth_seconds) for seed in range(each)]
        known = [seconds for seconds, _ in taken if seconds is not None]
        finer = sum(finer for _, finer in taken)
        rows.append({"operators": operators, "seconds": known, "over_time": each - len(known), "all_tiers": finer})
        tell(f"{operators} operators: {rows[-1]}")
    medians = [(row["operators"], _median(row)) for row in rows]
    exponent, factor, fit = power_law([point for point in medians if math.isfinite(point[1])])
    points = [(row["operators"], seconds) for row in rows for seconds in row["seconds"]]
    RESULTS.mkdir(exist_ok=True)
    late = [str(operators) for operators, median in medians if math.isinf(median)]
    without = f"; medians over the limit, left out: {', '.join(late)}" if late else ""
    label = f"seconds = {factor:.2g} n^{exponent:.2f} (R squared {fit:.2f}){without}"
    (RESULTS / "search-growth.svg").write_text(scatter(points, lambda n: factor * n**exponent, "operators n", "seconds", label))
    lines = [f"| operators | median s | most s | over {arguments.growth_seconds:g} s | all tiers |", "|---" * 5 + "|"]
    for row in rows:
        most = max(row["seconds"], default=math.nan)
        lines.append(f"| {row['operators']} | {_median(row):.3f} | {most:.3f} | {row['over_time']} | {row['all_tiers']} |")
    return {"rows": rows, "exponent": exponent, "factor": factor, "fit": fit}, "\n".join([*lines, "", label])


def _median(row: Record) -> float:
    """The median over all programs of a size, those over the time limit taking longer than any: infinity if most do."""
    seconds: list[float] = [*row["seconds"], *[math.inf] * row["over_time"]]
    return statistics.median_high(seconds)


def _search_seconds(program: Graph, limit: float) -> tuple[float | None, bool]:
    """Process seconds until a search from nothing has exhausted the coarsest tier; None beyond the limit.

    Also whether the finer tiers were exhausted in the time they get. The limit is one of process seconds too, so that what else
    the machine does decides nothing.
    """
    KNOWN.clear()
    started = time.process_time()
    since_stage: dict[str, float] = {}

    def look(progress: Progress) -> None:
        since_stage.setdefault(progress.stage, time.process_time() - started)
        if _coarsest_ended(since_stage) is None and time.process_time() - started > limit:
            raise KeyboardInterrupt

    report = search(program, device_for("cpu"), progress=look, options=GROWTH_OPTIONS).report
    seconds = _coarsest_ended(since_stage) or time.process_time() - started
    coarsest = report.tiers[0]
    in_time = coarsest.exhausted and coarsest.cuts_complete and seconds <= limit
    return seconds if in_time else None, in_time and report.exhausted


def _coarsest_ended(since_stage: Mapping[str, float]) -> float | None:
    """When the first stage began that is not of the first tier."""
    coarsest = next(iter(since_stage))
    return next((since for stage, since in since_stage.items() if not stage.startswith(coarsest)), None)


# --- random programs ---------------------------------------------------------------------------------------------------


def random(arguments: argparse.Namespace) -> tuple[list[Record], str]:
    """Random LAX programs of 3 to 10 operators: is every candidate the program, and is none lost against Algorithm 1?"""
    rows: list[Record] = []
    for seed in range(arguments.programs):
        program = random_program(seed, ProgramSpace(operators=FEW_OPERATORS if seed % 3 else MORE_OPERATORS))
        rows.append(compared(seed, program, device_for("cpu"), arguments.seconds, arguments.algorithm_1_seconds))
        tell(f"random program {seed}: {rows[-1]}")
    candidates, wrong, undefined, inexact = (
        sum(row.get(name, 0) for row in rows) for name in ("candidates", "wrong", "undefined", "inexact")
    )
    lost = [row["seed"] for row in rows if row.get("lost")]
    finished = sum(row.get("algorithm_1_finished", False) for row in rows)
    summary = (
        f"{len(rows)} random programs, {sum('error' in row for row in rows)} refused; "
        f"{candidates} candidates: {wrong} that the verifier rejects, {inexact} that differ in float64, "
        f"{undefined} that float64 leaves undefined, sqrt(x) * sqrt(x) for negative x, and superoptimize drops; "
        f"Algorithm 1, {arguments.algorithm_1_seconds:g} s each, finished on {finished}, "
        f"and found better than the closures on {len(lost)}: {lost}"
    )
    return rows, summary


def compared(seed: int, program: Graph, device: Device, limit: float, algorithm_1_limit: float) -> Record:
    """One program: its candidates against it, and the best of them against Algorithm 1's best single kernel."""
    row: Record = {"seed": seed, "operators": len(program.kernels())}
    try:
        found = search(program, device, budget=limit)
    except MugraphError as error:
        return {**row, "error": str(error)}
    row["candidates"] = len(found.candidates)
    row["wrong"] = sum(not verify_graphs(program, candidate.graph).equivalent for candidate in found.candidates)
    errors = [float64_error(program, candidate.graph) for candidate in found.candidates]
    row["undefined"] = errors.count(math.inf)
    row["inexact"] = sum(FLOAT64_ERROR < error < math.inf for error in errors)
    reference = enumerate_graphs(program, device, replace(ALGORITHM_1, time_limit=algorithm_1_limit))
    row["algorithm_1_finished"] = reference.report.exhausted
    ours = min((predicted_seconds(candidate.graph, device) for candidate in found.candidates), default=math.inf)
    theirs = min((predicted_seconds(candidate.graph, device) for candidate in reference.candidates), default=math.inf)
    row["best_seconds"], row["algorithm_1_best_seconds"] = ours, theirs
    row["lost"] = reference.report.exhausted and theirs < ours * (1 - 1e-9)
    return row


def exhaustive(arguments: argparse.Namespace) -> tuple[list[Record], str]:
    """Small random programs against all graphs of Algorithm 1."""
    device = replace(device_for("cpu"), launch_seconds=1e-9)
    rows: list[Record] = []
    for seed in range(10 * arguments.programs):
        program = random_program(seed, EXHAUSTED_SPACE)
        found = search(program, device, budget=arguments.seconds)
        row: Record = {"seed": seed, "operators": len(program.kernels()), "best_seconds": _best(found, device)}
        reports = [
            enumerate_graphs(program, device, replace(options, time_limit=arguments.algorithm_1_seconds))
            for options in EXHAUSTED_KERNELS
        ]
        row["algorithm_1_finished"] = [reference.report.exhausted for reference in reports]
        row["algorithm_1_graphs"] = [reference.report.verified for reference in reports]
        row["algorithm_1_best_seconds"] = [_best(reference, device) for reference in reports]
        row["lost"] = any(theirs < row["best_seconds"] * (1 - 1e-9) for theirs in row["algorithm_1_best_seconds"])
        rows.append(row)
        tell(f"small program {seed}: {row}")
    lost = [row["seed"] for row in rows if row["lost"]]
    finished, compared = (sum(map(all, (row[name] for row in rows))) for name in ("algorithm_1_finished", "algorithm_1_graphs"))
    graphs = [sum(row["algorithm_1_graphs"]) for row in rows]
    summary = (
        f"{len(rows)} small random programs: Algorithm 1, {arguments.algorithm_1_seconds:g} s for one kernel and for two, "
        f"finished both on {finished}, found {sum(graphs)} graphs of {sum(map(bool, graphs))} programs, of {compared} both in "
        f"one kernel and in two, and something cheaper on {len(lost)}: {lost}"
    )
    return rows, summary


def _best(result: SearchResult | EnumerationResult, device: Device) -> float:
    """The least seconds that are predicted for a graph, by the same model for all."""
    return min((predicted_seconds(candidate.graph, device) for candidate in result.candidates), default=math.inf)


def float64_error(program: Graph, graph: Graph) -> float:
    """The largest deviation of a graph's outputs from the program's, both in float64; infinity where it has none."""
    inputs = [array.astype(np.float64) for array in random_inputs(program, seed=0)]
    with np.errstate(all="ignore"):
        wanted, got = (evaluate_batched(side, inputs, FloatArithmetic(np.float64)) for side in (program, graph))
    return max(errors_against(wanted, got, [tensor.dtype for tensor in program.output_tensors]))


# --- containment -------------------------------------------------------------------------------------------------------


def containment(arguments: argparse.Namespace) -> tuple[Record, str]:
    """The verified graphs of Algorithm 1 at the size of the paper's figure, by where the closure engine has them."""
    program, device = rmsnorm(*FIGURE), device_for("cuda:sm_80")
    space = SearchSpace(kernels=1, grids=GRIDS, loops=LOOPS)
    options = EnumerationOptions(max_block_operators=FIGURE_OPERATORS, processes=int(arguments.workers)).within(space)
    found = enumerate_graphs(program, device, options)
    derivations = Derivations(program, FIGURE_OPERATORS)
    places = Counter(derivations.of(candidate.graph) for candidate in found.candidates)
    record = {
        "report": found.report.to_json(),
        "processes": options.processes,
        "cpu_seconds": sum(os.times()[:4]),
        "with_the_figures_schedule": sum(map(_scheduled_as_the_figure, found.candidates)),
        "places": dict(places.most_common()),
    }
    report, size = found.report, "x".join(map(str, FIGURE))
    alike = record["with_the_figures_schedule"]
    placed = "; ".join(f"{count} {place}" for place, count in places.most_common())
    summary = (
        f"Algorithm 1 on RMSNorm {size}, {report.items} first operators, {options.processes} processes: {report.exhausted_what}, "
        f"{report.seconds:.0f} s, {record['cpu_seconds']:.0f} processor seconds, {report.states} states, "
        f"{report.candidates} candidates, {report.verified} verified, {alike} with the figure's grid and for-loop: {placed}"
    )
    return record, summary


def _scheduled_as_the_figure(candidate: Proposal) -> bool:
    """Whether a graph has 128 blocks of 16 iterations."""
    return all(node.body is not None and (node.body.grid, node.body.loop) == ((128,), 16) for node in candidate.graph.kernels())


Part = Callable[[argparse.Namespace], tuple[Any, str]]
PARTS: dict[str, Part] = {
    "workloads": workloads,
    "growth": growth,
    "random": random,
    "exhaustive": exhaustive,
    "containment": containment,
}


if __name__ == "__main__":
    main()
