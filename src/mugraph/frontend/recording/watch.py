"""What a function reaches for while it is recorded: the tensors that it captures, and how tensors lie in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.recording.kept_tensors import Made
from mugraph.frontend.rewriting.flex_attention import OPERATOR, attention

_QUESTIONS_OF_STRIDES = frozenset(
    {torch.Tensor.is_contiguous, torch.Tensor.stride, torch.Tensor.storage_offset, torch.Tensor.dim_order}
)
_COPIES_BY_STRIDES = frozenset(
    {
        *(torch.Tensor.contiguous, torch.Tensor.reshape, torch.Tensor.reshape_as, torch.Tensor.flatten, torch.Tensor.ravel),
        *(torch.reshape, torch.flatten, torch.ravel),
    }
)
"""Calls that give the memory of their first argument or a copy of it, by how that lies: who writes to either depends on it."""
_INDEXED = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
"""Calls whose second argument may have tensors in slices, which PyTorch's trees do not open."""
_GRADIENT: Any = torch.Tensor.grad
_VERSION: Any = torch.Tensor._version
_NOT_ALIKE = {
    _GRADIENT.__get__: "its gradient",
    torch.Tensor.storage_offset: "where its memory begins",
}
"""Questions that a stand-in answers otherwise than the tensor that it stands for."""
_OF_CALLS = {
    _VERSION.__get__: "how often it was written to (_version)",
    torch.Tensor.is_inference: "whether it is an inference tensor (is_inference)",
    torch.is_inference: "whether it is an inference tensor (is_inference)",
}
"""Questions that each call may answer otherwise, whatever kinds of tensors it is of."""
_WRITERS = frozenset(
    {"__setitem__"}
    | {
        f"__i{name}__"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
    }
)
"""Methods that write to a tensor and have no name that says so."""


class Watch(TorchFunctionMode):
    """What a function reaches for while it runs, tensors with data, which it captures, and how tensors lie in memory; and what it
    returns.

    Captured tensors that have a stand-in are replaced by it, so that nothing can depend on the values they have now; with
    `looks_for_more` every other one that it captures gets one without data, so that nobody's tensor is written to. `reached`
    are those that it captures, in the order in which it came to them; those that the module has which is recorded are known by
    name (`reached_of_modules`).
    """

    def __init__(self, name: str, captured: Sequence[torch.Tensor], looks_for_more: bool) -> None:
        super().__init__()
        self.name, self.looks_for_more = name, looks_for_more
        self.captured = list(captured)
        self.reached: list[torch.Tensor] = []
        self.reached_of_modules: set[str] = set()
        self.gradients_asked: set[int | str] = set()
        """Tensors that the function captures and asks for their gradients, by identity; those of the module by name."""
        self.returned: Any = None
        self.writes_captured = False
        """Whether the function writes to what it captures and has stand-ins for."""
        self._asks_for_strides = False
        self._shared_by_strides: list[tuple[torch.Tensor, int]] = []
        """Arguments and results of calls that copy by strides, each with its version behind the call."""
        self._shared_without_version = False
        """Whether one of them is an inference tensor, which has none: then whatever is written behind the call counts."""
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._own: dict[int, torch.Tensor] = {}
        """Tensors with data that the function makes, by identity."""
        self._of_modules: dict[int, list[str]] = {}
        self._arguments: set[int] = set()
        self._made = Made((), ())
        self._below: list[Any] = []

    def instead(
        self, arguments: Sequence[torch.Tensor], stand_ins: Sequence[torch.Tensor], made: Made, module: torch.nn.Module
    ) -> Self:
        """The mode for these arguments, with stand-ins in the place of the captured tensors, and those that `module` has now in
        the place of its own; `made` is told of every call."""
        self._arguments = set(map(id, arguments))
        self._made = made
        self._below = _function_modes()
        self._stand_ins = {id(real): other for real, other in zip(self.captured, stand_ins, strict=False)}
        self._of_modules = {}
        for name, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
            self._of_modules.setdefault(id(tensor), []).append(name)
        return self

    @property
    def asks_for_strides(self) -> bool:
        """Whether what the function does depends on how tensors lie: it asks for that, or writes to memory that two tensors share
        as they lie here, and would not share otherwise, or the other way round."""
        return self._asks_for_strides or any(tensor._version != version for tensor, version in self._shared_by_strides)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._asks_for_strides |= func in _QUESTIONS_OF_STRIDES
        self._asks_for_strides |= self._shared_without_version and _writes(func, args, kwargs or {})
        if func in _OF_CALLS:
            raise asked_in_vain(self.name, f"a tensor {_OF_CALLS[func]}")
        if func in _NOT_ALIKE and args and self._is_captured(args[0]):
            self._expect_nothing(func, func(*args))
        if func == _GRADIENT.__get__:
            self._note_gradient(args[0])
        args, kwargs = tree_map_only(torch.Tensor, self._instead_of, (args, kwargs or {}))
        if func in _INDEXED:
            args = (args[0], self._in_slices(args[1]), *args[2:])
        if func is OPERATOR:
            with self._all_modes():
                return attention(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _COPIES_BY_STRIDES or "memory_format" in kwargs:
            shared = [each for each in (*args[:1], kwargs.get("input"), result) if isinstance(each, torch.Tensor)]
            self._shared_by_strides += [(each, each._version) for each in shared if not each.is_inference()]
            self._shared_without_version |= any(each.is_inference() for each in shared)
        self._made.note(func, args, kwargs, result)
        self._note_own(result, (args, kwargs))
        return result

    def _note_own(self, result: Any, operands: Any) -> None:
        """Keep in mind tensors with data that a call made of nothing, as of a NumPy array: they are captured by no one."""
        leaves = result if isinstance(result, (tuple, list)) else (result,)
        own = [leaf for leaf in leaves if type(leaf) is torch.Tensor]
        if own:
            given = {id(leaf) for leaf in tree_leaves(operands)}
            self._own |= {id(leaf): leaf for leaf in own if id(leaf) not in given}

    @contextlib.contextmanager
    def _all_modes(self) -> Iterator[None]:
        """This mode, and those below it that PyTorch took away for the call of an operator."""
        with contextlib.ExitStack() as modes:
            left = _function_modes()
            for mode in (*(mode for mode in self._below if mode not in left), self):
                modes.enter_context(mode)
            yield

    def instead_of(self, value: Any) -> Any:
        """What stands for a captured tensor; anything else itself."""
        return self._stand_ins.get(id(value), value)

    def _is_captured(self, value: Any) -> bool:
        return id(value) in self._stand_ins or (type(value) in (torch.Tensor, torch.nn.Parameter) and id(value) not in self._own)

    def _expect_nothing(self, func: Any, answer: Any) -> None:
        """Raise UnsupportedOperator for an answer that stand-ins do not give, as they have no gradient and begin at 0."""
        if answer is not None and (isinstance(answer, torch.Tensor) or answer != 0):
            raise asked_in_vain(self.name, f"a tensor that it brings along for {_NOT_ALIKE[func]}")

    def _note_gradient(self, asked: torch.Tensor) -> None:
        """Keep in mind who was asked for a gradient; raises UnsupportedOperator for an argument, of which none is recorded."""
        if id(asked) in self._arguments:
            raise asked_in_vain(self.name, "an argument for its gradient")
        self.gradients_asked.update((id(asked), *self._of_modules.get(id(asked), ())))

    def _in_slices(self, index: Any) -> Any:
        """An index with what stands for the tensors that bound its slices: their numbers would be those of now for ever."""
        if isinstance(index, tuple):
            return tuple(map(self._in_slices, index))
        if not isinstance(index, slice):
            return index
        return slice(*tree_map_only(torch.Tensor, self._instead_of, (index.start, index.stop, index.step)))

    def _instead_of(self, tensor: torch.Tensor) -> torch.Tensor:
        self.reached_of_modules.update(self._of_modules.get(id(tensor), ()))
        stand_in = self._stand_ins.get(id(tensor))
        has_data = type(tensor) in (torch.Tensor, torch.nn.Parameter) and id(tensor) not in self._own
        if (stand_in is not None or has_data) and not any(tensor is known for known in self.reached):
            self.reached.append(tensor)
        if stand_in is None and has_data and self.looks_for_more and tensor.layout is torch.strided and not tensor.is_quantized:
            stand_in = self._stand_ins[id(tensor)] = like(tensor)
            self._made.own(stand_in)
        return tensor if stand_in is None else stand_in


def asked_in_vain(name: str, question: str) -> UnsupportedOperator:
    """The error that names a question of a function whose answer no recording can rely on."""
    return UnsupportedOperator(f"{name} asks {question}; ask outside the function, and give it what that is")


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own that lies in memory alike, and shares neither that nor its values."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _writes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a torch function says that it writes to one of its arguments: by its name, `out`, or `inplace`."""
    name, code = getattr(func, "__name__", ""), getattr(func, "__code__", None)
    if "out" in kwargs or name in _WRITERS or (name.endswith("_") and not name.endswith("__")):
        return True
    names = () if code is None else code.co_varnames[: code.co_argcount]
    return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("inplace"))


def _function_modes() -> list[Any]:
    """The modes that see calls of torch functions, outermost first."""
    return list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]  # torch's
