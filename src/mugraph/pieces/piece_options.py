"""What the backend of `torch.compile` may be asked for, and whatever else optimizes pieces of functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from mugraph.devices import device_for, resolved
from mugraph.errors import InvalidInput
from mugraph.search.constraints import SearchSpace
from mugraph.search.executors import Workers, check_workers
from mugraph.selection.evidence import Evidence
from mugraph.selection.whole_programs import check_evidence
from mugraph.support.deadline import Deadline
from mugraph.support.progress import ProgressCallback
from mugraph.support.store import Mode, Store

Keep = Literal["faster", "all"]


@dataclass(frozen=True, slots=True)
class PieceOptions:
    """What `torch.compile(..., backend="mugraph", options={...})` may say.

    `budget` is in seconds for the pieces of one graph together (None: no limit): the distinct ones have shares of it by their
    operators and by what they may save, or what most need on a busy machine, and what these leave is for those whose time ran
    out. `keep` is "faster" to run a piece by its kernels only where they were measured to beat torch, or are predicted to on a
    GPU that is not here, "all" to do so wherever there are any. Of a graph with symbolic sizes, up to `sizes` sizes that keep
    coming get kernels. With `background` calls are answered at once, by PyTorch until there are kernels, and programs are
    searched in another process (`mugraph.integrations.background`). With `strict` a piece that cannot be optimized is an error
    instead of a line in the log. With `pack`, weights of convolutions and linear layers that the library runs are kept in its own
    layout too, which takes their memory once more. `cache` is one of `mugraph.support.store.Mode` (None: as $MUGRAPH_CACHE says).
    The others, `progress` among them, are as in `mugraph.superoptimize`.
    """

    target: str = "cpu"
    budget: float | None = 40.0
    keep: Keep = "faster"
    sizes: int = 8
    strict: bool = False
    cache: Store | Mode | str | None = None
    seed: int | None = None
    max_error: float = 2**-40
    evidence: Evidence = "bounded"
    space: SearchSpace | None = None
    workers: Workers = 1
    profile: bool = True
    pack: bool = True
    background: bool = False
    progress: ProgressCallback | bool | None = None

    def __post_init__(self) -> None:
        if self.keep not in get_args(Keep):
            raise InvalidInput(f"option keep={self.keep!r}: use one of {', '.join(get_args(Keep))}")
        if not isinstance(self.sizes, int) or self.sizes < 0:
            raise InvalidInput(f"option sizes={self.sizes!r}: use a number of sizes, at least 0")
        for name in ("strict", "pack", "background"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"option {name}={getattr(self, name)!r}: use True or False")
        if self.strict and self.background:
            raise InvalidInput("option strict=True: with background=True calls are answered before anything could be raised")
        if not (self.progress is None or isinstance(self.progress, bool) or callable(self.progress)):
            raise InvalidInput(f"option progress={self.progress!r}: use True, or a function of a mugraph.support.progress.Event")
        if self.progress and self.background:
            raise InvalidInput(
                "option progress: with background=True no call waits; mugraph.integrations.background.graphs() say how far it is"
            )
        if not isinstance(self.space, SearchSpace | None):
            raise InvalidInput(f"option space={self.space!r}: use a mugraph.SearchSpace")
        if isinstance(self.cache, str):
            Mode.parse(self.cache)
        Deadline(self.budget)
        check_evidence(self.seed, self.max_error, self.evidence)
        check_workers(self.workers)
        object.__setattr__(self, "target", resolved(self.target))
        device_for(self.target)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> PieceOptions:
        """Options from what the user wrote; raises InvalidInput naming what is wrong, TargetUnavailable for an unknown target."""
        names = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in names:
                raise InvalidInput(f"unknown option {name!r} of backend mugraph; use {', '.join(names)}")
        return cls(**(options or {}))
