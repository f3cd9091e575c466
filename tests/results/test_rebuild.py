"""Saved results for another target: proved and compiled anew, and nothing searched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mugraph
from mugraph import SearchSpace
from mugraph.cli import main
from mugraph.errors import ExceedsMemory, InvalidInput, NotEquivalent, TargetUnavailable
from mugraph.pieces.partitioned import Partitioned
from mugraph.runtime import Executable
from mugraph.targets.emulator import emulator_of
from mugraph.targets.machine import machine_for

pytest.importorskip("cuda.core", reason="kernels for a GPU are compiled with cuda-core")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

X, W, G = torch.randn(4, 64).half(), torch.randn(64, 128).half(), torch.randn(64)


def normed(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"normed": (x / x.square().mean(-1, keepdim=True).sqrt()) @ w}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    opt = mugraph.superoptimize(normed, (X, W), "cuda:sm_90", 20, profile=False, cache="off")
    assert opt.found
    opt.origin["word"] = "a word"
    return opt.save(tmp_path_factory.mktemp("saved") / "result")


def emulated(result: Any, target: str) -> tuple[Executable, Any]:
    emulator: Any = emulator_of(machine_for(target))
    return Executable(result.graph, emulator), emulator


@without_gpu
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_120", "triton:sm_90"])
def test_a_mugraph_is_compiled_for_another_target_and_checked_again(saved: Path, target: str, tmp_path: Path) -> None:
    before, after = mugraph.load(saved), mugraph.rebuild(saved, target, profile=False)
    assert (after.graph, after.target, after.origin["word"]) == (before.graph, target, "a word")
    assert after.certificate.accepted
    assert after.certificate != before.certificate, "it was proved again"
    assert after.best.spot_check is not None
    assert (after.best.spot_check.ran > 0, after.best.spot_check.fault) == (True, "")
    again = mugraph.load(after.save(tmp_path / "other"))
    assert (again.target, again.sources) == (target, after.sources)
    assert list(again.calling.unflatten(list(after.program.output_tensors), [])) == ["normed"]
    executable, emulator = emulated(again, target)
    (y,) = executable(X, W)
    torch.testing.assert_close(y.float(), normed(X, W)["normed"].float(), rtol=2e-2, atol=2e-2)
    assert emulator.findings == []


@without_gpu
def test_a_result_for_the_cpu_may_become_one_for_a_gpu(tmp_path: Path) -> None:
    space = SearchSpace(kernels=1)
    opt = mugraph.superoptimize(normed, (X.float(), W.float()), "cpu", 20, space=space, profile=False, cache="off")
    result = mugraph.rebuild(opt.save(tmp_path / "cpu"), "cuda:sm_90")
    executable, emulator = emulated(result, "cuda:sm_90")
    torch.testing.assert_close(executable(X.float(), W.float())[0], normed(X.float(), W.float())["normed"], rtol=1e-3, atol=1e-3)
    assert emulator.findings == []


def test_the_folder_is_not_believed(saved: Path, tmp_path: Path) -> None:
    """A folder with another muGraph, whose hashes and certificate speak of that."""
    other = mugraph.superoptimize(lambda x, w: 2 * normed(x, w)["normed"], (X, W), "cuda:sm_90", 20, profile=False, cache="off")
    folder = other.save(tmp_path / "forged")
    program = json.loads((saved / "program.json").read_text())
    text = json.dumps(program, indent=1) + "\n"
    (folder / "program.json").write_text(text)
    manifest = json.loads((folder / "mugraph.json").read_text())
    manifest["files"]["program.json"] = json.loads((saved / "mugraph.json").read_text())["files"]["program.json"]
    (folder / "mugraph.json").write_text(json.dumps(manifest))
    with pytest.raises(NotEquivalent, match="does not compute the program"):
        mugraph.rebuild(folder, "cuda:sm_80")


@without_gpu
def test_a_block_that_takes_more_memory_than_the_target_has_is_refused(tmp_path: Path) -> None:
    p = mugraph.Program()
    x = p.input("x", (48, 1024), "fp32")
    p.output(x.exp() / x.exp().sum(-1, keepdim=True))
    written = """
    kernel_graph {
      x: fp32[48, 1024] = input
      %y: fp32[48, 1024] = block_graph(x) grid(x=2) {
        %tile: fp32[24, 1024] = input_iterator(x) {x<->0}
        %e: fp32[24, 1024] = exp(%tile)
        %sum: fp32[24, 1] = sum(%e) dim=1 size=1024
        %share: fp32[24, 1024] = div(%e, %sum)
        %saved: fp32[48, 1024] = output_saver(%share) {x<->0}
        return %saved
      }
      return %y
    }"""
    folder = mugraph.optimize_graph(written, p, None, "cuda:sm_90", profile=False).save(tmp_path / "large")
    assert mugraph.rebuild(folder, "cuda:sm_100", profile=False).target == "cuda:sm_100"
    with pytest.raises(ExceedsMemory, match=r"101376.*found for cuda:sm_90.*; optimize the function for cuda:sm_120"):
        mugraph.rebuild(folder, "cuda:sm_120")


@without_gpu
def test_the_original_and_targets_that_are_not_here_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetUnavailable, match="the target is the GPU that is here, and PyTorch sees none"):
        mugraph.rebuild(saved)
    opt = mugraph.superoptimize(lambda x: x.flip(0), (X,), "cuda:sm_90", 10, profile=False, cache="off")
    assert not opt.found
    with pytest.raises(InvalidInput, match="runs the original, as no muGraph was faster; optimize the function for cuda:sm_80"):
        mugraph.rebuild(opt.save(tmp_path / "original"), "cuda:sm_80")


def running(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.exp(x * g).cumsum(-1)) * 2 + 1


@without_gpu
def test_functions_with_calls_of_pytorch_between_kernels_are_rebuilt_too(tmp_path: Path) -> None:
    inputs = torch.randn(32, 64).mul(0.1), G
    opt = mugraph.superoptimize(running, inputs, "cuda:sm_90", 20, profile=False, cache="off")
    assert isinstance(opt, Partitioned)
    folder = opt.save(tmp_path / "pieces")
    result = mugraph.rebuild(folder, "triton:sm_80")
    again = mugraph.load(result.save(tmp_path / "other"))
    assert isinstance(again, Partitioned)
    assert (again.target, len(again.results)) == ("triton:sm_80", len(opt.results))
    for each in again.results:
        each.executable, emulator = emulated(each, "triton:sm_80")
        assert emulator.findings == []
    again.run = again.cut.spliced()
    torch.testing.assert_close(again(*inputs), running(*inputs), rtol=1e-4, atol=1e-5)
    with pytest.raises(
        InvalidInput, match="calls PyTorch between kernels, and is cut for cuda:sm_90; optimize the function for cpu"
    ):
        mugraph.rebuild(folder, "cpu")


@without_gpu
def test_the_command_says_what_was_made(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(tmp_path / "other")
    assert main(["rebuild", str(saved), "--target", "cuda:sm_100", "-o", other, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "cuda:sm_100"
    assert mugraph.load(other).target == "cuda:sm_100"
    assert main(["rebuild", str(saved), "-o", other]) == 2
    assert "PyTorch sees none" in capsys.readouterr().err
    assert main(["rebuild", "nowhere", "--target", "cuda:sm_80", "-o", str(tmp_path / "new")]) == 2
    assert "nowhere is not a saved mugraph result" in capsys.readouterr().err
