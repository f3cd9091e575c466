"""Running torch.export: from a function and example arguments to a recorded ATen graph, or one line saying why not."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_flatten

from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, UnsupportedOperator
from mugraph.frontend.aten import ROWS
from mugraph.frontend.restore import Arguments
from mugraph.frontend.source_lines import line_of_error, with_recorded_lines

_NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_ONE_AT_A_TIME = threading.RLock()
"""torch.export changes the state of the process while it runs, as silencing it does: threads take turns."""
_SHAPE_COMPLAINT = re.compile(r"shape|size|dim|broadcast|expand", re.IGNORECASE)


class Recorder(torch.nn.Module):
    """The function as a module from a flat list of tensors to one, which is all that torch.export has to know of it."""

    def __init__(self, fn: Callable[..., Any], arguments: Arguments, keep: Callable[[Any], None]) -> None:
        super().__init__()
        self.fn = with_recorded_lines(fn)
        self.arguments = arguments
        self.keep = keep

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Call the function, and `keep` what it returned for its structure."""
        returned = self.arguments.call(self.fn, tensors)
        self.keep(returned)
        return [leaf for leaf in tree_flatten(returned)[0] if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True, slots=True)
class Recording:
    """A function as torch.export has recorded it."""

    program: ExportedProgram
    recorder: Recorder
    returned: Any
    """What the function returned: its structure, with tensors without data."""
    literals: frozenset[str]
    """Placeholders of tensors that the function itself writes down, as in torch.tensor(0.5)."""


def record(name: str, fn: Callable[..., Any], arguments: Arguments, examples: tuple[torch.Tensor, ...]) -> Recording:
    """Record `fn` on `examples`, the tensors among its arguments. Raises the error that says what of it cannot be a program."""
    returned: list[Any] = []
    recorder = Recorder(fn, arguments, returned.append)
    with _ONE_AT_A_TIME, torch.no_grad(), _quiet():
        try:
            program = torch.export.export(recorder, examples, strict=False)
            return Recording(program.run_decompositions(dict(_decompositions())), recorder, returned[-1], _literals(program))
        except (Exception, SystemExit) as error:  # whatever the function raises is a fact about the function
            raise _explained(name, error) from error


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of everything that has no row."""
    table: Mapping[Any, Callable[..., Any]] = default_decompositions()
    return {op: table[op] for op in table if op.overloadpacket.__name__ not in ROWS}


def _literals(program: ExportedProgram) -> frozenset[str]:
    lifted = torch.ops.aten.lift_fresh_copy.default
    return frozenset(node.args[0].name for node in program.graph.nodes if node.target is lifted)


def _explained(name: str, error: Exception | SystemExit) -> MugraphError:
    if isinstance(error, MugraphError):
        return error
    place = line_of_error(error)
    where = f"{name} ({place})" if place else name
    text = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    if isinstance(error, GuardOnDataDependentSymNode):
        return UnsupportedOperator(f"{where}: control flow depends on the values of a tensor; it may depend on shapes only")
    if "is mutated in the forward" in text:
        return InvalidInput(f"{where} changes a tensor it closes over; return the new value instead")
    if isinstance(error, (RuntimeError, ValueError)) and _SHAPE_COMPLAINT.search(text):
        return ShapeMismatch(f"{where}: {text}")
    return InvalidInput(f"{where} cannot be traced: {type(error).__name__}: {text}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch.export logs, warns and prints about functions that are refused in one line anyway."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        silence = io.StringIO()
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
