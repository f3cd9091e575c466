"""How seconds of search, proof and compilation grow with the operators of a program, of equal layers and of different ones.

    python benchmarks/growth.py                        # 10 to 1,000 operators
    python benchmarks/growth.py --operators 10 30 100 --kinds equal

A program is a residual stream through layers as in `long_programs.py`: the same layer again and again with weights of its own, or
layers that are drawn one by one. Each is optimized in a process of its own with an empty cache, without measuring. The exponents
are the slopes of lines through logarithms of seconds over those of operators, by least squares, for programs of at least FITTED
operators. Seconds of processors, of this process and its compilers, mean something on a busy machine, too: of the whole call,
and of compiling the results once more (`compiler_seconds`). Records go to `benchmarks/results/growth.json`; those of a program
take the place of earlier ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn

import mugraph
from contestants import processor_seconds
from kept import Record
from long_programs import Layer, Maker, evidence
from mugraph.runtime import build

RESULT = Path(__file__).parent / "results" / "growth.json"
OPERATORS = (10, 30, 100, 300, 1000)
KINDS = ("equal", "different")
ROWS, WIDTH = 8, 32
FITTED = 30
STAGES = ("search_seconds", "verify_seconds", "compile_seconds", "compiler_seconds", "seconds", "processor_seconds")


class Layers(nn.Module):
    """A stream through layers of about so many operators in all."""

    def __init__(self, kind: str, operators: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        maker, self.layers = Maker(random.Random(0), WIDTH), list[Layer]()
        while not self.layers or self.operators < operators:
            if kind == "equal":
                maker.rng = random.Random(0)
            self.layers.append(maker.any()[1])
        self.weights = nn.ParameterList(maker.parameters)

    @property
    def operators(self) -> int:
        """About how many operators PyTorch runs."""
        return sum(operators for _, operators in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind all layers, of the shape of `x`."""
        for apply, _ in self.layers:
            x = apply(x)
        return x


def measured(kind: str, operators: int, budget: float | None) -> Record:
    """One program in this process."""
    torch.set_num_threads(1)
    model, x = Layers(kind, operators), torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        mugraph.superoptimize(torch.exp, (x,), profile=False, cache="off")  # loads what PyTorch traces with
        started, before = time.perf_counter(), processor_seconds()
        opt = mugraph.superoptimize(model, (x,), budget=budget, profile=False, cache="off", seed=0)
    seconds, processor = time.perf_counter() - started, processor_seconds() - before
    made = {"kind": kind, "operators": model.operators, "layers": len(model.layers), "budget": budget}
    made |= {"seconds": seconds, "processor_seconds": processor, "compiler_seconds": _compiler_seconds(opt.results)}
    compiled = sum(result.report.compile_seconds for result in opt.results)
    told = evidence(opt)
    return {**made, "compile_seconds": compiled, **{name: told[name] for name in KEPT}}


def _compiler_seconds(results: Sequence[mugraph.Superoptimized]) -> float:
    """Of processors, for compiling the muGraphs of results once more."""
    before = processor_seconds()
    with tempfile.TemporaryDirectory() as directory:
        for result in results:
            build(result.graph, cache_directory=Path(directory))
    taken: float = processor_seconds() - before
    return taken


KEPT = ("found", "byte_share", "programs", "search_seconds", "verify_seconds", "with_bounds", "largest_bound", "left")


def exponents(found: Sequence[Record]) -> dict[str, dict[str, float]]:
    """For each kind of program and stage the slope of log seconds over log operators."""
    slopes: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        entries = [entry for entry in found if entry["kind"] == kind and entry["operators"] >= FITTED]
        if len(entries) > 1:
            sizes = [math.log(entry["operators"]) for entry in entries]
            slopes[kind] = {
                stage: statistics.linear_regression(sizes, [math.log(max(entry[stage], 1e-3)) for entry in entries]).slope
                for stage in STAGES
                if all(stage in entry for entry in entries)  # older records lack some
            }
    return slopes


def main() -> None:
    """Make the records that are asked for, print a line for each, and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", nargs="+", type=int, default=list(OPERATORS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--budget", type=float, help="seconds of each program; by default searches end by themselves")
    parser.add_argument("--record", type=Path, default=RESULT)
    parser.add_argument("--here", action="store_true", help="one program in this process, as JSON")
    options = parser.parse_args()
    if options.here:
        [kind], [operators] = options.kinds, options.operators
        print(json.dumps(measured(kind, operators, options.budget)))
        return
    for kind in options.kinds:
        for operators in options.operators:
            record = _apart(kind, operators, options.budget)
            _keep(record, options.record)
            stages = ", ".join(f"{stage.removesuffix('_seconds')} {record[stage]:.1f}" for stage in STAGES)
            print(f"{kind}, {record['operators']} operators: {stages}; {record['byte_share']:.0%} of the bytes", flush=True)
    print(json.dumps(json.loads(options.record.read_text())["exponents"], indent=1))


def _apart(kind: str, operators: int, budget: float | None) -> Record:
    """The record of a program that was optimized in a process of its own."""
    command = [sys.executable, __file__, "--kinds", kind, "--operators", str(operators), "--here"]
    command += [] if budget is None else ["--budget", str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record: Record = json.loads(done.stdout.strip().splitlines()[-1])
    return record


def _keep(record: Record, file: Path) -> None:
    """Put a record among those of the file, in the place of an earlier one of its program, and the exponents of all."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"records": []}
    others = [each for each in kept["records"] if (each["kind"], each["operators"]) != (record["kind"], record["operators"])]
    found = sorted([*others, record], key=lambda entry: (entry["kind"], entry["operators"]))
    file.write_text(json.dumps({"exponents": exponents(found), "records": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
