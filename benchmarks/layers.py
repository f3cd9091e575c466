"""Whole layers of known models as one call: how long it takes, what is proved of the result, and its speed beside PyTorch's.

    python benchmarks/layers.py                                   # all layers, bf16, at the sizes of the published models
    python benchmarks/layers.py llama-decode qwen3-decode --dtypes fp32 bf16
    python benchmarks/layers.py --scale 8                         # every width divided by 8

Each case runs in a process of its own, with an empty cache. Weights are random parameters; decoding reads 4,096 cached keys and
returns the new key and value. Contestants hold the same weights and are called in bursts, in random order, with a pause of 50 ms
in between, timed by the clock or, on one thread, in processor time; outputs are compared with float64. With `--limits` reading
what a call must read, and the layer's products by the library, stand beside them: what PyTorch takes beyond the second is all
that kernels for the rest can save. Results are added to `benchmarks/results/layers.json`. Beside other work on the machine the
clock says little: `processor_seconds` are those of all threads and compilers, and `stage_processor_seconds` those from when
progress names a stage until it names another.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mugraph
from contestants import Call, Clock, by_inductor, error, in_bursts, processor_seconds, tensors
from cpu_limits import limits
from mugraph.devices import device_for
from mugraph.results.data import Report
from mugraph.support.progress import Event

RESULT = Path(__file__).parent / "results" / "layers.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CACHED = 4096
BURSTS = 9
LEAST = "at least: "
"""Before the names of what a call must do."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Those of a decoder's layer, and what it has beside attention and a gated MLP."""

    hidden: int
    heads: int
    keys: int
    width: int
    inner: int
    unit_heads: bool = False
    """Whether queries and keys are normalised."""
    after: bool = False
    """Whether what attention and MLP return is normalised before it is added."""
    cap: float | None = None
    """What scores are softly held below."""
    activation: Callable[[Tensor], Tensor] = F.silu

    def divided(self, scale: int) -> Sizes:
        """A layer of smaller matrices with heads of the same width."""
        heads, keys = max(self.heads // scale, 1), max(self.keys // scale, 1)
        return Sizes(
            self.hidden // scale,
            heads,
            keys,
            self.width,
            self.inner // scale,
            self.unit_heads,
            self.after,
            self.cap,
            self.activation,
        )


Join = Callable[[Tensor, Tensor], Tensor]


def appended(cached: Tensor, new: Tensor) -> Tensor:
    """Both along the tokens of [batch, heads, tokens, width], as a tensor of their own."""
    return torch.cat([cached, new], -2)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


DECODERS = {
    "llama": Sizes(4096, 32, 8, 128, 14336),  # Llama-3-8B
    "llama-1b": Sizes(2048, 32, 8, 64, 8192),  # Llama-3.2-1B
    "gemma3": Sizes(2560, 8, 4, 256, 10240, unit_heads=True, after=True, activation=_gelu),  # Gemma-3-4B
    "gemma2": Sizes(2304, 8, 4, 256, 9216, after=True, cap=50.0, activation=_gelu),  # Gemma-2-2B
    "qwen3": Sizes(1024, 16, 8, 128, 3072, unit_heads=True),  # Qwen3-0.6B
}


class Decoder(nn.Module):
    """Norm, attention with rotary embeddings over cached and new keys, norm, gated MLP; each added to what came in.

    `join` puts new keys or values [batch, heads, tokens, width] behind those of a cache.
    """

    def __init__(self, sizes: Sizes, tokens: int, cached: int, join: Join = appended) -> None:
        super().__init__()
        self.sizes, self.causal, self.join = sizes, tokens > 1, join

        def layer(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.q = layer(sizes.hidden, sizes.heads * sizes.width)
        self.k, self.v = (layer(sizes.hidden, sizes.keys * sizes.width) for _ in range(2))
        self.out = layer(sizes.heads * sizes.width, sizes.hidden)
        self.gate, self.up = (layer(sizes.hidden, sizes.inner) for _ in range(2))
        self.down = layer(sizes.inner, sizes.hidden)
        self.norms = nn.ModuleList(nn.RMSNorm(sizes.hidden, eps=1e-6) for _ in range(4 if sizes.after else 2))
        self.head_norms = nn.ModuleList(nn.RMSNorm(sizes.width, eps=1e-6) for _ in range(2 if sizes.unit_heads else 0))
        places = torch.arange(cached, cached + tokens)
        angles = torch.outer(places, 10000 ** -torch.arange(0, 1, 2 / sizes.width)).repeat(1, 2)
        self.cos, self.sin = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())
        mask = torch.full((tokens, cached + tokens), -torch.inf).triu(cached + 1)
        self.mask = nn.Buffer(mask) if tokens > 1 and sizes.cap is not None else None

    def rotated(self, x: Tensor) -> Tensor:
        """Queries or keys [batch, heads, tokens, width], turned by angles that grow with their places."""
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries [batch, heads, tokens, width] over keys and values of fewer heads, each of which serves several."""
        if self.sizes.cap is None and torch.onnx.is_in_onnx_export() and self.sizes.heads > self.sizes.keys:
            return self._grouped(q, k, v)  # the exporter does not know `enable_gqa`
        if self.sizes.cap is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.sizes.heads > self.sizes.keys)
        several = self.sizes.heads // self.sizes.keys
        k, v = k.repeat_interleave(several, 1), v.repeat_interleave(several, 1)
        scores = torch.tanh(q @ k.transpose(-2, -1) / self.sizes.width**0.5 / self.sizes.cap) * self.sizes.cap
        return (scores if self.mask is None else scores + self.mask).softmax(-1) @ v

    def _grouped(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention in which products broadcast keys and values, none of which is copied."""
        batch, _, tokens, width = q.shape
        grouped = q.reshape(batch, self.sizes.keys, -1, tokens, width)
        scores = grouped @ k.unsqueeze(2).transpose(-2, -1) / self.sizes.width**0.5
        if self.causal:
            scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        mixed: Tensor = scores.softmax(-1) @ v.unsqueeze(2)
        return mixed.reshape(batch, -1, tokens, width)

    def forward(self, x: Tensor, keys: Tensor | None = None, values: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, tokens, hidden] after the layer, and its keys and values [batch, heads, tokens, width]."""
        norms, sizes = list(self.norms), self.sizes
        h = norms[0](x)
        q = self.q(h).unflatten(-1, (sizes.heads, sizes.width))
        k = self.k(h).unflatten(-1, (sizes.keys, sizes.width))
        if sizes.unit_heads:
            q, k = self.head_norms[0](q), self.head_norms[1](k)
        q, k = self.rotated(q.transpose(1, 2)), self.rotated(k.transpose(1, 2))
        v = self.v(h).unflatten(-1, (sizes.keys, sizes.width)).transpose(1, 2)
        all_keys = k if keys is None else self.join(keys, k)
        all_values = v if values is None else self.join(values, v)
        mixed = self.out(self.attention(q, all_keys, all_values).transpose(1, 2).flatten(2))
        x = x + (norms[2](mixed) if sizes.after else mixed)
        h = norms[1](x)
        made = self.down(sizes.activation(self.gate(h)) * self.up(h))
        return x + (norms[3](made) if sizes.after else made), k, v


class UnitLayer(nn.Module):
    """A layer of nGPT: steps on the unit sphere towards what attention and the MLP propose."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)
        self.steps = nn.Parameter(torch.full((2, hidden), 0.05))

    @staticmethod
    def unit(x: Tensor) -> Tensor:
        """x scaled to length 1 along its last dimension."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, tokens, hidden] of unit rows after the layer."""
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(self.unit(q), self.unit(k), v, is_causal=x.shape[1] > 1)
        x = self.unit(x + self.steps[0] * (self.unit(self.out(mixed.transpose(1, 2).flatten(2))) - x))
        made = self.down(F.silu(self.gate(x)) * self.up(x))
        return self.unit(x + self.steps[1] * (self.unit(made) - x))


@dataclass(frozen=True, slots=True)
class Case:
    """A layer in evaluation mode and what it is called with."""

    layer: nn.Module
    inputs: tuple[Tensor, ...]


def _decoder(name: str, tokens: int, cached: int) -> Callable[[int], Case]:
    def made(scale: int) -> Case:
        sizes = DECODERS[name].divided(scale)
        kept = (torch.randn(1, sizes.keys, cached, sizes.width) for _ in range(2 if cached else 0))
        return Case(Decoder(sizes, tokens, cached), (torch.randn(1, tokens, sizes.hidden), *kept))

    return made


def _encoder(tokens: int, norm_first: bool) -> Callable[[int], Case]:
    def made(scale: int) -> Case:
        hidden = 768 // scale
        layer = nn.TransformerEncoderLayer(
            hidden, max(12 // scale, 1), 4 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first
        )
        return Case(layer, (torch.randn(1, tokens, hidden),))

    return made


def _unit(tokens: int) -> Callable[[int], Case]:
    def made(scale: int) -> Case:
        hidden = 1024 // scale
        return Case(UnitLayer(hidden, max(16 // scale, 1), 4 * hidden), (UnitLayer.unit(torch.randn(1, tokens, hidden)),))

    return made


CASES: dict[str, Callable[[int], Case]] = {
    "llama-decode": _decoder("llama", 1, CACHED),
    "llama-prefill-128": _decoder("llama", 128, 0),
    "llama-prefill-512": _decoder("llama", 512, 0),
    "gemma3-decode": _decoder("gemma3", 1, CACHED),
    "gemma2-decode": _decoder("gemma2", 1, CACHED),
    "qwen3-decode": _decoder("qwen3", 1, CACHED),
    "bert": _encoder(128, norm_first=False),
    "vit": _encoder(197, norm_first=True),
    "ngpt": _unit(128),
}


def case_of(name: str, dtype: str, scale: int) -> Case:
    """A layer of one seed."""
    torch.manual_seed(0)
    case = CASES[name](scale)
    return Case(case.layer.eval().requires_grad_(False).to(DTYPES[dtype]), tuple(each.to(DTYPES[dtype]) for each in case.inputs))


class Told:
    """Seconds of a call, of the clock and of processors, by its progress: a stage lasts until another one is told."""

    def __init__(self) -> None:
        self.started, self.processor = time.perf_counter(), processor_seconds()
        self.stage, self.since = "trace", self.processor
        self.of_stages: dict[str, float] = {}
        self.proofs: list[tuple[float, float]] = []

    def __call__(self, event: Event) -> None:
        self._charge()
        if event.stage == "proved":
            self.proofs.append((time.perf_counter() - self.started, self.since - self.processor))
        else:
            self.stage = event.stage

    def _charge(self) -> None:
        now = processor_seconds()
        self.of_stages[self.stage] = self.of_stages.get(self.stage, 0.0) + now - self.since
        self.since = now

    def end(self) -> None:
        """The call has returned."""
        self._charge()
        self.seconds = time.perf_counter() - self.started

    def record(self) -> dict[str, Any]:
        """Of the whole call, until something was proved first, and of processors by stages."""
        first, processor_of_first = min(self.proofs, default=(None, None))
        return {
            "seconds": self.seconds,
            "processor_seconds": sum(self.of_stages.values()),
            "first_proof_seconds": first,
            "first_proof_processor_seconds": processor_of_first,
            "stage_processor_seconds": self.of_stages,
        }


def measured(name: str, dtype: str, scale: int, budget: float, rivals: bool, least: bool) -> dict[str, Any]:
    """One case in this process: of the call its seconds, memory and coverage, and of the result its speed beside others.

    Others are PyTorch's ways where `rivals` are wanted, and what the layer takes at `least`.
    """
    case = case_of(name, dtype, scale)
    told = Told()
    optimized = mugraph.superoptimize(case.layer, case.inputs, budget=budget, cache="off", progress=told)
    told.end()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    record: dict[str, Any] = {
        "case": name,
        "dtype": dtype,
        "scale": scale,
        "budget": budget,
        **told.record(),
        "peak_bytes": peak,
        **_told(optimized.report, optimized),
    }
    with torch.no_grad():
        calls: dict[str, Call] = {"mugraph": lambda: optimized(*case.inputs), "eager": lambda: case.layer(*case.inputs)}
        if rivals:
            calls["inductor"] = by_inductor(case.layer, case.inputs)
            calls["inductor frozen"] = by_inductor(case.layer, case.inputs, freezing=True)
        outputs = {title: tensors(call()) for title, call in calls.items()}
        limited = limits(case.layer, case.inputs) if least else None
        calls |= {} if limited is None else {f"{LEAST}{title}": call for title, call in limited.calls.items()}
        record["seconds_of_a_call"] = in_bursts(calls, BURSTS, clock())
        exact = tensors(case.layer.double()(*(each.double() for each in case.inputs)))
    record["errors"] = {title: error(given, exact) for title, given in outputs.items()}
    return record


def clock() -> Clock:
    """Processor time says more than the wall's on a busy machine, where calls run on one thread."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _told(report: Report, optimized: Any) -> dict[str, Any]:
    """What a report says of pieces, proofs and seconds."""
    coverage = report.coverage
    left = () if coverage is None else coverage.left
    bounds = [each.certificate.error_bound for each in optimized.results if each.certificate is not None]
    return {
        "found": report.found,
        "one_program": optimized.is_one_program,
        "pieces": len(optimized.results),
        "bounds": bounds,
        "search_seconds": _total(report, optimized, "search"),
        "compile_seconds": _total(report, optimized, "compile_seconds"),
        "measure_seconds": _total(report, optimized, "measure_seconds"),
        "verify_seconds": _total(report, optimized, "verify_seconds"),
        "byte_share": None if coverage is None else coverage.byte_share,
        "left": [{"operator": each.operator, "reason": each.reason, "bytes": each.amount.bytes} for each in left],
    }


def _total(report: Report, optimized: Any, name: str) -> float:
    """Seconds of a stage, over all pieces."""
    reports = [report] if optimized.is_one_program else [each.report for each in optimized.results]
    if name == "search":
        return float(sum(each.search.get("seconds", 0.0) for each in reports))
    return float(sum(getattr(each, name) for each in reports))


def main() -> None:
    """Measure the cases that are asked for, print a line for each and keep the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16"])
    parser.add_argument("--scale", type=int, default=1, help="what widths are divided by")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each call")
    parser.add_argument("--no-rivals", action="store_true", help="eager alone beside the result")
    parser.add_argument("--limits", action="store_true", help="what a layer takes at least beside the result (`cpu_limits.py`)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--record", type=Path, default=RESULT)
    parser.add_argument("--here", action="store_true", help="one case in this process, as JSON")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no layer named {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    torch.set_num_threads(options.threads)
    if options.here:
        [name], [dtype] = options.cases, options.dtypes
        print(json.dumps(measured(name, dtype, options.scale, options.budget, not options.no_rivals, options.limits)))
        return
    for name in options.cases or CASES:
        for dtype in options.dtypes:
            record = _apart(name, dtype, options)
            print(_line(record), flush=True)
            _keep(record, options.record)


def _apart(name: str, dtype: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record of a case that ran in a process of its own."""
    sizes = ["--scale", str(options.scale), "--budget", str(options.budget), "--threads", str(options.threads)]
    flags = ["--no-rivals"] * options.no_rivals + ["--limits"] * options.limits
    command = [sys.executable, __file__, name, "--dtypes", dtype, *sizes, *flags, "--here"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"case": name, "dtype": dtype, "scale": options.scale, "failed": last}
    record: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return record


def _line(record: dict[str, Any]) -> str:
    """A record in words."""
    head: str = f"{record['case']} {record['dtype']} 1/{record['scale']}: "
    if "failed" in record:
        return f"{head}{record['failed']}"
    calls = dict(record["seconds_of_a_call"])
    mine = calls.pop("mugraph")
    stages = ", ".join(f"{name} {record[f'{name}_seconds']:.1f}" for name in ("search", "compile", "measure", "verify"))
    beside = ", ".join(f"{title} {seconds / mine:.2f}" for title, seconds in calls.items())
    first = "none" if record["first_proof_seconds"] is None else f"after {record['first_proof_seconds']:.1f} s"
    share = record["byte_share"]
    found = f"{record['pieces']} pieces, largest bound {max(record['bounds'], default=math.nan):.1e}"
    covered = "" if share is None else f", {share:.0%} of the bytes"
    errors = f"error {record['errors']['mugraph']:.1e} (eager {record['errors']['eager']:.1e})"
    memory = f"{record['peak_bytes'] / 2**30:.1f} GiB"
    speed = f"{mine * 1e3:.2f} ms, over it: {beside}"
    return f"{head}{record['seconds']:.1f} s ({stages}; first proof {first}), {found}{covered}, {memory}; {speed}; {errors}"


def _keep(record: dict[str, Any], file: Path) -> None:
    """Put a record among those of the file, in the place of an earlier one of its case."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"device": device_for("cpu").name, "records": []}
    record = {**record, "threads": torch.get_num_threads(), "torch": torch.__version__}
    key = ("case", "dtype", "scale", "threads", "budget")
    others = [each for each in kept["records"] if any(each.get(name) != record.get(name) for name in key)]
    kept["records"] = [*others, record]
    file.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
