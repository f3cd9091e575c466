"""`@mugraph.optimize`: a function whose calls run discovered kernels where these are faster, and PyTorch elsewhere.

The first call with tensors of some shapes and dtypes optimizes for them, as `mugraph.superoptimize` does; the result is kept for
later calls of that kind. A call is answered in any case: what cannot be optimized, is not faster, or needs gradients runs as it
always did. With `background` our backend of `torch.compile` runs the function instead.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

import torch
from torch.autograd import forward_ad

from mugraph.api import superoptimize
from mugraph.devices import device_for, resolved
from mugraph.errors import InvalidInput, LeftToPyTorch, MugraphError, ShapeMismatch
from mugraph.frontend import trace
from mugraph.frontend.calls.objects import flat, leaves_of
from mugraph.frontend.calls.pytree import FunctionCalling
from mugraph.integrations.dynamic_shapes import superoptimize_dynamic
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.piece_outcomes import why_nothing
from mugraph.results.data import Shared
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER
from mugraph.runtime.benchmarking import Duel, duel
from mugraph.search.constraints import SearchSpace
from mugraph.selection.qualification import Evidence
from mugraph.selection.whole_programs import names_of
from mugraph.sizes.dims import Dynamic
from mugraph.sizes.dynamic_results import DynamicSuperoptimized
from mugraph.support.progress import ProgressCallback
from mugraph.support.store import Mode, Store
from mugraph.support.user_warnings import warn_user
from mugraph.targets.gpu import common_target, on_their_gpu
from mugraph.targets.machine import Machine, machine_for

_log = logging.getLogger("mugraph.optimize")

P = ParamSpec("P")
R = TypeVar("R")
Found = Superoptimized | DynamicSuperoptimized

_GRADIENTS = (
    "gradients are recorded, and kernels have none; call it under torch.inference_mode() or torch.no_grad() to run kernels"
)


_FEW = 3
"""Kinds of calls that are named to say why there are no kernels."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How calls of one kind are answered: by a result or, where `reason` says why, by PyTorch."""

    result: Found | None = None
    reason: str = ""
    duel: Duel | None = None
    """The whole call of what answers against that of the function, where they were timed."""


class Optimized(Shared, Generic[P, R]):
    """A function that `mugraph.optimize` was asked for: call it as ever.

    `answers` says what answers the calls of each kind: shapes, dtypes and devices of tensors, values of everything else.
    """

    def __init__(self, fn: Callable[P, R], settings: Settings) -> None:
        self.fn, self.settings = fn, settings
        self.answers: dict[Kind, Answer] = {}
        self._latest: tuple[Superoptimized, Kind] | None = None
        """The result that answered last, and the surroundings that it was optimized in."""
        self._modules = modules_of(fn)
        self._one_at_a_time = threading.RLock()
        self._attribute = ""
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What `fn` returns for these arguments; the first call of a kind may take up to the budget."""
        if torch.compiler.is_compiling():
            return self.fn(*args, **kwargs)
        if self._latest is not None:
            latest, around = self._latest
            with suppress(InvalidInput, ShapeMismatch):  # the function brings other tensors along than it did
                usual = around == surroundings(self._modules) and not _brings_gradients(latest)
                inputs = latest.calling.plain(args, kwargs) if usual else None
                outputs = None if inputs is None else latest.executable.recognized(inputs)
                if inputs is not None and outputs is not None:
                    returned: R = latest.calling.unflatten(outputs, inputs)
                    return returned
        tensors = tensors_of(args, kwargs)
        if asks_for_gradients(tensors) or stands_for_others(tensors):
            return self.fn(*args, **kwargs)
        return self._in_pieces(*args, **kwargs) if self.settings.background else self._answered(args, kwargs)

    @property
    def results(self) -> tuple[Found, ...]:
        """What was found so far, for the kinds of calls that kernels answer whole."""
        return tuple(answer.result for answer in self.answers.values() if answer.result is not None and not answer.reason)

    def _answered(self, args: Sequence[Any], kwargs: Mapping[str, Any], again: bool = False) -> R:
        self._modules = modules_of(self.fn)
        around = surroundings(self._modules)
        try:
            kind = (around, *kind_of_call(args, kwargs, self.settings.dynamic))
        except TypeError:
            self._leave("an argument is neither a tensor nor a value to compare with a later call's")
            return self.fn(*args, **kwargs)
        answer = self.answers.get(kind)
        if answer is None:
            if torch.is_grad_enabled():
                returned = self.fn(*args, **kwargs)
                if asks_for_gradients(tensors_of((returned,), {})):  # those of something that the function brings along
                    self._leave(_GRADIENTS)
                else:
                    self._answer(kind, args, kwargs)
                return returned  # once is enough: the function may change what it is given
            answer = self._answer(kind, args, kwargs)
        if answer.result is None or answer.reason:
            return self.fn(*args, **kwargs)
        try:
            if _brings_gradients(answer.result):
                return self.fn(*args, **kwargs)
            outputs: R = answer.result(*args, **kwargs)
        except (InvalidInput, ShapeMismatch):
            if again or self.settings.dynamic:
                raise
            self._latest = None  # the function brings other tensors along than it did
            del self.answers[kind]
            return self._answered(args, kwargs, again=True)
        if isinstance(answer.result, Superoptimized) and answer.result.is_one_program:
            self._latest = answer.result, around
        return outputs

    def _answer(self, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
        with self._one_at_a_time:
            if kind not in self.answers:
                self.answers[kind] = answer = self._optimized(args, kwargs)
                if answer.reason:
                    warn_user(f"{self._name} runs as PyTorch runs it: {answer.reason}", LeftToPyTorch)
            return self.answers[kind]

    def _optimized(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
        settings = self.settings
        try:
            if settings.target is None:
                common_target(tensors_of(args, kwargs))  # of tensors on several devices it says which
            example = _example(self.fn, args, kwargs)
            if dynamic := settings.dynamic:
                return Answer(superoptimize_dynamic(self.fn, example, dynamic, target=settings.target, **settings.of_all))
            if settings.strict:
                trace(self.fn, example)  # raises for what is no program
            result = superoptimize(self.fn, example, settings.target, **settings.of_all, **settings.of_functions)
        except MugraphError as error:
            if settings.strict or (settings.dynamic and isinstance(error, ShapeMismatch)):
                raise
            return Answer(reason=f"{type(error).__name__}: {error}")
        except Exception:  # a function must run whatever goes wrong in here
            if settings.strict:
                raise
            _log.warning("optimizing %s failed, PyTorch runs it; please report this", self._name, exc_info=True)
            return Answer(reason="optimizing it failed (the log mugraph.optimize says how); please report this")
        if result.report.interrupted:
            raise KeyboardInterrupt
        if not result.found:
            outcome = result.report.baselines.get(EAGER)
            none = _nothing(result)
            return Answer(result, reason=none if outcome is None else _objection(outcome), duel=outcome)
        machine = machine_for(result.target)
        with on_their_gpu(tensors_of(args, kwargs)):
            available = machine.available
        if not available:
            return Answer(result, reason=f"kernels for {result.target} cannot run on this machine")
        outcome = result.report.baselines.get(EAGER) or self._raced(result, machine, args, kwargs)
        return Answer(result, reason=_objection(outcome), duel=outcome)

    @functools.cached_property
    def _in_pieces(self) -> Callable[P, R]:
        """The function as `torch.compile` runs it, with kernels where its pieces have some."""
        from mugraph.integrations.torch_compile import backend  # as above

        settings = self.settings
        options = settings.of_pieces | ({} if settings.target is None else {"target": settings.target})
        compiled: Callable[P, R] = torch.compile(self.fn, backend=functools.partial(backend, options=options))
        return compiled

    def _raced(self, ours: Callable[..., R], machine: Machine, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Duel:
        with torch.inference_mode(), on_their_gpu(tensors_of(args, kwargs)):
            challenger = machine.timed(functools.partial(ours, *args, **kwargs))
            defender = machine.timed(functools.partial(self.fn, *args, **kwargs))
            return duel(challenger.run, defender.run, clock=challenger.clock)

    def _leave(self, reason: str) -> None:
        """Say that PyTorch answers a call; raises InvalidInput in strict mode."""
        if self.settings.strict:
            raise InvalidInput(f"{self._name} cannot be optimized for this call: {reason}")
        warn_user(f"{self._name} runs as PyTorch runs it: {reason}", LeftToPyTorch)

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def __getattr__(self, name: str) -> Any:
        """What the function, or the module, has besides: `optimized.parameters()`."""
        if name.startswith("_") or "fn" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.fn, name)

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = f"_optimized_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Optimized[Any, R]:
        """The method of an instance, which has answers of its own, kept with it."""
        if instance is None:
            return self
        own: Optimized[Any, R] | None = instance.__dict__.get(self._attribute)
        if own is None or getattr(own.fn, "__self__", None) is not instance:  # none yet, or that of what this is a copy of
            own = instance.__dict__[self._attribute] = Optimized(self.fn.__get__(instance, owner), self.settings)
        return own

    def __reduce__(self) -> Any:
        """Pickled with the instance whose method it is, it is left out: what is read back is optimized anew."""
        return (type(None), ()) if hasattr(self.fn, "__self__") else super().__reduce__()

    def __repr__(self) -> str:
        answered = sum(not answer.reason for answer in self.answers.values())
        return f"<Optimized {self._name}: {answered} of {len(self.answers)} kinds of calls run by kernels>"


@dataclass(frozen=True, slots=True)
class Settings:
    """What `optimize` was asked; raises InvalidInput and TargetUnavailable for what cannot be."""

    target: str | None
    budget: float | None
    dynamic: Dynamic
    strict: bool
    seed: int | None
    max_error: float
    evidence: Evidence
    space: SearchSpace | None
    progress: ProgressCallback | bool | None
    cache: Store | Mode | str | None
    pack: bool
    constants: tuple[str, ...]
    background: bool

    def __post_init__(self) -> None:
        if not isinstance(self.dynamic, Mapping):
            remedy = "declare dimensions by argument, as in {0: {0: Dim('batch', 1, 64)}}"
            raise InvalidInput(f"dynamic={self.dynamic!r}: {remedy}")
        PieceOptions.of({**self.of_pieces, "strict": self.strict})
        if self.background and self.dynamic:
            raise InvalidInput("background=True takes sizes as they come: leave dynamic out")
        if self.background and self.constants:
            raise InvalidInput("background=True optimizes pieces, which have no names for their inputs: leave constants out")
        if self.target is not None:
            object.__setattr__(self, "target", resolved(self.target))
            device_for(self.target)

    @property
    def of_all(self) -> dict[str, Any]:
        """The settings that whole functions, ranges of sizes and pieces have in common."""
        names = ("budget", "seed", "max_error", "evidence", "space")
        return {name: getattr(self, name) for name in names}

    @property
    def of_pieces(self) -> dict[str, Any]:
        """Those of what `torch.compile` runs."""
        return self.of_all | {name: getattr(self, name) for name in ("cache", "pack", "background", "progress")}

    @property
    def of_functions(self) -> dict[str, Any]:
        """Those that only whole functions have."""
        return {name: getattr(self, name) for name in ("progress", "cache", "pack", "constants")}


class _Asked(TypedDict, total=False):
    target: str | None
    budget: float | None
    dynamic: Dynamic | None
    strict: bool
    seed: int | None
    max_error: float
    evidence: Evidence
    space: SearchSpace | None
    progress: ProgressCallback | bool | None
    cache: Store | Mode | str | None
    pack: bool
    constants: Sequence[str]
    background: bool


@overload
def optimize(fn: Callable[P, R], **settings: Unpack[_Asked]) -> Optimized[P, R]: ...


@overload
def optimize(fn: None = None, **settings: Unpack[_Asked]) -> Callable[[Callable[P, R]], Optimized[P, R]]: ...


def optimize(
    fn: Callable[P, R] | None = None,
    *,
    target: str | None = None,
    budget: float | None = 60.0,
    dynamic: Dynamic | None = None,
    strict: bool = False,
    seed: int | None = None,
    max_error: float = 2**-40,
    evidence: Evidence = "bounded",
    space: SearchSpace | None = None,
    progress: ProgressCallback | bool | None = None,
    cache: Store | Mode | str | None = None,
    pack: bool = True,
    constants: Sequence[str] = (),
    background: bool = False,
) -> Optimized[P, R] | Callable[[Callable[P, R]], Optimized[P, R]]:
    """Run a function, method or nn.Module by discovered kernels where these are faster: `@mugraph.optimize`, `optimize(model)`.

    The first call with tensors of some shapes and dtypes, and with some other values, takes up to `budget` seconds to optimize
    for them; later ones run what was found. `dynamic` declares dimensions that change, as in `mugraph.superoptimize_dynamic`
    (`{0: {0: Dim("batch", 1, 64)}}`): one answer then serves all their sizes, and is not timed against PyTorch. `target` is by
    default that of the tensors: `cpu`, or the GPU that they lie on. The others are as in `mugraph.superoptimize`.

    With `background` no call waits: `torch.compile` with our backend runs the function, by PyTorch until its pieces have kernels
    (`mugraph.integrations.background`, whose `graphs()` say what has become of them); `answers` is empty.

    Calls that gradients are wanted of run the function itself. So do those for which nothing clearly faster was found or that
    cannot be optimized, of which a warning (LeftToPyTorch) tells once; with `strict` these raise what `mugraph.superoptimize`
    raises, and only functions that are programs as a whole are optimized. To be timed, the function is called some dozens of
    times, on copies of what it changes. What the function reads besides arguments and tensors (numbers, flags) is as it was at
    the first call of a kind; `training` of a module and of all in it, and autocasting, belong to the kind.

    Raises InvalidInput for what is no function and for wrong settings, TargetUnavailable for an unknown target.
    """
    settings = Settings(
        target,
        budget,
        dynamic or {},
        strict,
        seed,
        max_error,
        evidence,
        space,
        progress,
        cache,
        pack,
        names_of(constants),
        background,
    )

    def around(function: Callable[P, R]) -> Optimized[P, R]:
        if not callable(function):
            raise InvalidInput(f"mugraph.optimize takes a function or module, not a {type(function).__name__}")
        return Optimized(function, settings)

    return around if fn is None else around(fn)


def _objection(outcome: Duel) -> str:
    """Why PyTorch answers all the same."""
    return "" if outcome.clear else f"its kernels are not clearly faster ({outcome.speedup:.2f} times as fast as PyTorch)"


def _nothing(result: Superoptimized) -> str:
    """Why a result runs no kernels, where it was not timed beside the function."""
    coverage = result.report.coverage
    if result.is_one_program or coverage is None:
        return why_nothing(result.report, len(result.candidates))
    reasons = [f"{calls.calls} x {calls.operator}: {calls.reason}" for calls in coverage.left[:_FEW]]
    return f"no piece of it runs as kernels ({'; '.join(reasons)})"


def _brings_gradients(result: Found) -> bool:
    """Whether gradients are recorded, and a tensor that the function brings along requires one."""
    if not torch.is_grad_enabled():
        return False
    if isinstance(result, DynamicSuperoptimized):
        return result.brings_gradients
    return isinstance(result.calling, FunctionCalling) and result.calling.requires_grad


def _example(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
    """The arguments as `superoptimize` takes them: all by position, or all by name."""
    if not kwargs:
        return tuple(args)
    if not args:
        return dict(kwargs)
    signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"{getattr(fn, '__name__', type(fn).__name__)} takes {signature}: {error}") from None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if all(signature.parameters[name].kind in by_name for name in bound.arguments):
        return dict(bound.arguments)
    if bound.kwargs:
        raise InvalidInput("arguments that only have a place are beside others that only have a name")
    return bound.args


# --- which calls the same kernels answer -------------------------------------------------------------------------------

Kind = tuple[Any, ...]
_VALUES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The classes of tensors that hold numbers."""


def kind_of_call(args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Mapping[int | str, Mapping[int, Any]]) -> Kind:
    """The kind of the arguments: shapes, dtypes, devices and, unless contiguous, strides of tensors; values of everything else.

    Sizes of `dynamic` dimensions, by argument and position, do not count. Raises TypeError for a value without a hash.
    """
    positional = (_kind_of(value, dynamic.get(number, {})) for number, value in enumerate(args))
    named = ((name, _kind_of(kwargs[name], dynamic.get(name, {}))) for name in sorted(kwargs))
    kind = (*positional, *named)
    hash(kind)
    return kind


def modules_of(fn: Callable[..., Any]) -> tuple[torch.nn.Module, ...]:
    """The module that a function is, or is a method of, and all modules in it."""
    owner = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    return tuple(owner.modules()) if isinstance(owner, torch.nn.Module) else ()


def surroundings(modules: Sequence[torch.nn.Module]) -> Kind:
    """What decides besides the arguments which operators PyTorch calls: autocasting, and which modules train."""
    casts = tuple(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None for device in ("cpu", "cuda"))
    return (*casts, *[module.training for module in modules])


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[torch.Tensor]:
    """The tensors among the arguments, those inside containers too."""
    if not kwargs and all(type(arg) is torch.Tensor for arg in args):  # the usual call, without a walk
        return args
    return [leaf for leaf in leaves_of((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]


def asks_for_gradients(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether gradients are recorded, and one of the tensors requires one."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def stands_for_others(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have no numbers that kernels could read: traced, mapped, with tangents, or of classes of their own."""
    if torch._C._functorch.maybe_current_level() is not None or torch._C._len_torch_dispatch_stack() > 0:
        return True
    return forward_ad._current_level >= 0 or any(type(tensor) not in _VALUES for tensor in tensors)


def _kind_of(value: Any, dims: Mapping[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        free = {position % value.dim() for position in dims} if value.dim() else set()
        sizes = tuple(None if position in free else size for position, size in enumerate(value.shape))
        return (sizes, value.dtype, value.device, None if free or value.is_contiguous() else value.stride())
    if type(value) in (tuple, list):
        return (type(value), *(_kind_of(part, {}) for part in value))
    if type(value) is dict:
        return (dict, *((key, _kind_of(part, {})) for key, part in value.items()))
    leaves, structure = flat(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return (repr(structure), *(_kind_of(leaf, {}) for leaf in leaves))
    return (type(value), repr(value) if isinstance(value, (float, complex)) else value)  # 0.0 is not -0.0, and NaN is itself
