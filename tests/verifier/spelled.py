"""Programs of PyTorch functions by the frontend's rows alone: as `mugraph.frontend.trace` makes them, in milliseconds.

Tracing with torch.export takes a quarter of a second each, which is too much for hundreds of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mugraph.frontend.operators.aten import ROWS
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program, ProgramTensor

_ALIASES: dict[str, Callable[..., Any]] = {
    "norm": lambda x, dim, keepdim=False: ROWS["linalg_vector_norm"](x, 2, dim, keepdim),
    "normalize": lambda x, dim, eps, p=2: ROWS["div"](x, ROWS["clamp_min"](ROWS["linalg_vector_norm"](x, 2, dim, True), eps)),
    "logsumexp": lambda x, dim, keepdim=False: ROWS["logsumexp"](x, dim, keepdim),
    "reshape": lambda x, *shape: ROWS["view"](x, shape),
    "expand": lambda x, *shape: ROWS["expand"](x, shape),
    "repeat": lambda x, *times: ROWS["repeat"](x, times),
    "permute": lambda x, *dims: ROWS["permute"](x, dims),
}


class Spelled:
    """A tensor of a program that PyTorch's functions and a tensor's methods and operators can be applied to."""

    def __init__(self, tensor: ProgramTensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _applied(function.__name__, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: _applied(name, self, *args, **kwargs)

    def __add__(self, other: Any) -> Any:
        return _applied("add", self, other)

    def __sub__(self, other: Any) -> Any:
        return _applied("sub", self, other)

    def __mul__(self, other: Any) -> Any:
        return _applied("mul", self, other)

    def __truediv__(self, other: Any) -> Any:
        return _applied("div", self, other)

    def __radd__(self, other: Any) -> Any:
        return _applied("add", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _applied("mul", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _applied("rsub", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _applied("mul", _applied("reciprocal", self), other)

    def __pow__(self, exponent: Any) -> Any:
        return _applied("pow", self, exponent)

    def __matmul__(self, other: Any) -> Any:
        return _applied("matmul", self, other)

    def __neg__(self) -> Any:
        return _applied("neg", self)


def _applied(name: str, *args: Any, **kwargs: Any) -> Any:
    rule = _ALIASES.get(name) or ROWS[name]
    given = {key: _bare(value) for key, value in kwargs.items() if key not in ("inplace", "_stacklevel", "out")}
    result = rule(*map(_bare, args), **given)
    return Spelled(result) if isinstance(result, ProgramTensor) else result


def _bare(value: Any) -> Any:
    return value.tensor if isinstance(value, Spelled) else value


def graph_of(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> Graph:
    """The kernel graph of a function of tensors of these shapes."""
    program = Program()
    inputs = [Spelled(program.input(f"x{number}", shape)) for number, shape in enumerate(shapes)]
    program.output(function(*inputs).tensor)
    return program.graph
