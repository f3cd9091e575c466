"""A PyTorch function's arguments and results as flat lists of tensors, through PyTorch's pytrees.

A program takes the tensors of a call in order and gives its outputs in order. `Arguments` is the one direction, checked against
the example call's shapes and dtypes; `Results` (`returned_values.py`) the other; `Traced` has both beside the program.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.calling import AskedTensor, SignatureRecord, Slot, described, unused_name
from mugraph.frontend.calls.captured_tensors import CapturedSource, another_kind, ends_of, kinds, lies_alike, without_gradient
from mugraph.frontend.calls.objects import flat, has_objects, is_size, opened, parts_of
from mugraph.frontend.calls.origins import READ_ERRORS, reader
from mugraph.frontend.calls.returned_values import VALUES, Results
from mugraph.frontend.calls.saved_constants import SavedConstant, device_beside
from mugraph.ir.graph import Graph

_NOT_A_TENSOR = object()
_LONGEST = 80
"""Characters of a value that an error shows."""


def same_value(first: object, second: object) -> bool:
    """Whether two values that are no tensors are the same: of one type, and equal; NaN is itself, and 0.0 is not -0.0."""
    if type(first) is not type(second):
        return False
    if isinstance(first, (float, complex, np.inexact)):
        return repr(first) == repr(second)
    try:
        return first is second or bool(first == second)
    except Exception:  # containers of tensors or arrays compare element by element, and users' classes as they like
        return False


def shown(value: object) -> str:
    """A value in a few words on one line: of tensors and arrays their kind, and of others the beginning where they are long."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"a {type(value).__name__} of {value.dtype} {list(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """One place in the arguments: a tensor of fixed shape and dtype, or a value that was traced as a constant."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    constant: Any = _NOT_A_TENSOR
    parts: tuple[tuple[str, Any], ...] = ()
    """What a constant that is an object held when the program was traced."""

    @classmethod
    def of(cls, name: str, example: Any) -> ArgumentLeaf:
        """The place that `example` stands in. Raises InvalidInput for a tensor that has no one shape."""
        if isinstance(example, torch.Tensor):
            if example.is_nested:
                raise InvalidInput(f"argument {name} is a nested tensor; use a dense tensor")
            return cls(name, tuple(example.shape), example.dtype)
        return cls(name, constant=example, parts=parts_of(example))

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor stands here."""
        return self.dtype is not None

    def accept(self, value: Any) -> Any:
        """`value` without its gradient; raises ShapeMismatch or InvalidInput when the program was traced with another kind."""
        if not self.is_tensor:
            for part, *kinds in self._changed(value):
                was, now = map(shown, kinds)
                raise InvalidInput(f"argument {self.name}{part} was {was} when optimized, not {now}; optimize again")
            return value
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(f"argument {self.name} must be a torch tensor, not {type(value).__name__}")
        if tuple(value.shape) != self.shape or value.dtype is not self.dtype:
            raise another_kind(f"argument {self.name}", value, self.shape, self.dtype)
        return without_gradient(value, f"argument {self.name}")

    def _changed(self, value: Any) -> Iterator[tuple[str, Any, Any]]:
        """Where `value` is not what the constant was: the name of a part, or "", and what was and is there."""
        if not self.parts or type(value) is not type(self.constant):
            return iter(() if same_value(value, self.constant) else [("", self.constant, value)])
        now = parts_of(value)
        pairs = zip(self.parts, now, strict=False)
        other = ((name, was, its) for (name, was), (same, its) in pairs if name != same or not same_value(was, its))
        return itertools.chain(other, [("", self.constant, value)] if len(now) != len(self.parts) else [])


@dataclass(frozen=True, slots=True)
class Arguments:
    """How a function is called: its signature, and what stood at each place of the example call."""

    fn: Callable[..., Any]
    signature: inspect.Signature
    structure: TreeSpec
    leaves: tuple[ArgumentLeaf, ...]
    positional: bool
    """Whether the example call was positional tensors only, one per leaf but for default values, so that such calls need no
    binding."""
    defaults: tuple[Any, ...] = field(repr=False, compare=False)
    """The default arguments that `signature` tells of."""
    count: int = 0
    """Arguments that the example call gave by position; functions may treat what is named differently."""
    objects: bool = False
    """Whether objects among the arguments are opened."""
    unchanging: bool = False
    """Whether all default values are of kinds that nobody can change."""

    @classmethod
    def of(cls, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The way `fn(*args, **kwargs)` calls `fn`. Raises InvalidInput when `fn` does not take these arguments."""
        signature = _signature(fn, len(args))
        bound = _bind(fn, signature, args, kwargs)
        with_paths, structure = tree_flatten_with_path(opened(dict(bound.arguments)), is_leaf=is_size)
        names: list[str] = []
        for path, _ in with_paths:
            names.append(unused_name(_leaf_name(path), names))
        leaves = tuple(ArgumentLeaf.of(name, example) for name, (_, example) in zip(names, with_paths, strict=True))
        tensors = len(args) <= len(leaves) and all(leaf.is_tensor for leaf in leaves[: len(args)])
        alone = all(isinstance(arg, torch.Tensor) for arg in args) and not any(leaf.is_tensor for leaf in leaves[len(args) :])
        positional = not kwargs and tensors and alone
        given = (parameter.default for parameter in signature.parameters.values())
        unchanging = all(default is inspect.Parameter.empty or _is_unchanging(default) for default in given)
        return cls(fn, signature, structure, leaves, positional, _defaults(fn), len(args), has_objects(structure), unchanging)

    @property
    def tensors(self) -> tuple[ArgumentLeaf, ...]:
        """The places where tensors stand."""
        return tuple(leaf for leaf in self.leaves if leaf.is_tensor)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors of a call, checked against the example's. Raises ShapeMismatch and InvalidInput naming the argument."""
        if self._needs_no_binding(args, kwargs):
            return [leaf.accept(value) for leaf, value in zip(self.leaves, args, strict=False)]
        accepted = [leaf.accept(value) for leaf, value in zip(self.leaves, self.placed(args, kwargs), strict=True)]
        return [value for leaf, value in zip(self.leaves, accepted, strict=True) if leaf.is_tensor]

    def _needs_no_binding(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call has one tensor after the other, as the example had, and its default values, which cannot change."""
        if kwargs or not self.positional or not self.unchanging or len(args) != self.count:
            return False
        if not self.defaults and len(self.leaves) == self.count:
            return True
        return self.has_its_defaults and all(isinstance(arg, torch.Tensor) for arg in args)

    def placed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What stands at each place in a call, defaults included. Raises InvalidInput for a call with other places."""
        arguments = dict(_bind(self.fn, self._signature(len(args)), args, kwargs).arguments)
        values, structure = tree_flatten(_in_order(self._opened(arguments), self.structure), is_leaf=is_size)
        if structure != self.structure:
            names = ", ".join(leaf.name for leaf in self.leaves)
            raise InvalidInput(f"{self._other_parts(structure)}call with the same arguments as when optimized: {names}")
        return values

    def _other_parts(self, structure: TreeSpec) -> str:
        """The beginning of a line that names the first argument of other parts than in the example call."""
        pairs = zip(self.structure.context, self.structure.children(), structure.children(), strict=False)
        name = next((name for name, ours, theirs in pairs if ours != theirs), None)
        return "" if name is None else f"argument {name} consists of other parts now: "

    def _opened(self, arguments: dict[str, Any]) -> Any:
        """The arguments of a call with their objects opened, if any were in the example call."""
        return opened(arguments, (torch.Tensor, _Mark)) if self.objects else arguments

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int | None]:
        """For each tensor of a call, which of the call's own tensors it is, in their order; None for a default argument's."""
        tensors, structure = flat((tuple(args), dict(kwargs)))
        marks = [_Mark(number) if isinstance(value, torch.Tensor) else value for number, value in enumerate(tensors)]
        order = {mark.number: position for position, mark in enumerate(mark for mark in marks if isinstance(mark, _Mark))}
        values = self.placed(*tree_unflatten(marks, structure))
        tensor_values = [value for leaf, value in zip(self.leaves, values, strict=True) if leaf.is_tensor]
        return [order[value.number] if isinstance(value, _Mark) else None for value in tensor_values]

    def _signature(self, count: int) -> inspect.Signature:
        """The function's signature with the default arguments it has now."""
        return self.signature if self.has_its_defaults else _signature(self.fn, count)

    @property
    def has_its_defaults(self) -> bool:
        """Whether the function's default arguments are the very ones that it had in the example call."""
        now = _defaults(self.fn)
        return len(now) == len(self.defaults) and all(map(operator.is_, now, self.defaults))

    def call(self, fn: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
        """`fn` with `tensors`, of the leaves' shapes and dtypes, at the places of tensors, and the constants everywhere else.

        Raises InvalidInput where it puts something into a list or dict that it is given, or takes something out of one.
        """
        remaining = iter(tensors)
        values = [next(remaining) if leaf.is_tensor else leaf.constant for leaf in self.leaves]
        bound = inspect.BoundArguments(self.signature, tree_unflatten(values, self.structure))
        args, kwargs = _as_given(bound, self.count)
        returned = fn(*args, **kwargs)
        left, structure = tree_flatten(self._opened(dict(bound.arguments)), is_leaf=is_size)
        if structure != self.structure or any(map(operator.is_not, left, values)):
            name = next((leaf.name for leaf, *pair in zip(self.leaves, left, values, strict=False) if operator.is_not(*pair)), "")
            what = f"the list, dict or object that {name} is in" if name else "a list, dict or object among its arguments"
            remedy = 'copy it first and return what is new, or use torch.compile(..., backend="mugraph")'
            raise InvalidInput(f"{getattr(fn, '__name__', 'the function')} changes {what}; {remedy}")
        return returned


@dataclass(frozen=True, slots=True)
class _Mark:
    """Stands for the tensor of that number while a call is bound."""

    number: int


@dataclass(frozen=True, slots=True)
class FunctionCalling:
    """How something that takes tensors in order, and gives its outputs in order, is called in the place of a PyTorch function.

    Its inputs are the tensors among the arguments, then those that `sources` give.
    """

    name: str
    arguments: Arguments
    sources: tuple[CapturedSource, ...]
    results: Results
    strides: tuple[tuple[int, ...] | None, ...]
    """By input, the strides that it must have, where what the function returns depends on them."""
    inputs: tuple[str, ...]
    """Names of the inputs."""
    asked: tuple[CapturedSource, ...] = field(kw_only=True)
    """Tensors that the function brings along and asks what they are, but reads nothing of."""
    _read: Callable[[], list[Any]] = field(init=False, repr=False, compare=False)
    """What all ways of all sources lead to."""
    _are_still: Callable[[], bool] = field(init=False, repr=False, compare=False)
    """Whether all that are asked are what they were."""
    _constants: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The sources that are the same for ever."""
    _copies: dict[tuple[int, torch.device], torch.Tensor] = field(init=False, repr=False, compare=False)
    """Copies of these on other devices than their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_read", reader([origin for source in self.sources for origin in source.origins]))
        object.__setattr__(self, "_are_still", kinds(self.asked))
        object.__setattr__(self, "_constants", tuple(number for number, source in enumerate(self.sources) if source.constant))
        object.__setattr__(self, "_copies", {})

    @property
    def captured(self) -> tuple[torch.Tensor, ...]:
        """Parameters, buffers and tensors the function closes over, as they are now."""
        return self.captured_beside(())

    def captured_beside(self, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The same for a call with these tensors: constants of the function lie where they do."""
        with torch.no_grad():
            return tuple(self._brought(tensors))

    def _brought(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors of `sources`, beside those of a call; raises what the sources raise."""
        try:
            values = iter(self._read())
        except READ_ERRORS:
            values = ends_of(self.sources)  # which says what is wrong
        brought = [source.checked(values) for source in self.sources]
        if self.asked:
            self._expect_asked()
        return self._with_constants_beside(brought, tensors) if self._constants else brought

    def _expect_asked(self) -> None:
        """Raise InvalidInput or ShapeMismatch unless what the function asks for is what it was."""
        if not self._are_still():
            for source in self.asked:
                source.expect()

    def _with_constants_beside(self, brought: list[torch.Tensor], tensors: Sequence[Any]) -> list[torch.Tensor]:
        """What the function brings along, constants on the GPU of a call where none of the call's tensors is where they are."""
        given = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        devices = [tensor.device for tensor in given if tensor.dim()] or [tensor.device for tensor in given]
        for number in self._constants:
            constant = brought[number]
            if devices and constant.device not in devices:
                there = device_beside(devices)
                if (number, there) not in self._copies:
                    with torch.inference_mode(False), torch.no_grad():
                        self._copies[number, there] = constant.to(there)
                brought[number] = self._copies[number, there]
        return brought

    @property
    def constants(self) -> tuple[SavedConstant, ...]:
        """The last inputs, which the function computes of no tensor; raises StorageError for what cannot be saved."""
        return tuple(SavedConstant.of(source.name, source()) for source in self.sources if source.computed)

    @property
    def signature_record(self) -> SignatureRecord:
        """How the function is called, and the names of what it brings along, as JSON can say it."""
        slots: list[Any] = [Slot(number) for number in range(len(self.arguments.tensors))]
        try:
            arguments = described(self.arguments.call(_given, slots))
        except InvalidInput:  # there are objects among them
            arguments = None
        names = (
            [] if source.constant else [way.name for way in source.origins] for source in self.sources if not source.computed
        )
        asked = tuple(
            AskedTensor(
                tuple(dict.fromkeys(way.name for way in source.origins)),
                str(source.dtype).removeprefix("torch."),
                source.shape,
                source.strides,
            )
            for source in self.asked
        )
        return SignatureRecord(self.name, arguments, tuple(tuple(dict.fromkeys(each)) for each in names), self.strides, asked)

    @property
    def requires_grad(self) -> bool:
        """Whether one of `captured` requires a gradient as the function has it."""
        return any(source.tensor().requires_grad for source in self.sources)

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """The arguments and the tensors of `sources`, where a call is of tensors alone, as the example was."""
        arguments = self.arguments
        alike = arguments.positional and arguments.unchanging and (not arguments.defaults or arguments.has_its_defaults)
        if kwargs or not alike or any(self.strides):
            return None
        if self.sources:
            return (*args, *self._brought(args))
        if self.asked:
            self._expect_asked()
        return args

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One tensor per input; raises ShapeMismatch or InvalidInput naming the tensor that does not fit."""
        given = self.arguments.flatten(args, kwargs)
        tensors = given + self._brought(given)
        for number, (wanted, tensor) in enumerate(zip(self.strides, tensors, strict=False)):
            if wanted is not None and not lies_alike(tensor, wanted):
                raise InvalidInput(
                    f"{self.inputs[number]} has strides {list(tensor.stride())}, optimized for {list(wanted)}: what "
                    f"{self.name} returns or changes depends on them; make it contiguous, or optimize again"
                )
        return tensors

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What `flatten` gives for a call that is an example, of which nobody wants gradients."""
        with torch.no_grad():
            return self.flatten(args, kwargs)

    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
        """The outputs as the function returns them: tuples, lists, dicts, None and numbers in place.

        With the call's `inputs`, results that share memory with them or each other do so here, as they do in eager PyTorch.
        """
        return self.results.unflatten(outputs, inputs)

    def call(self, executable: Callable[..., Sequence[Any]], *args: Any, **kwargs: Any) -> Any:
        """`executable(*tensors)` with the arguments and the result of the traced function."""
        inputs = self.flatten(args, kwargs)
        return self.unflatten(executable(*inputs), inputs)


@dataclass(frozen=True, slots=True)
class Traced(FunctionCalling):
    """A PyTorch function as a program, and how to call the program in its place."""

    graph: Graph


def _given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def places_of_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Where the tensors of a call stand, in their order: position or name, then the way inside containers."""
    paths: list[tuple[Any, ...]] = []
    positional, named = opened((tuple(args), dict(kwargs)))
    for top, value in (*enumerate(positional), *named.items()):
        paths += [(top, *map(str, path)) for path, leaf in tree_flatten_with_path(value)[0] if isinstance(leaf, torch.Tensor)]
    return paths


def _signature(fn: Callable[..., Any], count: int) -> inspect.Signature:
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        return _with_keywords(inspect.signature(called), called)
    except (TypeError, ValueError):  # functions written in C have none
        kind = inspect.Parameter.POSITIONAL_ONLY
        return inspect.Signature([inspect.Parameter(f"argument{position}", kind) for position in range(count)])


def _with_keywords(signature: inspect.Signature, called: Callable[..., Any]) -> inspect.Signature:
    """With what a `functools.partial` gives its function by `**` as default arguments, which inspect leaves out."""
    keywords: dict[str, Any] = {}
    while isinstance(called, functools.partial):
        keywords, called = {**called.keywords, **keywords}, called.func
    parameters = list(signature.parameters.values())
    if not (keywords and parameters) or parameters[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, kind, default=value) for name, value in keywords.items() if name not in signature.parameters]
    return signature.replace(parameters=[*parameters[:-1], *more, parameters[-1]])


def takes_any_names(fn: Callable[..., Any]) -> bool:
    """Whether a function takes named arguments by `**`, so that it can tell in which order they are given."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in _signature(fn, 0).parameters.values())


def default_of(fn: Callable[..., Any], name: str) -> Any:
    """What a function has for an argument by default; inspect.Parameter.empty where that is nothing."""
    parameter = _signature(fn, 0).parameters.get(name)
    return inspect.Parameter.empty if parameter is None else parameter.default


def _is_unchanging(value: object) -> bool:
    """Whether nobody can put anything else into a value."""
    return isinstance(value, VALUES) or (type(value) is tuple and all(map(_is_unchanging, value)))


def _defaults(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """The default arguments of a function in Python, or of a module's or an object's method, and before them what a
    `functools.partial` brings along: its keywords are a dict, which may be changed in place."""
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    if isinstance(called, functools.partial):
        return (called.func, *called.args, *called.keywords, *called.keywords.values(), *_defaults(called.func))
    function = called.__func__ if isinstance(called, MethodType) else called
    named = getattr(function, "__kwdefaults__", None) or {}
    return (*(getattr(function, "__defaults__", None) or ()), *named.values())


def _in_order(value: Any, structure: TreeSpec) -> Any:
    """The value with the keys of its dicts in the order that they have in `structure`, where they are the same keys."""
    children = structure.children()
    if type(value) is dict and structure.type is dict and value.keys() == set(structure.context):
        return {key: _in_order(value[key], child) for key, child in zip(structure.context, children, strict=True)}
    if type(value) in (list, tuple) and structure.type is type(value) and len(value) == len(children):
        return type(value)(_in_order(part, child) for part, child in zip(value, children, strict=True))
    return value


def _bind(
    fn: Callable[..., Any], signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"{getattr(fn, '__name__', type(fn).__name__)} takes {signature}: {error}") from None
    bound.apply_defaults()
    return bound


def _as_given(bound: inspect.BoundArguments, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a call that gives the first `count` by position, and those that have no other way."""
    named = [
        name
        for position, (name, parameter) in enumerate(bound.signature.parameters.items())
        if position >= count and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    return bound.args[: len(bound.args) - len(named)], {name: bound.arguments[name] for name in named} | bound.kwargs


def _leaf_name(path: Any) -> str:
    """`x` for argument x, `batch.mask` and `layers.0` inside containers."""
    return ".".join(re.findall(r"\w+", keystr(path)))
