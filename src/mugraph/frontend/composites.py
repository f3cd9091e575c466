"""Decomposing a graph without giving every composite operator of PyTorch the implementation that it has anyway.

For each graph `torch.export` looks all composite operators up, and registers a decomposition of each under two dozen dispatch
keys until the graph is decomposed: most of the time that a small graph takes. What counts are those that are to stay calls, or to
become others than PyTorch makes of them by itself. Two private functions of PyTorch are replaced meanwhile; where a version has
none of their names, it does as it always does.

The graphs are PyTorch's but where it loses something: an implementation that is registered runs below autocasting, and below what
other operators do before autograd. Under autocast the products in `einsum` or an RNN are of the narrow type here, as they are
when the function runs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._export import utils
from torch.export import exported_program

_SPLIT = "_split_decomp_table_to_cia_and_python_decomp"
_LOOK_UP = "_materialize_cpp_cia_ops"

Table = Mapping[torch._ops.OpOverload, Callable[..., Any]]


@contextlib.contextmanager
def fewer_overrides() -> Iterator[None]:
    """While graphs are decomposed; no operator may be registered meanwhile."""
    if not (hasattr(exported_program, _SPLIT) and hasattr(utils, _LOOK_UP)):
        yield
        return
    split = getattr(exported_program, _SPLIT)

    def split_table(table: Table) -> tuple[Table, Table]:
        composite, others = split(table)
        return {operator: made for operator, made in composite.items() if not is_usual(operator, made)}, others

    with _replaced(exported_program, _SPLIT, split_table), _replaced(utils, _LOOK_UP, functools.cache(getattr(utils, _LOOK_UP))):
        yield


def is_usual(operator: torch._ops.OpOverload, decomposition: Callable[..., Any]) -> bool:
    """Whether a decomposition is the operator's own composite kernel, in C++ or in Python, which PyTorch calls where it finds no
    other."""
    if operator.py_kernels.get(torch._C.DispatchKey.CompositeImplicitAutograd) is decomposition:
        return True
    return isinstance(decomposition, functools.partial) and decomposition.keywords.get("kernel") is operator


@contextlib.contextmanager
def _replaced(module: ModuleType, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(module, name)
    try:
        setattr(module, name, function)
        yield
    finally:
        setattr(module, name, before)
