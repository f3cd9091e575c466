"""What the best kernels of the paper's workloads are expected to do on a GPU, told without one: a table and a page of the docs.

    python benchmarks/gpu_expected.py --host --page             # batches 1, 8 and 16 on A100, H100 and B200
    python benchmarks/gpu_expected.py --targets cuda:sm_90 --batches 1 --workloads gqa --output gqa.json

A row for each generated kernel of the first candidate, bf16 at full size (kernels of the library have none): microseconds of the
program at the device's full rates (`bound`) and of all its kernels by the cost model (`predicted`); bytes that copies have on
their way to one multiprocessor while its blocks compute, or its threads while they wait where a kernel has no ring; the predicted
share of issue slots that threads need for copies and operators; and how many instructions of matrix units wait for each other's
sums. `--host` adds microseconds of the host for a call, which the tests of the launcher measure under a stub of the driver.
`--before FILE` takes what this printed by other sources (`git worktree add`), to stand beside what it says now. Records go to
`benchmarks/results/gpu-expected.json`, a run that is repeated makes those that are missing, and `--page` writes
`docs/gpu-expected.md`, which is made of these and of the records of `gpu_found.py` alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kept import Record, record_text, records
from last_block import forms, of_even_wave, pair_of
from mugraph.devices import Device, device_for, known_targets, roofline_seconds
from mugraph.devices.copies import COPY_BYTES
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.lower import construct, lower
from mugraph.lower.fragments import instruction_depth, on_matrix_units
from mugraph.lower.staging import slots
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.search import search
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import kernel_seconds
from mugraph.targets.cuda.machine import Cuda

ROOT = Path(__file__).parent.parent
TESTS_OF_LAUNCHES = "tests/targets/cuda/test_stub.py"
RESULTS = ROOT / "benchmarks" / "results"
RESULT, FOUND, PAGE = RESULTS / "gpu-expected.json", RESULTS / "gpu-found.json", ROOT / "docs" / "gpu-expected.md"
TARGETS = {"cuda:sm_80": "A100", "cuda:sm_90": "H100", "cuda:sm_100": "B200"}
BATCHES = (1, 8, 16)
COUNTS = ("one", "two", "three")
"""Kernels of the results whose calls the tests of the launcher measure."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel as it is expected to run; times in microseconds, bytes of one multiprocessor."""

    workload: str
    batch: int
    target: str
    kernel: str
    bound: float
    predicted: float
    bytes_in_flight: int
    issue_share: float
    chain: int

    @property
    def figures(self) -> tuple[str, ...]:
        """What other sources may say otherwise."""
        return (f"{self.predicted:.1f}", f"{self.bytes_in_flight / 1024:.0f}", f"{self.issue_share:.0%}", str(self.chain))


def record(workload: str, batch: int, target: str) -> Record:
    """What is expected of a workload's first candidate: its generated kernels, how many kernels it has in all, and forms of those
    that combine partial results."""
    device = device_for(target)
    program = trace(WORKLOADS[workload].function(), WORKLOADS[workload].inputs(batch, "bf16", "full")).graph
    best = search(program, device).candidates[0]
    graph = construct(best.graph)
    lowered = Cuda.described(target).lower(graph)
    launches = lowered.values()
    bodies = [node.body for node in best.graph.kernels() if node.body is not None]
    kernels = [
        {
            "kernel": launch.kernel.name,
            "bytes_in_flight": in_flight(launch.kernel, device),
            "issue_share": issue_share(body, device),
            "chain": chain(launch.kernel),
        }
        for body, launch in zip(bodies, launches, strict=True)
    ]
    return {
        "bound": 1e6 * roofline_seconds(program, device),
        "predicted": 1e6 * best.cost,
        "launches": len(best.graph.kernels()),
        "kernels": kernels,
        "combined": [*_combined(graph, [launch.kernel.resident for launch in launches], device)],
    }


def _combined(graph: Graph, beside: Sequence[int], device: Device) -> Iterator[Record]:
    """The kernels of a muGraph that combine what the one before has written, the forms that this could have, and how full the
    last wave of the one before is, so many of whose blocks run side by side."""
    for (first, second), resident in zip(itertools.pairwise(lower(graph).values()), beside, strict=False):
        pair = pair_of(first, second)
        if pair is not None:
            even, split = of_even_wave(first, resident, device), float(kernel_seconds(device, demand(first.body, device)))
            waves = math.prod(first.kernel.grid) / (resident * device.multiprocessors)
            of_first = {"waves": waves, "split": split, "even": min(even, split)}
            yield {"kernel": second.kernel.name, **asdict(pair), **of_first, **asdict(forms(pair, second, device))}


def rows(found: Iterable[Record]) -> Iterator[Row]:
    """A row for each generated kernel of records."""
    for each in found:
        whole = {name: each[name] for name in ("workload", "batch", "target", "bound", "predicted")}
        yield from (Row(**whole, **kernel) for kernel in each["kernels"])


def in_flight(kernel: Kernel, device: Device) -> int:
    """Bytes on their way to a multiprocessor: of the slots that are filled ahead, or 16 of each thread of a kernel without."""
    beside = min(kernel.resident, math.ceil(math.prod(kernel.grid) / device.multiprocessors))
    if kernel.ring is None:
        return beside * kernel.threads * COPY_BYTES
    ring = kernel.ring.ahead * kernel.ring.slot * kernel.buffer(kernel.ring.buffer).dtype.bytes
    staged = sum(kernel.buffer(staged.buffer).bytes for staged in kernel.staged)
    ahead = staged - staged // slots(kernel) if staged else 0
    return beside * (ring + ahead)


def issue_share(body: Graph, device: Device) -> float:
    """Part of a kernel's predicted time that its threads issue instructions other than those of matrix units."""
    free = dict.fromkeys(device.matmul_flops, math.inf)
    threads = replace(
        device,
        memory_bandwidth=math.inf,
        cache_bandwidth=math.inf,
        matmul_flops=free,
        tf32_flops=None if device.tf32_flops is None else math.inf,
        launch_seconds=0.0,
        load_seconds=0.0,
    )
    return float(kernel_seconds(threads, demand(body, threads)) / kernel_seconds(device, demand(body, device)))


def chain(kernel: Kernel) -> int:
    """Instructions of matrix units that a warp adds to one sum one after the other, of the product that has most."""
    parts = ((kernel.before, 1), (kernel.body, kernel.loop), (kernel.after, 1))
    return max(
        (
            (times if product.accumulate else 1) * product.left.shape[-1] // _depth_of_chain(product)
            for part, times in parts
            for product in part
            if isinstance(product, Matmul) and on_matrix_units(product)
        ),
        default=0,
    )


def _depth_of_chain(product: Matmul) -> int:
    """Values of k for each instruction of a chain."""
    parts = 1 if product.panels is None else product.panels.parts
    return parts * instruction_depth(product)


def table(found: Iterable[Row]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield "| workload | batch | device | kernel | bound, µs | predicted, µs | KB in flight | issue slots | chain |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in found:
        names = (row.workload, str(row.batch), row.target, row.kernel)
        yield f"| {' | '.join((*names, f'{row.bound:.1f}', *row.figures))} |"


Figures = dict[str, list[list[str]]]
"""By workload, batch and target: the figures of each kernel, as they were printed."""


def printed(text: str) -> Figures:
    """The figures of a table that `table` made."""
    found: Figures = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 9 and cells[1].isdigit():
            found.setdefault(" ".join(cells[:3]), []).append(cells[5:])
    return found


def host_microseconds() -> dict[str, float]:
    """Microseconds of the host for a call of a result of so many kernels, under the stub of the driver."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:xdist", TESTS_OF_LAUNCHES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    return {name: float(value) for name, value in re.findall(r"(\w+): ([\d.]+) us of the host", done.stdout)}


_OPENING = """# What a GPU is expected to show

Of each generated kernel of the first candidate for the paper's workloads, bf16 at full size, what is known without a GPU. This
page is made by `python benchmarks/gpu_expected.py --host --page` of `gpu-expected.json` and `gpu-found.json` in
`benchmarks/results/`; what an H100 and an H200 have shown stands in [cuda-measured.md](cuda-measured.md#on-an-h100), and what a
machine with a GPU should run next in [gpu-queue.md](gpu-queue.md).

- **bound**: microseconds of the program at the device's full rates; no schedule goes below.
- **predicted**: microseconds of all kernels of the candidate, by [the cost model](cuda-target.md#what-costs-are-made-of).
- **KB in flight**: on their way to one multiprocessor while its blocks compute, or its threads while they wait where a kernel has
  no ring. The latency of one load times bandwidth is 9 KB on an H100. Rings are made for [three
  latencies](cuda-target.md#copies-and-rings), 28 KB, which is a choice and not measured; kernels without a ring mostly have less
  than one, and their predictions are made of waiting for loads.
- **issue slots**: the predicted share that threads need for copies and operators.
- **chain**: instructions of matrix units that add to one sum one after the other.
- **host**: microseconds of a call of a result with as many kernels under [the stub of the
  driver](cuda-target.md#a-call-on-the-host), without what allocating outputs takes; a call on a GPU takes the longer of host and
  kernels where calls follow each other, and a CUDA graph has no host part.
"""
_CHANGED = """
Where two figures stand in a cell, the first is what the sources of {revision} said (2026-11-26, before warps shared out the
values of k of a panel and rings lagged); where there were other kernels then, there is one.
"""
_COMBINING = """
## Partial results, and who combines them

A kernel that shares out what is summed among blocks leaves partial results, and a second one combines them. How many `waves` of
blocks that run at once the first kernel has; by the cost model, microseconds of it (`parts`) and of the same work shared out
evenly among the blocks of one wave (`even`, where that is less), which [grids of equal parts
cannot](cuda-target.md#split-keys-in-one-wave); of the second kernel with its launch (`alone`), of a last block of each group that
combines the parts instead, and of as many blocks of the group as the second kernel has, which wait for each other (`shared out`);
why kernels are launched alone, and what the others would need, stands in
[cuda-target.md](cuda-target.md#partial-results-and-the-last-block).
"""
_FINDING = """
## How long results take to be found

Seconds of `superoptimize(..., target="{target}", cache="off")` without a budget on a machine without a GPU, {cores} cores of it:
by the clock, of the processor with compilers included, and by the clock until the first muGraph was proved; each program at batch
16 in a process of its own, imports and example inputs left out, what PyTorch loads for its first trace (2 seconds of a
processor) counted. Where other programs want the cores, the load says so, and so does the clock (`python
benchmarks/gpu_found.py`).{unprinted}
"""
_UNPRINTED = """

Of {programs} no block of printed text was run, for none was printed: what was found is the product of PyTorch's library."""


def page(stored: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    """The page of stored records with their summary, and of those of how long results take to be found."""
    found, before, host = stored["records"], stored["summary"]["before"], stored["summary"]["host_microseconds"]
    parts = [_OPENING, _CHANGED.format(revision=f"`{before['revision']}`") if before else ""]
    for target, name in TARGETS.items():
        parts.append(f"\n## {name}\n\n")
        parts += [f"{line}\n" for line in _of_device([each for each in found if each["target"] == target], before, host)]
    parts.append(_COMBINING + "\n")
    parts += [f"{line}\n" for line in _combining(found)]
    unprinted = dict.fromkeys(f"`{each['program']}`" for each in finding["records"] if each.get("blocks", 0) is None)
    words = _UNPRINTED.format(programs=" and ".join(unprinted)) if unprinted else ""
    parts.append(_FINDING.format(target=finding["records"][0]["target"], cores=finding["cores"], unprinted=words) + "\n")
    parts += [f"{line}\n" for line in _seconds(finding["records"])]
    return "".join(parts)


def _of_device(found: Iterable[Record], before: Mapping[str, Any], host: Mapping[str, float]) -> Iterator[str]:
    """The lines of a device's table."""
    yield "| workload | batch | kernel | bound, µs | predicted, µs | KB in flight | issue slots | chain | host, µs |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in found:
        own = [*rows([each])]
        then = (before["figures"] if before else {}).get(f"{each['workload']} {each['batch']} {each['target']}", [])
        count = each["launches"]
        calls = f"{host[COUNTS[count - 1]]:.1f}" if len(own) == count <= len(COUNTS) and COUNTS[count - 1] in host else ""
        for number, row in enumerate(own):
            old = then[number] if len(then) == len(own) else row.figures
            figures = (now if was == now else f"{was}, {now}" for was, now in zip(old, row.figures, strict=True))
            yield f"| {' | '.join((row.workload, str(row.batch), row.kernel, f'{row.bound:.1f}', *figures, calls))} |"


def _combining(found: Iterable[Record]) -> Iterator[str]:
    """The lines of the table of kernels that combine."""
    columns = "| groups | parts | waves | parts, µs | even | combining blocks | KB of a group | alone | last block | shared out |"
    yield f"| workload | batch | device {columns}"
    yield f"|---|---|---{'|---' * columns.count(' | ')}|---|"
    for each in found:
        for pair in each["combined"]:
            names = (each["workload"], str(each["batch"]), TARGETS.get(each["target"], each["target"]))
            first = (str(pair["groups"]), str(pair["parts"]), f"{pair['waves']:.2f}", *microseconds(pair, "split", "even"))
            second = (str(pair["groups"] * pair["combining"]), f"{pair['group_bytes'] / 1024:.0f}")
            times = microseconds(pair, "alone", "last_block", "shared_out")
            yield f"| {' | '.join((*names, *first, *second, *times))} |"


def microseconds(record: Record, *names: str) -> tuple[str, ...]:
    """Seconds of a record as a table has them."""
    return tuple(f"{1e6 * record[name]:.1f}" for name in names)


def _seconds(finding: Iterable[Record]) -> Iterator[str]:
    """The lines of the table of how long results take to be found."""
    yield "| program | type | clock | processor | first proof | load |"
    yield "|---|---|---|---|---|---|"
    for each in finding:
        names = ("clock_seconds", "processor_seconds", "first_proof_seconds", "load")
        figures = ("none" if each[name] is None else f"{each[name]:.1f}" for name in names)
        yield f"| {' | '.join((each['program'], each['dtype'], *figures))} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the records that are missing, print the table, and write the page where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [target for target in known_targets() if target.startswith("cuda:")]
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=known, metavar="TARGET")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--host", action="store_true", help="measure what calls take of the host")
    parser.add_argument("--before", nargs=2, metavar=("REVISION", "FILE"), help="what this printed by the sources of a revision")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    asked = parser.parse_args(arguments)
    summary = json.loads(asked.output.read_text(encoding="utf-8"))["summary"] if asked.output.exists() else {}
    summary = {"host_microseconds": summary.get("host_microseconds", {}), "before": summary.get("before", {})}
    if asked.host:
        summary["host_microseconds"] = host_microseconds()
    if asked.before:
        revision, file = asked.before
        summary["before"] = {"revision": revision, "figures": printed(Path(file).read_text(encoding="utf-8"))}
    cases = [
        {"workload": workload, "batch": batch, "target": target}
        for workload, target, batch in itertools.product(asked.workloads, asked.targets, asked.batches)
    ]
    found = records(cases, record, asked.output, lambda _: summary)
    stored = json.loads(asked.output.read_text(encoding="utf-8")) | {"summary": summary}
    asked.output.write_text(record_text(summary, stored["records"]), encoding="utf-8")
    for line in table(rows(found)):
        print(line)
    for name, microseconds in summary["host_microseconds"].items():
        print(f"a call of a result of {name}, microseconds of the host: {microseconds:.1f}")
    if asked.page:
        PAGE.write_text(page(stored, json.loads(FOUND.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
