"""How fast `generate` is with a cache that grows: eager PyTorch, inductor with dynamic shapes, and mugraph, in turns.

    python benchmarks/models.py rates                            # Llama-like and Qwen3-like, 4 layers, 128 tokens
    python benchmarks/token_rates.py llama --width 1024 --tokens 256 --padded

Models of `transformers` with random weights choose the likeliest token each time. A line says of a compiler whether the tokens
are eager's, and tokens per second: medians over rounds in which both take turns. Of mugraph it says, too, after which token
something was compiled last, and what part of its bytes kernels move in the graph that has most of them. With `--padded`
there are two prompts, of which one is shorter.

Needs `pip install mugraph[models]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from mugraph.integrations.torch_compile import compilations

NAMES = ("llama", "qwen3")
PROMPT, PAD, WORDS, HEAD = 16, 5, 2048, 64
"""Tokens of a prompt, how many of them are padding in a shorter one, words of the vocabulary, features of a head."""


@dataclass
class Watch:
    """A streamer of `generate` that counts tokens, and notes after how many of them something was compiled last."""

    tokens: int = 0
    last: int = 0
    _compiled: int = 0

    def put(self, value: Any) -> None:
        """Take notice of a prompt or a token."""
        if compilations.in_all > self._compiled:
            self._compiled, self.last = compilations.in_all, self.tokens
        self.tokens += 1

    def end(self) -> None:
        """All tokens were there."""


def model_of(name: str, width: int, layers: int, dtype: str) -> Any:
    """The model, in which Qwen3-like heads of queries share keys."""
    from transformers import AutoConfig, AutoModelForCausalLM

    heads = width // HEAD
    config = AutoConfig.for_model(
        name,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if name == "llama" else max(heads // 4, 1),
        head_dim=HEAD,
        vocab_size=WORDS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False).to(getattr(torch, dtype))


def line(name: str, way: str, options: argparse.Namespace) -> str:
    """What is said of a model that is compiled in some way."""
    model = model_of(name, options.width, options.layers, options.dtype)
    settings = {"do_sample": False, "max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "pad_token_id": 0}
    prompt = torch.randint(3, WORDS, (1 + options.padded, PROMPT))
    shown = torch.ones_like(prompt)
    if options.padded:
        shown[0, :PAD] = 0
    eager, chosen = model.forward, {"keep": options.keep, "budget": options.budget, "cache": "off"}
    torch._dynamo.reset()
    fast = torch.compile(eager) if way == "inductor" else torch.compile(eager, backend="mugraph", options=chosen)

    def generated(forward: Callable[..., Any], watch: Watch | None = None) -> torch.Tensor:
        model.forward = forward
        streamer = None if options.padded else watch
        with torch.no_grad():
            tokens: torch.Tensor = model.generate(prompt, attention_mask=shown, streamer=streamer, **settings)
        return tokens

    compilations.clear()
    watch, wanted = Watch(), generated(eager)
    said = "the same tokens" if torch.equal(generated(fast, watch), wanted) else "OTHER TOKENS"
    made, taken = len(compilations), dict[Callable[..., Any], list[float]]({eager: [], fast: []})
    for _ in range(options.rounds):
        for forward, times in taken.items():
            begun = time.perf_counter()
            generated(forward)
            times.append(time.perf_counter() - begun)
    rate = {forward: options.tokens * len(prompt) / statistics.median(times) for forward, times in taken.items()}
    ratio = statistics.median(slow / quick for slow, quick in zip(taken[eager], taken[fast], strict=True))
    if made:
        share = max((len(each.partition.pieces), each.partition.byte_share) for each in compilations)[1]
        said += f", nothing compiled after token {watch.last}" * (not options.padded)
        said += f", {len(compilations) - made} graphs compiled in later calls, {share:.0%} of a graph's bytes in kernels"
    return f"{name}, {way}: {said}; {rate[fast]:.1f} tokens/s, eager {rate[eager]:.1f}, {ratio:.2f} times as fast"


def main(words: Sequence[str] | None = None) -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES), help=f"of {' '.join(NAMES)}")
    parser.add_argument("--ways", default="inductor,mugraph")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", choices=("faster", "all"), default="faster")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds for each graph")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--padded", action="store_true", help="two prompts, of which one is shorter")
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    for name in options.names:
        for way in options.ways.split(","):
            print(line(name, way, options), flush=True)


if __name__ == "__main__":
    main()
