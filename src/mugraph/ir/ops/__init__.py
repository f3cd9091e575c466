"""The operators that nodes of a graph name: one row each in one table (`table`), of which everything else follows.

`row` is what a row is, `shape_rules` and `meanings` are the functions that rows are made of.
"""

from mugraph.ir.ops.meanings import LOWEST, TRUTH
from mugraph.ir.ops.row import Call, Kind, Operator, Scope
from mugraph.ir.ops.shape_rules import LEAST, partition_of
from mugraph.ir.ops.table import (
    GRAPH_DEFINED,
    OPERATORS,
    ROUNDINGS,
    apply_call,
    flops,
    flops_of,
    index_maps_of,
    is_contraction,
    is_reduction,
    is_scan,
    opaque,
    operator,
)

__all__ = [
    "GRAPH_DEFINED",
    "LEAST",
    "LOWEST",
    "OPERATORS",
    "ROUNDINGS",
    "TRUTH",
    "Call",
    "Kind",
    "Operator",
    "Scope",
    "apply_call",
    "flops",
    "flops_of",
    "index_maps_of",
    "is_contraction",
    "is_reduction",
    "is_scan",
    "opaque",
    "operator",
    "partition_of",
]
