"""The paper's four models inside PyTorch: how long compiling takes, what a token costs, and what part of it kernels do.

    python benchmarks/models.py compile llama --layers 32        # first compile, and from a warm cache in a new process
    python benchmarks/models.py compile llama --size narrow --steps 1 --processes 4 --json
    python benchmarks/models.py latency --size small             # per token, against eager and torch.compile
    python benchmarks/models.py share --size small               # of bytes and operations, and why the rest is not in kernels
    python benchmarks/models.py classes                          # classes of `transformers`: see benchmarks/model_classes.py
    python benchmarks/models.py generate                         # tokens of those that generate: see benchmarks/generation.py
    python benchmarks/models.py rates                            # tokens per second of `generate`: see benchmarks/token_rates.py
    python benchmarks/models.py rivals                           # beside other runtimes: see benchmarks/model_rivals.py

- compile: a prompt, then tokens: every new graph is timed, in a fresh process with an empty cache and in others with the cache
  that one left; and what the same graphs cost PyTorch alone (backends "eager" and "aot_eager", which compile nothing) and
  inductor, with an empty cache and with a full one. `--processes` of each are started in turns; `--steps 1` is the prompt alone.
- latency: eager, torch.compile and mugraph generate the same tokens in one process, in turns; ratios are medians over tokens.
- share: of a prompt, of a token at a fixed number of keys, and of a token at a growing one, whose size is symbolic; with `--keep`
  "faster" of the pieces that beat PyTorch here, "all" of those with kernels, "plan" of those the partitioner makes (no search).
  Calls of symbolic sizes count with their bytes, not with their operations.

Models have random weights (`examples/models`). Results go to `benchmarks/results/models-*.json`; tables go to stdout.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

import generation
import model_classes
import model_rivals
import token_rates
from mugraph.devices import device_for
from mugraph.devices.host import available_cores
from mugraph.frontend.partitioning.partition import Partition, partition
from mugraph.frontend.rewriting.arrangements import with_arrangements
from mugraph.integrations.torch_compile import compilations

RESULTS = Path(__file__).parent / "results"
EXAMPLES = Path(__file__).parents[1] / "examples" / "models"
MODELS = ("llama", "chameleon", "lora", "ngpt")
PROMPT = 16
STARTS = ("eager", "aot_eager", "inductor", "inductor-warm", "first", "warm")
"""What compiles in a process of its own: PyTorch alone, inductor and mugraph with an empty cache, and with a full one (warm)."""
COMPILED_STEPS = 3
"""The prompt, a first token, and one with another number of keys: PyTorch makes a graph of each."""
_AGAIN = ("eager", "inductor-warm", "warm")
"""Those of which there may be several processes."""
WARMUP = 4
"""Tokens that are not timed: every contestant compiles in them."""

Record = dict[str, Any]


def main() -> None:
    """Run one part, write its results, print the table."""
    elsewhere = {
        "classes": model_classes.main,
        "generate": generation.main,
        "rates": token_rates.main,
        "rivals": model_rivals.main,
    }
    if sys.argv[1:2] and sys.argv[1] in elsewhere:
        elsewhere[sys.argv[1]](sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in PARTS:
        part = parts.add_parser(name)
        part.add_argument("models", nargs="*", default=list(MODELS))
        part.add_argument("--size", default="tiny" if name == "compile" else "small", help="tiny, narrow, small or full layers")
        part.add_argument("--layers", type=int, default=32 if name == "compile" else 2)
        part.add_argument("--dtype", default="float32")
        part.add_argument("--budget", type=float, default=40.0, help="seconds for the pieces of one graph")
        part.add_argument("--threads", type=int, default=available_cores())
        part.add_argument(
            "--steps", type=int, default=COMPILED_STEPS, help="calls with a graph of their own that `compile` times"
        )
        part.add_argument("--processes", type=int, default=1, help="those of each kind that finds a full cache, and of eager")
        part.add_argument("--tokens", type=int, default=64, help="timed tokens")
        part.add_argument("--keep", choices=("faster", "all", "plan"), default="faster", help="which pieces `share` counts")
        part.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        part.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(compiled(options.models[0], options.one, options)))
        return
    rows = [row for model in options.models for row in PARTS[options.part](model, options)]
    record = {"machine": machine(), "threads": options.threads, "size": options.size, "layers": options.layers, "rows": rows}
    RESULTS.mkdir(exist_ok=True)
    kept = f"-{options.keep}" if options.part == "share" else ""
    (RESULTS / f"models-{options.part}-{options.size}{kept}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record) if options.json else table(rows))


def compile_times(model: str, options: argparse.Namespace) -> list[Record]:
    """PyTorch alone, inductor and mugraph with an empty cache and with a full one, each in a process of its own; and the first
    step beside PyTorch's alone, and with a full cache beside inductor's."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "MUGRAPH_CACHE_DIR": cache, "MUGRAPH_CACHE": "on", "OMP_NUM_THREADS": str(options.threads)}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        rows = []
        for start in (*STARTS, *[start for start in STARTS if start in _AGAIN] * (options.processes - 1)):
            arguments = ["compile", model, "--one", start, "--size", options.size, "--layers", str(options.layers)]
            limits = ["--dtype", options.dtype, "--budget", str(options.budget), "--threads", str(options.threads)]
            command = [sys.executable, __file__, *arguments, *limits, "--steps", str(options.steps)]
            begun = time.perf_counter()
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            whole = time.perf_counter() - begun
            rows.append({**json.loads(done.stdout.splitlines()[-1]), "whole process": whole})
            print(table(rows[-1:]), file=sys.stderr, flush=True)
    return [*rows, *(_beside(model, rows, f"step 0{clock}") for clock in ("", " processor"))]


def _beside(model: str, rows: Sequence[Record], column: str) -> Record:
    """How long the first step took in a first process beyond PyTorch alone, and in later ones beside inductor's."""
    seconds = {start: statistics.median(row[column] for row in rows if row["start"] == start) for start in STARTS}
    return {
        "model": model,
        "start": f"{column} in medians",
        "first - eager": seconds["first"] - seconds["eager"],
        "warm / inductor-warm": seconds["warm"] / seconds["inductor-warm"],
    }


def compiled(name: str, start: str, options: argparse.Namespace) -> Record:
    """Seconds, of the clock and of processors (compilers included), of every step that compiles a graph."""
    model, ids = built(name, options)
    ours = start in ("first", "warm")
    fast = with_mugraph(model, options) if ours else torch.compile(model, backend=start.removesuffix("-warm"))
    row: Record = {"model": name, "start": start}
    past = None
    with torch.inference_mode():
        for step in range(options.steps):
            clock, processor = time.perf_counter(), sum(os.times()[:4])
            ids, past = token(fast, ids, past)
            row[f"step {step}"] = time.perf_counter() - clock
            row[f"step {step} processor"] = sum(os.times()[:4]) - processor
    distinct = {id(result): result for done in compilations for result in done.results.values()}
    row["distinct programs"] = len(distinct)
    row["recalled"] = sum(result.report.recalled for result in distinct.values())
    row["pieces"] = [len(done.results) for done in compilations]
    return row


def latency(name: str, options: argparse.Namespace) -> list[Record]:
    """Median milliseconds per token, and the medians of the ratios to mugraph."""
    model, prompt = built(name, options)
    contestants: dict[str, Callable[..., Any]] = {
        "mugraph": with_mugraph(model, options),
        "eager": model,
        "torch.compile": torch.compile(model),
    }
    states: dict[str, tuple[torch.Tensor, Any]] = dict.fromkeys(contestants, (prompt, None))
    seconds: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    with torch.inference_mode():
        for step in range(WARMUP + options.tokens):
            order = list(contestants) if step % 2 else list(contestants)[::-1]
            for contestant in order:
                before = time.perf_counter()
                states[contestant] = token(contestants[contestant], *states[contestant])
                if step >= WARMUP:
                    seconds[contestant].append(time.perf_counter() - before)
    ours = seconds["mugraph"]
    row: Record = {"model": name, "share of bytes": compilations[-1].partition.byte_share}
    for contestant, theirs in seconds.items():
        row[f"{contestant} ms"] = 1e3 * statistics.median(theirs)
    for contestant in ("eager", "torch.compile"):
        row[f"against {contestant}"] = statistics.median(t / o for t, o in zip(seconds[contestant], ours, strict=True))
    torch._dynamo.reset()
    return [row]


def share(name: str, options: argparse.Namespace) -> list[Record]:
    """For each graph: the part of bytes and of operations in kernels, and of all bytes by what keeps them out."""
    rows = []
    for graph, dynamic in (("prompt", False), ("token", False), ("growing", None)):
        torch._dynamo.reset()
        model, ids = built(name, options)
        planned = options.keep == "plan"
        fast = (
            torch.compile(model, backend=_partitioned, dynamic=dynamic)
            if planned
            else with_mugraph(model, options, dynamic=dynamic)
        )
        past = None
        with torch.inference_mode():
            for _ in range({"prompt": 1, "token": 2, "growing": COMPILED_STEPS}[graph]):
                ids, past = token(fast, ids, past)
        found = partitions[-1] if planned else compilations[-1].partition
        rows.append({"model": name, "graph": graph, **_shares(found)})
        print(table(rows[-1:]), file=sys.stderr, flush=True)
    torch._dynamo.reset()
    return rows


partitions: list[Partition] = []
"""Of the graphs that were only divided, in order."""


def _partitioned(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that divides graphs into pieces, and lets PyTorch run them."""

    def divided(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        partitions.append(partition(with_arrangements(graph).graph))
        return make_boxed_func(graph.forward)

    compiler: Callable[..., Any] = aot_autograd(fw_compiler=divided)(module, example_inputs)
    return compiler


def _shares(found: Partition) -> Record:
    """What `share` says of one graph."""
    total = sum(piece.work.bytes for piece in found.pieces) + sum(left.work.bytes for left in found.left)
    rest: Counter[str] = Counter()
    for left in found.left:
        rest[f"{left.node.target}: {left.reason}"] += left.work.bytes
    largest = [f"{reason} ({part / total:.2%})" for reason, part in rest.most_common() if part > total / 10_000]
    return {"bytes": found.byte_share, "operations": found.flop_share, "pieces": len(found.pieces), "not in kernels": largest}


def built(name: str, options: argparse.Namespace) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model, and a prompt for it."""
    sys.path.insert(0, str(EXAMPLES))
    zoo = importlib.import_module("zoo")
    model = zoo.build(name, options.size, options.layers).to(getattr(torch, options.dtype))
    return model, torch.randint(7, zoo.SIZES[options.size].vocabulary, (1, PROMPT))


def with_mugraph(model: torch.nn.Module, options: argparse.Namespace, **how: Any) -> Callable[..., Any]:
    """The model compiled with mugraph."""
    chosen = {"budget": options.budget, "keep": options.keep}
    fast: Callable[..., Any] = torch.compile(model, backend="mugraph", options=chosen, **how)
    return fast


def token(model: Callable[..., Any], ids: torch.Tensor, past: Any) -> tuple[torch.Tensor, Any]:
    """The likeliest next token, and the keys and values so far."""
    output = model(input_ids=ids, past_key_values=past, use_cache=True)
    return output.logits[0, -1].argmax().reshape(1, 1), output.past_key_values


def machine() -> Record:
    """The machine, as far as a reader needs it to compare."""
    device = device_for("cpu").name
    return {"device": device, "system": platform.platform(), "python": platform.python_version(), "torch": torch.__version__}


def table(rows: list[Record]) -> str:
    """The rows as a Markdown table."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = (f"{row[c]:.2f}" if isinstance(row.get(c), float) else str(row.get(c, "")) for c in columns)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[str, argparse.Namespace], list[Record]]] = {
    "compile": compile_times,
    "latency": latency,
    "share": share,
}

if __name__ == "__main__":
    main()
