"""The six workloads, as a user meets them: search time, verification time, and measured times against PyTorch.

    python benchmarks/workloads.py                       # all six, with each norm, fp32 and bf16, batch 8, all cores
    python benchmarks/workloads.py --threads 1 rmsnorm   # one thread for everybody

Every case is one `mugraph optimize --json` in a process of its own; the search uses that one process. Results go to
`benchmarks/results/` with the machine, versions and date; the table goes to stdout.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from mugraph.devices import device_for
from mugraph.devices.host import available_cores
from mugraph.frontend.workloads import WORKLOADS, workload

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the cases asked for, write the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of every contestant")
    parser.add_argument("--name", default="workloads", help="name of the results file")
    options = parser.parse_args()
    variants = [(name, norm) for name in options.workloads for norm in workload(name).norm_names]
    cases = [(*variant, dtype, batch) for variant in variants for dtype in options.dtypes for batch in options.batches]
    rows = [run(*case, options.threads) for case in cases]
    RESULTS.mkdir(exist_ok=True)
    record = {"machine": machine(), "threads": options.threads, "date": now(), "rows": rows}
    file = RESULTS / f"{options.name}-{options.threads}-threads.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(table(rows))


def run(name: str, norm: str | None, dtype: str, batch: int, threads: int) -> dict[str, Any]:
    """One case in a fresh process; a case that fails keeps its error line."""
    command = [sys.executable, "-m", "mugraph", "optimize", name, "--dtype", dtype, "--batch", str(batch), "--json"]
    command += [] if norm is None else ["--norm", norm]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    case = {"workload": name if norm is None else f"{name} ({norm})", "dtype": dtype, "batch": batch}
    print(f"{case['workload']} {dtype} b={batch}: exit code {done.returncode}", file=sys.stderr, flush=True)
    if not done.stdout:
        return {**case, "error": done.stderr.strip().splitlines()[-1:]}
    return {**json.loads(done.stdout), **case}


def machine() -> dict[str, Any]:
    """The machine, as far as a reader needs it to compare."""
    return {"device": device_for("cpu").name, "system": platform.platform(), "python": platform.python_version()}


def now() -> str:
    """The date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table; speedups below 1 are cases mugraph loses."""
    lines = [
        "| workload | dtype | b | kernels | search s | first s | states | verify s | ours ms | best torch ms | speedup | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> str:
    head = f"| {row['workload']} | {row['dtype']} | {row['batch']} |"
    if "error" in row:
        return f"{head} {' '.join(row['error'])} |||||||||"
    first = "none" if row["first_found_seconds"] is None else f"{row['first_found_seconds']:.2f}"
    best = min(row["baselines"].values(), default=float("nan"))
    error = "none" if row["max_relative_error"] is None else f"{row['max_relative_error']:.1e}"
    speedup = "none" if row["speedup"] is None else f"{row['speedup']:.2f}"
    return (
        f"{head} {row['kernels']} | {row['search_seconds']:.2f} | {first} | {row['states']} | {row['verify_seconds']:.1f} "
        f"| {row['latency'] * 1e3:.3f} | {best * 1e3:.3f} | {speedup} | {error} |"
    )


if __name__ == "__main__":
    main()
