"""Two ways to make the kernels of a workload, on a GPU or compiled alone: with and without a pass, in one order and another.

    python benchmarks/gpu_pairs.py reductions rmsnorm qknorm --output benchmarks/results/reductions.json
    python benchmarks/gpu_pairs.py prefetch --output benchmarks/results/prefetch.json
    python benchmarks/gpu_pairs.py scores prefill-128 prefill-512 --output benchmarks/results/scores.json
    python benchmarks/gpu_pairs.py lowered-order --output benchmarks/results/lowered-first.json

`reductions`: the first candidate whose loop reduces into registers (`mugraph.lower.register_reductions`), and the same with what
it reduces stored in every iteration. `prefetch`: the first candidate whose copies by threads have lines fetched into the last
cache (`mugraph.lower.line_prefetch`), with these hints and without; on GPUs that have tensor maps, these are off. `scores`: the
first candidate with scores in registers (`mugraph.lower.register_scores`), and the same with scores in shared memory, with what
is found of their rows there (`mugraph.lower.register_rows`), and with a result of the second product beside the sum
(`mugraph.lower.rescaled_sums`); beside the six workloads there is causal attention of 128 and of 512 tokens, for each of a batch
32 heads of 128 numbers (`prefill-128`, `prefill-512`). `lowered-order`: the candidate that the cost model puts first, and the one
that the waits of lowered kernels do (`mugraph.selection.lowered_order`), where they differ. With a GPU all are
compared with float64 and timed in turn as CUDA graphs; without one, times are null and the compiler's figures remain. A workload
that has no two ways has no variants. Exits with 1 when a result is wrong. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from engines import NOT_MEASURED, on_gpu, summary
from gpu_check import this_target
from kept import Record, records
from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.operators.torch_casts import DTYPES
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph
from mugraph.lower import construct, pipeline, register_reductions, register_scores
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.selection.lowered_order import by_lowered
from mugraph.support.deadline import Deadline
from mugraph.targets.cuda.machine import Cuda
from mugraph.testing.kernel_features import features
from mugraph.testing.mugraph_runs import LARGEST_ERROR

PREFILL = {f"prefill-{tokens}": tokens for tokens in (128, 512)}
HEADS, WIDTH = 32, 128
HINT = re.compile(r"cp_async<16, \d+>\(")
ORDERED = 16
"""Candidates that are put in order where nothing is measured."""
Proposal = tuple[Graph, float]
Variants = dict[str, Executable]


def reductions(proposals: Sequence[Proposal], target: str) -> Variants:
    """The kernels of the first candidate that reduces into registers, and with what it reduces stored in every iteration; none
    where no candidate does."""
    machine = Cuda.of(target)
    for graph, _ in proposals:
        held = Executable(construct(graph), machine)
        if "reductions in registers" in features(held.kernels):
            with patch.object(register_reductions, "keeps_results", return_value=False):
                stored = Executable(held.graph, machine)
            return {"in registers": held, "stored": stored}
    return {}


def prefetch(proposals: Sequence[Proposal], target: str) -> Variants:
    """The kernels of the first candidate that has hints, with them and without; none where no candidate has."""
    described = Cuda.of(target)
    machine = replace(described, engines=replace(described.engines, tensor_maps=False))
    for graph, _ in proposals:
        hinted = Executable(construct(graph), machine)
        plain = {name: HINT.sub("cp_async<16>(", text) for name, text in hinted.sources.items()}
        if plain != hinted.sources:
            return {"with hints": hinted, "without": Executable(hinted.graph, machine, plain, launches=hinted.launches)}
    return {}


def scores(proposals: Sequence[Proposal], target: str) -> Variants:
    """The kernels of the first candidate with scores in registers, without what else that allows for, and with scores in shared
    memory; none where none has."""
    machine = Cuda.of(target)
    for graph, _ in proposals:
        held = Executable(construct(graph), machine)
        if "scores in registers" in features(held.kernels):
            with patch.object(register_scores, "with_rescaled_sums", side_effect=lambda kernel: kernel):
                apart = Executable(held.graph, machine)
            with patch.object(pipeline, "with_register_rows", side_effect=lambda kernel: kernel):
                meeting = Executable(held.graph, machine)
            with patch.object(pipeline, "with_register_scores", side_effect=lambda kernel, grouped: kernel):
                stored = Executable(held.graph, machine)
            shared = {"numbers of rows in shared memory": meeting, "in shared memory": stored}
            return {"in registers": held, "products with results of their own": apart, **shared}
    return {}


def program(name: str, batch: int, dtype: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function of a workload, or of attention of `PREFILL`, and random inputs."""
    if name not in PREFILL:
        return WORKLOADS[name].function(), WORKLOADS[name].inputs(batch, dtype, "full")
    tokens, generator = PREFILL[name], torch.Generator().manual_seed(0)
    kind = {ours: known for known, ours in DTYPES.items()}[DType(dtype)]
    q, k, v = (torch.randn((batch * HEADS, tokens, WIDTH), generator=generator).to(kind) for _ in range(3))
    return causal_attention, (q, k, v, torch.full((tokens, tokens), -torch.inf).triu(1).to(kind))


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of q, k and v [heads, tokens, `WIDTH`] with a mask [tokens, tokens] that is added to the scores."""
    return torch.softmax(q @ k.transpose(-1, -2) * WIDTH**-0.5 + mask, -1) @ v


def lowered_order(proposals: Sequence[Proposal], target: str) -> Variants:
    """The kernels of the first candidate by predicted seconds and of the first by lowered kernels; none where it is the same."""
    ordered = by_lowered(proposals, Cuda.of(target), device_for(target), Deadline(None), {})
    firsts = {"first of the model": proposals[0], "first by lowered kernels": ordered[0]}
    if ordered[0] is proposals[0]:
        return {}
    return {which: build(construct(graph), target) for which, (graph, _) in firsts.items()}


PAIRS: Mapping[str, Callable[[Sequence[Proposal], str], Variants]] = {
    "reductions": reductions,
    "prefetch": prefetch,
    "scores": scores,
    "lowered-order": lowered_order,
}


def record(workload: str, dtype: str, batch: int, target: str, *, pair: str) -> Record:
    """The figures of both ways, and on a GPU their times and errors."""
    function, inputs = program(workload, batch, dtype)
    found = search(trace(function, inputs).graph, device_for(target)).candidates[:ORDERED]
    built = PAIRS[pair]([(candidate.graph, candidate.cost) for candidate in found], target)
    measured = on_gpu(function, inputs, built, dtype) if built and torch.cuda.is_available() else {}
    return {
        "variants": {
            which: {"kernels": [asdict(figures) for figures in executable.resources], **measured.get(which, NOT_MEASURED)}
            for which, executable in built.items()
        }
    }


def main() -> None:
    """Make the records that are missing; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", choices=list(PAIRS))
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), help=f"of {(*WORKLOADS, *PREFILL)}")
    parser.add_argument("--target", help="by default the GPU that is here, cuda:sm_90 without one")
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], choices=[dtype.value for dtype in LARGEST_ERROR])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 1, 16])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    target = options.target or (this_target("cuda") if torch.cuda.is_available() else "cuda:sm_90")
    combinations = itertools.product(options.workloads, options.dtypes, options.batches, [target])
    names = ("workload", "dtype", "batch", "target")
    cases = [dict(zip(names, each, strict=True)) for each in combinations]
    found = records(cases, partial(record, pair=options.pair), options.output, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(of["right"] is False for entry in found for of in entry["variants"].values()) else 0)


if __name__ == "__main__":
    main()
