"""Results as torch operators, `torch.ops.namespace.name`: opaque calls that torch.export and torch.compile keep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mugraph.errors import InvalidInput
from mugraph.frontend import require_torch
from mugraph.ir.graph import Graph
from mugraph.results.superoptimized import Superoptimized

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

_QUALIFIED = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")


def torch_operator(name: str, result: Superoptimized) -> CustomOpDef:
    """Register `result` as the torch operator called `namespace::name`, and return it.

    The operator takes one tensor per input of `result.program`, in order (a module's parameters come after the function's
    arguments), of exactly their shapes and dtypes, and returns the program's outputs where the inputs lie: a tensor, or a tuple
    of several. Other shapes raise ShapeMismatch when it runs; tensors that lie elsewhere than the target, or on several GPUs,
    raise InvalidInput, also while it is traced. There is no gradient. Raises InvalidInput for a name of another form.
    """
    require_torch("to register operators")
    import torch

    from mugraph.frontend.operators.torch_casts import TORCH_DTYPES

    if not _QUALIFIED.fullmatch(name):
        raise InvalidInput(f"{name!r} is no name of a torch operator; use the form namespace::name")
    outputs, names, machine = result.program.output_tensors, result.program.input_names, result.executable.machine

    def as_returned(tensors: list[Any]) -> Any:
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def run(*tensors: Any) -> Any:
        return as_returned(result.executable(*(tensor.detach() for tensor in tensors)))

    def fake(*tensors: Any) -> Any:
        library = machine.arrays(tensors)
        for tensor, name in zip(tensors, names, strict=True):
            library.expect_place(tensor, name)
        return as_returned([tensors[0].new_empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype]) for tensor in outputs])

    operator = torch.library.custom_op(name, run, mutates_args=(), schema=_schema(result.program))
    operator.register_fake(fake)
    return operator


def _schema(program: Graph) -> str:
    """The operator's arguments and results in torch's notation."""
    arguments = ", ".join(f"Tensor x{number}" for number in range(len(program.inputs())))
    count = len(program.outputs)
    return f"({arguments}) -> " + ("Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})")
