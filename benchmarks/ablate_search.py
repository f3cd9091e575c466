"""The ablation of the paper's Table 4: seconds of the search for RMSNorm against the limit of block operators.

    python benchmarks/ablate_search.py                          # a small RMSNorm, limits 5 to 8, 60 s a cell
    python benchmarks/ablate_search.py --limits 11 --seconds 3600

Algorithm 1 on all cores, on one process, without the expression check, and without the dead-tensor bound, which the
paper does not have; then the closure engine, which searches once for all sizes. A cell over its time limit
says so, with the part of its work items that were finished. Results go to `benchmarks/results/`; the table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mugraph import Program
from mugraph.devices import device_for
from mugraph.devices.host import available_cores
from mugraph.ir import Graph
from mugraph.search import Options, search
from mugraph.search.enumeration import EnumerationOptions, enumerate_graphs

RESULTS = Path(__file__).parent / "results"

PAPER = {
    5: ("11 s", "58 s", "768 s"),
    6: ("16 s", "93 s", "19934 s"),
    7: ("22 s", "150 s", "> 10 h"),
    8: ("24 s", "152 s", "> 10 h"),
    9: ("26 s", "166 s", "> 10 h"),
    10: ("26 s", "166 s", "> 10 h"),
    11: ("28 s", "183 s", "> 10 h"),
}
"""The paper's row for each limit: full, one process, without abstract expressions (on another machine and input sizes)."""

Cell = dict[str, Any]


def main() -> None:
    """Run the cells asked for, write them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", nargs="+", type=int, default=[5, 6, 7, 8])
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of a cell")
    parser.add_argument("--shape", nargs=3, type=int, default=[4, 12, 10], help="rows, hidden size, columns")
    parser.add_argument("--processes", type=int, default=available_cores())
    arguments = parser.parse_args()
    program = rmsnorm(*arguments.shape)
    base = EnumerationOptions(grids=((2,),), loops=(1, 2), time_limit=arguments.seconds)
    variants: dict[str, Callable[[int], Cell]] = {
        "full": lambda limit: enumerated(program, replace(base, max_block_operators=limit, processes=arguments.processes)),
        "one process": lambda limit: enumerated(program, replace(base, max_block_operators=limit)),
        "no expressions": lambda limit: enumerated(program, replace(base, max_block_operators=limit, expression_check=False)),
        "no dead-tensor bound": lambda limit: enumerated(
            program, replace(base, max_block_operators=limit, dead_tensor_bound=False)
        ),
        "closure": lambda limit: closed(program, limit),
    }
    rows = []
    for limit in arguments.limits:
        row: dict[str, Any] = {"limit": limit, "paper": PAPER.get(limit)}
        for name, run in variants.items():
            row[name] = run(limit)
            print(f"{limit} operators, {name}: {text(row[name])}", file=sys.stderr, flush=True)
        rows.append(row)
    RESULTS.mkdir(exist_ok=True)
    record = {"shape": arguments.shape, "processes": arguments.processes, "seconds": arguments.seconds, "rows": rows}
    (RESULTS / "ablate-search.json").write_text(json.dumps(record, indent=1) + "\n")
    print(table(rows, list(variants)))


def rmsnorm(rows: int, hidden: int, columns: int) -> Graph:
    """RMSNorm with gain and a linear layer, the factor 1/d and the eps of real models left out."""
    program = Program()
    x, gain, weight = program.input("x", (rows, hidden)), program.input("g", (hidden,)), program.input("w", (hidden, columns))
    program.output(x * gain / x.square().sum(-1, keepdim=True).sqrt() @ weight)
    return program.graph


def enumerated(program: Graph, options: EnumerationOptions) -> Cell:
    """One cell of Algorithm 1."""
    return enumerate_graphs(program, device_for("cpu"), options).report.to_json()


def closed(program: Graph, limit: int) -> Cell:
    """One cell of the closure engine, a single kernel; it saturates whatever the limit, and extracts up to it."""
    started = time.monotonic()
    result = search(program, device_for("cpu"), options=Options(max_kernels=1, block_operators=limit, most_block_operators=limit))
    found = {
        "states": result.report.states,
        "verified": len(result.candidates),
        "exhausted": result.report.exhausted,
        "items": 1,
        "items_finished": int(result.report.exhausted),
    }
    return {**found, "seconds": time.monotonic() - started}


def text(cell: Cell) -> str:
    """A cell in words."""
    figures = f"{cell['seconds']:.1f} s, {cell['states']} states, {cell['verified']} graphs"
    return figures if cell["exhausted"] else f"> {figures} ({cell['items_finished']} of {cell['items']} items)"


def table(rows: Sequence[dict[str, Any]], variants: Sequence[str]) -> str:
    """The table in Markdown, the paper's row beside ours."""
    lines = [f"| operators | {' | '.join(variants)} | paper: full, one process, no expressions |"]
    lines.append("|" + "---|" * (len(variants) + 2))
    for row in rows:
        cells = " | ".join(text(row[name]) for name in variants)
        lines.append(f"| {row['limit']} | {cells} | {', '.join(row['paper'] or ('-',))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
