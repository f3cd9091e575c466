"""Random PyTorch functions, optimized, and then called with other values, aliasing and strides than their examples, beside eager.

    python benchmarks/differential.py                    # 500 functions: about half an hour of one core
    python benchmarks/differential.py --count 20         # a few of them
    python benchmarks/differential.py --seed 17          # one again, with its text

Arguments of a call may be one tensor, views of one buffer, or a tensor that the function captured; they may be transposed,
expanded, sliced with a step or an offset, zero, large, or have a row of NaN. Errors are measured against float64 and allowed ten
times what the function itself makes in fp32, or what it makes of operands that are off by one unit in the last place. A run
that is repeated makes what is missing of `benchmarks/results/differential.json`; exit code 1 where an answer was wrong or a
call crashed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kept import Record, records
from mugraph.testing.functions import compared, random_function

RESULT = Path(__file__).parent / "results" / "differential.json"
FATAL = ("wrong", "crashed", "structure")
"""Kinds of findings that must not be. A verdict speaks of numbers: what infinite arguments give is counted apart."""


def record(seed: int, budget: float) -> Record:
    """What became of the function of a seed."""
    return compared(seed, budget)


def summary(found: Sequence[Record]) -> Record:
    """Counts of functions, calls and findings by kind, with how to see each again."""
    findings = [(entry["seed"], finding) for entry in found for finding in entry["findings"]]
    fatal = [(seed, finding) for seed, finding in findings if finding["kind"] in FATAL]
    return {
        "functions": len(found),
        "with kernels": sum(entry["found"] for entry in found),
        "refused": sum(bool(entry["refused"]) for entry in found),
        "calls": sum(entry["calls"] for entry in found),
        "findings": dict(Counter(finding["kind"] for _, finding in findings)),
        "functions with findings": dict(Counter(kind for kind, _ in {(finding["kind"], seed) for seed, finding in findings})),
        "by call": dict(Counter(f"{finding['kind']}: {finding['call']}" for _, finding in findings).most_common(20)),
        "see again": [f"python benchmarks/differential.py --seed {seed}" for seed in sorted({seed for seed, _ in fatal})],
    }


def main() -> None:
    """Make the records that are missing and print the summary, or show one function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="how many functions: those of the seeds from 0")
    parser.add_argument("--seed", type=int, help="one function alone, with its text; nothing is written")
    parser.add_argument("--budget", type=float, default=1.5, help="seconds for each")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.seed is not None:
        print(random_function(options.seed))
        figures = summary([{"seed": options.seed, **(found := record(options.seed, options.budget))}])
        print(json.dumps(found, indent=1))
    else:
        cases = [{"seed": seed, "budget": options.budget} for seed in range(options.count)]
        figures = summary(records(cases, record, options.output, summary, options.jobs))
        print(json.dumps(figures, indent=1))
    sys.exit(1 if any(figures["findings"].get(kind) for kind in FATAL) else 0)


if __name__ == "__main__":
    main()
