"""Random functions and graphs that may compute them: whether any is taken for all sizes that differs at one.

    python benchmarks/size_pairs.py                    # 100,000 pairs; a run that is repeated goes on where the last one stopped
    python benchmarks/size_pairs.py --seconds 600      # stop after ten minutes of processor time
    python benchmarks/size_pairs.py --pairs 2000 --output /tmp/pairs.json

A function of PyTorch, made of sums, products, quotients, views and calls that mix rows or depend on how many there are, is asked
about as `superoptimize(dynamic=)` asks (`mugraph.sizes.sliced_functions`). Beside it stands a graph for one size: its program
with one mistake or two, or in other words. A pair is accepted where the function acts on slices, the graph is proved equal to its
program at that size, and acts on slices, too: then any size is put together of the graph's results. Of each accepted pair that is
done at all sizes from 1 to 8, and compared with the function's program at that size, modulo a prime of 521 bits. Functions that
are refused have no pairs, and are counted. Exit code 1 where an accepted pair differs. Totals go to
`benchmarks/results/size-pairs.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import numpy.typing as npt
import torch

from mugraph import Dim
from mugraph.frontend import trace
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.ir.graph import Graph
from mugraph.sizes.dims import Declared
from mugraph.sizes.sliced_functions import SlicedFunction, sliced_function
from mugraph.testing.mutants import mutants
from mugraph.testing.oracle import is_rational, modulo_prime, random_residues
from mugraph.testing.rewrites import rewritten
from mugraph.verifier import verify_graphs

RESULT = Path(__file__).parent / "results" / "size-pairs.json"
SIZES = range(1, 9)
AT, WIDTH = 3, 4
"""The size that graphs are for, and the length of a row."""
OF_ONE = 250
"""Pairs of one function at most."""
REWRITES = 20
SECOND_MISTAKES = 4
"""Second ones for each first."""
_MIXED = 0.03
"""The chance that a call of a function mixes rows, or asks how many there are."""
Array = npt.NDArray[Any]
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Apply = Callable[..., torch.Tensor]

ROWS: tuple[Apply, ...] = (
    lambda x, w: x @ w,
    lambda x, w: x * x,
    lambda x, w: x / (1 + x * x),
    lambda x, w: x - x.mean(-1, keepdim=True),
    lambda x, w: x * x.sum(-1, keepdim=True),
    lambda x, w: x.reshape(-1, 2, 2).transpose(1, 2).reshape(-1, WIDTH),
    lambda x, w: (x.reshape(-1, 2).sum(-1, keepdim=True) * w[:1, :2]).reshape(-1, WIDTH),
    lambda x, w: torch.cat([x[:, 2:], x[:, :2] * 3], -1),
    lambda x, w: (w.T @ x.T).T,
)
"""What does the same to every row."""
MIXED: tuple[Apply, ...] = (
    lambda x, w: x + x.sum(0, keepdim=True),
    lambda x, w: x.flip(0),
    lambda x, w: x / x.shape[0],
    lambda x, w: x * x[:1],
    lambda x, w: x.T.reshape(-1, WIDTH),
    lambda x, w: x @ w if x.shape[0] > 5 else x,
)
"""What mixes rows, or does something else where there are more of them."""
TWO: tuple[Apply, ...] = (torch.add, torch.sub, torch.mul, lambda x, y: x / (2 + y * y))


def main(arguments: Sequence[str]) -> int:
    """Go on until there are enough pairs or the time is over; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="how many in all (default: 100,000)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="processor time after which the run stops")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    record: dict[str, Any] = {"next": 0, "counts": {}, "wrong": [], "seconds": 0.0}
    if options.output.exists():
        record = json.loads(options.output.read_text())
    counts, started, before = Counter[str](record["counts"]), time.process_time(), record["seconds"]
    while counts["pairs"] < options.pairs and time.process_time() - started < options.seconds:
        record["wrong"] += judged(record["next"], counts, options.pairs - counts["pairs"])
        record |= {"next": record["next"] + 1, "counts": dict(counts), "seconds": before + time.process_time() - started}
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    return 1 if record["wrong"] else 0


def judged(seed: int, counts: Counter[str], most: int) -> list[str]:
    """Count the pairs of one function and what became of them; the changes of those that are wrong."""
    fn, x = random_function(seed), torch.randn(AT, WIDTH)
    inputs, rows = (x, torch.randn(AT, WIDTH), torch.randn(WIDTH, WIDTH)), Dim("rows", SIZES[0], SIZES[-1])
    counts["functions"] += 1
    try:
        sliced = sliced_function(fn, Declared.of({0: {0: rows}, 1: {0: rows}}), inputs, {})
        programs = {size: trace(fn, tuple(resized(each, size) for each in inputs)).graph for size in SIZES}
    except SizeMatters:
        counts["functions refused"] += 1
        return []
    program, wrong = programs[AT], []
    assert sliced.is_program_of(program)
    for change, graph in graphs(program, seed, min(most, OF_ONE)):
        counts["pairs"] += 1
        if not verify_graphs(program, graph, seed=seed).equivalent:
            counts["not proved equal"] += 1
        elif not sliced.is_acted_on_by(graph):
            counts["equal, and not by slices"] += 1
        else:
            counts["accepted"] += 1
            if not agrees(sliced, programs, graph, random.Random(seed)):
                wrong.append(f"{seed}: {change}")
    return wrong


def random_function(seed: int) -> Function:
    """A function of two tensors of as many rows and a matrix."""
    draw = random.Random(seed)
    plan = [(draw.random() < 0.4, draw.random() < _MIXED, draw.randrange(360), draw.random(), draw.random()) for _ in range(5)]

    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values = [x, y]
        for two, mixed, choice, first, second in plan:
            a, b = (values[-1 - int(len(values) * part**2)] for part in (first, second))
            calls = MIXED if mixed else ROWS
            values.append(TWO[choice % len(TWO)](a, b) if two and not mixed else calls[choice % len(calls)](a, w))
        return values[-1] + values[-2]

    return function


def graphs(program: Graph, seed: int, most: int) -> Iterator[tuple[str, Graph]]:
    """The program in other words, with one mistake, and then with two; none twice."""
    rng, seen = np.random.default_rng(seed), {program}

    def candidates() -> Iterator[tuple[str, Graph]]:
        for _ in range(REWRITES):
            yield "in other words", rewritten(program, rng)
        singles = list(mutants(program, rng))
        yield from ((each.change, each.graph) for each in singles)
        for single in singles:
            seconds = islice(mutants(single.graph, rng), SECOND_MISTAKES)
            yield from ((f"{single.change}; {each.change}", each.graph) for each in seconds)

    for change, graph in candidates():
        if most and graph not in seen and is_rational(graph):
            seen.add(graph)
            most -= 1
            yield change, graph


def resized(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """An argument with so many rows; the matrix as it is."""
    return torch.randn(size, WIDTH) if tensor.shape[0] == AT else tensor


def agrees(sliced: SlicedFunction, programs: dict[int, Graph], graph: Graph, draw: random.Random) -> bool:
    """Whether results of the graph, put together, are those of the function at every size."""
    for size, program in programs.items():
        inputs = [random_residues(node.output.shape, draw) for node in program.inputs()]
        wanted = modulo_prime(program, inputs)
        if wanted is not None and not _puts_together(sliced, graph, size, inputs, wanted):
            return False
    return True


def _puts_together(sliced: SlicedFunction, graph: Graph, size: int, inputs: list[Array], wanted: list[Array]) -> bool:
    """Whether rows of the graph's results, AT at a time, are the wanted ones. The last ones overlap or are repeated."""
    for start in range(0, size, AT):
        rows = [min(min(start, max(size - AT, 0)) + number, size - 1) for number in range(AT)]
        part = [each if dim is None else np.take(each, rows, dim) for each, dim in zip(inputs, sliced.inputs, strict=True)]
        made = modulo_prime(graph, part)
        if made is None:
            return False
        for ours, theirs, dim in zip(made, wanted, sliced.slice.outputs, strict=True):
            if not np.array_equal(ours, theirs if dim is None else np.take(theirs, rows, dim)):
                return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
