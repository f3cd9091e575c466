"""`torch.compile(model, backend="mugraph")`: what programs can express of a model runs as verified kernels, the rest as torch.

Graphs come from Dynamo, functional and in ATen operators. Each is split into pieces (`mugraph.frontend.partition`); equal pieces,
such as those of a model's layers, are optimized once; a piece whose kernels do not beat torch on this machine, or that
cannot be optimized, stays with torch, and the log of `mugraph.dynamo` says why. Nothing here has gradients: graphs that
need them are run by torch as they are.
"""

from __future__ import annotations

import functools
import logging
import statistics
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.api import superoptimize
from mugraph.errors import InvalidInput, MugraphError
from mugraph.frontend.partition import Partition, Piece, partition
from mugraph.frontend.pieces import tensor_of
from mugraph.frontend.stitch import as_torch, runnable, stitched
from mugraph.result import Superoptimized
from mugraph.runtime import measure
from mugraph.store import Mode
from mugraph.verifier.certificate import digest

_log = logging.getLogger(__name__)
_ROUNDS, _MEASURING_SECONDS = 20, 0.5

Keep = Literal["faster", "all"]


@dataclass(frozen=True, slots=True)
class Options:
    """What `torch.compile(..., backend="mugraph", options={...})` may say.

    `budget` is in seconds for each distinct piece (None: no limit). `keep` is "faster" to run a piece by its kernels only where
    they were measured to beat torch, "all" to do so wherever there are any. With `strict` a piece that cannot be optimized
    is an error instead of a line in the log. `cache` is one of `mugraph.store.Mode` (None: as $MUGRAPH_CACHE says). The others
    are as in `mugraph.superoptimize`.
    """

    target: str = "cpu"
    budget: float | None = 60.0
    keep: Keep = "faster"
    strict: bool = False
    cache: str | None = None
    seed: int = 0
    max_error: float = 2**-40

    def __post_init__(self) -> None:
        if self.keep not in get_args(Keep):
            raise InvalidInput(f"option keep={self.keep!r}: use one of {', '.join(get_args(Keep))}")
        if self.cache is not None:
            Mode.parse(self.cache)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Options:
        """Options from what the user wrote; raises InvalidInput naming an unknown one."""
        known = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in known:
                raise InvalidInput(f"unknown option {name!r} of backend mugraph; use {', '.join(known)}")
        return cls(**(options or {}))


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one graph."""

    partition: Partition
    """Of its calls: pieces run as kernels, and what torch runs for which reason."""
    results: Mapping[Piece, Superoptimized]

    def __str__(self) -> str:
        pieces, distinct = len(self.partition.pieces), len(set(map(id, self.results.values())))
        return (
            f"{pieces} pieces ({distinct} distinct) run as kernels, {self.partition.byte_share:.0%} of the bytes; "
            f"{len(self.partition.left)} calls left to torch"
        )


compilations: deque[Compiled] = deque(maxlen=100)
"""What became of the graphs compiled last in this process, in order."""


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend called "mugraph". Raises InvalidInput for unknown options and for every `mode`."""
    if mode is not None:
        raise InvalidInput(f"backend mugraph has no mode {mode!r}; pass options={{...}}")
    chosen = Options.of(options)
    compiler = aot_autograd(fw_compiler=_with_gradients, inference_compiler=functools.partial(_compiled, chosen))
    return compiler(module, example_inputs)


def _with_gradients(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    _log.info("a graph that needs gradients is run by torch; use torch.no_grad() or torch.inference_mode() to optimize it")
    return make_boxed_func(module.forward)


def _compiled(options: Options, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    try:
        return make_boxed_func(_optimized(options, module).forward)
    except Exception:  # a model must run whatever goes wrong in here
        if options.strict:
            raise
        _log.warning("optimizing a graph failed, torch runs it; please report this", exc_info=True)
        return make_boxed_func(module.forward)


def _optimized(options: Options, module: fx.GraphModule) -> fx.GraphModule:
    """The graph with kernels in the place of its pieces."""
    whole = partition(module.graph, options.target.partition(":")[0])
    results: dict[Piece, Superoptimized] = {}
    for piece in whole.pieces:
        outcome = _optimizer(options).outcome(piece)
        if isinstance(outcome, str):
            whole = whole.without([piece], outcome)
            _log.info("a piece of %d calls stays with torch: %s", len(piece.nodes), outcome)
        else:
            results[piece] = outcome
    compiled = Compiled(whole, results)
    compilations.append(compiled)
    _log.info("%s", compiled)
    for reason, count in whole.reasons().items():
        _log.debug("left to torch: %d x %s", count, reason)
    kernels = {piece: result.executable for piece, result in results.items()}
    return stitched(module, whole, kernels)


class _Optimizer:
    """Programs optimized under the same options, each once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._outcomes: dict[str, Superoptimized | str] = {}
        self._one_at_a_time = threading.Lock()

    def outcome(self, piece: Piece) -> Superoptimized | str:
        """The kernels to run a piece with, or why torch runs it. Raises MugraphError in strict mode instead of the latter."""
        key = digest(piece.program)
        with self._one_at_a_time:
            if key not in self._outcomes:
                with _disable_current_modes():  # Dynamo's, under which tensors have no data
                    self._outcomes[key] = self._tried(piece)
            return self._outcomes[key]

    def _tried(self, piece: Piece) -> Superoptimized | str:
        try:
            return self._kept(piece)
        except Exception as error:  # one piece's failure is no reason to lose the others
            if self.options.strict:
                raise
            if not isinstance(error, MugraphError):
                _log.warning("optimizing a piece failed; please report this", exc_info=True)
            return f"{type(error).__name__}: {error}"

    def _kept(self, piece: Piece) -> Superoptimized | str:
        options = self.options
        result = superoptimize(
            piece.program,
            target=options.target,
            budget=options.budget,
            seed=options.seed,
            max_error=options.max_error,
            cache=options.cache,
        )
        if options.keep == "all":
            return result
        speedup = _speedup(piece, result)
        return result if speedup > 1 else f"its kernels are not faster than torch ({speedup:.2f}x)"


@functools.cache
def _optimizer(options: Options) -> _Optimizer:
    return _Optimizer(options)


def _speedup(piece: Piece, result: Superoptimized) -> float:
    """How many times as long torch takes as the kernels; the median over interleaved rounds."""
    tensors, machine = [_like(node) for node in piece.inputs], result.executable.machine
    with torch.inference_mode():
        ours = machine.timed(functools.partial(runnable(piece, result.executable), *tensors))
        theirs = machine.timed(functools.partial(as_torch(piece).forward, *tensors))
        times = measure({"ours": ours.run, "torch": theirs.run}, _ROUNDS, budget=_MEASURING_SECONDS)
    pairs = zip(times["torch"], times["ours"], strict=True)
    return statistics.median(slow / theirs.times / (fast / ours.times) for slow, fast in pairs)


def _like(node: fx.Node) -> torch.Tensor:
    """Standard normal numbers in the shape, dtype and strides of what a node gives."""
    recorded = tensor_of(node)
    assert recorded is not None, "the inputs of a piece are tensors"
    reach = 1 + sum((size - 1) * stride for size, stride in zip(recorded.shape, recorded.stride(), strict=True))
    memory = torch.randn(reach, dtype=recorded.dtype, device=recorded.device)  # expanded tensors cannot be written to
    return memory.as_strided(recorded.shape, recorded.stride())
