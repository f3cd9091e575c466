"""Decomposing a graph without giving every composite operator of PyTorch the implementation that it has anyway.

For each graph `torch.export` looks all composite operators up, and registers a decomposition of each under two dozen dispatch
keys until the graph is decomposed: most of the time that a small graph takes. What counts are those that are to stay calls, or to
become others than PyTorch makes of them by itself. Graphs of PyTorch's own operators reach no others, of which some may have been
registered since: their table is looked through once in a process, and where all of their calls stay as they are, only these are
overridden. Two private functions of PyTorch are replaced meanwhile; where a version has none of their names, it does as it always
does.

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
from torch import fx
from torch._export import utils
from torch.export import exported_program

_SPLIT = "_split_decomp_table_to_cia_and_python_decomp"
_LOOK_UP = "_materialize_cpp_cia_ops"
_OWN_NAMESPACES = frozenset({"aten", "prims", "prim"})
"""Of PyTorch's operators that it takes apart by itself."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_TABLES = 8
"""Tables of decompositions that are remembered, as they are split."""

Table = Mapping[torch._ops.OpOverload, Callable[..., Any]]
Split = Callable[[dict[torch._ops.OpOverload, Callable[..., Any]]], tuple[Table, Table]]


@contextlib.contextmanager
def fewer_overrides(graph: fx.Graph) -> Iterator[None]:
    """While a graph is decomposed; no operator may be registered meanwhile."""
    if not (hasattr(exported_program, _SPLIT) and hasattr(utils, _LOOK_UP)):
        yield
        return
    split: Split = getattr(exported_program, _SPLIT)

    def split_table(table: Table) -> tuple[Table, Table]:
        if has_operators_of_others(graph):
            return _without_usual(split, tuple(table.items()))
        composite, others = _split_once(split, tuple(table.items()))
        called = {node.target for node in graph.nodes if node.op == "call_function"}
        if all(_stays(operator, table, composite) for operator in called):
            composite = {operator: made for operator, made in composite.items() if operator in called}
        return composite, dict(others)

    with _replaced(exported_program, _SPLIT, split_table), _replaced(utils, _LOOK_UP, functools.cache(getattr(utils, _LOOK_UP))):
        yield


def has_operators_of_others(graph: fx.Graph) -> bool:
    """Whether some calls may be taken apart by Python that is not PyTorch's: operators that others have registered, or graphs."""
    called = (node.target for node in graph.nodes if node.op == "call_function")
    return not all(getattr(target, "namespace", None) in _OWN_NAMESPACES for target in called)


def _without_usual(split: Split, rows: tuple[tuple[torch._ops.OpOverload, Callable[..., Any]], ...]) -> tuple[Table, Table]:
    """The composite operators of a table, with all that are to stay calls, and the others."""
    composite, others = split(dict(rows))
    return {operator: made for operator, made in composite.items() if not is_usual(operator, made)}, others


@functools.lru_cache(maxsize=_TABLES)
def _split_once(split: Split, rows: tuple[tuple[torch._ops.OpOverload, Callable[..., Any]], ...]) -> tuple[Table, Table]:
    """The same, without composite operators that are not PyTorch's own."""
    composite, others = _without_usual(split, rows)
    return {operator: made for operator, made in composite.items() if operator.namespace in _OWN_NAMESPACES}, others


def _stays(operator: torch._ops.OpOverload, table: Table, composite: Table) -> bool:
    """Whether a call of PyTorch's own operator stays one, and calls none that could be seen."""
    if operator in table or operator._schema.is_mutable:
        return False
    return operator in composite or not operator.has_kernel_for_dispatch_key(_COMPOSITE)


def is_usual(operator: torch._ops.OpOverload, decomposition: Callable[..., Any]) -> bool:
    """Whether a decomposition is the operator's own composite kernel, in C++ or in Python, which PyTorch calls where it finds no
    other."""
    if operator.py_kernels.get(_COMPOSITE) is decomposition:
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
