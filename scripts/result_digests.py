"""What the search finds for the six workloads and what targets print of it, as digests: the same before and after a change that
should change neither.

    python scripts/result_digests.py                                  # of this checkout
    PYTHONPATH=OTHER/src python scripts/result_digests.py > other.txt # of another one, to compare with diff

A line is a workload at its small size on a target: how many muGraphs were proposed, and digests of these, of their predicted
costs, and of the sources of the first eight. Only tiers that no time limits are searched for QKNorm, so that a busy machine gives
the same lines.
"""

from __future__ import annotations

import hashlib
import json

from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS, workload
from mugraph.lower.thread_graphs import construct
from mugraph.search import Options, search
from mugraph.targets.machine import machine_for

PRINTED = 8


def main() -> None:
    """Print a line for every workload and target."""
    for name in WORKLOADS:
        graph = trace(workload(name).function(), workload(name).inputs(size="small")).graph
        options = Options(finer_tier_seconds=0.0) if name == "qknorm" else None
        for target in ("cpu", "cuda:sm_90"):
            candidates = search(graph, device_for(target), options=options).candidates
            machine = machine_for(target)
            lowered = (machine.lower(construct(candidate.graph)) for candidate in candidates[:PRINTED])
            sources = [machine.print([launch.kernel for launch in launches.values()]) for launches in lowered]
            digests = (digest("".join(str(c.graph) for c in candidates)), digest("".join(repr(c.cost) for c in candidates)))
            print(f"{name:>10} {target:>10} {len(candidates):>3}", *digests, digest(json.dumps(sources, sort_keys=True)))


def digest(text: str) -> str:
    """The first digits of a SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


if __name__ == "__main__":
    main()
