"""Rates that were measured of a host stand in the place of the table's where they can be true, for that processor alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mugraph.devices import device_for, host
from mugraph.devices.device import ProductRate, RightFactor
from mugraph.devices.host import instruction_set, keep_rates, measured_about, merged, product_rates
from mugraph.devices.measured_host import keep_measured, measured_rates, processor_name
from mugraph.errors import InvalidInput
from mugraph.ir import DType
from mugraph.support.store import Store

ROW: dict[str, Any] = {
    "name": "vectors",
    "vector_flops_per_core": 5e10,
    "matmul_flops_per_core": {"fp32": 1e11, "fp16": 1e11},
    "products": {
        "batched": {"kernels": {"fp32": {"1": 0.9}, "fp16": {"1": 0.5}}},
        "packed": {"kernels": {"fp32": {"1": 0.9}}, "library": {"fp16": {"1": 0.2}}},
    },
}
RATES: dict[str, Any] = {
    "about": "measured 2026-01-02, 2 threads",
    "memory": {"bandwidth_per_core": 2e10, "bandwidth_most": 3e10},
    "matmul_flops_per_core": {"fp32": 2e11},
    "products": {"packed": {"kernels": {"fp32": {"16": 0.7}}}},
}


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("MUGRAPH_CACHE", "on")
    monkeypatch.setenv("MUGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MUGRAPH_HOST_RATES", raising=False)
    host._host_of.cache_clear()
    yield
    host._host_of.cache_clear()


def test_what_was_measured_is_read_for_that_processor_and_instruction_set() -> None:
    assert measured_rates("a", ROW) is None
    keep_measured("a", ROW, RATES)
    assert measured_rates("a", ROW) == RATES
    assert measured_rates("b", ROW) is None
    assert measured_rates("a", ROW | {"name": "others"}) is None


def test_a_switch_leaves_it_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_measured("a", ROW, RATES)
    monkeypatch.setenv("MUGRAPH_HOST_RATES", "table")
    assert measured_rates("a", ROW) is None
    monkeypatch.setenv("MUGRAPH_HOST_RATES", "mine")
    with pytest.raises(InvalidInput, match="MUGRAPH_HOST_RATES=mine: use table or measured"):
        measured_rates("a", ROW)
    monkeypatch.delenv("MUGRAPH_HOST_RATES")
    monkeypatch.setenv("MUGRAPH_CACHE", "off")
    assert measured_rates("a", ROW) is None
    monkeypatch.setenv("MUGRAPH_CACHE", "force")
    assert measured_rates("a", ROW) == RATES, "searches are made again, of the same machine"


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": {"bandwidth_per_core": 0.0, "bandwidth_most": 3e10}},
        {"memory": {"bandwidth_per_core": float("inf"), "bandwidth_most": 3e10}},
        {"memory": {"bandwidth_per_core": 2e10}},
        {"matmul_flops_per_core": {"fp32": -1e11}},
        {"matmul_flops_per_core": {"fp33": 1e11}},
        {"products": {"packed": {"kernels": {"fp32": {"1": 1.5}}}}},
        {"products": {"packed": {"kernels": {"fp32": {"0": 0.5}}}}},
        {"products": {"packed": {"kernels": {"fp32": {"1": 0.0}}}}},
        {"products": {"packed": {"kernels": {"fp32": {}}}}},
        {"products": {"packed": {"kernels": {"fp32": {"one": 0.5}}}}},
        {"products": {"folded": {"kernels": {"fp32": {"1": 0.5}}}}},
        {"products": {"packed": {"others": {"fp32": {"1": 0.5}}}}},
        {"products": [1]},
    ],
)
def test_what_no_machine_can_have_is_neither_kept_nor_read(wrong: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises((TypeError, ValueError, InvalidInput)):
        keep_measured("a", ROW, RATES | wrong)
    keep_measured("a", ROW, RATES)
    (entry,) = Store().entries()
    Store().put(entry.kind, entry.key, RATES | wrong)
    assert measured_rates("a", ROW) is None
    assert "mugraph doctor --measure" in caplog.text


def test_shares_that_were_not_measured_are_of_the_same_rates_as_before() -> None:
    rates = merged(ROW, RATES)
    assert rates["matmul_flops_per_core"] == {"fp32": 2e11, "fp16": 1e11}
    kinds = product_rates(rates["products"])
    assert kinds[RightFactor.BATCHED].kernels[DType.FP32].of_rows(1) == pytest.approx(0.45)
    assert kinds[RightFactor.BATCHED].kernels[DType.FP16].of_rows(1) == 0.5
    assert kinds[RightFactor.PACKED].kernels[DType.FP32] == ProductRate(((1, 0.25), (16, 0.7))), "one row as vectors compute"
    assert kinds[RightFactor.PACKED].library[DType.FP16].of_rows(1) == 0.2
    assert merged(ROW, {}) == ROW


def test_what_is_copied_for_any_number_of_rows_is_as_slow_for_fewer_than_were_timed() -> None:
    batched = {"batched": {"kernels": {"fp32": {"16": 0.3, "64": 0.6}}}}
    rate = product_rates(merged(ROW, RATES | {"products": batched})["products"])[RightFactor.BATCHED].kernels[DType.FP32]
    assert rate == ProductRate(((16, 0.3), (64, 0.6)))
    assert rate.reading(16) == 1.0


def test_the_host_is_what_was_measured_until_that_is_forgotten() -> None:
    described = device_for("cpu")
    assert measured_about() is None
    isa = host._described()[1]
    keep_rates(RATES | {"matmul_flops_per_core": isa["matmul_flops_per_core"] | {"fp32": 3e11}})
    measured = device_for("cpu")
    assert measured_about() == RATES["about"]
    assert measured.name == f"{described.name}, measured"
    assert measured.memory_bandwidth == min(measured.multiprocessors * 2e10, 3e10)
    assert measured.matmul_flops[DType.FP32] == measured.multiprocessors * 3e11
    assert measured.multiplying(RightFactor.PACKED, DType.FP32, 64).product_efficiency == 0.7
    assert repr(measured) != repr(described), "by which results are kept"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert device_for("cpu").memory_bandwidth == 2e10
    finally:
        torch.set_num_threads(threads)
    Store().remove("host")
    host._host_of.cache_clear()
    assert device_for("cpu") == described


def test_processors_are_told_apart_where_names_are_alike(tmp_path: Path) -> None:
    text = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: {}\nmodel name\t: Processor\nstepping\t: 1\n\nprocessor\t: 1\n"
    names = set()
    for model in (143, 207):
        (tmp_path / "cpuinfo").write_text(text.format(model))
        names.add(processor_name(tmp_path / "cpuinfo"))
    assert names == {"Processor, 6, 143, 1", "Processor, 6, 207, 1"}
    assert processor_name(tmp_path / "absent") == ""
    assert instruction_set([ROW | {"requires": []}], frozenset())["name"] == "vectors"
