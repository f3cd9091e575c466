"""Which target kernels of a graph are for where nobody names one: that of the tensors."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import fx

from mugraph.errors import TargetUnavailable
from mugraph.integrations import torch_compile
from mugraph.targets.gpu import target_of


def lying_on(*devices: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(device=torch.device(device)) for device in devices]


def test_tensors_say_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.targets.gpu.present_architecture", lambda index: ["sm_90:h100", "sm_100:b200"][index])
    assert target_of([]) == target_of(lying_on("cpu", "cpu")) == "cpu"
    assert target_of(lying_on("cpu", "cuda:1")) == "cuda:sm_100:b200", "numbers without dimensions may lie on the CPU"
    assert target_of(lying_on("cuda:0", "cuda:0")) == "cuda:sm_90:h100"
    with pytest.raises(TargetUnavailable, match="no target runs on mps"):
        target_of(lying_on("cpu", "mps"))


def doubled() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.add, (x := graph.placeholder("x"), x)),))
    return fx.GraphModule({}, graph)


def test_torch_runs_graphs_of_devices_without_a_target(caplog: pytest.LogCaptureFixture) -> None:
    module, x = doubled(), torch.empty(3, device="meta")
    with caplog.at_level(logging.WARNING, "mugraph.torch_compile"):
        run = torch_compile.backend(module, [x])
    (y,) = run(torch.ones(3))
    assert y.tolist() == [2.0, 2.0, 2.0]
    assert "no target runs on meta" in caplog.text
    with pytest.raises(TargetUnavailable, match="no target runs on meta"):
        torch_compile.backend(module, [x], options={"strict": True})
