"""Random valid muGraphs with all levels, maps, loops, accumulators, types and layouts, run on every target beside float64.

    python benchmarks/random_mugraphs.py                     # 2,000 muGraphs: an hour of one core
    python benchmarks/random_mugraphs.py --count 100         # a few of them
    python benchmarks/random_mugraphs.py --minutes 5         # as many as that allows
    python benchmarks/random_mugraphs.py --seed 17           # one again, with its text
    python benchmarks/random_mugraphs.py --statistics --count 600       # others, whose loops take sums and maxima of rows
    python benchmarks/random_mugraphs.py --targets cuda-on-gpu triton-on-gpu --output FILE      # on the GPU that is here

Each is evaluated in float64, block by block and iteration by iteration, and lowered, compiled and run on the CPU, on the emulator
of CUDA and in Triton's interpreter, for sm_80, sm_90 and sm_100 in turn; every tenth is compiled by NVRTC and by Triton too. With
generated thread graphs it must be valid and mean the same ("constructed"). It is equal within what rounding explains, or refused
by a typed error before anything ran; else exit code 1. Which combinations of features were met is counted in kernels: two
features meet where one kernel has both. A run that is repeated makes what is missing of
`benchmarks/results/random-mugraphs.json`; with `--statistics`, of `random-statistics.json`, which counts beside all that the
muGraphs with reductions that stay in registers on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kept import Record, records
from mugraph.errors import MugraphError
from mugraph.ir.graph import Graph
from mugraph.ir.validity import check
from mugraph.testing.kernel_features import features as lowered_features
from mugraph.testing.mugraph_features import FEATURES, IMPOSSIBLE, features
from mugraph.testing.mugraph_runs import (
    COMPILERS,
    FAULTS,
    ON_GPU,
    TARGETS,
    Ending,
    RunOutcome,
    compiled,
    constructed,
    machine_of,
    outcome,
    trial_of_seed,
)

RESULTS = Path(__file__).parent / "results"
HELD = "reductions in registers"
COMPILED_EVERY = 10
CHUNK = 50
"""muGraphs between two looks at the clock."""


def record(seed: int, targets: str, statistics: bool = False) -> Record:
    """How the muGraph of a seed fared, and the features of each of its kernels as the bits of a number.

    Of one whose loops take `statistics` of rows, also whether some stay in registers.
    """
    trial = trial_of_seed(seed, statistics)
    check(trial.graph)
    machines = {target: machine_of(target, seed) for target in targets.split()}
    runs = {target: outcome(trial, machine) for target, machine in machines.items()}
    runs["constructed"] = constructed(trial, list(machines.values()))
    if seed % COMPILED_EVERY == 0:
        runs |= {f"{name} compiled": compiled(trial.graph, name, seed) for name in COMPILERS if name in runs}
    return {
        "kernels": [f"{sum(1 << FEATURES.index(name) for name in kernel):x}" for kernel in features(trial.graph)],
        "endings": {target: run.ending for target, run in runs.items()},
        "error": {target: float(f"{run.share:.2g}") for target, run in runs.items() if run.ending is Ending.EQUAL},
        "messages": {target: _said(run) for target, run in runs.items() if run.message},
    } | ({HELD: _holds_reductions(trial.graph, seed)} if statistics else {})


def _holds_reductions(graph: Graph, seed: int) -> bool:
    """Whether some kernel of a muGraph for a GPU has a reduction that stays in registers; False of one that is refused."""
    try:
        launches = machine_of("cuda", seed).lower(graph).values()
    except MugraphError:
        return False
    return HELD in lowered_features(launch.kernel for launch in launches)


def _said(run: RunOutcome) -> str:
    return run.message if run.ending in FAULTS else run.reason


def summary(found: Sequence[Record]) -> Record:
    """Counts of endings by target and by feature, why muGraphs were refused, and how many pairs of features were met."""
    runs = [(entry, target, ending) for entry in found for target, ending in entry["endings"].items()]
    targets = list(dict.fromkeys(target for _, target, _ in runs))
    faulty = sorted({entry["seed"] for entry, _, ending in runs if ending in FAULTS})
    refusals = Counter(f"{target}: {entry['messages'][target]}" for entry, target, ending in runs if ending == Ending.REFUSED)
    return {
        "muGraphs": len(found),
        "kernels": sum(len(entry["kernels"]) for entry in found),
        "endings": {target: dict(Counter(ending for _, other, ending in runs if other == target)) for target in targets},
        **({HELD: sum(entry[HELD] for entry in found)} if found and HELD in found[0] else {}),
        "largest error of what is allowed": max((error for entry in found for error in entry["error"].values()), default=0.0),
        "refusals": dict(refusals.most_common()),
        "see again": [f"python benchmarks/random_mugraphs.py --seed {seed}{_option(found)}" for seed in faulty],
        "pairs": {
            target: _pairs([e for e in found if e["endings"].get(target) == Ending.EQUAL])
            for target in (*TARGETS, *ON_GPU)
            if target in targets
        },
        "features": {name: _by_target(found, name, targets) for name in FEATURES},
    }


def _option(found: Sequence[Record]) -> str:
    return " --statistics" if HELD in found[0] else ""


def _pairs(found: Sequence[Record]) -> Record:
    """Of all pairs of features that a kernel can have, how many some kernel had of a muGraph that was equal; and the others."""
    together = [0] * len(FEATURES)
    """For each feature those that some kernel had beside it, as bits."""
    for kernel in {int(kernel, 16) for entry in found for kernel in entry["kernels"]}:
        for number in range(len(FEATURES)):
            if kernel >> number & 1:
                together[number] |= kernel
    numbers = itertools.combinations(range(len(FEATURES)), 2)
    met = {(FEATURES[first], FEATURES[second]) for first, second in numbers if together[first] >> second & 1}
    possible = [pair for pair in itertools.combinations(FEATURES, 2) if frozenset(pair) not in IMPOSSIBLE]
    missing = [pair for pair in possible if pair not in met]
    return {
        "possible": len(possible),
        "met": len(possible) - len(missing),
        "missing": [" + ".join(pair) for pair in missing[:100]],
    }


def _by_target(found: Sequence[Record], name: str, targets: Sequence[str]) -> str:
    """In how many muGraphs a feature is, and how they ended: one row of a table."""
    number = FEATURES.index(name)
    having = [entry for entry in found if any(int(kernel, 16) >> number & 1 for kernel in entry["kernels"])]
    counts = {target: Counter(entry["endings"][target] for entry in having if target in entry["endings"]) for target in targets}
    ended = (f"{target} {', '.join(f'{n} {end}' for end, n in count.most_common())}" for target, count in counts.items() if count)
    return f"{len(having)} muGraphs: {'; '.join(ended)}"


def main() -> None:
    """Make the records that are missing and print the summary, or show one muGraph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="how many muGraphs: those of the seeds from 0")
    parser.add_argument("--seed", type=int, help="one muGraph alone, with its text; nothing is written")
    parser.add_argument("--targets", nargs="+", choices=TARGETS + ON_GPU, default=list(TARGETS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more muGraphs after that")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--statistics", action="store_true", help="muGraphs whose loops take sums and maxima of rows")
    parser.add_argument("--output", type=Path, help="the record; by default one of benchmarks/results/")
    options = parser.parse_args()
    targets = " ".join(options.targets)
    if options.seed is not None:
        print(trial_of_seed(options.seed, options.statistics).graph)
        found = [{"seed": options.seed, **record(options.seed, targets, options.statistics)}]
        print(json.dumps(found[0], indent=1))
    else:
        more = {"statistics": True} if options.statistics else {}
        found = _recorded(options, [{"seed": seed, "targets": targets, **more} for seed in range(options.count)])
        print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(ending in FAULTS for entry in found for ending in entry["endings"].values()) else 0)


def _recorded(options: argparse.Namespace, cases: list[Record]) -> list[Record]:
    """The records of the cases, or of as many as the time allows."""
    end, found = time.monotonic() + 60 * options.minutes, list[Record]()
    output = options.output or RESULTS / f"random-{'statistics' if options.statistics else 'mugraphs'}.json"
    for first in range(0, len(cases), CHUNK):
        if time.monotonic() >= end:
            break
        found += records(cases[first : first + CHUNK], record, output, summary, options.jobs)
    return found


if __name__ == "__main__":
    main()
