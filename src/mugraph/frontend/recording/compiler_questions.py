"""Whether a function asks how it is being run: what Dynamo reads of it may then be something else than what runs.

Dynamo answers such questions without a condition on sizes (`torch.compiler.is_dynamo_compiling()`, and functions of
`torch.fx.experimental.symbolic_shapes`, of which some answer for a symbol and others for one size).
"""

from __future__ import annotations

import contextlib
import cProfile
import inspect
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch.fx import _symbolic_trace
from torch.fx.experimental import symbolic_shapes

_OF_SIZES = (
    *("statically_known_true", "statically_known_false", "has_static_value", "is_symbolic"),
    *("is_concrete_int", "is_concrete_bool", "is_concrete_float"),
    *("has_guarding_hint", "guarding_hint_or_throw", "optimization_hint"),
    *("guard_or_true", "guard_or_false", "guard_size_oblivious"),
)
_ASKED = (
    *(torch.compiler.is_dynamo_compiling, _symbolic_trace.is_fx_tracing, eval_frame._is_in_optimized_module),
    *(vars(symbolic_shapes)[name] for name in _OF_SIZES if name in vars(symbolic_shapes)),
)
_QUESTIONS: frozenset[CodeType] = frozenset(inspect.unwrap(asked).__code__ for asked in _ASKED)
"""Questions that Dynamo and torch.export answer in different ways, or one way for all sizes and another for one."""
_NAMES = frozenset(code.co_name for code in _QUESTIONS)
"""Looked at first: a name has its hash, while that of a piece of code is computed whenever it is asked for."""


class _Listening(threading.local):
    """Where this thread writes down the questions of functions that it records; nobody asks for them unless it is a list."""

    asked: list[str] | None = None


_LISTENING = _Listening()


@contextlib.contextmanager
def asked_outside_torch() -> Iterator[list[str]]:
    """The names of the questions that functions ask which this thread records meanwhile, from anywhere but PyTorch's own code."""
    before, asked = _LISTENING.asked, list[str]()
    _LISTENING.asked = asked
    try:
        yield asked
    finally:
        _LISTENING.asked = before


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Write down what is asked while something runs that PyTorch did not write, for `asked_outside_torch` around it.

    Every call of a function takes twice as long meanwhile, so that what PyTorch does by itself is better done outside.
    """
    asked = _LISTENING.asked
    if asked is None:
        yield
        return
    before = sys.getprofile()

    def look(frame: FrameType, event: str, value: Any) -> None:
        if event != "call" or frame.f_code.co_name not in _NAMES or frame.f_code not in _QUESTIONS or frame.f_back is None:
            return
        home: str = frame.f_back.f_globals.get("__name__") or ""
        if home.partition(".")[0] != "torch":
            asked.append(frame.f_code.co_name)

    sys.setprofile(look)
    try:
        yield
    finally:
        _set_again(before)


def _set_again(profiler: Any) -> None:
    """Let a profiler look at calls again that did before. One in C is nothing that Python could call: cProfile's begins again,
    and those that Python cannot begin, as of torch.profiler for stacks, see no more calls."""
    if profiler is None or callable(profiler):
        sys.setprofile(profiler)
        return
    sys.setprofile(None)
    if isinstance(profiler, cProfile.Profile):
        profiler.enable()
