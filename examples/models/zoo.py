"""The paper's four models with random weights, built from configurations: nothing is downloaded.

LLaMA-3 and Chameleon come from `transformers`, LoRA (on LLaMA-3) through `peft`, nGPT is beside this file. All take
`input_ids`, `past_key_values` and `use_cache`, and return `logits` and `past_key_values`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from ngpt import Config, NGpt
from torch import nn

MODELS = ("llama", "chameleon", "lora", "ngpt")


@dataclass(frozen=True)
class Size:
    """Sizes of a decoder; `full` layers are those of LLaMA-3-8B, with a small vocabulary."""

    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    vocabulary: int


SIZES = {
    "tiny": Size(64, 160, 4, 2, 96),
    "narrow": Size(512, 1376, 8, 8, 1024),
    "small": Size(1024, 2816, 16, 4, 1024),
    "full": Size(4096, 14336, 32, 8, 4096),
}


def build(name: str, size: str = "small", layers: int = 2, seed: int = 0) -> nn.Module:
    """The model called `name`, for inference."""
    torch.manual_seed(seed)
    sizes = SIZES[size]
    if name == "ngpt":
        return NGpt(Config(sizes.hidden, sizes.intermediate, layers, sizes.heads, sizes.vocabulary)).eval()
    options = {
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_heads,
        "vocab_size": sizes.vocabulary,
    }
    if name == "chameleon":
        return _chameleon(options)
    llama = _llama(options)
    return llama if name == "llama" else _with_adapters(llama)


def _llama(options: dict[str, Any]) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(rope_theta=500_000.0, **options)).eval()


def _with_adapters(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return get_peft_model(model, LoraConfig(r=16, target_modules=targets, init_lora_weights=False)).eval()


def _chameleon(options: dict[str, Any]) -> nn.Module:
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration

    # Text only: the picture tokenizer is as small as the configuration allows.
    pictures = {"base_channels": 32, "num_res_blocks": 1, "channel_multiplier": [1], "embed_dim": 8, "num_embeddings": 2}
    words = {"<image>": 4, "IMGIMGAZ": 5, "IMGIMGBZ": 6}
    config = ChameleonConfig(vocabulary_map=words, vq_config=pictures, swin_norm=False, **options)
    return ChameleonForConditionalGeneration(config).eval()
