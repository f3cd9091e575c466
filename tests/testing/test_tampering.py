"""Whatever is done to a saved result: it is refused, or what it runs computes the program in it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import mugraph
from mugraph.checker import Status, examine
from mugraph.errors import MugraphError
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.testing.tampering import Tampering, tamperings


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def scores(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(q @ k.T / 4, dim=-1), q * 0.5

    opt = mugraph.superoptimize(scores, (torch.ones(8, 16), torch.ones(4, 16)), profile=False)
    assert opt.found
    return opt.save(tmp_path_factory.mktemp("tampering") / "result")


@pytest.fixture(scope="module")
def all_of_them(saved: Path) -> Sequence[Tampering]:
    return list(tamperings(saved, random.Random(0)))


def test_there_are_hundreds_each_with_a_name_of_its_own(all_of_them: Sequence[Tampering]) -> None:
    assert len(all_of_them) >= 300
    assert len({each.name for each in all_of_them}) == len(all_of_them)
    assert sum(not each.harmless for each in all_of_them) >= 200


def changed(saved: Path, tampering: Tampering, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    tampering.apply(folder)
    return folder


def runs_its_program(opt: mugraph.Superoptimized) -> bool:
    """Compared where fp32 holds what the program gives: one in which a factor was made a power may overflow."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(node.output.shape).astype(np.float32) for node in opt.program.inputs()]
    wanted = evaluate(opt.program, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    singles = evaluate(opt.program, inputs, FloatArithmetic(np.float32))
    got = opt.executable(*inputs)
    return all(
        np.allclose(np.where(np.isfinite(single), x, 0), np.where(np.isfinite(single), y, 0), rtol=1e-4, atol=1e-5)
        for x, y, single in zip(got, wanted, singles, strict=True)
    )


@pytest.mark.parametrize("part", [slice(0, None, 9), pytest.param(slice(None), marks=pytest.mark.slow)], ids=["some", "all"])
def test_each_is_refused_or_harmless(saved: Path, all_of_them: Sequence[Tampering], tmp_path: Path, part: slice) -> None:
    refused = 0
    for tampering in all_of_them[part]:
        folder = changed(saved, tampering, tmp_path / "copy")
        try:
            opt = mugraph.load(folder)
        except MugraphError:
            refused += 1
            continue
        assert tampering.harmless, tampering.name
        assert runs_its_program(opt), tampering.name
    assert 2 * refused >= len(all_of_them[part])


@pytest.mark.parametrize("part", [slice(4, None, 9), pytest.param(slice(None), marks=pytest.mark.slow)], ids=["some", "all"])
def test_the_checker_accepts_none_that_is_not_harmless(
    saved: Path, all_of_them: Sequence[Tampering], tmp_path: Path, part: slice
) -> None:
    """Sources and origins of the manifest are for `load` and `verify` to refuse: the checker prints nothing."""
    ours = [
        each for each in all_of_them if not each.name.startswith(("manifest: ", "sources/", "a source", "no sources", "report: "))
    ]
    for tampering in ours[part]:
        found = examine(changed(saved, tampering, tmp_path / "copy"), seed=0)
        accepted = found.report is not None and found.report.reached
        assert tampering.harmless or not accepted, tampering.name
        assert accepted or any(part.status is not Status.CHECKED for part in found.parts.values())
    assert len(ours) > 200
