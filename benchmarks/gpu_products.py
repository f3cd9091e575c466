"""Products of 16 to 4096 rows beside cuBLAS, with and without what their kernels have for them, on a GPU or compiled alone.

    python benchmarks/gpu_products.py --output benchmarks/results/gpu-products.json

For every number of rows the best muGraph whose kernels are our own is built as the device is described, and in variants that
lack one thing or have one more: `no bands`, blocks run as the grid is numbered; `whole cache`, they run in an order for all
partitions of the last cache together; `usual rings`, those of short panels are no deeper than others; `producer`, a warp
beside the threads copies panels, and these meet no more; `no lag`, threads wait for the products of a panel before the next
one; `no parts`, warps without a task are idle; `no boxes`, threads copy panels, and groups have the left factor in registers;
`no groups`, warps multiply. Beside products, RMSNorm with a linear layer at 1 to 16 rows. A variant that prints the same as an
earlier one is left out. With a GPU, all are compared with float64 and timed in turn with PyTorch's own kernels, the weights in
the L2 cache (`warm`) and not (`cold`): median seconds of a call. Without one, times are null and the compiler's figures
remain. Exits with 1 when a result is wrong. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gpu_check import compared, this_target
from gpu_order import copies, timed
from kept import Case, Record, records
from mugraph.devices import device_for, roofline_seconds
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph
from mugraph.lower import Launch, construct
from mugraph.lower.tile_form import Kernel, Matmul, Statement
from mugraph.runtime import Executable
from mugraph.search import search
from mugraph.targets.cuda.machine import Cuda

SIZES = ("4096x4096", "4096x14336")
"""k x n of weights: projections of a layer of Llama-3-8B."""
ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FEW_ROWS = (1, 8, 16)


def unchanged(kernel: Kernel) -> Kernel:
    """The kernel."""
    return kernel


def without_lag(kernel: Kernel) -> Kernel:
    """The kernel with products that are waited for before the next panel's begin."""
    return kernel if kernel.ring is None else replace(kernel, ring=replace(kernel.ring, lag=0))


def without_parts(kernel: Kernel) -> Kernel:
    """The kernel with one set of warps that multiplies."""

    def whole(statement: Statement) -> Statement:
        if isinstance(statement, Matmul) and statement.panels is not None:
            return replace(statement, panels=replace(statement.panels, parts=1))
        return statement

    return replace(kernel, body=tuple(map(whole, kernel.body)))


@dataclass(frozen=True, slots=True)
class ChangedCuda(Cuda):
    """A GPU whose kernels are changed after they are lowered."""

    change: Callable[[Kernel], Kernel] = unchanged

    def lower(self, graph: Graph) -> dict[int, Launch]:
        """The changed launches of a kernel graph, by node."""
        launches = super(ChangedCuda, self).lower(graph)
        return {index: replace(launch, kernel=self.change(launch.kernel)) for index, launch in launches.items()}


def variants(target: str) -> dict[str, Cuda]:
    """The machine as described, and others that lack something or have something more."""
    described = Cuda.of(target)
    changed = ChangedCuda(
        described.architecture,
        described.shared_bytes,
        engines=described.engines,
        multiprocessors=described.multiprocessors,
        cache_bytes=described.cache_bytes,
        bytes_in_flight=described.bytes_in_flight,
    )
    return {
        "as described": described,
        "no bands": replace(described, cache_bytes=0),
        "whole cache": replace(described, cache_bytes=device_for(target).shared_cache_bytes),
        "usual rings": replace(described, bytes_in_flight=0),
        "producer": replace(described, engines=replace(described.engines, producer_warps=True)),
        "no lag": replace(changed, change=without_lag),
        "no parts": replace(changed, change=without_parts),
        "no boxes": replace(described, engines=replace(described.engines, tensor_maps=False)),
        "no groups": replace(described, engines=replace(described.engines, warp_group_rows=0)),
    }


def multiplied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight."""
    return x @ weight


def case_of(what: str, rows: int) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    """The function of a case, and inputs in bf16 on the host."""
    if what in WORKLOADS:
        return WORKLOADS[what].function(), WORKLOADS[what].inputs(rows, "bf16", "full")
    inner, columns = map(int, what.split("x"))
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, inner), (inner, columns))
    x, weight = ((torch.randn(shape, generator=generator) / inner**0.25).bfloat16() for shape in shapes)
    return multiplied, (x, weight)


def best_kernel(graph: Graph, target: str) -> tuple[Graph, float]:
    """The candidate that the model puts first of those whose kernels are all our own, and its predicted seconds."""
    candidates = search(graph, device_for(target)).candidates
    own = (found for found in candidates if all(node.body is not None for node in found.graph.kernels()))
    best = next(own)
    return construct(best.graph), best.cost


def record(what: str, rows: int, target: str) -> Record:
    """The figures of every variant of a case, and on a GPU times and errors, beside PyTorch's."""
    function, host = case_of(what, rows)
    program = trace(function, host).graph
    graph, predicted = best_kernel(program, target)
    built: dict[str, Executable] = {}
    for name, machine in variants(target).items():
        executable = Executable(graph, machine)
        if all(executable.sources != other.sources for other in built.values()):
            built[name] = executable
    found: Record = {
        "predicted": predicted,
        "roofline": roofline_seconds(program, device_for(target)),
        "muGraph": str(graph),
        "variants": {name: {"kernels": [asdict(each) for each in of.resources], "right": None} for name, of in built.items()},
        "warm": None,
        "cold": None,
    }
    return found | (on_gpu(function, host, found["variants"], built) if torch.cuda.is_available() else {})


def on_gpu(
    function: Callable[..., torch.Tensor], host: Sequence[torch.Tensor], entries: Record, built: dict[str, Executable]
) -> Record:
    """Times of PyTorch's kernels and of every variant, whose errors are added to its entry."""
    inputs = tuple(tensor.cuda() for tensor in host)
    exact = function(*(tensor.double() for tensor in inputs))
    for name, executable in built.items():
        entries[name] |= compared(executable, inputs, exact, DType.BF16)
    del exact
    calls, refused = {"PyTorch": function, **built}, dict[str, str]()
    times = {"warm": timed(calls, [inputs], refused), "cold": timed(calls, copies(inputs), refused)}
    return {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "refused": refused, **times}


def summary(found: Sequence[Record]) -> Record:
    """Microseconds of a call, cold, by contestant, or registers of a thread where nothing was timed."""
    return {f"{entry['what']}, {entry['rows']} rows": _figures(entry) for entry in found}


def _figures(entry: Record) -> dict[str, Any]:
    if entry["cold"] is not None:
        return {name: round(1e6 * seconds, 2) for name, seconds in entry["cold"].items()}
    return {name: [kernel["registers"] for kernel in of["kernels"]] for name, of in entry["variants"].items()}


def cases(target: str) -> list[Case]:
    """All of them, the first the most telling."""
    products = ({"what": size, "rows": rows} for rows, size in itertools.product(ROWS, SIZES))
    norms = ({"what": "rmsnorm", "rows": rows} for rows in FEW_ROWS)
    return [{**case, "target": target} for case in (*norms, *products)]


def main() -> None:
    """Make the records that are missing; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=this_target("cuda") if torch.cuda.is_available() else "cuda:sm_90:h200")
    parser.add_argument("--rows", nargs="+", type=int, help="only these")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    chosen = [case for case in cases(options.target) if options.rows is None or case["rows"] in options.rows]
    found = records(chosen, record, options.output, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(of["right"] is False for entry in found for of in entry["variants"].values()) else 0)


if __name__ == "__main__":
    main()
