"""Proofs of whole stacks of decoder layers: seconds against depth, and whether a wrong layer in the middle is found.

    python benchmarks/deep_proofs.py                            # 1 to 32 layers, of two sizes
    python benchmarks/deep_proofs.py --depths 1 2 --sizes small
    python benchmarks/deep_proofs.py --depths 1 --sizes llama --rounds 1 --add

A layer is Llama's: normalised rows, rotary embedding, causal attention, a gated MLP. One side calls PyTorch's operators; the
other divides by the root after the products, scales queries, adds the mask, reads gate and up from one product, and writes silu
with an exponential. In wrong layers a gain is 0.999 times the other's. Records go to
`benchmarks/results/deep-proofs.json`. The time is that of `mugraph.verifier.prover.verify` on programs, without tracing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from mugraph.frontend.comparison import compared
from mugraph.verifier.prover import verify

RESULT = Path(__file__).parent / "results" / "deep-proofs.json"
SIZES = {
    "small": (16, 64, 4, 96),
    "medium": (128, 512, 8, 1024),
    "large": (128, 2048, 16, 5632),
    "llama": (16, 4096, 32, 14336),
}
"""Rows, width, heads, width inside the MLP; the last ones are those of Llama-3-8B, but for keys that heads share."""
DEPTHS = (1, 2, 4, 8, 16, 32)
BEYOND = 8
"""Layers from which on growth is stated."""
WEIGHTS = 9

Layer = Callable[..., torch.Tensor]


class Sides:
    """The layer in both spellings, at a size."""

    def __init__(self, rows: int, width: int, heads: int, inner: int) -> None:
        self.rows, self.width, self.heads, self.inner = rows, width, heads, inner
        self.head = width // heads
        angles = torch.arange(rows)[:, None] * 10000.0 ** (-torch.arange(0, self.head, 2) / self.head)
        self.cos, self.sin = (torch.cat([table, table], -1) for table in (angles.cos(), angles.sin()))
        self.mask = torch.full((rows, rows), -math.inf).triu(1)

    def inputs(self, depth: int) -> list[torch.Tensor]:
        """Rows, and the weights of all layers."""
        gain = (self.width,)
        square, up, down = (self.width, self.width), (self.width, self.inner), (self.inner, self.width)
        shapes = (gain, square, square, square, square, gain, up, up, down) * depth
        weights = [torch.ones(shape) if len(shape) == 1 else torch.randn(shape) / math.sqrt(shape[0]) for shape in shapes]
        return [torch.randn(self.rows, self.width), *weights]

    def as_written(self, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """With PyTorch's operators."""
        g, q, k, v, o, h, gate, up, down = weights
        y = F.rms_norm(x, (self.width,), g, 1e-5)
        heads = [self._heads(y @ w) for w in (q, k, v)]
        attention = F.scaled_dot_product_attention(
            self._turned(heads[0])[None], self._turned(heads[1])[None], heads[2][None], is_causal=True
        )
        x = x + self._rows(attention[0]) @ o
        y = F.rms_norm(x, (self.width,), h, 1e-5)
        return x + (F.silu(y @ gate) * (y @ up)) @ down

    def rewritten(self, x: torch.Tensor, *weights: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
        """With products first."""
        g, q, k, v, o, h, gate, up, down = weights
        y, root = x * g, torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        heads = [self._heads((y @ w) / root) for w in (q, k, v)]
        scores = (self._turned(heads[0]) * self.head**-0.5) @ self._turned(heads[1]).transpose(1, 2) + self.mask
        x = x + self._rows(torch.softmax(scores, -1) @ heads[2]) @ o
        y, root = x * (gain * h), torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        left, right = ((y @ torch.cat([gate, up], 1)) / root).chunk(2, -1)
        return x + (left / (1 + torch.exp(-left)) * right) @ down

    def wrong(self, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """Another function, which is near."""
        return self.rewritten(x, *weights, gain=0.999)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(self.rows, self.heads, self.head).transpose(0, 1)

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(self.rows, self.width)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin


def stacked(layers: Sequence[Layer]) -> Layer:
    """One layer upon the other."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(layers):
            x = layer(x, *weights[WEIGHTS * number : WEIGHTS * (number + 1)])
        return x

    return function


def record(size: str, depth: int, is_wrong: bool, budget: float, rounds: int) -> dict[str, Any]:
    """How long it takes to decide whether stacks are equal: medians of some rounds, each by a seed of its own, so that none has
    the tests of another."""
    torch.manual_seed(0)
    sides = Sides(*SIZES[size])
    layers: list[Layer] = [sides.rewritten] * depth
    if is_wrong:
        layers[depth // 2] = sides.wrong
    pair = compared(stacked([sides.as_written] * depth), stacked(layers), sides.inputs(depth))
    seconds, cpu_seconds = [], []
    for number in range(rounds):
        started, used = time.perf_counter(), time.process_time()
        verdict = verify(pair.left, pair.right, known=pair.fixed, budget=budget, seed=1000 * depth + number)
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - used)
    return {
        "size": size,
        "depth": depth,
        "wrong": is_wrong,
        "operators": len(pair.left.kernels()),
        "rounds": rounds,
        "seconds": round(statistics.median(seconds), 2),
        "cpu_seconds": round(statistics.median(cpu_seconds), 2),
        "outcome": verdict.outcome,
        "error_bound": verdict.error_bound,
        "pieces": len(verdict.certificate.pieces),
        "reason": verdict.reason,
    }


def growth(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each size the exponents with which processor seconds of proofs grow with operators, from one depth to the next, from
    `BEYOND` layers on: what a proof of few takes is mostly the same for all."""
    return {size: found for size in SIZES if (found := _slopes([entry for entry in records if entry["size"] == size]))}


def _slopes(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    proved = sorted(
        (entry for entry in records if entry["outcome"] == "equivalent" and entry["depth"] >= BEYOND),
        key=lambda entry: int(entry["depth"]),
    )
    return {
        f"{less['depth']} to {more['depth']} layers": round(
            math.log(more["cpu_seconds"] / less["cpu_seconds"]) / math.log(more["operators"] / less["operators"]), 2
        )
        for less, more in itertools.pairwise(proved)
    }


def main() -> None:
    """Decide the pairs, print a line for each, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small", "medium"])
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of each pair")
    parser.add_argument("--rounds", type=int, default=3, help="how often each pair is decided")
    parser.add_argument("--add", action="store_true", help="keep the records of other sizes that are there")
    parser.add_argument("--record", type=Path, default=RESULT)
    options = parser.parse_args()
    before = json.loads(options.record.read_text())["records"] if options.add else []
    records = [entry for entry in before if entry["size"] not in options.sizes]
    for size in options.sizes:
        for depth in options.depths:
            for is_wrong in (False, True):
                records.append(record(size, depth, is_wrong, options.budget, options.rounds))
                print(json.dumps(records[-1]), flush=True)
    result = {"torch": torch.__version__, "threads": torch.get_num_threads(), "exponents": growth(records), "records": records}
    options.record.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["exponents"]))


if __name__ == "__main__":
    main()
