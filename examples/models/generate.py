"""Generate greedily with one of the paper's models, in eager PyTorch and through mugraph, and compare the two.

    python examples/models/generate.py ngpt --size small --steps 64

Prints how far the logits of each are from float64, whether the tokens agree, the share of bytes that kernels read and write
at decode, and the time per token.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from zoo import MODELS, SIZES, build

from mugraph.integrations.torch_compile import compilations


@dataclass(frozen=True)
class Generated:
    """Tokens chosen one after another, the logits of every step, and the seconds that each took."""

    tokens: list[int]
    logits: list[torch.Tensor]
    seconds: list[float]


def generate(model: Callable[..., Any], prompt: torch.Tensor, steps: int, forced: list[int] | None = None) -> Generated:
    """Feed the prompt [1, tokens], then `steps` tokens: the likeliest ones, or those `forced`."""
    result = Generated([], [], [])
    ids, past = prompt, None
    with torch.inference_mode():
        for step in range(steps + 1):
            started = time.perf_counter()
            output = model(input_ids=ids, past_key_values=past, use_cache=True)
            result.seconds.append(time.perf_counter() - started)
            result.logits.append(output.logits)
            result.tokens.append(int(output.logits[0, -1].argmax()))
            ids = torch.tensor([[result.tokens[step] if forced is None else forced[step]]])
            past = output.past_key_values
    return result


def largest_error(logits: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Of all logits of all steps but those a model rules out (Chameleon: of pictures)."""
    errors = (ours.double() - theirs for ours, theirs in zip(map(possible, logits), map(possible, exact), strict=True))
    return max(float(error.abs().max()) for error in errors)


def possible(logits: torch.Tensor) -> torch.Tensor:
    """The logits that are not the least number of their type."""
    return logits[logits > torch.finfo(logits.dtype).min]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each distinct piece")
    chosen = parser.parse_args()

    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("mugraph.torch_compile").setLevel(logging.INFO)
    model = build(chosen.model, chosen.size, chosen.layers).to(getattr(torch, chosen.dtype))
    prompt = torch.randint(7, SIZES[chosen.size].vocabulary, (1, 16))
    fast = torch.compile(model, backend="mugraph", options={"budget": chosen.budget})

    started = time.perf_counter()
    generate(fast, prompt, 3)
    print(f"compiled in {time.perf_counter() - started:.1f} s")
    eager = generate(model, prompt, chosen.steps)
    ours = generate(fast, prompt, chosen.steps, eager.tokens)
    exact = generate(copy.deepcopy(model).double(), prompt, chosen.steps, eager.tokens)
    print(f"tokens equal: {ours.tokens == eager.tokens}")
    errors = [largest_error(result.logits, exact.logits) for result in (ours, eager)]
    print(f"largest error of a logit against float64: {errors[0]:.2e}, of eager {errors[1]:.2e}")
    print(f"bytes at decode in kernels: {compilations[-1].partition.byte_share:.0%}")
    medians = [1e3 * statistics.median(result.seconds[2:]) for result in (ours, eager)]
    print(f"a token in {medians[0]:.2f} ms, in eager {medians[1]:.2f} ms")


if __name__ == "__main__":
    main()
