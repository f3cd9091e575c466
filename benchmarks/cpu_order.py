"""Predicted beside measured on this CPU: the candidates of programs with constant weights, each timed in turns with the others.

    taskset -c 0 python benchmarks/cpu_order.py                           # rmsnorm, gated-mlp, lora, swiglu at 1, 8 and 64 rows
    taskset -c 0 python benchmarks/cpu_order.py attention --rows 128 197  # of so many tokens, 12 heads of 64 each
    python benchmarks/cpu_order.py --again                                # the same points as this version predicts them
    python benchmarks/cpu_order.py --again --plot docs/plots/cpu-order.svg

The search's best candidates, those that begin with a library's product among them, are compiled with packed weights, and run in
rounds in random order, one thread each. Times are medians of processor time, which other work on the machine disturbs least; the
three fastest and the one that is predicted first are timed again, for the least of many medians is least by chance.
`correlation` is Spearman's, of predicted and measured times of the candidates of a case, and `correlation_of_all` of those of all
cases; `regret`, how much slower than the fastest candidate the first predicted one is; `library_error` the median of measured
over predicted for candidates with a library's product, over that of the others: 1 where the two kinds are predicted alike;
`ordered` the share of the pairs of candidates whose times differ by more than a tenth that are in the right order, of all cases;
`error` measured over predicted.
Points are kept with their muGraphs, so that a later version can say what it predicts of them. Records go to
`benchmarks/results/cpu-order.json`, which `--again` reads.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import cpu
from gpu_order import ranking
from kept import Record, records
from mugraph.devices import Device, device_for
from mugraph.frontend import trace
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.lower import construct
from mugraph.runtime import build
from mugraph.search import search
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.scheduling.product_rates import with_product_rate
from plots import against
from ranks import ordered_pairs, rank_correlation

RESULT = Path(__file__).parent / "results" / "cpu-order.json"
PROGRAMS = ("rmsnorm", "gated-mlp", "lora", "swiglu")
ATTENTION, HEADS = "attention", 12
"""The program that multiplies by matrices of a batch instead of weights."""
ROWS = (1, 8, 64)
ROUNDS, SECONDS = 15, 20.0
"""Rounds of all candidates of a case, and after how long no further one starts."""
AGAIN = 3
"""The fastest candidates that are timed once more."""
APART = 0.1
"""How far the times of two candidates must differ for their order to count."""


class Attention(torch.nn.Module):
    """Attention of several heads, as layers have it: heads lie beside each other in the rows of tokens."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Of matrices [tokens, width] of a batch."""
        query, key, value = (x.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def case_of(program: str, rows: int, dtype: str) -> cpu.Case:
    """The module and inputs of a case, of one seed."""
    if program != ATTENTION:
        return cpu.case_of(program, rows, dtype)
    torch.manual_seed(0)
    return cpu.Case(Attention(), tuple(torch.randn(1, rows, HEADS * 64).to(cpu.DTYPES[dtype]) for _ in range(3)))


def program_of(case: cpu.Case) -> Graph:
    """The program of a case, its weights constant."""
    program = trace(case.module, case.inputs).graph
    names = [str(program.nodes[index]["name"]) for index, node in enumerate(program.nodes) if node.is_input]
    return program.with_constants(names[len(case.inputs) :])


def measured(program: str, rows: int, dtype: str, most: int) -> Record:
    """The points of a case: each candidate's muGraph, predicted and measured seconds."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    case = case_of(program, rows, dtype)
    searched = program_of(case)
    device = machine(searched)
    graphs = [construct(candidate.graph) for candidate in search(searched, device).candidates[:most]]
    tensors = [*case.inputs, *case.module.state_dict().values()]
    runs = [_called(graph, tensors) for graph in graphs]
    predicted = [predicted_seconds(graph, device) for graph in graphs]
    points = [
        {"graph": graph_to_json(graph), "library": has_product(graph), "predicted": expected, "measured": taken}
        for graph, expected, taken in zip(graphs, predicted, _medians(runs, predicted.index(min(predicted))), strict=True)
    ]
    return {"searched": graph_to_json(searched), "points": points, **summed_up(points)}


def machine(program: Graph) -> Device:
    """This machine as costs see it in a program: it multiplies by packed weights, or by matrices of a batch, and so many rows."""
    return with_product_rate(program, device_for("cpu"))


def _called(graph: Graph, tensors: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """A call of a candidate, whose weights are packed."""
    executable = build(graph, "cpu")
    inputs = [node.output.shape for node in graph.nodes if node.is_input]
    assert [tuple(shape) for shape in inputs] == [tuple(tensor.shape) for tensor in tensors], "inputs come in the module's order"
    for _ in range(2):
        executable(*tensors)
    return lambda: executable(*tensors)


def _medians(runs: Sequence[Callable[[], Any]], first: int) -> list[float]:
    """Seconds of each run. The fastest are timed again, and the one that is predicted `first`, by turns: of many that take as
    long the least median is least by chance. The others are brought to the speed that the machine has then."""
    times = [statistics.median(taken) for taken in _in_turns(runs, ROUNDS)]
    again = sorted({first, *sorted(range(len(runs)), key=times.__getitem__)[:AGAIN]})
    later = [statistics.median(taken) for taken in _in_turns([runs[number] for number in again], 2 * ROUNDS)]
    speed = sum(later) / sum(times[number] for number in again)
    return [later[again.index(number)] if number in again else seconds * speed for number, seconds in enumerate(times)]


def _in_turns(runs: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of processor time of each run, in rounds of random order; each is called before, so that packed weights that
    candidates share are in no nearer cache than those of one alone."""
    times: list[list[float]] = [[] for _ in runs]
    started = time.monotonic()
    for turn in range(rounds):
        if turn > 2 and time.monotonic() - started > SECONDS:
            break
        for number in random.sample(range(len(runs)), len(runs)):
            runs[number]()
            before = time.process_time()
            runs[number]()
            times[number].append(time.process_time() - before)
    return times


def has_product(graph: Graph) -> bool:
    """Whether a library multiplies matrices in a muGraph."""
    return any(node.op == "matmul" for node in graph.nodes)  # by name, as in call plans


def summed_up(points: Sequence[Record]) -> Record:
    """What the points of a case say together."""
    entries = sorted(({"predicted": each["predicted"], "cold": each["measured"]} for each in points), key=_predicted)
    errors = {kind: [p["measured"] / p["predicted"] for p in points if p["library"] is kind] for kind in (False, True)}
    both = all(errors.values())
    apart = statistics.median(errors[True]) / statistics.median(errors[False]) if both else None
    right, pairs = ordered_pairs([p["predicted"] for p in points], [p["measured"] for p in points], APART)
    error = statistics.median(p["measured"] / p["predicted"] for p in points)
    return {**ranking(entries), "library_error": apart, "right": right, "pairs": pairs, "error": error}


def _predicted(entry: Record) -> float:
    return float(entry["predicted"])


def again(record: Record) -> Record:
    """A record as this version predicts its candidates."""
    device = machine(graph_from_json(record["searched"]))
    points = [{**p, "predicted": predicted_seconds(graph_from_json(p["graph"]), device)} for p in record["points"]]
    return {**record, "points": points, **summed_up(points)}


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """The figures of all cases, and their means."""
    known = [entry["correlation"] for entry in found if entry["correlation"] is not None]
    regrets = [entry["regret"] for entry in found if entry["regret"] is not None]
    apart = [entry["library_error"] for entry in found if entry["library_error"] is not None]
    points = [point for entry in found for point in entry["points"]]
    return {
        "device": device_for("cpu").name,
        "correlation": statistics.fmean(known) if known else None,
        "correlation_of_all": rank_correlation(*([p[kind] for p in points] for kind in ("predicted", "measured"))),
        "candidates": len(points),
        "regret": statistics.fmean(regrets) if regrets else None,
        "within_10_percent": sum(regret <= 0.1 for regret in regrets),
        "cases": len(found),
        "library_error": statistics.median(apart) if apart else None,
        "ordered": sum(entry["right"] for entry in found) / max(1, sum(entry["pairs"] for entry in found)),
        "error": statistics.median(entry["error"] for entry in found),
    }


def called(entry: Record) -> str:
    """The name of a case."""
    return f"{entry['program']} {entry['dtype']} {entry['rows']}"


def plot(found: Sequence[Record]) -> str:
    """Measured over predicted milliseconds of all candidates, as SVG."""
    clusters = {called(r): [(1e3 * p["predicted"], 1e3 * p["measured"]) for p in r["points"]] for r in found}
    drawn: str = against(clusters, "predicted milliseconds", "measured milliseconds of processor time")
    return drawn


def line(entry: Record) -> str:
    """A case in words."""
    figures = [f"{name} {entry[name]:.2f}" for name in ("correlation", "regret", "library_error") if entry[name] is not None]
    pairs = [
        f"{p['predicted'] * 1e3:.2f}/{p['measured'] * 1e3:.2f}{'*' * p['library']}"
        for p in sorted(entry["points"], key=_predicted)
    ]
    return f"{called(entry)}: {', '.join(figures)}; predicted/measured ms (* with a library's product): {' '.join(pairs)}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure the cases that are asked for, or predict those that are kept once more, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--dtypes", nargs="+", choices=cpu.DTYPES, default=list(cpu.DTYPES))
    parser.add_argument("--most", type=int, default=16, help="candidates of a case")
    parser.add_argument("--again", action="store_true", help="predict kept candidates once more; nothing is timed or written")
    parser.add_argument("--record", type=Path, default=RESULT)
    parser.add_argument("--plot", type=Path, help="a file for a picture of all candidates")
    options = parser.parse_args(words)
    if options.again and not options.record.exists():
        parser.error(f"no records in {options.record} yet")
    if options.again:
        found = [again(record) for record in json.loads(options.record.read_text(encoding="utf-8"))["records"]]
    else:
        cases = [
            {"program": program, "rows": rows, "dtype": dtype, "most": options.most}
            for program in options.programs
            for rows in options.rows
            for dtype in options.dtypes
        ]
        found = records(cases, measured, options.record, summary)
    if options.plot:
        options.plot.write_text(plot(found), encoding="utf-8")
    print("\n".join(map(line, found)))
    print(json.dumps(summary(found), indent=1))


if __name__ == "__main__":
    main()
