"""Model classes of `transformers` with random weights: what runs as kernels, and whether a call of the result is right.

    python benchmarks/models.py classes                          # all classes, fp32 and bf16
    python benchmarks/model_classes.py llama bert --budget 60    # some of them

Each class is made small (a few layers of a few dozen features) from its configuration, so that what is tried is which operators
its graph has, and not how fast it is; `mugraph.superoptimize` takes the whole model. Kernels run every program that has any
(`profile=False`). A result is called on inputs that it was not optimized for, and compared with the model in float64: right is
what errs at most `kernelbench.ERRORS` times as much as the model in its own precision. A class runs in a process of its own.
Records go to `benchmarks/results/model-classes.json`, one by one, and are not made again by the same sources.

Needs `pip install mugraph[models]`.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import nn

import mugraph
from kept import Record, answer_of, records
from kernelbench import ERRORS, covered, errors

RESULT = Path(__file__).parent / "results" / "model-classes.json"
DTYPES = ("float32", "bfloat16")
WIDTH, INNER, LAYERS, HEADS, WORDS, TOKENS, SIDE = 64, 128, 2, 4, 96, 16, 32
"""Features, features inside a layer, layers, heads, words of the vocabulary, tokens of a text, pixels along an image."""
EXPERTS = 4
LIMIT = 240.0
"""Seconds that a class may take beside three times its budget."""

_NAMES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "d_model": WIDTH,
    "n_embd": WIDTH,
    "embedding_size": WIDTH,
    "dim": WIDTH,
    "intermediate_size": INNER,
    "hidden_dim": INNER,
    "d_ff": INNER,
    "n_inner": INNER,
    "ffn_dim": INNER,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_layers": LAYERS,
    "n_layer": LAYERS,
    "n_layers": LAYERS,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "num_attention_heads": HEADS,
    "n_head": HEADS,
    "n_heads": HEADS,
    "num_heads": HEADS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "num_key_value_heads": HEADS // 2,
    "head_dim": WIDTH // HEADS,
    "d_kv": WIDTH // HEADS,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "image_size": SIDE,
    "patch_size": 8,
    "use_cache": False,
}
"""What configurations call their sizes: those that one has are set."""


def _tokens(words: int = WORDS) -> tuple[torch.Tensor, ...]:
    return (torch.randint(3, words, (2, TOKENS)),)


def _image() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, SIDE, SIDE),)


def _sound() -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 1600),)


def _spectrum() -> tuple[torch.Tensor, ...]:
    return torch.randn(1, 80, 32), torch.randint(3, WORDS, (1, TOKENS))


def _pairs() -> tuple[torch.Tensor, ...]:
    return torch.randint(3, WORDS, (2, TOKENS)), torch.randint(3, WORDS, (2, TOKENS // 2))


_TEXT, _SEEN, _HEARD = ("input_ids",), ("pixel_values",), ("input_values",)
_PAIRED, _SPECTRAL = ("input_ids", "decoder_input_ids"), ("input_features", "decoder_input_ids")
_SOUND_LAYERS = {"conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3}
_SOUND = _SOUND_LAYERS | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}

Inputs = tuple[tuple[str, ...], Callable[[], tuple[torch.Tensor, ...]], dict[str, Any]]
_DECODERS = "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 gpt2 gpt_neox opt bloom falcon olmo2 stablelm cohere"
_MIXTURES = "granite mixtral qwen2_moe qwen3_moe olmoe"
DECODERS = f"{_DECODERS} {_MIXTURES}".split()
_ENCODERS = "bert roberta distilbert electra albert mpnet xlm-roberta deberta-v2 modernbert"
CLASSES: dict[str, Inputs] = {
    **dict.fromkeys((*DECODERS, *_ENCODERS.split()), (_TEXT, _tokens, {})),
    "mamba": (_TEXT, _tokens, {"state_size": 8}),
    "t5": (_PAIRED, _pairs, {}),
    "bart": (_PAIRED, _pairs, {}),
    "vit": (_SEEN, _image, {}),
    "deit": (_SEEN, _image, {}),
    "dinov2": (_SEEN, _image, {}),
    "siglip_vision_model": (_SEEN, _image, {}),
    "convnext": (_SEEN, _image, {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}),
    "resnet": (_SEEN, _image, {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}),
    "swin": (_SEEN, _image, {"patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}),
    "mobilenet_v2": (_SEEN, _image, {"depth_multiplier": 0.35}),
    "wav2vec2": (_HEARD, _sound, _SOUND),
    "whisper": (_SPECTRAL, _spectrum, {"max_source_positions": 16, "max_target_positions": 64}),
}
"""By the name that `transformers` has for its configuration: the inputs it is called with, and what else is set."""


class Called(nn.Module):
    """A model as a function of tensors, in the order of their names."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors that the model returns."""
        returned = self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=True)
        return tuple(value for value in returned.values() if isinstance(value, torch.Tensor))


def config_of(name: str) -> Any:
    """The configuration of a class, small."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(name)
    set_by = known.to_dict()
    sizes = {key: value for key, value in _NAMES.items() if key in set_by}
    sizes |= {"num_key_value_heads": HEADS} if getattr(known, "num_key_value_heads", 0) is None else {}
    return AutoConfig.for_model(name, **(sizes | CLASSES[name][2]))


def stir(model: nn.Module) -> None:
    """Move parameters a little, such as scales of zero, behind which nothing can be wrong."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))


def model_of(name: str, dtype: str) -> tuple[nn.Module, Callable[[], tuple[torch.Tensor, ...]]]:
    """The model of a class, small, and what makes inputs of it."""
    from transformers import AutoModel

    names, inputs, _ = CLASSES[name]
    torch.manual_seed(0)
    model = AutoModel.from_config(config_of(name)).eval().requires_grad_(False)
    stir(model)
    wanted = getattr(torch, dtype)

    def make() -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(wanted) if tensor.is_floating_point() else tensor for tensor in inputs())

    return Called(model.to(wanted), names), make


def record(name: str, dtype: str, budget: float) -> Record:
    """What became of a class."""
    torch.set_num_threads(2)
    try:
        model, inputs = model_of(name, dtype)
        with torch.inference_mode():
            model(*inputs())
    except Exception as error:
        return {"outcome": "not run by PyTorch", "why": first_line(error)}
    with torch.no_grad():
        started = time.perf_counter()
        try:
            opt = mugraph.superoptimize(model, inputs(), budget=budget, cache="off", profile=False)
        except mugraph.MugraphError as error:
            return {"outcome": "refused", "why": first_line(error)}
        found = {"seconds": time.perf_counter() - started, "found": opt.found, **covered(opt)}
        ours, own, equal = errors(opt, model, inputs(), exact(model))
    right = equal and ours <= max(ERRORS * own, 64 * torch.finfo(getattr(torch, dtype)).eps)
    return found | {"outcome": "right" if right else "wrong", "error": ours, "model_error": own}


def exact(model: nn.Module) -> nn.Module:
    """The model in float64, in which PyTorch has no products of groups: experts one by one."""
    doubled = copy.deepcopy(model).double()
    for module in doubled.modules():
        if hasattr(module, "config"):
            module.config._experts_implementation = "eager"  # type: ignore[union-attr]
    return doubled


def first_line(error: BaseException) -> str:
    """The type of an exception and the first line of its text."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    ran = [entry for entry in found if entry["outcome"] in ("right", "wrong")]
    left: Counter[str] = Counter()
    for entry in ran:
        whole = sum(calls["bytes"] for calls in entry["left"]) or 1
        for calls in entry["left"]:
            left[f"{calls['operator']}: {calls['reason']}"] += (1 - entry["byte_share"]) * calls["bytes"] / whole / len(ran)
    shares = [entry["byte_share"] for entry in ran]
    return {
        "outcomes": dict(Counter(entry["outcome"] for entry in found)),
        "classes": len({entry["name"] for entry in found}),
        "median_byte_share": statistics.median(shares) if shares else None,
        "least": sorted((round(entry["byte_share"], 3), f"{entry['name']} {entry['dtype']}") for entry in ran)[:10],
        "not_right": [_line(entry) for entry in found if entry["outcome"] != "right"],
        "left_to_pytorch": {what: round(share, 4) for what, share in left.most_common(20)},
    }


def _line(entry: Record) -> str:
    if "byte_share" not in entry:
        return f"{entry['name']} {entry['dtype']}: {entry['outcome']} ({entry['why']})"
    return (
        f"{entry['name']} {entry['dtype']}: {entry['outcome']}, {entry['byte_share']:.0%} of the bytes, {entry['seconds']:.0f} s"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Run the classes, write the records, print a line for each."""
    run(words, Script(__doc__ or "", __file__, record, _line, summary, RESULT, DTYPES))


@dataclass(frozen=True, slots=True)
class Script:
    """A program that makes a record of each class and type of its elements, in a process of its own."""

    about: str
    file: str
    record: Callable[[str, str, float], Record]
    """By the name of a class, a type and seconds."""
    line: Callable[[Record], str]
    summary: Callable[[Sequence[Record]], Any]
    result: Path
    """Where the records of all classes go."""
    dtypes: Sequence[str]
    """The types, where no others are named."""

    def made(self, name: str, dtype: str, budget: float) -> Record:
        """The record of a class, by a process of its own."""
        return answer_of([self.file, name, "--dtypes", dtype, "--budget", str(budget), "--one"], LIMIT + 3 * budget)


def run(words: Sequence[str] | None, script: Script) -> None:
    """Do what a command asks a script for; ends the process, with exit code 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=script.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {' '.join(CLASSES)}")
    parser.add_argument("--dtypes", default=",".join(script.dtypes))
    parser.add_argument("--budget", type=float, default=20.0, help="seconds to optimize each")
    parser.add_argument("--record", type=Path, help="a file of JSON that records are kept in")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    names, dtypes = options.names or list(CLASSES), options.dtypes.split(",")
    if unknown := [name for name in names if name not in CLASSES]:
        parser.error(f"no class {unknown[0]}; use some of {' '.join(CLASSES)}")
    if options.one:
        print(json.dumps(script.record(names[0], dtypes[0], options.budget)))
        return
    cases = [{"name": name, "dtype": dtype, "budget": options.budget} for dtype in dtypes for name in names]
    found = records(cases, script.made, options.record or (None if options.names else script.result), script.summary)
    for entry in found:
        print(script.line(entry))
    print(json.dumps(script.summary(found), indent=1))
    sys.exit(1 if any(entry["outcome"] in ("wrong", "failed") for entry in found) else 0)


if __name__ == "__main__":
    main()
