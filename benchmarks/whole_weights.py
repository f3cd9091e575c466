"""Linear layers with weights of 8 and 4 bits beside those in bf16, ours and PyTorch's.

    python benchmarks/whole_weights.py [--sizes 4096x4096 14336x4096] [--rows 1 8] [--threads 1] [--record FILE]

A size is OUTPUTSxINPUTS. Weights of 8 bits have a scale for each row, or one and a zero point for each group; those of 4 bits lie
two in a byte, neighbours in each, with a scale for each group, less 8 or a zero point of the group. Activations are bf16. Every
result is compared with float64 first. Contestants are called in bursts in random order (`contestants.py`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mugraph
from contestants import Call, by_inductor, in_bursts

SIZES = ("4096x4096", "4096x14336", "14336x4096")
ROWS = (1, 4, 8, 16)
GROUP = 128
LARGEST_ERROR = 2e-2
"""Of the largest element, in bf16."""


class Linear(nn.Module):
    """A layer whose weight is made of others in every call."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.outputs, self.inputs = outputs, inputs

    def weight_in(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight [outputs, inputs] as it is meant."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight_in(x.dtype))


class InBf16(Linear):
    """The weight as it is."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__(outputs, inputs)
        self.register_buffer("weight", (torch.randn(outputs, inputs) / 64).bfloat16())
        self.weight: torch.Tensor

    def weight_in(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(dtype)


class Of8Bits(Linear):
    """A scale for each row."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__(outputs, inputs)
        self.register_buffer("weight", torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(outputs) * 1e-3 + 1e-4).bfloat16())
        self.weight: torch.Tensor
        self.scale: torch.Tensor

    def weight_in(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(dtype) * self.scale[:, None].to(dtype)


class InGroups(Linear):
    """A scale and a zero point for each group, or 4 bits less 8."""

    def __init__(self, outputs: int, inputs: int, bits: int, *, zeros: bool) -> None:
        super().__init__(outputs, inputs)
        groups, halved = inputs // GROUP, bits == 4
        self.register_buffer("weight", torch.randint(0, 256, (outputs, inputs // (2 if halved else 1)), dtype=torch.uint8))
        self.register_buffer("scale", (torch.rand(outputs, groups) * 1e-2 + 1e-3).bfloat16())
        self.register_buffer("zero", torch.randint(0, 1 << bits, (outputs, groups), dtype=torch.uint8) if zeros else None)
        self.weight: torch.Tensor
        self.scale: torch.Tensor
        self.zero: torch.Tensor | None
        self.halved = halved

    def numbers(self) -> torch.Tensor:
        """The whole numbers [outputs, inputs]."""
        if not self.halved:
            return self.weight
        return torch.stack((self.weight & 15, self.weight >> 4), -1).reshape(self.outputs, self.inputs)

    def weight_in(self, dtype: torch.dtype) -> torch.Tensor:
        grouped = self.numbers().reshape(self.outputs, -1, GROUP).to(dtype)
        centred = grouped - (8 if self.zero is None else self.zero[..., None].to(dtype))
        return (centred * self.scale[..., None].to(dtype)).reshape(self.outputs, self.inputs)


def by_torch_of_8_bits(layer: Of8Bits, x: torch.Tensor) -> Call:
    """PyTorch's own product with weights of 8 bits."""
    return lambda: torch.ops.aten._weight_int8pack_mm(x, layer.weight, layer.scale)


def by_torch_of_4_bits(layer: InGroups, x: torch.Tensor) -> Call:
    """PyTorch's own product with weights of 4 bits less 8, packed as it wants."""
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(layer.numbers().int(), 1)
    scale_and_zero = torch.stack((layer.scale.T, torch.zeros_like(layer.scale.T)), -1).contiguous()
    return lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, scale_and_zero)


def contestants(outputs: int, inputs: int, rows: int, budget: float) -> tuple[dict[str, Call], dict[str, Any]]:
    """A call of each whose result agrees with float64; and what each of ours, or what kept others out, has to say."""
    torch.manual_seed(0)
    x = torch.randn(rows, inputs).bfloat16()
    layers: dict[str, Linear] = {
        "bf16": InBf16(outputs, inputs),
        "8 bits": Of8Bits(outputs, inputs),
        "8 bits, groups": InGroups(outputs, inputs, 8, zeros=True),
        "4 bits": InGroups(outputs, inputs, 4, zeros=False),
        "4 bits, zeros": InGroups(outputs, inputs, 4, zeros=True),
    }
    calls: dict[str, Call] = {}
    told: dict[str, Any] = {}
    for name, layer in layers.items():
        begun = time.monotonic()
        found = mugraph.superoptimize(layer, (x,), budget=budget, cache="off")
        seconds, packed = time.monotonic() - begun, found.executable.packed_bytes
        told[f"{name}, ours"] = {"found": found.found, "seconds": seconds, "packed": packed}
        calls[f"{name}, ours"] = functools.partial(found, x)
    bf16, of_8_bits, of_4_bits = layers["bf16"], layers["8 bits"], layers["4 bits"]
    assert isinstance(of_8_bits, Of8Bits)
    assert isinstance(of_4_bits, InGroups)
    calls["bf16, eager"] = functools.partial(bf16, x)
    calls["bf16, inductor frozen"] = by_inductor(bf16, (x,), freezing=True)
    calls["8 bits, inductor frozen"] = by_inductor(of_8_bits, (x,), freezing=True)
    calls["4 bits, inductor"] = by_inductor(of_4_bits, (x,))
    calls["8 bits, PyTorch's"] = by_torch_of_8_bits(of_8_bits, x)
    calls["4 bits, PyTorch's"] = by_torch_of_4_bits(of_4_bits, x)
    for name, call in list(calls.items()):
        layer = layers[name.rpartition(", ")[0]]
        exact = x.double() @ layer.weight_in(torch.float64).T
        error = float((call().double() - exact).abs().max() / exact.abs().max())
        told.setdefault(name, {})["error"] = error
        if not error < LARGEST_ERROR:
            del calls[name]
    return calls, told


def timed(size: str, rows: int, threads: int, rounds: int, budget: float) -> dict[str, Any]:
    """Milliseconds of each contestant for one size and so many rows."""
    torch.set_num_threads(threads)
    outputs, inputs = map(int, size.split("x"))
    with torch.no_grad():
        calls, told = contestants(outputs, inputs, rows, budget)
        seconds = in_bursts(calls, rounds)
    milliseconds = {name: 1e3 * each for name, each in seconds.items()}
    load = os.getloadavg()[0]
    return {"size": size, "rows": rows, "threads": threads, "load": load, "milliseconds": milliseconds, "told": told}


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Rows of Markdown: a line for each size and number of rows, a column for each contestant."""
    names = list(dict.fromkeys(name for record in records for name in record["milliseconds"]))
    lines = [f"| size | rows | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for record in records:
        times = [f"{record['milliseconds'][name]:.2f}" if name in record["milliseconds"] else "-" for name in names]
        lines.append(f"| {record['size']} | {record['rows']} | {' | '.join(times)} |")
    return "\n".join(lines)


def main() -> None:
    """Time every size in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each of our layers")
    parser.add_argument("--record", type=Path, help="a JSON file for what was measured")
    parser.add_argument("--alone", action="store_true", help="print one case as JSON, in this process")
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(timed(options.sizes[0], options.rows[0], options.threads, options.rounds, options.budget)))
        return
    records: list[dict[str, Any]] = []
    for size in options.sizes:
        for rows in options.rows:
            records.append(_in_a_process(size, rows, options))
            print(table(records[-1:]), flush=True)
            if options.record is not None:
                options.record.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    print(table(records))


def _in_a_process(size: str, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    numbers = {"threads": options.threads, "rounds": options.rounds, "budget": options.budget}
    arguments = [text for name, number in numbers.items() for text in (f"--{name}", str(number))]
    command = [sys.executable, __file__, "--alone", "--sizes", size, "--rows", str(rows), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


if __name__ == "__main__":
    main()
