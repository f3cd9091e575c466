"""Saved results that were tampered with: is what was changed noticed by what loads them, or by what checks them?"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mugraph
from mugraph.checker import Rejected, check_folder
from mugraph.errors import MugraphError
from mugraph.support.scratch import scratch_directory
from mugraph.testing.tampering import Tampering, tamperings

ACCEPTED, REFUSED, CRASHED = "accepted", "refused", "crashed"


@dataclass(frozen=True, slots=True)
class Reaction:
    """What became of one tampering: the answers of `mugraph.load`, the checker and the command line.

    `changed` says that the loaded result computed something else than the folder that was saved.
    """

    name: str
    harmless: bool
    load: str
    checker: str
    command: str
    changed: bool
    seconds: float

    @property
    def misled(self) -> bool:
        """Whether a change that does harm was loaded.

        The checker says of sources, which it cannot print, and the command of the report's times that they were not checked.
        """
        return not self.harmless and (self.changed or self.load == ACCEPTED)

    @property
    def crashed(self) -> bool:
        return CRASHED in (self.load, self.checker, self.command)


def saved_results(folder: Path, budget: float = 10.0) -> Iterator[tuple[str, Path]]:
    """Folders of results, by name, for each target that can be saved for here."""
    for name, (fn, inputs, target) in SUBJECTS.items():
        path = folder / name.replace(" ", "-")
        try:
            mugraph.superoptimize(fn, inputs, target, budget, seed=0, profile=False, cache="off").save(path)
        except MugraphError:
            continue
        yield name, path


def _normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) @ w


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 4, -1) @ v


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _subjects() -> dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]]:
    norm = (torch.ones(8, 64), torch.ones(64, 32))
    attended = (torch.ones(2, 8, 16), torch.ones(2, 32, 16), torch.ones(2, 32, 16))
    halves = tuple(tensor.half() for tensor in norm)
    return {
        "norm cpu": (_normed, norm, "cpu"),
        "attention cpu": (_attention, attended, "cpu"),
        "as it is cpu": (_as_it_is, (torch.ones(4, 4),), "cpu"),
        "norm cuda": (_normed, halves, "cuda:sm_90"),
        "norm triton": (_normed, halves, "triton:sm_90"),
    }


SUBJECTS = _subjects()
"""Programs whose results are saved: functions, example inputs, target."""


def reactions(folders: Sequence[tuple[str, Path]], count: int, rng: random.Random) -> Iterator[tuple[str, Reaction]]:
    """Reactions to `count` tamperings, drawn at random from the folders in turn as far as each has so many."""
    drawn = []
    for name, folder in folders:
        drawn.append(zip(itertools.repeat((name, folder)), rng.sample(made := list(tamperings(folder, rng)), len(made))))
    in_turn = (one for together in itertools.zip_longest(*drawn) for one in together if one is not None)
    for (name, folder), tampering in itertools.islice(in_turn, count):
        yield name, reaction(folder, tampering)


def reaction(folder: Path, tampering: Tampering) -> Reaction:
    """Tamper with a copy of the folder, and load and check it."""
    started = time.perf_counter()
    with scratch_directory("mugraph-tampered-") as temporary:
        copied = Path(temporary) / "result"
        shutil.copytree(folder, copied)
        tampering.apply(copied)
        load, changed = _loaded(folder, copied)
        return Reaction(
            name=tampering.name,
            harmless=tampering.harmless,
            load=load,
            checker=_told(lambda: check_folder(copied).reached),
            command=_told(lambda: _command(copied) == 0),
            changed=changed,
            seconds=time.perf_counter() - started,
        )


def _command(folder: Path) -> int:
    """The exit code of `mugraph verify --certificate`."""
    from mugraph.cli import main

    try:
        return int(main(["verify", "--certificate", str(folder)]) or 0)
    except SystemExit as ended:
        return int(ended.code or 0)


def _told(check: Callable[[], bool]) -> str:
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return ACCEPTED if check() else REFUSED
    except (MugraphError, Rejected):
        return REFUSED
    except Exception:
        return CRASHED


def _loaded(original: Path, copied: Path) -> tuple[str, bool]:
    """The answer of `mugraph.load`, and whether what it loaded computes something else than the original."""
    try:
        loaded = mugraph.load(copied)
        told = ACCEPTED
    except MugraphError:
        return REFUSED, False
    except Exception:
        return CRASHED, False
    try:
        ours, theirs = (_outputs(result) for result in (mugraph.load(original), loaded))
    except MugraphError:  # a target that is not here: nothing can be run
        return told, False
    except Exception:
        return CRASHED, True
    alike = len(ours) == len(theirs) and all(
        x.shape == y.shape and np.allclose(x, y, 1e-3, 1e-5) for x, y in zip(ours, theirs, strict=True)
    )
    return told, not alike


def _outputs(result: Any) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(node.output.shape, generator=generator) for node in result.program.inputs()]
    outputs = result(*inputs)
    flat = outputs if isinstance(outputs, tuple | list) else [outputs]
    return [output.double().numpy() for output in flat]


def summary(reactions: Iterable[tuple[str, Reaction]]) -> Mapping[str, Any]:
    """Counts of answers to harmful and harmless changes, and the names of those that passed or crashed."""
    reactions = list(reactions)
    harmful = [one for _, one in reactions if not one.harmless]
    return {
        "folders": len(reactions),
        "harmful": len(harmful),
        "refused by load": sum(one.load == REFUSED for one in harmful),
        "refused by the checker": sum(one.checker == REFUSED for one in harmful),
        "refused by the command": sum(one.command == REFUSED for one in harmful),
        "accepted though changed": sum(one.misled for one in harmful),
        "crashes": sum(one.crashed for _, one in reactions),
        "harmless and refused": sum(one.harmless and REFUSED in (one.load, one.checker, one.command) for _, one in reactions),
        "accepted": dict(Counter(f"{name}: {one.name}" for name, one in reactions if one.misled)),
        "crashed": dict(Counter(f"{name}: {one.name}" for name, one in reactions if one.crashed)),
        "median seconds": round(float(np.median([one.seconds for _, one in reactions])), 3) if reactions else None,
    }
