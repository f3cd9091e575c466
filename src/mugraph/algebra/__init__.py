"""Abstract expressions: normal forms under the paper's axioms, and the test that prunes the search."""

from mugraph.algebra.expressions import Algebra
from mugraph.algebra.indexed import IndexedAlgebra, IndexedOracle
from mugraph.algebra.meeting import Meeting
from mugraph.algebra.normal_form import Expr, ExpressionTooLarge
from mugraph.algebra.subexpression import Oracle

__all__ = ["Algebra", "Expr", "ExpressionTooLarge", "IndexedAlgebra", "IndexedOracle", "Meeting", "Oracle"]
