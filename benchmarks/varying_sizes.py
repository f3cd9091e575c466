"""What `torch.compile(backend="mugraph")` runs in kernels at each call of a size that is new, and what the call waits for.

    python benchmarks/varying_sizes.py                                # all models and ways of saying that sizes vary
    python benchmarks/varying_sizes.py decode bert-length --ways marked --budget 20

Small models with random weights are called with one size after the other: first some that are new, then each of these once more.
Sizes are said to vary by nobody (`None`: Dynamo finds out at the second one), by `dynamic=True`, or by `mark_dynamic`. For each
call a line has the seconds that it took, how many graphs Dynamo and how many mugraph compiled in it, and which share of the
elements that eager PyTorch's calls read is read by no call of PyTorch in it (of a second call with the same arguments): what
kernels, of ours or of oneDNN with packed weights, do not take to themselves, copies of ours between them counted; it is below 0
where PyTorch's calls read more than in eager PyTorch. What is computed is compared with eager PyTorch. The table at the end has
the shares and the seconds of all calls, and times beside eager PyTorch: medians of calls in turns at the last sizes.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from mugraph.integrations.torch_compile import compilations

WAYS = ("None", "True", "marked")
WIDTH, HEADS, LAYERS, WORDS, CLASSES = 256, 4, 2, 512, 16
ROUNDS = 15
_FREE = (
    "view _unsafe_view reshape transpose t permute as_strided slice select narrow unsqueeze squeeze expand alias detach empty "
)
_FREE += (
    "empty_strided empty_like resize_ split split_with_sizes chunk unbind lift_fresh item _local_scalar_dense flatten unflatten "
)
_FREE += "resolve_conj resolve_neg result_type set_ zeros ones full fill_ zero_ scalar_tensor arange"
FREE = frozenset(f"aten::{name}" for name in _FREE.split())
"""What reads no elements of a tensor, or is asked for by calls that do."""


class Layer(nn.Module):
    """A layer of a Llama; `cache` are keys and values before `x`."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(self.before(x)).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v


class Causal(nn.Module):
    """Words to the likeliest next ones, and to keys and values; caches are given layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        x = self.words(ids)
        kept: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x, *pair = layer(x, (caches[2 * number], caches[2 * number + 1]) if caches else None)
            kept += pair
        return self.head(self.norm(x[:, -1:])), *kept


class Encoder(nn.Module):
    """A BERT: layers of PyTorch's own, and a pooler that reads the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(512, WIDTH)
        self.norm, self.pooler = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True) for _ in range(LAYERS)
        )

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Vision(nn.Module):
    """A ViT for images of 32 by 32."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, WIDTH, 8, 8), nn.Parameter(torch.randn(16, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x.mean(1))
        return logits


class Ranked(nn.Module):
    """A perceptron of embedded words whose rows are put in the order of a score, which is no slice of anything."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.score = nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, 1)
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        best = self.score(x).squeeze(-1).argsort(descending=True)
        y: Tensor = self.down(F.gelu(self.up(self.norm(x[best]))))
        return y


class Resampled(nn.Module):
    """Convolutions, an image made larger by interpolation, and one number for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 64, 3, 2, 1)
        self.norm, self.last = nn.GroupNorm(8, 64), nn.Conv2d(64, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = F.silu(self.norm(self.second(F.silu(self.first(images)))))
        return F.interpolate(self.last(x), scale_factor=4.0, mode="bilinear").softmax(1)


@dataclass(frozen=True)
class Case:
    """A model, the sizes that it is called with, its arguments at these, and the dimensions of each argument that vary."""

    model: Callable[[], nn.Module]
    sizes: tuple[tuple[int, ...], ...]
    arguments: Callable[..., tuple[Tensor, ...]]
    varying: tuple[tuple[int, ...], ...]


def _ids(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randint(WORDS, (batch, length)),)


def _token(batch: int, keys: int) -> tuple[Tensor, ...]:
    caches = (torch.randn(batch, HEADS, keys, WIDTH // HEADS) for _ in range(2 * LAYERS))
    return torch.randint(WORDS, (batch, 1)), *caches


def _images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 32, 32),)


_LENGTHS, _BATCHES = (20, 33, 7, 61, 48), (8, 5, 13, 3, 16)
CASES = {
    "decode": Case(Causal, tuple((1, keys) for keys in (40, 41, 42, 43, 90)), _token, ((), *((2,),) * 2 * LAYERS)),
    "decode-batch": Case(Causal, ((4, 40), (4, 41), (3, 42), (7, 80), (5, 33)), _token, ((0,), *((0, 2),) * 2 * LAYERS)),
    "prefill": Case(Causal, tuple((1, length) for length in _LENGTHS), _ids, ((1,),)),
    "bert-batch": Case(Encoder, tuple((batch, 24) for batch in _BATCHES), _ids, ((0,),)),
    "bert-length": Case(Encoder, tuple((2, length) for length in _LENGTHS), _ids, ((1,),)),
    "bert-both": Case(Encoder, tuple(zip(_BATCHES, _LENGTHS, strict=True)), _ids, ((0, 1),)),
    "vit-batch": Case(Vision, tuple((batch,) for batch in _BATCHES), _images, ((0,),)),
    "ranked": Case(Ranked, tuple((batch, 6) for batch in _BATCHES), _ids, ((0,),)),
    "convolution": Case(Resampled, tuple((batch,) for batch in _BATCHES), _images, ((0,),)),
}


def elements(call: Callable[[], Any]) -> int:
    """How many elements PyTorch's calls read in it, each with all of its operands but lists of tensors, whose shapes PyTorch does
    not record: of calls that ask for others, which do the work, these are counted alone."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        call()
    doing = [event for event in seen.events() if _reads(event) and not any(map(_reads, event.cpu_children))]
    return sum(math.prod(shape) for event in doing for shape in event.input_shapes if shape)


def _reads(event: Any) -> bool:
    """Whether an event of a profile is a call of PyTorch that reads tensors, itself or by others."""
    if event.name == "aten::to":  # of a tensor that is so already it returns this
        return any(map(_reads, event.cpu_children))
    return event.name.startswith("aten::") and event.name not in FREE


def calls(name: str, way: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What is to be said of each call of a model."""
    case = CASES[name]
    torch.manual_seed(0)
    model = case.model().eval().requires_grad_(False)
    torch._dynamo.reset()
    chosen = {"keep": options.keep, "budget": options.budget, "cache": "off"}
    fast = torch.compile(model, backend="mugraph", options=chosen, dynamic=True if way == "True" else None)
    found: list[dict[str, Any]] = []
    for sizes in (*case.sizes, *case.sizes):
        given = case.arguments(*sizes)
        for tensor, dims in zip(given, case.varying, strict=True):
            for dim in dims if way == "marked" else ():
                torch._dynamo.mark_dynamic(tensor, dim)
        before = counters["stats"]["unique_graphs"], compilations.in_all
        begun = time.perf_counter()
        made = fast(*given)
        seconds = time.perf_counter() - begun
        graphs = counters["stats"]["unique_graphs"] - before[0], compilations.in_all - before[1]
        torch.testing.assert_close(made, model(*given), rtol=1e-3, atol=1e-4)
        share = 1 - elements(lambda: fast(*given)) / elements(lambda: model(*given))  # noqa: B023
        found.append({"sizes": sizes, "seconds": seconds, "graphs": graphs, "share": share, "given": given})
    times: dict[Any, list[float]] = {fast: [], model: []}
    for _ in range(ROUNDS):
        for entry in found[len(case.sizes) :]:
            for run, taken in times.items():
                begun = time.process_time()
                run(*entry["given"])
                taken.append(time.process_time() - begun)
    speedup = statistics.median(slow / quick for quick, slow in zip(times[fast], times[model], strict=True))
    return [{**entry, "speedup": speedup} for entry in found]


def main(words: Sequence[str] | None = None) -> None:
    """Print a line for each call, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), help=f"of {' '.join(CASES)}")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--keep", choices=("faster", "all"), default="all")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each graph")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.names:
        for way in options.ways.split(","):
            with torch.inference_mode():
                found = calls(name, way, options)
            for entry in found:
                what = f"{entry['seconds']:.2f} s, {entry['graphs'][0]} graphs and {entry['graphs'][1]} of ours compiled"
                print(f"{name} {way} {entry['sizes']}: {entry['share']:.0%} in kernels, {what}", flush=True)
            shares = " ".join(f"{100 * entry['share']:.0f}" for entry in found)
            seconds = " ".join(f"{entry['seconds']:.1f}" if entry["seconds"] >= 0.05 else "0" for entry in found)
            rows.append(f"| {name} | {way} | {shares} | {seconds} | {found[0]['speedup']:.2f} |")
    print("\n| model | dynamic | % in kernels, by call | seconds of the call | of eager |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
