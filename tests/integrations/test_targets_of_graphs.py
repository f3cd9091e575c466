"""Which target kernels of a graph, or of a function, are for where nobody names one: that of the tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import mugraph
from mugraph.errors import InvalidInput, LeftToPyTorch, TargetUnavailable
from mugraph.host.arrays import torch_arrays
from mugraph.integrations import torch_compile
from mugraph.ir import DType, Level
from mugraph.ir.graph import Tensor
from mugraph.selection.target_of_inputs import target_of_inputs
from mugraph.targets.gpu import common_target, target_of


def lying_on(*devices: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(device=torch.device(device)) for device in devices]


def test_tensors_say_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.targets.gpu.present_architecture", lambda index: ["sm_90:h100", "sm_100:b200"][index])
    assert target_of([]) == target_of(lying_on("cpu", "cpu")) == "cpu"
    assert target_of(lying_on("cpu", "cuda:1")) == "cuda:sm_100:b200", "numbers without dimensions may lie on the CPU"
    assert target_of(lying_on("cuda:0", "cuda:0")) == "cuda:sm_90:h100"
    with pytest.raises(TargetUnavailable, match="no target runs on mps"):
        target_of(lying_on("cpu", "mps"))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Two GPUs of different kinds; tensors made meanwhile may say that they lie there. The indices that were made current."""
    entered: list[int] = []

    def made_current(device: torch.device) -> AbstractContextManager[None]:
        entered.append(device.index)
        return nullcontext()

    monkeypatch.setattr("mugraph.targets.gpu.present_architecture", lambda index: ["sm_90:h100", "sm_100:b200"][index])
    monkeypatch.setattr(torch.cuda, "device", made_current)
    with FakeTensorMode():
        yield entered


def chosen(target: str | None, example_inputs: object) -> str:
    with target_of_inputs(target, example_inputs) as found:
        return found


def test_example_inputs_say_the_target(two_gpus: list[int]) -> None:
    x, y, number = torch.empty(4, device="cuda:1"), torch.empty(4), torch.empty(())
    assert chosen(None, (x, {"deep": [x, 3]}, number)) == chosen(None, {"x": x}) == chosen(None, x) == "cuda:sm_100:b200"
    assert two_gpus == [1, 1, 1], "calls are timed where the tensors lie"
    assert chosen(None, (y, number)) == chosen(None, None) == chosen(None, [np.ones(3)]) == chosen(None, (3,)) == "cpu"
    assert chosen(None, (y, torch.empty(4, device="meta"))) == "cpu", "what has no values lies nowhere"
    assert two_gpus == [1, 1, 1]


def test_a_named_target_stands_whatever_tensors_lie_on(two_gpus: list[int]) -> None:
    x, y = torch.empty(4, device="cuda:1"), torch.empty(4)
    assert chosen("cuda:sm_80", (y,)) == "cuda:sm_80"
    assert chosen("cpu", (x, y)) == "cpu"
    assert two_gpus == []


@pytest.mark.parametrize(
    ("devices", "named"), [(("cuda:0", "cuda:1"), "cuda:0 and cuda:1"), (("cuda:0", "cpu"), "cpu and cuda:0")]
)
def test_tensors_on_several_devices_are_refused(two_gpus: list[int], devices: list[str], named: str) -> None:
    tensors = [torch.empty(4, device=device) for device in devices]
    with pytest.raises(InvalidInput, match=f"tensors lie on {named}; move them to one device, or name the target"):
        common_target(tensors)
    declared: dict[int | str, dict[int, mugraph.Dim]] = {0: {0: mugraph.Dim("n", 2, 8)}}
    for ask in (mugraph.superoptimize, mugraph.superoptimize_dynamic):
        with pytest.raises(InvalidInput, match=f"tensors lie on {named}"):
            ask(torch.add, tensors, dynamic=declared)
    with pytest.raises(InvalidInput, match=f"tensors lie on {named}"):
        mugraph.superoptimize(torch.add, tensors)
    with pytest.raises(InvalidInput, match=f"tensors lie on {named}"):
        mugraph.optimize_graph("", torch.add, tensors)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_kernels_on_a_gpu_take_numbers_from_the_cpu() -> None:
    """As PyTorch does; what has dimensions is refused."""
    arrays = torch_arrays("cuda:1")
    with FakeTensorMode():
        number = arrays.reader("factor", Tensor((), DType.FP32, Level.KERNEL))(torch.empty(()))
        assert (number.device, number.shape) == (torch.device("cuda:1"), ())
        with pytest.raises(InvalidInput, match="'factor' is on cpu, and other inputs on cuda:1"):
            arrays.reader("factor", Tensor((1,), DType.FP32, Level.KERNEL))(torch.empty(1))


def test_tensors_on_a_gpu_that_is_not_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fake ones may be."""
    monkeypatch.setattr("mugraph.targets.gpu._torch_sees_one", lambda: False)
    with FakeTensorMode():
        x = torch.empty(4, device="cuda")
    with pytest.raises(TargetUnavailable, match="PyTorch sees none; name what to compile for"):
        chosen(None, (x,))


def test_tensors_of_no_target_are_refused() -> None:
    with pytest.raises(TargetUnavailable, match="no target runs on mps"):
        common_target([SimpleNamespace(device=torch.device("mps"), dim=lambda: 1)])


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


def test_a_graph_elsewhere_than_the_named_target_is_warned_of() -> None:
    with pytest.warns(
        LeftToPyTorch, match=r"for cuda:sm_90 read tensors on cuda, and those of a graph lie on cpu, where PyTorch"
    ):
        run = torch_compile.backend(doubled(), [torch.empty(3)], options={"target": "cuda:sm_90"})
    (y,) = run(torch.ones(3))
    assert y.tolist() == [2.0, 2.0, 2.0]
