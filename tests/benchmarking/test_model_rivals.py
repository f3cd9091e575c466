"""The models that are measured compute what they say, however they keep keys and values, and the benchmark runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import model_rivals
import model_steps
from contestants import error, tensors
from model_steps import MODELS, Step, written

SCALE = 16
CAUSAL = [name for name, family in MODELS.items() if "decode" in family.phases]


def step(name: str, phase: str, size: int, layers: int = 2, dtype: str = "fp32") -> Step:
    return Step(name, phase, size, dtype, layers, SCALE)


def called(case: model_steps.Case) -> list[torch.Tensor]:
    with torch.no_grad():
        found: list[torch.Tensor] = tensors(case.module(*case.inputs))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_gives_finite_features_and_the_keys_and_values_of_all_layers(name: str) -> None:
    first, *new = called(step(name, "prefill", 6).case())
    assert first.isfinite().all()
    assert len(new) == (4 if name in CAUSAL else 0)
    assert all(each.shape[-2] == 6 for each in new)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_token_behind_a_cache_is_the_last_of_a_prompt(name: str) -> None:
    prompt, token = step(name, "prefill", 6), step(name, "decode", 6)
    assert prompt.weights.keys() == token.weights.keys()
    whole = prompt.case()
    logits, *new = called(whole)
    decoding = token.case()
    places = {key: value for key, value in decoding.module.state_dict().items() if key.endswith((".cos", ".sin"))}
    decoding.module.load_state_dict(whole.module.state_dict() | places)
    caches = (each[..., :5, :] for each in new)
    last, *_ = called(model_steps.Case(decoding.module, (whole.inputs[0][:, 5:], *caches)))
    torch.testing.assert_close(last[:, -1], logits[:, -1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_static_cache_gives_what_a_growing_one_gives_and_has_the_new_keys(name: str) -> None:
    token = step(name, "decode", 6)
    static = token.case(written, 1)
    found = called(static)
    assert error(found, called(token.case())) < 1e-5
    assert len(found) == len(static.inputs)
    for cache, new in zip(static.inputs[1:], found[1:], strict=True):
        torch.testing.assert_close(cache[..., -1:, :], new)


def test_attention_without_copies_of_keys_is_attention() -> None:
    """It is what ONNX Runtime is given."""
    for tokens in (1, 6):
        layer = model_steps.Decoder(model_steps.DECODERS["llama-1b"].divided(SCALE), tokens, 5)
        q, k, v = (torch.randn(1, heads, tokens, 64) for heads in (2, 1, 1))
        torch.testing.assert_close(layer._grouped(q, k, v), layer.attention(q, k, v), rtol=1e-4, atol=1e-5)


def test_contestants_hold_the_same_weights() -> None:
    token = step("llama-1b", "decode", 6, layers=1)
    one, other = token.case().module, token.case().module
    assert one.embedding.weight.data_ptr() == other.embedding.weight.data_ptr()
    other.double()
    assert one.embedding.weight.dtype is torch.float32


@pytest.mark.parametrize("place", [0, 1])
def test_an_output_that_is_no_number_is_an_error(place: int) -> None:
    exact = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    given = [each.float() for each in exact]
    assert error(given, exact) == error(given[:1], exact) == 0.0
    given[place][-1] = torch.nan
    assert math.isnan(error(given, exact))


def test_the_faster_way_is_taken_and_one_that_fails_is_left_out() -> None:
    def broken() -> model_rivals.Call:
        raise ValueError("not here")

    def slow() -> model_rivals.Call:
        return lambda: [torch.ones(64, 64) @ torch.ones(64, 64) for _ in range(200)]

    maker = model_rivals.Fastest({"broken": broken, "slow": slow, "quick": lambda: lambda: torch.ones(1)})
    assert maker().__call__().shape == (1,)
    assert (maker.chosen, maker.refused) == ("quick", {"broken": "ValueError: not here"})
    with pytest.raises(ValueError, match="not here"):
        model_rivals.Fastest({"broken": broken})()


@pytest.mark.slow
def test_cases_are_measured_recorded_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.json"
    words = ["ngpt-0.5b", "--phases", "decode", "--sizes", "16", "--dtypes", "fp32", "--threads", "1", "--layers", "1"]
    words += ["--scale", str(SCALE), "--contestants", "mugraph", "eager", "--budget", "5", "--record", str(record)]
    monkeypatch.setattr(model_rivals, "BURSTS", 1)
    model_rivals.main(words)
    (entry,) = json.loads(record.read_text())["records"]
    assert entry["outcome"] == "timed", entry
    assert entry["seconds"].keys() == entry["caches"].keys() == {"mugraph", "eager"}
    assert max(entry["errors"].values()) < 1e-4
    monkeypatch.setattr(model_rivals, "made", lambda **_: pytest.fail("made again"))
    capsys.readouterr()
    model_rivals.main(words)
    assert "| ngpt-0.5b | decode | 16 | fp32 | 1 | default | 1 |" in capsys.readouterr().out


def test_lost_cases_are_listed() -> None:
    named = {"model": "llama-1b", "phase": "prefill", "size": 128, "dtype": "fp32", "threads": 1, "wait": "default", "layers": 2}
    won, lost = ({**named, "seconds": {"mugraph": 1.0, "eager": rival}} for rival in (2.0, 0.5))
    *_, heading, last = model_rivals.table([won, lost]).splitlines()
    assert heading == "1 lost:"
    assert last == model_rivals.line(lost)
    assert last.split(" | ")[7:9] == ["128", "256"]
    assert model_rivals.summary([won, lost])["prefill fp32"]["geometric_mean"] == pytest.approx(1.0)
