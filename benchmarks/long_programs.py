"""Random long programs, of 30 to 300 operators: have they kernels, with which bounds, after how many seconds, and are they right?

    python benchmarks/long_programs.py                    # 200 programs, some hours of one core
    python benchmarks/long_programs.py --budget 12        # the same, in less time, which leaves more of them to PyTorch
    python benchmarks/long_programs.py --only 17          # one, with its layers and what became of it

A program is a residual stream through layers that are drawn with the number that names it: norms of several kinds, gated and
plain MLPs, attention, gates by means, soft caps, unit vectors, mixtures. It is optimized without measuring, so that kernels run
wherever there are any, and only those whose proof has a bound. Right is what errs at most ERRORS times as much as the program in
its own precision, against float64 and on another input, or by LEAST_ERROR of the largest element. Records go to
`benchmarks/results/long-programs.json`, with the budget that each was made with; what is there by the same sources is kept.
Seconds are those of the clock, and of processors, which say more on a busy machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mugraph
from contestants import processor_seconds
from kept import Record, records

RESULT = Path(__file__).parent / "results" / "long-programs.json"
WIDTHS, ROWS = (16, 24, 32, 48, 64), (4, 6, 8, 12, 16)
LEAST, MOST = 30, 300
"""Operators."""
ERRORS, LEAST_ERROR = 8.0, 1e-5
BUDGET = 60.0
"""Seconds of a program."""

Weight = Callable[..., nn.Parameter]
Apply = Callable[[Tensor], Tensor]
Layer = tuple[Apply, int]
"""What is done to the stream, and about how many operators that is."""

ACTIVATIONS: dict[str, Layer] = {
    "silu": (F.silu, 2),
    "gelu": (F.gelu, 3),
    "tanh": (torch.tanh, 1),
    "squared relu": (lambda x: F.relu(x).square(), 2),
    "softplus": (F.softplus, 4),
    "sigmoid": (torch.sigmoid, 1),
}


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def _centered(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


NORMS: dict[str, Layer] = {"rms": (_rms, 5), "centered": (_centered, 8), "unit": (_unit, 5)}


class Maker:
    """Draws layers of one width."""

    def __init__(self, rng: random.Random, width: int) -> None:
        self.rng, self.width = rng, width
        self.parameters: list[nn.Parameter] = []

    def weight(self, *shape: int) -> nn.Parameter:
        """A parameter with elements of about the root of its rows."""
        self.parameters.append(nn.Parameter(torch.randn(shape) / math.sqrt(shape[0]), requires_grad=False))
        return self.parameters[-1]

    def any(self) -> tuple[str, Layer]:
        """A layer with a norm before it, perhaps another behind, and the stream added, perhaps in parts."""
        name, (inner, operators) = self.rng.choice(
            (self.mlp, self.gated, self.attention, self.pooled, self.mixture, self.capped)
        )()
        norm_name, (norm, norm_operators) = self.rng.choice(sorted(NORMS.items()))
        gain = self.weight(self.width)
        match self.rng.choice(("before", "sandwich", "interpolated")):
            case "before":
                return f"{norm_name} {name}", (lambda x: x + inner(norm(x) * gain), operators + norm_operators + 2)
            case "sandwich":
                return f"{norm_name} {name} {norm_name}", (
                    lambda x: x + norm(inner(norm(x) * gain)),
                    operators + 2 * norm_operators + 2,
                )
            case _:
                return f"{name}, interpolated", (
                    lambda x: norm(x + gain * (norm(inner(x)) - x)),
                    operators + 2 * norm_operators + 3,
                )

    def mlp(self) -> tuple[str, Layer]:
        """Two products with a function in between."""
        name, (activation, operators) = self.rng.choice(sorted(ACTIVATIONS.items()))
        up, bias, down = (
            self.weight(self.width, 2 * self.width),
            self.weight(2 * self.width),
            self.weight(2 * self.width, self.width),
        )
        return f"mlp({name})", (lambda x: activation(x @ up + bias) @ down, operators + 3)

    def gated(self) -> tuple[str, Layer]:
        """A product with another one's function as its gate."""
        name, (activation, operators) = self.rng.choice(sorted(ACTIVATIONS.items()))
        one, other, down = (self.weight(self.width, 2 * self.width) for _ in range(3))
        return f"gated({name})", (lambda x: (activation(x @ one) * (x @ other)) @ down.T, operators + 4)

    def attention(self) -> tuple[str, Layer]:
        """Rows over rows, in two heads, perhaps with unit queries and keys."""
        weights = [self.weight(self.width, self.width) for _ in range(4)]
        unit = self.rng.random() < 0.5

        def attend(x: Tensor) -> Tensor:
            q, k, v = ((x @ weight).view(len(x), 2, -1).transpose(0, 1) for weight in weights[:3])
            if unit:
                q, k = _unit(q) * math.sqrt(self.width), _unit(k)
            scores = (q @ k.mT) / math.sqrt(q.shape[-1])
            return (scores.softmax(-1) @ v).transpose(0, 1).reshape(x.shape) @ weights[3]

        return f"attention{'(unit)' * unit}", (attend, 14 + 11 * unit)

    def pooled(self) -> tuple[str, Layer]:
        """A gate for every column by the mean of the rows."""
        weight = self.weight(self.width, self.width)
        return "gate by a mean", (lambda x: x * torch.sigmoid(x.mean(0, keepdim=True) @ weight), 4)

    def mixture(self) -> tuple[str, Layer]:
        """Three products, weighed by a softmax."""
        router, experts = self.weight(self.width, 3), [self.weight(self.width, self.width) for _ in range(3)]

        def mixed(x: Tensor) -> Tensor:
            weights = (x @ router).softmax(-1)
            first, *others = (weights[:, number : number + 1] * (x @ expert) for number, expert in enumerate(experts))
            return sum(others, first)

        return "mixture", (mixed, 15)

    def capped(self) -> tuple[str, Layer]:
        """A product softly held between -5 and 5."""
        weight = self.weight(self.width, self.width)
        return "soft cap", (lambda x: 5.0 * torch.tanh((x @ weight) / 5.0), 4)


class Stream(nn.Module):
    """The program of a number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        rng = random.Random(number)
        torch.manual_seed(number)
        self.rows, width, wanted = rng.choice(ROWS), rng.choice(WIDTHS), rng.randint(LEAST, MOST)
        maker = Maker(rng, width)
        self.width, self.layers, self.operators = width, list[tuple[str, Apply]](), 0
        while self.operators < wanted:
            name, (apply, more) = maker.any()
            self.layers.append((name, apply))
            self.operators += more
        self.weights = nn.ParameterList(maker.parameters)

    def example(self) -> Tensor:
        """A random input [rows, width]."""
        return torch.randn(self.rows, self.width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind all layers, of the shape of `x`."""
        for _, apply in self.layers:
            x = apply(x)
        return x


def outcome(number: int, budget: float = BUDGET) -> Record:
    """What became of a program within a budget in seconds."""
    model = Stream(number)
    made: Record = {"budget": budget, "layers": len(model.layers), "operators": model.operators}
    started, before = time.perf_counter(), processor_seconds()
    with torch.no_grad():
        try:
            opt = mugraph.superoptimize(model, (model.example(),), budget=budget, profile=False, cache="off", seed=number)
            made |= {"seconds": time.perf_counter() - started, "processor_seconds": processor_seconds() - before}
            return made | {"one_program": opt.is_one_program, **evidence(opt), **compared(model, opt)}
        except Exception as error:
            return made | {"outcome": "crashed", "why": repr(error)}


def evidence(opt: Any) -> Record:
    """Kernels and bounds of a result, and why PyTorch runs the rest."""
    programs = [result for result in opt.results if result.found]
    bounds = [result.certificate.error_bound for result in programs if result.certificate.error_bound is not None]
    coverage = opt.report.coverage
    return {
        "found": opt.found,
        "byte_share": coverage.byte_share,
        "programs": len(programs),
        "search_seconds": sum(float(result.report.search["seconds"]) for result in programs),
        "verify_seconds": sum(result.report.verify_seconds for result in programs),
        "with_bounds": len(bounds),
        "largest_bound": max(bounds, default=None),
        "left": sorted({f"{calls.operator}: {calls.reason}" for calls in coverage.left if calls.amount.bytes}),
    }


def compared(model: Stream, opt: Callable[..., Any]) -> Record:
    """The result and the model against float64, on another input: errors relative to the largest element."""
    x = model.example()
    exact = _in_float64(model)(x.double())
    largest = float(exact.abs().max())
    ours, own = (float((side(x).double() - exact).abs().max()) / largest for side in (opt, model))
    right = ours <= max(ERRORS * own, LEAST_ERROR)
    return {"outcome": "right" if right else "wrong", "error": ours, "model_error": own}


def _in_float64(model: Stream) -> Apply:
    """The model with its parameters in float64, which its layers hold themselves."""
    kept = [parameter.data for parameter in model.weights]

    def exact(x: Tensor) -> Tensor:
        try:
            for parameter in model.weights:
                parameter.data = parameter.data.double()
            return model.forward(x)
        finally:
            for parameter, data in zip(model.weights, kept, strict=True):
                parameter.data = data

    return exact


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    ran = [entry for entry in found if "byte_share" in entry]
    return {
        "programs": len(found),
        "outcomes": dict(Counter(entry["outcome"] for entry in found)),
        "with_kernels": sum(entry["programs"] > 0 for entry in ran),
        "without_kernels": [entry["number"] for entry in ran if not entry["programs"]],
        "run_by_kernels_alone": sum(entry["byte_share"] == 1 for entry in ran),
        "parts": sum(entry["programs"] for entry in ran),
        "parts_with_bounds": sum(entry["with_bounds"] for entry in ran),
        "largest_bound": max((entry["largest_bound"] for entry in ran if entry["largest_bound"] is not None), default=None),
        "median_byte_share": _median(entry["byte_share"] for entry in ran),
        "least_byte_shares": sorted((round(entry["byte_share"], 3), entry["number"]) for entry in ran)[:10],
        "median_seconds": _median(entry["seconds"] for entry in ran),
        "median_processor_seconds": _median(entry["processor_seconds"] for entry in ran),
        "left_to_pytorch_for": dict(Counter(reason for entry in ran for reason in reasons(entry)).most_common()),
        "wrong": [entry["number"] for entry in found if entry["outcome"] != "right"],
    }


def reasons(entry: Record) -> set[str]:
    """Why PyTorch runs calls of a program, whichever operators these are."""
    return {re.sub(r"\d+", "N", left.partition(": ")[2]) for left in entry["left"]}


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def main() -> None:
    """Make the records, print the summary; the exit code is 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of a program")
    parser.add_argument("--only", type=int, help="one program, printed")
    parser.add_argument("--record", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only is not None:
        print(*(name for name, _ in Stream(options.only).layers), sep="\n")
        print(json.dumps(outcome(options.only, options.budget), indent=1))
        return
    cases = [{"number": number} for number in range(options.first, options.first + options.count)]
    make = functools.partial(outcome, budget=options.budget)
    said = summary(records(cases, make, options.record, summary))
    print(json.dumps(said, indent=1))
    sys.exit(1 if said["wrong"] else 0)


if __name__ == "__main__":
    main()
