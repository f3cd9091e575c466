"""Whole models with random weights at one step, decode or prefill, in PyTorch alone: what `model_rivals.py` runs.

Models have the sizes of published ones and need no package beside PyTorch. A step is a call that can be repeated: its caches are
arguments, and what is new in them is returned.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contestants import tensors
from cpu import Case
from layers import DECODERS, DTYPES, Decoder, Join, Sizes, appended
from mugraph.devices.host import free_memory

sys.path.append(str(Path(__file__).parents[1] / "examples" / "models"))
import ngpt

PHASES = ("decode", "prefill")


class Causal(nn.Module):
    """Embedding, layers, norm, and the embedding once more as the head."""

    def __init__(self, sizes: Sizes, shape: Shape, join: Join) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Decoder(sizes, shape.tokens, shape.cached, join) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-6)

    def forward(self, ids: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Logits of the last of `ids` [1, tokens], and new keys and values; `caches` are keys and values of each layer."""
        x, new = self.embedding(ids), list[Tensor]()
        for layer, keys, values in itertools.zip_longest(self.layers, caches[::2], caches[1::2]):
            x, *pair = layer(x, keys, values)
            new += pair
        return F.linear(self.norm(x[:, -1:]), self.embedding.weight), *new


class Unit(nn.Module):
    """nGPT of `examples/models`, called like the others."""

    def __init__(self, config: ngpt.Config, shape: Shape, join: Join) -> None:
        super().__init__()
        self.model, self.start = ngpt.NGpt(config, join), shape.cached

    def forward(self, ids: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Logits of `ids` [1, tokens], and new keys and values."""
        past = list(zip(caches[::2], caches[1::2], strict=True)) or None
        output = self.model(ids, past, start=self.start)
        new = (kept[..., -ids.shape[1] :, :] for pair in output.past_key_values for kept in pair)
        return output.logits, *new


class Encoder(nn.Module):
    """Embeddings of words and places, a norm, and layers that normalise after each part."""

    def __init__(self, hidden: int, heads: int, shape: Shape) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(shape.vocabulary, hidden), nn.Parameter(torch.randn(shape.tokens, hidden))
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True)
            for _ in range(shape.layers)
        )

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The features of `ids` [1, tokens]."""
        x = self.norm(self.words(ids) + self.places)
        for layer in self.layers:
            x = layer(x)
        return (x,)


class Shape(NamedTuple):
    """What a model is built for."""

    layers: int
    vocabulary: int
    tokens: int
    cached: int


@dataclass(frozen=True, slots=True)
class Family:
    """A model: its layers and vocabulary, its keys and how wide they are, what builds it, and the phases that it has."""

    layers: int
    vocabulary: int
    keys: Callable[[int], tuple[int, int]]
    build: Callable[[int, Shape, Join], nn.Module]
    phases: tuple[str, ...] = PHASES


def _causal(name: str, layers: int, vocabulary: int) -> Family:
    sizes = DECODERS[name]

    def keys(scale: int) -> tuple[int, int]:
        return sizes.divided(scale).keys, sizes.width

    return Family(layers, vocabulary, keys, lambda scale, shape, join: Causal(sizes.divided(scale), shape, join))


def _unit(hidden: int, heads: int, layers: int, vocabulary: int) -> Family:
    def config(scale: int, shape: Shape) -> ngpt.Config:
        return ngpt.Config(hidden // scale, 4 * hidden // scale, shape.layers, max(heads // scale, 1), shape.vocabulary)

    def keys(scale: int) -> tuple[int, int]:
        few = max(heads // scale, 1)
        return few, hidden // scale // few

    return Family(layers, vocabulary, keys, lambda scale, shape, join: Unit(config(scale, shape), shape, join))


def _encoder(hidden: int, heads: int, layers: int, vocabulary: int) -> Family:
    def build(scale: int, shape: Shape, join: Join) -> nn.Module:
        return Encoder(hidden // scale, max(heads // scale, 1), shape)

    return Family(layers, vocabulary, lambda scale: (0, 0), build, ("prefill",))


MODELS = {
    "llama-1b": _causal("llama-1b", 16, 128_256),  # Llama-3.2-1B
    "qwen3-0.6b": _causal("qwen3", 28, 151_936),
    "ngpt-0.5b": _unit(1024, 16, 24, 32_000),
    "bert-base": _encoder(768, 12, 12, 30_522),
}


def written(cached: Tensor, new: Tensor) -> Tensor:
    """A cache in whose last places new keys or values are written."""
    cached[..., -new.shape[-2] :, :] = new
    return cached


@dataclass(frozen=True)
class Step:
    """A case: a model of so many layers, its widths divided by `scale`, at a phase: the last token of `size`, or all of them."""

    model: str
    phase: str
    size: int
    dtype: str
    layers: int
    scale: int

    @property
    def _family(self) -> Family:
        return MODELS[self.model]

    @property
    def _shape(self) -> Shape:
        tokens, cached = (1, self.size - 1) if self.phase == "decode" else (self.size, 0)
        return Shape(self.layers, self._family.vocabulary // self.scale, tokens, cached)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Those that all contestants have, of one seed."""
        torch.manual_seed(0)
        module = self._family.build(self.scale, self._shape, appended).to(DTYPES[self.dtype])
        return {name: tensor.detach() for name, tensor in module.state_dict().items()}

    def case(self, join: Join = appended, free: int = 0) -> Case:
        """The module, which holds the weights and no copy of them, and its inputs; caches have `free` places left."""
        shape = self._shape
        with torch.device("meta"):
            module = self._family.build(self.scale, shape, join).eval()
        module.load_state_dict(self.weights, assign=True)
        torch.manual_seed(1)
        ids = torch.randint(shape.vocabulary, (1, shape.tokens))
        heads, width = self._family.keys(self.scale)
        kept = [torch.randn(1, heads, shape.cached, width) for _ in range(2 * shape.layers if shape.cached else 0)]
        caches = (F.pad(each, (0, 0, 0, free)).to(DTYPES[self.dtype]) for each in kept)
        return Case(module.requires_grad_(False), (ids, *caches))

    def exact(self) -> tuple[str, list[Tensor]]:
        """The outputs, and the type that they were computed in."""
        few = 8 * sum(weight.numel() for weight in self.weights.values()) <= free_memory() / 4
        dtype = torch.float64 if few else torch.float32
        case = self.case().to(dtype)
        return str(dtype).removeprefix("torch."), tensors(case.module(*case.inputs))
