"""Which line of the user's Python a traced operator or an error comes from."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import torch

E = TypeVar("E", bound=BaseException)
_OURS = Path(__file__).parent
_TORCH = Path(torch.__file__).parent
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def with_recorded_lines(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under the one name, `forward`, whose lines torch.export records; modules have it already."""
    if not isinstance(fn, FunctionType):
        return fn
    code = fn.__code__.replace(co_name="forward")
    renamed = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    renamed.__kwdefaults__ = fn.__kwdefaults__
    return renamed


def line_of_node(node: torch.fx.Node) -> str:
    """`file.py:12` of the call that became `node`; empty when PyTorch did not record it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return _innermost([(file, int(line)) for file, line in frames])


def with_line(node: torch.fx.Node, line: str) -> torch.fx.Node:
    """The node, of which `line_of_node` then gives this line, unless it is empty."""
    file, _, number = line.rpartition(":")
    if file and number.isdigit():
        node.meta["stack_trace"] = f'File "{file}", line {number}'
    return node


def line_of_error(error: BaseException) -> str:
    """`file.py:12` where `error` left the user's code; empty when it never passed through it."""
    return _innermost([(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)])


def from_users_code(error: E) -> E:
    """The error, shown from where it came through the user's code, if it did, and not from PyTorch's tracer on."""
    trace = error.__traceback__
    while trace is not None and not _is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def _innermost(frames: list[tuple[str, int]]) -> str:
    return next((f"{Path(file).name}:{line}" for file, line in reversed(frames) if _is_users(file)), "")


def _is_users(file: str) -> bool:
    parents = Path(file).parents
    return _OURS not in parents and _TORCH not in parents and not file.startswith("<")
