"""Do models that `torch.compile(backend="mugraph")` runs generate the tokens that they generate without it?

    python benchmarks/models.py generate                      # all classes that generate text, both kinds of caches
    python benchmarks/generation.py llama gpt2 --tokens 32    # some of them

Classes of `transformers` that generate text, small, with random weights (`model_classes.py`), choose the likeliest token each
time: in eager PyTorch, and with the forward pass compiled by mugraph, once with a cache of keys and values that grows and once
with one of a fixed size. Kernels run every piece that has any (`keep="all"`). A class runs in a process of its own. Records go to
`benchmarks/results/generation.json`, one by one, and are not made again by the same sources.

Needs `pip install mugraph[models]`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

import model_classes
from kept import Record, answer_of, records
from mugraph.integrations.torch_compile import compilations

RESULT = Path(__file__).parent / "results" / "generation.json"
CACHES = ("dynamic", "static")
PAIRED = ("t5", "bart")
NAMES = (*model_classes.DECODERS, "mamba", *PAIRED)
BATCH, PROMPT = 2, 7
LIMIT = 240.0
"""Seconds that a class may take beside ten times its budget."""


def model_of(name: str) -> Any:
    """The model of a class that generates, small; raises ValueError where `transformers` has none."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = model_classes.config_of(name)
    config.use_cache = True
    if name in PAIRED:
        config.decoder_start_token_id = 1
    auto = AutoModelForSeq2SeqLM if name in PAIRED else AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(config).eval().requires_grad_(False)
    model_classes.stir(model)
    return model


def record(name: str, cache: str, budget: float, tokens: int) -> Record:
    """What became of a class."""
    torch.set_num_threads(2)
    try:
        model = model_of(name)
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
        if cache == "static":
            settings |= {"cache_implementation": "static", "disable_compile": True}
        prompt = torch.randint(3, model_classes.WORDS, (BATCH, PROMPT))
        with torch.no_grad():
            wanted = model.generate(prompt, **settings)
    except Exception as error:
        return {"outcome": "not run by PyTorch", "why": model_classes.first_line(error)}
    started = time.perf_counter()
    options: dict[str, Any] = {"keep": "all", "budget": budget, "cache": "off"}
    model.forward = torch.compile(model.forward, backend="mugraph", options=options)
    with torch.no_grad():
        got = model.generate(prompt, **settings)
    shares = [each.partition.byte_share for each in compilations]
    return {
        "outcome": "equal" if torch.equal(got, wanted) else "different",
        "seconds": time.perf_counter() - started,
        "graphs": compilations.in_all,
        "median_byte_share": statistics.median(shares) if shares else None,
        "distinct_tokens": len(wanted[:, -tokens:].unique()),
    }


def made(name: str, cache: str, budget: float, tokens: int) -> Record:
    """The record of a class, by a process of its own."""
    words = [__file__, name, "--caches", cache, "--budget", str(budget), "--tokens", str(tokens), "--one"]
    return answer_of(words, LIMIT + 10 * budget)


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    shares = [entry["median_byte_share"] for entry in found if entry.get("median_byte_share") is not None]
    return {
        "outcomes": {cache: dict(Counter(entry["outcome"] for entry in found if entry["cache"] == cache)) for cache in CACHES},
        "median_byte_share": statistics.median(shares) if shares else None,
        "not_equal": [f"{entry['name']} {entry['cache']}: {entry['outcome']}" for entry in found if entry["outcome"] != "equal"],
    }


def main(words: Sequence[str] | None = None) -> None:
    """Run the classes, write the records, print a line for each; the exit code is 1 where tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {' '.join(NAMES)}")
    parser.add_argument("--caches", default=",".join(CACHES))
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each graph")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--record", type=Path, help="a file of JSON that records are kept in")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    names, caches = options.names or list(NAMES), options.caches.split(",")
    if options.one:
        print(json.dumps(record(names[0], caches[0], options.budget, options.tokens)))
        return
    settings = {"budget": options.budget, "tokens": options.tokens}
    cases = [{"name": name, "cache": cache, **settings} for cache in caches for name in names]
    found = records(cases, made, options.record or (None if options.names else RESULT), summary)
    for entry in found:
        print(f"{entry['name']} {entry['cache']}: {entry['outcome']} {entry.get('why', '')}")
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(entry["outcome"] in ("different", "failed") for entry in found) else 0)


if __name__ == "__main__":
    main()
