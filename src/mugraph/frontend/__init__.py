"""From what people have to programs: PyTorch functions, the paper's workloads, and files named on the command line.

Nothing here imports PyTorch before it is needed. Each package below says in its docstring what its modules are for; it imports
from those above it in this list, and none imports back:

- `operators`: what PyTorch's operators mean, and a torch graph as a program.
- `onnx`: ONNX models as programs.
- `calls`: arguments and results, by structure and by name.
- `rewriting`: torch graphs as others that compute the same.
- `partitioning`: torch graphs cut into pieces that kernels can run.
- `recording`: a function as PyTorch records it.
- `symbolic_sizes`: recorded graphs that serve every size.

Beside them stands which function is meant: `files`, `workloads`, `workload_functions` and `handwritten` (muGraphs) name one,
`source_lines` says where in it something is, `comparison` on what two are compared, and `captured_tensors` which tensors that
they bring along are equal.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mugraph.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from mugraph.frontend.calls.pytree import Traced
    from mugraph.frontend.recording.torch_trace import RecordedCall

__all__ = ["load_tracer", "record", "require_torch", "trace"]


def trace(fn: Callable[..., Any], example_inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any]) -> Traced:
    """The program that a PyTorch function or module computes: a kernel graph of pre-defined operators.

    `example_inputs` are the positional arguments (a lone tensor is one argument) or, as a mapping, keyword arguments; they
    may nest tensors in tuples, lists and dicts. Only shapes, dtypes and values other than tensors are taken from them,
    and shapes are fixed from then on. Constants are exact (`Scalar.of`). Casts between floating-point types are operators where
    they are written as roundings, and otherwise change an output's dtype only (docs/verification.md, "Precision").

    Raises UnsupportedOperator, ShapeMismatch or InvalidInput with the operator and the line of Python at fault: for
    operators outside the table, control flow on tensor values, random numbers, functions that change their inputs, inputs
    that are not floating point or have no elements, and functions that return no tensor.
    """
    call = record(fn, example_inputs)
    from mugraph.frontend.recording.torch_trace import traced

    return traced(call)


def record(fn: Callable[..., Any], example_inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any]) -> RecordedCall:
    """A call of a PyTorch function or module as PyTorch records it, whatever operators and types are in it; see `trace`.

    Raises UnsupportedOperator, ShapeMismatch or InvalidInput with the line of Python at fault for what PyTorch cannot record.
    """
    require_torch("to optimize PyTorch functions")
    import torch

    from mugraph.frontend.recording.torch_trace import recorded_call

    if not callable(fn):
        raise InvalidInput(f"{fn!r} is not a function or module; give something that can be called on tensors")
    if inspect.isclass(fn):
        raise InvalidInput(f"{fn.__name__} is a class; give an instance of it, as {fn.__name__}(...), or a function")
    if isinstance(example_inputs, torch.Tensor):
        return recorded_call(fn, (example_inputs,), {})
    if isinstance(example_inputs, Mapping):
        return recorded_call(fn, (), example_inputs)
    if not isinstance(example_inputs, (tuple, list)):
        raise InvalidInput(f"example_inputs must be a tuple of tensors, not {type(example_inputs).__name__}")
    return recorded_call(fn, example_inputs, {})


@functools.cache
def load_tracer() -> None:
    """Load what PyTorch traces with, which takes seconds once in a process, by tracing the smallest of functions."""
    require_torch("to optimize PyTorch functions")
    import torch

    trace(torch.neg, (torch.zeros(1),))


def require_torch(purpose: str) -> None:
    """Raise InvalidInput, naming the remedy, when PyTorch is not installed."""
    if find_spec("torch") is None:
        raise InvalidInput(f"PyTorch is needed {purpose}: pip install torch (or write the program with mugraph.Program)")
