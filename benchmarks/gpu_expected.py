"""What the best kernels of the paper's workloads are expected to do on a GPU, told without one.

    python benchmarks/gpu_expected.py --targets cuda:sm_90 cuda:sm_80 --batches 1 8 --host

A row for each generated kernel of the first candidate, bf16 at full size (kernels of the library have none): microseconds of the
program at the device's full rates (`bound`) and of all its kernels by the cost model (`predicted`); bytes that copies have on
their way to one multiprocessor while its blocks compute, or its threads while they wait where a kernel has no ring; the predicted
share of issue slots that threads need for copies and operators; and how many instructions of matrix units wait for each other's
sums. `--host` adds microseconds of the host for a call, which the tests of the launcher measure under a stub of the driver.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from mugraph.devices import Device, device_for, known_targets, roofline_seconds
from mugraph.devices.copies import COPY_BYTES
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.lower import construct
from mugraph.lower.fragments import instruction_depth, on_matrix_units
from mugraph.lower.staging import slots
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.search import search
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import kernel_seconds
from mugraph.targets.cuda.machine import Cuda

ROOT = Path(__file__).parent.parent
TESTS_OF_LAUNCHES = "tests/targets/cuda/test_stub.py"


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


def rows(workload: str, batch: int, target: str) -> Iterator[Row]:
    """The kernels of a workload's first candidate."""
    device = device_for(target)
    program = trace(WORKLOADS[workload].function(), WORKLOADS[workload].inputs(batch, "bf16", "full")).graph
    best = search(program, device).candidates[0]
    bound = roofline_seconds(program, device)
    launches = Cuda.described(target).lower(construct(best.graph)).values()
    bodies = [node.body for node in best.graph.kernels() if node.body is not None]
    for body, launch in zip(bodies, launches, strict=True):
        kernel = launch.kernel
        share = issue_share(body, device)
        yield Row(
            workload, batch, target, kernel.name, 1e6 * bound, 1e6 * best.cost, in_flight(kernel, device), share, chain(kernel)
        )


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
        *names, bound, predicted, flying, share, length = astuple(row)
        yield f"| {' | '.join(map(str, names))} | {bound:.1f} | {predicted:.1f} | {flying / 1024:.0f} | {share:.0%} | {length} |"


def host_microseconds() -> dict[str, float]:
    """Microseconds of the host for a call of a result of one kernel and of three, under the stub of the driver."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:xdist", TESTS_OF_LAUNCHES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    return {name: float(value) for name, value in re.findall(r"(\w+): ([\d.]+) us of the host", done.stdout)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and what calls take of the host where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [target for target in known_targets() if target.startswith("cuda:")]
    parser.add_argument("--targets", nargs="+", default=["cuda:sm_90"], choices=known, metavar="TARGET")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--host", action="store_true")
    asked = parser.parse_args(arguments)
    cases = ((w, batch, target) for target in asked.targets for w in asked.workloads for batch in asked.batches)
    for line in table(row for case in cases for row in rows(*case)):
        print(line, flush=True)
    if asked.host:
        for name, microseconds in host_microseconds().items():
            print(f"a call of a result of {name}, microseconds of the host: {microseconds:.1f}")


if __name__ == "__main__":
    main()
