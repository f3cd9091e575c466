"""Dimensions of multiples, as of tokens that come padded: right at each, nothing is asked of the function at others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.checker import Rejected
from mugraph.checker.batch_ranges import check_batches
from mugraph.checker.capacity_ranges import check_capacities
from mugraph.checker.size_ranges import check_sizes
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.runtime import benchmarking
from mugraph.sizes import capacity_results
from mugraph.sizes.capacities import AtCapacity
from mugraph.sizes.dims import Declared
from sizes.saved_folders import changed

pytestmark = pytest.mark.usefixtures("first_found")

TOKENS, KEYS = Dim("tokens", 16, 96, multiple_of=16), Dim("keys", 8, 72, multiple_of=8)
BATCH, LENGTH = Dim("batch", 2, 6, multiple_of=2), Dim("length", 4, 12, multiple_of=4)
GENERATOR = torch.Generator().manual_seed(0)
Inputs = tuple[torch.Tensor, ...]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


W = drawn(16, 24)


def scores(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ W.to(x.dtype), -1)


def in_pieces(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.nn.functional.silu(x @ W.to(x.dtype)).logcumsumexp(-1) @ W.T.to(x.dtype), -1)


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


@dataclass(frozen=True)
class Case:
    fn: Callable[..., torch.Tensor]
    inputs: Callable[..., Inputs]
    dynamic: Mapping[int | str, Mapping[int, Dim]]
    sizes: list[tuple[int, ...]]
    wrong: tuple[int, ...]
    named: str
    file: str
    check: Callable[[Path], object] | None


CASES = {
    "slices": Case(
        scores,
        lambda n: (drawn(n, 16),),
        {0: {0: TOKENS}},
        [(16,), (32,), (48,), (80,), (96,)],
        (40,),
        "tokens has size 40, declared as a multiple of 16 from 16 to 96",
        "sizes.json",
        check_sizes,
    ),
    "pieces": Case(
        in_pieces,
        lambda n: (drawn(n, 16),),
        {0: {0: TOKENS}},
        [(16,), (32,), (80,), (96,)],
        (17,),
        "tokens has size 17, declared as a multiple of 16 from 16 to 96",
        "pieced.json",
        None,
    ),
    "capacities": Case(
        decode,
        lambda n: (drawn(2, 1, 16), drawn(2, n, 16), drawn(2, n, 16)),
        {1: {1: KEYS}, 2: {1: KEYS}},
        [(8,), (24,), (40,), (64,), (72,)],
        (9,),
        "keys has size 9, declared as a multiple of 8 from 8 to 72",
        "capacities.json",
        check_capacities,
    ),
    "rows": Case(
        scores,
        lambda b, n: (drawn(b, n, 16),),
        {0: {0: BATCH, 1: LENGTH}},
        [(2, 4), (4, 12), (6, 8)],
        (3, 8),
        "batch has size 3, declared as a multiple of 2 from 2 to 6",
        "sizes.json",
        check_sizes,
    ),
    "batches": Case(
        decode,
        lambda b, n: (drawn(b, 2, 1, 16), drawn(b, 2, n, 16), drawn(b, 2, n, 16)),
        {0: {0: BATCH}, 1: {0: BATCH, 2: KEYS}, 2: {0: BATCH, 2: KEYS}},
        [(2, 8), (4, 40), (6, 72)],
        (4, 41),
        "keys has size 41, declared as a multiple of 8 from 8 to 72",
        "batches.json",
        check_batches,
    ),
}


def assert_right(run: Callable[..., torch.Tensor], case: Case, sizes: tuple[int, ...], more: Inputs = ()) -> None:
    inputs = case.inputs(*sizes)
    exact = case.fn(*(each.double() for each in inputs))
    torch.testing.assert_close(run(*inputs, *more).double(), exact, rtol=1e-4, atol=1e-5)


Asked = list[tuple[tuple[int, ...], tuple[Dim, ...]]]


def made(case: Case, profile: bool = False) -> tuple[DynamicSuperoptimized, Asked]:
    """The result, and sizes that arguments had on the way, or kernels were timed at, with their dimensions."""
    asked: Asked = []
    resized, ignores, medians = Declared.resized, AtCapacity.ignores_other_slots, benchmarking.medians

    def noted(self: Declared, sizes: tuple[int, ...], *arguments: Any) -> Any:
        asked.append((sizes, tuple(self.dims.values())))
        return resized(self, sizes, *arguments)

    def other_slots(self: AtCapacity, size: int, inputs: Any) -> bool:
        asked.append(((size,), (KEYS,)))
        return ignores(self, size, inputs)

    def timed(calls: Mapping[str, Any], *limits: Any) -> dict[str, float]:
        asked.extend(((int(name.split()[-1]),), (KEYS,)) for name in calls)
        return medians(calls, *limits)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Declared, "resized", noted)
        patched.setattr(AtCapacity, "ignores_other_slots", other_slots)
        patched.setattr(capacity_results, "medians", timed)
        inputs = case.inputs(*case.sizes[1])
        found = mugraph.superoptimize(case.fn, inputs, budget=600.0, profile=profile, dynamic=case.dynamic)
    assert isinstance(found, DynamicSuperoptimized)
    return found, asked


def assert_multiples(asked: Asked) -> None:
    """Rows are looked at with 1 of the first dimension."""
    assert len(asked) > 4
    others = [sizes for sizes, dims in asked if any(size % dim.multiple_of for size, dim in zip(sizes, dims, strict=True))]
    assert [sizes for sizes in others if len(sizes) != 2 or sizes[0] != 1] == []


@pytest.mark.parametrize("name", CASES)
def test_every_multiple_is_right_and_nothing_else_is_asked(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found, asked = made(case)
    assert getattr(found, {"slices": "sliced", "pieces": "pieced"}.get(name, name)) is not None, found.reason
    assert_multiples(asked)
    assert "that is a multiple of" in found.claim
    folder = found.save(tmp_path / "saved")
    step = json.loads((folder / case.file).read_text())["dimension"]["multiple_of"]
    assert step == {"rows": 8, "batches": 2}.get(name, next(iter(found.dims.values())).multiple_of)
    loaded = DynamicSuperoptimized.load(folder)
    brought = (W,) if case.fn in (scores, in_pieces) else ()
    for run, more in ((found, ()), (loaded, brought)):
        assert " by " in repr(run)
        for sizes in case.sizes:
            assert_right(run, case, sizes, more)
        with pytest.raises(ShapeMismatch, match=case.named):
            run(*case.inputs(*case.wrong), *more)
    if case.check is not None:
        case.check(folder)


@pytest.mark.parametrize("name", CASES)
def test_an_example_has_multiples(name: str) -> None:
    case = CASES[name]
    with pytest.raises(ShapeMismatch, match=case.named):
        mugraph.superoptimize(case.fn, case.inputs(*case.wrong), dynamic=case.dynamic)


@pytest.mark.parametrize("name", ["slices", "capacities"])
def test_what_is_timed_are_multiples(name: str) -> None:
    found, asked = made(CASES[name], profile=True)
    assert_multiples(asked)
    for sizes in CASES[name].sizes:
        assert_right(found, CASES[name], sizes)


WRONG_STEPS = [(5, "are no range"), (32, "are no range"), ("16", "are no range"), (0, "are no range")]


@pytest.mark.parametrize(("step", "match"), WRONG_STEPS)
def test_folders_whose_sizes_are_no_multiples_are_refused(step: Any, match: str, tmp_path: Path) -> None:
    table = [{"tokens": 16}, {"tokens": 80}]
    dim = Dim("tokens", 16, 80, multiple_of=16)
    found = mugraph.superoptimize_dynamic(scores, (drawn(16, 16),), {0: {0: dim}}, table=table)
    folder = found.save(tmp_path / "saved")
    check_sizes(folder)
    wrong = changed(folder, tmp_path / "wrong", "sizes.json", lambda document: document["dimension"].update(multiple_of=step))
    with pytest.raises(Rejected, match=match):
        check_sizes(wrong)
    with pytest.raises(InvalidInput, match=r"sizes\.json is malformed"):
        DynamicSuperoptimized.load(wrong)
