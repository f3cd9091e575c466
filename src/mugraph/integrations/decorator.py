"""`@mugraph.optimize`: a function whose calls run discovered kernels where these are faster, and PyTorch elsewhere.

The first call with tensors of some shapes and dtypes optimizes for them, as `mugraph.superoptimize` does; the result is kept for
later calls of that kind. A call is answered in any case: what cannot be optimized, is not faster, or needs gradients runs as it
always did. With `background` our backend of `torch.compile` runs the function instead.
"""

from __future__ import annotations

import copy
import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

import torch

from mugraph.api import superoptimize
from mugraph.devices import device_for, resolved
from mugraph.errors import IndexOutOfRange, InvalidInput, LeftToPyTorch, MugraphError, ShapeMismatch, SharedMemory
from mugraph.frontend import trace
from mugraph.frontend.calls.python_state import PythonState, ReachedModules
from mugraph.frontend.calls.pytree import FunctionCalling
from mugraph.integrations.call_kinds import (
    Kind,
    all_by_one,
    asks_for_gradients,
    example_of,
    functions_are_watched,
    kind_of_call,
    stands_for_others,
    surroundings,
    tensors_of,
)
from mugraph.integrations.dynamic_shapes import superoptimize_dynamic
from mugraph.integrations.observed_sizes import ObservedSizes
from mugraph.integrations.stand_in import StandIn
from mugraph.pieces.piece_options import PieceOptions
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER
from mugraph.runtime.benchmarking import Duel, duel
from mugraph.search.constraints import SearchSpace
from mugraph.selection.evidence import Evidence
from mugraph.selection.reasons import why_nothing
from mugraph.selection.whole_programs import names_of
from mugraph.sizes.dims import Declaration, Declared, Dynamic, may_be_empty
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
_MOST_ANSWERS = 64
"""Kinds of calls whose answers are kept: where there are more, as of a module whose `forward` is another one in each call, the
one goes that was used least recently."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How calls of one kind are answered: by a result or, where `reason` says why, by PyTorch."""

    result: Found | None = None
    reason: str = ""
    duel: Duel | None = None
    """The whole call of what answers against that of the function, where they were timed."""
    state: PythonState | None = field(default=None, repr=False, compare=False)
    """What the function was recorded with beside its arguments; the result answers as long as this is what it was."""

    def changed(self, modules: ReachedModules) -> str | None:
        """The name of something that the function, which reaches these modules, is not as it was recorded with; None where all is
        as it was."""
        try:
            return None if self.state is None else self.state.changed(modules.modules)
        except Exception:  # of an object that does not let itself be looked at any more
            return "something that it reads"


class Optimized(StandIn, Generic[P, R]):
    """A function that `mugraph.optimize` was asked for: call it as ever.

    `answers` says what answers the calls of each kind: shapes, dtypes and devices of tensors, values of everything else. Those of
    the kinds that were used last are kept, up to 64.
    """

    fn: Callable[P, R]

    def __init__(self, fn: Callable[P, R], settings: Settings) -> None:
        self.settings = settings
        self.answers: OrderedDict[Kind, Answer] = OrderedDict()
        self._latest: tuple[Superoptimized, Kind, ReachedModules, Answer] | None = None
        """The result that answered last, the surroundings and modules that it was optimized with, and the answer it is of."""
        self._observed = ObservedSizes()
        self._one_at_a_time = threading.RLock()
        self._attribute = ""
        self.fn = fn  # behind all that is its own, as a module may have attributes of the same names
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What `fn` returns for these arguments; the first call of a kind may take up to the budget."""
        if torch.compiler.is_compiling():
            return self.fn(*args, **kwargs)
        if (known := self._latest) is not None and not functions_are_watched():  # once: other threads call, too
            latest, around, modules, answer = known
            with suppress(InvalidInput, ShapeMismatch):  # the function brings other tensors along than it did
                usual = around == surroundings(modules) and modules.are_there() and not _brings_gradients(latest)
                usual = usual and answer.changed(modules) is None
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
        return tuple(answer.result for answer in self._known() if answer.result is not None and not answer.reason)

    def _known(self) -> list[Answer]:
        """All answers, while other threads call, which moves those that they use to the end."""
        while True:
            with suppress(RuntimeError):  # they moved one just now
                return [*self.answers.values()]

    def _answered(self, args: Sequence[Any], kwargs: Mapping[str, Any], again: bool = False) -> R:
        if self.settings.is_empty(args, kwargs):
            return self.fn(*args, **kwargs)
        modules = ReachedModules(self.fn)
        around = surroundings(modules)
        try:
            if self.settings.dynamic is True and args and kwargs:
                args, kwargs = all_by_one(self.fn, args, kwargs)
            kind, dynamic = self._kind(around, args, kwargs)
        except TypeError:
            self._leave("an argument is neither a tensor nor a value to compare with a later call's")
            return self.fn(*args, **kwargs)
        answer = self.answers.get(kind)
        if answer is not None:
            with suppress(KeyError):  # another thread has just let it go
                self.answers.move_to_end(kind)
        else:
            try:
                state = PythonState(self.fn, modules.modules)
            except Exception as error:
                self._leave(f"what it reads cannot be looked at ({type(error).__name__}: {error})")
                return self.fn(*args, **kwargs)
            if torch.is_grad_enabled():
                returned = self.fn(*args, **kwargs)
                if asks_for_gradients(tensors_of((returned,), {})):  # those of something that the function brings along
                    self._leave(_GRADIENTS)
                else:
                    self._answer(kind, args, kwargs, dynamic, state)
                return returned  # once is enough: the function may change what it is given
            answer = self._answer(kind, args, kwargs, dynamic, state)
        if answer.result is None or answer.reason:
            return self.fn(*args, **kwargs)
        if (changed := answer.changed(modules)) is not None:
            self._leave(f"{changed} is not what it was when kernels were made; optimize the function anew to have some for it")
            return self.fn(*args, **kwargs)
        try:
            if _brings_gradients(answer.result):
                return self.fn(*args, **kwargs)
            outputs: R = answer.result(*args, **kwargs)
        except IndexOutOfRange:  # the function would raise an IndexError as well
            raise
        except SharedMemory:
            if self.settings.strict:
                raise
            return self.fn(*args, **kwargs)
        except (InvalidInput, ShapeMismatch):
            if again or self.settings.declared:
                raise
            self._latest = None  # the function brings other tensors along than it did
            self.answers.pop(kind, None)
            return self._answered(args, kwargs, again=True)
        if isinstance(answer.result, Superoptimized) and answer.result.is_one_program:
            self._latest = answer.result, around, modules, answer
        return outputs

    def _kind(self, around: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Kind, Dynamic]:
        """The kind of a call, and the dimensions whose sizes do not count in it; raises TypeError for values without a hash."""
        if self.settings.dynamic is not True:
            dynamic = self.settings.declared
            return (around, *kind_of_call(args, kwargs, dynamic)), dynamic
        alone = (around, *kind_of_call(args, kwargs, {}))
        if alone in self.answers or not (dynamic := self._observed.dynamic(args, kwargs)):
            return alone, {}
        ranges = tuple((argument, *dims.items()) for argument, dims in dynamic.items())
        return (around, ranges, *kind_of_call(args, kwargs, dynamic)), dynamic

    def _answer(self, kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Dynamic, state: PythonState) -> Answer:
        with self._one_at_a_time:
            if (known := self.answers.get(kind)) is not None:
                return known
            found = self._optimized(args, kwargs, dynamic)
            state.settle()
            self.answers[kind] = answer = replace(found, state=state)
            if len(self.answers) > _MOST_ANSWERS:
                self.answers.popitem(last=False)
            if answer.reason:
                warn_user(f"{self._name} runs as PyTorch runs it: {answer.reason}", LeftToPyTorch)
            return answer

    def _optimized(self, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Dynamic) -> Answer:
        settings = self.settings
        try:
            if settings.target is None:
                common_target(tensors_of(args, kwargs))  # of tensors on several devices it says which
            example = example_of(self.fn, args, kwargs)
            if dynamic:
                return Answer(superoptimize_dynamic(self.fn, example, dynamic, target=settings.target, **settings.of_all))
            if settings.strict:
                trace(self.fn, example)  # raises for what is no program
            result = superoptimize(self.fn, example, settings.target, **settings.of_all, **settings.of_functions)
        except MugraphError as error:
            if settings.strict or (settings.declared and isinstance(error, ShapeMismatch)):
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A module that is copied, or an object with its method, is optimized anew, with its own tensors; functions stay."""
        fn = copy.deepcopy(self.fn, memo)
        if fn is self.fn:
            return self
        within: Self | None = memo.get(id(self))  # of a module that has this object as an attribute
        return type(self)(fn, self.settings) if within is None else within

    def __reduce__(self) -> Any:
        """Pickled with the instance whose method it is, it is left out: what is read back is optimized anew."""
        return (type(None), ()) if hasattr(self.fn, "__self__") else super().__reduce__()

    def __repr__(self) -> str:
        answered = sum(not answer.reason for answer in self._known())
        return f"<Optimized {self._name}: {answered} of {len(self.answers)} kinds of calls run by kernels>"


@dataclass(frozen=True, slots=True)
class Settings:
    """What `optimize` was asked; raises InvalidInput and TargetUnavailable for what cannot be."""

    target: str | None
    budget: float | None
    dynamic: Dynamic | bool
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
        PieceOptions.of({**self.of_pieces, "strict": self.strict})
        if self.background and self.dynamic:
            raise InvalidInput("background=True takes sizes as they come: leave dynamic out")
        if self.background and self.constants:
            raise InvalidInput("background=True optimizes pieces, which have no names for their inputs: leave constants out")
        if self.target is not None:
            object.__setattr__(self, "target", resolved(self.target))
            device_for(self.target)

    @property
    def declared(self) -> Dynamic:
        """The dimensions that were declared."""
        return self.dynamic if isinstance(self.dynamic, Mapping) else {}

    def is_empty(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call has nothing in a dimension that varies and may be 0; raises what `Declared.sizes_of` raises."""
        if self.dynamic is True:
            return any(tensor.numel() == 0 for tensor in tensors_of(args, kwargs))
        return may_be_empty(self.declared) and 0 in Declared.of(self.declared).sizes_of(args, kwargs)

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
    dynamic: Declaration | bool | None
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
    dynamic: Declaration | bool | None = None,
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
    (`{0: {0: Dim("batch", 1, 64)}}`): one answer then serves all their sizes, and is not timed against PyTorch as a whole. With
    `dynamic=True` they are found: the first call is optimized for its sizes, and once others come, so is a range, from 1 to at
    least twice the largest size so far, of each dimension of an argument that has changed; those that were alike in every call
    are one. A larger size makes a larger range. `target` is by default that of the tensors: `cpu`, or the GPU that they lie on.
    The others are as in `mugraph.superoptimize`.

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
        _declared(dynamic),
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


def _declared(dynamic: Declaration | bool | None) -> Dynamic | bool:
    """The dimensions that are declared, or whether they are found; raises InvalidInput for what says neither."""
    if not dynamic:
        return {}
    if dynamic is True:
        return True
    if not isinstance(dynamic, Mapping):
        remedy = "declare dimensions by argument, as in {0: {0: Dim('batch', 1, 64)}}, or say True to have them found"
        raise InvalidInput(f"dynamic={dynamic!r}: {remedy}")
    return Declared.of(dynamic).dynamic


def _objection(outcome: Duel) -> str:
    """Why PyTorch answers all the same."""
    return "" if outcome.clear else f"its kernels are not clearly faster ({outcome.speedup:.2f} times as fast as PyTorch)"


def _nothing(result: Superoptimized) -> str:
    """Why a result runs no kernels, where it was not timed beside the function."""
    coverage = result.report.coverage
    if result.is_one_program or coverage is None:
        return why_nothing(result.report, len(result.candidates))
    reasons = [f"{calls.calls} x {calls.operator}: {calls.reason}" for calls in coverage.left[:_FEW]]
    return f"no piece of it runs as kernels ({'; '.join(reasons)})" if reasons else "it computes nothing of tensors"


def _brings_gradients(result: Found) -> bool:
    """Whether gradients are recorded, and a tensor that the function brings along requires one."""
    if not torch.is_grad_enabled():
        return False
    if isinstance(result, DynamicSuperoptimized):
        return result.brings_gradients
    return isinstance(result.calling, FunctionCalling) and result.calling.requires_grad
