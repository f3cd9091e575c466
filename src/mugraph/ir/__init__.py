"""The muGraph: graphs, the operator table, exact scalars, evaluation.

- Graphs: `graph` (read this first), `builder`, `validity`, `editing`, `liveness`; `program` (programs written by hand, with
  `literals`).
- Operators: `ops` (the table), `index_maps`, `definitions` (rows that others define), `elementary`, `lookups`, `scans`.
- Numbers and types: `scalar`, `dtypes`, `sizes`, `readings` (constants that were written as other numbers).
- What a graph means: `evaluate` under an `arithmetic`, as `float_arithmetic` and `known_elements`; `tiled_products`.
- Programs in other forms: `axes`, and without operators that have no axis: `cores` (lookups), `parts` by `regions` (slices).
- Text and files: `text`, `axes_text`, `formulas`, `tokens`, `serialize`.
"""

from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import FREE, Graph, Layout, Level, Node, Shape, Tensor, Value
from mugraph.ir.scalar import Scalar
from mugraph.ir.text import format_graph

__all__ = [
    "FREE",
    "DType",
    "Graph",
    "GraphBuilder",
    "Layout",
    "Level",
    "Node",
    "Scalar",
    "Shape",
    "Tensor",
    "Value",
    "format_graph",
]
