"""What a host reaches is timed as a row of the table of instruction sets has it."""

from __future__ import annotations

import sys

import pytest
import torch

from mugraph.devices.device import RightFactor
from mugraph.devices.host import product_rates
from mugraph.devices.measured_host import _check
from mugraph.errors import TargetUnavailable
from mugraph.ir import DType
from mugraph.runtime import host_rates


def test_a_host_is_timed_on_one_thread_and_all_and_threads_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"_READ": (64, 1024), "_READ_BLOCKS": 8, "_DEPTH": 64, "_COLUMNS": 64, "_ROUNDS": 1}
    for name, value in small.items():
        monkeypatch.setattr(host_rates, name, value)
    threads = torch.get_num_threads()
    found = host_rates.measured_host()
    assert torch.get_num_threads() == threads
    _check(found)
    kinds = product_rates(found["products"])
    assert found["memory"]["bandwidth_most"] >= found["memory"]["bandwidth_per_core"]
    batched = kinds[RightFactor.BATCHED]
    plain, packed = kinds[RightFactor.PLAIN], kinds[RightFactor.PACKED]
    for rates in (plain.library, plain.kernels, packed.kernels, batched.library, batched.kernels):
        assert set(rates) == {DType.FP32, DType.BF16}
    for dtype in ("fp32", "bf16"):
        every = (both[who][dtype] for both in found["products"].values() for who in both if dtype in both[who])
        assert max(share for shares in every for share in shares.values()) == 1.0


def test_shares_are_of_the_highest_rate_of_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_rates, "_DEPTH", 1000)
    monkeypatch.setattr(host_rates, "_COLUMNS", 1000)
    seconds = {
        (RightFactor.PLAIN, "library", DType.FP32, 16): 2e-3,
        (RightFactor.PLAIN, "library", DType.FP32, 64): 2e-3,
        (RightFactor.PACKED, "kernels", DType.FP32, 16): 1e-3,
        (RightFactor.PACKED, "kernels", DType.BF16, 16): 1e-3,
    }
    found = host_rates._rates(seconds)
    assert found["matmul_flops_per_core"] == pytest.approx({"fp32": 64e9, "bf16": 32e9})
    assert found["products"]["plain"]["library"] == {"fp32": {"16": 0.25, "64": 1.0}}
    assert found["products"]["packed"]["kernels"] == {"fp32": {"16": 0.5}, "bf16": {"16": 1.0}}


def test_without_pytorch_there_is_nothing_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TargetUnavailable, match="pip install torch"):
        host_rates.measured_host()
