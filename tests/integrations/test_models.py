"""The paper's four models through torch.compile(backend="mugraph"), tiny: logits as exact as eager's, and the same tokens."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mugraph.integrations.torch_compile
from mugraph.pieces import piece_optimizer
from mugraph.selection import qualification
from mugraph.support.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
NEEDS = {"ngpt": (), "llama": ("transformers",), "chameleon": ("transformers",), "lora": ("transformers", "peft")}
STEPS = 64


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example's module, with nothing compiled."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import generate  # type: ignore[import-not-found]  # found by the line above

    torch._dynamo.reset()
    mugraph.integrations.torch_compile.compilations.clear()
    piece_optimizer.optimizer.cache_clear()
    yield generate
    torch._dynamo.reset()
    for name in ("generate", "zoo", "ngpt"):
        sys.modules.pop(name, None)


def compare(generate: ModuleType, name: str, dtype: torch.dtype, steps: int, **options: Any) -> None:
    """Generate eagerly, compiled and in float64, and compare logits and (in fp32) tokens."""
    for package in NEEDS[name]:
        pytest.importorskip(package, reason=f"{name} is built with {package}: pip install mugraph[models]")
    model = generate.build(name, "tiny").to(dtype)
    prompt = torch.randint(7, 96, (1, 5))
    chosen: dict[str, Any] = {"keep": "all", "budget": 150.0, "strict": True, **options}
    fast: Any = torch.compile(model, backend="mugraph", options=chosen)
    eager = generate.generate(model, prompt, steps)
    ours = generate.generate(fast, prompt, steps, eager.tokens)
    exact = generate.generate(copy.deepcopy(model).double(), prompt, steps, eager.tokens)
    assert ours.logits[0].dtype is dtype
    for part in (slice(0, 1), slice(1, None)):  # the prompt, and every token after it
        mine, theirs = (generate.largest_error(result.logits[part], exact.logits[part]) for result in (ours, eager))
        scale = max(float(generate.possible(logits).abs().max()) for logits in exact.logits[part])
        assert mine <= 2 * max(theirs, scale * torch.finfo(dtype).eps)
    if dtype is torch.float32:
        assert ours.tokens == eager.tokens
    decode = mugraph.integrations.torch_compile.compilations[-1]
    assert decode.results, "nothing of the decoder was optimized"
    assert decode.partition.byte_share > 0.8


def test_ngpt_generates_what_eager_generates(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qualification, "_COMPILED", 1)  # any kernels will do: the slow tests compile and time more
    compare(generate, "ngpt", torch.float32, 8, budget=90.0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NEEDS)
def test_a_model_generates_what_eager_generates(generate: ModuleType, name: str, dtype: torch.dtype) -> None:
    compare(generate, name, dtype, STEPS)


@pytest.mark.slow
def test_a_warm_cache_gives_the_same_model_without_a_search(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path))
    compare(generate, "ngpt", torch.float32, 4, cache="on")
    assert any(entry.kind == "result" for entry in Store().entries())
    torch._dynamo.reset()
    piece_optimizer.optimizer.cache_clear()
    mugraph.integrations.torch_compile.compilations.clear()
    compare(generate, "ngpt", torch.float32, 4, cache="on")
    assert all(
        result.report.recalled for done in mugraph.integrations.torch_compile.compilations for result in done.results.values()
    )
