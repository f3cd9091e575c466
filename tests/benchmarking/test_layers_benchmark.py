"""The layers that are measured compute what layers of their kind do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import layers

from contestants import tensors
from mugraph.support.progress import Event


@pytest.mark.parametrize("name", layers.CASES)
def test_every_layer_can_be_called(name: str) -> None:
    case = layers.case_of(name, "fp32", 16)
    with torch.no_grad():
        results = tensors(case.layer(*case.inputs))
    assert all(result.isfinite().all() for result in results)
    assert results[0].shape == case.inputs[0].shape


def test_a_decoded_token_is_the_last_of_a_prompt() -> None:
    """With the cached keys and values of the others, which rotation and caps leave what they are."""
    for name in layers.DECODERS:
        sizes = layers.DECODERS[name].divided(16)
        torch.manual_seed(0)
        prompt, decoder = layers.Decoder(sizes, 6, 0).eval(), layers.Decoder(sizes, 1, 5).eval()
        missing = decoder.load_state_dict(prompt.state_dict() | {"cos": decoder.cos, "sin": decoder.sin}, strict=False)
        x = torch.randn(1, 6, sizes.hidden)
        with torch.no_grad():
            whole, keys, values = prompt(x)
            last, _, _ = decoder(x[:, 5:], keys[:, :, :5], values[:, :, :5])
        assert set(missing.unexpected_keys) <= {"mask"}
        torch.testing.assert_close(last, whole[:, 5:], rtol=1e-4, atol=1e-4)


def test_a_record_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    record = {"case": "bert", "dtype": "fp32", "scale": 16}
    for seconds in (1.0, 2.0):
        layers._keep({**record, "seconds": seconds}, file)
    layers._keep({**record, "scale": 8, "seconds": 3.0}, file)
    assert [each["seconds"] for each in json.loads(file.read_text())["records"]] == [2.0, 3.0]


def test_processor_seconds_are_those_of_the_stage_that_was_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([10.0, 11.0, 13.0, 16.0, 20.0, 25.0])
    monkeypatch.setattr(layers, "processor_seconds", lambda: next(spent))
    told = layers.Told()
    for stage in ("search", "verify", "proved", "search"):
        told(Event(stage, "", 0.0))
    told.end()
    record = told.record()
    assert record["stage_processor_seconds"] == {"trace": 1.0, "search": 7.0, "verify": 7.0}
    assert (record["processor_seconds"], record["first_proof_processor_seconds"]) == (15.0, 6.0)
    assert 0 <= record["first_proof_seconds"] <= record["seconds"]
