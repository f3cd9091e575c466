"""First slices on GPUs that are not here: blocks on emulators decide whether kernels are used, and results are saved and
loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput
from mugraph.lower.counted_slices import FirstSlices
from mugraph.runtime import Executable
from mugraph.sizes.dims import Dim
from mugraph.sizes.saved_sizes import LoadedSizes
from mugraph.sizes.sliced_kernels import example_inputs, sliced_kernels
from mugraph.support.deadline import Deadline
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import Machine, machine_for
from sizes.test_sliced_kernels import norm_linear, split_k, two_kernels

pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC; pip install 'mugraph[cuda]'")
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run here, and are compared as a whole"),
]
GRAPHS = {
    "one kernel": (norm_linear(24, (3, 2)), (0, None)),
    "a tensor between kernels": (two_kernels(12), (1, None)),
    "parts of a sum between kernels": (split_k(6), (0, None)),
}


@pytest.fixture(params=["cuda:sm_90", "triton:sm_90"])
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param.startswith("triton"):
        pytest.importorskip("triton", reason="pip install 'mugraph[triton]'")
    return machine_for(request.param)


@pytest.mark.parametrize("name", GRAPHS)
def test_last_blocks_are_compared_on_the_emulator(name: str, machine: Machine) -> None:
    graph, dims = GRAPHS[name]
    executable = Executable(graph, machine)
    assert sliced_kernels(executable, dims, (dims[0],), example_inputs(graph)) is not None
    assert sliced_kernels(executable, dims, (dims[0],), example_inputs(graph), Deadline(0.0)) is None


def test_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without masks, and launches that lack the last blocks, are not used."""
    graph = norm_linear(24, (3, 2))
    executable = Executable(graph, Cuda.of("cuda:sm_90"))

    def found() -> object:
        return sliced_kernels(executable, (0, None), (0,), example_inputs(graph))

    with monkeypatch.context() as patch:
        patch.setattr("mugraph.targets.cuda.source.KernelText.end", lambda text, tile: "")
        assert found() is None
    with monkeypatch.context() as patch:
        begun = FirstSlices.begun
        patch.setattr(FirstSlices, "begun", lambda slices, count, blocks: max(1, begun(slices, count, blocks) - 1))
        assert found() is None
    with monkeypatch.context() as patch:
        patch.setattr("mugraph.sizes.emulated_slices._LONGEST", 0.0)
        assert found() is None, "what takes too long to look at is not used"
    assert found() is not None


def test_a_range_of_sizes_is_made_saved_and_loaded_without_a_gpu(machine: Machine, tmp_path: Path) -> None:
    """One set of kernels runs sizes from 2 on: a launch is told which."""

    def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1)

    target, batch = f"{machine.name}:sm_90", Dim("batch", 1, 32)
    example = torch.randn(16, 64), torch.randn(64, 48)
    made = mugraph.superoptimize(scores, example, target=target, budget=600.0, compiled=1, dynamic={0: {0: batch}})
    assert "for every size from 1 to 32 of batch" in made.claim
    assert [kernels.capacity for part in made.in_part.values() if (kernels := part.kernels)] == [32]
    assert [(chunk.size, chunk.start) for chunk in made.plan(31).chunks] == [(32, 0)]
    made.save(tmp_path / "range")
    loaded = mugraph.DynamicSuperoptimized.load(tmp_path / "range")
    assert isinstance(loaded, LoadedSizes)
    assert loaded._parts.keys() == {32}
    assert loaded.claim == made.claim
    with pytest.raises(InvalidInput, match="input 'x' is on cpu; this target takes tensors on cuda"):
        made(torch.randn(31, 64), torch.randn(64, 48))
