"""Algorithm 1 of the paper (section 4): the reference engine, nested generation of kernel and block graphs."""

from mugraph.search.algorithm1.engine import EnumerationReport, EnumerationResult, enumerate_graphs
from mugraph.search.algorithm1.options import EnumerationOptions

__all__ = ["EnumerationOptions", "EnumerationReport", "EnumerationResult", "enumerate_graphs"]
