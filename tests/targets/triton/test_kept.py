"""What Triton keeps of kernels is taken only as it was written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("triton")
from lower.graphs import rms_norm_linear
from mugraph.ir import DType
from mugraph.runtime import build

GRAPH = rms_norm_linear(rows=16, inner=256, columns=64, dtype=DType.FP16)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiled_files(cache: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (cache / "triton").rglob("*") if path.is_file() and path.suffix != ".sha256"}


def test_damaged_files_are_compiled_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    figures = build(GRAPH, "triton:sm_90").resources
    (cubin,) = (cache / "triton").rglob("*.cubin")
    kept = compiled_files(cache)
    for damaged in kept:
        damaged.write_bytes(kept[damaged][:10])
        with caplog.at_level(logging.WARNING):
            assert build(GRAPH, "triton:sm_90").resources == figures
        assert f"{damaged} is damaged; it is compiled again" in caplog.text
        assert cubin.read_bytes() == kept[cubin]


def test_a_shared_cache_is_not_used(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(GRAPH, "triton:sm_90")
    kept = compiled_files(cache)
    cache.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        build(GRAPH, "triton:sm_90")
    assert f"run `chmod go-w {cache}`" in caplog.text
    assert compiled_files(cache) == kept
