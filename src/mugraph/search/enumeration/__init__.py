"""Algorithm 1 of the paper (section 4): the reference engine, nested generation of kernel and block graphs."""

from mugraph.search.enumeration.engine import EnumerationReport, EnumerationResult, enumerate_graphs
from mugraph.search.enumeration.options import EnumerationOptions

__all__ = ["EnumerationOptions", "EnumerationReport", "EnumerationResult", "enumerate_graphs"]
