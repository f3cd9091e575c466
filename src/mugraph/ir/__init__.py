"""The muGraph: graphs, the operator table, exact scalars, evaluation."""

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
