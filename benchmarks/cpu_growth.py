"""Kernels for the CPU beside the rivals of `cpu.py` as batches, contexts and numbers of threads grow.

    python benchmarks/cpu_growth.py --seconds 60                 # to be repeated until nothing is missing: five minutes at most
    python benchmarks/cpu_growth.py gqa --sizes 128 1024 --dtypes fp32 --threads 2

`rmsnorm` and, where it is named, `gated-mlp` are the paper's at batches of 1 to 2,048 rows, `gqa` its attention of one sequence
(2 heads of keys, 8 queries each, 128 wide) behind 128 to 32,768 keys, as at decode. Contestants, calls, pauses, comparison with
float64 and what a record has are those of `benchmarks/cpu.py`, a process for each case, but for half as many bursts. With
`--seconds` no case is begun later than that. A case that takes longer than `--limit` ends, and its record says so. Records go to
`benchmarks/results/cpu-growth.json`, and are made again by other sources alone; `python benchmarks/cpu_page.py` draws them and
puts them into docs/cpu-measured.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cpu
from cpu import DTYPES, Case
from kept import Record, answer_of, records
from mugraph.devices import device_for
from mugraph.devices.host import available_cores
from mugraph.frontend.workloads import workload

RESULT = Path(__file__).parent / "results" / "cpu-growth.json"
BURSTS = 6
USUAL = ("rmsnorm", "gqa")
"""Programs that are measured unless others are named."""
NAMED = ("case", "size", "dtype", "threads", "wait")
"""What a case is called by in the table."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A program whose inputs grow with what is called by this name: its sizes, and its case at a size and type."""

    name: str
    sizes: tuple[int, ...]
    case: Callable[[int, str], Case]


def _doubled(least: int, most: int) -> tuple[int, ...]:
    """Powers of two times the least, up to the most."""
    return tuple(itertools.takewhile(lambda size: size <= most, (least << power for power in itertools.count())))


def attention(context: int, dtype: str) -> Case:
    """The paper's group-query attention of one sequence, with so many keys."""
    torch.manual_seed(0)
    row = workload("gqa")
    shapes = {name: shape if name == "q" else (*shape[:2], context, *shape[3:]) for name, shape in row.shapes(1).items()}
    tensors = {name: torch.randn(shape).to(DTYPES[dtype]) for name, shape in shapes.items()}
    return Case(cpu.Held(row.function(), tensors).eval(), tuple(tensors.values()))


BATCHES = _doubled(1, 2048)
GROWTHS = {
    "rmsnorm": Growth("batch", BATCHES, partial(cpu.case_of, "rmsnorm")),
    "gated-mlp": Growth("batch", BATCHES, partial(cpu.case_of, "gated-mlp")),
    "gqa": Growth("context", _doubled(128, 32768), attention),
}


def timed(*, case: str, size: int, dtype: str, threads: int, budget: float, **_: Any) -> Record:
    """The record of a case, made in this process."""
    return cpu.timed(partial(GROWTHS[case].case, size, dtype), threads, budget, BURSTS)


def made(*, limit: float, **case: Any) -> Record:
    """The record of a case, by a process of its own that ends after so many seconds."""
    environment = cpu.waiting(case["wait"], case["threads"])
    return answer_of([__file__, "--one", json.dumps(case)], limit, environment)


def cases(options: argparse.Namespace) -> Iterator[Record]:
    """What is asked for, of which programs have the size."""
    device = device_for("cpu").name
    for name, dtype, threads in itertools.product(options.names or USUAL, options.dtypes, options.threads):
        for size in options.sizes or GROWTHS[name].sizes:
            case = {"case": name, "size": size, "dtype": dtype, "threads": threads, "wait": options.wait}
            yield case | {"budget": options.budget, "device": device}


def line(row: Mapping[str, Any]) -> str:
    """A row of the table, milliseconds of a call."""
    return f"| {' | '.join((*(str(row[name]) for name in NAMED), *cpu.cells(row)))} |"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown; below it what they have in common."""
    titles = (*NAMED, *cpu.CELLS)
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *map(line, rows)]
    return "\n".join([*lines, "", json.dumps(summary(rows), indent=1)])


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows of each program say together."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if (found := cpu.ratio(row)) is not None:
            ratios.setdefault(f"{row['case']} {row['dtype']}, threads {row['threads']}", []).append(found)
    return {what: cpu.standing(each) for what, each in ratios.items()}


def main(words: Sequence[str] | None = None) -> None:
    """Run each case in a process of its own, write the records, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"of {', '.join(GROWTHS)}")
    parser.add_argument("--sizes", nargs="+", type=int, help="batches or contexts")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[*range(1, available_cores() + 1)])
    parser.add_argument("--wait", default="default", choices=cpu.WAITS, help="how threads wait for work")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of each search")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no case is begun")
    parser.add_argument("--limit", type=float, default=230.0, help="seconds that a case may take")
    parser.add_argument("--record", type=Path, default=RESULT, help="a file of JSON that records are kept in")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.one is not None:
        print(json.dumps(timed(**options.one)))
        return
    if unknown := [name for name in options.names if name not in GROWTHS]:
        parser.error(f"no case {unknown[0]}; use some of {' '.join(GROWTHS)}")
    make = partial(made, limit=options.limit)
    print(table(records([*cases(options)], make, options.record, summary, seconds=options.seconds)))


if __name__ == "__main__":
    main()
